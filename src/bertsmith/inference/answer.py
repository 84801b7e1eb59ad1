"""The question-answering pipeline: the stretch of a passage that answers a question (Devlin et al. 2019, §4.2, §4.3).

- a passage that is too long is read in overlapping windows, cut as in fine-tuning; all their spans compete
- every span is considered, not only those of the best starts and ends; only the best of a window leave the device
- an answer is given by characters, so that it is exactly what stands in the passage
- beside a linear model over words (see `spans`), the scores of tokens become those of words, and both are added up
"""

from __future__ import annotations

import math
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.inference.engine import DEFAULT, InferenceConfig
from bertsmith.inference.linear import LinearPipeline
from bertsmith.inference.pipeline import one_or_many, require_list
from bertsmith.inference.spans import OUTPUTS, Spans, best_word_spans, passage_words
from bertsmith.inference.task_file import TaskFile
from bertsmith.model import ModelForQuestionAnswering
from bertsmith.model.heads import SpanScores, best_spans
from bertsmith.settings import option
from bertsmith.tokenizer import Template, Tokenizer

WINDOWS_AT_ONCE = 1024
"""Windows that are sorted and packed together: enough to pack well, few enough to be forgotten soon."""
UNREAD = -100.0
"""Score of a word that the tokenizer drops."""


class Window(NamedTuple):
    """A question with a stretch of its passage, as the model reads them: `[CLS] question [SEP] passage [SEP]`.

    `token_type_ids` are 0 up to the first `[SEP]`, then 1; all 0 for a tokenizer that knows a single segment. `head`
    tokens come before the passage.
    """

    input_ids: list[int]
    token_type_ids: list[int]
    head: int
    first: int
    size: int


class PassageTokens(NamedTuple):
    """A passage: its text, and its tokens with their first character and one past their last.

    Accents that follow a token's last letter as characters of their own belong to it.
    """

    text: str
    ids: list[int]
    starts: list[int]
    ends: list[int]


@dataclass(frozen=True)
class WindowedQuestion:
    """A question and its passage, to be read in windows.

    `head` is `[CLS] question [SEP]`, or as the tokenizer's template says; `room` tokens of the passage fit beside it.
    """

    head: list[int]
    passage: PassageTokens
    room: int
    overlap: int
    template: Template

    def windows(self) -> Iterator[Window]:
        """Yields the windows from left to right; the last one reaches the end of the passage."""
        head, step = len(self.head), self.room - self.overlap
        # 最后一窗到文末为止：不再多出一个只含重叠部分的窗口
        for first in range(0, max(len(self.passage.ids) - self.room, 0) + step, step):
            part = self.passage.ids[first : first + self.room]
            types = [0] * head + [self.template.second_type] * (len(part) + len(self.template.after))
            yield Window([*self.head, *part, *self.template.after], types, head, first, len(part))


_Entry = tuple[int, WindowedQuestion, Window]
"""The number of a question, the question, and one of its windows."""


class WindowCutter:
    """Cuts questions and passages into windows; consecutive questions on one passage tokenize it once.

    A window has at most `max_length` ids, special tokens included. Neighbours share `stride` tokens of the passage, but
    at most half a window: so a long question cannot make the windows crawl.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, stride: int) -> None:
        self.tokenizer, self.max_length, self.stride = tokenizer, max_length, stride
        self.passage = PassageTokens("", [], [], [])

    def cut(self, question: str, context: str) -> WindowedQuestion:
        """Tokenizes a question and its passage."""
        ids = self.tokenizer.encode(question)
        if not ids:
            raise InputError(f"question {question[:60]!r} holds no word; ask something")
        passage = self.passage
        if context != passage.text:
            tokens = self.tokenizer.align_flat([context])
            # 分词去掉了重音符号：词尾的组合符号不在词元里，却是答案文字的一部分
            ends = [behind_marks(context, end) for end in tokens.ends.tolist()]
            # 有的词表把词前的空格算在词元里
            spans = zip(tokens.starts.tolist(), ends, strict=True)
            starts = [end - len(context[start:end].lstrip()) for start, end in spans]
            passage = PassageTokens(context, tokens.ids.tolist(), starts, ends)
            self.passage = passage
        if not passage.ids:
            raise InputError(f"question {question[:60]!r}: its passage {context[:60]!r} holds no word")
        template = self.tokenizer.template
        head = template.head(ids)
        room = self.max_length - len(head) - len(template.after)
        if room < 1:
            raise InputError(
                f"question {question[:60]!r} has {len(ids)} tokens, which leaves no room for its passage among the"
                f" {self.max_length} of a sequence; shorten it, or raise max_length if the model reads more"
            )
        return WindowedQuestion(head, passage, room, min(self.stride, room // 2), template)


def behind_marks(text: str, end: int) -> int:
    """Returns the end of a token with the combining marks that follow it: the tokenizer strips accents."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


