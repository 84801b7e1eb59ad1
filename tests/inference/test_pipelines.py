import numpy as np
import pytest
import sentence_transformers
import torch
import transformers

from bertsmith.errors import ConfigError, InputError
from bertsmith.inference import load_pipeline
from bertsmith.inference.engine import packs_by_length
from bertsmith.model import BertForMaskedLM, BertForSequenceClassification
from bertsmith.tokenizer import WordPieceTokenizer

TEXTS = ["Hello, how are you?", "The man eats the bread.", "x", "A long story. " * 60, "Où est le café?", ""]


def test_fill_mask_equals_the_reference(tiny_model):
    ours = load_pipeline("fill-mask", tiny_model)("the man eats [MASK] .", top_k=7)
    reference = transformers.pipeline("fill-mask", str(tiny_model), top_k=7)("the man eats [MASK] .")
    assert len(ours) == 1
    assert [c.piece for c in ours[0]] == [row["token_str"] for row in reference]
    assert [c.probability for c in ours[0]] == pytest.approx([row["score"] for row in reference], abs=1e-5)


def test_a_masked_lm_folder_fills_masks_too(tiny_model, tmp_path):
    expected = load_pipeline("fill-mask", tiny_model)("the man eats [MASK] .")
    BertForMaskedLM.from_pretrained(tiny_model).save_pretrained(tmp_path)
    WordPieceTokenizer.load(tiny_model).save(tmp_path)
    got = load_pipeline("fill-mask", tmp_path)("the man eats [MASK] .")
    assert [c.piece for c in got[0]] == [c.piece for c in expected[0]]
    assert [c.probability for c in got[0]] == pytest.approx([c.probability for c in expected[0]], abs=1e-6)


@pytest.mark.parametrize(
    ("problem_type", "pipeline"), [("regression", "regress"), ("multi_label_classification", "multilabel")]
)
def test_outputs_that_are_no_softmax_are_not_read_as_one(tiny_model, tmp_path, problem_type, pipeline):
    changes = {"id2label": {0: "score"}, "problem_type": problem_type}
    BertForSequenceClassification.from_pretrained(tiny_model, new_heads=True, **changes).save_pretrained(tmp_path)
    WordPieceTokenizer.load(tiny_model).save(tmp_path)
    with pytest.raises(ConfigError, match=f"the model is for the pipeline '{pipeline}', not 'classify'"):
        load_pipeline("classify", tmp_path)


def test_several_masks_are_filled_from_left_to_right(tiny_model):
    pipeline = load_pipeline("fill-mask", tiny_model)
    filled = pipeline("the [MASK] eats [MASK] .", top_k=2)
    assert [len(candidates) for candidates in filled] == [2, 2]


def test_fill_mask_refuses_what_it_cannot_do(tiny_model):
    pipeline = load_pipeline("fill-mask", tiny_model)
    with pytest.raises(InputError, match=r"no \[MASK\]"):
        pipeline("the man")
    with pytest.raises(InputError, match="top_k 0"):
        pipeline("the [MASK]", top_k=0)


def test_embeddings_equal_sentence_transformers(minilm_folder):
    pipeline = load_pipeline("embed", minilm_folder)
    pipeline.engine.model.set_compute_dtype(torch.float32)
    reference = sentence_transformers.SentenceTransformer(str(minilm_folder), device="cpu")
    reference.max_seq_length = 512
    vectors = pipeline(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, reference.encode(TEXTS, normalize_embeddings=True), atol=1e-5)


def test_company_does_not_change_an_embedding(minilm_folder):
    pipeline = load_pipeline("embed", minilm_folder)
    pipeline.engine.model.set_compute_dtype(torch.float32)
    alone = pipeline(["The man eats the bread."])
    among = pipeline([*("word " * n for n in range(1, 60)), "The man eats the bread."])
    np.testing.assert_allclose(alone[0], among[-1], atol=1e-5)


def test_a_single_string_is_not_a_list(minilm_folder):
    with pytest.raises(InputError, match="not a single string"):
        load_pipeline("embed", minilm_folder)("the man")


def test_nothing_gives_nothing(minilm_folder):
    assert load_pipeline("embed", minilm_folder)([]).shape == (0, 384)


def test_an_unknown_pipeline_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="pipeline 'poetry' is unknown"):
        load_pipeline("poetry", tmp_path)


def test_packs_hold_every_sequence_once_and_keep_the_budget():
    lengths = np.random.default_rng(0).integers(1, 300, 500).tolist()
    packs = list(packs_by_length(lengths, 1000))
    assert sorted(index for pack in packs for index in pack) == list(range(500))
    assert all(sum(lengths[index] for index in pack) <= 1000 for pack in packs)
    assert list(packs_by_length([5000, 1], 100)) == [[1], [0]]
