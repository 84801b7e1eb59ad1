"""What was read of the files of a run: said on the console, kept in its folder, shown in its report and on its card."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.data.reading.opening import opening_lines
from bertsmith.data.reading.sources import find_text_files, text_endings
from bertsmith.data.reading.text import corpus_documents
from bertsmith.errors import RunFolderError
from bertsmith.files import read_json
from bertsmith.finetune.datasets import DataSource, ReadingOptions, by_name
from bertsmith.finetune.datasets.columns import ColumnsFound
from bertsmith.finetune.look import Look, look_at, notes_of
from bertsmith.reporting.progress import say
from bertsmith.tokenizer import Tokenizer

READING_FILE = "reading.json"
"""In a run folder: its `FilesRead`."""


@dataclass(frozen=True)
class FilesRead:
    """What was understood of the files of a run.

    Attributes:
        files: `train`, `dev`, `test` → what it is.
        division: how the training file was divided, and into how many rows; empty where it was not.
        notes: what was left out, guessed or repaired, a sentence each.
    """

    files: dict[str, Look]
    division: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def of_run(cls, folder: Path) -> FilesRead | None:
        """Reads the record of a run; None where a program gave `fine_tune` the examples."""
        path = folder / READING_FILE
        return read_json(path, cls, RunFolderError, "remove it") if path.exists() else None

    @property
    def lines(self) -> list[tuple[str, str]]:
        """What was understood, line by line, each with its part."""
        told = [(part, line) for part, found in self.files.items() for line in found.opening(part)]
        told += [("division", self.division)] if self.division else []
        return told + [("note", note) for note in self.notes]


@contextmanager
def noted(notes: list[str], sources: Iterable[DataSource], console: Console | None = None) -> Iterator[None]:
    """Adds to `notes` what is warned of in the block, files by their names alone; the warnings are given as ever.

    With a `console`, on which `tell_files` names all columns, a warning does not name those that were found.
    """
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        # 报告和模型卡会给别人看：不写这台机器上的文件夹，也不写网址的临时副本在哪里
        told = dict.fromkeys(by_name(one, sources) for one in notes_of(caught))
        notes += [one for one in told if one not in notes]
        for one in caught:
            message = one.message
            if console is not None and isinstance(message, ColumnsFound):
                message = message.note
            warnings.warn(message, stacklevel=4)


def tell_files(
    task: str,
    sources: Mapping[str, DataSource],
    examples: Mapping[str, Sequence[Any]],
    options: ReadingOptions,
    *,
    console: Console | None = None,
    tokenizer: Tokenizer | None = None,
    limit: int | None = None,
) -> dict[str, Look]:
    """Returns what was understood of each file of a command, of which `examples` were read; says it on the console.

    With the tokenizer of a model, and the most ids that it reads (`Task.length_limit`), it says how many are too long.
    """
    looks = {part: look_at(task, one, examples[part], options, tokenizer, limit) for part, one in sources.items()}
    for _, line in FilesRead(looks).lines:
        say(line, console)
    return looks


def tell_texts(paths: Sequence[str | Path], encoding: str, console: Console | None) -> None:
    """Says on the console what was understood of text without labels: files, size, encodings, documents."""
    if console is not None:
        files = find_text_files(paths, text_endings())
        rule, _ = corpus_documents(files, encoding=encoding)
        for line in opening_lines(paths, files, encoding, rule):
            say(line, console)
