import math

import pytest
import torch

from bertsmith.errors import ConfigError
from bertsmith.model import BertConfig, BertForPreTraining, BertForSequenceClassification
from bertsmith.model.surgery import freeze
from bertsmith.train.optimizer import build_optimizer, learning_rate_at, parameter_groups


def classifier(layers=3):
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig.named(f"{layers}/64", vocab_size=30, id2label={0: "a", 1: "b"}))


def by_name(model, groups):
    """Name of every parameter → its group; fails where one is in two groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [(names[id(parameter)], group) for group in groups for parameter in group["params"]]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize("options", [{}, {"layer_decay": 0.5}, {"layer_decay": 0.9}])
@pytest.mark.parametrize("frozen", [None, 0, 2])
def test_every_parameter_that_learns_is_in_exactly_one_group(options, frozen):
    model = classifier()
    if frozen is not None:
        freeze(model, embeddings=True, layers=frozen)
    found = by_name(model, parameter_groups(model, 1e-3, **options))
    assert found.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, group in found.items():
        decays = not name.endswith("bias") and "norm" not in name
        assert group["weight_decay"] == (0.01 if decays else 0.0), name


def test_rates_fall_from_the_head_to_the_embeddings():
    found = by_name(model := classifier(), parameter_groups(model, 0.8, layer_decay=0.5))
    expected = {
        "classifier.linear.weight": 0.8,
        "backbone.pooler.bias": 0.8,
        "backbone.encoder.blocks.2.output_norm.weight": 0.4,
        "backbone.encoder.blocks.1.attention.qkv.weight": 0.2,
        "backbone.encoder.blocks.0.intermediate.bias": 0.1,
        "backbone.embedding.word.weight": 0.05,
        "backbone.embedding.norm.bias": 0.05,
    }
    assert {name: found[name]["lr"] for name in expected} == pytest.approx(expected)
    assert all(group["lr"] == pytest.approx(0.8 * group["rate_factor"]) for group in found.values())


def test_freezing_does_not_move_the_other_rates():
    model = classifier()
    whole = {name: group["lr"] for name, group in by_name(model, parameter_groups(model, 1.0, layer_decay=0.9)).items()}
    freeze(model, embeddings=True, layers=1)
    for name, group in by_name(model, parameter_groups(model, 1.0, layer_decay=0.9)).items():
        assert group["lr"] == whole[name]


def test_the_trainers_optimizer_keeps_its_order_of_parameters():
    """Matrices, then vectors, each in the order of the model: saved training states count on it."""
    model = BertForPreTraining(BertConfig.named("2/64", vocab_size=30))
    optimizer = build_optimizer(model, weight_decay=0.02)
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    expected = [p for p in model.parameters() if p.dim() > 1] + [p for p in model.parameters() if p.dim() <= 1]
    assert list(map(id, order)) == list(map(id, expected))
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.02, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer_decay": 0.0}, r"layer_decay 0.0 is outside \(0, 1\]"),
        ({"layer_decay": 1.1}, "layer_decay"),
        ({"weight_decay": -0.1}, "weight_decay -0.1"),
        ({"learning_rate": math.inf}, "learning_rate inf"),
    ],
)
def test_impossible_rates_are_refused(options, message):
    model = classifier()
    freeze(model, embeddings=True, layers=0)
    with pytest.raises(ConfigError, match=message):
        parameter_groups(model, **{"learning_rate": 1.0, **options})


def test_a_model_that_is_frozen_whole_is_refused():
    model = classifier().requires_grad_(False)
    with pytest.raises(ConfigError, match="every parameter is frozen"):
        parameter_groups(model, 1.0)


def test_a_step_equals_lamb_by_hand():
    """One matrix, one bias, two steps of You et al. 2020, algorithm 2, written out with scalars."""
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0], [-4.0]]))
        model.bias.copy_(torch.tensor([1.0, 2.0]))
    optimizer = build_optimizer(model, weight_decay=0.1, kind="lamb")
    weight, bias = [3.0, -4.0], [1.0, 2.0]
    gradients = [0.5, -2.0]
    mean, square = [0.0, 0.0], [0.0, 0.0]
    for step in (1, 2):
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        model.weight.grad = torch.tensor(gradients)[:, None].clone()
        model.bias.grad = torch.tensor(gradients)
        optimizer.step()
        mean = [0.9 * m + 0.1 * g for m, g in zip(mean, gradients, strict=True)]
        square = [0.999 * v + 0.001 * g * g for v, g in zip(square, gradients, strict=True)]
        adam = [
            m / (1 - 0.9**step) / (math.sqrt(v / (1 - 0.999**step)) + 1e-6) for m, v in zip(mean, square, strict=True)
        ]
        update = [a + 0.1 * w for a, w in zip(adam, weight, strict=True)]
        trust = math.hypot(*weight) / math.hypot(*update)
        weight = [w - 0.01 * trust * u for w, u in zip(weight, update, strict=True)]
        bias = [b - 0.01 * a for b, a in zip(bias, adam, strict=True)]
        assert model.weight.flatten().tolist() == pytest.approx(weight, rel=1e-5)
        assert model.bias.tolist() == pytest.approx(bias, rel=1e-5)


def test_lamb_moves_matrices_that_are_zero():
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = build_optimizer(model, weight_decay=0.0, kind="lamb")
    optimizer.param_groups[0]["lr"] = 0.5
    model.weight.grad = torch.ones(2, 2)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.full((2, 2), -0.5), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", {0: 0.2, 9: 2.0, 10: 2.0, 60: 1.0, 85: 0.5, 110: 0.0, 111: 0.0}),
        ("cosine", {0: 0.2, 10: 2.0, 35: 1 + math.sqrt(0.5), 60: 1.0, 85: 1 - math.sqrt(0.5), 110: 0.0}),
        ("trapezoid", {0: 0.2, 10: 2.0, 60: 2.0, 88: 2.0, 99: 1.0, 110: 0.0}),
    ],
)
def test_the_schedules_are_their_closed_forms(schedule, expected):
    """Ten steps of warm-up to 2, 110 steps in all; a trapezoid falls in the last 22."""
    found = {
        step: learning_rate_at(step, peak=2.0, warmup_steps=10, total_steps=110, schedule=schedule) for step in expected
    }
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_trapezoid_with_a_long_warm_up_falls_in_what_is_left():
    rates = [learning_rate_at(s, peak=1.0, warmup_steps=9, total_steps=10, schedule="trapezoid") for s in (8, 9, 10)]
    assert rates == [1.0, 1.0, 0.0]
