"""What a corpus is made of, counted while it is built: printed, kept as `statistics.json`, drawn by `chart`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.documents import DocumentBlock
from bertsmith.tokenizer import WordPieceTokenizer

SENTENCE_EDGES = np.arange(1, 162, 4)
"""Ids of a sentence: bins of four; the last takes all that is longer."""
DOCUMENT_EDGES = np.unique(np.round(2 ** np.arange(0, 18.5, 0.5)).astype(np.int64))
"""Ids of a document: two bins an octave; the last takes all that is longer."""


def length_histograms(block: DocumentBlock) -> dict[str, list[int]]:
    """Counts the lengths of sentences and documents, in ids, into the bins above."""
    documents = np.diff(block.document_bounds())
    return {
        "sentence_lengths": _counted(block.sentence_lengths, SENTENCE_EDGES),
        "document_lengths": _counted(documents, DOCUMENT_EDGES),
    }


def summarize(
    pieces: NDArray[np.int64], histograms: Sequence[dict[str, list[int]]], tokenizer: WordPieceTokenizer
) -> dict[str, Any]:
    """Turns counts into figures.

    Args:
        pieces: [V] how often each id occurs in the corpus.
        histograms: of all shards.
        tokenizer: made the ids.

    Returns:
        `words` (in BERT's sense: a punctuation mark is one), `pieces_per_word`, `unknown_rate` (the share of `[UNK]`
        among the tokens), and both histograms with the lower edges of their bins.
    """
    continuing = np.fromiter((piece.startswith("##") for piece in tokenizer.vocab), dtype=np.bool_)
    tokens, words = int(pieces.sum()), int(pieces[~continuing].sum())
    lengths = {
        name: np.sum([histogram[name] for histogram in histograms], axis=0).tolist()
        for name in ("sentence_lengths", "document_lengths")
    }
    return {
        "words": words,
        "pieces_per_word": tokens / max(words, 1),
        "unknown_rate": int(pieces[tokenizer.unk_token_id]) / max(tokens, 1),
        "sentence_lengths": {"from": SENTENCE_EDGES.tolist(), "count": lengths["sentence_lengths"]},
        "document_lengths": {"from": DOCUMENT_EDGES.tolist(), "count": lengths["document_lengths"]},
    }


def _counted(lengths: NDArray[np.int64], edges: NDArray[np.int64]) -> list[int]:
    bins = np.searchsorted(edges, lengths, side="right") - 1
    counts: list[int] = np.bincount(bins, minlength=len(edges)).tolist()
    return counts
