import itertools

import pytest
import torch

from bertsmith.inference.answer import WindowCutter
from bertsmith.tokenizer import WordPieceTokenizer

WORDS = ["the", "man", "eats", "bread", "CAFÉ!", "books,", "north"]


@pytest.fixture(scope="module")
def tokenizer():
    pieces = ["the", "man", "eats", "bread", "cafe", "book", "##s", "north", "!", ","]
    return WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])


def draw_context(seed, size):
    generator = torch.Generator().manual_seed(seed)
    return "  ".join(WORDS[i] for i in torch.randint(0, len(WORDS), (size,), generator=generator).tolist())


@pytest.mark.parametrize("stride", [0, 3, 7])
@pytest.mark.parametrize("size", [1, 13, 14, 15, 16, 40])
def test_windows_are_those_of_the_tokenizer(tokenizer, stride, size):
    context = draw_context(3, size)
    question = WindowCutter(tokenizer, 20, stride).cut("the man", context)
    rows = tokenizer(
        ["the man"], [context], max_length=20, truncation="only_second", stride=stride, return_overflowing=True
    )
    windows = list(question.windows())
    assert [window.input_ids for window in windows] == rows["input_ids"]
    assert [window.token_type_ids for window in windows] == rows["token_type_ids"]
    for window, offsets in zip(windows, rows["offsets"], strict=True):
        places = range(window.first, window.first + window.size)
        spans = [(question.passage.starts[place], question.passage.ends[place]) for place in places]
        assert spans == [tuple(span) for span in offsets[window.head : -1]]


@pytest.mark.parametrize("max_length", [7, 8, 9, 20])
def test_windows_share_half_at_most_and_leave_no_word_out(tokenizer, max_length):
    question = WindowCutter(tokenizer, max_length, 128).cut("the man", draw_context(4, 90))
    windows = list(question.windows())
    assert all(len(window.input_ids) <= max_length for window in windows)
    for one, two in itertools.pairwise(windows):
        assert one.size == max_length - 5
        assert one.first + one.size - two.first == one.size // 2
    assert windows[-1].first + windows[-1].size == len(question.passage.ids)
