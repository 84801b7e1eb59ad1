"""Where the text of a quickstart comes from: the bundled world, or the reader's own files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.data.corpus.build import build_corpus
from bertsmith.data.corpus.manifest import MANIFEST
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.finding import find_text_files
from bertsmith.data.reading.text import DocumentRule, resolve_documents
from bertsmith.errors import InputError
from bertsmith.files import make_folder, write_text
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.tinyworld import draw_captions, draw_reviews, draw_stories, render
from bertsmith.tokenizer import Tokenizer

HELDOUT_SHARE = 0.04
STORIES, CAPTIONS = 6000, 2000
LABELLED_REVIEWS, DEV_REVIEWS, TEST_REVIEWS = 200, 200, 1000
"""Few labels to learn from, as in life; many to judge by, so that the comparison is not luck."""


@dataclass(frozen=True)
class Reviews:
    """The sentiment task of the bundled world."""

    train: list[LabelledText]
    dev: list[LabelledText]
    test: list[LabelledText]


@dataclass(frozen=True)
class TextSource:
    """Text to learn from.

    Attributes:
        name: what the report calls it.
        files: what is read.
        documents: how they are cut into documents, `blank-line` or `file`.
        encoding: of the files, `auto` or a codec.
        settings: what a rerun must share to go on with the same folder.
        reviews: the sentiment task, for the bundled world only.
    """

    name: str
    files: Sequence[Path]
    documents: DocumentRule
    encoding: str
    settings: dict[str, Any]
    reviews: Reviews | None = None

    @property
    def bytes(self) -> int:
        """Size of the files."""
        return sum(file.stat().st_size for file in self.files)


def own_text(paths: Sequence[str | Path], *, documents: DocumentRule, encoding: str, leave_out: Path) -> TextSource:
    """Opens the reader's own files.

    Args:
        paths: files, folders or globs.
        documents: how files become documents.
        encoding: `auto` or a codec.
        leave_out: the output folder; where it lies inside the text's folder, what we write is not read as text.

    Raises:
        InputError: a path is missing, or holds no text file.
    """
    inside = leave_out.resolve()
    files = [file for file in find_text_files(paths) if inside not in file.resolve().parents]
    if not files:
        raise InputError(f"{paths[0]}: no .txt or .txt.gz file besides what is in {leave_out}")
    rule = resolve_documents(files, documents)
    return TextSource(
        name=", ".join(str(path) for path in paths),
        files=files,
        documents=rule,
        encoding=encoding,
        settings={
            # 大小也记下：文本改过之后，同一条命令不能当作续训
            "sources": [[str(file.resolve()), file.stat().st_size] for file in files],
            "documents": rule,
            "encoding": encoding,
        },
    )


def shards_of(source: TextSource, tokenizer: Tokenizer, folder: Path) -> TokenCorpus:
    """Returns the token shards of a text, which are built where they are not there yet."""
    if (folder / MANIFEST).exists():
        return TokenCorpus(folder, tokenizer)
    chosen = CorpusOptions(documents=source.documents, encoding=source.encoding, heldout_share=HELDOUT_SHARE)
    return build_corpus(source.files, tokenizer, folder, chosen, workers=None)


def bundled_world(folder: Path, *, seed: int) -> TextSource:
    """Draws the village's stories and reviews into text files, so that they can be looked at, and opens them.

    Args:
        folder: where `stories.txt` and `reviews-*.tsv` go.
        seed: of the world.
    """
    make_folder(folder)
    stories = folder / "stories.txt"
    # 同一个种子画出的故事处处相同：已经有的不必再画
    if not stories.exists():
        texts = [story.text for story in draw_stories(seed, STORIES)]
        texts += [render(caption) for caption in draw_captions(seed, CAPTIONS)]
        write_text(stories, "\n\n".join(texts) + "\n")
    reviews = Reviews(
        train=_reviews(folder / "reviews-train.tsv", seed, LABELLED_REVIEWS, "train"),
        dev=_reviews(folder / "reviews-dev.tsv", seed, DEV_REVIEWS, "dev"),
        test=_reviews(folder / "reviews-test.tsv", seed, TEST_REVIEWS, "test"),
    )
    return TextSource(
        name="the bundled village",
        files=[stories],
        documents="blank-line",
        encoding="auto",
        settings={"sources": "tinyworld", "world_seed": seed, "stories": STORIES, "captions": CAPTIONS},
        reviews=reviews,
    )


def _reviews(path: Path, seed: int, count: int, split: str) -> list[LabelledText]:
    drawn = [LabelledText(review.text, None, review.label) for review in draw_reviews(seed, count, split=split)]
    if not path.exists():
        write_text(path, "".join(f"{review.text}\t{review.label}\n" for review in drawn))
    return drawn
