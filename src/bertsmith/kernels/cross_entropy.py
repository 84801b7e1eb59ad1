"""Cross-entropy over a large vocabulary in one pass: loss, hits and gradient, a few rows at a time.

torch's own keeps the log-probabilities [M, V] in float32 for the backward pass and makes the gradient beside them; with
thirty thousand pieces that is the largest tensor of a small model's step. Here the rows are taken in chunks that stay
in the cache, each is read once, and what is kept is the gradient, in the dtype of the logits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CHUNK = {"cpu": 2**20, "cuda": 2**27}
"""Logits in a chunk: on a CPU 4 MiB of float32, what the caches hold."""


class CrossEntropy(NamedTuple):
    """What predictions cost.

    Attributes:
        loss: scalar float32, the sum of -log p(true class) over the rows with a label, in nats.
        hits: scalar int64, rows whose most probable class is the true one.
    """

    loss: Tensor
    hits: Tensor


def cross_entropy(logits: Tensor, labels: Tensor, *, ignored: int = -100) -> CrossEntropy:
    """Measures predictions; the softmax is computed in float32 whatever the dtype of the logits.

    Args:
        logits: [M, V], of any float dtype.
        labels: [M] int64, the true classes.
        ignored: the label of rows that do not count.
    """
    loss, hits = _CrossEntropy.apply(logits, labels, ignored)  # type: ignore[no-untyped-call]
    return CrossEntropy(loss, hits)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
        counts = labels != ignored
        classes = labels.where(counts, 0)[:, None]
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        loss, hits = logits.new_zeros((), dtype=torch.float32), labels.new_zeros(())
        rows = max(1, _CHUNK.get(logits.device.type, _CHUNK["cpu"]) // max(1, logits.shape[-1]))
        for start in range(0, len(labels), rows):
            chunk = slice(start, start + rows)
            # bf16 只有 8 位有效数字，三万项的求和会失真：每一小块在 float32 里算
            scores, true, counted = logits[chunk].float(), classes[chunk], counts[chunk]
            top, best = scores.max(-1, keepdim=True)
            odds = torch.exp(scores - top)
            total = odds.sum(-1, keepdim=True)
            loss += ((top + total.log() - scores.gather(-1, true)).squeeze(-1) * counted).sum()
            hits += ((best == true).squeeze(-1) & counted).sum()
            if gradient is not None:
                # softmax 交叉熵的梯度就是“概率减去正确答案”：前向时顺手算好，反向不必再读一遍
                odds.div_(total).scatter_add_(-1, true, odds.new_full(true.shape, -1.0)).mul_(counted[:, None])
                gradient[chunk] = odds
        ctx.gradient = gradient
        ctx.mark_non_differentiable(hits)
        return loss, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, _of_hits: Tensor) -> tuple[Tensor, None, None]:
        # 就地缩放：这块内存只属于这一次反向
        gradient = ctx.gradient.mul_(of_loss.to(ctx.gradient.dtype))
        ctx.gradient = None
        return gradient, None, None
