"""Loss, hits and gradient against torch's own cross-entropy."""

import functools

import pytest
import torch
import torch.nn.functional as F

from bertsmith.kernels import cross_entropy as module
from bertsmith.kernels.cross_entropy import PieceScores, cross_entropy


def example(rows, classes, dtype=torch.float32):
    torch.manual_seed(0)
    logits = (5 * torch.randn(rows, classes)).to(dtype).requires_grad_()
    labels = torch.randint(0, classes, (rows,))
    labels[::3] = -100
    return logits, labels


@pytest.mark.parametrize(("chunk", "cached"), [(1, 1), (100, 2**20), (2**20, 100)])
@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (7, 50), (64, 33)])
def test_it_equals_torch(rows, classes, chunk, cached, monkeypatch):
    monkeypatch.setitem(module._CHUNK, "cpu", chunk)
    monkeypatch.setitem(module._CACHED, "cpu", cached)
    logits, labels = example(rows, classes)
    expected = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    (gradient,) = torch.autograd.grad(expected / 3, logits)
    found = cross_entropy(logits, labels, divisor=3)
    found.loss.backward()
    torch.testing.assert_close(found.nats, expected)
    torch.testing.assert_close(found.loss, expected / 3)
    torch.testing.assert_close(logits.grad, gradient)
    assert int(found.hits) == int((logits.argmax(-1) == labels).sum())


def test_bf16_is_summed_in_float32_and_keeps_its_dtype():
    logits, labels = example(8, 40_000, torch.bfloat16)
    expected = F.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")
    found = cross_entropy(logits, labels)
    torch.testing.assert_close(found.loss, expected)
    found.loss.backward()
    assert logits.grad.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(logits.grad, gradient, rtol=1e-2, atol=1e-6)


def test_without_a_label_the_loss_is_zero_and_so_is_its_gradient():
    logits = torch.randn(3, 5, requires_grad=True)
    found = cross_entropy(logits, torch.full((3,), -100))
    found.loss.backward()
    assert float(found.loss.detach()) == 0.0
    assert int(found.hits) == 0
    assert not logits.grad.any()
    assert float(cross_entropy(torch.empty(0, 5), torch.empty(0, dtype=torch.int64)).loss) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_of_equal_scores_the_first_class_is_the_guess(dtype):
    """bf16 rounds the best scores of a trained model to the same number; all of them would count as hits otherwise."""
    logits = torch.tensor([[2.0, 2.0, 1.0]] * 3 + [[0.0, 0.0, 0.0]], dtype=dtype)
    assert int(cross_entropy(logits, torch.tensor([0, 1, 2, 1])).hits) == 1


@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("divisor", [7, torch.tensor(7.0, dtype=torch.float64)])
def test_what_the_loss_is_divided_and_multiplied_by_reaches_every_gradient(factor, divisor):
    inputs, labels = decoder(9, 37)
    wanted = torch.autograd.grad(factor * F.cross_entropy(F.linear(*inputs), labels, reduction="sum") / 7, inputs)
    found = cross_entropy(PieceScores(*inputs), labels, divisor=divisor).loss
    assert found.dtype == torch.float32
    for ours, expected in zip(torch.autograd.grad(factor * found, inputs), wanted, strict=True):
        torch.testing.assert_close(ours, expected)


def test_without_a_masked_piece_every_weight_has_a_gradient_of_zero():
    inputs, labels = decoder(0, 37)
    gradients = torch.autograd.grad(cross_entropy(PieceScores(*inputs), labels).loss, inputs)
    assert [each.shape for each in gradients] == [each.shape for each in inputs]
    assert not any(each.any() for each in gradients)


def test_huge_and_damaged_logits():
    """A score of 10,000 is no overflow; a NaN stays one, so that the trainer can see it."""
    labels = torch.tensor([0, 1])
    found = cross_entropy(torch.tensor([[1e4, 0.0], [1e4, 0.0]]), labels)
    assert float(found.loss) == 1e4
    assert torch.isnan(cross_entropy(torch.tensor([[1.0, float("nan")], [0.0, 1.0]]), labels).loss)


