import copy

import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from bertsmith.batch import RaggedBatch
from bertsmith.kernels import matmul
from bertsmith.kernels.layers import Dropout, LayerNorm, Linear
from bertsmith.kernels.matmul import FEW_ROWS, has_packed_kernels, linear
from bertsmith.kernels.ragged_attention import CUT_COST, cut_into_rectangles
from bertsmith.model import BertConfig, MultiHeadSelfAttention


@pytest.mark.parametrize("probability", [0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_keeps_the_mean(probability, dtype):
    torch.manual_seed(0)
    output = Dropout(probability)(torch.ones(501, 401, dtype=dtype))
    dropped = int((output == 0).sum())
    assert stats.binomtest(dropped, output.numel(), probability).pvalue > 1e-4
    kept = output[output != 0].float()
    assert kept.unique().numel() == 1
    assert kept[0].item() == pytest.approx(1 / (1 - probability), rel=5e-3)


def test_dropout_treats_every_place_alike():
    """Neighbours, and the four places that share a random word, are independent."""
    torch.manual_seed(1)
    zero = (Dropout(0.3)(torch.ones(20_000, 8)) == 0).double()
    assert (zero.mean(0) - 0.3).abs().max() < 0.02
    correlation = torch.corrcoef(zero.T) - torch.eye(8)
    assert correlation.abs().max() < 0.04


def test_dropout_follows_the_seed_and_its_gradient_the_mask():
    hidden = torch.ones(64, 64, requires_grad=True)
    layer = Dropout(0.2)
    outputs = []
    for _ in range(2):
        torch.manual_seed(7)
        outputs.append(layer(hidden))
    assert outputs[0].equal(outputs[1])
    outputs[0].sum().backward()
    assert hidden.grad.equal(outputs[0].detach())
    assert layer(hidden) is not hidden
    assert layer.eval()(hidden) is hidden
    assert Dropout(0.0)(hidden) is hidden


def test_layers_keep_the_dtype_and_their_parameters_float32():
    for layer in (Linear(8, 8), LayerNorm(8)):
        output = layer(torch.randn(3, 8, dtype=torch.bfloat16))
        assert output.dtype == torch.bfloat16
        output.sum().backward()
        assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(("rows", "columns"), [(3, 40), (70, 40), (70, 9000)])
@pytest.mark.parametrize("faster", [True, False])
def test_the_matmul_and_its_gradients_are_those_of_float64(monkeypatch, rows, columns, faster):
    """Whichever library multiplies: to float32's accuracy, not to that of a shorter format."""
    monkeypatch.setattr("bertsmith.kernels.matmul.onednn_is_faster", lambda: faster)
    torch.manual_seed(0)
    tensors = [torch.randn(2, rows, 24), torch.randn(columns, 24) / 5, torch.randn(columns)]
    direction = torch.randn(2, rows, columns)
    results = []
    for dtype, function in ((torch.float32, linear), (torch.float64, F.linear)):
        leaves = [tensor.detach().clone().to(dtype).requires_grad_() for tensor in tensors]
        output = function(*leaves)
        (output * direction.to(dtype)).sum().backward()
        results.append([output, *(leaf.grad for leaf in leaves)])
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=5e-6, atol=5e-6 * exact.abs().max().item())
    with torch.no_grad():
        assert linear(*tensors).equal(results[0][0])


@pytest.mark.skipif(not has_packed_kernels(), reason="no packed kernels in this torch")
@pytest.mark.parametrize("rows", [1, 2, 11, FEW_ROWS, FEW_ROWS + 1])
def test_a_packed_weight_gives_what_the_plain_one_gives(rows):
    layer = Linear(96, 40)
    states = torch.randn(rows, 96)
    expected = layer(states)
    with torch.no_grad():
        torch.testing.assert_close(layer(states), expected, atol=1e-6, rtol=1e-5)
        assert (layer._kept is None) == (rows > FEW_ROWS)
        layer.weight.mul_(2)
        torch.testing.assert_close(layer(states) + layer.bias, 2 * expected, atol=1e-5, rtol=1e-5)
    layer(states)
    assert layer._kept is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_made_in_inference_mode_computes_there(dtype):
    states = torch.randn(3, 8, dtype=dtype)
    with torch.inference_mode():
        layer = Linear(8, 8)
        expected = F.linear(states.float(), layer.weight, layer.bias)
        tolerance = 1e-6 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(layer(states).float(), expected, atol=tolerance, rtol=0)


def test_a_cast_weight_is_made_once_and_never_stale():
    layer = Linear(8, 8)
    states = torch.randn(20, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        first = layer(states)
        kept = layer._kept[1]
        assert layer(states).equal(first)
        assert layer._kept[1] is kept
        assert copy.deepcopy(layer)(states).equal(first)
        layer.weight.mul_(2)
        assert not layer(states).equal(first)
        layer.weight = torch.nn.Parameter(torch.zeros(8, 8))
        assert layer(states).equal(layer.bias.bfloat16().expand(20, 8))
    layer(states)
    assert layer._kept is None


@pytest.mark.parametrize("by_data", [False, True])
def test_weights_exchanged_twice_between_two_calls_are_noticed(by_data):
    """The memory of the first is free by then, and the third often gets it."""
    layer = Linear(256, 256)
    states = torch.randn(2, 256)
    with torch.no_grad():
        for _ in range(10):
            layer(states)
            for _ in range(2):
                if by_data:
                    layer.weight.data = torch.randn(256, 256)
                else:
                    layer.load_state_dict(Linear(256, 256).state_dict(), assign=True)
            expected = F.linear(states, layer.weight, layer.bias)
            torch.testing.assert_close(layer(states), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_way_of_attending_gives_the_same_states(dtype):
    torch.manual_seed(0)
    config = BertConfig(hidden_size=64, num_attention_heads=2, intermediate_size=64, attention_probs_dropout_prob=0.1)
    attention = MultiHeadSelfAttention(config)
    for lengths in ([5, 9, 1, 30], [12, 12], [40, 50], [3, 3, 3, 7, 7, 60, 60, 60], [70] * 3):
        batch = RaggedBatch.from_sequences([[1] * length for length in lengths])
        states = torch.randn(batch.num_tokens, 64, dtype=dtype)
        expected = attention.eval()(states, batch, need_maps=True).states
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(attention(states, batch).states, expected, atol=tolerance, rtol=0)
        if len(lengths) > 5:
            assert len(cut_into_rectangles(batch, CUT_COST // 2)) > 1
        # the path of training, with a dropout too rare to strike
        attention.train().dropout.probability = 1e-9
        torch.testing.assert_close(attention(states, batch).states, expected, atol=tolerance, rtol=0)


@pytest.fixture
def processor_for_every_kernel(monkeypatch):
    """A processor and a torch with all of oneDNN's kernels; what they were found to have before is asked for anew."""
    cached = (matmul.has_packed_kernels, matmul._has_bf16_kernels, matmul.onednn_is_faster, matmul.has_int8_kernels)
    monkeypatch.setattr(matmul.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(matmul, "onednn_multiplies_float32_faster", lambda: True)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


@pytest.mark.parametrize("changed", ["", "mkldnn", "onednn"])
def test_kernels_whose_private_operators_take_something_else_are_not_used(
    changed, processor_for_every_kernel, monkeypatch
):
    """Called as before they might compute something else without an error."""
    if changed:
        name, taken = next(iter(matmul._OPERATORS[changed].items()))
        monkeypatch.setitem(matmul._OPERATORS[changed], name, f"{taken}, int")
    assert matmul.has_packed_kernels() == matmul.onednn_is_faster() == (changed != "mkldnn")
    assert matmul.has_int8_kernels() == (changed != "onednn")
    if changed == "mkldnn":
        for dtype in (torch.float32, torch.bfloat16):
            weight = torch.randn(8, 8, dtype=dtype)
            assert matmul.packed(weight) is weight
