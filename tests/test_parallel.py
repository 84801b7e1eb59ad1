"""One function over many items: in order, lazily, and loud when a worker dies."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertsmith.errors import BertsmithError, ConfigError, InputError
from bertsmith.parallel import parallel_map


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    assert list(parallel_map(abs, range(-20, 0), workers=workers)) == list(range(20, 0, -1))


@pytest.mark.parametrize("workers", [1, 2])
def test_endless_items_are_read_only_a_little_ahead(workers: int) -> None:
    read: list[int] = []
    items = (read.append(number) or number for number in itertools.count())  # type: ignore[func-returns-value]
    results = parallel_map(abs, items, workers=workers)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(read) < 20


def test_no_workers_and_an_unknown_engine_are_refused() -> None:
    with pytest.raises(InputError, match="workers=0 is too small"):
        parallel_map(abs, [1], workers=0)
    with pytest.raises(ConfigError, match="use local or ray"):
        parallel_map(abs, [1], engine="slurm")  # type: ignore[arg-type]


def die(item: int) -> int:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_killed_worker_is_reported() -> None:
    with pytest.raises(BertsmithError, match="fewer workers"):
        list(parallel_map(die, range(6), workers=2))


INTERRUPTED = """
import signal, time
from bertsmith.parallel import parallel_map

def work(seconds):
    time.sleep(seconds)
    return seconds

# a shell without job control starts what runs in the background with SIGINT ignored, and children inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    for done in parallel_map(work, [0, 60], workers=3):
        print("working", flush=True)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_control_c_ends_the_workers_at_once_and_without_a_word() -> None:
    """One worker is busy for a minute and two are idle when the terminal sends SIGINT to all of them."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    said, complaints = process.communicate(timeout=30)
    assert (said, complaints, process.returncode) == ("interrupted\n", "", 0)


SLOW_IMPORT = """
import multiprocessing, os, time

if multiprocessing.current_process().name != "MainProcess":
    os.write(1, b"importing\\n")  # in one piece, whoever writes beside it
    time.sleep(1)

def work(seconds):
    time.sleep(seconds)
"""
INTERRUPTED_IMPORT = """
import signal
from bertsmith.parallel import parallel_map
from slow_import import work

print("once", flush=True)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    for done in parallel_map(work, [60, 60], workers=2, computes=True):
        pass
except KeyboardInterrupt:
    print("interrupted")
"""


def test_control_c_while_new_processes_import_is_without_a_word(tmp_path: Path) -> None:
    """They do not run the script that begins them, and are still importing when the terminal sends SIGINT to all."""
    (tmp_path / "slow_import.py").write_text(SLOW_IMPORT)
    (tmp_path / "script.py").write_text(INTERRUPTED_IMPORT)
    command = [sys.executable, tmp_path / "script.py"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(3)] == ["once\n", "importing\n", "importing\n"]
    os.killpg(process.pid, signal.SIGINT)
    said, complaints = process.communicate(timeout=60)
    assert (said, complaints, process.returncode) == ("interrupted\n", "", 0)


WARNS = """
import warnings
from bertsmith.errors import show_warning
from bertsmith.parallel import parallel_map

warnings.showwarning = show_warning
list(parallel_map(warnings.warn, ["too late"], workers=2, computes=True))
"""


def test_a_warning_of_a_new_process_is_a_line_of_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", WARNS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("", "bertsmith: warning: too late\n", 0)


INTERRUPTED_INSIDE = """
import signal, threading, time
from bertsmith.parallel import parallel_map

enter, armed = threading.Condition.__enter__, []

def interrupted_enter(self):
    entered = enter(self)
    if armed and threading.current_thread() is threading.main_thread():
        armed.clear()
        signal.raise_signal(signal.SIGINT)
    return entered

threading.Condition.__enter__ = interrupted_enter
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    for done in parallel_map(time.sleep, [0, 60], workers=2):
        armed.append(True)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_control_c_inside_the_pool_leaves_no_lock_behind() -> None:
    """The signal comes at the worst moment: a lock of the pool is taken, and its block not yet entered."""
    command = [sys.executable, "-c", INTERRUPTED_INSIDE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


def is_gone(pid: int) -> bool:
    """Whether a process has ended (or waits to be collected by whoever adopted it)."""
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_workers_end_with_their_killed_parent() -> None:
    code = (
        "import os, time\nfrom bertsmith.parallel import parallel_map\n"
        "for number in parallel_map(lambda _: os.getpid(), iter(range(10**9)), workers=2):\n"
        "    print(number, flush=True); time.sleep(0.01)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    workers = {int(process.stdout.readline()) for _ in range(40)}
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while not all(map(is_gone, workers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert all(map(is_gone, workers))
