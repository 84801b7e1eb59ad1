"""The importance of heads against finite differences of the loss."""

import pytest
import torch
from torch.nn.functional import mse_loss

from bertsmith.batch import RaggedBatch
from bertsmith.model import ModelForPreTraining, family_named
from bertsmith.model.surgery import head_importance

BATCH = RaggedBatch.from_sequences([[2, 7, 9, 3], [2, 8, 3], [2, 5, 6, 7, 8, 3]])


def model_of(family, size="2/64", **changes):
    torch.manual_seed(0)
    config = family_named(family).config.named(size, vocab_size=20, **changes).changed(num_attention_heads=4)
    model = ModelForPreTraining(config, pair_head=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
    return model


def loss_of(model, batch):
    """A mean over sequences, so that a sequence's own gradient is found by moving it alone."""
    states = model.backbone(batch).hidden_states.double()
    target = torch.linspace(-1, 1, states.numel(), dtype=torch.float64).view_as(states)
    return torch.stack(
        [mse_loss(*pair) for pair in zip(states.split(batch.lengths), target.split(batch.lengths), strict=True)]
    ).mean()


def by_differences(model, layer, head, step=1e-2):
    """Σ over sequences of |Δloss / Δgate|, by scaling one head's columns in one sequence at a time."""
    attention = model.backbone.encoder.blocks[layer].attention
    size, total = attention.head_size, 0.0
    for sequence in range(BATCH.num_sequences):
        found = []
        for sign in (1, -1):

            def scaled(_module, given, sign=sign, sequence=sequence):
                (mixed,) = given
                mixed = mixed.clone()
                first = sum(BATCH.lengths[:sequence])
                mixed[first : first + BATCH.lengths[sequence], head * size : (head + 1) * size] *= 1 + sign * step
                return (mixed,)

            handle = attention.output.register_forward_pre_hook(scaled)
            with torch.no_grad():
                found.append(float(loss_of(model, BATCH)))
            handle.remove()
        total += abs(found[0] - found[1]) / (2 * step)
    return total


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_importance_is_how_the_loss_follows_a_gate(family):
    model = model_of(family)
    found = head_importance(model, [BATCH], loss_of)
    for layer, values in enumerate(found):
        expected = torch.tensor([by_differences(model, layer, head) for head in range(4)])
        assert values == pytest.approx((expected / expected.norm()).tolist(), rel=2e-2, abs=2e-3)
    # 测量之后模型照旧：没有钩子，没有梯度
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_head_that_says_nothing_does_not_matter():
    model = model_of("bert")
    attention = model.backbone.encoder.blocks[0].attention
    size = attention.head_size
    with torch.no_grad():
        attention.output.weight[:, size : 2 * size] = 0
    values = head_importance(model, [BATCH, BATCH], loss_of)[0]
    assert values[1] == 0.0
    assert min(values[0], values[2], values[3]) > 0


def test_layers_that_share_their_weights_share_their_importance():
    model = model_of("albert", embedding_size=16)
    first, second = head_importance(model, [BATCH], loss_of)
    assert first == second


def test_a_text_counts_the_same_in_a_batch_of_any_size():
    def loss_of(model, batch):
        states = model.backbone(batch).hidden_states[:, :7]
        return torch.stack([each.sum() for each in states.split(batch.lengths)]).mean()

    model = model_of("bert")
    together = head_importance(model, [BATCH], loss_of)
    apart = head_importance(model, [BATCH.sequences(0, 2), BATCH.sequences(2, 3)], loss_of)
    torch.testing.assert_close(torch.tensor(apart), torch.tensor(together), rtol=1e-3, atol=1e-4)
