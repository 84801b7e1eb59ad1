"""The server under load, against the plain one everybody writes first: FastAPI around `SentenceTransformer.encode`.

The real 6-layer checkpoint, single sentences of 10 to 80 words, both servers as uvicorn processes with the same number
of threads and one environment, asked in turn by a small asyncio client on the same machine (whose own cost is printed).
The vectors are compared first. Then:

- throughput and latency with 32 connections, each sending its next sentence when it has the answer to the last
- the share of what the engine does alone, offline, over the same sentences
- half load and four times the load, sent at random moments whatever the answers (Poisson), so that queues show
- start to ready, in fresh processes
- memory under full load, over `--minutes`

    python benchmarks/serve.py [--connections 32] [--threads 2] [--seconds 20] [--rounds 3] [--minutes 1]
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
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers

from bertsmith.cli import ENVIRONMENT
from embed import MINILM, real_sentences
from side_by_side import Comparison, report

SENTENCES = 2000
LEAST_COSINE = 0.995
START_SECONDS = 120.0
MOST_CONNECTIONS = 512
# 命令行会为我们的服务器设好空转的长短等等：对手和离线的引擎也用同样的值，否则比的是 OpenMP 与分配器的设置
SHARED_ENVIRONMENT = ENVIRONMENT | os.environ

PEER = """
import sys
from pathlib import Path
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

OFFLINE = """
import json, sys, time
import torch
from bertsmith.inference import load_pipeline

torch.set_num_threads(int(sys.argv[2]))
pipeline = load_pipeline("embed", sys.argv[1], precision=sys.argv[3] or None)
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
    """Compares the vectors, then loads the servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start-rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=SENTENCES)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--precision", default="", choices=("", "float32", "bf16", "int8", "auto"))
    options = parser.parse_args()
    sentences = real_sentences(options.sentences)
    peer_name = f"FastAPI + sentence-transformers {sentence_transformers.__version__}"
    setting = f"single sentences, {options.connections} connections, {options.threads} threads"
    rows: list[Comparison] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        starts = [start_times(options, folder) for _ in range(options.start_rounds)]
        if starts:
            ours, peer = map(list, zip(*starts, strict=True))
            rows.append(Comparison("start to ready", "fresh process", peer_name, ours, peer))
        offline = [offline_seconds(sentences, options) for _ in range(options.rounds)]
        with servers(options, folder) as (our_server, peer_server):
            check_vectors(our_server, peer_server, sentences[:50])
            bodies = [body_of(text) for text in sentences]
            loads: dict[str, list[Load]] = {"ours": [], "peer": []}
            for number in range(1 + options.rounds):
                for who, server in (("ours", our_server), ("peer", peer_server)):
                    load = asyncio.run(closed_loop(server.port, bodies, options.connections, options.seconds))
                    # 第一轮是预热，不计
                    if number:
                        loads[who].append(load)
                        tell(f"{who}, {options.connections} connections", load)
            rows += steady_rows(loads, setting, peer_name)
            per_sentence = [seconds / len(sentences) for seconds, _ in offline]
            served = [1 / load.rate for load in loads["ours"]]
            rows.append(
                Comparison("a sentence, served and offline", setting, "the engine alone, offline", served, per_sentence)
            )
            rate = statistics.median(load.rate for load in loads["ours"])
            full_p99 = [load.percentile(0.99) for load in loads["ours"]]
            seconds, tokens = offline[0]
            rows.append(half_load(our_server, bodies, rate, 0.003 + 1024 * seconds / tokens, options))
            rows.append(overload(our_server, bodies, rate, full_p99, options))
            if options.minutes:
                memory_over(our_server, bodies, options)
    report(rows)


def half_load(server: Server, bodies: list[bytes], rate: float, bound: float, options: Any) -> Comparison:
    """Sends half of what the server can do, at random moments."""
    loads = [asyncio.run(open_loop(server.port, bodies, rate / 2, options.seconds)) for _ in range(options.rounds)]
    for load in loads:
        tell(f"ours, half load ({rate / 2:.0f}/s)", load)
    found = [load.percentile(0.99) for load in loads]
    return Comparison("p99 at half load", f"{rate / 2:.0f}/s", "batching delay and one full batch", found, [bound])


