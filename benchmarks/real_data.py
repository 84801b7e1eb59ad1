"""Where the real texts and labelled files of the benchmarks lie: beside the clone, or where BERTSMITH_DATA says."""

from __future__ import annotations

import os
from pathlib import Path

DATA = Path(os.environ.get("BERTSMITH_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
