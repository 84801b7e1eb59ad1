"""Training MiniBert: Adam by hand, the paper's masking, and a hundred sentences in which the order of words decides.

Every step reads all sentences, hidden anew by the code that pre-training uses. Sentences of one length make one array;
the gradients of the lengths add up to those of the whole. With its positions and without, the same training shows what
positions are for: `the man [MASK] the book` asks for a verb, `the book [MASK] the man` does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.stream.masking import MaskingSettings, mask_tokens
from bertsmith.errors import InputError
from bertsmith.learn.minibert import MiniBert, MiniBertConfig, Parameters, softmax
from bertsmith.seeding import generator

MASK = "[MASK]"


class Adam:
    """Adam (Kingma and Ba 2015): m ← β₁m + (1-β₁)g, v ← β₂v + (1-β₂)g², θ ← θ - η m̂ / (√v̂ + ε)."""

    def __init__(self, parameters: Parameters, *, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.parameters, self.betas, self.steps = parameters, betas, 0
        self.means = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.squares = {name: np.zeros_like(value) for name, value in parameters.items()}

    def step(self, gradients: Parameters, learning_rate: float) -> None:
        """Moves every parameter, in place."""
        self.steps += 1
        first, second = self.betas
        for name, gradient in gradients.items():
            mean, square = self.means[name], self.squares[name]
            mean += (1 - first) * (gradient - mean)
            square += (1 - second) * (gradient**2 - square)
            # 除以 1-βᵗ：两个均值都从 0 开始，最初几步会偏小
            corrected, spread = mean / (1 - first**self.steps), square / (1 - second**self.steps)
            self.parameters[name] -= learning_rate * corrected / (np.sqrt(spread) + 1e-8)


@dataclass(frozen=True)
class TrainedMiniBert:
    """A MiniBert with its words.

    Attributes:
        model: the network.
        words: V words by id, `[MASK]` first.
        losses: the masked-word loss at every step, in nats.
    """

    model: MiniBert
    words: tuple[str, ...]
    losses: tuple[float, ...]

    def fill(self, text: str) -> list[dict[str, float]]:
        """Fills every `[MASK]` of a sentence.

        Returns:
            For each mask, from left to right, every word with its probability, likeliest first.

        Raises:
            InputError: a word is unknown, there is no mask, or the sentence is too long.
        """
        ids = encode([text], self.words)[0]
        if 0 not in ids:
            raise InputError(f"no {MASK} in {text[:60]!r}; write {MASK} where a word is to be filled in")
        if len(ids) > self.model.config.max_length:
            raise InputError(f"{text[:60]!r} has {len(ids)} words; this model reads {self.model.config.max_length}")
        logits = self.model.logits(self.model.forward(ids[None]).states[0][ids == 0])
        filled = []
        for row in softmax(logits[:, 1:]):
            order = np.argsort(-row, kind="stable")
            filled.append({self.words[1 + word]: float(row[word]) for word in order})
        return filled


def train_minibert(
    sentences: Sequence[str], *, steps: int = 100, learning_rate: float = 3e-3, seed: int = 0, **shape: Any
) -> TrainedMiniBert:
    """Trains on sentences with the paper's masking; every step reads all of them, hidden anew.

    Args:
        sentences: words with spaces between.
        steps: how many.
        learning_rate: at the start; it falls linearly to 0.
        seed: of the weights and of what is hidden.
        **shape: fields of `MiniBertConfig`, other than the two that follow from the sentences.

    Raises:
        InputError: there are no sentences, or one is empty.
        ConfigError: the shape is impossible.
    """
    words = (MASK, *sorted({word for sentence in sentences for word in sentence.split()} - {MASK}))
    by_length: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for ids in encode(sentences, words):
        by_length[len(ids)].append(ids)
    groups = [np.stack(by_length[length]) for length in sorted(by_length)]
    model = MiniBert(MiniBertConfig(len(words), max(by_length), **shape), seed=seed)
    adam, losses = Adam(model.parameters), []
    special = np.array([0])
    for step in range(steps):
        rng = generator(seed, "minibert/masking", step)
        masked = [
            mask_tokens(
                group.ravel(),
                np.full(len(group), group.shape[1]),
                special_ids=special,
                mask_token_id=0,
                vocab_size=len(words),
                settings=MaskingSettings(),
                rng=rng,
            )
            for group in groups
        ]
        total = sum(len(part.labels) for part in masked)
        loss, summed = 0.0, defaultdict[str, Any](float)
        # 各长度分组的损失都除以同一个总数，梯度相加即为整批的梯度
        for group, part in zip(groups, masked, strict=True):
            ids = part.input_ids.reshape(group.shape)
            share, gradients = model.loss_and_gradients(ids, part.positions, part.labels, total=total)
            loss += share
            for name, gradient in gradients.items():
                summed[name] = summed[name] + gradient
        adam.step(summed, learning_rate * (1 - step / steps))
        losses.append(loss)
    return TrainedMiniBert(model, words, tuple(losses))


def encode(sentences: Sequence[str], words: Sequence[str]) -> list[NDArray[np.int64]]:
    """Turns sentences into ids, the places of their words among `words`.

    Raises:
        InputError: there is no sentence, one is empty, or a word is unknown.
    """
    ids = {word: index for index, word in enumerate(words)}
    if not sentences:
        raise InputError("no sentences; give a few, with spaces between the words")
    encoded = []
    for number, sentence in enumerate(sentences, 1):
        split = sentence.split()
        unknown = [word for word in split if word not in ids]
        if unknown or not split:
            what = f"the word {unknown[0][:40]!r} is unknown" if unknown else "there are no words"
            raise InputError(f"sentence {number}: {what}; this model knows the words of its own sentences only")
        encoded.append(np.array([ids[word] for word in split]))
    return encoded


PEOPLE = ("man", "woman", "boy", "girl", "farmer", "baker")
DEEDS = {
    "reads": ("book", "letter", "map"),
    "eats": ("bread", "apple", "soup"),
    "drinks": ("milk", "tea"),
    "opens": ("door",),
}
"""Verb → what it is done to."""

VERBS = (*DEEDS, "sleeps")


def simple_sentences() -> tuple[str, ...]:
    """Returns the hundred-odd sentences of the lesson; `examples/minibert_sentences.txt` holds the same.

    Person and thing meet in two orders, so that the words around a gap do not settle what is missing:
    `the man reads the letter`, but `the letter near the man`. Nobody is told what the man does with the book, the
    woman with the letter and so on: the filled gap must follow from the other sentences.
    """
    things = [(verb, thing) for verb, objects in DEEDS.items() for thing in objects]
    sentences = []
    for number, person in enumerate(PEOPLE):
        for place, (verb, thing) in enumerate(things):
            # 每人留出一件事不说：测的是举一反三，不是背诵
            if place != number:
                sentences.append(f"the {person} {verb} the {thing}")
            sentences.append(f"the {thing} near the {person}")
        sentences.append(f"the {person} sleeps")
    return tuple(sentences)
