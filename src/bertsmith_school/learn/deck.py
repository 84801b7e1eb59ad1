"""The reader's own file: which cards are due, which parts were read, how the quizzes went.

FSRS (Ye et al. 2022), through the library `fsrs`, asks for a card again when nine in ten would still know it. The file
is JSON, written whole or not at all; what it holds of other versions' cards is kept.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, get_args

from fsrs import Card as Memory
from fsrs import Rating, Scheduler, State

from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import held, parse_json, write_text
from bertsmith_school.learn.lesson import Card, Language
from bertsmith_school.learn.story import lessons

FORMAT = 2
Answer = Literal["again", "hard", "good", "easy"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)
RATINGS: dict[str, Rating] = {answer: Rating(number) for number, answer in enumerate(ANSWERS, 1)}

LONGEST_INTERVAL = 3650
"""Days."""

# 读者一天打开一次：不用按分钟计的学习步骤，第一次回答之后就按天安排；不加随机，同样的回答得到同样的日期
_SCHEDULER = Scheduler(
    desired_retention=0.9,
    learning_steps=(),
    relearning_steps=(),
    maximum_interval=LONGEST_INTERVAL,
    enable_fuzzing=False,
)


@dataclass(frozen=True)
class Review:
    """What is known of a card: when it is due and was asked last, stability in days, difficulty from 1 to 10."""

    due: str
    last: str
    stability: float
    difficulty: float

    @property
    def interval(self) -> int:
        """Days from the last answer to the next question."""
        return (_time(self.due) - _time(self.last)).days


def next_review(last: Review | None, answer: Answer, now: datetime) -> Review:
    """Applies FSRS to one answer; without a last review the card is new."""
    memory = Memory(card_id=0)
    if last is not None:
        memory = Memory(0, State.Review, None, last.stability, last.difficulty, _time(last.due), _time(last.last))
    moment = now.astimezone(timezone.utc)
    memory, _ = _SCHEDULER.review_card(memory, RATINGS[answer], moment)
    assert memory.stability is not None
    assert memory.difficulty is not None
    return Review(memory.due.isoformat(), moment.isoformat(), round(memory.stability, 4), round(memory.difficulty, 4))


def xdg_folder(variable: str, otherwise: str) -> Path:
    """Returns our folder in one of the XDG homes, or where that is by default in the reader's home."""
    home = os.environ.get(variable, "")
    # XDG 规定：相对路径无效，应当忽略
    return (Path(home) if os.path.isabs(home) else Path.home() / otherwise) / "bertsmith"


def default_path() -> Path:
    """Where progress is kept: `bertsmith/learn.json` in the XDG data home, `~/.local/share` unless it is set."""
    return xdg_folder("XDG_DATA_HOME", ".local/share") / "learn.json"


class Deck:
    """The flash cards of all lessons, and the reader's progress."""

    def __init__(self, path: str | Path | None = None, language: Language = "en") -> None:
        """Opens a progress file, by default `default_path`; it is made at the first answer."""
        self.path = default_path() if path is None else Path(path)
        self.cards_of = {lesson.id: lesson.cards for lesson in lessons(language)}
        self._read()

    def due(self, now: datetime | None = None, lesson: str | None = None) -> list[Card]:
        """Returns the cards of a lesson or of all: first those that are due, longest waiting first, then new ones."""
        moment = now or datetime.now(timezone.utc)
        cards = [card for name, each in self.cards_of.items() if lesson in (None, name) for card in each]
        reviews = self._reviews(self._read())
        waiting = [card for card in cards if card.id in reviews and _time(reviews[card.id].due) <= moment]
        waiting.sort(key=lambda card: _time(reviews[card.id].due))
        return waiting + [card for card in cards if card.id not in reviews]

    def answer(self, card: Card, answer: Answer, now: datetime | None = None) -> Review:
        """Keeps an answer, and returns when the card is due again."""
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
            kept: dict[str, Any] = parse_json(self.path)
            version = kept["format"]
            if version != FORMAT:
                raise InputError(f"{self.path}: format {version!r} is of another version; name another --progress")
            for values in kept["cards"].values():
                _check_review(values)
            for values in kept["lessons"].values():
                _check_lesson(values)
        except FileNotFoundError:
            return {"format": FORMAT, "cards": {}, "lessons": {}}
        except OSError as error:
            reason = error.strerror
            raise InputError(f"{self.path}: cannot be read as progress ({reason}); name another --progress") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            # 绝不覆盖看不懂的文件：里面可能是读者几个月的进度
            why = " ".join(str(error).split())[:80] or type(error).__name__
            raise InputError(
                f"{self.path}: damaged ({why}) and left as it is: repair it, move it away, or name another --progress"
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
    # 与 NaN 比较总是假：它也过不了这一关
    if not (0 < values["stability"] <= sys.float_info.max and 1 <= values["difficulty"] <= 10):
        raise ValueError("a card's numbers are impossible")
    if any(_time(values[name]).tzinfo is None for name in ("due", "last")):
        raise ValueError("a card's time has no zone")


def _check_lesson(values: Any) -> None:
    quiz = values.get("quiz")
    if quiz is not None and not (len(quiz) == 2 and all(isinstance(number, int) for number in quiz)):
        raise ValueError("a quiz's result is impossible")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
