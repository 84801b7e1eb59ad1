"""What ten minutes of pre-training from nothing are worth on tasks, beside simpler methods that learn from the labels.

Every contender is pre-trained on the English corpus for the same processor time on one thread, with one vocabulary of
8,192 pieces, and fine-tuned with everything as `bertsmith finetune` has it:

- modernbert, bert: the recipes of today
- bert, 2018: what the paper trained with, in batches that suit a short run: AdamW, 15 % masked, dropout 0.1, first
  vectors drawn at random, warm-up over a tenth
- baselines: for sentiment TF-IDF with logistic regression; for tags the most frequent tag of each word, and logistic
  regression over the word, its ends and its neighbours; for questions the sentence of the passage that BM25 puts first

    sst2     sentiment, 6,920 sentences                  accuracy on test
    wnut17   named entities in noisy text                entity F1 on test
    ud       parts of speech, trained on the dev file    word accuracy on test
    xquad    questions on English passages, one fold     F1

    python benchmarks/tasks_from_nothing.py --minutes 10 --seeds 3
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bertsmith.finetune.baselines import baselines_of, most_frequent_tags
from bertsmith.finetune.metrics.spans import squad_scores
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import task_named
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.kernels.layers import native_precision
from bertsmith.retrieval.lexical import LexicalSearch
from bertsmith.train.choosing import recipe_for
from families_learning import fine_tuned, pretrained
from finetune import SETTINGS, Split
from measured import Row, add_options, results_of
from objectives import prepare

PAPER: Mapping[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "warmup_share": 0.1,
    "mask_rate": 0.15,
    "dropout": 0.1,
    "sinusoids": 0.0,
    "first_vectors": "drawn",
}
CONTENDERS: Mapping[str, Mapping[str, Any]] = {
    "modernbert": {"family": "modernbert"},
    "bert": {"family": "bert", "objective": "mlm"},
    "bert, 2018": {"family": "bert", "objective": "mlm", **PAPER},
}
EPOCHS = FineTuningSettings().epochs
TASKS = ("sst2", "wnut17", "ud", "xquad")
SENTENCE = re.compile(r"[^.!?]+[.!?]*\s*")


def main() -> None:
    """Trains what is not trained yet, and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--size", default="mini")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--precision", choices=("float32", "bf16"), default=native_precision("cpu"))
    parser.add_argument("--out", type=Path, default=Path("runs/tasks_from_nothing"))
    options = parser.parse_args()
    if options.quick:
        options.contenders, options.size, options.minutes, options.seeds = ["bert"], "tiny", 0.05, 1
        options.out = Path("runs/bench-quick/tasks_from_nothing")
    torch.set_num_threads(options.threads)
    corpus, tokenizer = prepare(options.out, quick=options.quick)
    splits = {task: SETTINGS[task].splits()[0] for task in options.tasks}
    if options.quick:
        # 只取训练集：几十句里没有的标签，别的文件里会有
        splits = {task: Split(split.train[:64], *2 * [split.train[:16]]) for task, split in splits.items()}
    results = results_of("tasks_from_nothing", options)
    how = {"size": options.size, "minutes": options.minutes, "precision": options.precision}
    runs: dict[str, Path] = {}
    for contender in options.contenders:
        recipe = recipe_for(options.size, precision=options.precision, **CONTENDERS[contender])
        runs[contender] = options.out / "-".join(map(str, (contender.replace(", ", "-"), *how.values())))
        pretraining = partial(pretrained, runs[contender], recipe, corpus, tokenizer, options.minutes)
        print(results.get({"task": "pre-training", "contender": contender, **how}, pretraining))
    for task, split in splits.items():
        for contender, run in runs.items():
            for seed in range(options.seeds):
                asked = {"task": task, "contender": contender, **how, "seed": seed}
                print(results.get(asked, partial(score_of, run / "model", task, split, seed)))
        for name, baseline in BASELINES[task].items():
            work = partial(baseline, task, split)
            print(results.get({"task": task, "contender": name, "seed": 0}, work))


def score_of(model: Path, task: str, split: Split, seed: int) -> Row:
    """Returns the task's own figure of a fine-tuned model."""
    found = fine_tuned(model, SETTINGS[task], split, seed, EPOCHS)
    return {"score": found[SETTINGS[task].figure], "epoch": found["epoch"], "rate": found["rate"]}


def sentiment_baseline(name: str, _task: str, split: Split) -> Row:
    """Returns the score of a baseline of `bertsmith finetune classify --baselines`."""
    task = ClassificationTask.of(split.train)
    found = baselines_of(task)[name](split.train, split.dev, split.test)
    return {"score": task.metrics(split.test, found)["accuracy"]}


def frequent_tags(task: str, split: Split) -> Row:
    """Returns the score of the most frequent tag of each word."""
    found = most_frequent_tags(split.train, [example.words for example in split.test])
    return {"score": task_named("tag").of(split.train).metrics(split.test, found)[SETTINGS[task].figure]}


def best_sentences(_task: str, split: Split) -> Row:
    """Returns the F1 of answering with the sentence of the passage that has the question's words."""
    found = [_best_sentence(asked.question, asked.context) for asked in split.test]
    return {"score": squad_scores(found, [[one.text for one in asked.answers] for asked in split.test]).f1}


def _best_sentence(question: str, passage: str) -> str:
    sentences = SENTENCE.findall(passage)
    return str(sentences[int(LexicalSearch.build(sentences).scores(question).argmax())])


_TAGGING = {"most frequent tag": frequent_tags}
BASELINES: Mapping[str, Mapping[str, Callable[[str, Split], Row]]] = {
    "sst2": {"tfidf": partial(sentiment_baseline, "tfidf")},
    "wnut17": _TAGGING,
    "ud": _TAGGING,
    "xquad": {"best sentence": best_sentences},
}


if __name__ == "__main__":
    main()