def decoder(rows, classes, dtype=torch.float32, width=8):
    torch.manual_seed(1)
    states = torch.randn(rows, width).to(dtype).requires_grad_()
    weight, bias = torch.randn(classes, width, requires_grad=True), torch.randn(classes, requires_grad=True)
    labels = torch.randint(0, classes, (rows,))
    labels[::3] = -100
    return (states, weight, bias), labels


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize(("chunk", "cached"), [(1, 1), (5_000, 500), (2**20, 2**20)])
def test_a_decoder_and_its_loss_in_one_pass_equal_the_two_in_turn(rows, chunk, cached, monkeypatch):
    """With chunks of one row, of some, the last one smaller, and of all."""
    monkeypatch.setitem(module._CHUNK, "cpu", chunk)
    monkeypatch.setitem(module._CACHED, "cpu", cached)
    inputs, labels = decoder(rows, 37)
    expected = F.cross_entropy(F.linear(*inputs), labels, ignore_index=-100, reduction="sum")
    gradients = torch.autograd.grad(expected / 3, inputs)
    scores = PieceScores(*inputs)
    found = cross_entropy(scores, labels)
    assert scores._logits is None
    torch.testing.assert_close(found.loss, expected)
    for ours, wanted in zip(torch.autograd.grad(found.loss / 3, inputs), gradients, strict=True):
        torch.testing.assert_close(ours, wanted)
    assert int(found.hits) == int((F.linear(*inputs).argmax(-1) == labels).sum())


@pytest.mark.parametrize("tile", [1, 16, 37])
def test_pieces_that_fill_the_last_tile_change_nothing(tile, monkeypatch):
    (states, weight, bias), labels = decoder(300, 37)
    plain = cross_entropy(PieceScores(states, weight, bias), labels)
    wanted = torch.autograd.grad(plain.loss, (states, weight, bias))
    monkeypatch.setitem(module._TILE, "cpu", tile)
    found = cross_entropy(PieceScores(states, weight, bias), labels)
    torch.testing.assert_close(found, plain)
    for ours, expected in zip(torch.autograd.grad(found.loss, (states, weight, bias)), wanted, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_it_is_the_same_whatever_the_rows(dtype, monkeypatch):
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda work, **how: plain(work, backend="aot_eager", **how))
    # 缓存也换一份：别的测试不该用到这里编译的
    monkeypatch.setattr(module, "_compiled", functools.cache(module._compiled.__wrapped__))
    for rows in (5, 300):
        (states, weight, bias), labels = decoder(rows, 37, dtype)
        wanted, found = (
            cross_entropy(PieceScores(states, weight, bias, compiled=compiled), labels) for compiled in (False, True)
        )
        torch.testing.assert_close(found, wanted)
        slopes = [torch.autograd.grad(each.loss, (states, weight, bias)) for each in (found, wanted)]
        torch.testing.assert_close(*slopes)
        with torch.inference_mode():
            torch.testing.assert_close(cross_entropy(PieceScores(states, weight, bias, compiled=True), labels), wanted)


def test_a_decoder_in_bf16_adds_its_gradient_in_float32():
    (states, weight, bias), labels = decoder(400, 50, torch.bfloat16, width=16)
    exact = states.detach().float().requires_grad_()
    expected = F.cross_entropy(F.linear(exact, weight, bias), labels, ignore_index=-100, reduction="sum")
    of_exact = torch.autograd.grad(expected, (exact, weight, bias))
    found = cross_entropy(PieceScores(states, weight, bias), labels)
    torch.testing.assert_close(found.loss, expected, rtol=1e-2, atol=0)
    of_ours = torch.autograd.grad(found.loss, (states, weight, bias))
    assert [each.dtype for each in of_ours] == [torch.bfloat16, torch.float32, torch.float32]
    for ours, wanted in zip(of_ours, of_exact, strict=True):
        assert float((ours.float() - wanted).norm() / wanted.norm()) < 0.02


def test_scores_that_were_read_are_not_computed_again(monkeypatch):
    inputs, labels = decoder(7, 20)
    scores = PieceScores(*inputs)
    logits = scores.logits
    monkeypatch.setattr(module, "linear", None)
    found = cross_entropy(scores, labels)
    torch.testing.assert_close(found.loss, F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum"))
    assert scores.logits is logits
    assert logits.equal(F.linear(*inputs))


def test_a_frozen_decoder_gets_no_gradient_and_nothing_is_kept_where_none_is_asked():
    (states, weight, bias), labels = decoder(7, 20)
    found = cross_entropy(PieceScores(states, weight.detach(), bias.detach()), labels)
    found.loss.backward()
    assert states.grad.any()
    assert weight.grad is None
    with torch.inference_mode():
        assert not cross_entropy(PieceScores(states, weight, bias), labels).loss.requires_grad
