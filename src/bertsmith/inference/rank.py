"""Ranking with a cross-encoder: how relevant a text is to a query, from both read together (Nogueira and Cho 2019).

The model is a sequence classifier with one output; its sigmoid is the score. `sentence_transformers.CrossEncoder`
reads the same folders and gives the same scores, but where a folder names another activation than the sigmoid: ours are
then in the same order, on another scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import ConfigError, InputError
from bertsmith.inference.checks import require_list
from bertsmith.inference.classify import MULTI, REGRESSION, sequence_logits
from bertsmith.inference.engine import DEFAULT, InferenceConfig
from bertsmith.inference.pipeline import Pipeline
from bertsmith.model import ModelConfig, ModelForSequenceClassification
from bertsmith.tokenizer import Tokenizer

_OTHERS = (MULTI, REGRESSION)


@dataclass(frozen=True)
class Ranked:
    """A text, its number in the list that was given, and how relevant it is, in [0, 1]."""

    index: int
    score: float
    text: str


class Rank(Pipeline, name="rank"):
    """Puts texts in order of relevance to a query."""

    architectures = (ModelForSequenceClassification,)
    two_texts = "a query and its text"
    endpoints = ("/rerank",)

    def __init__(
        self,
        model: ModelForSequenceClassification,
        tokenizer: Tokenizer,
        inference: InferenceConfig = DEFAULT,
    ) -> None:
        """Takes a model with one output and no `problem_type`; see `Pipeline`."""
        if len(model.config.id2label) != 1 or model.config.problem_type is not None:
            raise ConfigError(
                f"the model has {len(model.config.id2label)} outputs and problem_type {model.config.problem_type!r};"
                " a ranker has one output and no problem_type"
            )
        super().__init__(model, tokenizer, inference)

    @classmethod
    def is_for(cls, architecture: str, config: ModelConfig) -> bool:
        """Tells whether a folder holds a cross-encoder: one output, which neither labels nor measures."""
        return super().is_for(architecture, config) and len(config.id2label) == 1 and config.problem_type not in _OTHERS

    def __call__(self, query: str, texts: Sequence[str]) -> list[Ranked]:
        """Ranks texts for one query.

        Args:
            query: what is asked for.
            texts: N candidates.

        Returns:
            All N, best first; equals in the order they were given.

        Raises:
            InputError: the query is no string, or a single string was given for the texts.
        """
        if not isinstance(query, str):
            raise InputError("give one query, a string; `scores` takes many")
        require_list(texts)
        scores = self.scores([query] * len(texts), texts).tolist()
        order = sorted(range(len(texts)), key=lambda index: -scores[index])
        return [Ranked(index, scores[index], texts[index]) for index in order]

    def scores(self, queries: Sequence[str], texts: Sequence[str]) -> NDArray[np.float64]:
        """Scores pairs; where the two are too long together, the longer one is cut.

        Args:
            queries: N queries.
            texts: N texts, one for each.

        Returns:
            [N] in [0, 1].

        Raises:
            InputError: a single string was given, or the numbers differ.
        """
        # 双精度的 sigmoid：float32 在 17 以上就饱和为 1，高分之间会并列
        scores: NDArray[np.float64] = self.logits(queries, texts).double().sigmoid().numpy()
        return scores

    def logits(self, queries: Sequence[str], texts: Sequence[str]) -> Tensor:
        """Returns [N] float32, the scores of pairs before the sigmoid; arguments and errors as in `scores`."""
        require_list(queries, texts)
        return sequence_logits(self, queries, texts)[:, 0]

    def smallest_input(self) -> tuple[Any, ...]:
        """Returns a query and one text."""
        return "a", ["a"]
