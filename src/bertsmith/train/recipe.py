"""One dial, every setting: what `--size` means, written out in `recipe.toml`.

A recipe holds all that decides the numbers of a pre-training run, down to a fingerprint of its data. It is resolved
once, saved into the run folder, and read back when the same command is run again; a run whose request differs from
the recipe found there is refused instead of being mixed up with it.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from bertsmith.data.stream.masking import MaskingKind, MaskingSettings
from bertsmith.data.stream.pairs import Pairing
from bertsmith.data.stream.stream import StreamSettings
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import write_text
from bertsmith.model import BertConfig
from bertsmith.train.trainer import TrainerSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_STEPS = 10**9
"""A run of more would take years at a thousand steps a minute."""


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
        objective: `mlm+nsp`, `mlm`, `mlm+sop`, `ltr` or `ltr+nsp`.
        masking: `token`, `whole-word` or `span`.
        mask_share: share of the predicted pieces that is hidden.
        random_share: share of them that becomes a random piece.
        max_predictions_per_seq: most pieces predicted in a sequence; 0 for as many as the rate says.
        static_masking: epochs so many apart repeat their masks; 0 for never.
        packing: `sentences` or `full`.
        pairing: `balanced` or `google`.
        batch_tokens: tokens in a step, instead of `batch_size` sequences; 0 for none.
        precision: `bf16` or `float32`.
        seed: of everything random.
        minutes: the time that was asked for, 0 where none was.
        tokens: the real tokens to train on that were asked for, likewise.
        flops: the floating-point operations that were asked for, likewise.
        total_steps: length of the run; where time, tokens or operations were asked for, the fewest steps that reach
            one of them.
        optimizer: `adamw` or `lamb`.
        schedule: `linear`, `cosine` or `trapezoid`.
        skips_in_a_row: so many skipped batches one after the other end the run.
        skipped_share: so do skipped batches beyond this share of the steps.
        phases: (sequence length, share of the steps), one after the other; empty for one phase of `sequence_length`.
        start_from: model folder whose training goes on; empty for fresh weights.
        start_weights: fingerprint of that folder's weights.
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
    objective: str = "mlm+nsp"
    masking: MaskingKind = "token"
    mask_share: float = 0.8
    random_share: float = 0.1
    max_predictions_per_seq: int = 0
    static_masking: int = 0
    packing: str = "sentences"
    pairing: Pairing = "balanced"
    batch_tokens: int = 0
    precision: str = "float32"
    seed: int = 0
    minutes: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    total_steps: int = 0
    optimizer: str = "adamw"
    schedule: str = "linear"
    skips_in_a_row: int = 20
    skipped_share: float = 0.05
    phases: tuple[tuple[int, float], ...] = ()
    start_from: str = ""
    start_weights: str = ""
    corpus: str = ""

    def __post_init__(self) -> None:
        """Checks everything that does not depend on the corpus or the model."""
        if self.precision not in ("bf16", "float32"):
            raise ConfigError(f"precision {self.precision!r} is unknown; use bf16 or float32")
        if not 0 <= self.minutes < 10**7 or self.total_steps < 0 or self.tokens < 0 or not 0 <= self.flops < 1e40:
            raise ConfigError("minutes, steps, tokens and flops must be numbers that are not negative")
        if self.total_steps > MOST_STEPS:
            raise ConfigError(f"a run of more than {MOST_STEPS:,} steps would not end; ask for a shorter one")
        # TOML 读回来的是列表：统一成元组，才能与请求逐项比较
        object.__setattr__(self, "phases", tuple((int(length), float(share)) for length, share in self.phases))
        self._check_phases()
        # 不可能的设置在这里就拒绝：早于建立运行目录
        self.trainer_settings()
        for phase in range(max(1, len(self.phases))):
            self.stream_settings(phase)

    def _check_phases(self) -> None:
        if not self.phases:
            return
        shares = [share for _, share in self.phases]
        # 写成“不满足就拒绝”：NaN 与任何数比较都为假，反过来写就漏过去了
        if not all(share > 0 for share in shares) or not abs(sum(shares) - 1) <= 1e-6:
            raise ConfigError("phases: the shares must be positive and add up to 1, as in 128:0.9,512:0.1")
        if max(length for length, _ in self.phases) != self.sequence_length:
            raise ConfigError(
                f"sequence length {self.sequence_length} is not that of the longest phase; leave it out with phases"
            )

    def phase_at(self, step: int) -> int:
        """Returns the number of the phase that step `step` (counted from 0) belongs to."""
        starts = itertools.accumulate((share for _, share in self.phases[:-1]), initial=0.0)
        return max(0, sum(step >= round(start * self.total_steps) for start in starts) - 1)

    def stream_settings(self, phase: int = 0) -> StreamSettings:
        """Returns the part that shapes the batches of a phase.

        Raises:
            ConfigError: the settings are impossible, or do not go together.
        """
        return StreamSettings(
            sequence_length=self.length_in(phase),
            batch_size=self.batch_size,
            seed=self.seed,
            short_probability=self.short_probability,
            masking=MaskingSettings(
                rate=self.mask_rate,
                mask_share=self.mask_share,
                random_share=self.random_share,
                kind=self.masking,
                max_predictions_per_seq=self.max_predictions_per_seq or None,
            ),
            objective=self.objective,
            packing=self.packing,
            pairing=self.pairing,
            batch_tokens=self.batch_tokens or None,
            static_masking=self.static_masking,
        )

    def trainer_settings(self) -> TrainerSettings:
        """Returns the part that says how weights are moved.

        Raises:
            ConfigError: a setting is impossible.
        """
        return TrainerSettings(
            total_steps=max(1, self.total_steps),
            learning_rate=self.learning_rate,
            warmup_share=self.warmup_share,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            seed=self.seed,
            optimizer=self.optimizer,
            schedule=self.schedule,
            skips_in_a_row=self.skips_in_a_row,
            skipped_share=self.skipped_share,
        )

    def length_in(self, phase: int) -> int:
        """Returns the most ids in a sequence of a phase."""
        return self.phases[phase][0] if self.phases else self.sequence_length

    @property
    def has_budget(self) -> bool:
        """Whether the number of steps follows from time, tokens or operations."""
        return bool(self.minutes or self.tokens or self.flops)

    def model_config(self, vocab_size: int) -> BertConfig:
        """Returns the architecture for a vocabulary, or that of the model that is trained on."""
        if self.start_from:
            return BertConfig.load(self.start_from).changed(
                hidden_dropout_prob=self.dropout, attention_probs_dropout_prob=self.dropout
            )
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
    batch_size, learning_rate = _by_width(BertConfig.named(size).hidden_size)
    chosen = {"size": size, "batch_size": batch_size, "learning_rate": learning_rate}
    return _with_overrides(chosen, overrides)


def recipe_to_continue(folder: str | Path, **overrides: Any) -> PreTrainingRecipe:
    """Returns the recipe that goes on training a model, such as a general one on the text of a domain.

    The rate is a quarter of what fresh weights of that width take: what was learned should move, not be lost.

    Args:
        folder: a model folder, ours or one that `transformers` wrote.
        **overrides: fields of the recipe; None means "as the model says".

    Raises:
        CheckpointError: the folder holds no model.
        ConfigError: a setting is impossible, or asks more of the model than it has.
    """
    config = BertConfig.load(folder)
    batch_size, learning_rate = _by_width(config.hidden_size)
    chosen = {
        "size": f"{config.num_hidden_layers}/{config.hidden_size}",
        "batch_size": batch_size,
        "learning_rate": learning_rate / 4,
        "sequence_length": min(128, config.max_position_embeddings),
        "start_from": str(folder),
    }
    recipe = _with_overrides(chosen, overrides)
    if recipe.sequence_length > config.max_position_embeddings:
        raise ConfigError(
            f"{folder}: the model has {config.max_position_embeddings} positions, sequences of"
            f" {recipe.sequence_length} do not fit; choose --sequence-length or --phases within them"
        )
    language_model, _, pairs = recipe.objective.partition("+")
    if pairs and config.type_vocab_size < 2:
        raise ConfigError(
            f"{folder}: the model knows a single segment, and --objective {recipe.objective} reads pairs; choose"
            f" --objective {language_model}"
        )
    return recipe


def parse_phases(text: str) -> tuple[tuple[int, float], ...]:
    """Reads phases such as `128:0.9,512:0.1`: sequence length and share of the steps, in order.

    Raises:
        ConfigError: the text has another form.
    """
    try:
        pairs = [part.split(":") for part in text.split(",")]
        return tuple((int(length), float(share)) for length, share in pairs)
    except ValueError:
        raise ConfigError(f"phases {text!r}: write LENGTH:SHARE,LENGTH:SHARE, such as 128:0.9,512:0.1") from None


def _by_width(hidden_size: int) -> tuple[int, float]:
    """Returns the batch size and peak rate of the widest known model that is not wider."""
    known = {128: (32, 1e-3), 256: (16, 1e-3), 512: (16, 5e-4), 768: (32, 2e-4), 1024: (32, 1e-4)}
    return known[max((width for width in known if width <= hidden_size), default=128)]


def _with_overrides(chosen: dict[str, Any], overrides: dict[str, Any]) -> PreTrainingRecipe:
    settings = {**chosen, **{name: value for name, value in overrides.items() if value is not None}}
    if settings.get("phases") and overrides.get("sequence_length") is None:
        settings["sequence_length"] = max(length for length, _ in settings["phases"])
    return PreTrainingRecipe(**settings)


def resolve_recipe(run: Path, requested: PreTrainingRecipe) -> PreTrainingRecipe | None:
    """Returns the recipe of a run that was begun before, or None for a fresh folder.

    Raises:
        RunFolderError: the folder holds a run with other settings; the message names them.
    """
    if not (run / "recipe.toml").exists():
        return None
    found = PreTrainingRecipe.load(run)
    # 由时间等预算推算出的步数写在配方里：续训时沿用，不再重新计时
    kept = requested.has_budget and found.total_steps <= (requested.total_steps or found.total_steps)
    comparable = replace(found, total_steps=requested.total_steps) if kept else found
    different = [
        f"{field.name} {getattr(comparable, field.name)} there, {getattr(requested, field.name)} now"
        for field in fields(found)
        if getattr(comparable, field.name) != getattr(requested, field.name)
    ]
    if different:
        raise RunFolderError(f"{run}: holds a run with other settings ({'; '.join(different)}); choose another --out")
    return found
