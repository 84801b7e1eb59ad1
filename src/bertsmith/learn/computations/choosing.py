"""Multiple choice in full: every ending in a sequence of its own, one score each, one softmax over them (§4.4)."""

from __future__ import annotations

import math

import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.study import Study
from bertsmith.model.heads import NextSentenceHead


@torch.inference_mode()
def choose_ending(
    *, id: str, title: str, language: Language, study: Study, context: str, first: str, second: str, third: str
) -> Computation:
    """Scores endings of a context with one vector, S = v · C, and turns the scores into probabilities.

    The vector is the difference of the two rows of the next-sentence head, so that nothing has to be trained here;
    fine-tuning would learn a vector of its own, of the same length. The first ending counts as the right one.

    Raises:
        InputError: a text has no words, a pair is too long, or the model's family has no next-sentence head.
    """
    if study.model.family.heads.get("next_sentence") is not NextSentenceHead:
        raise InputError(f"{study.model.family.name} was not trained to tell the next sentence; take a BERT")
    endings = [first, second, third]
    encoded = [study.encode(context, ending) for ending in endings]
    batch = RaggedBatch.from_sequences([ids for ids, _ in encoded], [segments for _, segments in encoded])
    linear = study.model.next_sentence.linear
    # 两行之差就是“接着”比“随机”高出多少：恰好是多选一任务所要的那一个向量
    vector, bias = linear.weight[0] - linear.weight[1], linear.bias[0] - linear.bias[1]
    scores = study.model.backbone(batch).pooled.float() @ vector + bias
    probabilities = scores.softmax(0).tolist()
    best = max(range(len(endings)), key=probabilities.__getitem__)
    loss = -math.log(probabilities[0])

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    rows = [
        (ending, float(score), probability, "✓" if n == 0 else "")
        for n, (ending, score, probability) in enumerate(zip(endings, scores, probabilities, strict=True))
    ]
    steps = (
        Step(
            say("what the model reads, a sequence for each ending", "模型读到的，每个结尾一个序列"),
            [[" ".join(study.pieces(ids))] for ids, _ in encoded],
        ),
        Step(
            say("a score for each, one softmax over all", "各得一个分数，一起做 softmax"),
            rows,
            say("score = v · C, with one vector v for all endings", "分数 = v · C，所有结尾用同一个向量 v"),
            columns=tuple(say("ending|score|probability|right", "结尾|分数|概率|正确").split("|")),
        ),
        Step(say("loss, -log p of the right ending", "损失，正确结尾的 -log p"), loss, "nats"),
    )
    values = {
        "choices": len(endings),
        "scores": [float(score) for score in scores],
        "probabilities": probabilities,
        "best": endings[best],
        "share": probabilities[best],
        "right": probabilities[0],
        "loss": loss,
        "blind": math.log(len(endings)),
        "hidden": len(vector),
    }
    return Computation(id, title, steps, values, study.note(language))
