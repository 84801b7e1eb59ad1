"""The question-answering task: where in a passage the answer starts and ends (Devlin et al. 2019, §4.2, §4.3).

- a long passage is learned from in overlapping windows. A window without the whole answer points at `[CLS]`, as does
  every window of a question without answer: their spans learn to score low, so that windows can be compared. The
  released code does the same, for SQuAD 1.1 as well, although its comment says that such windows are thrown out
- of several true answers, the first is learned; all count when predictions are scored
- an answer is learned as the fewest tokens that cover its characters, which may say more than it ("19" in "1990")
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.questions import QUESTIONS, QuestionExample
from bertsmith.finetune.metrics import bootstrap_interval
from bertsmith.finetune.metrics.spans import SpanScores, best_null_threshold, cmrc_scores, squad_scores
from bertsmith.finetune.spans import SPANS, targets_of
from bertsmith.finetune.tasks.task import (
    SHOWN_MISTAKES,
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
    auto_model,
)
from bertsmith.inference.answer import Answer, Answered, PassageTokens, WindowCutter
from bertsmith.inference.spans import passage_words
from bertsmith.model import ModelForQuestionAnswering
from bertsmith.objectives import SpanObjective
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer

Scoring = Literal["squad", "cmrc"]
NO_ANSWER = "(no answer)"
"""Stands for the empty answer in a report."""


@dataclass(frozen=True)
class AnsweringOptions(Checked):
    """What can be chosen; see the attributes of `AnsweringTask`."""

    panel: ClassVar[str] = "Options of the task"

    scoring: Scoring | None = option(
        None, help="Rules of F1 and exact match.", shown_default="cmrc where most answers are Chinese"
    )
    stride: int = option(128, min=0, help="Tokens that neighbouring windows of a long passage share.")
    max_answer_tokens: int | None = option(
        None, min=1, help="Maximum tokens of an answer.", shown_default="30; 100 with cmrc"
    )


@dataclass(frozen=True)
class AnsweringTask(AdditiveTask[QuestionExample, Answered]):
    """Spans of passages that answer questions; scored by the rules of SQuAD 1.1, SQuAD 2.0 or CMRC 2018.

    Attributes:
        stride: tokens that neighbouring windows of a long passage share, at most half a window.
        max_answer_tokens: longest answer that is given; longer ones are learned from all the same.
        scoring: `squad`, or `cmrc` for Chinese, by the character.
        null_threshold: an answer must beat "no answer" by more than this (τ of §4.3); None always answers.
    """

    stride: int = option(128, min=0)
    max_answer_tokens: int = option(30, min=1)
    scoring: Scoring = option("squad")
    null_threshold: float | None = option(None)

    spec: ClassVar = TaskSpec(
        "answer",
        ("question answering from a passage", "阅读理解：在段落里找答案"),
        ModelForQuestionAnswering,
        QUESTIONS,
        Answer,
        InputFields(("Question", "问题"), ("Passage", "段落"), least=2, most=2),
        CardText(
            "question-answering",
            "finds the answer to a question in a text",
            WINDOWS_LIMIT,
            ('(["a question?"], ["the text that holds the answer"])',),
            auto_model("AutoModelForQuestionAnswering"),
        ),
        options=AnsweringOptions,
    )
    metric: ClassVar[str] = "f1"
    problem: ClassVar[str] = SPANS
    objective: ClassVar = SpanObjective()
    least_tuned: ClassVar[int] = 500

    @classmethod
    def learned_from(cls, train: Sequence[QuestionExample], options: AnsweringOptions) -> AnsweringTask:
        """Finds out whether a training file has unanswerable questions.

        Where the options leave it open, the scoring is `cmrc` if more than half of the answers have Chinese
        characters, and an answer has at most the published 30 tokens, or 100 where scoring is by the character: a third
        of CMRC's answers have more than 30 tokens, one in thirty more than 100.
        """
        answers = [example.answers[0].text for example in train if example.answers]
        if not answers:
            raise InputError("no question of the training file has an answer; there is nothing to learn")
        scoring, max_answer_tokens = options.scoring, options.max_answer_tokens
        if scoring is None:
            chinese = sum(any("\u4e00" <= letter <= "\u9fff" for letter in text) for text in answers)
            scoring = "cmrc" if 2 * chinese > len(answers) else "squad"
        if max_answer_tokens is None:
            max_answer_tokens = 100 if scoring == "cmrc" else 30
        # 训练集里有无答案题（SQuAD 2.0）才允许不答；阈值先取 0，之后在开发集上调
        return cls(options.stride, max_answer_tokens, scoring, 0.0 if len(answers) < len(train) else None)

    def blind_to(self, examples: Sequence[QuestionExample]) -> list[str]:
        """Says where no question has an answer."""
        return [] if any(one.answers for one in examples) else ["no question has an answer"]

    def group_of(self, example: QuestionExample) -> str:
        """Returns its passage: it has several questions."""
        return example.context

    def classes_of(self, example: QuestionExample) -> tuple[bool]:
        """Returns whether its passage has an answer."""
        return (example.is_impossible,)

    def encode(
        self, tokenizer: Tokenizer, examples: Sequence[QuestionExample], max_length: int
    ) -> list[EncodedExample]:
        """Returns one sequence for each window, with the first and last token of the answer in it."""
        cutter = WindowCutter(tokenizer, max_length, self.stride)
        encoded = []
        for example in examples:
            question = cutter.cut(example.question, example.context)
            span = _tokens_of(example, question.passage)
            for window in question.windows():
                first, last = (token - window.first for token in span)
                # 答案必须整个在窗口里：只露出一半的答案会教模型在词中间停下
                whole = 0 <= first <= last < window.size
                label = (window.head + first, window.head + last) if whole else (0, 0)
                encoded.append(EncodedExample([window.input_ids], [window.token_type_ids], label))
        return encoded

    def predicted(self, pipeline: Answer, examples: Sequence[QuestionExample]) -> list[Answered]:
        """Answers the questions."""
        return list(pipeline.stream((example.question, example.context) for example in examples))

    def targets(self, examples: Sequence[QuestionExample]) -> list[int]:
        """Returns for each word of each passage what counts in the true answer, see `finetune.spans.targets_of`."""
        return targets_of(examples)

    def rows(self, examples: Sequence[QuestionExample]) -> list[int]:
        """Returns the number of words of each passage."""
        return [len(passage_words(example.context).words) for example in examples]

    def outputs(self, pipeline: Any, examples: Sequence[QuestionExample]) -> Tensor:
        """Returns [W, 4], one row for each word of each passage."""
        outputs: Tensor = pipeline.logits([(example.question, example.context) for example in examples])
        return outputs

    def told(self, pipeline: Answer, outputs: Tensor, examples: Sequence[QuestionExample]) -> list[Answered]:
        """Returns the answers."""
        return pipeline.told(outputs, [(example.question, example.context) for example in examples])

    def shown(self, examples: Sequence[QuestionExample]) -> list[tuple[str, str]]:
        """Returns each question, and its true answers."""
        true = (" / ".join(dict.fromkeys(answer.text for answer in example.answers)) for example in examples)
        return [(example.question, text or NO_ANSWER) for example, text in zip(examples, true, strict=True)]

    def apart(
        self,
        pipeline: Answer,
        examples: Sequence[QuestionExample],
        outputs: tuple[Tensor, Tensor],
        _weights: tuple[float, float],
        count: int,
    ) -> list[tuple[str, ...]]:
        """Returns questions to which two parts give different answers, those first of which both are sure."""
        told = [self.told(pipeline, one, examples) for one in outputs]
        texts = list(zip(*map(self._texts, told), strict=True))
        sure = [min(one.candidates[0].probability for one in both) for both in zip(*told, strict=True)]
        differ = [number for number, (one, other) in enumerate(texts) if one != other]
        shown = self.shown(examples)
        return [
            (*shown[number], *(text or NO_ANSWER for text in texts[number]))
            for number in sorted(differ, key=lambda number: -sure[number])[:count]
        ]

    def with_best_threshold(
        self, examples: Sequence[QuestionExample], predictions: Sequence[Answered]
    ) -> AnsweringTask:
        """Returns the task with the null threshold that gives the best F1; itself where it always answers."""
        if self.null_threshold is None:
            return self
        scores = self._scores(examples, [prediction.candidates[0].text for prediction in predictions])
        margins = np.array([prediction.margin for prediction in predictions])
        answerable = [not example.is_impossible for example in examples]
        _, limit = best_null_threshold(scores.f1s, -margins, answerable)
        # 取中点而不是恰好取某题的分值：批次组成不同带来的舍入误差不会改变任何一题的取舍
        answered, left = margins[-margins <= limit], margins[-margins > limit]
        if len(answered) and len(left):
            return replace(self, null_threshold=float((answered.min() + left.max()) / 2))
        return replace(self, null_threshold=float(answered.min() - 1.0 if len(answered) else left.max() + 1.0))

    def metrics(self, examples: Sequence[QuestionExample], predictions: Sequence[Answered]) -> dict[str, float]:
        """Returns F1 and exact match; where some questions have no answer, those of either kind by itself as well."""
        return self._metrics(examples, self._scores(examples, self._texts(predictions)))

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
        shown = self.shown(examples)
        return Evaluation(
            self._metrics(examples, scores),
            {"f1": bootstrap_interval(scores.f1s), "exact_match": bootstrap_interval(scores.exact_matches)},
            mistakes=[
                Mistake(shown[number][0], shown[number][1], texts[number] or NO_ANSWER, confidence[number])
                for number in order[:SHOWN_MISTAKES]
            ],
        )

    @classmethod
    def records(cls, pipeline: Answer, rows: Rows) -> Iterator[Record]:
        """Yields the best answer, "" for none, its probability, and all candidates."""
        for row, answer in zip(rows, pipeline.stream([(row[0], row[1]) for row in rows]), strict=True):
            told = {"prediction": answer.text, "probability": answer.probability, "answer": asdict(answer)}
            yield {**told, "input": row}

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
        return SpanScores(*(np.where(impossible, silent, column) for column in (scores.exact_matches, scores.f1s)))

    def _metrics(self, examples: Sequence[QuestionExample], scores: SpanScores) -> dict[str, float]:
        metrics = {"f1": scores.f1, "exact_match": scores.exact_match}
        impossible = np.array([example.is_impossible for example in examples])
        if impossible.any() and not impossible.all():
            metrics["has_answer_f1"] = float(scores.f1s[~impossible].mean())
            metrics["has_answer_exact_match"] = float(scores.exact_matches[~impossible].mean())
            # 无答案题只有对错：F1 与完全匹配是同一个数
            metrics["no_answer_exact_match"] = float(scores.exact_matches[impossible].mean())
        return metrics


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
