"""Linear probes: what can be read off each layer by a linear model (Alain & Bengio 2017; Tenney et al. 2019).

For every layer a logistic regression learns from the states of words, at their first piece, what their tag is, and how
many words stand before them; the model itself stays as it is. Half of the sentences teach, the others are scored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.inference.tag import pieces_of_words, word_windows
from bertsmith.tokenizer import Tokenizer

MOST_SENTENCES, FARTHEST = 600, 12
"""Sentences that are looked at, and places that are told apart."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class LayerScores:
    """Accuracies on sentences that taught nothing.

    Attributes:
        tags: of each layer, embeddings first.
        places: the same, of how many words stand before.
        usual_tag: of always naming the most frequent tag.
        usual_place: of always naming the most frequent place.
    """

    tags: list[float]
    places: list[float]
    usual_tag: float
    usual_place: float


def probe_layers(
    layers_of: Callable[[RaggedBatch], Sequence[Tensor]],
    position_limit: int,
    tokenizer: Tokenizer,
    sentences: Sequence[TaggedWords],
) -> LayerScores:
    """Probes every layer of a model.

    Args:
        layers_of: gives the states [T, H] of each layer for a batch, embeddings first.
        position_limit: most tokens that it reads.
        tokenizer: its own.
        sentences: words and their tags.

    Raises:
        InputError: there are too few sentences, or one tag alone.
    """
    sentences = sentences[:MOST_SENTENCES]
    layers, tags, places, owners = _states(layers_of, position_limit, tokenizer, sentences)
    learns = owners % 2 == 0
    if len(sentences) < 4 or len(set(tags[learns])) < 2:
        raise InputError("probing layers needs four sentences at least, with two tags or more")
    near = places < FARTHEST
    scores: dict[str, list[float]] = {"tags": [], "places": []}
    for states in layers:
        for name, truth, chosen in (("tags", tags, np.ones_like(near)), ("places", places, near)):
            scores[name].append(_accuracy(states, truth, learns & chosen, ~learns & chosen))
    usual = [
        _usual(truth[learns & chosen], truth[~learns & chosen])
        for truth, chosen in ((tags, near | True), (places, near))
    ]
    return LayerScores(scores["tags"], scores["places"], *usual)


def _states(
    layers_of: Callable[[RaggedBatch], Sequence[Tensor]],
    position_limit: int,
    tokenizer: Tokenizer,
    sentences: Sequence[TaggedWords],
) -> tuple[list[Floats], NDArray[np.str_], NDArray[np.int64], NDArray[np.int64]]:
    """Returns the states [W, H] of all words in each layer, their tags, their places and their sentences."""
    kept: list[list[Floats]] = []
    tags, places, owners = [], [], []
    pieces = pieces_of_words(tokenizer, [sentence.words for sentence in sentences])
    for window in word_windows(tokenizer, pieces, position_limit):
        with torch.inference_mode():
            layers = layers_of(RaggedBatch.from_sequences([window.input_ids]))
        kept.append([layer[window.positions].float().cpu().numpy() for layer in layers])
        tags += [sentences[window.sentence].tags[word] for word in window.words]
        places += list(window.words)
        owners += [window.sentence] * len(window.words)
    joined = [np.concatenate(states) for states in zip(*kept, strict=True)]
    return joined, np.array(tags), np.array(places), np.array(owners)


def _accuracy(
    states: Floats, truth: NDArray[np.generic], learns: NDArray[np.bool_], judged: NDArray[np.bool_]
) -> float:
    # 各维先缩放到同样的大小：正则化才对每一维一视同仁，各层之间也才能比
    scaler = StandardScaler().fit(states[learns])
    probe = LogisticRegression(C=0.1, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        probe.fit(scaler.transform(states[learns]), truth[learns])
    return float(probe.score(scaler.transform(states[judged]), truth[judged]))


def _usual(seen: NDArray[np.generic], judged: NDArray[np.generic]) -> float:
    values, counts = np.unique(seen, return_counts=True)
    return float(np.mean(judged == values[counts.argmax()]))
