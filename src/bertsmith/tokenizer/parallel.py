"""The same work on many batches, spread over processes: in order, in bounded memory, and loud when a worker dies.

Notable:
- on Linux the workers are forks: they start at once and inherit the vocabulary and the warm cache instead of having
  them sent; they run nothing but this package's Python and numpy's element-wise functions, no thread pools
- only a few batches are on their way at any time, so an endless stream of texts is no problem
- a worker ends with its parent, also when that is killed: otherwise it would wait for work for ever
- Ctrl-C, which the terminal sends to all of them, is the parent's to answer: it ends the workers, and they say nothing
- it never comes while the parent is inside the pool: raised on the way into one of its locks, it would leave that lock
  held, and the pool's thread, which then waits for it, could not be ended
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar

from bertsmith.errors import BertsmithError, InputError

Batch = TypeVar("Batch")
Result = TypeVar("Result")

_work: Callable[[Any], Any]


def map_batches(work: Callable[[Batch], Result], batches: Iterable[Batch], workers: int) -> Iterator[Result]:
    """Applies a function to every batch.

    Args:
        work: the function; where processes cannot be forked it must be picklable.
        batches: what to work on; read only a little ahead of the results.
        workers: processes; 1 works right here.

    Returns:
        An iterator over the results in the order of the batches.

    Raises:
        InputError: `workers` is below 1.
        BertsmithError: a worker process was killed (while iterating).
    """
    if workers < 1:
        raise InputError(f"workers={workers} is too small; give at least 1")
    return map(work, batches) if workers == 1 else _map_processes(work, batches, workers)


def split_batches(texts: Iterable[str], chars: int) -> Iterator[list[str]]:
    """Groups texts until a batch holds about `chars` characters.

    Args:
        texts: any texts.
        chars: a batch ends with the text that reaches this.

    Yields:
        Lists of texts, none empty.

    Raises:
        InputError: `texts` is one string, or holds something that is not a string.
    """
    if isinstance(texts, str):
        raise InputError("texts is a single string; pass a list or another iterable of strings")
    batch: list[str] = []
    room = chars
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"text {number} is {type(text).__name__}, not str; decode it first")
        batch.append(text)
        room -= len(text) + 1
        if room <= 0:
            yield batch
            batch, room = [], chars
    if batch:
        yield batch


def _map_processes(work: Callable[[Batch], Result], batches: Iterable[Batch], workers: int) -> Iterator[Result]:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting: deque[Future[Result]] = deque()
    stop_read, stop_write = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_remember, initargs=(work, stop_read))
    try:
        for batch in batches:
            with _HeldInterrupt():
                waiting.append(pool.submit(_run, batch))
            # 在途的批次有上限：结果按次序取出，内存不随语料增长
            if len(waiting) > 2 * workers:
                yield _result_of(waiting.popleft())
        while waiting:
            yield _result_of(waiting.popleft())
    except BrokenProcessPool as error:
        raise BertsmithError(
            "a worker process was killed, probably for lack of memory; run again with fewer workers"
        ) from error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        # 没有人再要结果：不等手头的批次做完（一个语料单元要几十秒），立刻叫停
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


def _remember(work: Callable[[Any], Any], stop: Connection) -> None:
    global _work
    _work = work
    # 终端把 Ctrl-C 发给整个进程组：不忽略的话，每个空闲的工作进程都会打印一份回溯
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel, stop), daemon=True).start()


def _end_with(sentinel: int, stop: Connection) -> None:
    # 父进程被 SIGKILL 时来不及通知任何人；管道另一端关闭就是它的死讯
    multiprocessing.connection.wait([sentinel, stop])
    os._exit(1)


def _run(batch: Any) -> Any:
    return _work(batch)
