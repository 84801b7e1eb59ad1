"""One pre-training run of a study and all that is measured of it, in a folder of its own; resumable and kill-proof.

RUN/            as `bertsmith pretrain` leaves it; states go when it is done; of a finished model the tasks alone
RUN/tasks/…/    a fine-tuning run for each arm, task and reading; the weights go when it is scored
RUN/rows.json   what was measured, written last

The text of a study is cut and sharded once for each vocabulary that its runs read.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith import best_device
from bertsmith.data.corpus.manifest import MANIFEST, TRAIN, SplitCounts
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.errors import BertsmithError, ConfigError, RunFolderError
from bertsmith.files import read_json, write_json
from bertsmith.finetune.run import fine_tune
from bertsmith.hub import model_folder, pin
from bertsmith.journeys.source import TextSource, default_vocab_sizes, learn_vocabulary, shards_of
from bertsmith.model import Backbone, ModelConfig
from bertsmith.model.folder import stored_heads
from bertsmith.objectives import RunningAverages, objective_named
from bertsmith.parallel import available_cores
from bertsmith.seeding import generator
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer
from bertsmith.train.budget import FEWEST_STEPS, sample_costs, steps_for
from bertsmith.train.choosing import native_settings, recipe_for
from bertsmith.train.pretraining import MODELS, RunOptions, kept_steps, pretrain
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import heldout_set
from bertsmith_school.looking.pairs import judge_blimp
from bertsmith_school.study.study import Arm, Base, Row, Start, Study
from bertsmith_school.study.tasks import StudyTask


@dataclass(frozen=True)
class StudyText:
    """Text, and the folder where vocabularies and shards are made when asked for; size 0 suits the amount of text."""

    source: TextSource
    folder: Path
    vocab_size: int = 0

    def tokenizer(self, vocab_size: int = 0) -> Tokenizer:
        """Returns a vocabulary of the text."""
        asked = vocab_size or self.vocab_size
        folder = self.folder / f"tokenizer-{asked or 'usual'}"
        if not (folder / "tokenizer.json").exists():
            sizes = [asked] if asked else default_vocab_sizes(self.source.bytes)
            learn_vocabulary(self.source, "wordpiece", sizes).save(folder)
        return load_tokenizer(folder)

    def corpus(self, start: Start) -> TokenCorpus:
        """Returns the shards that a run reads."""
        tokenizer = self.tokenizer(start.vocab_size)
        folder = self.folder / f"corpus-{start.vocab_size or self.vocab_size or 'usual'}"
        if not (folder / MANIFEST).exists():
            shards_of(self.source, tokenizer, folder)
        return TokenCorpus(folder, tokenizer) if start.share == 1 else PartOfCorpus(folder, tokenizer, start.share)


class PartOfCorpus(TokenCorpus):
    """A corpus of which only some training documents are read, the same ones in every run."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, share: float) -> None:
        """Opens a share, in (0, 1), of the training documents; at least two texts are among them."""
        super().__init__(folder, tokenizer)
        whole = self.counts[TRAIN]
        drawn = generator(0, "study/share of the text").random(whole.documents)
        # 每篇文档一个数，小于份额的留下：小份总是大份的一部分；留出集一篇不动
        self._kept = np.flatnonzero(drawn < share)
        documents = [self.document(TRAIN, index) for index in range(len(self._kept))]
        if len({self.text(TRAIN, index) for index in range(len(self._kept))}) < 2:
            raise ConfigError(f"{share:g} of {whole.documents} documents are fewer than two texts; give more text")
        sentences = [len(sentence) for document in documents for sentence in document]
        self.counts = {**self.counts, TRAIN: SplitCounts(len(documents), len(sentences), sum(sentences))}
        self.fingerprint = f"{self.fingerprint} {share:g}"

    def _find(self, split: str, index: int) -> tuple[Any, int]:
        return super()._find(split, int(self._kept[index]) if split == TRAIN else index)


def characters_per_piece(tokenizer: Tokenizer, corpus: TokenCorpus) -> float:
    """Returns how many characters, without spaces, a piece of the text stands for on average."""
    assert isinstance(tokenizer, WordPieceTokenizer)
    counts = np.asarray(corpus.piece_counts, float)
    lengths = [
        1 if number in tokenizer.special_ids else len(piece.removeprefix("##"))
        for number, piece in enumerate(tokenizer.vocab)
    ]
    return float(counts @ np.asarray(lengths[: len(counts)], float) / counts.sum())


ROWS = "rows.json"

ABOVE_TRAINED = 0.5
"""Rate of a layer by that of the one above it, where a fresh BiLSTM learns together with the encoder below."""


@dataclass(frozen=True)
class RunPlan:
    """A run that is to be made."""

    start: Start
    seed: int
    steps: int


@dataclass(frozen=True)
class StudyWork:
    """What every run of a study needs to know; travels to other processes and machines.

    `commits`: name on the Hub → the commit that all runs read.
    """

    study: Study
    base: Base
    text: StudyText | None
    tasks: Sequence[StudyTask]
    runs: Path
    jobs: int = 1
    blimp: Path | None = None
    commits: Mapping[str, str] = field(default_factory=dict)

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
        """Returns how many steps a run takes in some minutes on this machine."""
        self._share_cores()
        assert self.text is not None
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
        start = plan.start
        if start.model:
            # 别的进程不知道这里解析过的提交；分支可能已经移动
            pin(start.model, self.commits.get(start.model, ""))
            model = model_folder(start.model)
            for arm in arms:
                figures = self._scores(arm, model, plan.seed, folder / "tasks")
                if self.blimp is not None and plan.seed == 0:
                    # 不训练，与种子无关：只量一次；两种分数里取第一种，领域里通用的那个
                    blimp = judge_blimp(model, self.blimp)
                    figures["BLiMP"] = blimp.together(next(iter(blimp.judged))).share
                yield Row(arm.name, arm.group, plan.seed, figures, {"parameters": _parameters(model)})
            return
        assert self.text is not None
        corpus, tokenizer = self.text.corpus(start), self.text.tokenizer(start.vocab_size)
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
                "parameters": _parameters(model),
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
        tokenizer = load_tokenizer(model)
        for task in self.tasks:
            if arm.start.model and task.is_foreign(tokenizer):
                continue
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
                parts, test = (found["train"], found["dev"]), found.get("test")
                result = fine_tune(kind, model, *parts, run, settings, test=test, device=best_device())
                scored = result.dev if result.test is None else result.test
                scores[task.name + suffix] = kind.selection_score(scored.metrics)
                for weights in ("model", "adapter", "state"):
                    shutil.rmtree(run / weights, ignore_errors=True)
        return scores


def _parameters(model: Path) -> float:
    encoder = Backbone.from_pretrained(model, need_pooler=False)
    return float(sum(parameter.numel() for parameter in encoder.parameters()))


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
