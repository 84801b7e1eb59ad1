"""Averages of weights: by hand, in and out of the model, and through a saved state."""

import pytest
import torch
from torch import nn

from bertsmith.train.optimizer import AVERAGE, averaged, follow_weights


def stepped(model, optimizer, steps, horizon):
    """Takes steps of gradient 1 for the weight, and returns its values."""
    seen = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model.weight.sum().backward()
        optimizer.step()
        follow_weights(optimizer, step, horizon)
        seen.append(float(model.weight))
    return seen


@pytest.fixture
def pair():
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def test_it_is_the_mean_of_all_steps_within_the_horizon(pair):
    model, optimizer = pair
    seen = stepped(model, optimizer, 8, horizon=10)
    assert float(optimizer.state[model.weight][AVERAGE]) == pytest.approx(sum(seen) / 8)


def test_then_it_forgets_exponentially(pair):
    model, optimizer = pair
    seen, wanted = stepped(model, optimizer, 20, horizon=4), 0.0
    for step, value in enumerate(seen, 1):
        wanted += max(1 / 4, 1 / step) * (value - wanted)
    assert float(optimizer.state[model.weight][AVERAGE]) == pytest.approx(wanted)


def test_over_many_steps_it_is_updated_a_few_times_within_the_horizon(pair):
    model, optimizer = pair
    seen, wanted = stepped(model, optimizer, 100, horizon=64), 0.0
    for step in range(4, 101, 4):
        wanted += max(4 / 64, 4 / step) * (seen[step - 1] - wanted)
    assert float(optimizer.state[model.weight][AVERAGE]) == pytest.approx(wanted)


def test_a_weight_that_never_learned_has_none_and_can_learn_later(pair):
    model, optimizer = pair
    stepped(model, optimizer, 3, horizon=2)
    assert AVERAGE not in optimizer.state.get(model.bias, {})
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    follow_weights(optimizer, 4, 2)
    assert float(optimizer.state[model.bias][AVERAGE]) == float(model.bias)


def test_the_weights_come_back_also_after_an_error(pair):
    model, optimizer = pair
    stepped(model, optimizer, 5, horizon=3)
    before, average = float(model.weight), float(optimizer.state[model.weight][AVERAGE])
    assert before != average

    def failing():
        with averaged(optimizer):
            assert float(model.weight) == average
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert float(model.weight) == before


def test_without_averages_nothing_changes(pair):
    model, optimizer = pair
    before = float(model.weight)
    with averaged(optimizer):
        assert float(model.weight) == before
