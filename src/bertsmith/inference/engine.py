"""The engine: many sequences through a model, fast and in order.

Notable:
- sequences are sorted by length and packed to a budget of tokens, so that a call is never too small to be efficient
  nor too large for memory; results come back in the caller's order
- on a CPU several packs are computed at once, each on cores of its own: nothing waits for the slowest core after every
  operation, as it does when all cores share one matmul (measured in `docs/notes/measurements.md`)
- pipelines know the engine only by `SequenceRunner`, three methods, so that a server can put its own in the place
- weights are cast or rounded, and laid out for the kernels, once: when they are first used
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from threading import Barrier, Lock
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError, InputError
from bertsmith.inference.checks import PART
from bertsmith.inference.precision import (
    Precision,
    PrecisionChoice,
    apply_precision,
    check_precision,
    choose_precision,
)
from bertsmith.kernels.layers import best_device, native_precision
from bertsmith.model import ModelConfig, PretrainedModel

EngineKind = Literal["torch", "onnxruntime", "auto"]

TOKEN_BUDGET = 4096
"""Tokens of a forward pass on a GPU: enough to keep it busy."""
CPU_TOKEN_BUDGET = 1024
"""The same on a CPU: the states between two matmuls stay in its caches."""
MOST_AT_ONCE = 4
"""Passes under way together on a CPU; more would wait for each other's turn in the interpreter."""

_HANDING_OUT = Lock()
"""Held while cores are handed out: torch's number of threads, a setting of the whole process, is not the true one."""

Read = Callable[[Any, RaggedBatch], Tensor]
"""Calls a model on a batch and reads its output."""
ReadAt = Callable[[Any, RaggedBatch, Tensor], Tensor]
"""The same at M places alone: the last argument is [M] int64, places among the T tokens of the batch."""


Pass = tuple[list[int], RaggedBatch, Tensor]
"""Which sequences were computed together, as what batch, and what was read of it."""


class SequenceRunner(Protocol):
    """What a pipeline needs of an engine; a server puts one in its place that batches the calls of many requests.

    A `read` is a function of a module, or a frozen value with `__call__`: never a lambda, never bound to one call. Two
    calls of the same model whose `read` are equal may share a forward pass.
    """

    def run(
        self, sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None, read: Read
    ) -> Tensor:
        """Maps every sequence to one row.

        Args:
            sequences: N non-empty sequences of ids with their special tokens; N is at least 1.
            token_type_ids: segments in the same lengths, or None for all 0.
            read: calls the model on a batch of n sequences and returns [n, ...].

        Returns:
            [N, ...] float32 on the CPU, in the order of `sequences`.
        """
        ...

    def run_tokens(
        self, sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None, read: Read
    ) -> list[Tensor]:
        """Maps every token to one row.

        Args:
            sequences: as in `run`, or none.
            token_type_ids: as in `run`.
            read: calls the model on a batch of T tokens and returns [T, ...].

        Returns:
            For each sequence, in order, [S, ...] float32 on the CPU.
        """
        ...

    def run_positions(
        self,
        sequences: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None,
        positions: Sequence[Sequence[int]],
        read: ReadAt,
    ) -> list[Tensor]:
        """Maps chosen tokens of every sequence to one row each.

        Args:
            sequences: as in `run`, or none.
            token_type_ids: as in `run`.
            positions: for each sequence, which of its tokens are read, counted from 0; there may be none.
            read: calls the model on a batch and M places among its tokens, and returns [M, ...].

        Returns:
            For each sequence, in order, [m, ...] float32 on the CPU, m being the number of its positions.
        """
        ...


