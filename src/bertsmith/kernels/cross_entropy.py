"""Cross-entropy over a large vocabulary in one pass: loss, hits and gradient, a few rows at a time.

torch's own keeps the log-probabilities [M, V] in float32 for the backward pass and makes the gradient beside them; with
thirty thousand pieces that is the largest tensor of a small model's step. Here the rows are read a few at a time, while
the cache holds them, and the gradient takes the place of the scores. Where the scores come from a decoder
(`PieceScores`), they are computed chunk by chunk too and go straight into its gradients: of [M, V] there is one chunk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.kernels.matmul import linear

_CHUNK = {"cpu": 2**25, "cuda": 2**27}
"""Scores that are decoded at once: every chunk reads and writes the whole gradient of the decoder again."""

_CACHED = {"cpu": 2**20}
"""Scores that are measured at once, 4 MiB in float32: what a CPU's caches hold. Elsewhere it is the chunk."""

_NO_LABEL = -100
"""The class of a row that does not count, as in torch's own."""

_TILE = {"cuda": 64}
"""Pieces are decoded in whole multiples of this: cuBLAS takes slow kernels for a matrix whose rows are no multiple of
8, as the 30,522 of BERT's vocabulary."""


class CrossEntropy(NamedTuple):
    """What predictions cost.

    Attributes:
        loss: scalar float32, `nats` by the divisor; the one with a gradient.
        nats: scalar float32, the sum of -log p(true class) over the rows with a label.
        hits: scalar int64, rows whose most probable class, the first of equals, is the true one.
    """

    loss: Tensor
    nats: Tensor
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


def cross_entropy(scores: Tensor | PieceScores, labels: Tensor, *, divisor: float | Tensor = 1.0) -> CrossEntropy:
    """Measures scores [M, V] of any float dtype against true classes [M] int64, -100 where there is none.

    The softmax is computed in float32.

    Args:
        divisor: what the loss is divided by. It goes into the gradient of each row while the row is in the cache;
            a division afterwards has to read and write the decoder's whole gradient once more.
    """
    if isinstance(scores, PieceScores) and scores._logits is None:
        decoded = scores.states, scores.weight, scores.bias
        return CrossEntropy(*_DecodedCrossEntropy.apply(*decoded, labels, divisor, scores.compiled))  # type: ignore[no-untyped-call]
    logits = scores.logits if isinstance(scores, PieceScores) else scores
    return CrossEntropy(*_CrossEntropy.apply(logits, labels, divisor))  # type: ignore[no-untyped-call]


class _RowsMeasured(NamedTuple):
    """What rows of scores cost, and `at_true` [m, 1], the gradient at their true classes."""

    nats: Tensor
    hits: Tensor
    at_true: Tensor


def _measure_rows(
    scores: Tensor, bias: Tensor | None, true: Tensor, weights: Tensor, *, needs_gradient: bool
) -> _RowsMeasured:
    """Measures scores [m, V]; with `needs_gradient` theirs takes their place, but for the true classes.

    `bias` [V] is still to be added; `true` [m, 1] int64; `weights` [m, 1] float32, of the rows in the gradient: 0 where
    a row does not count.
    """
    # bf16 只有 8 位有效数字，三万项的求和会失真：在 float32 里算；偏置也在这里加，矩阵乘带着它反而慢
    exact = scores.float()
    exact = exact if bias is None else exact.add_(bias)
    counted = weights != 0
    top = exact.amax(-1, keepdim=True)
    at_true = exact.gather(-1, true) - top
    hits = (_is_best(exact, true, at_true == 0) & counted).sum()
    # 就地变成概率：这一块还在缓存里，不另占内存
    probabilities = exact.sub_(top).exp_()
    total = probabilities.sum(-1, keepdim=True)
    nats = ((total.log() - at_true) * counted).sum()
    if needs_gradient:
        # softmax 交叉熵的梯度就是“概率减去正确答案”：前向时顺手算好，反向不必再读一遍
        gradient = probabilities.mul_(weights / total)
        if gradient.dtype != scores.dtype:
            scores.copy_(gradient)
    return _RowsMeasured(nats, hits, (at_true.exp() / total - 1) * weights)


def _is_best(scores: Tensor, true: Tensor, reaches_top: Tensor) -> Tensor:
    """[m, 1] bool, whether the true class is the first of the best; `reaches_top` is whether it is one of them."""
    if torch.compiler.is_compiling() or scores.device.type != "cpu":
        return scores.argmax(-1, keepdim=True) == true
    # 在 CPU 上找最大值的下标比只求最大值慢几倍：真值达到最大值的行才需要找
    rows = reaches_top.squeeze(-1).nonzero().squeeze(-1)
    return reaches_top.index_copy(0, rows, scores[rows].argmax(-1, keepdim=True) == true[rows])


@functools.cache
def _compiled() -> Callable[..., _RowsMeasured]:
    """`_measure_rows` in two passes over the scores instead of nine."""
    return torch.compile(_measure_rows, dynamic=True)


