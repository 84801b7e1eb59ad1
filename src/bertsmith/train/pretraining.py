"""A pre-training run in its folder: begin it, resume it after a crash, finish it. The loop is here, top to bottom.

    run/recipe.toml     every setting, resolved
    run/metrics.jsonl   figures as they came
    run/tensorboard/    the same for TensorBoard, where it is installed; see `train.tracking`
    run/state/          crash-safe training state; the last ones and the best
    run/best/           the model folder with the lowest held-out loss so far
    run/models/STEP/    model folders kept on the way, where they were asked for
    run/model/          the finished model folder; an objective that trains two networks puts the other one inside

`pretrain` is called the same way every time: what it finds in the folder decides where it starts. In the loop the clock
decides only when to save, and that a run far over its minutes ends. All else is counted in steps, so that a run that
was killed and one that was not are the same run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.prefetch import PrefetchedStream, prefetched
from bertsmith.data.stream.stream import PreTrainingStream, StreamPosition
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import working_in
from bertsmith.hub import pin
from bertsmith.kernels.compiling import require_compiler
from bertsmith.kernels.matmul import measure_matmul_flops
from bertsmith.objectives import LossOutput, RunningAverages
from bertsmith.settings import Checked, option, values_of
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.budget import (
    EVALUATIONS,
    FEWEST_STEPS,
    SAVING_SHARE,
    passes_over,
    steps_for,
    training_flops,
    with_dropout,
)
from bertsmith.train.distributed import Ranks
from bertsmith.train.forecast import ALARMING, EARLIEST_ALARM, REPEATED, expectation_of
from bertsmith.train.monitor import MetricsLog, StepProgress, StopRequest, Throughput, TrainingStopped, stop_requests
from bertsmith.train.recipe import PreTrainingRecipe, keep_start, resolve_recipe
from bertsmith.train.start import fingerprint_start, fingerprint_teacher, heldout_set, make_trainer, open_stream
from bertsmith.train.state import load_latest_state, save_state, share_state
from bertsmith.train.tracking import RunListener, StartedRun, Tracking, usual_trackers


@dataclass(frozen=True)
class RunOptions(Checked):
    """What may differ from one start of a run to the next; none of it changes the numbers but by rounding and dropout.

    Dropout is drawn part by part: in another number of parts (`accumulate`), or on another number of ranks, other
    elements are dropped, as many of them as before.
    """

    panel: ClassVar[str] = "This start of the run"

    accumulate: int = option(
        1,
        min=1,
        help="Parts of a step, to save memory; changes only rounding and dropout's draws.",
    )
    compiled: bool = option(
        False,
        name="compile",
        help="GPU: fuse the kernels of every block and of the loss; half a minute at first, then faster steps.",
    )
    workers: int | None = option(
        None, min=0, max=1, shown_default="1 with a GPU, else 0", help="Processes that prepare batches ahead."
    )
    save_every: float = option(20.0, min=0.0, help="Seconds between saved states: the work that a crash may cost.")
    keep_states: int = option(2, min=1, help="Number of newest states to keep, besides the best.")
    # 不在途中评估（0 次）只给会自己评估的调用者
    evaluations: int = option(
        EVALUATIONS, min=0, least_given=1, help="Number of evaluations on held-out text, after the one at the start."
    )
    keep_models: int = option(
        0, min=0, help="Number of models to keep on the way, in OUT/models (the paper's figure 5)."
    )


BARELY = 0.05
"""Share of the unigram entropy: a model that gained less has hardly begun to use context."""
OVERSHOOT, LEAST_OVERSHOOT = 0.25, 5.0
"""Of `latest_end`: a share of the minutes, and seconds at least."""

MODELS = "models"
"""Folder of a run with the model folders kept on the way, each called after its step."""


def latest_end(minutes: float) -> float:
    """Returns the seconds after which a run that was given so many minutes is ended."""
    return 60 * minutes + max(OVERSHOOT * 60 * minutes, LEAST_OVERSHOOT)


def kept_steps(total_steps: int, count: int) -> list[int]:
    """Returns the steps after which a run keeps its model, or is evaluated: so many, the last among them, or none."""
    count = min(count, total_steps)
    return sorted({max(1, round(total_steps * number / count)) for number in range(1, count + 1)})


def verdict_on(loss: float, unigram_entropy: float) -> str:
    """Says what a held-out loss means beside that of knowing frequencies only, both in nats; nothing of a NaN."""
    gained = unigram_entropy - loss
    if math.isnan(gained):
        return ""
    figures = f"({loss:.2f} nats, and {unigram_entropy:.2f} by frequencies alone)"
    if gained <= 0:
        return f"Worse than word frequencies {figures}: give more minutes, more text, or a smaller size."
    if gained < BARELY * unigram_entropy:
        return f"Barely better than word frequencies {figures}: give more minutes, or more text."
    return f"Better than word frequencies {figures}: the model uses context."


@dataclass(frozen=True)
class PreTrainingResult:
    """What a finished run says of itself.

    Attributes:
        unigram_entropy: loss of a model that knows piece frequencies only, in nats.
        seconds: time spent training, over all restarts.
        steps: taken; fewer than the recipe's where the time was over before.
    """

    run: Path
    recipe: PreTrainingRecipe
    heldout: dict[str, float]
    unigram_entropy: float
    tokens_seen: int
    seconds: float
    steps: int

    @property
    def verdict(self) -> str:
        """What the held-out loss says beside that of knowing frequencies only; empty where no pieces are predicted."""
        loss = self.heldout.get(self.recipe.build_objective().perplexity_of, math.nan)
        return verdict_on(loss, self.unigram_entropy)


@dataclass
class RunProgress:
    """Where a run stands, besides its weights and its optimizer.

    Attributes:
        position: of the stream, before the next batch.
        window: sums of the figures since the last row of the log.
        skipped: batches skipped, and how many of them in a row up to now.
        best_loss: the lowest held-out loss so far, and the step it was at.
    """

    position: dict[str, int] = field(default_factory=lambda: StreamPosition().to_json())
    phase: int = 0
    tokens_seen: int = 0
    seconds: float = 0.0
    window: dict[str, tuple[float, int]] = field(default_factory=dict)
    heldout: dict[str, float] = field(default_factory=dict)
    metrics_bytes: int = 0
    skipped: tuple[int, int] = (0, 0)
    best_loss: tuple[float, int] | None = None


def pretrain(
    run: str | Path,
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    recipe: PreTrainingRecipe,
    options: RunOptions | None = None,
    *,
    console: Console | None = None,
    device: torch.device | str = "cpu",
    ranks: Ranks | None = None,
    listeners: Sequence[RunListener] | None = None,
) -> PreTrainingResult:
    """Trains BERT on a corpus, or resumes where the run in the folder stopped; raises what `bertsmith.pretrain` does.

    SIGINT and SIGTERM are granted after the step in progress; a second one ends the process at once.

    Args:
        corpus: token shards made by `tokenizer`, which is saved into the model folder.
        recipe: as asked for; the number of steps is found from its budgets where it has some.
        ranks: the processes that train together; None is this one alone.
        listeners: are told how the run goes, by the first rank; None is TensorBoard where its writer is installed.
    """
    ranks, run, options = ranks or Ranks(), Path(run), options or RunOptions()
    if not recipe.trainer.total_steps and not recipe.length.has_budget:
        raise ConfigError("a run needs an end: steps, minutes, tokens or flops")
    if options.compiled:
        if recipe.teacher.folder:
            raise ConfigError("--compile does not go with --teacher, which looks into the blocks; leave it out")
        require_compiler(device)
    if ranks.world_size > 1 and recipe.objective == "imitation" and "states" not in recipe.teacher.losses:
        # DDP 等每个参数的梯度：只学关系时，最后一层的投影之上没有
        raise ConfigError(
            "--objective imitation with relations alone leaves weights without a gradient, for which several processes"
            " would wait; use one process, or add --teacher-loss states where both models are equally wide"
        )
    with ExitStack() as stack:
        # 只有 0 号进程碰运行文件夹：上锁、读配方、写状态
        ranks.on_first(lambda: stack.enter_context(working_in(run, "state")))
        keep_start(run, recipe.model.start_from)
        recipe = fingerprint_start(recipe.changed(corpus=corpus.fingerprint), tokenizer)
        recipe = fingerprint_teacher(recipe, tokenizer)
        shown = console if console and ranks.is_first else Console(quiet=True)
        begun = ranks.on_first(lambda: _recipe_found(run, recipe))
        if begun is None:
            begun, passes = _resolved(recipe, corpus, tokenizer, device, ranks, options)
            if passes > REPEATED:
                shown.print(
                    f"the text will be read {passes:,.0f} times: beyond {REPEATED:.0f} times, more text teaches more"
                    " than more time (bertsmith plan says how much)",
                    highlight=False,
                )
            ranks.on_first(lambda: begun.save(run))
        # 各进程各自问过 Hub：以 0 号进程写进配方的提交为准
        pin(begun.model.start_from, begun.model.start_commit)
        told = usual_trackers() if listeners is None else listeners
        return PreTrainingRun(
            run, corpus, tokenizer, begun, options=options, console=shown, device=device, ranks=ranks, listeners=told
        ).finish()


def _resolved(
    recipe: PreTrainingRecipe,
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    device: torch.device | str,
    ranks: Ranks,
    options: RunOptions,
) -> tuple[PreTrainingRecipe, float]:
    """Returns a fresh run's recipe with its steps and its dropout, and how often it reads the text."""
    how = {name: getattr(options, name) for name in ("accumulate", "evaluations", "compiled")}

    def with_steps(chosen: PreTrainingRecipe) -> tuple[PreTrainingRecipe, float]:
        begun = chosen.changed(steps=steps_for(chosen, corpus, tokenizer, device, ranks=ranks, **how))
        return begun, passes_over(begun, corpus, tokenizer)

    chosen = with_dropout(recipe, 0.0)
    begun, passes = with_steps(chosen)
    again = with_dropout(recipe, passes)
    # dropout 让每一步变慢：读的遍数多到要用它，就带着它重新计时
    return (begun, passes) if again == chosen else with_steps(again)


