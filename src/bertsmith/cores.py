"""How many cores there are for this process."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Returns how many cores this process may use."""
    # 容器里常只分到几个核：以调度器允许的为准，不看整机的核数
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
