"""Attention in matrices: an example whose numbers have names, a few tokens, two heads, and the heads of a whole model.

Vaswani et al. 2017, equation 1 and §3.2.2.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith_school.learn.lesson import Found, Step, Words
from bertsmith_school.learn.minibert import softmax
from bertsmith_school.learn.study import Study
from bertsmith_school.looking.maps import maps_of

Matrix = NDArray[np.float64]

WORDS = ("Anna", "Tom", "she")
STATES = [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]
"""[3, 5]: Anna is a woman and a baker, Tom a man and a sailor, `she` a pronoun for a woman."""

QUERY = [[4, 0], [0, 4], [0, 0], [0, 0], [0, 0]]
KEY = [[1, 0], [0, 1], [-1, -1], [0, 0], [0, 0]]
VALUE = [[0, 0], [0, 0], [0, 0], [1, 0], [0, 1]]
"""Matrices that were chosen by hand; training finds such matrices by itself."""

HEADS = 2
"""Heads of `two_heads`: the fewest that show what joining means."""


def looking_up(say: Words, *, x: Matrix, query: Matrix, key: Matrix, value: Matrix) -> Found:
    """Which person is meant by `she`? Follows her question [5, 2] to the keys and the answers of the others."""
    shapes = {"x": (x, (3, 5)), "query": (query, (5, 2)), "key": (key, (5, 2)), "value": (value, (5, 2))}
    for name, (matrix, shape) in shapes.items():
        if matrix.shape != shape:
            raise InputError(f"{name} is {list(matrix.shape)}; this example needs {list(shape)}")
    q, k, v = x @ query, x @ key, x @ value
    scores = q @ k.T
    weights = softmax(scores / math.sqrt(query.shape[1]))
    z = weights @ v
    features = tuple(say.split("features"))
    sought, told = features[:2], features[3:]
    reads = tuple(say["read"].format(word) for word in WORDS)
    columns = (features, sought, sought, told, reads, reads, told)
    steps = [
        Step("", matrix, rows=WORDS, columns=names)
        for matrix, names in zip((x, q, k, v, scores, weights, z), columns, strict=True)
    ]
    row, most = weights[-1], int(np.argmax(weights[-1]))
    values = {"words": WORDS, "q": q, "k": k, "v": v, "scores": scores, "weights": weights, "z": z, "asks": WORDS[-1]}
    values |= {
        "found": WORDS[most],
        "found_score": float(scores[-1, most]),
        "found_weight": float(row[most]),
        "other_weight": float(np.sort(row)[-2]),
        "told": told[int(np.argmax(z[-1]))],
        "told_share": float(z[-1].max()),
    }
    return steps, values


def two_tokens(say: Words, *, x: Matrix, query: Matrix, key: Matrix, value: Matrix) -> Found:
    """Works Z = softmax(Q Kᵀ / √D) V out for x [S, H], query and key [H, D], and value [H, O]."""
    for name, matrix in (("query", query), ("key", key), ("value", value)):
        if matrix.shape[0] != x.shape[1]:
            raise InputError(f"{name} has {matrix.shape[0]} rows; it needs {x.shape[1]}, as many as x has columns")
    if query.shape != key.shape:
        raise InputError(f"query is {list(query.shape)} and key {list(key.shape)}; they must have one shape")
    size = query.shape[1]
    root = math.sqrt(size)
    q, k, v = x @ query, x @ key, x @ value
    scores = q @ k.T
    # 除以 √D：D 个乘积之和的标准差随 √D 增长，不缩放 softmax 就会饱和
    scaled = scores / root
    weights = softmax(scaled)
    z = weights @ v
    tokens, reads = _names(say, len(x))
    steps = [
        *(Step("", matrix, rows=tokens) for matrix in (x, q, k, v)),
        *(Step("", matrix, rows=tokens, columns=reads) for matrix in (scores, scaled, weights)),
        Step("", z, rows=tokens),
    ]
    values = {"size": size, "root": root, "weights": weights, "z": z}
    values |= {"own_score": float(scores[-1, -1]), "own_scaled": float(scaled[-1, -1])}
    values |= {"own_weight": float(weights[-1, -1]), "first_weight": float(weights[-1, 0])}
    return steps, values


def two_heads(say: Words, *, x: Matrix, query: Matrix, key: Matrix, value: Matrix, output: Matrix) -> Found:
    """Works attention out in two heads, joins and projects: MultiHead = Concat(Z_1, Z_2) W_O.

    The columns of query, key and value [H, 2D] are those of the first head and then those of the second.
    """
    for name, matrix in (("query", query), ("key", key), ("value", value)):
        if matrix.shape != query.shape or matrix.shape[1] % HEADS:
            raise InputError(
                f"{name} is {list(matrix.shape)}; query, key and value must have one shape, with an even number of"
                " columns: half for each head"
            )
    if len(output) != value.shape[1]:
        raise InputError(f"output has {len(output)} rows; it needs {value.shape[1]}, as many as value has columns")
    split = [np.split(matrix, HEADS, axis=1) for matrix in (query, key, value)]
    # 每个头就是上一节的注意力，只是用自己的那几列
    heads = [two_tokens(say, x=x, query=q, key=k, value=v)[1] for q, k, v in zip(*split, strict=True)]
    tokens, reads = _names(say, len(x))
    joined = np.concatenate([head["z"] for head in heads], axis=1)
    projected = joined @ output
    steps: list[Step] = []
    for head in heads:
        steps += [Step("", head["weights"], rows=tokens, columns=reads), Step("", head["z"], rows=tokens)]
    steps += [Step("", matrix, rows=tokens) for matrix in (joined, projected)]
    values = {"heads": HEADS, "size": query.shape[1] // HEADS, "width": query.shape[1], "result": projected}
    values |= {f"{name}_weight": head["first_weight"] for name, head in zip(("first", "second"), heads, strict=True)}
    return steps, values


def _names(say: Words, count: int) -> list[tuple[str, ...]]:
    """Returns the names of tokens, as those who read and as those who are read."""
    return [tuple(say[name].format(n) for n in range(1, count + 1)) for name in ("token", "read")]


@torch.inference_mode()
def trained_heads(study: Study, *, text: str, word: str) -> Found:
    """Shows which piece each head reads most from a word, and all shares of the head that singles one out most."""
    ids = study.encode(text)[0]
    place, pieces = study.places_of(word, text, ids)[-1], study.pieces(ids)
    maps = torch.from_numpy(maps_of(study.model, study.tokenizer, text).maps)
    # [L, A, S]：每一层每个头里，这个词从各个词元取多少；剪掉的头没有图，记 0
    kept, shares = ~maps[:, :, 0, 0].isnan(), maps.nan_to_num()[:, :, place]
    inside = shares[:, :, 1:-1].clone()
    # 从自己和特殊词元读不算“找别的词”：挑最能说明问题的头时先去掉
    inside[:, :, place - 1] = 0
    layer, head = divmod(int(inside.amax(-1).argmax()), shares.shape[1])
    rows = [
        (number, other, pieces[piece], f"{float(of_layer[other - 1, piece]):.0%}")
        for number, of_layer in enumerate(shares, 1)
        for other, piece in enumerate(of_layer.argmax(-1).tolist(), 1)
        if kept[number - 1, other - 1]
    ]
    chosen = shares[layer, head].tolist()
    found = 1 + int(inside[layer, head].argmax())
    of_one = [(piece, f"{share:.0%}") for piece, share in zip(pieces, chosen, strict=True)]
    values = {"piece": pieces[place], "layer": layer + 1, "head": head + 1, "found": pieces[found]}
    values |= {"share": chosen[found], "even": 1 / len(ids), "shares": chosen, "pieces": pieces}
    return [rows, of_one], values | {"heads": int(kept.sum())}
