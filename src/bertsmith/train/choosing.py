"""How a recipe is chosen: from family and size, from a model to continue from, from a file and the command line.

The best recipe known for each family and size is one table (`BEST`). It was found at equal time on the same text with
the same held-out masks; the runs are in docs/notes/measurements.md under "What learns best". In a short run these help:
- 30 % of the pieces are hidden instead of 15 %: twice as much to learn from per token read (Wettig et al. 2023)
- pieces start with vectors counted from the text (`data.corpus.cooccurrence`), not with random ones: a run of minutes
  spends most of its time on learning which words are alike
- Muon for all matrices that give states, with a short warm-up: its steps have one size from the first on
- sequences filled across documents, without a second segment: no token of a batch is lost
- no dropout while the text is not read often (`MANY_PASSES`)

Models with rotary positions find their neighbours early. Where positions are a learned table, the table starts as
sinusoids (Vaswani et al. 2017, §3.5), which are such neighbours already.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import native_precision
from bertsmith.kernels.processor import ASYNCHRONOUS
from bertsmith.model import ModelConfig, family_named
from bertsmith.objectives.pretraining import objective_named
from bertsmith.settings import built
from bertsmith.train.optimizer import optimizer_named
from bertsmith.train.recipe import (
    ModelSettings,
    Precision,
    PreTrainingRecipe,
    keep_start,
    read_table,
    require_heads,
)

ENDS = ("minutes", "steps", "tokens", "flops")
"""Settings that end a run; the first that is reached counts."""

_BROUGHT = {"size": "size", "family": "family", "first_vectors": "vectors", "sinusoids": "positions"}
"""Settings without a meaning where a model is trained further, and what of it takes their place."""

_PAIRS = (("batch_size", "batch_tokens"), ("size", "from"), ("family", "from"), ("sequence_length", "phases"))
"""Settings that stand for the same; given on the command line, one replaces both of a file."""

_FOUND = ("corpus", "start_weights", "start_commit", "teacher_weights")
"""Settings that are found, not chosen: which data, which weights."""

_HIDING = ("mask_rate", "mask_spread", "mask_share", "random_share", "max_predictions_per_seq", "static_masking")
"""Settings without a meaning where nothing is hidden."""


def native_settings(device: torch.device | str, run: Path | None = None) -> dict[str, Any]:
    """Returns the settings that depend on the machine, for commands that choose by themselves.

    A `run` that was begun keeps what defaults may have changed since (`_kept`), with a warning where another precision
    is faster here.
    """
    native = native_precision(device)
    if run is None or (begun := PreTrainingRecipe.begun_in(run)) is None:
        return {"precision": native}
    precision = begun.model.precision
    if precision != native:
        warnings.warn(
            f"{run}: resumes in {precision}, as it was begun; this machine is faster in {native}", stacklevel=2
        )
    return {"precision": precision, **_kept(begun)}


def _kept(begun: PreTrainingRecipe) -> dict[str, Any]:
    """Returns the settings whose defaults differ by machine or version: a run resumes with those it was begun with."""
    return {"batch_size": begun.data.batch_size, "mask_spread": begun.data.masking.spread}


def chosen_recipe(
    given: Mapping[str, Any],
    file: Path | None = None,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    run: Path | None = None,
) -> PreTrainingRecipe:
    """Returns the recipe of what the user chose, in a file and on the command line.

    Args:
        given: settings of the command line by name; they win over the file.
        file: a `recipe.toml`, or a file with some of its tables; which data and weights it was for does not count.
        run: the run folder; a run begun in it keeps its commit of the Hub, and its batch size where none is given.
    """
    for name, what in _BROUGHT.items():
        if "from" in given and name in given:
            raise ConfigError(f"--from brings its own {what}; leave out --{name.replace('_', '-')}")
    if "batch_size" in given and "batch_tokens" in given:
        raise ConfigError("--batch-size and --batch-tokens both say how much is in a batch; leave out one")
    filed = {} if file is None else {name: value for name, value in read_table(file).items() if name not in _FOUND}
    # 命令行给出的选项替换文件里的整组：否则文件里的另一个终点、另一种批量会同时生效
    for group in (ENDS, *_PAIRS):
        if any(name in given for name in group):
            filed = {name: value for name, value in filed.items() if name not in group}
    chosen = {"precision": precision, **filed, **given}
    if not any(chosen.get(end) for end in ENDS):
        raise ConfigError("give an end: --minutes, --steps, --tokens or --flops")
    if "from" not in chosen:
        # 每个家族都有自己的预训练目标：RoBERTa 没有下一句，ALBERT 判断句序
        chosen = {"objective": family_named(chosen.get("family", ModelSettings.family)).objective, **chosen}
    hiding = [name for name in _HIDING if name in given]
    objective = chosen.get("objective", PreTrainingRecipe.objective)
    if hiding and objective_named(objective).needs.targets != "masked":
        raise ConfigError(
            f"--{hiding[0].replace('_', '-')} is for masks, and --objective {objective} has none; leave it out"
        )
    family = family_named(chosen.get("family", ModelSettings.family))
    if given.get("sinusoids") and "embedding.position" not in family.names.backbone:
        raise ConfigError(f"the family {family.model_type!r} has no position table; leave out --sinusoids")
    start, size = chosen.pop("from", ""), chosen.pop("size", ModelSettings.size)
    if run is not None:
        keep_start(run, start)
        if (begun := PreTrainingRecipe.begun_in(run)) is not None:
            # 默认的批量因设备而异，掩码比例因版本而异：接着走，要用开始时的
            chosen = {**_kept(begun), **chosen}
    recipe = recipe_to_continue(start, **chosen) if start else recipe_for(size, device=device, **chosen)
    if "matrix_rate" in given and not optimizer_named(recipe.trainer.optimizer).takes_matrices:
        raise ConfigError(
            f"--matrix-rate is for --optimizer muon, and this run takes {recipe.trainer.optimizer}; leave it out"
        )
    return recipe


def recipe_for(size: str = "mini", *, device: torch.device | str = "cpu", **overrides: Any) -> PreTrainingRecipe:
    """Returns the recipe that suits a family and a size, with any setting overridden; see `BEST`.

    Args:
        size: a published name or `L/H`.
        device: where the run computes; on a GPU batches are larger, see `GPU_TOKENS`.
        **overrides: settings by name, such as `family` or `steps`; None means "as family and size say".
    """
    family = family_named(overrides.get("family") or ModelSettings.family)
    chosen = {"size": size, "objective": family.objective}
    chosen |= best_settings(family.model_type, ModelConfig.shape_of(size)[1])
    recipe = _with_overrides(chosen, overrides)
    if torch.device(device).type not in ASYNCHRONOUS or overrides.get("batch_size"):
        return recipe
    return recipe.changed(batch_size=max(recipe.data.batch_size, GPU_TOKENS // recipe.data.sequence_length))


def recipe_to_continue(folder: str | Path, **overrides: Any) -> PreTrainingRecipe:
    """Returns the recipe that continues training a model, such as a general one on the text of a domain.

    An override of None means "as the model says".
    """
    config = ModelConfig.load(folder)
    chosen = {
        **settings_to_continue(config.hidden_size),
        "size": f"{config.num_hidden_layers}/{config.hidden_size}",
        "objective": config.family.objective,
        "sequence_length": min(128, config.position_limit),
        "from": str(folder),
    }
    recipe = _with_overrides(chosen, overrides)
    if recipe.data.sequence_length > config.position_limit:
        raise ConfigError(
            f"{folder}: the model has {config.position_limit} positions, sequences of"
            f" {recipe.data.sequence_length} do not fit; choose --sequence-length or --phases within them"
        )
    require_heads(recipe, config.family)
    needs = recipe.build_objective().needs
    if needs.pairs != "none" and not config.reads_pairs:
        single = "mlm" if needs.targets == "masked" else "ltr"
        raise ConfigError(
            f"{folder}: the model knows a single segment, and --objective {recipe.objective} reads pairs; choose"
            f" --objective {single}"
        )
    return recipe


def _with_overrides(chosen: dict[str, Any], overrides: dict[str, Any]) -> PreTrainingRecipe:
    settings = {**chosen, **{name: value for name, value in overrides.items() if value is not None}}
    needs = objective_named(settings["objective"]).needs
    if needs.targets != "masked":
        settings = {name: value for name, value in settings.items() if name in overrides or name not in _HIDING}
    # 没有第二段的目标：序列跨文档装满，一个词元也不浪费
    settings.setdefault("packing", "full" if needs.pairs == "none" else "sentences")
    if settings.get("phases") and overrides.get("sequence_length") is None:
        settings["sequence_length"] = max(int(length) for length, *_ in settings["phases"])
    return built(PreTrainingRecipe, settings)


MANY_PASSES = 20.0
"""Passes over the text from which a fresh model takes dropout: by then masks alone no longer make it new."""

DROPOUT = 0.1
"""That of the paper, from `MANY_PASSES` on."""

_ROTARY: Mapping[str, Any] = {
    "optimizer": "muon",
    "learning_rate": 2e-3,
    "matrix_rate": 0.02,
    "warmup_share": 0.01,
    "mask_rate": 0.3,
    "mask_spread": 1.0,
    "first_vectors": "counted",
}
_POST_NORM: Mapping[str, Any] = {
    "optimizer": "muon",
    "learning_rate": 1e-3,
    "matrix_rate": 0.02,
    "warmup_share": 0.03,
    "mask_rate": 0.3,
    "sinusoids": 0.2,
    "first_vectors": "counted",
}
# ELECTRA 的判别器要分辨真假：遮得多，原词就少，假词又太容易看出来
_REPLACED: Mapping[str, Any] = {**_POST_NORM, "mask_rate": 0.15}
BEST: Mapping[str, Mapping[str, Any]] = {"modernbert": _ROTARY, "electra": _REPLACED}
"""Family → settings at the width of mini, 256; a family that is not here takes those of BERT's block."""

