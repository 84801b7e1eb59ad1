"""Texts that come through a pipe, and answers that go into one.

    tail -f messages.txt | bertsmith predict --model run/model --json | jq .prediction

- `-` stands for the lines of standard input; where no text is given, a pipe or a file there is read as well
- lines are answered as they come: what can be read at once is one batch, and nobody waits for a batch to fill up
- with `--json` every answer is a JSON object on a line of its own, written out at once
"""

from __future__ import annotations

import codecs
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple

import typer

from bertsmith.errors import InputError
from bertsmith.files import HALF_CHARACTER

PIPE = "-"
"""The word for standard input."""

MOST_AT_ONCE = 1024
"""Lines of a batch, at most."""

_CHUNK = 1 << 16
_LONGEST_LINE = 10_000_000

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line, with all details.")]


class TypedText(NamedTuple):
    """A text, and where it comes from, for complaints."""

    place: str
    text: str


def batches(typed: Sequence[str], encoding: str = "utf-8") -> Iterator[list[TypedText]]:
    """Returns what was typed, and the lines of standard input where `-` was, as they come; `InputError` for no text.

    Args:
        typed: the arguments; none reads standard input if that is a pipe or a file.
        encoding: of standard input; `auto` is UTF-8.
    """
    from bertsmith.data.reading.sources import check_encoding

    check_encoding(encoding)
    if not typed and not is_piped():
        raise InputError("give a text, or - for the lines of standard input")
    # 参数在载入模型之前就检查；管道里的要等到读它的时候
    require_readable(*typed)
    return _in_order(typed or [PIPE], "utf-8" if encoding == "auto" else encoding)


def _in_order(typed: Sequence[str], encoding: str) -> Iterator[list[TypedText]]:
    written: list[TypedText] = []
    for number, text in enumerate(typed, 1):
        if text != PIPE:
            written.append(TypedText(f"line {number}", text))
            continue
        if written:
            yield written
            written = []
        yield from _piped(encoding)
    if written:
        yield written


def texts(typed: str | None) -> Iterator[TypedText]:
    """Returns the text of a command that takes one, or the lines of standard input one by one, blank ones left out."""
    given = chain.from_iterable(batches([] if typed is None else [typed]))
    return given if typed not in (None, PIPE) else (one for one in given if one.text.strip())


def is_piped() -> bool:
    """Tells whether standard input is a pipe or a file, so that reading it will end."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def print_json(record: Any) -> None:
    """Prints a record on a line of its own, at once."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def _piped(encoding: str) -> Iterator[list[TypedText]]:
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    rest, number, is_over = "", 0, False
    while not is_over:
        # os.read 有多少给多少，不等缓冲区填满：上游来一行，这里就答一行
        data = os.read(sys.stdin.fileno(), _CHUNK)
        is_over = not data
        try:
            rest += decoder.decode(data, final=is_over)
        except UnicodeError as error:
            # 有的解码器（utf-16 没有 BOM 时）抛的错没有 reason
            reason = getattr(error, "reason", error)
            raise InputError(
                f"standard input: a line after line {number} is not {encoding} ({reason}); convert it first, or"
                " name its --encoding where there is that option"
            ) from None
        *lines, rest = rest.split("\n")
        if len(rest) > _LONGEST_LINE:
            raise InputError(
                f"standard input: line {number + len(lines) + 1} is longer than {_LONGEST_LINE:,} characters"
            )
        if is_over and rest:
            lines.append(rest)
        for start in range(0, len(lines), MOST_AT_ONCE):
            part = lines[start : start + MOST_AT_ONCE]
            yield [
                TypedText(f"standard input: line {number + place}", line.removesuffix("\r").removeprefix("\ufeff"))
                for place, line in enumerate(part, 1)
            ]
            number += len(part)


def require_readable(*texts: str) -> None:
    """Refuses, by `InputError`, arguments that are in another encoding than the command line's."""
    for text in texts:
        # 解不开的字节在参数里成了孤立代理：分词与写文件都认不得，趁载入模型之前就说明
        if HALF_CHARACTER.search(text):
            encoding = sys.getfilesystemencoding()
            raise InputError(f"{text[:60]!r} holds bytes that are not {encoding}; convert the text to {encoding}")
