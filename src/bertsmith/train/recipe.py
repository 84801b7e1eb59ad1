"""One dial, every setting: what `--size` means, written out in `recipe.toml`.

A recipe holds all that decides the numbers of a pre-training run, down to a fingerprint of its data. It is resolved
once, saved into the run folder, and read back when the same command is run again; a run whose request differs from
the recipe found there is refused instead of being mixed up with it.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import write_text
from bertsmith.model.config import BertConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class PreTrainingRecipe:
    """Every setting of a pre-training run.

    Attributes:
        size: a published name or `L/H`.
        sequence_length: most ids in a sequence, special tokens included; also the number of positions learned.
        batch_size: sequences in a step.
        learning_rate: its peak.
        warmup_share: share of the steps with a rising rate.
        weight_decay: of matrices.
        clip_norm: most the gradient's global norm may be.
        dropout: after embeddings, sub-layers and on attention probabilities.
        mask_rate: share of the pieces that is predicted.
        short_probability: share of documents cut into shorter pairs.
        precision: `bf16` or `float32`.
        seed: of everything random.
        minutes: the time that was asked for, 0 when steps were.
        total_steps: length of the run; found from `minutes` by timing a few steps when not given.
        corpus: fingerprint of the token shards, so that a run never goes on with other data or another tokenizer.
    """

    size: str
    sequence_length: int = 128
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    dropout: float = 0.1
    mask_rate: float = 0.15
    short_probability: float = 0.1
    precision: str = "float32"
    seed: int = 0
    minutes: float = 0.0
    total_steps: int = 0
    corpus: str = ""

    def __post_init__(self) -> None:
        """Checks what `BertConfig`, `StreamSettings` and `TrainerSettings` do not."""
        if self.precision not in ("bf16", "float32"):
            raise ConfigError(f"precision {self.precision!r} is unknown; use bf16 or float32")
        if not 0.0 < self.mask_rate < 1.0:
            raise ConfigError(f"mask rate {self.mask_rate} is outside (0, 1)")
        if not 0 <= self.minutes < 10**7 or self.total_steps < 0:
            raise ConfigError("minutes and steps must be numbers that are not negative")

    def model_config(self, vocab_size: int) -> BertConfig:
        """Returns the architecture for a vocabulary."""
        return BertConfig.named(
            self.size,
            vocab_size=vocab_size,
            max_position_embeddings=self.sequence_length,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )

    def replace(self, **changes: Any) -> PreTrainingRecipe:
        """Returns a copy with some settings changed."""
        return replace(self, **changes)

    def save(self, run: Path) -> None:
        """Writes `recipe.toml`."""
        write_text(run / "recipe.toml", tomli_w.dumps(asdict(self)))

    @classmethod
    def load(cls, run: Path) -> PreTrainingRecipe:
        """Reads `recipe.toml`.

        Raises:
            RunFolderError: it is missing, damaged, or has settings this version does not know.
        """
        path = run / "recipe.toml"
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path}: cannot be read ({error}); choose another --out") from None
        unknown = sorted(values.keys() - {f.name for f in fields(cls)})
        if unknown or "size" not in values:
            raise RunFolderError(f"{path}: not a pre-training recipe ({', '.join(unknown) or 'no size'})")
        try:
            return cls(**values)
        except (TypeError, ConfigError) as error:
            raise RunFolderError(f"{path}: not a usable recipe ({error}); choose another --out") from None


def recipe_for(size: str, **overrides: Any) -> PreTrainingRecipe:
    """Returns the recipe that suits a size, with any setting overridden.

    Small models take small batches and a large rate: far from convergence the number of steps is what counts.
    Post-norm models break above about 1e-3 at these sizes, and the wider and deeper, the sooner.

    Args:
        size: a published name or `L/H`.
        **overrides: fields of the recipe; None means "as the size says".

    Raises:
        ConfigError: the size or a setting is impossible.
    """
    config = BertConfig.named(size)
    by_width = {128: (32, 1e-3), 256: (16, 1e-3), 512: (16, 5e-4), 768: (32, 2e-4), 1024: (32, 1e-4)}
    width = max((known for known in by_width if known <= config.hidden_size), default=128)
    batch_size, learning_rate = by_width[width]
    recipe = PreTrainingRecipe(size=size, batch_size=batch_size, learning_rate=learning_rate)
    return recipe.replace(**{name: value for name, value in overrides.items() if value is not None})


def resolve_recipe(run: Path, requested: PreTrainingRecipe) -> PreTrainingRecipe | None:
    """Returns the recipe of a run that was begun before, or None for a fresh folder.

    Raises:
        RunFolderError: the folder holds a run with other settings; the message names them.
    """
    if not (run / "recipe.toml").exists():
        return None
    found = PreTrainingRecipe.load(run)
    # 由 --minutes 推算出的步数写在配方里：续训时沿用，不再重新计时
    comparable = replace(found, total_steps=requested.total_steps) if requested.minutes else found
    different = [
        f"{field.name} {getattr(comparable, field.name)} there, {getattr(requested, field.name)} now"
        for field in fields(found)
        if getattr(comparable, field.name) != getattr(requested, field.name)
    ]
    if different:
        raise RunFolderError(f"{run}: holds a run with other settings ({'; '.join(different)}); choose another --out")
    return found
