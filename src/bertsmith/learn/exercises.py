"""The exercises of the lessons: what is given, and the answer, both from the code; the texts stand in the parts.

exercise.prompt                        what is asked
check_answer(exercise, "7,087,872")    whether an answer is right, and how it comes about
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch

from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.errors import InputError
from bertsmith.learn.computations.published import figure
from bertsmith.learn.lesson import Exercise, Grade
from bertsmith.model import BertConfig
from bertsmith.model.families.albert import AlbertConfig
from bertsmith.model.heads import SpanScores, best_spans
from bertsmith.model.sizes import ParameterCounts
from bertsmith.train.optimizer import learning_rate_at


def _left() -> SimpleNamespace:
    # 下三角矩阵就是“谁读谁”：数改动那一列
    tokens, place = 9, 3
    return SimpleNamespace(tokens=tokens, place=place, answer=int(np.tri(tokens, dtype=int)[:, place].sum()))


def _right() -> SimpleNamespace:
    tokens, place = 9, 3
    return SimpleNamespace(tokens=tokens, place=place, answer=int(np.tri(tokens, dtype=int).T[:, place].sum()))


def _block() -> SimpleNamespace:
    config = BertConfig.named("1/256")
    h, i = config.hidden_size, config.intermediate_size
    parts = {"attention": 4 * (h * h + h), "feed_forward": 2 * h * i + h + i, "norms": 4 * h}
    return SimpleNamespace(hidden=h, inner=i, answer=ParameterCounts.of(config).encoder, **parts)


def _softmax() -> SimpleNamespace:
    first, second, size = 6, 2, 4
    scaled = np.array([first, second]) / math.sqrt(size)
    answer = float(torch.tensor(scaled).softmax(0)[0])
    given = {"first": first, "second": second, "size": size}
    return SimpleNamespace(**given, scaled_first=scaled[0], scaled_second=scaled[1], answer=answer)


def _masked() -> SimpleNamespace:
    settings, pieces = MaskingSettings(), 2000
    return SimpleNamespace(pieces=pieces, answer=round(pieces * settings.rate * settings.mask_share))


def _loss() -> SimpleNamespace:
    probability = 0.25
    return SimpleNamespace(probability=probability, answer=-math.log(probability))


def _classifier() -> SimpleNamespace:
    hidden, labels = 512, 4
    return SimpleNamespace(hidden=hidden, labels=labels, answer=labels * hidden + labels)


def _span() -> SimpleNamespace:
    starts, ends = [2.0, 1.0, 5.0, 0.0], [1.0, 6.0, 3.0, 2.0]
    scores = SpanScores(torch.tensor([-9.0, *starts]), torch.tensor([-9.0, *ends]))
    allowed = torch.tensor([False] + [True] * len(starts))
    first, last, score = best_spans(scores, allowed, count=1).spans[0]
    shown = {name: ", ".join(f"{one:g}" for one in row) for name, row in (("starts", starts), ("ends", ends))}
    return SimpleNamespace(**shown, first=first, last=last, answer=score)


def _errors() -> SimpleNamespace:
    before, after = (figure("glue", name, "average") for name in ("OpenAI GPT", "BERT base"))
    far, near = 100 - before, 100 - after
    return SimpleNamespace(before=before, after=after, far=far, near=near, answer=1 - near / far)


def _ablation() -> SimpleNamespace:
    whole, left = (figure("ablation", name, "SQuAD") for name in ("whole", "left to right, no next sentence"))
    return SimpleNamespace(whole=whole, left=left, answer=whole - left)


def _rate() -> SimpleNamespace:
    steps, warmup, peak, step = 1000, 100, 1e-4, 550
    answer = learning_rate_at(step, peak=peak, warmup_steps=warmup, total_steps=steps)
    written = f"{peak:.0e}".replace("e-0", "e-")
    return SimpleNamespace(steps=steps, warmup=warmup, peak=written, step=step, answer=answer)


def _square() -> SimpleNamespace:
    long, short = 512, 128
    times = long // short
    return SimpleNamespace(long=long, short=short, times=times, answer=long**2 / (times * short**2))


def _albert() -> SimpleNamespace:
    config = AlbertConfig.named("1/256", vocab_size=20_000)
    v, h, e = config.vocab_size, config.hidden_size, config.embedding_size
    return SimpleNamespace(vocabulary=v, hidden=h, embedding=e, whole=v * h, answer=v * e + e * h + h)


def _window() -> SimpleNamespace:
    length, window = 1000, 64
    places = np.arange(length)
    counted = int((np.abs(places[:, None] - places) <= window).sum())
    return SimpleNamespace(length=length, window=window, width=2 * window + 1, one=1, answer=counted)


GIVEN: dict[str, Callable[[], SimpleNamespace]] = {
    "why/left": _left,
    "why/right": _right,
    "architecture/block": _block,
    "architecture/softmax": _softmax,
    "pre-training/masked": _masked,
    "pre-training/loss": _loss,
    "fine-tuning/classifier": _classifier,
    "fine-tuning/span": _span,
    "experiments/errors": _errors,
    "experiments/ablation": _ablation,
    "details/rate": _rate,
    "details/square": _square,
    "families/albert": _albert,
    "families/window": _window,
}
"""Exercise → what its texts call `{e.…}`, among it the answer."""

TOLERANCE = 0.01
"""Largest error of an answer, over the answer; whole numbers must be met."""


def check_answer(exercise: Exercise, answer: str | float) -> Grade:
    """Marks an answer.

    Args:
        exercise: of a lesson.
        answer: a number, or one as people write it: `7,087,872`, `0.89`, `89%`, `5e-5`.

    Raises:
        InputError: it is no number.
    """
    number = _as_number(answer)
    right = exercise.answer
    # 整数题要数得准；小数题允许百分之一的舍入
    correct = number == right if float(right).is_integer() else abs(number - right) <= TOLERANCE * abs(right)
    written = f"{right:,.0f}" if float(right).is_integer() else f"{right:.4g}"
    return Grade(correct, written, exercise.explanation)


def _as_number(answer: str | float) -> float:
    text = str(answer).strip().replace(",", "").replace("，", "")
    share = text.endswith(("%", "％"))
    try:
        number = float(text[:-1] if share else text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or isinstance(answer, bool):
        raise InputError(f"answer {str(answer)[:40]!r} is no number; write one such as 1,234 or 0.56 or 56%")
    return number / 100 if share else number
