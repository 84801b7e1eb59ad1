"""A question with its passage, `[CLS] question [SEP] passage [SEP]`, in as many windows as the passage needs.

Fine-tuning and prediction cut alike: a model answers from windows like those it learned from. Tokens keep their
characters, so that an answer leads back to the text as it was written.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bertsmith.errors import InputError
from bertsmith.tokenizer import Template, Tokenizer


class Window(NamedTuple):
    """A question with a stretch of its passage, as the model reads them: `[CLS] question [SEP] passage [SEP]`.

    Attributes:
        input_ids: of all tokens.
        token_type_ids: 0 up to the first `[SEP]`, then 1; all 0 for a tokenizer that knows a single segment.
        head: how many tokens come before the passage.
        first: which token of the passage comes first.
        size: how many tokens of the passage there are.
    """

    input_ids: list[int]
    token_type_ids: list[int]
    head: int
    first: int
    size: int


class PassageTokens(NamedTuple):
    """A passage: its text, and its tokens with their first character and one past their last.

    Accents that follow a token's last letter as characters of their own belong to it.
    """

    text: str
    ids: list[int]
    starts: list[int]
    ends: list[int]


@dataclass(frozen=True)
class WindowedQuestion:
    """A question and its passage, to be read in windows.

    Attributes:
        head: `[CLS] question [SEP]`, or as the tokenizer's template says.
        passage: its tokens.
        room: tokens of the passage that fit beside the question.
        overlap: tokens that neighbouring windows share.
        template: of the tokenizer.
    """

    head: list[int]
    passage: PassageTokens
    room: int
    overlap: int
    template: Template

    def windows(self) -> Iterator[Window]:
        """Yields the windows from left to right; the last one reaches the end of the passage."""
        head, step = len(self.head), self.room - self.overlap
        # 最后一窗到文末为止：不再多出一个只含重叠部分的窗口
        for first in range(0, max(len(self.passage.ids) - self.room, 0) + step, step):
            part = self.passage.ids[first : first + self.room]
            types = [0] * head + [self.template.second_type] * (len(part) + len(self.template.after))
            yield Window([*self.head, *part, *self.template.after], types, head, first, len(part))


class WindowCutter:
    """Cuts questions and passages into windows; consecutive questions on one passage tokenize it once."""

    def __init__(self, tokenizer: Tokenizer, max_length: int, stride: int) -> None:
        """Chooses the size of the windows.

        Args:
            tokenizer: of the model.
            max_length: most ids in a window, special tokens included.
            stride: tokens of the passage that neighbouring windows share; at most half a window, whatever it says, so
                that a long question cannot make the windows crawl.
        """
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.stride = stride
        self.passage = PassageTokens("", [], [], [])

    def cut(self, question: str, context: str) -> WindowedQuestion:
        """Tokenizes a question and its passage.

        Raises:
            InputError: one of them holds no word, or the question leaves no room for the passage.
        """
        ids = self.tokenizer.encode(question)
        if not ids:
            raise InputError(f"question {question[:60]!r} holds no word; ask something")
        passage = self.passage
        if context != passage.text:
            tokens = self.tokenizer.align_flat([context])
            # 分词去掉了重音符号：词尾的组合符号不在词元里，却是答案文字的一部分
            ends = [behind_marks(context, end) for end in tokens.ends.tolist()]
            starts = [behind_spaces(context, *span) for span in zip(tokens.starts.tolist(), ends, strict=True)]
            passage = PassageTokens(context, tokens.ids.tolist(), starts, ends)
            self.passage = passage
        if not passage.ids:
            raise InputError(f"question {question[:60]!r}: its passage {context[:60]!r} holds no word")
        template = self.tokenizer.template
        head = template.head(ids)
        room = self.max_length - len(head) - len(template.after)
        if room < 1:
            raise InputError(
                f"question {question[:60]!r} has {len(ids)} tokens, which leaves no room for its passage among the"
                f" {self.max_length} of a sequence; shorten it, or raise max_length if the model reads more"
            )
        return WindowedQuestion(head, passage, room, min(self.stride, room // 2), template)


def behind_spaces(text: str, start: int, end: int) -> int:
    """Returns where a token's text begins behind the space that some vocabularies keep in front of a word."""
    while start < end and text[start].isspace():
        start += 1
    return start


def behind_marks(text: str, end: int) -> int:
    """Returns the end of a token with the combining marks that follow it: the tokenizer strips accents."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end
