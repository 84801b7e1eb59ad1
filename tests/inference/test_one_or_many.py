"""One in, one out; a list in, a list out: for every pipeline."""

import numpy as np
import pytest
import torch

from bertsmith.inference import load_pipeline
from bertsmith.inference.pipeline import all_pipelines, one_or_many
from bertsmith.inference.task_file import write_task_file
from bertsmith.model import BertConfig
from bertsmith.model import architectures as models
from bertsmith.tokenizer import WordPieceTokenizer

TEXT, OTHER, MASKED = "the man eats bread .", "the woman reads a book !", "the man [MASK] bread ."
LABELS = {0: "O", 1: "B-X"}
CASES = {
    "answer": (models.ModelForQuestionAnswering, {}, (TEXT, OTHER)),
    "choose": (models.ModelForMultipleChoice, {}, (TEXT, [OTHER, TEXT])),
    "classify": (models.ModelForSequenceClassification, {"id2label": LABELS}, (TEXT, OTHER)),
    "multilabel": (
        models.ModelForSequenceClassification,
        {"id2label": LABELS, "problem_type": "multi_label_classification"},
        (TEXT,),
    ),
    "regress": (
        models.ModelForSequenceClassification,
        {"id2label": {0: "x"}, "problem_type": "regression"},
        (TEXT, OTHER),
    ),
    "embed": (models.ModelForMaskedLM, {}, (TEXT,)),
    "tag": (models.ModelForTokenClassification, {"id2label": LABELS}, (TEXT,)),
    "fill-mask": (models.ModelForMaskedLM, {}, (MASKED,)),
    "generate": (models.ModelForMaskedLM, {"is_decoder": True}, (TEXT,)),
    "next-sentence": (models.ModelForPreTraining, {}, (TEXT, OTHER)),
}


def test_every_pipeline_is_tried():
    """`rank` has one query and a list by its nature; `features` is `tag`."""
    # 别的测试会登记自己的管道（grade）
    assert {*CASES, "rank", "features"} == {*all_pipelines()} - {"grade"}


@pytest.fixture
def folder(request, tmp_path):
    model, changes, _ = CASES[request.param]
    torch.manual_seed(0)
    tokenizer = WordPieceTokenizer.train([TEXT, OTHER] * 3, vocab_size=200)
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=32, **changes)
    model(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    return request.param, tmp_path


@pytest.mark.parametrize("folder", CASES, indirect=True)
def test_one_gives_what_a_list_of_it_gives(folder):
    name, path = folder
    pipeline, given = load_pipeline(name, path), CASES[name][2]
    one, many = pipeline(*given), pipeline(*([each] for each in given))
    assert len(many) == 1
    if isinstance(one, np.ndarray | float):
        assert np.ndim(one) == np.ndim(many) - 1
        np.testing.assert_array_equal(one, many[0])
    else:
        assert one == many[0]
    assert len(pipeline(*([] for _ in given))) == 0


def test_one_text_may_be_given_by_name():
    class Echo:
        @one_or_many
        def __call__(self, texts, pairs=None, *, option=0):
            return [(text, pair, option) for text, pair in zip(texts, pairs or texts, strict=True)]

    assert Echo()(texts="a", pairs="b", option=1) == ("a", "b", 1)
    assert Echo()("a") == ("a", "a", 0)
    assert Echo()(["a"], ["b"]) == [("a", "b", 0)]


def test_a_ranker_takes_one_text_and_a_task_file_keeps_its_length(tmp_path):
    torch.manual_seed(0)
    tokenizer = WordPieceTokenizer.train([TEXT, OTHER] * 3, vocab_size=200)
    config = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, id2label={0: "x"})
    models.ModelForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path, model_max_length=16)
    write_task_file(tmp_path, {"task": "rank", "max_length": 24})
    rank = load_pipeline("rank", tmp_path)
    assert rank(TEXT, OTHER) == rank(TEXT, [OTHER])[0]
    assert rank.max_length == 24
