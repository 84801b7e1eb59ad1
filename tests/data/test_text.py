"""Files to documents: what is found, decoded, rejoined and cut, and every bad input a user can bring."""

import gzip
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.data.reading import lines, sources, text
from bertsmith.data.reading.decoding import detect_encoding
from bertsmith.data.reading.lines import numbered_lines, read_lines
from bertsmith.data.reading.text import (
    Document,
    find_text_files,
    join_lines,
    read_documents,
    read_text,
    resolve_documents,
)
from bertsmith.errors import ConfigError, InputError

Write = Callable[[str, bytes | str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file


def sentences_of(path: Path, **options: str) -> list[tuple[str, ...]]:
    return [document.sentences for document in read_documents([path], **options)]  # type: ignore[arg-type]


# Finding files.


def test_folders_are_searched_and_files_come_sorted_and_once(write: Write, tmp_path: Path) -> None:
    a, b, c = write("b/z.txt", "x"), write("b/sub/y.TXT", "x"), write("b/a.txt.gz", "x")
    write("b/notes.md", "x")
    write("b/.hidden.txt", "x")
    write("b/.git/log.txt", "x")
    assert find_text_files([tmp_path / "b", a, str(tmp_path / "b" / "*.txt")]) == sorted([a, b, c], key=str)


def test_the_vocabulary_of_a_tokenizer_is_no_text_unless_it_is_named(write: Write, tmp_path: Path) -> None:
    text, words = write("b/a.txt", "x"), write("b/words/vocab.txt", "a list of words")
    own = write("b/tokenizer/vocab.txt", "[PAD]")
    write("b/tokenizer/tokenizer_config.json", "{}")
    assert find_text_files([tmp_path / "b"]) == [text, words]
    assert find_text_files([tmp_path / "b", own]) == [text, own, words]


def test_named_and_matched_files_may_have_any_name(write: Write, tmp_path: Path) -> None:
    book, log = write("book", "x"), write("sub/deep/x.log", "x")
    assert find_text_files([book, tmp_path / "**" / "*.log"]) == sorted([book, log], key=str)


def test_name_with_brackets_is_a_file_before_it_is_a_pattern(write: Write) -> None:
    path = write("a[1].txt", "x")
    assert find_text_files([path]) == [path]


def test_same_file_under_two_names_is_read_once(write: Write, tmp_path: Path) -> None:
    path = write("a.txt", "x")
    (tmp_path / "link.txt").symlink_to(path)
    assert find_text_files([tmp_path]) == [path]
    (tmp_path / "sub").mkdir()
    assert len(find_text_files([path, tmp_path / "sub" / ".." / "a.txt"])) == 1


def test_linked_folders_are_searched_once_and_loops_do_not_matter(write: Write, tmp_path: Path) -> None:
    own, far = write("corpus/z/own.txt", "x"), write("elsewhere/deep/far.txt", "x")
    write("beside.txt", "x")
    corpus = tmp_path / "corpus"
    for link, target in (
        ("a", corpus / "z"),
        ("linked", tmp_path / "elsewhere"),
        ("z/again", tmp_path / "elsewhere" / "deep"),
        ("z/loop", corpus),
        ("up", tmp_path),
        ("top", Path("/")),
        (".hidden", tmp_path / "elsewhere"),
    ):
        (corpus / link).symlink_to(target)
    (far.parent / "back").symlink_to(corpus)
    found = find_text_files([corpus])
    assert len(found) == 2
    assert found[1] == own, "under its own name, not that of a link"
    assert found[0].resolve() == far


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.txt", r"missing\.txt: no such file or folder; check the name"),
        ("empty", r"empty: the folder holds no \.txt or \.txt\.gz file; name the files"),
        ("*.log", r"\*\.log: the pattern matches no text file; check it with: ls"),
        ("pipe", r"pipe: is not a regular file; save its text"),
        ("dangling.txt", r"dangling\.txt: no such file or folder"),
    ],
)
def test_path_without_text_is_named_with_a_way_out(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty" / "sub").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=message) as error:
        find_text_files([tmp_path / name])
    assert "\n" not in str(error.value)


def test_no_path_at_all_is_an_error() -> None:
    with pytest.raises(InputError, match="no text was named; give at least one file"):
        find_text_files([])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_and_folder_are_named(write: Write, tmp_path: Path) -> None:
    path = write("closed/a.txt", "x")
    path.chmod(0)
    with pytest.raises(InputError, match=r"a\.txt: cannot be read \(Permission denied\); check its rights"):
        find_text_files([path])
    path.parent.chmod(0)
    with pytest.raises(InputError, match=r"closed: the folder cannot be read"):
        find_text_files([tmp_path / "closed"])
    path.parent.chmod(0o700)


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


# Lines and paragraphs.


def test_every_line_end_ends_a_line(write: Write) -> None:
    path = write("a.txt", "a\nb\r\nc\rd\u2028e\u0085f\u2029g\n\n")
    assert list(read_lines(path)) == ["a", "b", "c", "d", "e", "f", "", "g", ""]


def test_page_break_is_white_space(write: Write) -> None:
    path = write("a.txt", "One.\n\f\nTwo.\n\fThree.\n")
    assert sentences_of(path) == [("One.",), ("Two.", "Three.")]


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


def test_hard_wrapped_paragraph_is_one_unit() -> None:
    lines = [
        "The attempts to instil the elements of music into the boy",
        "when he was small do not appear to have been attended with",
        "success. Mr. Hill tells us that he learnt the piano at",
        "school, but his master gave him up in despair.",
    ]
    assert join_lines(lines) == [" ".join(lines)]


def test_one_sentence_per_line_stays_one_per_line() -> None:
    lines = [
        "The old mill by the river has been closed for many years now.",
        "Nobody knows who owns it",
        "Children say that a ghost lives there and grinds at night!",
        "It is only the wind.",
        "The miller's daughter moved to the town a long time ago.",
    ]
    assert join_lines(lines) == lines


@pytest.mark.parametrize(
    "lines",
    [
        ["apples", "pears and plums", "a loaf of bread"],
        ["CHAPTER I", "DICKENS AS A MUSICIAN"],
        [
            "Let me live harmlessly, and near the brink",
            "Of Trent or Avon have a dwelling place,",
            "Where I may see my quill or cork down sink,",
            "With eager bite of Perch, or Bleak, or Dace;",
        ],
        ["A whole paragraph of a speech on one line, as word processors write it. " * 4] * 3,
    ],
    ids=["list", "title", "verse", "long lines"],
)
def test_lines_that_the_page_did_not_break_stay_apart(lines: list[str]) -> None:
    assert join_lines(lines) == lines


def test_short_line_inside_a_wrapped_paragraph_ends_its_unit() -> None:
    lines = [
        "VIENNA, May 6.",
        "Having long contemplated a journey to the north in summer, I",
        "must now beg you to send me the sum that you were so kind as",
        "to promise me last winter, and with it the letters that my",
        "brother left with you when he was in town, for he has asked",
        "me twice what has become of them, and I could not tell him,",
        "which was unpleasant. Farewell.",
        "Yours truly, with all esteem,",
        "BEETHOVEN",
    ]
    assert join_lines(lines) == [lines[0], " ".join(lines[1:7]), lines[7], lines[8]]


def test_wrapped_chinese_is_joined_without_a_space() -> None:
    lines = [
        "春天来了，山坡上的花都开了，孩子们在草地上跑",
        "来跑去，老人坐在树下讲着很久以前的故事，大家",
        "都听得入了神。",
    ]
    assert join_lines(lines) == ["".join(lines)]


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ("all the rooms of the old house were full of a well-", "known smell", "of a well-known smell"),
        ("and all the people of the town came out and said--", "nothing", "and said--nothing"),
        ("all the rooms of the old house were full of the -", "dash sign", "full of the - dash sign"),
        ("我们今天在会议上讨论了新的模型它的名字叫做作", "BERT 模型", "做作 BERT 模型"),
    ],
)
def test_what_stands_between_joined_lines(first: str, second: str, joined: str) -> None:
    (unit,) = join_lines([first, second])
    assert unit.endswith(joined)


