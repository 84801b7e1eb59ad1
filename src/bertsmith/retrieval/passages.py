"""A document cut into passages that the model reads whole.

Vectors are made of a limited number of tokens, and a vector of a short passage says more exactly what stands in it. So
sections are cut into stretches of at most so many tokens, at the end of a paragraph where one lies in the second half
of the stretch, else of a sentence, else of a word. Neighbours share some tokens: a sentence that is cut in two here
stands whole there. The model reads the headings that a passage stands under before its text, as a reader would.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError
from bertsmith.retrieval.documents import Document
from bertsmith.retrieval.sections import Section, sections_of
from bertsmith.tokenizer import Tokenizer

_LEAST_ROOM = 8
"""Tokens of text in a passage, at least."""
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n")
_SENTENCE_END = re.compile("[.!?…。！？；][\"'”’)\\]」』]*$")


@dataclass(frozen=True)
class Passage:
    """A stretch of a document.

    Attributes:
        heading: the headings it stands under; empty for none.
        start: its first character.
        end: one past its last.
        line: of its first character, counted from 1.
        text: its characters.
        read: what the model reads: the prompt, the headings, the text.
    """

    heading: str
    start: int
    end: int
    line: int
    text: str
    read: str

    @property
    def digest(self) -> bytes:
        """16 bytes that stand for what the model reads: equal ones have equal vectors."""
        return hashlib.blake2b(self.read.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class PassageCutter:
    """Cuts documents for one model."""

    def __init__(self, tokenizer: Tokenizer, size: int, overlap: int, prompt: str = "") -> None:
        """Chooses the size of passages.

        Args:
            tokenizer: of the model.
            size: most tokens of a passage, with its headings, the prompt and the special tokens.
            overlap: tokens that neighbours share; less than half of `size`.
            prompt: what the model reads before every passage.

        Raises:
            ConfigError: no text fits, or the overlap leaves no progress.
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
        for section in sections_of(document):
            heading = self._shortened(section.heading)
            room = self._room - (len(self._tokenizer.encode(f"{heading}\n")) if heading else 0)
            for start, end in self._stretches(document.text, section, room):
                line += document.text.count("\n", counted, start) if start >= counted else 0
                line -= document.text.count("\n", start, counted) if start < counted else 0
                counted = start
                text = document.text[start:end]
                yield Passage(section.heading, start, end, line, text, self.read(section.heading, text))

    def read(self, heading: str, text: str) -> str:
        """Returns what the model reads of a passage."""
        shortened = self._shortened(heading)
        return f"{self._prompt}{shortened}\n{text}" if shortened else self._prompt + text

    def _shortened(self, heading: str) -> str:
        """Returns what of the headings the model reads: a quarter of a passage at most, the innermost first."""
        if heading not in self._headings:
            # 同一节的每一段都要用它：只算一次
            self._headings = {heading: self._shorten(heading)}
        return self._headings[heading]

    def _shorten(self, heading: str) -> str:
        most = self._room // 4
        while len(self._tokenizer.encode(heading)) > most and " > " in heading:
            heading = heading.partition(" > ")[2]
        tokens = self._tokenizer.align_flat([heading])
        return heading[: int(tokens.ends[most - 1])] if len(tokens.ids) > most else heading

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
            yield _stripped(text, begin, end)
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


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
