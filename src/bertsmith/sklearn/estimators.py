"""The estimators: labels and numbers for texts or pairs, vectors of texts, and a tag for every word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, ClassNamePrefixFeaturesOutMixin, RegressorMixin, TransformerMixin
from sklearn.utils.class_weight import compute_class_weight

from bertsmith.finetune.datasets.tagged import TAGGED, TaggedWords
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.embed import EmbeddingOptions, EmbeddingTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.finetune.tasks.task import NoOptions
from bertsmith.inference.embed import Embed, Pooling
from bertsmith.inference.tag import WordTags
from bertsmith.sklearn.base import (
    EstimatorError,
    FineTuned,
    as_value_error,
    is_missing,
    rows_of,
    targets_of,
    texts_of,
    weights_of,
)

RowT = TypeVar("RowT")


class TextEstimator(FineTuned):
    """What both share: predictions for texts."""

    def _call(self, inputs: Any) -> Any:
        pipeline, rows = self._fitted(), texts_of(inputs)
        pairs = None if rows[0][1] is None else [pair or "" for _, pair in rows]
        with as_value_error():
            return pipeline([text for text, _ in rows], pairs)


def _weighted(inputs: Any, targets: Any, weights: Any) -> tuple[list[Any], list[Any], list[float] | None]:
    """Returns texts, labels and weights of the rows that weigh anything."""
    rows = texts_of(inputs)
    labels, found = targets_of(targets, len(rows)), weights_of(weights, len(rows))
    if found is None:
        return rows, labels, None
    kept, left = _that_weigh(zip(rows, labels, strict=True), found)
    return [row for row, _ in kept], [label for _, label in kept], left


def _that_weigh(rows: Iterable[RowT], weights: Iterable[float]) -> tuple[list[RowT], list[float] | None]:
    """Returns the rows that weigh anything, and their weights; None for these where all are alike."""
    kept = [(row, weight) for row, weight in zip(rows, weights, strict=True) if weight]
    left = [weight for _, weight in kept]
    return [row for row, _ in kept], left if len(set(left)) > 1 else None


@dataclass(eq=False, repr=False, kw_only=True)
class BertClassifier(ClassifierMixin, TextEstimator):  # type: ignore[misc]
    """Fine-tunes a model to give texts, or pairs of texts, one of several classes (`classes_`, sorted).

    Examples:
        >>> from bertsmith.sklearn import BertClassifier
        >>> texts, labels = ["a lovely story", "a dull story"] * 8, ["good", "bad"] * 8
        >>> classifier = BertClassifier("run/model", n_epochs=1, random_state=0).fit(texts, labels)
        >>> classifier.classes_.tolist(), classifier.predict_proba(["a story"]).shape
        (['bad', 'good'], (1, 2))

    Args:
        model: to start from: a model folder, `org/name` of the Hub, or a live pipeline.
        method: `fine-tune`, or `best`: the best answer that `bertsmith.solve` finds, which may be words alone. It needs
            no `model`, chooses the next three, `class_weight` and the rows for validation itself, and takes its own
            `settings`, such as `{"minutes": 5, "text": "folder"}`.
        n_epochs: passes over the rows.
        batch_size: rows in a step.
        learning_rate: its peak; None takes what suits the size of the model.
        class_weight: `balanced`, class → weight, or None for all alike.
        validation_fraction: share of the rows that is not learned and chooses the best epoch; where too few are left
            for that, all rows choose.
        random_state: a seed, or as scikit-learn has it.
        device: None takes the GPU where there is one.
        run_folder: keeps the run, with its figures; the same fit resumes there. None for a temporary one.
        settings: further settings of `bertsmith finetune` by name, such as `{"layer_decay": 0.9}`.
    """

    class_weight: str | Mapping[Any, float] | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BertClassifier:  # noqa: N803
        """Fine-tunes on N texts, or N pairs of texts, and their N classes.

        Args:
            sample_weight: N weights, from 0, in the loss and in the choice of the epoch; a row of 0 is left out. None
                for all alike. `evaluation_` counts all alike.

        Raises:
            EstimatorError: a row is no text, a label is missing, there is one class only, or a parameter is impossible.
        """
        rows, labels, weights = _weighted(X, y, sample_weight)
        _require_classes(labels)
        for number, label in enumerate(labels):
            if isinstance(label, list) or (isinstance(label, float) and not label.is_integer()):
                raise EstimatorError(f"Unknown label type: y: row {number} (from 0) is {label}, no class")
        self.classes_, codes = np.unique(np.asarray(labels), return_inverse=True)
        if len(self.classes_) < 2:
            raise EstimatorError(f"y has one class only ({self.classes_[0]}); at least two classes are needed")
        # 任务的标签是文字；数字的类别在 predict 里由 classes_ 换回来
        names = [str(label) for label in self.classes_.tolist()]
        examples = [LabelledText(text, pair, names[k]) for (text, pair), k in zip(rows, codes.tolist(), strict=True)]
        chosen = self.class_weight
        each = [] if chosen is None else compute_class_weight(chosen, classes=self.classes_, y=self.classes_[codes])
        with as_value_error():
            task = ClassificationTask(tuple(names), rows[0][1] is not None, tuple(map(float, each)))
            self._fine_tune(task, examples, codes.tolist(), weights)
        return self

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """Returns [N] classes, each the likeliest."""
        codes = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[codes]
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Returns [N, K], the probability of each class in the order of `classes_`."""
        rows = self._call(X)
        names = [str(label) for label in self.classes_.tolist()]
        return np.array([[row.probabilities[name] for name in names] for row in rows])


