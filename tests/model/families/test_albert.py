"""ALBERT: one narrow embedding, one block that runs L times; everything that changes a model knows that."""

import json
from functools import partial

import pytest
import torch
import transformers
from against_transformers import HEADS, check, random_model
from safetensors.torch import load_file, save_file

from bertsmith import RaggedBatch, load_pipeline
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.interop.onnx import export_onnx
from bertsmith.kernels.layers import Linear
from bertsmith.model import (
    ModelConfig,
    extend_positions,
    freeze,
    keep_layers,
    layer_numbers,
    load_any,
    prune_heads,
    resize_vocabulary,
)
from bertsmith.model.families.albert import AlbertConfig
from bertsmith.model.peft import AdapterSettings, add_adapter, merge_adapter
from bertsmith.model.sizes import MatmulWeights, ParameterCounts
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import pretrain
from typed_command import typed

SHAPE = {
    "vocab_size": 90,
    "embedding_size": 24,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
BATCH = RaggedBatch.from_sequences([[2, 7, 30, 3], [2, 3], [2, 5, 6, 7, 39, 9, 3]])
make = partial(random_model, AlbertConfig, SHAPE)


@torch.no_grad()
def logits_of(model):
    return next(iter(model.published(BATCH).values()))


def assert_the_reference_agrees(model, folder):
    """What is saved gives the same logits in `transformers`, and the same model here."""
    model.save_pretrained(folder)
    reference, report = transformers.AlbertForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        sequences = BATCH.input_ids.split(BATCH.lengths)
        expected = torch.cat([reference.eval()(ids[None]).logits[0] for ids in sequences])
    torch.testing.assert_close(logits_of(model), expected, atol=1e-5, rtol=1e-5)
    again = load_any(folder).eval()
    assert again.config == model.config
    assert logits_of(again).equal(logits_of(model))


@pytest.mark.parametrize("suffix", [*HEADS, "ForPreTraining"])
def test_it_is_the_one_of_transformers(suffix, tmp_path):
    labels = {} if suffix in ("ForPreTraining", "ForQuestionAnswering") else {"num_labels": 3}
    check(transformers.AlbertConfig(**SHAPE, **labels), suffix, tmp_path, reads_segments=True)


def test_a_decoder_of_its_own_and_an_embedding_as_wide_as_the_states(tmp_path):
    assert_the_reference_agrees(make(tie_word_embeddings=False), tmp_path / "untied")
    assert_the_reference_agrees(make(embedding_size=64), tmp_path / "wide")


@torch.no_grad()
def test_every_layer_and_every_map_is_that_of_the_reference(tmp_path):
    model = make("Model")
    model.save_pretrained(tmp_path)
    reference = transformers.AlbertModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    output = model(BATCH, need_layers=True, need_maps=True)
    ids = BATCH.input_ids.split(BATCH.lengths)[2]
    expected = reference(ids[None], output_hidden_states=True, output_attentions=True)
    assert len(output.layers) == 4
    assert len(output.attentions) == 3
    for layer, states in zip(output.layers[1:], expected.hidden_states[1:], strict=True):
        torch.testing.assert_close(layer[-7:], states[0], atol=1e-5, rtol=1e-5)
    for maps, attention in zip(output.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(maps[2], attention[0], atol=1e-5, rtol=1e-5)


def test_the_layers_are_one_block_counted_saved_and_trained_once(tmp_path):
    with torch.device("meta"):
        base = transformers.AlbertModel(
            transformers.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072)
        )
    published = sum(parameter.numel() for parameter in base.parameters())
    config = AlbertConfig.named("base")
    counts = ParameterCounts.of(config)
    assert counts.total - counts.heads == published == 11_683_584
    block = 4 * 768**2 + 2 * 768 * 3072
    assert MatmulWeights.of(config).encoder == 12 * block + 128 * 768
    model = make()
    assert len(model.backbone.encoder.blocks) == 3
    assert len(set(model.backbone.encoder.blocks)) == 1
    model.save_pretrained(tmp_path)
    assert sum("albert_layers" in name for name in load_file(tmp_path / "model.safetensors")) == 16
    numbers = layer_numbers(model)
    assert numbers["backbone.embedding.projection.weight"] == 0
    assert numbers["backbone.encoder.block.output.weight"] == 3
    assert numbers["masked_lm.bias"] == 4


def test_it_is_changed_like_any_model(tmp_path):
    for name, change in {
        "layers": lambda model: keep_layers(model, 2),
        "pieces": lambda model: resize_vocabulary(model, 93, sources=[[7, 8], [], [9]]),
        "positions": lambda model: extend_positions(model, 600),
    }.items():
        model = make()
        change(model)
        assert_the_reference_agrees(model, tmp_path / name)
    deep, shallow = make(), make()
    keep_layers(shallow, 2)
    with torch.no_grad():
        expected = deep.backbone(BATCH, need_layers=True).layers[2]
    assert shallow.backbone(BATCH).hidden_states.equal(expected)


@torch.no_grad()
def test_heads_are_pruned_in_every_layer_or_in_none(tmp_path):
    model, silent = make(), make()
    silent.backbone.encoder.block.attention.output.weight[:, 16:32] = 0.0
    prune_heads(model, {layer: [1] for layer in range(3)})
    assert model.backbone.encoder.block.attention.num_heads == 3
    torch.testing.assert_close(logits_of(model), logits_of(silent), atol=1e-5, rtol=1e-5)
    model.save_pretrained(tmp_path)
    assert logits_of(load_any(tmp_path).eval()).equal(logits_of(model))
    with pytest.raises(ConfigError, match="prune the same"):
        prune_heads(model, {0: [2]})
    assert model.backbone.encoder.block.attention.num_heads == 3


def test_int8_adapters_and_frozen_layers():
    model = make()
    exact = logits_of(model)
    model.set_int8(True)
    assert sum(module.int8 for module in model.modules() if isinstance(module, Linear)) == 4
    assert 0 < (logits_of(model) - exact).abs().max() < 0.5 * exact.abs().max()
    model.set_int8(False)
    with pytest.raises(ConfigError, match="freeze layers 1: the layers share their weights"):
        freeze(model, embeddings=True, layers=1)
    freeze(model, embeddings=True, layers=3)
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())
    before = set(dict(model.named_parameters()))
    add_adapter(model, AdapterSettings("lora", 2))
    new = {name for name, parameter in model.named_parameters() if name not in before}
    assert new == {f"backbone.encoder.block.attention.qkv.adapter.{name}" for name in ("up", "down.weight")}
    assert logits_of(model).equal(exact)
    with torch.no_grad():
        model.get_parameter("backbone.encoder.block.attention.qkv.adapter.up").add_(0.1)
    adapted = logits_of(model)
    assert not torch.allclose(adapted, exact, atol=1e-3)
    merge_adapter(model)
    torch.testing.assert_close(logits_of(model), adapted, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["Model", pytest.param("ForPreTraining", marks=pytest.mark.slow)])
