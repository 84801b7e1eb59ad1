"""One short request after another: ours, on torch and on ONNX Runtime, against ONNX Runtime as an expert uses it.

The real 6-layer checkpoint, a sentence of 8 words, from the string to the unit vector. Every contender runs in a fresh
process of its own, since the waiting threads of one library take the cores from the next; processes of all contenders
alternate. ONNX Runtime gets our export, in float32 and quantised to 8 bits by channel (`reduce_range` where the
processor has no VNNI). Each line says the cosine with sentence-transformers in float32.

    python benchmarks/latency.py [--requests 2000] [--rounds 5] [--threads 2] [--out benchmarks/results/latency.jsonl]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import onnxruntime
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic

from bertsmith.inference import Embed, load_pipeline
from bertsmith.interop.onnx import export_onnx
from bertsmith.kernels.layers import native_precision
from embed import MINILM, SHORT, Contender, OnnxRuntime, sentence_transformers_peer

WARMUP = 50


def main() -> None:
    """Runs all contenders in turn, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5, help="processes per contender")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="a file that the lines are added to")
    parser.add_argument("--child", nargs=2, metavar=("WHO", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    if options.child:
        print(
            json.dumps(measured(makers(Path(options.child[1]), options.threads)[options.child[0]](), options.requests))
        )
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_onnx(MINILM, folder / "float32.onnx")
        has_vnni = any("vnni" in flag for flag in flags())
        quantize_dynamic(
            folder / "float32.onnx",
            folder / "int8.onnx",
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=not has_vnni,
        )
        os.environ["BERTSMITH_CACHE"] = str(folder / "cache")
        names = list(makers(folder, options.threads))
        rounds: dict[str, list[dict[str, float]]] = {who: [] for who in names}
        for _ in range(options.rounds):
            for who in names:
                command = [sys.executable, __file__, "--child", who, str(folder), "--threads", str(options.threads)]
                command += ["--requests", str(options.requests)]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                rounds[who].append(json.loads(said.splitlines()[-1]))
    exact = rounds["sentence-transformers"]
    assert exact[0]["cosine"] > 0.9999
    for who, found in rounds.items():
        row = {
            "name": who,
            **{figure: statistics.median(each[figure] for each in found) for figure in found[0]},
            "rounds_p50_ms": [each["p50_ms"] for each in found],
            "setting": f"{len(SHORT.split())} words, {options.requests} requests, {options.threads} threads",
            "processor": processor(),
            "load_before": round(load, 2),
            "date": date.today().isoformat(),
        }
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def makers(folder: Path, threads: int) -> dict[str, Callable[[], Contender]]:
    """Returns what makes each contender, by its name."""
    found: dict[str, Callable[[], Contender]] = {
        "ours float32, torch": lambda: Embed.load(MINILM, precision="float32", device="cpu"),
        "ours float32, onnxruntime": lambda: load_pipeline("embed", MINILM, engine="onnxruntime", device="cpu"),
        "ours int8, torch": lambda: Embed.load(MINILM, precision="int8", device="cpu"),
    }
    if native_precision("cpu") == "bf16":
        found["ours bf16, torch"] = lambda: Embed.load(MINILM, precision="bf16", device="cpu")
    found["sentence-transformers"] = sentence_transformers_peer
    for precision in ("float32", "int8"):
        found[f"onnxruntime {onnxruntime.__version__} {precision}"] = partial(
            OnnxRuntime, folder / f"{precision}.onnx", threads
        )
    return found


def measured(work: Contender, requests: int) -> dict[str, float]:
    """Returns median and 99th percentile of requests, in ms, and the cosine with sentence-transformers."""
    for _ in range(WARMUP):
        work([SHORT])
    taken = []
    for _ in range(requests):
        begun = time.perf_counter()
        work([SHORT])
        taken.append(1000 * (time.perf_counter() - begun))
    taken.sort()
    cosine = float((work([SHORT]) * sentence_transformers_peer()([SHORT])).sum())
    return {
        "p50_ms": round(taken[len(taken) // 2], 3),
        "p99_ms": round(taken[int(0.99 * len(taken))], 3),
        "cosine": round(cosine, 6),
    }


def flags() -> list[str]:
    """Returns what the processor can do, as Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return next((line.split(":")[1].split() for line in lines if line.startswith("flags")), [])


def processor() -> str:
    """Returns the processor's name, and which of the instructions that matter here it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    known = [
        flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8") if flag in flags()
    ]
    return f"{name} ({', '.join(known)})"


if __name__ == "__main__":
    main()
