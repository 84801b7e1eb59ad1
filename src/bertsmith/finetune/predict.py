"""Predictions for whole files: rows in, records out, in bounded memory, whatever the folder's task.

A table is read as fine-tuning reads it, without labels (`finetune.datasets.inputs`). A line of another file holds the
fields of one input, with tabs between. A line of JSON Lines may be a text or a list of fields, which may then hold tabs
and line ends. Records stand in the order of the rows; a blank line gives an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertsmith.data.reading.lines import numbered_lines
from bertsmith.data.reading.sources import local_copy
from bertsmith.data.reading.tables import kind_of, require_unicode
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.adapters import load_adapted
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.inputs import Input, read_inputs
from bertsmith.finetune.tasks import load_task, task_named
from bertsmith.finetune.tasks.task import Record, Task
from bertsmith.inference import load_pipeline
from bertsmith.inference.engine import PART, Precision
from bertsmith.inference.graph_cache import EngineKind
from bertsmith.inference.linear import Part
from bertsmith.inference.pipeline import task_of_folder
from bertsmith.inference.task_file import paired_of
from bertsmith.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Predictor:
    """A task's pipeline, and whether a line of input of a classifier, labeller or regressor is two texts."""

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
        engine: EngineKind = "torch",
        calibrated: bool = False,
        class_thresholds: bool = False,
        constrained: bool = False,
        only: Part | None = None,
    ) -> Predictor:
        """Loads what predicts; `precision`, `engine` and `only` are as in `load_pipeline`.

        Args:
            folder: a fine-tuned folder, ours or another's; with an adapter, the backbone it was trained over.
            pairs: see `paired`; None as the folder says, single texts where it says nothing.
            calibrated: give probabilities at the temperature that fine-tuning found.
            class_thresholds: decide classes by the thresholds that fine-tuning found for each.
            constrained: choose the tags of a sentence together, so that they keep to their scheme.
        """
        described = Path(folder if adapter is None else adapter)
        paired = bool(paired_of(described)) if pairs is None else pairs
        kind = task_of_folder(folder) if adapter is None else load_task(described)[0].name
        spec = task_named(kind).spec
        if pairs is not None and not spec.inputs.pairs:
            raise ConfigError(f"--pairs and --single are not for {kind}; leave them out")
        given = (
            ("is_calibrated", "--calibrated", calibrated),
            ("uses_thresholds", "--class-thresholds", class_thresholds),
            ("constrained", "--constrained", constrained),
        )
        asked = {name: flag for name, flag, wanted in given if wanted}
        for name, flag in asked.items():
            if not hasattr(spec.pipeline, name):
                raise ConfigError(f"{flag} is not for {kind}; leave it out")
        if only is not None and (calibrated or class_thresholds or adapter is not None):
            raise ConfigError("--only: temperature, thresholds and adapters are for the whole answer; leave one out")
        if adapter is None:
            pipeline = load_pipeline(kind, folder, precision=precision, engine=engine, only=only)
        else:
            # 适配器没有自己的整套权重：先装到主干上，再交给同一种流水线
            model, tokenizer = load_adapted(folder, adapter), load_tokenizer(folder)
            settings = spec.pipeline.settings_in(described)
            pipeline = spec.pipeline.over(model, tokenizer, settings, precision=precision, engine=engine)
        for name in asked:
            setattr(pipeline, name, True)
        return cls(kind, pipeline, paired)

    def predict_placed(self, lines: Iterable[tuple[str, str]]) -> Iterator[Record]:
        """Predicts lines, without their ends, that come with their places, such as `standard input: line 3`."""
        yield from self._predict(Input(place, tuple(line.split("\t"))) for place, line in lines)

    def predict_file(
        self, path: str | Path, options: ReadingOptions | None = None, *, on_note: Callable[[str], None] | None = None
    ) -> Iterator[Record]:
        """Predicts every row of a table, or line of another file; one with other fields than the task needs is refused.

        Each gives a record; that of a table holds in `columns` those that were not read. Before the first, `on_note` is
        told how the file was understood, a line each.
        """
        options = options or ReadingOptions()
        with local_copy(path) as file:
            forms = task_named(self.kind).spec.reader.inputs
            rows = read_inputs(forms, file, options, task=self.kind, counts=self._counts, on_note=on_note)
            yield from self._predict(_lines(file, options.encoding) if rows is None else rows)

    @property
    def _counts(self) -> range:
        inputs = task_named(self.kind).spec.inputs
        least, most = (1 + self.paired,) * 2 if inputs.pairs else (inputs.least, inputs.most)
        return range(least, most + 1)

    def _predict(self, inputs: Iterable[Input]) -> Iterator[Record]:
        task, counts, rest = task_named(self.kind), self._counts, iter(inputs)
        while chunk := list(islice(rest, PART)):
            # 空行也占一条记录：结果的第几行就是输入的第几行
            rows = [_checked(one, counts) if _is_filled(one.texts) else () for one in chunk]
            filled = [row for row in rows if row]
            try:
                found = list(task.records(self.pipeline, filled)) if filled else []
            except InputError:
                # 流水线不知道一段文字来自哪一行：逐行再试，出错的一行自己说明，其余照常
                places = [one.place for one, row in zip(chunk, rows, strict=True) if row]
                found = [self._alone(task, row, place) for row, place in zip(filled, places, strict=True)]
            rest_of_chunk = iter(found)
            for one, row in zip(chunk, rows, strict=True):
                record = next(rest_of_chunk) if row else {"prediction": None, "input": row}
                record |= {"fault": one.fault} if one.fault else {}
                yield record | ({"columns": dict(one.others)} if one.others else {})

    def _alone(self, task: type[Task[Any, Any]], row: tuple[str, ...], place: str) -> Record:
        """Predicts a single row; one that cannot be predicted gives a record that says why."""
        try:
            return next(iter(task.records(self.pipeline, [row])))
        except InputError as error:
            return {"prediction": None, "input": row, "fault": f"{place}: {error}"}


