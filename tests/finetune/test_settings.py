import json

import pytest
import torch

import bertsmith
from bertsmith.errors import ConfigError
from bertsmith.finetune.settings import FineTuningSettings, compute_dtype
from bertsmith.finetune.tasks import task_named
from bertsmith.kernels.layers import best_compute_dtype


def test_the_defaults_are_the_papers():
    settings = FineTuningSettings()
    assert (settings.epochs, settings.batch_size, settings.learning_rate) == (3, 16, 5e-5)
    assert settings.warmup_share == 0.1
    assert settings.adapter_settings() is None


def test_few_and_fresh_weights_learn_faster():
    classify, features = task_named("classify").spec, task_named("features").spec
    assert classify.usual_rate(None, hidden_size=768) == 5e-5
    assert classify.usual_rate("lora", hidden_size=768) == features.usual_rate(None, hidden_size=768) == 1e-3


def test_small_models_learn_faster():
    """The rates that Turc et al. 2019 tried go up to 3e-4; ModernBERT's block bears more."""
    usual, widths = task_named("classify").spec.usual_rate, (128, 256, 384, 512, 768, 1024)
    rates = [usual(None, hidden_size=width) for width in widths]
    assert rates == pytest.approx([3e-4, 2e-4, 1e-4, 1e-4, 5e-5, 5e-5])
    rates = [usual(None, hidden_size=width, family="modernbert") for width in widths]
    assert rates == pytest.approx([6e-4, 6e-4, 1e-4, 1e-4, 5e-5, 5e-5])
    assert task_named("classify").spec.usual_rate("lora", hidden_size=128) == 1e-3


@pytest.mark.parametrize(("chosen", "rate"), [({}, 3e-4), ({"learning_rate": 2e-5}, 2e-5)])
def test_a_small_model_is_tuned_at_a_small_models_rate_unless_told_otherwise(tiny_model, tmp_path, chosen, rate):
    rows = [{"text": "the man reads", "label": "good"}, {"text": "the woman eats", "label": "bad"}]
    bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=rows, dev=rows, epochs=1, **chosen)
    begun = json.loads((tmp_path / "run" / "finetune.json").read_text(encoding="utf-8"))
    assert begun["settings"]["learning_rate"] == pytest.approx(rate)


def test_precisions():
    assert compute_dtype("bf16", "cpu") == torch.bfloat16
    assert compute_dtype("float32", "cpu") == torch.float32
    assert compute_dtype("auto", "cpu") == best_compute_dtype("cpu")


def test_an_adapters_size_is_its_own_default():
    assert FineTuningSettings(adapter="lora").adapter_settings().size == 8
    assert FineTuningSettings(adapter="bottleneck", adapter_size=16).adapter_settings().size == 16


def test_an_adapter_saves_memory_unless_told_otherwise():
    assert FineTuningSettings().checkpointing() == "none"
    assert FineTuningSettings(adapter="lora").checkpointing() == "attention"
    assert FineTuningSettings(adapter="lora", gradient_checkpointing="none").checkpointing() == "none"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs is 0; give at least 1"),
        ({"epochs": 1.5}, "epochs is 1.5, not a whole number"),
        ({"batch_size": 0}, "batch_size is 0; give at least 1"),
        ({"max_length": -1}, "max_length is -1; give at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan; give a finite number"),
        ({"learning_rate": float("inf")}, "learning_rate is inf; give a finite number"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; give more than 0"),
        ({"warmup_share": 1.5}, "warmup_share is 1.5; give at least 0 and at most 1"),
        ({"weight_decay": float("nan")}, "weight_decay is nan"),
        ({"layer_decay": 0.0}, "layer_decay is 0.0; give more than 0 and at most 1"),
        ({"patience": -1}, "patience is -1; give at least 0"),
        ({"max_length": 2}, "no room for a text"),
        ({"dropout": 1.0}, "dropout is 1.0; give at least 0 and at most 0.9"),
        ({"average": -0.1}, "average is -0.1; give at least 0 and at most 1"),
        ({"average": 1.5}, "average is 1.5"),
        ({"average": float("nan")}, "average is nan"),
        ({"seed": None}, "seed is null, not a whole number"),
        ({"precision": "half"}, "'half' is unknown"),
        ({"gradient_checkpointing": True}, "True is unknown"),
        ({"adapter": "prefix"}, "'prefix' is unknown"),
        ({"adapter": "lora", "freeze_layers": 2}, "freezes the whole encoder"),
        ({"adapter": "lora", "from_random": True}, "no use frozen"),
        ({"adapter_size": 8}, "there is no adapter"),
    ],
)
def test_impossible_settings(changes, message):
    with pytest.raises(ConfigError, match=message):
        FineTuningSettings(**changes)
