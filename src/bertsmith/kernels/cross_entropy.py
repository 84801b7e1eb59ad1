"""Cross-entropy over a large vocabulary in one pass: loss, hits and gradient, a few rows at a time.

torch's own keeps the log-probabilities [M, V] in float32 for the backward pass and makes the gradient beside them; with
thirty thousand pieces that is the largest tensor of a small model's step. Here the rows are taken in chunks, each is
read while it is in the cache, and the softmax becomes the gradient in place. Where the scores come from a decoder
(`PieceScores`), they are computed chunk by chunk too and go straight into its gradients: [M, V] never exists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.matmul import linear

_CHUNK = {"cpu": 2**20, "cuda": 2**27}
"""Scores in a chunk: on a CPU 4 MiB of float32, what the caches hold."""

_NO_LABEL = -100
"""The class of a row that does not count, as in torch's own."""

_FEWEST_ROWS = 128
"""Of a chunk that is decoded: with fewer, adding to the decoder's gradient costs more than the chunk saves."""

_TILE = {"cuda": 64}
"""Pieces are decoded in whole multiples of this: cuBLAS takes slow kernels for a matrix whose rows are no multiple of
8, as the 30,522 of BERT's vocabulary."""


class CrossEntropy(NamedTuple):
    """What predictions cost.

    Attributes:
        loss: scalar float32, the sum of -log p(true class) over the rows with a label, in nats.
        hits: scalar int64, rows whose most probable class is the true one.
    """

    loss: Tensor
    hits: Tensor


class PieceScores:
    """The scores of every piece at M places, computed when somebody reads them.

    Attributes:
        states: [M, E].
        weight: [V, E], the decoder, often the word embedding; its `bias` is [V].
        compiled: whether `torch.compile` fuses the passes over them.
    """

    def __init__(self, states: Tensor, weight: Tensor, bias: Tensor, *, compiled: bool = False) -> None:
        self.states, self.weight, self.bias, self.compiled = states, weight, bias, compiled
        self._logits: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """[M, V] in the dtype of the states; kept from the first time on."""
        if self._logits is None:
            self._logits = linear(self.states, self.weight, self.bias)
        return self._logits


def cross_entropy(scores: Tensor | PieceScores, labels: Tensor) -> CrossEntropy:
    """Measures scores [M, V] of any float dtype against true classes [M] int64, -100 where there is none.

    The softmax is computed in float32.
    """
    if isinstance(scores, PieceScores) and scores._logits is None:
        decoded = scores.states, scores.weight, scores.bias
        return CrossEntropy(*_DecodedCrossEntropy.apply(*decoded, labels, scores.compiled))  # type: ignore[no-untyped-call]
    logits = scores.logits if isinstance(scores, PieceScores) else scores
    return CrossEntropy(*_CrossEntropy.apply(logits, labels))  # type: ignore[no-untyped-call]


class _LossAndGradient(NamedTuple):
    """What rows of scores cost; `gradient` [m, V] but for the true classes, which `at_true` [m, 1] has; or None."""

    loss: Tensor
    hits: Tensor
    gradient: Tensor | None
    at_true: Tensor | None


def _loss_and_gradient(
    scores: Tensor, true: Tensor, counted: Tensor, *, needs_gradient: bool, dtype: torch.dtype
) -> _LossAndGradient:
    """Measures scores [m, V], which are overwritten in float32; `true` [m, 1] int64, `counted` [m] bool."""
    # bf16 只有 8 位有效数字，三万项的求和会失真：在 float32 里算
    scores = scores.float()
    top, best = scores.max(-1, keepdim=True)
    at_true = scores.gather(-1, true) - top
    # 就地变成概率：这一块还在缓存里，不另占内存
    probabilities = scores.sub_(top).exp_()
    total = probabilities.sum(-1, keepdim=True)
    loss = ((total.log() - at_true).squeeze(-1) * counted).sum()
    hits = ((best == true).squeeze(-1) & counted).sum()
    if not needs_gradient:
        return _LossAndGradient(loss, hits, None, None)
    # softmax 交叉熵的梯度就是“概率减去正确答案”：前向时顺手算好，反向不必再读一遍
    weighted = counted[:, None].float()
    at_true = (at_true.exp() / total - 1) * weighted
    gradient = probabilities.div_(total).mul_(weighted)
    return _LossAndGradient(loss, hits, gradient.to(dtype), at_true.to(dtype))


