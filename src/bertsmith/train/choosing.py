"""How a recipe is chosen: from family and size, from a model to go on from, from a file and the command line."""

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
from bertsmith.options import built
from bertsmith.train.defaults import GPU_TOKENS, best_settings, settings_to_continue
from bertsmith.train.optimizers.kind import optimizer_named
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

_FOUND = ("corpus", "start_weights", "start_commit", "teacher_weights")
"""Settings that are found, not chosen: which data, which weights."""

_HIDING = ("mask_rate", "mask_share", "random_share", "max_predictions_per_seq", "static_masking")
"""Settings without a meaning where nothing is hidden."""


def native_settings(device: torch.device | str, run: Path | None = None) -> dict[str, Any]:
    """Returns the settings that depend on the machine, for commands that choose by themselves.

    Args:
        device: where the run computes.
        run: its folder; a run that was begun there keeps its precision and batch size, and a warning says so where
            this machine is faster in another precision.

    Raises:
        RunFolderError: the recipe of the run is damaged.
    """
    native = native_precision(device)
    if run is None or (begun := _begun_in(run)) is None:
        return {"precision": native}
    precision = begun.model.precision
    if precision != native:
        warnings.warn(
            f"{run}: goes on in {precision}, as it was begun; this machine is faster in {native}", stacklevel=2
        )
    return {"precision": precision, "batch_size": begun.data.batch_size}


def _begun_in(run: Path) -> PreTrainingRecipe | None:
    """Returns the recipe of the run in a folder; None where none was begun."""
    return PreTrainingRecipe.load(run) if (run / "recipe.toml").exists() else None


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
        device: where the run computes; see `recipe_for`.
        precision: where neither says one.
        run: the run folder; a run that was begun in it goes on with the commit of the Hub that it began with, and with
            its batch size where none is given.

    Raises:
        ConfigError: a setting is impossible, two contradict each other, or none ends the run.
    """
    for name, other, why in (
        ("from", "size", "--from brings its own size; leave out --size"),
        ("from", "family", "--from brings its own family; leave out --family"),
        ("from", "first_vectors", "--from brings its own vectors; leave out --first-vectors"),
        ("from", "sinusoids", "--from brings its own positions; leave out --sinusoids"),
        (
            "batch_size",
            "batch_tokens",
            "--batch-size and --batch-tokens both say how much is in a batch; leave out one",
        ),
    ):
        if name in given and other in given:
            raise ConfigError(why)
    filed = {} if file is None else {name: value for name, value in read_table(file).items() if name not in _FOUND}
    # 命令行给出的选项替换文件里的整组：否则文件里的另一个终点、另一种批量会同时生效
    for group in (
        ENDS,
        ("batch_size", "batch_tokens"),
        ("size", "from"),
        ("family", "from"),
        ("sequence_length", "phases"),
    ):
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
        if (begun := _begun_in(run)) is not None:
            # 默认的批量因设备而异：换一台机器接着走，也要用开始时的
            chosen.setdefault("batch_size", begun.data.batch_size)
    recipe = recipe_to_continue(start, **chosen) if start else recipe_for(size, device=device, **chosen)
    if "matrix_rate" in given and not optimizer_named(recipe.trainer.optimizer).takes_matrices:
        raise ConfigError(
            f"--matrix-rate is for --optimizer muon, and this run takes {recipe.trainer.optimizer}; leave it out"
        )
    return recipe


def recipe_for(size: str = "mini", *, device: torch.device | str = "cpu", **overrides: Any) -> PreTrainingRecipe:
    """Returns the recipe that suits a family and a size, with any setting overridden; see `defaults`.

    Args:
        size: a published name or `L/H`.
        device: where the run computes; on a GPU batches are larger, see `defaults.GPU_TOKENS`.
        **overrides: settings by name, such as `family` or `steps`; None means "as family and size say".

    Raises:
        ConfigError: the size or a setting is impossible.
    """
    family = family_named(overrides.get("family") or ModelSettings.family)
    chosen = {"size": size, "objective": family.objective}
    chosen |= best_settings(family.model_type, ModelConfig.shape_of(size)[1])
    recipe = _with_overrides(chosen, overrides)
    if torch.device(device).type not in ASYNCHRONOUS or overrides.get("batch_size"):
        return recipe
    return recipe.changed(batch_size=max(recipe.data.batch_size, GPU_TOKENS // recipe.data.sequence_length))


def recipe_to_continue(folder: str | Path, **overrides: Any) -> PreTrainingRecipe:
    """Returns the recipe that goes on training a model, such as a general one on the text of a domain.

    Args:
        folder: a model folder, ours or one that `transformers` wrote.
        **overrides: settings by name; None means "as the model says".

    Raises:
        CheckpointError: the folder holds no model.
        ConfigError: a setting is impossible, or asks more of the model than it has.
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
