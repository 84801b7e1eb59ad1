"""Running two contenders in turn: the frame all benchmarks share.

Both do the same work in the same process settings, alternately, so that a slow spell of the machine hits both. What
is reported is the median of several rounds, their spread, and the ratio of the medians.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

SHOWN = {"ms": 1000, "MiB": 1}
"""Unit → how many of it are one of what is measured."""


@dataclass(frozen=True)
class Comparison:
    """Times of both contenders for one setting, in seconds per round; or their memory, in MiB."""

    name: str
    setting: str
    peer_name: str
    ours: list[float]
    peer: list[float]
    unit: Literal["ms", "MiB"] = "ms"

    @property
    def ratio(self) -> float:
        """How many times as fast ours is."""
        return statistics.median(self.peer) / statistics.median(self.ours)


def compare(
    name: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    peer_name: str,
    setting: str,
    rounds: int,
    warmup: int = 2,
) -> Comparison:
    """Times both contenders in turn.

    Args:
        name: of the comparison.
        ours: one round of our work.
        peer: one round of the peer's.
        peer_name: with its version.
        setting: what the figures hold for.
        rounds: timed rounds of each.
        warmup: rounds of each that are not timed.
    """
    times = in_turn({"ours": ours, "peer": peer}, rounds=rounds, warmup=warmup)
    return Comparison(name, setting, peer_name, times["ours"], times["peer"])


def in_turn(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Times any number of contenders in turn; returns the seconds of each round of each, by this clock."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(warmup + rounds):
        for name, work in contenders.items():
            begun = clock()
            work()
            if index >= warmup:
                times[name].append(clock() - begun)
    return times


def report(comparisons: list[Comparison]) -> None:
    """Prints a table of medians and spreads, and one line of JSON for tools."""
    table = Table(title="median of rounds (fastest to slowest)", title_justify="left")
    for heading in ("what", "setting", "ours", "peer", "ratio"):
        table.add_column(heading, overflow="fold")
    for row in comparisons:
        table.add_row(
            *(row.name, row.setting, _span(row.ours, row.unit)),
            *(f"{_span(row.peer, row.unit)} ({row.peer_name})", f"{row.ratio:.2f}"),
        )
    Console(width=140).print(table)
    print(
        json.dumps(
            [
                {
                    "name": row.name,
                    "ours": round(SHOWN[row.unit] * statistics.median(row.ours), 2),
                    "peer": round(SHOWN[row.unit] * statistics.median(row.peer), 2),
                    "peer_name": row.peer_name,
                    "ratio": round(row.ratio, 3),
                    "unit": row.unit,
                    "setting": row.setting,
                }
                for row in comparisons
            ]
        )
    )


def _span(values: list[float], unit: str) -> str:
    middle, fastest, slowest = (SHOWN[unit] * value for value in (statistics.median(values), min(values), max(values)))
    return f"{middle:.0f} {unit} ({fastest:.0f}–{slowest:.0f})"
