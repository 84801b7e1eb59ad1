"""DistilBERT: no segments, no pooler, names of its own in `config.json` and among the tensors."""

import json
import tempfile
from functools import partial

import pytest
import torch
import transformers
from against_transformers import HEADS, check, random_model

from bertsmith import RaggedBatch
from bertsmith.errors import CheckpointError
from bertsmith.interop.onnx import export_onnx
from bertsmith.model import Backbone, keep_layers, load_any, prune_heads
from bertsmith.model.families.distilbert import DistilBertConfig

SHAPE = {"vocab_size": 90, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}
OURS = {
    "vocab_size": 90,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
make = partial(random_model, DistilBertConfig, OURS)


@pytest.mark.parametrize("suffix", HEADS)
def test_it_is_the_one_of_transformers(suffix, tmp_path):
    labels = {} if suffix == "ForQuestionAnswering" else {"num_labels": 3}
    config = transformers.DistilBertConfig(**SHAPE, **labels)
    check(config, suffix, tmp_path)


def test_it_drops_out_where_the_published_one_does():
    """Dropout replaced by a scale of its own at each place: a place too many or too few changes the states."""
    reference = transformers.DistilBertModel(transformers.DistilBertConfig(**SHAPE, dropout=0.3, attention_dropout=0.0))
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        model = Backbone.from_pretrained(folder)

    class Scale(torch.nn.Module):
        def forward(self, hidden):
            return hidden * 0.7

    def replace(module):
        for name, child in list(module.named_children()):
            if getattr(child, "probability", getattr(child, "p", 0.0)) == 0.3:
                setattr(module, name, Scale())
            else:
                replace(child)

    replace(model)
    replace(reference)
    ids = torch.randint(5, 90, (1, 12))
    found = model.eval()(RaggedBatch.from_sequences(ids.tolist())).hidden_states
    torch.testing.assert_close(found, reference.eval()(ids).last_hidden_state[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_segments_are_not_read_and_its_config_has_its_own_names(tmp_path):
    model, ids = make(), [[2, 5, 3, 7, 3]]
    batch = RaggedBatch.from_sequences(ids, [[0, 0, 0, 1, 1]])
    assert model(batch).equal(model(RaggedBatch.from_sequences(ids)))
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert {name: values[name] for name in SHAPE} == SHAPE
    assert "hidden_size" not in values
    del values["dim"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="has no dim"):
        load_any(tmp_path)


@torch.no_grad()
def test_it_is_changed_like_any_model(tmp_path):
    model = make("ForSequenceClassification")
    keep_layers(model, 1)
    prune_heads(model, {0: [1]})
    model.save_pretrained(tmp_path)
    again, batch = load_any(tmp_path).eval(), RaggedBatch.from_sequences([[2, 5, 3]])
    assert again(batch).equal(model(batch))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["Model", "ForQuestionAnswering"])
def test_it_is_exported(suffix, tmp_path):
    make(suffix).save_pretrained(tmp_path / "model")
    assert export_onnx(tmp_path / "model", tmp_path / "onnx") < 1e-4
