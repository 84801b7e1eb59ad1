"""What fine-tuning adds: a handful of parameters, answer spans, choices, and tags learned while one waits (§4).

Two taggers learn the same few sentences of the village under one recipe, all parameters at once: one starts from the
trained village model, the other from random weights. They are judged on words that no label showed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.model import BertConfig, BertForTokenClassification
from bertsmith.model.heads import SpanScores, best_spans
from bertsmith.model.sizes import ParameterCounts
from bertsmith.seeding import generator, torch_seed
from bertsmith.tinyworld import draw_tagged_sentences, trained_model
from bertsmith.tinyworld.tasks import TaggedSentence
from bertsmith.tokenizer import Tokenizer, load_tokenizer
from bertsmith_school.learn.lesson import Found, Step, Words
from bertsmith_school.learn.study import Study


def head_sizes(say: Words, *, size: str, labels: int) -> Found:
    """Counts the new parameters of each kind of task beside those of the encoder."""
    config = BertConfig.named(size)
    counts, h = ParameterCounts.of(config), config.hidden_size
    base = counts.embeddings + counts.encoder
    whole = base + counts.pooler
    classes, span, choice = labels * h + labels, 2 * h + 2, h + 1
    tasks = [("K·H + K", classes, whole), ("K·H + K", classes, base), ("2·H + 2", span, base), ("H + 1", choice, whole)]
    rows = [(formula, new, old, f"{new / (new + old):.4%}") for formula, new, old in tasks]
    values: dict[str, float] = {"hidden": h, "labels": labels, "classifier": classes, "span": span, "choice": choice}
    values |= {"pretrained": whole, "share": classes / (classes + whole)}
    return [say.named("tasks", rows)], values


def answer_span(say: Words, *, start: NDArray[np.float64], end: NDArray[np.float64]) -> Found:
    """Scores every span of a passage by S·T_i and E·T_j, `[CLS]` first, and picks the best (§4.2, §4.3)."""
    if len(start) != len(end) or len(start) < 2:
        raise InputError(f"start has {len(start)} numbers and end {len(end)}: give as many, [CLS] and a token at least")
    count, scores = len(start), SpanScores(*(torch.tensor(row, dtype=torch.float32)[None] for row in (start, end)))
    # [CLS] 不是段落里的词：它的得分另有用处，即“无答案”
    spans = best_spans(scores, torch.arange(count)[None] > 0, count=count**2)[0]
    first, last, score = spans[0].tolist()
    null = float(scores.start[0, 0] + scores.end[0, 0])
    tokens = tuple(say["token"].format(n) for n in range(1, count))
    sums = [[float(start[i] + end[j]) if j >= i else "" for j in range(1, count)] for i in range(1, count)]
    answered = score > null
    verdict = say["answer"].format(int(first), int(last)) if answered else say["none"]
    steps = [
        Step("", np.stack([start, end]), columns=("", "[CLS]", *tokens)),
        Step("", sums, rows=tokens, columns=("", *tokens)),
        score,
        null,
        verdict,
    ]
    values = {
        "first": int(first),
        "last": int(last),
        "score": score,
        "null": null,
        "answered": answered,
        "verdict": verdict,
        "spans": int(spans[:, 2].isfinite().sum()),
        # 与最好的片段一样，[CLS] 不参加：它不是段落里的词
        "crossed": float(end[1:].max() + start[1:].max()),
        "crossed_start": int(start[1:].argmax()) + 1,
        "crossed_end": int(end[1:].argmax()) + 1,
    }
    return steps, values


@torch.inference_mode()
def choose_ending(study: Study, *, context: str, first: str, second: str, third: str) -> Found:
    """Scores endings of a context with one vector, S = v · C, and turns the scores into probabilities.

    The vector is the difference of the next-sentence head's two rows, so nothing is trained; the first ending is right.
    """
    study.require_next_sentence()
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
    rows = [
        (ending, float(score), probability, "✓" if n == 0 else "")
        for n, (ending, score, probability) in enumerate(zip(endings, scores, probabilities, strict=True))
    ]
    steps = [[[" ".join(study.pieces(ids))] for ids, _ in encoded], rows, loss]
    values: dict[str, Any] = {"choices": len(endings), "scores": [float(score) for score in scores]}
    values |= {"probabilities": probabilities, "best": endings[best], "share": probabilities[best], "loss": loss}
    values |= {"blind": math.log(len(endings)), "hidden": len(vector)}
    return steps, values


TAGS = ("O", "B-person", "B-place", "B-animal", "B-food")
EXAMPLE = TaggedSentence(
    ("Anna", "feeds", "the", "hedgehogs", "at", "the", "barn", "."),
    ("B-person", "O", "O", "B-animal", "O", "O", "B-place", "O"),
)
"""One of its words is no piece of the village's vocabulary."""

LABELLED, HELDOUT = 40, 200
APART = 7
"""One of so many sentences of the stories is taken."""

STEPS, BATCH, RATE = 50, 8, 2e-3
"""A very small model takes a larger rate than the paper's."""

IGNORED = -100
"""The label of pieces that give no loss, as everywhere in torch."""


class TaggedPieces(NamedTuple):
    """A sentence as a tagger reads it: ids, labels (`IGNORED` but at first pieces), word numbers (-1 for special)."""

    ids: list[int]
    labels: list[int]
    words: list[int]