@dataclass(frozen=True)
class AnswerCandidate:
    """A possible answer: characters `start` to `end` of the passage, `end` excluded.

    Attributes:
        score: S·T_i + E·T_j, not bounded.
        probability: among all candidates, and "no answer" where the pipeline may give it; a softmax over the scores.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class Answered(AnswerCandidate):
    """What a passage answers to a question: the text exactly as it stands there, or "no answer", an empty text.

    Attributes:
        null_score: of "no answer": S·C + E·C at `[CLS]`, in the window where it is least.
        null_probability: of "no answer"; 0 from a pipeline that always answers.
        candidates: the best spans, best first, at least one; the first is the answer unless there is none.
    """

    no_answer: bool
    null_score: float
    null_probability: float
    candidates: tuple[AnswerCandidate, ...]

    @property
    def margin(self) -> float:
        """By how much the best span beats "no answer"."""
        return self.candidates[0].score - self.null_score


@dataclass(frozen=True)
class AnswerSettings(TaskFile):
    """What `task.json` tells `Answer`; without one, every question is answered.

    Attributes:
        stride: tokens that neighbouring windows of a long passage share, at most half a window.
        max_answer_tokens: of the longest answer; with a linear model over words it counts words.
        n_best: most candidates for each question; also the spans that each window puts forward.
        null_threshold: τ of §4.3: an answer must beat "no answer" by more than this; 0 takes what scores higher. None
            for models that were trained on answerable questions only: they always answer.
    """

    required: ClassVar[tuple[str, ...]] = (*TaskFile.required, "stride", "max_answer_tokens", "null_threshold")

    stride: int = option(128, min=0)
    max_answer_tokens: int = option(30, min=1)
    n_best: int = option(20, min=1)
    null_threshold: float | None = option(None)


class Answer(LinearPipeline, name="answer"):
    """Answers questions from passages."""

    words_kind = Spans
    architectures = (ModelForQuestionAnswering,)
    settings = AnswerSettings
    two_texts = "a question and its passage"
    endpoints = ("/answer",)

    stride: int
    max_answer_tokens: int
    n_best: int
    null_threshold: float | None

    def __init__(
        self,
        model: ModelForQuestionAnswering | Spans,
        tokenizer: Tokenizer | None,
        inference: InferenceConfig = DEFAULT,
        **settings: Any,
    ) -> None:
        """Prepares a model for questions; see `Pipeline` and `AnswerSettings`."""
        super().__init__(model, tokenizer, inference, **settings)
        self.labels = list(OUTPUTS)
        if tokenizer is None:
            return
        self.cutter = WindowCutter(tokenizer, self.max_length, self.stride)
        template = tokenizer.template
        # 只认一种句段的分词器（RoBERTa）靠分隔符找段落：句段编号全是 0，分不出问题与段落
        borders = 0 if template.second_type else len(template.between)
        self._read = BestSpans(self.n_best, self.max_answer_tokens, tokenizer.sep_token_id, borders)

    @one_or_many
    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Answered]:
        """Answers N questions from N passages of any length, in order; one question from one passage gives one answer.

        Raises:
            InputError: a single string was given, the numbers differ, a question or passage holds no word, or a
                question leaves no room for its passage.
        """
        require_list(questions, contexts)
        return list(self.stream(zip(questions, contexts, strict=True)))

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Answered]:
        """Answers pairs of question and passage as they come, in bounded memory; errors as in `__call__`.

        The pairs are read a little ahead; questions on one passage are best in a row. The answers keep their order.
        """
        if self.words is not None:
            some = iter(pairs)
            while part := list(islice(some, WINDOWS_AT_ONCE)):
                yield from self.told(self.logits(part), part)
            return
        questions = (self.cutter.cut(question, context) for question, context in pairs)
        entries = ((number, one, window) for number, one in enumerate(questions) for window in one.windows())
        # 窗口按题目次序到来：换了一题，说明前一题的窗口已全部读完，可以作答
        for _, rows in groupby(self._rows(entries), key=lambda row: row[0][0]):
            yield self._answered(*_best_of_windows(rows))

    def _rows(self, entries: Iterator[_Entry]) -> Iterator[tuple[_Entry, list[list[float]]]]:
        while block := list(islice(entries, WINDOWS_AT_ONCE)):
            ids, types = zip(*((window.input_ids, window.token_type_ids) for *_, window in block), strict=True)
            yield from zip(block, self.engine.run(ids, types, self._read).tolist(), strict=True)

    def logits(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        """Returns [W, 4] float32, what is said of each word of N passages beside their questions, see `spans.OUTPUTS`.

        An encoder says of a word's first token that an answer begins there, of its last that it ends there; of a word
        in several windows the highest counts.
        """
        return self.together((pairs,), lambda: self._word_scores(pairs))

    def told(self, outputs: Tensor, pairs: Sequence[tuple[str, str]]) -> list[Answered]:
        """Returns the answers that outputs for words [W, 4] give, all spans of words considered."""
        answers, first = [], 0
        scores = outputs.double().numpy()
        for _, context in pairs:
            places = passage_words(context).places
            rows = scores[first : first + len(places)]
            first += len(places)
            found: dict[str, tuple[float, int, int]] = {}
            for score, one, other in best_word_spans(rows, self.max_answer_tokens, self.n_best):
                start, end = places[one][0], places[other][1]
                found.setdefault(context[start:end], (-score, start, end))
            answers.append(self._answered(found, float(rows[-1, 3])))
        return answers

    def _answered(self, found: dict[str, tuple[float, int, int]], null_score: float) -> Answered:
        """Returns the answer of those that were found, text → -score, start and end."""
        places = sorted((place, text) for text, place in found.items())[: self.n_best]
        scores = [-place[0] for place, _ in places]
        rivals = scores if self.null_threshold is None else [*scores, null_score]
        # 减去最大值再取指数，否则分数一大就溢出
        highest = max(rivals)
        total = math.fsum(math.exp(score - highest) for score in rivals)
        candidates = tuple(
            AnswerCandidate(text, start, end, score, math.exp(score - highest) / total)
            for ((_, start, end), text), score in zip(places, scores, strict=True)
        )
        null_probability = 0.0 if self.null_threshold is None else math.exp(null_score - highest) / total
        null = AnswerCandidate("", 0, 0, null_score, null_probability)
        no_answer = self.null_threshold is not None and candidates[0].score - null_score <= self.null_threshold
        best = vars(null if no_answer else candidates[0])
        return Answered(
            **best, no_answer=no_answer, null_score=null_score, null_probability=null_probability, candidates=candidates
        )

    def _word_scores(self, pairs: Sequence[tuple[str, str]]) -> Tensor:
        questions = [self.cutter.cut(question, context) for question, context in pairs]
        windows = [(number, window) for number, question in enumerate(questions) for window in question.windows()]
        rows = self.engine.run_tokens(
            [window.input_ids for _, window in windows], [window.token_type_ids for _, window in windows], _span_scores
        )
        tokens = [np.full((len(question.passage.ids), 2), -np.inf) for question in questions]
        nulls = np.full(len(questions), np.inf)
        for (number, window), row in zip(windows, rows, strict=True):
            scores = row.double().numpy()
            # 与逐窗作答一样：空答案取各窗里最低的，词元取各窗里最高的
            nulls[number] = min(nulls[number], scores[0].sum())
            some = tokens[number][window.first : window.first + window.size]
            np.maximum(some, scores[window.head : window.head + window.size], out=some)
        found: list[NDArray[np.float64]] = [np.zeros((0, len(OUTPUTS)))]
        for question, scores, null in zip(questions, tokens, nulls.tolist(), strict=True):
            words = _of_words(question.passage, scores)
            words[-1, 3] = null
            found.append(words)
        return torch.from_numpy(np.concatenate(found).astype(np.float32))


def _of_words(passage: PassageTokens, scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns [W, 4] for the words of a passage from start and end scores [T, 2] of its tokens."""
    places = passage_words(passage.text).places
    found = np.zeros((len(places), len(OUTPUTS)))
    for number, (start, end) in enumerate(places):
        first, last = bisect_right(passage.ends, start), bisect_left(passage.starts, end) - 1
        # 分词器整个丢掉的词不能是答案的两端
        found[number, [0, 2]] = (scores[first, 0], scores[last, 1]) if first <= last else UNREAD
    return found


