"""A reader who knows the rules of the village: what a perfect model would say of every blank, and of every pair.

The rules are those of `bertsmith.tinyworld.stories`. A segment is a stretch of a story: sentences in the order of the
day, the first and the last perhaps cut. The reader goes over every way to read a segment (which sentences, about whom,
in which words) under all facts that matter (who the two are, their homes, foods and animal), forwards and backwards,
and adds up. He knows how masks are drawn: a visible word may be a random one. That the second segment follows the first
he weighs by how much better one story explains both.

What he is not told is where segments are cut; `CUT` stands for it. If his odds are right, the mean of his loss is the
mean entropy of his odds: both are reported, and their difference shows how exact he is.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np

from bertsmith.tinyworld import stories
from bertsmith.tinyworld.stories import CAPTIONS, HOURS, INTRODUCTIONS, OPENING, SKY, Facts, Person
from bertsmith.tinyworld.words import CORNERS, MEN, MOODS, WOMEN, Corner, Mood

Floats = np.ndarray[Any, np.dtype[np.float64]]

HIDDEN, MASKED, RANDOM = 0.15, 0.8, 0.1
"""Share of the words that are asked for; of these, the shares that become [MASK] and a random word."""

CUT, GAP, CAPTION_SHARE = 0.25, 0.2, 0.15
"""Odds that a segment begins, or ends, inside a sentence; that two segments of a story do not touch; that one is a
caption."""

LEAST = 1e-10, 1e-25
"""A reading with less than that of what its words could have is dropped: more than two random words in a sentence, or
more than five where no reading is left."""

START, UNSEEN = "start", -1


@dataclass(frozen=True)
class Slot:
    """One word of a sentence that is drawn, and whether the sentence is about the first person or the second."""

    name: str
    subject: int


@dataclass(frozen=True)
class Reading:
    """A sentence with all choices made but the words of its slots."""

    share: float
    words: tuple[str | Slot, ...]


@dataclass
class Kind:
    """A sentence of a story: its readings, what may follow it, and how often a story comes to it."""

    readings: list[Reading]
    next: list[tuple[str, float]] = field(default_factory=list)
    visits: float = 0.0


@cache
def story_kinds() -> dict[str, Kind]:
    """Returns the sentences of a story in their order: a name for each, such as `hour 2 again 1`."""
    kinds: dict[str, Kind] = {}

    def add(name: str, patterns: Sequence[str], subjects: Sequence[int], after: Sequence[tuple[str, float]]) -> None:
        readings = [each for pattern in patterns for subject in subjects for each in readings_of(pattern, subject)]
        kinds[name] = Kind([Reading(r.share / len(patterns) / len(subjects), r.words) for r in readings], list(after))

    hours = [
        [(f"hour {hour} {number}", 1 / len(told)) for number in range(len(told))]
        for hour, (_, told) in enumerate(HOURS)
    ]
    add("opening", OPENING, (0,), [("sky", 1.0)])
    # 介绍几句、哪几句：三个里取一到三个，按次序说。前两句合起来才知道第三句有多可能
    add("sky", (SKY,), (0,), [("likes", 6 / 9), ("other", 2 / 9), ("keep", 1 / 9)])
    add("likes", INTRODUCTIONS[:1], (0,), [("likes other", 4 / 6), ("keep", 1 / 6), *_scaled(hours[0], 1 / 6)])
    add("other", INTRODUCTIONS[1:2], (0,), [("keep", 1 / 2), *_scaled(hours[0], 1 / 2)])
    add("likes other", INTRODUCTIONS[1:2], (0,), [("keep", 3 / 4), *_scaled(hours[0], 1 / 4)])
    add("keep", INTRODUCTIONS[2:], (0,), hours[0])
    for hour, (time, told) in enumerate(HOURS):
        last = hour + 1 == len(HOURS)
        later = [] if last else _scaled(hours[hour + 1], 0.85 if hour + 2 == len(HOURS) else 1.0)
        for number, pattern in enumerate(told):
            again = [(f"hour {hour} again {other}", 0.4 / 2) for other in range(len(told)) if other != number]
            add(f"hour {hour} {number}", (f"{time} {pattern}",), (0, 1), [*again, *_scaled(later, 0.6)])
        for number, pattern in enumerate(told):
            add(f"hour {hour} again {number}", (pattern,), (0, 1), later)
    kinds["opening"].visits = 1.0
    for kind in kinds.values():
        for name, odds in kind.next:
            kinds[name].visits += kind.visits * odds
    return kinds


def _scaled(after: Sequence[tuple[str, float]], share: float) -> list[tuple[str, float]]:
    return [(name, odds * share) for name, odds in after]


@cache
def caption_kind() -> Kind:
    """Returns what stands under pictures."""
    return Kind([Reading(r.share / len(CAPTIONS), r.words) for pattern in CAPTIONS for r in readings_of(pattern, 0)])


def readings_of(pattern: str, subject: int) -> Iterator[Reading]:
    """Yields a pattern with its person named in each way, and each kind of work."""
    named = {"name": 0.4, "pronoun": 0.2, "the noun": 0.4} if "{subject}" in pattern else {"": 1.0}
    works = range(3) if "{work_verb}" in pattern else (0,)
    for (how, share), work in itertools.product(named.items(), works):
        words: list[str | Slot] = []
        for word in pattern.split():
            if word == "{subject}":
                words += ["the", Slot("noun", subject)] if how == "the noun" else [Slot(how, subject)]
            elif word in ("{work_verb}", "{work_object}"):
                words.append(Slot(f"{word[1:-1]} {work}", subject))
            else:
                words.append(Slot(word[1:-1], subject) if word.startswith("{") else word)
        yield Reading(share / len(works), tuple(words))


@dataclass(frozen=True)
class Column:
    """A fact: the values that it can have, and which of them it has in each case, [C]."""

    values: list[Any]
    numbers: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, each: Sequence[Any]) -> Column:
        """Numbers the values."""
        values = list(dict.fromkeys(each))
        number = {value: place for place, value in enumerate(values)}
        return cls(values, np.array([number[value] for value in each]))


class World:
    """All facts that a story of one corner and mood can have, as far as they matter: arrays over C of them.

    Args:
        corner, mood: of the story.
        names: those that can be seen; the others are alike.
        ids: word → id.
    """

    def __init__(self, corner: Corner, mood: Mood, names: frozenset[str], ids: dict[str, int]) -> None:
        """Lays out the facts."""
        self.corner, self.mood, self.ids = corner, mood, ids
        rows = []
        for nouns in (("woman", "man"), ("man", "woman")):
            called = [_groups(WOMEN if noun == "woman" else MEN, names) for noun in nouns]
            rows += list(
                itertools.product(
                    [nouns], *called, corner.places, corner.places, corner.foods, corner.foods, corner.animals
                )
            )
        nouns_, first, second, *homes_foods, animals = ([row[place] for row in rows] for place in range(8))
        # 每种事实：它有哪些值，以及 C 种情形里各是第几个值
        self.facts = {("animal", who): Column.of(animals) for who in (0, 1)}
        for who, names_ in enumerate((first, second)):
            self.facts["noun", who] = Column.of([pair[who] for pair in nouns_])
            self.facts["name", who] = Column.of(names_)
            self.facts["home", who] = Column.of(homes_foods[who])
            self.facts["food", who] = Column.of(homes_foods[2 + who])
        shares = np.array([len(one) * len(other) for one, other in zip(first, second, strict=True)], dtype=float)
        self.prior = shares / shares.sum() / len(CORNERS) / len(MOODS)
        self._known: dict[Slot, dict[int, Floats | float]] = {}

    def odds(self, slot: Slot) -> dict[int, Floats | float]:
        """Returns the odds of a slot: id → probability, one number or [C]."""
        if slot not in self._known:
            self._known[slot] = self._odds(slot)
        return self._known[slot]

    def _odds(self, slot: Slot) -> dict[int, Floats | float]:
        name, who = slot.name, slot.subject
        if name.startswith("work_"):
            part, number = name.split()
            return {self.ids[self.corner.work[int(number)][part == "work_object"]]: 1.0}
        # 职业在开头和介绍里各说一次，别处不提：与别的词无关
        if name in ("job", "other_job"):
            return {self.ids[job]: 1 / len(self.corner.jobs) for job in self.corner.jobs}
        about = {"name": "name", "other": "name", "noun": "noun", "pronoun": "noun", "home": "home", "place": "home"}
        about |= {"food": "food", "favourite": "food", "other_favourite": "food", "animal": "animal"}
        about |= {"own_animal": "animal"}
        if name not in about:
            return self._distribution(name, "", "")
        fact = about[name]
        column = self.facts[fact, 1 - who if name.startswith("other") else who]
        found: dict[int, Any] = defaultdict(lambda: np.zeros(len(self.prior)))
        for place, value in enumerate(column.values):
            here = column.numbers == place
            if fact == "name":
                odds: dict[int, float] = {self.ids[each]: 1 / len(value) for each in value}
            elif name == "pronoun":
                odds = {self.ids["she" if value == "woman" else "he"]: 1.0}
            else:
                odds = self._distribution(name, fact, value)
            for word, share in odds.items():
                found[word] = found[word] + share * here
        return dict(found)

    def _distribution(self, slot: str, fact: str, value: str) -> dict[int, Any]:
        """Asks the rules for the odds of a slot where one fact has a value."""
        known = {"name": "", "noun": "", "job": "", "home": "", "food": ""}
        person = Person(**{**known, **({fact: value} if fact in known else {})})
        facts = Facts(self.corner, self.mood, (person, person), value if fact == "animal" else "")
        return {self.ids[word]: share for word, share in stories.slot_distribution(slot, facts, person, person).items()}


def _groups(names: Sequence[str], seen: frozenset[str]) -> list[tuple[str, ...]]:
    unseen = tuple(name for name in names if name not in seen)
    return [*((name,) for name in names if name in seen), *([unseen] if unseen else [])]


@dataclass
class Edge:
    """A reading of words `begin` to `end`, from a place in the day to others."""

    source: tuple[int, str]
    begin: int
    words: tuple[str | Slot, ...]
    likelihood: Floats | float
    targets: list[tuple[tuple[int, str], float]]
    ends: float


class Segment:
    """Words of one story, read in one world.

    Args:
        world: the facts.
        seen: [n] ids, with those of random words; -1 where nothing is seen.
        random: P(a random word is seen), in parts of P(the word itself is).
        border: where the second segment begins; 0: there is one.
        least: readings that have less than that of what their words could have are dropped.
    """

    def __init__(self, world: World, seen: Sequence[int], random: float, border: int, least: float) -> None:
        """Reads forwards."""
        self.world, self.seen, self.random, self.border, self.least = world, seen, random, border, least
        self._emissions: dict[tuple[int, str | Slot], tuple[Floats | float, float]] = {}
        self.edges: list[Edge] = []
        self.forward: dict[tuple[int, str], Any] = defaultdict(float)
        self.forward[0, START] = 1.0
        self.evidence: Any = np.zeros(len(world.prior))
        for place in range(len(seen)):
            for name in [START, *story_kinds()]:
                if (place, name) in self.forward:
                    self._go_on((place, name))

    def likelihood(self, place: int, word: int) -> float:
        """Returns P(what is seen | the word), in parts of the largest."""
        return 1.0 if self.seen[place] in (UNSEEN, word) else self.random

    def emission(self, place: int, word: str | Slot) -> tuple[Floats | float, float]:
        """Returns P(what is seen | facts) of one word, and its largest in parts of what it could be."""
        if (place, word) not in self._emissions:
            odds = self._odds(word)
            found = sum((share * self.likelihood(place, each) for each, share in odds.items()), 0.0)
            best = max(float(np.max(share)) for share in odds.values())
            self._emissions[place, word] = found, min(1.0, float(np.max(found)) / best)
        return self._emissions[place, word]

    def _odds(self, word: str | Slot) -> dict[int, Floats | float]:
        return self.world.odds(word) if isinstance(word, Slot) else {self.world.ids[word]: 1.0}

    def _go_on(self, key: tuple[int, str]) -> None:
        """Adds every reading that begins at a place."""
        kinds = story_kinds()
        if key[1] != START:
            for reading in kinds[key[1]].readings:
                self._add(key, kinds[key[1]], reading.words, reading.share)
            return
        visits = sum(kind.visits for kind in kinds.values())
        for kind in kinds.values():
            for reading in kind.readings:
                share = (1 - CAPTION_SHARE) * reading.share * kind.visits / visits
                self._add(key, kind, reading.words, share * (1 - CUT))
                for cut in range(1, len(reading.words)):
                    self._add(key, kind, reading.words[cut:], share * CUT / (len(reading.words) - 1))
        if not self.border:
            for reading in caption_kind().readings:
                if len(reading.words) == len(self.seen):
                    self._add(key, caption_kind(), reading.words, CAPTION_SHARE * reading.share)

    def _add(self, key: tuple[int, str], kind: Kind, words: tuple[str | Slot, ...], share: float) -> None:
        place = key[0]
        # 第二段的起点之前与之后分开：跨过它的句子到它为止
        limit = self.border if place < self.border else len(self.seen)
        shown = words[: limit - place]
        possible = 1.0
        for offset, word in enumerate(shown):
            possible *= self.emission(place + offset, word)[1]
            if possible < self.least:
                return
        likelihood: Any = share
        for offset, word in enumerate(shown):
            likelihood = likelihood * self.emission(place + offset, word)[0]
        end = place + len(shown)
        whole = len(shown) == len(words)
        closes = (1 - CUT) if whole else CUT / len(words)
        if kind is caption_kind():
            closes = 1.0
        targets = [((end, name), odds) for name, odds in kind.next] if whole and end < limit else []
        ends = 0.0
        if end == limit == len(self.seen):
            ends = closes
        elif end == limit:
            targets = [((end, START), closes * (GAP if whole else 1.0))]
            targets += [((end, name), closes * (1 - GAP) * odds) for name, odds in kind.next] if whole else []
        if not targets and not ends:
            return
        self.edges.append(Edge(key, place, shown, likelihood, targets, ends))
        reached = self.forward[key] * likelihood
        for target, odds in targets:
            self.forward[target] = self.forward[target] + odds * reached
        self.evidence = self.evidence + ends * reached

    @cached_property
    def total(self) -> float:
        """P(what is seen, corner and mood), up to a factor that all readings of the words share."""
        return float(self.world.prior @ self.evidence)

    def beliefs(self, asked: Sequence[int], vocab_size: int) -> Floats:
        """Returns P(word, what is seen) for every asked place, [A, V], by going backwards."""
        found = np.zeros((len(asked), vocab_size))
        backward: dict[tuple[int, str], Any] = defaultdict(float)
        for edge in sorted(self.edges, key=lambda edge: (-edge.begin, edge.source[1] == START)):
            after: Any = edge.ends
            for target, odds in edge.targets:
                after = after + odds * backward[target]
            onward = edge.likelihood * after
            backward[edge.source] = backward[edge.source] + onward
            here = [(row, place) for row, place in enumerate(asked) if 0 <= place - edge.begin < len(edge.words)]
            if here:
                weight = self.world.prior * self.forward[edge.source] * onward
                for row, place in here:
                    self._share_out(found[row], place, edge.words[place - edge.begin], weight)
        return found

    def _share_out(self, row: Floats, place: int, word: str | Slot, weight: Floats) -> None:
        weight = weight / self.emission(place, word)[0]
        for each, share in self._odds(word).items():
            row[each] += self.likelihood(place, each) * float(np.sum(weight * share))


@dataclass(frozen=True)
class Read:
    """What the reader makes of words: their evidence, and the odds of every asked place, [A, V]."""

    evidence: float
    odds: Floats


class Reader:
    """Reads segments and pairs.

    Args:
        ids: word → id, of all words of the village.
        vocab_size: V; random words are any of them.
    """

    def __init__(self, ids: dict[str, int], vocab_size: int) -> None:
        """Keeps the words that tell a corner or a mood."""
        self.ids, self.vocab_size = ids, vocab_size
        self.names = {ids[name]: name for name in (*WOMEN, *MEN)}
        options: tuple[Corner | Mood, ...] = (*CORNERS, *MOODS)
        self.telling = {option: {ids[word] for word in _words_of(option)} for option in options}
        self._worlds: dict[tuple[str, str, frozenset[str]], World] = {}

    def read(self, seen: Sequence[int], asked: Sequence[int], border: int = 0) -> Read:
        """Reads the words of one story, in every corner and mood that they allow.

        Args:
            seen: ids, with random words; `UNSEEN` for masks.
            asked: places.
            border: where a second segment of the same story begins; 0: there is one.
        """
        # 村里没有的词片只能是随机换上的：等于没看见
        words = [word if word in self.ids.values() else UNSEEN for word in seen]
        names = frozenset(self.names[word] for word in words if word in self.names)
        random = HIDDEN * RANDOM / self.vocab_size / (1 - HIDDEN * MASKED)
        evidence, odds = 0.0, np.zeros((len(asked), self.vocab_size))
        # 两段合成一个故事可以读不通（图注之后没有下文），一段自己总有读法
        for least in LEAST[:1] if border else LEAST:
            for corner, mood in itertools.product(self._likely(CORNERS, words), self._likely(MOODS, words)):
                segment = Segment(self._world(corner, mood, names), words, random, border, least)
                evidence += segment.total
                odds += segment.beliefs(asked, self.vocab_size)
            if evidence > 0:
                return Read(evidence, odds / evidence)
        return Read(evidence, odds)

    def read_pair(self, first: Sequence[int], second: Sequence[int], asked: Sequence[int]) -> tuple[float, Floats]:
        """Returns P(the second, if any, follows the first), and the odds of each asked place, counted over both."""
        words, border = [*first, *second], len(first)
        if not second:
            return 0.0, self._as_asked(self.read(first, asked).odds, [words[place] for place in asked])
        both = self.read(words, asked, border)
        alone = self.read(first, [place for place in asked if place < border])
        other = self.read(second, [place - border for place in asked if place >= border])
        follows = both.evidence / (both.evidence + alone.evidence * other.evidence)
        odds = follows * both.odds + (1 - follows) * np.concatenate([alone.odds, other.odds])
        return follows, self._as_asked(odds, [words[place] for place in asked])

    def _as_asked(self, odds: Floats, seen: Sequence[int]) -> Floats:
        """Lets what is seen at an asked place count for what it is there: of two such words one is random."""
        kept, random = 1 - MASKED - RANDOM, RANDOM / self.vocab_size
        usual = HIDDEN * random / (1 - HIDDEN * MASKED)
        for row, word in enumerate(seen):
            if word != UNSEEN:
                own = odds[row, word]
                odds[row] *= random / (kept + random) / usual
                odds[row, word] = own
        found: Floats = odds / odds.sum(axis=1, keepdims=True)
        return found

    def _likely(self, options: Sequence[Any], seen: Sequence[int]) -> list[Any]:
        counts = [sum(word in self.telling[option] for word in seen) for option in options]
        # 随机换上的词也会指向别处：只差一个的都留下
        return [option for option, count in zip(options, counts, strict=True) if count >= max(counts) - 1]

    def _world(self, corner: Corner, mood: Mood, names: frozenset[str]) -> World:
        key = corner.name, mood.name, names
        if key not in self._worlds:
            if len(self._worlds) > 60:
                self._worlds.clear()
            self._worlds[key] = World(corner, mood, names, self.ids)
        return self._worlds[key]


def village_words() -> set[str]:
    """Returns every word that a story or a caption can have."""
    patterns = [*OPENING, SKY, *INTRODUCTIONS, *CAPTIONS, *(each for time, told in HOURS for each in (time, *told))]
    fixed = {word for pattern in patterns for word in pattern.split() if not word.startswith("{")}
    options: tuple[Corner | Mood, ...] = (*CORNERS, *MOODS)
    drawn = {word for option in options for word in _words_of(option)}
    return {*fixed, *drawn, *WOMEN, *MEN, "woman", "man", "she", "he", "book"}


def _words_of(option: Corner | Mood) -> set[str]:
    if isinstance(option, Mood):
        return {*option.weather, *option.feelings, *option.gestures, *option.intensifiers, *option.judgements}
    work = {word for pair in option.work for word in pair}
    return {*option.places, *option.jobs, *option.animals, *option.foods, *work, option.reading}
