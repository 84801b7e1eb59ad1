"""The two losses of pre-training, from logits to a number, with every step between (§3.1, A.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.study import Study
from bertsmith.model.heads import NextSentenceHead
from bertsmith.objectives import MaskedLMLoss, NSPLoss

CLASSES = ("is next", "is random")
"""The two classes of next sentence prediction, by id."""

TOP = 5
"""Candidates that are printed."""


def places_of(word: Sequence[int], ids: Sequence[int]) -> list[int]:
    """Returns where a word of one piece or several begins in a sequence."""
    return [n for n in range(len(ids)) if word and ids[n : n + len(word)] == word]


@torch.inference_mode()
def mlm_loss(*, id: str, title: str, language: Language, study: Study, text: str, hidden: str) -> Computation:
    """Hides a word and follows the loss at its place.

    Raises:
        InputError: the word is not in the sentence.
    """
    tokenizer = study.tokenizer
    ids = study.encode(text)[0]
    target = tokenizer.encode(hidden)
    places = places_of(target, ids)
    if not places:
        raise InputError(f"the word {hidden[:40]!r} is not in {text[:40]!r}; name a word of the sentence")
    positions = list(range(places[0], places[0] + len(target)))
    corrupted = [tokenizer.mask_token_id if n in positions else index for n, index in enumerate(ids)]
    output = study.model(RaggedBatch.from_sequences([corrupted]), torch.tensor(positions))
    logits = output.mlm_logits.float()
    measure = MaskedLMLoss()(logits, torch.tensor(target))
    # 先减去最大值再取指数：结果不变，但不会溢出
    first = logits[0] - logits[0].max()
    powers = first.exp()
    best = logits[0].topk(min(TOP, len(first))).indices.tolist()
    shown = best if target[0] in best else [*best, target[0]]
    rows = [
        (study.pieces([n])[0], float(logits[0, n]), float(powers[n]), float(powers[n] / powers.sum())) for n in shown
    ]
    probabilities = logits.softmax(-1)[torch.arange(len(target)), torch.tensor(target)].tolist()
    each = [
        (piece, probability, -math.log(probability))
        for piece, probability in zip(study.pieces(target), probabilities, strict=True)
    ]

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    steps = (
        Step(say("what the model reads", "模型读到的"), " ".join(study.pieces(corrupted))),
        Step(
            say("the likeliest pieces, and the true one", "最可能的词片，以及正确的那个"),
            rows,
            say("exp after the largest logit is taken off", "减去最大的 logit 之后再取 exp"),
            columns=tuple(say("piece|logit|exp|probability", "词片|logit|exp|概率").split("|")),
        ),
        Step(say("sum of exp", "exp 之和"), float(powers.sum()), say("over the whole vocabulary", "对整个词表求和")),
        Step(
            say("the truth", "正确答案"),
            each,
            columns=tuple(say("piece|probability p|-log p", "词片|概率 p|-log p").split("|")),
        ),
        Step(say("loss, the mean of -log p", "损失，即 -log p 的平均"), float(measure.loss), "nats"),
        Step(
            say("log V, knowing nothing", "log V，一无所知时"),
            math.log(logits.shape[1]),
            say(f"V = {logits.shape[1]:,} pieces", f"V = {logits.shape[1]:,} 个词片"),
        ),
    )
    values = {
        "loss": float(measure.loss),
        "probabilities": probabilities,
        "pieces": len(target),
        "vocabulary": logits.shape[1],
        "blind": math.log(logits.shape[1]),
        "word": hidden,
        "perplexity": math.exp(float(measure.loss)),
    }
    return Computation(id, title, steps, values, study.note(language))


@torch.inference_mode()
def nsp_loss(
    *, id: str, title: str, language: Language, study: Study, first: str, second: str, truth: str
) -> Computation:
    """Follows a pair from C to the next-sentence loss.

    Raises:
        InputError: a sentence has no words, both are too long together, or the model's family has no such head.
    """
    # ALBERT 的头问的是两句的顺序，不是随机与否：同样的数，意思不同
    if study.model.family.heads.get("next_sentence") is not NextSentenceHead:
        raise InputError(f"{study.model.family.name} was not trained to tell the next sentence; take a BERT")
    ids, segments = study.encode(first, second)
    batch = RaggedBatch.from_sequences([ids], [segments])
    output = study.model(batch, torch.tensor([0]))
    label = CLASSES.index(truth)
    measure = NSPLoss()(output.nsp_logits, torch.tensor([label]))
    probabilities = output.nsp_logits[0].float().softmax(-1).tolist()

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    size = output.encoded.cls.shape[1]
    part = say(f"the first numbers of {size}", f"{size} 个数中的前几个")
    classes = [say("B follows A", "B 接着 A"), say("B is random", "B 是随机的")]
    rows = [
        (name, float(logit), probability, "✓" if n == label else "")
        for n, (name, logit, probability) in enumerate(zip(classes, output.nsp_logits[0], probabilities, strict=True))
    ]
    loss = float(measure.loss)
    steps = (
        Step(say("what the model reads", "模型读到的"), " ".join(study.pieces(ids))),
        Step(say("C, the state of [CLS]", "C，[CLS] 的状态"), output.encoded.cls[0, :TOP].numpy(), part),
        Step(say("pooled, tanh(W C + b)", "pooled，tanh(W C + b)"), output.encoded.pooled[0, :TOP].numpy(), part),
        Step(
            say("logits and softmax", "logits 与 softmax"),
            rows,
            columns=tuple(say("class|logit|probability|truth", "类别|logit|概率|真实").split("|")),
        ),
        Step(say("loss, -log p of the truth", "损失，正确类别的 -log p"), loss, "nats"),
        Step(say("log 2, a coin", "log 2，随机猜"), math.log(2)),
    )
    values = {
        "loss": loss,
        "probability": probabilities[label],
        "next": probabilities[0],
        "random": probabilities[1],
        "coin": math.log(2),
        "truth": classes[label],
    }
    return Computation(id, title, steps, values, study.note(language))