@dataclass(frozen=True)
class InferenceConfig:
    """Where and how a pipeline computes.

    Attributes:
        device: None takes the GPU where there is one.
        precision: `float32`, `bf16`, `int8` or `auto`, see `bertsmith.inference.precision`; None takes bf16 where the
            hardware multiplies it natively, else float32.
        max_length: most ids in a sequence; 0 takes what the model reads.
        batch_tokens: tokens of a forward pass; 0 takes what suits the device.
        engine: what short batches run on, see `bertsmith.inference.compiled`.
    """

    device: torch.device | str | None = None
    precision: Precision | None = None
    max_length: int = 0
    batch_tokens: int = 0
    engine: EngineKind = "torch"

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ConfigError: the precision or the engine is unknown, or a number is negative.
        """
        if self.engine not in get_args(EngineKind):
            raise ConfigError(f"engine {self.engine!r} is unknown; use {', '.join(get_args(EngineKind))}")
        if self.engine == "onnxruntime" and self.precision not in (None, "float32"):
            raise ConfigError(f"engine onnxruntime computes in float32, not in {self.precision}; leave one of them out")
        if self.precision is not None:
            check_precision(self.precision)
        if self.max_length < 0 or self.batch_tokens < 0:
            raise ConfigError(f"max_length {self.max_length} and batch_tokens {self.batch_tokens} cannot be negative")

    def length_for(self, config: ModelConfig) -> int:
        """Returns the most ids in a sequence that both the model and this setting allow."""
        return min(self.max_length or config.position_limit, config.position_limit)


DEFAULT = InferenceConfig()


class Engine:
    """Runs a model over lists of id sequences: the `SequenceRunner` of every pipeline that no server has taken over.

    Attributes:
        model: in evaluation mode, on `device`.
        device: where it computes.
        precision: `float32`, `bf16` or `int8`, as it was asked for or chosen.
        choice: what `auto` measured; None where nothing was left to choose.
        kind: `torch` or `onnxruntime`, what short batches run on.
        batch_tokens: most tokens of a forward pass.
    """

    def __init__(self, model: PretrainedModel, inference: InferenceConfig = DEFAULT) -> None:
        """Prepares a model for prediction.

        Args:
            model: any of `bertsmith.model`'s models; it is put into evaluation mode.
            inference: where and how.

        Raises:
            ConfigError: the precision is not to be had on this device.
        """
        self.device = best_device() if inference.device is None else torch.device(inference.device)
        self.model: PretrainedModel = model.to(self.device).eval()
        self.batch_tokens = inference.batch_tokens or (CPU_TOKEN_BUDGET if self.device.type == "cpu" else TOKEN_BUDGET)
        self.choice: PrecisionChoice | None = None
        if inference.precision == "auto":
            self.choice = choose_precision(self.model, self.device)
        native = "float32" if inference.engine == "onnxruntime" else native_precision(self.device)
        self.precision = self.choice.precision if self.choice else inference.precision or native
        if self.choice is None:
            apply_precision(self.model, self.precision, self.device)
        self.kind = "torch"
        if inference.engine != "torch":
            self.kind = self._compiled(inference.engine)

    def _compiled(self, kind: EngineKind) -> str:
        """Gives short batches the engine that is asked for, where it can be had."""
        from bertsmith.inference.compiled import graph_of, use_graph

        if self.device.type != "cpu":
            if kind == "onnxruntime":
                raise ConfigError(f"engine onnxruntime is for the CPU, not for {self.device.type}; leave it out")
            return "torch"
        # 图是按 float32 核对的：做图时先换回来；量快慢则用实际的精度，短请求因此只会更准，不会更糙
        apply_precision(self.model, "float32", self.device)
        graph = graph_of(self.model.backbone, kind)
        apply_precision(self.model, self.precision, self.device)
        return use_graph(self.model.backbone, graph, kind)

    @torch.inference_mode()
    def run(
        self, sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None, read: Read
    ) -> Tensor:
        """Maps every sequence to one row, see `SequenceRunner`."""
        rows: Tensor | None = None
        for pack, _, found in self._passes(sequences, token_type_ids, lambda _, batch: read(self.model, batch)):
            # 结果只分配一次，逐批写到调用者的次序上：不留下成千上万个小张量
            rows = found.new_empty(len(sequences), *found.shape[1:]) if rows is None else rows
            rows[torch.tensor(pack)] = found
        if rows is None:
            raise InputError("nothing to run: give at least one sequence")
        return rows

    @torch.inference_mode()
    def run_tokens(
        self, sequences: Sequence[Sequence[int]], token_type_ids: Sequence[Sequence[int]] | None, read: Read
    ) -> list[Tensor]:
        """Maps every token to one row, see `SequenceRunner`."""
        rows: list[Tensor] = [torch.empty(0)] * len(sequences)
        for pack, batch, found in self._passes(sequences, token_type_ids, lambda _, batch: read(self.model, batch)):
            for index, part in zip(pack, found.split(batch.lengths), strict=True):
                rows[index] = part
        return rows

    @torch.inference_mode()
    def run_positions(
        self,
        sequences: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None,
        positions: Sequence[Sequence[int]],
        read: ReadAt,
    ) -> list[Tensor]:
        """Maps chosen tokens to one row each, see `SequenceRunner`."""
        _check_positions(sequences, positions)

        def read_places(pack: list[int], batch: RaggedBatch) -> Tensor:
            starts = batch.first_token_positions.tolist()
            places = [start + place for index, start in zip(pack, starts, strict=True) for place in positions[index]]
            return read(self.model, batch, torch.tensor(places, dtype=torch.long, device=self.device))

        rows: list[Tensor] = [torch.empty(0)] * len(sequences)
        for pack, _, found in self._passes(sequences, token_type_ids, read_places):
            counts = [len(positions[index]) for index in pack]
            for index, part in zip(pack, found.split(counts), strict=True):
                rows[index] = part
        return rows

    def _passes(
        self,
        sequences: Sequence[Sequence[int]],
        token_type_ids: Sequence[Sequence[int]] | None,
        read: Callable[[list[int], RaggedBatch], Tensor],
    ) -> Iterator[Pass]:
        """Computes the sequences pack by pack; on a CPU several packs at once."""

        @torch.inference_mode()
        def compute(pack: list[int]) -> Pass:
            types = None if token_type_ids is None else [token_type_ids[index] for index in pack]
            batch = RaggedBatch.from_sequences([sequences[index] for index in pack], types).to(self.device)
            return pack, batch, read(pack, batch).float().cpu()

        packs = list(packs_by_length([len(sequence) for sequence in sequences], self.batch_tokens))
        pool = _sharing_pool(min(len(packs), MOST_AT_ONCE)) if self.device.type == "cpu" else None
        if pool is None:
            yield from map(compute, packs)
            return
        try:
            yield from pool.map(compute, packs)
        finally:
            pool.shutdown(cancel_futures=True)


def stream_rows(engine: SequenceRunner, sequences: Iterable[Sequence[int]], read: Read) -> Iterator[Tensor]:
    """Maps every sequence of an input of any length to one row, in order and in bounded memory.

    Args:
        engine: what runs them.
        sequences: as in `SequenceRunner.run`; read `PART` ahead.
        read: as in `SequenceRunner.run`.

    Yields:
        [n, ...] float32 on the CPU, the rows of the next n sequences.
    """
    left = iter(sequences)
    while block := list(islice(left, PART)):
        yield engine.run(block, None, read)


def packs_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Groups sequences of similar length.

    Args:
        lengths: of N sequences.
        budget: most tokens in a group; a longer single sequence makes a group of its own.

    Yields:
        Lists of indices; together every index once.
    """
    pack: list[int] = []
    used = 0
    # 按长度排序：同一批内长度相近，注意力里几乎没有填充
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        if pack and used + lengths[index] > budget:
            yield pack
            pack, used = [], 0
        pack.append(index)
        used += lengths[index]
    if pack:
        yield pack


