"""The task of tagging words: named entities, parts of speech (Devlin et al. 2019, §5.3).

A word's tag is learned at its first piece alone, and in one window alone where a sentence is cut (`inference.tag`). The
model decides each word by itself, as in the paper: nothing forbids an `I-` after an `O`, and such tags are read as the
CoNLL script reads them. `--constrained` chooses the tags of a sentence together instead (Viterbi).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.tagged import TAGGED, TaggedWords, tags_of
from bertsmith.finetune.metrics import Floats, bootstrap_interval, f1_of_means
from bertsmith.finetune.metrics.classification import (
    EntityScores,
    class_counts,
    class_metrics,
    class_scores,
    confusion_matrix,
    entity_scores,
    without_matrix,
)
from bertsmith.finetune.tasks.task import (
    WINDOWS_LIMIT,
    AdditiveTask,
    CardText,
    EncodedExample,
    Evaluation,
    InputFields,
    Mistake,
    Record,
    Rows,
    TaskSpec,
    alike,
    tokens_of,
    weights_of,
    worst,
)
from bertsmith.inference.entities import IOB1, OUTSIDE, Entity, entities_of, is_plain, odd_tags, transitions_of
from bertsmith.inference.tag import Tag, WordTags, marks_entities, pieces_of_words, word_windows
from bertsmith.model import ModelForTokenClassification
from bertsmith.objectives import LabelledBatch, TaggingObjective
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer

SHOWN_WORDS = 8
"""Words of context on either side of a mistake."""
OUTSIDES = np.arange(0, 5.01, 0.25)
"""Nats that `O` must be likelier by, among which dev chooses."""


@dataclass(frozen=True)
class TaggingOptions(Checked):
    """What can be chosen; see the attributes of `TaggingTask`."""

    panel: ClassVar[str] = "Options of the task"

    constrained: bool = option(
        False, help="Decode the tags of a sentence jointly, so that they are valid BIO or BIOES."
    )


@dataclass(frozen=True)
class TaggingTask(AdditiveTask[TaggedWords, WordTags]):
    """A tag for each word.

    Attributes:
        labels: the tags, in the order of the model's outputs.
        constrained: predictions keep to the scheme of the tags, see `inference.tag.TagSettings`.
        scheme: `IOB1` where the training file begins entities with `I-`; empty where the tags themselves say it.
        outside: by how many nats `O` must be likelier than another tag, see `inference.tag.TagSettings`.
    """

    labels: tuple[str, ...]
    constrained: bool = field(default=False, kw_only=True)
    scheme: str = field(default="", kw_only=True)
    outside: float = field(default=0.0, kw_only=True)

    # 每个词都是一个例子
    least_tuned: ClassVar[int] = 10
    unasked: ClassVar = {"scheme": "", "outside": 0.0}
    objective: ClassVar = TaggingObjective()
    spec: ClassVar = TaskSpec(
        "tag",
        ("tagging: a tag for every word", "标注：每个词一个标签"),
        ModelForTokenClassification,
        TAGGED,
        Tag,
        InputFields(("Text", "文本")),
        CardText(
            "token-classification",
            "gives every word a tag",
            WINDOWS_LIMIT,
            ('(["a whole sentence ."])',),
            (
                "from transformers import pipeline\n\n"
                'pipeline("token-classification", "FOLDER", aggregation_strategy="first")("a sentence")',
            ),
        ),
        options=TaggingOptions,
        has_baselines=True,
    )

    @classmethod
    def learned_from(cls, train: Sequence[TaggedWords], options: Any) -> TaggingTask:
        """Finds the tags of a training file."""
        labels = labels_of_words(train)
        return cls(labels, constrained=options.constrained, scheme=_scheme_of(labels, train, options.constrained))

    def blind_to(self, examples: Sequence[TaggedWords]) -> list[str]:
        """Says where there is no entity to find."""
        empty = self.metric == "f1" and all(tag == OUTSIDE for example in examples for tag in example.tags)
        return ["it has no entity, so entity F1 is 0 whatever is predicted"] if empty else []

    def cautions(self, examples: Sequence[TaggedWords]) -> list[str]:
        """Says besides where plain tags are all the same, or too many for a confusion matrix."""
        if self.metric == "f1":
            return super().cautions(examples)
        tags = (tag for example in examples for tag in example.tags)
        one = alike(tags, "all words are {!r}: the figures say nothing of other tags")
        return [*super().cautions(examples), *one, *without_matrix(len(self.labels))]

    @property
    def metric(self) -> str:
        """Entity F1 where the tags mark entities, otherwise the share of words with the right tag."""
        return "f1" if marks_entities(self.labels) else "accuracy"

    def encode(self, tokenizer: Tokenizer, examples: Sequence[TaggedWords], max_length: int) -> list[EncodedExample]:
        """Returns one sequence for each sentence, several where it is too long.

        Their labels are as long as the sequence: the number of the tag where a word begins that is learned there,
        `NO_LABEL` everywhere else.
        """
        self._require_known(examples)
        number_of = {label: number for number, label in enumerate(self.labels)}
        encoded = []
        sentences = pieces_of_words(tokenizer, [example.words for example in examples])
        for window in word_windows(tokenizer, sentences, max_length):
            tags = examples[window.sentence].tags
            labels = [NO_LABEL] * len(window.input_ids)
            for word, position in zip(window.words, window.positions, strict=True):
                labels[position] = number_of[tags[word]]
            encoded.append(EncodedExample([window.input_ids], [[0] * len(window.input_ids)], labels))
        return encoded

    def classes_of(self, example: TaggedWords) -> tuple[str, ...]:
        """Returns the types of its entities, or the tags of its words."""
        return tuple({entity.type for entity in self._entities(example.tags)})

    def batch(self, encoded: Sequence[EncodedExample]) -> LabelledBatch:
        """Returns N sequences with labels [T] int64, and weights [T] where they differ."""
        labels = torch.tensor([label for example in encoded for label in example.label])
        weights = weights_of([example.weight for example in encoded for _ in example.label])
        return LabelledBatch(tokens_of(encoded), labels, weights)

    def predicted(self, pipeline: Tag, examples: Sequence[TaggedWords]) -> list[WordTags]:
        """Tags the sentences."""
        return pipeline.score_words([example.words for example in examples])

    def targets(self, examples: Sequence[TaggedWords]) -> list[int]:
        """Returns the number of each word's tag, one sentence after the other."""
        self._require_known(examples)
        return self._numbers(examples)

    def rows(self, examples: Sequence[TaggedWords]) -> list[int]:
        """Returns the number of words of each sentence."""
        return [len(example.words) for example in examples]

    def outputs(self, pipeline: Tag, examples: Sequence[TaggedWords]) -> Tensor:
        """Returns [W, K], one row for each word."""
        return pipeline.logits([example.words for example in examples])

    def told(self, pipeline: Tag, outputs: Tensor, examples: Sequence[TaggedWords]) -> list[WordTags]:
        """Returns the tags of the sentences."""
        pipeline.outside = self.outside
        return pipeline.told(outputs, self.rows(examples))

    def decided(self, pipeline: Tag, outputs: Tensor, examples: Sequence[TaggedWords]) -> TaggingTask:
        """Returns the task with the odds against `O` of the best entity F1, least of equals (Lipton et al. 2014)."""
        if self.metric != "f1" or OUTSIDE not in self.labels:
            return self
        tried = [replace(self, outside=float(outside)) for outside in OUTSIDES]
        return max(tried, key=lambda one: one.metrics(examples, one.told(pipeline, outputs, examples))["f1"])

    def shown(self, examples: Sequence[TaggedWords]) -> list[tuple[str, str]]:
        """Returns each word in its context."""
        return [
            (_in_context(example.words, place, place), tag)
            for example in examples
            for place, tag in enumerate(example.tags)
        ]

    def metrics(self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags]) -> dict[str, float]:
        """Returns entity F1, precision, recall, macro F1 and word accuracy; or accuracy and macro F1 of the tags."""
        if self.metric == "f1":
            return _figures_of(self._entity_scores(examples, predictions))
        truth, predicted = self.targets(examples), self._numbers(predictions)
        found = class_metrics(*class_counts(truth, predicted, len(self.labels)))
        return {name: found[name] for name in ("accuracy", "macro_f1")}

    def weighed_score(
        self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags], weights: Sequence[float]
    ) -> float:
        """Returns the metric where each sentence counts by its weight."""
        counts, score = self._counts(examples, predictions)
        return float(score(np.average(counts, axis=0, weights=weights)[None])[0])

    def _counts(
        self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags]
    ) -> tuple[Floats, Callable[[Floats], Floats]]:
        """Returns what is counted in each sentence, and what the metric is of the means."""
        if self.metric == "f1":
            return self._entity_scores(examples, predictions).counts.astype(np.float64), f1_of_means
        hits = [
            (sum(map(str.__eq__, example.tags, prediction.tags)), len(example.tags))
            for example, prediction in zip(examples, predictions, strict=True)
        ]
        return np.array(hits, dtype=np.float64), lambda means: means[:, 0] / means[:, 1]

    def evaluate(self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags]) -> Evaluation:
        """Adds the interval over sentences, the table by entity type or tag, and the surest mistakes in context."""
        wrong = worst([mistake for row in zip(examples, predictions, strict=True) for mistake in self._mistakes(*row)])
        if self.metric == "f1":
            scores = self._entity_scores(examples, predictions)
            return Evaluation(
                _figures_of(scores),
                intervals={"f1": bootstrap_interval(scores.counts, f1_of_means)},
                classes=scores.types,
                mistakes=wrong,
            )
        metrics = self.metrics(examples, predictions)
        truth, predicted = self._numbers(examples), self._numbers(predictions)
        return Evaluation(
            metrics,
            # 按句子重采样：同一句里的词不独立，逐词抽样会得到过窄的区间
            intervals={"accuracy": bootstrap_interval(*self._counts(examples, predictions))},
            classes=dict(zip(self.labels, class_scores(truth, predicted, len(self.labels)), strict=True)),
            confusion=confusion_matrix(truth, predicted, len(self.labels)),
            mistakes=wrong,
        )

    @classmethod
    def records(cls, pipeline: Tag, rows: Rows) -> Iterator[Record]:
        """Yields the entities, or the tagged words, of each text; of words that come apart, the tag of each."""
        if rows and not isinstance(rows[0][0], str):
            for row, tags in zip(rows, pipeline.tag_words([list(words) for (words,) in rows]), strict=True):
                yield {"prediction": " ".join(tags), "tags": tags, "input": row}
            return
        for row, entities in zip(rows, pipeline([text for (text,) in rows]), strict=True):
            named = "; ".join(f"{entity.text} ({entity.type})" for entity in entities)
            yield {"prediction": named, "entities": [asdict(entity) for entity in entities], "input": row}

    def _entity_scores(self, examples: Sequence[TaggedWords], predictions: Sequence[WordTags]) -> EntityScores:
        self._require_known(examples)
        true, guess = [one.tags for one in examples], [one.tags for one in predictions]
        return entity_scores(true, guess, plain=is_plain([self.labels]))

    def _require_known(self, examples: Sequence[TaggedWords]) -> None:
        known = set(self.labels)
        for number, example in enumerate(examples, 1):
            if not known.issuperset(example.tags):
                place = next(place for place, tag in enumerate(example.tags) if tag not in known)
                raise InputError(
                    f"{example.at or f'sentence {number}: '}the tag {example.tags[place]!r} of the word"
                    f" {example.words[place]!r} does not occur in the training file ({', '.join(self.labels[:8])})"
                )

    def _numbers(self, tagged: Sequence[TaggedWords | WordTags]) -> list[int]:
        number_of = {label: number for number, label in enumerate(self.labels)}
        return [number_of[tag] for one in tagged for tag in one.tags]

    def _mistakes(self, example: TaggedWords, prediction: WordTags) -> Iterator[Mistake]:
        """Yields what is wrong in a sentence: entities that overlap are one mistake."""
        for first, last, true, guess in self._differences(example.tags, prediction.tags):
            confidence = float(np.mean(prediction.probabilities[first : last + 1]))
            expected, predicted = (_named(example.words, entities) for entities in (true, guess))
            yield Mistake(_in_context(example.words, first, last), expected, predicted, confidence)

    def _differences(
        self, tags: Sequence[str], guesses: Sequence[str]
    ) -> Iterator[tuple[int, int, list[Entity], list[Entity]]]:
        """Yields stretches of words, first and last, with the true and the predicted entities in them."""
        true, guess = (self._entities(row) for row in (tags, guesses))
        group: list[Entity] = []
        reach = -1
        # 真实与预测的边界不同也是同一处错误：相互重叠的归为一组
        for entity in [*sorted(true ^ guess, key=lambda entity: entity.first), None]:
            if group and (entity is None or entity.first > reach):
                yield group[0].first, reach, [e for e in group if e in true], [e for e in group if e in guess]
                group = []
            if entity is not None:
                group.append(entity)
                reach = max(reach, entity.last)

    def _entities(self, tags: Sequence[str]) -> set[Entity]:
        if self.metric == "f1":
            return set(entities_of(tags, plain=is_plain([self.labels])))
        return {Entity(tag, place, place) for place, tag in enumerate(tags)}


