"""One training loop for every neighbour that learns from token shards: kill-proof, with a log and a progress bar."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from bertsmith.data.stream.stream import StreamPosition
from bertsmith.objectives import average_of
from bertsmith.train.monitor import MetricsLog, StepProgress, TrainingStopped, stop_requests
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.trainer import BertTrainer

SAVE_EVERY = 20.0
"""Seconds between two states."""


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sums -log p of pieces [M] by logits [M, V], in nats, and counts the likeliest; labels of -100 are left out."""
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    return loss, (logits.argmax(-1) == labels).sum()


class Stream(Protocol):
    """Batches without end, from a place that three integers name."""

    position: StreamPosition

    def __next__(self) -> Any:
        """Returns the next batch."""


def train_to_the_end(run: Path, trainer: BertTrainer[Any], stream: Stream, title: str, console: Console) -> None:
    """Trains from the newest state of a run folder, or from the beginning; a killed run resumes bit for bit.

    Trainer and stream are fresh; the trainer's settings say how many steps there are, and its objective has a figure
    `loss`. The run gets `metrics.jsonl` and `state`.
    """
    steps = trainer.settings.total_steps
    progress = load_latest_state(run / "state", trainer) or {"log": 0, "position": StreamPosition().to_json()}
    stream.position = StreamPosition(**progress["position"])
    log = MetricsLog(run / "metrics.jsonl", keep_bytes=progress["log"])
    due, log_every = time.monotonic() + SAVE_EVERY, max(1, steps // 40)
    with stop_requests() as request, StepProgress(console, title, total_steps=steps, first_step=trainer.step) as bar:
        while trainer.step < steps:
            output = trainer.train_batch(next(stream))
            if trainer.step % log_every == 0:
                figure = average_of([output])["loss"]
                log.append({"kind": "train", "step": trainer.step, "loss": figure})
                bar.update(trainer.step, {"loss": f"{figure:.3f}"})
            if request.made or time.monotonic() >= due:
                log.flush_to_disk()
                save_state(run / "state", trainer, {"log": log.size, "position": stream.position.to_json()}, keep=1)
                due = time.monotonic() + SAVE_EVERY
            if request.made:
                raise TrainingStopped(run, trainer.step, steps)
