"""Running two contenders in turn: the frame all benchmarks share.

Both do the same work in the same process settings, alternately, so that a slow spell of the machine hits both. What
is reported is the median of several rounds, their spread, and the ratio of the medians.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Comparison:
    """Times of both contenders for one setting, in seconds per round."""

    name: str
    setting: str
    peer_name: str
    ours: list[float]
    peer: list[float]

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
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for index in range(warmup + rounds):
        for contender, work in (("ours", ours), ("peer", peer)):
            begun = time.perf_counter()
            work()
            if index >= warmup:
                times[contender].append(time.perf_counter() - begun)
    return Comparison(name, setting, peer_name, times["ours"], times["peer"])


def report(comparisons: list[Comparison]) -> None:
    """Prints a table of medians and spreads, and one line of JSON for tools."""
    table = Table(title="median of rounds (fastest to slowest)", title_justify="left")
    for heading in ("what", "setting", "ours", "peer", "ratio"):
        table.add_column(heading, overflow="fold")
    for row in comparisons:
        table.add_row(
            row.name, row.setting, _span(row.ours), f"{_span(row.peer)} ({row.peer_name})", f"{row.ratio:.2f}"
        )
    Console(width=140).print(table)
    print(
        json.dumps(
            [
                {
                    "name": row.name,
                    "ours": round(1000 * statistics.median(row.ours), 2),
                    "peer": round(1000 * statistics.median(row.peer), 2),
                    "peer_name": row.peer_name,
                    "ratio": round(row.ratio, 3),
                    "unit": "ms",
                    "setting": row.setting,
                }
                for row in comparisons
            ]
        )
    )


def _span(seconds: list[float]) -> str:
    median = 1000 * statistics.median(seconds)
    return f"{median:.0f} ms ({1000 * min(seconds):.0f}–{1000 * max(seconds):.0f})"
