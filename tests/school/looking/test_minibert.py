"""The hand-derived gradients against finite differences and autograd, and what positions are good for."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertsmith.errors import ConfigError, InputError
from bertsmith_school.learn.minibert import VERBS, Adam, MiniBert, MiniBertConfig, simple_sentences, train_minibert

SENTENCES = Path(__file__).parents[3] / "examples/minibert_sentences.txt"
VARIANTS = [{}, {"num_heads": 2}, {"use_positions": False}, {"causal": True, "num_heads": 4}]


def small(seed=0, **changes):
    config = MiniBertConfig(11, 6, hidden_size=8, intermediate_size=12, **changes)
    model = MiniBert(config, seed=seed, dtype=np.float64)
    rng = np.random.default_rng(seed)
    # biases and gains away from their start, so that an error in them shows
    for value in model.parameters.values():
        value += rng.normal(0, 0.3, value.shape)
    ids = rng.integers(11, size=(4, 5))
    positions = np.array([0, 3, 7, 12, 19])
    return model, ids, positions, rng.integers(11, size=5)


def by_autograd(model, ids, positions, labels):
    """The same network in torch, from its own functions."""
    p = {name: torch.tensor(value, requires_grad=True) for name, value in model.parameters.items()}
    config, size = model.config, model.config.hidden_size
    x = F.embedding(torch.tensor(ids), p["embedding"])
    if config.use_positions:
        x = x + p["positions"][: ids.shape[1]]

    def dense(name, inputs):
        return F.linear(inputs, p[name].T, p[f"{name}_bias"])

    def heads(inputs):
        return inputs.unflatten(-1, (config.num_heads, -1)).transpose(1, 2)

    parts = [heads(dense(name, x)) for name in ("query", "key", "value")]
    mixed = F.scaled_dot_product_attention(*parts, is_causal=config.causal).transpose(1, 2).flatten(2)
    norm = (p["attention_norm_gain"], p["attention_norm_bias"])
    attended = F.layer_norm(x + dense("dense", mixed), (size,), *norm, eps=1e-12)
    inner = dense("contract", F.gelu(dense("expand", attended), approximate="tanh"))
    states = F.layer_norm(attended + inner, (size,), p["output_norm_gain"], p["output_norm_bias"], eps=1e-12)
    logits = F.linear(states.flatten(0, 1)[positions], p["embedding"], p["output_bias"])
    loss = F.cross_entropy(logits, torch.tensor(labels))
    loss.backward()
    return float(loss.detach()), {name: value.grad.numpy() for name, value in p.items()}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_gradient_equals_that_of_autograd(variant):
    model, ids, positions, labels = small(1, **variant)
    loss, gradients = model.loss_and_gradients(ids, positions, labels, total=5)
    expected, derived = by_autograd(model, ids, positions, labels)
    assert loss == pytest.approx(expected, abs=1e-12)
    assert gradients.keys() == model.parameters.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, derived[name], atol=1e-12, err_msg=name)


def test_the_bias_of_the_key_never_learns():
    model, ids, positions, labels = small()
    _, gradients = model.loss_and_gradients(ids, positions, labels, total=5)
    assert np.abs(gradients["key_bias"]).max() < 1e-15
    assert np.abs(gradients["query_bias"]).max() > 1e-6


def test_shares_of_a_batch_add_up_to_the_whole():
    model, ids, positions, labels = small()
    loss, whole = model.loss_and_gradients(ids, positions, labels, total=5)
    first = model.loss_and_gradients(ids[:2], positions[:3], labels[:3], total=5)
    second = model.loss_and_gradients(ids[2:], positions[3:] - 10, labels[3:], total=5)
    assert first[0] + second[0] == pytest.approx(loss)
    for name, gradient in whole.items():
        np.testing.assert_allclose(first[1][name] + second[1][name], gradient, atol=1e-12)


def test_adam_takes_the_steps_of_torch():
    rng = np.random.default_rng(0)
    ours = {"w": rng.normal(size=(3, 4))}
    theirs = torch.tensor(ours["w"].copy(), requires_grad=True)
    adam, reference = Adam(ours), torch.optim.Adam([theirs], lr=0.01)
    for _ in range(5):
        gradient = rng.normal(size=(3, 4))
        adam.step({"w": gradient}, 0.01)
        theirs.grad = torch.tensor(gradient)
        reference.step()
    np.testing.assert_allclose(ours["w"], theirs.detach().numpy(), atol=1e-12)


def test_without_positions_the_order_of_words_does_not_matter():
    ids = np.array([[1, 2, 3, 4, 5]])
    shuffled = np.array([4, 0, 3, 1, 2])
    bag = small(use_positions=False)[0].forward(ids)
    np.testing.assert_allclose(
        small(use_positions=False)[0].forward(ids[:, shuffled]).states[0], bag.states[0][shuffled], atol=1e-12
    )
    model = small()[0]
    assert np.abs(model.forward(ids[:, shuffled]).states[0] - model.forward(ids).states[0][shuffled]).max() > 1e-3


def test_left_to_right_a_word_knows_nothing_of_what_follows():
    model = small(causal=True)[0]
    states = [model.forward(np.array([[1, 2, 3, last]])).states[0] for last in (4, 5)]
    np.testing.assert_array_equal(states[0][:3], states[1][:3])
    assert np.abs(states[0][3] - states[1][3]).max() > 1e-3


@pytest.mark.slow
def test_positions_put_a_verb_first_and_a_bag_of_words_does_not():
    """The lesson of the example: mean over five seeds of the probability of a verb at the third probe."""
    probe, share = "the man [MASK] the book", {}
    for use_positions in (True, False):
        verbs, firsts = [], []
        for seed in range(5):
            trained = train_minibert(simple_sentences(), intermediate_size=128, seed=seed, use_positions=use_positions)
            (filled,) = trained.fill(probe)
            assert sum(filled.values()) == pytest.approx(1, abs=1e-5)
            verbs.append(sum(filled[verb] for verb in VERBS))
            firsts.append(next(iter(filled)))
        share[use_positions] = np.mean(verbs)
        assert all((first in VERBS) == use_positions for first in firsts), (use_positions, firsts)
    print(f"\nP(verb) at {probe!r}, mean over 5 seeds: with positions {share[True]:.3f}, without {share[False]:.3f}")
    assert share[True] > 0.8
    assert share[False] < 0.5


def test_training_is_repeatable_and_learns():
    runs = [train_minibert(simple_sentences(), steps=25, hidden_size=32, intermediate_size=32) for _ in range(2)]
    assert runs[0].losses == runs[1].losses
    assert runs[0].losses[0] > math.log(len(runs[0].words)) * 0.8
    assert np.mean(runs[0].losses[-5:]) < 0.75 * runs[0].losses[0]


def test_the_file_of_sentences_is_the_lesson():
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()
    assert tuple(lines) == simple_sentences()
    assert 90 <= len(lines) <= 120
    assert "the man reads the book" not in lines
    assert "the book near the man" in lines
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    ("sentences", "message"), [([], "no sentences"), (["the man", "  "], "sentence 2: there are no words")]
)
def test_sentences_that_cannot_be_learned_from(sentences, message):
    with pytest.raises(InputError, match=message):
        train_minibert(sentences, steps=1, hidden_size=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the man", r"no \[MASK\]"),
        ("the \udc80 [MASK]", "is unknown"),
        ("", "there are no words"),
        ("the [MASK] sleeps sleeps", "this model reads 3"),
    ],
)
def test_a_text_that_cannot_be_filled(text, message):
    trained = train_minibert(["the man sleeps"], steps=1, hidden_size=4, intermediate_size=4)
    with pytest.raises(InputError, match=message):
        trained.fill(text)


@pytest.mark.parametrize("shape", [{"hidden_size": 6, "num_heads": 4}, {"hidden_size": 0}, {"intermediate_size": 0}])
def test_an_impossible_shape(shape):
    with pytest.raises(ConfigError):
        MiniBertConfig(5, 5, **shape)
