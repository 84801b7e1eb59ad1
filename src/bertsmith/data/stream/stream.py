"""The deterministic, resumable order of training batches.

An epoch visits every document once, in an order drawn for that epoch. The order is cut into blocks of documents;
a block's documents become examples, the examples are shuffled, and batches are cut from them, running on into the
next block. A block depends on (seed, epoch, block number) alone. So the whole position is three integers, opening the
stream at step 1,000,000 costs no more than at step 0, and any worker could prepare any block.

With several ranks, each draws the same global batch and keeps its share: what is trained on does not depend on how
many there are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.masking import MaskedTokens, MaskingSettings, mask_tokens
from bertsmith.data.stream.pairs import (
    Pairing,
    SegmentPair,
    TokenDocument,
    draw_ordered_pairs,
    draw_pairs,
    draw_segments,
    pack_full,
)
from bertsmith.errors import ConfigError
from bertsmith.seeding import generator, mixed_bits
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer

Packing = Literal["sentences", "full"]
Pairs = Literal["none", "next_sentence", "sentence_order"]
Targets = Literal["masked", "next_token", "nothing"]
BLOCK_TOKENS = 2**18
"""About how many ids a block holds: enough to shuffle well, few enough to prepare in a fraction of a second."""

HELDOUT_BATCH = 16
"""Sequences in a validation batch: little memory, and several ranks find a share of the work."""
DRAWN_DOCUMENTS = 2**20
"""Most documents whose order is drawn and kept: 8 MiB."""

_ROUNDS = 6
"""Four suffice in theory for an ideal round function; ours is a quick mixer."""


@dataclass(frozen=True)
class StreamSettings(Checked):
    """How sequences are cut and batches are filled."""

    panel: ClassVar[str] = "Sequences and batches"

    sequence_length: int = option(
        128, min=5, help="Maximum sequence length, [CLS] and [SEP] included; also the positions."
    )
    batch_size: int = option(
        32, min=1, shown_default="by size; more on a GPU", help="Sequences in a step, over all processes."
    )
    batch_tokens: int = option(0, min=0, help="Tokens in a step instead of sequences; 0: use the batch size.")
    packing: Packing = option(
        "sentences", help="Without pairs: whole sentences of one document, or full across documents."
    )
    pairing: Pairing = option("balanced", help="Next-sentence pairs: balanced, or google: as in the released code.")
    static_masking: int = option(
        0, min=0, help="Epochs after which sequences and masks repeat (static masks); 0: never."
    )
    short_probability: float = option(
        0.1, min=0, max=1, in_file_only=True, help="Share of documents cut shorter; not with full packing."
    )
    masking: MaskingSettings = field(default_factory=MaskingSettings)

    def _check_together(self) -> None:
        if self.batch_tokens and self.batch_tokens < self.sequence_length:
            raise ConfigError(
                f"a batch of {self.batch_tokens} tokens does not hold one sequence of {self.sequence_length};"
                " raise the batch's tokens"
            )

    @property
    def fewest_sequences(self) -> int:
        """Sequences that every global batch has at least."""
        return self.batch_tokens // self.sequence_length if self.batch_tokens else self.batch_size


@dataclass(frozen=True)
class StreamNeeds:
    """What an objective asks of the batches.

    Attributes:
        pairs: whether sequences have a second segment, and what their label says of it.
        targets: the pieces to predict: hidden ones, or after each token the next, or nothing.
        draws: whether each hidden piece comes with a random number, for an objective that samples.
    """

    pairs: Pairs = "next_sentence"
    targets: Targets = "masked"
    draws: bool = False

    def require_fit(self, settings: StreamSettings) -> None:
        """Makes sure that settings do what is needed."""
        if settings.packing == "full" and self.pairs != "none":
            raise ConfigError("full packing has no second segment, which the objective needs; use mlm or ltr")
        if settings.pairing == "google" and self.pairs != "next_sentence":
            raise ConfigError("google pairing is about next sentences, which the objective does not predict")
        if settings.masking.kind != "token" and self.targets != "masked":
            raise ConfigError(f"the objective hides nothing; {settings.masking.kind} masking goes with mlm")


@dataclass(frozen=True)
class StreamPosition:
    """Where a stream stands: the next sequence is number `offset` of block `block` of epoch `epoch`."""

    epoch: int = 0
    block: int = 0
    offset: int = 0

    def to_json(self) -> dict[str, int]:
        """Returns the three integers for a state file."""
        return asdict(self)


class _Block(NamedTuple):
    epoch: int
    block: int
    examples: list[SegmentPair]
    numbers: NDArray[np.int64]
    ends: NDArray[np.int64]


class PreTrainingStream(Iterator[PreTrainingBatch]):
    """Endless batches drawn from one split of a corpus; assign `position`, where the next one starts, to resume."""

    def __init__(
        self,
        corpus: TokenCorpus,
        tokenizer: Tokenizer,
        settings: StreamSettings,
        needs: StreamNeeds | None = None,
        *,
        seed: int = 0,
        split: str = TRAIN,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Opens the stream at its beginning.

        `needs` None is masked LM with next-sentence pairs; `rank`, in [0, `world_size`), says which share is returned.
        """
        self.needs = needs or StreamNeeds()
        self.needs.require_fit(settings)
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is not one of {world_size}")
        if settings.fewest_sequences < world_size:
            raise ConfigError(
                f"a batch of {settings.fewest_sequences} sequence(s) leaves some of {world_size} ranks without any;"
                " raise the batch size or use fewer ranks"
            )
        self.settings, self.seed = settings, seed
        self.position = StreamPosition()
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._split = split
        self._rank, self._world_size = rank, world_size
        self._mask = functools.partial(
            mask_tokens,
            special_ids=np.array(sorted(tokenizer.special_ids), dtype=np.int64),
            mask_token_id=tokenizer.mask_token_id,
            vocab_size=tokenizer.vocab_size,
            settings=settings.masking,
        )
        # 词界是与编号并行的一列：切段、截断、拼接都按行进行，两列始终对齐
        self._carries_words = settings.masking.kind != "token" and corpus.has_words
        # 特殊词元怎样摆放由分词器说了算：BERT 一个 [SEP] 分两段，RoBERTa 两个 </s> 且不分句段
        template = tokenizer.template
        self._before, self._between, self._after, self._separator = (
            np.array([[index, 0] for index in ids] if self._carries_words else ids, dtype=np.int32)
            for ids in (template.before, template.between, template.after, (tokenizer.sep_token_id,))
        )
        self._second_type = template.second_type
        self._num_special = {is_pair: template.size(pair=is_pair) for is_pair in (False, True)}
        least = self._num_special[True] + 2
        if self.needs.pairs != "none" and settings.sequence_length < least:
            raise ConfigError(
                f"sequence length {settings.sequence_length} is too short: the tokenizer puts {least - 2} special"
                f" tokens around a pair; use {least} or more"
            )
        counts = corpus.counts[split]
        self._num_documents = counts.documents
        texts = (corpus.text(split, index) for index in range(counts.documents))
        # 训练集总有两本以上；留出集看到第二本就停，不必读完
        first = next(texts, None)
        self._has_several_texts = split == TRAIN or any(text != first for text in texts)
        mean_tokens = max(1, counts.tokens // max(1, counts.documents))
        self._block_documents = max(1, BLOCK_TOKENS // mean_tokens)
        self.blocks_per_epoch = -(-self._num_documents // self._block_documents)
        self._order: tuple[int, EpochPermutation] | None = None
        self._cached: _Block | None = None

    def close(self) -> None:
        """Does nothing: no process draws; as `PrefetchedStream` has it, so that either can be closed."""

    def __next__(self) -> PreTrainingBatch:
        return self.draw()

    def draw(self, *, across_epochs: bool = True) -> PreTrainingBatch:
        """Returns the batch at `position` and moves on; across epochs, or the last one of an epoch is smaller."""
        start = self.position
        examples: list[SegmentPair] = []
        sources: list[tuple[int, int, int]] = []
        tokens = 0
        while True:
            block = self._block(self.position.epoch, self.position.block)
            first = self.position.offset
            last = self._end_of_batch(block, first, len(examples), tokens)
            examples += block.examples[first:last]
            sources += [(block.epoch, block.block, number) for number in block.numbers[first:last].tolist()]
            tokens += int(block.ends[last] - block.ends[first])
            if last < len(block.examples):
                self.position = replace(self.position, offset=last)
                break
            is_last = self.position.block + 1 >= self.blocks_per_epoch
            self.position = StreamPosition(self.position.epoch + is_last, 0 if is_last else self.position.block + 1)
            if self.position.epoch > start.epoch and not across_epochs:
                break
            # 按条数装，此刻就知道满了；按词元数装，要看下一块的第一条还放不放得下
            if not self.settings.batch_tokens and len(examples) == self.settings.batch_size:
                break
        return self._assemble(examples, sources, start).share(self._rank, self._world_size)

    def _end_of_batch(self, block: _Block, first: int, taken: int, tokens: int) -> int:
        """Returns how far into the block a batch goes that has `taken` sequences with `tokens` tokens so far."""
        if not self.settings.batch_tokens:
            return min(len(block.examples), first + self.settings.batch_size - taken)
        room = self.settings.batch_tokens - tokens
        return int(np.searchsorted(block.ends, block.ends[first] + room, side="right")) - 1

    def _block(self, epoch: int, block: int) -> _Block:
        """Makes all examples of a block, shuffled; the last block made is kept."""
        if self._cached is None or (self._cached.epoch, self._cached.block) != (epoch, block):
            examples = list(self._examples(self._drawn_epoch(epoch), block))
            order = generator(self.seed, "stream/pair order", epoch, block).permutation(len(examples))
            shuffled = [examples[index] for index in order.tolist()]
            special = self._num_special
            sizes = [len(pair.first) + len(pair.second) + special[len(pair.second) > 0] for pair in shuffled]
            self._cached = _Block(epoch, block, shuffled, order, np.cumsum([0, *sizes]))
        return self._cached

    def _drawn_epoch(self, epoch: int) -> int:
        """Returns the epoch whose draws are used: every Nth has the same where masking is static."""
        return epoch % self.settings.static_masking if self.settings.static_masking else epoch

    def _examples(self, epoch: int, block: int) -> Iterator[SegmentPair]:
        documents = self._document_order(epoch).places(block * self._block_documents, self._block_documents).tolist()
        if self.settings.packing == "full":
            yield from pack_full(
                (self._document(index) for index in documents),
                separator=self._separator,
                max_tokens=self.settings.sequence_length - self._num_special[False],
            )
        else:
            for index in documents:
                yield from self._examples_of(index, epoch)

    def _document_order(self, epoch: int) -> EpochPermutation:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, EpochPermutation(self._num_documents, self.seed, epoch))
        return self._order[1]

    def _examples_of(self, index: int, epoch: int) -> Iterator[SegmentPair]:
        # 随机数的钥匙是（种子、轮次、文档号）：与读取顺序和进程无关，每一轮又都不同
        rng = generator(self.seed, "stream/pairs", epoch, index)
        document = self._document(index)
        room = self.settings.sequence_length - self._num_special[self.needs.pairs != "none"]
        drawing: dict[str, Any] = {"short_probability": self.settings.short_probability, "rng": rng}

        def draw_other() -> TokenDocument:
            return self._document(*self._place_in_another_text(index, rng))

        if self.needs.pairs == "next_sentence":
            pairing = self.settings.pairing
            return draw_pairs(document, draw_other=draw_other, max_tokens=room, pairing=pairing, **drawing)
        draw = draw_segments if self.needs.pairs == "none" else draw_ordered_pairs
        return draw(document, max_tokens=room, **drawing)

    def _place_in_another_text(self, index: int, rng: np.random.Generator) -> tuple[int, str]:
        """Draws a document that is no part of the text that document `index` is a part of, and says its split."""
        if not self._has_several_texts:
            # 留出集只有一本书：训练集至少有两本，且没有这一本
            return int(rng.integers(self._corpus.counts[TRAIN].documents)), TRAIN
        text = self._corpus.text(self._split, index)
        while True:
            # 一本书切成许多段：随机的 B 若取自同一本书，就可能恰是 A 的下文
            other = (index + int(rng.integers(1, self._num_documents))) % self._num_documents
            if self._corpus.text(self._split, other) != text:
                return other, self._split

    def _document(self, index: int, split: str | None = None) -> TokenDocument:
        split = split or self._split
        document = self._corpus.document(split, index)
        if not self._carries_words:
            return document
        going_on = self._corpus.continuations(split, index)
        return [np.stack(columns, axis=1) for columns in zip(document, going_on, strict=True)]

    def _assemble(
        self, examples: list[SegmentPair], sources: list[tuple[int, int, int]], start: StreamPosition
    ) -> PreTrainingBatch:
        """Adds the special tokens, lays the sequences end to end, and says what is to be predicted."""
        pieces: list[NDArray[np.int32]] = []
        segments: list[tuple[int, int]] = []
        for pair in examples:
            pieces += [self._before, pair.first]
            around = len(self._before) + len(pair.first)
            if len(pair.second):
                pieces += [self._between, pair.second, self._after]
                segments.append((around + len(self._between), len(pair.second) + len(self._after)))
            else:
                pieces.append(self._after)
                segments.append((around + len(self._after), 0))
        rows = np.concatenate(pieces)
        input_ids = (rows[:, 0] if self._carries_words else rows).astype(np.int64)
        parts = np.array(segments)
        lengths = parts.sum(1)
        token_type_ids = np.repeat(np.tile([0, self._second_type], len(parts)), parts.ravel())
        if self.needs.targets == "next_token":
            predicted = _next_tokens(input_ids, lengths)
        elif self.needs.targets == "nothing":
            none = np.zeros(0, np.int64)
            predicted = MaskedTokens(input_ids, none, none)
        else:
            continuations = None
            if self._carries_words:
                continuations = rows[:, 1].astype(np.bool_)
            elif self.settings.masking.kind != "token":
                continuations = self._tokenizer.continuations(input_ids)
            predicted = self._masked(input_ids, continuations, lengths, sources, start)
        if self.needs.draws:
            # 随机数随批次而来，只由批次的位置决定：断点续训、多进程、梯度累积时，每个位置抽到的都是同一个数
            rng = generator(self.seed, "stream/draws", start.epoch, start.block, start.offset)
            predicted = replace(predicted, draws=rng.random(len(predicted.positions), dtype=np.float32))
        labels = np.array([pair.label for pair in examples])
        return PreTrainingBatch.from_arrays(predicted, lengths, token_type_ids, labels)

    def _masked(
        self,
        input_ids: NDArray[np.int64],
        continuations: NDArray[np.bool_] | None,
        lengths: NDArray[np.int64],
        sources: list[tuple[int, int, int]],
        start: StreamPosition,
    ) -> MaskedTokens:
        """Chooses and hides pieces, by draws that depend on where the batch begins, or on each sequence alone."""
        if not self.settings.static_masking:
            rng = generator(self.seed, "stream/masking", start.epoch, start.block, start.offset)
            return self._mask(input_ids, lengths, rng=rng, continuations=continuations)
        # 静态掩码：每条序列用自己的随机数，无论落在哪一批里，掩码都与 N 轮之前相同
        starts = np.cumsum(lengths) - lengths
        masked = [
            self._mask(
                input_ids[first : first + length],
                np.array([length]),
                rng=generator(self.seed, "stream/static masking", self._drawn_epoch(epoch), block, number),
                continuations=None if continuations is None else continuations[first : first + length],
            )
            for (epoch, block, number), first, length in zip(sources, starts.tolist(), lengths.tolist(), strict=True)
        ]
        shift = np.repeat(starts, [len(one.positions) for one in masked])
        spans = [one.spans for one in masked if one.spans is not None]
        return MaskedTokens(
            np.concatenate([one.input_ids for one in masked]),
            np.concatenate([one.positions for one in masked]) + shift,
            np.concatenate([one.labels for one in masked]),
            np.concatenate(spans) + shift[:, None] * np.array([1, 1, 0]) if spans else None,
        )


def heldout_batches(
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    settings: StreamSettings,
    needs: StreamNeeds | None = None,
    *,
    seed: int = 0,
    max_sequences: int,
) -> list[PreTrainingBatch]:
    """Returns the same validation batches every time, whatever the batch size in `settings`.

    Batches of `HELDOUT_BATCH` sequences hold every held-out document at most once; the last may be smaller. Of more
    than `max_sequences` sequences the rest is left out, but the last batch is then a whole one.
    """
    if not corpus.counts[HELDOUT].documents:
        return []
    # 验证批小而固定：显存不随训练批增长，掩码也不随它改变（掩码的随机数由批的起点决定），几次训练才能相比
    settings = replace(settings, batch_size=HELDOUT_BATCH, batch_tokens=0)
    stream = PreTrainingStream(corpus, tokenizer, settings, needs, seed=seed, split=HELDOUT)
    batches: list[PreTrainingBatch] = []
    sequences = 0
    while sequences < max_sequences and stream.position.epoch == 0:
        batches.append(stream.draw(across_epochs=False))
        sequences += batches[-1].tokens.num_sequences
    return batches


def _next_tokens(input_ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> MaskedTokens:
    """Left-to-right LM: nothing is hidden, and every token but the last of a sequence predicts the one after it."""
    predicts = np.ones(len(input_ids), dtype=np.bool_)
    predicts[np.cumsum(lengths) - 1] = False
    positions = np.flatnonzero(predicts)
    return MaskedTokens(input_ids, positions, input_ids[positions + 1])


class EpochPermutation:
    """The order in which an epoch visits the documents: a permutation of any number of them in bounded memory.

    Up to a million documents it is drawn and kept. Beyond that it is computed place by place: a Feistel network turns
    any keyed function into a permutation of the numbers below a power of four (Luby and Rackoff 1988), and what falls
    outside the range is sent through again until it falls inside (cycle walking; Black and Rogaway 2002).
    """

    def __init__(self, num_documents: int, seed: int, epoch: int) -> None:
        """Chooses the order by (seed, epoch) alone."""
        self.num_documents = num_documents
        rng = generator(seed, "stream/document order", epoch)
        self._drawn = rng.permutation(num_documents) if num_documents <= DRAWN_DOCUMENTS else None
        self._keys = rng.integers(0, 2**64, size=_ROUNDS, dtype=np.uint64) if self._drawn is None else None

    def places(self, first: int, count: int) -> NDArray[np.int64]:
        """Returns the documents at `count` places from `first` on; fewer at the end of the epoch."""
        if self._drawn is not None:
            drawn: NDArray[np.int64] = self._drawn[first : first + count]
            return drawn
        last = min(first + count, self.num_documents)
        return self._permuted(np.arange(first, max(first, last), dtype=np.uint64)).astype(np.int64)

    def _permuted(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        half = np.uint64(-(-(self.num_documents - 1).bit_length() // 2))
        values = self._encrypted(places, half)
        # 落在范围之外的再走一圈：置换的每个环都会回到范围之内，所以结果仍是一一对应
        while (outside := values >= self.num_documents).any():
            values[outside] = self._encrypted(values[outside], half)
        return values

    def _encrypted(self, values: NDArray[np.uint64], half: np.uint64) -> NDArray[np.uint64]:
        """Permutes the numbers below 4 ** `half`."""
        assert self._keys is not None
        mask = (np.uint64(1) << half) - np.uint64(1)
        left, right = values >> half, values & mask
        for key in self._keys:
            left, right = right, left ^ (mixed_bits(right ^ key) & mask)
        return (left << half) | right
