"""A linear model over the words of a passage: where the answer to a question begins and ends, with hashed features.

- a passage's words are a chain of six states: before the answer, its only word, its first, inside, its last, behind it;
  the score of a span adds up what its first word says of beginning, its last of ending, and each of being inside;
  probabilities are those of all spans (see `chain`)
- features are how a word looks, its neighbours, how near it is to words of the question, and how well its sentence
  fits; all beside how the question asks: its first words, and those that the passage lacks ("how many", 哪 年), so no
  list of question words is needed (after Rajpurkar et al. 2016, §5)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.inference.chain import Steps, chances, codes_of, kinds_in_short, neighbours, salted, spread, words_in
from bertsmith.inference.linear import LinearModel, Mix
from bertsmith.inference.words import PRIME, Hashes, Ints, mixed_bits, run_hashes

BITS = 20
"""A feature is one of 2^20 numbers."""
OUTPUTS = ("start", "inside", "end", "none")
"""What is said of each word; of the last word also that the passage holds no answer."""
ASKED = 4
"""Words of a question, not in its passage, that are taken for how it asks."""
REACH = 6.0
"""Words over which a word of the question makes its neighbours likelier, by 1/e."""
STEM = 4
"""First characters of a word that are compared where the passage does not have it as it is."""
END_OF_SENTENCE = frozenset(".!?。！？")
FAR = 1e9
MOST_KEPT = 10_000
"""Characters of a passage whose words are kept for the next question; these are a hundred times as large."""

Floats = NDArray[np.float64]

# 六种状态：答案之前、独词答案、首词、中间、末词、答案之后；每种由哪几项得分相加
_BEFORE, _ONLY, _FIRST, _WITHIN, _LAST, _BEHIND = range(6)
STATES = np.zeros((len(OUTPUTS), 6))
"""[4, 6], which outputs make up the score of each state; that of no answer belongs to the last word alone."""
STATES[0, [_ONLY, _FIRST]] = 1
STATES[1, [_ONLY, _FIRST, _WITHIN, _LAST]] = 1
STATES[2, [_ONLY, _LAST]] = 1
_FOLLOWS = (
    *((_BEFORE, _BEFORE), (_BEFORE, _ONLY), (_BEFORE, _FIRST), (_FIRST, _WITHIN), (_FIRST, _LAST)),
    *((_WITHIN, _WITHIN), (_WITHIN, _LAST), (_ONLY, _BEHIND), (_LAST, _BEHIND), (_BEHIND, _BEHIND)),
)
NEVER = -200.0
TRANSITIONS = np.full((6, 6), NEVER)
for _one, _next in _FOLLOWS:
    TRANSITIONS[_one, _next] = 0


@dataclass(frozen=True)
class Spans(LinearModel):
    """A linear model over hashed features of a passage's words beside a question; its outputs are of each word."""

    most = 1 << BITS
    pipeline = "answer"
    labels = OUTPUTS

    features: NDArray[np.int32]
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]
    mix: Mix = (0.0, 1.0, 0.0)

    def logits(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """Returns [W, 4] float32, `OUTPUTS` for each of the W words of all passages; pairs are question and passage."""
        weights = np.concatenate([self.weights, np.zeros((1, len(OUTPUTS)), dtype=np.float32)])
        found = [np.zeros((0, len(OUTPUTS)), dtype=np.float32)]
        found += [weights[self.places[looks(*pair)]].sum(1) + self.bias for pair in pairs]
        return torch.from_numpy(np.concatenate(found))


def span_chances(scores: Floats, sizes: Sequence[int], *, none: bool) -> tuple[float, Floats]:
    """Sums over all answers of all questions, and over no answer where there may be `none`.

    Args:
        scores: [W, 4], `OUTPUTS` for each word.
        sizes: words of each passage, W together.

    Returns:
        The sum of the questions' log normalizers; [W, 4], how many times each output is expected to count.
    """
    last = np.cumsum(sizes) - 1
    first = last - np.asarray(sizes) + 1
    states = scores @ STATES
    states[first[:, None], [_WITHIN, _LAST, _BEHIND]] += 2 * NEVER
    # 走到段尾还停在“答案之前”，就是没有答案：只有末词的这一项可以这样收尾
    states[last, _BEFORE] += scores[last, 3] if none else 2 * NEVER
    states[last[:, None], [_FIRST, _WITHIN]] += 2 * NEVER
    normalizer, chance, _ = chances(states, TRANSITIONS, Steps.of(sizes))
    expected = chance @ STATES.T
    if none:
        expected[last, 3] = chance[last, _BEFORE]
    return normalizer, expected


def best_word_spans(scores: Floats, most: int, count: int) -> list[tuple[float, int, int]]:
    """Returns the `count` best answers of at most `most` words in one passage: score, first and last word.

    Best first, of equals the earlier, then the shorter. The scores are [W, 4].
    """
    inside = np.concatenate([[0.0], np.cumsum(scores[:, 1])])
    starts, ends = scores[:, 0] - inside[:-1], scores[:, 2] + inside[1:]
    width = min(most, len(scores))
    lasts = np.arange(len(scores))[:, None] + np.arange(width)
    table = np.where(lasts < len(scores), starts[:, None] + ends[np.minimum(lasts, len(scores) - 1)], -np.inf).ravel()
    order = np.argsort(-table, kind="stable")[:count]
    return [(float(table[one]), int(one // width), int(lasts.ravel()[one])) for one in order if table[one] > -np.inf]


@dataclass(frozen=True)
class _Passage:
    """The W words of a passage: as they are in lower case, where they are, and hashes of how they look."""

    words: list[str]
    places: list[tuple[int, int]]
    occurrences: dict[str, list[int]]
    sentence: Ints
    lower: Hashes
    short: Hashes


def passage_words(context: str) -> _Passage:
    """Cuts a passage into words; raises InputError where it holds none."""
    # 几本书的词就能占满内存：只留短的
    if len(context) > MOST_KEPT:
        return _short_passage_words.__wrapped__(context)
    return _short_passage_words(context)


@lru_cache(maxsize=64)
def _short_passage_words(context: str) -> _Passage:
    places = words_in(context)
    words = [context[start:end] for start, end in places]
    if not words:
        raise InputError(f"the passage {context[:60]!r} holds no word")
    lower = [word.lower() for word in words]
    occurrences: dict[str, list[int]] = {}
    for place, word in enumerate(lower):
        occurrences.setdefault(word, []).append(place)
    ends = np.array([word in END_OF_SENTENCE for word in words])
    sentence = np.cumsum(ends) - ends
    return _Passage(lower, places, occurrences, sentence, _hashes(lower), kinds_in_short(*codes_of(words)))


def looks(question: str, context: str) -> Ints:
    """Returns the features of a passage's W words beside a question, [W, T]: numbers below 2^20.

    Raises InputError where the question or the passage holds no word.
    """
    passage = passage_words(context)
    asked = [question[start:end].lower() for start, end in words_in(question)]
    if not asked:
        raise InputError(f"question {question[:60]!r} holds no word; ask something")
    lower, short, at = passage.lower, passage.short, partial(neighbours, sentences=passage.sentence)
    near, sides, fit, covered, known = _nearness(passage, asked)
    around = (known + 3 * (_shifted(known, -1) + 3 * _shifted(known, 1))).astype(np.uint32)
    place = (np.arange(len(lower)) * 10 // len(lower)).astype(np.uint32)
    alone = [short, lower, near, sides, fit, covered, around, place]
    alone += [at(lower, -2), at(lower, -1), at(lower, 1), at(short, -1), at(short, 1)]
    pairs = [(short, fit), (short, near), (short, known), (near, fit), (known, near), (at(short, -1), short)]
    pairs += [(short, at(short, 1)), (at(lower, -1), short), (at(lower, -1), lower), (lower, at(lower, 1))]
    close = known * 2 + (near > 4).astype(np.uint32)
    # 怎么问决定找什么：“多少”找数字，“谁”找名字；问法是问句里段落没有的词
    with_question = [np.zeros_like(short), short, lower, close]
    with_question += [at(lower, -1), at(lower, 1), at(short, -1), at(short, 1)]
    lacking = [word for word in asked if word not in passage.occurrences][:ASKED]
    pairs_of = (" ".join(two) for two in pairwise(lacking))
    keys = _hashes(list(dict.fromkeys([asked[0], " ".join(asked[:2]), *lacking, *pairs_of])))
    columns = [*alone, *(mixed_bits(one * PRIME ^ other) for one, other in pairs)]
    columns = [salted(one, number) for number, one in enumerate(columns)]
    for number, one in enumerate(with_question, len(columns)):
        own = salted(one, number)
        columns += [mixed_bits(own * PRIME ^ key) for key in keys]
    return (np.stack(columns, 1) >> np.uint32(32 - BITS)).astype(np.int64)


def _nearness(passage: _Passage, asked: Sequence[str]) -> tuple[Hashes, Hashes, Hashes, Hashes, Hashes]:
    """Says of each word how near it is to the question's words, on which sides, and how its sentence fits; in steps."""
    count = len(passage.words)
    words, sentences = np.arange(count), np.zeros(int(passage.sentence[-1]) + 1)
    left, right, known, whole = np.zeros(count), np.zeros(count), np.zeros(count, dtype=np.uint32), 1e-9
    for word in dict.fromkeys(word for word in asked if word.isalnum()):
        places = passage.occurrences.get(word, [])
        if not places and len(word) > STEM:
            places = [
                place for place, other in enumerate(passage.words) if len(other) >= STEM and other[:STEM] == word[:STEM]
            ]
        if not places:
            continue
        # 段落里越少见的词越能指路
        weight = max(np.log(1 + count / len(places)) - 1.5, 0.05)
        found = np.array(places)
        known[found] = 1
        for side, order, sign in ((right, "right", 1), (left, "left", -1)):
            beside = np.searchsorted(found, words, side=order) - (sign < 0)  # type: ignore[call-overload]
            is_there = (beside >= 0) & (beside < len(found))
            distance = np.where(is_there, sign * (found[np.where(is_there, beside, 0)] - words), FAR)
            side += weight * np.exp(-distance / REACH)
        sentences[np.unique(passage.sentence[found])] += weight
        whole += weight
    rank = np.minimum(np.argsort(np.argsort(-sentences, kind="stable")), 4)
    fit = _steps(sentences / (sentences.max() + 1e-9), 6) * 8 + rank
    sides = _steps(left / (left.max() + 1e-9), 6) * 8 + _steps(right / (right.max() + 1e-9), 6)
    near = _steps((left + right) / ((left + right).max() + 1e-9), 8)
    numbers = (near, sides, fit[passage.sentence], _steps(sentences / whole, 6)[passage.sentence], known)
    return tuple(one.astype(np.uint32) for one in numbers)  # type: ignore[return-value]


def _steps(shares: Floats, count: int) -> Ints:
    return np.minimum((shares * count).astype(np.int64), count)


def _shifted(known: Hashes, offset: int) -> Hashes:
    """Returns what is known of the neighbours; 2 beyond an end."""
    padded = np.pad(known, 1, constant_values=2)
    return padded[1 + offset : len(known) + 1 + offset]


def _hashes(words: Sequence[str]) -> Hashes:
    codes, starts = codes_of(words)
    return run_hashes(spread(codes), starts)
