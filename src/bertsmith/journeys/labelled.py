"""The labelled rows of `solve`: read, their task found, and divided into what is learned and what is held out.

Of few rows none are set aside for dev: each of five parts is held out in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from rich.console import Console

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import DataSource, ReadingOptions
from bertsmith.finetune.datasets.related import RelatedTexts
from bertsmith.finetune.datasets.texts import ScoredText
from bertsmith.finetune.look import Look, read_likely
from bertsmith.finetune.reading import tell_files
from bertsmith.finetune.splits import fold_numbers, held_out, together
from bertsmith.finetune.tasks import all_tasks, task_named
from bertsmith.finetune.tasks.embed import EmbeddingTask
from bertsmith.finetune.tasks.embed_kinds import to_learn
from bertsmith.finetune.tasks.task import AdditiveTask, OutputsTask, Task
from bertsmith.retrieval.lexical import LexicalSearch

SHAPES = ("classify", "multilabel", "regress", "tag", "answer", "choose", "rank", "embed")
"""The tasks whose labels can be solved for: outputs can be added up, or vectors searched beside words."""

FEW = 500
"""Rows below which parts of the training file are held out in turn."""
FOLDS, FEWEST = 5, 4


@dataclass(frozen=True)
class LabelledRows:
    """What is learned from, and what is held out.

    Attributes:
        parts: `train`, and of `dev` and `test` what there is.
        split: which rows of the training file each part has, or `folds`: the part of each row; empty where files say.
        looks: what was understood of each file.
    """

    task: OutputsTask[Any, Any]
    parts: dict[str, list[Any]]
    split: dict[str, list[int]]
    looks: dict[str, Look]

    @property
    def folds(self) -> list[int]:
        """The part of each row, where all are held out in turn; else empty."""
        return self.split.get("folds", [])


def read_rows(
    sources: Mapping[str, DataSource],
    reading: ReadingOptions,
    name: str | None,
    given: Mapping[str, Any],
    seed: int,
    console: Console,
    has_encoder: bool,
) -> LabelledRows:
    """Reads the files, and divides the training file where there is no dev file.

    Args:
        name: of the task; None finds it by the labels.
        given: settings of the task.
        has_encoder: whether vectors can be made.
    """
    if "dev" in sources and (reading.group_column is not None or reading.time_column is not None):
        raise ConfigError("--group-column and --time-column divide a training file; leave out --dev, or these")
    train, read = sources["train"], list[Any]()
    if name is None:
        # 每类一个文件夹：不是语料
        is_folder = isinstance(train, (str, Path)) and Path(train).is_dir()
        likely, read = read_likely(train, "classify" if is_folder else None, reading)
        name = likely or "classify"
    if name not in SHAPES:
        known = f"solve finds {', '.join(SHAPES)}; for {name}: bertsmith finetune {name}"
        raise ConfigError(known if name in all_tasks() else f"--task {name!r} is unknown; use {', '.join(SHAPES)}")
    reader = task_named(name).spec.reader
    parts = {"train": read or reader.read(train, reading, task=name, name="train")}
    held = {part: source for part, source in sources.items() if part not in parts}
    parts |= {part: reader.read(source, reading, task=name, name=part) for part, source in held.items()}
    looks = tell_files(name, sources, parts, reading, console=console)
    task = cast("OutputsTask[Any, Any]", task_named(name).of(parts["train"], **given))
    if isinstance(task, EmbeddingTask):
        _check_vectors(parts, has_encoder)
        parts["train"] = to_learn(parts["train"])
    if name == "classify" and len(task.config_fields()["id2label"]) == len(parts["train"]):
        raise InputError("every row of the training file has a class of its own; nothing can be learned from one row")
    split: dict[str, list[int]] = {}
    whole = parts["train"]
    by_time = any(getattr(one, "time", None) is not None for one in whole)
    if "dev" not in parts and task.has_folds and len(whole) < FEW and not by_time:
        groups = together(task, whole, FOLDS)
        different = len(set(groups))
        if different < FEWEST:
            raise InputError(
                f"the training file has {different} different examples, too few to hold some out; give --dev, or more"
            )
        split = {"folds": _folds(task, whole, min(FOLDS, different), seed, groups)}
    elif "dev" not in parts:
        split = held_out(task, whole, seed, with_test="test" not in parts)
        parts |= {part: [whole[number] for number in rows] for part, rows in split.items()}
    if isinstance(task, AdditiveTask):
        for examples in parts.values():
            task.targets(examples)
    task.check_dev(parts.get("dev", whole))
    return LabelledRows(task, parts, split, looks)


def _folds(task: Task[Any, Any], examples: Sequence[Any], most: int, seed: int, groups: Sequence[int]) -> list[int]:
    """Returns the part of each example: at most so many parts that the metric can score each of them."""
    tried = [fold_numbers(task, examples, count, seed, groups) for count in range(most, 1, -1)]
    # 最少见的类比份数还少时，有的份里没有它，按它算的分数就无从谈起
    for folds in tried:
        if all(can_score(task, [examples[n] for n in np.flatnonzero(np.asarray(folds) == p)]) for p in set(folds)):
            return folds
    return tried[0]


def can_score(task: Task[Any, Any], examples: Sequence[Any]) -> bool:
    """Tells whether the metric can tell good epochs from bad ones on these examples."""
    try:
        task.check_dev(examples)
    except InputError:
        return False
    return True


def _check_vectors(parts: Mapping[str, list[Any]], has_encoder: bool) -> None:
    """Makes sure that vectors can be learned from these files, and scored on them beside words."""
    kinds = {type(to_learn(examples)[0]) for examples in parts.values()}
    if not kinds <= {RelatedTexts, ScoredText}:
        raise ConfigError("texts with classes: say --task classify; for vectors of them: bertsmith finetune embed")
    if len(kinds) > 1:
        raise InputError("some files hold pairs of texts, others pairs with scores; give the same kind for all")
    if not has_encoder:
        raise ConfigError("words alone make no vectors; give an encoder with --model, or text with --text")
    if RelatedTexts in kinds:
        # 缺库要在训练之前说
        LexicalSearch.build(["a word"])
