"""Two looks beneath: a gradient derived by hand against one that is measured, and what a head's outputs give away."""

from __future__ import annotations

import numpy as np

from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.minibert import MiniBert, MiniBertConfig
from bertsmith.learn.recovery import demonstrate
from bertsmith.seeding import generator

LOOKED_AT = ("query", "key_bias", "value", "expand", "attention_norm_gain", "positions", "embedding", "output_bias")
NUDGE = 1e-5
"""How far a parameter is moved to either side; in float64 the error of the quotient is about its square."""


def gradient_check(*, id: str, title: str, language: Language, seed: int) -> Computation:
    """Nudges one entry of several parameters and compares with the derivation."""
    model = MiniBert(
        MiniBertConfig(12, 5, hidden_size=8, num_heads=2, intermediate_size=16), seed=seed, dtype=np.float64
    )
    rng = generator(seed, "learn/gradient")
    ids, positions = rng.integers(12, size=(3, 5)), np.array([1, 7, 13])
    labels = rng.integers(12, size=3)
    _, gradients = model.loss_and_gradients(ids, positions, labels, total=3)
    rows, largest = [], 0.0
    for name in LOOKED_AT:
        values = model.parameters[name].reshape(-1)
        place = int(np.argmax(np.abs(gradients[name])))
        kept, sides = values[place], []
        for nudge in (NUDGE, -NUDGE):
            values[place] = kept + nudge
            sides.append(model.loss_and_gradients(ids, positions, labels, total=3)[0])
        values[place] = kept
        # 中心差分：一阶误差相互抵消，只剩 NUDGE 的平方
        measured = (sides[0] - sides[1]) / (2 * NUDGE)
        derived = float(gradients[name].reshape(-1)[place])
        largest = max(largest, abs(derived - measured))
        rows.append((name, f"{derived:+.9f}", f"{measured:+.9f}", abs(derived - measured)))
    columns = Text("parameter|derived|measured|difference", "参数|推导|测量|差")(language).split("|")
    note = Text(
        "measured: (L(θ + h) - L(θ - h)) / 2h at the entry with the largest gradient, in float64",
        "测量：(L(θ + h) - L(θ - h)) / 2h，取梯度最大的一项，float64",
    )
    label = Text("∂loss/∂parameter", "∂损失/∂参数")(language)
    values_ = {
        "largest": largest,
        "count": len(LOOKED_AT),
        "parameters": len(model.parameters),
        "key_bias": float(np.abs(gradients["key_bias"]).max()),
    }
    return Computation(id, title, (Step(label, rows, note(language), columns=tuple(columns)),), values_)


def recovered_attention(*, id: str, title: str, language: Language, seed: int) -> Computation:
    """Hides an attention head and estimates it from its inputs and outputs."""
    generic, constant, flat = shown = demonstrate(hidden_size=4, head_size=2, seed=seed)
    names = Text(
        "tokens in every direction|one feature constant|tokens in a plane|inputs|unseen|of|error, seen part|error, all",
        "词元遍布各方向|有一维恒定|词元在一个平面内|输入|看不见|共|可见部分的误差|全部的误差",
    )(language).split("|")
    rows = [
        (name, d.recovery.identifiable.free_dimensions, d.product.numel(), d.seen_product_error, d.product_error)
        for name, d in zip(names[:3], shown, strict=True)
    ]
    note = Text(
        "of the numbers in W_Q W_Kᵀ; errors relative to its largest", "指 W_Q W_Kᵀ 中的数；误差相对于其中最大的数"
    )
    label = Text("what was found", "找回了什么")(language)
    first = np.stack([generic.product[0].numpy(), generic.recovery.product[0].numpy()])
    rows_of = Text("true|recovered", "真实|找回")(language).split("|")
    steps = (
        Step(label, rows, note(language), columns=tuple(names[3:])),
        Step(Text("first row of W_Q W_Kᵀ", "W_Q W_Kᵀ 的第一行")(language), first, "", tuple(rows_of)),
    )
    values = {
        "numbers": generic.product.numel(),
        "seen_error": max(d.seen_product_error for d in shown),
        "constant_unseen": constant.recovery.identifiable.free_dimensions,
        "flat_unseen": flat.recovery.identifiable.free_dimensions,
        "constant_error": constant.product_error,
    }
    return Computation(id, title, steps, values)
