"""ELECTRA: discriminator and generator, with heads of their own and without a pooler."""

import json
from functools import partial

import pytest
import torch
import transformers
from against_transformers import HEADS, check, random_model
from safetensors.torch import load_file

from bertsmith import RaggedBatch, load_pipeline
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.interop.huggingface import export_huggingface
from bertsmith.interop.onnx import export_onnx
from bertsmith.model import (
    BertConfig,
    ModelForPreTraining,
    ModelForReplacedTokenDetection,
    extend_positions,
    keep_layers,
    layer_numbers,
    load_any,
    prune_heads,
    resize_vocabulary,
)
from bertsmith.model.families.electra import ElectraConfig
from bertsmith.model.peft import AdapterSettings, add_adapter
from bertsmith.model.sizes import ParameterCounts
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import pretrain
from typed_command import typed

SHAPE = {
    "vocab_size": 90,
    "embedding_size": 24,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
BATCH = RaggedBatch.from_sequences([[2, 7, 30, 3], [2, 3], [2, 5, 6, 7, 39, 9, 3]])
make = partial(random_model, ElectraConfig, SHAPE)


@torch.no_grad()
def logits_of(model):
    return next(iter(model.published(BATCH).values()))


@pytest.mark.parametrize("suffix", [*HEADS, "ForPreTraining"])
@pytest.mark.parametrize("embedding_size", [24, 64])
def test_it_is_the_one_of_transformers(suffix, embedding_size, tmp_path):
    labels = {} if suffix == "ForQuestionAnswering" else {"num_labels": 3}
    config = transformers.ElectraConfig(**{**SHAPE, "embedding_size": embedding_size}, **labels)
    check(config, suffix, tmp_path, reads_segments=True)


def test_a_generator_with_another_activation_and_a_decoder_of_its_own(tmp_path):
    config = transformers.ElectraConfig(**SHAPE, hidden_act="relu", tie_word_embeddings=False)
    check(config, "ForMaskedLM", tmp_path, reads_segments=True, lengths=[3, 20])


@pytest.mark.parametrize(("size", "embedding_size"), [("12/256", 128), ("base", 768)])
def test_its_sizes_are_the_published_ones(size, embedding_size):
    config = ElectraConfig.named(size)
    assert config.embedding_size == embedding_size
    with torch.device("meta"):
        shape = {name: getattr(config, name) for name in SHAPE}
        reference = transformers.ElectraModel(transformers.ElectraConfig(**shape))
    counts = ParameterCounts.of(config)
    assert counts.total - counts.heads == sum(parameter.numel() for parameter in reference.parameters())
    assert counts.pooler == 0


@torch.no_grad()
def test_it_is_changed_like_any_model(tmp_path):
    for name, change in {
        "layers": lambda model: keep_layers(model, 1),
        "pieces": lambda model: resize_vocabulary(model, 93, sources=[[7, 8], [], [9]]),
        "positions": lambda model: extend_positions(model, 600),
        "heads": lambda model: prune_heads(model, {1: [0, 2]}),
    }.items():
        model = make()
        change(model)
        model.save_pretrained(tmp_path / name)
        again = load_any(tmp_path / name).eval()
        assert again.config == model.config
        assert logits_of(again).equal(logits_of(model))
        if name != "heads":  # pruned models are not built there any more
            reference = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / name).eval()
            expected = torch.cat([reference(ids[None]).logits[0] for ids in BATCH.input_ids.split(BATCH.lengths)])
            torch.testing.assert_close(logits_of(model), expected, atol=1e-5, rtol=1e-5)


def test_there_is_no_pooler_to_adapt_or_to_miss(tmp_path):
    model = make("ForSequenceClassification")
    assert layer_numbers(model)["backbone.embedding.projection.weight"] == 0
    expected = logits_of(model)
    add_adapter(model, AdapterSettings("bottleneck", 4))
    torch.testing.assert_close(logits_of(model), expected)
    make("Model").save_pretrained(tmp_path / "model")
    export_huggingface(tmp_path / "model", tmp_path / "copy")
    assert load_any(tmp_path / "copy").pooler is None
    with pytest.raises(InputError, match="without a pooler; read `cls`"):
        _ = load_any(tmp_path / "copy")(BATCH).pooled