def overload(server: Server, bodies: list[bytes], rate: float, full: list[float], options: Any) -> Comparison:
    """Sends four times what the server can do; what it accepts must be as quick as under full load."""
    loads = [asyncio.run(open_loop(server.port, bodies, rate * 4, options.seconds)) for _ in range(options.rounds)]
    for load in loads:
        tell(f"ours, four times the load ({rate * 4:.0f}/s)", load)
        # 过载时只有两种结局：受理并答复，或者 429
        assert set(load.statuses) <= {200, 429}, load.statuses
        assert load.statuses[429], "nothing was refused: the client could not send four times the load"
    found = [load.percentile(0.99) for load in loads]
    return Comparison("p99 of accepted at 4x overload", f"{rate * 4:.0f}/s", "p99 at full load", found, full)


def memory_over(server: Server, bodies: list[bytes], options: Any) -> None:
    """Prints the memory of the server under full load over the minutes."""
    megabytes: list[float] = []
    end = time.perf_counter() + 60 * options.minutes
    while time.perf_counter() < end:
        asyncio.run(closed_loop(server.port, bodies, options.connections, min(15.0, 60 * options.minutes / 4)))
        megabytes.append(server.memory() / 2**20)
    half = len(megabytes) // 2
    growth = statistics.mean(megabytes[half:]) - statistics.mean(megabytes[: max(1, half)])
    shown = " ".join(f"{size:.0f}" for size in megabytes)
    print(
        f"memory under full load over {options.minutes:g} min, MiB: {shown}; second half against first: {growth:+.1f}"
    )


def steady_rows(loads: dict[str, list[Load]], setting: str, peer_name: str) -> list[Comparison]:
    """Compares throughput, as milliseconds a sentence, and latency."""
    ours, peer = loads["ours"], loads["peer"]
    rows = [
        Comparison("a sentence", setting, peer_name, [1 / load.rate for load in ours], [1 / load.rate for load in peer])
    ]
    for share in (0.5, 0.99):
        mine, theirs = ([load.percentile(share) for load in part] for part in (ours, peer))
        rows.append(Comparison(f"latency, p{100 * share:.0f}", setting, peer_name, mine, theirs))
    return rows


def start_times(options: Any, folder: Path) -> tuple[float, float]:
    """Returns the seconds that each server takes from its start to its first answer."""
    with servers(options, folder) as (ours, peer):
        return ours.start_seconds, peer.start_seconds


@contextlib.contextmanager
def servers(options: Any, folder: Path) -> Iterator[tuple[Server, Server]]:
    """Starts both servers, one after the other."""
    threads = str(options.threads)
    # 队列的长度等于连接数：这样满载与过载时，受理的请求前面排的队一样长
    ours = ["-m", "bertsmith", "serve", "--model", f"minilm={MINILM}", "--threads", threads]
    ours += ["--queue", str(options.connections), "--drain", "0"]
    ours += ["--precision", options.precision] if options.precision else []
    port, peer_port = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        mine = Server("ours", [sys.executable, *ours, "--port", str(port)], port, folder / "ours.log")
        stack.callback(mine.close)
        command = [sys.executable, "-c", PEER, str(MINILM), str(peer_port), threads]
        theirs = Server("the peer", command, peer_port, folder / "peer.log")
        stack.callback(theirs.close)
        yield mine, theirs


def offline_seconds(sentences: list[str], options: Any) -> tuple[float, int]:
    """Returns the seconds the engine alone takes for all sentences, in a process of its own, and their tokens."""
    command = [sys.executable, "-c", OFFLINE, str(MINILM), str(options.threads), options.precision]
    sent = json.dumps(sentences)
    found = subprocess.run(command, input=sent, capture_output=True, text=True, check=True, env=SHARED_ENVIRONMENT)
    seconds, tokens = found.stdout.split()[-2:]
    print(f"offline: {len(sentences) / float(seconds):.1f} sentences/s")
    return float(seconds), int(tokens)


def check_vectors(ours: Server, peer: Server, sentences: list[str]) -> None:
    """Makes sure that both servers say the same."""
    answers = []
    for server in (ours, peer):
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/embed",
            json.dumps({"texts": sentences}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            answers.append(np.asarray(json.load(answer)["vectors"]))
    cosine = float((answers[0] * answers[1]).sum(1).min())
    print(f"lowest cosine similarity with the peer: {cosine:.6f}")
    assert cosine >= LEAST_COSINE


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
    print(f"client: {1000 * (time.process_time() - cpu) / max(1, len(load.latencies)):.2f} ms of processor a request")
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
    head = f"POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def tell(what: str, load: Load) -> None:
    """Prints what a client saw."""
    latencies = f"p50 {1000 * load.percentile(0.5):.0f} ms, p99 {1000 * load.percentile(0.99):.0f} ms"
    print(f"{what}: {load.rate:.1f}/s, {latencies}, statuses {dict(load.statuses)}, not sent {load.unsent}")


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()
