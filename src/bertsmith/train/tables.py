"""The gradient of an embedding table, which is zero in all rows but those that the batch looked up.

A batch of sentences touches a few hundred of the 30,000 rows of the word table. Autograd's dense gradient is new memory
for all of them at every step ("The word table's gradient by rows" in docs/benchmarks.md). Here the backward pass gives
the rows alone; they are laid into a table that is kept, and taken out again before the next step. The optimizer sees
what it would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class TableGradients:
    """Keeps a gradient for each embedding table of a model whose gradients come as rows.

    What lies in it between the steps is zero but for rows it knows of: nothing else may write into it, nor multiply it
    by what is not finite.
    """

    def __init__(self, model: nn.Module) -> None:
        """Finds the tables of a model, which may be on its way to another device."""
        self._tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        self._kept: dict[Tensor, Tensor] = {}
        self._filled: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def by_rows(self) -> Iterator[None]:
        """While it is open, what is looked up on the CPU gives its gradient as rows."""
        # GPU 上新内存几乎不花时间，合并行号却要等设备同步：那里照旧
        tables = [table for table in self._tables if table.weight.device.type == "cpu" and not table.sparse]
        for table in tables:
            table.sparse = True
        try:
            yield
        finally:
            for table in tables:
                table.sparse = False

    def lay_out(self) -> None:
        """Turns gradients that are rows into ordinary ones, [V, H] each."""
        for table in self._tables:
            weight = table.weight
            if weight.grad is None or not weight.grad.is_sparse:
                continue
            # 同一个词出现几次就有几行：先按行号合并，再各写一次
            rows = weight.grad.coalesce()
            if weight not in self._kept:
                self._kept[weight] = torch.zeros_like(weight)
            kept = self._kept[weight]
            kept.index_copy_(0, rows.indices()[0], rows.values())
            self._filled.append((kept, rows.indices()[0]))
            weight.grad = kept

    def clear(self) -> None:
        """Makes the kept gradients zero again."""
        # 只清写过的行：整张表清零正是要省掉的开销
        for kept, rows in self._filled:
            kept.index_fill_(0, rows, 0.0)
        self._filled.clear()
