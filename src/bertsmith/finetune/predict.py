"""Predictions for whole files: lines in, records out, in bounded memory, whatever the folder's task.

A line holds the fields of one input, with tabs between: a text, a text and a second one, a question and its passage,
a context and its choices, a query and a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.finetune.adapters import load_adapted
from bertsmith.finetune.tasks import load_task
from bertsmith.inference.checks import PART
from bertsmith.inference.pipelines import PIPELINES, load_pipeline
from bertsmith.inference.precision import Precision
from bertsmith.inference.task_file import read_task_file, runs_on_of
from bertsmith.inference.uses import task_of_folder
from bertsmith.tokenizer import WordPieceTokenizer

Record = dict[str, Any]
Rows = Sequence[tuple[str, ...]]


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
    ) -> Predictor:
        """Loads what predicts.

        Args:
            folder: a fine-tuned folder, ours or another's; with an adapter, the backbone it was trained over.
            adapter: the folder of an adapter.
            pairs: see `paired`; None as the folder says, single texts where it says nothing.
            precision: as in `load_pipeline`.

        Raises:
            CheckpointError: the folder holds no model that predicts, or the adapter belongs to another.
            ConfigError: the precision is not to be had here.
        """
        described = Path(folder if adapter is None else adapter)
        values = read_task_file(described)
        paired = bool(values.get("paired", False)) if pairs is None else pairs
        if adapter is None:
            kind = task_of_folder(folder)
            return cls(kind, load_pipeline(kind, folder, precision=precision), paired)  # type: ignore[call-overload]
        task, _ = load_task(adapter)
        arguments = {name: values[name] for name in _ARGUMENTS.get(task.name, ())}
        # 适配器没有自己的整套权重：先装到主干上，再交给同一种流水线
        model, tokenizer = load_adapted(folder, adapter), WordPieceTokenizer.load(folder)
        pipeline: Any = PIPELINES[task.name]
        return cls(task.name, pipeline(model, tokenizer, runs_on_of(adapter, precision=precision), **arguments), paired)

    def predict_lines(self, lines: Iterable[str]) -> Iterator[Record]:
        """Predicts every line.

        Args:
            lines: without their ends.

        Yields:
            A record for each line, in order: `prediction`, `probability` where there is one, details, and the input.

        Raises:
            InputError: a line has other fields than the task needs (while iterating).
        """
        predict, least, most = _KINDS[self.kind]
        if self.kind in ("classify", "multilabel", "regress"):
            least = most = 2 if self.paired else 1
        numbered = enumerate(lines, 1)
        while chunk := list(islice(numbered, PART)):
            yield from predict(self.pipeline, [_fields(number, line, least, most) for number, line in chunk])


def as_line(record: Record) -> str:
    """Returns a record as a line of TSV: the prediction, its probability where there is one, the input."""
    fields = [record["prediction"]]
    if "probability" in record:
        fields.append(f"{record['probability']:.4f}")
    if isinstance(fields[0], float):
        fields[0] = f"{fields[0]:.4f}"
    return "\t".join([*(str(field) for field in fields), *record["input"]])


def _fields(number: int, line: str, least: int, most: int) -> tuple[str, ...]:
    fields = tuple(line.split("\t"))
    if not least <= len(fields) <= most:
        wanted = str(least) if least == most else f"at least {least}"
        raise InputError(
            f"line {number} has {len(fields)} field(s) between tabs, and {wanted} are needed: {line[:60]!r}"
        )
    empty = next((place for place, field in enumerate(fields, 1) if not field.strip()), None)
    if empty is not None:
        raise InputError(f"line {number} has nothing in field {empty}: {line[:60]!r}")
    return fields


def _columns(rows: Rows) -> tuple[list[str], list[str] | None]:
    return [row[0] for row in rows], [row[1] for row in rows] if len(rows[0]) > 1 else None


def _classify(pipeline: Any, rows: Rows) -> Iterator[Record]:
    for row, found in zip(rows, pipeline(*_columns(rows)), strict=True):
        probabilities = found.probabilities
        yield {
            "prediction": found.label,
            "probability": probabilities[found.label],
            "probabilities": probabilities,
            "input": row,
        }


def _multilabel(pipeline: Any, rows: Rows) -> Iterator[Record]:
    for row, found in zip(rows, pipeline(*_columns(rows)), strict=True):
        yield {"prediction": ",".join(found.labels), "probabilities": found.probabilities, "input": row}


def _regress(pipeline: Any, rows: Rows) -> Iterator[Record]:
    for row, found in zip(rows, pipeline(*_columns(rows)).tolist(), strict=True):
        yield {"prediction": found, "input": row}


def _tag(pipeline: Any, rows: Rows) -> Iterator[Record]:
    for row, entities in zip(rows, pipeline([text for (text,) in rows]), strict=True):
        named = "; ".join(f"{entity.text} ({entity.type})" for entity in entities)
        yield {"prediction": named, "entities": [asdict(entity) for entity in entities], "input": row}


def _answer(pipeline: Any, rows: Rows) -> Iterator[Record]:
    for row, answer in zip(rows, pipeline.stream(rows), strict=True):
        details = asdict(answer)
        yield {"prediction": answer.text, "probability": answer.probability, "answer": details, "input": row}


def _choose(pipeline: Any, rows: Rows) -> Iterator[Record]:
    found = pipeline([row[0] for row in rows], [row[1:] for row in rows])
    for row, choice in zip(rows, found, strict=True):
        yield {
            "prediction": row[1 + choice.index],
            "probability": choice.probabilities[choice.index],
            "probabilities": list(choice.probabilities),
            "input": row,
        }


def _rank(pipeline: Any, rows: Rows) -> Iterator[Record]:
    scores = pipeline.scores([query for query, _ in rows], [text for _, text in rows])
    for row, score in zip(rows, scores.tolist(), strict=True):
        yield {"prediction": score, "input": row}


_ARGUMENTS = {"multilabel": ("threshold",), "answer": ("stride", "max_answer_tokens", "null_threshold")}
"""What a pipeline is told from `task.json`."""

_ANY = 10**6
_KINDS: dict[str, tuple[Callable[[Any, Rows], Iterator[Record]], int, int]] = {
    "classify": (_classify, 1, 2),
    "multilabel": (_multilabel, 1, 2),
    "regress": (_regress, 1, 2),
    "tag": (_tag, 1, 1),
    "features": (_tag, 1, 1),
    "answer": (_answer, 2, 2),
    "choose": (_choose, 3, _ANY),
    "rank": (_rank, 2, 2),
}
"""What predicts for each kind of pipeline, and how many fields a line has."""
