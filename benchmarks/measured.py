"""What was measured, a JSON object a line in `results/NAME.jsonl`: benchmarks go on where they were stopped.

A line says what was asked (its name and settings), what came out (`rounds`: every contender's figure in every round),
and where it comes from: commit, versions, processor, load. A line answers for a request only where commit, versions and
processor are the same too, so that no figure is taken for one of other code. With changes that are not committed,
nothing is reused. A figure that is missing or impossible ends the script. With `--quick`, which writes to
`runs/bench-quick/`, that and whether the script runs is all that is looked at: its figures are no results.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
QUICK_RESULTS = HERE.parent / "runs" / "bench-quick"
PACKAGES = ("torch", "transformers", "tokenizers", "sentence-transformers", "onnxruntime", "openvino", "numpy")
FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}
"""`processor` counts the seconds of all threads of the process: who waits for a core is not slower. For one thread."""
NOT_TIMED = {"measured.py", "tables.py", "chinese.py", "real_data.py"}
"""Files here that may change without making a measurement old."""

QUALITIES = ("accuracy", "cosine", "found", "mrr", "of ten", "share")
"""Words in the names of figures that are 0 only where nothing worked, however little was learned."""

Row = dict[str, Any]


class Results:
    """The lines of one benchmark."""

    def __init__(
        self, name: str, *, threads: int, quick: bool = False, folder: Path | None = None, device: str = ""
    ) -> None:
        """Reads what was measured before.

        Args:
            name: of the benchmark, and of its file.
            threads: that the contenders compute with.
            quick: whether the figures are no results, and only checked for impossible ones.
            folder: of the file, instead of the usual one.
            device: the name of a GPU where one computes.
        """
        self.path = (folder or (QUICK_RESULTS if quick else RESULTS)) / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.key: Row = {
            "commit": commit(),
            "versions": versions(),
            "processor": processor(),
            "features": features(),
            "threads": threads,
            **({"device": device} if device else {}),
        }
        self.rows = read_rows(self.path)

    def get(self, what: Row, measure: Callable[[], Row]) -> Row:
        """Returns the line of a measurement, taking it where there is none of this code on this machine.

        Args:
            what: was asked: `name` and the settings.
            measure: returns what came out; see `side_by_side.rounds_of` for comparisons.
        """
        wanted = {**what, **self.key}
        if "changed" not in self.key["commit"]:
            for row in reversed(self.rows):
                if wanted.items() <= row.items():
                    return row
        before = round(os.getloadavg()[0], 2)
        found = measure()
        _require_figures(found, str(what.get("name", self.path.stem)))
        where = {"load_before": before, "load_after": round(os.getloadavg()[0], 2), "date": date.today().isoformat()}
        row = {**wanted, **where, **found}
        # 每量完一行就写盘：中断之后从下一行接着量
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.rows.append(row)
        return row


def add_options(parser: argparse.ArgumentParser, *, threads: int = 1, clocks: bool = False) -> None:
    """Adds the options that every benchmark has: `--quick`, `--threads`, `--results`; `--clock` where it is obeyed.

    The defaults are those of the committed lines.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    little = "little work, to see that it runs and that no figure is impossible: no results"
    parser.add_argument("--quick", action="store_true", help=little)
    parser.add_argument("--threads", type=int, default=threads)
    if clocks:
        said = "processor: on a busy machine, with one thread"
        parser.add_argument("--clock", choices=CLOCKS, default="processor" if threads == 1 else "wall", help=said)
    else:
        parser.set_defaults(clock="wall")
    parser.add_argument("--results", type=Path, help="folder of the lines, instead of benchmarks/results")


def results_of(name: str, options: argparse.Namespace, *, device: str = "") -> Results:
    """Opens the lines that the options ask for; with the name of the GPU where one computes."""
    # 处理器时间把各线程的秒数加在一起：多线程时不能用来比快慢
    if options.clock == "processor" and options.threads > 1:
        raise SystemExit("--clock processor adds the seconds of all threads; pass --threads 1, or --clock wall")
    results = Results(name, threads=options.threads, quick=options.quick, folder=options.results, device=device)
    results.key["clock"] = options.clock
    return results


def read_rows(path: Path) -> list[Row]:
    """Returns the lines of a file, the oldest first; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def peak_mib() -> float:
    """Returns the most memory that this process has had, in MiB."""
    # getrusage 的峰值会从启动它的进程继承过来：小进程由大进程启动时，报的是大进程的
    return int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024


@cache
def commit() -> str:
    """Returns the last commit of `src` and of the running script, with `+changed` where something is not committed."""
    loaded = {Path(file) for module in sys.modules.values() if (file := getattr(module, "__file__", None))}
    scripts = {path.resolve() for path in (*loaded, Path(sys.argv[0])) if path.resolve().parent == HERE}
    files = ["src", *sorted(f"benchmarks/{path.name}" for path in scripts if path.name not in NOT_TIMED)]
    try:
        last = _git("log", "-1", "--format=%h", "--", *files)
        return last + "+changed" * bool(_git("status", "--porcelain", "--", *files)) or "unknown"
    except (OSError, subprocess.CalledProcessError):
        return "unknown+changed"


def _require_figures(found: Row, name: str) -> None:
    """Ends where there is no figure, or an impossible one: not finite; of a round, or of `QUALITIES`, not above 0."""
    figures = list(_figures_of(found))
    wrong = [
        f"{place} {figure}"
        for place, figure in figures
        if not math.isfinite(figure)
        or (figure <= 0 and (place.startswith("rounds") or any(word in place for word in QUALITIES)))
    ]
    if not figures or wrong:
        raise SystemExit(f"{name}: {'; '.join(wrong) or 'no figure'}: nothing was written")


def _figures_of(found: Any, place: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(found, dict):
        for name, one in found.items():
            yield from _figures_of(one, f"{place}.{name}".lstrip("."))
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from _figures_of(one, place)
    elif isinstance(found, (int, float)) and not isinstance(found, bool):
        yield place, float(found)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(HERE.parent), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@cache
def versions() -> dict[str, str]:
    """Returns the versions of Python and of what is measured, as far as it is installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def processor() -> str:
    """Returns the processor's name, as Linux tells it."""
    names = [line.split(":")[1] for line in _cpuinfo() if line.startswith("model name")]
    # 云上的型号名常是模糊的，连同核数与代号一起才分得开
    model = [line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model\t")]
    name = " ".join(names[0].replace("(R)", "").split()) if names else platform.processor() or platform.machine()
    return f"{name}, model {model[0]}, {os.cpu_count()} cores" if model else f"{name}, {os.cpu_count()} cores"


@cache
def flags() -> tuple[str, ...]:
    """Returns all instructions of the processor."""
    return next((tuple(line.split(":")[1].split()) for line in _cpuinfo() if line.startswith("flags")), ())


def features() -> list[str]:
    """Returns which of the instructions that matter here the processor has."""
    return [feature for feature in FEATURES if feature in flags()]


def precisions(options: argparse.Namespace) -> list[Literal["float32", "bf16"]]:
    """Returns the precisions to compare in.

    Args:
        options: with `precision`, that one; with `quick`, float32. Otherwise also bf16 wherever there are instructions
            for it, fast or not.
    """
    if getattr(options, "precision", None):
        return [options.precision]
    has_bf16 = not options.quick and any("bf16" in flag for flag in flags())
    return ["float32", "bf16"] if has_bf16 else ["float32"]


def has_vnni() -> bool:
    """Returns whether the processor multiplies 8-bit numbers without overflow at 16 bits."""
    return any("vnni" in flag for flag in flags())


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
