"""The server under load, against a plain one and one that batches.

The real 6-layer checkpoint, single sentences of 10 to 80 words, all servers as uvicorn processes with the same number
of threads and one environment, asked in turn by a small asyncio client on the same machine (whose own cost is among the
figures). The vectors are compared first.

- people: FastAPI around `SentenceTransformer.encode`, a thread of the pool a request
- expert: FastAPI with a queue before OpenVINO: whatever waits, up to 32 texts, is encoded in one call, sorted by
  tokens, in batches of eight, in the precision that ours has. Infinity does not run beside transformers 5, nor TEI
  without a container. Ours takes its engine by `--engine auto`

Measured: sentences a second and latency with 32 connections, each sending its next sentence when it has the answer to
the last; the engine's own rate offline; half load and four times the load, sent at random moments whatever the answers
(Poisson), so that queues show; start to ready, in fresh processes; memory under full load, over `--minutes`.

    python benchmarks/serve.py [--connections 32] [--seconds 15] [--rounds 3] [--minutes 1] [--precision bf16]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import sentence_transformers

from bertsmith.cli import ENVIRONMENT
from bertsmith.interop.onnx import export_onnx
from embed import real_sentences
from measured import Results, Row, add_options, precisions, results_of
from side_by_side import EXPERT, OURS, PEOPLE, rounds_of
from tables import print_table
from vector_peers import MINILM

LEAST_COSINE = 0.995
START_SECONDS = 120.0
MOST_CONNECTIONS = 512
# 命令行会为我们的服务器设好空转的长短等等：对手和离线的引擎也用同样的值，否则比的是 OpenMP 与分配器的设置
SHARED_ENVIRONMENT = ENVIRONMENT | os.environ

PLAIN = """
import sys
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

folder, port, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(threads)
model = SentenceTransformer(folder, device="cpu")
app = FastAPI()

class Texts(BaseModel):
    texts: list[str]

@app.post("/embed")
def embed(asked: Texts) -> dict[str, list[list[float]]]:
    return {"vectors": model.encode(asked.texts, normalize_embeddings=True, show_progress_bar=False).tolist()}

@app.get("/ready")
def ready() -> str:
    return "ready"

uvicorn.run(app, port=port, log_level="warning")
"""

BATCHING = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
import numpy as np, openvino, tokenizers, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

folder, port, threads, precision, graph = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6]
tokenizer = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.enable_truncation(256)
tokenizer.no_padding()
how = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
model = openvino.Core().compile_model(graph, "CPU", how)
queue: asyncio.Queue = asyncio.Queue()
MOST, BATCH = 32, 8
pool = ThreadPoolExecutor(1)

def encode(texts):
    rows = [row.ids for row in tokenizer.encode_batch_fast(texts)]
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    vectors = [None] * len(rows)
    for start in range(0, len(order), BATCH):
        pack = order[start : start + BATCH]
        ids = np.zeros((len(pack), len(rows[pack[-1]])), dtype=np.int64)
        mask = np.zeros_like(ids)
        for place, number in enumerate(pack):
            ids[place, : len(rows[number])], mask[place, : len(rows[number])] = rows[number], 1
        states = model({"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})[0]
        means = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        for place, number in enumerate(pack):
            vectors[number] = means[place].tolist()
    return vectors

async def work():
    while True:
        waiting = [await queue.get()]
        while not queue.empty() and sum(len(texts) for texts, _ in waiting) < MOST:
            waiting.append(queue.get_nowait())
        texts = [text for each, _ in waiting for text in each]
        vectors = await asyncio.get_running_loop().run_in_executor(pool, encode, texts)
        for each, answer in waiting:
            answer.set_result(vectors[: len(each)])
            vectors = vectors[len(each):]

@asynccontextmanager
async def lifespan(app):
    task = asyncio.create_task(work())
    yield
    task.cancel()

app = FastAPI(lifespan=lifespan)

class Texts(BaseModel):
    texts: list[str]

@app.post("/embed")
async def embed(asked: Texts) -> dict[str, list[list[float]]]:
    answer = asyncio.get_running_loop().create_future()
    queue.put_nowait((asked.texts, answer))
    return {"vectors": await answer}

@app.get("/ready")
async def ready() -> str:
    return "ready"

uvicorn.run(app, port=port, log_level="warning", loop="uvloop")
"""

OFFLINE = """
import json, sys, time
import torch
from bertsmith.inference import load_pipeline

torch.set_num_threads(int(sys.argv[2]))
pipeline = load_pipeline("embed", sys.argv[1], precision=sys.argv[3] or None, engine="auto")
sentences = json.load(sys.stdin)
pipeline(sentences[:200])
begun = time.perf_counter()
pipeline(sentences)
print(time.perf_counter() - begun, sum(min(512, len(pipeline.tokenizer.encode(text)) + 2) for text in sentences))
"""


