"""Tagging in full, trained while one waits: first pieces, a softmax for each word, and what pre-training is worth.

Two taggers learn the same few sentences of the village under one recipe, all parameters at once: one starts from the
trained village model, the other from random weights. They are judged on words that no label showed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from bertsmith.batch import RaggedBatch
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.model import BertConfig, BertForTokenClassification
from bertsmith.seeding import generator, torch_seed
from bertsmith.tinyworld import draw_tagged_sentences, trained_model
from bertsmith.tinyworld.tasks import TaggedSentence
from bertsmith.tokenizer import Tokenizer, load_tokenizer

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


@dataclass(frozen=True)
class TaggedPieces:
    """A sentence as a tagger reads it.

    Attributes:
        ids: S pieces, special ones included.
        labels: S tags by number; `IGNORED` for all but the first piece of each word.
        words: S, the number of the word of each piece; -1 for special ones.
    """

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


@dataclass(frozen=True)
class Tagger:
    """A trained tagger: its loss at every step, and how it did on the held-out words."""

    model: BertForTokenClassification
    losses: list[float]
    accuracy: float
    unseen_accuracy: float
    unseen: int


@functools.cache
def trained_tagger(seed: int, *, pretrained: bool) -> Tagger:
    """Fine-tunes a tagger on a few sentences of the village.

    Args:
        seed: of the new layer, of the random weights and of the order.
        pretrained: whether it starts from the village model's weights.
    """
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
        loss = F.cross_entropy(model(_batch(chosen)), _labels(chosen), ignore_index=IGNORED)
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
    """Returns which entity words of held-out sentences are told right: of all, and of those that no label showed."""
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


def tag_words(*, id: str, title: str, language: Language, seed: int) -> Computation:
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

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    names = [say("the village model", "村庄模型"), say("random weights", "随机权重")]
    compared = [
        (name, each.losses[0], sum(each.losses[-10:]) / 10, f"{each.accuracy:.0%}", f"{each.unseen_accuracy:.0%}")
        for name, each in zip(names, taggers, strict=True)
    ]
    steps = (
        Step(
            say("what is read, and where a tag is asked for", "读到的词片，以及在哪里问标签"),
            read,
            say("a word's tag is read at its first piece; – gives no loss", "标签在词的第一个词片上读；– 处不产生损失"),
            columns=tuple(say("piece|word|tag", "词片|词|标签").split("|")),
        ),
        Step(
            say("after fine-tuning: a softmax over the tags for each word", "微调之后：每个词在各标签上做 softmax"),
            told,
            columns=tuple(
                say("word|true tag|told|p of the true tag|-log p", "词|正确标签|给出|正确标签的 p|-log p").split("|")
            ),
        ),
        Step(say("loss, the mean over the words", "损失，对各个词取平均"), loss, "nats"),
        Step(
            say(f"{LABELLED} labelled sentences, two starts", f"{LABELLED} 个有标注的句子，两种起点"),
            compared,
            say(
                f"share of entity words told right in {HELDOUT} other sentences; unseen: words that no label showed",
                f"另外 {HELDOUT} 个句子里实体词的正确率；没见过：标注里没有出现的词",
            ),
            columns=tuple(
                say(
                    "start from|loss at first|loss at the end|right|right, unseen",
                    "起点|开始的损失|结束的损失|正确率|没见过的词",
                ).split("|")
            ),
        ),
    )
    split = max(range(len(EXAMPLE.words)), key=row.words.count)
    pretrained, random = taggers
    values = {
        "pieces": len(row.ids) - 2,
        "words": len(EXAMPLE.words),
        "split": EXAMPLE.words[split],
        "split_pieces": row.words.count(split),
        "tags": len(TAGS),
        "loss": loss,
        "labelled": LABELLED,
        "heldout": HELDOUT,
        "steps": STEPS,
        "right": pretrained.accuracy,
        "random_right": random.accuracy,
        "unseen_words": pretrained.unseen,
        "unseen": pretrained.unseen_accuracy,
        "random_unseen": random.unseen_accuracy,
        "parameters": sum(parameter.numel() for parameter in pretrained.model.parameters()),
    }
    return Computation(id, title, steps, values)


def _spread(seed: int, count: int, split: str) -> list[TaggedSentence]:
    """Returns sentences of as many stories as possible, one of every few that are drawn."""
    # 一个故事里的句子说的是同样的人和物：隔几句取一句，标注才覆盖整个村庄
    return list(draw_tagged_sentences(seed, count * APART, split=split))[::APART]


def _batch(rows: Sequence[TaggedPieces]) -> RaggedBatch:
    return RaggedBatch.from_sequences([row.ids for row in rows])


def _labels(rows: Sequence[TaggedPieces]) -> torch.Tensor:
    return torch.tensor([label for row in rows for label in row.labels])


def _mean(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else 0.0
