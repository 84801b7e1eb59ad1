"""Where special tokens stand around one text or two: the one place that knows a tokenizer's layout of rows.

BERT, ALBERT and ModernBERT read `[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, the second text in segment 1; RoBERTa and
XLM-R read `<s> A </s>` and `<s> A </s></s> B </s>`, all in segment 0. Encoding, windows of long passages, the
pre-training stream and the server all ask the tokenizer's template instead of spelling this out themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Template:
    """The special ids of a row: `before A after` for one text, `before A between B after` for two.

    Attributes:
        before: ids before the first text.
        between: ids between the texts, of the first text's segment.
        after: ids behind the last text, of its segment.
        second_type: the segment of the second text, 0 or 1.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    second_type: int = 1

    def size(self, *, pair: bool) -> int:
        """Returns how many special ids a row has."""
        return len(self.before) + len(self.after) + (len(self.between) if pair else 0)

    def wrap(self, ids: Iterable[int]) -> list[int]:
        """Puts the special ids around the ids of one text."""
        return [*self.before, *ids, *self.after]

    def head(self, ids: Iterable[int]) -> list[int]:
        """Returns the row of a pair up to its second text."""
        return [*self.before, *ids, *self.between]
