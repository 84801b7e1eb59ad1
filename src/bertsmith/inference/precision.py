"""The precision of prediction: one word, `float32`, `bf16`, `int8` or `auto`, and what it does to a model.

Notable:
- `int8` rounds the four matmuls of every block to 8 bits and nothing else; see `bertsmith.kernels.matmul`
- `auto` tries what the processor has, on packs of the model's own shape, and takes the fastest that is faithful: a
  fraction of a second for a small model. What it found can be printed, so that no choice is a mystery
- only the speed is a measurement: two runs of one precision on one machine compute the same
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.kernels.layers import native_precision
from bertsmith.kernels.matmul import has_int8_kernels
from bertsmith.model import Backbone, PretrainedModel

Precision = Literal["float32", "bf16", "int8", "auto"]

FAITHFUL = 0.995
"""The least cosine similarity with the vectors of float32 at which `auto` takes another precision."""

_FEWEST_ROUNDS, _MOST_SECONDS = 3, 0.15
_PROBE_LENGTHS = (12, 20, 28, 36)
_TIMED_SEQUENCES, _TIMED_LENGTH = 8, 32


@dataclass(frozen=True)
class PrecisionTrial:
    """What `auto` found of one precision.

    Attributes:
        precision: its name.
        seconds: that one block of the model takes for 256 tokens, the best of several times.
        cosine: the lowest cosine similarity of a sentence vector with that of float32.
    """

    precision: str
    seconds: float
    cosine: float

    @property
    def is_faithful(self) -> bool:
        """Whether the vectors are close enough to be used."""
        return self.cosine >= FAITHFUL


@dataclass(frozen=True)
class PrecisionChoice:
    """What `auto` chose, and why; `str` of it is a line for people.

    Attributes:
        precision: the fastest that is faithful.
        trials: what was measured, float32 first.
        not_tried: what this processor has no instructions for.
    """

    precision: str
    trials: tuple[PrecisionTrial, ...]
    not_tried: tuple[str, ...]

    def __str__(self) -> str:
        """Returns for example `int8 (float32 4.1 ms; int8 2.9 ms at cosine 0.9983; bf16 not on this processor)`."""
        said = []
        for trial in self.trials:
            faith = "" if trial.precision == "float32" else f" at cosine {trial.cosine:.4f}"
            refused = "" if trial.is_faithful else ", too far from float32"
            said.append(f"{trial.precision} {1000 * trial.seconds:.1f} ms{faith}{refused}")
        said += [f"{name} not on this processor" for name in self.not_tried]
        return f"{self.precision} ({'; '.join(said)})"


def check_precision(precision: str) -> None:
    """Makes sure that a precision has a meaning.

    Raises:
        ConfigError: it is none of `Precision`.
    """
    if precision not in get_args(Precision):
        raise ConfigError(f"precision {precision!r} is unknown; use {', '.join(get_args(Precision))}")


def apply_precision(model: PretrainedModel, precision: str, device: torch.device) -> None:
    """Makes a model compute in a precision from now on; its parameters stay float32.

    Args:
        model: on `device`.
        precision: `float32`, `bf16` or `int8`.
        device: int8 runs on the CPU.

    Raises:
        ConfigError: there is no int8 for this device or processor.
    """
    if precision == "int8":
        if device.type != "cpu":
            raise ConfigError(f"precision int8 is for the CPU; on {device.type} use bf16")
        if not has_int8_kernels():
            raise ConfigError("precision int8 needs an x86 processor and a torch with oneDNN; use float32 or bf16")
    model.set_compute_dtype(torch.bfloat16 if precision == "bf16" else torch.float32)
    model.set_int8(precision == "int8")


@torch.inference_mode()
def choose_precision(model: PretrainedModel, device: torch.device) -> PrecisionChoice:
    """Measures the precisions this processor has, and leaves the model in the best.

    Args:
        model: in evaluation mode, on `device`.
        device: where it computes.

    Returns:
        What was measured and chosen.
    """
    # 没有相应指令的 bf16 由软件模拟，慢上百倍：试一次就要等几秒，不必试
    # float32 排在最前：其余的精度都和它的向量比
    there = {"float32": True, "bf16": native_precision(device) == "bf16"}
    there["int8"] = device.type == "cpu" and has_int8_kernels()
    encoder = next(module for module in model.modules() if isinstance(module, Backbone))
    probe = _random_batch(encoder, _PROBE_LENGTHS, device)
    timed = _random_batch(encoder, [_TIMED_LENGTH] * _TIMED_SEQUENCES, device)
    trials: list[PrecisionTrial] = []
    exact = torch.empty(0)
    for name in (name for name, found in there.items() if found):
        apply_precision(model, name, device)
        vectors = _sentence_vectors(encoder, probe)
        exact = vectors if name == "float32" else exact
        cosine = float(torch.cosine_similarity(vectors, exact, dim=-1).min())
        trials.append(PrecisionTrial(name, _seconds(encoder, timed, device), cosine))
    best = min((trial for trial in trials if trial.is_faithful), key=lambda trial: trial.seconds)
    apply_precision(model, best.precision, device)
    return PrecisionChoice(best.precision, tuple(trials), tuple(name for name, found in there.items() if not found))


def _random_batch(encoder: Backbone, lengths: Any, device: torch.device) -> RaggedBatch:
    """Returns sequences of random ids, always the same ones, of lengths that the model reads."""
    longest = encoder.config.position_limit
    sizes = np.minimum(np.asarray(lengths, dtype=np.int64), longest)
    ids = np.random.default_rng(0).integers(0, encoder.config.vocab_size, int(sizes.sum()))
    return RaggedBatch.from_flat(ids, sizes).to(device)


def _sentence_vectors(encoder: Backbone, batch: RaggedBatch) -> Tensor:
    states = encoder(batch).hidden_states.float()
    return torch.stack([rows.mean(0) for rows in states.split(batch.lengths)])


def _seconds(encoder: Backbone, batch: RaggedBatch, device: torch.device) -> float:
    """Returns how long one block takes: all blocks are alike, so that this stands for the whole model."""
    hidden = encoder.embedding(batch)
    block = encoder.encoder.blocks[0]
    taken: list[float] = []
    # 第一次要打包权重、编译内核，不计时；之后取最好的一次，别的程序的干扰只会让时间变长
    while len(taken) <= _FEWEST_ROUNDS or sum(taken[1:]) < _MOST_SECONDS:
        begun = time.perf_counter()
        block(hidden, batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begun)
    return min(taken[1:])