def _span_scores(model: ModelForQuestionAnswering, batch: RaggedBatch) -> Tensor:
    return torch.stack([part.float() for part in model(batch)], -1)


@dataclass(frozen=True)
class BestSpans:
    """Reads the best spans of every window; a value, so that an engine sees which calls read alike.

    Between question and passage stand `borders` ids `separator` (`[SEP]`); 0 where segments tell them apart.
    """

    count: int
    max_tokens: int
    separator: int = 0
    borders: int = 0

    def __call__(self, model: ModelForQuestionAnswering, batch: RaggedBatch) -> Tensor:
        """Returns [N, 1 + count, 3], as `best_spans` but for the first row: "no answer", from `[CLS]` to `[CLS]`."""
        if self.borders:
            outside = outside_passages(batch, self.separator, self.borders)
        else:
            # 段落是第 1 句段，去掉最后的 [SEP]
            outside = batch.token_type_ids == 0
            outside[batch.cu_seqlens[1:].long() - 1] = True
        scores = SpanScores(*(batch.pad(part.float(), fill=-torch.inf) for part in model(batch)))
        found = best_spans(scores, batch.pad(~outside), count=self.count, max_tokens=self.max_tokens)
        null = torch.zeros_like(found[:, :1])
        null[:, 0, 2] = scores.start[:, 0] + scores.end[:, 0]
        return torch.cat([null, found], 1)


