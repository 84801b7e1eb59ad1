"""Multiple choice: which of several continuations or answers fits a context (Devlin et al. 2019, §4.4).

Every choice makes a sequence of its own, `[CLS] context [SEP] choice [SEP]`, and gets one score; the softmax over the
choices of a question makes probabilities of them. Scores do not see one another, so questions may have different
numbers of choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.inference.checks import parts, require_list
from bertsmith.inference.pipeline import Pipeline
from bertsmith.model import ModelForMultipleChoice
from bertsmith.tokenizer import Tokenizer
from bertsmith.tokenizer.encoding import Encoding


@dataclass(frozen=True)
class Choice:
    """The number of the likeliest choice, from 0, and the probability of each; they add up to 1."""

    index: int
    probabilities: tuple[float, ...]


class Choose(Pipeline, name="choose"):
    """Chooses among answers or continuations."""

    architectures = (ModelForMultipleChoice,)
    two_texts = "a context and its choice"
    endpoints = ("/predict",)

    def __call__(self, contexts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[Choice]:
        """Chooses for every context; where the two are too long together, the longer one is cut.

        Args:
            contexts: Q texts.
            choices: for each of them its choices, one or more.

        Returns:
            Q choices in the same order; of equal scores the earlier one wins.

        Raises:
            InputError: a string was given for a list, the numbers differ, or a context has no choice.
        """
        _require_choices(contexts, choices)
        found: list[Choice] = []
        for part in parts(len(contexts)):
            counts = [len(texts) for texts in choices[part]]
            encoded = encode_choices(self.tokenizer, contexts[part], choices[part], self.max_length)
            # 每个选项单独算分：题目的选项数可以不同，长短相近的序列也能排在一起算
            scores = self.engine.run(encoded["input_ids"], encoded["token_type_ids"], choice_score)
            rows = scores.squeeze(-1).split(counts)
            found += [Choice(int(row.argmax()), tuple(row.softmax(-1).tolist())) for row in rows]
        return found

    def smallest_input(self) -> tuple[Any, ...]:
        """Returns a context with two choices."""
        return ["a"], [["a", "b"]]


def choice_score(model: ModelForMultipleChoice, batch: RaggedBatch) -> Tensor:
    """Reads [N, 1], the score of each sequence."""
    scores: Tensor = model(batch, 1)
    return scores


def encode_choices(
    tokenizer: Tokenizer, contexts: Sequence[str], choices: Sequence[Sequence[str]], max_length: int
) -> Encoding:
    """Returns one row `[CLS] context [SEP] choice [SEP]` for every choice, one question after the other."""
    repeated = chain.from_iterable(map(repeat, contexts, map(len, choices)))
    return tokenizer(list(repeated), list(chain.from_iterable(choices)), max_length=max_length)


def _require_choices(contexts: Sequence[str], choices: Sequence[Sequence[str]]) -> None:
    require_list(contexts)
    if isinstance(choices, str) or any(isinstance(texts, str) for texts in choices):
        raise InputError("give a list of choices for each context: [['yes', 'no'], ...]")
    if len(choices) != len(contexts):
        raise InputError(f"{len(contexts)} contexts and {len(choices)} lists of choices; give one for each")
    for number, texts in enumerate(choices):
        if len(texts) == 0:
            raise InputError(f"choices[{number}] is empty; give the context at least one choice")
        require_list(texts)
