"""The reader's own file: which cards are due, which parts were read, how the quizzes went.

Spaced repetition is SM-2 (Wozniak 1990): a card that is known comes back after 1 day, then 6, then after the last
interval times its ease; one that is not known starts anew. The four answers stand for SM-2's qualities 1, 3, 4 and 5.
The file is JSON, written whole or not at all; what it holds of other versions' cards is kept.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal, get_args

from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import held, write_text
from bertsmith.learn.lesson import Card, Language
from bertsmith.learn.story import lessons

FORMAT = 1
Answer = Literal["again", "hard", "good", "easy"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)
QUALITIES: dict[str, int] = {"again": 1, "hard": 3, "good": 4, "easy": 5}
"""Answer → quality of SM-2; below 3 the card was not known."""

FIRST_INTERVALS = (1, 6)
FIRST_EASE, LEAST_EASE, LONGEST_INTERVAL = 2.5, 1.3, 3650


@dataclass(frozen=True)
class Review:
    """What is known of a card.

    Attributes:
        due: when it is to be asked again, an ISO time with its zone.
        interval: days from the last answer to then.
        ease: what the interval is multiplied by, at least 1.3.
        repetitions: times it was known in a row.
    """

    due: str
    interval: int
    ease: float
    repetitions: int


def next_review(last: Review | None, answer: Answer, now: datetime) -> Review:
    """Applies SM-2 to one answer.

    Args:
        last: what was known of the card; None for a new one.
        answer: how well it went.
        now: with its time zone.
    """
    quality = QUALITIES[answer]
    ease = last.ease if last else FIRST_EASE
    repetitions = last.repetitions if last else 0
    if quality < 3:
        # 没记住：间隔从头开始，难度系数按原算法照样调整
        interval, repetitions = FIRST_INTERVALS[0], 0
    else:
        grown = math.ceil((last.interval if last else 0) * ease)
        interval = FIRST_INTERVALS[repetitions] if repetitions < len(FIRST_INTERVALS) else grown
        repetitions += 1
    missed = 5 - quality
    ease = max(LEAST_EASE, ease + 0.1 - missed * (0.08 + missed * 0.02))
    interval = min(interval, LONGEST_INTERVAL)
    return Review((now + timedelta(days=interval)).isoformat(), interval, round(ease, 4), repetitions)


def default_path() -> Path:
    """Where progress is kept: `bertsmith/learn.json` in the XDG data home, `~/.local/share` unless it is set."""
    home = os.environ.get("XDG_DATA_HOME", "")
    # XDG 规定：相对路径无效，应当忽略
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share"
    return base / "bertsmith" / "learn.json"


class Deck:
    """The flash cards of all lessons, and the reader's progress."""

    def __init__(self, path: str | Path | None = None, language: Language = "en") -> None:
        """Opens a progress file; it is made at the first answer.

        Args:
            path: the file; None for `default_path`.
            language: of the cards.

        Raises:
            InputError: the file is damaged, of a later version, or cannot be read; it is left as it is.
        """
        self.path = default_path() if path is None else Path(path)
        self.cards_of = {lesson.id: lesson.cards for lesson in lessons(language)}
        self._read()

    def due(self, now: datetime | None = None, lesson: str | None = None) -> list[Card]:
        """Returns the cards to ask: first those that are due, longest waiting first, then those never asked.

        Args:
            now: with its time zone; None for this moment.
            lesson: the id of a lesson; None for all.
        """
        moment = now or datetime.now(timezone.utc)
        cards = [card for name, each in self.cards_of.items() if lesson in (None, name) for card in each]
        reviews = self._reviews(self._read())
        waiting = [card for card in cards if card.id in reviews and _time(reviews[card.id].due) <= moment]
        waiting.sort(key=lambda card: _time(reviews[card.id].due))
        return waiting + [card for card in cards if card.id not in reviews]

    def answer(self, card: Card, answer: Answer, now: datetime | None = None) -> Review:
        """Keeps an answer.

        Args:
            card: one of the deck's.
            answer: `again` (not known), `hard`, `good` or `easy`.
            now: with its time zone; None for this moment.

        Returns:
            When the card is due again.

        Raises:
            InputError: there is no such answer, or the file cannot be written.
        """
        if answer not in ANSWERS:
            raise InputError(f"answer {answer!r} is unknown; use one of {', '.join(ANSWERS)}")
        # 每次都先重读再写，其间不容别人插手：两个窗口同时用时，互不覆盖对方别的卡片
        with self._changed() as kept:
            last = self._reviews(kept).get(card.id)
            review = next_review(last, answer, now or datetime.now(timezone.utc))
            kept["cards"][card.id] = asdict(review)
        return review

    def mark_read(self, lesson: str) -> None:
        """Remembers that a lesson was read."""
        if not self.lesson_progress(lesson)[0]:
            with self._changed() as kept:
                kept["lessons"].setdefault(lesson, {})["read"] = True

    def record_quiz(self, lesson: str, right: int, asked: int) -> None:
        """Remembers how a quiz went."""
        with self._changed() as kept:
            kept["lessons"].setdefault(lesson, {})["quiz"] = [right, asked]

    def lesson_progress(self, lesson: str) -> tuple[bool, tuple[int, int] | None]:
        """Returns whether a lesson was read, and its last quiz as (right, asked) if there was one."""
        found = self._read()["lessons"].get(lesson, {})
        quiz = found.get("quiz")
        return bool(found.get("read")), (quiz[0], quiz[1]) if quiz else None

    def _reviews(self, kept: dict[str, Any]) -> dict[str, Review]:
        names = Review.__dataclass_fields__
        return {id: Review(**{name: values[name] for name in names}) for id, values in kept["cards"].items()}

    def _read(self) -> dict[str, Any]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {"format": FORMAT, "cards": {}, "lessons": {}}
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise InputError(f"{self.path}: cannot be read as progress ({reason}); name another --progress") from None
        try:
            kept: dict[str, Any] = json.loads(text)
            version = kept["format"]
            if version != FORMAT:
                raise InputError(
                    f"{self.path}: format {version!r} is of another version; update bertsmith, or name another"
                    " --progress"
                )
            for values in kept["cards"].values():
                _check_review(values)
            for values in kept["lessons"].values():
                _check_lesson(values)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            # 绝不覆盖看不懂的文件：里面可能是读者几个月的进度
            raise InputError(
                f"{self.path}: damaged ({_short(error)}); it is left as it is: repair it, move it away, or name another"
                " --progress"
            ) from None
        return kept

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """Yields what is kept, to be changed, and writes it; nobody else comes between."""
        try:
            with held(self.path):
                kept = self._read()
                yield kept
                write_text(self.path, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        except RunFolderError as error:
            reason = getattr(error.__cause__, "strerror", None) or "it cannot be written"
            raise InputError(f"{self.path}: progress was not kept ({reason}); name another --progress") from None


def _check_review(values: Any) -> None:
    numbers = (values["interval"], values["ease"], values["repetitions"])
    if not all(isinstance(number, int | float) and math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("a card's numbers are impossible")
    if _time(values["due"]).tzinfo is None:
        raise ValueError("a card's due time has no zone")


def _check_lesson(values: Any) -> None:
    quiz = values.get("quiz")
    if quiz is not None and not (len(quiz) == 2 and all(isinstance(number, int) for number in quiz)):
        raise ValueError("a quiz's result is impossible")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:80] or type(error).__name__
