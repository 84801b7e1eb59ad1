"""The whole Transformer of "Attention is all you need": an encoder that reads, a decoder that writes.

BERT keeps the first half of it (Vaswani et al. 2017, figure 1). The encoder is our BERT as it is. The decoder is
written out here: its tokens read each other from left to right, and in every block the encoder's states as well, by
cross-attention: queries come from what is being written, keys and values from what was read.

- blocks of the decoder normalise before each layer (pre-norm), so that they are those of `torch.nn.TransformerDecoder`
- while writing, keys and values of what stands already are kept (`Cache`): a new token costs one token's work
- beam search keeps the likeliest beginnings, and divides their log probability by a power of their length (Wu et al.
  2016, §7), since every further token makes a text less likely
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig, BertModel
from bertsmith.model.backbone import initialize_weights
from bertsmith.train.start import sinusoids


@dataclass
class Cache:
    """Keys and values that a block keeps: of what is written [2, N, A, S, D], and of what was read [2, N, A, M, D]."""

    own: Tensor | None = None
    read: Tensor | None = None


@dataclass
class Memory:
    """What the encoder made of N texts: states [N, M, H], padded, and where there is no token [N, 1, 1, M]."""

    states: Tensor
    hidden: Tensor
    caches: list[Cache] = field(default_factory=list)

    def select(self, rows: Tensor) -> Memory:
        """Returns the memory of some rows, with what was kept for them: beams that continue."""
        chosen = [
            Cache(*(None if each is None else each.index_select(1, rows) for each in (cache.own, cache.read)))
            for cache in self.caches
        ]
        return Memory(self.states.index_select(0, rows), self.hidden.index_select(0, rows), chosen)


class DecoderBlock(nn.Module):
    """Self-attention to the left, cross-attention, feed-forward; each normalised before and added after."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        size, self.num_heads = config.hidden_size, config.num_attention_heads
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.qkv, self.self_output = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.query, self.key_value = nn.Linear(size, size), nn.Linear(size, 2 * size)
        self.cross_output = nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, config.intermediate_size), nn.Linear(config.intermediate_size, size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, states: Tensor, memory: Memory, cache: Cache) -> Tensor:
        """Refines states [N, S, H] of all tokens, or of the next one where the cache holds those before it."""
        query, key, value = self._heads(self.qkv(self.norms[0](states)), 3)
        new = torch.stack([key, value])
        cache.own = new if cache.own is None else torch.cat([cache.own, new], 3)
        # 写的时候只能看左边；一次只写一个词时，缓存里的全在左边，不用遮
        key, value = cache.own
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)
        states = states + self.dropout(self.self_output(self._joined(mixed)))
        (query,) = self._heads(self.query(self.norms[1](states)), 1)
        if cache.read is None:
            # 读到的东西不随写的过程改变：它的键和值只算一次
            cache.read = torch.stack(self._heads(self.key_value(memory.states), 2))
        key, value = cache.read
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=~memory.hidden)
        states = states + self.dropout(self.cross_output(self._joined(mixed)))
        inner = self.dropout(F.gelu(self.up(self.norms[2](states))))
        refined: Tensor = states + self.dropout(self.down(inner))
        return refined

    def _heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Cuts [N, S, parts H] into tensors [N, A, S, D]."""
        rows, length, width = projected.shape
        cut = projected.view(rows, length, parts, self.num_heads, width // parts // self.num_heads)
        return cut.permute(2, 0, 3, 1, 4).unbind(0)

    def _joined(self, mixed: Tensor) -> Tensor:
        return mixed.transpose(1, 2).flatten(2)


class EncoderDecoder(nn.Module):
    """Reads a text, writes another; one table of pieces for reading, writing and choosing."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = BertModel(config, need_pooler=False)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        for module in (self.position, self.blocks):
            initialize_weights(module, config.initializer_range)
        for table, amplitude in ((self.position, 0.2), (self.encoder.embedding.position, 0.1)):
            # 位置从正弦波起步（论文 §3.5），幅度与词嵌入相当：再大，词就淹没在位置里，学不会抄写
            with torch.no_grad():
                table.weight.copy_(amplitude * sinusoids(*table.weight.shape))

    def read(self, source: RaggedBatch) -> Memory:
        """Returns the encoder's states of N texts."""
        states = source.pad(self.encoder(source).hidden_states)
        return Memory(states, ~source.padding_mask[:, None, None], [Cache() for _ in self.blocks])

    def write(self, ids: Tensor, memory: Memory) -> Tensor:
        """Returns logits [N, S, V] of the piece after each of the given ones [N, S].

        With a fresh memory `ids` are all that stands; afterwards only what was added since.
        """
        kept = memory.caches[0].own
        first = 0 if kept is None else kept.shape[3]
        places = torch.arange(first, first + ids.shape[1], device=ids.device)
        table = self.encoder.embedding.word.weight
        # 读、写、选词共用一张词嵌入表（论文 §3.4），写的一侧乘 √H 与位置相当
        states = self.dropout(F.embedding(ids, table) * table.shape[1] ** 0.5 + self.position(places))
        for block, cache in zip(self.blocks, memory.caches, strict=True):
            states = block(states, memory, cache)
        return F.linear(self.norm(states), table, self.bias)

    def forward(self, source: RaggedBatch, ids: Tensor) -> Tensor:
        """Returns logits [N, S, V] with the true pieces before each place given (teacher forcing)."""
        return self.write(ids, self.read(source))

    @torch.inference_mode()
    def search(
        self, source: RaggedBatch, *, begin: int, end: int, most: int, beam: int = 1, length_penalty: float = 1.0
    ) -> list[int]:
        """Returns the likeliest ids for one source, without begin and end, as far as a beam search finds them.

        Args:
            most: pieces that are written at most, the end among them.
            beam: beginnings that are kept; 1 is greedy.
            length_penalty: alpha of Wu et al. (2016), equation 14; 0 does not look at length.
        """
        memory = self.read(source)
        texts, scores = [[begin]], torch.zeros(1)
        finished: list[tuple[float, list[int]]] = []
        for length in range(1, most + 1):
            new = torch.tensor([[text[-1]] for text in texts])
            odds = self.write(new, memory)[:, -1].float().log_softmax(-1)
            total = scores[:, None] + odds  # [B, V]
            # 多取一倍：其中有些以结束符收尾，剩下的仍要够 beam 条
            best = total.flatten().topk(min(2 * beam, total.numel()))
            kept: list[tuple[float, int, int]] = []
            for rank, (score, place) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
                row, piece = divmod(place, total.shape[1])
                if piece == end:
                    # 排在前 beam 名之内的结束才算数：否则贪心也会提前收尾
                    if rank >= beam:
                        continue
                    finished.append((score / ((5 + length) / 6) ** length_penalty, texts[row][1:]))
                elif len(kept) < beam:
                    kept.append((score, row, piece))
            texts = [[*texts[row], piece] for _, row, piece in kept]
            scores = torch.tensor([score for score, _, _ in kept])
            if len(finished) >= beam or not kept:
                break
            memory = memory.select(torch.tensor([row for _, row, _ in kept]))
        if not finished:
            return texts[int(scores.argmax())][1:]
        return max(finished, key=lambda pair: pair[0])[1]