def as_line(record: Record) -> str:
    """Returns a record as a line of TSV: prediction, probability where there is one, input, columns not read."""
    if record["prediction"] is None:
        return f"({record['fault'].translate(_FLAT)})" if "fault" in record else ""
    fields = [record["prediction"]]
    if "probability" in record:
        fields.append(f"{record['probability']:.4f}")
    if isinstance(fields[0], float):
        # 有效数字而不是小数位：回归的数可大可小，排序里很小的分数也要分得出先后
        fields[0] = f"{fields[0]:.6g}"
    others = (_cell(value) for value in record.get("columns", {}).values())
    return "\t".join(str(field).translate(_FLAT) for field in (*fields, *map(_text, record["input"]), *others))


def _cell(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def _text(field: Any) -> str:
    return field if isinstance(field, str) else " ".join(field)


def _is_filled(fields: Sequence[Any]) -> bool:
    return len(fields) > 1 or any(_text(field).strip() for field in fields)


def _lines(path: Path, encoding: str) -> Iterator[Input]:
    read = _json_fields if kind_of(path) == "jsonl" else lambda _, line: line.split("\t")
    for number, line in numbered_lines(path, encoding):
        place = f"{path}: line {number}"
        yield Input(place, tuple(read(place, line)))


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


def _checked(one: Input, counts: range) -> tuple[Any, ...]:
    fields = [_text(field) for field in one.texts]
    start = "\t".join(fields)[:60]
    if len(fields) not in counts:
        wanted = str(counts[0]) if len(counts) == 1 else f"at least {counts[0]}"
        raise InputError(f"{one.place} has {len(fields)} field(s) instead of {wanted}: {start!r}")
    empty = next((number for number, field in enumerate(fields, 1) if not field.strip()), None)
    if empty is not None:
        raise InputError(f"{one.place} has nothing in field {empty}: {start!r}")
    return one.texts


_FLAT = str.maketrans("\t\r\n", "   ")
"""What would tear a line of TSV apart becomes a space; JSON Lines may hold it."""
