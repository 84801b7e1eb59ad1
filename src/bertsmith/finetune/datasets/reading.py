"""From a labelled file to a task's examples: the reader of each task, by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertsmith.finetune.datasets.choices import CHOICES
from bertsmith.finetune.datasets.questions import QUESTIONS
from bertsmith.finetune.datasets.rankings import RANKINGS
from bertsmith.finetune.datasets.reader import Reader, ReadingOptions
from bertsmith.finetune.datasets.tagged import TAGGED
from bertsmith.finetune.datasets.texts import LABELLED, MULTILABELLED, SCORED

_READERS: dict[str, Reader[Any]] = {
    "classify": LABELLED,
    "multilabel": MULTILABELLED,
    "regress": SCORED,
    "rank": RANKINGS,
    "choose": CHOICES,
    "tag": TAGGED,
    "features": TAGGED,
    "answer": QUESTIONS,
}


def read_examples(task: str, path: str | Path, options: ReadingOptions | None = None) -> list[Any]:
    """Reads a labelled file for a task; see `Reader.read`."""
    return _READERS[task].read(path, options, task=task)
