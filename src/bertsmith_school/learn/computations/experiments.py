"""Tables 1 to 8 of Devlin et al. 2019 (NAACL), not computed here; and experiments of our own with a small network.

A MiniBert on a hundred sentences, from the data to its curve; ablations of it; a gradient check; a recovered head.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertsmith.data.stream.masking import MaskingSettings, mask_tokens
from bertsmith.model import BertConfig
from bertsmith.model.sizes import ParameterCounts
from bertsmith.seeding import generator
from bertsmith_school.learn.lesson import Cell, Found, Step, Words, read_yaml
from bertsmith_school.learn.minibert import (
    MASK,
    VERBS,
    MiniBert,
    MiniBertConfig,
    TrainedMiniBert,
    encode,
    simple_sentences,
    train_minibert,
)
from bertsmith_school.learn.recovery import demonstrate

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


def larger_networks() -> Found:
    """Counts the parameters of the networks of table 6, beside what the paper reports of them (§5.2)."""
    table, glue, rows = TABLES["sizes"], TABLES["glue"], []
    for name, *scores in table.rows:
        layers, hidden, heads = map(int, re.findall(r"\d+", str(name)))
        shape: dict[str, Any] = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
        counts = ParameterCounts.of(BertConfig(**shape, intermediate_size=4 * hidden))
        rows.append((layers, hidden, heads, counts.total - counts.heads, *map(str, scores)))
    mrpc = 4 + table.columns.index("MRPC")
    values: dict[str, Any] = {"examples": glue.rows[0][1 + glue.columns.index("MRPC")], "tasks": table.columns[1:]}
    for name, row in (("smallest", rows[0]), ("largest", rows[-1])):
        values |= {f"{name}_layers": row[0], f"{name}_count": row[3], f"{name}_score": row[mrpc]}
    return [rows], values


def paper_ablation(say: Words) -> Found:
    """Takes the scores of each of the paper's ablations from those of the whole network (§5.1, table 5)."""
    table = TABLES["ablation"]
    columns = (say["system"], *table.columns)
    scores = [[float(score) for score in row[1:]] for row in table.rows]
    lost = [[f"{before - after:.1f}" for before, after in zip(scores[0], row, strict=True)] for row in scores[1:]]
    whole, *ablated = say.split("systems")
    kept = [(name, *map(str, row)) for name, row in zip((whole, *ablated), scores, strict=True)]
    taken = [(name, *row) for name, row in zip(ablated, lost, strict=True)]
    steps = [Step("", rows, columns=columns) for rows in (kept, taken)]
    return steps, {"lost": lost, "tasks": table.columns}


PROBE = f"the man {MASK} the book"
"""The words around the gap fit `reads` and `near`; only their order decides."""

STEPS, WIDTH = 80, 64

MODELS: dict[str, dict[str, Any]] = {"whole": {}, "bag": {"use_positions": False}, "left": {"causal": True}}
"""Model of the ablation → the idea that is taken from it."""


SHOWN_SENTENCES = 6
"""Sentences of `learning_curve` that are printed."""