class _Measured:
    """The sums over the rows that were measured."""

    def __init__(self, labels: Tensor, divisor: float | Tensor, *, compiled: bool = False) -> None:
        self.work = _compiled() if compiled else _measure_rows
        counts = labels != _NO_LABEL
        self.classes = labels.where(counts, 0)[:, None]
        self.divisor, self.weights = divisor, (counts.float() / divisor)[:, None]
        self.nats, self.hits = labels.new_zeros((), dtype=torch.float32), labels.new_zeros(())

    def chunks(self, num_classes: int) -> Iterator[slice]:
        """The rows that are decoded at once; one empty chunk where there are none, so that gradients are 0."""
        return _slices(len(self.classes), _CHUNK.get(self.classes.device.type, _CHUNK["cpu"]) // num_classes)

    def add(self, rows: slice, scores: Tensor, bias: Tensor | None = None, *, needs_gradient: bool) -> Tensor:
        """Measures scores of some rows, which are overwritten; returns what took their place, the gradient or rest."""
        all_true, all_weights = self.classes[rows], self.weights[rows]
        most = _CACHED.get(scores.device.type, scores.numel()) // scores.shape[-1]
        for part in _slices(len(scores), most):
            true = all_true[part]
            found = self.work(scores[part], bias, true, all_weights[part], needs_gradient=needs_gradient)
            self.nats += found.nats
            self.hits += found.hits
            if needs_gradient:
                # 按下标赋值而不用 scatter_：后者在 CPU 的 bf16 上把整块来回复制三遍
                where = torch.arange(len(true), device=true.device), true.squeeze(-1)
                scores[part].index_put_(where, found.at_true.squeeze(-1).to(scores.dtype))
        return scores

    def results(self, ctx: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, nats and hits, of which the last two have no gradient."""
        ctx.mark_non_differentiable(self.nats, self.hits)
        return (self.nats / self.divisor).float(), self.nats, self.hits


def _slices(count: int, most: int) -> Iterator[slice]:
    """Cuts a number of rows into slices of `most`, at least one each; one empty slice where there are no rows."""
    for start in range(0, max(1, count), max(1, most)):
        yield slice(start, start + max(1, most))


def _scaled(gradients: Iterable[Tensor | None], of_loss: Tensor) -> Iterator[Tensor | None]:
    """Multiplies gradients by that of the loss, in place: nobody else has them."""
    # 在 CPU 上看一眼：乘以 1 也要把整个词表的梯度读写一遍；在 GPU 上看就得等它
    is_one = of_loss.device.type == "cpu" and float(of_loss) == 1.0
    for gradient in gradients:
        yield gradient if gradient is None or is_one else gradient.mul_(of_loss.to(gradient.dtype))


class _CrossEntropy(torch.autograd.Function):
    """Of logits that somebody else may read: they stay as they are."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, divisor: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        gradient = torch.empty_like(logits) if needs_gradient else None
        measured = _Measured(labels, divisor)
        for rows in measured.chunks(logits.shape[-1]):
            found = measured.add(rows, logits[rows].clone(), needs_gradient=needs_gradient)
            if gradient is not None:
                gradient[rows] = found
        ctx.gradient = gradient
        return measured.results(ctx)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradient, ctx.gradient = ctx.gradient, None
        return *_scaled([gradient], of_loss), None, None


class _DecodedCrossEntropy(torch.autograd.Function):
    """The decoder and its loss together: a chunk of scores becomes gradients before the next one is computed."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, divisor: float | Tensor, compiled: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        needs, pieces = ctx.needs_input_grad, len(weight)
        decoder = weight.to(states.dtype)
        if missing := -pieces % _TILE.get(states.device.type, 1):
            # 补上的行得负无穷分：概率为 0，谁也不会选中，也没有梯度
            decoder, bias = F.pad(decoder, (0, 0, 0, missing)), F.pad(bias, (0, missing), value=-torch.inf)
        of_states, of_weight, of_bias = torch.empty_like(states) if needs[0] else None, None, None
        measured = _Measured(labels, divisor, compiled=compiled)
        for rows in measured.chunks(len(decoder)):
            scores = linear(states[rows], decoder, None)
            found = measured.add(rows, scores, bias, needs_gradient=any(needs[:3]))
            if of_states is not None:
                of_states[rows] = linear(found, decoder.t(), None)
            # 权重的梯度在 float32 里累加：各块之和与整批一次算出的一样准
            if needs[1]:
                of_weight = _added(of_weight, found.t() @ states[rows])
            if needs[2]:
                of_bias = _added(of_bias, found.sum(0))
        if missing:
            of_weight, of_bias = (None if each is None else each[:pieces] for each in (of_weight, of_bias))
        # 不是视图、也没有别人引用：autograd 才会把查表的梯度就地加上去
        ctx.gradients = of_states, of_weight, of_bias
        return measured.results(ctx)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return *_scaled(gradients, of_loss), None, None, None


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    """Adds a part to a float32 total, which begins with the first."""
    return part.float() if total is None else total.add_(part)
