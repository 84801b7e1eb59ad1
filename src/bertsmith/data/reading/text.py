"""Files -> documents of sentences, streaming: a corpus larger than memory costs no more memory than a small one.

Each step has its file: bytes to lines (`lines`), lines to paragraphs (`paragraphs`), paragraphs to sentences
(`sentences`). Here sentences become documents. A book is cut into several, so that it can be shuffled, held out and
drawn from as evenly as short texts; its parts say that they belong together.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from bertsmith.data.reading.decoding import check_encoding
from bertsmith.data.reading.lines import read_lines
from bertsmith.data.reading.paragraphs import is_heading, paragraphs
from bertsmith.data.reading.sentences import split_sentences
from bertsmith.errors import ConfigError, InputError

DocumentRule = Literal["auto", "blank-line", "file"]
Found = TypeVar("Found")

MAX_SENTENCES = 128
"""Longer documents are cut."""
LEAST_TEXTS = 3
"""Texts that a corpus needs: two for random pairs, one to validate on."""
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class Document:
    """Consecutive sentences of one text, from which next-sentence pairs are drawn.

    Attributes:
        source: the name of the file it came from, as given.
        sentences: its sentences in order, at least one, none of them empty.
        text: a number in [0, 2^64) that all parts of a text that was cut have in common; None for a whole text.
    """

    source: str
    sentences: tuple[str, ...]
    text: int | None = None


def resolve_documents(files: Sequence[Path], documents: DocumentRule = "auto") -> Literal["blank-line", "file"]:
    """Says what separates the documents of these files.

    Args:
        files: the text files.
        documents: `blank-line`, `file`, or `auto`: one document per file where there are several files, documents
            separated by blank lines where there is one.

    Returns:
        `blank-line` or `file`.

    Raises:
        ConfigError: `documents` is none of the three.
    """
    if documents not in ("auto", "blank-line", "file"):
        raise ConfigError(f"--documents {documents!r}: unknown rule; use auto, blank-line or file")
    if documents == "auto":
        return "file" if len(files) > 1 else "blank-line"
    return documents


def read_documents(
    files: Sequence[Path],
    *,
    documents: DocumentRule = "auto",
    encoding: str = "auto",
    max_sentences: int = MAX_SENTENCES,
) -> Iterator[Document]:
    """Reads files as documents of sentences, one after another, in bounded memory.

    A document longer than `max_sentences` is cut into several of at most that many, in order, so that a book can be
    shuffled, held out and drawn from evenly. Under `file` a blank line only separates paragraphs. Under `blank-line` a
    heading belongs to the document that follows it. Lines without any letter or digit (`* * *`) are left out.

    Args:
        files: the text files, in reading order.
        documents: what separates documents, see `resolve_documents`.
        encoding: `auto` (see `detect_encoding`) or any text encoding Python knows.
        max_sentences: the longest document handed out, in sentences; at least 1.

    Returns:
        An iterator over documents, none of them empty.

    Raises:
        InputError: unknown encoding; while iterating: a file is not readable text, or all files together hold no
            sentence.
        ConfigError: `max_sentences` or `documents` is out of range.
    """
    check_encoding(encoding)
    rule = resolve_documents(files, documents)
    if max_sentences < 1:
        raise ConfigError(f"max_sentences is {max_sentences}; a document needs at least 1 sentence")
    found = (documents_of(read_lines(path, encoding), str(path), rule, max_sentences) for path in files)
    return _require_some(itertools.chain.from_iterable(found), files)


def read_text(files: Sequence[Path], encoding: str = "auto") -> Iterator[str]:
    """Reads the text of files as paragraphs, for learning a vocabulary, in bounded memory.

    Args:
        files: the text files, in reading order.
        encoding: as in `read_documents`.

    Returns:
        An iterator over paragraphs, or lines where each stands for itself, that hold a letter or a digit.

    Raises:
        InputError: as in `read_documents`.
    """
    found = (paragraph for path in files for paragraph in paragraphs(read_lines(path, encoding)))
    return _require_some((text for text in found if text is not None and _LETTER_OR_DIGIT.search(text)), files)


def documents_of(
    lines: Iterable[str],
    source: str,
    rule: str = "file",
    max_sentences: int = MAX_SENTENCES,
    *,
    text: int | None = None,
) -> Iterator[Document]:
    """Makes documents of the lines of one file, of a stretch between two documents, or of one record.

    Args:
        lines: without their line ends.
        source: the name that the documents carry.
        rule: `blank-line` or `file`.
        max_sentences: as in `read_documents`.
        text: the number of the text that all of the lines are a part of; None where they are whole texts.

    Yields:
        Documents, none empty; there may be none.
    """
    sentences: list[str] = []
    after_heading = False
    number = text
    for paragraph in paragraphs(lines):
        if paragraph is not None:
            after_heading = is_heading(paragraph)
            if _LETTER_OR_DIGIT.search(paragraph):
                sentences += [paragraph] if after_heading else split_sentences(paragraph)
        # 标题后的空行不结束文档，否则标题会单独成为一篇只有一句的文档
        ends_here = paragraph is None and rule == "blank-line" and not after_heading
        while len(sentences) > max_sentences or (ends_here and sentences):
            if number is None and len(sentences) > max_sentences:
                # 同一本书的各段共用一个号码：留出集按整本书划分，随机的 B 也不取自同一本
                number = text_number("\n".join(sentences[:max_sentences]).encode())
            yield Document(source, tuple(sentences[:max_sentences]), number)
            del sentences[:max_sentences]
        if ends_here:
            number = text
    if sentences:
        yield Document(source, tuple(sentences), number)


def text_number(beginning: bytes) -> int:
    """Returns the number of a text that begins like this."""
    return int.from_bytes(hashlib.blake2b(beginning, digest_size=8).digest(), "little")


def no_text_error(files: Sequence[object]) -> InputError:
    """Returns the error for files that hold no sentence."""
    names = ", ".join(map(str, files[:3])) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    return InputError(f"{names or 'no files'}: no sentence found, only empty or blank text; name files that hold text")


def few_texts_error(texts: int, duplicates: int = 0) -> InputError:
    """Returns the error for a corpus of too few texts, besides duplicates."""
    besides = f" besides {duplicates} duplicate(s)" if duplicates else ""
    return InputError(
        f"the corpus has {texts} different document(s){besides}, at least {LEAST_TEXTS} are needed; "
        "separate documents by blank lines and pass --documents blank-line, or add files"
    )


def _require_some(found: Iterable[Found], files: Sequence[Path]) -> Iterator[Found]:
    empty = True
    for one in found:
        empty = False
        yield one
    if empty:
        raise no_text_error(files)
