"""What a budget of time would bring, found out before it is spent.

A part of the text is tokenized in a folder that is thrown away, models of random weights take a few steps on it, size
by size, and `train.forecast` says what each would reach in the time. Nothing is kept.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.data.reading.documents import lines_of, text_bytes
from bertsmith.data.reading.lines import read_lines
from bertsmith.data.reading.records import FileNames
from bertsmith.errors import ConfigError, InputError
from bertsmith.files import write_text
from bertsmith.journeys.source import (
    HELDOUT_SHARE,
    TextOptions,
    TextSource,
    default_vocab_sizes,
    learn_vocabulary,
    own_text,
    shards_of,
    text_files,
)
from bertsmith.kernels.layers import best_device, on_device
from bertsmith.kernels.processor import ASYNCHRONOUS
from bertsmith.model import NAMED_SIZES, ModelConfig
from bertsmith.model.sizes import ParameterCounts
from bertsmith.settings import Checked, built, divided, option
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.budget import (
    FEWEST_STEPS,
    TIMED_STEPS,
    StepCosts,
    sample_costs,
    seconds_for,
    seconds_per_step,
    steps_within,
)
from bertsmith.train.choosing import native_settings, recipe_for
from bertsmith.train.distributed import Ranks
from bertsmith.train.forecast import LAWS, LossLaw, is_as_measured
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import HELDOUT_SEQUENCES, make_trainer, open_stream

SAMPLED_BYTES = 4_000_000
"""Of the text that is looked at: enough for a vocabulary's entropy, and a few seconds' work."""
SAMPLED_FILES = 8
"""Files among which these are shared, where there are so many: each that is larger than its share is cut."""

TRIED, WARM, TIMED = 2, 3, 7
"""Steps that tell whether a size takes long; those that do not count where it does not; all that it then takes."""

MEASURING_SECONDS = 45.0
"""Where the steps of a size would take longer, their time is guessed from the next smaller size's."""

FORWARD_SHARE = 1 / 3
"""Of the operations of a step, those of its forward pass: what an evaluation costs."""


DEFAULT_MINUTES = 10.0
"""Of `plan`, for pre-training; of `quickstart`, from own text to model."""


@dataclass(frozen=True)
class PlanOptions(Checked):
    """What a plan is for."""

    minutes: float = option(DEFAULT_MINUTES, min=0, least_given=0.05, help="Minutes of pre-training.")
    family: str = option("modernbert", help="Architecture; one with a measured scaling law.")
    sizes: tuple[str, ...] = option((), name="size", help="Size or L/H to consider; once for each; default: all.")
    vocab_size: int | None = option(None, min=1, help="Vocabulary size; default: by the amount of text.")
    reading: TextOptions = field(default_factory=TextOptions)


@dataclass(frozen=True)
class Pace:
    """How fast a model trains on this machine: seconds of a step, and of an evaluation on held-out text."""

    step: float
    evaluating: float

    def steps_within(self, minutes: float) -> int:
        """Returns how many steps fit beside evaluations and savings."""
        return max(0, int(steps_within(60 * minutes, self.step, self.evaluating)))

    @property
    def minutes_for_fewest(self) -> float:
        """The time in which `FEWEST_STEPS` steps fit."""
        return seconds_for(FEWEST_STEPS, self.step, self.evaluating) / 60

    @property
    def minutes_for_timing(self) -> float:
        """What a run takes to time its own steps before it begins."""
        return (TIMED_STEPS * self.step + self.evaluating) / 60


@dataclass(frozen=True)
class Forecast:
    """What a size would reach.

    Attributes:
        parameters: those of the blocks.
        pace: as measured, or guessed from a smaller size by the operations.
        steps, tokens: what fits into the time beside evaluations and savings; `tokens` counts real ones.
        loss: held-out masked-LM loss to expect, in nats; the two after it, had there been more time or text.
        doubts: why these losses are a guess; empty where such runs were measured.
    """

    size: str
    parameters: int
    batch_size: int
    pace: Pace
    measured: bool
    steps: int
    tokens: float
    passes: float
    loss: float
    loss_of_twice_the_time: float
    loss_of_twice_the_text: float
    doubts: Sequence[str]

    @property
    def fits(self) -> bool:
        """Whether at least `FEWEST_STEPS` steps fit into the time."""
        return self.steps >= FEWEST_STEPS


