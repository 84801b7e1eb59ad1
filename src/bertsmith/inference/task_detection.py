"""What a model folder is good for: the names of its pipelines, from `task.json` or, without one, from its head."""

from __future__ import annotations

from pathlib import Path

from bertsmith.errors import CheckpointError
from bertsmith.inference.task_file import read_task_file
from bertsmith.model import ModelConfig
from bertsmith.model.folder import read_architecture

_HEADS = {
    "BertModel": ("embed",),
    "BertForMaskedLM": ("embed", "fill-mask"),
    "BertForNextSentencePrediction": ("embed", "next-sentence"),
    "BertForPreTraining": ("embed", "fill-mask", "next-sentence"),
    "BertForTokenClassification": ("tag",),
    "BertForQuestionAnswering": ("answer",),
    "BertForMultipleChoice": ("choose",),
}
"""The pipelines of each architecture; a fine-tuned encoder is used for what it was fine-tuned for, no more."""

_PROBLEMS = {"multi_label_classification": "multilabel", "regression": "regress"}

WITHOUT_FINE_TUNING = frozenset({"embed", "fill-mask", "next-sentence"})
"""Pipelines that no labels were needed for."""


def pipelines_of_folder(folder: str | Path) -> tuple[str, ...]:
    """Returns the names of the pipelines that a model folder is good for.

    Raises:
        CheckpointError: its model is of a kind that no pipeline reads.
    """
    task = read_task_file(folder).get("task")
    if task is not None:
        return (str(task),)
    architecture = read_architecture(folder)
    if architecture == "BertForSequenceClassification":
        config = ModelConfig.load(folder)
        # 只有一个输出、又没有注明类型的，是交叉编码器
        single = "rank" if len(config.id2label) == 1 else "classify"
        return (_PROBLEMS.get(config.problem_type or "", single),)
    if architecture is None or architecture not in _HEADS:
        known = ", ".join((*_HEADS, "BertForSequenceClassification"))
        holds = (
            f"holds a {architecture}, which no pipeline reads" if architecture else "config.json names no architecture"
        )
        raise CheckpointError(f"{folder}: {holds}; it must be one of {known}")
    # 只认一种句段的模型读不了句对：有那个头也没有用
    lone = ModelConfig.load(folder).type_vocab_size < 2
    return tuple(kind for kind in _HEADS[architecture] if not (lone and kind == "next-sentence"))


def task_of_folder(folder: str | Path) -> str:
    """Returns the name of the one pipeline that a fine-tuned folder is for.

    Raises:
        CheckpointError: its model has no head that predicts.
    """
    kind = pipelines_of_folder(folder)[0]
    if kind in WITHOUT_FINE_TUNING:
        raise CheckpointError(
            f"{folder}: holds a {read_architecture(folder)}, which predicts nothing here; fine-tune it first"
        )
    return kind
