"""The text that a journey learns from, the vocabulary that suits it, and its token shards."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.data.corpus.build import build_shards
from bertsmith.data.corpus.commit import CHUNKS_MADE, read_statistics
from bertsmith.data.corpus.manifest import MANIFEST
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.data.corpus.statistics import remarks_on
from bertsmith.data.reading.documents import readable_files, text_bytes
from bertsmith.data.reading.opening import opening_lines
from bertsmith.data.reading.records import FileNames, require_file_names
from bertsmith.data.reading.sources import few_names
from bertsmith.data.reading.text import (
    LEAST_TEXTS,
    DocumentRule,
    corpus_documents,
    few_texts_error,
    read_documents,
    read_text,
    require_plain_text,
)
from bertsmith.errors import RunFolderError
from bertsmith.files import read_json, write_json
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.reading import noted
from bertsmith.finetune.report import what_was_read
from bertsmith.reporting.progress import say
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer, TokenizerKind, learn_tokenizer
from bertsmith.tokenizer.learn import AlphabetError
from bertsmith.train.report import write_run_report

HELDOUT_SHARE = 0.04

WORK = ("state", f"corpus/{CHUNKS_MADE}", f"corpus/{MANIFEST}")
"""What a journey does not take back when it is refused: steps of training, and a corpus, made or half made."""

READ = "what-was-read.json"
"""In a run folder whose journey read the text: the lines of `TextSource.read`."""


@dataclass(frozen=True)
class TextOptions(Checked):
    """How a journey reads text."""

    documents: DocumentRule = option(
        "auto", help="Document: a file, a block between blank lines, or a line; auto: file if several."
    )
    encoding: str = option("auto", help="Encoding: auto, or a codec such as iso-8859-1.")


@dataclass(frozen=True)
class TextSource:
    """Text to learn from, and the rule that cuts it into documents.

    Attributes:
        settings: what a rerun must share to resume in the same folder.
        reviews: part → the sentiment task of the bundled world; empty for other text.
        warns: whether what is lost or repeated in it is worth a warning, as in the reader's own text.
        notes: what was left out or guessed, a sentence each.
    """

    name: str
    files: Sequence[Path]
    documents: DocumentRule
    encoding: str
    settings: dict[str, Any]
    reviews: Mapping[str, list[LabelledText]] = field(default_factory=dict)
    warns: bool = False
    notes: Sequence[str] = ()

    def warn(self, note: str) -> None:
        """Warns of something about this text."""
        if self.warns:
            warnings.warn(note, stacklevel=2)

    @cached_property
    def opening(self) -> list[str]:
        """What was understood of it, a line each."""
        return opening_lines([self.name], self.files, self.encoding, self.documents, size=self.bytes)

    def tell(self, console: Console | None, indent: str = "") -> None:
        """Says what was understood of it; nothing where there is no console."""
        for line in self.opening if console is not None else ():
            say(f"{indent}{line}", console)

    def read(self, shards: Path) -> list[tuple[str, str]]:
        """What was understood of it, and what its token shards lost of it: lines, each with its part."""
        lost = remarks_on(read_statistics(shards)) if self.warns else []
        return [*(("text", line) for line in self.opening), *(("note", note) for note in (*self.notes, *lost))]

    def keep_read(self, run: Path) -> None:
        """Keeps for the report of a run what `read` says of the text and of the shards in its folder."""
        write_json(run / READ, self.read(run / "corpus"))

    @cached_property
    def bytes(self) -> int:
        """Size of the text files (packed ones: about that of their text), and of the text of the documents."""
        return sum(text_bytes(file, self.encoding) for file in self.files)


def text_files(text: FileNames, name: str = "text") -> list[str]:
    """Returns the names of files to read text from; rows in memory are refused."""
    return require_file_names(text, name, "write the texts to a .txt file, with blank lines between them")


def own_text(paths: Sequence[str | Path], *, documents: DocumentRule, encoding: str, leave_out: Path) -> TextSource:
    """Opens the reader's own files; what lies in `leave_out`, the output folder, is not read as text."""
    notes = list[str]()
    with noted(notes, ()):
        files = readable_files(paths, encoding, beside=leave_out)
        require_plain_text(files)
        rule = _document_rule(files, documents, encoding)
    # 大小也记下：文本改过之后，同一条命令不能当作续训
    sources = [[str(file.resolve()), file.stat().st_size] for file in files]
    settings = {"sources": sources, "documents": rule, "encoding": encoding}
    return TextSource(few_names(paths, 3), files, rule, encoding, settings, warns=True, notes=notes)


