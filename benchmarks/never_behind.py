"""Whether the answer of `bertsmith solve` is behind the best single method: six data sets, cut to few and many labels.

Rows are drawn from the training file; nobody has a dev part, so each side holds out as it likes. All of test is scored,
but for rows with labels that were not drawn.
The single methods are those that `solve` tried, each folder scored by itself, and one from outside:

- texts: scikit-learn's TF-IDF of words and of characters with LogisticRegressionCV (`few_labels.py`)
- tags: a conditional random field over words and their neighbours (sklearn-crfsuite), its strength by four folds
- pairs with a score: the cosine of their TF-IDF vectors of words and characters
- answers: the sentence that BM25 puts first

English is given a published sentence encoder of 6 layers, Chinese words alone. A line says the score of the answer and
of each method, and the standard error of the answer's score (of its bootstrap interval). `behind` is by how many
standard errors the best single method, which only test can name, is above the answer.

    python benchmarks/never_behind.py --draws 3
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_union

import bertsmith
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.metrics.ranking import pearson
from bertsmith.finetune.tasks import task_named
from bertsmith.inference.tag import WordTags
from bertsmith.seeding import generator
from few_labels import MODEL, simple
from finetune import SETTINGS, TASK_DATA, Split
from measured import Row, add_options, results_of
from solve import STRENGTHS, crfsuite, few_of, labels_in, looks_of, row_of
from tasks_from_nothing import best_sentences

CUTS = {
    "sst2": (50, 500, 5000),
    "chnsenticorp": (50, 500, 5000),
    "stsb": (50, 500, 5000),
    "ud": (50, 500),
    "wnut17": (50, 500),
    "xquad": (100, 500),
}
TEXTS = ("sst2", "chnsenticorp", "stsb", "xquad")
"""Tasks whose peers are at hand in any case."""
FOLDS = 4


def main() -> None:
    """Runs what has no line yet, and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--tasks", nargs="+", choices=CUTS, default=list(CUTS))
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=3.0, help="that solve is given")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = results_of("never_behind", options)
    if not find_spec("sklearn_crfsuite"):
        options.tasks = [task for task in options.tasks if task in TEXTS]
        print("tags are left out: their peer needs pip install sklearn-crfsuite")
    for draw in range(1 if options.quick else options.draws):
        for task in options.tasks:
            split = split_of(task)
            for rows in CUTS[task][:1] if options.quick else CUTS[task]:
                asked = {"task": task, "rows": rows, "draw": draw, "minutes": 0.1 if options.quick else options.minutes}
                print(results.get(asked, partial(measured, few_of(split) if options.quick else split, asked)))


@cache
def split_of(task: str) -> Split:
    """Returns all rows of a task; of questions on passages the first of five folds."""
    if task != "stsb":
        return SETTINGS[task].splits()[0]
    columns = ReadingOptions(text_column=0, pair_column=1, label_column=(2,))
    reader = task_named("regress").spec.reader
    return Split(*(reader.read(TASK_DATA / "stsb" / f"{name}.csv", columns) for name in ("train", "dev", "test")))


def measured(split: Split, asked: Row) -> Row:
    """Returns how the answer does, and each method alone."""
    task, figure = ("regress", "pearson") if asked["task"] == "stsb" else _named(asked["task"])
    order = generator(asked["draw"], "never behind").permutation(len(split.train))[: asked["rows"]]
    train = [split.train[number] for number in order.tolist()]
    known = {label for one in train for label in labels_in(one)}
    scored = [one for one in split.test if labels_in(one) <= known]
    rows, test = ([shown(one) for one in part] for part in (train, scored))
    how: dict[str, Any] = {"minutes": asked["minutes"], "seed": asked["draw"], "device": "cpu"}
    how |= {} if asked["task"] == "chnsenticorp" else {"model": MODEL}
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out"
        found = bertsmith.solve(rows, out, test=test, task=task, **how)
        alone = {"peer": PEERS[task](train, scored, asked["task"])}
        for one in found.details.tries:
            part = out / "parts" / "".join(each if each.isalnum() or each in "-." else "-" for each in one.name)
            folder = part / "model" if (part / "model").exists() else part
            if (folder / "task.json").exists():
                alone[one.name.split(" ")[0]] = bertsmith.evaluate(folder, test, device="cpu").metrics[figure]
        shutil.rmtree(out)
    assert found.details.test is not None
    interval, best = found.details.test.intervals[figure], max(alone, key=lambda name: alone[name])
    error = (interval.high - interval.low) / 3.92
    score = found.metrics[figure]
    return {
        "score": score,
        "standard error": error,
        "answer": found.details.answer,
        "best alone": best,
        "behind": (alone[best] - score) / error if error else 0.0,
        **alone,
    }


def _named(task: str) -> tuple[str, str]:
    return SETTINGS[task].task, SETTINGS[task].figure


def shown(example: Any) -> dict[str, Any]:
    """Returns an example as a row of a file."""
    if hasattr(example, "score"):
        return {"sentence1": example.text, "sentence2": example.pair, "score": example.score}
    return row_of(example)


def texts(train: Sequence[Any], test: Sequence[Any], task: str) -> float:
    """Returns the accuracy of the simple method."""
    # 中文不用空格分词：一到三个字
    characters = {"analyzer": "char", "ngram_range": (1, 3)} if task == "chnsenticorp" else {}
    return float(simple(train, test, **characters)["score"])


def tags(train: Sequence[Any], test: Sequence[Any], task: str) -> float:
    """Returns the score of a conditional random field."""
    judge, looks = task_named("tag").of(train), [looks_of(one.words) for one in train]
    folds = np.arange(len(train)) % FOLDS

    def learned(strength: float, places: Sequence[int]) -> Callable[[Sequence[Any]], float]:
        tell = crfsuite([looks[place] for place in places], [train[place].tags for place in places], strength)

        def score(examples: Sequence[Any]) -> float:
            told = [WordTags(tuple(map(str, tell(looks_of(one.words)))), (1.0,) * len(one.words)) for one in examples]
            return judge.metrics(examples, told)[SETTINGS[task].figure]

        return score

    def held_out(strength: float) -> float:
        parts = [(np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)) for fold in range(FOLDS)]
        return float(np.mean([learned(strength, rest.tolist())([train[n] for n in own]) for rest, own in parts]))

    return learned(max(STRENGTHS, key=held_out), range(len(train)))(test)


def scores(train: Sequence[Any], test: Sequence[Any], _task: str) -> float:
    """Returns how the cosines of TF-IDF vectors go with the scores."""
    words, letters = TfidfVectorizer(sublinear_tf=True), TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5))
    read = make_union(words, letters).fit([text for one in train for text in one.texts])
    first, second = (read.transform([one.texts[place] for one in test]) for place in (0, 1))
    return pearson(np.asarray(first.multiply(second).sum(axis=1)).ravel(), np.array([one.score for one in test]))


def answers(_train: Sequence[Any], test: Sequence[Any], task: str) -> float:
    """Returns the F1 of the sentence that BM25 puts first."""
    return float(best_sentences(task, Split([], [], test))["score"])


PEERS: Mapping[str, Callable[[Sequence[Any], Sequence[Any], str], float]] = {
    "classify": texts,
    "tag": tags,
    "regress": scores,
    "answer": answers,
}


if __name__ == "__main__":
    main()
