"""What an attribution explains: one number that a fine-tuned model computes from one sequence.

Each task has its own: the logit of a class, label or tag, a regressor's or ranker's output, the score of a choice, or
of an answer, start and end together. Sequences are cut as by the task's pipeline: what is explained was predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, InputError
from bertsmith.finetune.predict import Predictor
from bertsmith.finetune.tasks import task_named
from bertsmith.inference.tag import word_windows, words_in_texts
from bertsmith.inference.task_file import paired_of
from bertsmith.model import PretrainedModel
from bertsmith.tokenizer import Tokenizer
from bertsmith_school.looking.maps import encode_whole

Read = Callable[[RaggedBatch], Tensor]
"""Calls a model on a batch of n sequences and returns [n, ...]."""


@dataclass(frozen=True)
class ScoredText:
    """A sequence, and the number to explain.

    Attributes:
        offsets: S pairs of characters in that text, end excluded; (0, 0) for special tokens.
        target: the number in words, such as `class 'good'`.
        note: a sentence for the reader, such as that the text was cut; empty as a rule.
    """

    model: PretrainedModel
    tokenizer: Tokenizer
    texts: tuple[str, ...]
    input_ids: list[int]
    token_type_ids: list[int]
    sequence_ids: list[int]
    offsets: list[tuple[int, int]]
    target: str
    read: Read
    note: str = ""


@dataclass(frozen=True)
class Explainable:
    """A fine-tuned model whose predictions can be explained; `paired` is None where the folder does not say."""

    folder: Path
    kind: str
    pipeline: Any
    model: PretrainedModel
    tokenizer: Tokenizer
    max_length: int
    paired: bool | None = None

    @classmethod
    def load(cls, folder: str | Path, *, adapter: str | Path | None = None) -> Explainable:
        """Loads a fine-tuned folder, ours or another's; with an adapter, the backbone it was trained over."""
        described = Path(folder if adapter is None else adapter)
        predictor = Predictor.load(folder, adapter=adapter)
        kind, pipeline = predictor.kind, predictor.pipeline
        if not task_named(kind).spec.is_explained:
            raise CheckpointError(f"{folder}: reads frozen features of a model; attributions need a fine-tuned head")
        words = getattr(pipeline, "words", None)
        if words is not None and (words.states is not None or not words.mix[0]):
            raise CheckpointError(
                f"{folder}: its answer is a linear model over words or frozen features; attributions need a fine-tuned"
                " head"
            )
        tokenizer, max_length = pipeline.tokenizer, pipeline.max_length
        return cls(described, kind, pipeline, pipeline.engine.model, tokenizer, max_length, paired_of(described))

    @property
    def labels(self) -> list[str]:
        """The names of the head's outputs; empty for heads that have none."""
        names = self.model.config.id2label
        return [names[index] for index in range(len(names))]

    def score(self, texts: Sequence[str], *, target: str | None = None, word: str | None = None) -> ScoredText:
        """Chooses what is to be explained of one input.

        Args:
            texts: a text or two (classify, multilabel, regress), a text (tag), a query and a text (rank), a question
                and its passage (answer), a context and its choices (choose).
            target: a label (classify, multilabel, tag), a choice or its number from 1 (choose); None takes what the
                model predicts.
            word: tag only: the word as it is written, or its number from 1; None takes the surest word that the model
                does not tag `O`, or the surest at all.
        """
        inputs = task_named(self.kind).spec.inputs
        # 解释一个选项只需要那一个选项，不必有别的可比
        least, most = 2 if inputs.lines else inputs.least, inputs.most
        if inputs.pairs and self.paired is not None:
            least = most = 2 if self.paired else 1
        if not least <= len(texts) <= most:
            wanted = str(least) if least == most else f"{least} or more" if most > 2 else f"{least} or {most}"
            raise InputError(f"{self.folder}: {self.kind} reads {wanted} text(s), and {len(texts)} were given")
        if word is not None and self.kind != "tag":
            raise InputError(f"{self.folder}: the model is for {self.kind}; a word is chosen for taggers only")
        if target is not None and self.kind in ("regress", "rank", "answer"):
            raise InputError(f"target {target[:60]!r}: {self.kind} leaves nothing to choose; leave it out")
        if self.kind == "tag":
            return _tag(self, texts[0], target, word)
        if self.kind == "answer":
            return _answer(self, texts[0], texts[1])
        if self.kind == "choose":
            return _choice(self, texts[0], texts[1:], target)
        return _text(self, texts, target)

    def scored(
        self, texts: Sequence[str], encoded: Mapping[str, Any], target: str, read: Read, dropped: int, note: str = ""
    ) -> ScoredText:
        """Returns a sequence with the number [N] that `read` gives of a batch of N, and what a reader should know."""
        if dropped:
            note += (
                f" The model reads {self.max_length} tokens at once; {dropped} of the text are not in this sequence."
            )
        names = ("input_ids", "token_type_ids", "sequence_ids", "offsets")
        columns: Any = {name: list(encoded[name]) for name in names}
        columns |= {"target": target, "read": read, "note": note.strip()}
        return ScoredText(self.model, self.tokenizer, tuple(texts), **columns)

    @torch.inference_mode()
    def run(self, encoded: Mapping[str, Any], read: Read) -> Tensor:
        """Runs the model on one sequence: returns [...], of [N, ...] that `read` gives of a batch of N."""
        device = next(self.model.parameters()).device
        return read(RaggedBatch.from_sequences([encoded["input_ids"]], [encoded["token_type_ids"]]).to(device))[0]


