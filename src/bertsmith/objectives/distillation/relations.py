"""Relations: how alike the tokens of a text are to one another, in queries, keys and values (Wang et al. 2021, §3).

Attention itself is the relation of queries to keys; MiniLM (Wang et al. 2020) added that of values to values, its
successor takes queries, keys and values each among themselves. A relation is a table of tokens by tokens, whatever the
width behind it: so a narrow student learns from a wide teacher, and families may differ.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertsmith.objectives.distillation.loss import DistillationLoss, Seen, register


class Relations(DistillationLoss):
    """KL(teacher ‖ student) of softmax(X Xᵀ / √D) for X in queries, keys and values of the last layer, in nats.

    Heads are joined and cut anew into as many relation heads as both widths can be divided by, at most 12: teacher and
    student need not have equally many heads.
    """

    name, title = "relations", "relation"

    def __call__(self, student: Seen, teacher: Seen, temperature: float) -> tuple[Tensor, int]:  # noqa: ARG002
        """Compares the relations of every token, averaged over the three kinds and the heads."""
        heads = relation_heads(student, teacher)
        own, other = (relations(seen, heads) for seen in (student, teacher))
        real = torch.isfinite(other)  # [3, N, R, S, S]
        # 填充的键概率为零，log 为 -inf：0 · -inf 不是数，先换成同一个有限值
        own, other = (table.masked_fill(~real, 0.0) for table in (own, other))
        loss = (F.kl_div(own, other, reduction="none", log_target=True) * real).sum()
        return loss / (3 * heads), sum(student.lengths)


def relation_heads(student: Seen, teacher: Seen) -> int:
    """Returns how many heads the relations have."""
    widths = [seen.qkv.shape[2] * seen.qkv.shape[3] for seen in (student, teacher)]
    return max(heads for heads in range(1, 13) if math.gcd(*widths) % heads == 0)


def relations(seen: Seen, heads: int) -> Tensor:
    """Returns [3, N, R, S, S], the log-probabilities with which each token relates to each; -inf beyond the text."""
    rows = pad_sequence(list(seen.qkv.float().split(seen.lengths)), batch_first=True)  # [N, S, 3, A, D]
    count, longest = rows.shape[:2]
    rows = rows.view(count, longest, 3, heads, -1).permute(2, 0, 3, 1, 4)  # [3, N, R, S, D]
    scores = rows @ rows.transpose(-1, -2) / math.sqrt(rows.shape[-1])  # [3, N, R, S, S]
    places = torch.arange(longest, device=scores.device)
    is_real = places < torch.tensor(seen.lengths, device=scores.device)[:, None]  # [N, S]
    logs = scores.masked_fill(~is_real[:, None, None, :], -torch.inf).log_softmax(-1)
    return logs.masked_fill(~is_real[:, None, :, None], -torch.inf)


register(Relations())
