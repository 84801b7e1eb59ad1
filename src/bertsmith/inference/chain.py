"""A linear chain over tags: hashed features of words and their neighbours, and which tag follows which.

- a conditional random field (Lafferty et al. 2001): the score of a sentence's tags is the sum of what the features of
  its words say and of what each tag says of the next; probabilities are those of whole sentences
- features are what a word looks like and what stands around it (Ratnaparkhi 1996; Toutanova et al. 2003); each is a
  number, its hash, so there is no vocabulary
- NumPy works on many sentences at once; forward and backward (Rabiner 1989) take a step for all of them together
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.inference.linear import LinearModel, Mix
from bertsmith.inference.words import PRIME, Hashes, Ints, kinds_of, mixed_bits, run_hashes

BITS = 22
"""A feature is one of 2^22 numbers."""
AFFIXES = 5
"""Characters of the longest prefix and suffix."""
PART = 1024
"""Sentences whose features are in memory at once."""
LEAST = -200.0
"""Log of the least factor beside the greatest: products of two still are above 0."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chain(LinearModel):
    """A linear-chain conditional random field over hashed features of words; its outputs are of each word.

    `transitions` [K, K] float32: what the tag of a row says of the tag of a column behind it.
    """

    most = 1 << BITS
    pipeline = "tag"

    labels: tuple[str, ...]
    features: NDArray[np.int32]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    transitions: NDArray[np.float32]
    mix: Mix = (0.0, 1.0, 0.0)

    @classmethod
    def none(cls, labels: Sequence[str]) -> Chain:
        """Returns a chain that knows no feature: every tag is as likely as the others."""
        nothing = np.zeros((len(labels), len(labels)), dtype=np.float32)
        return cls(tuple(labels), np.zeros(0, dtype=np.int32), nothing[:0], nothing[0], nothing)

    def logits(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Returns [W, K] float32, the log-probability of each tag for each of the W words of all sentences."""
        # 末尾一行零：没见过的特征什么也不说
        weights = np.concatenate([self.weights, np.zeros((1, len(self.labels)), dtype=np.float32)])
        found = [np.zeros((0, len(self.labels)))]
        for first in range(0, len(sentences), PART):
            part = sentences[first : first + PART]
            scores = np.tile(self.bias.astype(np.float64), (sum(map(len, part)), 1))
            for column in looks(part).T:
                scores += weights[self.places[column]]
            _, probabilities, _ = chances(scores, self.transitions.astype(np.float64), Steps.of(list(map(len, part))))
            found.append(np.log(np.maximum(probabilities, 1e-30)))
        return torch.from_numpy(np.concatenate(found).astype(np.float32))


@dataclass(frozen=True)
class Steps:
    """The words of sentences that lie end to end, by their place in the sentence.

    For each place, `words` holds the numbers of the words there, those of longer sentences first; `later` holds the
    numbers of all words but the first of each sentence.
    """

    words: tuple[Ints, ...]
    later: Ints

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Steps:
        """Lays out sentences of these many words."""
        counts = np.asarray(sizes, dtype=np.int64)
        first = np.cumsum(counts) - counts
        order = np.argsort(-counts, kind="stable")
        # 由长到短：第 t 步还没完的句子总是前几个，一步同时走完所有句子
        words = [first[order[: int((counts > place).sum())]] + place for place in range(int(counts.max(initial=0)))]
        return cls(tuple(words), np.concatenate([np.zeros(0, dtype=np.int64), *words[1:]]))


def chances(scores: Floats, transitions: Floats, steps: Steps) -> tuple[float, Floats, Floats]:
    """Sums over all tags of all sentences, forward and backward (Rabiner 1989, §V.A; Lafferty et al. 2001, §3).

    Args:
        scores: [W, K], of each tag for each word.
        transitions: [K, K], of each tag behind each.

    Returns:
        The sum of the sentences' log normalizers; [W, K], the probability of each tag for each word; [K, K], how many
        times a tag is expected behind another.
    """
    top, most = scores.max(1, keepdims=True), transitions.max(initial=0.0)
    factors = np.exp(np.maximum(scores - top, LEAST))
    follow = np.exp(np.maximum(transitions - most, LEAST))
    forward, backward = np.empty_like(factors), np.ones_like(factors)
    sums = np.empty((len(factors), 1))
    for place, here in enumerate(steps.words):
        reached = factors[here]
        if place:
            reached *= forward[steps.words[place - 1][: len(here)]] @ follow
        # 每个词处都归一：长句的连乘才不会下溢，归一的因子乘起来就是配分函数
        sums[here] = reached.sum(1, keepdims=True)
        forward[here] = reached / sums[here]
    behind = np.zeros_like(factors)
    for place in range(len(steps.words) - 1, 0, -1):
        here = steps.words[place]
        behind[here] = factors[here] * backward[here] / sums[here]
        backward[steps.words[place - 1][: len(here)]] = behind[here] @ follow.T
    expected = follow * (forward[steps.later - 1].T @ behind[steps.later])
    return float(np.log(sums).sum() + top.sum() + most * len(steps.later)), forward * backward, expected


def words_in(text: str) -> list[tuple[int, int]]:
    """Returns where the words of a raw text begin and end: runs of letters and digits, other characters alone."""
    kinds = kinds_of(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32))
    begins = np.flatnonzero((kinds > 0) & ((np.diff(kinds, prepend=0) != 0) | (kinds > 1)))
    ends = np.flatnonzero((kinds > 0) & ((np.diff(kinds, append=0) != 0) | (kinds > 1))) + 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def looks(sentences: Sequence[Sequence[str]]) -> Ints:
    """Returns the features of the W words of sentences, [W, T]: numbers below 2^22, and -1 where a word has none."""
    words = [word or "\0" for word in chain.from_iterable(sentences)]
    owners: Ints = np.repeat(np.arange(len(sentences)), [len(words) for words in sentences])
    if not words:
        return np.zeros((0, 0), dtype=np.int64)
    codes, starts = codes_of(words)
    lower, lower_starts = codes_of([word.lower() for word in words])
    exact, plain = (run_hashes(spread(one), begin) for one, begin in ((codes, starts), (lower, lower_starts)))
    shape, short = run_hashes(_shapes(codes), starts), kinds_in_short(codes, starts)
    prefixes, suffixes = _affixes(spread(lower), lower_starts)
    ones: list[tuple[Hashes, NDArray[np.bool_] | None]] = [(exact, None), (plain, None), (shape, None), (short, None)]
    ones += [*prefixes, *suffixes]
    end = suffixes[2][0]
    at = partial(neighbours, sentences=owners)

    def pair(first: Hashes, second: Hashes) -> Hashes:
        return mixed_bits(first * PRIME ^ second)

    around = [at(hashes, offset) for hashes in (plain, short) for offset in (-2, -1, 1, 2)]
    around += [at(end, offset) for offset in (-1, 1)]
    around += [pair(at(plain, -1), plain), pair(plain, at(plain, 1)), pair(at(plain, -1), at(plain, 1))]
    around += [pair(at(short, -1), short), pair(short, at(short, 1)), pair(at(end, -1), end)]
    columns = [*ones, *((hashes, None) for hashes in around)]
    found = np.empty((len(words), len(columns)), dtype=np.int64)
    for number, (hashes, has) in enumerate(columns):
        # 模板的编号搅进散列：同一个词在左边和在右边是两个特征
        column = salted(hashes, number) >> np.uint32(32 - BITS)
        found[:, number] = column if has is None else np.where(has, column.astype(np.int64), -1)
    return found


def neighbours(hashes: Hashes, offset: int, *, sentences: Ints) -> Hashes:
    """Returns the hash of each word's neighbour in its sentence; beyond an end of it a hash of its own.

    `sentences` [W] numbers the sentence of each word.
    """
    places: Ints = np.arange(len(hashes)) + offset
    inside = (places >= 0) & (places < len(hashes))
    places = np.where(inside, places, 0)
    return np.where(inside & (sentences[places] == sentences), hashes[places], np.uint32(0x51ED270B))


def salted(hashes: Hashes, number: int) -> Hashes:
    """Mixes the number of a kind of feature into hashes, so that the same hash of another kind is another feature."""
    return mixed_bits(hashes + np.uint32((number * 0x9E3779B1) & 0xFFFFFFFF))


def codes_of(words: Sequence[str]) -> tuple[Hashes, Ints]:
    """Returns the code points of words, end to end, and where each begins; each has at least one."""
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    return codes, np.cumsum(lengths) - lengths


def spread(codes: Hashes) -> Hashes:
    """Hashes characters, each by itself."""
    return mixed_bits(codes * np.uint32(0x9E3779B1))


def kinds_in_short(codes: Hashes, starts: Ints) -> Hashes:
    """Hashes the shapes of words with each run of a kind of character as one: `Xxxx-dd` as `Xx-d`."""
    shapes = _shapes(codes)
    kept = np.diff(shapes, prepend=np.uint32(0)) != 0
    kept[starts] = True
    return run_hashes(shapes[kept], np.cumsum(kept)[starts] - 1)


def _shapes(codes: Hashes) -> Hashes:
    unique, places = np.unique(codes, return_inverse=True)
    return spread(np.array([_kind(code) for code in unique.tolist()], dtype=np.uint32)[places])


def _kind(code: int) -> int:
    """Returns what stands for a character in a shape: X, x, d, another letter; marks stand for themselves."""
    category = unicodedata.category(chr(code))
    kinds = {"Lu": "X", "Lt": "X", "Ll": "x", "Lo": "o", "Lm": "o"}
    return ord(kinds.get(category, "d" if category[0] == "N" else chr(code)))


def _affixes(mixed: Hashes, starts: Ints) -> tuple[list[tuple[Hashes, NDArray[np.bool_]]], ...]:
    """Returns hashes of the first and of the last 1 to 5 characters (or of all), and which words are that long."""
    ends = np.append(starts[1:], len(mixed))
    sides: list[list[tuple[Hashes, NDArray[np.bool_]]]] = []
    for first, step in ((starts, 1), (ends - 1, -1)):
        running: Hashes = np.zeros(len(starts), dtype=np.uint32)
        found = []
        for count in range(AFFIXES):
            has = ends - starts > count
            letters = mixed[np.where(has, first + step * count, first)]
            running = np.where(has, running * PRIME ^ letters, running)
            found.append((mixed_bits(running), has))
        sides.append(found)
    return tuple(sides)
