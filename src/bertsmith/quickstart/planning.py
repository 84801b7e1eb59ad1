"""What a budget of time would bring, found out before it is spent.

A part of the text is tokenized in a folder that is thrown away, models of random weights take a few steps on it, size
by size, and `train.forecast` says what each would reach in the time. Nothing is kept.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertsmith.data.corpus.build import build_corpus
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.data.reading.lines import read_lines
from bertsmith.errors import ConfigError, InputError
from bertsmith.files import write_text
from bertsmith.kernels.layers import best_device
from bertsmith.model import NAMED_SIZES
from bertsmith.model.sizes import ParameterCounts
from bertsmith.quickstart.options import PlanOptions
from bertsmith.quickstart.source import TextSource, own_text
from bertsmith.quickstart.vocabulary import default_vocab_sizes, learn_vocabulary
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.budget import FEWEST_STEPS, sample_costs, seconds_per_step
from bertsmith.train.choosing import native_settings, recipe_for
from bertsmith.train.forecast import LAWS, TOKENS_PER_PARAMETER
from bertsmith.train.start import make_trainer, open_stream

SAMPLED_BYTES = 4_000_000
"""Of the text that is looked at: enough for a vocabulary's entropy, and a few seconds' work."""

TIMED, WARM = 7, 3
"""Steps that a size takes, and those of them that do not count."""

MEASURING_SECONDS = 45.0
"""A larger size is not tried where its steps would take longer than this."""


@dataclass(frozen=True)
class Forecast:
    """What a size would reach.

    Attributes:
        size: its name.
        parameters: those of the blocks.
        batch_size: sequences of a step.
        seconds_per_step: as measured.
        steps, tokens: what fits into the time; `tokens` counts real ones.
        passes: over the text.
        loss: held-out masked-LM loss to expect, in nats.
        loss_of_twice_the_time, loss_of_twice_the_text: the same, had there been more.
    """

    size: str
    parameters: int
    batch_size: int
    seconds_per_step: float
    steps: int
    tokens: float
    passes: float
    loss: float
    loss_of_twice_the_time: float
    loss_of_twice_the_text: float


@dataclass(frozen=True)
class Plan:
    """What was measured of text and machine, and what follows.

    Attributes:
        text_bytes: size of the files.
        text_tokens: pieces in all of them, estimated from the part that was read.
        vocab_size: pieces of the vocabulary that suits.
        unigram_entropy: of the text, in nats: the loss of knowing piece frequencies and no context.
        spread: root mean square of what the law missed by on the runs it was fitted to, in nats.
        beyond: whether the best size is larger, or would read more or fewer tokens, than any of those runs.
        forecasts: by size, smallest first.
    """

    text_bytes: int
    text_tokens: float
    vocab_size: int
    unigram_entropy: float
    spread: float
    beyond: bool
    forecasts: list[Forecast]

    @property
    def best(self) -> Forecast:
        """The size that learns most in the time, among those that are large enough for it; else the largest."""
        large_enough = [each for each in self.forecasts if each.tokens <= TOKENS_PER_PARAMETER * each.parameters]
        return min(large_enough, key=lambda forecast: forecast.loss) if large_enough else self.forecasts[-1]


def plan(text: Sequence[str], options: PlanOptions) -> Plan:
    """Measures text and machine, and says what sizes would reach in the time.

    Args:
        text: files, folders or globs.
        options: of the plan.

    Raises:
        InputError: there is no text, or too little to learn from.
        ConfigError: the family's law is not known, a size is none, or no size takes enough steps in the time.
    """
    if options.family not in LAWS:
        raise ConfigError(f"no law of {options.family} is known; of these there is one: {', '.join(LAWS)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = own_text(text, documents=options.documents, encoding=options.encoding, leave_out=folder)
        part, read = _sample(source, folder)
        sizes = [options.vocab_size] if options.vocab_size else default_vocab_sizes(source.bytes)
        tokenizer = learn_vocabulary(part, "wordpiece", sizes)
        chosen = CorpusOptions(documents=part.documents, encoding="utf-8", heldout_share=0.04, keep_duplicates=True)
        corpus = build_corpus(part.files, tokenizer, folder / "corpus", chosen)
        text_tokens = corpus.counts[TRAIN].tokens * source.bytes / read
        forecasts = list(_forecasts(corpus, tokenizer, options, text_tokens))
        law = LAWS[options.family]
        found = Plan(
            source.bytes, text_tokens, tokenizer.vocab_size, corpus.unigram_entropy, law.spread, False, forecasts
        )
        fewest, most = law.tokens
        best = found.best
        return replace(found, beyond=not fewest <= best.tokens <= most or best.parameters > law.largest)


def _sample(source: TextSource, folder: Path) -> tuple[TextSource, int]:
    """Copies a part of the text, spread over its files; returns it and how many bytes of the text it stands for."""
    part = folder / "text"
    part.mkdir()
    # 文件按名字排好的话，前几个未必像全部：隔几个取一个
    every = max(1, source.bytes // SAMPLED_BYTES)
    spread = [file for start in range(min(every, len(source.files))) for file in source.files[start::every]]
    read, files = 0, []
    for number, file in enumerate(spread):
        if read >= SAMPLED_BYTES:
            break
        lines, room = [], SAMPLED_BYTES - read
        for line in read_lines(file, source.encoding):
            lines.append(line)
            room -= len(line.encode()) + 1
            if room <= 0:
                break
        files.append(part / f"{number}.txt")
        write_text(files[-1], "\n".join(lines) + "\n")
        read += file.stat().st_size if room > 0 else SAMPLED_BYTES - read - room
    if not any(line.strip() for file in files for line in read_lines(file, "utf-8")):
        raise InputError(f"no text in {', '.join(str(file) for file in source.files[:3])}")
    return replace(source, files=files, encoding="utf-8"), read


def _forecasts(
    corpus: TokenCorpus, tokenizer: Tokenizer, options: PlanOptions, text_tokens: float
) -> Iterator[Forecast]:
    """Measures sizes from the smallest on, until one would take too long to measure, or learns less in the time."""
    law, device, seconds = LAWS[options.family], best_device(), 60 * options.minutes
    known: tuple[float, float] | None = None
    least = math.inf
    for size in options.sizes or NAMED_SIZES:
        recipe = recipe_for(size, family=options.family, device=device, steps=1, **native_settings(device))
        costs = sample_costs(recipe, corpus, tokenizer, 0)
        # 大模型先不试：按运算量从小一号的推，量一次要是太久、或一步也迈不出，就到此为止
        if known is not None and known[0] * costs.flops / known[1] * TIMED > MEASURING_SECONDS:
            return
        per_step = seconds_per_step(
            make_trainer(recipe.changed(first_vectors="drawn"), corpus, tokenizer, device),
            open_stream(recipe, corpus, tokenizer),
            timed=TIMED,
            warm=WARM,
        )
        known, steps = (per_step, costs.flops), int(seconds / per_step)
        if steps < FEWEST_STEPS and least == math.inf:
            needed = FEWEST_STEPS * per_step / 60
            raise ConfigError(
                f"in {options.minutes:g} minutes {size} takes {steps} of at least {FEWEST_STEPS} steps on this machine;"
                f" give {max(0.05, 1.1 * needed):.2g} minutes{' or a smaller size' * bool(options.sizes)}"
            )
        if steps < FEWEST_STEPS:
            return
        tokens, parameters = steps * costs.tokens, ParameterCounts.of(recipe.model_config(tokenizer)).encoder

        def reaches(tokens: float, text: float, parameters: int = parameters) -> float:
            return law.loss(parameters, tokens, corpus.unigram_entropy, text_tokens=text)

        yield Forecast(
            size=size,
            parameters=parameters,
            batch_size=recipe.data.batch_size,
            seconds_per_step=per_step,
            steps=steps,
            tokens=tokens,
            passes=tokens / text_tokens,
            loss=(loss := reaches(tokens, text_tokens)),
            loss_of_twice_the_time=reaches(2 * tokens, text_tokens),
            loss_of_twice_the_text=reaches(tokens, 2 * text_tokens),
        )
        # 同样的时间里更大的模型读得更少：够大、又已经学得更少，再大也不会好
        if not options.sizes and loss > least and tokens <= TOKENS_PER_PARAMETER * parameters:
            return
        least = min(least, loss)
