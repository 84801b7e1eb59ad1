"""Adapters as files: small folders over one backbone, that fit it or are refused."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.finetune.adapters import (
    backbone_fingerprint,
    load_adapted,
    load_adapter,
    save_adapter,
)
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.inference import Classify
from bertsmith.model import (
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
from bertsmith.model.peft import AdapterSettings, activate, active_name, adapter_names, add_adapter, merge_adapter
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.trainer import BertTrainer, TrainerSettings

SEQUENCES = [[2, 7, 20, 3], [2, 3], [2, 5, 6, 7, 19, 9, 3]]
BOTTLENECK = AdapterSettings("bottleneck", size=4)
LORA = AdapterSettings("lora", size=2)
YES_NO, COLOURS = {0: "no", 1: "yes"}, {0: "red", 1: "green", 2: "blue"}


def load_classifier(folder, labels=YES_NO):
    torch.manual_seed(0)
    return BertForSequenceClassification.from_pretrained(folder, new_heads=True, id2label=labels).eval()


def stir(model, seed=1):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def logits(model):
    with torch.no_grad():
        return model.eval()(RaggedBatch.from_sequences(SEQUENCES))


def save_two(folder, target):
    """Two adapters of two kinds, for two sets of labels; returns the logits of each."""
    expected = {}
    for number, (name, settings, labels) in enumerate(
        [("answers", BOTTLENECK, YES_NO), ("colours", LORA, COLOURS)], start=1
    ):
        model = load_classifier(folder, labels)
        add_adapter(model, settings)
        stir(model, number)
        save_adapter(model, target / name)
        expected[name] = logits(model)
    return expected


def test_several_adapters_over_one_untouched_backbone(tiny_model, tmp_path):
    before = (tiny_model / "model.safetensors").read_bytes()
    expected = save_two(tiny_model, tmp_path)
    model = load_classifier(tiny_model)
    plain = logits(model)
    for name in expected:
        load_adapter(model, tmp_path / name, name)
        assert active_name(model) == name
    assert adapter_names(model) == ["answers", "colours"]
    for name, labels in (("answers", YES_NO), ("colours", COLOURS), ("answers", YES_NO)):
        activate(model, name)
        assert logits(model).equal(expected[name])
        assert model.config.id2label == model.backbone.config.id2label == labels
    activate(model, None)
    assert logits(model).equal(plain)
    assert model.config.id2label == YES_NO
    # what one adapter was saved as, another process gets from the two folders alone
    assert logits(load_adapted(tiny_model, tmp_path / "colours")).equal(expected["colours"])
    # saved again from the shared model, it is the same
    save_adapter(model, tmp_path / "again", "colours")
    assert (tmp_path / "again" / "adapter.json").read_text() == (tmp_path / "colours" / "adapter.json").read_text()
    assert logits(load_adapted(tiny_model, tmp_path / "again")).equal(expected["colours"])
    assert (tiny_model / "model.safetensors").read_bytes() == before


def test_an_adapter_is_small_and_says_what_it_is(tiny_model, tmp_path):
    model = load_classifier(tiny_model, COLOURS)
    add_adapter(model, LORA)
    save_adapter(model, tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / "adapter.safetensors")
    # one block of H 64: A [2 x 2, 64] and B [2, 64, 2]; the pooler [64, 64]; three classes
    assert {name: list(value.shape) for name, value in tensors.items()} == {
        "backbone.encoder.blocks.0.attention.qkv.down.weight": [4, 64],
        "backbone.encoder.blocks.0.attention.qkv.up": [2, 64, 2],
        "backbone.pooler.weight": [64, 64],
        "backbone.pooler.bias": [64],
        "classifier.linear.weight": [3, 64],
        "classifier.linear.bias": [3],
    }
    values = json.loads((tmp_path / "adapter" / "adapter.json").read_text())
    assert values.pop("backbone") == backbone_fingerprint(load_classifier(tiny_model))
    assert values == {
        "format": 1, "kind": "lora", "size": 2, "alpha": 4.0, "dropout": 0.0, "targets": ["query", "value"],
        "architecture": "BertForSequenceClassification", "id2label": {"0": "red", "1": "green", "2": "blue"},
        "problem_type": None, "classifier_dropout": None,
    }  # fmt: skip


def test_a_backbone_is_known_in_every_folder_it_is_kept_in(tiny_model, tmp_path):
    wanted = backbone_fingerprint(BertForPreTraining.from_pretrained(tiny_model))
    BertModel.from_pretrained(tiny_model, need_pooler=False).save_pretrained(tmp_path / "bare")
    transformers.BertForMaskedLM.from_pretrained(tiny_model).save_pretrained(tmp_path / "theirs")
    for folder in ("bare", "theirs"):
        assert backbone_fingerprint(BertModel.from_pretrained(tmp_path / folder, need_pooler=False)) == wanted
    model = load_classifier(tiny_model)
    add_adapter(model, BOTTLENECK)
    stir(model)
    assert backbone_fingerprint(model) == wanted
    save_adapter(model, tmp_path / "adapter")
    assert logits(load_adapted(tmp_path / "bare", tmp_path / "adapter")).equal(logits(model))
    other = BertModel.from_pretrained(tiny_model, hidden_act="relu")
    assert backbone_fingerprint(other) != wanted


def test_a_merged_folder_predicts_the_same_in_transformers(tiny_model, tmp_path):
    expected = save_two(tiny_model, tmp_path)
    model = load_adapted(tiny_model, tmp_path / "colours")
    merge_adapter(model)
    model.save_pretrained(tmp_path / "merged")
    reference = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    assert reference.config.id2label == COLOURS
    with torch.no_grad():
        theirs = torch.cat([reference(torch.tensor([ids])).logits for ids in SEQUENCES])
    torch.testing.assert_close(theirs, expected["colours"], atol=1e-4, rtol=0)
    with pytest.raises(ConfigError, match="bottleneck is not linear"):
        merge_adapter(load_adapted(tiny_model, tmp_path / "answers"))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [AdapterSettings("bottleneck", size=16), LORA], ids=["bottleneck", "lora"])
def test_an_adapter_learns_a_task_and_the_pipeline_uses_it(settings, tiny_model, tmp_path):
    words = {"bread": "thing", "book": "thing", "man": "person", "woman": "person"}
    examples = [LabelledText(f"the {word} reads", None, label) for word, label in words.items()]
    tokenizer = WordPieceTokenizer.load(tiny_model)
    task = ClassificationTask.of(examples)
    model = task.build(tiny_model, FineTuningSettings(dropout=0.0))
    add_adapter(model, settings)
    trainer = BertTrainer(model, task.objective, TrainerSettings(160, 1e-2))
    batch = task.batch(task.encode(tokenizer, examples, 32))
    first = float(trainer.train_batch(batch).loss.detach())
    for _ in range(159):
        last = float(trainer.train_batch(batch).loss.detach())
    assert last < 0.1 < first
    save_adapter(model, tmp_path / "adapter")
    pipeline = Classify(load_adapted(tiny_model, tmp_path / "adapter"), tokenizer)
    assert [p.label for p in pipeline([example.text for example in examples])] == list(words.values())


def test_the_figures_of_a_run_are_those_of_its_adapter(tiny_model, tmp_path):
    """Weights with the update folded in round otherwise in bf16."""
    scored = [ScoredText(f"the {word} reads", None, score) for score, word in enumerate(["man", "book", "bread"])] * 4
    settings = FineTuningSettings(2, 4, learning_rate=1e-2, precision="bf16", adapter="lora")
    found = fine_tune(RegressionTask.of(scored), tiny_model, scored, scored, tmp_path / "run", settings)
    rows = [json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    kept = next(row for row in rows if row["kind"] == "dev" and row["epoch"] == found.epoch)
    assert {name: kept[name] for name in found.dev.metrics} == found.dev.metrics
    assert (tmp_path / "run" / "model" / "task.json").exists()


def test_what_does_not_belong_together_is_refused(tiny_model, tmp_path):
    save_two(tiny_model, tmp_path)
    folder = tmp_path / "answers"
    tagger = BertForTokenClassification.from_pretrained(tiny_model, new_heads=True, id2label=YES_NO)
    with pytest.raises(CheckpointError, match=r"for BertForSequenceClassification, not for BertForTokenClassif"):
        load_adapter(tagger, folder)
    other = load_classifier(tiny_model)
    with torch.no_grad():
        other.backbone.encoder.blocks[0].intermediate.weight[0, 0] += 0.01
    with pytest.raises(CheckpointError, match="answers: was trained over another backbone; load the model folder"):
        load_adapter(other, folder)
    model = load_classifier(tiny_model)
    load_adapter(model, folder)
    with pytest.raises(ConfigError, match="has an adapter 'default' already"):
        load_adapter(model, tmp_path / "colours")
    activate(model, None)
    with pytest.raises(ConfigError, match="no adapter is active"):
        save_adapter(model, tmp_path / "none")
    with pytest.raises(ConfigError, match="no adapter 'other'"):
        save_adapter(model, tmp_path / "none", "other")
    assert not (tmp_path / "none").exists()


def _tensors(change):
    def spoil(folder):
        tensors = load_file(folder / "adapter.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter.safetensors")

    return spoil


def _values(change):
    def spoil(folder):
        values = json.loads((folder / "adapter.json").read_text())
        change(values)
        (folder / "adapter.json").write_text(json.dumps(values))

    return spoil


UP, BIAS = "backbone.encoder.blocks.0.output.up.weight", "classifier.linear.bias"
DAMAGES = {
    "no description": (lambda f: (f / "adapter.json").unlink(), "answers/adapter.json: is missing; name a folder"),
    "no JSON": (lambda f: (f / "adapter.json").write_text("{"), r"adapter.json: damaged \(not JSON at line 1"),
    "a list": (
        lambda f: (f / "adapter.json").write_text("[]"),
        r"adapter.json: damaged \(the whole is \[\], not an",
    ),
    "no kind": (_values(lambda v: v.pop("kind")), r"adapter.json: damaged \(kind is missing"),
    "odd kind": (_values(lambda v: v.update(kind="prefix")), "damaged .*kind is .prefix., not 'bottleneck' or 'lora'"),
    "later format": (_values(lambda v: v.update(format=2)), "format 2; this version of bertsmith reads 1"),
    "odd labels": (_values(lambda v: v.update(id2label={"3": "x"})), "id2label does not count from 0"),
    "no labels": (_values(lambda v: v.update(id2label={})), "adapter.json: damaged"),
    "odd architecture": (_values(lambda v: v.update(architecture="GPT")), "architecture 'GPT' is none of AlbertModel"),
    "odd dropout": (_values(lambda v: v.update(classifier_dropout=2)), "adapter.json: damaged"),
    "other width": (_values(lambda v: v.update(size=5)), r"down.bias has shape \[4\], the model needs \[5\]"),
    "no tensors": (lambda f: (f / "adapter.safetensors").unlink(), "adapter.safetensors: is not there"),
    "half the tensors": (
        lambda f: (f / "adapter.safetensors").write_bytes((f / "adapter.safetensors").read_bytes()[:500]),
        "adapter.safetensors: damaged or truncated",
    ),
    "one missing": (_tensors(lambda t: t.pop(UP)), rf"does not fit: {UP} missing$"),
    "one too many": (_tensors(lambda t: t.update(x=torch.zeros(1))), "does not fit: x unexpected$"),
    "other shape": (
        _tensors(lambda t: t.update({BIAS: torch.zeros(7)})),
        rf"{BIAS} has shape \[7\], .* needs \[2\]",
    ),
    "NaN": (_tensors(lambda t: t[BIAS].fill_(torch.nan)), f"{BIAS} holds NaN or infinity"),
}


@pytest.mark.parametrize(("spoil", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_folders_are_refused_in_one_line_and_the_model_stays_as_it_was(spoil, message, tiny_model, tmp_path):
    save_two(tiny_model, tmp_path)
    spoil(tmp_path / "answers")
    with pytest.raises(CheckpointError, match=message) as caught:
        load_adapted(tiny_model, tmp_path / "answers")
    assert "\n" not in str(caught.value)
    model = load_classifier(tiny_model)
    before = logits(model)
    with pytest.raises(CheckpointError):
        load_adapter(model, tmp_path / "answers")
    assert adapter_names(model) == []
    assert logits(model).equal(before)
