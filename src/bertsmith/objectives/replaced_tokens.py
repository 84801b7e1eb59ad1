"""Replaced-token detection: a generator fills masks, a discriminator finds what it filled in (Clark et al. 2020).

The generator, a masked LM, predicts the hidden pieces; a piece is drawn from each prediction. The discriminator reads
the text with these pieces and says of *every* token whether it was replaced; a piece that happens to be the true one
counts as original. Both learn at once: loss = masked LM + 50 · replaced tokens (§2). No gradient goes through the draw.

- the two share their embedding (§3.2): the discriminator sees a few pieces a text, the generator all of the vocabulary
- the generator has a third of the discriminator's heads, and so a third to a half of its width (§3.2: one that is too
  good leaves nothing to find)
- the draws come with the batch (`PreTrainingBatch.masked_draws`), so that a resumed run, several processes and gradient
  accumulation see the same pieces replaced
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.stream import StreamNeeds
from bertsmith.errors import CheckpointError, ConfigError
from bertsmith.hub import model_folder
from bertsmith.model import ModelConfig, ModelForMaskedLM, ModelForReplacedTokenDetection, PretrainedModel
from bertsmith.model.folder import stored_heads
from bertsmith.objectives.pretraining import (
    MASKED_LM,
    Figure,
    LanguageModel,
    LossOutput,
    PreTrainingObjective,
    figure,
    register,
)

DISCRIMINATOR_WEIGHT = 50.0
"""λ of §2: the loss of a yes-or-no question is much smaller than that of a piece out of 30,000."""

GENERATOR_DIVISOR = 3
"""The discriminator has so many times the generator's heads, rounded up: base has 12 and 4 as published, small 4 and 2.
The 1 head of the published small one did not get beyond word frequencies in two million tokens."""

GENERATOR = "generator"
"""Where, in the discriminator's folder, the generator lies."""

SHARED = ("word", "position", "token_type", "norm")
"""What the two share of their embeddings; the matrix to the width of the states is each one's own."""


class ReplacedTokenLoss(nn.Module):
    """Mean of -log p(original or replaced) over all tokens, in nats; chance is log 2 = 0.693.

    Few tokens are replaced, so that a high accuracy says little; `rtd_recall` is the share of them that was found.
    """

    name: ClassVar[str] = "rtd"
    title: ClassVar[str] = "replaced-token"

    def forward(self, logits: Tensor, labels: Tensor, *, total: int | None = None) -> LossOutput:
        """Returns the loss of the discriminator, with its sums.

        Args:
            logits: [T], above 0 for "replaced".
            labels: [T] bool, whether the token was replaced.
            total: tokens of the whole batch, where these are a share of it; None where this is all.
        """
        loss = F.binary_cross_entropy_with_logits(logits.float(), labels.float(), reduction="sum")
        found, count = logits.detach() > 0, len(labels)
        sums: dict[str, tuple[Figure, Figure]] = {
            "rtd_loss": (figure(loss), count),
            "rtd_accuracy": (figure((found == labels).sum()), count),
            "rtd_recall": (figure((found & labels).sum()), figure(labels.sum())),
        }
        return LossOutput(loss / (count if total is None else total), sums)


@dataclass(frozen=True)
class ReplacedTokenOutput:
    """What the two networks say of a batch.

    Attributes:
        mlm_logits: [M, V] of the generator.
        rtd_logits: [T] of the discriminator, above 0 for "replaced".
        replaced: [T] bool, which tokens of what the discriminator read were replaced.
    """

    mlm_logits: Tensor
    rtd_logits: Tensor
    replaced: Tensor


class GeneratorAndDiscriminator(nn.Module):
    """The two networks while they train; what they share is one module in both."""

    def __init__(self, generator: ModelForMaskedLM, discriminator: ModelForReplacedTokenDetection) -> None:
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        for name in SHARED:
            # 同一个模块挂在两处：两边的梯度加在同一张表上，生成器借此替判别器学遍整个词表
            setattr(generator.backbone.embedding, name, getattr(discriminator.backbone.embedding, name))

    def forward(
        self, batch: RaggedBatch, masked_positions: Tensor, masked_labels: Tensor, masked_draws: Tensor
    ) -> ReplacedTokenOutput:
        """Fills the masks, and judges what came of it (§2).

        Args:
            batch: N sequences with masks, T tokens.
            masked_positions: [M] int64 indices of the hidden pieces.
            masked_labels: [M] int64, what they were.
            masked_draws: [M] in [0, 1), from which the replacements are drawn.
        """
        mlm_logits = self.generator(batch, masked_positions)
        # 采样不传梯度：离散的词没有导数，论文也发现对抗训练不如最大似然（§3.3）
        drawn = sample_pieces(mlm_logits.detach(), masked_draws)
        # 猜中原词的位置算“原样”：判别器读到的正是原文，没有理由说它被换过
        wrong = drawn != masked_labels
        replaced = torch.zeros_like(batch.input_ids, dtype=torch.bool).index_copy(0, masked_positions, wrong)
        filled = replace(batch, input_ids=batch.input_ids.index_copy(0, masked_positions, drawn))
        return ReplacedTokenOutput(mlm_logits, self.discriminator(filled), replaced)


