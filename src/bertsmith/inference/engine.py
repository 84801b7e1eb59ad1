"""The engine: many sequences through a model, fast and in order, in the precision that is asked for.

- sequences are sorted by length and packed to a budget of tokens, so that calls are neither too small nor too large
- on a CPU several packs are computed at once, each on cores of its own: nothing waits for the slowest core after every
  operation, as when all cores share one matmul (measured in `docs/notes/measurements.md`)
- pipelines know the engine only by `SequenceRunner`, so that a server can put its own in the place
- `int8` rounds the four matmuls of every block to 8 bits and nothing else; `auto` takes the fastest precision that is
  faithful, measured on packs of the model's own shape; two runs of one precision compute the same
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Barrier, Lock
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.inference.compiled import graphs_of, random_batch, seconds_of, use_graphs
from bertsmith.inference.graph_cache import EngineKind
from bertsmith.inference.runtimes import RUNTIMES
from bertsmith.kernels.layers import best_device, native_precision
from bertsmith.kernels.matmul import has_int8_kernels
from bertsmith.model import Backbone, ModelConfig, PretrainedModel
from bertsmith.settings import Checked, option

PART = 4096
"""Inputs encoded and sorted by length at a time: enough to sort well, few enough that memory does not grow."""

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
Ids = Sequence[Sequence[int]]
"""Sequences of ids, or their segments in the same lengths."""
Pass = tuple[list[int], RaggedBatch, Tensor]
"""Which sequences were computed together, as what batch, and what was read of it."""
Precision = Literal["float32", "bf16", "int8", "auto"]


class SequenceRunner(Protocol):
    """What a pipeline needs of an engine; a server puts one in its place that batches the calls of many requests.

    A `read` is a function of a module, or a frozen value with `__call__`: never a lambda, never bound to one call. Two
    calls of the same model whose `read` are equal may share a forward pass.

    `shares_cores` tells whether passes in several threads divide the cores; else each needs all of them.
    """

    shares_cores: bool

    def run(self, sequences: Ids, token_type_ids: Ids | None, read: Read) -> Tensor:
        """Maps N ≥ 1 non-empty sequences of ids with special tokens to [N, ...] float32 on the CPU, in their order.

        Args:
            token_type_ids: segments in the same lengths, or None for all 0.
            read: calls the model on a batch of n sequences and returns [n, ...].
        """
        ...

    def run_tokens(self, sequences: Ids, token_type_ids: Ids | None, read: Read) -> list[Tensor]:
        """Maps every token to one row: for each sequence, in order, [S, ...] float32 on the CPU.

        Here `read` calls the model on a batch of T tokens and returns [T, ...].
        """
        ...

    def run_positions(self, sequences: Ids, token_type_ids: Ids | None, positions: Ids, read: ReadAt) -> list[Tensor]:
        """Maps chosen tokens of every sequence to one row each: for each sequence, in order, [m, ...] float32.

        For each sequence, `positions` counts its tokens from 0, and may be empty. `read` returns [M, ...] for M places.
        """
        ...


@dataclass(frozen=True)
class InferenceConfig(Checked):
    """Where and how a pipeline computes.

    Attributes:
        precision: `float32`, `bf16`, `int8` or `auto`; None takes bf16 where the hardware multiplies it natively.
        max_length: most ids in a sequence; 0 takes what the model reads.
        batch_tokens: tokens of a forward pass; 0 takes what suits the device.
        at_once: passes that divide the cores of a CPU, at most; with 1, a graph's pass has all of them.
    """

    device: torch.device | str | None = None
    precision: Precision | None = option(None)
    max_length: int = option(0, min=0)
    batch_tokens: int = option(0, min=0)
    engine: EngineKind = option("torch")
    at_once: int = option(MOST_AT_ONCE, min=1)

    def _check_together(self) -> None:
        able = RUNTIMES[self.engine].precisions if self.engine in RUNTIMES else (self.precision,)
        if self.precision not in (None, *able):
            said = " or ".join(map(str, able))
            raise ConfigError(
                f"engine {self.engine} computes in {said}, not in {self.precision}; leave one of them out"
            )

    def length_for(self, config: ModelConfig) -> int:
        """Returns the most ids in a sequence that both the model and this setting allow."""
        return min(self.max_length or config.position_limit, config.position_limit)


DEFAULT = InferenceConfig()


class Engine:
    """Runs a model over lists of id sequences: the `SequenceRunner` of every pipeline that no server has taken over.

    `choice` is what the precision `auto` measured, else None; `kind` and `long_kind` name what computes short batches,
    and others.
    """

    def __init__(self, model: PretrainedModel, inference: InferenceConfig = DEFAULT) -> None:
        """Prepares a model for prediction: it is moved, put into evaluation mode and cast."""
        self.device = best_device() if inference.device is None else torch.device(inference.device)
        self.model: PretrainedModel = model.to(self.device).eval()
        self.at_once = inference.at_once
        self.batch_tokens = inference.batch_tokens or (CPU_TOKEN_BUDGET if self.device.type == "cpu" else TOKEN_BUDGET)
        self.choice: PrecisionChoice | None = None
        if inference.precision == "auto":
            self.choice = choose_precision(self.model, self.device)
        native: str = native_precision(self.device)
        if inference.engine in RUNTIMES and native not in RUNTIMES[inference.engine].precisions:
            native = "float32"
        self.precision = self.choice.precision if self.choice else inference.precision or native
        if self.choice is None:
            apply_precision(self.model, self.precision, self.device)
        self.kind = self.long_kind = "torch"
        self.shares_cores = True
        if inference.engine != "torch":
            self._compile(inference.engine)

    def _compile(self, kind: EngineKind) -> None:
        if self.device.type != "cpu":
            if kind != "auto":
                raise ConfigError(f"engine {kind} is for the CPU, not for {self.device.type}; leave it out")
            return
        # 图是按 float32 核对的：做图时先换回来；量快慢则用实际的精度，短请求因此只会更准，不会更糙
        apply_precision(self.model, "float32", self.device)
        at_once = worker_count(torch.get_num_threads(), self.at_once)
        try:
            graphs, verdict = graphs_of(self.model.backbone, kind, self.precision, at_once)
        except RunFolderError as error:
            # 缓存没有 --out：写不了的原因照旧，出路换成环境变量
            told = f"{str(error).partition(';')[0]}; set BERTSMITH_CACHE to another folder"
            if kind != "auto":
                raise RunFolderError(told) from None
            warnings.warn(f"{told}; torch computes", stacklevel=2)
            return
        finally:
            apply_precision(self.model, self.precision, self.device)
        choice = use_graphs(self.model.backbone, graphs, kind, verdict, at_once)
        self.kind, self.long_kind = choice.short, choice.long
        self.shares_cores = choice.long == "torch" or at_once > 1

    @torch.inference_mode()
    def run(self, sequences: Ids, token_type_ids: Ids | None, read: Read) -> Tensor:
        """Maps every sequence to one row, see `SequenceRunner`."""
        rows: Tensor | None = None
        for pack, _, found in self.passes(sequences, token_type_ids, lambda _, batch: read(self.model, batch)):
            # 结果只分配一次，逐批写到调用者的次序上：不留下成千上万个小张量
            rows = found.new_empty(len(sequences), *found.shape[1:]) if rows is None else rows
            rows[torch.tensor(pack)] = found
        if rows is None:
            raise InputError("nothing to run: give at least one sequence")
        return rows

    @torch.inference_mode()
    def run_tokens(self, sequences: Ids, token_type_ids: Ids | None, read: Read) -> list[Tensor]:
        """Maps every token to one row, see `SequenceRunner`."""
        rows: list[Tensor] = [torch.empty(0)] * len(sequences)
        for pack, batch, found in self.passes(sequences, token_type_ids, lambda _, batch: read(self.model, batch)):
            for index, part in zip(pack, found.split(batch.lengths), strict=True):
                rows[index] = part
        return rows

    @torch.inference_mode()
    def run_positions(self, sequences: Ids, token_type_ids: Ids | None, positions: Ids, read: ReadAt) -> list[Tensor]:
        """Maps chosen tokens to one row each, see `SequenceRunner`."""
        _check_positions(sequences, positions)

        def read_places(pack: list[int], batch: RaggedBatch) -> Tensor:
            starts = batch.first_token_positions.tolist()
            places = [start + place for index, start in zip(pack, starts, strict=True) for place in positions[index]]
            return read(self.model, batch, torch.tensor(places, dtype=torch.long, device=self.device))

        rows: list[Tensor] = [torch.empty(0)] * len(sequences)
        for pack, _, found in self.passes(sequences, token_type_ids, read_places):
            counts = [len(positions[index]) for index in pack]
            for index, part in zip(pack, found.split(counts), strict=True):
                rows[index] = part
        return rows

    def passes(
        self, sequences: Ids, token_type_ids: Ids | None, read: Callable[[list[int], RaggedBatch], Tensor]
    ) -> Iterator[Pass]:
        """Computes the sequences pack by pack, as they come; on a CPU several packs at once.

        `read` is told which sequences a batch is of, in its order; it may be called from several threads.
        """

        @torch.inference_mode()
        def compute(pack: list[int]) -> Pass:
            types = None if token_type_ids is None else [token_type_ids[index] for index in pack]
            batch = RaggedBatch.from_sequences([sequences[index] for index in pack], types).to(self.device)
            return pack, batch, read(pack, batch).float().cpu()

        packs = list(packs_by_length([len(sequence) for sequence in sequences], self.batch_tokens))
        pool = _sharing_pool(min(len(packs), self.at_once)) if self.device.type == "cpu" else None
        if pool is None:
            yield from map(compute, packs)
            return
        try:
            yield from pool.map(compute, packs)
        finally:
            pool.shutdown(cancel_futures=True)


def sequence_means(states: Tensor, batch: RaggedBatch) -> Tensor:
    """Returns [N, H], the mean over each sequence of states [T, H]."""
    # 参差批次上的分段求和：每条序列只对自己的真实词元取平均
    lengths = batch.cu_seqlens.diff().long()
    sequence = torch.repeat_interleave(lengths, output_size=batch.num_tokens)
    sums = states.new_zeros(batch.num_sequences, states.shape[1]).index_add_(0, sequence, states)
    return sums / lengths[:, None]


def packs_by_length(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Groups sequences of similar length; yields lists of their numbers, together every number once.

    A group has at most `budget` tokens; a longer single sequence makes a group of its own.
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
    """Returns how many workers, `most` at most, are to share cores, each with the same number of whole cores.

    It is the number that leaves the fewest cores idle, of several the largest; 1 only where two are not possible.
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


