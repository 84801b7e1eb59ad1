"""What long benchmarks have measured so far, kept in a file: they go on where they were stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Results:
    """What was measured before, a JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.is_file() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def get(self, what: dict[str, Any], measure: Callable[[], dict[str, float]]) -> dict[str, Any]:
        """Returns the row of a run, measuring it where there is none."""
        for row in self.rows:
            if what.items() <= row.items():
                return row
        row = {**what, **measure()}
        print(json.dumps(row), flush=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row
