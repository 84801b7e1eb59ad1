"""The text of a study, cut and sharded once for each vocabulary that its runs read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertsmith.data.corpus.documents import MappedDocuments
from bertsmith.data.corpus.manifest import MANIFEST, TRAIN, SplitCounts
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.errors import ConfigError
from bertsmith.quickstart.source import TextSource, shards_of
from bertsmith.quickstart.vocabulary import default_vocab_sizes, learn_vocabulary
from bertsmith.seeding import generator
from bertsmith.study.study import Start
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer


@dataclass(frozen=True)
class StudyText:
    """Text, and the folder in which its vocabularies and shards lie.

    Attributes:
        source: the text.
        folder: `tokenizer-PIECES/` and `corpus-PIECES/` are made in it when they are first asked for.
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
        folder = self.folder / f"corpus-{start.vocab_size or self.vocab_size or 'usual'}"
        if not (folder / MANIFEST).exists():
            shards_of(self.source, tokenizer, folder)
        return TokenCorpus(folder, tokenizer) if start.share == 1 else PartOfCorpus(folder, tokenizer, start.share)


class PartOfCorpus(TokenCorpus):
    """A corpus of which only some training documents are read, the same ones in every run."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, share: float) -> None:
        """Opens a share, in (0, 1), of the training documents; at least two texts are among them.

        Raises:
            CheckpointError: as for `TokenCorpus`.
            ConfigError: the share is too small.
        """
        super().__init__(folder, tokenizer)
        whole = self.counts[TRAIN]
        drawn = generator(0, "study/share of the text").random(whole.documents)
        # 每篇文档一个数，小于份额的留下：小份总是大份的一部分；留出集一篇不动
        self._kept = np.flatnonzero(drawn < share)
        documents = [self.document(TRAIN, index) for index in range(len(self._kept))]
        if len({self.text(TRAIN, index) for index in range(len(self._kept))}) < 2:
            raise ConfigError(f"{share:g} of {whole.documents} documents are fewer than two texts; give more text")
        sentences = [len(sentence) for document in documents for sentence in document]
        self.counts = {**self.counts, TRAIN: SplitCounts(len(documents), len(sentences), sum(sentences))}
        self.fingerprint = f"{self.fingerprint} {share:g}"

    def _find(self, split: str, index: int) -> tuple[MappedDocuments, int]:
        return super()._find(split, int(self._kept[index]) if split == TRAIN else index)


def characters_per_piece(tokenizer: Tokenizer, corpus: TokenCorpus) -> float:
    """Returns how many characters, without spaces, a piece of the text stands for on average."""
    assert isinstance(tokenizer, WordPieceTokenizer)
    counts = np.asarray(corpus.piece_counts, float)
    lengths = [
        1 if number in tokenizer.special_ids else len(piece.removeprefix("##"))
        for number, piece in enumerate(tokenizer.vocab)
    ]
    return float(counts @ np.asarray(lengths[: len(counts)], float) / counts.sum())
