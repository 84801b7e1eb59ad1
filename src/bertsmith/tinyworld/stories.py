"""Seeded stories of the village, and the truth about every blank in them.

A story tells one day in one corner of the village. Its facts are drawn once and hold to the end: two people, their
home, their animal, what each likes to eat, and whether the day is good or bad. So a blank can often be filled only
from an earlier sentence, and a true next sentence differs from a random one in many small ways that add up.

Every word that is drawn comes from `slot_distribution`, the one place where the odds stand; the generator samples
from it and a test can compare a model with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from bertsmith.seeding import generator
from bertsmith.tinyworld.words import CORNERS, MEN, MOODS, WOMEN, Corner, Mood

FAITHFULNESS = 0.7
"""Probability that a person eats, keeps or visits their own food, animal or place rather than any of the corner's."""

BOOK_SHARE = 0.6
"""Probability that what is read is a book rather than the corner's own reading."""


@dataclass(frozen=True)
class Person:
    """Somebody of the story: name, `man` or `woman`, job, home (a place) and favourite food."""

    name: str
    noun: str
    job: str
    home: str
    food: str

    @property
    def pronoun(self) -> str:
        """`he` or `she`; the two people of a story never share it."""
        return "he" if self.noun == "man" else "she"


@dataclass(frozen=True)
class Facts:
    """What stays true through one story."""

    corner: Corner
    mood: Mood
    people: tuple[Person, Person]
    animal: str


@dataclass(frozen=True)
class Token:
    """One word or punctuation mark, and its entity class: `person`, `place`, `animal`, `food` or `` (none)."""

    text: str
    entity: str = ""


Sentence = tuple[Token, ...]


@dataclass(frozen=True)
class Story:
    """A document: its facts and its sentences."""

    facts: Facts
    sentences: tuple[Sentence, ...]

    @property
    def text(self) -> str:
        """The story as English text on one line."""
        return " ".join(render(sentence) for sentence in self.sentences)


OPENING = (
    "{name} is a {job} and lives at the {home} .",
    "{name} the {job} lives at the {home} .",
)
SKY = "the day is {weather} ."
INTRODUCTIONS = (
    "{name} likes the {favourite} .",
    "{other} is a {other_job} and likes the {other_favourite} .",
    "{name} and {other} keep the {own_animal} .",
)
HOURS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "in the morning",
        (
            "{subject} eats the {intensifier} {judgement} {food} .",
            "{subject} feeds the {animal} at the {intensifier} {judgement} {place} .",
            "{subject} is {feeling} and {gesture} .",
        ),
    ),
    (
        "at noon",
        (
            "{subject} {work_verb} the {work_object} at the {intensifier} {judgement} {place} .",
            "{subject} eats the {food} with {other} .",
            "{subject} {gesture} because the {food} is {intensifier} {judgement} .",
        ),
    ),
    (
        "in the afternoon",
        (
            "{subject} {work_verb} the {work_object} .",
            "{subject} sees the {animal} at the {intensifier} {judgement} {place} .",
            "{subject} {gesture} because the {place} is {intensifier} {judgement} .",
        ),
    ),
    (
        "in the evening",
        (
            "{subject} reads the {reading} .",
            "{subject} brings the {intensifier} {judgement} {food} to {other} .",
            "{subject} says that the day was {intensifier} {judgement} .",
        ),
    ),
    (
        "at night",
        (
            "{subject} sleeps at the {intensifier} {judgement} {place} .",
            "the {animal} sleeps at the {place} .",
            "{subject} reads the {intensifier} {judgement} {reading} and sleeps .",
        ),
    ),
)
"""The order of the day: a time, and what may be told of it."""

CAPTIONS = (
    "the {noun} eats the {food}",
    "the {noun} reads the {reading}",
    "the {noun} {work_verb} the {work_object}",
    "the {noun} feeds the {animal}",
    "the {noun} sees the {animal} at the {place}",
    "the {animal} sleeps at the {place}",
)
"""What stands under a picture: one sentence without a stop, and no story around it."""

ENTITY_OF_SLOT = {
    **dict.fromkeys(("name", "other"), "person"),
    **dict.fromkeys(("home", "place"), "place"),
    **dict.fromkeys(("animal", "own_animal"), "animal"),
    **dict.fromkeys(("food", "favourite", "other_favourite"), "food"),
}


