"""Drawing batches ahead of the step that eats them, in a process of its own.

The worker is forked: it shares the mapped corpus with its parent and copies nothing. It draws batches as plain NumPy
arrays, runs no torch operation, and sends each with the position after it. So what counts as the stream's position is
that of the last batch that was taken, however many wait: a run saved and restored goes on exactly there.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import threading
import warnings
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NamedTuple, NoReturn

from bertsmith.data.stream.batches import DrawnBatch, PreTrainingBatch
from bertsmith.data.stream.stream import PreTrainingStream, StreamPosition
from bertsmith.errors import BertsmithError, ConfigError

BATCHES_AHEAD = 16
"""Most batches that wait: more than are eaten while the next block is made."""

_SECONDS_BETWEEN_LOOKS = 2.0
"""How often a worker that waits looks whether its parent is still there."""


class _Message(NamedTuple):
    """What the worker sends: a batch and the position after it, or what went wrong."""

    batch: DrawnBatch | None
    position: StreamPosition
    failure: BertsmithError | None = None


def prefetched(stream: PreTrainingStream, workers: int) -> PreTrainingStream | PrefetchedStream:
    """Returns a stream of the same batches, drawn by as many background processes.

    Args:
        stream: not to be used on its own afterwards.
        workers: 0 draws in this process, between the steps; 1 draws ahead. More would not help: one draws several
            times as fast as any step eats.

    Raises:
        ConfigError: another number, or 1 where processes cannot be forked.
    """
    if workers == 0:
        return stream
    if workers != 1:
        raise ConfigError(f"{workers} workers: a stream has 0 or 1")
    return PrefetchedStream(stream)


class PrefetchedStream(Iterator[PreTrainingBatch]):
    """The batches of a stream, drawn ahead by one background process.

    The process starts with the first batch asked for, and ends with `close`, with a `with` block, or with its parent.

    Attributes:
        settings: those of the stream.
    """

    def __init__(self, stream: PreTrainingStream) -> None:
        self._worker: tuple[int, Connection] | None = None
        self._owner = os.getpid()
        if not hasattr(os, "fork"):
            raise ConfigError("this system cannot fork a worker for the stream; use 0 workers")
        self.settings = stream.settings
        self._stream = stream
        self._position = stream.position

    def __enter__(self) -> PrefetchedStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # 别的子进程也继承了这个对象：只有启动者才可以结束后台进程
        if self._worker is not None and self._owner == os.getpid():
            self.close()

    @property
    def position(self) -> StreamPosition:
        """Where the next batch starts; assign it to go on from there."""
        return self._position

    @position.setter
    def position(self, position: StreamPosition) -> None:
        # 已经备好的批次属于旧位置：连同后台进程一起丢掉，下次取批时从新位置重开
        self.close()
        self._position = position

    def __next__(self) -> PreTrainingBatch:
        """Returns the batch at `position` and moves on.

        Raises:
            BertsmithError: the worker met one, or died.
        """
        if self._worker is None:
            self._worker = self._start()
        try:
            message: _Message = self._worker[1].recv()
        except (EOFError, OSError):
            raise BertsmithError(
                f"the process that prepares batches died ({self.close()}), perhaps for lack of memory;"
                " run the same command again"
            ) from None
        if message.batch is None:
            self.close()
            raise message.failure or BertsmithError("the process that prepares batches sent nothing")
        self._position = message.position
        return message.batch.to_batch()

    def close(self) -> str:
        """Ends the worker; the stream can be used again, and starts another.

        Returns:
            How it ended.
        """
        if self._worker is None:
            return "not running"
        (pid, received), self._worker = self._worker, None
        received.close()
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except OSError:
            return "exit code unknown"
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _start(self) -> tuple[int, Connection]:
        self._owner = os.getpid()
        received, sent = Pipe(duplex=False)
        self._stream.position = self._position
        with warnings.catch_warnings():
            # 子进程只用 NumPy，不碰 torch 的线程池：多线程父进程里 fork 的警告在这里不适用
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                _draw_ahead(self._stream, sent)
            finally:
                os._exit(1)
        # 关掉自己手里的写端：子进程一死，读端立刻得到 EOF
        sent.close()
        return pid, received


def _draw_ahead(stream: PreTrainingStream, sent: Connection) -> NoReturn:
    """The worker: draws batches into a bounded queue, from which a thread sends them."""
    parent = os.getppid()
    # Ctrl-C 与 SIGTERM 由主进程处理（存盘再退）；后台进程只随主进程结束
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _let_go_of_files(sent.fileno())
    gc.freeze()
    waiting: queue.Queue[_Message] = queue.Queue(BATCHES_AHEAD)

    def send() -> None:
        with contextlib.suppress(OSError):
            message = waiting.get()
            while True:
                sent.send(message)
                if message.failure is not None:
                    break
                message = waiting.get()
        os._exit(0)

    threading.Thread(target=send, daemon=True).start()
    while True:
        try:
            message = _Message(stream.draw(), stream.position)
        except BertsmithError as error:
            message = _Message(None, stream.position, error)
        except Exception as error:
            failure = BertsmithError(f"the process that prepares batches failed: {error!r}")
            message = _Message(None, stream.position, failure)
        while True:
            # 主进程被 kill -9 时没有人通知我们：父进程号一变就退出
            if os.getppid() != parent:
                os._exit(0)
            with contextlib.suppress(queue.Full):
                waiting.put(message, timeout=_SECONDS_BETWEEN_LOOKS)
                break
        if message.failure is not None:
            threading.Event().wait()


def _let_go_of_files(kept: int) -> None:
    """Closes what was inherited: a lock or a pipe must not outlive the parent in its worker."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
