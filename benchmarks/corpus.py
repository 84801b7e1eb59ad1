"""Measures building a corpus: MB/s of raw text per core, tokenization included, and the peak memory of a large build.

There is no peer here: no other tool makes document shards from plain text. Speed: the shared English corpus and the
same as JSON Lines, one worker in a process of its own, warmed up, several rounds. Memory: a synthetic text of `--gb`
gigabytes (the corpus over and over, a quarter of its lines altered in one word, documents between blank lines) in one
file, built by two workers; the proportional memory of all processes is sampled. `--folder` keeps text and corpus, so
that a measurement that was broken off goes on. No time is asserted; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bertsmith.data.reading.lines import read_lines
from real_data import DATA

VOCAB = DATA / "vocab-uncased-30522.txt"

_ROUND = """
import json, sys, tempfile, time
from pathlib import Path
from bertsmith.data.corpus.build import build_corpus
from bertsmith.tokenizer import WordPieceTokenizer
tokenizer = WordPieceTokenizer.load(sys.argv[1])
times = []
for _ in range(int(sys.argv[3]) + 1):
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        build_corpus([sys.argv[2]], tokenizer, Path(folder) / "corpus", workers=1)
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
print(json.dumps(times[1:]))
"""


def main() -> None:
    """Runs both measurements and prints the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gb", type=float, default=0.2, help="size of the large text; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="of the large build")
    parser.add_argument("--folder", type=Path, help="keep the large text and its corpus here")
    options = parser.parse_args()
    rows = speed(options.rounds)
    if options.gb:
        with tempfile.TemporaryDirectory() as temporary:
            rows.append(large_build(options.folder or Path(temporary), options.gb, options.workers))
    table = Table("what", "figure", "setting", box=None, header_style="bold")
    for row in rows:
        table.add_row(row["name"], f"{row['ours']} {row['unit']}  {row.pop('spread')}", row["setting"])
    Console(width=150).print(table)
    print(json.dumps(rows))


def speed(rounds: int) -> list[dict[str, Any]]:
    """MB/s of raw text of one worker, by the clock and by its processor time."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "corpus.jsonl"
        with lines.open("w", encoding="utf-8") as file:
            for path in sorted((DATA / "corpus").rglob("*.txt")):
                file.write(json.dumps({"text": "\n".join(read_lines(path))}, ensure_ascii=False) + "\n")
        for name, source in (("text files", DATA / "corpus"), ("JSON Lines", lines)):
            files = [source] if source.is_file() else list(source.rglob("*.txt"))
            size = sum(path.stat().st_size for path in files) / 1e6
            command = [sys.executable, "-c", _ROUND, str(VOCAB), str(source), str(rounds)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            for clock, place in (("wall", 0), ("processor", 1)):
                rates = [size / times[place] for times in json.loads(done.stdout)]
                rows.append(
                    row(f"{name}, {clock} time", rates, "MB/s", f"{size:.1f} MB, one worker, statistics and picture")
                )
    return rows


def large_build(folder: Path, gigabytes: float, workers: int) -> dict[str, Any]:
    """The peak memory of building one large file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / f"text-{gigabytes:g}.txt"
    if not text.exists():
        write_text(text, gigabytes)
    out = folder / "corpus"
    command = [sys.executable, "-m", "bertsmith", "corpus", text, "--tokenizer", VOCAB, "--out", out]
    started = time.perf_counter()
    process = subprocess.Popen([*map(str, command), "--documents", "blank-line", "--workers", str(workers)])
    peak = [0.0]
    watcher = threading.Thread(target=watch, args=(process, peak))
    watcher.start()
    process.wait()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"the build ended with {process.returncode}; run this again with --folder {folder} to go on")
    taken = time.perf_counter() - started
    size = text.stat().st_size / 1e9
    stored = sum(path.stat().st_size for path in out.glob("*.arrow")) / 1e9
    setting = f"{size:.2f} GB in one file, {workers} workers, {taken:.0f} s by the clock, {stored:.2f} GB of shards"
    return row("peak memory, all processes", [peak[0]], "MiB", setting)


def watch(process: subprocess.Popen[bytes], peak: list[float]) -> None:
    """Samples the proportional memory of a process and its children until it ends."""
    while process.poll() is None:
        family = [process.pid]
        for pid in family:
            try:
                for task in Path(f"/proc/{pid}/task").iterdir():
                    family += [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                continue
        peak[0] = max(peak[0], sum(map(proportional, family)) / 1024)
        time.sleep(0.25)


def proportional(pid: int) -> int:
    """The memory of a process in KiB, pages it shares with others counted in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    # 映射的语料文件页可随时收回，但照样计入：数字只会偏大
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def write_text(path: Path, gigabytes: float) -> None:
    """Writes the synthetic text: paragraphs of the corpus as documents, altered differently in every copy."""
    lines = [line for file in sorted((DATA / "corpus").rglob("*.txt")) for line in read_lines(file)]
    unfinished = path.with_suffix(".tmp")
    size, copy = 0, 0
    with unfinished.open("w", encoding="utf-8") as file:
        while size < gigabytes * 1e9:
            draw = random.Random(copy)
            for line in lines:
                size += file.write(altered(line, draw) + "\n")
            copy += 1
    shutil.move(unfinished, path)


def altered(line: str, draw: random.Random) -> str:
    """Changes a letter of a word in a quarter of the lines."""
    if draw.random() >= 0.25:
        return line
    words = line.split(" ")
    place = draw.randrange(len(words))
    if len(words[place]) > 2:
        letter = draw.randrange(len(words[place]))
        words[place] = words[place][:letter] + draw.choice("etaoinshrdlu") + words[place][letter + 1 :]
    return " ".join(words)


def row(name: str, values: list[float], unit: str, setting: str) -> dict[str, Any]:
    """One figure as the other benchmarks write it, without a peer."""
    return {
        "name": f"corpus: {name}",
        "ours": round(statistics.median(values), 2),
        "peer": None,
        "peer_name": None,
        "ratio": None,
        "unit": unit,
        "setting": setting,
        "spread": f"({min(values):.1f}-{max(values):.1f})" if len(values) > 1 else "",
    }


if __name__ == "__main__":
    main()