@dataclass
class Load:
    """What a client saw."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    unsent: int = 0
    client_ms: float = 0.0

    @property
    def rate(self) -> float:
        """Answered sentences a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Returns the latency, in seconds, that so many of the answered requests kept."""
        return float(np.quantile(self.latencies, share))


class Server:
    """A server process."""

    def __init__(self, name: str, command: Sequence[str], port: int, log: Path) -> None:
        self.name, self.port = name, port
        begun = time.perf_counter()
        with log.open("wb") as out:
            self.process = subprocess.Popen(list(command), stdout=out, stderr=subprocess.STDOUT, env=SHARED_ENVIRONMENT)
        while True:
            if self.process.poll() is not None or time.perf_counter() - begun > START_SECONDS:
                sys.exit(f"{name} did not start:\n{log.read_text()[-2000:]}")
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                break
            time.sleep(0.005)
        self.start_seconds = time.perf_counter() - begun

    def memory(self) -> int:
        """Returns how many bytes the process has in memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Ends the process."""
        self.process.terminate()
        self.process.wait(60)


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=2)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--precision", choices=("float32", "bf16"), help="one instead of all that there are")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds, options.sentences, options.minutes = 2.0, 1, 50, 0.02
    sentences = real_sentences(options.sentences)
    results = results_of("serve", options)
    with tempfile.TemporaryDirectory() as folder:
        options.graph = Path(folder) / "model.onnx"
        export_onnx(MINILM, options.graph)
        rows = measured(sentences, results, options)
    print_table(rows)


def measured(sentences: list[str], results: Results, options: Any) -> list[Row]:
    """Measures what is not in the results yet, in each precision."""
    rows: list[Row] = []
    for precision in precisions(options):
        at_full = {"connections": options.connections, "seconds": options.seconds}
        name = f"{options.connections} connections, {precision}"
        row = results.get({"name": name, **at_full}, partial(full_load, sentences, precision, options))
        rows += [row, results.get({"name": f"start to ready, {precision}"}, partial(starts, precision, options))]
        name = f"p99 at half load and at four times the load, {precision}"
        under = partial(other_loads, sentences, precision, row, options)
        rows.append(results.get({"name": name, **at_full, "rate": row["rounds"][OURS]}, under))
    return rows


def full_load(sentences: list[str], precision: str, options: Any) -> Row:
    """Compares the vectors, then keeps all servers busy in turn."""
    offline = [offline_seconds(sentences, precision, options) for _ in range(options.rounds)]
    bodies = [body_of(text) for text in sentences]
    loads: dict[str, list[Load]] = {who: [] for who in SERVERS}
    with servers(precision, options, list(SERVERS)) as running:
        check_vectors(running, sentences[:50])
        for number in range(1 + options.rounds):
            for who, server in running.items():
                load = asyncio.run(closed_loop(server.port, bodies, options.connections, options.seconds))
                # 第一轮是预热，不计
                if number:
                    loads[who].append(load)
        megabytes = memory_over(running[OURS], bodies, options)
    figures: Row = {"offline_texts/s": [round(len(sentences) / seconds, 1) for seconds, _ in offline]}
    for who, each in loads.items():
        figures[f"p50_ms {who}"] = [round(1000 * load.percentile(0.5)) for load in each]
        figures[f"p99_ms {who}"] = [round(1000 * load.percentile(0.99)) for load in each]
    figures["client_ms_a_request"] = round(statistics.median(load.client_ms for load in loads[OURS]), 3)
    figures["memory_mib"] = megabytes
    rates = {who: [load.rate for load in each] for who, each in loads.items()}
    return rounds_of(rates, peers=peer_names(precision), unit="texts/s", figures=figures)


def other_loads(sentences: list[str], precision: str, full: Row, options: Any) -> Row:
    """Sends half of what the server can do, then four times of it, at random moments.

    What the server accepts under four times the load must be as quick as under full load: that is the peer here.
    """
    rate = statistics.median(full["rounds"][OURS])
    bodies = [body_of(text) for text in sentences]
    with servers(precision, options, [OURS]) as running:
        port = running[OURS].port
        asyncio.run(closed_loop(port, bodies, options.connections, options.seconds / 2))
        half = [asyncio.run(open_loop(port, bodies, rate / 2, options.seconds)) for _ in range(options.rounds)]
        over = [asyncio.run(open_loop(port, bodies, rate * 4, options.seconds)) for _ in range(options.rounds)]
    for load in over:
        # 过载时只有两种结局：受理并答复，或者 429
        assert set(load.statuses) <= {200, 429}, load.statuses
    figures = {
        "p99_ms at half load": [round(1000 * load.percentile(0.99)) for load in half],
        "answered/s at four times": [round(load.rate, 1) for load in over],
        "refused at four times": [load.statuses[429] for load in over],
    }
    seconds = {OURS: [load.percentile(0.99) for load in over]}
    seconds[EXPERT] = [milliseconds / 1000 for milliseconds in full["figures"][f"p99_ms {OURS}"]]
    return rounds_of(seconds, peers={EXPERT: "ours at full load"}, figures=figures)


def starts(precision: str, options: Any) -> Row:
    """Measures the seconds that each server takes from its start to its first answer."""
    seconds: dict[str, list[float]] = {who: [] for who in SERVERS}
    for _ in range(options.rounds):
        with servers(precision, options, list(SERVERS)) as running:
            for who, server in running.items():
                seconds[who].append(server.start_seconds)
    return rounds_of(seconds, peers=peer_names(precision))


def peer_names(precision: str) -> dict[str, str]:
    """Says who the peers are."""
    library = f"sentence-transformers {sentence_transformers.__version__}"
    return {
        PEOPLE: f"FastAPI + {library} float32",
        EXPERT: f"FastAPI, a batching queue, uvloop, openvino {openvino.__version__.split('-')[0]} {precision}",
    }


def memory_over(server: Server, bodies: list[bytes], options: Any) -> list[int]:
    """Returns the MiB of the server under full load over the minutes."""
    megabytes: list[int] = []
    end = time.perf_counter() + 60 * options.minutes
    while time.perf_counter() < end:
        asyncio.run(closed_loop(server.port, bodies, options.connections, min(15.0, 60 * options.minutes / 4)))
        megabytes.append(round(server.memory() / 2**20))
    return megabytes


SERVERS = (OURS, PEOPLE, EXPERT)


@contextlib.contextmanager
def servers(precision: str, options: Any, which: Sequence[str]) -> Iterator[dict[str, Server]]:
    """Starts servers, one after the other."""
    threads = str(options.threads)
    # 队列的长度等于连接数：这样满载与过载时，受理的请求前面排的队一样长
    ours = ["-m", "bertsmith", "serve", "--model", f"minilm={MINILM}", "--threads", threads, "--drain", "0"]
    ours += ["--queue", str(options.connections), "--precision", precision, "--engine", "auto"]
    hint = "bf16" if precision == "bf16" else "f32"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running = {}
        for who in which:
            port = free_port()
            command = {
                OURS: [*ours, "--port", str(port)],
                PEOPLE: ["-c", PLAIN, str(MINILM), str(port), threads],
                EXPERT: ["-c", BATCHING, str(MINILM), str(port), threads, hint, str(options.graph)],
            }[who]
            running[who] = Server(who, [sys.executable, *command], port, folder / f"{who}.log")
            stack.callback(running[who].close)
        yield running


def offline_seconds(sentences: list[str], precision: str, options: Any) -> tuple[float, int]:
    """Returns the seconds the engine alone takes for all sentences, in a process of its own, and their tokens."""
    command = [sys.executable, "-c", OFFLINE, str(MINILM), str(options.threads), precision]
    sent = json.dumps(sentences)
    found = subprocess.run(command, input=sent, capture_output=True, text=True, check=True, env=SHARED_ENVIRONMENT)
    seconds, tokens = found.stdout.split()[-2:]
    return float(seconds), int(tokens)


def check_vectors(running: dict[str, Server], sentences: list[str]) -> None:
    """Makes sure that all servers say the same."""
    answers = []
    for server in running.values():
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/embed",
            json.dumps({"texts": sentences}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            answers.append(np.asarray(json.load(answer)["vectors"]))
    cosines = [float((answers[0] * other).sum(1).min()) for other in answers[1:]]
    if min(cosines) < LEAST_COSINE:
        raise SystemExit(f"the servers differ (cosines {cosines}); a comparison of speed would mean nothing")


async def closed_loop(port: int, bodies: list[bytes], connections: int, seconds: float) -> Load:
    """Keeps so many requests under way at any time."""
    load = Load()
    begun, cpu = time.perf_counter(), time.process_time()

    async def ask(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        draw = random.Random(number)
        while time.perf_counter() - begun < seconds:
            await exchange(reader, writer, draw.choice(bodies), load)
        writer.close()

    await asyncio.gather(*map(ask, range(connections)))
    load.seconds = time.perf_counter() - begun
    load.client_ms = 1000 * (time.process_time() - cpu) / max(1, len(load.latencies))
    return load


async def open_loop(port: int, bodies: list[bytes], rate: float, seconds: float) -> Load:
    """Sends requests at random moments, on average so many a second, whether or not the earlier ones are answered."""
    load = Load()
    draw = random.Random(0)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    under_way: set[asyncio.Task[None]] = set()

    async def ask() -> None:
        pair = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        await exchange(*pair, draw.choice(bodies), load)
        idle.append(pair)

    begun = planned = time.perf_counter()
    while planned - begun < seconds:
        planned += draw.expovariate(rate)
        if planned > time.perf_counter():
            await asyncio.sleep(planned - time.perf_counter())
        if len(under_way) >= MOST_CONNECTIONS:
            load.unsent += 1
            await asyncio.sleep(0)
            continue
        task = asyncio.create_task(ask())
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    load.seconds = time.perf_counter() - begun
    for _, writer in idle:
        writer.close()
    return load


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, load: Load) -> None:
    """Sends one request and reads its answer."""
    begun = time.perf_counter()
    writer.write(body)
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(size)
    status = int(head[9:12])
    load.statuses[status] += 1
    if status == 200:
        load.latencies.append(time.perf_counter() - begun)


def body_of(text: str) -> bytes:
    """Returns a whole request for one text."""
    body = json.dumps({"texts": [text]}).encode()
    # 没有密钥的服务器只认本机的名字
    head = "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
