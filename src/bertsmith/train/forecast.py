"""What a run may be expected to reach: held-out loss by the size of the model, the tokens it reads and the text.

A run begins near the unigram entropy H₁, the loss of knowing how frequent pieces are and no more, leaves it within a
few hundred thousand tokens, and then falls as a power of what it has read, where a larger model gets more out of every
token:

    L(N, D) = H₁ (s + (1 − s) C (D N^γ)^−α),  s = 1 / (1 + (D / S)^p),  N and D in millions

with N the parameters of the blocks, D the tokens read, and s what is left of the beginning, which is as long for every
size. As a share of H₁ texts and vocabularies of different kinds compare. A power law alone (Hoffmann et al. 2022) has
no beginning, which is half of a run as short as these. A token that was read before teaches less (Muennighoff et al.
2023, §3): with U tokens of text and R = D/U − 1 passes more, D counts as

    U + U R* (1 − exp(−R / R*)),  R* = 15.4

The constants were fitted to the runs of `benchmarks/scaling.py`, whose result lines lie in `benchmarks/results/`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.model import ModelConfig
from bertsmith.model.sizes import ParameterCounts
from bertsmith.settings import values_of
from bertsmith.train.choosing import ENDS, recipe_for
from bertsmith.train.recipe import PreTrainingRecipe

MILLION = 1_000_000
REPEATED = 15.4
"""R*, the passes after which the text is nearly used up; Muennighoff et al. found it for causal models."""

EARLIEST_ALARM, ALARMING = 0.3, 0.4
"""A run is warned from this share of it on when its held-out loss is so many nats above the expected one. Earlier, runs
differ too much in when they leave the plateau of knowing frequencies only."""

_FREE = {*ENDS, "seed", "corpus", "precision", "dropout", "mask_spread"}
"""Settings in which a run may differ from those that were fitted. Whether it has dropout is looked at by itself."""


@dataclass(frozen=True)
class LossLaw:
    """The constants of a family, as fitted; `loss` is the law itself.

    Attributes:
        start: S, the millions of tokens after which half of the beginning is over.
        start_power: p.
        share: C, the share of the unigram entropy that a model of a million parameters has left after a million tokens.
        token_power: α: k times the tokens leave k^−α of it.
        size_power: γ: k times the parameters are worth k^γ times the tokens.
        largest_miss: by which the law misses a run that it was fitted to, in nats.
        tokens: fewest and most tokens of those runs; beyond them the law is a guess.
        text_tokens: U of the text that they read.
        largest: parameters of the largest model of those runs; of larger ones nothing is known.
        tokens_per_parameter: most that any of them read for each of its parameters. The law has no floor, and promises
            too much to a model that is too small for what it reads.
        progress: tokens of a run → shares of the way from the unigram entropy to the last loss after equal parts of it,
            from 0 to 1. A short run spends most of its time on leaving the entropy.
    """

    start: float
    start_power: float
    share: float
    token_power: float
    size_power: float
    largest_miss: float
    tokens: tuple[float, float]
    text_tokens: float
    largest: float
    tokens_per_parameter: float
    progress: Mapping[float, tuple[float, ...]]

    def loss(self, parameters: float, tokens: float, unigram_entropy: float, *, text_tokens: float = math.inf) -> float:
        """Returns the held-out masked-LM loss to expect at the end of a run, in nats as `unigram_entropy` is.

        Args:
            parameters: N, those of the blocks, without embeddings and heads.
            tokens: D, read in the run.
            text_tokens: U, different tokens that there are to read.
        """
        read = effective_tokens(tokens, text_tokens) / MILLION
        beginning = 1 / (1 + (read / self.start) ** self.start_power)
        # 大模型同样的词元学得更多：折算成“更多的词元”
        worth = read * (parameters / MILLION) ** self.size_power
        left = self.share * worth**-self.token_power if worth else 1.0
        return float(unigram_entropy * (beginning + (1 - beginning) * left))

    def doubts(self, parameters: float, tokens: float, text_tokens: float) -> list[str]:
        """Returns why the law only guesses here: what sets this run apart from all that it was fitted to."""
        fewest, most = self.tokens
        passes = tokens / text_tokens
        found = []
        if parameters > self.largest:
            found.append(f"no model of more than {self.largest / MILLION:.1f} M parameters in its blocks was measured")
        if tokens < fewest:
            found.append(f"no run of fewer than {fewest / MILLION:.2f} M tokens was measured")
        if tokens > most:
            found.append(f"no run of more than {most / MILLION:.0f} M tokens was measured")
        if tokens > self.tokens_per_parameter * parameters:
            found.append(
                f"no run of more than {self.tokens_per_parameter:.0f} tokens for each parameter was measured, and there"
                " the forecast is too optimistic"
            )
        # 小文本读很多遍：规律没见过，而且模型会把它背下来
        if passes > (measured := most / self.text_tokens):
            found.append(f"the text would be read {passes:.0f} times, and {measured:.0f} is the most that was measured")
        return found

    def loss_at(self, done: float, tokens: float, last: float, unigram_entropy: float) -> float:
        """Returns the loss to expect after a share of a run of so many tokens that ends at `last`."""
        ways = [np.interp(done, np.linspace(0, 1, len(way)), way) for way in self.progress.values()]
        # 量过的长度之间按词元数的对数插值
        way = float(np.interp(math.log(tokens), np.log(list(self.progress)), ways))
        return unigram_entropy - way * (unigram_entropy - last)


def effective_tokens(tokens: float, text_tokens: float) -> float:
    """Returns how many new tokens are worth as much as `tokens` read from a text of `text_tokens`."""
    if tokens <= text_tokens:
        return tokens
    again = tokens / text_tokens - 1
    return text_tokens * (1 + REPEATED * (1 - math.exp(-again / REPEATED)))


LAWS: Mapping[str, LossLaw] = {
    "modernbert": LossLaw(
        start=0.2646,
        start_power=2.3818,
        share=0.6172,
        token_power=0.0834,
        size_power=0.3749,
        largest_miss=0.073,
        tokens=(251_798, 15_997_402),
        text_tokens=2_520_793,
        largest=8_916_992,
        tokens_per_parameter=57.4,
        progress={
            250_000: (0.0, 0.034, 0.188, 0.361, 0.486, 0.56, 0.623, 0.71, 0.781, 0.855, 0.926, 0.975, 1.0),
            500_000: (0.0, 0.092, 0.248, 0.328, 0.465, 0.6, 0.714, 0.797, 0.861, 0.917, 0.961, 0.986, 1.0),
            1_000_000: (0.0, 0.204, 0.38, 0.594, 0.711, 0.784, 0.826, 0.864, 0.902, 0.939, 0.965, 0.988, 1.0),
            2_000_000: (0.0, 0.33, 0.621, 0.722, 0.776, 0.829, 0.873, 0.905, 0.928, 0.951, 0.966, 0.99, 1.0),
            4_000_000: (0.0, 0.558, 0.696, 0.774, 0.821, 0.841, 0.887, 0.911, 0.934, 0.961, 0.979, 0.991, 1.0),
            8_000_000: (0.0, 0.654, 0.753, 0.811, 0.846, 0.869, 0.898, 0.928, 0.939, 0.962, 0.975, 0.991, 1.0),
            16_000_000: (0.0, 0.709, 0.802, 0.842, 0.855, 0.883, 0.917, 0.925, 0.946, 0.966, 0.98, 0.99, 1.0),
        },
    ),
}
"""Family → its law, as `benchmarks/scaling.py` prints it."""


@dataclass(frozen=True)
class Expectation:
    """The curve that a run of a known kind should follow."""

    law: LossLaw
    parameters: int
    unigram_entropy: float
    text_tokens: int

    def loss_at(self, done: float, tokens_seen: int) -> float:
        """Returns the held-out masked-LM loss to expect after a share of the run, in nats."""
        tokens = tokens_seen / done
        last = self.law.loss(self.parameters, tokens, self.unigram_entropy, text_tokens=self.text_tokens)
        return self.law.loss_at(done, tokens, last, self.unigram_entropy)


def expectation_of(recipe: PreTrainingRecipe, config: ModelConfig, corpus: TokenCorpus) -> Expectation | None:
    """Returns what to expect of a run, or None where no such run was measured."""
    law = LAWS.get(config.model_type)
    parameters = ParameterCounts.of(config).encoder
    # 别的配方、比量过的更大的模型，规律没有见过：拿来报警会冤枉一次正常的训练
    if law is None or not is_as_measured(recipe) or parameters > law.largest:
        return None
    return Expectation(law, parameters, corpus.unigram_entropy, corpus.counts[TRAIN].tokens)


def is_as_measured(recipe: PreTrainingRecipe) -> bool:
    """Returns whether a recipe is of the kind that the laws were fitted to.

    They are fresh models that learn masks alone, by the best recipe of their family and size on a CPU, without dropout.
    """
    asked = values_of(recipe)
    if recipe.model.start_from or recipe.model.dropout:
        return False
    usual = values_of(recipe_for(recipe.model.size, family=recipe.model.family, objective="mlm"))
    return all(asked[name] == usual[name] for name in usual if name not in _FREE)
