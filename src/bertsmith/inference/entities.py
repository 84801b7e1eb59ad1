"""Entities out of tags: which runs of words the tags of a sentence mark.

One reading serves BIO/IOB2, IOB1, BIOES, BMES and BILOU, with `-` or, where all tags have it, `_` behind the letter;
tags without a scheme (part of speech, plain `PER`, `Name` beside `E-mail`) form an entity for every run of the same
tag. Tags that break their own scheme are read as leniently as the CoNLL script does: an `I-PER` after `O` or after
`I-LOC` begins an entity (Tjong Kim Sang and De Meulder 2003).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

OUTSIDE, IOB1 = "O", "IOB1"
_PREFIXED = re.compile(r"[BIEMSLU]-")
_UNDERSCORED = re.compile(r"[BIEMSLU]_.")
_IN_BIOES = {"L": "E", "U": "S", "M": "I"}
"""The last word and the only word of an entity, as BILOU calls them, and those inside of it, as BMES does."""
_BARE = frozenset("BIESMO")


@dataclass(frozen=True)
class Transitions:
    """Which tags of a scheme may stand where: `first` [K] and `last` [K] in a sentence, and `next` [K, K].

    `next` tells whether the tag of a column may follow that of the row.
    """

    first: NDArray[np.bool_]
    next: NDArray[np.bool_]
    last: NDArray[np.bool_]

    def allow(self, tags: Sequence[int]) -> bool:
        """Tells whether the tags of a sentence, by their numbers, keep to the scheme."""
        if not len(tags):
            return True
        steps = all(self.next[one, two] for one, two in pairwise(tags))
        return bool(self.first[tags[0]] and self.last[tags[-1]]) and steps


@dataclass(frozen=True)
class Entity:
    """A typed run of words: `first` and `last` are word numbers from 0, both inside."""

    type: str
    first: int
    last: int


def entities_of(tags: Sequence[str], *, plain: bool = False) -> list[Entity]:
    """Reads the entities of one sentence; `plain` tags have no prefix: every run of one but `O` is an entity."""
    entities: list[tuple[str, int, int]] = []
    before, before_type = OUTSIDE, ""
    for place, tag in enumerate(tags):
        # 没有方案的标签：同一个标签连着的一段，就是一个实体
        prefix, kind = ("I", tag) if plain and tag != OUTSIDE else _parts(tag)
        if prefix != OUTSIDE:
            begins = before in ("E", "S", OUTSIDE) or prefix in ("B", "S") or kind != before_type
            first = place if begins else entities.pop()[1]
            entities.append((kind, first, place))
        before, before_type = prefix, kind
    return [Entity(*one) for one in entities]


def transitions_of(labels: Sequence[str], *, iob1: bool = False) -> Transitions | None:
    """Returns which tags may follow which: no `I-X` but after `B-X` or `I-X`; in BIOES no entity without its end.

    In IOB1 an entity begins with `I-X`, and with `B-X` only right behind another one of its type. None for tags without
    a scheme, which forbid nothing.
    """
    if is_plain([labels]):
        return None
    parts = [_parts(label) for label in labels]
    if iob1:
        begins = np.array([prefix == "B" for prefix, _ in parts])
        behind = [[kind in (one, "") and prefix in ("B", "I") for _, kind in parts] for prefix, one in parts]
        return Transitions(~begins, ~begins | np.array(behind), np.ones(len(labels), dtype=bool))
    # 有 E 或 S 的是 BIOES：实体没有收尾就不能断；BIO 的实体随时可以结束
    ends = {"E", "S"} & {prefix for prefix, _ in parts}
    opens = np.array([prefix in ("B", "I") and bool(ends) for prefix, _ in parts])
    inside = np.array([prefix in ("I", "E") for prefix, _ in parts])
    allowed = np.ones((len(labels), len(labels)), dtype=bool)
    for one, (before, before_type) in enumerate(parts):
        for two, (_, kind) in enumerate(parts):
            goes_on = before in ("B", "I") and before_type == kind
            allowed[one, two] = goes_on if inside[two] else not opens[one]
    return Transitions(~inside, allowed, ~opens)


def best_path(scores: NDArray[np.float64], transitions: Transitions) -> list[int]:
    """Finds the tags with the highest sum of scores among those that keep to the scheme (Viterbi 1967).

    `scores` are [W, K] log-probabilities. Returns [W] tag numbers; where no path keeps to the scheme, each word's best.
    """
    if not len(scores):
        return []
    forbidden = np.where(transitions.next, 0.0, -np.inf)
    reached = np.where(transitions.first, scores[0], -np.inf)
    back = np.zeros(scores.shape, dtype=np.int64)
    for word in range(1, len(scores)):
        steps = reached[:, None] + forbidden
        back[word] = steps.argmax(0)
        reached = steps.max(0) + scores[word]
    reached = np.where(transitions.last, reached, -np.inf)
    # 也可能没有一条路合规，例如标签集里缺了必需的那个：宁可逐词取最好，也不能没有答案
    if not np.isfinite(reached).any():
        return [int(place) for place in scores.argmax(-1)]
    path = [int(reached.argmax())]
    for word in range(len(scores) - 1, 0, -1):
        path.append(int(back[word, path[-1]]))
    return path[::-1]


def is_plain(sentences: Sequence[Sequence[str]]) -> bool:
    """Whether tags mark no beginnings and ends: none has a `B-`, `I-`, `E-` or `S-`, nor have all such letters alone.

    Tags such as `B_PER` mark them where all but `O` are written so, and one begins with `B_`. Few tags that look so
    among others (`E-mail` beside `Name`) mark nothing; few others among tags that mark entities are `odd_tags`.
    """
    marked = {tag for tags in sentences for tag in tags} - {OUTSIDE}
    # 单个字母只有在别的标签也都是这些字母时才算方案：意大利语的词性 B、I、E、S 不是实体
    if marked <= _BARE:
        return not marked
    # 词性里也有 U_x、S_x 这样的写法：全部标签都如此、并且有 B_，才是方案
    if all(map(_UNDERSCORED.match, marked)) and any(tag.startswith("B_") for tag in marked):
        return False
    prefixed = {tag for tag in marked if _PREFIXED.match(tag)}
    # 一个标签说了不算：E-mail 只是个名字；每个标签都有前缀才是方案，少数几个没有的是笔误
    begun = {tag[0] for tag in prefixed} & set("BISU")
    return not begun or (len(prefixed) < len(marked) and (len(prefixed) < len(marked) / 2 or not begun & set("BI")))


def odd_tags(labels: Sequence[str]) -> list[str]:
    """Returns the tags without a letter among those that mark entities; none where no tag marks any."""
    marked = [label for label in labels if label != OUTSIDE]
    if is_plain([labels]) or set(marked) <= _BARE:
        return []
    return [label for label in marked if not (_PREFIXED.match(label) or _UNDERSCORED.match(label))]


def is_iob1(labels: Sequence[str]) -> bool:
    """Whether the tags alone say that entities begin with `I-`: a type has no `B-`, and nothing marks an end."""
    letters: dict[str, set[str]] = {}
    for prefix, kind in map(_parts, labels):
        letters.setdefault(kind, set()).add(prefix)
    return not is_plain([labels]) and any("I" in one and not one & {"B", "E", "S"} for one in letters.values())


def _parts(tag: str) -> tuple[str, str]:
    """Returns the letter of a tag, as BIOES has it, and the type of the entity; no letter for a tag without one."""
    if tag in _BARE:
        return _IN_BIOES.get(tag, tag), "" if tag == OUTSIDE else "_"
    if _PREFIXED.match(tag) or _UNDERSCORED.match(tag):
        return _IN_BIOES.get(tag[0], tag[0]), tag[2:] or "_"
    return "", tag
