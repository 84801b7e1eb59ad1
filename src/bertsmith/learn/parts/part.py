"""How a part is written down: every text in both languages side by side, so that neither is forgotten."""

from __future__ import annotations

from typing import NamedTuple

from bertsmith.learn.lesson import Text


class PartSection(NamedTuple):
    """A few paragraphs and the name of the computation that follows, if any."""

    text: Text
    computation: str | None = None


class PartQuestion(NamedTuple):
    """A question with its choices; `answer` counts them from 0."""

    prompt: Text
    choices: tuple[Text, ...]
    answer: int
    explanation: Text


class PartCard(NamedTuple):
    """A flash card. `key` names it for good: progress is kept under it."""

    key: str
    front: Text
    back: Text


class PartLink(NamedTuple):
    """A dotted name of the code, what it is, and the chapter of the paper map that has it."""

    name: str
    about: Text
    chapter: str


class Part(NamedTuple):
    """One part of the story."""

    id: str
    title: Text
    sections: tuple[PartSection, ...]
    questions: tuple[PartQuestion, ...]
    cards: tuple[PartCard, ...]
    links: tuple[PartLink, ...]


CHAPTERS: dict[str, Text] = {
    "idea": Text("1-and-2-the-idea", "1-与-2想法"),
    "model": Text("3-the-model", "3模型"),
    "transformer": Text("the-transformer-underneath", "底下的-transformer"),
    "pre-training": Text("31-pre-training", "31预训练"),
    "fine-tuning": Text("32-and-4-fine-tuning", "32-与-4微调"),
    "ablations": Text("5-the-ablations", "5消融实验"),
    "appendix": Text("the-appendix", "附录"),
}
"""Chapters of `docs/paper_map.md` and `docs/paper_map.zh-CN.md`: the anchors of their headings."""