@dataclass(frozen=True)
class Plan:
    """What was measured of text and machine, and what follows.

    Attributes:
        text_tokens: pieces in all of them, estimated from the part that was read.
        unigram_entropy: of the text, in nats: the loss of knowing piece frequencies and no context.
        forecasts: by size, smallest first; not all of them need fit into the time.
    """

    minutes: float
    text_bytes: int
    text_tokens: float
    vocab_size: int
    unigram_entropy: float
    law: LossLaw
    forecasts: list[Forecast]

    @property
    def best(self) -> Forecast:
        """The size that learns most in the time, among those that are large enough for it; else the largest."""
        return _best(self.forecasts, self.law)


def plan(
    text: FileNames,
    *,
    console: Console | None = None,
    device: torch.device | str | None = None,
    ranks: Ranks | None = None,
    **settings: Any,
) -> Plan:
    """Measures text and machine for half a minute, and says which size learns most in a time; writes nothing.

    Examples:
        >>> import bertsmith
        >>> found = bertsmith.plan("texts", minutes=10, size=["2/128"])
        >>> found.best.size, found.best.loss < found.unigram_entropy
        ('2/128', True)

    Args:
        text: files, folders or patterns of text and documents.
        console: shows what was read; silent when None.
        device: to train on; None takes the GPU where there is one.
        ranks: the processes that would share the run; all of them measure. None is this one alone.
        **settings: the options of `bertsmith plan`, with underscores, such as `minutes`; `size` takes a list.

    Raises:
        ConfigError: a setting is impossible, the family's law is not known, or no size takes enough steps in the time.
        InputError: there is no text, or too little to learn from.
    """
    (chosen,) = divided(settings, PlanOptions, command="plan")
    options, files, ranks = built(PlanOptions, chosen), text_files(text), ranks or Ranks()
    if options.family not in LAWS:
        raise ConfigError(f"no law of {options.family} is known; of these there is one: {', '.join(LAWS)}")
    with on_device(device), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = ranks.on_first(lambda: own_text(files, **vars(options.reading), leave_out=folder))
        source.tell(console)
        part, read = _sample(source, folder)
        sizes = [options.vocab_size] if options.vocab_size else default_vocab_sizes(source.bytes)
        tokenizer = learn_vocabulary(part, "wordpiece", sizes)
        corpus = shards_of(part, tokenizer, folder / "corpus", keep_duplicates=True)
        text_tokens = corpus.counts[TRAIN].tokens * source.bytes / read
        forecasts = list(_forecasts(corpus, tokenizer, options, text_tokens, ranks))
    ranks.on_first(lambda: _require_steps(forecasts, options))
    return Plan(
        minutes=options.minutes,
        text_bytes=source.bytes,
        text_tokens=text_tokens,
        vocab_size=tokenizer.vocab_size,
        unigram_entropy=corpus.unigram_entropy,
        law=LAWS[options.family],
        forecasts=forecasts,
    )


def best_size(corpus: TokenCorpus, tokenizer: Tokenizer, family: str, minutes: float) -> Forecast:
    """Returns the size that learns most from shards, as `plan` finds it; where none fits, the smallest."""
    text_tokens = corpus.counts[TRAIN].tokens
    forecasts = list(_forecasts(corpus, tokenizer, PlanOptions(minutes, family), text_tokens, Ranks()))
    return _best(forecasts, LAWS[family])


def latest_end(minutes: float) -> float:
    """Returns the minutes in which a quickstart that was given so many has to end; less than one counts as one."""
    return 1.25 * max(minutes, 1.0)


def minutes_left(minutes: float, spent: float) -> float:
    """Returns what is left for pre-training: half at least, unless the whole would then end too late."""
    return max(minutes - spent, min(minutes / 2, latest_end(minutes) - spent), 0.0)


