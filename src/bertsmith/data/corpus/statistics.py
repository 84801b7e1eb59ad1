"""What a corpus is made of, counted while it is built: printed, kept as `statistics.json`, drawn as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.corpus.shards import TokenizedDocuments
from bertsmith.tokenizer import Tokenizer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SENTENCE_EDGES = np.arange(1, 162, 4)
"""Ids of a sentence: bins of four; the last takes all that is longer."""
DOCUMENT_EDGES = np.unique(np.round(2 ** np.arange(0, 18.5, 0.5)).astype(np.int64))
"""Ids of a document: two bins an octave; the last takes all that is longer."""
LEAST_LOST = 0.01
"""Share of the characters in unknown words from which another vocabulary is advised."""
_COLOUR, _MEDIAN_COLOUR = "#1f4e8c", "#b04a3a"


@dataclass(frozen=True)
class ShardStatistics:
    """What a shard holds: numbers of documents, sentences, tokens and words, and of how many each bin above has."""

    documents: int
    sentences: int
    tokens: int
    words: int
    sentence_lengths: list[int]
    document_lengths: list[int]

    @classmethod
    def of(cls, documents: TokenizedDocuments, tokenizer: Tokenizer) -> ShardStatistics:
        """Counts documents."""
        begins = ~tokenizer.continuations(documents.tokens.astype(np.int64))
        # 句首的词片没有空格记号（字节级 BPE），也照样开始一个词
        begins[np.cumsum(documents.sentence_lengths) - documents.sentence_lengths] = True
        return cls(
            documents=documents.num_documents,
            sentences=len(documents.sentence_lengths),
            tokens=len(documents.tokens),
            words=int(begins.sum()),
            sentence_lengths=_counted(documents.sentence_lengths, SENTENCE_EDGES),
            document_lengths=_counted(np.diff(documents.document_bounds()), DOCUMENT_EDGES),
        )


def remarks_on(statistics: Mapping[str, Any]) -> list[str]:
    """Says what was dropped or lost of a text, and what stands in it again and again, by its `statistics.json`."""
    dropped, repeated = statistics["duplicates"], statistics.get("repeated_lines", {})
    lost = statistics.get("unknown_characters", 0) / max(1, statistics.get("characters", 0))
    remarks = []
    if empty := statistics.get("empty_rows"):
        remarks.append(f"skipped {empty:,} row(s) without text")
    if any(dropped.values()):
        near = f" and {dropped['near']:,} near-duplicates" if dropped["near"] else ""
        remarks.append(f"dropped {dropped['exact']:,} duplicates{near}")
    if lost > LEAST_LOST:
        remarks.append(
            f"{lost:.1%} of the characters are in words that the vocabulary cannot spell; bertsmith vocab learns one"
            " from this text, with --kind bpe or unigram also where words have no spaces between them"
        )
    if special := statistics.get("special_tokens_as_text"):
        remarks.append(f"{special:,} special tokens stand in the text as words: plain characters")
    if repeated.get("dropped"):
        remarks.append(f"dropped {repeated['dropped']:,} copies of repeated lines")
    elif repeated.get("copies"):
        least, held = repeated["documents"], repeated.get("heldout_token_share", 0)
        remarks.append(
            f"{repeated['copies']:,} lines repeat one that stands in {least} documents or more:"
            f" {repeated['token_share']:.1%} of the tokens, {held:.1%} of the held-out ones;"
            f" bertsmith corpus --drop-repeated-lines {least} keeps one copy of each, and none held out"
        )
    return remarks


def summarize(pieces: NDArray[np.int64], shards: Sequence[ShardStatistics], tokenizer: Tokenizer) -> dict[str, Any]:
    """Turns counts into figures.

    Returns:
        `words` (in BERT's sense: a punctuation mark is one), `pieces_per_word`, `unknown_rate` (the share of `[UNK]`
        among the tokens), and both histograms with the lower edges of their bins.
    """
    tokens, words = int(pieces.sum()), sum(shard.words for shard in shards)
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


def draw_statistics(statistics: dict[str, Any]) -> Figure:
    """Draws the lengths of documents and sentences of a `statistics.json`, with the figures of the corpus above."""
    # 计数时用不着画图库：到这里才载入
    from matplotlib.figure import Figure

    dropped = sum(statistics["duplicates"].values())
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    documents, sentences = figure.subplots(1, 2)
    _draw(documents, statistics["document_lengths"], "Tokens per document", logarithmic=True)
    _draw(sentences, statistics["sentence_lengths"], "Tokens per sentence", logarithmic=False)
    figure.suptitle(
        f"{statistics['documents']:,} documents · {statistics['sentences']:,} sentences · "
        f"{statistics['tokens']:,} tokens · {statistics['pieces_per_word']:.2f} pieces per word · "
        f"[UNK] {100 * statistics['unknown_rate']:.2f} % · {dropped:,} duplicates dropped",
        fontsize=11,
    )
    return figure


def _draw(axes: Axes, histogram: dict[str, list[int]], title: str, *, logarithmic: bool) -> None:
    edges, counts = np.array(histogram["from"], dtype=float), np.array(histogram["count"])
    filled = np.flatnonzero(counts)
    # 空的两头不画：语料小时横轴也看得清
    shown = slice(filled[0], filled[-1] + 1)
    step = 2**0.5 * edges[-1] if logarithmic else edges[-1] + edges[-1] - edges[-2]
    ends = np.append(edges[1:], step)
    starts, ends, counts = edges[shown], ends[shown], counts[shown]
    axes.bar(starts, counts, ends - starts, align="edge", color=_COLOUR, edgecolor="white", linewidth=0.5)
    below = np.cumsum(counts) - counts
    half = int(np.flatnonzero(below < counts.sum() / 2)[-1])
    median = starts[half] + (ends[half] - starts[half]) * (counts.sum() / 2 - below[half]) / counts[half]
    axes.axvline(median, color=_MEDIAN_COLOUR, linestyle="--", linewidth=1.2, label=f"median: about {median:,.0f}")
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if filled[-1] == len(edges) - 1:
        title += f" (last bar: {edges[-1]:.0f} and more)"
    axes.set_title(title, fontsize=10)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _counted(lengths: NDArray[np.int64], edges: NDArray[np.int64]) -> list[int]:
    counts: list[int] = np.bincount(np.searchsorted(edges, lengths, side="right") - 1, minlength=len(edges)).tolist()
    return counts
