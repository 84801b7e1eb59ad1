"""Which examples are learned and which are held out: parts of a cross-validation, and of a file that comes alone.

Classes, kinds of entities and questions without an answer are spread evenly, or the latest rows are held out. What
belongs together stays on one side: a query's texts, the questions of a passage or an article, the sentences of a
document, the rows of a group, equal texts, and in a file that is divided without being asked, texts that are almost
equal. These are found by the overlap of their runs of five letters, estimated by minwise hashing in bands (Broder 1997;
Leskovec et al. 2020, §3.4). Where more than a part is almost equal, it is a form that people fill in, and only equal
texts stay together.
"""

from __future__ import annotations

import math
import re
import unicodedata
import warnings
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.tasks.task import ExampleT, Task
from bertsmith.seeding import generator

LARGE = 1000
"""Of fewer examples a fifth is held out for dev, of more a tenth; so for test."""
ENOUGH_FOR_TEST = 200
FEWEST = 10
_RUN, _LETTERS = 5, 2000
_HASHES, _BANDS = 16, 4
"""Texts of which 80 % of the runs are the same share a band in 88 of 100 cases, of which half in 23."""


def fold_numbers(
    task: Task[ExampleT, Any],
    examples: Sequence[ExampleT],
    folds: int,
    seed: int,
    belongs: Sequence[Hashable] | None = None,
) -> list[int]:
    """Returns for each example the number of its part, from 0: all of about the same size and classes, none empty.

    What `belongs` together stays together: of each example its group, by default what the task and `group` say.
    """
    if folds < 2:
        raise ConfigError(f"folds {folds}: give 2 or more")
    classes = [task.classes_of(example) for example in examples]
    counts = Counter(one for several in classes for one in several)
    groups: dict[Hashable, list[int]] = {}
    for number, own in enumerate(belongs or groups_of(task, examples)):
        groups.setdefault(own, []).append(number)
    if len(groups) < folds:
        raise InputError(
            f"the training file has {len(groups)} examples that do not belong together, for {folds} folds; give fewer"
            " folds or more examples"
        )
    together = list(groups.values())
    strata: dict[Hashable, list[list[int]]] = {}
    draws = generator(seed, "finetune/folds")
    for place in draws.permutation(len(together)).tolist():
        # 有几个类的，按其中最少见的来分：常见的怎样分都够（Sechidis et al. 2011, §3）
        held = {one for number in together[place] for one in classes[number]}
        rarest = min(held, key=lambda one: (counts[one], str(one)), default=None)
        strata.setdefault(rarest, []).append(together[place])
    numbers, sizes = [0] * len(examples), [0] * folds
    for members in strata.values():
        # 都一样少时随机选：按次序选，只有两行的类总是成对地落在同两份里
        within, ties = [0] * folds, draws.permutation(folds).tolist()
        for group in members:
            # 先看这一类在哪一份里最少，再看哪一份最小：类别均匀，大小也均匀
            part = min(range(folds), key=lambda one: (within[one], sizes[one], ties[one]))
            within[part] += len(group)
            sizes[part] += len(group)
            for number in group:
                numbers[number] = part
    return numbers


def groups_of(task: Task[ExampleT, Any], examples: Sequence[ExampleT]) -> list[int]:
    """Returns the group of each example: what the task and `group` say belongs together is in one."""
    return _joined([task.keys_of(example) for example in examples])


def held_out(
    task: Task[ExampleT, Any], examples: Sequence[ExampleT], seed: int, *, with_test: bool
) -> dict[str, list[int]]:
    """Divides a file: `train`, `dev` and, if asked for and there are enough rows, `test` → numbers of rows, from 0."""
    share = 5 if len(examples) < LARGE else 10
    groups = together(task, examples, share)
    if len(set(groups)) < FEWEST:
        raise InputError(
            f"the training file has {len(set(groups))} different examples, too few to hold some out; give --dev, or"
            " more of them"
        )
    by_time = any(getattr(example, "time", None) is not None for example in examples)
    names = {0: "dev", 1: "test"} if with_test and len(examples) >= ENOUGH_FOR_TEST else {0: "dev"}
    parts = [share] * len(examples)
    if by_time:
        parts = _latest(examples, share, groups, len(names))
    else:
        sizes = Counter(groups)
        # 比一份还大的组只能用来学：留出来就没有多少可学的了
        dealt = [number for number, group in enumerate(groups) if sizes[group] <= len(examples) / share]
        if len({groups[number] for number in dealt}) < FEWEST:
            raise InputError("most rows of the training file belong together in a few groups; give --dev")
        own = [groups[number] for number in dealt]
        for number, part in zip(dealt, fold_numbers(task, [examples[n] for n in dealt], share, seed, own), strict=True):
            parts[number] = part
    classes = [task.classes_of(example) for example in examples]
    learned = {one for several, part in zip(classes, parts, strict=True) if part not in names for one in several}
    # 只有一个类、而这个类全落在留出的部分里，就没有可学的：它和同组的留在训练里
    alone = ((group, own[0]) for group, own in zip(groups, classes, strict=True) if len(own) == 1)
    kept = set() if by_time else {group for group, own in alone if own not in learned}
    divided: dict[str, list[int]] = {"train": [], **{name: [] for name in names.values()}}
    for number, (group, part) in enumerate(zip(groups, parts, strict=True)):
        divided["train" if group in kept else names.get(part, "train")].append(number)
    if not divided["dev"]:
        raise InputError("the classes of the training file have too few rows each to hold some out; give --dev")
    if not divided["train"]:
        raise InputError(
            f"the rows have too few different times to hold out {' and '.join(names.values())}; give --dev"
        )
    return divided


