"""Readers of labelled files: from a TSV to examples, with file and line in every complaint."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.data.decoding import detect_encoding
from bertsmith.errors import InputError

TEXT_NAMES = ("text", "text_a", "sentence", "sentence1", "review", "question")
PAIR_NAMES = ("text_b", "sentence2", "pair")
LABEL_NAMES = ("label", "class", "sentiment")
"""Header names that are understood without being told."""


@dataclass(frozen=True)
class LabelledText:
    """A text, or a pair of texts, and its class."""

    text: str
    pair: str | None
    label: str


@dataclass(frozen=True)
class Columns:
    """Which column holds what: a header name, or a number counted from 0; None finds it by the known names."""

    text: str | int | None = None
    pair: str | int | None = None
    label: str | int | None = None


def read_labelled_tsv(
    path: str | Path, columns: Columns | None = None, *, encoding: str = "auto"
) -> list[LabelledText]:
    """Reads a tab-separated file, with or without a header.

    Without a header and without being told, the first column is the text and the second the label. Quotes have no
    meaning: a tab separates, a line ends.

    Args:
        path: the file, plain or `.gz`; empty lines are skipped.
        columns: where text, second text and label stand.
        encoding: `auto` or a codec's name.

    Raises:
        InputError: the file is missing, empty, binary or in another encoding; a column does not exist; a line is
            ragged; a text or label is empty. The message names file and line.
    """
    path = Path(path)
    rows = _read_rows(path, encoding)
    if not rows:
        raise InputError(f"{path}: holds no line; give one example a line as text TAB label")
    text, pair, label, rows = _find_columns(path, rows, columns or Columns())
    width = len(rows[0][1]) if rows else 0
    examples = []
    for number, cells in rows:
        if len(cells) != width:
            raise InputError(f"{path}: line {number} has {len(cells)} columns, the first has {width}; check its tabs")
        example = LabelledText(
            cells[text].strip(),
            None if pair is None else cells[pair].strip(),
            cells[label].strip(),
        )
        if not example.text or example.pair == "":
            raise InputError(f"{path}: line {number} has an empty text")
        if not example.label:
            raise InputError(f"{path}: line {number} has an empty label")
        examples.append(example)
    if not examples:
        raise InputError(f"{path}: holds a header and no example")
    return examples


def labels_of(examples: Sequence[LabelledText]) -> list[str]:
    """Returns the classes in a stable order: numbers by value, everything else alphabetically.

    Raises:
        InputError: there is only one class.
    """
    labels = {example.label for example in examples}
    if len(labels) < 2:
        raise InputError(f"the training file has one class only ({', '.join(labels)}); at least two are needed")
    if all(re.fullmatch(r"-?[0-9]+", label) for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def _read_rows(path: Path, encoding: str) -> list[tuple[int, list[str]]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    codec = detect_encoding(path) if encoding == "auto" else encoding
    try:
        # 只按换行符分行：str.splitlines 会把正文里的 U+2028 等也当作行界，行号就不对了
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = raw.decode(codec).split("\n")
    except (UnicodeDecodeError, LookupError, OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as {codec} ({error}); pass --encoding") from None
    numbered = ((number, line.rstrip("\r")) for number, line in enumerate(lines, 1))
    return [(number, line.split("\t")) for number, line in numbered if line.strip()]


def _find_columns(
    path: Path, rows: list[tuple[int, list[str]]], columns: Columns
) -> tuple[int, int | None, int, list[tuple[int, list[str]]]]:
    """Returns the numbers of the text, pair and label columns, and the rows without the header."""
    header = [cell.strip() for cell in rows[0][1]]
    by_name = any(isinstance(column, str) for column in (columns.text, columns.pair, columns.label))
    lowered = [cell.lower() for cell in header]
    has_header = by_name or any(name in lowered for name in (*LABEL_NAMES, *TEXT_NAMES[:3]))
    if not has_header:
        text = _number(path, columns.text, header, default=0)
        label = _number(path, columns.label, header, default=1 if len(header) > 1 else None)
        pair = _number(path, columns.pair, header, default=None)
    else:
        rows = rows[1:]
        text = _number(path, columns.text, header, default=_first_known(lowered, TEXT_NAMES))
        label = _number(path, columns.label, header, default=_first_known(lowered, LABEL_NAMES))
        pair = _number(path, columns.pair, header, default=_first_known(lowered, PAIR_NAMES))
    if text is None:
        raise InputError(f"{path}: no text column among {', '.join(header)}; name it with --text-column")
    if label is None:
        raise InputError(f"{path}: no label column among {', '.join(header)}; name it with --label-column")
    return text, pair, label, rows


def _number(path: Path, column: str | int | None, header: Sequence[str], *, default: int | None) -> int | None:
    if column is None:
        return default
    if isinstance(column, str):
        if column not in header:
            raise InputError(f"{path}: no column {column!r}; its header has {', '.join(header)}")
        return header.index(column)
    if not 0 <= column < len(header):
        raise InputError(f"{path}: no column {column}; it has {len(header)}, counted from 0")
    return column


def _first_known(header: Sequence[str], names: Sequence[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)
