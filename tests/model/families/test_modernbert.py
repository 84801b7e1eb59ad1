"""ModernBERT: rotary positions, windows, GeGLU, both spellings of its `config.json`."""

import json
from functools import partial

import pytest
import torch
import transformers
from against_transformers import HEADS, check, random_model

from bertsmith import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.interop.onnx import export_onnx
from bertsmith.model import BertConfig, ModelConfig, ModelForQuestionAnswering, extend_positions, load_any
from bertsmith.model.families.modernbert import ModernBertConfig

SHAPE = {
    "vocab_size": 90,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "pad_token_id": 0,
}
THEIRS = {**SHAPE, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
make = partial(random_model, ModernBertConfig, {**SHAPE, "local_attention": 16})


@pytest.mark.parametrize("suffix", HEADS)
def test_it_is_the_one_of_transformers(suffix, tmp_path):
    labels = {} if suffix == "ForQuestionAnswering" else {"num_labels": 3}
    config = transformers.ModernBertConfig(**THEIRS, **labels, local_attention=24)
    check(config, suffix, tmp_path)


@pytest.mark.parametrize("suffix", ["Model", "ForSequenceClassification"])
def test_long_texts_and_every_switch_of_the_configuration(suffix, tmp_path):
    switches = {"classifier_pooling": "mean", "classifier_bias": True, "classifier_activation": "relu"}
    biases = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
    config = transformers.ModernBertConfig(**THEIRS, **switches, **biases, hidden_activation="relu", num_labels=2)
    # 有的 AVX-512 处理器上，torch 融合注意力的反向在长文本的窗口里差千分之二（对照 float64）：参照一方逐步地算
    check(config, suffix, tmp_path, lengths=[2048, 5], attention="eager")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "changes"),
    [
        ("Model", {}),
        ("ForMaskedLM", {}),
        ("ForSequenceClassification", {}),
        ("ForSequenceClassification", {"classifier_pooling": "mean"}),
    ],
)
def test_it_is_exported(suffix, changes, tmp_path):
    make(suffix, **changes).save_pretrained(tmp_path / "model")
    assert export_onnx(tmp_path / "model", tmp_path / "onnx") < 1e-4


@torch.no_grad()
def test_it_reads_as_far_as_it_is_told_to(tmp_path):
    model = make(max_position_embeddings=20)
    with pytest.raises(InputError, match="21 tokens, but the model has 20 positions"):
        model(RaggedBatch.from_sequences([[5] * 21]))
    extend_positions(model, 100)
    model.save_pretrained(tmp_path)
    again = load_any(tmp_path).eval()
    batch = RaggedBatch.from_sequences([[5, 6, 7] * 30])
    assert again(batch).equal(model(batch))


def save_config(folder, **values):
    shape = {**SHAPE, "hidden_activation": "gelu", "model_type": "modernbert"}
    (folder / "config.json").write_text(json.dumps({**shape, **values}))


def test_both_spellings_of_the_layers_are_read(tmp_path):
    kinds = ["full_attention", "sliding_attention"] * 2
    angles = {"full_attention": {"rope_type": "default", "rope_theta": 5.0}, "sliding_attention": {"rope_theta": 7.0}}
    save_config(tmp_path, layer_types=kinds, rope_parameters=angles)
    newer = ModelConfig.load(tmp_path)
    save_config(tmp_path, global_attn_every_n_layers=2, global_rope_theta=5.0, local_rope_theta=7.0)
    assert ModelConfig.load(tmp_path) == newer
    assert [newer.reads_whole_text(layer) for layer in range(4)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_types": ["sliding_attention"] * 4}, r"layers \[\] of 4 read the whole text"),
        ({"layer_types": 3}, "layer_types or rope_parameters cannot be read"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'yarn'.*only 'default'"),
        ({"rope_parameters": [1]}, "layer_types or rope_parameters cannot be read"),
        ({"decoder_bias": False}, "decoder_bias is False"),
    ],
)
def test_another_network_is_refused(values, message, tmp_path):
    save_config(tmp_path, **values)
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.load(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"classifier_pooling": "max"}, "classifier_pooling 'max' is unknown"),
        ({"classifier_activation": "swish"}, "classifier_activation 'swish' is unknown"),
        ({"local_attention": 0}, "local_attention is 0"),
        ({"local_attention": 1}, "local_attention is 1; give at least 2"),
        ({"local_attention": 64.5}, "local_attention is 64.5"),
        ({"global_attn_every_n_layers": 1.5}, "global_attn_every_n_layers is 1.5"),
        ({"global_rope_theta": float("inf")}, "global_rope_theta is inf"),
        ({"num_attention_heads": 64}, "cannot be turned in pairs"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        ModernBertConfig(**{**SHAPE, **values})


def test_a_classifier_of_two_classes_is_no_answerer(tmp_path):
    """Their tensors have the same names and shapes."""
    make("ForSequenceClassification", id2label={0: "a", 1: "b"}).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="holds a ModernBertForSequenceClassification, not a .*QuestionAnswering"):
        ModelForQuestionAnswering.from_pretrained(tmp_path)


def test_an_answerer_has_the_dropout_of_its_states_where_it_has_none_of_its_own():
    model = make("ForQuestionAnswering", hidden_dropout_prob=0.3, classifier_dropout=None)
    assert model.spans.transform.dropout.probability == 0.3


def test_fresh_weights_read_farther_than_they_learn():
    config = ModernBertConfig.named("mini", vocab_size=100).trained_on(128)
    assert (config.position_limit, config.classifier_pooling) == (512, "mean")
    # 位置表只学到这么长：表的家族不能读得更远
    assert BertConfig.named("mini", vocab_size=100).trained_on(128).position_limit == 128