def pace_of(recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: Tokenizer) -> Pace:
    """Returns how fast a recipe trains, from a few steps of a model that is thrown away."""
    costs = sample_costs(recipe, corpus, tokenizer, 0)
    per_step = _measured(recipe.changed(steps=1), corpus, tokenizer, Ranks())
    return Pace(per_step, per_step * _evaluation_in_steps(recipe, costs, corpus.counts[TRAIN].tokens))


def too_short(
    size: str, steps: int, minutes_for_fewest: float, minutes: float, spent: float = 0.0, *, smaller: bool = False
) -> ConfigError:
    """Returns the refusal of a time in which only some steps fit, with the minutes that would do.

    Args:
        minutes_for_fewest: those in which `FEWEST_STEPS` fit.
        minutes: those asked for.
        spent: how many of them are not for pre-training.
        smaller: whether a smaller size can be asked for.
    """
    # 机器下次可能慢一点：多给一成，再往上取整
    enough = max(0.05, math.ceil(100 * (spent + 1.1 * minutes_for_fewest)) / 100)
    within = f"in {minutes:g} minutes"
    if spent:
        used, left = round(spent, 2), round(minutes_left(minutes, spent), 2)
        within = f"preparation and report take {used:g} of {minutes:g} minutes; in the {left:g} that are left"
    return ConfigError(
        f"{within} {size} takes {steps} of at least {FEWEST_STEPS} steps on this machine; give {enough:g} minutes"
        f"{' or a smaller size' * smaller}"
    )


def _best(forecasts: Sequence[Forecast], law: LossLaw) -> Forecast:
    fitting = [each for each in forecasts if each.fits] or forecasts[:1]
    large_enough = [each for each in fitting if each.tokens <= law.tokens_per_parameter * each.parameters]
    return min(large_enough, key=lambda forecast: forecast.loss) if large_enough else fitting[-1]


