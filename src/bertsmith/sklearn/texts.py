"""Estimators over texts, or pairs of texts: a class, or a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.spec import NoOptions
from bertsmith.sklearn.base import FineTuned
from bertsmith.sklearn.inputs import EstimatorError, as_value_error, targets_of, texts_of


class TextEstimator(FineTuned):
    """What both share: predictions for texts."""

    def _call(self, inputs: Any) -> Any:
        pipeline, rows = self._fitted(), texts_of(inputs)
        pairs = None if rows[0][1] is None else [pair or "" for _, pair in rows]
        with as_value_error():
            return pipeline([text for text, _ in rows], pairs)


@dataclass(eq=False, repr=False, kw_only=True)
class BertClassifier(ClassifierMixin, TextEstimator):  # type: ignore[misc]
    """Fine-tunes a model to give texts, or pairs of texts, one of several classes.

    Examples:
        >>> from bertsmith.sklearn import BertClassifier
        >>> texts, labels = ["a lovely story", "a dull story"] * 8, ["good", "bad"] * 8
        >>> classifier = BertClassifier("run/model", n_epochs=1, random_state=0).fit(texts, labels)
        >>> classifier.classes_.tolist(), classifier.predict_proba(["a story"]).shape
        (['bad', 'good'], (1, 2))

    Args:
        model: to start from: a model folder, `org/name` of the Hub, or a live pipeline.
        n_epochs: passes over the rows.
        batch_size: rows in a step.
        learning_rate: its peak; None takes what suits the size of the model.
        class_weight: `balanced`, class → weight, or None for all alike.
        validation_fraction: share of the rows that is not learned and chooses the best epoch; where too few are left
            for that, all rows choose.
        random_state: a seed, or as scikit-learn has it.
        device: None takes the GPU where there is one.
        run_folder: keeps the run, with its figures; the same fit goes on there. None for a temporary one.
        verbose: shows progress.
        settings: further settings of `bertsmith finetune` by name, such as `{"layer_decay": 0.9}`.

    Attributes:
        classes_: the classes, sorted.
    """

    class_weight: str | Mapping[Any, float] | None = None

    def fit(self, X: Any, y: Any) -> BertClassifier:  # noqa: N803
        """Fine-tunes.

        Args:
            X: N texts, or N pairs of texts.
            y: N classes.

        Raises:
            EstimatorError: a row is no text, a label is missing, there is one class only, or a parameter is impossible.
        """
        rows = texts_of(X)
        labels = targets_of(y, len(rows))
        for number, label in enumerate(labels):
            if label is None or label != label:
                raise EstimatorError(f"y: row {number} (from 0) is NaN or empty; give a class for each row")
            if isinstance(label, list) or (isinstance(label, float) and not label.is_integer()):
                raise EstimatorError(f"Unknown label type: y: row {number} (from 0) is {label}, no class")
        self.classes_, codes = np.unique(np.asarray(labels), return_inverse=True)
        if len(self.classes_) < 2:
            raise EstimatorError(f"y has one class only ({self.classes_[0]}); at least two classes are needed")
        # 任务的标签是文字；数字的类别在 predict 里由 classes_ 换回来
        names = [str(label) for label in self.classes_.tolist()]
        examples = [LabelledText(text, pair, names[k]) for (text, pair), k in zip(rows, codes.tolist(), strict=True)]
        with as_value_error():
            task = ClassificationTask(tuple(names), rows[0][1] is not None, self._weights(codes.tolist()))
            self._fine_tune(task, examples, codes.tolist())
        return self

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Returns [N] classes, each the likeliest."""
        codes = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[codes]
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Returns [N, K], the probability of each class in the order of `classes_`."""
        return np.array([list(row.probabilities.values()) for row in self._call(X)])

    def _weights(self, codes: Sequence[int]) -> tuple[float, ...]:
        counts, known = Counter(codes), self.classes_.tolist()
        if self.class_weight is None:
            return ()
        if self.class_weight == "balanced":
            return tuple(len(codes) / (len(known) * counts[code]) for code in range(len(known)))
        if not isinstance(self.class_weight, Mapping):
            raise EstimatorError(f"class_weight {self.class_weight!r}: give 'balanced', or a weight for each class")
        return tuple(float(self.class_weight.get(label, 1.0)) for label in known)


class BertRegressor(RegressorMixin, TextEstimator):  # type: ignore[misc]
    """Fine-tunes a model to give texts, or pairs of texts, a number; its parameters are those of `BertClassifier`.

    Examples:
        >>> from bertsmith.sklearn import BertRegressor
        >>> texts, scores = ["a lovely story", "a dull story"] * 8, [4.5, 1.0] * 8
        >>> BertRegressor("run/model", n_epochs=1, random_state=0).fit(texts, scores).predict(["a story"]).shape
        (1,)
    """

    def fit(self, X: Any, y: Any) -> BertRegressor:  # noqa: N803
        """Fine-tunes.

        Args:
            X: N texts, or N pairs of texts.
            y: N numbers.

        Raises:
            EstimatorError: a row is no text, a label is no finite number, all are the same, or a parameter is
                impossible.
        """
        rows = texts_of(X)
        scores = []
        for number, value in enumerate(targets_of(y, len(rows))):
            if isinstance(value, (str, list)) or value is None or not np.isfinite(value):
                raise EstimatorError(f"y: row {number} (from 0) is {value}; give a finite number, not NaN or inf")
            scores.append(float(value))
        if len(rows) < 2:
            raise EstimatorError("X has one row only (n_samples = 1); at least two different numbers are needed")
        examples = [ScoredText(text, pair, score) for (text, pair), score in zip(rows, scores, strict=True)]
        with as_value_error():
            # 回归没有类别可分层：随机留出一部分
            self._fine_tune(RegressionTask.learned_from(examples, NoOptions()), examples, [0] * len(examples))
        return self

    def _can_choose(self, held: Sequence[Any]) -> bool:
        return len(held) >= 10

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Returns [N] numbers."""
        found: NDArray[np.float64] = self._call(X)
        return found