def test_it_is_exported_to_onnx(suffix, tmp_path):
    make(suffix, max_position_embeddings=24).save_pretrained(tmp_path / "model")
    assert export_onnx(tmp_path / "model", tmp_path / "model.onnx") < 1e-4
    if suffix == "ForPreTraining":
        import onnx

        names = [output.name for output in onnx.load(tmp_path / "model.onnx").graph.output]
        assert names == ["prediction_logits", "sop_logits"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_groups": 2}, "num_hidden_groups is 2; only 1"),
        ({"inner_group_num": 2}, "inner_group_num is 2; only 1"),
        ({"embedding_size": 0}, "embedding_size is 0; it must be a positive whole number"),
        ({"embedding_size": 32}, r"word_embeddings.weight has shape \[90, 24\], the model needs \[90, 32\]"),
        ({"pruned_heads": {"1": [0]}}, "the layers share their heads"),
        ({"hidden_act": "swish"}, "hidden_act 'swish' is unknown"),
    ],
)
def test_a_folder_of_another_network_is_refused_in_one_line(tmp_path, changes, message):
    make().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        load_any(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_half_a_bert_is_refused(tmp_path):
    make().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("encoder.albert_layer_groups.0.albert_layers", "encoder.layer"): value
        for name, value in tensors.items()
    }
    save_file(renamed, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="albert_layer_groups.* missing.*encoder.layer.0.* unexpected"):
        load_any(tmp_path)


def test_its_folder_says_what_it_is(tmp_path):
    model = make("ForSequenceClassification", classifier_dropout=None, hidden_dropout_prob=0.3)
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert (values["model_type"], values["classifier_dropout_prob"]) == ("albert", 0.3)
    assert ModelConfig.load(tmp_path) == model.config
    assert model.family.tokenizer == "unigram"
    with pytest.raises(InputError, match="sequence has 600 tokens"):
        model(RaggedBatch.from_sequences([[5] * 600]))


def test_it_is_pretrained_fine_tuned_and_used(village_small, tmp_path, capsys):
    corpus, tokenizer = village_small
    recipe = recipe_for("2/128", family="albert", sequence_length=32, batch_size=8, steps=2, precision="float32")
    assert recipe.objective == "mlm+sop"
    result = pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    assert {"mlm_loss", "sop_loss"} <= result.heldout.keys()
    model = tmp_path / "run" / "model"
    _, report = transformers.AlbertForPreTraining.from_pretrained(model, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert len(load_pipeline("fill-mask", model)("the [MASK] .")[0]) == 5
    assert load_pipeline("embed", model)(["a man", "a dog"]).shape == (2, 128)
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\n" + "the man eats .\tfood\nthe woman reads .\tbook\n" * 4, encoding="utf-8")
    words = f"finetune classify --model {model} --train {data} --dev {data} --out {tmp_path / 'tuned'} --epochs 1"
    typed(capsys, *words.split(), "--batch-size", "8", "--precision", "float32")
    assert {one.label for one in load_pipeline("classify", tmp_path / "tuned" / "model")(["the man ."])} <= {
        "food",
        "book",
    }
