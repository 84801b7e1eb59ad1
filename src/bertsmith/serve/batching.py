"""Dynamic batching: the sequences of many requests in one forward pass.

- a `BatchingEngine` stands where a pipeline's engine stood; the pipeline calls it in the request's own thread, and
  waits, so that every pipeline is batched across requests without knowing of it
- a few threads run the models, each a pass at a time on its share of the cores, or on all cores where it is alone; the
  passes of a compiled graph, which spreads over all cores, come one after another
- a pass takes what waits, up to a budget of tokens, so batches grow with the load by themselves; it pauses only, and
  briefly, for requests that are already being read
- no request takes more than a quarter of the budget while others wait, so a sentence never waits for a book
- a pass that fails is run again request by request: a poisoned one fails alone; work nobody waits for is dropped
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from bertsmith.inference.engine import Read, ReadAt, SequenceRunner, worker_count
from bertsmith.serve.request import CURRENT, HttpError, RequestContext, has_share

Sequences = Sequence[Sequence[int]]

_SHARE = 4
"""A request gets at most a quarter of a batch that others want as well."""

DELAY = 0.003
"""Seconds that work waits at most for requests that are still being read, though a thread is free."""

_TRIM_SECONDS = 5.0
"""How often free memory is given back to the system, at most."""


class BatchKey(NamedTuple):
    """What jobs must have in common to be computed together."""

    engine: SequenceRunner
    method: Literal["run", "run_tokens", "run_positions"]
    read: Any
    typed: bool


class Job:
    """Sequences that a request waits for.

    `taken` counts those that were handed to the computing threads; `parts` are the rows that came back, by the place of
    their first sequence. `done` is set when all are there, or one has failed with `error`.
    """

    def __init__(
        self,
        context: RequestContext,
        sequences: Sequences,
        token_type_ids: Sequences | None,
        positions: Sequences | None,
    ) -> None:
        self.context = context
        self.sequences, self.token_type_ids, self.positions = sequences, token_type_ids, positions
        self.tokens = sum(map(len, sequences))
        self.arrived = time.monotonic()
        self.taken = self.received = 0
        self.parts: dict[int, Any] = {}
        self.done = threading.Event()
        self.error: Exception | None = None
        self._lock = threading.Lock()

    def receive(self, start: int, rows: Any, count: int) -> None:
        """Takes the rows of `count` sequences from place `start`; may be called by several threads."""
        with self._lock:
            self.parts[start] = rows
            self.received += count
            if self.received == len(self.sequences):
                self.done.set()

    def fail(self, error: Exception) -> None:
        """Ends the job without a result."""
        self.error = error
        self.done.set()


class Chunk(NamedTuple):
    """Sequences `start` to `stop` of a job, which are computed in one pass."""

    job: Job
    start: int
    stop: int


class BatchingEngine:
    """Stands in for an engine: what it is asked to run joins the queue of a `Batcher`."""

    def __init__(self, batcher: Batcher, engine: SequenceRunner) -> None:
        self.batcher, self.engine, self.shares_cores = batcher, engine, engine.shares_cores

    def run(self, sequences: Sequences, token_type_ids: Sequences | None, read: Read) -> Tensor:
        """Maps every sequence to one row, see `SequenceRunner`."""
        if not sequences:
            return self.engine.run(sequences, token_type_ids, read)
        parts = self._perform("run", sequences, token_type_ids, None, read)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def run_tokens(self, sequences: Sequences, token_type_ids: Sequences | None, read: Read) -> list[Tensor]:
        """Maps every token to one row, see `SequenceRunner`."""
        return list(chain.from_iterable(self._perform("run_tokens", sequences, token_type_ids, None, read)))

    def run_positions(
        self, sequences: Sequences, token_type_ids: Sequences | None, positions: Sequences, read: ReadAt
    ) -> list[Tensor]:
        """Maps chosen tokens to one row each, see `SequenceRunner`."""
        return list(chain.from_iterable(self._perform("run_positions", sequences, token_type_ids, positions, read)))

    def _perform(
        self,
        method: Literal["run", "run_tokens", "run_positions"],
        sequences: Sequences,
        token_type_ids: Sequences | None,
        positions: Sequences | None,
        read: Any,
    ) -> list[Any]:
        context = CURRENT.get()
        if context is None:
            raise RuntimeError("a served pipeline was called outside a request")
        if not sequences:
            return []
        job = Job(context, sequences, token_type_ids, positions)
        context.count(job.tokens)
        return self.batcher.perform(BatchKey(self.engine, method, read, token_type_ids is not None), job)


class Batcher:
    """The queue, and the threads that empty it.

    Args:
        budget: tokens of a pass; a longer single sequence makes a pass of its own.
        most_tokens: that may wait; a job beyond them, or beyond its client's share, is refused, unless it is alone.
        at_once: passes that share the `threads`, at most.
        observe: told the sequences, tokens and seconds of every pass, in the thread that computed it.
    """

    def __init__(
        self,
        *,
        budget: int,
        delay: float = DELAY,
        most_tokens: int,
        threads: int,
        at_once: int = 1,
        observe: Callable[[int, int, float], None] | None = None,
    ) -> None:
        self.budget = budget
        self.waiting_tokens = 0
        self.tokens_per_second = 0.0
        self._delay, self._most_tokens, self._threads, self._observe = delay, most_tokens, threads, observe
        self._waiting_of: Counter[str] = Counter()
        self._queues: OrderedDict[BatchKey, deque[Job]] = OrderedDict()
        self._on_their_way = 0
        self._computing = 0
        self._shares = True
        self._trimmed = time.monotonic()
        self._closed = False
        self._changed = threading.Condition()
        # 每批各用一份核心：不必每步都等最慢的核心，也不因别的线程占了一个核心而全体停下
        workers = worker_count(threads, at_once)
        self._share = threads // workers
        self._workers = [threading.Thread(target=self._compute, name="compute", daemon=True) for _ in range(workers)]
        for worker in self._workers:
            worker.start()

    def announce(self, context: RequestContext) -> None:
        """Says that a request has been accepted and may bring work soon."""
        with self._changed:
            context.on_its_way = True
            self._on_their_way += 1

    def arrive(self, context: RequestContext) -> None:
        """Says that a request is no longer on its way: its work is in the queue, or it ended without any."""
        with self._changed:
            if context.on_its_way:
                context.on_its_way = False
                self._on_their_way -= 1
                if not self._on_their_way:
                    self._changed.notify()

    def perform(self, key: BatchKey, job: Job) -> list[Any]:
        """Queues a job, and waits for what the engine gives for consecutive stretches of its sequences.

        Raises HttpError where the queue is full (429), the deadline passed (504), or the client hung up.
        """
        job.context.check()
        with self._changed:
            if self._closed:
                raise _closing()
            client, free = job.context.client, self._most_tokens - self.waiting_tokens - job.tokens
            held = self._waiting_of[client] + job.tokens
            # 队里没有人时，再大的活也收下：否则它永远排不上
            if self.waiting_tokens and (free < 0 or not has_share(client, held, free)):
                said = "more work waits than the server takes on"
                raise HttpError(429, "queue_full", said, retry_after=self.seconds_to_empty())
            self._queues.setdefault(key, deque()).append(job)
            self._count(job, job.tokens)
            self.arrive(job.context)
            self._changed.notify()
        try:
            job.context.wait(job.done)
        except HttpError:
            self._withdraw(key, job)
            raise
        if job.error is not None:
            raise job.error
        return [job.parts[start] for start in sorted(job.parts)]

    def seconds_to_empty(self) -> int:
        """Returns in how many seconds the queue is likely to be empty, 1 to 60."""
        if not self.tokens_per_second:
            return 1
        return max(1, min(60, round(self.waiting_tokens / self.tokens_per_second)))

    def close(self) -> None:
        """Ends the computing threads; jobs that still wait are refused."""
        with self._changed:
            self._closed = True
            for job in chain.from_iterable(self._queues.values()):
                job.fail(_closing())
            self._queues.clear()
            self._waiting_of.clear()
            self.waiting_tokens = 0
            self._changed.notify_all()
        for worker in self._workers:
            worker.join()

    def _count(self, job: Job, tokens: int) -> None:
        """Counts tokens that wait now, or, below 0, no longer do."""
        client = job.context.client
        self.waiting_tokens += tokens
        self._waiting_of[client] += tokens
        if not self._waiting_of[client]:
            del self._waiting_of[client]

    def _withdraw(self, key: BatchKey, job: Job) -> None:
        with self._changed:
            jobs = self._queues.get(key)
            if jobs is None or job not in jobs:
                return
            jobs.remove(job)
            self._count(job, -sum(map(len, job.sequences[job.taken :])))
            if not jobs:
                del self._queues[key]

    def _compute(self) -> None:
        while (batch := self._next_batch()) is not None:
            key, chunks, threads = batch
            # 线程数是每个线程各自的设置：请求线程都是单线程，只有计算线程用得上几个核心
            torch.set_num_threads(threads)
            begun = time.perf_counter()
            results = self._run(key, chunks)
            seconds = time.perf_counter() - begun
            tokens = sum(len(sequence) for job, start, stop in chunks for sequence in job.sequences[start:stop])
            with self._changed:
                rate = self._computing * tokens / max(seconds, 1e-6)
                self.tokens_per_second += (rate - self.tokens_per_second) * (0.1 if self.tokens_per_second else 1.0)
                self._computing -= 1
                # 先让下一批开始算，再交付这一批的结果
                self._changed.notify()
            for chunk, rows in results:
                if isinstance(rows, Exception):
                    self._withdraw(key, chunk.job)
                    chunk.job.fail(rows)
                else:
                    chunk.job.receive(chunk.start, rows, chunk.stop - chunk.start)
            if self._observe is not None:
                self._observe(sum(stop - start for _, start, stop in chunks), tokens, seconds)
            # 长时间空闲时不要拖住上一批的输入和结果
            del batch, chunks, results
            self._give_memory_back()

    def _give_memory_back(self) -> None:
        """Gives free memory back to the system now and then: what arenas of threads keep seldom fits the next batch."""
        with self._changed:
            if time.monotonic() - self._trimmed < _TRIM_SECONDS:
                return
            self._trimmed = time.monotonic()
        _malloc_trim()(0)

    def _next_batch(self) -> tuple[BatchKey, list[Chunk], int] | None:
        """Waits for work, and takes a batch of it, and the cores to use; None when the server closes."""
        with self._changed:
            while not self._closed:
                now, pause = time.monotonic(), None
                for key, jobs in self._queues.items():
                    # 图自己占满全部核心：等别的批算完再取，取到的也就更多；后面的道也不能越过它，否则它永远轮不到
                    if self._computing and not (self._shares and key.engine.shares_cores):
                        break
                    left = self._pause_before(jobs, now)
                    if left <= 0:
                        # 这条道用过之后排到最后：几个模型轮流，谁也不会饿着
                        self._queues.move_to_end(key)
                        chunks = self._take(key, jobs)
                        self._computing += 1
                        self._shares = key.engine.shares_cores
                        alone = self._computing == 1 and not self._queues
                        # 还有剩下的：叫醒下一个计算线程
                        if self._queues:
                            self._changed.notify()
                        return key, chunks, self._threads if alone or not self._shares else self._share
                    pause = left if pause is None else min(pause, left)
                self._changed.wait(pause)
        return None

    def _pause_before(self, jobs: deque[Job], now: float) -> float:
        """How many seconds to wait for more jobs before these are computed."""
        if not self._on_their_way or jobs[0].taken or sum(job.tokens for job in jobs) >= self.budget:
            return 0.0
        return min(job.arrived for job in jobs) + self._delay - now

    def _take(self, key: BatchKey, jobs: deque[Job]) -> list[Chunk]:
        """Takes sequences up to the budget, the jobs in turn."""
        chunks: list[Chunk] = []
        used = 0
        while jobs:
            job = jobs[0]
            room = self.budget - used
            share = min(room, self.budget // _SHARE) if len(jobs) > 1 else room
            start, stop = job.taken, job.taken + 1
            size = len(job.sequences[start])
            # 至少取一条：比份额长的序列也要轮得到；比整批预算还长的自己成一批
            if chunks and size > room:
                break
            while stop < len(job.sequences) and size + len(job.sequences[stop]) <= share:
                size += len(job.sequences[stop])
                stop += 1
            chunks.append(Chunk(job, start, stop))
            used += size
            self._count(job, -size)
            job.taken = stop
            jobs.popleft()
            if stop < len(job.sequences):
                jobs.append(job)
        if not jobs:
            del self._queues[key]
        return chunks

    def _run(self, key: BatchKey, chunks: list[Chunk]) -> list[tuple[Chunk, Any]]:
        """Returns the rows of each chunk, or why it failed."""
        try:
            rows = _forward(key, chunks)
        except Exception as error:
            if len(chunks) == 1:
                return [(chunks[0], error)]
            # 整批失败时逐个重算：只有真正有问题的那个请求失败，同批的其他请求不受牵连
            return [result for chunk in chunks for result in self._run(key, [chunk])]
        found, begin = [], 0
        for chunk in chunks:
            end = begin + chunk.stop - chunk.start
            found.append((chunk, rows[begin:end]))
            begin = end
        return found


def _forward(key: BatchKey, chunks: list[Chunk]) -> Any:
    """Runs the engine once over all sequences of a batch; returns a row for each."""
    sequences = [sequence for job, start, stop in chunks for sequence in job.sequences[start:stop]]
    types = [row for job, start, stop in chunks for row in (job.token_type_ids or ())[start:stop]]
    arguments: list[Any] = [sequences, types if key.typed else None]
    if key.method == "run_positions":
        arguments.append([row for job, start, stop in chunks for row in (job.positions or ())[start:stop]])
    return getattr(key.engine, key.method)(*arguments, key.read)


def _closing() -> HttpError:
    return HttpError(503, "closing", "the server is going away")


@functools.cache
def _malloc_trim() -> Callable[[int], object]:
    """Returns glibc's function of that name; elsewhere one that does nothing, for other allocators do it themselves."""
    if not sys.platform.startswith("linux"):
        return lambda _: None
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