@dataclass(frozen=True)
class ReplacedTokenObjective(PreTrainingObjective):
    """Masked LM of the generator, and replaced tokens of the discriminator; counts shares as `PreTrainingObjective`."""

    name: str = "rtd"
    language_model: LanguageModel = MASKED_LM
    detection: ReplacedTokenLoss = field(default_factory=ReplacedTokenLoss)

    heads = ("masked_lm", "replaced_tokens")
    folders = ("", GENERATOR)

    @property
    def needs(self) -> StreamNeeds:
        """Masks without pairs, and a random number for each."""
        return StreamNeeds("none", self.language_model.targets, draws=True)

    @property
    def terms(self) -> list[Any]:
        """The losses whose figures are shown."""
        return [self.language_model.loss, self.detection]

    def for_masking(self, kind: str) -> ReplacedTokenObjective:
        """Returns itself: hidden are pieces or whole words."""
        if kind == "span":
            raise ConfigError(f"{self.name} has no span boundary loss; choose --masking token or whole-word")
        return self

    def networks(self, config: ModelConfig) -> tuple[ModelConfig, ...]:
        """The generator, then the discriminator."""
        return generator_config(config), config

    def build_model(self, config: ModelConfig) -> GeneratorAndDiscriminator:
        """Returns fresh networks."""
        discriminator = ModelForReplacedTokenDetection(config)
        return GeneratorAndDiscriminator(ModelForMaskedLM(generator_config(config)), discriminator)

    def load_model(self, folder: str | Path, **changes: Any) -> GeneratorAndDiscriminator:
        """Returns the networks of a folder."""
        missing = {"replaced_tokens"} - stored_heads(folder)
        discriminator = ModelForReplacedTokenDetection.from_pretrained(folder, new_heads=missing, **changes)
        place = model_folder(folder) / GENERATOR
        if not (place / "config.json").is_file():
            return GeneratorAndDiscriminator(ModelForMaskedLM(generator_config(discriminator.config)), discriminator)
        generator = ModelForMaskedLM.from_pretrained(place, **changes)
        for name in SHARED:
            own, shared = (getattr(each.backbone.embedding, name) for each in (generator, discriminator))
            # 别处来的生成器若带着自己的嵌入，换上判别器的就等于毁了它：宁可拒绝
            if own.weight.shape != shared.weight.shape or not own.weight.equal(shared.weight):
                raise CheckpointError(
                    f"{place}: its {name} embedding is not that of {folder}, which the two would share; move it away to"
                    " start a fresh generator"
                )
        return GeneratorAndDiscriminator(generator, discriminator)

    def models(self, model: GeneratorAndDiscriminator) -> Mapping[str, PretrainedModel]:
        """Returns the two networks by the folders they are saved to."""
        return {"": model.discriminator, GENERATOR: model.generator}

    def total_loss(self, figures: Mapping[str, float]) -> float:
        """Returns masked LM + 50 · replaced tokens, of average figures; NaN without them."""
        generator, discriminator = (figures.get(f"{term.name}_loss", math.nan) for term in self.terms)
        return generator + DISCRIMINATOR_WEIGHT * discriminator

    def guessing_loss(self, num_pieces: int) -> float:
        """Returns log V of the pieces and 50 log 2 of the tokens."""
        return math.log(num_pieces) + DISCRIMINATOR_WEIGHT * math.log(2)

    def __call__(self, model: nn.Module, batch: PreTrainingBatch) -> LossOutput:
        """Returns the loss and the figures of both networks."""
        output = model(batch.tokens, batch.masked_positions, batch.masked_labels, batch.masked_draws)
        predicted = self.language_model.loss(output.mlm_logits, batch.masked_labels, total=batch.global_masked)
        judged = self.detection(output.rtd_logits, output.replaced, total=batch.global_tokens)
        # 判断一个词换没换的损失远小于猜一个词：不放大 50 倍，共享的嵌入就只听生成器的
        return LossOutput(predicted.loss + DISCRIMINATOR_WEIGHT * judged.loss, {**predicted.sums, **judged.sums})


def generator_config(config: ModelConfig) -> ModelConfig:
    """Returns the generator's shape: as many layers as the discriminator, of a third of its heads (§3.2)."""
    heads = -(-config.num_attention_heads // GENERATOR_DIVISOR)
    hidden_size = heads * config.head_size
    return config.changed(
        num_attention_heads=heads,
        hidden_size=hidden_size,
        intermediate_size=config.intermediate_size * hidden_size // config.hidden_size,
        pruned_heads={},
    )


def sample_pieces(logits: Tensor, draws: Tensor) -> Tensor:
    """Draws a piece, [M] int64, from each distribution of `logits` [M, V].

    Args:
        draws: [M] in [0, 1): where, on the line from 0 to 1 that the V probabilities divide, the piece lies.
    """
    # 反函数法：每个位置只用一个随机数，而不是词表那么多个
    ends = logits.float().softmax(-1).cumsum(-1)  # [M, V]
    places = draws[:, None] * ends[:, -1:]
    return torch.searchsorted(ends, places, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


register(ReplacedTokenObjective())
