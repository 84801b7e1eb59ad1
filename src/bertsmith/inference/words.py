"""A linear model over words and pieces of words: hashed n-grams, weighed by their rarity.

- features are words and pairs of words, and runs of two to five characters within words with their edges; characters of
  scripts without spaces are words of their own, so no segmenter is needed
- an n-gram is a number, its hash (Weinberger et al. 2009): there is no vocabulary
- words and characters are each weighed by 1 + log count and by rarity, and scaled to length 1 (Salton and Buckley
  1988); of pairs so are the second texts, what both texts hold, and how alike the two are
- NumPy works on the code points of many texts at once: no loop over texts, words or n-grams
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.inference.linear import LinearModel, Mix
from bertsmith.model.config import PROBLEM_TYPES

RELEVANCE, CHOICES = "rank", "choose"
"""Other problems: log odds of relevance, and scores of which a softmax is over those of a question."""

BITS = 18
"""An n-gram is one of 2^18 numbers, in each block of features: a fifth of a million n-grams collide little."""
PART = 1024
"""Texts whose n-grams are in memory at once."""

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint32]
Floats = NDArray[np.float32]
Entries = tuple[Ints, Ints, Floats]
"""Of each entry other than 0 of a matrix of features: the number of the text, of the feature, and its value."""

_SPACE, _LETTER, _ALONE, _SYMBOL = range(4)
_UNSPACED = (
    *((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF)),
    *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)
"""Scripts that write no space between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_KINDS = np.full(0x110000, -1, dtype=np.int8)
"""Kind of each code point, found when it is first met."""
_LONGEST, _WORDS, _CHARACTERS = 5, 0, 1
SIMILARITIES = 6 << BITS
"""Blocks of 2^18 features each: words and characters of the text, of the second, of both; then `ALIKE` similarities."""
ALIKE = 4


