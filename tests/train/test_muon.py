"""Muon against the singular value decomposition, and its other half against torch's AdamW."""

import copy

import pytest
import torch
from torch import nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import Linear
from bertsmith.model import ModelForPreTraining, family_named
from bertsmith.model.surgery import freeze
from bertsmith.train import muon
from bertsmith.train.muon import Muon, orthogonalized
from bertsmith.train.optimizer import build_optimizer, hidden_matrices


@pytest.fixture
def in_float32(monkeypatch):
    """The polynomials run in bf16 where the processor has it; what is compared closely is compared in float32."""
    monkeypatch.setattr(muon, "best_compute_dtype", lambda _device="cpu": torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(16, 16), (24, 96), (1, 8)])
def test_singular_values_come_close_to_one_and_directions_stay(shape, dtype, monkeypatch):
    monkeypatch.setattr(muon, "best_compute_dtype", lambda _device="cpu": dtype)
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    values = torch.linspace(1.0, 0.2, len(left))
    turned = left.T @ orthogonalized((left * values @ right)[None])[0] @ right.T
    # 在输入自己的奇异方向上，输出应是对角阵，且对角元都接近 1
    margin = 0.0 if dtype == torch.float32 else 0.02
    assert ((turned.diagonal() > 0.73 - margin) & (turned.diagonal() < 1.27 + margin)).all()
    torch.testing.assert_close(turned, torch.diag(turned.diagonal()), rtol=0, atol=1e-4 + margin)


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e12])
def test_the_size_of_the_gradient_does_not_count_and_zeros_stay(scale):
    torch.manual_seed(0)
    matrix = torch.randn(1, 8, 8)
    found = orthogonalized(scale * matrix)
    torch.testing.assert_close(found, orthogonalized(matrix) if scale else torch.zeros_like(matrix))


def test_stacked_matrices_move_as_if_each_were_a_weight_of_its_own():
    torch.manual_seed(0)
    stacked, gradient = nn.Parameter(torch.randn(12, 4)), torch.randn(12, 4)
    alone = [nn.Parameter(part.clone()) for part in stacked.detach().chunk(3)]
    together = Muon([{"params": [stacked], "stacked": 3, "lr": 0.1, "weight_decay": 0.2}], eps=1e-6)
    apart = Muon([{"params": alone, "stacked": 1, "lr": 0.1, "weight_decay": 0.2}], eps=1e-6)
    for _ in range(3):
        stacked.grad = gradient.clone()
        for part, of_part in zip(alone, gradient.chunk(3), strict=True):
            part.grad = of_part.clone()
        together.step()
        apart.step()
    torch.testing.assert_close(stacked.detach(), torch.cat([part.detach() for part in alone]))


@pytest.mark.usefixtures("in_float32")
def test_a_tall_matrix_moves_further_and_decay_is_apart_from_the_step():
    """By hand: the first step is (1 - rate · decay) W - rate · sqrt(rows / columns) U Vᵀ."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 4))
    before, gradient = weight.detach().clone(), torch.randn(16, 4)
    optimizer = Muon([{"params": [weight], "stacked": 1, "lr": 0.1, "weight_decay": 0.5}], eps=1e-6)
    weight.grad = gradient.clone()
    optimizer.step()
    expected = 0.95 * before - 0.1 * 2.0 * orthogonalized(gradient.T[None].contiguous())[0].T
    torch.testing.assert_close(weight.detach(), expected)


def small(family="bert"):
    torch.manual_seed(0)
    config = family_named(family).config.named("2/64", vocab_size=30)
    # 不要 dropout：两次训练要能逐位相比
    return ModelForPreTraining(config, pair_head=False).eval()


@pytest.mark.parametrize(("family", "stacks"), [("bert", {1, 3}), ("modernbert", {1, 2, 3}), ("albert", {1, 3})])
def test_what_gives_states_is_hidden_and_nothing_else(family, stacks):
    model = small(family)
    found = hidden_matrices(model)
    expected = [module.weight for module in model.backbone.encoder.modules() if isinstance(module, Linear)]
    expected.append(model.masked_lm.transform.weight)
    assert {id(weight) for weight in found} == {id(weight) for weight in expected}
    assert set(found.values()) == stacks


def test_what_scores_labels_or_pieces_is_not_hidden():
    config = family_named("bert").config.named("2/64", vocab_size=30)
    pairs = ModelForPreTraining(config)
    assert pairs.backbone.pooler.weight in hidden_matrices(pairs)
    assert pairs.next_sentence.linear.weight not in hidden_matrices(pairs)
    untied = ModelForPreTraining(config.changed(tie_word_embeddings=False), pair_head=False)
    assert untied.masked_lm.decoder.weight not in hidden_matrices(untied)


def test_everything_else_moves_as_adamw_moves_it():
    model = small()
    other = copy.deepcopy(model)
    mixed = build_optimizer(model, weight_decay=0.01, kind="muon", matrix_factor=5.0)
    adamw = build_optimizer(other, weight_decay=0.01)
    batch = RaggedBatch.from_sequences([[1, 5, 6, 7, 2], [1, 8, 2]])
    for optimizer in (mixed, adamw):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * group["rate_factor"]
    for _ in range(2):
        loss = model(batch, torch.tensor([2, 6])).mlm_logits.square().sum()
        model.zero_grad()
        loss.backward()
        for name, parameter in other.named_parameters():
            gradient = model.get_parameter(name).grad
            parameter.grad = None if gradient is None else gradient.clone()
        mixed.step()
        adamw.step()
    matrices = hidden_matrices(model)
    for name, parameter in model.named_parameters():
        if parameter in matrices:
            assert not torch.equal(parameter, other.get_parameter(name)), name
        else:
            torch.testing.assert_close(parameter, other.get_parameter(name), rtol=0, atol=0)
    assert {group["rate_factor"] for group in mixed.param_groups} == {1.0, 5.0}


def test_a_saved_state_goes_on_bit_for_bit():
    def train(optimizer, model, steps):
        for _ in range(steps):
            model.zero_grad()
            model(RaggedBatch.from_sequences([[1, 5, 6, 2]]), torch.tensor([1, 2])).mlm_logits.square().sum().backward()
            for group in optimizer.param_groups:
                group["lr"] = 1e-2
            optimizer.step()

    whole, cut = small(), small()
    train(build_optimizer(whole, weight_decay=0.01, kind="muon"), whole, 4)
    first = build_optimizer(cut, weight_decay=0.01, kind="muon")
    train(first, cut, 2)
    second = build_optimizer(cut, weight_decay=0.01, kind="muon")
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(second, cut, 2)
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(parameter, cut.get_parameter(name), rtol=0, atol=0)


def test_a_model_whose_matrices_are_frozen_has_no_use_for_it():
    model = small()
    freeze(model, embeddings=True, layers=2)
    model.masked_lm.transform.weight.requires_grad_(False)
    with pytest.raises(ConfigError, match="none of them learns; use adamw"):
        build_optimizer(model, weight_decay=0.01, kind="muon")


def test_an_unknown_optimizer_is_named():
    with pytest.raises(ConfigError, match="'adam' is unknown; use one of adamw, lamb, muon"):
        build_optimizer(small(), weight_decay=0.01, kind="adam")
