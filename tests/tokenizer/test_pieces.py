"""Spelling new pieces with known ones, and larger tokenizers: what surgery on a model's vocabulary relies on."""

import copy
import pickle
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.tokenizer import WordPieceTokenizer

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<url>", "play", "##play", "##ing", "in", "##in", "##g", "g"]


@pytest.fixture
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(VOCAB, lowercase=False, user_tokens=["<url>"], max_word_chars=10)


@pytest.mark.parametrize(
    ("piece", "spelling"),
    [
        ("playing", ["play", "##ing"]),
        ("##playing", ["##play", "##ing"]),
        # 词中的片段不得用词首片段来拼
        ("##gin", ["##g", "##in"]),
        ("##xin", ["[UNK]"]),
        ("xin", ["[UNK]"]),
    ],
)
def test_a_part_of_a_word_is_spelled_with_parts_of_words(
    tokenizer: WordPieceTokenizer, piece: str, spelling: list[str]
) -> None:
    assert [tokenizer.vocab[index] for index in tokenizer.spell(piece)] == spelling


@pytest.mark.parametrize("piece", ["two words", "end.", "##", "", "\u200b", "##.", "##中", "a" * 11, "##" + "a" * 11])
def test_what_no_text_is_cut_into_is_refused(tokenizer: WordPieceTokenizer, piece: str) -> None:
    with pytest.raises(InputError, match="no text is ever cut into it"):
        tokenizer.spell(piece)


def test_a_larger_tokenizer_keeps_ids_and_settings(tokenizer: WordPieceTokenizer) -> None:
    larger = tokenizer.with_pieces(["Play"], ["[E1]"])
    assert larger.vocab == [*VOCAB, "Play", "[E1]"]
    assert larger.tokenize("Playing <url>[E1] " + "a" * 11) == ["Play", "##ing", "<url>", "[E1]", "[UNK]"]
    assert tokenizer.vocab == VOCAB
    for pieces, user_tokens in ((["play"], []), (["new"], ["<url>"]), ([], ["[MASK]"])):
        with pytest.raises(InputError):
            tokenizer.with_pieces(pieces, user_tokens)


def test_a_copy_and_a_larger_or_smaller_tokenizer_keep_the_length_limit(
    tokenizer: WordPieceTokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path, model_max_length=64)
    loaded = WordPieceTokenizer.load(tmp_path)
    copies = (pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded))
    for derived in (*copies, loaded.with_pieces(["new"]), loaded.with_only(range(len(VOCAB)))):
        assert derived.model_max_length == loaded.model_max_length == 64
