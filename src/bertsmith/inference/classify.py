"""Pipelines over one vector of a text or pair: its class, labels, a number, its rank, a choice, whether it follows.

Classes, labels, numbers and ranks are read from one architecture; `config.problem_type` says which of them a folder is
for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.hub import model_folder
from bertsmith.inference.embed import READS, Pooling, check_pooling
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.linear import LinearPipeline, LinearPipelineT
from bertsmith.inference.pipeline import Pipeline, one_or_many, parts, require_list, require_pairs
from bertsmith.inference.task_file import USAGE_FILE, TaskFile, read_told, stated_prompts
from bertsmith.inference.words import Words
from bertsmith.model import (
    Backbone,
    ModelConfig,
    ModelForMultipleChoice,
    ModelForNextSentencePrediction,
    ModelForPreTraining,
    ModelForSequenceClassification,
)
from bertsmith.model.config import PROBLEM_TYPES
from bertsmith.settings import option
from bertsmith.tokenizer import Tokenizer, load_tokenizer

SINGLE, MULTI, REGRESSION = PROBLEM_TYPES

_PIPELINE_OF = {SINGLE: "classify", MULTI: "multilabel", REGRESSION: "regress"}


@dataclass(frozen=True)
class Prediction:
    """The likeliest class of a text, and the probability of every class; they add up to 1."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class LabelsPrediction:
    """All labels of a text that are likelier than the threshold, and the probability of every label by itself."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]


@dataclass(frozen=True)
class TextSettings(TaskFile):
    """What `task.json` tells a pipeline over texts or pairs: whether it was trained on pairs, if that is known."""

    paired: bool | None = None


@dataclass(frozen=True)
class ClassSettings(TextSettings):
    """What `task.json` tells `Classify`.

    Attributes:
        temperature: by which logits are divided where true probabilities are asked for; positive.
        positive_threshold: for two classes, how likely the second must be where thresholds are asked for.
    """

    temperature: float = option(1.0, above=0)
    positive_threshold: float | None = None


class TextPipeline(LinearPipeline):
    """What the pipelines over texts or pairs of texts share: what they take, and what the model's outputs must mean.

    `problem_type` is that of the model's `config`; `paired` tells whether it was trained on pairs, None if not known.
    """

    architectures = (ModelForSequenceClassification,)
    settings: ClassVar[type[TaskFile]] = TextSettings
    words_kind = Words
    endpoints = ("/predict",)
    problem_type: ClassVar[str]

    words: Words | None
    paired: bool | None

    @classmethod
    def load_beside(cls: type[LinearPipelineT], folder: str | Path, words: Words, **how: Any) -> LinearPipelineT:
        """Loads the encoder beside words: with its head, or without for the layer that reads its states."""
        if words.states is None:
            return super().load_beside(folder, words, **how)
        check_pooling(words.pooling, ModelConfig.load(folder))
        encoder = Backbone.from_pretrained(folder, need_pooler=False)
        # 编码器自己没有头：输出的名字与意思由这一层来说
        names = dict(enumerate(words.labels))
        encoder.config = encoder.config.changed(id2label=names, problem_type=words.problem)
        return cls.over(encoder, load_tokenizer(folder), cls.settings_in(folder), **how)

    @classmethod
    def is_for(cls, architecture: str, config: ModelConfig) -> bool:
        """Tells by the problem type whether the outputs of a folder mean what this pipeline takes them for."""
        # 只有一个输出、又没有注明类型的，是交叉编码器，归 `rank`
        only_one = None if len(config.id2label) == 1 else SINGLE
        meant = config.problem_type if config.problem_type in (MULTI, REGRESSION) else only_one
        return super().is_for(architecture, config) and meant == cls.problem_type

    @classmethod
    def require_model(cls, config: ModelConfig) -> None:
        """Makes sure that a model's outputs mean what the pipeline takes them for."""
        super().require_model(config)
        problem = config.problem_type
        if problem is None:
            # 单输出、未注明类型的文件夹（交叉编码器）也当作回归：一个输出做不了分类
            problem = REGRESSION if len(config.id2label) == 1 else SINGLE
        if problem not in _PIPELINE_OF:
            raise CheckpointError(f"problem_type {problem!r} of the model is none of {', '.join(_PIPELINE_OF)}")
        if problem != cls.problem_type:
            raise ConfigError(
                f"the model is for the pipeline {_PIPELINE_OF[problem]!r}, not {cls.name!r}; ask for that one"
            )

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Tensor:
        """Returns [N, num_labels] float32; longer texts are cut."""
        require_list(texts, pairs)
        if pairs is not None and self.tokenizer is not None:
            require_pairs(self.config, "pairs of texts")
        # 训练时读两段、现在只给一段，照样算得出一个数，却没有意义
        if self.paired is not None and self.paired != (pairs is not None):
            trained, wanted = ("pairs of texts", "give") if self.paired else ("single texts", "leave out")
            raise InputError(f"the model was trained on {trained}; {wanted} the second texts")
        return self.together((texts, pairs), lambda: self._encoded(texts, pairs))

    def _encoded(self, texts: Sequence[str], pairs: Sequence[str] | None) -> Tensor:
        words = self.words
        if words is None or words.states is None:
            return sequence_rows(self, texts, pairs, read_logits, len(self.labels))
        return words.of_states(
            sequence_rows(self, texts, pairs, READS[cast("Pooling", words.pooling)], len(words.states))
        )

    def smallest_input(self) -> tuple[Any, ...]:
        """Returns a text, or a pair where the model was trained on pairs."""
        return (["a"], ["a"]) if self.paired else (["a"],)


