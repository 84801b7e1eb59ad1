"""A tokenizer called as the field calls one gives what `transformers` gives, through the same rows as ever."""

import subprocess
import sys

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
]


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("options", CALLS, ids=lambda options: " ".join(options) or "nothing")
def test_the_fields_words_give_the_fields_rows(ours, theirs, options, paired):
    columns = (TEXTS, PAIRS) if paired else (TEXTS,)
    found, expected = ours(*columns, **options), theirs(*columns, **options)
    assert expected.keys() <= found.keys()
    for name, rows in expected.items():
        assert type(found[name]) is type(rows)
        assert [list(row) for row in found[name]] == [list(row) for row in rows], name


def test_one_text_as_tensors_is_a_batch_of_one(ours, theirs):
    found, expected = (one("the man", return_tensors="pt") for one in (ours, theirs))
    assert found.input_ids.tolist() == expected.input_ids.tolist()
    assert found.to("cpu")["attention_mask"].shape == (1, 4)
    with pytest.raises(AttributeError, match="no column 'labels'"):
        found.labels  # noqa: B018


def test_a_limit_that_nobody_named_is_refused(ours, theirs, tmp_path):
    assert ours.model_max_length == theirs.model_max_length
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
