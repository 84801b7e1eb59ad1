"""From a labelled file to a task's examples: one door to all readers, for the command line.

Every option of `ReadingOptions` belongs to some tasks only; one that a task has no use for is refused, not ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.choices import ChoiceColumns, read_choices
from bertsmith.finetune.datasets.questions import read_squad
from bertsmith.finetune.datasets.rankings import RankingColumns, read_rankings
from bertsmith.finetune.datasets.readers import Columns, read_labelled, read_multilabelled, read_scored
from bertsmith.finetune.datasets.tagged import ConlluField, read_conll, read_conllu

Column = str | int


@dataclass(frozen=True)
class ReadingOptions:
    """How a labelled file is read; None means "as the reader finds it".

    Attributes:
        text_column: name or number of the column with the text, the query or the context.
        pair_column: that of the second text, of the text that is ranked, or of what begins every choice.
        label_column: that of the label, the labels, the number or the right choice.
        choice_columns: those of the choices.
        header: whether the first row of a TSV or CSV is names.
        separator: between several labels.
        word_column: number of the column with the word, of CoNLL files.
        tag_column: number of the column with the tag; or `upos`, `xpos` or `feats` of CoNLL-U.
        alternatives: separates tags of which the first counts.
        faults: `refuse` or `skip` questions whose answer is not where the file says.
        encoding: `auto` or a codec's name.
    """

    text_column: Column | None = None
    pair_column: Column | None = None
    label_column: Column | None = None
    choice_columns: tuple[Column, ...] | None = None
    header: bool | None = None
    separator: str | None = None
    word_column: int | None = None
    tag_column: Column | None = None
    alternatives: str | None = None
    faults: str | None = None
    encoding: str = "auto"


def read_examples(
    task: str, path: str | Path, options: ReadingOptions | None = None, *, task_name: str = ""
) -> list[Any]:
    """Reads a labelled file for a task.

    Args:
        task: its name, such as `classify`.
        path: the file.
        options: how it is read.
        task_name: whose files these are, for messages; empty for the same.

    Raises:
        ConfigError: an option is given that the task's files have no use for.
        InputError: the file is not usable; the message names file and line.
    """
    options = options or ReadingOptions()
    read, known = _READERS[task]
    for field in fields(options):
        if field.name not in (*known, "encoding") and getattr(options, field.name) is not None:
            raise ConfigError(
                f"--{field.name.replace('_', '-')} is not for the files of {task_name or task}; leave it out"
            )
    return read(Path(path), options)


@dataclass(frozen=True)
class TaskReader:
    """Reads the files of one task."""

    of: str

    def read(self, path: str | Path, options: ReadingOptions | None = None, *, task: str = "") -> list[Any]:
        """Reads a labelled file, see `read_examples`; `task` is whose files these are, for messages."""
        return read_examples(self.of, path, options, task_name=task)


def reader(task: str) -> TaskReader:
    """Returns the reader of a task's files."""
    return TaskReader(task)


def _columns(options: ReadingOptions) -> Columns:
    return Columns(options.text_column, options.pair_column, options.label_column, options.header)


def _classes(path: Path, options: ReadingOptions) -> list[Any]:
    return list(read_labelled(path, _columns(options), encoding=options.encoding))


def _label_sets(path: Path, options: ReadingOptions) -> list[Any]:
    separator = "," if options.separator is None else options.separator
    return list(read_multilabelled(path, _columns(options), separator=separator, encoding=options.encoding))


def _numbers(path: Path, options: ReadingOptions) -> list[Any]:
    return list(read_scored(path, _columns(options), encoding=options.encoding))


def _choices(path: Path, options: ReadingOptions) -> list[Any]:
    columns = ChoiceColumns(
        options.text_column, options.pair_column, options.choice_columns, options.label_column, options.header
    )
    return list(read_choices(path, columns, encoding=options.encoding))


def _rankings(path: Path, options: ReadingOptions) -> list[Any]:
    columns = RankingColumns(options.text_column, options.pair_column, options.label_column, options.header)
    return list(read_rankings(path, columns, encoding=options.encoding))


def _tagged(path: Path, options: ReadingOptions) -> list[Any]:
    tag = options.tag_column
    # 两种格式的列含义不同：CoNLL-U 有固定的十列，按字段名取；CoNLL 的列随文件而变，按编号取
    ending = Path(path.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix
    if ending in (".json", ".jsonl", ".ndjson", ".csv", ".parquet"):
        # 按行和空格切开，一份 JSON 也能“读成”词和标签，一直训练到底
        raise InputError(f"{path}: words and tags are read from CoNLL or CoNLL-U, not from {ending}")
    if ending == ".conllu":
        if isinstance(tag, int) or options.word_column is not None or options.alternatives is not None:
            raise ConfigError(f"{path}: CoNLL-U has fixed columns; choose --tag-column upos, xpos or feats, no others")
        if tag not in (None, "upos", "xpos", "feats"):
            raise ConfigError(f"{path}: --tag-column {tag!r} is none of upos, xpos and feats")
        return list(read_conllu(path, field=cast("ConlluField", tag or "upos"), encoding=options.encoding))
    if isinstance(tag, str):
        raise ConfigError(f"{path}: --tag-column {tag!r}: the columns of CoNLL files have no names; give a number")
    return list(
        read_conll(
            path,
            word=0 if options.word_column is None else options.word_column,
            tag=-1 if tag is None else tag,
            alternatives=options.alternatives,
            encoding=options.encoding,
        )
    )


def _questions(path: Path, options: ReadingOptions) -> list[Any]:
    if options.faults not in (None, "refuse", "skip"):
        raise ConfigError(f"--faults {options.faults!r} is unknown; use refuse or skip")
    found = read_squad(path, faults="skip" if options.faults == "skip" else "refuse", encoding=options.encoding)
    if found.mismatches or found.empty:
        warnings.warn(
            f"{path}: left out {len(found.mismatches)} answers that are not where the file says and"
            f" {len(found.empty)} questions without text; {found.skipped} questions in all",
            stacklevel=2,
        )
    return list(found.examples)


_TABLE = ("text_column", "pair_column", "label_column", "header")
_WORDS = ("word_column", "tag_column", "alternatives")
_READERS: dict[str, tuple[Callable[[Path, ReadingOptions], list[Any]], tuple[str, ...]]] = {
    "classify": (_classes, _TABLE),
    "multilabel": (_label_sets, (*_TABLE, "separator")),
    "regress": (_numbers, _TABLE),
    "rank": (_rankings, _TABLE),
    "choose": (_choices, (*_TABLE, "choice_columns")),
    "tag": (_tagged, _WORDS),
    "features": (_tagged, _WORDS),
    "answer": (_questions, ("faults",)),
}
"""The reader of every task's files, and the options it knows."""
