"""Attention between a few tokens, one matrix after the other (Vaswani et al. 2017, equation 1 and §3.2.2)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.minibert import softmax

Matrix = NDArray[np.float64]


def two_tokens(
    *, id: str, title: str, language: Language, x: Matrix, query: Matrix, key: Matrix, value: Matrix
) -> Computation:
    """Works Z = softmax(Q Kᵀ / √D) V out.

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        x: [S, H], a row per token.
        query: [H, D].
        key: [H, D].
        value: [H, O].

    Raises:
        InputError: the matrices do not fit one another.
    """
    for name, matrix in (("query", query), ("key", key), ("value", value)):
        if matrix.shape[0] != x.shape[1]:
            raise InputError(f"{name} has {matrix.shape[0]} rows; it needs {x.shape[1]}, as many as x has columns")
    if query.shape != key.shape:
        raise InputError(f"query is {list(query.shape)} and key {list(key.shape)}; they must have one shape")
    size = query.shape[1]
    q, k, v = x @ query, x @ key, x @ value
    scores = q @ k.T
    # 除以 √D：D 个乘积之和的标准差随 √D 增长，不缩放 softmax 就会饱和
    scaled = scores / math.sqrt(size)
    weights = softmax(scaled)
    z = weights @ v
    tokens = tuple(Text(f"token {n}", f"词元 {n}")(language) for n in range(1, len(x) + 1))
    reads = tuple(Text(f"from {n}", f"读词元 {n}")(language) for n in range(1, len(x) + 1))

    def note(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    steps = (
        Step("X", x, note("one row per token", "每个词元一行"), tokens),
        Step("Q = X W_Q", q, note("what each token asks for", "每个词元想找什么"), tokens),
        Step("K = X W_K", k, note("what each token offers to be found by", "每个词元凭什么被找到"), tokens),
        Step("V = X W_V", v, note("what each token hands over", "每个词元交出什么"), tokens),
        Step("Q Kᵀ", scores, note("a dot product for every pair", "每一对的点积"), tokens, reads),
        Step(
            "Q Kᵀ / √D",
            scaled,
            note(f"D = {size}, √D = {math.sqrt(size):.4f}", f"D = {size}，√D = {math.sqrt(size):.4f}"),
            tokens,
            reads,
        ),
        Step("softmax", weights, note("each row adds up to 1", "每行之和为 1"), tokens, reads),
        Step(
            "Z = softmax(Q Kᵀ / √D) V",
            z,
            note("a weighted mean of V for each token", "V 的加权平均，每个词元一行"),
            tokens,
        ),
    )
    last = weights[-1]
    values = {
        "size": size,
        "root": math.sqrt(size),
        "weights": weights,
        "z": z,
        "own_score": float(scores[-1, -1]),
        "own_scaled": float(scaled[-1, -1]),
        "own_weight": float(last[-1]),
        "first_weight": float(last[0]),
    }
    return Computation(id, title, steps, values)


HEADS = 2
"""Heads of `two_heads`: the fewest that show what joining means."""


def two_heads(
    *,
    id: str,
    title: str,
    language: Language,
    x: Matrix,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
) -> Computation:
    """Works attention out in two heads, joins and projects: MultiHead = Concat(Z_1, Z_2) W_O.

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        x: [S, H], a row per token.
        query: [H, 2D], the columns of the first head and then those of the second.
        key: [H, 2D].
        value: [H, 2D].
        output: [2D, O].

    Raises:
        InputError: the matrices do not fit one another, or their columns cannot be shared among two heads.
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
    heads = [
        two_tokens(id=id, title=title, language=language, x=x, query=q, key=k, value=v)
        for q, k, v in zip(*split, strict=True)
    ]
    tokens, reads = heads[0].steps[-2].rows, heads[0].steps[-2].columns
    steps: list[Step] = []
    for number, head in enumerate(heads, 1):
        of_head = Text(f"head {number}: ", f"头 {number}：")(language)
        steps.append(Step(of_head + "softmax(Q Kᵀ / √D)", head.values["weights"], "", tokens, reads))
        steps.append(Step(f"{of_head}Z_{number}", head.values["z"], "", tokens))
    joined = np.concatenate([head.values["z"] for head in heads], axis=1)
    projected = joined @ output
    steps += [
        Step(
            "Concat(Z_1, Z_2)", joined, Text("side by side, as wide as before", "并排放，总宽度不变")(language), tokens
        ),
        Step(
            "Concat(Z_1, Z_2) W_O",
            projected,
            Text("every number may draw on both heads", "每个数都可以取自两个头")(language),
            tokens,
        ),
    ]
    values = {
        "heads": HEADS,
        "size": query.shape[1] // HEADS,
        "width": query.shape[1],
        "first_weight": float(heads[0].values["weights"][-1, 0]),
        "second_weight": float(heads[1].values["weights"][-1, 0]),
        "result": projected,
    }
    return Computation(id, title, tuple(steps), values)
