"""Texts to vectors: ours against sentence-transformers, ONNX Runtime and OpenVINO, from the string to the unit vector.

The real 6-layer checkpoint; sentences of 10 to 80 words from books, speeches and an encyclopedia; tokenization
included, the same number of threads for all. The peers are those of `vector_peers.py`. All contenders run in turn, so
that a slow spell of the machine hits all; the cosine similarity of each with sentence-transformers in float32 is taken
first, and ours must be close. Besides: from the start of a process to its first vector. `latency.py` measures single
requests.

    python benchmarks/embed.py [--sentences 1000] [--rounds 5] [--precision bf16]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from bertsmith.inference import Embed
from measured import CLOCKS, add_options, precisions, results_of
from real_data import DATA
from side_by_side import EXPERT, OURS, PEOPLE, in_turn, rounds_of
from tables import print_table
from vector_peers import MINILM, SHORT, Contender, expert_peers, make_graphs, names_of, sentence_transformers_peer

CORPUS = DATA / "corpus"
FEWEST_WORDS, MOST_WORDS = 10, 80
LEAST_COSINE = 0.995


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=("float32", "bf16", "int8"), help="one instead of all")
    options = parser.parse_args()
    if options.quick:
        options.sentences, options.rounds = 40, 1
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    chosen = precisions(options) + ["int8"] * (options.precision is None)
    sentences = real_sentences(options.sentences)
    results, rows = results_of("embed", options), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["BERTSMITH_CACHE"] = str(folder / "cache")
        make_graphs(folder)
        for precision in chosen:
            for engine in ("torch", "auto"):
                how = "" if engine == "torch" else f", engine {engine}"
                what = {"name": f"bulk, {precision}{how}", "sentences": len(sentences)}
                rows.append(results.get(what, partial(measure, precision, engine, sentences, folder, options)))
        for how, script in {"": OUR_START, ", engine auto": OUR_QUICK_START}.items():
            what = {"name": f"start of a process to its first vector{how}"}
            rows.append(results.get(what, partial(start_times, script, folder, options)))
    print_table(rows)


def real_sentences(count: int) -> list[str]:
    """Returns sentences of 10 to 80 words, spread over all files of the corpus, in the order they are met."""
    found: list[str] = []
    for path in sorted(CORPUS.rglob("*.txt")):
        text = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
        found += [part for part in re.split(r"(?<=[.!?]) ", text) if FEWEST_WORDS <= len(part.split()) <= MOST_WORDS]
    return found[:: max(1, len(found) // count)][:count]


def measure(
    precision: str, engine: str, sentences: Sequence[str], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Compares the vectors of everyone in one precision, then the times."""
    everyone: dict[str, Contender] = {
        OURS: Embed.load(MINILM, precision=precision, engine=engine, device="cpu"),
        PEOPLE: sentence_transformers_peer(),
    }
    everyone |= {who: make() for who, make in expert_peers(precision, folder, options.threads).items()}
    few = sentences[:: max(1, len(sentences) // 200)]
    exact = everyone[PEOPLE](few)
    cosines = {f"cosine {who}": round(float((work(few) * exact).sum(1).mean()), 5) for who, work in everyone.items()}
    if cosines[f"cosine {OURS}"] < LEAST_COSINE:
        raise SystemExit(f"ours in {precision}: the vectors differ; a comparison of speed would mean nothing")
    work: dict[str, Callable[[], object]] = {who: partial(each, sentences) for who, each in everyone.items()}
    times = in_turn(work, rounds=options.rounds, clock=CLOCKS[options.clock])
    rates = {who: [len(sentences) / second for second in seconds] for who, seconds in times.items()}
    return rounds_of(rates, peers=names_of(everyone), unit="texts/s", figures=cosines)


OUR_START = """
import sys, time
from bertsmith.inference import load_pipeline
import torch
torch.set_num_threads(int(sys.argv[3]))
load_pipeline("embed", sys.argv[2])([sys.argv[5]])
print(time.time() - float(sys.argv[1]))
"""
OUR_QUICK_START = """
import sys, time
from bertsmith.inference import load_pipeline
load_pipeline("embed", sys.argv[2], engine="auto")([sys.argv[5]])
print(time.time() - float(sys.argv[1]))
"""
THEIR_START = """
import sys, time
import torch
torch.set_num_threads(int(sys.argv[3]))
from sentence_transformers import SentenceTransformer
SentenceTransformer(sys.argv[2], device="cpu").encode([sys.argv[5]])
print(time.time() - float(sys.argv[1]))
"""
ONNX_START = """
import sys, time
import numpy as np, onnxruntime, tokenizers
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = int(sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[4], settings, providers=["CPUExecutionProvider"])
row = tokenizers.Tokenizer.from_file(sys.argv[2] + "/tokenizer.json").encode(sys.argv[5])
ids = np.array([row.ids], dtype=np.int64)
states = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids})[0]
states.mean(1)
print(time.time() - float(sys.argv[1]))
"""


def start_times(ours: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times fresh processes, from before they exist to their first vector."""
    scripts = {OURS: ours, PEOPLE: THEIR_START, f"{EXPERT}: onnxruntime float32": ONNX_START}
    times: dict[str, list[float]] = {who: [] for who in scripts}
    for number in range(1 + options.rounds):
        for who, script in scripts.items():
            given = (time.time(), MINILM, options.threads, folder / "optimized.onnx", SHORT)
            words = [sys.executable, "-c", script, *map(str, given)]
            environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
            said = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
            # 第一轮把文件读进系统缓存，也做好计算图，不算
            if number:
                times[who].append(float(said.split()[-1]))
    return rounds_of(times, peers=names_of(scripts))


if __name__ == "__main__":
    main()
