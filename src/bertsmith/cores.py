"""How many cores there are for this process."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of all cores together in each period, and the period; `max` is no limit."""


def available_cores() -> int:
    """Returns how many cores this process may use, at least 1."""
    # 容器里常只分到几个核：以调度器允许的和配额为准，不看整机的核数
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):
        # 没有这个文件，或者写着 max：没有配额
        return allowed