class Classify(TextPipeline, name="classify"):
    """Predicts the class of texts, or of pairs of texts.

    Attributes:
        is_calibrated: probabilities are given at the temperature that fine-tuning found; may be set.
        uses_thresholds: the second of two classes is decided by its threshold; may be set.
    """

    problem_type = SINGLE
    settings = ClassSettings
    is_calibrated = False
    uses_thresholds = False
    temperature: float
    positive_threshold: float | None

    @one_or_many
    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Prediction]:
        """Classifies N texts, or pairs where it was trained on them; longer ones are cut to what the model reads."""
        return self.told(self.logits(texts, pairs))

    def told(self, logits: Tensor) -> list[Prediction]:
        """Returns what outputs [N, K] say."""
        best = logits.argmax(-1)
        if self.uses_thresholds:
            if self.positive_threshold is None:
                raise ConfigError("the folder has no threshold of a class; only a model of two classes has one")
            # 阈值是在原来的概率上找的：温度只改说法，不改判断
            best = (logits.softmax(-1)[:, 1] > self.positive_threshold).long()
        rows = (logits / (self.temperature if self.is_calibrated else 1.0)).softmax(-1).tolist()
        return [
            Prediction(self.labels[place], dict(zip(self.labels, row, strict=True)))
            for place, row in zip(best.tolist(), rows, strict=True)
        ]


@dataclass(frozen=True)
class LabelSettings(TextSettings):
    """What `task.json` tells `MultiLabel`.

    Attributes:
        temperature: by which logits are divided where true probabilities are asked for; positive.
        thresholds: how likely each label must be where thresholds of their own are asked for; empty for none.
    """

    threshold: float = option(0.5, min=0, max=1)
    temperature: float = option(1.0, above=0)
    thresholds: tuple[float, ...] = ()


