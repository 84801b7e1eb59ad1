"""Bytes to lines: encodings, line ends, and every bad input a user can bring."""

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.data.reading import lines, sources
from bertsmith.data.reading.lines import numbered_lines, read_lines
from bertsmith.data.reading.sources import detect_encoding
from bertsmith.data.reading.text import read_documents, read_text
from bertsmith.errors import InputError

Write = Callable[[str, bytes | str], Path]


def sentences_of(path: Path, **options: str) -> list[tuple[str, ...]]:
    return [document.sentences for document in read_documents([path], **options)]  # type: ignore[arg-type]


# Encodings.

PLAIN = "The naïve café opened.\nIt closed in März."


@pytest.mark.parametrize(
    ("content", "codec"),
    [
        (PLAIN.encode(), "utf-8"),
        ("中文。".encode(), "utf-8"),
        (b"only ascii", "utf-8"),
        (PLAIN.encode("utf-8-sig"), "utf-8-sig"),
        (PLAIN.encode("utf-16"), "utf-16"),
        (b"\xfe\xff" + PLAIN.encode("utf-16-be"), "utf-16"),
        (PLAIN.encode("utf-16-le"), "utf-16-le"),
        (PLAIN.encode("utf-16-be"), "utf-16-be"),
        (PLAIN.encode("utf-32"), "utf-32"),
        (PLAIN.encode("iso-8859-1"), "iso-8859-1"),
        ("“Curly” café — yes".encode("cp1252"), "cp1252"),
        (b"", "utf-8"),
    ],
)
def test_encoding_is_recognised_and_text_comes_out_right(write: Write, content: bytes, codec: str) -> None:
    for name in ("a.txt", "a.txt.gz"):
        path = write(name, content)
        assert detect_encoding(path) == codec
        assert list(read_lines(path)) == content.decode(codec).split("\n") or content == b""


WESTERN = [
    "« L’été à Orléans », dit-elle, « ça coûtait “très” cher : 12 € la moitié (½), n° 3, 50 m², et 35 °C. »",
    "Die Bäckerei öffnet um ½ 7 Uhr. „Schöne Grüße“, sagte Frau Müller für 0,80 €; es waren 5 °C und 3 µm.",
    "¿Dónde está el niño? «¡Aquí!», gritó la señora el 1.º de mayo; pagó 3 € por ½ kilo a 30 °C la 2ª vez, Mª José.",
    "På øen Ærø er “det så dejligt”, siger Søren. »Går du også?« En øl koster 5 €, ½ liter; det er 25 °C.",
    "La col·lecció d´avui és a l´escola; l’il·lustre pagès compra ½ quilo d’ous.",
]


@pytest.mark.parametrize("text", WESTERN)
@pytest.mark.parametrize("codec", ["cp1252", "iso-8859-1"])
def test_western_text_is_recognised_with_all_its_signs(write: Write, text: str, codec: str) -> None:
    content = text.encode(codec, "ignore")
    assert list(read_lines(write("a.txt", content))) == [content.decode(codec)]


POLISH = "Był sobie król, który miał trzy córki. W Szczebrzeszynie chrząszcz brzmi w trzcinie, a każda gęś była piękna."
CZECH = "Byl jednou jeden král a ten měl tři dcery. Nejmladší měla nejraději růže, ještě však žádnou neviděla."


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1", "gb18030", "utf-16-le", "Latin-1"])
def test_named_encoding_is_used(write: Write, encoding: str) -> None:
    sentence = "中文句子。" if encoding.startswith(("utf", "gb")) else "café."
    path = write("a.txt", ("A cat.\n\n" + sentence).encode(encoding))
    assert sentences_of(path, encoding=encoding) == [("A cat.",), (sentence,)]


def test_byte_order_mark_is_dropped_under_a_named_encoding(write: Write) -> None:
    assert list(read_lines(write("a.txt", "Hi.".encode("utf-8-sig")), "utf-8")) == ["Hi."]


@pytest.mark.parametrize("late", ["é", "中"])
def test_first_accent_far_into_the_file_still_decides(write: Write, late: str) -> None:
    plain = b"An ordinary line of text.\n" * 100_000  # 2.6 MB, several chunks
    assert detect_encoding(write("a.txt", plain + late.encode())) == "utf-8"
    assert detect_encoding(write("b.txt", plain + b"caf\xe9")) == "iso-8859-1"
    with pytest.raises(InputError, match=r"c\.txt: line 100001 is not valid UTF-8"):
        detect_encoding(write("c.txt", plain + b"caf\xe9 " + late.encode()))