MEASURED_WIDTH = 256

GPU_TOKENS = 128 * 128
"""Of a step of fresh weights on a GPU, at least. With fewer it waits for the host: in a minute on an H200 ModernBERT
base took 958 steps of 128 sequences and learned to 2.91 nats, and 735 of 32 and learned to 3.55 (one run each)."""


def best_settings(family: str, hidden_size: int) -> dict[str, Any]:
    """Returns the settings that suit fresh weights of a family and width, by name.

    The rate of the matrices holds for every width, since an orthogonal step changes all outputs alike. That of tables,
    norms and biases falls with the width, as Adam's does (Yang et al. 2021).
    """
    found = dict(BEST.get(family, _POST_NORM))
    found["learning_rate"] *= min(1.0, MEASURED_WIDTH / hidden_size)
    # 离收敛还远时步数最要紧：小批量；base 以上一步本来就慢，批量大些更稳
    return {"batch_size": 16 if hidden_size < 768 else 32, **found}


def settings_to_continue(hidden_size: int) -> dict[str, Any]:
    """Returns the settings that suit a trained model: AdamW at a quarter of what fresh weights of that width bear."""
    known = {128: (32, 1e-3), 256: (16, 1e-3), 512: (16, 5e-4), 768: (32, 2e-4), 1024: (32, 1e-4)}
    batch_size, learning_rate = known[max((width for width in known if width <= hidden_size), default=128)]
    return {"batch_size": batch_size, "learning_rate": learning_rate / 4}