def together(task: Task[ExampleT, Any], examples: Sequence[ExampleT], share: int) -> list[int]:
    """Returns the group of each example, as `almost_equal`; of a group larger than one of `share` parts only equals."""
    groups = almost_equal(task, examples)
    large = {group for group, count in Counter(groups).items() if count > len(examples) / share}
    if large:
        # 一张表格填出来的文本都几乎相同：连成一片就什么也分不出来
        rest = _joined([_keys(task, example, near=False) for example in examples])
        whole, equal = Counter(groups), Counter(rest)
        count = sum(g in large and equal[own] < whole[g] for g, own in zip(groups, rest, strict=True))
        groups = [rest[number] if group in large else group for number, group in enumerate(groups)]
        if count:
            warnings.warn(
                f"{count:,} texts are near-duplicates; only exact duplicates are kept in the same part", stacklevel=4
            )
    return groups


def _latest(examples: Sequence[Any], share: int, groups: Sequence[int], count: int) -> list[int]:
    """Returns the part of each example: of `count` the last for the latest, down to 0; `share` for all before."""
    last: dict[int, float] = {}
    for example, group in zip(examples, groups, strict=True):
        last[group] = max(last.get(group, -math.inf), example.time)
    rows = Counter(last[group] for group in groups)
    earlier, parts = sorted(rows), dict.fromkeys(rows, share)
    for part in reversed(range(count)):
        taken = 0
        # 同一时刻的不分开：装不下的归较早的一边，但每一份至少有一个时刻
        while earlier and (not taken or taken + rows[earlier[-1]] <= len(examples) / share):
            taken += rows[earlier[-1]]
            parts[earlier.pop()] = part
    return [parts[last[group]] for group in groups]


def almost_equal(task: Task[ExampleT, Any], examples: Sequence[ExampleT]) -> list[int]:
    """Returns the group of each example: that of those that it is equal or almost equal to."""
    return _joined([_keys(task, example, near=True) for example in examples])


def _joined(keys: Sequence[Iterable[Hashable]]) -> list[int]:
    """Returns the group of each example: those that share a key are in one, also over others between them."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    numbers: dict[Hashable, int] = {}
    # 例子和它们的键是图上的点：连在一起的是一组
    edges = [(n, len(keys) + numbers.setdefault(key, len(numbers))) for n, own in enumerate(keys) for key in own]
    size = len(keys) + len(numbers)
    graph = coo_array((np.ones(len(edges)), np.array(edges, dtype=np.int64).reshape(-1, 2).T), shape=(size, size))
    groups: list[int] = connected_components(graph, directed=False)[1][: len(keys)].tolist()
    return groups


_DRAWS = generator(0, "finetune/almost equal")
_FACTORS, _TERMS = (_DRAWS.integers(1, 2**32, (_HASHES, 1), dtype=np.uint64) | np.uint64(1) for _ in range(2))


def _keys(task: Task[ExampleT, Any], example: ExampleT, *, near: bool) -> Iterator[Hashable]:
    """Yields what an example shares with those that belong to it; `near` for those that are almost equal, too."""
    yield from task.keys_of(example)
    text = unicodedata.normalize("NFKC", " ".join(task.texts_of(example))).casefold()
    letters = re.sub(r"[\W_]+", "", text)[:_LETTERS]
    yield "letters", letters or text
    if not near:
        return
    runs = {
        zlib.crc32(letters[at : at + _RUN].encode("utf-8", "surrogatepass")) for at in range(len(letters) - _RUN + 1)
    }
    # 太短的文本差一个字就是另一句话：只认完全相同
    if len(runs) >= 4 * _RUN:
        hashes = (np.array(sorted(runs), dtype=np.uint64) * _FACTORS + _TERMS) % np.uint64(2**32)
        least = hashes.min(1).reshape(_BANDS, -1)
        yield from (("band", number, *row) for number, row in enumerate(least.tolist()))
