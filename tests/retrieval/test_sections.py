"""Sections of documents: headings as Markdown writes them, and nothing that merely looks like one."""

import pytest

from bertsmith.errors import InputError
from bertsmith.retrieval import passages as module
from bertsmith.retrieval.passages import digests_of, read_document


def sections(tmp_path, text, name="a.md"):
    (tmp_path / name).write_bytes(text.encode("utf-8"))
    document = read_document(tmp_path, name)
    return [(one.heading, document.text[one.start : one.end].strip()) for one in document.sections]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "before\n# One\na\n## Two ##\nb\n### Three\nc\n## Four\nd\n# Five\ne",
            [
                *[("", "before"), ("One", "a"), ("One > Two", "b"), ("One > Two > Three", "c")],
                *[("One > Four", "d"), ("Five", "e")],
            ],
        ),
        ("Title\r\n=====\r\ntext\r\n\r\nPart\r\n---\r\nmore", [("Title", "text"), ("Title > Part", "more")]),
        ("# One\n## Two\n# Three\ntext", [("One", "Two"), ("Three", "text")]),
        ("", []),
    ],
    ids=["in order", "underlined", "without text", "blank"],
)
def test_text_stands_under_its_headings(tmp_path, text, found):
    assert sections(tmp_path, text) == found


@pytest.mark.parametrize(
    "text",
    [
        "```\n# no heading\n```\n",
        "#hashtag\n",
        "- item\n---\n",
        "a | b\n",
        "text\n\n---\n\nmore",
        "~~~\n```\n# no\n~~~",
    ],
)
def test_what_only_looks_like_a_heading(tmp_path, text):
    assert [heading for heading, _ in sections(tmp_path, text)] == [""]


def test_code_within_a_line_swallows_no_heading(tmp_path):
    text = "# One\n```inline``` code\n## Two\nb\n```python\n# no\n```\n# Three\nc"
    assert [heading for heading, _ in sections(tmp_path, text)] == ["One", "One > Two", "One > Two", "Three"]


def test_a_text_file_has_no_headings(tmp_path):
    assert sections(tmp_path, "# not Markdown\ntext", "a.txt") == [("", "# not Markdown\ntext")]
    assert sections(tmp_path, " \n\n\t", "b.txt") == []


def test_front_matter_is_metadata_and_no_text(tmp_path):
    (tmp_path / "a.md").write_text('---\nlang: en\nauthor: "A: B"\n- x\n---\nbody\n', encoding="utf-8")
    document = read_document(tmp_path, "a.md")
    assert document.metadata == {"lang": "en", "author": "A: B"}
    assert [document.text[one.start : one.end] for one in document.sections] == ["body\n\n"]


def test_a_long_section_is_cut_between_paragraphs_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 50)
    text = "\n\n".join(["twenty characters ..."] * 20) + "x" * 300
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    found = read_document(tmp_path, "a.txt").sections
    assert "".join(text[one.start : one.end] for one in found) == text
    assert all(one.end - one.start <= 50 for one in found)
    assert text[found[0].start : found[0].end].endswith("\n\n")


def test_documents_are_named_below_their_folder(notes):
    assert [name for name, _ in digests_of(notes)] == ["bread.txt", "guides/books.md", "guides/trees.txt", "中文.txt"]


def test_bad_folders_and_files_are_one_line(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        list(digests_of(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no"):
        list(digests_of(tmp_path / "empty"))
    (tmp_path / "a.txt").write_bytes("中文".encode("gb18030"))
    with pytest.raises(InputError, match="gb18030"):
        read_document(tmp_path, "a.txt")
    assert read_document(tmp_path, "a.txt", "gb18030").text == "中文"
    (tmp_path / "a.txt").write_bytes(b"abc")
    with pytest.raises(InputError, match=r"a\.txt: is not utf-16.*--encoding"):
        read_document(tmp_path, "a.txt", "utf-16")
    with pytest.raises(InputError, match="cannot be read"):
        read_document(tmp_path, "vanished.txt")
