"""Labels, notes and names for what the computations found: templates in `parts/computations.LANGUAGE.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import yaml

from bertsmith_school.learn.lesson import Cell, Language, Step, Value


@functools.cache
def read_yaml(name: str) -> dict[str, Any]:
    """Returns a file of `parts/`."""
    text = (resources.files("bertsmith_school.learn") / "parts" / name).read_text(encoding="utf-8")
    # C 写的读取器快十倍；没有它的机器上用 Python 写的
    found: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return found


@dataclass(frozen=True)
class Words:
    """The words of one computation."""

    language: Language
    texts: Mapping[str, Any]

    @classmethod
    def of(cls, id: str, language: Language) -> Words:
        """Returns those of a computation, together with those that all share."""
        texts = read_yaml(f"computations.{language}.yaml")
        inputs = texts["common"]["inputs"] | texts[id].get("inputs", {})
        return cls(language, {"picture": {}, "starts": {}, **texts["common"], **texts[id], "inputs": inputs})

    def __getitem__(self, name: str) -> str:
        text: str = self.texts[name]
        return text

    def split(self, name: str) -> list[str]:
        """Returns the parts of a text that are written with | between."""
        return self[name].split("|")

    def named(self, name: str, rows: Iterable[Sequence[Cell]]) -> list[tuple[Cell, ...]]:
        """Heads rows with their names, the parts of a text."""
        return [(part, *row) for part, row in zip(self.split(name), rows, strict=True)]

    def steps(self, found: Sequence[Step | Value], results: Mapping[str, Any]) -> Iterator[Step]:
        """Yields the values found as steps in the words of the file; a value may be a `Step`, or have its own label."""
        templates = iter(self.texts["steps"])
        for each in found:
            step = each if isinstance(each, Step) else Step("", each)
            if not step.label:
                template = next(templates)
                words = {"label": template} if isinstance(template, str) else template
                words = {name: [part.format(**results) for part in text.split("|")] for name, text in words.items()}
                said: dict[str, Any] = {
                    name: tuple(parts) if name in ("rows", "columns") else parts[0] for name, parts in words.items()
                }
                step = replace(step, **said)
            yield step

    def picture(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns the words of a picture, filled."""
        return {name: text.format(**results) for name, text in self.texts["picture"].items()}
