"""How the field calls a tokenizer, put into the words of `Tokenizer.__call__`.

Scripts are full of `tokenizer(a, b, truncation=True, padding=True, return_tensors="pt")`. Such words are translated
here, once, and then go the one way that rows are built. What they ask for beyond our own columns (`offset_mapping`,
`overflow_to_sample_mapping`) is added under the names that `transformers` gives it; columns they do not want are left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bertsmith.errors import InputError
from bertsmith.tokenizer.encoding import Encoding, Padding, Truncation

TruncationWord = Truncation | Literal[True, "do_not_truncate"]
PaddingWord = Padding | Literal[True, "do_not_pad"]


def truncation_of(word: TruncationWord) -> Truncation:
    """Returns `longest_first` for True, and False for `do_not_truncate`."""
    # True == 1：用 is 判断，免得把数字当成开关
    return "longest_first" if word is True else False if word == "do_not_truncate" else word


def padding_of(word: PaddingWord) -> Padding:
    """Returns `longest` for True, and False for `do_not_pad`."""
    return "longest" if word is True else False if word == "do_not_pad" else word


def length_of(
    max_length: int | None, limit: int | None, truncation: TruncationWord | None, padding: Padding
) -> int | None:
    """Returns the most tokens of a row: what was given, or the model's limit where the call asks for a limit.

    Args:
        max_length: as given.
        limit: of the model, where the tokenizer's folder says it.
        truncation: as given; None where it was not.
        padding: as `padding_of` returns it.

    Raises:
        InputError: a limit is asked for, and there is none.
    """
    # 没有说 truncation 就是不限长；说了（True 或某种方式）却没给长度，用模型能读的长度
    is_asked = truncation not in (None, False, "do_not_truncate") or padding == "max_length"
    if max_length is not None or not is_asked:
        return max_length
    if limit is None:
        asked = "padding='max_length'" if padding == "max_length" else f"truncation={truncation!r}"
        raise InputError(f"{asked} needs max_length, since this tokenizer's folder names no limit; give it")
    return limit


@dataclass(frozen=True)
class Columns:
    """What a call wants to get, in the words of `transformers`.

    Attributes:
        attention_mask: whether it is there.
        token_type_ids: whether they are there.
        special_tokens_mask: whether it is there.
        offsets_mapping: whether `offset_mapping` is there, besides our `offsets`.
        overflowing_tokens: whether `overflow_to_sample_mapping` is there, besides our `overflow_to_sample`.
        length: whether `length` is there: tokens of each row, padding included.
    """

    attention_mask: bool
    token_type_ids: bool
    special_tokens_mask: bool
    offsets_mapping: bool
    overflowing_tokens: bool
    length: bool

    def of(self, encoding: Encoding) -> Encoding:
        """Returns the columns of a batch that are wanted."""
        left_out = [
            name for name in ("attention_mask", "token_type_ids", "special_tokens_mask") if not getattr(self, name)
        ]
        found = Encoding({name: values for name, values in encoding.items() if name not in left_out})
        if self.offsets_mapping:
            found["offset_mapping"] = encoding["offsets"]
        if self.overflowing_tokens:
            found["overflow_to_sample_mapping"] = encoding["overflow_to_sample"]
        if self.length:
            found["length"] = [len(row) for row in encoding["input_ids"]]
        return found


def second_of(pair: str | Sequence[str] | None, text_pair: str | Sequence[str] | None) -> str | Sequence[str] | None:
    """Returns the second text, whichever name it was given by.

    Raises:
        InputError: it was given by both.
    """
    if pair is not None and text_pair is not None:
        raise InputError("pair and text_pair are the same thing; give one of them")
    return text_pair if pair is None else pair


def as_ids(ids: Iterable[int]) -> list[int]:
    """Returns ids as integers of Python: a tensor or an array is one, too, and its elements are not."""
    listed: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return listed
