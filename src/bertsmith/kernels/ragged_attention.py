"""Attention over ragged batches on the hardware at hand: in which rectangles, by which kernel.

The equation itself is in `model/attention.py`, which hands it in. What is here decides how it is run:

- CUDA runs variable-length flash attention in 16 bits, where the GPU and the size of the heads allow it; that kernel
  has no dropout on the attention weights and no prefix masks, for which a padded rectangle is used
- the CPU cuts a batch with unequal lengths into rectangles, where that computes enough less for padding
- the CPU's fused kernel is used for long sequences in float32 without dropout; in bf16, with dropout or on short
  sequences the plain equation, two batched matmuls and a softmax, is up to three times as fast
- where tokens read a window, the CPU cuts a long sequence into blocks of queries, each with the keys around it: time
  and memory then grow with the length, not with its square
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bertsmith.batch import AttentionMask, RaggedBatch
from bertsmith.kernels.processor import ASYNCHRONOUS

Equation = Callable[[Tensor, Tensor, Tensor, "Tensor | None"], Tensor]
"""(query, key, value [N, A, S, D], hidden keys [N or 1, 1, S or 1, S] bool or None) → [N, A, S, D]."""

SHORT = 32
"""Up to this length the plain equation beats the fused kernel on the CPU at float32 too."""

LONG_IN_WINDOWS = 3
"""From this many windows on, a sequence is cut into blocks; a block reads three windows of keys."""

CUT_COST, CUT_COST_IN_TRAINING = 2_500, 15_000
"""Cost of one more rectangle, in attention weights that could be computed in the same time; in training half or twice
as much makes little difference (`benchmarks/attention_parts.py`)."""


def ragged_attention(
    qkv: Tensor,
    batch: RaggedBatch,
    mask: AttentionMask,
    equation: Equation,
    *,
    training: bool,
    dropout: float,
    recompute: bool = False,
) -> Tensor:
    """Attends within every sequence of a batch: [T, A D], the heads concatenated.

    Args:
        qkv: [T, 3, A, D], query, key and value of every token.
        equation: scaled dot-product attention on a rectangle, with its dropout.
        training: whether a backward pass follows, so that cutting costs more.
        recompute: run the equation again in the backward pass instead of keeping its [S, S] maps.
    """
    on_cpu = qkv.device.type == "cpu"
    if not dropout and mask.prefix_lengths is None and _has_varlen(qkv):
        return _attend_varlen(qkv, batch, mask)

    def attend(qkv: Tensor) -> Tensor:
        if not on_cpu or torch.compiler.is_compiling():
            return _attend_padded(qkv, batch, mask, equation, dropout=dropout)
        cut_cost = (CUT_COST_IN_TRAINING if training else CUT_COST) // qkv.shape[2]
        return _attend_in_rectangles(qkv, batch, mask, equation, dropout=dropout, cut_cost=cut_cost)

    if recompute and training:
        # [A, S, S] 的概率和它的 dropout 占激活的大半，重算却只花很少的时间
        mixed: Tensor = checkpoint(attend, qkv, use_reentrant=False)
        return mixed
    return attend(qkv)


def cut_into_rectangles(batch: RaggedBatch, cut_cost: int) -> list[RaggedBatch]:
    """Cuts a batch between neighbours into rectangles with less padding, or leaves it whole where that costs less.

    It saves most where neighbours are alike: sorted by length.

    Args:
        cut_cost: cost of one more rectangle, in attention weights [S, S] that are computed for padding.
    """
    # 每一层都要问，答案却只和长度有关：同一批只算一次
    key = ("rectangles", cut_cost)
    if key not in batch.kept:
        batch.kept[key] = [batch.sequences(first, last) for first, last in pairwise(_best_cuts(batch, cut_cost))]
    # 不切时存的是空表：存自己会成环，用完的批次要等垃圾回收才放掉
    return batch.kept[key] or [batch]


def _best_cuts(batch: RaggedBatch, cut_cost: int) -> list[int]:
    """Returns where the rectangles begin and end, in sequences; empty where one rectangle is best."""
    ends, count, longest, needed, computed = [0], 0, 0, 0, 0
    for length in [*batch.lengths, 0]:
        longest_with = max(longest, length)
        # 长度匀称地递增时，每块的填充恰好等于切一刀的代价，总代价最小；末尾的 0 只为收口
        if count and (length == 0 or (count + 1) * longest_with**2 - needed - length**2 > cut_cost):
            ends.append(ends[-1] + count)
            computed += count * longest**2
            count, needed, longest_with = 0, 0, length
        count, longest, needed = count + 1, longest_with, needed + length**2
    cuts = len(ends) - 2
    if cuts == 0 or computed + cuts * cut_cost >= batch.num_sequences * batch.max_seqlen**2:
        return []
    return ends


def _attend_in_rectangles(
    qkv: Tensor, batch: RaggedBatch, mask: AttentionMask, equation: Equation, *, dropout: float, cut_cost: int
) -> Tensor:
    """Sequences of similar length are a rectangle each, so that little padding is computed."""
    parts = cut_into_rectangles(batch, cut_cost)
    if len(parts) == 1:
        return _attend_padded(qkv, batch, mask, equation, dropout=dropout)
    # 推理与微调的批次都按长度排好：长短相近的自然相邻
    states = qkv.split([part.num_tokens for part in parts])
    masks = mask.split([part.num_sequences for part in parts])
    return torch.cat(
        [_attend_padded(*each, equation, dropout=dropout) for each in zip(states, parts, masks, strict=True)]
    )


def _attend_padded(
    qkv: Tensor, batch: RaggedBatch, mask: AttentionMask, equation: Equation, *, dropout: float
) -> Tensor:
    """One rectangle: equal lengths are a view, unequal ones are laid out with their padding hidden."""
    # [T, 3, A, D] → 三个 [N, A, S, D]；长度全相同时 pad 只是改变视图，不复制
    on_cpu = qkv.device.type == "cpu"
    window = None if mask.is_causal or torch.compiler.is_compiling() else mask.window
    if on_cpu and window is not None and batch.max_seqlen > LONG_IN_WINDOWS * window:
        return _attend_in_windows(qkv, batch, window, equation, dropout=dropout)
    query, key, value = batch.pad(qkv).permute(2, 0, 3, 1, 4)
    if on_cpu and (dropout or qkv.dtype == torch.bfloat16 or torch.compiler.is_exporting() or query.shape[2] <= SHORT):
        mixed = equation(query, key, value, mask.hidden_keys(batch))
    elif mask.is_causal and mask.prefix_lengths is None and mask.window is None:
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    else:
        hidden = mask.hidden_keys(batch)
        readable = None if hidden is None else ~hidden
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=readable, dropout_p=dropout)
    return batch.unpad(mixed.transpose(1, 2)).flatten(1)


def _attend_in_windows(qkv: Tensor, batch: RaggedBatch, window: int, equation: Equation, *, dropout: float) -> Tensor:
    """A rectangle of long sequences whose tokens read a window: blocks of `window` queries, 3 `window` keys each."""
    padded = batch.pad(qkv)  # [N, S, 3, A, D]
    length = batch.max_seqlen
    blocks = -(-length // window)
    query, key, value = F.pad(padded, (0, 0, 0, 0, 0, 0, 0, blocks * window - length)).unbind(2)  # [N, B W, A, D]
    queries = query.unflatten(1, (blocks, window)).transpose(2, 3)  # [N, B, A, W, D]
    # 每块查询配上左右各一个窗口的键：步长为 W 的滑窗只是视图，三倍的键也不先复制
    around = [F.pad(each, (0, 0, 0, 0, window, window)).unfold(1, 3 * window, window) for each in (key, value)]
    keys, values = (each.transpose(3, 4) for each in around)  # [N, B, A, 3 W, D]
    hidden = _hidden_in_windows(batch, window, blocks)
    if dropout or qkv.dtype == torch.bfloat16:
        mixed = equation(queries, keys, values, hidden)
    else:
        # 融合内核一块一块地算，不把 [W, 3 W] 的分数写进内存：float32 下快将近四倍；
        # 一句一句地给它：首尾相接的滑窗只有在一句之内是视图，跨句展平会把键和值各复制三份
        each_text = zip(queries, keys, values, ~hidden.expand(len(padded), *hidden.shape[1:]), strict=True)
        mixed = torch.stack([F.scaled_dot_product_attention(*text) for text in each_text])
    return batch.unpad(mixed.transpose(2, 3).flatten(1, 2)[:, :length]).flatten(1)


def _hidden_in_windows(batch: RaggedBatch, window: int, blocks: int) -> Tensor:
    """Returns [N or 1, B, 1, W, 3 W] bool, True where a key of a block must not be read."""
    key = ("windows", window)
    if key not in batch.kept:
        with torch.inference_mode(False):
            places = torch.arange(window)
            distance = torch.arange(-window, 2 * window) - places[:, None]  # [W, 3 W]
            keys = torch.arange(blocks)[:, None] * window + torch.arange(-window, 2 * window)  # [B, 3 W]
            lengths = torch.tensor([batch.max_seqlen] if batch.has_equal_lengths else batch.lengths)
            outside = (keys < 0) | (keys >= lengths[:, None, None])  # [N, B, 3 W]
            # 填充处的查询至少看得见自己，否则 softmax 得出 NaN
            batch.kept[key] = (distance.abs() > window) | (outside[:, :, None, None] & (distance != 0))
    hidden: Tensor = batch.kept[key]
    return hidden


def flash_takes(head_size: int, capability: tuple[int, int]) -> bool:
    """Tells whether torch's flash attention takes heads of D dimensions on a GPU of some compute capability."""
    # 内核八个数一组地读，每头至多 256 维；Ampere（8.0）之前的 GPU 上没有它
    return head_size % 8 == 0 and head_size <= 256 and capability >= (8, 0)


def _has_varlen(qkv: Tensor) -> bool:
    """Whether flash attention takes what there is; `meta` stands for a GPU that has it."""
    if qkv.device.type not in ASYNCHRONOUS or qkv.dtype not in (torch.float16, torch.bfloat16):
        return False
    if qkv.device.type == "meta":
        return flash_takes(qkv.shape[-1], (8, 0))
    found = torch.cuda.get_device_properties(qkv.device)
    return flash_takes(qkv.shape[-1], (found.major, found.minor))


def _attend_varlen(qkv: Tensor, batch: RaggedBatch, mask: AttentionMask) -> Tensor:
    """Variable-length flash attention on CUDA: no rectangle at all."""
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = qkv.unbind(1)
    cu_seqlens, longest = batch.cu_seqlens, batch.max_seqlen
    # 窗口 (-1, 0)：左边不限，右边一个也不看，即因果注意力
    reach = -1 if mask.window is None else mask.window
    window = (reach, 0) if mask.is_causal else (reach, reach)
    mixed = varlen_attn(query, key, value, cu_seqlens, cu_seqlens, longest, longest, window_size=window)
    # 没有要 log-sum-exp，返回的只会是一个张量
    assert isinstance(mixed, Tensor)
    return mixed.flatten(1)
