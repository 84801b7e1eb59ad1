"""What estimators are given -> texts, labels and words; what is wrong with it is said as for the rows of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.sparse import issparse

from bertsmith.errors import BertsmithError
from bertsmith.finetune.datasets.tables import Cell


class EstimatorError(BertsmithError, ValueError):
    """Wrong data or a wrong parameter; a `ValueError`, as scikit-learn has it."""


@contextmanager
def as_value_error() -> Iterator[None]:
    """Raises the errors of bertsmith inside the block as `EstimatorError`, with the same line."""
    try:
        yield
    except EstimatorError:
        raise
    except BertsmithError as error:
        raise EstimatorError(str(error)) from error


def texts_of(inputs: Any) -> list[tuple[str, str | None]]:
    """Returns each input as a text and a second one, None where there is none.

    Args:
        inputs: N texts: a list, an array, a series; or N rows of one or two texts: a list of pairs, an array [N, 2], a
            data frame of one or two columns.

    Raises:
        EstimatorError: it is a single text, has no rows, or one of them is no text, or empty.
    """
    found = []
    for number, row in enumerate(rows_of(inputs)):
        cells = list(row) if isinstance(row, (list, tuple)) else [row]
        if not 1 <= len(cells) <= 2:
            raise EstimatorError(f"X: row {number} (from 0) has {len(cells)} columns; give a text, or a pair of texts")
        text, *pair = (_text(number, cell) for cell in cells)
        found.append((text, pair[0] if pair else None))
    if len({pair is None for _, pair in found}) > 1:
        raise EstimatorError("X: some rows are single texts and some are pairs; give one kind")
    return found


def rows_of(inputs: Any) -> list[Any]:
    """Returns N rows as Python's own lists and values.

    Raises:
        EstimatorError: it is a single text, a sparse matrix, cannot be counted, or is empty.
    """
    # 稀疏矩阵多半是词袋特征，被错放在这里：说清楚要的是文本
    if issparse(inputs):
        raise EstimatorError("X: is a sparse matrix, and sparse input is not supported; give the texts themselves")
    if not isinstance(inputs, Iterable) and hasattr(inputs, "__array__"):
        inputs = np.asarray(inputs)
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Iterable):
        raise EstimatorError(f"X: is a {type(inputs).__name__}; give a list of texts, such as [text]")
    # 数据框迭代出来的是列名：取它的值
    values = inputs.to_numpy() if hasattr(inputs, "to_numpy") else inputs
    rows = list(values.tolist() if hasattr(values, "tolist") else values)
    if not rows:
        raise EstimatorError("X: holds no row: 0 samples; give at least one")
    return rows


def targets_of(targets: Any, count: int) -> list[Any]:
    """Returns the label of each of `count` rows.

    Raises:
        EstimatorError: there are none, or not as many as rows.
    """
    if targets is None:
        raise EstimatorError("y is None: this estimator requires y to be passed; give a label for each row")
    found = rows_of(targets)
    if len(found) != count:
        raise EstimatorError(f"X has {count} rows and y has {len(found)}; give a label for each row")
    return [label[0] if isinstance(label, list) and len(label) == 1 else label for label in found]


def _text(number: int, value: Any) -> str:
    place = f"X: row {number} (from 0)"
    if value is not None and not isinstance(value, str) and value == value:
        raise EstimatorError(f"{place}: the text is a {type(value).__name__}, not text")
    with as_value_error():
        return Cell(place, "text", value).text()
