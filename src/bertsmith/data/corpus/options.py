"""What a corpus is made of, and how: declared once, read by the builder, the command line and the manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertsmith.data.corpus.duplicates import NearDuplicates
from bertsmith.data.corpus.words import word_cutter
from bertsmith.data.reading.text import DocumentRule
from bertsmith.errors import ConfigError
from bertsmith.options import option

SHARD_TOKENS = 16_000_000
"""Ids per shard: 64 MB, small enough to make and check quickly, large enough that their number stays small."""

MOST_SHARD_TOKENS = 2**30
"""Offsets in a shard are 32-bit numbers."""


@dataclass(frozen=True)
class CorpusOptions:
    """What decides the content of the shards, besides the text and the tokenizer.

    Attributes:
        documents: what separates the documents of text files, see `resolve_documents`.
        encoding: `auto` or a codec, of text files.
        text_field: field of JSON lines and column of Parquet files that holds the text.
        heldout_share: share of the documents that is held out, in (0, 1).
        shard_tokens: ids per shard.
        keep_duplicates: documents with the same ids stay.
        near_duplicates: documents as similar as this to an earlier one are dropped; in (0, 1], None for none.
        words: how the words of Chinese are found, so that whole words can be masked; None does without.
    """

    documents: DocumentRule = option(
        "auto", help="Document: a file, or a block between blank lines; auto: file if several."
    )
    encoding: str = option("auto", help="Encoding of text files: auto, or a codec such as iso-8859-1.")
    text_field: str = option("text", help="JSON field or Parquet column that holds the text.")
    heldout_share: float = option(0.02, name="heldout", min=0.0001, max=0.5, help="Share of documents held out.")
    shard_tokens: int = option(SHARD_TOKENS, min=1, max=MOST_SHARD_TOKENS, help="Token ids per shard.")
    keep_duplicates: bool = option(False, help="Keep duplicate documents.")
    near_duplicates: float | None = option(None, help="Drop documents this similar to an earlier one, such as 0.8.")
    words: Literal["jieba"] | None = option(None, help="Segment Chinese text into words, for whole-word masking.")

    def __post_init__(self) -> None:
        """Checks the ranges, and that what is asked for is installed."""
        if not 0 < self.heldout_share < 1:
            raise ConfigError(f"--heldout {self.heldout_share} must be between 0 and 1")
        if not 1 <= self.shard_tokens <= MOST_SHARD_TOKENS:
            raise ConfigError(f"--shard-tokens {self.shard_tokens} must be from 1 to {MOST_SHARD_TOKENS}")
        if self.near_duplicates is not None:
            NearDuplicates(self.near_duplicates)
        if self.words not in (None, "jieba"):
            raise ConfigError(f"--words {self.words!r} is unknown; use jieba")
        if self.words:
            # 词典在派生进程之前载入一次，各进程共用
            word_cutter()
