"""What a corpus is made of, counted while it is built: printed, kept as `statistics.json`, drawn by `chart`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.documents import TokenizedDocuments
from bertsmith.tokenizer import Tokenizer

SENTENCE_EDGES = np.arange(1, 162, 4)
"""Ids of a sentence: bins of four; the last takes all that is longer."""
DOCUMENT_EDGES = np.unique(np.round(2 ** np.arange(0, 18.5, 0.5)).astype(np.int64))
"""Ids of a document: two bins an octave; the last takes all that is longer."""


@dataclass(frozen=True)
class ShardStatistics:
    """What a shard holds.

    Attributes:
        documents: their number.
        sentences: their number.
        tokens: their number.
        sentence_lengths: number of sentences in each bin of `SENTENCE_EDGES`.
        document_lengths: number of documents in each bin of `DOCUMENT_EDGES`.
    """

    documents: int
    sentences: int
    tokens: int
    sentence_lengths: list[int]
    document_lengths: list[int]

    @classmethod
    def of(cls, documents: TokenizedDocuments) -> ShardStatistics:
        """Counts documents."""
        return cls(
            documents=documents.num_documents,
            sentences=len(documents.sentence_lengths),
            tokens=len(documents.tokens),
            sentence_lengths=_counted(documents.sentence_lengths, SENTENCE_EDGES),
            document_lengths=_counted(np.diff(documents.document_bounds()), DOCUMENT_EDGES),
        )


def summarize(pieces: NDArray[np.int64], shards: Sequence[ShardStatistics], tokenizer: Tokenizer) -> dict[str, Any]:
    """Turns counts into figures.

    Args:
        pieces: [V] how often each id occurs in the corpus.
        shards: all of them.
        tokenizer: made the ids.

    Returns:
        `words` (in BERT's sense: a punctuation mark is one), `pieces_per_word`, `unknown_rate` (the share of `[UNK]`
        among the tokens), and both histograms with the lower edges of their bins.
    """
    tokens, words = int(pieces.sum()), int(pieces[~tokenizer.continuing].sum())
    unknown = 0 if tokenizer.unk_token_id is None else int(pieces[tokenizer.unk_token_id])
    sentence_lengths = np.sum([shard.sentence_lengths for shard in shards], axis=0)
    document_lengths = np.sum([shard.document_lengths for shard in shards], axis=0)
    return {
        "words": words,
        "pieces_per_word": tokens / max(words, 1),
        "unknown_rate": unknown / max(tokens, 1),
        "sentence_lengths": {"from": SENTENCE_EDGES.tolist(), "count": sentence_lengths.tolist()},
        "document_lengths": {"from": DOCUMENT_EDGES.tolist(), "count": document_lengths.tolist()},
    }


def _counted(lengths: NDArray[np.int64], edges: NDArray[np.int64]) -> list[int]:
    bins = np.searchsorted(edges, lengths, side="right") - 1
    counts: list[int] = np.bincount(bins, minlength=len(edges)).tolist()
    return counts
