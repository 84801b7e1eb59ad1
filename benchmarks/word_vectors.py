"""Word vectors beside gensim's, of the same pieces of the same text: neighbours, analogies and words a second.

Neighbours: the ten nearest of the 1,000 most frequent whole words; the share that two trainings have in common, of this
project with gensim, and of each with itself from other seeds, which is how far agreement can go. Both read the same
sentences, since a window ends where a sentence does, in an order of documents that the seed draws. Analogies: plurals
(day : days :: king : ?) of all pairs that the vocabulary holds, by the nearest word to the sum of directions.

    python benchmarks/word_vectors.py --epochs 3
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gensim.models import Word2Vec

from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.tokenizer import Tokenizer
from bertsmith_school.neighbours import WordVectorOptions, WordVectors, learn_word_vectors
from measured import CLOCKS, add_options, results_of
from objectives import prepare

FREQUENT, NEAR = 1000, 10
SAMPLED_PLURALS = 400


def main() -> None:
    """Trains what is not in the results yet, and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=1, clocks=True)
    parser.add_argument("--method", choices=("skip-gram", "cbow"), nargs="*", default=["skip-gram", "cbow"])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each")
    parser.add_argument("--out", type=Path, default=Path("runs/objectives"), help="folder of corpus and vocabulary")
    options = parser.parse_args()
    if options.quick:
        options.method, options.epochs, options.seeds = ["cbow"], 1, 2
        options.out = Path("runs/bench-quick/word_vectors")
    torch.set_num_threads(options.threads)
    corpus, tokenizer = prepare(options.out, quick=options.quick)
    done = results_of("word_vectors", options)
    for method in options.method:
        setting = {
            "name": method,
            "epochs": options.epochs,
            "seeds": options.seeds,
            "tokens": corpus.counts[TRAIN].tokens,
        }
        row = done.get(setting, lambda: _compared(corpus, tokenizer, method, options))  # noqa: B023
        print(method, row)


def _compared(corpus: TokenCorpus, tokenizer: Tokenizer, method: str, options: Any) -> dict[str, float]:
    words = corpus.counts[TRAIN].tokens * options.epochs
    own, peers, clock = [], [], CLOCKS[options.clock]
    seconds = {"own": 0.0, "peers": 0.0}
    for seed in range(options.seeds):
        chosen = WordVectorOptions(method=method, epochs=options.epochs, seed=seed)  # type: ignore[arg-type]
        with tempfile.TemporaryDirectory() as folder:
            begun = clock()
            own.append(learn_word_vectors(Path(folder) / "run", corpus, tokenizer, chosen))
            seconds["own"] += clock() - begun
        sentences = list(_sentences(corpus, tokenizer, seed))
        begun = clock()
        peers.append(_gensim(sentences, method, chosen, threads=options.threads))
        seconds["peers"] += clock() - begun
    known = [word for word in own[0].words if word.isalpha()][:FREQUENT]
    near_own, near_peers = ([_near(vectors, known) for vectors in each] for each in (own, peers))
    plurals = _plurals(own[0].words)
    return {
        **_spread("overlap", [_overlap(one, other) for one in near_own for other in near_peers]),
        **_spread("overlap_of_gensim_with_itself", [_overlap(*pair) for pair in combinations(near_peers, 2)]),
        **_spread("overlap_of_own_with_itself", [_overlap(*pair) for pair in combinations(near_own, 2)]),
        **_spread("plurals", [_solved(each, plurals) for each in own]),
        **_spread("plurals_gensim", [_solved(each, plurals) for each in peers]),
        "plural_pairs": len(plurals),
        "words_per_second": words * options.seeds / seconds["own"],
        "words_per_second_gensim": words * options.seeds / seconds["peers"],
    }


def _sentences(corpus: TokenCorpus, tokenizer: Tokenizer, seed: int) -> Iterator[list[str]]:
    """Yields the sentences of the documents, whose order the seed draws."""
    for number in np.random.default_rng(seed).permutation(corpus.counts[TRAIN].documents).tolist():
        for ids in corpus.document(TRAIN, number):
            yield [tokenizer.vocab[one] for one in ids.tolist()]


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {name: float(np.mean(values)), f"{name}_deviation": float(np.std(values, ddof=1)) if values[1:] else 0.0}


def _gensim(sentences: list[list[str]], method: str, chosen: WordVectorOptions, *, threads: int) -> WordVectors:
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
        seed=chosen.seed + 1,
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