def _document_rule(files: Sequence[Path], documents: DocumentRule, encoding: str) -> DocumentRule:
    """Returns what separates the documents; too few files are cut at blank lines where nothing is said."""
    rule, why = corpus_documents(files, documents, encoding)
    if why:
        warnings.warn(why, stacklevel=3)
    count = _count_texts(files, rule, encoding)
    if count < LEAST_TEXTS and (rule, documents) == ("file", "auto"):
        rule = "blank-line"
        count = _count_texts(files, rule, encoding)
    # 现在就数：学完词表才发现文档不够，白费的是几分钟
    if count < LEAST_TEXTS:
        raise few_texts_error(count)
    return rule


def _count_texts(files: Sequence[Path], rule: DocumentRule, encoding: str) -> int:
    """Returns how many texts there are, up to as many as a corpus needs; the parts of a long one count once."""
    texts = set[int]()
    for number, document in enumerate(read_documents(files, documents=rule, encoding=encoding)):
        texts.add(number if document.text is None else document.text)
        if len(texts) == LEAST_TEXTS:
            break
    return len(texts)


def learn_vocabulary(source: TextSource, kind: TokenizerKind, sizes: Sequence[int]) -> Tokenizer:
    """Learns a vocabulary of the first of some sizes that holds the characters of the text."""
    *smaller, largest = sizes
    for size in smaller:
        # 中文哪怕只有几百 KB，不同的字也可能有四千多个：放不下就用大一号的词表
        with contextlib.suppress(AlphabetError):
            return _learned(source, kind, size)
    return _learned(source, kind, largest)


def _learned(source: TextSource, kind: TokenizerKind, size: int) -> Tokenizer:
    text = read_text(source.files, source.encoding)
    return learn_tokenizer(text, kind=kind, vocab_size=size, on_note=source.warn)


def default_vocab_sizes(corpus_bytes: int) -> list[int]:
    """Returns how many pieces suit an amount of text, and the larger sizes, for text of very many characters.

    Rare pieces are never learned, and cost time at every step.
    """
    bytes_below = {4096: 1_000_000, 8192: 20_000_000, 16384: 200_000_000, 30522: math.inf}
    return [size for size, limit in bytes_below.items() if corpus_bytes < limit]


def shards_of(source: TextSource, tokenizer: Tokenizer, folder: Path, *, keep_duplicates: bool = False) -> TokenCorpus:
    """Returns the token shards of a text, which are built where they are not there yet."""
    if (folder / MANIFEST).exists():
        return TokenCorpus(folder, tokenizer)
    chosen = CorpusOptions(
        documents=source.documents,
        encoding=source.encoding,
        heldout_share=HELDOUT_SHARE,
        keep_duplicates=keep_duplicates,
    )
    corpus = build_shards(source.files, tokenizer, folder, chosen, workers=None)
    for remark in remarks_on(read_statistics(folder)):
        source.warn(remark)
    return corpus


def write_report(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the report of runs of pre-training, see `write_run_report`; of a single one also what it read."""
    path = runs[0] / READ
    found = read_json(path, list[tuple[str, str]], RunFolderError, "remove it") if path.exists() else []
    return write_run_report(runs, out, first=[what_was_read(found)] if found and len(runs) == 1 else [])


def counted(corpus: TokenCorpus) -> str:
    """Says how many documents, sentences and tokens token shards hold."""
    train, heldout = corpus.counts[TRAIN], corpus.counts[HELDOUT]
    learned = f"{train.documents:,} documents, {train.sentences:,} sentences, {train.tokens:,} tokens"
    return f"{learned} (+ {heldout.documents:,} documents held out)"