@functools.cache
def _compiled() -> Callable[..., _LossAndGradient]:
    """`_loss_and_gradient` in two passes over the scores instead of nine."""
    return torch.compile(_loss_and_gradient, dynamic=True)


class _Measured:
    def __init__(self, labels: Tensor, *, compiled: bool = False) -> None:
        self.work = _compiled() if compiled else _loss_and_gradient
        self.counts = labels != _NO_LABEL
        self.classes = labels.where(self.counts, 0)[:, None]
        self.loss, self.hits = labels.new_zeros((), dtype=torch.float32), labels.new_zeros(())

    def chunks(self, num_classes: int, *, fewest: int = 1) -> Iterator[slice]:
        size = _CHUNK.get(self.counts.device.type, _CHUNK["cpu"]) // max(1, num_classes)
        rows = max(fewest, size)
        for start in range(0, len(self.counts), rows):
            yield slice(start, start + rows)

    def add(self, chunk: slice, scores: Tensor, dtype: torch.dtype, *, needs_gradient: bool) -> Tensor | None:
        """Measures a chunk of scores, which may be overwritten; returns the gradient by them in `dtype`, if needed."""
        true = self.classes[chunk]
        found = self.work(scores, true, self.counts[chunk], needs_gradient=needs_gradient, dtype=dtype)
        self.loss += found.loss
        self.hits += found.hits
        if found.gradient is None or found.at_true is None:
            return None
        return found.gradient.scatter_(-1, true, found.at_true)


class _CrossEntropy(torch.autograd.Function):
    """Of logits that somebody else may read: they stay as they are."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        measured = _Measured(labels)
        for chunk in measured.chunks(logits.shape[-1]):
            scores = logits[chunk].to(torch.float32, copy=True)
            found = measured.add(chunk, scores, logits.dtype, needs_gradient=gradient is not None)
            if gradient is not None and found is not None:
                gradient[chunk] = found
        ctx.gradient = gradient
        ctx.mark_non_differentiable(measured.hits)
        return measured.loss, measured.hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, _of_hits: Tensor) -> tuple[Tensor, None]:
        # 就地缩放：这块内存只属于这一次反向
        gradient = ctx.gradient.mul_(of_loss.to(ctx.gradient.dtype))
        ctx.gradient = None
        return gradient, None


class _DecodedCrossEntropy(torch.autograd.Function):
    """The decoder and its loss together: a chunk of scores becomes gradients before the next one is computed."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, compiled: bool
    ) -> tuple[Tensor, Tensor]:
        needs, pieces = ctx.needs_input_grad, len(weight)
        decoder = weight.to(states.dtype)
        if missing := -pieces % _TILE.get(states.device.type, 1):
            # 补上的行得负无穷分：概率为 0，谁也不会选中，也没有梯度
            decoder, bias = F.pad(decoder, (0, 0, 0, missing)), F.pad(bias, (0, missing), value=-torch.inf)
        of_states = torch.empty_like(states) if needs[0] else None
        of_weight = weight.new_zeros(decoder.shape) if needs[1] else None
        of_bias = torch.zeros_like(bias) if needs[2] else None
        measured = _Measured(labels, compiled=compiled)
        for chunk in measured.chunks(len(decoder), fewest=_FEWEST_ROWS):
            rows = states[chunk]
            scores = linear(rows, decoder, bias)
            found = measured.add(chunk, scores, states.dtype, needs_gradient=any(needs[:3]))
            if found is None:
                continue
            if of_states is not None:
                of_states[chunk] = linear(found, decoder.t(), None)
            if of_weight is not None:
                # 权重的梯度在 float32 里累加：各块之和与整批一次算出的一样准
                if states.dtype == of_weight.dtype:
                    torch.addmm(of_weight, found.t(), rows, out=of_weight)
                else:
                    of_weight += found.t() @ rows
            if of_bias is not None:
                of_bias += found.sum(0)
        ctx.gradients = of_states, *(None if each is None else each[:pieces] for each in (of_weight, of_bias))
        ctx.mark_non_differentiable(measured.hits)
        return measured.loss, measured.hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, _of_hits: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return *(None if each is None else each.mul_(of_loss.to(each.dtype)) for each in gradients), None, None
