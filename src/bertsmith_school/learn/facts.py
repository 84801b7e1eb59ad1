"""The numbers that lessons speak of, read from the settings and counted by the code; the answers of the exercises."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import torch

from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.errors import CheckpointError, InputError
from bertsmith.files import read_json
from bertsmith.finetune.search import PAPER_GRID
from bertsmith.model import BertConfig
from bertsmith.model.families import albert
from bertsmith.model.heads import SpanScores, best_spans
from bertsmith.model.sizes import ParameterCounts
from bertsmith.tinyworld import MADE, trained_model
from bertsmith.train.optimizer import learning_rate_at
from bertsmith_school.learn.computations import experiments, pretraining
from bertsmith_school.learn.lesson import Exercise, Grade
from bertsmith_school.learn.minibert import simple_sentences


def _reads(*, from_the_left: bool) -> SimpleNamespace:
    # 下三角矩阵就是“谁读谁”：数改动那一列
    tokens, place = 9, 3
    reads = np.tri(tokens, dtype=int) if from_the_left else np.tri(tokens, dtype=int).T
    return SimpleNamespace(tokens=tokens, place=place, answer=int(reads[:, place].sum()))


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


def _minibert() -> SimpleNamespace:
    lengths, rate = [len(sentence.split()) for sentence in simple_sentences()], MaskingSettings().rate
    hidden = sum(max(1, round(rate * length)) for length in lengths)
    longest, steps = max(lengths), experiments.STEPS
    given = {"sentences": len(lengths), "longest": longest, "exact": rate * longest, "steps": steps}
    return SimpleNamespace(**given, answer=hidden * steps)


def _classifier() -> SimpleNamespace:
    hidden, labels = 512, 4
    return SimpleNamespace(hidden=hidden, labels=labels, answer=labels * hidden + labels)


def _span() -> SimpleNamespace:
    starts, ends = [2.0, 1.0, 5.0, 0.0], [1.0, 6.0, 2.0, 2.0]
    scores = SpanScores(torch.tensor([[-9.0, *starts]]), torch.tensor([[-9.0, *ends]]))
    allowed = torch.arange(1 + len(starts))[None] > 0
    first, last, score = best_spans(scores, allowed, count=1)[0, 0].tolist()
    shown = {name: ", ".join(f"{one:g}" for one in row) for name, row in (("starts", starts), ("ends", ends))}
    return SimpleNamespace(**shown, first=int(first), last=int(last), answer=score)


def _errors() -> SimpleNamespace:
    before, after = (experiments.figure("glue", name, "average") for name in ("OpenAI GPT", "BERT base"))
    far, near = 100 - before, 100 - after
    return SimpleNamespace(before=before, after=after, far=far, near=near, answer=1 - near / far)


def _ablation() -> SimpleNamespace:
    whole, left = (
        experiments.figure("ablation", name, "SQuAD") for name in ("whole", "left to right, no next sentence")
    )
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
    config = albert.AlbertConfig.named("1/256", vocab_size=20_000)
    v, h, e = config.vocab_size, config.hidden_size, config.embedding_size
    return SimpleNamespace(vocabulary=v, hidden=h, embedding=e, whole=v * h, answer=v * e + e * h + h)


def _window() -> SimpleNamespace:
    length, window = 1000, 64
    places = np.arange(length)
    counted = int((np.abs(places[:, None] - places) <= window).sum())
    return SimpleNamespace(length=length, window=window, width=2 * window + 1, one=1, answer=counted)


GIVEN: dict[str, Callable[[], SimpleNamespace]] = {
    "why/left": functools.partial(_reads, from_the_left=True),
    "why/right": functools.partial(_reads, from_the_left=False),
    "architecture/block": _block,
    "architecture/softmax": _softmax,
    "pre-training/masked": _masked,
    "pre-training/loss": _loss,
    "pre-training/minibert": _minibert,
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
    """Marks a number, or one as people write it: `7,087,872`, `0.89`, `89%`, `5e-5`; `InputError` for anything else."""
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


@functools.cache
def facts() -> SimpleNamespace:
    """Returns settings, and what follows from them, by name; texts refer to them as `{facts.NAME}`."""
    masking = MaskingSettings()
    village = read_json(trained_model() / MADE, dict, CheckpointError, "install bertsmith again")
    base, large = BertConfig.named("base"), BertConfig.named("large")
    return SimpleNamespace(
        masking=masking,
        base=base,
        large=large,
        village=village,
        pretraining=pretraining,
        experiments=experiments,
        kept_share=1 - masking.mask_share - masking.random_share,
        # 读者容易问的：真正变成 [MASK] 的占全部词片的多少
        overall_mask_share=masking.rate * masking.mask_share,
        unseen_share=1 - masking.rate,
        base_millions=_millions(base),
        # 中文以亿计数
        base_hundred_millions=_millions(base) / 100,
        large_millions=_millions(large),
        large_hundred_millions=_millions(large) / 100,
        large_times=_millions(large) / _millions(base),
        inner_times=base.intermediate_size // base.hidden_size,
        coin_loss=math.log(2),
        grid_size=math.prod(len(values) for values in PAPER_GRID.values()),
        grid_rates=", ".join(f"{rate:.0e}".replace("e-0", "e-") for rate in PAPER_GRID["learning_rate"]),
        grid_batches=", ".join(map(str, PAPER_GRID["batch_size"])),
        grid_epochs=", ".join(map(str, PAPER_GRID["epochs"])),
        peak_rate=f"{pretraining.PEAK:.0e}".replace("e-0", "e-"),
        batch_tokens=pretraining.BATCH * pretraining.LENGTH,
        ablation_whole=experiments.figure("ablation", "whole", "SQuAD"),
        ablation_no_pairs=experiments.figure("ablation", "no next sentence", "SQuAD"),
        ablation_left=experiments.figure("ablation", "left to right, no next sentence", "SQuAD"),
        books_millions=pretraining.BOOKS_WORDS / 1e6,
        wikipedia_millions=pretraining.WIKIPEDIA_WORDS / 1e6,
        # 中文以亿计数
        books_hundred_millions=pretraining.BOOKS_WORDS / 1e8,
        wikipedia_hundred_millions=pretraining.WIKIPEDIA_WORDS / 1e8,
    )


def _millions(config: BertConfig) -> float:
    counts = ParameterCounts.of(config)
    return (counts.total - counts.heads) / 1e6
