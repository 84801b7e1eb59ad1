"""What can be told of an attention head from outside, and what cannot."""

import math

import pytest
import torch

from bertsmith.errors import InputError
from bertsmith_school.learn.recovery import attend, demonstrate, identifiable, recover


def layer(seed, hidden=5, head=3, out=4):
    torch.manual_seed(seed)
    shapes = ((hidden, head), (hidden, head), (hidden, out))
    query, key, value = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return query / math.sqrt(hidden), key, value


def by_torch(inputs, query, key, value):
    """Z as the field computes it, from the three matrices."""
    return torch.nn.functional.scaled_dot_product_attention(inputs @ query, inputs @ key, inputs @ value)


def close(found, true, tolerance=1e-5):
    assert float((found - true).abs().max() / true.abs().max()) < tolerance


@pytest.mark.parametrize("seed", range(3))
def test_generic_inputs_give_the_layer_away(seed):
    query, key, value = layer(seed)
    inputs = torch.randn(60, 4, 5, dtype=torch.float64)
    found = recover(inputs, by_torch(inputs, query, key, value), head_size=3)
    assert found.error < 1e-6
    assert found.identifiable.free_dimensions == 0
    close(found.product, query @ key.T)
    close(found.value, value)


def test_the_estimate_predicts_outputs_it_has_not_seen():
    query, key, value = layer(3)
    inputs = torch.randn(60, 4, 5, dtype=torch.float64)
    found = recover(inputs, by_torch(inputs, query, key, value), head_size=3)
    fresh = torch.randn(10, 7, 5, dtype=torch.float64)
    predicted = attend(fresh, found.product, found.value, head_size=3)
    close(predicted, by_torch(fresh, query, key, value))


def test_query_and_key_are_known_as_their_product_only():
    query, key, value = layer(0)
    inputs = torch.randn(8, 4, 5, dtype=torch.float64)
    change = torch.randn(3, 3, dtype=torch.float64)
    other_query, other_key = query @ change, key @ torch.linalg.inv(change).T
    assert (other_query - query).abs().max() > 0.1
    close(by_torch(inputs, other_query, other_key, value), by_torch(inputs, query, key, value), 1e-10)


def test_a_constant_feature_hides_a_column():
    query, key, value = layer(1)
    inputs = torch.randn(60, 4, 5, dtype=torch.float64)
    inputs[..., 0] = 1
    # M + a uᵀ, where uᵀx = 1 for every token: the same outputs from another layer
    product = query @ key.T
    other = product.clone()
    other[:, 0] += torch.randn(5, dtype=torch.float64)
    outputs = attend(inputs, product, value, head_size=3)
    close(attend(inputs, other, value, head_size=3), outputs, 1e-10)
    found = recover(inputs, outputs, head_size=3)
    assert found.identifiable.free_dimensions == 5
    assert found.product[:, 0].abs().max() < 1e-9
    close(found.product[:, 1:], product[:, 1:])
    close(found.value, value)


def test_tokens_of_low_rank_leave_a_subspace_free():
    query, key, value = layer(2)
    basis = torch.linalg.qr(torch.randn(5, 3, dtype=torch.float64)).Q
    inputs = torch.randn(60, 4, 3, dtype=torch.float64) @ basis.T
    product = query @ key.T
    seen = basis @ basis.T
    unseen = torch.eye(5, dtype=torch.float64) - seen
    outputs = attend(inputs, product, value, head_size=3)
    other = product + unseen @ torch.randn(5, 5, dtype=torch.float64) + torch.randn(5, 5, dtype=torch.float64) @ unseen
    other_value = value + unseen @ torch.randn(5, 4, dtype=torch.float64)
    close(attend(inputs, other, other_value, head_size=3), outputs, 1e-10)
    found = recover(inputs, outputs, head_size=3)
    assert found.identifiable.free_dimensions == 25 - 9
    close(found.product, seen @ product @ seen)
    close(found.value, seen @ value)


def test_single_tokens_show_the_value_and_nothing_else():
    _, _, value = layer(0)
    inputs = torch.randn(20, 1, 5, dtype=torch.float64)
    known = identifiable(inputs)
    assert known.differences.shape == (5, 0)
    found = recover(inputs, inputs @ value, head_size=3)
    close(found.value, value)
    assert not found.product.any()


def test_equal_tokens_up_to_rounding_show_nothing_of_the_product():
    token = torch.randn(20, 1, 5, dtype=torch.float64)
    inputs = token.expand(20, 3, 5) + 1e-15 * torch.randn(20, 3, 5, dtype=torch.float64)
    assert identifiable(inputs).differences.shape[1] == 0


def test_the_demonstration_says_what_it_found():
    shown = demonstrate(hidden_size=4, head_size=2)
    assert [d.recovery.identifiable.free_dimensions for d in shown] == [0, 4, 7]
    assert all(d.seen_product_error < 1e-5 and d.value_error < 1e-5 for d in shown)
    assert shown[0].product_error < 1e-5
    assert min(d.product_error for d in shown[1:]) > 1e-2


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 3), r"must be \[N, S, H\]"),
        (torch.ones(2, 3, 4), torch.ones(2, 2, 4), r"must be \[N, S, H\]"),
        (torch.ones(0, 3, 4), torch.ones(0, 3, 4), "not empty"),
        (torch.full((2, 3, 4), torch.nan), torch.ones(2, 3, 4), "finite"),
        (torch.ones(2, 3, 4), torch.full((2, 3, 4), torch.inf), "finite"),
        (torch.ones(2, 3, 4), torch.zeros(2, 3, 4), "are 0"),
        (torch.zeros(2, 3, 4), torch.ones(2, 3, 4), "are 0"),
    ],
)
def test_observations_that_cannot_be_used(inputs, outputs, message):
    with pytest.raises(InputError, match=message):
        recover(inputs, outputs, head_size=2)


def test_impossible_settings():
    with pytest.raises(InputError, match="at least 1"):
        recover(torch.ones(2, 3, 4), torch.ones(2, 3, 4), head_size=0)
