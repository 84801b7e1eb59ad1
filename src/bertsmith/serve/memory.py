"""Keeping a long-running server from looking ever larger.

Every batch has other sizes, and each thread its own arena of glibc's allocator: what is freed stays with the process in
pieces that seldom fit the next batch. Given back now and then, memory stays at what is in use.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import time
from collections.abc import Callable

_EVERY_SECONDS = 5.0


class FreeMemory:
    """Returns free memory to the system, at most every few seconds; may be called by several threads."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._lock = threading.Lock()

    def release(self) -> None:
        """Returns it, if that was not done a moment ago."""
        with self._lock:
            if time.monotonic() - self._last < _EVERY_SECONDS:
                return
            self._last = time.monotonic()
        _malloc_trim()(0)


@functools.cache
def _malloc_trim() -> Callable[[int], object]:
    """Returns glibc's function of that name; elsewhere one that does nothing, for other allocators do it themselves."""
    if not sys.platform.startswith("linux"):
        return lambda _: None
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
