"""An ablation that runs while one waits: MiniBert whole, without positions, and reading to the left only (§5.1)."""

from __future__ import annotations

import functools
from typing import Any

from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.minibert_training import MASK, VERBS, TrainedMiniBert, simple_sentences, train_minibert

PROBE = f"the man {MASK} the book"
"""The words around the gap fit `reads` and `near`; only their order decides."""

STEPS, WIDTH = 80, 64

MODELS: dict[str, tuple[Text, dict[str, Any]]] = {
    "whole": (Text("whole", "完整"), {}),
    "bag": (Text("no positions", "没有位置"), {"use_positions": False}),
    "left": (Text("left to right", "从左到右"), {"causal": True}),
}


def ablation(*, id: str, title: str, language: Language, seed: int) -> Computation:
    """Trains three models on the same hundred sentences and asks each the same question."""
    sentences = simple_sentences()
    rows, values, losses = [], {"sentences": len(sentences), "steps": STEPS, "probe": PROBE}, []
    for name, (label, changes) in MODELS.items():
        trained = trained_minibert(seed, tuple(changes.items()))
        (filled,) = trained.fill(PROBE)
        verbs = sum(probability for word, probability in filled.items() if word in VERBS)
        best = next(iter(filled))
        top = ", ".join(f"{word} {probability:.0%}" for word, probability in list(filled.items())[:3])
        loss = sum(trained.losses[-10:]) / 10
        rows.append((label(language), top, f"{verbs:.0%}", f"{filled['reads']:.0%}"))
        losses.append((label(language), trained.losses[0], loss))
        values |= {f"{name}_top": best, f"{name}_verbs": verbs, f"{name}_reads": filled["reads"], f"{name}_loss": loss}
        values |= {f"{name}_near": filled["near"]}

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    where = say(
        f"one layer of NumPy, {WIDTH} wide, {STEPS} steps, {len(sentences)} sentences",
        f"一层 NumPy 网络，宽 {WIDTH}，{STEPS} 步，{len(sentences)} 个句子",
    )
    first = say("model|likeliest words|any verb|reads", "模型|最可能的词|任一动词|reads").split("|")
    second = say("model|loss at the start|loss at the end", "模型|开始时的损失|结束时的损失").split("|")
    steps = (
        Step(PROBE, rows, where, columns=tuple(first)),
        Step(say("masked-word loss", "被掩码词的损失"), losses, "nats", columns=tuple(second)),
    )
    return Computation(id, title, steps, values)


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