def _text(explained: Explainable, texts: Sequence[str], target: str | None) -> ScoredText:
    """Explains an output over the pooled `[CLS]`."""
    pair = texts[1] if len(texts) > 1 else None
    encoded, dropped = encode_whole(explained.tokenizer, explained.max_length, texts[0], pair, parse_special=False)
    model = explained.model
    if explained.kind in ("regress", "rank"):
        return explained.scored(texts, encoded, "the output", lambda batch: model(batch)[:, 0], dropped)
    column = _column(explained.labels, target)
    if column is None:
        column = int(explained.run(encoded, model).argmax())
    named = f"{'label' if explained.kind == 'multilabel' else 'class'} {explained.labels[column]!r}"
    return explained.scored(texts, encoded, named, lambda batch: model(batch)[:, column], dropped)


def _choice(explained: Explainable, context: str, choices: Sequence[str], target: str | None) -> ScoredText:
    """Explains the score of one choice; the others are sequences of their own and have no part in it."""
    if target is None:
        index = explained.pipeline([context], [choices])[0].index
    else:
        otherwise = f"target {target[:60]!r} is none of the choices; give one of them, or"
        index = _named_or_numbered(choices, target, otherwise)
    texts = (context, choices[index])
    encoded, dropped = encode_whole(explained.tokenizer, explained.max_length, *texts, parse_special=False)
    model: Any = explained.model
    return explained.scored(texts, encoded, f"choice {index + 1}", lambda batch: model(batch, 1)[:, 0], dropped)


def _tag(explained: Explainable, text: str, target: str | None, word: str | None) -> ScoredText:
    """Explains a tag's logit at the first piece of a word, in the window where the word is read."""
    (pieces,), (places,) = words_in_texts(explained.tokenizer, [text])
    if not pieces.sizes:
        raise InputError(f"text 1, {text[:60]!r}, holds no word; write something")
    column = _column(explained.labels, target)
    words = [text[start:end] for start, end in places.tolist()]
    if word is None:
        tagged = explained.pipeline.score_words([words])[0]
        # 优先解释一个被标成实体的词：多数词是 O，解释它没有意思
        number = min(range(len(words)), key=lambda n: (tagged.tags[n] == "O", -tagged.probabilities[n]))
    else:
        otherwise = f"word {word[:60]!r} is not in the text; give one of its words, or a number from"
        number = _named_or_numbered(words, word, otherwise)
    windows = word_windows(explained.tokenizer, [pieces], explained.max_length)
    window = next(window for window in windows if number in window.words)
    at = window.positions[number - window.words.start]
    # 每个词片在原文中的位置；比整窗还长的词只保留开头的词片，与 word_windows 一致
    tokens = explained.tokenizer.align_words([text])
    template = explained.tokenizer.template
    sizes = [min(size, explained.max_length - template.size(pair=False)) for size in pieces.sizes]
    starts, bounds = [0, *accumulate(pieces.sizes)], [0, *accumulate(sizes)]
    kept = [start + piece for start, size in zip(starts, sizes, strict=False) for piece in range(size)]
    size = len(window.input_ids)
    first = bounds[window.words.start] - window.positions[0] + len(template.before)
    inside = kept[first : first + size - template.size(pair=False)]
    places_inside = ((int(tokens.starts[piece]), int(tokens.ends[piece])) for piece in inside)
    offsets = [*[(0, 0)] * len(template.before), *places_inside, *[(0, 0)] * len(template.after)]
    nothing = [0] * size
    encoded = {"input_ids": window.input_ids, "token_type_ids": nothing, "sequence_ids": nothing, "offsets": offsets}
    model, labels = explained.model, explained.labels

    def logits(batch: RaggedBatch) -> Tensor:
        rows: Tensor = model(batch).view(-1, size, len(labels))[:, at]
        return rows

    if column is None:
        column = int(explained.run(encoded, logits).argmax())
    named = f"tag {labels[column]!r} of word {number + 1}, {words[number]!r}"
    dropped = len(tokens.ids) - len(inside)
    return explained.scored((text,), encoded, named, lambda batch: logits(batch)[:, column], dropped)


