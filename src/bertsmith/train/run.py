"""One process's share of a pre-training run: restore, loop, evaluate, save, stop.

What a run needs to go on is `RunProgress`, a handful of numbers, together with the weights and the optimizer. The
loop decides nothing by the clock but when to save; whatever decides about weights or figures is counted in steps, so
that a run that was killed and one that was not are the same run.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.prefetch import PrefetchedStream, prefetched
from bertsmith.data.stream.stream import StreamPosition
from bertsmith.errors import ConfigError
from bertsmith.kernels.speed import measure_matmul_flops
from bertsmith.objectives.loss_output import LossOutput, RunningAverages
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.budget import EVALUATIONS, SAVING_SHARE, parts_of, training_flops
from bertsmith.train.distributed import Ranks
from bertsmith.train.monitor import MetricsLog, StepProgress
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import heldout_set, make_trainer, open_stream
from bertsmith.train.state import KEPT_STATES, load_latest_state, save_state, share_state
from bertsmith.train.stopping import StopRequest, TrainingStopped, stop_requests
from bertsmith.train.tensorboard import TensorBoardLog

SHOWN_FIGURES = (
    ("mlm_accuracy", "MLM acc"),
    ("ltr_accuracy", "LTR acc"),
    ("nsp_accuracy", "NSP acc"),
    ("sop_accuracy", "SOP acc"),
)

SECONDS_BETWEEN_STATES = 20.0
"""How much work a crash may cost."""


@dataclass(frozen=True)
class RunOptions:
    """What may differ from one start of a run to the next.

    Attributes:
        save_every: seconds between states.
        keep_states: so many of the newest states stay.
        accumulate: parts that the batch of a step is cut into.
        tensorboard: write for TensorBoard; None does so where its writer is installed.
        workers: processes that draw batches ahead, 0 or 1.
    """

    save_every: float = SECONDS_BETWEEN_STATES
    keep_states: int = KEPT_STATES
    accumulate: int = 1
    tensorboard: bool | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.save_every < 0 or self.keep_states < 1 or self.accumulate < 1:
            raise ConfigError(
                "seconds between states must be at least 0, states to keep and parts of a step at least 1"
            )


@dataclass(frozen=True)
class PreTrainingResult:
    """What a finished run says of itself.

    Attributes:
        run: the run folder.
        recipe: its settings.
        heldout: figures of the finished model on held-out documents.
        unigram_entropy: loss of a model that knows piece frequencies only, in nats.
        tokens_seen: real tokens trained on.
        seconds: time spent training, over all restarts.
    """

    run: Path
    recipe: PreTrainingRecipe
    heldout: dict[str, float]
    unigram_entropy: float
    tokens_seen: int
    seconds: float


@dataclass
class RunProgress:
    """Where a run stands, besides its weights and its optimizer.

    Attributes:
        position: of the stream, before the next batch.
        phase: the one the position is of.
        tokens_seen: real tokens trained on, over all ranks.
        seconds: spent training before this process.
        window: sums of the figures since the last row of the log.
        heldout: the last held-out figures.
        metrics_bytes: length of the log.
        skipped: batches skipped, and how many of them in a row up to now.
        best_loss: the lowest held-out loss so far, and the step it was at.
    """

    position: dict[str, int]
    phase: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0
    window: dict[str, tuple[float, int]] = field(default_factory=dict)
    heldout: dict[str, float] = field(default_factory=dict)
    metrics_bytes: int = 0
    skipped: tuple[int, int] = (0, 0)
    best_loss: tuple[float, int] | None = None


class PreTrainingRun:
    """A run in its folder, from where it stands to its end."""

    def __init__(
        self,
        run: Path,
        corpus: TokenCorpus,
        tokenizer: WordPieceTokenizer,
        recipe: PreTrainingRecipe,
        options: RunOptions,
        console: Console,
        device: torch.device | str,
        ranks: Ranks,
    ) -> None:
        self.run, self.corpus, self.tokenizer, self.recipe = run, corpus, tokenizer, recipe
        self.options, self.console, self.ranks = options, console, ranks
        self.heldout = heldout_set(recipe, corpus, tokenizer)
        self.trainer = make_trainer(recipe, corpus, device, ranks)
        self.model = self.trainer.model
        self.progress = RunProgress(StreamPosition().to_json())
        self._restore()
        self._open_stream()

    def finish(self) -> PreTrainingResult:
        """Trains until the last step and writes the model folder.

        Raises:
            TrainingStopped: a signal asked for the end; the state is saved.
            TrainingError: too many batches were skipped.
            RunFolderError: the folder cannot be written.
        """
        self.started, self.started_tokens = time.monotonic(), self.progress.tokens_seen
        self.peak = self.matmul_seconds = 0.0
        try:
            with stop_requests() as request:
                self._train(request)
        finally:
            self.board.close()
            self._close_stream()
        seconds, progress = self._seconds(), self.progress
        self.ranks.on_first(lambda: self._save_model("model"))
        return PreTrainingResult(
            self.run, self.recipe, progress.heldout, self.corpus.unigram_entropy, progress.tokens_seen, seconds
        )

    def _train(self, request: StopRequest) -> None:
        step, total = self.trainer.step, self.recipe.total_steps
        if step == 0:
            self._evaluate()
        if step < total:
            with StepProgress(self.console, "pre-training", total_steps=total, first_step=step) as self.bar:
                self._loop(request)

    def _loop(self, request: StopRequest) -> None:
        total, trainer = self.recipe.total_steps, self.trainer
        log_every = max(1, min(50, total // 40))
        evaluate_every = max(1, total // EVALUATIONS)
        self.next_state = self.next_affordable_state = time.monotonic() + self.options.save_every
        while trainer.step < total:
            if self.recipe.phase_at(trainer.step) != self.progress.phase:
                self._enter_next_phase()
            batch = next(self.stream)
            if not self.peak:
                self._measure_peak(batch)
            measure = trainer.train_batch(*parts_of(batch, self.options.accumulate))
            step, last = trainer.step, trainer.step == total
            stopping, saving = self._count(batch, measure, request)
            if step % log_every == 0 or last:
                self._log_window()
            if step % evaluate_every == 0 or last:
                saving |= self._evaluate() and self.ranks.on_first(
                    lambda: time.monotonic() >= self.next_affordable_state
                )
            if saving or stopping or last:
                self._save()
            if stopping and not last:
                raise TrainingStopped(self.run, step, total)

    def _restore(self) -> None:
        """Takes up the last state, or begins; rank 0 reads, the others are told."""
        found = self.ranks.on_first(lambda: load_latest_state(self.run / "state", self.trainer))
        keep_bytes = 0
        if found is not None:
            share_state(self.trainer)
            self.progress = RunProgress(**found)
            keep_bytes = self.progress.metrics_bytes
            self.trainer.skipped, self.trainer.skipped_in_a_row = self.progress.skipped
            if self.trainer.step < self.recipe.total_steps:
                self.console.print(f"going on after step {self.trainer.step} of {self.recipe.total_steps}")
        self.window = RunningAverages({name: (value, count) for name, (value, count) in self.progress.window.items()})
        self.log = self.ranks.on_first(lambda: MetricsLog(self.run / "metrics.jsonl", keep_bytes=keep_bytes))
        wanted = self.options.tensorboard if self.ranks.is_first else False
        self.board = TensorBoardLog(self.run / "tensorboard", wanted=wanted, first_step=self.trainer.step)

    def _open_stream(self) -> None:
        phase = self.progress.phase
        stream = open_stream(self.recipe, self.corpus, self.tokenizer, phase=phase, ranks=self.ranks)
        self.stream = prefetched(stream, self.options.workers)
        self.stream.position = StreamPosition(**self.progress.position)

    def _close_stream(self) -> None:
        if isinstance(self.stream, PrefetchedStream):
            self.stream.close()

    def _enter_next_phase(self) -> None:
        # 换阶段从新的一轮开始：位置仍是几个整数，跨过边界续训与不中断的一样
        epoch = self.stream.position.epoch + 1
        self._close_stream()
        self.progress.phase = self.recipe.phase_at(self.trainer.step)
        self.peak = 0.0
        self.progress.position = StreamPosition(epoch).to_json()
        self._open_stream()

    def _count(self, batch: PreTrainingBatch, measure: LossOutput, request: StopRequest) -> tuple[bool, bool]:
        """Adds up a step, and finds out together with the other ranks whether to stop and whether to save."""
        due = self.ranks.is_first and time.monotonic() >= self.next_state
        flops = training_flops(self.model.config, batch)
        # 停止与保存由所有进程商定：任何一个收到信号，全体在同一步停下
        stopping, saving, tokens, flops = self.ranks.total([request.made, due, batch.tokens.num_tokens, flops])
        self.progress.tokens_seen += round(tokens)
        self.matmul_seconds += flops / (self.peak * self.ranks.world_size)
        self.window.add(measure.sums)
        return stopping > 0, saving > 0

    def _log_window(self) -> None:
        averages = self.window.averages()
        self.window = RunningAverages()
        elapsed = max(1e-9, time.monotonic() - self.started)
        rate = (self.progress.tokens_seen - self.started_tokens) / elapsed
        utilisation = self.matmul_seconds / elapsed
        row = {"kind": "train", "step": self.trainer.step, "tokens": self.progress.tokens_seen, **averages}
        row["learning_rate"] = self.trainer.learning_rate
        if self.trainer.skipped:
            row["skipped"] = self.trainer.skipped
        self._append({**row, "tokens_per_second": round(rate), "mfu": round(utilisation, 4)})
        shown = {"loss": f"{_loss_of(averages):.3f}"}
        for name, label in SHOWN_FIGURES:
            if name in averages:
                shown[label] = f"{averages[name]:.3f}"
        if self.trainer.skipped:
            shown["skipped"] = str(self.trainer.skipped)
        self.bar.update(self.trainer.step, {**shown, "tokens/s": f"{rate:,.0f}", "MFU": f"{utilisation:.0%}"})

    def _evaluate(self) -> bool:
        """Measures the model on the held-out documents, keeps it where it is the best so far, and says whether."""
        # 每次都用同一批验证样本、同样的遮盖：曲线上的变化只来自模型
        figures = self.trainer.evaluate(self.heldout)
        for name in ("mlm_loss", "ltr_loss"):
            if name in figures:
                figures["perplexity"] = math.exp(min(figures[name], 700.0))
        self.progress.heldout = figures
        self._append({"kind": "heldout", "step": self.trainer.step, "tokens": self.progress.tokens_seen, **figures})
        best, loss = self.progress.best_loss, _loss_of(figures)
        # 第 0 步的模型什么也没学：不算最好；NaN 与任何数比较都为假，也不算
        if self.trainer.step == 0 or not loss < (best[0] if best else math.inf):
            return False
        self.progress.best_loss = (loss, self.trainer.step)
        self.ranks.on_first(lambda: self._save_model("best"))
        return True

    def _save(self) -> None:
        """Writes the state; the next one is due when writing it will have cost its share of the time again."""
        begun = time.monotonic()
        self.progress.position = self.stream.position.to_json()
        progress = RunProgress(
            position=self.progress.position,
            phase=self.progress.phase,
            tokens_seen=self.progress.tokens_seen,
            seconds=self._seconds(),
            window=self.window.totals,
            heldout=self.progress.heldout,
            skipped=(self.trainer.skipped, self.trainer.skipped_in_a_row),
            best_loss=self.progress.best_loss,
        )
        self.ranks.on_first(lambda: self._write_state(progress))
        now = time.monotonic()
        self.next_affordable_state = now + (now - begun) / SAVING_SHARE
        self.next_state = max(now + self.options.save_every, self.next_affordable_state)

    def _write_state(self, progress: RunProgress) -> None:
        progress.metrics_bytes = self.log.size
        self.log.flush_to_disk()
        save_state(
            self.run / "state",
            self.trainer,
            asdict(progress),
            keep=self.options.keep_states,
            best_step=progress.best_loss[1] if progress.best_loss else None,
        )

    def _append(self, row: dict[str, Any]) -> None:
        self.ranks.on_first(lambda: self.log.append(row))
        self.board.append(row)

    def _save_model(self, name: str) -> None:
        self.model.save_pretrained(self.run / name)
        self.tokenizer.save(self.run / name, model_max_length=self.model.config.max_position_embeddings)

    def _measure_peak(self, batch: PreTrainingBatch) -> None:
        """Finds the speed that utilisation is measured by: a matmul of this model's width, on the tokens of a pass."""
        begun = time.monotonic()
        dtype = torch.bfloat16 if self.recipe.precision == "bf16" else torch.float32
        tokens = batch.tokens.num_tokens // min(self.options.accumulate, batch.tokens.num_sequences)
        hidden_size, device = self.model.config.hidden_size, self.trainer.device
        self.peak = self.ranks.on_first(lambda: measure_matmul_flops(hidden_size, tokens, dtype, device))
        # 量尺子的时间不算训练的时间：把起点往后挪
        self.started += time.monotonic() - begun

    def _seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self.started


def _loss_of(figures: dict[str, float]) -> float:
    """Returns the sum of the losses among figures; NaN without any."""
    losses = [value for name, value in figures.items() if name.endswith("_loss")]
    return sum(losses) if losses else math.nan