def draw_stories(seed: int, count: int, *, split: str = "train") -> Iterator[Story]:
    """Yields stories; story i of a split is the same whoever draws it, and splits are different draws."""
    for index in range(count):
        yield draw_story(generator(seed, f"tinyworld/story/{split}", index))


def draw_captions(seed: int, count: int) -> Iterator[Sentence]:
    """Yields picture captions; see `draw_stories`."""
    for index in range(count):
        yield draw_caption(generator(seed, "tinyworld/caption/train", index))


def draw_story(rng: np.random.Generator) -> Story:
    """Draws the facts, then 7 to 12 sentences in the order of the day."""
    facts = draw_facts(rng)
    hero, friend = facts.people
    sentences = [fill_pattern(OPENING[rng.integers(len(OPENING))], facts, hero, friend, rng)]
    sentences.append(fill_pattern(SKY, facts, hero, friend, rng))
    told = sorted(rng.choice(len(INTRODUCTIONS), size=rng.integers(1, 4), replace=False))
    sentences.extend(fill_pattern(INTRODUCTIONS[index], facts, hero, friend, rng) for index in told)
    # 有些故事讲到傍晚为止，所以最短的只有七句
    hours = HOURS if rng.random() < 0.85 else HOURS[:-1]
    for time, patterns in hours:
        chosen = rng.choice(len(patterns), size=1 if rng.random() < 0.6 else 2, replace=False)
        for place_in_hour, index in enumerate(chosen):
            subject, other = (hero, friend) if rng.random() < 0.5 else (friend, hero)
            # 时刻只在每个时段的第一句说出：后面的句子要靠上下文才知道是什么时候
            pattern = f"{time} {patterns[index]}" if place_in_hour == 0 else patterns[index]
            sentences.append(fill_pattern(pattern, facts, subject, other, rng))
    return Story(facts, tuple(sentences[:12]))


def draw_caption(rng: np.random.Generator) -> Sentence:
    """Draws what stands under a picture of the village: a sentence whose facts nobody has told."""
    facts = draw_facts(rng)
    return fill_pattern(CAPTIONS[rng.integers(len(CAPTIONS))], facts, *facts.people, rng)


def draw_facts(rng: np.random.Generator) -> Facts:
    """Draws one corner, one mood and two people who live there, a woman and a man in either order."""
    corner = CORNERS[rng.integers(len(CORNERS))]

    def pick(options: tuple[str, ...]) -> str:
        return options[rng.integers(len(options))]

    woman = Person(pick(WOMEN), "woman", pick(corner.jobs), pick(corner.places), pick(corner.foods))
    man = Person(pick(MEN), "man", pick(corner.jobs), pick(corner.places), pick(corner.foods))
    people = (woman, man) if rng.random() < 0.5 else (man, woman)
    mood = MOODS[rng.integers(len(MOODS))]
    return Facts(corner, mood, people, animal=pick(corner.animals))


def slot_distribution(slot: str, facts: Facts, subject: Person, other: Person) -> dict[str, float]:
    """Returns the true odds of a slot, a name in braces in the patterns above, given the facts of its story.

    The probabilities of the words add up to 1. A slot of two words (`the man`) has them joined by a space.
    """
    corner, mood = facts.corner, facts.mood
    fixed = {
        "name": subject.name,
        "noun": subject.noun,
        "job": subject.job,
        "home": subject.home,
        "favourite": subject.food,
        "other": other.name,
        "other_job": other.job,
        "other_favourite": other.food,
        "own_animal": facts.animal,
    }
    if slot in fixed:
        return {fixed[slot]: 1.0}
    drawn: dict[str, Callable[[], dict[str, float]]] = {
        "subject": lambda: {subject.name: 0.4, subject.pronoun: 0.2, f"the {subject.noun}": 0.4},
        "food": lambda: _faithful(subject.food, corner.foods),
        "animal": lambda: _faithful(facts.animal, corner.animals),
        "place": lambda: _faithful(subject.home, corner.places),
        "reading": lambda: {"book": BOOK_SHARE, corner.reading: 1 - BOOK_SHARE},
        "work_verb": lambda: _uniform(tuple(verb for verb, _ in corner.work)),
        "weather": lambda: _uniform(mood.weather),
        "feeling": lambda: _uniform(mood.feelings),
        "judgement": lambda: _uniform(mood.judgements),
        "gesture": lambda: _uniform(mood.gestures),
        "intensifier": lambda: _uniform(mood.intensifiers),
    }
    return drawn[slot]()


