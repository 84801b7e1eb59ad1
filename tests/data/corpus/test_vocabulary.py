"""A vocabulary from files: the same as from their lines, and never in the place of another."""

from pathlib import Path

import pytest

from bertsmith.data.corpus.vocabulary import learn_vocabulary
from bertsmith.errors import InputError, RunFolderError
from bertsmith.tokenizer import WordPieceTokenizer

TEXT = "The man eats the fish.\n\nA woman reads a book about fish.\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text" / "a.txt"
    file.parent.mkdir()
    file.write_text(TEXT, encoding="utf-8")
    return file


def test_it_is_the_vocabulary_of_the_lines(text: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    settings = {"vocab_size": 80, "token": ("<url>",), "cased": True}
    made = learn_vocabulary(
        [text], tmp_path / "out", workers=1, on_progress=lambda *step: told.append(step), **settings
    )
    expected = WordPieceTokenizer.train(TEXT.split("\n"), vocab_size=80, lowercase=False, user_tokens=["<url>"])
    assert made.metrics["files"] == 1
    assert made.details.vocab == WordPieceTokenizer.load(tmp_path / "out").vocab == expected.vocab
    assert told[0][0] == "counting"
    assert told[0][2] >= told[0][1]


def test_the_same_request_runs_again_and_another_is_refused(text: Path, tmp_path: Path) -> None:
    for _ in range(2):
        learn_vocabulary([text], tmp_path / "out", workers=1)
    before = (tmp_path / "out" / "vocab.txt").read_bytes()
    with pytest.raises(RunFolderError, match="other text or settings"):
        learn_vocabulary([text], tmp_path / "out", workers=1, cased=True)
    text.write_text(TEXT * 2, encoding="utf-8")
    with pytest.raises(RunFolderError, match="other text or settings"):
        learn_vocabulary([text], tmp_path / "out", workers=1)
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == before


def test_its_own_text_is_not_overwritten(text: Path) -> None:
    own = text.with_name("vocab.txt")
    own.write_text(TEXT, encoding="utf-8")
    for named in (text.parent, own):
        with pytest.raises(InputError, match="where the vocabulary would go"):
            learn_vocabulary([named], text.parent)
    assert own.read_text(encoding="utf-8") == TEXT