@dataclass(frozen=True)
class Words(LinearModel):
    """A linear model over hashed n-grams of texts or pairs; C is 1 for two classes, whose log odds it gives.

    Attributes:
        problem: what the outputs mean: one of `PROBLEM_TYPES`, or `RELEVANCE` or `CHOICES`, whose outputs have no name.
        rarity: [F] float32, 1 + log((1 + texts) / (1 + texts with it)).
        states: [W, C] float32; with `states_bias` [C] a linear layer over the pooled states of an encoder that was not
            trained, which gives its outputs (Devlin et al. 2019, §5.3); None where the encoder has a head of its own.
        pooling: what makes W numbers of a text's states, as in `Embed`.
    """

    most = SIMILARITIES + ALIKE
    may_be_odds = True

    problem: str
    labels: tuple[str, ...]
    features: NDArray[np.int32]
    rarity: Floats
    weights: Floats
    bias: Floats
    mix: Mix = (0.0, 1.0, 0.0)
    pooling: str = ""
    states: Floats | None = None
    states_bias: Floats | None = None

    @property
    def pipeline(self) -> str:
        """The name of the pipeline that it is for."""
        named = dict(zip(PROBLEM_TYPES, ("classify", "multilabel", "regress"), strict=True))
        return named.get(self.problem, self.problem)

    @classmethod
    def none(cls, problem: str, labels: Sequence[str]) -> Words:
        """Returns a model that knows no n-gram: all outputs are 0."""
        nothing = np.zeros(0, dtype=np.float32)
        columns = np.zeros((0, max(len(labels), 1)), dtype=np.float32)
        return cls(problem, tuple(labels), nothing.astype(np.int32), nothing, columns, columns.sum(0))

    def beside(self, other: Words | None) -> Words:
        """Returns the same with the layer over an encoder's states that another model holds."""
        if other is None:
            return self
        return replace(self, pooling=other.pooling, states=other.states, states_bias=other.states_bias)

    def of_states(self, vectors: Tensor) -> Tensor:
        """Returns [N, K] float32, the encoder's outputs from its pooled states [N, W]."""
        assert self.states is not None
        assert self.states_bias is not None
        return all_outputs(vectors.numpy() @ self.states + self.states_bias, len(self.labels))

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Tensor:
        """Returns [N, K] float32, as an encoder's head gives them."""
        found: Floats = np.empty((len(texts), self.weights.shape[1]), dtype=np.float32)
        for first in range(0, len(texts), PART):
            part = slice(first, first + PART)
            rows, columns, values = self.entries(texts[part], None if pairs is None else pairs[part])
            for column, weights in enumerate(self.weights.T):
                scores = np.bincount(rows, values * weights[columns], minlength=len(texts[part]))
                found[part, column] = scores + self.bias[column]
        return all_outputs(found, len(self.labels))

    def entries(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Entries:
        """Returns the features of N texts: of each entry its text, the place of its feature in `features`, its value.

        What training never saw is left out.
        """
        parts = [_scaled(*self._weighed(*block)) for block in counted(texts, pairs)]
        if pairs is not None:
            parts += self._alike(texts, pairs)
        rows, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        return rows, columns, values.astype(np.float32)

    def _weighed(self, rows: Ints, features: Ints, values: Floats) -> Entries:
        places = self.places[features]
        known = places >= 0
        rows, columns = rows[known], places[known].astype(np.int64)
        return rows, columns, values[known] * self.rarity[columns]

    def _alike(self, texts: Sequence[str], pairs: Sequence[str]) -> Iterator[Entries]:
        """Yields the cosine of both texts' words and the share of the first's that the second has; so of characters."""
        # 训练没见过的词（-1，即最后一个）两边都有，正是最强的相似：按最罕见的算
        rarity = np.append(self.rarity, self.rarity.max(initial=1.0))
        for kind in (_WORDS, _CHARACTERS):
            # 没有特征的模型（多数类）也不比较两段
            places = self.places[SIMILARITIES + kind : SIMILARITIES + ALIKE : 2]
            if not len(places := places[places >= 0]):
                continue
            sides = []
            for given in (texts, pairs):
                rows, features, values = list(counted(given, None))[kind]
                rows, _, scaled = _scaled(rows, features, values * rarity[self.places[features]])
                sides.append((rows << (BITS + 1) | features, rows, scaled))
            _, left, right = np.intersect1d(sides[0][0], sides[1][0], assume_unique=True, return_indices=True)
            ours, theirs, of = sides[0][2][left], sides[1][2][right], sides[0][1][left]
            # 段落越长，余弦越小；问题的词有多少在段落里，与长短无关
            for place, products in zip(places, (ours * theirs, ours * ours), strict=False):
                found = np.bincount(of, products, minlength=len(texts)).astype(np.float32)
                yield np.arange(len(texts)), np.full(len(texts), place), SIMILARITY_SCALE * found


SIMILARITY_SCALE = np.float32(5.0)
"""Makes a similarity, one feature among hundreds, cheap to learn under the same penalty."""


def all_outputs(found: Floats, labels: int) -> Tensor:
    """Returns [N, labels] of [N, C]: of two classes whose log odds are given, 0 and these."""
    # 两类只存一列对数几率：另一类记 0，softmax 之后与逻辑回归一致
    if found.shape[1] < labels:
        found = np.concatenate([np.zeros_like(found), found], axis=1)
    return torch.from_numpy(found)


def _scaled(rows: Ints, columns: Ints, values: Floats) -> Entries:
    """Scales the entries of each text to length 1."""
    lengths = np.sqrt(np.bincount(rows, values * values)) if len(rows) else np.ones(1)
    return rows, columns, (values / lengths[rows]).astype(np.float32)


def counted(texts: Sequence[str], pairs: Sequence[str] | None) -> Iterator[Entries]:
    """Yields the features of N texts block by block, each with 1 + log of its count."""
    first = [_distinct(*grams) for grams in ngrams(texts)]
    yield from (_block(keys, counts, number) for number, (keys, counts) in enumerate(first))
    if pairs is not None:
        second = [_distinct(*grams) for grams in ngrams(pairs)]
        yield from (_block(keys, counts, 2 + number) for number, (keys, counts) in enumerate(second))
        for number, ((keys, _), (others, _)) in enumerate(zip(first, second, strict=True)):
            both = np.intersect1d(keys, others, assume_unique=True)
            yield _block(both, np.ones(len(both)), 4 + number)


def _distinct(owners: Ints, hashes: Hashes) -> tuple[Ints, NDArray[np.float64]]:
    """Returns text number and feature in one number, rising, and how often each occurs."""
    # 一次排序完成去重与计数：键的高位是文本，低位是特征
    keys = np.sort(owners << BITS | (hashes >> np.uint32(32 - BITS)).astype(np.int64))
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.diff(first, append=len(keys)).astype(np.float64)


def _block(keys: Ints, counts: NDArray[np.float64], number: int) -> Entries:
    return keys >> BITS, (number << BITS) + (keys & ((1 << BITS) - 1)), (1 + np.log(counts)).astype(np.float32)


def ngrams(texts: Sequence[str]) -> tuple[tuple[Ints, Hashes], tuple[Ints, Hashes]]:
    """Hashes the n-grams of N texts, lower-cased: the text number and the hash of each.

    Words and pairs of words come first, then runs of 2 to 5 characters.
    """
    joined = "\n".join(text.replace("\n", " ") for text in texts).lower()
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    kinds = kinds_of(codes)
    kept = np.flatnonzero(kinds != _SPACE)
    owners, kinds = np.cumsum(codes == ord("\n"))[kept], kinds[kept]
    if not len(kept):
        nothing = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint32))
        return nothing, nothing
    mixed = mixed_bits(codes[kept] * np.uint32(0x9E3779B1))
    begins = (np.diff(kept, prepend=-2) > 1) | (np.diff(kinds, prepend=-1) != 0)
    return _word_grams(mixed, owners, begins | (kinds == _ALONE)), _character_grams(mixed, owners, begins)


