"""What Prometheus can ask at `/metrics`: requests, latencies, batches, the queue.

Labels come from fixed sets: nothing a client sends can make a new time series. Several worker processes keep their
figures in a shared folder, as `prometheus_client` does it, and any of them answers for all.
"""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that names the folder in which worker processes keep their figures."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Metrics:
    """The figures of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, said: str, *labels: str) -> Counter:
            return Counter(f"bertsmith_{name}", said, labels, registry=self._registry)

        def histogram(name: str, said: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"bertsmith_{name}", said, labels, buckets=buckets, registry=self._registry)

        def gauge(name: str, said: str) -> Gauge:
            return Gauge(f"bertsmith_{name}", said, registry=self._registry, multiprocess_mode="livesum")

        self._requests = counter("requests", "Requests answered, by status.", "endpoint", "status")
        said = "From the first byte of a request to the last of its answer."
        self._seconds = histogram("request_seconds", said, _SECONDS, "endpoint")
        self._items = counter("items", "Texts of answered requests.", "endpoint")
        self._tokens = counter("tokens", "Tokens that models read.", "endpoint")
        self._sequences = histogram("batch_sequences", "Sequences in a forward pass.", _SIZES)
        self._batch_tokens = histogram("batch_tokens", "Tokens in a forward pass.", _TOKENS)
        self._batch_seconds = histogram("batch_seconds", "Seconds of a forward pass.", _SECONDS)
        self._queue = gauge("queue_requests", "Requests accepted and not answered yet.")
        self._queue_tokens = gauge("queue_tokens", "Tokens that wait to be computed.")

    def answered(self, endpoint: str, status: int, seconds: float, items: int, tokens: int) -> None:
        """Counts an answered request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)
        if items:
            self._items.labels(endpoint).inc(items)
        if tokens:
            self._tokens.labels(endpoint).inc(tokens)

    def computed(self, sequences: int, tokens: int, seconds: float) -> None:
        """Counts a forward pass."""
        self._sequences.observe(sequences)
        self._batch_tokens.observe(tokens)
        self._batch_seconds.observe(seconds)

    def queued(self, requests: int, tokens: int) -> None:
        """Says how much waits now."""
        self._queue.set(requests)
        self._queue_tokens.set(tokens)

    def text(self) -> bytes:
        """Returns everything in Prometheus' text format."""
        folder = os.environ.get(SHARED_FOLDER)
        if folder is None:
            return generate_latest(self._registry)
        for file in Path(folder).glob("gauge_live*_*.db"):
            try:
                os.kill(int(file.stem.rpartition("_")[2]), 0)
            except ProcessLookupError:
                # 被 kill -9 的进程来不及收尾，它的队列长度会永远留在总和里
                file.unlink(missing_ok=True)
            except PermissionError:
                pass
        together = CollectorRegistry()
        MultiProcessCollector(together, folder)  # type: ignore[no-untyped-call]
        return generate_latest(together)
