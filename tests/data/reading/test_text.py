"""Lines to paragraphs and documents."""

import random
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from bertsmith.data.reading import text as paragraphs
from bertsmith.data.reading.sources import detect_encoding, find_text_files
from bertsmith.data.reading.text import (
    Document,
    corpus_documents,
    join_lines,
    read_documents,
    read_text,
)
from bertsmith.errors import ConfigError, InputError

Write = Callable[[str, bytes | str], Path]


def sentences_of(path: Path, **options: str) -> list[tuple[str, ...]]:
    return [document.sentences for document in read_documents([path], **options)]  # type: ignore[arg-type]


def test_page_break_is_white_space(write: Write) -> None:
    path = write("a.txt", "One.\n\f\nTwo.\n\fThree.\n")
    assert sentences_of(path) == [("One.",), ("Two.", "Three.")]


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
    one, two = ["a.md"], ["a.md", "b.txt"]
    assert [corpus_documents(files)[0] for files in (one, two)] == ["blank-line", "file"]
    assert [corpus_documents(one, "file")[0], corpus_documents(two, "blank-line")[0]] == ["file", "blank-line"]
    assert corpus_documents(two, "line")[0] == "line"
    with pytest.raises(ConfigError, match="--documents 'page': unknown rule; use auto, blank-line, file or line"):
        corpus_documents(one, "page")  # type: ignore[arg-type]


WORDS = re.findall(r"\w+", "the man eats bread and reads a book while old women sleep under green trees near a house")
CHINESE = "天地人山水火风云日月星光大小多少来去上下左右东西南北春夏秋冬花草树木鸟鱼"


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 24))) for _ in range(count)]


def chinese(length: int, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices(CHINESE + "，。", k=length))


TWEETS = "\n".join(sentences(500))
NOVEL = textwrap.fill(" ".join(f"{one.capitalize()}." for one in sentences(900)), 72)
LINES = {
    "tweets": TWEETS,
    "tweets between blank lines": f"\n \n{TWEETS}\n\n\n",
    "long reviews": "\n".join(" ".join(sentences(20, seed)) for seed in range(150)),
    "log entries of one width": "\n".join(f"2026-01-02 09:{n:04} worker finishes job {n:04}" for n in range(400)),
    "lines of one pattern": "\n".join(f"order number {n:04} was sent to a house under the trees" for n in range(400)),
    "Chinese reviews": "\n".join(chinese(random.Random(n).randint(4, 60), n) for n in range(300)),
}
TEXTS = {
    "a wrapped novel": NOVEL,
    "a wrapped Chinese novel": textwrap.fill(chinese(20_000), 35),
    "a novel with paragraphs": NOVEL.replace(".\n", ".\n\n"),
    "tweets in two parts": f"{TWEETS}\n\n{TWEETS}",
    "99 lines": "\n".join(sentences(99)),
}


@pytest.mark.parametrize("content", LINES.values(), ids=LINES.keys())
def test_a_list_of_lines_is_a_document_a_line(write: Write, content: str) -> None:
    path, written = write("a.txt", content), content.split("\n")
    lines = [line for line in written if line.strip()]
    said = f"a.txt: a line is a document, as none of its {len(lines)} lines is blank"
    assert corpus_documents([path]) == ("line", said)
    with pytest.warns(UserWarning, match=re.escape(said)):
        found = list(read_documents([path]))
    assert found == list(read_documents([path], documents="line"))
    assert ["".join(one.sentences).replace(" ", "") for one in found] == [line.replace(" ", "") for line in lines]
    # what was a corpus before is the same corpus still
    assert len({one.text for one in read_documents([path], documents="blank-line")}) == 1
    assert [corpus_documents([path], rule)[0] for rule in ("file", "blank-line")] == ["file", "blank-line"]


@pytest.mark.parametrize("content", TEXTS.values(), ids=TEXTS.keys())
def test_a_text_stays_whole(write: Write, content: str) -> None:
    assert corpus_documents([write("a.txt", content)]) == ("blank-line", "")


def test_only_a_single_text_file_can_be_a_list_of_lines(write: Write) -> None:
    path, packed, page = write("a.txt", TWEETS), write("b.txt.gz", TWEETS), write("c.md", TWEETS)
    assert corpus_documents([packed])[0] == "line"
    assert corpus_documents([f"file://{path}"])[0] == "line"
    assert corpus_documents([page]) == ("blank-line", "")
    assert corpus_documents([path, packed]) == ("file", "")
    assert corpus_documents([path, write("d.jsonl", "{}")]) == ("blank-line", "")


def test_long_document_is_cut_into_several(write: Write) -> None:
    path = write("a.txt", " ".join(f"Sentence number {n} ends here." for n in range(300)))
    documents = list(read_documents([path]))
    assert [len(document.sentences) for document in documents] == [128, 128, 44]
    assert [s for document in documents for s in document.sentences][299] == "Sentence number 299 ends here."


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
    monkeypatch.setattr(paragraphs, "_MAX_PARAGRAPH_LINES", 3)
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
