"""Loss, hits and gradient against torch's own cross-entropy."""

import pytest
import torch
import torch.nn.functional as F

from bertsmith.kernels import cross_entropy as module
from bertsmith.kernels.cross_entropy import cross_entropy


def example(rows, classes, dtype=torch.float32):
    torch.manual_seed(0)
    logits = (5 * torch.randn(rows, classes)).to(dtype).requires_grad_()
    labels = torch.randint(0, classes, (rows,))
    labels[::3] = -100
    return logits, labels


@pytest.mark.parametrize("chunk", [1, 100, 2**20])
@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (7, 50), (64, 33)])
def test_it_equals_torch(rows, classes, chunk, monkeypatch):
    monkeypatch.setitem(module._CHUNK, "cpu", chunk)
    logits, labels = example(rows, classes)
    expected = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    (gradient,) = torch.autograd.grad(expected / 3, logits)
    found = cross_entropy(logits, labels)
    (found.loss / 3).backward()
    torch.testing.assert_close(found.loss, expected)
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


def test_huge_and_damaged_logits():
    """A score of 10,000 is no overflow; a NaN stays one, so that the trainer can see it."""
    labels = torch.tensor([0, 1])
    found = cross_entropy(torch.tensor([[1e4, 0.0], [1e4, 0.0]]), labels)
    assert float(found.loss) == 1e4
    assert torch.isnan(cross_entropy(torch.tensor([[1.0, float("nan")], [0.0, 1.0]]), labels).loss)
