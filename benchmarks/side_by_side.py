"""Running contenders in turn: the frame that all comparisons share.

All do the same work in the same process settings, alternately, so that a slow spell of the machine hits all (whole runs
of training follow one another instead). Kept are the figures of every round; tables show medians, the fastest and the
slowest round, and ratios of medians.

There are two kinds of peer. `people`: the library as its documentation uses it. `expert`: what somebody writes who
knows where its time goes; an audit wrote several of them better (`results/audit.jsonl`). Where an expert has several
ways, each is a contender of its own (`expert: onnxruntime`), and tables take the best of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

OURS, PEOPLE, EXPERT = "ours", "people", "expert"


def in_turn(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Times any number of contenders in turn.

    Args:
        contenders: one round of work of each.
        rounds: timed rounds of each.
        warmup: rounds of each that are not timed.
        clock: returns seconds.

    Returns:
        The seconds of every round of each.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(warmup + rounds):
        for name, work in contenders.items():
            begun = clock()
            result = work()
            taken = clock() - begun
            # 结果在停表之后才释放：释放大张量的时间不算
            del result
            if index >= warmup:
                times[name].append(taken)
    return times


def rounds_of(
    rounds: Mapping[str, list[float]],
    *,
    peers: Mapping[str, str],
    unit: str = "s",
    figures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns what came out of a comparison as a line of results holds it.

    Args:
        rounds: figures of every contender, `ours` first.
        peers: contender → which library, in which version and how it is used.
        unit: of the figures; with `/s` at its end more is better, else less.
        figures: what else was found, such as how close the outputs are.
    """
    digits = {name: [float(f"{value:.5g}") for value in values] for name, values in rounds.items()}
    return {"unit": unit, "rounds": digits, "peers": dict(peers), "figures": dict(figures or {})}
