"""A fine-tuning run: epochs over the training file, the best weights on dev kept, killed and resumed at will.

Its folder holds `model/` (the best weights so far, a model folder) or `adapter/`, `metrics.jsonl`, `state/` while it
runs, and `result.json` when it is done. As in pre-training, a state holds all that a run needs to resume bit for bit:
weights, moments, step, running sums.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from rich.console import Console

from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.files import claim_folder, read_json, working_in, write_json
from bertsmith.finetune.adapters import load_adapted, save_adapter
from bertsmith.finetune.further import FURTHER
from bertsmith.finetune.settings import FineTuningSettings, compute_dtype, runs_in
from bertsmith.finetune.tasks import save_task
from bertsmith.finetune.tasks.task import (
    LOST,
    EncodedExample,
    Evaluation,
    ExampleT,
    PredictionT,
    Task,
    fingerprints,
    leaks,
)
from bertsmith.finetune.teaching import TaughtLoss
from bertsmith.hub import model_folder as hub_folder
from bertsmith.hub import noted_start
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.pipeline import require_fit
from bertsmith.model import ModelConfig, PretrainedModel
from bertsmith.model.folder import fingerprint_weights
from bertsmith.model.peft import add_adapter, merge_adapter
from bertsmith.model.surgery import freeze
from bertsmith.objectives import RunningAverages
from bertsmith.reporting.progress import say
from bertsmith.seeding import generator, torch_seed
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.monitor import MetricsLog, StepProgress, StopRequest, TrainingStopped, stop_requests
from bertsmith.train.optimizer import averaged, follow_weights
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.tracking import RunListener, StartedRun, Tracking
from bertsmith.train.trainer import BertTrainer, TrainerSettings

FORMAT = "0.2"
"""The first version of bertsmith that wrote run folders like these."""

SAVE_EVERY = 60.0
"""Seconds between two states within an epoch; there is one after every epoch besides."""


@dataclass(frozen=True)
class FineTuningResult:
    """What a run came to: its best epoch, from 1, how its weights do, and the seconds of training over all starts."""

    epoch: int
    dev: Evaluation
    test: Evaluation | None
    seconds: float

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """File → how the kept weights do on it; the test file only where there is one."""
        return {"dev": self.dev} | ({} if self.test is None else {"test": self.test})

    def save(self, path: Path) -> None:
        """Writes the result as JSON."""
        write_json(path, replace(self, seconds=round(self.seconds, 2)), checked=True)

    @classmethod
    def load(cls, path: Path) -> FineTuningResult:
        """Reads what `save` wrote."""
        return read_json(path, cls, RunFolderError, "remove it or choose another --out")


@dataclass
class _Progress:
    """What a state holds besides tensors."""

    log_bytes: int = 0
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    best: float | None = None
    best_epoch: int = 0
    epochs: int = 0
    seconds: float = 0.0
    skipped: tuple[int, int] = (0, 0)


def fine_tune(
    task: Task[ExampleT, PredictionT],
    model_folder: str | Path,
    train: Sequence[ExampleT],
    dev: Sequence[ExampleT],
    run: str | Path,
    settings: FineTuningSettings,
    *,
    test: Sequence[ExampleT] | None = None,
    weights: tuple[Sequence[float], Sequence[float]] | None = None,
    teacher: str | None = None,
    console: Console | None = None,
    device: torch.device | str = "cpu",
    listeners: Sequence[RunListener] = (),
) -> FineTuningResult:
    """Trains a task's model and keeps the weights that did best on `dev`.

    Args:
        dev: labelled examples to choose the best epoch, and thresholds, by.
        run: the run folder; the same call resumes where it was interrupted, or returns the result that is there.
        test: labelled examples that only the kept weights see, once.
        weights: of each training example in the loss, where a batch counts by their sum, and of each dev example in the
            choice of the epoch; for classes, numbers and tags.
        teacher: a folder that was fine-tuned for the task, whose judgement is learned besides the labels.
        listeners: are told how the run goes; a result that is there already is told to nobody.

    Raises:
        ConfigError: the sequences are to be longer than the model reads.
        InputError: a file is empty, or an example does not fit the task.
        RunFolderError: the folder holds something else, or a run with other settings, or cannot be written.
        CheckpointError: the model folder is not usable.
        TrainingStopped: SIGINT or SIGTERM came, and the state is saved.
    """
    folder = Path(run)
    if not train or not dev:
        raise InputError("the training file and the dev file must hold at least one example each")
    if test is not None and not test:
        raise InputError("the test file must hold at least one example")
    start = noted_start(model_folder, folder / "finetune.json")
    task = task.starting_from(Path(model_folder))
    config = ModelConfig.load(model_folder)
    limit = task.length_limit(model_folder, settings.max_length)
    if settings.max_length > limit:
        raise ConfigError(f"max length {settings.max_length}: {model_folder} reads {limit} pieces at most")
    if limit < config.position_limit:
        settings = replace(settings, max_length=limit)
    precision = "bf16" if compute_dtype(settings.precision, device) == torch.bfloat16 else "float32"
    _require_precision(folder, settings, precision)
    request = {
        "format": FORMAT,
        "task": {"task": task.name, **task.describe()},
        **start,
        "model": fingerprint_weights(model_folder),
        "config": asdict(config),
        "tokenizer": load_tokenizer(model_folder).fingerprint,
        # auto 换一台机器可能是另一种精度：写下实际用的，续训时才对得上
        "settings": {**asdict(settings), "precision": precision},
        "train": digest_of(train),
        "dev": digest_of(dev),
        "test": None if test is None else digest_of(test),
        **({} if teacher is None else {"teacher": fingerprint_weights(hub_folder(teacher))}),
        **({} if weights is None else {"weights": digest_of([*weights[0], *weights[1]])}),
    }
    with ExitStack() as stack:
        # 先上锁再认领：只有一份申请的文件夹算是空的，别人可能正在里面准备
        stack.enter_context(working_in(folder, "metrics.jsonl"))
        claim_folder(folder, "finetune.json", request, beside=FURTHER)
        if (folder / "result.json").exists():
            # 可能恰好在写下结果之后、删去状态之前被打断
            _remove_state(folder)
            return FineTuningResult.load(folder / "result.json")
        shown = console or Console(quiet=True)
        started = FineTuningRun(task, Path(model_folder), folder, settings, shown, device, teacher, listeners, weights)
        return started.finish(train, dev, test)


def _require_precision(folder: Path, settings: FineTuningSettings, precision: str) -> None:
    """Makes sure that a run that was begun on another machine is not gone on with in another precision."""
    claim = folder / "finetune.json"
    if settings.precision != "auto" or not claim.is_file():
        return
    asked = read_json(claim, dict[str, Any], RunFolderError, "choose another --out").get("settings")
    begun = asked.get("precision") if isinstance(asked, dict) else None
    if begun in ("bf16", "float32") and begun != precision:
        raise RunFolderError(
            f"{folder}: was begun in {begun}, and this machine is best at {precision}; pass --precision {begun} to"
            " resume, or choose another --out"
        )


class FineTuningRun(Generic[ExampleT, PredictionT]):
    """One run in its folder, from its last state to its end."""

    def __init__(
        self,
        task: Task[ExampleT, PredictionT],
        model_folder: Path,
        folder: Path,
        settings: FineTuningSettings,
        console: Console,
        device: torch.device | str,
        teacher: str | None = None,
        listeners: Sequence[RunListener] = (),
        weights: tuple[Sequence[float], Sequence[float]] | None = None,
    ) -> None:
        self.task, self.settings, self.console = task, settings, console
        self.start_folder, self.folder, self.device = model_folder, folder, torch.device(device)
        self.teacher, self.listeners, self.weights = teacher, listeners, weights
        self.tokenizer = load_tokenizer(model_folder)
        require_fit(self.tokenizer, ModelConfig.load(model_folder), model_folder)
        self.model = self._start()
        self.dtype = compute_dtype(settings.precision, device)
        self.inference = InferenceConfig(self.device, runs_in(settings.precision), settings.max_length)
        self.progress = _Progress()
        self.steps_per_epoch = 0

    def finish(
        self, train: Sequence[ExampleT], dev: Sequence[ExampleT], test: Sequence[ExampleT] | None
    ) -> FineTuningResult:
        """Trains to the end, and scores the kept weights."""
        max_length = self.inference.length_for(self.model.config)
        # 先把 dev 和 test 也编码一遍：没见过的标签、放不下的问题要在训练之前就报，而不是一轮之后
        for examples in (dev, test or ()):
            if examples:
                self.task.encode(self.tokenizer, examples, max_length)
        self.task.check_dev(dev)
        if self.weights is None:
            encoded = self.task.encode(self.tokenizer, train, max_length)
        else:
            weights, _ = self.weights
            # 平均为 1：权重只分轻重，不改变学习率的意义；标注按词算平均，因为损失也按词平均
            mean = np.average(weights, weights=self.task.rows(train))
            # 逐条编码：长句切成几段，每段都带着它的权重
            encoded = [
                replace(piece, weight=float(weight / mean))
                for example, weight in zip(train, weights, strict=True)
                for piece in self.task.encode(self.tokenizer, [example], max_length)
            ]
        if not encoded:
            raise InputError("no example of the training file can be learned from")
        for line in leaks(train, {"dev": dev, "test": test or ()}):
            say(f"warning: {line}", self.console)
        encoded = self.task.add_targets(encoded, train, self.inference)
        self.steps_per_epoch = len(self._batches(encoded, 0))
        self.trainer = self._trainer()
        self._restore()
        with self.tracking:
            with stop_requests() as request:
                self._train(encoded, dev, request)
            last_step = self.trainer.step
            # 梯度、两份动量和训练中的权重都用完了：先放掉，再载入最好的一轮
            del self.trainer, self.model
            result = self._scored(train, dev, test)
            result.save(self.folder / "result.json")
            if result.test is not None:
                self.tracking.figures({"kind": "test", "step": last_step, **result.test.metrics})
            for name in ("result.json", "metrics.jsonl", "adapter" if self.settings.adapter else "model"):
                self.tracking.artefact(self.folder / name)
        _remove_state(self.folder)
        return result

    def _scored(
        self, train: Sequence[ExampleT], dev: Sequence[ExampleT], test: Sequence[ExampleT] | None
    ) -> FineTuningResult:
        """Scores the kept weights, and makes their folder whole."""
        max_length = self.inference.length_for(ModelConfig.load(self.start_folder))
        if self.settings.adapter:
            model = load_adapted(self.start_folder, self.folder / "adapter")
        else:
            model = self.task.load(self.folder / "model")
        predictions = self.task.predict(model, self.tokenizer, dev, self.inference)
        task = self.task.with_best_threshold(dev, predictions).calibrated(dev, predictions)
        scores, learned = None, fingerprints(train)
        if test is not None:
            scores = task.scored(test, task.predict(model, self.tokenizer, test, self.inference), learned)
        if self.settings.adapter == "lora":
            # 低秩更新可以并入权重：合并之后就是一个普通的模型文件夹，谁都能读
            # 评分在合并之前：bf16 下并入后的权重舍入不同，报告的应是选中的那一轮
            merge_adapter(model)
            self._write_model(model)
        for saved in ("model", "adapter"):
            if (self.folder / saved).is_dir():
                save_task(task, self.folder / saved, max_length)
                task.add_files(self.folder / saved, model.config, max_length)
        found = task.scored(dev, predictions, learned)
        return FineTuningResult(self.progress.best_epoch, found, scores, self.progress.seconds)

    def _start(self) -> PretrainedModel:
        model = self.task.build(self.start_folder, self.settings)
        reason = self.task.fresh_because(self.start_folder, self.settings)
        told = f"the head of {self.start_folder} " + (f"starts afresh: {reason}" if reason else "is kept")
        say(told, self.console)
        # 学会的头被丢掉时，不看进度的人也要知道
        if reason.startswith(LOST):
            warnings.warn(told, stacklevel=2)
        adapter = self.settings.adapter_settings()
        if adapter is not None:
            torch.manual_seed(torch_seed(self.settings.seed, "finetune/adapter"))
            add_adapter(model, adapter)
        if self.settings.freeze_layers:
            freeze(model, embeddings=True, layers=self.settings.freeze_layers)
        model.set_gradient_checkpointing(self.settings.checkpointing())
        return model

    def _trainer(self) -> BertTrainer[PretrainedModel]:
        settings, loss = self.settings, self.task.objective
        if self.teacher is not None:
            max_length = self.inference.length_for(self.model.config)
            loss = TaughtLoss(self.task, self.teacher, self.tokenizer, max_length, self.device, self.dtype)
        trainer = BertTrainer(
            self.model,
            loss,
            TrainerSettings(
                total_steps=self.steps_per_epoch * settings.epochs,
                learning_rate=settings.learning_rate,
                warmup_share=settings.warmup_share,
                weight_decay=settings.weight_decay,
                # 微调的梯度小，少见词的词向量尤其小：1e-6 会压住它们的步长，实测多处低一截
                epsilon=1e-8,
                layer_decay=settings.layer_decay,
            ),
            seed=settings.seed,
            device=self.device,
        )
        self.model.set_compute_dtype(self.dtype)
        return trainer

    def _restore(self) -> None:
        saved = load_latest_state(self.folder / "state", self.trainer)
        if saved is not None:
            self.progress = _Progress(**saved)
            self.trainer.skipped, self.trainer.skipped_in_a_row = self.progress.skipped
        self.log = MetricsLog(self.folder / "metrics.jsonl", keep_bytes=self.progress.log_bytes)
        told = {"task": self.task.name, "model": str(self.start_folder), **asdict(self.settings)}
        self.tracking = Tracking(self.listeners, StartedRun(self.folder, "finetune", told, self.trainer.step))

    def _train(self, encoded: Sequence[EncodedExample], dev: Sequence[ExampleT], request: StopRequest) -> None:
        total, step = self.trainer.settings.total_steps, self.trainer.step
        with StepProgress(self.console, "fine-tuning", total_steps=total, first_step=step) as self.bar:
            while self.progress.epochs < self.settings.epochs:
                waited = self.progress.epochs - self.progress.best_epoch
                if self.settings.patience and waited >= self.settings.patience:
                    break
                self._train_epoch(encoded, request)
                self._evaluate(dev)
                self._save()
                self._stop_if_asked(request)

    def _train_epoch(self, encoded: Sequence[EncodedExample], request: StopRequest) -> None:
        epoch = self.progress.epochs
        batches = self._batches(encoded, epoch)
        running = RunningAverages(self.progress.sums)
        last_saved = time.monotonic()
        while (offset := self.trainer.step - epoch * self.steps_per_epoch) < self.steps_per_epoch:
            begun = time.monotonic()
            chosen = [encoded[number] for number in batches[offset]]
            # 次序在批内没有意义：按长度排好，注意力就能把长短相近的拼成少有填充的矩形
            chosen.sort(key=lambda example: max(map(len, example.input_ids)))
            output = self.trainer.train_batch(self.task.batch(chosen))
            if self.settings.average:
                horizon = self.settings.average * self.trainer.settings.total_steps
                follow_weights(self.trainer.optimizer, self.trainer.step, horizon)
            running.add(output.sums)
            self.progress.sums = running.read()
            self.progress.seconds += time.monotonic() - begun
            self._show(float(output.loss.detach()))
            # 一轮的最后一步之后先评估再保存：状态永远不会落在“已训练、未评估”的缝里
            if offset + 1 < self.steps_per_epoch and (request.made or time.monotonic() - last_saved >= SAVE_EVERY):
                last_saved = time.monotonic()
                self._save()
                self._stop_if_asked(request)

    def _batches(self, encoded: Sequence[EncodedExample], epoch: int) -> list[list[int]]:
        draws = generator(self.settings.seed, "finetune/order", epoch)
        return self.task.batches(encoded, self.settings.batch_size, draws)

    def _evaluate(self, dev: Sequence[ExampleT]) -> None:
        """Ends an epoch: scores it on dev, and keeps its weights if they are the best."""
        progress = self.progress
        # 评分和留下的都是平均：训练中的权重还在最优处附近来回摆动
        with averaged(self.trainer.optimizer), self.task.on_scale(self.model):
            predictions = self.task.predict(self.model, self.tokenizer, dev, self.inference)
            metrics = self.task.with_best_threshold(dev, predictions).metrics(dev, predictions)
            progress.epochs += 1
            score = self.task.selection_score(metrics)
            if self.weights is not None:
                score = self.task.weighed_score(dev, predictions, self.weights[1])
            # 小数据上最后一轮往往不是最好的：只保留开发集上最好的一轮；持平时取较早的
            if progress.best is None or score > progress.best:
                progress.best, progress.best_epoch = score, progress.epochs
                if self.settings.adapter:
                    save_adapter(self.model, self.folder / "adapter")
                else:
                    self._write_model(self.model)
        row = {"epoch": progress.epochs, "step": self.trainer.step}
        averages = RunningAverages(progress.sums).averages()
        for figures in ({"kind": "train", **row, **averages}, {"kind": "dev", **row, **metrics}):
            self.log.append(figures)
            self.tracking.figures(figures)
        progress.sums = {}

    def _stop_if_asked(self, request: StopRequest) -> None:
        if request.made:
            raise TrainingStopped(self.folder, self.trainer.step, self.trainer.settings.total_steps)

    def _write_model(self, model: PretrainedModel) -> None:
        model.save_pretrained(self.folder / "model")
        self.tokenizer.save(self.folder / "model", model_max_length=model.config.position_limit)

    def _save(self) -> None:
        self.log.flush_to_disk()
        self.trainer.read_skips()
        self.progress.sums = RunningAverages(self.progress.sums).read()
        self.progress.log_bytes = self.log.size
        self.progress.skipped = (self.trainer.skipped, self.trainer.skipped_in_a_row)
        save_state(self.folder / "state", self.trainer, asdict(self.progress), keep=1)

    def _show(self, loss: float) -> None:
        shown = {"epoch": str(self.progress.epochs + 1), "loss": f"{loss:.3f}"}
        if self.progress.best is not None:
            shown["best dev score"] = f"{self.progress.best:.3f}"
        self.bar.update(self.trainer.step, shown)


def _remove_state(folder: Path) -> None:
    # 结果写好之后状态就没有用了：大模型的两份动量要占三倍于权重的地方
    shutil.rmtree(folder / "state", ignore_errors=True)


def digest_of(examples: Sequence[Any]) -> dict[str, Any]:
    """Returns how many examples there are, and a digest of all that is in them."""
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        digest.update(repr(example).encode("utf-8", "surrogatepass"))
    return {"examples": len(examples), "digest": digest.hexdigest()}
