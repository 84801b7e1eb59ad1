"""Attention maps as data: who reads whom in every layer and head, what a stack of layers adds up to, and measures.

- asking for maps takes the model's explicit attention path, the equation as it is printed, in float32
- special tokens written in the text (`[MASK]`) are recognised: one looks at what the model reads there
- a pruned head has no map; its place holds NaN, so that layer and head keep their numbers
- every measure of a head (Clark et al. 2019, §3 and §4) is a mean over the tokens of the text: how spread its attention
  is, how far it reaches, and what share goes to `[CLS]`, to `[SEP]`, to the neighbours, from one text to the other
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith import best_device
from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, InputError
from bertsmith.inference.pipeline import require_fit
from bertsmith.model import Backbone, PretrainedModel
from bertsmith.tokenizer import Encoding, Tokenizer, load_tokenizer

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class AttentionMaps:
    """What every head of a model does with one text or pair.

    Attributes:
        sequence_ids: S numbers, 0 for the first text and 1 for the second, also where a model has no segments.
        maps: [L, A, S, S] float32 in [0, 1]; row i is what token i takes, and adds up to 1; NaN for a pruned head.
        separators: the places of `[SEP]` among the tokens.
        dropped: how many pieces did not fit the model and were cut off.
    """

    tokens: list[str]
    sequence_ids: list[int]
    maps: Floats
    separators: tuple[int, ...]
    dropped: int = 0

    @property
    def is_pair(self) -> bool:
        """Whether there are two texts."""
        return any(self.sequence_ids)

    @property
    def note(self) -> str:
        """A sentence for the reader where the text was cut; empty otherwise."""
        if not self.dropped:
            return ""
        size = len(self.tokens)
        return (
            f"The text has {size + self.dropped} tokens, the model reads {size}: the last {self.dropped} are cut off."
        )


def load_for_maps(folder: str | Path) -> tuple[Backbone, Tokenizer]:
    """Loads any model folder for `maps_of`: the encoder and the tokenizer; heads are left aside."""
    model, tokenizer = Backbone.from_pretrained(folder, need_pooler=False), load_tokenizer(folder)
    require_fit(tokenizer, model.config, folder)
    return model.to(best_device()), tokenizer


def backbone(model: PretrainedModel) -> Backbone:
    """Returns the encoder of a model: the model itself, or the one under its head."""
    bert = getattr(model, "backbone", None)
    if not isinstance(bert, Backbone):
        raise CheckpointError(
            f"a {type(model).__name__} has no encoder to look into; give a BertModel or one with a head"
        )
    return bert


@torch.inference_mode()
def maps_of(model: PretrainedModel, tokenizer: Tokenizer, text: str, pair: str | None = None) -> AttentionMaps:
    """Runs a text or pair through a model, in evaluation mode, and keeps the attention probabilities of all heads.

    A text that is too long is cut, of a pair the longer one, see `AttentionMaps.note`; `InputError` without a word.
    """
    bert = backbone(model)
    encoded, dropped = encode_whole(tokenizer, bert.config.position_limit, text, pair)
    ids, types = encoded["input_ids"], encoded["token_type_ids"]
    if pair is not None and not bert.config.reads_pairs:
        raise InputError("the model knows a single segment; give one text, not a pair")
    device = bert.embedding.word.weight.device
    output = bert.eval()(RaggedBatch.from_sequences([ids], [types]).to(device), need_maps=True)
    shape = (bert.config.num_hidden_layers, bert.config.num_attention_heads, len(ids), len(ids))
    # 被剪掉的头没有图：填 NaN，层号和头号不变，下游按“没有”处理
    maps = np.full(shape, np.nan, dtype=np.float32)
    for layer, (layer_maps,) in enumerate(output.attentions or ()):
        maps[layer, list(bert.config.heads_left(layer))] = layer_maps.float().cpu().numpy()
    separators = tuple(place for place, index in enumerate(ids) if index == tokenizer.sep_token_id)
    pieces = [tokenizer.vocab[index] for index in ids]
    return AttentionMaps(pieces, encoded["sequence_ids"], maps, separators, dropped)


def encode_whole(
    tokenizer: Tokenizer, max_length: int, text: str, pair: str | None, *, parse_special: bool = True
) -> tuple[Encoding, int]:
    """Encodes one text or pair as the pipelines do, cut to `max_length`; also returns how many pieces were cut off.

    There is a column more, `sequence_ids`: the text of a token, special ones counted with the text before them.
    """
    texts = [text] if pair is None else [text, pair]
    for number, one in enumerate(texts, 1):
        if not isinstance(one, str):
            raise InputError(f"text {number} is a {type(one).__name__}; give a string")
        if not tokenizer.encode(one, parse_special=parse_special):
            raise InputError(f"text {number}, {one[:60]!r}, holds no word; write something")
    whole = tokenizer(text, pair, parse_special=parse_special)
    cut = tokenizer(text, pair, parse_special=parse_special, max_length=max_length)
    cut["sequence_ids"] = [0] * len(cut["input_ids"])
    if pair is not None:
        # RoBERTa 的两段文本同属一个句段：段号分不清它们，要看中间的特殊词元在哪里
        before, between = len(tokenizer.template.before), len(tokenizer.template.between)
        head = cut["special_tokens_mask"].index(1, before) + between
        cut["sequence_ids"][head:] = [1] * (len(cut["input_ids"]) - head)
    return cut, len(whole["input_ids"]) - len(cut["input_ids"])


def mean_over_heads(maps: Floats) -> Floats:
    """Averages the heads of each layer that were not pruned: [L, A, S, S] to [L, S, S], rows adding up to 1."""
    mean: Floats = np.nanmean(maps, axis=1)
    return mean


def rollout(maps: Floats) -> Floats:
    """Follows attention down to the input (attention rollout, Abnar and Zuidema 2020, §3).

    A state in layer l is half itself, by the residual connection, and half a mixture by attention; multiplied through
    the layers that says how much of each input token arrives. Heads are averaged; values and feed-forward layers do not
    count. From [L, A, S, S] to [L, S, S]: for each layer, what token i takes from input token j; rows add up to 1.
    """
    size = maps.shape[-1]
    # 残差连接算作一半：0.5 A + 0.5 I，否则连乘几层后每一行都趋于同一个分布
    mixing = 0.5 * mean_over_heads(maps).astype(np.float64) + 0.5 * np.eye(size)
    reached = np.eye(size)
    layers = []
    for layer in mixing:
        reached = layer @ reached
        # 每行本来就和为 1；逐层归一只为不让舍入误差累积
        reached /= reached.sum(-1, keepdims=True)
        layers.append(reached)
    return np.stack(layers).astype(np.float32)


def cls_attention(maps: Floats) -> Floats:
    """Returns what `[CLS]` reads in each layer, the mean of its heads: [L, S], rows adding up to 1."""
    return mean_over_heads(maps)[:, 0]


def thumbnails(maps: Floats, size: int) -> Floats:
    """Shrinks maps for a small picture: [..., S, S] to [..., s, s] with s = min(S, size).

    A cell is the largest weight in its block, so that a thin diagonal does not fade as it would in a mean.
    """
    length = maps.shape[-1]
    if length <= size:
        return maps
    edges = np.arange(size) * length // size
    shrunk: Floats = np.maximum.reduceat(np.maximum.reduceat(maps, edges, axis=-1), edges, axis=-2)
    return shrunk


@dataclass(frozen=True)
class HeadMeasure:
    """One number about a head; a share lies in [0, 1] and is shown in percent."""

    name: str
    meaning: str
    is_share: bool


MEASURES: dict[str, HeadMeasure] = {
    "entropy": HeadMeasure(
        "entropy", "How spread the attention is, in nats: 0 for one token, ln S for all alike.", False
    ),
    "distance": HeadMeasure("distance", "How far away the tokens are that are read, in tokens.", False),
    "cls": HeadMeasure("to [CLS]", "Share that goes to [CLS].", True),
    "sep": HeadMeasure("to [SEP]", "Share that goes to [SEP]: often a head's way of doing nothing.", True),
    "itself": HeadMeasure("to itself", "Share that a token gives to itself.", True),
    "previous": HeadMeasure("to previous", "Share that goes to the token before, of the tokens that have one.", True),
    "next": HeadMeasure("to next", "Share that goes to the token behind, of the tokens that have one.", True),
}
"""The measures by key, in the order in which they are shown."""

PAIRS = ("A→A", "A→B", "B→A", "B→B")
"""Names of the four shares of `pair_shares`, row by row."""


def summaries(attention: AttentionMaps) -> dict[str, Floats]:
    """Measures every head: for each key of `MEASURES` [L, A] float32; NaN where a head was pruned."""
    maps = attention.maps.astype(np.float64)
    size = len(attention.tokens)
    places = np.arange(size)
    distance = np.abs(places[:, None] - places)
    # 0 ln 0 取 0：softmax 下溢成 0 的权重不贡献熵
    logarithms = np.log(np.where(maps > 0, maps, 1.0))
    found = {
        "entropy": np.abs((maps * logarithms).sum(-1)).mean(-1),
        "distance": (maps * distance).sum(-1).mean(-1),
        "cls": maps[..., 0].mean(-1),
        "sep": maps[..., list(attention.separators)].sum(-1).mean(-1),
        "itself": maps[..., places, places].mean(-1),
        # 第一个词没有前一个、最后一个没有后一个：只对有邻居的词取平均
        "previous": maps[..., places[1:], places[:-1]].mean(-1),
        "next": maps[..., places[:-1], places[1:]].mean(-1),
    }
    return {name: found[name].astype(np.float32) for name in MEASURES}


def pair_shares(maps: Floats, token_type_ids: Sequence[int]) -> Floats:
    """Measures what each text of a pair (row) gives to each (column) on average: [L, A, S, S] to [L, A, 2, 2]."""
    types = np.asarray(token_type_ids)
    shares = [
        [maps[:, :, types == reader][:, :, :, types == read].sum(-1, dtype=np.float64).mean(-1) for read in (0, 1)]
        for reader in (0, 1)
    ]
    return np.stack([np.stack(row, -1) for row in shares], -2).astype(np.float32)
