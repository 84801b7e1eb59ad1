"""What query, key and value are for, in an example whose numbers have names: which person is meant by `she`?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.minibert import softmax

WORDS = ("Anna", "Tom", "she")
FEATURES = Text("woman|man|pronoun|baker|sailor", "女|男|代词|面包师|水手")
SOUGHT, TOLD = Text("woman|man", "女|男"), Text("baker|sailor", "面包师|水手")

STATES = [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]
"""[3, 5]: Anna is a woman and a baker, Tom a man and a sailor, `she` a pronoun for a woman."""

QUERY = [[4, 0], [0, 4], [0, 0], [0, 0], [0, 0]]
KEY = [[1, 0], [0, 1], [-1, -1], [0, 0], [0, 0]]
VALUE = [[0, 0], [0, 0], [0, 0], [1, 0], [0, 1]]
"""Matrices that were chosen by hand; training finds such matrices by itself."""


def looking_up(
    *,
    id: str,
    title: str,
    language: Language,
    x: NDArray[np.float64],
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    value: NDArray[np.float64],
) -> Computation:
    """Follows the last word's question to the answers of the others.

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        x: [3, 5], a row of features for each of `WORDS`.
        query: [5, 2].
        key: [5, 2].
        value: [5, 2].

    Raises:
        InputError: a matrix is of another shape.
    """
    for name, matrix, shape in (
        ("x", x, (3, 5)),
        ("query", query, (5, 2)),
        ("key", key, (5, 2)),
        ("value", value, (5, 2)),
    ):
        if matrix.shape != shape:
            raise InputError(f"{name} is {list(matrix.shape)}; this example needs {list(shape)}")
    q, k, v = x @ query, x @ key, x @ value
    scores = q @ k.T
    weights = softmax(scores / math.sqrt(query.shape[1]))
    z = weights @ v
    sought, told = (tuple(names(language).split("|")) for names in (SOUGHT, TOLD))

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    last = WORDS[-1]
    reads = tuple(say(f"from {word}", f"从 {word}") for word in WORDS)
    steps = (
        Step("X", x, say("what each word is", "每个词是什么"), WORDS, tuple(FEATURES(language).split("|"))),
        Step("Q = X W_Q", q, say("query: whom the word looks for", "查询：这个词在找谁"), WORDS, sought),
        Step("K = X W_K", k, say("key: as whom it can be found", "键：它能被当作谁找到"), WORDS, sought),
        Step("V = X W_V", v, say("value: what it tells whoever finds it", "值：它告诉找到它的词什么"), WORDS, told),
        Step("Q Kᵀ", scores, say("how well each key fits each query", "每个键与每个查询有多合"), WORDS, reads),
        Step("softmax(Q Kᵀ / √D)", weights, say("shares, each row adds up to 1", "份额，每行之和为 1"), WORDS, reads),
        Step("Z", z, say("the values, mixed by the shares", "按份额混合的值"), WORDS, told),
    )
    row, most = weights[-1], int(np.argmax(weights[-1]))
    values = {
        "words": WORDS,
        "q": q,
        "k": k,
        "v": v,
        "scores": scores,
        "weights": weights,
        "z": z,
        "asks": last,
        "found": WORDS[most],
        "found_score": float(scores[-1, most]),
        "found_weight": float(row[most]),
        "other_weight": float(np.sort(row)[-2]),
        "told": told[int(np.argmax(z[-1]))],
        "told_share": float(z[-1].max()),
    }
    return Computation(id, title, steps, values)