def labels_of_words(train: Sequence[TaggedWords]) -> tuple[str, ...]:
    """Returns the tags of a training file."""
    labels = tags_of(train)
    if len(labels) < 2:
        raise InputError(f"the training file has no more than one tag ({', '.join(labels)}); at least two are needed")
    if odd := odd_tags(labels):
        example = next(example for example in train if odd[0] in example.tags)
        raise InputError(
            f"{example.at}the tag {odd[0]!r} has no letter such as B- and the others have; correct it, or write O"
        )
    return tuple(labels)


def _scheme_of(labels: Sequence[str], train: Sequence[TaggedWords], constrained: bool) -> str:
    """Returns `IOB1` where the training file keeps to that and not to BIO; to be constrained, it must keep to one."""
    number_of = {label: number for number, label in enumerate(labels)}
    sentences = [[number_of[tag] for tag in example.tags] for example in train]
    schemes = {"": transitions_of(labels), IOB1: transitions_of(labels, iob1=True)}
    # 标签集看不出 IOB1：O 之后的 I 是不是合法的开头，只有句子才说得出
    for scheme, transitions in schemes.items():
        if transitions is not None and all(map(transitions.allow, sentences)):
            return scheme
    if constrained:
        kept = schemes[""]
        if kept is None:
            raise ConfigError("--constrained: these tags have no scheme such as BIO that could be kept; leave it out")
        number = next(number for number, tags in enumerate(sentences) if not kept.allow(tags))
        example = train[number]
        raise InputError(
            f"{example.at or f'sentence {number + 1}: '}its tags are not BIO or BIOES ({' '.join(example.tags[:12])}),"
            " nor is the file IOB1; correct it, or leave --constrained out"
        )
    return ""


def _figures_of(scores: EntityScores) -> dict[str, float]:
    return {
        "f1": scores.overall.f1,
        "precision": scores.overall.precision,
        "recall": scores.overall.recall,
        "macro_f1": scores.macro_f1,
        "word_accuracy": scores.word_accuracy,
    }


def _named(words: Sequence[str], entities: Sequence[Entity]) -> str:
    named = [f"{' '.join(words[entity.first : entity.last + 1])} ({entity.type})" for entity in entities]
    return "; ".join(named) or OUTSIDE


def _in_context(words: Sequence[str], first: int, last: int) -> str:
    """Returns the words around a stretch, and the stretch between » and «."""
    start, end = max(0, first - SHOWN_WORDS), last + 1 + SHOWN_WORDS
    around = [*words[start:first], "»" + " ".join(words[first : last + 1]) + "«", *words[last + 1 : end]]
    return ("… " if start else "") + " ".join(around) + (" …" if end < len(words) else "")