def test_the_labels_of_a_folder_that_names_none_are_counted(tmp_path):
    for suffix in ("ForSequenceClassification", "ForTokenClassification"):
        make(suffix).save_pretrained(tmp_path / suffix)
        values = json.loads((tmp_path / suffix / "config.json").read_text())
        for name in ("id2label", "label2id"):
            del values[name]
        (tmp_path / suffix / "config.json").write_text(json.dumps(values))
        assert list(load_any(tmp_path / suffix).config.id2label.values()) == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["Model", pytest.param("ForPreTraining", marks=pytest.mark.slow)])
def test_it_is_exported_to_onnx(suffix, tmp_path):
    make(suffix, max_position_embeddings=24).save_pretrained(tmp_path / "model")
    assert export_onnx(tmp_path / "model", tmp_path / "model.onnx") < 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"summary_type": "last"}, "summary_type is 'last'; only 'first'"),
        ({"summary_use_proj": False}, "summary_use_proj is False; only True"),
        ({"embedding_size": 64}, "the model needs|unexpected"),
        ({"model_type": "bert"}, "architecture 'ElectraForPreTraining'; a model of type 'bert' is a Bert"),
    ],
)
def test_a_folder_of_another_network_is_refused_in_one_line(tmp_path, changes, message):
    make("ForPreTraining").save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **changes}))
    with pytest.raises((CheckpointError, ConfigError), match=message) as caught:
        load_any(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_it_cannot_do_is_said_in_one_line(tmp_path):
    make("ForPreTraining").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="does not fit ElectraForMaskedLM.*load the folder as what it is"):
        load_pipeline("fill-mask", tmp_path)
    with pytest.raises(ConfigError, match="family 'electra' has no next_sentence head, which a ModelForPreTraining"):
        ModelForPreTraining(ElectraConfig(**SHAPE))
    with pytest.raises(ConfigError, match="no replaced_tokens head"):
        ModelForReplacedTokenDetection(BertConfig.named("1/64", vocab_size=20))


def test_mlm_trains_a_generator_alone(village_small, tmp_path):
    corpus, tokenizer = village_small
    recipe = recipe_for(
        *("2/64",),
        family="electra",
        objective="mlm",
        sequence_length=32,
        batch_size=8,
        steps=2,
    )
    result = pretrain(tmp_path, corpus, tokenizer, recipe)
    assert "mlm_loss" in result.heldout
    model = tmp_path / "model"
    _, report = transformers.ElectraForMaskedLM.from_pretrained(model, output_loading_info=True)
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert "generator_predictions.dense.weight" in load_file(model / "model.safetensors")
    assert len(load_pipeline("fill-mask", model)("the [MASK] .")[0]) == 5


def test_the_discriminator_is_fine_tuned_and_used(village_small, tmp_path, capsys):
    corpus, tokenizer = village_small
    recipe = recipe_for("2/64", family="electra", sequence_length=32, batch_size=8, steps=2, precision="float32")
    assert recipe.objective == "rtd"
    pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    model = tmp_path / "run" / "model"
    assert load_pipeline("embed", model)(["a man", "a dog"]).shape == (2, 64)
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\n" + "the man eats .\tfood\nthe woman reads .\tbook\n" * 4, encoding="utf-8")
    words = f"finetune classify --model {model} --train {data} --dev {data} --out {tmp_path / 'tuned'} --epochs 1"
    typed(capsys, *words.split(), "--batch-size", "8", "--precision", "float32")
    (found,) = load_pipeline("classify", tmp_path / "tuned" / "model")(["the man eats ."])
    assert found.label in ("food", "book")
    _, report = transformers.ElectraForSequenceClassification.from_pretrained(
        tmp_path / "tuned" / "model", output_loading_info=True
    )
    assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
