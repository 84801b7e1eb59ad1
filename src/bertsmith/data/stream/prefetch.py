"""Drawing batches ahead of the step that reads them, in a process of its own.

The worker is forked: it shares the mapped corpus with its parent and copies nothing. It sends each batch with the
position after it, so the stream's position is that of the last batch that was taken, however many wait: a run saved
and restored resumes exactly there.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeAlias

from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.stream import PreTrainingStream, StreamPosition
from bertsmith.errors import BertsmithError

BATCHES_AHEAD = 16
"""Most batches that wait: more than are read while the next block is made."""

Message: TypeAlias = "tuple[PreTrainingBatch, StreamPosition] | BertsmithError"
"""What the worker sends: a batch and the position after it, or what went wrong."""


def prefetched(stream: PreTrainingStream, workers: int) -> PreTrainingStream | PrefetchedStream:
    """Returns a stream of the same batches, drawn between the steps (0 workers) or ahead of them (1).

    More would not help: one draws several times as fast as any step reads.
    """
    return PrefetchedStream(stream) if workers else stream


class PrefetchedStream(Iterator[PreTrainingBatch]):
    """The batches of a stream, drawn ahead by one background process, `worker`.

    It starts with the first batch asked for, and ends with `close` or with its parent.
    """

    def __init__(self, stream: PreTrainingStream) -> None:
        self.settings = stream.settings
        self.worker: BaseProcess | None = None
        self._stream = stream
        self._position = stream.position
        self._received: Connection | None = None

    @property
    def position(self) -> StreamPosition:
        """Where the next batch starts; assign it to resume from there."""
        return self._position

    @position.setter
    def position(self, position: StreamPosition) -> None:
        # 已经备好的批次属于旧位置：连同后台进程一起丢掉，下次取批时从新位置重开
        self.close()
        self._position = position

    def __next__(self) -> PreTrainingBatch:
        if self._received is None:
            self._start()
        assert self._received is not None
        try:
            message: Message = self._received.recv()
        except (EOFError, OSError):
            raise BertsmithError(
                f"the process that prepares batches died ({self.close()}), perhaps for lack of memory;"
                " run the same command again"
            ) from None
        if isinstance(message, BertsmithError):
            self.close()
            raise message
        batch, self._position = message
        return batch

    def close(self) -> str:
        """Ends the worker and says how it ended; the stream can be used again, and starts another."""
        if self.worker is None or self._received is None:
            return "not running"
        atexit.unregister(self.close)
        self._received.close()
        self.worker.kill()
        self.worker.join()
        code, self.worker, self._received = self.worker.exitcode or 0, None, None
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._stream.position = self._position
        self._received, sent = context.Pipe(duplex=False)
        self.worker = context.Process(target=_draw_ahead, args=(self._stream, sent), daemon=True)
        self.worker.start()
        # 后台进程不理会 SIGTERM，multiprocessing 在退出时会等它：赶在那之前结束它
        atexit.register(self.close)
        # 关掉自己手里的写端：子进程一死，读端立刻得到 EOF
        sent.close()


def _draw_ahead(stream: PreTrainingStream, sent: Connection) -> None:
    """The worker: a thread draws batches into a bounded queue, from which they are sent until nobody reads them."""
    # Ctrl-C 与 SIGTERM 由主进程处理（存盘再退）；后台进程只随主进程结束
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # 继承来的文件全部关掉：主进程的锁和管道不能比它活得久；主进程一死，写端就报错
    os.closerange(0, sent.fileno())
    os.closerange(sent.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    waiting: queue.Queue[Message] = queue.Queue(BATCHES_AHEAD)
    threading.Thread(target=_draw_into, args=(stream, waiting), daemon=True).start()
    with contextlib.suppress(OSError):
        while True:
            sent.send(waiting.get())
    os._exit(0)


def _draw_into(stream: PreTrainingStream, waiting: queue.Queue[Message]) -> None:
    try:
        while True:
            waiting.put((stream.draw(), stream.position))
    except BertsmithError as error:
        waiting.put(error)
    except Exception as error:
        waiting.put(BertsmithError(f"the process that prepares batches failed: {error!r}"))
