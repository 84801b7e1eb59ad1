"""The gate of a GeGLU against its equation, in parts and with a gradient."""

import pytest
import torch
import torch.nn.functional as F

from bertsmith.kernels.layers import ROWS, gated


@pytest.mark.parametrize("tokens", [0, 1, ROWS, ROWS + 3])
@pytest.mark.parametrize("activation", [F.gelu, F.relu])
def test_it_is_the_equation(tokens, activation):
    torch.manual_seed(0)
    states = torch.randn(tokens, 10)
    wanted = activation(states[:, :5]) * states[:, 5:]
    assert gated(states.clone(), activation).equal(wanted)
    with torch.no_grad():
        torch.testing.assert_close(gated(states.clone(), activation), wanted)


def test_with_a_gradient_nothing_is_overwritten():
    states = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    before = states.detach().clone()
    assert torch.autograd.gradcheck(lambda x: gated(x, F.gelu), (states,))
    assert states.detach().equal(before)
