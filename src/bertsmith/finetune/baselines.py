"""Baselines, scored by the task itself: they show what BERT buys.

For classification, `majority` answers with the commonest class, and `tfidf` is logistic regression over n-grams, the
method to beat for any classifier of texts. For tagging, every word gets the tag that it had most often.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from rich.console import Console

from bertsmith.errors import RunFolderError
from bertsmith.files import locked, read_json, write_json
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.task import AdditiveTask, Evaluation, Task
from bertsmith.finetune.words import majority, train_words
from bertsmith.inference.engine import DEFAULT
from bertsmith.inference.tag import WordTags

BASELINES_FILE = "baselines.json"
MOST_FREQUENT_TAG = "most frequent tag"


@dataclass(frozen=True)
class BaselineScores:
    """The scores of a run's baselines by name, and the file they were scored on; only older versions wrote a `seed`."""

    on: Literal["dev", "test"]
    evaluations: Mapping[str, Evaluation]
    seed: int = 0


def read_baselines(run: str | Path) -> BaselineScores | None:
    """Reads the baselines of a run folder; None where there are none."""
    path = Path(run) / BASELINES_FILE
    advice = "remove it and run the same command again"
    return read_json(path, BaselineScores, RunFolderError, advice) if path.exists() else None


def add_baselines(
    run: Path,
    task: Task[Any, Any],
    train: Sequence[Any],
    dev: Sequence[Any],
    test: Sequence[Any] | None,
    *,
    console: Console | None = None,
) -> dict[str, Evaluation]:
    """Trains the baselines that a run folder has no scores of; returns the evaluations of all it has then, by name.

    `dev` chooses the strength of `tfidf`; it is scored where there is no test file. Each score is kept at once.
    """
    on: Literal["dev", "test"] = "dev" if test is None else "test"
    scored = dev if test is None else test
    with locked(run):
        kept = read_baselines(run) or BaselineScores(on, {})
        if kept.on != on:
            raise RunFolderError(f"{run / BASELINES_FILE}: is on {kept.on}; remove it or choose another --out")
        evaluations = dict(kept.evaluations)
        for name, predicted in baselines_of(task).items():
            if name in evaluations:
                continue
            begun = time.monotonic()
            evaluations[name] = task.evaluate(scored, predicted(train, dev, scored))
            # 每算完一个就写盘：被杀掉之后只补算缺的
            write_json(run / BASELINES_FILE, BaselineScores(on, evaluations))
            if console is not None:
                score, seconds = evaluations[name].metrics[task.metric], time.monotonic() - begun
                console.print(f"baseline {name}: {task.metric} {score:.3f} ({seconds:.0f} s)", highlight=False)
    return evaluations


def baselines_of(task: Task[Any, Any]) -> Mapping[str, Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]]:
    """Returns the baselines of a task by name: each maps train, dev and what is scored to predictions."""
    if not isinstance(task, ClassificationTask):
        return {MOST_FREQUENT_TAG: lambda train, _, scored: most_frequent_tags(train, [one.words for one in scored])}

    def said(model: Any, scored: Sequence[Any]) -> Any:
        return task.predicted(task.pipeline(model, cast("Any", None), DEFAULT), scored)

    return {
        "majority": lambda train, _, scored: said(majority(cast("AdditiveTask[Any, Any]", task), train), scored),
        "tfidf": lambda train, dev, scored: said(train_words(task, train, dev)[0], scored),
    }


def most_frequent_tags(train: Sequence[TaggedWords], sentences: Sequence[Sequence[str]]) -> list[WordTags]:
    """Tags every word as it was tagged most often in training; words that did not occur get the commonest tag.

    Of equally frequent tags it is the first in the alphabet. Its probability is how often it was right in training.
    """
    by_word: dict[str, Counter[str]] = {}
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    default = _commonest(sum(by_word.values(), Counter[str]()))
    commonest = {word: _commonest(counts) for word, counts in by_word.items()}
    found = [[commonest.get(word, default) for word in words] for words in sentences]
    return [WordTags(tuple(tag for tag, _ in words), tuple(share for _, share in words)) for words in found]


def _commonest(counts: Counter[str]) -> tuple[str, float]:
    tag = min(counts, key=lambda tag: (-counts[tag], tag))
    return tag, counts[tag] / counts.total()