class MultiLabel(TextPipeline, name="multilabel"):
    """Predicts all labels of texts, or of pairs of texts; every label is decided by itself.

    Attributes:
        is_calibrated: probabilities are given at the temperature that fine-tuning found; may be set.
        uses_thresholds: every label is decided by the threshold that fine-tuning found for it; may be set.
    """

    problem_type = MULTI
    settings = LabelSettings
    is_calibrated = False
    uses_thresholds = False
    threshold: float
    temperature: float
    thresholds: tuple[float, ...]

    @one_or_many
    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[LabelsPrediction]:
        """Labels texts; arguments and errors as in `Classify`."""
        return self.told(self.logits(texts, pairs))

    def told(self, logits: Tensor) -> list[LabelsPrediction]:
        """Returns what outputs [N, K] say."""
        if self.uses_thresholds and len(self.thresholds) != len(self.labels):
            raise ConfigError("the folder has no thresholds of its labels; fine-tune again to get them")
        least = self.thresholds if self.uses_thresholds else (self.threshold,) * len(self.labels)
        shown = (logits / (self.temperature if self.is_calibrated else 1.0)).sigmoid().tolist()
        return [
            LabelsPrediction(
                tuple(label for label, value, cut in zip(self.labels, row, least, strict=True) if value > cut),
                dict(zip(self.labels, told, strict=True)),
            )
            for row, told in zip(logits.sigmoid().tolist(), shown, strict=True)
        ]


class Regress(TextPipeline, name="regress"):
    """Predicts a number for texts, or for pairs of texts, such as how alike the two are."""

    problem_type = REGRESSION

    def __init__(self, model: Any, tokenizer: Tokenizer | None, *inference: InferenceConfig, **settings: Any) -> None:
        """Takes a model with one output."""
        super().__init__(model, tokenizer, *inference, **settings)
        if len(self.labels) != 1:
            raise ConfigError(f"the model gives {len(self.labels)} numbers for a text; only one can be read")

    @one_or_many
    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Returns [N] numbers; arguments and errors as in `Classify`."""
        return self.told(self.logits(texts, pairs))

    def told(self, logits: Tensor) -> NDArray[np.float64]:
        """Returns what outputs [N, 1] say."""
        return logits[:, 0].double().numpy()


def sequence_rows(
    pipeline: Pipeline, texts: Sequence[str], pairs: Sequence[str] | None, read: Callable[..., Tensor], width: int
) -> Tensor:
    """Returns [N, width] float32, what is read of the sequences of N texts or pairs; longer ones are cut."""
    rows = [torch.empty(0, width)]
    for part in parts(len(texts)):
        second = None if pairs is None else list(pairs[part])
        encoded = pipeline.tokenizer(list(texts[part]), second, max_length=pipeline.max_length)
        rows.append(pipeline.engine.run(encoded["input_ids"], encoded["token_type_ids"], read))
    return torch.cat(rows)


def read_logits(model: ModelForSequenceClassification, batch: RaggedBatch) -> Tensor:
    """Reads [N, num_labels], the logits of each sequence of a batch."""
    logits: Tensor = model(batch)
    return logits


class NextSentence(Pipeline, name="next-sentence"):
    """Tells whether a text follows another, as pre-training asked it (Devlin et al. 2019, §3.1)."""

    architectures = (ModelForNextSentencePrediction, ModelForPreTraining)
    needs_fine_tuning = False
    endpoints = ("/next-sentence",)
    two_texts = "next sentences"

    @classmethod
    def is_for(cls, architecture: str, config: ModelConfig) -> bool:
        """Tells whether a folder has the head, and a model that can tell two texts apart."""
        # 只认一种句段的模型读不了句对：有那个头也没有用
        return super().is_for(architecture, config) and config.reads_pairs

    @one_or_many
    def __call__(self, texts: Sequence[str], next_texts: Sequence[str]) -> NDArray[np.float64]:
        """Returns [N], the probability that B follows A; where the two are too long together, the longer is cut."""
        require_list(texts, next_texts)
        logits = sequence_rows(self, texts, next_texts, next_sentence_logits, 2)
        # 第 0 类是「B 接在 A 之后」，与发布的模型一致
        return logits.double().softmax(-1)[:, 0].numpy()


def next_sentence_logits(model: ModelForNextSentencePrediction | ModelForPreTraining, batch: RaggedBatch) -> Tensor:
    """Reads [N, 2], the logits of "B follows A" and "B is random"."""
    logits: Tensor = model.next_sentence(model.backbone(batch).pooled)
    return logits


Activation = Literal["Sigmoid", "Identity"]
ACTIVATION_CLASSES: dict[Activation, str] = {
    "Sigmoid": "torch.nn.modules.activation.Sigmoid",
    "Identity": "torch.nn.modules.linear.Identity",
}
"""What a `CrossEncoder` calls them."""


@dataclass(frozen=True)
class RankSettings(TaskFile):
    """What a folder tells `Rank`: what stands before every query, and what makes a score of the model's output."""

    prompt: str = ""
    activation: Activation = "Sigmoid"


