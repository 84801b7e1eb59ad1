"""What every call of the Python interface returns: the figures, and where things are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

DetailsT = TypeVar("DetailsT")


@dataclass(frozen=True)
class Result(Generic[DetailsT]):
    """What a call made.

    Attributes:
        folder: what was made: the folder that was given as `out`; of an evaluation, that of the model.
        metrics: name → value of the figures that matter, the first the most.
        model_folder: a model folder that came out, or was evaluated; None where there is none, as for a corpus.
        report: a page, or a picture, that shows more; None where there is none.
        details: all that is known, as the object that the work itself returns.
    """

    folder: Path
    metrics: Mapping[str, float]
    model_folder: Path | None
    report: Path | None
    details: DetailsT
