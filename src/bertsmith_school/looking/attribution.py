"""Token attributions: how much each token of a text adds to one number that a fine-tuned model computes.

Integrated gradients (Sundararajan et al. 2017, §3) go from a baseline, the text with every word hidden, to the text, in
Gauss-Legendre steps that are doubled until their sum is within 1 % of the difference of the two numbers (completeness,
§3, proposition 1). The path runs through the output of the embedding layer; special tokens, positions and segments are
the same at both ends, so they get nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith_school.looking.maps import backbone
from bertsmith_school.looking.scored import ScoredText

Baseline = Literal["mask", "pad"]

TOLERANCE = 0.01
"""Completeness holds where the sum of the attributions is this close to the difference, relative to it."""

FIRST_STEPS, MOST_STEPS = 16, 1024
TOKEN_BUDGET = 4096
"""Tokens whose gradients are taken at once."""

_EQUAL = 1e-4
"""Numbers of a float32 model that are this close are the same: completeness is not asked for below it."""


@dataclass(frozen=True)
class Completeness:
    """Whether the attributions add up."""

    total: float
    score: float
    baseline_score: float
    steps: int

    @property
    def difference(self) -> float:
        """What the attributions should add up to."""
        return self.score - self.baseline_score

    @property
    def gap(self) -> float:
        """How far the sum is off, relative to the difference."""
        return abs(self.total - self.difference) / max(abs(self.difference), _EQUAL)

    @property
    def holds(self) -> bool:
        """Whether the gap is within `TOLERANCE`, or below what float32 can tell."""
        return abs(self.total - self.difference) <= max(TOLERANCE * abs(self.difference), _EQUAL)


@dataclass(frozen=True)
class Attribution:
    """What each token adds: `values` [S] float64, positive ones raise the number."""

    scored: ScoredText
    baseline: Baseline
    tokens: list[str]
    values: NDArray[np.float64]
    completeness: Completeness

    @property
    def check(self) -> str:
        """The check in a sentence."""
        found = self.completeness
        numbers = (
            f"attributions add up to {found.total:+.4f}; F(text) - F(baseline) ="
            f" {found.score:.4f} - {found.baseline_score:.4f} = {found.difference:+.4f}"
        )
        if found.holds:
            return f"{numbers}; they agree within {found.gap:.2%}, after {found.steps} steps"
        return f"{numbers}; they differ by {found.gap:.1%} even after {found.steps} steps: do not rely on the values"


def attribute(scored: ScoredText, *, baseline: Baseline = "mask") -> Attribution:
    """Attributes a number to the tokens of its sequence, see `scored.Explainable`.

    The baseline has all tokens but special ones replaced by `[MASK]`, a word that cannot be seen, or by `[PAD]`.
    """
    if baseline not in get_args(Baseline):
        raise ConfigError(f"baseline {baseline!r} is unknown; use {' or '.join(get_args(Baseline))}")
    tokens = [scored.tokenizer.vocab[index] for index in scored.input_ids]
    with _float32(scored):
        embedded = _embed(scored, scored.input_ids)
        hidden_id = scored.tokenizer.mask_token_id if baseline == "mask" else scored.tokenizer.pad_token_id
        # 特殊词元不替换：它们是格式而不是内容，两端相同，归因自然为零
        hidden = [
            index if start == end else hidden_id
            for index, (start, end) in zip(scored.input_ids, scored.offsets, strict=True)
        ]
        values, completeness = _integrated_gradients(scored, embedded, _embed(scored, hidden))
    return Attribution(scored, baseline, tokens, values, completeness)


def _integrated_gradients(
    scored: ScoredText, embedded: Tensor, start: Tensor
) -> tuple[NDArray[np.float64], Completeness]:
    """Integrates the gradient along the straight path from `start` to `embedded`, both [S, H]."""
    score, baseline_score = _scores(scored, torch.stack([embedded, start])).tolist()
    direction = embedded - start
    steps = FIRST_STEPS
    while True:
        # 高斯-勒让德求积：同样的步数比梯形法则精确得多；不够就加倍，直到满足完备性
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        mean = torch.zeros_like(direction, dtype=torch.float64)
        at_once = max(1, TOKEN_BUDGET // len(scored.input_ids))
        for first in range(0, steps, at_once):
            part = slice(first, first + at_once)
            places = torch.tensor((nodes[part] + 1) / 2, dtype=direction.dtype, device=direction.device)
            gradients = _gradients(scored, start + places[:, None, None] * direction)
            shares = torch.tensor(weights[part] / 2, device=direction.device)
            mean += (shares[:, None, None] * gradients.double()).sum(0)
        values = (mean * direction.double()).sum(-1).cpu().numpy()
        completeness = Completeness(float(values.sum()), score, baseline_score, steps)
        if completeness.holds or steps >= MOST_STEPS:
            return values, completeness
        steps *= 2


def _embed(scored: ScoredText, input_ids: list[int]) -> Tensor:
    """Returns the output of the embedding layer, [S, H]."""
    embedding = backbone(scored.model).embedding
    batch = RaggedBatch.from_sequences([input_ids], [scored.token_type_ids]).to(embedding.word.weight.device)
    with torch.no_grad():
        embedded: Tensor = embedding(batch)
    return embedded


def _scores(scored: ScoredText, points: Tensor) -> Tensor:
    """Returns the number [N] at N points [N, S, H] of the embedding layer's output."""
    # 梯度开着时总是 float32：关掉它，int8 的模型在这里会给出另一个函数的值
    with torch.inference_mode(False), torch.enable_grad():
        return _read(scored, points).detach().double()


def _gradients(scored: ScoredText, points: Tensor) -> Tensor:
    """Returns the gradient [N, S, H] of the number at N points."""
    with torch.inference_mode(False), torch.enable_grad():
        points = points.detach().clone().requires_grad_()
        # 各点互不相干：对总和求导，一次反向得到所有点的梯度
        (gradients,) = torch.autograd.grad(_read(scored, points).sum(), points)
    return gradients


def _read(scored: ScoredText, points: Tensor) -> Tensor:
    """Runs the model on N copies of the sequence, with `points` in place of their embeddings."""
    count = len(points)
    batch = RaggedBatch.from_sequences([scored.input_ids] * count, [scored.token_type_ids] * count).to(points.device)
    # 用前向钩子换掉嵌入层的输出：模型代码不必为此改动
    hook = backbone(scored.model).embedding.register_forward_hook(lambda *_: points.flatten(0, 1))
    try:
        return scored.read(batch)
    finally:
        hook.remove()


@contextmanager
def _float32(scored: ScoredText) -> Iterator[None]:
    """Computes in float32 without dropout meanwhile, whatever the model usually runs in."""
    usual, training = backbone(scored.model).embedding.compute_dtype, scored.model.training
    scored.model.set_compute_dtype(torch.float32)
    scored.model.eval()
    try:
        yield
    finally:
        scored.model.set_compute_dtype(usual)
        scored.model.train(training)