@dataclass(frozen=True)
class Ranked:
    """A text, its number in the list that was given, and how relevant it is."""

    index: int
    score: float
    text: str


class Rank(LinearPipeline, name="rank"):
    """Puts texts in order of relevance to a query, from both read together (Nogueira and Cho 2019).

    The model is a sequence classifier with one output; its sigmoid is the score, or the output itself where the folder
    says so. `sentence_transformers.CrossEncoder` reads the same folders and gives the same scores.
    """

    architectures = (ModelForSequenceClassification,)
    settings = RankSettings
    words_kind = Words
    two_texts = "a query and its text"
    endpoints = ("/rerank", "/v1/rerank", "/v2/rerank")

    prompt: str
    activation: Activation

    @classmethod
    def require_model(cls, config: ModelConfig) -> None:
        """Makes sure that a model has one output and no `problem_type`."""
        if len(config.id2label) != 1 or config.problem_type is not None:
            raise ConfigError(
                f"the model has {len(config.id2label)} outputs and problem_type {config.problem_type!r};"
                " a ranker has one output and no problem_type"
            )
        super().require_model(config)

    @classmethod
    def settings_in(cls, folder: str | Path) -> RankSettings:
        """Returns what a folder says, our own or one of `sentence_transformers.CrossEncoder`."""
        told, folder = cast("RankSettings", super().settings_in(folder)), model_folder(folder)
        # 自己训练的，task.json 说了算：适配器没有别的地方可写
        if told.task:
            return told
        prompts, default = stated_prompts(folder)
        config = read_told(folder / "config.json", dict)
        newer, older = read_told(folder / USAGE_FILE, dict), config.get("sentence_transformers")
        # 从新到旧，激活函数的名字先后写在三个地方
        named = newer.get("activation_fn") or (older.get("activation_fn") if isinstance(older, dict) else None)
        named = str(named or config.get("sbert_ce_default_activation_function") or "Sigmoid").rpartition(".")[2]
        if named not in ACTIVATION_CLASSES:
            raise CheckpointError(f"{folder}: scores through {named}; this package has {', '.join(ACTIVATION_CLASSES)}")
        return replace(told, prompt=prompts.get(default, ""), activation=named)

    @classmethod
    def is_for(cls, architecture: str, config: ModelConfig) -> bool:
        """Tells whether a folder holds a cross-encoder: one output, which neither labels nor measures."""
        is_ranker = len(config.id2label) == 1 and config.problem_type not in (MULTI, REGRESSION)
        return super().is_for(architecture, config) and is_ranker

    def __call__(self, query: str, texts: Sequence[str]) -> list[Ranked]:
        """Ranks texts for one query, best first; equals stay in the order they were given.

        Raises:
            InputError: the query is no string, or a single string was given for the texts.
        """
        if not isinstance(query, str):
            raise InputError("give one query, a string; `scores` takes many")
        if isinstance(texts, str):
            return self(query, [texts])[0]  # type: ignore[return-value]
        require_list(texts)
        scores = self.scores([query] * len(texts), texts).tolist()
        order = sorted(range(len(texts)), key=lambda index: -scores[index])
        return [Ranked(index, scores[index], texts[index]) for index in order]

    def scores(self, queries: Sequence[str], texts: Sequence[str]) -> NDArray[np.float64]:
        """Returns [N], scores of queries with texts, in [0, 1] where the activation is the sigmoid.

        Where the two are too long together, the longer one is cut.
        """
        return self.told(self.logits(queries, texts))

    def told(self, logits: Tensor) -> NDArray[np.float64]:
        """Returns the scores [N] that outputs [N, 1] say."""
        # 双精度的 sigmoid：float32 在 17 以上就饱和为 1，高分之间会并列
        found = logits[:, 0].double()
        scores: NDArray[np.float64] = (found.sigmoid() if self.activation == "Sigmoid" else found).numpy()
        return scores

    def logits(self, queries: Sequence[str], texts: Sequence[str]) -> Tensor:
        """Returns [N, 1] float32, the scores of pairs before the sigmoid; arguments and errors as in `scores`."""
        require_list(queries, texts)
        asked = [self.prompt + query for query in queries]
        return self.together((queries, texts), lambda: sequence_rows(self, asked, texts, read_logits, 1))

    def smallest_input(self) -> tuple[Any, ...]:
        """Returns a query and one text."""
        return "a", ["a"]