def caption_odds(pattern: str, filled: Mapping[str, str], blank: str) -> dict[str, float]:
    """Returns the true odds of one blank of a caption, given its other words and nothing else, by Bayes' rule."""
    odds: dict[str, float] = {}
    for facts, subject in _all_facts():
        # 每一种可能的村里事实，按它让其余各词出现的概率加权：这就是读者只看这一句时该有的信念
        for word, share in _odds_in(facts, subject, pattern, filled, blank).items():
            odds[word] = odds.get(word, 0.0) + share
    total = sum(odds.values())
    return {word: share / total for word, share in odds.items() if share > 0}


def _all_facts() -> Iterator[tuple[Facts, Person]]:
    """Yields everything that a caption can depend on, each as likely as any other, and the person it is about."""
    for corner in CORNERS:
        for noun, animal, home, food in product(("woman", "man"), corner.animals, corner.places, corner.foods):
            person = Person("", noun, "", home, food)
            yield Facts(corner, MOODS[0], (person, person), animal), person


def _odds_in(facts: Facts, subject: Person, pattern: str, filled: Mapping[str, str], blank: str) -> dict[str, float]:
    """Returns P(the other words and this one | facts) for every word of the blank."""
    slots = [word[1:-1] for word in pattern.split() if word.startswith("{")]
    work = dict(facts.corner.work)
    verbs = slot_distribution("work_verb", facts, subject, subject) if "work_verb" in slots else {"": 1.0}
    odds: dict[str, float] = {}
    # 活儿的宾语由动词决定，两者一起列举；别的空互不相干，概率相乘
    for verb, share in verbs.items():
        known = {"work_verb": {verb: 1.0}, "work_object": {work.get(verb, ""): 1.0}}
        here = {slot: known.get(slot) or slot_distribution(slot, facts, subject, subject) for slot in slots}
        given = share * prod(here[slot].get(filled[slot], 0.0) for slot in slots if slot != blank)
        for word, chance in here[blank].items():
            odds[word] = odds.get(word, 0.0) + given * chance
    return odds


def render(sentence: Sentence) -> str:
    """Writes a sentence as English: first letter upper case, no space before the stop."""
    text = " ".join(token.text for token in sentence).replace(" .", ".").replace(" ?", "?")
    return text[0].upper() + text[1:]


def fill_pattern(pattern: str, facts: Facts, subject: Person, other: Person, rng: np.random.Generator) -> Sentence:
    """Turns a pattern into a sentence by drawing every slot from `slot_distribution`."""
    tokens: list[Token] = []
    verb = ""
    for word in pattern.split():
        if not word.startswith("{"):
            tokens.append(Token(word))
            continue
        slot = word[1:-1]
        # 宾语由已抽到的动词决定，自己没有概率
        if slot == "work_object":
            tokens.append(Token(dict(facts.corner.work)[verb]))
            continue
        odds = slot_distribution(slot, facts, subject, other)
        value = list(odds)[rng.choice(len(odds), p=list(odds.values()))]
        verb = value if slot == "work_verb" else verb
        entity = "person" if value == subject.name else ENTITY_OF_SLOT.get(slot, "")
        tokens.extend(Token(part, entity) for part in value.split())
    return tuple(tokens)


def _uniform(options: tuple[str, ...]) -> dict[str, float]:
    return dict.fromkeys(options, 1 / len(options))


def _faithful(own: str, options: tuple[str, ...]) -> dict[str, float]:
    # 大多数时候忠于事实，偶尔换成同一角落的别的：这样答案既要看上下文，又不是死记
    odds = dict.fromkeys(options, (1 - FAITHFULNESS) / len(options))
    odds[own] += FAITHFULNESS
    return odds
