"""A transformer: texts become vectors, for whatever classifier stands behind it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.tasks.embed import EmbeddingOptions, EmbeddingTask
from bertsmith.inference.embed import Embed, Pooling
from bertsmith.sklearn.base import FineTuned
from bertsmith.sklearn.inputs import EstimatorError, as_value_error, targets_of, texts_of


@dataclass(eq=False, repr=False, kw_only=True)
class BertEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, FineTuned):  # type: ignore[misc]
    """Turns texts into vectors; with `n_epochs`, it first learns vectors that lie close together within a class.

    The parameters that are not listed here are those of `BertClassifier`.

    Examples:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from bertsmith.sklearn import BertEmbedder
        >>> texts, labels = ["a lovely story", "a dull story"] * 8, ["good", "bad"] * 8
        >>> make_pipeline(BertEmbedder("run/model"), LogisticRegression()).fit(texts, labels).predict(["a story"]).shape
        (1,)

    Args:
        model: a model folder, `org/name` of the Hub, or a live pipeline.
        pooling: how the states of a text become a vector; None as the folder says.
        normalize: scale vectors to length 1.
        dims: keep only this many numbers; None keeps all.
        prompt: name of the prompt before every text; None as the folder says.
        n_epochs: passes over the rows, to learn from their classes; 0 takes the model as it is.
        batch_size: texts in a step of learning.
    """

    pooling: Pooling | None = None
    normalize: bool = True
    dims: int | None = None
    prompt: str | None = None
    n_epochs: int = 0
    batch_size: int = 64

    def __sklearn_tags__(self) -> Any:
        """Says besides that the dtype of the vectors is not that of the inputs."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> BertEmbedder:  # noqa: N803
        """Loads the model, and fine-tunes it on the classes where `n_epochs` says so.

        Raises:
            EstimatorError: a row is no single text, or classes are missing that are to be learned from.
        """
        texts = _single(X)
        with as_value_error():
            if self.n_epochs:
                labels = [str(label) for label in targets_of(y, len(texts))]
                examples = [LabelledText(text, None, label) for text, label in zip(texts, labels, strict=True)]
                task = EmbeddingTask.learned_from(examples, EmbeddingOptions())
                self._fine_tune(task, examples, labels)
            else:
                with ExitStack() as stack:
                    start = self._start(stack)
                    self.pipeline_ = Embed.load(start, device=self.device)
                    self._texts, self._precision = {}, None
            self._n_features_out = self.pipeline_.width(self.pooling, self.dims)
        return self

    def _can_choose(self, held: Any) -> bool:
        # 每类两条才有“同类的另一条”可找
        return len(set(held)) > 1 and len(held) >= 2 * len(set(held))

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Returns [N, H] float32, a vector for each text."""
        pipeline, texts = self._fitted(), _single(X)
        with as_value_error():
            vectors: NDArray[np.float32] = pipeline(
                texts, pooling=self.pooling, normalize=self.normalize, dims=self.dims, prompt=self.prompt
            )
        return vectors


def _single(inputs: Any) -> list[str]:
    rows = texts_of(inputs)
    if rows[0][1] is not None:
        raise EstimatorError("X: its rows are pairs of texts; a vector is made of one text, give one column")
    return [text for text, _ in rows]