@dataclass(frozen=True)
class Choice:
    """The number of the likeliest choice, from 0, and the probability of each; they add up to 1."""

    index: int
    probabilities: tuple[float, ...]


class Choose(LinearPipeline, name="choose"):
    """Chooses among answers or continuations (Devlin et al. 2019, §4.4).

    Every choice makes a sequence of its own, `[CLS] context [SEP] choice [SEP]`, and gets one score; the softmax over
    the choices of a question makes probabilities of them. So questions may have different numbers of choices.
    """

    architectures = (ModelForMultipleChoice,)
    words_kind = Words
    two_texts = "a context and its choice"
    endpoints = ("/predict",)

    @one_or_many
    def __call__(self, contexts: Sequence[str], choices: Sequence[Sequence[str]]) -> list[Choice]:
        """Chooses for each of Q contexts among its choices, one or more; of equal scores the earlier wins.

        Where a context and a choice are too long together, the longer one is cut.

        Raises:
            InputError: a string was given for a list, the numbers differ, or a context has no choice.
        """
        _require_choices(contexts, choices)
        return self.told(self.logits(*choice_rows(contexts, choices)), [len(texts) for texts in choices])

    def logits(self, contexts: Sequence[str], choices: Sequence[str]) -> Tensor:
        """Returns [R, 1] float32, the scores of R single choices, each beside its context."""
        # 每个选项单独算分：题目的选项数可以不同，长短相近的序列也能排在一起算
        return self.together((contexts, choices), lambda: sequence_rows(self, contexts, choices, choice_score, 1))

    def told(self, logits: Tensor, counts: Sequence[int]) -> list[Choice]:
        """Returns what scores [R, 1] say of questions, each with so many choices."""
        rows = logits[:, 0].split(list(counts))
        return [Choice(int(row.argmax()), tuple(row.softmax(-1).tolist())) for row in rows]

    def smallest_input(self) -> tuple[Any, ...]:
        """Returns a context with two choices."""
        return ["a"], [["a", "b"]]


def choice_score(model: ModelForMultipleChoice, batch: RaggedBatch) -> Tensor:
    """Reads [N, 1], the score of each sequence."""
    scores: Tensor = model(batch, 1)
    return scores


def choice_rows(contexts: Sequence[str], choices: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Returns the context and the text of every choice, one question after the other."""
    repeated = chain.from_iterable(map(repeat, contexts, map(len, choices)))
    return list(repeated), list(chain.from_iterable(choices))


def _require_choices(contexts: Sequence[str], choices: Sequence[Sequence[str]]) -> None:
    require_list(contexts)
    if isinstance(choices, str) or any(isinstance(texts, str) for texts in choices):
        raise InputError("give a list of choices for each context: [['yes', 'no'], ...]")
    if len(choices) != len(contexts):
        raise InputError(f"{len(contexts)} contexts and {len(choices)} lists of choices; give one for each")
    for number, texts in enumerate(choices):
        if len(texts) == 0:
            raise InputError(f"choices[{number}] is empty; give the context at least one choice")
        require_list(texts)