def kinds_of(codes: Hashes) -> NDArray[np.int8]:
    """Returns for each code point 0 for white space, 1 for letters and digits, 2 and 3 for what stands alone."""
    found = _KINDS[codes]
    if (found < 0).any():
        new = np.unique(codes[found < 0])
        _KINDS[new] = [_kind(code) for code in new.tolist()]
        found = _KINDS[codes]
    return found


def _kind(code: int) -> int:
    if any(first <= code <= last for first, last in _UNSPACED):
        return _ALONE
    category = unicodedata.category(chr(code))[0]
    # 附标（M）是词的一部分：印地语、阿拉伯语的元音符号不把词切开
    return _LETTER if category in "LMN" or code == ord("_") else _SPACE if category in "ZC" else _SYMBOL


def _word_grams(mixed: Hashes, owners: Ints, begins: NDArray[np.bool_]) -> tuple[Ints, Hashes]:
    """Hashes words and pairs of neighbours; a word begins where it says so."""
    starts = np.flatnonzero(begins)
    words, of = run_hashes(mixed, starts), owners[starts]
    same = of[:-1] == of[1:]
    pairs = mixed_bits((words[:-1] * PRIME ^ words[1:])[same])
    return np.concatenate([of, of[:-1][same]]), np.concatenate([words, pairs])


def run_hashes(mixed: Hashes, starts: Ints) -> Hashes:
    """Returns [R] hashes of runs of one or more characters, which begin at `starts` [R] among hashes `mixed` [C]."""
    lengths = np.diff(starts, append=len(mixed))
    within = np.arange(len(mixed)) - np.repeat(starts, lengths)
    # 散列是一个多项式：字符散列乘以奇数的幂，按段求和（模 2^64）
    powers = np.cumprod(np.full(int(lengths.max()), 0x9E3779B97F4A7C15, dtype=np.uint64))
    return mixed_bits((np.add.reduceat(mixed * powers[within], starts) >> np.uint64(32)).astype(np.uint32))


def _character_grams(mixed: Hashes, owners: Ints, begins: NDArray[np.bool_]) -> tuple[Ints, Hashes]:
    """Hashes runs of 2 to 5 characters within words; the edge of a word counts as a character."""
    # 每个词前插入一个边界，行末再加一个：跨过边界的串不要，落在两端的边界要
    places = np.arange(len(mixed)) + np.cumsum(begins)
    line = np.zeros(int(places[-1]) + 2, dtype=np.uint32)
    line[places] = mixed
    edges = np.ones(len(line), dtype=bool)
    edges[places] = False
    of = np.zeros(len(line), dtype=np.int64)
    of[places] = owners
    found = []
    running: Hashes = line
    inside: NDArray[np.bool_] = np.ones(len(line), dtype=bool)
    for length in range(2, _LONGEST + 1):
        count = len(line) - length + 1
        if count <= 0:
            break
        running = running[:count] * PRIME ^ line[length - 1 :]
        # 长度每加一，原来的最后一个字符就成了中间的：它不能是边界
        inside = inside[:count] & ~edges[length - 2 : length - 2 + count] if length > 2 else inside[:count]
        chosen = np.flatnonzero(inside)
        # 首字符可能是边界，第二个一定属于这个词；只有两个边界相邻时才不是，而那不会出现
        found.append((of[np.where(edges[chosen], chosen + 1, chosen)], mixed_bits(running[chosen] + np.uint32(length))))
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


PRIME = np.uint32(16777619)


def mixed_bits(hashes: Hashes) -> Hashes:
    """Spreads what differs in any bit over all bits (the last steps of MurmurHash3)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes ^ (hashes >> np.uint32(16))