def _sample(source: TextSource, folder: Path) -> tuple[TextSource, int]:
    """Copies a part of the text, spread over its files; returns it and how many bytes of the text it stands for."""
    part = folder / "text"
    part.mkdir()
    # 文件按名字排好的话，前几个未必像全部：隔几个取一个
    every = max(1, source.bytes // SAMPLED_BYTES)
    spread = [file for start in range(min(every, len(source.files))) for file in source.files[start::every]]
    # 一个文件常就是一篇：每个只取一份，头几个大文件才不会占满样本
    share = SAMPLED_BYTES // min(len(spread), SAMPLED_FILES)
    read, files = 0, []
    for number, file in enumerate(spread):
        if read >= SAMPLED_BYTES:
            break
        lines, taken, room = [], 0, min(share, SAMPLED_BYTES - read)
        for line in lines_of(file, source.encoding):
            lines.append(line)
            taken += len(line.encode()) + 1
            if taken >= room:
                break
        files.append(part / f"{number}.txt")
        write_text(files[-1], "\n".join(lines) + "\n")
        read += text_bytes(file, source.encoding) if taken < room else taken
    if not any(line.strip() for file in files for line in read_lines(file, "utf-8")):
        raise InputError(f"no text in {', '.join(str(file) for file in source.files[:3])}")
    return replace(source, files=files, encoding="utf-8", warns=False), read


def _recipe(size: str, options: PlanOptions) -> PreTrainingRecipe:
    """Returns the recipe that `bertsmith quickstart` would take on own text."""
    device = best_device()
    family = options.family
    return recipe_for(size, family=family, objective="mlm", device=device, steps=1, **native_settings(device))


def _require_steps(forecasts: Sequence[Forecast], options: PlanOptions) -> None:
    if not any(each.fits for each in forecasts):
        fastest = min(forecasts, key=lambda each: each.pace.minutes_for_fewest)
        fewest, smaller = fastest.pace.minutes_for_fewest, bool(options.sizes)
        raise too_short(fastest.size, fastest.steps, fewest, options.minutes, smaller=smaller)


def _forecasts(
    corpus: TokenCorpus, tokenizer: Tokenizer, options: PlanOptions, text_tokens: float, ranks: Ranks
) -> Iterator[Forecast]:
    """Measures sizes from the smallest on: those asked for, or all until one learns less in the time."""
    law, device = LAWS[options.family], best_device()
    # 一步久到试几步就用去这么多时间的，训练起来也走不了几步
    longest = min(MEASURING_SECONDS, 60 * options.minutes / 4)
    known: tuple[float, float] | None = None
    least = math.inf
    for size in sorted(options.sizes or NAMED_SIZES, key=_size_of_blocks):
        recipe = _recipe(size, options)
        costs = sample_costs(recipe, corpus, tokenizer, 0)
        # 大模型先不试：量起来太久的，按运算量从小一号的推
        guessed = known[0] * costs.flops / known[1] if known else 0.0
        # GPU 上小模型的一步多是启动内核的时间，推不出大模型的：都量
        measured = guessed * TIMED <= longest or device.type in ASYNCHRONOUS
        per_step = _measured(recipe, corpus, tokenizer, ranks) if measured else guessed
        known = per_step, costs.flops
        pace = Pace(per_step, per_step * _evaluation_in_steps(recipe, costs, text_tokens))
        steps = pace.steps_within(options.minutes)
        tokens, parameters = steps * costs.tokens, ParameterCounts.of(recipe.model_config(tokenizer)).encoder
        if not options.sizes and steps < FEWEST_STEPS and least < math.inf:
            return

        def reaches(tokens: float, text: float, parameters: int = parameters) -> float:
            return law.loss(parameters, tokens, corpus.unigram_entropy, text_tokens=text)

        doubts = law.doubts(parameters, tokens, text_tokens)
        doubts += [] if measured else ["its steps were not timed"]
        # 计划里的配方与量过的只可能差在批量上：GPU 上的更大
        unknown_batch = f"no run with {recipe.data.batch_size} sequences in a batch was measured"
        doubts += [] if is_as_measured(recipe) else [unknown_batch]
        yield Forecast(
            size=size,
            parameters=parameters,
            batch_size=recipe.data.batch_size,
            pace=pace,
            measured=measured,
            steps=steps,
            tokens=tokens,
            passes=tokens / text_tokens,
            loss=(loss := reaches(tokens, text_tokens)),
            loss_of_twice_the_time=reaches(2 * tokens, text_tokens),
            loss_of_twice_the_text=reaches(tokens, 2 * text_tokens),
            doubts=doubts,
        )
        # 同样的时间里更大的模型读得更少：够大、又已经学得更少，再大也不会好
        if not options.sizes and loss > least and tokens <= law.tokens_per_parameter * parameters:
            return
        least = min(least, loss)


def _size_of_blocks(size: str) -> int:
    layers, hidden = ModelConfig.shape_of(size)
    return layers * hidden**2


def _measured(recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: Tokenizer, ranks: Ranks) -> float:
    """Returns the seconds of a step of a model that is thrown away; one timed step will do where all take too long."""
    trainer = make_trainer(recipe.changed(first_vectors="drawn"), corpus, tokenizer, best_device(), ranks)
    stream = open_stream(recipe, corpus, tokenizer, ranks=ranks)
    begun = time.perf_counter()
    first = seconds_per_step(trainer, stream, timed=TRIED, warm=TRIED - 1)
    if ranks.on_first(lambda: time.perf_counter() - begun + first * TIMED) > MEASURING_SECONDS:
        return ranks.on_first(lambda: first)
    usual = seconds_per_step(trainer, stream, timed=TIMED - TRIED, warm=WARM - TRIED)
    return ranks.on_first(lambda: usual)


def _evaluation_in_steps(recipe: PreTrainingRecipe, costs: StepCosts, text_tokens: float) -> float:
    heldout = min(HELDOUT_SEQUENCES * recipe.data.sequence_length, HELDOUT_SHARE * text_tokens)
    return FORWARD_SHARE * heldout / costs.tokens
