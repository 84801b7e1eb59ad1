"""Bytes on disk -> lines of text, one at a time: the one decoder of corpora, labelled files, and texts to predict for.

- files are read in chunks, plain, gzip or zstd, so memory does not grow with the file
- running text has the line ends of all systems and of Unicode. In a file of rows only a line feed ends one: rows hold
  whatever people wrote, and a form feed or U+2028 inside a sentence would tear its columns apart
- whatever is wrong with the bytes is said in one line that names the file and the line
"""

from __future__ import annotations

import codecs
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bertsmith.data.reading.sources import (
    Span,
    check_encoding,
    detect_encoding,
    is_prose,
    lines_before,
    nul_error,
    read_chunks,
)
from bertsmith.errors import InputError

MAX_LINE_LENGTH = 10_000_000
MAX_RECORD_LENGTH = 1 << 28
_LINE_ENDS = ("\n", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")


@dataclass(frozen=True, kw_only=True)
class Placed:
    """An example that knows where it was read; what it knows besides its content does not count in `==`.

    Attributes:
        place: such as `dev.tsv: line 7`, for complaints.
        group: examples of one group are never divided between training and test; empty for none.
        time: when it is from, in seconds since 1970 or any other number; the latest can be held out.
    """

    place: str = field(default="", compare=False, repr=False)
    group: str = field(default="", compare=False, repr=False)
    time: float | None = field(default=None, compare=False, repr=False)

    @property
    def at(self) -> str:
        """The beginning of a complaint about the example."""
        return f"{self.place}: " if self.place else ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that a model reads of the example; none where it is not made of text."""
        return ()

    @property
    def known_by(self) -> tuple[str, ...]:
        """The texts that make it the same example in two files; none for one that may stand in both."""
        return self.texts


def read_lines(place: Path | Span, encoding: str = "auto") -> Iterator[str]:
    """Reads the lines of running text, without their line ends, each at most `MAX_LINE_LENGTH` characters long.

    A line ends at LF, CR LF, a lone CR, NEL or U+2028. U+2029, which separates paragraphs, ends its line and adds an
    empty one. Form feeds and vertical tabs are white space, so a page break alone on its line is a blank line and one
    inside a paragraph does not cut it. A byte order mark at the start is dropped.

    Args:
        place: a file, or a stretch of it that lies between line ends; packed (`.gz`, `.zst`) or plain.
        encoding: `auto` (see `detect_encoding`) or any text encoding Python knows.
    """
    return _read_lines(place, encoding, is_prose=True)


def numbered_lines(path: Path, encoding: str = "auto") -> Iterator[tuple[int, str]]:
    """Reads the lines of a file of rows with their numbers, from 1; only LF and CR LF end a line."""
    require_file(path)
    # 网页、邮件的一行是标签和头部，不是一条文本：按行读会悄悄得出一堆没有意义的结果
    if not is_prose(path.name):
        raise InputError(
            f"{path}: is a document, whose lines are no texts; write its texts to a .txt file, a line each"
        )
    return enumerate(_read_lines(path, encoding, is_prose=False), 1)


def record_lines(place: Span) -> Iterator[str]:
    """Reads the lines of JSON Lines, which is UTF-8; a line may hold a book."""
    return _read_lines(place, "utf-8", is_prose=False, longest=MAX_RECORD_LENGTH)


def read_text(path: Path, encoding: str = "auto") -> str:
    """Reads a whole text file as it is, however long its lines are."""
    require_file(path)
    return "".join(_read_lines(path, encoding, is_prose=False, whole=True))


def split_lines(text: str) -> list[str]:
    """Cuts the text of a record into lines as `read_lines` cuts a file: a page break is white space, no line end."""
    return text.replace("\f", " ").replace("\v", " ").replace("\u2029", "\n\n").splitlines()


def require_file(path: Path) -> None:
    """Makes sure that a file is there."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")


def _read_lines(
    place: Path | Span, encoding: str, *, is_prose: bool, whole: bool = False, longest: int | None = None
) -> Iterator[str]:
    """Decodes a file and cuts it into lines, or, if it is wanted whole, gives all of its text at once."""
    check_encoding(encoding)
    longest = longest or MAX_LINE_LENGTH
    codec = detect_encoding(place) if encoding == "auto" else encoding
    # 行尾的 \r 会等到下一块再交出来：\r\n 不会被块的边界拆开
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(codec)("strict"), translate=is_prose)
    split = _split_prose if is_prose else _split_rows
    number = 0  # lines handed out so far
    begun: list[str] = []  # pieces of the line whose end has not been read yet
    at_start = not (isinstance(place, Span) and place.start)

    def line_after(text: str) -> int:
        return lines_before(place) + number + len(split("".join([*begun, text]))[0]) + 1

    for chunk in itertools.chain(read_chunks(place), [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            before = error.object[: error.start].decode(error.encoding, "replace")
            named = "the encoding it was written in" if encoding == "auto" else "auto"
            raise InputError(
                f"{place}: line {line_after(before)} is not valid {codec}; "
                f"pass --encoding {named}, or re-save the file as UTF-8"
            ) from None
        except UnicodeError as error:
            # 有的解码器（utf-16 没有 BOM 时）只说出错，不说在哪里
            raise InputError(f"{place}: is not {codec} ({error}); pass --encoding auto") from None
        if at_start and text:
            text, at_start = text.removeprefix("\ufeff"), False
        if "\0" in text:
            raise nul_error(place, line_after(text[: text.index("\0")]))
        lines, rest = ([], text) if whole else split(text)
        if lines:
            lines[0], begun = "".join([*begun, lines[0]]), []
        begun.append(rest)
        # 只有首行和未读完的尾行可能比一个块长：超长的行不必读完就能报错
        for length, line in ((len(lines[0]) if lines else 0, 1), (sum(map(len, begun)), len(lines) + 1)):
            if length > longest and not whole:
                raise _length_error(place, lines_before(place) + number + line, longest, is_prose=is_prose)
        number += len(lines)
        yield from lines
    if last := "".join(begun):
        yield last if whole else last.removesuffix("\r")


def _split_prose(text: str) -> tuple[list[str], str]:
    """Cuts running text into its whole lines and the beginning of another; every line end is one character."""
    if "\f" in text or "\v" in text:
        text = text.replace("\f", " ").replace("\v", " ")
    if "\u2029" in text:
        text = text.replace("\u2029", "\n\n")
    lines = text.splitlines(keepends=True)
    rest = lines.pop() if lines and not lines[-1].endswith(_LINE_ENDS) else ""
    return [line[:-1] for line in lines], rest


def _split_rows(text: str) -> tuple[list[str], str]:
    *lines, rest = text.split("\n")
    return [line.removesuffix("\r") for line in lines], rest


def _length_error(place: Path | Span, line: int, longest: int, *, is_prose: bool) -> InputError:
    message = f"{place}: line {line} is longer than {longest:,} characters; "
    if not is_prose:
        return InputError(message + "a row stands on one line, is this such a file?")
    tool = {".gz": "gzip -dc", ".zst": "zstd -dc"}.get(Path(str(place)).suffix.lower(), "cat")
    return InputError(message + f"break it first, for example: {tool} {place} | fold -s -w 1000 > folded.txt")