# Documents.


def test_blank_lines_part_documents_of_a_single_file(write: Write) -> None:
    path = write("a.txt", "One. Two.\nThree.\n\n \n\nFour.\n")
    assert list(read_documents([path])) == [
        Document(str(path), ("One.", "Two.", "Three.")),
        Document(str(path), ("Four.",)),
    ]


def test_several_files_are_a_document_each(write: Write) -> None:
    a, b = write("a.txt", "One.\n\nTwo."), write("b.txt.gz", "Three.")
    assert list(read_documents([a, b])) == [Document(str(a), ("One.", "Two.")), Document(str(b), ("Three.",))]
    assert len(list(read_documents([a, b], documents="blank-line"))) == 3
    assert len(list(read_documents([a], documents="file"))) == 1


def test_rule_for_documents_is_told() -> None:
    one, two = [Path("a")], [Path("a"), Path("b")]
    assert [resolve_documents(one), resolve_documents(two)] == ["blank-line", "file"]
    assert [resolve_documents(one, "file"), resolve_documents(two, "blank-line")] == ["file", "blank-line"]
    with pytest.raises(ConfigError, match="--documents 'page': unknown rule; use auto, blank-line or file"):
        resolve_documents(one, "page")  # type: ignore[arg-type]


def test_long_document_is_cut_into_several(write: Write) -> None:
    path = write("a.txt", " ".join(f"Sentence number {n} ends here." for n in range(300)))
    documents = list(read_documents([path]))
    assert [len(document.sentences) for document in documents] == [128, 128, 44]
    assert [s for document in documents for s in document.sentences][299] == "Sentence number 299 ends here."
    assert [len(d.sentences) for d in read_documents([path], max_sentences=100)] == [100, 100, 100]
    with pytest.raises(ConfigError, match="max_sentences is 0"):
        read_documents([path], max_sentences=0)


