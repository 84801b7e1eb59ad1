"""Entities out of tags: which runs of words the tags of a sentence mark.

One reading serves BIO/IOB2, IOB1, BIOES and BILOU, with `-` or, where all tags have it, `_` behind the letter; tags
without any prefix (part of speech, plain `PER`) form an entity for every run of the same tag. Tags that break their own
scheme are read as leniently as the CoNLL script does: an `I-PER` after `O` or after `I-LOC` begins an entity (Tjong Kim
Sang and De Meulder 2003).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

OUTSIDE = "O"
_PREFIXED = re.compile(r"[BIES]-")
_UNDERSCORED = re.compile(r"[BIEMSLU]_.")
_IN_BIOES = {"L": "E", "U": "S"}
"""The last word and the only word of an entity, as BILOU calls them."""
_BARE = frozenset("BIESMO")


@dataclass(frozen=True)
class Entity:
    """A typed run of words: `first` and `last` are word numbers from 0, both inside."""

    type: str
    first: int
    last: int


def entities_of(tags: Sequence[str], *, plain: bool = False) -> list[Entity]:
    """Reads the entities of one sentence.

    Args:
        tags: one per word.
        plain: the tags have no prefix; every run of the same tag but `O` is an entity.
    """
    if plain:
        return _runs(tags)
    entities = []
    first = 0
    before, before_type = OUTSIDE, ""
    # 末尾补一个 O，让最后一个实体也能正常结束
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = _parts(tag)
        if _ends(before, before_type, prefix, kind):
            entities.append(Entity(before_type, first, place - 1))
        if _begins(before, before_type, prefix, kind):
            first = place
        before, before_type = prefix, kind
    return entities


def is_plain(sentences: Sequence[Sequence[str]]) -> bool:
    """Whether tags mark no beginnings and ends: none has a `B-`, `I-`, `E-` or `S-`, nor have all such letters alone.

    Tags such as `B_PER` mark them where all but `O` are written so, and one begins with `B_`.
    """
    found = {tag for tags in sentences for tag in tags}
    # 单个字母只有在别的标签也都是这些字母时才算方案：意大利语的词性 B、I、E、S 不是实体
    bare = found <= _BARE and bool(found - {OUTSIDE})
    # 词性里也有 U_x、S_x 这样的写法：全部标签都如此、并且有 B_，才是方案
    marked = found - {OUTSIDE}
    underscored = all(map(_UNDERSCORED.match, marked)) and any(tag.startswith("B_") for tag in marked)
    return not (bare or underscored or any(map(_PREFIXED.match, found)))


def _parts(tag: str) -> tuple[str, str]:
    """Returns the letter of a tag, as BIOES has it, and the type of the entity."""
    if tag[1:2] in ("-", "_"):
        return _IN_BIOES.get(tag[0], tag[0]), tag[2:] or "_"
    return tag[:1], tag[1:].split("-", 1)[-1] or "_"


def _runs(tags: Sequence[str]) -> list[Entity]:
    entities = []
    place = 0
    for tag, group in groupby(tags):
        length = len(list(group))
        if tag != OUTSIDE:
            entities.append(Entity(tag, place, place + length - 1))
        place += length
    return entities


def _ends(before: str, before_type: str, prefix: str, kind: str) -> bool:
    if before in ("O", "."):
        return False
    return before in ("E", "S") or (before in ("B", "I") and prefix in ("B", "S", "O")) or before_type != kind


def _begins(before: str, before_type: str, prefix: str, kind: str) -> bool:
    if prefix in ("B", "S"):
        return True
    if prefix in ("O", "."):
        return False
    return (before in ("E", "S", "O") and prefix in ("E", "I")) or before_type != kind