def _require_classes(labels: Sequence[Any]) -> None:
    for number, label in enumerate(labels):
        if is_missing(label):
            raise EstimatorError(f"y: row {number} (from 0) is NaN or empty; give a class for each row")


class BertRegressor(RegressorMixin, TextEstimator):  # type: ignore[misc]
    """Fine-tunes a model to give texts, or pairs of texts, a number; its parameters are those of `BertClassifier`.

    Examples:
        >>> from bertsmith.sklearn import BertRegressor
        >>> texts, scores = ["a lovely story", "a dull story"] * 8, [4.5, 1.0] * 8
        >>> BertRegressor("run/model", n_epochs=1, random_state=0).fit(texts, scores).predict(["a story"]).shape
        (1,)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BertRegressor:  # noqa: N803
        """Fine-tunes on N texts, or N pairs of texts, and their N numbers; `sample_weight` as in `BertClassifier.fit`.

        Raises:
            EstimatorError: a row is no text, a label no finite number, all are the same, or a parameter is impossible.
        """
        rows, targets, weights = _weighted(X, y, sample_weight)
        scores = []
        for number, value in enumerate(targets):
            if isinstance(value, (str, list)) or is_missing(value) or not np.isfinite(value):
                raise EstimatorError(f"y: row {number} (from 0) is {value}; give a finite number, not NaN or inf")
            scores.append(float(value))
        if len(rows) < 2:
            raise EstimatorError("X has one row only (n_samples = 1); at least two different numbers are needed")
        examples = [ScoredText(text, pair, score) for (text, pair), score in zip(rows, scores, strict=True)]
        with as_value_error():
            # 回归没有类别可分层：随机留出一部分
            self._fine_tune(RegressionTask.learned_from(examples, NoOptions()), examples, [0] * len(examples), weights)
        return self

    def _can_choose(self, held: Sequence[Any]) -> bool:
        return len(held) >= 10

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Returns [N] numbers."""
        found: NDArray[np.float64] = self._call(X)
        return found


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
        pooling: how the states of a text become a vector; None as the folder says.
        normalize: scale vectors to length 1.
        dims: keep only this many numbers; None keeps all.
        prompt: name of the prompt before every text; None as the folder says.
        n_epochs: passes over the rows, to learn from their classes; 0 takes the model as it is.
    """

    pooling: Pooling | None = None
    normalize: bool = True
    dims: int | None = None
    prompt: str | None = None
    n_epochs: int = 0
    batch_size: int = 64

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def fit(self, X: Any, y: Any = None) -> BertEmbedder:  # noqa: N803
        """Loads the model, and fine-tunes it on the classes where `n_epochs` says so.

        Raises:
            EstimatorError: a row is no single text, or classes are missing that are to be learned from.
        """
        texts = _single(X)
        if self.method != "fine-tune":
            raise EstimatorError(f"method {self.method!r}: vectors are learned by fine-tuning alone; leave it out")
        with as_value_error():
            if self.n_epochs:
                _require_classes(classes := targets_of(y, len(texts)))
                labels = [str(label) for label in classes]
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

    def fit_transform(self, X: Any, y: Any = None, **_fit: Any) -> NDArray[np.float32]:  # noqa: N803
        """Fits, and returns the vectors of the same texts; a generator is read once."""
        # 数据框照原样传下去：set_output 要它的索引；生成器先读出来
        rows = X if hasattr(X, "to_numpy") else rows_of(X)
        return self.fit(rows, y).transform(rows)

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


class BertTagger(FineTuned):
    """Fine-tunes a model to tag words, such as names; parameters as in `BertClassifier`. `classes_`: the tags, sorted.

    Examples:
        >>> from bertsmith.sklearn import BertTagger
        >>> words, tags = [["Ann", "sang"], ["a", "song"]] * 8, [["B-PER", "O"], ["O", "O"]] * 8
        >>> tagger = BertTagger("run/model", n_epochs=1, random_state=0).fit(words, tags)
        >>> len(tagger.predict([["Ben", "sang", "too"]])[0])
        3
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> BertTagger:  # noqa: N803
        """Fine-tunes on N sentences, each a list of words, and N lists of tags, one a word.

        A sentence without words teaches nothing; `sample_weight` is of sentences, as in `BertClassifier.fit`.

        Raises:
            EstimatorError: a sentence is no list of words, has another number of tags, or there is one tag only.
        """
        examples, weights = _examples(X, y, sample_weight)
        tags = {tag for example in examples for tag in example.tags}
        if len(tags) < 2:
            only = "".join(tags) or "none"
            raise EstimatorError(f"y has one class of words only, the tag {only}; at least two tags are needed")
        with as_value_error():
            task = TaggingTask.of(examples)
            self.classes_ = list(task.labels)
            # 有实体的句子和没有的分别留出：验证行里必须有实体
            self._fine_tune(task, examples, [len(set(example.tags)) > 1 for example in examples], weights)
        self._task = task
        return self

    def _can_choose(self, held: Sequence[Any]) -> bool:
        return any(held)

    def predict(self, X: Any) -> list[list[str]]:  # noqa: N803
        """Returns for each sentence one tag a word; none for one without words."""
        pipeline = self._fitted()
        sentences = [_words(number, row) for number, row in enumerate(rows_of(X))]
        with as_value_error():
            found: list[list[str]] = pipeline.tag_words(sentences)
        return found

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Returns entity F1 where the tags mark entities, else the share of words with the right tag."""
        examples, _ = _examples(X, y)
        rows = self.predict([list(example.words) for example in examples])
        predictions = [WordTags(tuple(tags), (1.0,) * len(tags)) for tags in rows]
        with as_value_error():
            return self._task.metrics(examples, predictions)[self._task.metric]


def _examples(inputs: Any, targets: Any, weights: Any = None) -> tuple[list[TaggedWords], list[float] | None]:
    """Returns the sentences that have words and weigh anything, and their weights."""
    rows = rows_of(inputs)
    if targets is None:
        raise EstimatorError("y is None: this estimator requires y to be passed; give a list of tags for each row")
    tags = rows_of(targets, "y", "tags")
    if len(rows) != len(tags):
        raise EstimatorError(f"X has {len(rows)} rows and y has {len(tags)}; give a list of tags for each row")
    found = weights_of(weights, len(rows))
    with as_value_error():
        given = [{"tokens": words, "tags": own} for words, own in zip(rows, tags, strict=True)]
        examples = TAGGED.read(given, name="X")
    if found is None:
        return examples, None
    # 没有词的句子，读的时候已经去掉
    return _that_weigh(examples, (weight for row, weight in zip(rows, found, strict=True) if row))


def _words(number: int, row: Any) -> list[str]:
    if not isinstance(row, (list, tuple)) or not all(isinstance(word, str) and word for word in row):
        raise EstimatorError(f"X: row {number} (from 0) is no list of words; give one for each sentence")
    return list(row)
