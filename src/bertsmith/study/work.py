"""One pre-training run of a study and all that is measured of it, in a folder of its own; resumable and kill-proof.

RUN/            as `bertsmith pretrain` leaves it; states go when it is done
RUN/tasks/…/    a fine-tuning run for each arm, task and reading; the weights go when it is scored
RUN/rows.json   what was measured, written last
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.cores import available_cores
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.errors import BertsmithError, ConfigError, RunFolderError
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.trials import WEIGHTS
from bertsmith.json_files import read_json, write_json
from bertsmith.kernels.layers import best_device
from bertsmith.model import Backbone, ModelConfig
from bertsmith.model.folder import stored_heads
from bertsmith.objectives import objective_named
from bertsmith.objectives.loss_output import RunningAverages
from bertsmith.study.results import Row
from bertsmith.study.study import Arm, Base, Start, Study
from bertsmith.study.tasks import StudyTask
from bertsmith.study.texts import StudyText, characters_per_piece
from bertsmith.train.budget import FEWEST_STEPS, sample_costs, steps_for
from bertsmith.train.choosing import native_settings, recipe_for
from bertsmith.train.pretraining import MODELS, RunOptions, kept_steps, pretrain
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import heldout_set

ROWS = "rows.json"

ABOVE_TRAINED = 0.5
"""Rate of a layer by that of the one above it, where a fresh BiLSTM learns together with the encoder below."""


@dataclass(frozen=True)
class RunPlan:
    """A run that is to be made.

    Attributes:
        start: what is trained.
        seed: of everything random.
        steps: how many.
    """

    start: Start
    seed: int
    steps: int


@dataclass(frozen=True)
class StudyWork:
    """What every run of a study needs to know; travels to other processes and machines.

    Attributes:
        study: which.
        base: what all arms share.
        text: that is read.
        tasks: that models are scored on.
        runs: folder of the runs.
        jobs: how many runs share this machine.
    """

    study: Study
    base: Base
    text: StudyText
    tasks: Sequence[StudyTask]
    runs: Path
    jobs: int = 1

    def recipe(self, start: Start, *, seed: int = 0, **end: Any) -> PreTrainingRecipe:
        """Returns the recipe of a start; `end` says how long."""
        shared = {
            "family": self.base.family,
            "sequence_length": self.base.sequence_length,
            # 只取精度：各个种子、各台机器都用同一个批量，才能相比
            "precision": native_settings(best_device(), self.folder(start, seed))["precision"],
            "seed": seed,
        }
        settings = {**shared, **dict(start.settings), **end}
        return recipe_for(settings.pop("size", self.base.size), **settings)

    def folder(self, start: Start, seed: int) -> Path:
        """Returns the folder of a run."""
        return self.runs / start.name / f"seed-{seed}"

    def steps_within(self, start: Start, minutes: float) -> int:
        """Returns how many steps a run takes in some minutes on this machine.

        Raises:
            ConfigError: too few for anything to be learned.
        """
        self._share_cores()
        corpus, tokenizer = self.text.corpus(start), self.text.tokenizer(start.vocab_size)
        # 途中不评估：短短几秒里，看一遍留出集比训练还贵，跑完自会量
        steps = steps_for(self.recipe(start, minutes=minutes), corpus, tokenizer, best_device(), evaluations=0)
        if steps <= FEWEST_STEPS:
            raise ConfigError(
                f"{start.name}: {minutes * 60:.0f} seconds for a run are not enough for {FEWEST_STEPS} steps; give"
                " more --minutes, or a smaller --size"
            )
        return steps

    def __call__(self, plan: RunPlan) -> list[Row]:
        """Makes a run, or what is left of it, and returns a row for each arm; one that fails has its error."""
        folder = self.folder(plan.start, plan.seed)
        arms = [arm for arm in self.study.arms(self.base) if arm.start == plan.start]
        done = folder / ROWS
        if done.exists():
            return read_json(done, list[Row], RunFolderError, "remove it and run the same command again")
        self._share_cores()
        try:
            rows = list(self._rows(plan, arms, folder))
        except (BertsmithError, RuntimeError, MemoryError) as error:
            # 四十次里坏一次不该赔上其余三十九次：记下原因，表里写明，下一次同样的命令再试它
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            return [Row(arm.name, arm.group, plan.seed, error=said) for arm in arms]
        write_json(done, rows)
        for spent in ("state", "best"):
            shutil.rmtree(folder / spent, ignore_errors=True)
        return rows

    def _share_cores(self) -> None:
        # 同时跑几个时平分核心；用户用 OMP_NUM_THREADS 定得更少的，照他的
        torch.set_num_threads(min(torch.get_num_threads(), max(1, available_cores() // self.jobs)))

    def _rows(self, plan: RunPlan, arms: Sequence[Arm], folder: Path) -> Iterator[Row]:
        start, corpus, tokenizer = plan.start, self.text.corpus(plan.start), self.text.tokenizer(plan.start.vocab_size)
        recipe = self.recipe(start, seed=plan.seed, steps=plan.steps)
        options = RunOptions(evaluations=0, keep_models=self.study.points)
        result = pretrain(folder, corpus, tokenizer, recipe, options, device=best_device(), listeners=())
        # 所有做法都用同一批验证样本、同样的掩码来量，种子也不变：差别只来自模型
        whole = self.text.corpus(replace(start, share=1.0))
        reference = heldout_set(self.recipe(Start((("objective", "mlm"),)), steps=1), whole, tokenizer)
        costs = sample_costs(result.recipe, corpus, tokenizer, 0)
        for arm in arms:
            model = folder / "model"
            if self.study.points:
                step = kept_steps(plan.steps, self.study.points)[round(arm.point * self.study.points) - 1]
                model = folder / MODELS / str(step)
            figures = heldout_figures(model, reference)
            if "loss" in figures:
                bits = figures["loss"] / math.log(2)
                figures["bits per character"] = bits / characters_per_piece(tokenizer, whole)
            figures |= self._scores(arm, model, plan.seed, folder / "tasks")
            facts = {
                "parameters": float(
                    sum(p.numel() for p in Backbone.from_pretrained(model, need_pooler=False).parameters())
                ),
                "steps": plan.steps * arm.point,
                "tokens": result.tokens_seen * arm.point,
                "operations": costs.flops * plan.steps * arm.point,
            }
            if arm.place is not None:
                facts["place"] = arm.place
            yield Row(arm.name, arm.group, plan.seed, figures, facts)

    def _scores(self, arm: Arm, model: Path, seed: int, folder: Path) -> dict[str, float]:
        """Fine-tunes on every task, in every way that the arm asks for, and returns column → score."""
        scores = {}
        for task in self.tasks:
            for suffix, options in arm.readings.items():
                if options and task.kind != "tag":
                    continue
                kind, found = task.read(options or None)
                config = ModelConfig.load(model)
                settings = task.tuning(config.hidden_size, config.family.model_type, seed)
                if options:
                    # 新的顶层要学得快，已学过的主干要慢：一起训练时，越往下的层学习率越小
                    decay = ABOVE_TRAINED if options.get("train_encoder") else 1.0
                    settings = replace(settings, learning_rate=kind.spec.learning_rate, layer_decay=decay)
                run = folder / _slug(arm.name) / _slug(task.name + suffix)
                result = fine_tune(
                    kind,
                    model,
                    found["train"],
                    found["dev"],
                    run,
                    settings,
                    test=found.get("test"),
                    device=best_device(),
                )
                scored = result.dev if result.test is None else result.test
                scores[task.name + suffix] = kind.selection_score(scored.metrics)
                for weights in (*WEIGHTS, "state"):
                    shutil.rmtree(run / weights, ignore_errors=True)
        return scores


def heldout_figures(folder: Path, batches: Sequence[PreTrainingBatch]) -> dict[str, float]:
    """Returns loss, in nats, and accuracy of a model's masked LM; nothing for one that has none, or reads one way."""
    if "masked_lm" not in stored_heads(folder) or ModelConfig.load(folder).is_decoder:
        return {}
    objective, device = objective_named("mlm"), best_device()
    model = objective.load_model(folder).to(device).eval()
    averages = RunningAverages()
    with torch.inference_mode():
        for batch in batches:
            averages.add(objective(model, batch.to(device)).sums)
    figures: Mapping[str, float] = averages.averages()
    return {"loss": figures["mlm_loss"], "accuracy": figures["mlm_accuracy"]}


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
