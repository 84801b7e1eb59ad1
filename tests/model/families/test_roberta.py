"""RoBERTa and its two variants: positions after the padding's, one segment, heads of their own."""

import json
from functools import partial

import pytest
import torch
import transformers
from against_transformers import HEADS, check, random_model

from bertsmith import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.interop.onnx import export_onnx
from bertsmith.model import ModelForPreTraining, extend_positions, load_any
from bertsmith.model.families.roberta import RobertaConfig

SHAPE = {
    "vocab_size": 90,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
}
make = partial(random_model, RobertaConfig, SHAPE)


@pytest.mark.parametrize("suffix", HEADS)
def test_it_is_the_one_of_transformers(suffix, tmp_path):
    labels = {} if suffix == "ForQuestionAnswering" else {"num_labels": 3}
    config = transformers.RobertaConfig(**SHAPE, **labels)
    check(config, suffix, tmp_path)


@pytest.mark.parametrize("name", ["XLMRoberta", "Camembert"])
@pytest.mark.parametrize("suffix", ["ForMaskedLM", "ForSequenceClassification"])
def test_the_variants_differ_in_their_names_alone(name, suffix, tmp_path):
    config = getattr(transformers, f"{name}Config")(**SHAPE)
    check(config, suffix, tmp_path, lengths=[1, 9, 40, 3])


@torch.no_grad()
def test_segments_are_not_read():
    model, ids = make(), [[0, 5, 6, 2, 2, 7, 2]]
    batch = RaggedBatch.from_sequences(ids, [[0, 0, 0, 0, 1, 1, 1]])
    assert model(batch).equal(model(RaggedBatch.from_sequences(ids)))
    assert model.config.reads_pairs


@torch.no_grad()
def test_its_positions_are_extended_after_the_rows_of_the_padding(tmp_path):
    model = make(max_position_embeddings=12)
    assert model.config.position_limit == 10
    with pytest.raises(InputError, match="11 tokens, but the model has 10 positions"):
        model(RaggedBatch.from_sequences([[5] * 11]))
    before = model.backbone.position_table.weight.clone()
    extend_positions(model, 19)
    after = model.backbone.position_table.weight
    assert model.config.max_position_embeddings == 21
    assert after[:2].equal(before[:2])
    torch.testing.assert_close(after[2::2], before[2:])
    model.save_pretrained(tmp_path)
    assert load_any(tmp_path).config == model.config
    reference = transformers.RobertaForMaskedLM.from_pretrained(tmp_path).eval()
    ids = torch.arange(2, 21)
    torch.testing.assert_close(
        model(RaggedBatch.from_sequences([ids.tolist()])), reference(ids[None]).logits[0], atol=1e-5, rtol=1e-5
    )


def test_rows_of_the_padding_alone_are_no_positions():
    with pytest.raises(ConfigError, match="max_position_embeddings 2 leaves no position"):
        RobertaConfig(**{**SHAPE, "max_position_embeddings": 2})


def test_there_is_no_next_sentence_to_train():
    with pytest.raises(ConfigError, match="'roberta' has no next_sentence head"):
        ModelForPreTraining(RobertaConfig(**SHAPE))
    assert ModelForPreTraining(RobertaConfig(**SHAPE), pair_head=False).architecture == "RobertaForMaskedLM"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["Model", "ForSequenceClassification"])
def test_it_is_exported(suffix, tmp_path):
    make(suffix).save_pretrained(tmp_path / "model")
    assert export_onnx(tmp_path / "model", tmp_path / "onnx") < 1e-4


def test_choices_drop_out_as_those_of_transformers_do(tmp_path):
    rates = {"hidden_dropout_prob": 0.3, "classifier_dropout": 0.6}
    for suffix in ("ForMultipleChoice", "ForTokenClassification", "ForSequenceClassification"):
        theirs = getattr(transformers, f"Roberta{suffix}")(transformers.RobertaConfig(**SHAPE, **rates))
        theirs.save_pretrained(tmp_path / suffix)
        head = theirs.classifier if suffix == "ForSequenceClassification" else theirs
        assert load_any(tmp_path / suffix).classifier.dropout.probability == head.dropout.p


def test_a_folder_half_of_another_family_is_refused(tmp_path):
    make().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": "bert", "architectures": ["BertModel"]}))
    with pytest.raises(CheckpointError, match=r"does not fit BertModel: .*missing"):
        load_any(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": "bert"}))
    with pytest.raises(CheckpointError, match="architecture 'RobertaForMaskedLM'; a model of type 'bert' is a Bert"):
        load_any(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": "deberta"}))
    with pytest.raises(CheckpointError, match=r"model_type is 'deberta'; 'albert', 'bert', .* can be read here"):
        load_any(tmp_path)
