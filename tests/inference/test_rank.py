import numpy as np
import pytest
import torch

from bertsmith.errors import ConfigError, InputError
from bertsmith.inference.classify import Rank, RankSettings
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.task_file import write_task_file
from bertsmith.model import BertConfig, BertForSequenceClassification
from bertsmith.tokenizer import WordPieceTokenizer

CPU = InferenceConfig("cpu", "float32")
TEXTS = ["the man eats bread .", "a woman reads", "bread", "the book ! " * 20, "a man reads a book"]


def save_ranker(start, folder, **changes):
    torch.manual_seed(1)
    # large random weights tell texts apart; small ones say much the same of all
    changes = {"id2label": {0: "relevance"}, "problem_type": None, "initializer_range": 0.2} | changes
    BertForSequenceClassification(BertConfig.load(start).changed(**changes)).save_pretrained(folder)
    WordPieceTokenizer.load(start).save(folder)
    return folder


@pytest.fixture
def folder(tiny_model, tmp_path):
    return save_ranker(tiny_model, tmp_path / "ranker")


@pytest.fixture
def rank(folder):
    return Rank(BertForSequenceClassification.from_pretrained(folder), WordPieceTokenizer.load(folder), CPU)


def test_our_own_folder_says_in_its_task_how_it_scores(tmp_path):
    """An adapter's folder has no other place, and a prompt beside the encoder of a `solve` may be for vectors."""
    values = {"task": "rank", "max_length": 9, "prompt": "the book ", "activation": "Identity"}
    write_task_file(tmp_path, values)
    (tmp_path / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    )
    assert Rank.settings_in(tmp_path) == RankSettings(**values)


def test_the_best_comes_first_with_its_place_and_text(rank):
    ranked = rank("who eats bread ?", TEXTS)
    scores = rank.scores(["who eats bread ?"] * len(TEXTS), TEXTS)
    assert [row.index for row in ranked] == np.argsort(-scores, kind="stable").tolist()
    assert all(row.text == TEXTS[row.index] and 0 < row.score < 1 for row in ranked)
    assert [row.score for row in ranked] == pytest.approx([scores[row.index] for row in ranked], abs=1e-6)


def test_equal_texts_stay_in_their_order(rank):
    assert [row.index for row in rank("the man", ["a book"] * 4)] == [0, 1, 2, 3]
    assert rank("the man", []) == []


def test_strings_for_lists_and_uneven_lists_are_refused(rank):
    with pytest.raises(InputError, match="not a single string"):
        rank.scores(["the man"], "eats")
    with pytest.raises(InputError, match="one query"):
        rank(["the man"], ["eats"])
    with pytest.raises(InputError, match="1 texts and 2 second texts"):
        rank.scores(["the man"], ["eats", "reads"])


@pytest.mark.parametrize(
    "changes", [{"id2label": {0: "no", 1: "yes"}}, {"id2label": {0: "score"}, "problem_type": "regression"}]
)
def test_outputs_that_are_no_relevance_are_refused(tiny_model, tmp_path, changes):
    with pytest.raises(ConfigError, match="a ranker has one output and no problem_type"):
        Rank.load(save_ranker(tiny_model, tmp_path / "other", **changes))
