"""Which encoding a file is in.

Notable:
- the encoding is decided by a first pass over the whole file, never by its beginning: the first accent of a book may
  stand in its last chapter, and a wrong guess there would either crash late or quietly corrupt the text
- nothing is guessed that cannot be told: what is neither Unicode nor clearly Western text ends with one line that
  names the place and the flag to pass, because a vocabulary learned from mis-decoded text is worthless
- the passes read in chunks, plain, gzip or zstd, so memory does not grow with the file
"""

from __future__ import annotations

import codecs
import itertools
import re
from pathlib import Path

from bertsmith.data.reading.sources import Span, read_chunks
from bertsmith.errors import InputError

# UTF-32 要排在 UTF-16 之前：小端 UTF-32 的 BOM 以 UTF-16 的 BOM 开头
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Everything below 0x20 but tab, line ends, form feed and the DOS end-of-file mark; and DEL.
_NOT_CONTROL = bytes(byte for byte in range(256) if byte >= 0x20 and byte != 0x7F) + b"\t\n\v\f\r\x1a"
_NOT_HIGH = bytes(range(0x80))
_NOT_LETTER = bytes(byte for byte in range(0x80) if not chr(byte).isalpha())
_C1_BYTES = re.compile(rb"[\x80-\x9f]")
_UNDEFINED_IN_CP1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
_VALID_MULTIBYTE = re.compile("[^\x00-\x7f\udc80-\udcff]")
_INVALID_BYTE = re.compile("[\udc80-\udcff]")


def check_encoding(encoding: str) -> None:
    """Makes sure that `encoding` is `auto` or a text encoding Python knows.

    Raises:
        InputError: it is neither.
    """
    if encoding == "auto":
        return
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        raise InputError(
            f"--encoding {encoding!r}: no such text encoding; use auto, utf-8, utf-16, iso-8859-1 "
            "or another name Python knows, such as gb18030"
        ) from None


def detect_encoding(path: Path | Span) -> str:
    """Finds the encoding of a file by looking at all of it, in bounded memory.

    In this order: a byte order mark decides; UTF-16 without one is accepted when nearly every second byte of an ASCII
    text is NUL; then strict UTF-8; then ISO-8859-1, if no two bytes form a UTF-8 character and the accented letters are
    a minority, as in Western languages. Bytes 0x80 to 0x9F are control characters in ISO-8859-1 and curly quotes in its
    Windows superset, so a Western file that has them is read as `cp1252`.

    Args:
        path: the file, plain, gzip or zstd.

    Returns:
        The name of a Python codec.

    Raises:
        InputError: the file looks binary, mixes UTF-8 with something else, or is in an encoding that must be named.
    """
    size = controls = 0
    nuls = [0, 0]  # at even and at odd offsets
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    is_utf8 = True
    for chunk in read_chunks(path):
        if size == 0:
            for mark, name in _BYTE_ORDER_MARKS:
                if chunk.startswith(mark):
                    return name
        if 0 in chunk:
            for offset in (0, 1):
                nuls[(size + offset) % 2] += chunk[offset::2].count(0)
        controls += len(chunk.translate(None, _NOT_CONTROL))
        size += len(chunk)
        if is_utf8:
            is_utf8 = _accepts(decoder, chunk)
    if is_utf8:
        is_utf8 = _accepts(decoder, b"", final=True)

    if any(nuls):
        # 没有 BOM 的 UTF-16：ASCII 字符的高字节全是 0，只落在同一奇偶位上，这种分布不会误认
        half = size / 2
        for parity, name in ((1, "utf-16-le"), (0, "utf-16-be")):
            if size % 2 == 0 and nuls[parity] > 0.4 * half and nuls[1 - parity] < 0.01 * half:
                return name
        raise nul_error(path, _line_of_first_nul(path))
    if controls > 0.05 * size:
        raise InputError(f"{path}: looks binary (control characters everywhere), not text; leave it out")
    return "utf-8" if is_utf8 else _detect_western(path)


def _detect_western(path: Path | Span) -> str:
    """Tells ISO-8859-1 (or its Windows superset) from everything else that is not UTF-8."""
    # surrogateescape 把每个坏字节变成 U+DC80..U+DCFF：一次解码就分清合法的多字节字符与坏字节
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    line = 1
    bad_line = 0  # the line of the first byte that is not UTF-8
    high = letters = 0
    valid = invalid = 0  # characters that are UTF-8, and bytes that are not
    has_c1 = has_undefined = False
    for chunk in itertools.chain(read_chunks(path), [b""]):
        text = decoder.decode(chunk, final=not chunk)
        valid += len(_VALID_MULTIBYTE.findall(text))
        invalid += len(_INVALID_BYTE.findall(text))
        if not bad_line:
            bad = _INVALID_BYTE.search(text)
            bad_line = line - 1 + len((text[: bad.start()] + "x").splitlines()) if bad else 0
            line += text.count("\n") or text.count("\r")
        high += len(chunk.translate(None, _NOT_HIGH))
        letters += len(chunk.translate(None, _NOT_LETTER))
        has_c1 = has_c1 or _C1_BYTES.search(chunk) is not None
        has_undefined = has_undefined or _UNDEFINED_IN_CP1252.search(chunk) is not None
    # 西文里带重音的字母是少数；高位字节过半的多是中文、俄文等，按 ISO-8859-1 读只会得到乱码
    is_dense = 3 * high > letters
    if valid and not (is_dense and invalid > valid):  # GBK pairs are valid UTF-8 now and then, by chance
        raise InputError(
            f"{path}: line {bad_line} is not valid UTF-8, though the file holds other characters that are; pass "
            "--encoding iso-8859-1 (or whatever it was written in), or re-save the file as UTF-8"
        )
    if is_dense or has_undefined:
        raise InputError(
            f"{path}: line {bad_line} is not valid UTF-8, and the file does not look like ISO-8859-1; "
            "name its encoding, for example --encoding gb18030, big5 or cp1251, or re-save the file as UTF-8"
        )
    return "cp1252" if has_c1 else "iso-8859-1"


def _accepts(decoder: codecs.IncrementalDecoder, chunk: bytes, *, final: bool = False) -> bool:
    """Whether `chunk` continues what the decoder has read so far."""
    try:
        decoder.decode(chunk, final)
    except UnicodeDecodeError:
        return False
    return True


def _line_of_first_nul(path: Path | Span) -> int:
    number = 0
    for chunk in read_chunks(path):
        position = chunk.find(0)
        if position >= 0:
            return number + len((chunk[:position] + b"x").splitlines())
        number += chunk.count(b"\n")
    return number + 1


def nul_error(path: Path | Span, line: int) -> InputError:
    """Returns the error for a file of which a line holds a NUL character, as no text does."""
    return InputError(
        f"{path}: looks binary (line {line} holds a NUL byte), not text; leave it out, "
        "or pass --encoding utf-16-le if it is UTF-16 without a byte order mark"
    )
