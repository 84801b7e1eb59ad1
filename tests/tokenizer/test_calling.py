"""A tokenizer called as the field calls one gives what `transformers` gives, through the same rows as ever."""

import subprocess
import sys

import numpy as np
import pytest
import transformers

from bertsmith.errors import InputError
from bertsmith.tokenizer import load_tokenizer

TEXTS = ["The man eats bread, doesn't he?", "A book", "", "un café à Zürich " * 30]
PAIRS = ["Yes.", "The woman reads it every evening " * 20, "x", ""]


@pytest.fixture(scope="module")
def ours(minilm_folder):
    return load_tokenizer(minilm_folder)


@pytest.fixture(scope="module")
def theirs(minilm_folder):
    return transformers.AutoTokenizer.from_pretrained(minilm_folder)


CALLS = [
    {},
    {"padding": True},
    {"padding": "longest", "truncation": True, "max_length": 12},
    {"padding": "max_length", "truncation": True, "max_length": 20, "return_tensors": "np"},
    {"padding": True, "truncation": "longest_first", "max_length": 16, "return_tensors": "pt"},
    {"truncation": True},
    {"padding": "max_length", "truncation": True},
    {"padding": "do_not_pad", "truncation": "do_not_truncate"},
    {"add_special_tokens": False, "truncation": True, "max_length": 9},
    {"padding": True, "return_attention_mask": False, "return_token_type_ids": False},
    {"return_special_tokens_mask": True, "return_offsets_mapping": True, "return_length": True},
    {"truncation": True, "max_length": 10, "stride": 3, "return_overflowing_tokens": True, "padding": True},
]


# windows of pairs are compared in test_encoding
@pytest.mark.parametrize(
    ("options", "paired"),
    [(options, paired) for options in CALLS for paired in (False, True) if not (paired and "stride" in options)],
    ids=lambda given: " ".join(given) or "nothing" if isinstance(given, dict) else ("pairs" if given else "texts"),
)
def test_the_fields_words_give_the_fields_rows(ours, theirs, options, paired):
    more = {"text_pair": PAIRS} if paired else {}
    found, expected = ours(TEXTS, **more, **options), theirs(TEXTS, **more, **options)
    assert expected.keys() <= found.keys()
    assert ("attention_mask" in found) is ("attention_mask" in expected)
    for name, rows in expected.items():
        if "return_tensors" in options:
            assert type(found[name]) is type(rows)
            assert found[name].dtype == rows.dtype
            assert found[name].tolist() == rows.tolist()
        else:
            assert [[*map(_plain, row)] if isinstance(row, (list, tuple)) else row for row in found[name]] == [
                [*map(_plain, row)] if isinstance(row, (list, tuple)) else row for row in rows
            ], name


def _plain(one):
    return tuple(one) if isinstance(one, (list, tuple)) else one


def test_the_mask_alone_is_special_where_it_is_asked_for(ours, theirs):
    text = "The [MASK] eats,  un café[MASK]\u3002"
    found = ours(text, parse_special="mask")
    assert found == ours(text, parse_special=True)
    assert found["input_ids"] == theirs(text)["input_ids"]
    forged = ours.encode(f"[SEP]{text} [CLS] [PAD]", parse_special="mask")
    assert [index for index in forged if index in ours.special_ids] == [ours.mask_token_id] * 2


def test_a_question_beside_many_documents_is_cut_once(ours, monkeypatch):
    expected = [ours("A book", pair) for pair in PAIRS]
    cut, read = ours._tokens, []
    monkeypatch.setattr(ours, "_tokens", lambda text, **how: read.append(text) or cut(text, **how))
    found = ours(["A book"] * len(PAIRS), PAIRS)
    assert read == ["A book", *PAIRS]
    for name, rows in found.items():
        assert rows == [one[name] for one in expected]
    read.clear()
    ours(["A book", "A book", "x", "A book"])
    assert read == ["A book", "x", "A book"]


def test_one_text_as_tensors_is_a_batch_of_one(ours, theirs):
    found, expected = (one("the man", return_tensors="pt") for one in (ours, theirs))
    assert found.input_ids.tolist() == expected.input_ids.tolist()
    assert found.to("cpu")["attention_mask"].shape == (1, 4)
    with pytest.raises(AttributeError, match="no column 'labels'"):
        found.labels  # noqa: B018


def test_ids_and_pieces_both_ways(ours, theirs):
    import torch

    rows = ours(TEXTS, padding=True)["input_ids"]
    for given in (rows, np.array(rows), torch.tensor(rows)):
        assert ours.batch_decode(given) == [ours.decode(row) for row in rows]
        assert ours.convert_ids_to_tokens(given[0]) == theirs.convert_ids_to_tokens(rows[0])
    assert ours.batch_decode([rows[1]], skip_special_tokens=True) == theirs.batch_decode(
        [rows[1]], skip_special_tokens=True
    )
    assert ours.convert_ids_to_tokens(rows[0], skip_special_tokens=True) == theirs.convert_ids_to_tokens(
        rows[0], skip_special_tokens=True
    )
    pieces = ["the", "##ing", "no-such-piece"]
    assert ours.convert_tokens_to_ids(pieces) == theirs.convert_tokens_to_ids(pieces)
    assert ours.convert_tokens_to_ids("the") == theirs.convert_tokens_to_ids("the")
    assert ours.convert_ids_to_tokens(101) == "[CLS]"
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.model_max_length == theirs.model_max_length
    with pytest.raises(InputError, match="id 99999999 is not in the vocabulary"):
        ours.convert_ids_to_tokens([99999999])


def test_what_contradicts_itself_is_refused(ours, tmp_path):
    with pytest.raises(InputError, match="pair and text_pair are the same thing"):
        ours("a", "b", text_pair="b")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    bare = load_tokenizer(tmp_path / "vocab.txt")
    assert bare.model_max_length is None
    with pytest.raises(InputError, match="truncation=True needs max_length"):
        bare("the", truncation=True)
    with pytest.raises(InputError, match="padding='max_length' needs max_length"):
        bare("the", padding="max_length")


def test_torch_is_loaded_only_for_tensors(minilm_folder):
    code = (
        "import sys; from bertsmith.tokenizer import load_tokenizer; tokenizer = load_tokenizer(sys.argv[1]);"
        "tokenizer(['a', 'b c'], truncation=True, padding=True, return_tensors='np');"
        "assert 'torch' not in sys.modules; tokenizer('a', return_tensors='pt'); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(minilm_folder)], check=True)
