"""Which files a corpus is made of."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bertsmith.data.reading.sources import find_text_files
from bertsmith.errors import InputError

Write = Callable[[str, bytes | str], Path]
Run = Callable[..., subprocess.CompletedProcess[str]]


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


FINDS = """
import sys
from bertsmith.data.reading.sources import find_text_files
from bertsmith.errors import InputError
try:
    find_text_files(sys.argv[1:])
except InputError as error:
    print(error)
"""


def test_unreadable_file_and_folder_are_named(write: Write, tmp_path: Path, run_without_rights: Run) -> None:
    path = write("closed/a.txt", "x")
    path.chmod(0)
    assert "a.txt: cannot be read (Permission denied); check its rights" in run_without_rights(FINDS, path).stdout
    path.parent.chmod(0)
    assert "closed: the folder cannot be read" in run_without_rights(FINDS, tmp_path / "closed").stdout
    path.parent.chmod(0o700)
