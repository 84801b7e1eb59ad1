"""What fine-tuning adds: a handful of parameters per task, and the score of an answer span (§4)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.model import BertConfig
from bertsmith.model.heads import SpanScores, best_spans
from bertsmith.model.sizes import ParameterCounts


def head_sizes(*, id: str, title: str, language: Language, size: str, labels: int) -> Computation:
    """Counts the new parameters of each kind of task beside those of the encoder.

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        size: a name of `NAMED_SIZES`.
        labels: K, classes of the classifiers.
    """
    config = BertConfig.named(size)
    counts, h = ParameterCounts.of(config), config.hidden_size
    base = counts.embeddings + counts.encoder
    whole = base + counts.pooler
    tasks = [
        (Text("classes of a text or a pair", "文本或句对的类别"), "K·H + K", labels * h + labels, whole),
        (Text("a tag for each word", "每个词的标签"), "K·H + K", labels * h + labels, base),
        (Text("an answer in a passage", "段落中的答案"), "2·H + 2", 2 * h + 2, base),
        (Text("one of several choices", "多选一"), "H + 1", h + 1, whole),
    ]
    rows = [(name(language), formula, new, old, f"{new / (new + old):.4%}") for name, formula, new, old in tasks]
    columns = Text("task|formula|new|pre-trained|share of new", "任务|公式|新增|预训练好的|新增占比")(language)
    note = Text(
        f"H = {h}, K = {labels}; tags and answers read the tokens and need no pooler",
        f"H = {h}，K = {labels}；标签和答案读的是词元，不需要 pooler",
    )
    label = Text("parameters", "参数个数")(language)
    new = [count for _, _, count, _ in tasks]
    values = {
        "hidden": h,
        "labels": labels,
        "classifier": new[0],
        "span": new[2],
        "choice": new[3],
        "pretrained": whole,
        "times": whole / new[0],
        "share": new[0] / (new[0] + whole),
    }
    return Computation(id, title, (Step(label, rows, note(language), columns=tuple(columns.split("|"))),), values)


def answer_span(
    *, id: str, title: str, language: Language, start: NDArray[np.float64], end: NDArray[np.float64]
) -> Computation:
    """Scores every span of a passage and picks the best (§4.2, §4.3).

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        start: [S], S·T_i, `[CLS]` first.
        end: [S], E·T_j.

    Raises:
        InputError: the lists differ in length, or hold `[CLS]` alone.
    """
    if len(start) != len(end) or len(start) < 2:
        raise InputError(f"start has {len(start)} numbers and end {len(end)}: give as many, [CLS] and a token at least")
    allowed = torch.ones(len(start), dtype=torch.bool)
    # [CLS] 不是段落里的词：它的得分另有用处，即“无答案”
    allowed[0] = False
    found = best_spans(SpanScores(torch.tensor(start), torch.tensor(end)), allowed, count=len(start) ** 2)
    first, last, score = found.spans[0]
    count = len(start)
    tokens = ("[CLS]", *(Text(f"token {n}", f"词元 {n}")(language) for n in range(1, count)))
    sums = [[float(start[i] + end[j]) if j >= i else "" for j in range(1, count)] for i in range(1, count)]
    answered = found.answer() is not None
    verdict = Text(
        f"tokens {first} to {last}" if answered else "no answer", f"词元 {first} 到 {last}" if answered else "没有答案"
    )(language)
    labels = Text(
        "S·T_i and E·T_j|S·T_i + E·T_j, start in rows|best span|no answer, S·C + E·C|verdict",
        "S·T_i 与 E·T_j|S·T_i + E·T_j，行是起点|最好的片段|无答案，S·C + E·C|结论",
    )(language).split("|")
    ends = Text("start|end", "起点|终点")(language).split("|")
    steps = (
        Step(labels[0], np.stack([start, end]), "", tuple(ends), ("", *tokens)),
        Step(
            labels[1],
            sums,
            Text("an end before its start is no span", "终点在起点之前的不算")(language),
            tokens[1:],
            ("", *tokens[1:]),
        ),
        Step(labels[2], score, Text(f"from token {first} to {last}", f"从词元 {first} 到 {last}")(language)),
        Step(labels[3], found.null_score),
        Step(labels[4], verdict),
    )
    values = {
        "first": first,
        "last": last,
        "score": score,
        "null": found.null_score,
        "answered": answered,
        "verdict": verdict,
        "spans": len(found.spans),
        # 与最好的片段一样，[CLS] 不参加：它不是段落里的词
        "crossed": float(end[1:].max() + start[1:].max()),
        "crossed_start": int(start[1:].argmax()) + 1,
        "crossed_end": int(end[1:].argmax()) + 1,
    }
    return Computation(id, title, steps, values)