def worker_count(threads: int, most: int) -> int:
    """Returns how many workers are to share cores, each with the same number of whole cores.

    Args:
        threads: cores to share, 1 or more.
        most: workers, 1 or more.

    Returns:
        The number that leaves the fewest cores idle, of several the largest; 1 only where two are not possible.
    """
    if min(threads, most) < 2:
        return 1
    # 份额必须相等：矩阵乘的舍入随线程数而变，一批由谁来算不能改变它的结果。七个核心因此闲着一个
    # 份额要整除得最满：六个核心分给四个线程会闲着两个，分给三个正好
    return max(range(2, min(threads, most) + 1), key=lambda count: (threads // count * count, count))


def _sharing_pool(most: int) -> ThreadPoolExecutor | None:
    """Starts workers that share the caller's cores, `most` at most; None where there would be a single one."""
    with _HANDING_OUT:
        threads = torch.get_num_threads()
        workers = worker_count(threads, most)
        if workers == 1:
            return None
        ready = Barrier(workers + 1)

        def begin() -> None:
            # 新线程头一次用到线程数时才取全局的值：先让它取过，之后设的份额才不会被覆盖
            torch.get_num_threads()
            # torch 的线程数是每个线程各自的设置：几批同时算，各用一份核心
            torch.set_num_threads(threads // workers)
            ready.wait()

        pool = ThreadPoolExecutor(workers, "pass", initializer=begin)
        try:
            for _ in range(workers):
                pool.submit(int)
            ready.wait()
        except BaseException:
            # 起不了线程时，已经等着的几个不能永远等下去
            ready.abort()
            raise
        finally:
            # 每次设置也改变以后新建线程的默认值：等全部就位就还原，别的线程不会把份额当成总数
            torch.set_num_threads(threads)
    return pool


def _check_positions(sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]]) -> None:
    if len(positions) != len(sequences):
        raise InputError(f"{len(sequences)} sequences and {len(positions)} lists of positions; give one for each")
    for number, (sequence, places) in enumerate(zip(sequences, positions, strict=True)):
        wrong = next((place for place in places if not 0 <= place < len(sequence)), None)
        if wrong is not None:
            raise InputError(f"sequence {number}: position {wrong} is outside 0 to {len(sequence) - 1}")
