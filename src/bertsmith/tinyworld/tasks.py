"""Labelled tasks from the same draw as the stories: reviews, entity tags, questions with their answers.

A review is good or bad by one word of feeling. There are many such words and few labelled reviews, so a model that met
the words in stories, in each other's company, has a head start over one that did not: what pre-training is for, in
miniature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bertsmith.seeding import generator
from bertsmith.tinyworld.stories import Story, draw_facts, draw_stories, fill_pattern, render

REVIEWS = (
    "the day was {judgement} .",
    "{name} says that the day was {judgement} .",
    "in the morning {name} says that the day is {judgement} .",
    "in the evening the {noun} says that the day was {judgement} .",
    "the {noun} reads the book and says that the day is {judgement} .",
)


@dataclass(frozen=True)
class Review:
    """A review and its label, `good` or `bad`."""

    text: str
    label: str


@dataclass(frozen=True)
class TaggedSentence:
    """Words of one sentence and their entity tags (BIO over `person`, `place`, `animal`, `food`)."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """A question about a story; the answer is `context[start : start + len(answer)]`."""

    context: str
    question: str
    answer: str
    start: int


def draw_reviews(seed: int, count: int, *, split: str) -> Iterator[Review]:
    """Yields reviews; review i of a split is the same whoever draws it, and splits are different draws."""
    for index in range(count):
        rng = generator(seed, f"tinyworld/review/{split}", index)
        facts = draw_facts(rng)
        sentence = fill_pattern(REVIEWS[rng.integers(len(REVIEWS))], facts, *facts.people, rng)
        yield Review(render(sentence), facts.mood.name)


def draw_tagged_sentences(seed: int, count: int, *, split: str) -> Iterator[TaggedSentence]:
    """Yields the sentences of stories word by word, with the entity of every word."""
    produced = 0
    for story in draw_stories(seed, count, split=f"tags/{split}"):
        for sentence in story.sentences:
            if produced == count:
                return
            words = tuple(token.text for token in sentence)
            # 每个实体在这个世界里都只有一个词，所以标签总是 B- 开头
            yield TaggedSentence(words, tuple(f"B-{t.entity}" if t.entity else "O" for t in sentence))
            produced += 1


def draw_questions(seed: int, count: int, *, split: str) -> Iterator[Question]:
    """Yields one question per story, about something its text says."""
    for index, story in enumerate(draw_stories(seed, count, split=f"questions/{split}")):
        yield _ask(story, generator(seed, f"tinyworld/question/{split}", index))


def _ask(story: Story, rng: np.random.Generator) -> Question:
    context = story.text
    hero, friend = story.facts.people
    candidates = [
        (f"Where does {hero.name} live?", f"lives at the {hero.home}", hero.home),
        (f"What does {hero.name} like?", f"{hero.name} likes the {hero.food}", hero.food),
        (f"What does {friend.name} like?", f"and likes the {friend.food}", friend.food),
        (
            f"Which animal do {hero.name} and {friend.name} keep?",
            f"{hero.name} and {friend.name} keep the {story.facts.animal}",
            story.facts.animal,
        ),
    ]
    # 只问文中确实说过的事实：答案的位置由陈述它的那句话确定
    told = [candidate for candidate in candidates if candidate[1] in context]
    question, evidence, answer = told[rng.integers(len(told))]
    start = context.index(evidence) + len(evidence) - len(answer)
    return Question(context, question, answer, start)
