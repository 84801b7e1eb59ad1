"""The call of CUDA's kernel, with its arithmetic held on the CPU: which keys each query is told to read."""

import pytest
import torch
from torch.nn.attention import varlen

from bertsmith.batch import CAUSAL, FULL, RaggedBatch
from bertsmith.kernels import ragged_attention as module


def by_hand(query, key, value, cu_query, cu_key, _longest_query, _longest_key, *, window_size):
    """What the kernel documents: a query reads `left` keys before its own place and `right` behind; -1 is no bound."""
    left, right = window_size
    found = []
    for start, end in zip(cu_query[:-1].tolist(), cu_query[1:].tolist(), strict=True):
        q, k, v = (each[start:end].transpose(0, 1) for each in (query, key, value))
        behind = torch.arange(end - start) - torch.arange(end - start)[:, None]
        hidden = torch.zeros_like(behind, dtype=torch.bool)
        if left >= 0:
            hidden |= behind < -left
        if right >= 0:
            hidden |= behind > right
        scores = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        found.append((scores.softmax(-1) @ v).transpose(0, 1))
    assert torch.equal(cu_query, cu_key)
    return torch.cat(found)


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("mask", [FULL, CAUSAL])
def test_the_kernel_is_told_the_same_window_as_the_equation(mask, window, monkeypatch):
    monkeypatch.setattr(varlen, "varlen_attn", by_hand)
    torch.manual_seed(0)
    batch = RaggedBatch.from_sequences([[1] * 9, [1] * 4, [1]])
    qkv = torch.randn(batch.num_tokens, 3, 2, 8)
    mask = mask.within(window)
    own = module._attend_varlen(qkv, batch, mask)
    expected = torch.cat([by_places(part, window, causal=mask.is_causal) for part in qkv.split(batch.lengths)])
    torch.testing.assert_close(own, expected)


@pytest.mark.parametrize(
    ("head_size", "capability", "takes"),
    [(64, (8, 0), True), (256, (9, 0), True), (20, (8, 0), False), (264, (9, 0), False), (64, (7, 5), False)],
)
def test_the_kernel_takes_whole_eights_up_to_256_on_recent_gpus(head_size, capability, takes):
    assert module.flash_takes(head_size, capability) == takes


def test_heads_that_the_kernel_does_not_take_are_padded(monkeypatch):
    """On `meta`, which stands for a GPU: shapes alone."""
    monkeypatch.setattr(varlen, "varlen_attn", None)
    batch = RaggedBatch.from_sequences([[1] * 9, [1] * 4]).to("meta")
    qkv = torch.empty(13, 3, 2, 20, dtype=torch.bfloat16, device="meta")
    assert module.ragged_attention(qkv, batch, FULL, by_hand, training=False, dropout=0.0).shape == (13, 40)


def by_places(qkv, window, *, causal):
    """Attention of one sequence, token by token."""
    query, key, value = qkv.unbind(1)
    rows = []
    for place in range(len(qkv)):
        read = [
            other
            for other in range(len(qkv))
            if (window is None or abs(other - place) <= window) and not (causal and other > place)
        ]
        scores = torch.einsum("hd,khd->hk", query[place], key[read]) * 8**-0.5
        rows.append(torch.einsum("hk,khd->hd", scores.softmax(-1), value[read]).flatten())
    return torch.stack(rows)
