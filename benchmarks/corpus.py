"""Measures building a corpus: MB/s of raw text per core, tokenization included, and the peak memory of a large build.

There is no peer here: no other tool makes document shards from plain text. Speed: the shared English corpus and the
same as JSON Lines, one worker in a process of its own, warmed up, several rounds. Memory: a synthetic text of `--gb`
gigabytes (the corpus over and over, a quarter of its lines altered in one word, documents between blank lines) in one
file, built by two workers; the proportional memory of all processes is sampled. `--folder` keeps text and corpus, so
that a measurement that was broken off goes on.

    python benchmarks/corpus.py [--gb 1]
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.data.reading.lines import read_lines
from measured import add_options, results_of
from real_data import DATA
from side_by_side import OURS, rounds_of
from tables import print_table

VOCAB = DATA / "vocab-uncased-30522.txt"

_ROUND = """
import json, sys, tempfile, time
from pathlib import Path
from bertsmith.data.corpus.build import build_shards
from bertsmith.tokenizer import WordPieceTokenizer
tokenizer = WordPieceTokenizer.load(sys.argv[1])
times = []
for _ in range(int(sys.argv[3]) + 1):
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        build_shards([sys.argv[2]], tokenizer, Path(folder) / "corpus", workers=1)
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
print(json.dumps(times[1:]))
"""


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--gb", type=float, default=0.2, help="size of the large text; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the large text and its corpus here")
    options = parser.parse_args()
    if options.quick:
        options.gb, options.rounds = 0.0, 1
    results = results_of("corpus", options)
    rows = [
        results.get({"name": f"building from {kind}, one worker"}, partial(speed, kind, options.rounds))
        for kind in ("text files", "JSON Lines")
    ]
    if options.gb:
        with tempfile.TemporaryDirectory() as temporary:
            build = partial(large_build, options.folder or Path(temporary), options.gb, options.threads)
            what = {"name": f"memory of building from {options.gb:g} GB, {options.threads} workers"}
            rows.append(results.get(what, build))
    print_table(rows)


def speed(kind: str, rounds: int) -> dict[str, Any]:
    """MB/s of raw text of one worker, by the clock; by its processor time among the figures."""
    source = DATA / "corpus"
    with tempfile.TemporaryDirectory() as folder:
        if kind == "JSON Lines":
            source = Path(folder) / "corpus.jsonl"
            with source.open("w", encoding="utf-8") as file:
                for path in sorted((DATA / "corpus").rglob("*.txt")):
                    file.write(json.dumps({"text": "\n".join(read_lines(path))}, ensure_ascii=False) + "\n")
        files = [source] if source.is_file() else list(source.rglob("*.txt"))
        size = sum(path.stat().st_size for path in files) / 1e6
        command = [sys.executable, "-c", _ROUND, str(VOCAB), str(source), str(rounds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall, processor = zip(*json.loads(done.stdout), strict=True)
    rates = [round(size / seconds, 2) for seconds in processor]
    figures = {"MB/s of the processor's time": rates, "mb": round(size, 1)}
    return rounds_of({OURS: [size / seconds for seconds in wall]}, peers={}, unit="MB/s", figures=figures)


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
    figures = {"gb": round(size, 2), "seconds": round(taken), "gb_of_shards": round(stored, 2)}
    return rounds_of({OURS: [peak[0]]}, peers={}, unit="MiB", figures=figures)


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


if __name__ == "__main__":
    main()
