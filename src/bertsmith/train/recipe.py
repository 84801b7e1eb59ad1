"""The recipe of a pre-training run: every setting, written once, in parts.

The options of `bertsmith pretrain` and the tables of `recipe.toml` are made of these declarations. A recipe holds all
that decides the numbers of a run, down to a fingerprint of its data. It is resolved once, saved into the run folder,
and read back when the same command is run again; a run whose request differs is refused.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import tomli_w

from bertsmith import __version__
from bertsmith.data.stream.stream import StreamSettings
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import parse_json, write_text
from bertsmith.hub import hub_name, pin
from bertsmith.model import Family, ModelConfig, family_named
from bertsmith.objectives.distillation import DistilledObjective, TeacherSettings
from bertsmith.objectives.pretraining import Objective, objective_named
from bertsmith.settings import Checked, built, changed, from_table, option, to_table, values_of
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.trainer import TrainerSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Precision = Literal["bf16", "float32"]
FirstVectors = Literal["counted", "drawn"]


@dataclass(frozen=True)
class ModelSettings(Checked):
    """The model that is trained."""

    panel: ClassVar[str] = "Model"

    family: str = option("bert", help="Architecture of a fresh model: bert, roberta, modernbert and others.")
    size: str = option("mini", help="Size: tiny, mini, small, medium, base, large or L/H such as 6/384.")
    start_from: str = option("", name="from", help="Continue training this model: a folder, or org/name on the Hub.")
    dropout: float | None = option(
        None,
        min=0.0,
        max=0.9,
        shown_default="by passes over the text",
        help="Dropout after sub-layers and in attention.",
    )
    sinusoids: float = option(
        0.0,
        min=0.0,
        shown_default="by family",
        help="Amplitude of the sinusoids that start a fresh position table; 0: random.",
    )
    first_vectors: FirstVectors = option(
        "drawn",
        shown_default="counted",
        help="Start of the token embeddings: counted (co-occurrence) or drawn.",
    )
    precision: Precision = option(
        "float32", shown_default="bf16 where native", help="Precision of matrix multiplications."
    )
    start_weights: str = option("", in_file_only=True, help="Fingerprint of the weights of that folder.")
    start_commit: str = option("", in_file_only=True, help="Commit of that model on the Hub; empty for a folder.")


def _parse_tokens(text: str) -> int:
    try:
        tokens = float(text)
    except ValueError:
        tokens = math.nan
    # inf 和 nan 也是浮点数：它们不是词元数
    if not 1 <= tokens < math.inf:
        raise ConfigError(f"--tokens {text} is no number of tokens; give one such as 1e9, or another end")
    return int(tokens)


class Phase(NamedTuple):
    """A part of a run that reads in another way.

    Attributes:
        share: of the steps, in (0, 1].
        mask_rate: 0 for that of the run; the same holds for `batch_size`.
    """

    length: int
    share: float
    mask_rate: float = 0.0
    batch_size: int = 0


def parse_phases(text: str) -> tuple[tuple[float, ...], ...]:
    """Reads phases in order, such as `128:0.9,512:0.1`: sequence length and share of the steps.

    A third number is the phase's mask rate, a fourth its batch size: `128:0.7:0.3,128:0.3:0.15`.
    """
    try:
        phases = [part.split(":") for part in text.split(",")]
        if min(map(len, phases)) < 2:
            raise ValueError("no share")
        return tuple(
            tuple(kind(number) for kind, number in zip(_NUMBERS[: len(part)], part, strict=True)) for part in phases
        )
    except ValueError:
        raise ConfigError(f"phases {text!r}: write {_FORM},{_FORM}, such as 128:0.9,512:0.1") from None


_NUMBERS = (int, float, float, int)
_FORM = "LENGTH:SHARE[:MASK_RATE[:BATCH_SIZE]]"


@dataclass(frozen=True)
class RunLength(Checked):
    """Budgets, of which the first that is used up ends the run, and the phases it has."""

    panel: ClassVar[str] = "Length of the run (give one end or several: the first counts)"

    minutes: float = option(0.0, min=0, below=10**7, least_given=0.05, help="End: minutes of training.")
    tokens: int = option(0, min=0, parse=_parse_tokens, help="End: real tokens to train on, such as 1e9.")
    flops: float = option(0.0, min=1, below=1e40, help="End: operations to spend, such as 1e18.")
    phases: tuple[tuple[float, ...], ...] = option(
        (),
        parse=parse_phases,
        help="LENGTH:SHARE[:MASK_RATE[:BATCH_SIZE]],...; the paper's: 128:0.9,512:0.1. A 0: as in the rest of the run.",
    )

    def _check_together(self) -> None:
        if any(not 2 <= len(phase) <= 4 or phase[0] != int(phase[0]) for phase in self.phases):
            raise ConfigError(f"phases: each is {_FORM}, of which the length is a whole number")
        shares = [phase.share for phase in self.parts]
        # 写成“不满足就拒绝”：NaN 与任何数比较都为假，反过来写就漏过去了
        if shares and not (all(share > 0 for share in shares) and abs(sum(shares) - 1) <= 1e-6):
            raise ConfigError("phases: the shares must be positive and add up to 1, as in 128:0.9,512:0.1")

    @property
    def parts(self) -> list[Phase]:
        """The phases; empty for a run that reads in one way."""
        return [
            Phase(int(length), share, *(kind(number) for kind, number in zip(_NUMBERS[2:], rest, strict=False)))
            for length, share, *rest in self.phases
        ]

    @property
    def shares(self) -> list[float]:
        """The share of the steps that each phase has."""
        return [phase.share for phase in self.parts] or [1.0]

    @property
    def has_budget(self) -> bool:
        """Whether the number of steps follows from time, tokens or operations."""
        return bool(self.minutes or self.tokens or self.flops)


@dataclass(frozen=True)
class PreTrainingRecipe(Checked):
    """Every setting of a pre-training run."""

    panel: ClassVar[str] = "What is learned"

    objective: str = option(
        "mlm+nsp",
        shown_default="the family's",
        help="Objective: mlm+nsp (the paper), mlm, mlm+sop, ltr, ltr+nsp or rtd.",
    )
    seed: int = option(0, help="Random seed.")
    corpus: str = option(
        "", in_file_only=True, help="Fingerprint of the shards: a run never resumes with other data or tokenizer."
    )
    model: ModelSettings = field(default_factory=ModelSettings)
    data: StreamSettings = field(default_factory=StreamSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    length: RunLength = field(default_factory=RunLength)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)

    def _check_together(self) -> None:
        """Checks that the parts go together, before any folder is taken for a run that could not begin."""
        phases = self.length.parts
        if phases and max(phase.length for phase in phases) != self.data.sequence_length:
            raise ConfigError(
                f"sequence length {self.data.sequence_length} is not that of the longest phase; leave it out with"
                " phases"
            )
        if not self.model.start_from:
            require_heads(self, family_named(self.model.family))
        needs = self.build_objective().needs
        if needs.targets == "nothing" and not self.teacher.folder:
            raise ConfigError(f"--objective {self.objective} learns from a teacher alone; say whose: --teacher")
        if any(phase.batch_size for phase in phases) and self.data.batch_tokens:
            raise ConfigError("--batch-tokens says how much is in a batch; leave batch sizes out of the phases")
        if any(phase.mask_rate for phase in phases) and needs.targets != "masked":
            raise ConfigError(f"--objective {self.objective} masks nothing; leave mask rates out of the phases")
        for phase in range(len(self.length.shares)):
            needs.require_fit(self.stream_settings(phase))

    def build_objective(self) -> Objective:
        """Returns the objective, which suits the masking."""
        objective = objective_named(self.objective).for_masking(self.data.masking.kind)
        return DistilledObjective(objective, self.teacher) if self.teacher.folder else objective  # type: ignore[return-value]

    def phase_at(self, step: int) -> int:
        """Returns the number of the phase that step `step` (counted from 0) belongs to."""
        # 论文先用短序列学 90% 的步数：注意力的开销随长度平方增长，远处的位置最后学就够了（附录 A.2）
        starts = itertools.accumulate(self.length.shares[:-1], initial=0.0)
        return max(0, sum(step >= round(start * self.trainer.total_steps) for start in starts) - 1)

    def stream_settings(self, phase: int = 0) -> StreamSettings:
        """Returns what the batches of a phase look like."""
        phases = self.length.parts
        if not phases:
            return self.data
        chosen = phases[phase]
        # 先多遮、后少遮：早期信号多学得快，后期上下文更完整（Ankner 等 2023）
        masking = replace(self.data.masking, rate=chosen.mask_rate or self.data.masking.rate)
        size = chosen.batch_size or self.data.batch_size
        return replace(self.data, sequence_length=chosen.length, masking=masking, batch_size=size)

    def model_config(self, tokenizer: Tokenizer) -> ModelConfig:
        """Returns the architecture for a tokenizer, or that of the model that is trained on."""
        probability = self.model.dropout or 0.0
        dropout = {"hidden_dropout_prob": probability, "attention_probs_dropout_prob": probability}
        if self.model.start_from:
            return ModelConfig.load(self.model.start_from).changed(**dropout)
        shape = family_named(self.model.family).config.named(self.model.size, vocab_size=tokenizer.vocab_size)
        fitted = shape.changed(pad_token_id=tokenizer.pad_token_id, **dropout)
        return fitted.trained_on(self.data.sequence_length)

    def changed(self, **settings: Any) -> PreTrainingRecipe:
        """Returns a copy with some settings changed, by their names: `steps`, `mask_rate`, `corpus`."""
        return changed(self, **settings)

    def save(self, run: Path) -> None:
        """Writes `recipe.toml`."""
        write_text(run / "recipe.toml", tomli_w.dumps({"version": __version__, **to_table(self)}))

    @classmethod
    def load(cls, run: Path) -> PreTrainingRecipe:
        """Reads `recipe.toml`; `RunFolderError` where it is missing, damaged or of another version."""
        path = run / "recipe.toml"
        try:
            return built(cls, read_table(path))
        except ConfigError as error:
            raise RunFolderError(f"{error}; choose another --out") from None

    @classmethod
    def begun_in(cls, run: Path) -> PreTrainingRecipe | None:
        """Returns the recipe of a run that was begun before, or None for a fresh folder."""
        return cls.load(run) if (run / "recipe.toml").exists() else None


def read_table(path: Path) -> dict[str, Any]:
    """Returns the settings of a recipe file, by name."""
    try:
        table = parse_json(path, tomllib.loads)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    # 0.2 之前的配方没有表，也没有版本号
    if "version" not in table and isinstance(table.get("size"), str):
        raise ConfigError(f"{path}: written by bertsmith 0.1, which alone can finish it")
    written_by = table.pop("version", __version__)
    try:
        return from_table(PreTrainingRecipe, table)
    except ConfigError as error:
        by = "" if written_by == __version__ else f", which bertsmith {written_by} wrote"
        raise ConfigError(f"{path}: not a usable recipe{by} ({error})") from None


def require_heads(recipe: PreTrainingRecipe, family: Family) -> None:
    """Makes sure that a family has the heads that the objective trains."""
    lacking = [kind for kind in recipe.build_objective().heads if kind not in family.heads]
    if lacking:
        raise ConfigError(
            f"the family {family.model_type!r} has no {lacking[0]} head, which --objective {recipe.objective} trains;"
            f" choose --objective {family.objective}, or another family"
        )


def keep_start(run: Path, start_from: str) -> None:
    """Makes a run that was begun from a model of the Hub resume with the same commit, wherever its branch is now."""
    begun = PreTrainingRecipe.begun_in(run) if hub_name(start_from) is not None else None
    if begun is not None and begun.model.start_from == start_from:
        pin(start_from, begun.model.start_commit)


def resolve_recipe(run: Path, requested: PreTrainingRecipe) -> PreTrainingRecipe | None:
    """Returns the recipe of a run that was begun before, if it is the one asked for; None for a fresh folder."""
    if (found := PreTrainingRecipe.begun_in(run)) is None:
        return None
    # 由时间等预算推算出的步数写在配方里：续训时沿用，不再重新计时
    steps, asked = found.trainer.total_steps, requested.trainer.total_steps
    kept = requested.length.has_budget and steps <= (asked or steps)
    there, now = values_of(found), values_of(requested)
    if kept:
        there["steps"] = asked
    if requested.model.dropout is None:
        there["dropout"] = None
    different = [f"{name} {there[name]} there, {now[name]} now" for name in there if there[name] != now[name]]
    if [name for name in there if there[name] != now[name]] == ["precision"]:
        # 换了机器：bf16 在哪里都算得出，只是慢；位数不同就不再是同一个运行，必须由用户说
        raise RunFolderError(
            f"{run}: was begun in {there['precision']}, and {now['precision']} is asked for, or is what this machine is"
            f" best at; pass --precision {there['precision']} to resume, or choose another --out"
        )
    if different:
        raise RunFolderError(f"{run}: holds a run with other settings ({'; '.join(different)}); choose another --out")
    return found
