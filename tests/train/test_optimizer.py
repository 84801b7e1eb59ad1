import math

import pytest
import torch

from bertsmith.errors import ConfigError
from bertsmith.model import BertConfig, BertForPreTraining, BertForSequenceClassification
from bertsmith.model.adapt import freeze
from bertsmith.train.optimizer import build_optimizer, parameter_groups


def classifier(layers=3):
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig.named(f"{layers}/64", vocab_size=30, id2label={0: "a", 1: "b"}))


def by_name(model, groups):
    """Name of every parameter → its group; fails where one is in two groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [(names[id(parameter)], group) for group in groups for parameter in group["params"]]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize(
    "options", [{}, {"layer_decay": 0.5}, {"rates": {"classifier.*": 10.0, "*.bias": 0.5}, "layer_decay": 0.9}]
)
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
        "bert.pooler.bias": 0.8,
        "bert.encoder.blocks.2.output_norm.weight": 0.4,
        "bert.encoder.blocks.1.attention.project.weight": 0.2,
        "bert.encoder.blocks.0.expand.bias": 0.1,
        "bert.embedding.word.weight": 0.05,
        "bert.embedding.norm.bias": 0.05,
    }
    assert {name: found[name]["lr"] for name in expected} == pytest.approx(expected)
    assert all(group["lr"] == pytest.approx(0.8 * group["rate_factor"]) for group in found.values())


def test_freezing_does_not_move_the_other_rates():
    model = classifier()
    whole = {name: group["lr"] for name, group in by_name(model, parameter_groups(model, 1.0, layer_decay=0.9)).items()}
    freeze(model, embeddings=True, layers=1)
    for name, group in by_name(model, parameter_groups(model, 1.0, layer_decay=0.9)).items():
        assert group["lr"] == whole[name]


def test_rates_by_pattern_multiply():
    model = classifier()
    rates = {"classifier.*": 10.0, "*.bias": 0.5, "bert.encoder.blocks.[01].*": 0.1}
    found = by_name(model, parameter_groups(model, 1.0, layer_decay=0.5, rates=rates))
    expected = {
        "classifier.linear.weight": 10.0,
        "classifier.linear.bias": 5.0,
        "bert.encoder.blocks.2.expand.weight": 0.5,
        "bert.encoder.blocks.1.expand.weight": 0.025,
        "bert.encoder.blocks.0.expand.bias": 0.00625,
    }
    assert {name: found[name]["lr"] for name in expected} == pytest.approx(expected)


def test_an_optimizer_moves_each_layer_at_its_own_rate():
    model = classifier()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(parameter_groups(model, 0.5, layer_decay=0.5, weight_decay=0.0))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, moved in (("classifier.linear.bias", 0.5), ("bert.encoder.blocks.0.expand.bias", 0.0625)):
        torch.testing.assert_close(before[name] - moved, model.get_parameter(name).detach())


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
        ({"rates": {"clasifier.*": 2.0}}, r"'clasifier.\*' matches no parameter that learns; names look like"),
        ({"rates": {"bert.embedding.*": 2.0}}, "matches no parameter that learns"),
        ({"rates": {"classifier.*": 0.0}}, "must be positive; freeze"),
        ({"rates": {"classifier.*": math.nan}}, "must be positive"),
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
