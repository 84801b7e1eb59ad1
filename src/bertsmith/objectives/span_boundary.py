"""The span boundary loss: a hidden piece is told by the tokens around its span alone (Joshi et al. 2020, §3.2).

It comes on top of masked LM wherever spans are hidden.
"""

from __future__ import annotations

from bertsmith.objectives.loss_term import LossTerm


# 要从两端的词猜出片段内部，模型必须把整段的意思汇聚到边界上：问答的答案正是这样的片段
class SpanBoundaryLoss(LossTerm):
    """Mean of -log p(true piece | both boundaries, its place in the span) over the M hidden pieces, in nats."""

    name, title = "sbo", "span-boundary"
