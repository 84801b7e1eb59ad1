"""The deterministic, resumable order of training batches.

An epoch visits every document once, in an order drawn for that epoch. The order is cut into blocks of documents;
a block's documents become pairs, the pairs are shuffled, and batches are cut from them, running on into the next
block. A block depends on (seed, epoch, block number) alone. So the whole position is three integers, opening the
stream at step 1,000,000 costs no more than at step 0, and any worker could prepare any block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.data.masking import MaskingSettings, mask_tokens
from bertsmith.data.pairs import SegmentPair, TokenDocument, draw_pairs
from bertsmith.data.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.errors import ConfigError
from bertsmith.seeding import generator
from bertsmith.tokenizer import WordPieceTokenizer

BLOCK_TOKENS = 2**18
"""About how many ids a block holds: enough to shuffle well, few enough to prepare in a fraction of a second."""


@dataclass(frozen=True)
class StreamSettings:
    """What the batches look like.

    Attributes:
        sequence_length: most ids in a sequence, `[CLS]` and both `[SEP]` included; at least 5.
        batch_size: N, sequences in a batch.
        seed: of all draws.
        short_probability: share of documents cut into shorter pairs.
        masking: what is hidden.
    """

    sequence_length: int = 128
    batch_size: int = 32
    seed: int = 0
    short_probability: float = 0.1
    masking: MaskingSettings = field(default_factory=MaskingSettings)

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.sequence_length < 5:
            raise ConfigError(f"sequence length {self.sequence_length} is too short for [CLS] A [SEP] B [SEP]; use 5+")
        if self.batch_size < 1:
            raise ConfigError(f"batch size {self.batch_size} must be at least 1")


@dataclass(frozen=True)
class StreamPosition:
    """Where a stream stands: the next sequence is number `offset` of block `block` of epoch `epoch`."""

    epoch: int = 0
    block: int = 0
    offset: int = 0

    def to_json(self) -> dict[str, int]:
        """Returns the three integers for a state file."""
        return asdict(self)


@dataclass(frozen=True)
class PreTrainingBatch:
    """One step's food.

    Attributes:
        tokens: N corrupted sequences `[CLS] A [SEP] B [SEP]`.
        masked_positions: [M] int64, indices of the chosen pieces among the T tokens.
        masked_labels: [M] int64, their true ids.
        next_sentence_labels: [N] int64, 0 is next, 1 is random, -100 has no second segment.
    """

    tokens: RaggedBatch
    masked_positions: Tensor
    masked_labels: Tensor
    next_sentence_labels: Tensor

    def to(self, device: torch.device | str) -> PreTrainingBatch:
        """Returns the same batch on another device."""
        return PreTrainingBatch(
            self.tokens.to(device),
            self.masked_positions.to(device),
            self.masked_labels.to(device),
            self.next_sentence_labels.to(device),
        )


class PreTrainingStream(Iterator[PreTrainingBatch]):
    """Endless batches drawn from one split of a corpus.

    Attributes:
        position: where the next batch starts; assign it to go on from there.
    """

    def __init__(
        self, corpus: TokenCorpus, tokenizer: WordPieceTokenizer, settings: StreamSettings, *, split: str = TRAIN
    ) -> None:
        self.settings = settings
        self.position = StreamPosition()
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._split = split
        self._special_ids = np.array(sorted(tokenizer.special_ids), dtype=np.int64)
        counts = corpus.counts[split]
        self._num_documents = counts.documents
        mean_tokens = max(1, counts.tokens // max(1, counts.documents))
        self._block_documents = max(1, BLOCK_TOKENS // mean_tokens)
        self.blocks_per_epoch = -(-self._num_documents // self._block_documents)
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self._cached: tuple[int, int, list[SegmentPair]] | None = None

    def __next__(self) -> PreTrainingBatch:
        """Returns the batch at `position` and moves on."""
        start = self.position
        pairs: list[SegmentPair] = []
        while len(pairs) < self.settings.batch_size:
            block = self._block(self.position.epoch, self.position.block)
            taken = block[self.position.offset : self.position.offset + self.settings.batch_size - len(pairs)]
            pairs.extend(taken)
            offset = self.position.offset + len(taken)
            self.position = self._following_block() if offset >= len(block) else replace(self.position, offset=offset)
        return self._assemble(pairs, start)

    def _following_block(self) -> StreamPosition:
        if self.position.block + 1 < self.blocks_per_epoch:
            return StreamPosition(self.position.epoch, self.position.block + 1, 0)
        return StreamPosition(self.position.epoch + 1, 0, 0)

    def _block(self, epoch: int, block: int) -> list[SegmentPair]:
        """Makes all pairs of a block, shuffled; the last block made is kept."""
        if self._cached is None or self._cached[:2] != (epoch, block):
            documents = self._document_order(epoch)[block * self._block_documents :][: self._block_documents]
            pairs = [pair for document in documents.tolist() for pair in self._pairs_of(document, epoch)]
            order = generator(self.settings.seed, "stream/pair order", epoch, block).permutation(len(pairs))
            self._cached = (epoch, block, [pairs[index] for index in order])
        return self._cached[2]

    def _document_order(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            rng = generator(self.settings.seed, "stream/document order", epoch)
            self._order = (epoch, rng.permutation(self._num_documents))
        return self._order[1]

    def _pairs_of(self, index: int, epoch: int) -> Iterator[SegmentPair]:
        # 随机数的钥匙是（种子、轮次、文档号）：与读取顺序和进程无关，每一轮又都不同
        rng = generator(self.settings.seed, "stream/pairs", epoch, index)

        def draw_other() -> TokenDocument:
            if self._num_documents == 1:
                return self._corpus.document(TRAIN, int(rng.integers(self._corpus.counts[TRAIN].documents)))
            shift = int(rng.integers(1, self._num_documents))
            return self._corpus.document(self._split, (index + shift) % self._num_documents)

        return draw_pairs(
            self._corpus.document(self._split, index),
            draw_other=draw_other,
            max_tokens=self.settings.sequence_length - 3,
            short_probability=self.settings.short_probability,
            rng=rng,
        )

    def _assemble(self, pairs: list[SegmentPair], start: StreamPosition) -> PreTrainingBatch:
        """Adds the special tokens, lays the sequences end to end and masks them all at once."""
        cls, sep = [self._tokenizer.cls_token_id], [self._tokenizer.sep_token_id]
        pieces: list[NDArray[np.int32] | list[int]] = []
        segments: list[tuple[int, int]] = []
        for pair in pairs:
            pieces += [cls, pair.first, sep]
            segments.append((len(pair.first) + 2, 0))
            if len(pair.second):
                pieces += [pair.second, sep]
                segments[-1] = (len(pair.first) + 2, len(pair.second) + 1)
        input_ids = np.concatenate(pieces).astype(np.int64)
        parts = np.array(segments)
        lengths = parts.sum(1)
        token_type_ids = np.repeat(np.tile([0, 1], len(parts)), parts.ravel())
        masked = mask_tokens(
            input_ids,
            lengths,
            special_ids=self._special_ids,
            mask_token_id=self._tokenizer.mask_token_id,
            vocab_size=self._tokenizer.vocab_size,
            settings=self.settings.masking,
            rng=generator(self.settings.seed, "stream/masking", start.epoch, start.block, start.offset),
        )
        return PreTrainingBatch(
            tokens=RaggedBatch.from_flat(masked.input_ids, lengths, token_type_ids),
            masked_positions=torch.from_numpy(masked.positions),
            masked_labels=torch.from_numpy(masked.labels),
            next_sentence_labels=torch.tensor([pair.label for pair in pairs]),
        )


def heldout_batches(
    corpus: TokenCorpus, tokenizer: WordPieceTokenizer, settings: StreamSettings, *, max_sequences: int
) -> list[PreTrainingBatch]:
    """Returns the same validation batches every time: the held-out documents once, up to `max_sequences`."""
    if not corpus.counts[HELDOUT].documents:
        return []
    stream = PreTrainingStream(corpus, tokenizer, settings, split=HELDOUT)
    batches: list[PreTrainingBatch] = []
    sequences = 0
    while sequences < max_sequences and stream.position.epoch == 0:
        batches.append(next(stream))
        sequences += batches[-1].tokens.num_sequences
    return batches