def tagged_pieces(tokenizer: Tokenizer, sentence: TaggedSentence) -> TaggedPieces:
    """Cuts the words of a sentence into pieces, and gives each tag to the first piece of its word."""
    ids, labels, words = [tokenizer.cls_token_id], [IGNORED], [-1]
    for number, (word, tag) in enumerate(zip(sentence.words, sentence.tags, strict=True)):
        pieces = tokenizer.encode(word)
        ids += pieces
        # 后续词片不产生损失：否则长词会比短词重要
        labels += [TAGS.index(tag)] + [IGNORED] * (len(pieces) - 1)
        words += [number] * len(pieces)
    return TaggedPieces([*ids, tokenizer.sep_token_id], [*labels, IGNORED], [*words, -1])


class Tagger(NamedTuple):
    """A trained tagger: its loss at every step, and how it did on the held-out words."""

    model: BertForTokenClassification
    losses: list[float]
    accuracy: float
    unseen_accuracy: float
    unseen: int


@functools.cache
def trained_tagger(seed: int, *, pretrained: bool) -> Tagger:
    """Fine-tunes a tagger on a few sentences of the village."""
    tokenizer = load_tokenizer(trained_model())
    names = dict(enumerate(TAGS))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "learn/tagger"))
        if pretrained:
            model = BertForTokenClassification.from_pretrained(trained_model(), new_heads=True, id2label=names)
        else:
            model = BertForTokenClassification(BertConfig.load(trained_model()).changed(id2label=names))
    labelled = _spread(seed, LABELLED, "lesson")
    rows, rng, losses = [tagged_pieces(tokenizer, one) for one in labelled], generator(seed, "learn/tagging"), []
    # 关掉 dropout：步数很少，结果只取决于种子
    model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        chosen = [rows[n] for n in rng.choice(len(rows), BATCH, replace=False)]
        labels = torch.tensor([label for row in chosen for label in row.labels])
        loss = F.cross_entropy(model(_batch(chosen)), labels, ignore_index=IGNORED)
        optimizer.param_groups[0]["lr"] = RATE * (1 - step / STEPS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    shown = {word for sentence in labelled for word in sentence.words}
    right, unseen_right = _judged(model, tokenizer, shown, seed)
    return Tagger(model, losses, _mean(right), _mean(unseen_right), len(unseen_right))


def _judged(
    model: BertForTokenClassification, tokenizer: Tokenizer, shown: set[str], seed: int
) -> tuple[list[bool], list[bool]]:
    """Returns which entity words of held-out sentences are right: of all, and of those that no label showed."""
    sentences = _spread(seed, HELDOUT, "lesson-heldout")
    rows = [tagged_pieces(tokenizer, one) for one in sentences]
    with torch.inference_mode():
        told = iter(model(_batch(rows)).argmax(-1).tolist())
    right, unseen = [], []
    for sentence, row in zip(sentences, rows, strict=True):
        for label, word in zip(row.labels, row.words, strict=True):
            # O 占多数：只看实体词，否则全答 O 也有高分；读数器每个词片前进一格
            correct = next(told) == label
            if label > 0:
                right.append(correct)
                if sentence.words[word] not in shown:
                    unseen.append(correct)
    return right, unseen


def tag_words(say: Words, *, seed: int) -> Found:
    """Follows the tags of a sentence from pieces to a loss, and compares the two taggers."""
    tokenizer = load_tokenizer(trained_model())
    taggers = [trained_tagger(seed, pretrained=pretrained) for pretrained in (True, False)]
    row = tagged_pieces(tokenizer, EXAMPLE)
    pieces = [tokenizer.vocab[index] for index in row.ids]
    with torch.inference_mode():
        logits = taggers[0].model(_batch([row])).float()
    probabilities = logits.softmax(-1)
    read = [
        (piece, EXAMPLE.words[word] if word >= 0 else "", TAGS[label] if label != IGNORED else "–")
        for piece, word, label in zip(pieces, row.words, row.labels, strict=True)
    ]
    told = [
        (EXAMPLE.words[row.words[n]], TAGS[label], TAGS[int(probabilities[n].argmax())], share, -math.log(share))
        for n, label in enumerate(row.labels)
        if label != IGNORED
        for share in [float(probabilities[n, label])]
    ]
    loss = float(F.cross_entropy(logits, torch.tensor(row.labels), ignore_index=IGNORED))
    compared = [
        (each.losses[0], sum(each.losses[-10:]) / 10, f"{each.accuracy:.0%}", f"{each.unseen_accuracy:.0%}")
        for each in taggers
    ]
    split = max(range(len(EXAMPLE.words)), key=row.words.count)
    pretrained, random = taggers
    values: dict[str, Any] = {"pieces": len(row.ids) - 2, "words": len(EXAMPLE.words), "split": EXAMPLE.words[split]}
    values |= {"split_pieces": row.words.count(split), "tags": len(TAGS), "loss": loss, "labelled": LABELLED}
    values |= {"heldout": HELDOUT, "steps": STEPS, "unseen_words": pretrained.unseen}
    values |= {"unseen": pretrained.unseen_accuracy, "random_unseen": random.unseen_accuracy}
    values |= {"parameters": sum(parameter.numel() for parameter in pretrained.model.parameters())}
    return [read, told, loss, say.named("models", compared)], values


def _spread(seed: int, count: int, split: str) -> list[TaggedSentence]:
    """Returns sentences of as many stories as possible, one of every few that are drawn."""
    # 一个故事里的句子说的是同样的人和物：隔几句取一句，标注才覆盖整个村庄
    return list(draw_tagged_sentences(seed, count * APART, split=split))[::APART]


def _batch(rows: Sequence[TaggedPieces]) -> RaggedBatch:
    return RaggedBatch.from_sequences([row.ids for row in rows])


def _mean(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else 0.0
