"""What a training file of sentence vectors can teach: the loss that it is for, the scale of its scores.

Its columns decide, or the judgement of a teacher; and there must be two things in it to tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.related import (
    CorpusPassage,
    JudgedQuery,
    RelatedTexts,
    VectorExample,
    related_of_beir,
)
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.inference.task_detection import pipelines_of_folder
from bertsmith.objectives.vectors.loss import Needs, vector_loss_named

_GIVES: dict[type, tuple[Needs, ...]] = {
    RelatedTexts: ("positives", "margins"),
    ScoredText: ("scores",),
    LabelledText: ("positives",),
}
_DEFAULT_LOSSES = {RelatedTexts: "info-nce", ScoredText: "cosent", LabelledText: "info-nce"}
_MADE_OF = {RelatedTexts: "pairs of a query and a text", ScoredText: "pairs with scores", LabelledText: "classes"}


def to_learn(examples: Sequence[VectorExample]) -> list[Any]:
    """Returns examples that can be learned from: the judged queries of BEIR as pairs, all others as they are."""
    if isinstance(examples[0], CorpusPassage | JudgedQuery):
        return related_of_beir(examples)
    return list(examples)


def loss_for(examples: Sequence[Any], loss: str | None, teacher: str | None) -> str:
    """Returns the name of the loss that learns from examples, or from what a teacher says of them.

    Args:
        examples: as `to_learn` returns them.
        loss: the one that is asked for; None for the usual one.
        teacher: folder of an encoder or a ranker, or None.

    Raises:
        ConfigError: the loss needs something that they do not give, or the teacher is of no use.
    """
    kind = type(examples[0])
    # 差距要有老师的打分才算得出：没打过分的反例只作反例
    gives = tuple(need for need in _GIVES[kind] if need != "margins" or _scores(examples))
    usual = "margin-mse" if "margins" in gives else _DEFAULT_LOSSES[kind]
    if teacher is not None:
        gives, usual = _taught(teacher, examples)
    name = loss or usual
    if vector_loss_named(name).needs not in gives:
        source = f"the teacher {teacher}" if teacher is not None else _MADE_OF[kind]
        raise ConfigError(f"the loss {name} does not learn from {source}; use {usual}, or another file")
    return name


def score_range(examples: Sequence[Any]) -> tuple[float, float]:
    """Returns the scores that count as 0 and as 1.

    Raises:
        InputError: all are the same.
    """
    scores = _scores(examples)
    low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)
    if low == high:
        raise InputError("the training file's scores are all the same; there is nothing to learn")
    # 已经在 [0, 1] 里的分数原样使用
    return (0.0, 1.0) if low >= 0.0 and high <= 1.0 else (low, high)


def require_different(examples: Sequence[Any], file: str = "the training file") -> None:
    """Makes sure that there are two things to tell apart.

    Raises:
        InputError: all positives are the same text, or there is one class, or none with two texts.
    """
    if isinstance(examples[0], LabelledText):
        labels = [example.label for example in examples]
        if len(set(labels)) < 2 or len(set(labels)) == len(labels):
            raise InputError(f"{file} has one class only, or one text of each; two classes of two texts are needed")
    elif isinstance(examples[0], RelatedTexts) and len({example.positive for example in examples}) < 2:
        raise InputError(f"{file} has one positive only; without another text there is nothing to tell it from")


def _scores(examples: Sequence[Any]) -> list[float]:
    if isinstance(examples[0], ScoredText):
        return [example.score for example in examples]
    scores = [getattr(example, "scores", ()) for example in examples]
    # 有的例子没有老师的分数，就谁的也不用：缺的那些没有目标可学
    return [score for each in scores for score in each] if all(scores) and any(len(s) > 1 for s in scores) else []


def _taught(teacher: str, examples: Sequence[Any]) -> tuple[tuple[Needs, ...], str]:
    """Returns what a teacher gives, and the loss for it.

    Raises:
        ConfigError: it is neither an encoder nor a ranker, or a ranker without negatives to judge.
    """
    pipelines = pipelines_of_folder(teacher)
    if "embed" in pipelines:
        return ("teacher",), "similarities"
    if "rank" not in pipelines:
        raise ConfigError(f"--teacher {teacher}: is for {', '.join(pipelines)}; name an encoder or a ranker")
    if not any(getattr(example, "negatives", ()) for example in examples):
        raise ConfigError(f"--teacher {teacher}: ranks, and the training file has no negatives for it to judge")
    return ("margins",), "margin-mse"
