"""The text of a study, cut and sharded once for each vocabulary and each share of it that its runs read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.corpus.manifest import MANIFEST
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.text import Document, read_documents
from bertsmith.quickstart.source import HELDOUT_SHARE, TextSource, shards_of
from bertsmith.quickstart.vocabulary import default_vocab_sizes, learn_vocabulary
from bertsmith.seeding import generator
from bertsmith.study.study import Start
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer


@dataclass(frozen=True)
class StudyText:
    """Text, and the folder in which its vocabularies and shards lie.

    Attributes:
        source: the text.
        folder: `tokenizer-PIECES/` and `corpus-PIECES-SHARE/` are made in it when they are first asked for.
        vocab_size: pieces, where a run says nothing else; 0 for what suits the amount of text.
    """

    source: TextSource
    folder: Path
    vocab_size: int = 0

    def tokenizer(self, vocab_size: int = 0) -> Tokenizer:
        """Returns a vocabulary of the text."""
        asked = vocab_size or self.vocab_size
        folder = self.folder / f"tokenizer-{asked or 'usual'}"
        if not (folder / "tokenizer.json").exists():
            sizes = [asked] if asked else default_vocab_sizes(self.source.bytes)
            learn_vocabulary(self.source, "wordpiece", sizes).save(folder)
        return load_tokenizer(folder)

    def corpus(self, start: Start) -> TokenCorpus:
        """Returns the shards that a run reads."""
        tokenizer = self.tokenizer(start.vocab_size)
        folder = self.folder / f"corpus-{start.vocab_size or self.vocab_size or 'usual'}-{start.share:g}"
        if (folder / MANIFEST).exists():
            return TokenCorpus(folder, tokenizer)
        if start.share == 1:
            return shards_of(self.source, tokenizer, folder)
        return build_from_documents(self._some_documents(start.share), tokenizer, folder, heldout_share=HELDOUT_SHARE)

    def _documents(self) -> Iterator[Document]:
        return read_documents(self.source.files, documents=self.source.documents, encoding=self.source.encoding)

    def _some_documents(self, share: float) -> Iterator[Document]:
        rng = generator(0, "study/share of the text")
        for document in self._documents():
            # 每篇文档抽一个数，小于份额的留下：小份总是大份的一部分；谁被留作验证由内容的散列决定，与份额无关
            if rng.random() < share:
                yield document


def characters_per_piece(tokenizer: Tokenizer, corpus: TokenCorpus) -> float:
    """Returns how many characters, without spaces, a piece of the text stands for on average."""
    assert isinstance(tokenizer, WordPieceTokenizer)
    counts = np.asarray(corpus.piece_counts, float)
    lengths = [
        1 if number in tokenizer.special_ids else len(piece.removeprefix("##"))
        for number, piece in enumerate(tokenizer.vocab)
    ]
    return float(counts @ np.asarray(lengths[: len(counts)], float) / counts.sum())
