"""Files with a row on every line -> numbered lines, streaming: every later complaint can name its line.

Only a line feed ends a line here. Labelled data, and texts to embed or predict for, hold whatever people wrote, and
`str.splitlines` would end a line at U+2028 or a form feed inside a sentence: the columns would be torn apart, the
numbers wrong, and row and line no longer the same.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bertsmith.data.reading.decoding import MAX_LINE_LENGTH, check_encoding, detect_encoding
from bertsmith.data.reading.sources import read_chunks
from bertsmith.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An example that knows where it was read, for complaints; two that differ in this alone are equal.

    Attributes:
        place: file and line, such as `dev.tsv: line 7`; empty for an example that no file holds.
    """

    place: str = field(default="", compare=False, repr=False)

    @property
    def at(self) -> str:
        """The beginning of a complaint about the example."""
        return f"{self.place}: " if self.place else ""


def numbered_lines(path: Path, encoding: str = "auto") -> Iterator[tuple[int, str]]:
    """Reads the lines of a text file with their numbers, from 1, without their line ends.

    Args:
        path: the file, plain or packed (`.gz`, `.zst`).
        encoding: `auto` or a codec's name.

    Raises:
        InputError: the file is missing, damaged or binary, a line is not in the encoding or longer than
            `MAX_LINE_LENGTH`.
    """
    number, rest = 1, ""
    for text in _decoded(path, encoding):
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield number, line.removesuffix("\r")
            number += 1
        # 超长的行不必读完：多半是把整个 JSON 文件当成了逐行的文件
        if len(rest) > MAX_LINE_LENGTH:
            raise InputError(f"{path}: line {number} is longer than {MAX_LINE_LENGTH:,} characters; break it up")
    if rest:
        yield number, rest.removesuffix("\r")


def read_text(path: Path, encoding: str = "auto") -> str:
    """Reads a whole text file; see `numbered_lines`."""
    return "".join(_decoded(path, encoding))


def require_file(path: Path) -> None:
    """Makes sure that a file is there.

    Raises:
        InputError: it is not, or it is something else.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")


def _decoded(path: Path, encoding: str) -> Iterator[str]:
    require_file(path)
    check_encoding(encoding)
    codec = detect_encoding(path) if encoding == "auto" else encoding
    decoder = codecs.getincrementaldecoder(codec)("strict")
    lines, is_first = 1, True
    for chunk in itertools.chain(read_chunks(path), [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode(error.encoding, "replace")
            named = "--encoding with the one it was written in" if encoding == "auto" else "--encoding auto"
            raise InputError(
                f"{path}: line {lines + before.count(chr(10))} is not valid {codec}; pass {named}"
            ) from None
        except UnicodeError as error:
            raise InputError(f"{path}: is not {codec} ({error}); pass --encoding auto") from None
        if is_first and text:
            text, is_first = text.removeprefix("\ufeff"), False
        if "\0" in text:
            place = lines + text[: text.index("\0")].count("\n")
            raise InputError(f"{path}: line {place} holds a NUL character; is this a text file?")
        lines += text.count("\n")
        yield text
