"""How much each attention head matters (Michel et al. 2019, §4.1).

    I(head) = mean over texts of |∂loss / ∂gate|

The gate is a factor before the head's output that is always 1: its gradient says how the loss would change if the head
said a little less. One backward pass measures all heads. The importances of a layer are scaled to length 1, as in the
paper, since gradients grow and shrink from layer to layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.model.backbone import PretrainedModel


def head_importance(
    model: PretrainedModel, batches: Iterable[Any], loss: Callable[[Any, Any], Tensor]
) -> list[list[float]]:
    """Returns the importance of every head: for each layer those of its heads, in the order that they have now.

    Args:
        model: any; its weights and gradients stay as they are.
        batches: of any kind.
        loss: of a model on a batch; its mean over sequences, as objectives give it.
    """
    blocks: list[Any] = list(model.backbone.encoder.blocks)
    attentions = list(dict.fromkeys(block.attention for block in blocks))
    sums = [torch.zeros(attention.num_heads) for attention in attentions]
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    was_training = model.training
    model.eval().requires_grad_(False)
    try:
        for batch in batches:
            gates: list[list[Tensor]] = [[] for _ in attentions]
            with ExitStack() as stack:
                for attention, opened in zip(attentions, gates, strict=True):
                    stack.enter_context(_gated(attention, opened))
                loss(model, batch).backward()
            for total, opened in zip(sums, gates, strict=True):
                for gate in opened:
                    # 每条序列各自的梯度先取绝对值再相加：正负相抵会让重要的头看起来没用
                    total += gate.grad.abs().sum(0).cpu() if gate.grad is not None else 0.0
    finally:
        model.train(was_training)
        for parameter in learning:
            parameter.requires_grad_(True)
    scaled = [(total / total.norm().clamp(min=1e-30)).tolist() for total in sums]
    return [scaled[attentions.index(block.attention)] for block in blocks]


@contextmanager
def _gated(attention: Any, opened: list[Tensor]) -> Iterator[None]:
    """Puts a factor 1 before each head of each sequence, [N, A], and adds it to `opened`, for as long as it lasts."""
    read: list[RaggedBatch] = []

    def remember(_module: nn.Module, given: tuple[Any, ...]) -> None:
        read[:] = [given[1]]

    def multiply(_module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        (mixed,), batch = given, read[0]
        gate = torch.ones(batch.num_sequences, attention.num_heads, device=mixed.device, requires_grad=True)
        opened.append(gate)
        lengths = torch.tensor(batch.lengths, device=mixed.device)
        per_token = gate.repeat_interleave(lengths, dim=0).to(mixed.dtype)  # [T, A]
        return ((mixed.unflatten(1, (attention.num_heads, -1)) * per_token[..., None]).flatten(1),)

    handles = [attention.register_forward_pre_hook(remember), attention.output.register_forward_pre_hook(multiply)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
