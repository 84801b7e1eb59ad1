"""An estimator over sentences that are split into words: a tag for every word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith.finetune.datasets.tagged import TAGGED, TaggedWords
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.inference.tag import WordTags
from bertsmith.sklearn.base import FineTuned
from bertsmith.sklearn.inputs import EstimatorError, as_value_error, rows_of


class BertTagger(FineTuned):
    """Fine-tunes a model to tag words: entities, parts of speech; its parameters are those of `BertClassifier`.

    Examples:
        >>> from bertsmith.sklearn import BertTagger
        >>> words, tags = [["Ann", "sang"], ["a", "song"]] * 8, [["B-PER", "O"], ["O", "O"]] * 8
        >>> tagger = BertTagger("run/model", n_epochs=1, random_state=0).fit(words, tags)
        >>> len(tagger.predict([["Ben", "sang", "too"]])[0])
        3

    Attributes:
        classes_: the tags, sorted.
    """

    def fit(self, X: Any, y: Any) -> BertTagger:  # noqa: N803
        """Fine-tunes.

        Args:
            X: N sentences, each a list of words.
            y: N lists of tags, one a word.

        Raises:
            EstimatorError: a sentence is no list of words, has another number of tags, or there is one tag only.
        """
        examples = _examples(X, y)
        tags = {tag for example in examples for tag in example.tags}
        if len(tags) < 2:
            raise EstimatorError(f"y has one class of words only, the tag {tags.pop()}; at least two tags are needed")
        with as_value_error():
            task = TaggingTask.of(examples)
            self.classes_ = list(task.labels)
            # 有实体的句子和没有的分别留出：验证行里必须有实体
            self._fine_tune(task, examples, [len(set(example.tags)) > 1 for example in examples])
        self._task = task
        return self

    def _can_choose(self, held: Sequence[Any]) -> bool:
        return any(held)

    def predict(self, X: Any) -> list[list[str]]:  # noqa: N803
        """Returns for each sentence one tag a word."""
        pipeline = self._fitted()
        sentences = [_words(number, row) for number, row in enumerate(rows_of(X))]
        with as_value_error():
            found: list[list[str]] = pipeline.tag_words(sentences)
        return found

    def score(self, X: Any, y: Any) -> float:  # noqa: N803
        """Returns entity F1 where the tags mark entities, else the share of words with the right tag."""
        examples = _examples(X, y)
        rows = self.predict([list(example.words) for example in examples])
        predictions = [WordTags(tuple(tags), (1.0,) * len(tags)) for tags in rows]
        with as_value_error():
            return self._task.metrics(examples, predictions)[self._task.metric]


def _examples(inputs: Any, targets: Any) -> list[TaggedWords]:
    rows = rows_of(inputs)
    if targets is None:
        raise EstimatorError("y is None: this estimator requires y to be passed; give a list of tags for each row")
    tags = rows_of(targets)
    if len(rows) != len(tags):
        raise EstimatorError(f"X has {len(rows)} rows and y has {len(tags)}; give a list of tags for each row")
    with as_value_error():
        return TAGGED.read([{"tokens": words, "tags": own} for words, own in zip(rows, tags, strict=True)], name="X")


def _words(number: int, row: Any) -> list[str]:
    if not isinstance(row, (list, tuple)) or not row or not all(isinstance(word, str) and word for word in row):
        raise EstimatorError(f"X: row {number} (from 0) is no list of words; give one for each sentence")
    return list(row)
