"""The documents of a folder, cut into passages that the model reads whole.

A document is a text file, or of one of the kinds that `bertsmith.data.reading.documents` reads; its name is the path
below the folder, wherever the command is given from. A text file is one section without heading. Of the other kinds a
section is what stands between one heading and the next, with its code behind its text, as a section of its own. Very
long sections are cut at a blank line, so that a book costs no more memory than a chapter.

A vector of a short passage says more exactly what stands in it. So sections are cut into stretches of at most so many
tokens, at the end of a paragraph where one lies in the second half of the stretch, else of a sentence, else of a word.
Neighbours share some tokens: a sentence that is cut in two here stands whole there. The model reads the headings that a
passage stands under before its text, as a reader would.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.reading.document_kinds import Block, Metadata
from bertsmith.data.reading.documents import read_blocks
from bertsmith.data.reading.sources import (
    check_encoding,
    detect_encoding,
    document_ending,
    files_of_folder,
    read_chunks,
    text_endings,
)
from bertsmith.errors import ConfigError, InputError
from bertsmith.tokenizer import Tokenizer

_READ_AS = b"1"
"""How the kinds of documents are read: another number makes an update read them anew. Text files have none."""
LONGEST = 1 << 20
"""Characters of a section; longer ones are cut."""


@dataclass(frozen=True)
class Section:
    """A stretch of a document under one heading, behind which it starts.

    `heading` joins the headings it stands under, outermost first, by ` > `; it is empty for none.
    """

    heading: str
    start: int
    end: int


@dataclass(frozen=True)
class Document:
    """What stands in a file.

    Attributes:
        name: the path below the folder, with `/` between its parts.
        text: of a text file all of it, as decoded; of other kinds what `read_blocks` found. Places are characters of
            this.
        sections: of the text, in order; each holds more than white space.
        blocks: first character and place in the file (line or page) of the blocks that `text` is made of; None for a
            text file.
    """

    name: str
    text: str
    sections: tuple[Section, ...]
    blocks: tuple[tuple[int, int], ...] | None
    metadata: Metadata

    def place_of(self, start: int) -> int:
        """Returns where a character of blocks stands: its line; its page in a PDF; 0 where the kind has neither."""
        assert self.blocks is not None
        first, place = self.blocks[max(0, bisect_right(self.blocks, (start, 1 << 62)) - 1)]
        return place + self.text.count("\n", first, start) if place and not has_pages(self.name) else place


def has_pages(name: str) -> bool:
    """Whether places in a file are pages rather than lines."""
    return document_ending(name) == ".pdf"


def digests_of(folder: str | Path) -> Iterator[tuple[str, str]]:
    """Yields the name of every document of a folder and a digest of its bytes, in the order of the names.

    A file that cannot be read, or whose name is no text, is left out with a warning.
    """
    folder, found = Path(folder), 0
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name one with files of text")
    for path in files_of_folder(folder, text_endings()):
        name = path.relative_to(folder).as_posix()
        digest = hashlib.blake2b(digest_size=16, person=_READ_AS if document_ending(name) else b"")
        try:
            # 名字不是 UTF-8 的文件写不进索引：一开始就说，而不是全部算完之后
            name.encode()
            # 打开管道会一直等下去
            if path.exists() and not path.is_file():
                raise InputError(f"{path}: is no regular file")
            for chunk in read_chunks(path):
                digest.update(chunk)
        except UnicodeError:
            warnings.warn(f"{name!a}: left out, its name is not UTF-8; rename it", stacklevel=2)
        except InputError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
        else:
            found += 1
            yield name, digest.hexdigest()
    if not found:
        raise InputError(f"{folder}: holds no file that can be read; the lines above say why")


def read_document(folder: str | Path, name: str, encoding: str = "auto") -> Document:
    """Reads one file; `InputError` where it vanished, is no text, or cannot be read."""
    path = Path(folder) / name
    check_encoding(encoding)
    if document_ending(name):
        blocks, metadata = read_blocks(path, encoding)
        return _of_blocks(name, blocks, metadata)
    codec = detect_encoding(path) if encoding == "auto" else encoding
    content = b"".join(read_chunks(path))
    try:
        text = content.decode(codec)
    except UnicodeError as error:
        raise InputError(f"{path}: is not {codec} ({error.__class__.__name__}); pass another --encoding") from None
    return Document(name, text, tuple(_cut(text, "", 0, len(text))), None, {})


def _of_blocks(name: str, blocks: Sequence[Block], metadata: Metadata) -> Document:
    """Puts the blocks of a document together: section by section, the code of each behind its text."""
    pieces: list[str] = []
    places: list[tuple[int, int]] = []
    stretches: list[tuple[str, int, int]] = []
    length = 0

    def add(some: Sequence[Block], path: str) -> None:
        nonlocal length
        start = length
        for block in some:
            places.append((length, block.place))
            pieces.append(f"{block.text}\n\n")
            length += len(pieces[-1])
        stretches.append((path, start, length))

    above: list[Block] = []
    number = 0
    while number < len(blocks):
        heading = blocks[number] if blocks[number].level else None
        first = number + bool(heading)
        number = next((n for n in range(first, len(blocks)) if blocks[n].level), len(blocks))
        if heading:
            above = [outer for outer in above if outer.level < heading.level]
            if first == number and (number == len(blocks) or blocks[number].level <= heading.level):
                # 只有标题没有正文：标题本身也要能被搜到
                add([heading], _path(above))
            above.append(heading)
        for aside in (False, True):
            add([block for block in blocks[first:number] if block.aside == aside], _path(above))
    text = "".join(pieces)
    sections = tuple(section for path, start, end in stretches for section in _cut(text, path, start, end))
    return Document(name, text, sections, tuple(places), metadata)


def _path(headings: list[Block]) -> str:
    return " > ".join(heading.text for heading in headings if heading.text)


def _cut(text: str, heading: str, start: int, end: int) -> Iterator[Section]:
    while end - start > LONGEST:
        # 先找空行，再找行尾，再找空格；都没有才硬切
        limit = start + LONGEST
        places = (text.rfind(mark, start + LONGEST // 2, limit) + len(mark) for mark in ("\n\n", "\n", " "))
        place = next((place for place in places if place > start + LONGEST // 2), limit)
        yield from _cut(text, heading, start, place)
        start = place
    if text[start:end].strip():
        yield Section(heading, start, end)


_LEAST_ROOM = 8
"""Tokens of text in a passage, at least."""
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n")
_SENTENCE_END = re.compile("[.!?…。！？；][\"'”’)\\]」』]*$")


@dataclass(frozen=True)
class Passage:
    """A stretch of a document; `read` is what the model reads of it: the prompt, the headings, the text.

    `place` is the line of its first character, or its page, from 1; 0 where the kind of file has neither.
    """

    heading: str
    start: int
    end: int
    place: int
    text: str
    read: str

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for what the model reads: equal ones have equal vectors."""
        return hashlib.blake2b(self.read.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class PassageCutter:
    """Cuts documents for one model."""

    def __init__(self, tokenizer: Tokenizer, size: int, overlap: int, prompt: str = "") -> None:
        """Chooses the size of passages: at most `size` tokens, with headings, the prompt and the special tokens.

        Neighbours share `overlap` tokens, less than half of what is left beside the prompt and the special tokens.
        """
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._room = size - tokenizer.template.size(pair=False) - len(tokenizer.encode(prompt))
        if self._room < _LEAST_ROOM:
            raise ConfigError(
                f"passages of {size} tokens leave {self._room} for text beside the prompt; they need {_LEAST_ROOM}"
            )
        if not 0 <= overlap < self._room // 2:
            raise ConfigError(f"an overlap of {overlap} tokens is not below half of the {self._room} of a passage")
        self._overlap = overlap
        self._headings: dict[str, str] = {"": ""}

    def cut(self, document: Document) -> Iterator[Passage]:
        """Yields the passages of a document in order; none where it holds no word."""
        line, counted = 1, 0
        for section in document.sections:
            heading = self._shortened(section.heading)
            room = self._room - (len(self._tokenizer.encode(f"{heading}\n")) if heading else 0)
            for start, end in self._stretches(document.text, section, room):
                # 从上一段数起：从头数的话，一本书要数上千遍
                line += document.text.count("\n", counted, start) - document.text.count("\n", start, counted)
                counted = start
                place = line if document.blocks is None else document.place_of(start)
                text = document.text[start:end]
                yield Passage(section.heading, start, end, place, text, self.read(section.heading, text))

    def read(self, heading: str, text: str) -> str:
        """Returns what the model reads of a passage."""
        shortened = self._shortened(heading)
        return f"{self._prompt}{shortened}\n{text}" if shortened else self._prompt + text

    def _shortened(self, heading: str) -> str:
        """Returns what of the headings the model reads: a quarter of a passage at most, the innermost first."""
        # 同一节的每一段都要用它：只算一次
        if heading not in self._headings:
            most, short = self._room // 4, heading
            while len(self._tokenizer.encode(short)) > most and " > " in short:
                short = short.partition(" > ")[2]
            tokens = self._tokenizer.align_flat([short])
            self._headings = {heading: short[: int(tokens.ends[most - 1])] if len(tokens.ids) > most else short}
        return self._headings[heading]

    def _stretches(self, text: str, section: Section, room: int) -> Iterator[tuple[int, int]]:
        """Yields the first character of every passage of a section and one past its last."""
        tokens = self._tokenizer.align_flat([text[section.start : section.end]])
        starts, words = tokens.starts + section.start, tokens.word_ids
        first, count = 0, len(starts)
        while first < count:
            last = first + room
            if last < count:
                last = _best_break(text, starts, words, first, last)
            begin = int(starts[first]) if first else section.start
            end = int(starts[last]) if last < count else section.end
            piece = text[begin:end]
            begin += len(piece) - len(piece.lstrip())
            yield begin, begin + len(piece.strip())
            if last >= count:
                return
            following = max(last - self._overlap, first + 1)
            # 重叠从词首开始：半个词会被分成别的词片
            while following < last and words[following] == words[following - 1]:
                following += 1
            first = following


def _best_break(text: str, starts: NDArray[np.int32], words: NDArray[np.int32], first: int, last: int) -> int:
    """Returns the token before which a passage ends: the last that begins a paragraph, a sentence or a word."""
    at_sentence = at_word = 0
    for place in range(last, first + (last - first) // 2, -1):
        if words[place] == words[place - 1]:
            continue
        at_word = at_word or place
        between = text[int(starts[place - 1]) : int(starts[place])]
        if _PARAGRAPH.search(between):
            return place
        # 换行的列表与诗行，和句末一样是停顿
        if not at_sentence and ("\n" in between or _SENTENCE_END.search(between.rstrip())):
            at_sentence = place
    return at_sentence or at_word or last