@pytest.mark.parametrize("shift", range(4))
def test_character_across_a_chunk_border_is_not_torn(write: Write, monkeypatch: pytest.MonkeyPatch, shift: int) -> None:
    monkeypatch.setattr(sources, "CHUNK_SIZE", 8)
    content = "x" * shift + "中文😀é\r\nzweite Zeile\r\rü\n"
    assert list(read_lines(write("a.txt", content))) == ["x" * shift + "中文😀é", "zweite Zeile", "", "ü"]
    assert next(read_lines(write("b.txt", content.encode("utf-16")))) == "x" * shift + "中文😀é"


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (
            b"ok\ncaf\xc3\xa9\nbad \xe9!\n",
            "auto",
            r"line 3 is not valid UTF-8, though .*--encoding iso-8859-1 .*re-save",
        ),
        ("好".encode() * 90 + b"\n\xff", "auto", r"line 2 is not valid UTF-8, though"),
        ("这是用国标码写的。".encode("gb18030"), "auto", r"line 1 is not .*name its encoding.*--encoding gb18030"),
        ("Привет, мир".encode("cp1251"), "auto", r"line 1 is not valid UTF-8, and .* look like ISO-8859-1; name its"),
        (POLISH.encode("cp1250"), "auto", r"line 1 is not .*name its encoding.*cp1250"),
        (CZECH.encode("iso-8859-2"), "auto", r"line 1 is not .*name its encoding"),
        (
            "Its people speak 普通话 in the city of 北京, as the paper 人民日报 wrote.".encode("gbk"),
            "auto",
            r"line 1 is not .*name its encoding.*--encoding gb18030",
        ),
        ("A line.\n日本語のテキスト。".encode("iso-2022-jp"), "auto", r"name its encoding.*--encoding iso-2022-jp"),
        (b"ok\nbad \xe9!\n", "utf-8", r"line 2 is not valid utf-8; pass --encoding auto, or re-save the file"),
        (
            b"\xff\xfea\x00\n\x00b\x00\x00\xd8c\x00",
            "auto",
            r"line 2 is not valid utf-16; pass --encoding the encoding it",
        ),
        (b"one\ntwo\nth\x00ree", "auto", r"looks binary \(line 3 holds a NUL byte\), not text; leave it out"),
        (b"one\ntwo\nth\x00ree", "utf-8", r"looks binary \(line 3 holds a NUL byte\)"),
        (b"\xef\xbb\xbfone\n\x00", "auto", r"looks binary \(line 2 holds a NUL byte\)"),
        (bytes(range(256)) * 10, "auto", r"looks binary"),
        (bytes(range(1, 32)) * 10, "auto", r"looks binary \(control characters everywhere\), not text; leave it out"),
        (b"x", "klingon", r"--encoding 'klingon': no such text encoding; use auto, utf-8"),
        (b"x", "rot13", r"--encoding 'rot13': no such text encoding"),
    ],
)
def test_bytes_that_are_not_text_are_named_with_line_and_way_out(
    write: Write, content: bytes, encoding: str, message: str
) -> None:
    path = write("a.txt", content)
    with pytest.raises(InputError, match=message) as error:
        list(read_documents([path], encoding=encoding))
    assert "\n" not in str(error.value)
    assert encoding in ("klingon", "rot13") or str(error.value).startswith(f"{path}: ")
    with pytest.raises(InputError, match=message):
        list(read_text([path], encoding=encoding))


@pytest.mark.parametrize("damage", ["truncated", "corrupt", "not gzip"])
def test_damaged_gzip_is_an_input_error(tmp_path: Path, damage: str) -> None:
    packed = gzip.compress(os.urandom(3000).hex().encode())
    content = {
        "truncated": packed[:-300],
        "corrupt": packed[:500] + bytes(200) + packed[700:],
        "not gzip": b"plain text",
    }
    path = tmp_path / "a.txt.gz"
    path.write_bytes(content[damage])
    with pytest.raises(InputError, match=r"a\.txt\.gz: damaged or truncated gzip file .*; check it with: gzip -t"):
        list(read_documents([path]))


def test_gzip_is_recognised_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(b"It is packed."))
    assert sentences_of(path) == [("It is packed.",)]


def test_file_that_vanished_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.txt: cannot be read \(No such file or directory\)"):
        list(read_documents([tmp_path / "gone.txt"]))


def test_endless_line_is_refused_without_reading_it(write: Write) -> None:
    path = write("long.txt.gz", b"short\n" + b"word " * 10_000_000)  # a line of 50 MB
    tracemalloc.start()
    with pytest.raises(
        InputError, match=r"long\.txt\.gz: line 2 is longer than 10,000,000 characters; .* gzip -dc .* fold -s -w 1000"
    ):
        list(read_documents([path]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 45_000_000


def test_longest_line_allowed_is_read(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_LENGTH", 10)
    monkeypatch.setattr(sources, "CHUNK_SIZE", 4)
    assert list(read_lines(write("a.txt", "1234567890\n1234567890"))) == ["1234567890"] * 2
    with pytest.raises(InputError, match="line 2 is longer"):
        list(read_lines(write("b.txt", "a\n12345678901\nb")))


# Running text.


def test_every_line_end_ends_a_line(write: Write) -> None:
    path = write("a.txt", "a\nb\r\nc\rd\u2028e\u0085f\u2029g\n\n")
    assert list(read_lines(path)) == ["a", "b", "c", "d", "e", "f", "", "g", ""]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab é中\n\r\u2028\u2029\x85\f", max_size=60))
def test_lines_are_the_same_whatever_the_chunks(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.getbasetemp() / "chunks.txt"
    path.write_bytes(content.encode())
    whole = list(read_lines(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK_SIZE", 1)
        assert list(read_lines(path)) == whole
    assert "".join("".join(whole).split()) == "".join(content.split())


# Files of rows.


def test_only_a_line_feed_ends_a_row(write: Write) -> None:
    path = write("a.tsv", "\ufeffa\u2028b\fc\r\nd\re\n\nf\r")
    assert list(numbered_lines(path)) == [(1, "a\u2028b\fc"), (2, "d\re"), (3, ""), (4, "f")]


def test_a_whole_file_has_no_longest_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_LENGTH", 4)
    assert lines.read_text(write("a.json", '{"a":\r\n"longer"}\n')) == '{"a":\r\n"longer"}\n'
    with pytest.raises(InputError, match=r"a\.json: line 2 is longer than 4 characters"):
        list(numbered_lines(write("a.json", "abcd\nabcde")))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab中\n\r\u2028\f", max_size=60))
def test_rows_are_the_same_whatever_the_chunks(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.txt"
    path.write_bytes(content.encode())
    expected = [row.removesuffix("\r") for row in content.split("\n")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK_SIZE", 1)
        found = [row for _, row in numbered_lines(path)]
    assert found == (expected if content and not content.endswith("\n") else expected[:-1])
