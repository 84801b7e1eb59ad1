"""The batches of sentence vectors: which examples share one, and their texts as queries, positives and negatives.

Whatever shares a batch is a negative of the others, so a batch never holds two copies of a positive: pairs are dealt
like cards. What else says the same as a positive is left out of the negatives by the loss.

The label of an encoded example is a pair: the number of each of its texts, equal for equal texts (of a class, for all
its texts), and the targets of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bertsmith.finetune.tasks.task import EncodedExample
from bertsmith.objectives.vectors.batch import VectorBatch
from bertsmith.objectives.vectors.loss import Needs


def deal(encoded: Sequence[EncodedExample], size: int, draws: np.random.Generator, needs: Needs) -> list[list[int]]:
    """Divides an epoch into batches that hold no positive twice, and of each class an even number of texts.

    Args:
        encoded: N examples of one kind.
        size: the most examples in a batch.
        draws: decides the order.
        needs: of the loss; one that reads scores has no negatives, and its batches may hold anything.

    Returns:
        The numbers of the examples of each batch; of a class with an odd number of texts, one is left out.
    """
    order = draws.permutation(len(encoded)).tolist()
    if needs == "scores":
        return [order[first : first + size] for first in range(0, len(order), size)]
    groups: dict[int, list[int]] = {}
    is_classes = len(encoded[0].input_ids) == 1
    for number in order:
        identities, _ = encoded[number].label
        # 一条文本按类分组，一对按正例分组
        groups.setdefault(identities[0] if is_classes else identities[1], []).append(number)
    if is_classes:
        # 一类里两两成对：落单的一条这一轮不学，下一轮轮到别人
        pairs = [group[n : n + 2] for group in groups.values() for n in range(0, len(group) - 1, 2)]
        count = -(-len(pairs) // max(1, size // 2))
        dealt = [[number for pair in pairs[first::count] for number in pair] for first in range(count)]
    else:
        # 像发牌一样轮流发给各批：同一个正例的几份挨在一起，必然落到不同的批
        cards = [number for group in groups.values() for number in group]
        count = max(-(-len(cards) // size), *map(len, groups.values()))
        dealt = [cards[first::count] for first in range(count)]
    return [dealt[number] for number in draws.permutation(count).tolist()]


def lay_out(encoded: Sequence[EncodedExample], needs: Needs) -> VectorBatch:
    """Lays out queries, positives and negatives; of texts with classes, every two of a class are a pair.

    Args:
        encoded: the examples of a batch.
        needs: of the loss; a teacher's vectors come in the order of the texts, other targets in that of the examples.
    """
    if len(encoded[0].input_ids) == 1:
        encoded = _paired(encoded)
    columns = [[example.input_ids[side] for example in encoded] for side in (0, 1)]
    numbers = [[example.label[0][side] for example in encoded] for side in (0, 1)]
    negatives = [ids for example in encoded for ids in example.input_ids[2:]]
    owners = [number for number, example in enumerate(encoded) for _ in example.input_ids[2:]]
    targets = [target for example in encoded for target in example.label[1]]
    if needs == "teacher":
        sides = [[example.label[1][side] for example in encoded] for side in (0, 1)]
        targets = [*sides[0], *sides[1], *(each for example in encoded for each in example.label[1][2:])]
    return VectorBatch.of(
        [*columns[0], *columns[1], *negatives],
        [*numbers[0], *numbers[1], *(number for example in encoded for number in example.label[0][2:])],
        owners,
        torch.from_numpy(np.array(targets, dtype=np.float32)),
    )


def _paired(encoded: Sequence[EncodedExample]) -> list[EncodedExample]:
    """Returns every two texts of a class as one example."""
    waiting: dict[int, EncodedExample] = {}
    pairs = []
    for example in encoded:
        label = example.label[0][0]
        if label not in waiting:
            waiting[label] = example
            continue
        other = waiting.pop(label)
        pairs.append(
            EncodedExample(
                other.input_ids + example.input_ids,
                other.token_type_ids + example.token_type_ids,
                ([label] * 2, other.label[1] + example.label[1]),
            )
        )
    return pairs