def _recipe_found(run: Path, recipe: PreTrainingRecipe) -> PreTrainingRecipe | None:
    """Returns the recipe of a run begun before, or None for a folder that is free."""
    begun = resolve_recipe(run, recipe)
    if begun is None:
        foreign = [name for name in ("model", "metrics.jsonl", "finetune.json") if (run / name).exists()]
        if foreign:
            raise RunFolderError(f"{run}: holds {foreign[0]} of something else; choose another --out")
    return begun


class PreTrainingRun:
    """One process's share of a run, from where it stands to its end."""

    def __init__(
        self,
        run: Path,
        corpus: TokenCorpus,
        tokenizer: Tokenizer,
        recipe: PreTrainingRecipe,
        *,
        options: RunOptions,
        console: Console,
        device: torch.device | str,
        ranks: Ranks,
        listeners: Sequence[RunListener],
    ) -> None:
        self.run, self.corpus, self.tokenizer, self.recipe = run, corpus, tokenizer, recipe
        self.options, self.console, self.ranks = options, console, ranks
        self.total_steps = recipe.trainer.total_steps
        self.kept_steps = kept_steps(self.total_steps, options.keep_models)
        self.objective = recipe.build_objective()
        self.heldout = heldout_set(recipe, corpus, tokenizer)
        # 要读回状态的，初值马上就被盖掉：不必再数一遍语料
        begun = ranks.on_first(lambda: any((run / "state").glob("step-*")))
        fresh = recipe.changed(first_vectors="drawn") if begun else recipe
        self.trainer = make_trainer(fresh, corpus, tokenizer, device, ranks, compiled=options.compiled)
        self.models = self.objective.models(self.trainer.model)
        self.config = self.models[""].config
        self.expectation, self.alarmed = expectation_of(recipe, self.config, corpus), False
        self.progress = self._restored()
        self.window = RunningAverages({name: (value, count) for name, (value, count) in self.progress.window.items()})
        keep_bytes = self.progress.metrics_bytes
        self.log = ranks.on_first(lambda: MetricsLog(run / "metrics.jsonl", keep_bytes=keep_bytes))
        started = StartedRun(run, "pretrain", values_of(recipe), self.trainer.step)
        self.tracking = Tracking(listeners if ranks.is_first else (), started)
        self.stream = self._opened_stream()
        self.speed = Throughput()
        self.next_state = self.next_affordable_state = self.speed.started + options.save_every

    def _restored(self) -> RunProgress:
        """Takes up the last state, or begins; rank 0 reads, the others are told."""
        found = self.ranks.on_first(lambda: load_latest_state(self.run / "state", self.trainer))
        if found is None:
            return RunProgress()
        share_state(self.trainer)
        progress = RunProgress(**found)
        self.trainer.skipped, self.trainer.skipped_in_a_row = progress.skipped
        if self.trainer.step < self.total_steps:
            self.console.print(f"resuming after step {self.trainer.step} of {self.total_steps}")
        return progress

    def finish(self) -> PreTrainingResult:
        """Trains until the last step and writes the model folder."""
        try:
            with self.tracking:
                with stop_requests() as request:
                    # 训练之前的成绩也要记：没有起点，就说不出学到了多少
                    if self.trainer.step == 0 and self.options.evaluations:
                        self._evaluate()
                    if self.trainer.step < self.total_steps and not self._is_late():
                        self._loop(request)
                seconds, progress = self._seconds(), self.progress
                self.ranks.on_first(lambda: self._save_model("model"))
                for name in ("recipe.toml", "metrics.jsonl", "model"):
                    self.tracking.artefact(self.run / name)
        finally:
            self.stream.close()
        entropy, steps = self.corpus.unigram_entropy, self.trainer.step
        return PreTrainingResult(self.run, self.recipe, progress.heldout, entropy, progress.tokens_seen, seconds, steps)

    def _loop(self, request: StopRequest) -> None:
        """Takes the steps that are left: draw, forward, backward, step, measure, save."""
        total, trainer = self.total_steps, self.trainer
        log_every, evaluated = max(1, min(50, total // 40)), set(kept_steps(total, self.options.evaluations))
        with StepProgress(self.console, "pre-training", total_steps=total, first_step=trainer.step) as bar:
            while trainer.step < total:
                batch = self._draw()
                # 前向、反向、裁剪、更新都在 `BertTrainer.train_batch` 里；这里只管取数据、记数、存盘
                output = trainer.train_batch(*batch.split(self.options.accumulate))
                step = trainer.step
                stopping, saving, late = self._count(batch, output, request)
                last = step == total or late
                if step in self.kept_steps:
                    self.ranks.on_first(lambda: self._save_model(f"{MODELS}/{self.trainer.step}"))
                if step % log_every == 0 or last:
                    bar.update(step, self._log_window())
                if step in evaluated or (last and evaluated):
                    saving |= self._evaluate() and self.ranks.on_first(
                        lambda: time.monotonic() >= self.next_affordable_state
                    )
                if saving or stopping or last:
                    self._save()
                if stopping and not last:
                    raise TrainingStopped(self.run, step, total)
                if last:
                    break
        if trainer.step < total:
            self.console.print(
                f"ended after step {trainer.step} of {total}: the machine was slower than it was measured to be, and"
                f" the {round(self.recipe.length.minutes, 2):,g} minutes are over"
            )

    def _draw(self) -> PreTrainingBatch:
        """Returns the next batch, of the next phase where one ended."""
        if self.recipe.phase_at(self.trainer.step) != self.progress.phase:
            # 换阶段从新的一轮开始：位置仍是几个整数，跨过边界续训与不中断的一样
            epoch = self.stream.position.epoch + 1
            self.stream.close()
            self.progress.phase = self.recipe.phase_at(self.trainer.step)
            self.progress.position = StreamPosition(epoch).to_json()
            self.speed.peak = 0.0
            self.stream = self._opened_stream()
        batch = next(self.stream)
        if not self.speed.peak:
            self._measure_peak(batch)
        return batch

    def _opened_stream(self) -> PreTrainingStream | PrefetchedStream:
        stream = open_stream(self.recipe, self.corpus, self.tokenizer, phase=self.progress.phase, ranks=self.ranks)
        workers = self.options.workers
        opened = prefetched(stream, int(self.trainer.device.type == "cuda") if workers is None else workers)
        opened.position = StreamPosition(**self.progress.position)
        return opened

    def _is_late(self) -> bool:
        """Whether the run has taken too much longer than its minutes; the fewest steps are taken in any case."""
        minutes = self.recipe.length.minutes
        return bool(minutes) and self.total_steps > FEWEST_STEPS and self._seconds() > latest_end(minutes)

    def _count(self, batch: PreTrainingBatch, output: LossOutput, request: StopRequest) -> tuple[bool, bool, bool]:
        """Adds up a step, and finds out together with the other ranks whether to stop, to save, and to end."""
        due = self.ranks.is_first and time.monotonic() >= self.next_state
        flops = training_flops(self.config, batch, self.objective)
        # 停止与保存由所有进程商定：任何一个收到信号，全体在同一步停下
        late = self.ranks.is_first and self._is_late()
        counted = torch.tensor([request.made, due, late, batch.tokens.num_tokens, flops], dtype=torch.float64)
        stopping, saving, ending, tokens, flops = self.ranks.all_reduce(counted).tolist()
        self.progress.tokens_seen += round(tokens)
        self.speed.count(round(tokens), flops / self.ranks.world_size)
        self.window.add(output.sums)
        return stopping > 0, saving > 0, ending > 0

    def _log_window(self) -> dict[str, str]:
        """Writes the averages since the last row of the log, and returns what the progress line shows."""
        # GPU 上跳过的批次主机还不知道：先读回来，这一行的数才齐
        self.trainer.read_skips()
        averages = self.window.averages()
        self.window = RunningAverages()
        row = {"kind": "train", "step": self.trainer.step, "tokens": self.progress.tokens_seen, **averages}
        row["learning_rate"] = self.trainer.learning_rate_of(self.trainer.step - 1)
        if self.trainer.skipped:
            row["skipped"] = self.trainer.skipped
        rate, utilisation = self.speed.rates()
        self._append({**row, "tokens_per_second": round(rate), "mfu": round(utilisation, 4)})
        shown = {"loss": f"{self.objective.total_loss(averages):.3f}"}
        for term in self.objective.terms:
            if f"{term.name}_accuracy" in averages:
                shown[f"{term.name.upper()} acc"] = f"{averages[f'{term.name}_accuracy']:.3f}"
        if self.trainer.skipped:
            shown["skipped"] = str(self.trainer.skipped)
        return {**shown, "tokens/s": f"{rate:,.0f}", "MFU": f"{utilisation:.0%}"}

    def _evaluate(self) -> bool:
        """Measures the model on the held-out documents, keeps it where it is the best so far, and says whether."""
        # 每次都用同一批验证样本、同样的掩码：曲线上的变化只来自模型
        figures = self.trainer.evaluate(self.heldout)
        if self.objective.perplexity_of in figures:
            figures["perplexity"] = math.exp(min(figures[self.objective.perplexity_of], 700.0))
        self.progress.heldout = figures
        row = {"kind": "heldout", "step": self.trainer.step, "tokens": self.progress.tokens_seen, **figures}
        if "perplexity" in figures:
            # 报告只读这份记录：没有词频的损失，就说不出这个数是好是坏
            row["unigram_entropy"] = self.corpus.unigram_entropy
        self._append({**row, **self._expected(figures.get("mlm_loss", math.nan))})
        best, loss = self.progress.best_loss, self.objective.total_loss(figures)
        # 第 0 步的模型什么也没学：不算最好；NaN 与任何数比较都为假，也不算
        if self.trainer.step == 0 or not loss < (best[0] if best else math.inf):
            return False
        self.progress.best_loss = (loss, self.trainer.step)
        self.ranks.on_first(lambda: self._save_model("best"))
        return True

    def _expected(self, loss: float) -> dict[str, float]:
        """Returns the held-out loss that such a run has by now, where that is known; a run far above it is warned."""
        if self.expectation is None or self.trainer.step == 0:
            return {}
        done = self.trainer.step / self.total_steps
        expected = self.expectation.loss_at(done, self.progress.tokens_seen)
        # 比量过的最短的运行还短：起点还没走完，高出预期说明不了学习率
        measured = self.progress.tokens_seen / done >= self.expectation.law.tokens[0]
        if measured and done >= EARLIEST_ALARM and loss > expected + ALARMING and not self.alarmed:
            # 说一次就够：别的文本可能从头到尾都更难
            self.alarmed = True
            self.console.print(
                f"held-out loss {loss:.2f} after {done:.0%} of the run; such runs have {expected:.2f} by then. The"
                " learning rate may be too high, or this text is harder than English prose."
            )
        return {"expected_mlm_loss": expected}

    def _save(self) -> None:
        """Writes the state; the next one is due when writing it will have cost its share of the time again."""
        begun = time.monotonic()
        self.progress.position = self.stream.position.to_json()
        self.ranks.on_first(self._write_state)
        now = time.monotonic()
        self.next_affordable_state = now + (now - begun) / SAVING_SHARE
        self.next_state = max(now + self.options.save_every, self.next_affordable_state)

    def _write_state(self) -> None:
        self.log.flush_to_disk()
        self.trainer.read_skips()
        saved = {
            **asdict(self.progress),
            "seconds": self._seconds(),
            "window": self.window.read(),
            "metrics_bytes": self.log.size,
            "skipped": (self.trainer.skipped, self.trainer.skipped_in_a_row),
        }
        best_step = self.progress.best_loss[1] if self.progress.best_loss else None
        save_state(self.run / "state", self.trainer, saved, keep=self.options.keep_states, best_step=best_step)

    def _append(self, row: dict[str, Any]) -> None:
        self.ranks.on_first(lambda: self.log.append(row))
        self.tracking.figures(row)

    def _save_model(self, name: str) -> None:
        for part, model in self.models.items():
            model.save_pretrained(self.run / name / part)
            self.tokenizer.save(self.run / name / part, model_max_length=self.config.position_limit)

    def _measure_peak(self, batch: PreTrainingBatch) -> None:
        """Finds the speed that utilisation is measured by: a matmul of this model's width, on the tokens of a pass."""
        begun = time.monotonic()
        dtype = torch.bfloat16 if self.recipe.model.precision == "bf16" else torch.float32
        tokens = batch.tokens.num_tokens // min(self.options.accumulate, batch.tokens.num_sequences)
        hidden_size, device = self.config.hidden_size, self.trainer.device
        self.speed.peak = self.ranks.on_first(lambda: measure_matmul_flops(hidden_size, tokens, dtype, device))
        # 量峰值不是训练：这段时间不算
        self.speed.started += time.monotonic() - begun

    def _seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self.speed.started
