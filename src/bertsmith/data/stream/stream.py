"""The deterministic, resumable order of training batches.

An epoch visits every document once, in an order drawn for that epoch. The order is cut into blocks of documents;
a block's documents become examples, the examples are shuffled, and batches are cut from them, running on into the
next block. A block depends on (seed, epoch, block number) alone. So the whole position is three integers, opening the
stream at step 1,000,000 costs no more than at step 0, and any worker could prepare any block.

With several ranks, each draws the same global batch and keeps its share: what is trained on does not depend on how
many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.data.stream.batches import DrawnBatch, PreTrainingBatch
from bertsmith.data.stream.epoch_permutation import EpochPermutation
from bertsmith.data.stream.masking import MaskedTokens, MaskingSettings, mask_tokens
from bertsmith.data.stream.pairs import NO_LABEL, Pairing, SegmentPair, TokenDocument, draw_ordered_pairs, draw_pairs
from bertsmith.data.stream.segments import draw_segments, pack_full
from bertsmith.errors import ConfigError
from bertsmith.seeding import generator
from bertsmith.tokenizer import WordPieceTokenizer

OBJECTIVES = ("mlm+nsp", "mlm", "mlm+sop", "ltr", "ltr+nsp")
"""What a model can be trained on: masked or left-to-right LM, with next-sentence, sentence order or neither."""

PACKINGS = ("sentences", "full")
PAIRINGS = ("balanced", "google")

BLOCK_TOKENS = 2**18
"""About how many ids a block holds: enough to shuffle well, few enough to prepare in a fraction of a second."""

HELDOUT_BATCH = 16
"""Sequences in a validation batch: little memory, and several ranks find a share of the work."""

_CONTINUES = np.int32(1 << 30)
"""Set on ids that go on with a word, on their way through pairing: no vocabulary has that many pieces."""


@dataclass(frozen=True)
class StreamSettings:
    """What the batches look like.

    Attributes:
        sequence_length: most ids in a sequence, `[CLS]` and every `[SEP]` included; at least 5.
        batch_size: N, sequences in a global batch; unused where `batch_tokens` is given.
        seed: of all draws.
        short_probability: share of documents cut into shorter sequences; full packing has none.
        masking: what is hidden.
        objective: one of `OBJECTIVES`.
        packing: of objectives without a second segment: `sentences` of one document, or `full`, run on across
            documents; see `segments`.
        pairing: of next-sentence pairs: `balanced`, or `google` for the released procedure; see `pairs`.
        batch_tokens: a global batch takes as many sequences, in order, as this many tokens hold.
        static_masking: N: epochs N apart have the same sequences and masks, as the N-fold duplication of the paper
            has; 0 for never.
    """

    sequence_length: int = 128
    batch_size: int = 32
    seed: int = 0
    short_probability: float = 0.1
    masking: MaskingSettings = field(default_factory=MaskingSettings)
    objective: str = "mlm+nsp"
    packing: str = "sentences"
    pairing: Pairing = "balanced"
    batch_tokens: int | None = None
    static_masking: int = 0

    def __post_init__(self) -> None:
        """Checks the ranges, and that the settings go together."""
        if self.sequence_length < 5:
            raise ConfigError(f"sequence length {self.sequence_length} is too short for [CLS] A [SEP] B [SEP]; use 5+")
        if self.batch_size < 1:
            raise ConfigError(f"batch size {self.batch_size} must be at least 1")
        if self.static_masking < 0:
            raise ConfigError(f"static masking {self.static_masking} must be a number of epochs, or 0 for none")
        for name, value, known in (
            ("objective", self.objective, OBJECTIVES),
            ("packing", self.packing, PACKINGS),
            ("pairing", self.pairing, PAIRINGS),
        ):
            if value not in known:
                raise ConfigError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")
        if self.packing == "full" and "+" in self.objective:
            raise ConfigError(f"full packing has no second segment, which {self.objective} needs; use mlm or ltr")
        if self.pairing == "google" and not self.objective.endswith("+nsp"):
            raise ConfigError(f"google pairing is about next sentences, which {self.objective} does not predict")
        if self.masking.kind != "token" and self.is_causal:
            raise ConfigError(f"{self.objective} hides nothing; {self.masking.kind} masking goes with mlm")
        if self.batch_tokens is not None and self.batch_tokens < self.sequence_length:
            raise ConfigError(
                f"a batch of {self.batch_tokens} tokens does not hold one sequence of {self.sequence_length};"
                " raise the batch's tokens"
            )

    @property
    def is_causal(self) -> bool:
        """Whether each token sees only what is before it."""
        return self.objective.startswith("ltr")

    @property
    def fewest_sequences(self) -> int:
        """Sequences that every global batch has at least."""
        return self.batch_size if self.batch_tokens is None else self.batch_tokens // self.sequence_length


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
    """The examples of a block, shuffled.

    `numbers` says which each was before the shuffle; example i takes the tokens `ends[i]:ends[i+1]` of the block,
    special ones included.
    """

    epoch: int
    block: int
    examples: list[SegmentPair]
    numbers: NDArray[np.int64]
    ends: NDArray[np.int64]


class PreTrainingStream(Iterator[PreTrainingBatch]):
    """Endless batches drawn from one split of a corpus.

    Attributes:
        position: where the next batch starts; assign it to go on from there.
    """

    def __init__(
        self,
        corpus: TokenCorpus,
        tokenizer: WordPieceTokenizer,
        settings: StreamSettings,
        *,
        split: str = TRAIN,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Opens the stream at its beginning.

        Args:
            corpus: where documents come from.
            tokenizer: the one that made the corpus.
            settings: what the batches look like.
            split: `train` or `heldout`.
            rank: which share of each global batch is returned, in [0, `world_size`).
            world_size: how many ranks share the batches.

        Raises:
            ConfigError: there is no such rank, or a batch may have fewer sequences than there are ranks.
        """
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is not one of {world_size}")
        if settings.fewest_sequences < world_size:
            raise ConfigError(
                f"a batch of {settings.fewest_sequences} sequence(s) leaves some of {world_size} ranks without any;"
                " raise the batch size or use fewer ranks"
            )
        self.settings = settings
        self.position = StreamPosition()
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._split = split
        self._rank, self._world_size = rank, world_size
        self._special_ids = np.array(sorted(tokenizer.special_ids), dtype=np.int64)
        self._marks_words = settings.masking.kind != "token" and corpus.has_words
        self._continuing = np.array([piece.startswith("##") for piece in tokenizer.vocab])
        counts = corpus.counts[split]
        self._num_documents = counts.documents
        mean_tokens = max(1, counts.tokens // max(1, counts.documents))
        self._block_documents = max(1, BLOCK_TOKENS // mean_tokens)
        self.blocks_per_epoch = -(-self._num_documents // self._block_documents)
        self._order: tuple[int, EpochPermutation] | None = None
        self._cached: _Block | None = None

    def __next__(self) -> PreTrainingBatch:
        """Returns the batch at `position` and moves on."""
        return self.draw().to_batch()

    def draw(self, *, across_epochs: bool = True) -> DrawnBatch:
        """Returns the batch at `position` as arrays and moves on.

        Args:
            across_epochs: fill the batch from the next epoch where this one ends; otherwise its last batch is smaller.
        """
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
            self.position = self._following_block()
            if self.position.epoch > start.epoch and not across_epochs:
                break
            if self.settings.batch_tokens is None and len(examples) == self.settings.batch_size:
                break
        drawn = self._assemble(examples, sources, start)
        return drawn if self._world_size == 1 else drawn.share(self._rank, self._world_size)

    def _end_of_batch(self, block: _Block, first: int, taken: int, tokens: int) -> int:
        """Returns how far into the block a batch goes that has `taken` sequences with `tokens` tokens so far."""
        if self.settings.batch_tokens is None:
            return min(len(block.examples), first + self.settings.batch_size - taken)
        room = self.settings.batch_tokens - tokens
        return int(np.searchsorted(block.ends, block.ends[first] + room, side="right")) - 1

    def _following_block(self) -> StreamPosition:
        if self.position.block + 1 < self.blocks_per_epoch:
            return StreamPosition(self.position.epoch, self.position.block + 1, 0)
        return StreamPosition(self.position.epoch + 1, 0, 0)

    def _block(self, epoch: int, block: int) -> _Block:
        """Makes all examples of a block, shuffled; the last block made is kept."""
        if self._cached is None or (self._cached.epoch, self._cached.block) != (epoch, block):
            examples = list(self._examples(self._drawn_epoch(epoch), block))
            order = generator(self.settings.seed, "stream/pair order", epoch, block).permutation(len(examples))
            shuffled = [examples[index] for index in order.tolist()]
            sizes = [len(pair.first) + 2 + (len(pair.second) + 1 if len(pair.second) else 0) for pair in shuffled]
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
                sep_token_id=self._tokenizer.sep_token_id,
                max_tokens=self.settings.sequence_length - 2,
            )
        else:
            for index in documents:
                yield from self._examples_of(index, epoch)

    def _document_order(self, epoch: int) -> EpochPermutation:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, EpochPermutation(self._num_documents, self.settings.seed, epoch))
        return self._order[1]

    def _examples_of(self, index: int, epoch: int) -> Iterator[SegmentPair]:
        # 随机数的钥匙是（种子、轮次、文档号）：与读取顺序和进程无关，每一轮又都不同
        rng = generator(self.settings.seed, "stream/pairs", epoch, index)
        document, short_probability = self._document(index), self.settings.short_probability

        def draw_other() -> TokenDocument:
            if self._num_documents == 1:
                return self._document(int(rng.integers(self._corpus.counts[TRAIN].documents)), TRAIN)
            shift = int(rng.integers(1, self._num_documents))
            return self._document((index + shift) % self._num_documents)

        if self.settings.objective.endswith("+nsp"):
            return draw_pairs(
                document,
                draw_other=draw_other,
                max_tokens=self.settings.sequence_length - 3,
                short_probability=short_probability,
                rng=rng,
                pairing=self.settings.pairing,
            )
        if self.settings.objective.endswith("+sop"):
            return draw_ordered_pairs(
                document, max_tokens=self.settings.sequence_length - 3, short_probability=short_probability, rng=rng
            )
        return draw_segments(
            document, max_tokens=self.settings.sequence_length - 2, short_probability=short_probability, rng=rng
        )

    def _document(self, index: int, split: str | None = None) -> TokenDocument:
        """Returns the sentences of a document; where the corpus knows words, ids that go on with one are marked."""
        split = split or self._split
        document = self._corpus.document(split, index)
        if not self._marks_words:
            return document
        # 词界标记藏在编号的高位里：切段、截断、拼接都带着它走，不必另外对齐
        return [
            np.where(going_on, ids | _CONTINUES, ids)
            for ids, going_on in zip(document, self._corpus.continuations(split, index), strict=True)
        ]

    def _assemble(
        self, examples: list[SegmentPair], sources: list[tuple[int, int, int]], start: StreamPosition
    ) -> DrawnBatch:
        """Adds the special tokens, lays the sequences end to end, and says what is to be predicted."""
        cls = np.array([self._tokenizer.cls_token_id], dtype=np.int32)
        sep = np.array([self._tokenizer.sep_token_id], dtype=np.int32)
        pieces: list[NDArray[np.int32]] = []
        segments: list[tuple[int, int]] = []
        for pair in examples:
            pieces += [cls, pair.first, sep]
            if len(pair.second):
                pieces += [pair.second, sep]
                segments.append((len(pair.first) + 2, len(pair.second) + 1))
            else:
                segments.append((len(pair.first) + 2, 0))
        input_ids = np.concatenate(pieces).astype(np.int64)
        parts = np.array(segments)
        lengths = parts.sum(1)
        token_type_ids = np.repeat(np.tile([0, 1], len(parts)), parts.ravel())
        if self.settings.is_causal:
            predicted = _next_tokens(input_ids, lengths)
        elif self.settings.static_masking:
            predicted = self._mask_one_by_one(input_ids, lengths, sources)
        else:
            rng = generator(self.settings.seed, "stream/masking", start.epoch, start.block, start.offset)
            predicted = self._mask(input_ids, lengths, rng)
        labels = np.array([pair.label for pair in examples])
        return DrawnBatch(
            predicted.input_ids,
            lengths,
            token_type_ids,
            predicted.positions,
            predicted.labels,
            labels,
            predicted.spans,
            global_masked=len(predicted.labels),
            global_labelled=int((labels != NO_LABEL).sum()),
            global_tokens=len(input_ids),
        )

    def _mask(self, input_ids: NDArray[np.int64], lengths: NDArray[np.int64], rng: np.random.Generator) -> MaskedTokens:
        continuations = None
        if self._marks_words:
            continuations = input_ids >= _CONTINUES
            input_ids = np.where(continuations, input_ids - _CONTINUES, input_ids)
        elif self.settings.masking.kind != "token":
            continuations = self._continuing[input_ids]
        return mask_tokens(
            input_ids,
            lengths,
            special_ids=self._special_ids,
            mask_token_id=self._tokenizer.mask_token_id,
            vocab_size=self._tokenizer.vocab_size,
            settings=self.settings.masking,
            rng=rng,
            continuations=continuations,
        )

    def _mask_one_by_one(
        self, input_ids: NDArray[np.int64], lengths: NDArray[np.int64], sources: list[tuple[int, int, int]]
    ) -> MaskedTokens:
        """Masks each sequence by draws of its own, so that it is the same in whichever batch it comes again."""
        starts = np.cumsum(lengths) - lengths
        masked = [
            self._mask(
                input_ids[start : start + length],
                np.array([length]),
                generator(self.settings.seed, "stream/static masking", self._drawn_epoch(epoch), block, number),
            )
            for (epoch, block, number), start, length in zip(sources, starts.tolist(), lengths.tolist(), strict=True)
        ]
        counts = [len(one.positions) for one in masked]
        shift = np.repeat(starts, counts)
        spans = [one.spans for one in masked if one.spans is not None]
        return MaskedTokens(
            np.concatenate([one.input_ids for one in masked]),
            np.concatenate([one.positions for one in masked]) + shift,
            np.concatenate([one.labels for one in masked]),
            np.concatenate(spans) + shift[:, None] * np.array([1, 1, 0]) if spans else None,
        )


def heldout_batches(
    corpus: TokenCorpus, tokenizer: WordPieceTokenizer, settings: StreamSettings, *, max_sequences: int
) -> list[PreTrainingBatch]:
    """Returns the same validation batches every time, whatever the size of the training batches.

    Args:
        corpus: where the held-out documents come from.
        tokenizer: the one that made the corpus.
        settings: what the sequences look like; the batch size does not count.
        max_sequences: where the held-out documents make more, the rest is left out, but the last batch is a whole one.

    Returns:
        Batches of `HELDOUT_BATCH` sequences that hold every held-out document at most once; the last may be smaller.
    """
    if not corpus.counts[HELDOUT].documents:
        return []
    # 验证批小而固定：显存不随训练批增长，遮盖也不随它改变（遮盖的随机数由批的起点决定），几次训练才能相比
    settings = replace(settings, batch_size=HELDOUT_BATCH, batch_tokens=None)
    stream = PreTrainingStream(corpus, tokenizer, settings, split=HELDOUT)
    batches: list[PreTrainingBatch] = []
    sequences = 0
    while sequences < max_sequences and stream.position.epoch == 0:
        batches.append(stream.draw(across_epochs=False).to_batch())
        sequences += batches[-1].tokens.num_sequences
    return batches


def _next_tokens(input_ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> MaskedTokens:
    """Left-to-right LM: nothing is hidden, and every token but the last of a sequence predicts the one after it."""
    predicts = np.ones(len(input_ids), dtype=np.bool_)
    predicts[np.cumsum(lengths) - 1] = False
    positions = np.flatnonzero(predicts)
    return MaskedTokens(input_ids, positions, input_ids[positions + 1])