def outside_passages(batch: RaggedBatch, separator: int, borders: int) -> Tensor:
    """Returns [T] bool, the tokens that belong to no passage: all but those behind `borders` separators of a window."""
    is_separator = batch.input_ids == separator
    seen = is_separator.cumsum(0)
    firsts = batch.first_token_positions
    # 每条序列从 0 数起：减去它之前的序列里已有的分隔符
    before = (seen - is_separator.long()).index_select(0, firsts)
    lengths = batch.cu_seqlens.long().diff()
    outside: Tensor = (seen - before.repeat_interleave(lengths) != borders) | is_separator
    return outside


def _best_of_windows(
    rows: Iterable[tuple[_Entry, list[list[float]]]],
) -> tuple[dict[str, tuple[float, int, int]], float]:
    """Returns what the windows of a question put forward, text → -score, start and end, and the score of no answer."""
    null_score = math.inf
    places: dict[str, tuple[float, int, int]] = {}
    for (_, question, window), row in rows:
        passage, shift = question.passage, window.first - window.head
        # 只要有一个窗口不像“无答案”，答案就可能在那里：取各窗中最低的空答案得分（与官方程序相同）
        null_score = min(null_score, row[0][2])
        for first, last, score in row[1:]:
            if score == -math.inf:
                break
            start, end = passage.starts[int(first) + shift], passage.ends[int(last) + shift]
            text, place = passage.text[start:end], (-score, start, end)
            # 相同的文字只留得分最高的一处：重叠的窗口会把同一个答案报两次
            places[text] = min(place, places.get(text, place))
    return places, null_score
