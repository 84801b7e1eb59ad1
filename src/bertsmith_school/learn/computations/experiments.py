"""Tables 1 to 8 of Devlin et al. 2019 (NAACL), not computed here; an ablation, a gradient check, a recovered head."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from bertsmith.seeding import generator
from bertsmith_school.learn.lesson import Cell, Found, Step
from bertsmith_school.learn.minibert import (
    MASK,
    VERBS,
    MiniBert,
    MiniBertConfig,
    TrainedMiniBert,
    simple_sentences,
    train_minibert,
)
from bertsmith_school.learn.recovery import demonstrate
from bertsmith_school.learn.words import Words, read_yaml

PAPER = "Devlin et al. 2019, https://aclanthology.org/N19-1423"


class PublishedTable(NamedTuple):
    """A table of the paper; each row begins with the name of a system."""

    number: int
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


TABLES: dict[str, PublishedTable] = {
    name: PublishedTable(number, tuple(columns), tuple(map(tuple, rows)))
    for number, (name, (columns, *rows)) in enumerate(read_yaml("paper.yaml").items(), 1)
}
"""The paper's tables by name, as the final version prints them."""

ALL = "all"
"""The choice that shows every table."""


def figure(table: str, row: str, column: str) -> float:
    """Returns one figure of the paper."""
    chosen = TABLES[table]
    return next(float(each[1 + chosen.columns.index(column)]) for each in chosen.rows if each[0] == row)


def published(say: Words, *, table: str) -> Found:
    """Prints one of the paper's tables or all, and gives the figures that the text speaks of."""
    steps = []
    for name in TABLES if table == ALL else [table]:
        number, columns, rows = TABLES[name]
        shown = [tuple(f"{cell:.1f}" if isinstance(cell, float) else cell for cell in row) for row in rows]
        source = say["source"].format(PAPER, number)
        steps.append(Step(say[name], shown, source, columns=(say["system"], *columns)))
    glue = TABLES["glue"]
    # 课文与练习里的数字都从表中取：改一处，处处跟着改
    values: dict[str, Any] = {"glue_base": figure("glue", "BERT base", "average")}
    values |= {"glue_large": figure("glue", "BERT large", "average")}
    values |= {"glue_gpt": figure("glue", "OpenAI GPT", "average")}
    values |= {"glue_elmo": figure("glue", "BiLSTM + ELMo + attention", "average")}
    values |= {"rte_examples": glue.rows[0][1 + glue.columns.index("RTE")]}
    values |= {"squad_large": figure("squad", "BERT large + TriviaQA (ensemble)", "test F1")}
    values |= {"squad_human": figure("squad", "human", "test F1")}
    values |= {"unanswered_large": figure("squad without answers", "BERT large", "test F1")}
    values |= {"unanswered_human": figure("squad without answers", "human", "test F1")}
    values |= {"swag_large": figure("swag", "BERT large", "test"), "swag_gpt": figure("swag", "OpenAI GPT", "test")}
    values |= {"swag_human": figure("swag", "human, an expert", "test")}
    values |= {"entities_large": figure("entities", "BERT large, fine-tuned", "test")}
    values |= {"entities_best": figure("entities", "CSE", "test")}
    return steps, values


PROBE = f"the man {MASK} the book"
"""The words around the gap fit `reads` and `near`; only their order decides."""

STEPS, WIDTH = 80, 64

MODELS: dict[str, dict[str, Any]] = {"whole": {}, "bag": {"use_positions": False}, "left": {"causal": True}}
"""Model of the ablation → the idea that is taken from it."""


def ablation(say: Words, *, seed: int) -> Found:
    """Trains three models on the same hundred sentences and asks each the same question."""
    count, rows, losses = len(simple_sentences()), [], []
    values = {"sentences": count, "steps": STEPS, "width": WIDTH, "probe": PROBE}
    for label, (name, changes) in zip(say.split("models"), MODELS.items(), strict=True):
        trained = trained_minibert(seed, tuple(changes.items()))
        (filled,) = trained.fill(PROBE)
        verbs = sum(probability for word, probability in filled.items() if word in VERBS)
        top = ", ".join(f"{word} {probability:.0%}" for word, probability in list(filled.items())[:3])
        loss = sum(trained.losses[-10:]) / 10
        rows.append((label, top, f"{verbs:.0%}", f"{filled['reads']:.0%}"))
        losses.append((label, trained.losses[0], loss))
        values |= {f"{name}_top": next(iter(filled)), f"{name}_verbs": verbs}
        values |= {f"{name}_reads": filled["reads"], f"{name}_loss": loss}
    return [rows, losses], values


@functools.lru_cache(maxsize=32)
def trained_minibert(seed: int, changes: tuple[tuple[str, Any], ...]) -> TrainedMiniBert:
    """Returns the small network of this lesson, trained; `changes` are those of `MODELS`."""
    # 训练结果只取决于种子：同一课再读一遍时不必重训
    return train_minibert(
        simple_sentences(),
        steps=STEPS,
        learning_rate=5e-3,
        seed=seed,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        **dict(changes),
    )


LOOKED_AT = ("query", "key_bias", "value", "expand", "attention_norm_gain", "positions", "embedding", "output_bias")
NUDGE = 1e-5
"""How far a parameter is moved to either side; in float64 the error of the quotient is about its square."""


def gradient_check(*, seed: int) -> Found:
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
    found = {"largest": largest, "count": len(LOOKED_AT), "parameters": len(model.parameters)}
    return [rows], found | {"key_bias": float(np.abs(gradients["key_bias"]).max())}


def recovered_attention(say: Words, *, seed: int) -> Found:
    """Hides an attention head and estimates it from its inputs and outputs."""
    generic, constant, flat = shown = demonstrate(hidden_size=4, head_size=2, seed=seed)
    rows = [
        (d.recovery.identifiable.free_dimensions, d.product.numel(), d.seen_product_error, d.product_error)
        for d in shown
    ]
    first = np.stack([generic.product[0].numpy(), generic.recovery.product[0].numpy()])
    values: dict[str, Any] = {"numbers": generic.product.numel()}
    values |= {"seen_error": max(d.seen_product_error for d in shown)}
    values |= {"constant_unseen": constant.recovery.identifiable.free_dimensions}
    values |= {"flat_unseen": flat.recovery.identifiable.free_dimensions, "constant_error": constant.product_error}
    return [say.named("tokens", rows), first], values
