import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.model import (
    BertConfig,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    ModelConfig,
    family_named,
)
from bertsmith.model.family import families
from bertsmith.model.heads import classifier_dropout


@pytest.mark.parametrize(
    ("size", "shape"), [("tiny", (2, 128, 2, 512)), ("mini", (4, 256, 4, 1024)), ("base", (12, 768, 12, 3072))]
)
def test_named_sizes_are_the_published_ones(size, shape):
    config = BertConfig.named(size)
    assert shape == (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
    )


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": 100, "num_attention_heads": 3},
        {"vocab_size": 0},
        {"num_hidden_layers": -1},
        {"hidden_act": "swish"},
        {"hidden_dropout_prob": 1.0},
        {"vocab_size": "many"},
        {"type_vocab_size": True},
        {"pad_token_id": "x"},
        {"tie_word_embeddings": "false"},
        {"id2label": {0: "good", 1: "bad", 2: "good"}},
    ],
)
def test_impossible_shapes_are_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        BertConfig(**values)


@pytest.mark.parametrize("name", families())
def test_a_classifier_without_a_dropout_of_its_own_is_written_as_the_reference_reads_it(name, tmp_path):
    """Some families of `transformers` refuse a null."""
    config = family_named(name).config.named("1/64", hidden_dropout_prob=0.3, classifier_dropout=None)
    config.save(tmp_path / "config.json", architecture=f"{config.family.name}Model")
    transformers.AutoConfig.from_pretrained(tmp_path)
    assert ModelConfig.load(tmp_path) == config
    assert classifier_dropout(config).probability == 0.3


@pytest.mark.parametrize("size", ["huge", "2/100", "0/128", "2x128", ""])
def test_unknown_sizes_are_refused(size):
    with pytest.raises(ConfigError, match="size"):
        BertConfig.named(size)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "no JSON object"),
        (json.dumps({"model_type": "gpt2"}), "'gpt2'"),
        (json.dumps({"model_type": "bert", "position_embedding_type": "relative_key"}), "absolute"),
    ],
)
def test_foreign_configurations_are_refused(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        BertConfig.load(tmp_path)


@pytest.mark.parametrize("name", ["vocab_size", "num_hidden_layers", "intermediate_size"])
def test_a_shape_that_is_null_is_not_guessed(tmp_path, name):
    BertConfig.named("1/64").save(tmp_path / "config.json", architecture="BertModel")
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {name: None}))
    with pytest.raises(CheckpointError, match=f"has no {name}; the shape"):
        BertConfig.load(tmp_path)


def test_two_classes_of_one_name_are_named(tmp_path):
    BertConfig.named("1/64", id2label={0: "x", 1: "y"}).save(tmp_path / "config.json", architecture="BertModel")
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"1": "y"', '"1": "x"'))
    with pytest.raises(ConfigError, match=r"config\.json: id2label has 'x' more than once"):
        BertConfig.load(tmp_path)


def test_initial_weights_are_a_truncated_normal():
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig.named("mini", vocab_size=2000))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            assert parameter.abs().max() <= 0.04
            # a normal cut at two deviations keeps 0.880 of its deviation
            assert parameter.std().item() == pytest.approx(0.02 * 0.8796, rel=0.1)
    zeros = [p for n, p in model.named_parameters() if p.dim() == 1 and not n.endswith("norm.weight")]
    assert all(not p.any() for p in zeros)


def save_tiny(folder):
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig.named("1/64", vocab_size=40, max_position_embeddings=16))
    model.save_pretrained(folder)
    return model


def test_the_encoder_loads_from_folders_with_and_without_prefix_and_heads(tmp_path):
    model = save_tiny(tmp_path / "a")
    encoder = BertModel.from_pretrained(tmp_path / "a")
    encoder.save_pretrained(tmp_path / "b")
    assert not any(name.startswith("bert.") for name in load_file(tmp_path / "b" / "model.safetensors"))
    again = BertModel.from_pretrained(tmp_path / "b")
    for (name, value), other in zip(model.backbone.state_dict().items(), again.state_dict().values(), strict=True):
        assert value.equal(other), name
    classifier = BertForSequenceClassification.from_pretrained(
        tmp_path / "b", new_heads=True, id2label={0: "a", 1: "b"}
    )
    assert classifier.backbone.pooler.weight.equal(model.backbone.pooler.weight)


def test_early_spellings_and_a_missing_pooler(tmp_path):
    """`gamma` and `beta`, as in the first published checkpoints; no pooler, as in folders of masked LM alone."""
    model = save_tiny(tmp_path)
    path = tmp_path / "model.safetensors"
    early = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in load_file(path).items()
    }
    save_file(early, path, metadata={"format": "pt"})
    loaded = BertModel.from_pretrained(tmp_path)
    assert loaded.embedding.norm.weight.equal(model.backbone.embedding.norm.weight)
    save_file({n: v for n, v in early.items() if "pooler" not in n}, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="pooler.dense.weight, .*pooler.dense.bias missing; .*need_pooler=False"):
        BertModel.from_pretrained(tmp_path)
    assert BertModel.from_pretrained(tmp_path, need_pooler=False).embedding.word.weight.equal(
        model.backbone.embedding.word.weight
    )


@pytest.mark.parametrize("change", [{"hidden_dropout_prob": "0.1"}, {"id2label": ["a"]}, {"id2label": {"3": "a"}}])
def test_values_of_the_wrong_type_are_refused(tmp_path, change):
    save_tiny(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=r"config\.json: a value has the wrong type"):
        BertConfig.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", None])
def test_damaged_weights_are_named(tmp_path, content):
    save_tiny(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged"):
        BertModel.from_pretrained(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
    save_tiny(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="safetensors weights only"):
        BertModel.from_pretrained(tmp_path)
