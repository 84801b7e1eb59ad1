"""One short request after another: ours, on torch and by `engine="auto"`, against `sentence-transformers` and experts.

The real 6-layer checkpoint, a sentence of 8 words, from the string to the unit vector. Every contender runs in a fresh
process of its own, since the waiting threads of one library take the cores from the next; processes of all contenders
alternate. A round is the median of a process; the 99th percentiles are among the figures. The cosine with
sentence-transformers in float32 is taken first.

- people: `SentenceTransformer.encode`
- expert: ONNX Runtime or OpenVINO on the exported graph, with `tokenizers` before it and pooling in NumPy; see
  `vector_peers.py`

    python benchmarks/latency.py [--requests 2000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from bertsmith.inference import load_pipeline
from measured import CLOCKS, add_options, precisions, results_of
from side_by_side import OURS, PEOPLE, rounds_of
from tables import print_table
from vector_peers import MINILM, SHORT, Contender, expert_peers, make_graphs, names_of, sentence_transformers_peer

WARMUP = 50
WAYS = {
    "float32, torch": {"precision": "float32"},
    "float32, auto": {"precision": "float32", "engine": "auto"},
    "bf16, torch": {"precision": "bf16"},
    "bf16, auto": {"precision": "bf16", "engine": "auto"},
    "int8, torch": {"precision": "int8"},
}
"""How ours is asked for."""


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5, help="processes per contender")
    parser.add_argument("--child", nargs=3, metavar=("WHO", "WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.requests, options.rounds = min(options.requests, 20), 1
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    if options.child:
        who, way, folder = options.child
        print(json.dumps(timed(contender(who, way, Path(folder), options.threads), options.requests, options.clock)))
        return
    ways = [way for way in WAYS if "bf16" in precisions(options) or not way.startswith("bf16")]
    results, rows = results_of("latency", options), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["BERTSMITH_CACHE"] = str(folder / "cache")
        make_graphs(folder)
        for way in ways[:1] if options.quick else ways:
            what = {"name": f"one request of {len(SHORT.split())} words, {way}", "requests": options.requests}
            rows.append(results.get(what, partial(measure, way, folder, options)))
    print_table(rows)


def precision_of(way: str) -> str:
    """Returns the precision of a way of ours."""
    return way.split(",")[0]


def measure(way: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times processes of all contenders in turn."""
    names = [OURS, PEOPLE, *expert_peers(precision_of(way), folder, options.threads)]
    found: dict[str, list[dict[str, float]]] = {who: [] for who in names}
    for _ in range(options.rounds):
        for who, each in found.items():
            command = [sys.executable, __file__, "--child", who, way, str(folder), "--threads", str(options.threads)]
            command += ["--requests", str(options.requests), "--clock", options.clock]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            each.append(json.loads(said.splitlines()[-1]))
    figures = {f"p99_ms {who}": [one["p99_ms"] for one in each] for who, each in found.items()}
    cosines = {f"cosine {who}": each[0]["cosine"] for who, each in found.items()}
    rounds = {who: [one["p50"] for one in each] for who, each in found.items()}
    return rounds_of(rounds, peers=names_of(names), figures=figures | cosines)


def contender(who: str, way: str, folder: Path, threads: int) -> Contender:
    """Loads a contender by its name."""
    if who == OURS:
        embed: Contender = load_pipeline("embed", MINILM, device="cpu", **WAYS[way])  # type: ignore[arg-type]
        return embed
    return sentence_transformers_peer() if who == PEOPLE else expert_peers(precision_of(way), folder, threads)[who]()


def timed(work: Contender, requests: int, clock: str) -> dict[str, float]:
    """Returns median (s) and 99th percentile (ms) of requests, and the cosine with sentence-transformers."""
    for _ in range(min(WARMUP, requests)):
        work([SHORT])
    taken = []
    for _ in range(requests):
        begun = CLOCKS[clock]()
        work([SHORT])
        taken.append(CLOCKS[clock]() - begun)
    taken.sort()
    # 余弦放在最后算：sentence-transformers 的线程不会占到计时
    cosine = float((work([SHORT]) * sentence_transformers_peer()([SHORT])).sum())
    return {
        "p50": taken[len(taken) // 2],
        "p99_ms": round(1000 * taken[int(0.99 * len(taken))], 3),
        "cosine": round(cosine, 6),
    }


if __name__ == "__main__":
    main()
