"""What every call of the Python interface returns: the figures, and where things are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

DetailsT = TypeVar("DetailsT")


@dataclass(frozen=True)
class Result(Generic[DetailsT]):
    """What a call made.

    Attributes:
        folder: what was made: the folder, of `mine` the file, that was given as `out`; of an evaluation, the model's.
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


def make_callable(package: str) -> None:
    """Lets a package be called like the function of its name in its module `calls`.

    Importing a module of `bertsmith.finetune` puts the package in the place of `bertsmith.finetune`, the function.

    Args:
        package: its full name, imported.
    """

    class CallablePackage(ModuleType):
        """A package that can be called."""

        def __call__(self, *arguments: Any, **named: Any) -> Any:
            """Calls the function."""
            return getattr(import_module(f"{package}.calls"), package.rpartition(".")[2])(*arguments, **named)

    sys.modules[package].__class__ = CallablePackage