def learning_curve(*, seed: int, steps: int) -> Found:
    """Trains the small network of the lessons, and follows the loss from its first step to its last."""
    sentences = simple_sentences()
    trained = trained_minibert(seed, () if steps == STEPS else (("steps", steps),))
    drawn = generator(seed, "learn/shown").choice(len(sentences), SHOWN_SENTENCES, replace=False)
    shown = [sentences[number] for number in sorted(drawn)]
    counts = Counter(word for sentence in sentences for word in sentence.split())
    # 两个参照：一无所知的 log V，与只知道词频时的熵
    blind, shares = math.log(len(trained.words)), [count / counts.total() for count in counts.values()]
    entropy = -sum(share * math.log(share) for share in shares)
    tail = trained.losses[-10:]
    last = sum(tail) / len(tail)
    marks = sorted({0, steps // 8, steps // 4, steps // 2, steps - 1})
    gaps = [(gap, _top(trained.fill(gap)[0])) for gap in (f"the man eats the {MASK}", PROBE)]
    table: list[tuple[Cell, ...]] = [(step + 1, trained.losses[step]) for step in marks]
    values: dict[str, Any] = {"sentences": len(sentences), "words": len(trained.words), "steps": steps, "blind": blind}
    values |= {"entropy": entropy, "first": trained.losses[0], "last": last, "perplexity": math.exp(last)}
    values |= {"losses": trained.losses}
    return [list(zip(shown, _hidden_once(shown, trained.words, seed), strict=True)), table, gaps], values


def _hidden_once(sentences: Sequence[str], words: Sequence[str], seed: int) -> list[str]:
    """Returns sentences as one step of training reads them."""
    encoded = encode(sentences, words)
    drawn = mask_tokens(
        np.concatenate(encoded),
        np.array([len(ids) for ids in encoded]),
        special_ids=np.array([0]),
        mask_token_id=0,
        vocab_size=len(words),
        settings=MaskingSettings(),
        rng=generator(seed, "learn/curve"),
    )
    parts = np.split(drawn.input_ids, np.cumsum([len(ids) for ids in encoded])[:-1])
    return [" ".join(words[index] for index in part) for part in parts]


def _top(filled: Mapping[str, float]) -> str:
    return ", ".join(f"{word} {share:.0%}" for word, share in list(filled.items())[:3])


def _verbs(filled: Mapping[str, float]) -> float:
    return sum(share for word, share in filled.items() if word in VERBS)


def ablation(say: Words, *, seed: int) -> Found:
    """Trains three models on the same hundred sentences and asks each the same question."""
    count, rows, losses = len(simple_sentences()), [], []
    values = {"sentences": count, "steps": STEPS, "width": WIDTH, "probe": PROBE}
    for label, (name, changes) in zip(say.split("models"), MODELS.items(), strict=True):
        trained = trained_minibert(seed, tuple(changes.items()))
        (filled,) = trained.fill(PROBE)
        verbs = _verbs(filled)
        loss = sum(trained.losses[-10:]) / 10
        rows.append((label, _top(filled), f"{verbs:.0%}", f"{filled['reads']:.0%}"))
        losses.append((label, trained.losses[0], loss))
        values |= {f"{name}_top": next(iter(filled)), f"{name}_verbs": verbs}
        values |= {f"{name}_reads": filled["reads"], f"{name}_loss": loss}
    return [rows, losses], values


def several_seeds(*, seeds: int) -> Found:
    """Repeats the ablation with several seeds, and looks whether each gives the same order."""
    rows: list[tuple[Cell, ...]] = []
    shares: dict[str, list[tuple[float, float]]] = {name: [] for name in MODELS}
    for seed in range(seeds):
        for name, changes in MODELS.items():
            (filled,) = trained_minibert(seed, tuple(changes.items())).fill(PROBE)
            shares[name].append((_verbs(filled), filled["reads"]))
        rows.append((seed, *(f"{share:.0%}" for name in MODELS for share in shares[name][-1])))
    verbs, right = (np.array([[pair[n] for pair in shares[name]] for name in MODELS]) for n in (0, 1))
    # 两条结论都要成立：没有位置就不知道该填动词，只从左读就不知道是哪个动词
    agree = int(((verbs[0] > verbs[1]) & (right[0] > right[2])).sum())
    values: dict[str, Any] = {"seeds": seeds, "agree": agree, "shares": shares}
    for name, row in zip(("whole", "bag"), verbs, strict=False):
        values |= {f"{name}_lowest": float(row.min()), f"{name}_highest": float(row.max())}
    return [rows], values


@functools.lru_cache(maxsize=64)
def trained_minibert(seed: int, changes: tuple[tuple[str, Any], ...]) -> TrainedMiniBert:
    """Returns the small network of the lessons, trained; `changes` are those of `MODELS`, or other `steps`."""
    # 训练结果只取决于种子：同一课再读一遍时不必重训；二十个种子各三个网络都放得下
    usual: dict[str, Any] = {
        "steps": STEPS,
        "learning_rate": 5e-3,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
    }
    return train_minibert(simple_sentences(), seed=seed, **(usual | dict(changes)))


LOOKED_AT = ("query", "key_bias", "value", "expand", "attention_norm_gain", "positions", "embedding", "output_bias")
NUDGE = 1e-5
"""How far a parameter is moved to either side; in float64 the error of the quotient is about its square."""

REACH, CURVE_POINTS = 1.5, 31
"""How far the parameter of the picture is moved to either side, and how many losses are drawn."""


def gradient_check(*, seed: int) -> Found:
    """Nudges one entry of several parameters and compares with the derivation."""
    model = MiniBert(
        MiniBertConfig(12, 5, hidden_size=8, num_heads=2, intermediate_size=16), seed=seed, dtype=np.float64
    )
    rng = generator(seed, "learn/gradient")
    ids, positions = rng.integers(12, size=(3, 5)), np.array([1, 7, 13])
    labels = rng.integers(12, size=3)
    _, gradients = model.loss_and_gradients(ids, positions, labels, total=3)

    def losses(name: str, place: int, moves: Iterable[float]) -> list[float]:
        entries = model.parameters[name].reshape(-1)
        kept, found = entries[place], []
        for move in moves:
            entries[place] = kept + move
            found.append(model.loss_and_gradients(ids, positions, labels, total=3)[0])
        entries[place] = kept
        return found

    rows: list[tuple[str, str, str, float]] = []
    slopes: dict[str, tuple[int, float, float]] = {}
    for name in LOOKED_AT:
        place = int(np.argmax(np.abs(gradients[name])))
        above, below = losses(name, place, (NUDGE, -NUDGE))
        # 中心差分：一阶误差相互抵消，只剩 NUDGE 的平方
        measured, derived = (above - below) / (2 * NUDGE), float(gradients[name].reshape(-1)[place])
        slopes[name] = place, derived, measured
        rows.append((name, f"{derived:+.9f}", f"{measured:+.9f}", abs(derived - measured)))
    # 图上画斜率最大的那一个：损失随它变化的曲线，与推导出的切线
    drawn = max(slopes, key=lambda name: abs(slopes[name][1]))
    place, derived, measured = slopes[drawn]
    moves = np.linspace(-REACH, REACH, CURVE_POINTS).tolist()
    values: dict[str, Any] = {"largest": max(row[-1] for row in rows), "count": len(LOOKED_AT)}
    values |= {"parameters": len(model.parameters), "drawn": drawn, "derived": derived, "measured": measured}
    values |= {"curve": list(zip(moves, losses(drawn, place, moves), strict=True))}
    return [rows], values | {"key_bias": float(np.abs(gradients["key_bias"]).max())}


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
