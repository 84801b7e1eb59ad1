"""Measures reading labelled tables: seconds for 100,000 rows, with everything found by itself.

Ours finds encoding, separator, header and columns, and checks every row: what `finetune` does with `--train FILE`. The
peers read cells alone. People let pandas find the separator; the expert tells pyarrow everything, on one thread, and
takes text and label as Python's strings. Both are given UTF-8. The text is made here.

    python benchmarks/labelled_tables.py
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.csv as arrow

from bertsmith.finetune.datasets.texts import LABELLED
from measured import CLOCKS, add_options, results_of
from side_by_side import EXPERT, OURS, PEOPLE, in_turn, rounds_of
from tables import print_table

HEADER = ("id", "Review Text", "Date", "Sentiment Label")


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if options.quick:
        options.rows, options.rounds = 500, 1
    results = results_of("labelled_tables", options)
    measure = partial(speed, options.rows, options.rounds, options.clock)
    print_table([results.get({"name": f"{options.rows:,} rows of CSV", "rows": options.rows}, measure)])


def speed(rows: int, rounds: int, clock: str) -> dict[str, Any]:
    """Seconds to read a table with semicolons and names of its own."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # 列是猜的，每次都会说一遍
        warnings.simplefilter("ignore")
        path = write_table(Path(folder, "reviews.csv"), rows)
        contenders = {OURS: partial(LABELLED.read, path), PEOPLE: partial(by_pandas, path), EXPERT: partial(told, path)}
        ours, people, expert = (read() for read in contenders.values())
        for example, row, pair in zip(ours, people.itertuples(), expert, strict=True):
            assert (example.text, example.label) == (row[2], row[4]) == pair
        times = in_turn(contenders, rounds=rounds, clock=CLOCKS[clock])
        size = round(path.stat().st_size / 1e6, 1)
    peers = {PEOPLE: f"pandas {pd.__version__}, sep=None", EXPERT: "pyarrow.csv, everything told"}
    return rounds_of(times, peers=peers, figures={"MB": size})


def write_table(path: Path, rows: int) -> Path:
    """Writes reviews of 20 words with a date and one of three labels."""
    draws = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(3000)])
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(HEADER)
        for number in range(rows):
            text = " ".join(words[draws.integers(3000, size=20)]) + ', "yes"; no'
            table.writerow([number, text, "2024-01-01", ("good", "bad", "fair")[draws.integers(3)]])
    return path


def by_pandas(path: Path) -> pd.DataFrame:
    """As the documentation finds a separator."""
    return pd.read_csv(path, sep=None, engine="python")


def told(path: Path) -> list[tuple[str, str]]:
    """The two columns, in C++ on one thread."""
    how = arrow.ReadOptions(use_threads=False), arrow.ParseOptions(delimiter=";")
    only = arrow.ConvertOptions(include_columns=[HEADER[1], HEADER[3]])
    columns = arrow.read_csv(path, *how, only).to_pydict()
    return list(zip(columns[HEADER[1]], columns[HEADER[3]], strict=True))


if __name__ == "__main__":
    main()
