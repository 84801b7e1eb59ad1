"""The question-answering task: where in a passage the answer starts and ends (Devlin et al. 2019, §4.2, §4.3).

Notable:
- a long passage is learned from in overlapping windows. A window that does not hold the whole answer points at `[CLS]`,
  as does every window of a question without answer. The released code does the same, for SQuAD 1.1 as well, although
  its comment says that such windows are thrown out; so a window without the answer learns to score its spans low, and
  the windows of a passage can be compared
- of several true answers, the first is learned; all count when predictions are scored
- an answer is learned as the fewest tokens that cover its characters; where it begins or ends inside of one ("19" in
  "1990"), they say a little more than the answer
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.questions import QuestionExample
from bertsmith.finetune.metrics.bootstrap import bootstrap_interval
from bertsmith.finetune.metrics.spans import SpanScores, best_null_threshold, cmrc_scores, squad_scores
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.task import SHOWN_MISTAKES, Evaluation, Mistake, Unit, new_model, tokens_of
from bertsmith.inference.answer import Answer, Answered
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.windows import PassageTokens, WindowCutter
from bertsmith.model import BertForQuestionAnswering
from bertsmith.objectives import LabelledBatch, SpanObjective
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.tokenizer import WordPieceTokenizer

Scoring = Literal["squad", "cmrc"]
NO_ANSWER = "(no answer)"
"""Stands for the empty answer in a report."""


@dataclass(frozen=True)
class AnsweringTask:
    """Spans of passages that answer questions; figures by the rules of SQuAD 1.1, SQuAD 2.0 or CMRC 2018.

    Attributes:
        stride: tokens that neighbouring windows of a long passage share, at most half a window.
        max_answer_tokens: longest answer that is given; longer ones are learned from all the same.
        scoring: `squad`, or `cmrc` for Chinese, by the character.
        null_threshold: an answer must beat "no answer" by more than this (τ of §4.3); None where every question that
            was learned from has an answer, and every question gets one.
    """

    stride: int = 128
    max_answer_tokens: int = 30
    scoring: Scoring = "squad"
    null_threshold: float | None = None

    name: ClassVar[str] = "answer"
    metric: ClassVar[str] = "f1"

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.stride < 0 or self.max_answer_tokens < 1:
            raise ConfigError(
                f"stride {self.stride} and max_answer_tokens {self.max_answer_tokens}:"
                " the first cannot be negative, the second must be at least 1"
            )
        if self.scoring not in get_args(Scoring):
            raise ConfigError(f"scoring {self.scoring!r} is unknown; use {' or '.join(get_args(Scoring))}")
        if self.null_threshold is not None and not math.isfinite(self.null_threshold):
            raise ConfigError(f"null threshold {self.null_threshold} is not a finite number; None always answers")

    @classmethod
    def of(
        cls,
        train: Sequence[QuestionExample],
        *,
        stride: int = 128,
        max_answer_tokens: int | None = None,
        scoring: Scoring | None = None,
    ) -> AnsweringTask:
        """Finds out whether a training file has unanswerable questions.

        Args:
            train: questions with their answers.
            stride: as in the class.
            max_answer_tokens: likewise; None takes the published 30, and 100 where scoring is by the character: a third
                of CMRC's answers have more than 30 tokens, one in thirty more than 100.
            scoring: likewise; None takes `cmrc` where more than half of the answers have Chinese characters.

        Raises:
            ConfigError: a number is out of range, or the scoring is unknown.
            InputError: no question has an answer.
        """
        answers = [example.answers[0].text for example in train if example.answers]
        if not answers:
            raise InputError("no question of the training file has an answer; there is nothing to learn")
        if scoring is None:
            chinese = sum(any("\u4e00" <= letter <= "\u9fff" for letter in text) for text in answers)
            scoring = "cmrc" if 2 * chinese > len(answers) else "squad"
        if max_answer_tokens is None:
            max_answer_tokens = 100 if scoring == "cmrc" else 30
        # 训练集里有无答案题（SQuAD 2.0）才允许不答；阈值先取 0，之后在开发集上调
        return cls(stride, max_answer_tokens, scoring, 0.0 if len(answers) < len(train) else None)

    def describe(self) -> dict[str, Any]:
        """Returns all fields."""
        return {
            "stride": self.stride,
            "max_answer_tokens": self.max_answer_tokens,
            "scoring": self.scoring,
            "null_threshold": self.null_threshold,
        }

    @classmethod
    def from_description(cls, values: dict[str, Any]) -> AnsweringTask:
        """Reads what `describe` returned."""
        threshold = values["null_threshold"]
        return cls(
            int(values["stride"]),
            int(values["max_answer_tokens"]),
            values["scoring"],
            None if threshold is None else float(threshold),
        )

    def check_dev(self, dev: Sequence[QuestionExample]) -> None:
        """Makes sure that the dev file can tell good epochs from bad ones.

        Raises:
            InputError: none of its questions has an answer: F1 would only say how often the model declines.
        """
        if not any(example.answers for example in dev):
            raise InputError("no question of the dev file has an answer; no epoch can be chosen by f1")

    def build(self, folder: Path, settings: FineTuningSettings) -> BertForQuestionAnswering:
        """Returns the encoder of a folder under a new start and a new end vector."""
        # 起始文件夹若是分类模型，它的标签名不能留下：别的库按标签数建头，两个向量就装不进去
        return new_model(BertForQuestionAnswering, folder, settings, id2label={}, problem_type=None)

    def load(self, folder: Path) -> BertForQuestionAnswering:
        """Returns a trained span reader."""
        return BertForQuestionAnswering.from_pretrained(folder)

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[QuestionExample], max_length: int) -> list[Unit]:
        """Returns one sequence for each window, with the first and last token of the answer in it.

        Raises:
            InputError: a question leaves no room for its passage, or an answer consists of characters that the
                tokenizer drops.
        """
        cutter = WindowCutter(tokenizer, max_length, self.stride)
        units = []
        for example in examples:
            question = cutter.cut(example.question, example.context)
            span = _tokens_of(example, question.passage)
            for window in question.windows():
                first, last = (token - window.first for token in span)
                # 答案必须整个在窗口里：只露出一半的答案会教模型在词中间停下
                whole = 0 <= first <= last < window.size
                label = (window.head + first, window.head + last) if whole else (0, 0)
                units.append(Unit([window.input_ids], [window.token_type_ids], label))
        return units

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Returns N windows with labels [N, 2] int64."""
        return LabelledBatch(tokens_of(units), torch.tensor([unit.label for unit in units]))

    def measure(self, model: BertForQuestionAnswering, batch: LabelledBatch) -> LossOutput:
        """Returns the cross-entropy of start and end."""
        return SpanObjective()(model, batch)

    def predict(
        self,
        model: BertForQuestionAnswering,
        tokenizer: WordPieceTokenizer,
        examples: Sequence[QuestionExample],
        inference: InferenceConfig,
    ) -> list[Answered]:
        """Answers the questions."""
        pipeline = Answer(
            model,
            tokenizer,
            inference,
            stride=self.stride,
            max_answer_tokens=self.max_answer_tokens,
            null_threshold=self.null_threshold,
        )
        return list(pipeline.stream((example.question, example.context) for example in examples))

    def tuned(self, examples: Sequence[QuestionExample], predictions: Sequence[Answered]) -> AnsweringTask:
        """Returns the task with the null threshold that gives the best F1; itself where it always answers.

        The threshold lies midway between the margins that it parts, as far from either as can be.
        """
        if self.null_threshold is None:
            return self
        scores = self._scores(examples, [prediction.candidates[0].text for prediction in predictions])
        margins = np.array([prediction.margin for prediction in predictions])
        answerable = [not example.is_impossible for example in examples]
        _, limit = best_null_threshold(scores.f1s, -margins, answerable)
        # 取中点而不是恰好取某题的分值：批次组成不同带来的舍入误差不会改变任何一题的取舍
        answered, left = margins[-margins <= limit], margins[-margins > limit]
        if not len(answered):
            threshold = left.max() + 1.0
        elif not len(left):
            threshold = answered.min() - 1.0
        else:
            threshold = (answered.min() + left.max()) / 2
        return replace(self, null_threshold=float(threshold))

    def figures(self, examples: Sequence[QuestionExample], predictions: Sequence[Answered]) -> dict[str, float]:
        """Returns F1 and exact match; where some questions have no answer, those of either kind by itself as well."""
        return self._figures(examples, self._scores(examples, self._texts(predictions)))

    def evaluate(self, examples: Sequence[QuestionExample], predictions: Sequence[Answered]) -> Evaluation:
        """Adds intervals, and the surest of the answers that share least with the true ones."""
        texts = self._texts(predictions)
        scores = self._scores(examples, texts)
        confidence = [
            prediction.candidates[0].probability if text else prediction.null_probability
            for text, prediction in zip(texts, predictions, strict=True)
        ]
        wrong = np.flatnonzero(scores.exact_matches < 1).tolist()
        order = sorted(wrong, key=lambda number: (scores.f1s[number], -confidence[number]))
        return Evaluation(
            self._figures(examples, scores),
            intervals={
                "f1": bootstrap_interval(scores.f1s),
                "exact_match": bootstrap_interval(scores.exact_matches),
            },
            mistakes=[
                Mistake(
                    examples[number].question,
                    " / ".join(dict.fromkeys(answer.text for answer in examples[number].answers)) or NO_ANSWER,
                    texts[number] or NO_ANSWER,
                    confidence[number],
                )
                for number in order[:SHOWN_MISTAKES]
            ],
        )

    def _texts(self, predictions: Sequence[Answered]) -> list[str]:
        """Returns the answers at the task's threshold, whichever the predictions were made with."""
        return [
            ""
            if self.null_threshold is not None and prediction.margin <= self.null_threshold
            else prediction.candidates[0].text
            for prediction in predictions
        ]

    def _scores(self, examples: Sequence[QuestionExample], texts: Sequence[str]) -> SpanScores:
        """Scores answers, "" for none, question by question."""
        answers = [[answer.text for answer in example.answers] for example in examples]
        impossible = np.array([example.is_impossible for example in examples])
        if self.scoring == "squad":
            return squad_scores(texts, answers, unanswerable=bool(impossible.any()))
        scores = cmrc_scores(texts, answers)
        # CMRC 没有无答案题：这样的题按 SQuAD 2.0 的规矩计，不答即全对
        silent = np.array([not text for text in texts], dtype=np.float64)
        exact, f1 = (np.where(impossible, silent, column) for column in (scores.exact_matches, scores.f1s))
        return SpanScores(float(exact.mean()), float(f1.mean()), exact, f1)

    def _figures(self, examples: Sequence[QuestionExample], scores: SpanScores) -> dict[str, float]:
        figures = {"f1": scores.f1, "exact_match": scores.exact_match}
        impossible = np.array([example.is_impossible for example in examples])
        if impossible.any() and not impossible.all():
            figures["has_answer_f1"] = float(scores.f1s[~impossible].mean())
            figures["has_answer_exact_match"] = float(scores.exact_matches[~impossible].mean())
            # 无答案题只有对错：F1 与完全匹配是同一个数
            figures["no_answer_exact_match"] = float(scores.exact_matches[impossible].mean())
        return figures


def _tokens_of(example: QuestionExample, passage: PassageTokens) -> tuple[int, int]:
    """Returns the first and last token of the first true answer, counted in the passage; (-1, -1) for none."""
    if example.is_impossible:
        return -1, -1
    answer = example.answers[0]
    # 答案两端的空白没有词元：先去掉，否则会把相邻的词也算进来
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    end = answer.start + len(answer.text.rstrip())
    first, last = bisect_right(passage.ends, start), bisect_left(passage.starts, end) - 1
    if first > last:
        raise InputError(
            f"{example.at}question {example.id!r}: its answer {answer.text[:40]!r} consists of characters that the"
            " tokenizer drops; correct it, or leave the question out"
        )
    return first, last
