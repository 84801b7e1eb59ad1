"""One function over many items: by processes on this machine, or by Ray on a cluster; the results come in order.

- on Linux the workers are forks: they start at once and inherit the vocabulary and the warm cache instead of having
  them sent; they run nothing but this package's Python and numpy's element-wise functions, no thread pools
- those that compute with a model are new processes: a fork of a process that has used OpenMP's threads, or OpenVINO's,
  waits for ever for threads that it does not have
- only a few items are on their way at any time, so an endless stream of texts is no problem
- a worker ends with its parent, also when that is killed: otherwise it would wait for work for ever
- Ctrl-C, which the terminal sends to all, is the parent's to answer: it ends the workers, and they say nothing. It
  waits while the parent is inside the pool, where it could leave a lock held that the pool's thread then waits for
"""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext, SpawnContext, SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, Literal, TypeVar

from bertsmith.errors import BertsmithError, ConfigError, InputError, show_warning

Engine = Literal["local", "ray"]
Item = TypeVar("Item")
Result = TypeVar("Result")

_work: Callable[[Any], Any]


def parallel_map(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int | None = None,
    engine: Engine = "local",
    computes: bool = False,
) -> Iterator[Result]:
    """Applies a function to every item; the results come in the order of the items.

    Args:
        work: the function; where processes are not forked, and for Ray, it must be picklable.
        items: what to work on. Processes read it only a little ahead of the results, Ray reads all of it at once.
        workers: processes, 1 works right here; None for all cores of the machine or cluster.
        engine: `local` for processes on this machine; `ray` for the cluster at `RAY_ADDRESS`, or a new local one. With
            Ray, all machines must see input and output under the same names.
        computes: whether the function computes with threads, such as those of torch; processes are not forked then.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} is too small; give at least 1")
    if engine == "ray":
        return _map_ray(work, list(items), workers)
    if engine != "local":
        raise ConfigError(f"--engine {engine!r} is unknown; use local or ray")
    workers = workers or available_cores()
    return map(work, items) if workers == 1 else _map_processes(work, items, workers, computes)


class _NewProcess(SpawnProcess):
    """A process that begins anew, without the caller's script."""

    def start(self) -> None:
        main = sys.modules["__main__"]
        # 它启动时会放开下面挡住的信号：让它先启动
        resource_tracker.ensure_running()
        # 挡住的信号随进程继承：还在导入时就按下的 Ctrl-C，不会让它打印一份回溯
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        # 子进程找不到调用者的脚本，就不会重跑它：脚本不必加 __main__ 守卫
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _NewProcesses(SpawnContext):
    Process = _NewProcess


def _map_processes(
    work: Callable[[Item], Result], items: Iterable[Item], workers: int, computes: bool
) -> Iterator[Result]:
    forks = sys.platform == "linux" and not computes
    context: BaseContext = multiprocessing.get_context("fork") if forks else _NewProcesses()
    waiting: deque[Future[Result]] = deque()
    stop_read, stop_write = context.Pipe(duplex=False)
    told = (work, stop_read, warnings.showwarning is show_warning)
    pool = ProcessPoolExecutor(workers, context, initializer=_remember, initargs=told)
    try:
        for item in items:
            with _HeldInterrupt():
                waiting.append(pool.submit(_run, item))
            # 在途的任务有上限：结果按次序取出，内存不随语料增长
            if len(waiting) > 2 * workers:
                yield _result_of(waiting.popleft())
        while waiting:
            yield _result_of(waiting.popleft())
    except BrokenProcessPool as error:
        raise BertsmithError(
            "a worker process was killed, probably for lack of memory; run again with fewer workers"
        ) from error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # 没有人再要结果：不等手头的任务做完（语料的一块要几十秒），立刻叫停
        stop_write.send(None)
        raise
    finally:
        with _HeldInterrupt():
            pool.shutdown(cancel_futures=True)
        stop_read.close()
        stop_write.close()


class _HeldInterrupt:
    """Keeps Ctrl-C for the end of the block, where no lock of a pool is held."""

    def __init__(self) -> None:
        self._woken: SimpleQueue[bool] = SimpleQueue()
        self._came = False
        self._holds = False
        self._before: Any = None

    def __enter__(self) -> SimpleQueue[bool]:
        # 处理函数只在主线程里运行，也只有主线程可以更换；不是 Python 装的（None）就换不回去，不动它
        self._before = signal.getsignal(signal.SIGINT)
        self._holds = threading.current_thread() is threading.main_thread() and self._before is not None
        if self._holds:
            signal.signal(signal.SIGINT, self._note)
        return self._woken

    def __exit__(self, *_: object) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, self._before)
        if self._came:
            signal.raise_signal(signal.SIGINT)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True
        # SimpleQueue 的 put 可重入：信号正好打断它自己时也安全
        self._woken.put(True)


def _result_of(future: Future[Result]) -> Result:
    """Waits for a result; Ctrl-C ends the waiting, if what answers it raises."""
    while True:
        with _HeldInterrupt() as woken:
            future.add_done_callback(lambda _, woken=woken: woken.put(True))  # type: ignore[misc]
            woken.get()
            if future.done():
                return future.result()


def _remember(work: Callable[[Any], Any], stop: Connection, is_command: bool) -> None:
    global _work
    _work = work
    if is_command:
        warnings.showwarning = show_warning
    # 终端把 Ctrl-C 发给整个进程组：不忽略的话，每个空闲的工作进程都会打印一份回溯
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel, stop), daemon=True).start()


def _end_with(sentinel: int, stop: Connection) -> None:
    # 父进程被 SIGKILL 时来不及通知任何人；管道另一端关闭就是它的死讯
    multiprocessing.connection.wait([sentinel, stop])
    os._exit(1)


def _run(item: Any) -> Any:
    return _work(item)


def _map_ray(work: Callable[[Any], Any], items: list[Any], workers: int | None) -> Iterator[Any]:
    try:
        import ray
        from ray.util import ActorPool
    except ImportError:
        raise ConfigError("--engine ray needs ray; install it with: pip install 'bertsmith[cluster]'") from None
    if not ray.is_initialized():
        # 不写明地址时 ray 会连上本机任何一个正开着的集群，它随时会被别人关掉：没有指定就用自己的
        address = os.environ.get("RAY_ADDRESS") or "local"
        ray.init(address, log_to_driver=False, include_dashboard=False)
    cpus = int(ray.cluster_resources().get("CPU", 1))
    count = max(1, min(workers or cpus, cpus, len(items)))
    if workers and count < min(workers, len(items)):
        # 多出来的 actor 永远等不到核，整件事就跟着等
        warnings.warn(f"workers={workers}: the cluster has {cpus} CPUs, so {count} work", stacklevel=2)
    # 每个 actor 只收一次函数（连同词表），缓存在它的一生里越用越热
    actor = ray.remote(num_cpus=1)(_Worker)
    actors = [actor.remote(work) for _ in range(count)]
    try:
        yield from ActorPool(actors).map(lambda worker, item: worker.run.remote(item), items)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BertsmithError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise BertsmithError(f"a Ray worker was lost ({type(error).__name__}); run the same command again") from None
    finally:
        for worker in actors:
            ray.kill(worker)


class _Worker:
    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def run(self, item: Any) -> Any:
        return self._work(item)


_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of all cores together in each period, and the period; `max` is no limit."""


def available_cores() -> int:
    """Returns how many cores this process may use, at least 1."""
    # 容器里常只分到几个核：以调度器允许的和配额为准，不看整机的核数
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):
        # 没有这个文件，或者写着 max：没有配额
        return allowed
