"""Keeping a long-running process from looking ever larger.

Every batch has other sizes, and each thread its own arena of glibc's allocator: what is freed stays with the process in
pieces that seldom fit the next batch. Given back now and then, memory stays at what is in use. That is not free: the
next batch gets its pages anew, which takes a good part of a second for each GiB.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_EVERY_SECONDS = 5.0
_SETTLING_SECONDS = 10.0
_GROWTH = 1.2
_STATM = Path("/proc/self/statm")


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
        release_memory()


class GrowthLimit:
    """Returns free memory to the system when the process has grown by a fifth: seldom, so that it costs about 1 %."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._settled = 0

    def check(self) -> None:
        """To be called often, between two batches; looks every ten seconds."""
        if time.monotonic() - self._looked < _SETTLING_SECONDS:
            return
        self._looked = time.monotonic()
        size = resident_bytes()
        if not self._settled:
            # 归还之后要等几批，常用的内存才重新到位：那时的大小才是以后比较的标准
            self._settled = size
        elif size > _GROWTH * self._settled:
            release_memory()
            self._settled = 0


def resident_bytes() -> int:
    """Returns how much memory the process holds; 0 where the system does not say."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def release_memory() -> None:
    """Returns to the system what the allocator holds and nothing uses."""
    _malloc_trim()(0)


@functools.cache
def _malloc_trim() -> Callable[[int], object]:
    """Returns glibc's function of that name; elsewhere one that does nothing, for other allocators do it themselves."""
    if not sys.platform.startswith("linux"):
        return lambda _: None
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
