"""What `bertsmith quickstart` and `plan` can be asked for; apart from the work, so that its help loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.data.reading.text import DocumentRule
from bertsmith.options import option
from bertsmith.tokenizer.kinds import TokenizerKind

DEFAULT_MINUTES = 10.0
"""Of pre-training on own text."""


@dataclass(frozen=True)
class QuickstartOptions:
    """What the command line was asked for.

    Attributes:
        corpus: files, folders or globs; empty for the bundled world.
        out: the output folder.
        family: architecture of the model; None takes the one that learns best from own text, and BERT for the bundled
            world, whose stories show what next-sentence prediction is.
        objective: what it learns; None takes the family's, without its task over pairs of sentences on own text, so
            that every token of a batch is read for masked LM.
        tokenizer: kind of the vocabulary; None takes the family's.
        size: of the model; None takes tiny for the bundled world, mini for own text.
        minutes: for pre-training; None takes 800 steps for the bundled world, 10 minutes for own text.
        vocab_size: most pieces; None chooses by the amount of text.
        documents: how files are cut into documents.
        encoding: of the files.
        search: whether vectors are learned from the text after pre-training, and the folder indexed.
        seed: of everything random.
    """

    corpus: Sequence[str]
    out: Path
    family: str | None = option(
        None, shown_default="modernbert; bert for the world", help="Architecture: bert, roberta, modernbert and others."
    )
    objective: str | None = option(
        None, shown_default="mlm; for electra rtd; for the world mlm+nsp", help="Objective: mlm, mlm+nsp and others."
    )
    tokenizer: TokenizerKind | None = option(
        None, shown_default="the family's", help="Kind of vocabulary: wordpiece, bpe or unigram."
    )
    size: str | None = option(None, help="Size: tiny to large, or L/H such as 6/384; default: mini (village: tiny).")
    minutes: float | None = option(
        None, min=0.05, help="Minutes of pre-training; default: 10 (bundled village: 800 steps)."
    )
    vocab_size: int | None = option(
        None, min=1, help="Vocabulary size; default: 4,096 to 30,522, by the amount of text."
    )
    documents: DocumentRule = option(
        "auto", help="Document: a file, or a block between blank lines; auto: file if several."
    )
    encoding: str = option("auto", help="Encoding: auto, or a codec such as iso-8859-1.")
    search: bool = option(False, help="Also train vectors on the text, and index the folder for search.")
    seed: int = option(0, help="Random seed.")


@dataclass(frozen=True)
class PlanOptions:
    """What the command line was asked for."""

    minutes: float = option(0.0, min=0.05, shown_default="10, or none with --hours", help="Minutes of pre-training.")
    hours: float = option(0.0, min=0.01, shown_default="none", help="Hours of pre-training, besides the minutes.")
    family: str = option("modernbert", help="Architecture; one with a measured scaling law.")
    sizes: tuple[str, ...] = option((), name="size", help="Size or L/H to consider; once for each; default: all.")
    vocab_size: int | None = option(None, min=1, help="Vocabulary size; default: by the amount of text.")
    documents: DocumentRule = option("auto", help="What a document is, as in `bertsmith quickstart`.")
    encoding: str = option("auto", help="Encoding: auto, or a codec such as iso-8859-1.")

    @property
    def all_minutes(self) -> float:
        """The time, hours included."""
        return self.minutes + 60 * self.hours or DEFAULT_MINUTES