def _answer(explained: Explainable, question: str, context: str) -> ScoredText:
    """Explains the score of the best span, in the window where it was found."""
    answered = explained.pipeline([question], [context])[0]
    best = answered.candidates[0]
    cut = explained.pipeline.cutter.cut(question, context)
    model, passage = explained.model, cut.passage
    # 一个字可能拆成好几个词片，它们的字符位置相同：同一段文字有好几对起止词片
    spans = [
        (first, last)
        for first in _places(passage.starts, best.start)
        for last in _places(passage.ends, best.end)
        if first <= last < first + explained.pipeline.max_answer_tokens
    ]

    def reader(window: Any, span: tuple[int, int]) -> Read:
        size, shift = len(window.input_ids), window.head - window.first
        first, last = span

        def read(batch: RaggedBatch) -> Tensor:
            scores = model(batch)
            starts, ends = (each.view(-1, size) for each in (scores.start, scores.end))
            both: Tensor = starts[:, first + shift] + ends[:, last + shift]
            return both

        return read

    # 答案也可能落在几个重叠的窗口里：取得分最高的那个，与流水线一致
    window, span = max(
        (
            (window, span)
            for window in cut.windows()
            for span in spans
            if window.first <= span[0] and span[1] < window.first + window.size
        ),
        key=lambda found: float(explained.run(found[0]._asdict(), reader(*found))),
    )
    inside = range(window.first, window.first + window.size)
    template = explained.tokenizer.template
    asked = explained.tokenizer(question)["offsets"][: -len(template.after) or None]
    offsets = [
        *(*asked, *[(0, 0)] * len(template.between)),
        *((passage.starts[token], passage.ends[token]) for token in inside),
        *[(0, 0)] * len(template.after),
    ]
    note = ""
    if answered.no_answer:
        note = "The model says that the passage does not answer; what is explained is its best span."
    dropped = len(passage.ids) - window.size
    sequences = [0] * window.head + [1] * (len(window.input_ids) - window.head)
    encoded = {**window._asdict(), "sequence_ids": sequences, "offsets": offsets}
    read = reader(window, span)
    return explained.scored((question, context), encoded, f"the answer {best.text!r}", read, dropped, note)


def _places(values: Sequence[int], wanted: int) -> list[int]:
    return [place for place, value in enumerate(values) if value == wanted]


def _column(labels: Sequence[str], target: str | None) -> int | None:
    if target is None:
        return None
    if target not in labels:
        shown = ", ".join(labels[:12]) + (", …" if len(labels) > 12 else "")
        raise InputError(f"target {target[:60]!r} is no label of the model; its labels: {shown}")
    return list(labels).index(target)


def _named_or_numbered(names: Sequence[str], wanted: str, otherwise: str) -> int:
    """Finds one by its name, or by its number from 1; of several the first."""
    if wanted in names:
        return list(names).index(wanted)
    if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    raise InputError(f"{otherwise} 1 to {len(names)}")
