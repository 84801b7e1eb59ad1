"""Predictions for whole files: lines in, records out, in bounded memory, whatever the folder's task.

A line holds the fields of one input, with tabs between: a text, a text and a second one, a question and its passage,
a context and its choices, a query and a text. A line of JSON Lines is a text or a list of fields, which may then hold
tabs and line ends. Records stand in the order of the lines; a blank line gives an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertsmith.data.reading.lines import numbered_lines
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.adapters import load_adapted
from bertsmith.finetune.datasets.tables import kind_of, require_unicode
from bertsmith.finetune.tasks.registry import load_task, task_named
from bertsmith.finetune.tasks.task import Record, Rows, Task
from bertsmith.inference.checks import PART
from bertsmith.inference.loading import load_pipeline
from bertsmith.inference.precision import Precision
from bertsmith.inference.task_detection import task_of_folder
from bertsmith.inference.task_file import paired_of
from bertsmith.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Predictor:
    """A pipeline, and what a line of input is for it.

    Attributes:
        kind: the task's name.
        pipeline: what predicts.
        paired: whether a line of a classifier, labeller or regressor is two texts.
    """

    kind: str
    pipeline: Any
    paired: bool = False

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        adapter: str | Path | None = None,
        pairs: bool | None = None,
        precision: Precision | None = None,
        calibrated: bool = False,
        class_thresholds: bool = False,
        constrained: bool = False,
    ) -> Predictor:
        """Loads what predicts.

        Args:
            folder: a fine-tuned folder, ours or another's; with an adapter, the backbone it was trained over.
            adapter: the folder of an adapter.
            pairs: see `paired`; None as the folder says, single texts where it says nothing.
            precision: as in `load_pipeline`.
            calibrated: give probabilities at the temperature that fine-tuning found.
            class_thresholds: decide classes by the thresholds that fine-tuning found for each.
            constrained: choose the tags of a sentence together, so that they keep to their scheme.

        Raises:
            CheckpointError: the folder holds no model that predicts, or the adapter belongs to another.
            ConfigError: the precision is not to be had here, or pairs are asked of a model that reads none.
        """
        described = Path(folder if adapter is None else adapter)
        paired = bool(paired_of(described)) if pairs is None else pairs
        kind = task_of_folder(folder) if adapter is None else load_task(described)[0].name
        spec = task_named(kind).spec
        if pairs is not None and not spec.inputs.pairs:
            raise ConfigError(f"--pairs and --single are not for {kind}; leave them out")
        asked = {"is_calibrated": calibrated, "uses_thresholds": class_thresholds, "constrained": constrained}
        for name, wanted in asked.items():
            if wanted and not hasattr(spec.pipeline, name):
                raise ConfigError(f"{_ASKED_BY[name]} is not for {kind}; leave it out")
        if adapter is None:
            pipeline = load_pipeline(kind, folder, precision=precision)
        else:
            # 适配器没有自己的整套权重：先装到主干上，再交给同一种流水线
            model, tokenizer = load_adapted(folder, adapter), load_tokenizer(folder)
            settings = spec.pipeline.settings_in(described)
            pipeline = spec.pipeline.over(model, tokenizer, settings, precision=precision)
        for name, wanted in asked.items():
            if wanted:
                setattr(pipeline, name, True)
        return cls(kind, pipeline, paired)

    def predict_lines(self, lines: Iterable[str]) -> Iterator[Record]:
        """Predicts every line.

        Args:
            lines: without their ends.

        Yields:
            A record for each line, in order: `prediction`, `probability` where there is one, details, and the input.

        Raises:
            InputError: a line has other fields than the task needs (while iterating).
        """
        yield from self._predict((f"line {number}", line.split("\t")) for number, line in enumerate(lines, 1))

    def predict_placed(self, lines: Iterable[tuple[str, str]]) -> Iterator[Record]:
        """Predicts lines that come with their places, such as `standard input: line 3`; as `predict_lines`."""
        yield from self._predict((place, line.split("\t")) for place, line in lines)

    def predict_file(self, path: Path, encoding: str = "auto") -> Iterator[Record]:
        """Predicts every line of a file, in bounded memory; see `predict_lines`.

        Args:
            path: text with tabs between fields, or JSON Lines by its ending; plain or packed (`.gz`, `.zst`).
            encoding: `auto` or a codec's name.

        Raises:
            InputError: the file cannot be read, or a line has other fields than the task needs; the message names it.
        """
        kind = kind_of(path)
        if kind in ("csv", "parquet"):
            # 按行读会把表头当成输入、把带引号的格子切碎：宁可拒绝
            raise InputError(f"{path}: write the inputs as text, with tabs between fields, or as .jsonl; not as {kind}")
        is_json = kind == "jsonl"
        for_each = ((f"{path}: line {number}", line) for number, line in numbered_lines(path, encoding))
        yield from self._predict(
            (place, _json_fields(place, line) if is_json else line.split("\t")) for place, line in for_each
        )

    def _predict(self, inputs: Iterable[tuple[str, list[str]]]) -> Iterator[Record]:
        task = task_named(self.kind)
        least, most = task.spec.inputs.least, task.spec.inputs.most
        if task.spec.inputs.pairs:
            least = most = 2 if self.paired else 1
        rest = iter(inputs)
        while chunk := list(islice(rest, PART)):
            # 空行也占一条记录：结果的第几行就是输入的第几行
            rows = [_checked(place, fields, least, most) if _is_filled(fields) else () for place, fields in chunk]
            filled = [row for row in rows if row]
            found = task.records(self.pipeline, filled) if filled else iter(())
            try:
                for row in rows:
                    yield next(found) if row else {"prediction": None, "input": row}
            except InputError:
                # 流水线不知道一段文字来自哪一行：逐行再试，直到出错的那一行
                self._find_fault(task, rows, [place for place, _ in chunk])
                raise

    def _find_fault(self, task: type[Task[Any, Any]], rows: Rows, places: Sequence[str]) -> None:
        """Predicts row by row until the one that cannot be predicted, and complains of it with its place."""
        for place, row in zip(places, rows, strict=True):
            try:
                if row:
                    list(task.records(self.pipeline, [row]))
            except InputError as error:
                raise InputError(f"{place}: {error}") from None


def as_line(record: Record) -> str:
    """Returns a record as a line of TSV: the prediction, its probability where there is one, the input."""
    if record["prediction"] is None:
        return ""
    fields = [record["prediction"]]
    if "probability" in record:
        fields.append(f"{record['probability']:.4f}")
    if isinstance(fields[0], float):
        # 有效数字而不是小数位：回归的数可大可小，排序里很小的分数也要分得出先后
        fields[0] = f"{fields[0]:.6g}"
    return "\t".join(str(field).translate(_FLAT) for field in (*fields, *record["input"]))


def _is_filled(fields: Sequence[str]) -> bool:
    return len(fields) > 1 or any(field.strip() for field in fields)


def _json_fields(place: str, line: str) -> list[str]:
    if not line.strip():
        return []
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place} is not valid JSON: {line[:60]!r}") from None
    fields = [value] if isinstance(value, str) else value
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise InputError(f"{place} is neither a text nor a list of texts: {line[:60]!r}")
    for field in fields:
        require_unicode(place, field)
    return fields


def _checked(place: str, fields: Sequence[str], least: int, most: int) -> tuple[str, ...]:
    if not least <= len(fields) <= most:
        wanted = str(least) if least == most else f"at least {least}"
        raise InputError(f"{place} has {len(fields)} field(s) instead of {wanted}: {_start(fields)!r}")
    empty = next((number for number, field in enumerate(fields, 1) if not field.strip()), None)
    if empty is not None:
        raise InputError(f"{place} has nothing in field {empty}: {_start(fields)!r}")
    return tuple(fields)


def _start(fields: Sequence[str]) -> str:
    return "\t".join(fields)[:60]


_ASKED_BY = {
    "is_calibrated": "--calibrated",
    "uses_thresholds": "--class-thresholds",
    "constrained": "--constrained",
}
"""Attribute of a pipeline → the option that sets it."""

_FLAT = str.maketrans("\t\r\n", "   ")
"""What would tear a line of TSV apart becomes a space; JSON Lines may hold it."""
