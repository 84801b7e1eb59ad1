"""Free memory goes back to the system: often in a server, and in a training when the process has grown."""

import sys

import numpy as np
import pytest

from bertsmith import memory


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets, and a count of the releases."""

    class Clock:
        now, size, released = 100.0, 1000, 0

    def release():
        Clock.released += 1

    monkeypatch.setattr(memory.time, "monotonic", lambda: Clock.now)
    monkeypatch.setattr(memory, "resident_bytes", lambda: Clock.size)
    monkeypatch.setattr(memory, "release_memory", release)
    return Clock


def test_a_process_that_grows_gives_back_what_it_does_not_use(clock):
    limit = memory.GrowthLimit()
    released = []
    for second, size in ((5, 1000), (10, 1000), (20, 1190), (25, 1300), (30, 1300), (40, 1200), (50, 1400), (60, 1500)):
        clock.now, clock.size = 100.0 + second, size
        limit.check()
        released.append(clock.released)
    # it settles at 1000, is too large at 30 (25 is too soon to look), settles anew at 1200, and is too large at 60
    assert released == [0, 0, 0, 0, 1, 1, 1, 2]


def test_a_server_gives_back_at_most_every_few_seconds(clock):
    free = memory.FreeMemory()
    for second in (1, 6, 7, 10, 12):
        clock.now = 100.0 + second
        free.release()
    assert clock.released == 2


def test_where_the_system_does_not_say_nothing_is_released(clock, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(memory, "_STATM", tmp_path / "none")
    assert memory.resident_bytes() == 0
    # may be called on any system
    memory.release_memory()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_what_is_freed_in_pieces_goes_back():
    before = memory.resident_bytes()
    pieces = [np.ones(2500, dtype=np.float64) for _ in range(10_000)]
    held = memory.resident_bytes()
    assert held - before > 150e6
    # the last piece holds the heap's end in place, so that the allocator cannot shrink it by itself
    del pieces[:-1]
    memory.release_memory()
    assert memory.resident_bytes() < held - 100e6
