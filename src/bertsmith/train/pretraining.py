"""A pre-training run from its folder: begin it, go on with it after a crash, finish it.

    run/recipe.toml     every setting, resolved
    run/metrics.jsonl   figures as they came
    run/state/          crash-safe training state; the last two
    run/model/          the finished model folder

`pretrain` is called the same way every time. What it finds in the folder decides where it starts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from bertsmith.data.masking import MaskingSettings
from bertsmith.data.shards import TokenCorpus
from bertsmith.data.stream import PreTrainingStream, StreamPosition, StreamSettings, heldout_batches
from bertsmith.errors import RunFolderError
from bertsmith.files import locked, make_folder
from bertsmith.model import BertForPreTraining
from bertsmith.objectives import PreTrainingObjective
from bertsmith.objectives.measure import RunningAverages
from bertsmith.seeding import torch_seed
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.monitor import MetricsLog, StepProgress
from bertsmith.train.recipe import PreTrainingRecipe, resolve_recipe
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.trainer import BertTrainer, TrainerSettings

HELDOUT_SEQUENCES = 512
"""Held-out sequences per evaluation: about 10,000 masked pieces at length 128."""

EVALUATIONS = 12
"""Evaluations spread over a run, besides the one before the first step."""

SECONDS_BETWEEN_STATES = 20.0
"""How much work a crash may cost."""

SAVING_SHARE = 0.02
"""Most of the time that saving may take; where a state is slow to write, states are saved less often."""


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


def pretrain(
    run: str | Path,
    corpus: TokenCorpus,
    tokenizer: WordPieceTokenizer,
    recipe: PreTrainingRecipe,
    *,
    console: Console | None = None,
    device: torch.device | str = "cpu",
    save_every: float = SECONDS_BETWEEN_STATES,
) -> PreTrainingResult:
    """Trains BERT on a corpus, or goes on where the run in the folder stopped.

    Args:
        run: the run folder.
        corpus: token shards made by `tokenizer`.
        tokenizer: saved into the model folder.
        recipe: as asked for; `total_steps` is found from `minutes` where it is 0.
        console: shows progress; silent when None.
        device: where the model lives.
        save_every: seconds between states; changes nothing but what a crash costs.

    Raises:
        RunFolderError: the folder holds a run with other settings, or cannot be written.
        ConfigError: a setting is impossible.
        TrainingError: the loss or its gradient is no longer finite.
    """
    run = make_folder(Path(run))
    with locked(run):
        recipe = recipe.replace(corpus=corpus.fingerprint)
        begun = resolve_recipe(run, recipe)
        if begun is None:
            foreign = [name for name in ("model", "metrics.jsonl", "finetune.json") if (run / name).exists()]
            if foreign:
                raise RunFolderError(f"{run}: holds {foreign[0]} of something else; choose another --out")
            steps = recipe.total_steps or _steps_within(recipe, corpus, tokenizer, device)
            begun = recipe.replace(total_steps=steps)
            begun.save(run)
        return _Run(run, corpus, tokenizer, begun, console or Console(quiet=True), device, save_every).finish()


def build_model(recipe: PreTrainingRecipe, corpus: TokenCorpus) -> BertForPreTraining:
    """Returns a fresh model whose masked-LM bias starts as the log frequency of every piece.

    The bias is a prior over the vocabulary. Starting it at the prior saves the thousand steps in which a model
    learns nothing but which pieces are common.
    """
    torch.manual_seed(torch_seed(recipe.seed, "train/initial weights"))
    model = BertForPreTraining(recipe.model_config(len(corpus.piece_counts)))
    # 输出偏置即词频先验：加一平滑避免 log 0
    smoothed = corpus.piece_counts + 1.0
    prior = np.log(smoothed / smoothed.sum())
    with torch.no_grad():
        model.masked_lm.bias.copy_(torch.from_numpy(prior))
    model.set_compute_dtype(torch.bfloat16 if recipe.precision == "bf16" else torch.float32)
    return model


class _Run:
    """One process's share of a run: restores, loops, evaluates, saves."""

    def __init__(
        self,
        run: Path,
        corpus: TokenCorpus,
        tokenizer: WordPieceTokenizer,
        recipe: PreTrainingRecipe,
        console: Console,
        device: torch.device | str,
        save_every: float,
    ) -> None:
        self.save_every = save_every
        self.run, self.corpus, self.tokenizer, self.recipe = run, corpus, tokenizer, recipe
        self.console = console
        settings = stream_settings(recipe)
        self.stream = PreTrainingStream(corpus, tokenizer, settings)
        self.heldout = heldout_batches(corpus, tokenizer, settings, max_sequences=HELDOUT_SEQUENCES)
        self.trainer = make_trainer(recipe, corpus, device)
        self.model = self.trainer.model
        self.tokens_seen = 0
        self.seconds_before = 0.0
        self.window = RunningAverages()
        self.last_heldout: dict[str, float] = {}
        self._restore()

    def _restore(self) -> None:
        progress = load_latest_state(self.run / "state", self.trainer)
        if progress is None:
            self.log = MetricsLog(self.run / "metrics.jsonl")
            return
        self.stream.position = StreamPosition(**progress["position"])
        self.tokens_seen = progress["tokens_seen"]
        self.seconds_before = progress["seconds"]
        self.window = RunningAverages({name: (value, count) for name, (value, count) in progress["window"].items()})
        self.last_heldout = progress["heldout"]
        self.log = MetricsLog(self.run / "metrics.jsonl", keep_bytes=progress["metrics_bytes"])
        if self.trainer.step < self.recipe.total_steps:
            self.console.print(f"going on after step {self.trainer.step} of {self.recipe.total_steps}")

    def finish(self) -> PreTrainingResult:
        total = self.recipe.total_steps
        self.started = time.monotonic()
        self.started_tokens = self.tokens_seen
        if self.trainer.step == 0:
            self._evaluate()
        if self.trainer.step < total:
            with StepProgress(
                self.console, "pre-training", total_steps=total, first_step=self.trainer.step
            ) as self.progress:
                self._loop()
        seconds = self._seconds()
        self.model.save_pretrained(self.run / "model")
        self.tokenizer.save(self.run / "model")
        return PreTrainingResult(
            self.run, self.recipe, self.last_heldout, self.corpus.unigram_entropy, self.tokens_seen, seconds
        )

    def _loop(self) -> None:
        total = self.recipe.total_steps
        log_every = max(1, min(50, total // 40))
        evaluate_every = max(1, total // EVALUATIONS)
        next_state = time.monotonic() + self.save_every
        while self.trainer.step < total:
            batch = next(self.stream)
            measure = self.trainer.train_batch(batch)
            step = self.trainer.step
            self.window.add(measure.sums)
            self.tokens_seen += batch.tokens.num_tokens
            if step % log_every == 0 or step == total:
                self._log_window()
            if step % evaluate_every == 0 or step == total:
                self._evaluate()
            if time.monotonic() >= next_state or step == total:
                took = self._save()
                next_state = time.monotonic() + max(self.save_every, took / SAVING_SHARE)

    def _log_window(self) -> None:
        averages = self.window.averages()
        self.window = RunningAverages()
        elapsed = max(1e-9, time.monotonic() - self.started)
        rate = (self.tokens_seen - self.started_tokens) / elapsed
        row = {"kind": "train", "step": self.trainer.step, "tokens": self.tokens_seen, **averages}
        self.log.append({**row, "learning_rate": self.trainer.learning_rate, "tokens_per_second": round(rate)})
        shown = {
            "loss": f"{averages['mlm_loss'] + averages.get('nsp_loss', 0.0):.3f}",
            "MLM acc": f"{averages['mlm_accuracy']:.3f}",
            "NSP acc": f"{averages.get('nsp_accuracy', float('nan')):.3f}",
            "tokens/s": f"{rate:,.0f}",
        }
        self.progress.update(self.trainer.step, shown)

    def _evaluate(self) -> None:
        # 每次都用同一批验证样本、同样的遮盖：曲线上的变化只来自模型
        self.last_heldout = self.trainer.evaluate(self.heldout)
        self.log.append({"kind": "heldout", "step": self.trainer.step, "tokens": self.tokens_seen, **self.last_heldout})

    def _save(self) -> float:
        begun = time.monotonic()
        progress: dict[str, Any] = {
            "position": self.stream.position.to_json(),
            "tokens_seen": self.tokens_seen,
            "seconds": self._seconds(),
            "window": self.window.totals,
            "heldout": self.last_heldout,
            "metrics_bytes": self.log.size,
        }
        self.log.flush_to_disk()
        save_state(self.run / "state", self.trainer, progress)
        return time.monotonic() - begun

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started


def stream_settings(recipe: PreTrainingRecipe) -> StreamSettings:
    """Returns the part of a recipe that shapes batches."""
    return StreamSettings(
        sequence_length=recipe.sequence_length,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        short_probability=recipe.short_probability,
        masking=MaskingSettings(rate=recipe.mask_rate),
    )


def make_trainer(
    recipe: PreTrainingRecipe, corpus: TokenCorpus, device: torch.device | str = "cpu"
) -> BertTrainer[BertForPreTraining]:
    """Returns a trainer at step 0 for a recipe."""
    settings = TrainerSettings(
        total_steps=max(1, recipe.total_steps),
        learning_rate=recipe.learning_rate,
        warmup_share=recipe.warmup_share,
        weight_decay=recipe.weight_decay,
        clip_norm=recipe.clip_norm,
        seed=recipe.seed,
    )
    return BertTrainer(build_model(recipe, corpus), PreTrainingObjective(), settings, device=device)


def _steps_within(
    recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: WordPieceTokenizer, device: torch.device | str
) -> int:
    """Finds how many steps fit into the minutes asked for, by timing a throw-away model on real batches."""
    trainer = make_trainer(recipe, corpus, device)
    stream = PreTrainingStream(corpus, tokenizer, stream_settings(recipe))
    times = []
    # 计时用的是丢弃的模型和独立的数据流：步数一旦定下，训练本身与快慢无关
    for _ in range(16):
        begun = time.perf_counter()
        trainer.train_batch(next(stream))
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    batches = heldout_batches(corpus, tokenizer, stream_settings(recipe), max_sequences=HELDOUT_SEQUENCES)
    begun = time.perf_counter()
    trainer.evaluate(batches)
    evaluating = (time.perf_counter() - begun) * (EVALUATIONS + 1)
    per_step = float(np.mean(times[4:])) * (1 + SAVING_SHARE)
    return max(20, int((recipe.minutes * 60 - evaluating) / per_step))
