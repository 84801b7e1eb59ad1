"""Choosing what to hide: the masked-LM corruption of the paper (Devlin et al. 2019, §3.1 task 1 and appendix A.1).

15 % of the pieces of every sequence are chosen; of those 80 % become `[MASK]`, 10 % a random piece and 10 % stay.
All sequences of a batch are drawn at once by sorting random keys, so masking costs a few array operations a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MaskingSettings:
    """How much is hidden, and how.

    Attributes:
        rate: share of a sequence's pieces that is chosen, in (0, 1).
        mask_share: share of the chosen that becomes `[MASK]`.
        random_share: share of the chosen that becomes a random piece; the rest stays as it is.
    """

    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1


@dataclass(frozen=True)
class MaskedTokens:
    """The corrupted ids [T], the chosen `positions` [M] in increasing order, and their true ids `labels` [M]."""

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    labels: NDArray[np.int64]


def mask_tokens(
    input_ids: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    special_ids: NDArray[np.int64],
    mask_token_id: int,
    vocab_size: int,
    settings: MaskingSettings,
    rng: np.random.Generator,
) -> MaskedTokens:
    """Chooses and corrupts pieces of N sequences laid end to end.

    Args:
        input_ids: [T] ids.
        lengths: [N] lengths that add up to T.
        special_ids: ids that are never chosen and never drawn as a random piece.
        mask_token_id: id of `[MASK]`.
        vocab_size: V.
        settings: rates.
        rng: source of all draws.

    Returns:
        `round(rate * length)` chosen pieces per sequence, at least one, as far as it has pieces to choose from.
    """
    keys = rng.random(len(input_ids))
    special = np.isin(input_ids, special_ids)
    # 特殊符号的键放到最后：它们永远不会排进被选中的前 k 个
    keys[special] = 2.0
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((keys, sequence))
    starts = np.cumsum(lengths) - lengths
    rank = np.arange(len(input_ids)) - np.repeat(starts, lengths)
    wanted = np.maximum(1, np.rint(lengths * settings.rate)).astype(np.int64)
    chosen = order[(rank < np.repeat(wanted, lengths)) & ~special[order]]
    positions = np.sort(chosen)
    labels = input_ids[positions]

    corrupted = input_ids.copy()
    fate = rng.random(len(positions))
    corrupted[positions[fate < settings.mask_share]] = mask_token_id
    # 10% 换成随机词、10% 保持原样：预测时没有 [MASK]，模型不能只在看到 [MASK] 时才认真编码
    randomised = positions[(fate >= settings.mask_share) & (fate < settings.mask_share + settings.random_share)]
    ordinary = np.setdiff1d(np.arange(vocab_size), special_ids)
    corrupted[randomised] = ordinary[rng.integers(len(ordinary), size=len(randomised))]
    return MaskedTokens(corrupted, positions, labels)