def _check_positions(sequences: Ids, positions: Ids) -> None:
    if len(positions) != len(sequences):
        raise InputError(f"{len(sequences)} sequences and {len(positions)} lists of positions; give one for each")
    for number, (sequence, places) in enumerate(zip(sequences, positions, strict=True)):
        wrong = next((place for place in places if not 0 <= place < len(sequence)), None)
        if wrong is not None:
            raise InputError(f"sequence {number}: position {wrong} is outside 0 to {len(sequence) - 1}")


FAITHFUL = 0.995
"""The least cosine similarity with the vectors of float32 at which `auto` takes another precision."""

_PROBE_LENGTHS = (12, 20, 28, 36)
_TIMED_SEQUENCES, _TIMED_LENGTH = 8, 32


@dataclass(frozen=True)
class PrecisionTrial:
    """What `auto` found of one precision.

    Attributes:
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

    `trials` begin with float32; for `not_tried` this processor has no instructions.
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


def apply_precision(model: PretrainedModel, precision: str, device: torch.device) -> None:
    """Makes a model on `device` compute in float32, bf16 or int8 from now on; its parameters stay float32."""
    if precision == "int8":
        if device.type != "cpu":
            raise ConfigError(f"precision int8 is for the CPU; on {device.type} use bf16")
        if not has_int8_kernels():
            raise ConfigError("precision int8 needs an x86 processor and a torch with oneDNN; use float32 or bf16")
    model.set_compute_dtype(torch.bfloat16 if precision == "bf16" else torch.float32)
    model.set_int8(precision == "int8")


@torch.inference_mode()
def choose_precision(model: PretrainedModel, device: torch.device) -> PrecisionChoice:
    """Measures the precisions this processor has, and leaves the model in the best; `CheckpointError` for NaN."""
    # 没有相应指令的 bf16 由软件模拟，慢上百倍：试一次就要等几秒，不必试
    # float32 排在最前：其余的精度都和它的向量比
    there = {"float32": True, "bf16": native_precision(device) == "bf16"}
    there["int8"] = device.type == "cpu" and has_int8_kernels()
    encoder = next(module for module in model.modules() if isinstance(module, Backbone))
    probe = random_batch(encoder, _PROBE_LENGTHS, device)
    timed = random_batch(encoder, [_TIMED_LENGTH] * _TIMED_SEQUENCES, device)
    trials: list[PrecisionTrial] = []
    exact = torch.empty(0)
    for name in (name for name, found in there.items() if found):
        apply_precision(model, name, device)
        vectors = sequence_means(encoder(probe).hidden_states.float(), probe)
        exact = vectors if name == "float32" else exact
        cosine = float(torch.cosine_similarity(vectors, exact, dim=-1).min())
        # 各块都一样：一块的时间就说明整个模型
        block = partial(encoder.encoder.blocks[0], encoder.embedding(timed), timed)
        trials.append(PrecisionTrial(name, seconds_of(block, device), cosine))
    best = min((trial for trial in trials if trial.is_faithful), key=lambda trial: trial.seconds, default=None)
    # 权重里有 NaN：连 float32 与自己比也不算忠实
    if best is None:
        raise CheckpointError("the model's states are not finite numbers; copy the folder again, or train again")
    apply_precision(model, best.precision, device)
    return PrecisionChoice(best.precision, tuple(trials), tuple(name for name, found in there.items() if not found))
