"""Word vectors beside gensim's, of the same pieces of the same text: neighbours, analogies and words a second.

Neighbours: the ten nearest of the 1,000 most frequent whole words; the share that two trainings have in common, of this
project and gensim, and of gensim with itself from two seeds, which is how far agreement can go. Analogies: plurals
(day : days :: king : ?) of all pairs that the vocabulary holds, by the nearest word to the sum of directions.

    python benchmarks/word_vectors.py
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gensim.models import Word2Vec

from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.neighbours import WordVectorOptions, WordVectors, learn_word_vectors
from bertsmith.tokenizer import Tokenizer
from measured import add_options, results_of
from objectives import prepare

FREQUENT, NEAR = 1000, 10
SAMPLED_PLURALS = 400


def main() -> None:
    """Trains what is not in the results yet, and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1)
    parser.add_argument("--method", choices=("skip-gram", "cbow"), nargs="*", default=["skip-gram", "cbow"])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/objectives"), help="folder of corpus and vocabulary")
    options = parser.parse_args()
    if options.quick:
        options.method, options.epochs = ["cbow"], 1
    torch.set_num_threads(options.threads)
    corpus, tokenizer = prepare(options.out)
    done = results_of("word_vectors", options)
    for method in options.method:
        setting = {
            "name": method,
            "epochs": options.epochs,
            "tokens": corpus.counts[TRAIN].tokens,
        }
        row = done.get(setting, lambda: _compared(corpus, tokenizer, method, options))  # noqa: B023
        print(method, row)


def _compared(corpus: TokenCorpus, tokenizer: Tokenizer, method: str, options: Any) -> dict[str, float]:
    sentences = list(_sentences(corpus, tokenizer))
    words = sum(map(len, sentences))
    chosen = WordVectorOptions(method=method, epochs=options.epochs)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        ours = learn_word_vectors(Path(folder) / "run", corpus, tokenizer, chosen)
        own_seconds = time.perf_counter() - begun
    peers, peer_seconds = [], 0.0
    for seed in (1, 2):
        begun = time.perf_counter()
        peers.append(_gensim(sentences, method, chosen, seed=seed, threads=options.threads))
        peer_seconds = time.perf_counter() - begun
    known = [word for word in ours.words if word.isalpha()][:FREQUENT]
    near = [_near(vectors, known) for vectors in (ours, *peers)]
    plurals = _plurals(ours.words)
    return {
        "overlap": _overlap(near[0], near[1]),
        "overlap_of_gensim_with_itself": _overlap(near[1], near[2]),
        "plurals": _solved(ours, plurals),
        "plurals_gensim": float(np.mean([_solved(peer, plurals) for peer in peers])),
        "plural_pairs": len(plurals),
        "words_per_second": words * options.epochs / own_seconds,
        "words_per_second_gensim": words * options.epochs / peer_seconds,
    }


def _sentences(corpus: TokenCorpus, tokenizer: Tokenizer) -> Iterator[list[str]]:
    for number in range(corpus.counts[TRAIN].documents):
        for ids in corpus.document(TRAIN, number):
            yield [tokenizer.vocab[one] for one in ids.tolist()]


def _gensim(
    sentences: list[list[str]], method: str, chosen: WordVectorOptions, *, seed: int, threads: int
) -> WordVectors:
    trained = Word2Vec(
        sentences,
        sg=int(method == "skip-gram"),
        vector_size=chosen.size,
        window=chosen.window,
        negative=chosen.negatives,
        sample=chosen.sample,
        epochs=chosen.epochs,
        alpha=chosen.rate,
        min_count=1,
        seed=seed,
        workers=threads,
    )
    return WordVectors(trained.wv.index_to_key, trained.wv.vectors)


def _near(vectors: WordVectors, words: list[str]) -> list[set[str]]:
    return [{word for word, _ in vectors.nearest([each], count=NEAR)} for each in words]


def _overlap(one: list[set[str]], other: list[set[str]]) -> float:
    return float(np.mean([len(a & b) / NEAR for a, b in zip(one, other, strict=True)]))


def _plurals(words: list[str]) -> list[tuple[str, str]]:
    """Returns words of four letters or more whose plural is a piece, too, the most frequent first."""
    known = set(words)
    return [(word, word + "s") for word in words if len(word) >= 4 and word.isalpha() and word + "s" in known]


def _solved(vectors: WordVectors, pairs: list[tuple[str, str]]) -> float:
    """Returns the share of plurals found from another pair."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(SAMPLED_PLURALS):
        (one, many), (other, others) = (pairs[number] for number in rng.choice(len(pairs), 2, replace=False))
        hits.append(vectors.nearest([many, other], [one], 1)[0][0] == others)
    return float(np.mean(hits))


if __name__ == "__main__":
    main()
