"""The text as word vectors read it: an equal number of pieces a step, and where sentences begin.

Notable:
- documents come in an order drawn for each pass; within a document the text stays in order
- a step ends after its last piece, also within a sentence: so a run of so many steps is exactly so many passes
- the place is three integers, as in pre-training: a run that is killed goes on bit for bit
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.data.stream.epoch_permutation import EpochPermutation
from bertsmith.data.stream.settings import StreamPosition


class SentenceStream(Iterator[RaggedBatch]):
    """Batches without end, each of the sentences that `step_pieces` pieces hold; the first and last may be cut.

    Attributes:
        position: where the next batch starts: piece `offset` of the document at place `block` of the epoch's order.
    """

    def __init__(self, corpus: TokenCorpus, *, step_pieces: int, seed: int) -> None:
        """Opens the training documents at their beginning.

        Args:
            corpus: where documents come from.
            step_pieces: pieces in a batch, at least 1.
            seed: of the order.
        """
        self.position = StreamPosition()
        self._corpus, self._step_pieces, self._seed = corpus, step_pieces, seed
        self._num_documents = corpus.counts[TRAIN].documents
        self._order: tuple[int, EpochPermutation] | None = None
        self._read: tuple[StreamPosition, NDArray[np.int64], NDArray[np.bool_]] | None = None

    def __next__(self) -> RaggedBatch:
        """Returns the batch at `position` and moves on."""
        pieces: list[NDArray[np.int64]] = []
        begins: list[NDArray[np.bool_]] = []
        missing = self._step_pieces
        while missing:
            ids, begin = self._document()
            part = slice(self.position.offset, self.position.offset + missing)
            pieces.append(ids[part])
            begins.append(begin[part])
            missing -= len(ids[part])
            self.position = replace(self.position, offset=part.stop) if part.stop < len(ids) else self._next_document()
        starts = np.concatenate(begins)
        # 上一步在句子中间停下时，剩下的半句算一句
        starts[0] = True
        lengths = np.diff(np.flatnonzero(starts), append=len(starts))
        return RaggedBatch.from_flat(np.concatenate(pieces), lengths)

    def _document(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the ids of the document at `position`, and which of them begin a sentence; the last is kept."""
        place = replace(self.position, offset=0)
        if self._read is None or self._read[0] != place:
            if self._order is None or self._order[0] != place.epoch:
                self._order = (place.epoch, EpochPermutation(self._num_documents, self._seed, place.epoch))
            (number,) = self._order[1].places(place.block, 1).tolist()
            sentences = self._corpus.document(TRAIN, number)
            begin = np.concatenate([np.arange(len(sentence)) == 0 for sentence in sentences])
            self._read = (place, np.concatenate(sentences).astype(np.int64), begin)
        return self._read[1:]

    def _next_document(self) -> StreamPosition:
        if self.position.block + 1 < self._num_documents:
            return StreamPosition(self.position.epoch, self.position.block + 1)
        return StreamPosition(self.position.epoch + 1)