def test_heading_is_its_own_sentence_and_opens_its_document(write: Write) -> None:
    path = write(
        "a.txt", " \n = Gold . Silver = \n \n Gold shines . It melts . \n = = Uses = = \n Rings .\n\n = End = \n"
    )
    assert sentences_of(path) == [
        ("= Gold . Silver =", "Gold shines .", "It melts .", "= = Uses = =", "Rings ."),
        ("= End =",),
    ]


def test_lines_without_letters_are_left_out(write: Write) -> None:
    path = write("a.txt", "One.\n\n* * *\n\n-----\n\nTwo.")
    assert sentences_of(path) == [("One.",), ("Two.",)]


def test_paragraph_without_end_is_read_in_parts(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_MAX_PARAGRAPH_LINES", 3)
    path = write("a.txt", "".join(f"Line {n}.\n" for n in range(10)))
    assert sentences_of(path) == [tuple(f"Line {n}." for n in range(10))]


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n\xe3\x80\x80\n", b"\xef\xbb\xbf", b"* * *\n"])
def test_files_without_any_sentence_are_an_error_only_together(write: Write, content: bytes) -> None:
    empty, full = write("empty.txt", content), write("full.txt", "Text.")
    assert [document.sentences for document in read_documents([empty, full])] == [("Text.",)]
    assert list(read_text([full, empty])) == ["Text."]
    for read in (read_documents, read_text):
        with pytest.raises(InputError, match=r"empty\.txt: no sentence found, only empty or blank text; name files"):
            list(read([empty]))


def test_text_for_a_vocabulary_comes_in_paragraphs(write: Write) -> None:
    a, b = write("a.txt", "One. Two.\n\nThree.\n"), write("b.txt", "caf\u00e9.".encode("iso-8859-1"))
    assert list(read_text([a, b])) == ["One. Two.", "Three.", "café."]


# Real text.


def test_real_corpora_lose_no_character(shared_data: Path) -> None:
    for folder in ("corpus", "corpus_zh"):
        files = find_text_files([shared_data / folder])
        for path in files[:: max(1, len(files) // 12)]:
            read = "".join("".join(read_text([path])).split())
            raw = path.read_bytes().decode(detect_encoding(path))
            kept = [line for line in raw.splitlines() if any(character.isalnum() for character in line)]
            left_out = len("".join(raw.split())) - len(read)
            assert 0 <= left_out <= len("".join(raw.split())) - len("".join("".join(kept).split()))


def test_real_books_give_whole_sentences(shared_data: Path) -> None:
    files = find_text_files([shared_data / "corpus" / "books"])
    sentences = [s for document in read_documents(files) for s in document.sentences]
    assert 40_000 < len(sentences) < 70_000
    lower = sum(sentence[0].islower() for sentence in sentences)
    assert lower < 0.02 * len(sentences)  # a sentence torn at a line end would mostly go on in lower case
    torn = [sentence for sentence in sentences if sentence.endswith((" Mr.", " Mrs.", " Dr."))]
    assert len(torn) < 5  # a name in an index, a caption in two columns


def test_real_chinese_lines_stay_sentences(shared_data: Path) -> None:
    (path,) = find_text_files([shared_data / "corpus_zh"])
    documents = list(read_documents([path]))
    paragraphs = path.read_text(encoding="utf-8").split("\n\n")
    assert len(documents) >= sum(bool(paragraph.strip()) for paragraph in paragraphs)
    sentences = [s for document in documents for s in document.sentences]
    assert sum(sentence[-1] in "。！？”」』）》.：；…" for sentence in sentences) > 0.95 * len(sentences)


def test_real_mixed_encodings_are_all_read(shared_data: Path) -> None:
    files = find_text_files([shared_data / "corpus" / "speeches"])
    codecs = {path.name: detect_encoding(path) for path in files}
    assert codecs["1861-Lincoln.txt"] == codecs["2013-Obama.txt"] == "utf-8"
    assert codecs["sotu_1973-Nixon.txt"] == codecs["sotu_1954-Eisenhower.txt"] == "iso-8859-1"
