"""The task of sentence vectors: texts that belong together get vectors that point the same way.

Notable:
- one encoder reads query and text apart from each other (Reimers and Gurevych 2019, §3), so that the vectors of a
  million texts are computed once, whatever is asked later
- the columns of the training file decide the loss (`embed_losses`), those of the dev file the metric (`embed_scores`);
  the two need not be of one kind
- whatever shares a batch is a negative, so batches are dealt with care (`embed_batches`)
- the folder is one of `sentence-transformers`, with pooling, length and prompts
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.related import RELATED, CorpusPassage, RelatedTexts, VectorExample
from bertsmith.finetune.datasets.rows import DataSource
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.datasets.unlabelled import Positives, read_unlabelled
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.embed_batches import deal, lay_out
from bertsmith.finetune.tasks.embed_losses import loss_for, require_different, score_range, to_learn
from bertsmith.finetune.tasks.embed_scores import score_vectors
from bertsmith.finetune.tasks.spec import CardText, InputFields, TaskSpec
from bertsmith.finetune.tasks.task import EncodedExample, Evaluation, Mistake, Record, Rows, Task, new_model, worst
from bertsmith.inference.embed import READS, Embed
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.loading import load_pipeline
from bertsmith.inference.sentence_folder import (
    SentenceFolder,
    StoredPooling,
    read_sentence_folder,
    write_sentence_folder,
)
from bertsmith.model import Backbone, ModelConfig
from bertsmith.objectives.vectors.batch import VectorBatch
from bertsmith.objectives.vectors.loss import Needs, VectorObjective, vector_loss_named
from bertsmith.objectives.vectors.matryoshka import Matryoshka
from bertsmith.options import option
from bertsmith.tokenizer import Tokenizer

QUERY, PASSAGE = "query", "passage"
"""The names of the two prompts in a folder."""


@dataclass(frozen=True)
class EmbeddingOptions:
    """What can be chosen; see the attributes of `EmbeddingTask`."""

    panel: ClassVar[str] = "Options of the task"

    loss: str | None = option(
        None,
        help="info-nce, cosent, cosine, margin-mse or similarities.",
        shown_default="info-nce; cosent for scores, margin-mse for a teacher's scores",
    )
    temperature: float = option(0.05, help="Temperature that divides the cosines in info-nce and cosent.")
    pooling: StoredPooling | None = option(
        None, help="How token states become a vector.", shown_default="that of the folder, or mean"
    )
    query_prompt: str | None = option(
        None, help="Prompt before every query, such as 'query: '.", shown_default="that of the folder, or none"
    )
    passage_prompt: str | None = option(
        None, help="Prompt before every passage.", shown_default="that of the folder, or none"
    )
    matryoshka: tuple[int, ...] | None = option(
        None, help="Also train the first N numbers as a vector; once for each N.", parse_each=int
    )
    teacher: str | None = option(None, in_file_only=True, help="As --teacher: an encoder, or a ranker of negatives.")
    positives: Positives | None = option(
        None, help="Kind of positive pairs in the text of --unlabelled.", shown_default="cloze"
    )
    mini_batch_size: int = option(0, min=0, help="Texts encoded at a time (gradient caching), to save memory; 0: all.")


@dataclass(frozen=True)
class EmbeddingTask(Task[VectorExample, "NDArray[np.float32]"]):
    """Vectors of texts that say how alike the texts are.

    Attributes:
        loss_name: of the loss, see `objectives.vectors`.
        temperature: of the loss.
        pooling: how a text becomes a vector; None as the model's folder says, until a run begins.
        query_prompt: what is put before a query, or a text that is compared; None as the folder says.
        passage_prompt: what is put before a text that answers a query; None as the folder says.
        matryoshka: widths at which the first numbers of a vector are one, too.
        mini_batch_size: texts that are encoded at a time; 0 for all of a batch.
        teacher: folder of the model whose judgement is learned; empty for none.
        low: score that counts as 0.
        high: score that counts as 1.
    """

    loss_name: str = "info-nce"
    temperature: float = 0.05
    pooling: StoredPooling | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    matryoshka: tuple[int, ...] = ()
    mini_batch_size: int = 0
    teacher: str = ""
    low: float = 0.0
    high: float = 1.0

    has_folds: ClassVar[bool] = False
    spec: ClassVar = TaskSpec(
        "embed",
        ("vectors of texts", "文本的向量"),
        Backbone,
        RELATED,
        Embed,
        InputFields(("Text", "文本")),
        CardText(
            "sentence-similarity",
            "turns a text into a vector; texts that mean the same have vectors that point the same way",
            "Longer texts are cut.",
            ours=('(["first text", "second text"])',) * 2,
            theirs=(
                "from sentence_transformers import SentenceTransformer\n\n"
                'SentenceTransformer("FOLDER").encode(["first text", "second text"])',
            )
            * 2,
        ),
        options=EmbeddingOptions,
        batch_size=64,
        is_explained=False,
    )

    def __post_init__(self) -> None:
        """Checks the loss and the ranges."""
        self.objective  # noqa: B018 - 组不起来的选项要在训练之前就报
        if self.mini_batch_size < 0:
            raise ConfigError(f"mini-batch size {self.mini_batch_size} cannot be negative; 0 encodes all at once")

    @property
    def metric(self) -> str:
        """The metric of the kind that the loss learns from; a dev file of another kind has its own, see `evaluate`."""
        return "spearman" if self._needs == "scores" else "ndcg_at_10"

    @property
    def _needs(self) -> Needs:
        return vector_loss_named(self.loss_name).needs

    @classmethod
    def learned_from(cls, train: Sequence[VectorExample], options: EmbeddingOptions) -> EmbeddingTask:
        """Finds out what a training file is made of, and takes the loss for it.

        Raises:
            ConfigError: the loss needs something that the file does not have, or an option is impossible.
            InputError: there is nothing to tell apart.
        """
        if options.positives is not None:
            raise ConfigError("positives are found in text without labels; give --unlabelled, or leave --positives out")
        examples = to_learn(train)
        name = loss_for(examples, options.loss, options.teacher)
        low, high = score_range(examples)
        require_different(examples)
        return cls(
            name,
            options.temperature,
            options.pooling,
            options.query_prompt,
            options.passage_prompt,
            options.matryoshka or (),
            options.mini_batch_size,
            options.teacher or "",
            low,
            high,
        )

    @classmethod
    def from_documents(
        cls, folder: DataSource, options: dict[str, Any], *, encoding: str, seed: int
    ) -> tuple[list[Any], list[Any]]:
        """Returns pairs of what stands together in documents; see `datasets.unlabelled`."""
        return read_unlabelled(folder, options.pop("positives", None) or "cloze", encoding=encoding, seed=seed)

    @property
    def objective(self) -> VectorObjective:
        """Returns the loss over a model's vectors."""
        loss = vector_loss_named(self.loss_name)(self.temperature)
        widths = Matryoshka(loss, self.matryoshka) if self.matryoshka else loss
        return VectorObjective(widths, READS[self.pooling or "mean"], self.mini_batch_size)

    def starting_from(self, folder: Path) -> EmbeddingTask:
        """Returns the task with the pooling and the prompts of a folder, where the user chose none."""
        says = read_sentence_folder(folder)
        prompts = {"query_prompt": says.prompts.get(QUERY, ""), "passage_prompt": says.prompts.get(PASSAGE, "")}
        left_open: dict[str, Any] = {"pooling": says.pooling, **prompts}
        return replace(self, **{name: value for name, value in left_open.items() if getattr(self, name) is None})

    def build(self, folder: Path, settings: FineTuningSettings) -> Backbone:
        """Returns the encoder of a folder.

        Raises:
            ConfigError: its vectors are narrower than one of the widths that are asked for.
        """
        # 适配器的文件里总有池化层的位置；别的情况下没有人读它
        model = new_model(Backbone, folder, settings, need_pooler=bool(settings.adapter), **self.config_fields())
        if max(self.matryoshka, default=0) > model.config.hidden_size:
            raise ConfigError(
                f"--matryoshka {max(self.matryoshka)}: a vector of this model has {model.config.hidden_size} numbers"
            )
        return model

    def load(self, folder: Path) -> Backbone:
        """Returns the encoder that a run saved."""
        return Embed.model_in(folder)

    def add_files(self, folder: Path, config: ModelConfig, max_length: int) -> None:
        """Makes the folder one of `sentence-transformers`."""
        # sentence-transformers 的 encode_document 找的名字是 document
        prompts = {QUERY: self.query_prompt, PASSAGE: self.passage_prompt, "document": self.passage_prompt}
        says = SentenceFolder(
            self.pooling or "mean",
            max_length,
            normalize=True,
            prompts={name: text for name, text in prompts.items() if text},
        )
        write_sentence_folder(folder, says, config.hidden_size)

    def check_dev(self, dev: Sequence[VectorExample]) -> None:
        """Makes sure that the dev file can tell good epochs from bad ones.

        Raises:
            InputError: its scores are all the same, or its texts are.
        """
        scores = {example.score for example in dev if isinstance(example, ScoredText)}
        if len(scores) == 1:
            raise InputError("the dev file's scores are all the same; no epoch can be chosen by them")
        if not scores:
            require_different(to_learn(dev), "the dev file")

    def encode(self, tokenizer: Tokenizer, examples: Sequence[VectorExample], max_length: int) -> list[EncodedExample]:
        """Returns the texts of each example: a query, its positive and its negatives, or the text of a class.

        The label is a pair: the number of each text, equal for equal texts (of a class, for all its texts), and the
        targets of the loss.
        """
        learned = to_learn(examples)
        numbers: dict[Any, int] = {}
        encoded = []
        rows = iter(
            tokenizer([text for example in learned for text in self._texts(example)], max_length=max_length)[
                "input_ids"
            ]
        )
        for example in learned:
            ids = [next(rows) for _ in _roles(example)]
            # 按 id 而不按原文认同一段：切短之后相同的两段，模型也分不开
            said = [example.label] if isinstance(example, LabelledText) else map(tuple, ids)
            identities = [numbers.setdefault(each, len(numbers)) for each in said]
            encoded.append(EncodedExample(ids, [[0] * len(each) for each in ids], (identities, self._targets(example))))
        return encoded

    def add_targets(
        self, encoded: list[EncodedExample], examples: Sequence[VectorExample], inference: InferenceConfig
    ) -> list[EncodedExample]:
        """Returns the examples with the teacher's vector of each text, or its margin for each negative."""
        if not self.teacher:
            return encoded
        learned = to_learn(examples)
        device = inference.device
        targets: list[list[Any]]
        if self._needs == "teacher":
            encoder = load_pipeline("embed", self.teacher, device=device)
            # 老师有自己的提示：各按各的训练方式读
            texts = [(encoder.prompts.get(role, ""), text) for each in learned for role, text in _roles(each)]
            vectors = iter(encoder([before + text for before, text in texts], prompt=""))
            targets = [[next(vectors) for _ in each.input_ids] for each in encoded]
        else:
            ranker = load_pipeline("rank", self.teacher, device=device)
            judged = [(each.query, text) for each in learned for text in (each.positive, *each.negatives)]
            scores = iter(ranker.scores(*map(list, zip(*judged, strict=True))).tolist())
            rows = [[next(scores) for _ in each.input_ids[1:]] for each in encoded]
            targets = [[first - score for score in others] for first, *others in rows]
        return [
            replace(example, label=(example.label[0], target)) for example, target in zip(encoded, targets, strict=True)
        ]

    def batches(self, encoded: Sequence[EncodedExample], size: int, draws: np.random.Generator) -> list[list[int]]:
        """Divides an epoch into batches that hold no positive twice, and of each class an even number of texts."""
        return deal(encoded, size, draws, self._needs)

    def batch(self, encoded: Sequence[EncodedExample]) -> VectorBatch:
        """Lays out queries, positives and negatives; of texts with classes, every two of a class are a pair."""
        return lay_out(encoded, self._needs)

    def predict(
        self,
        model: Backbone,
        tokenizer: Tokenizer,
        examples: Sequence[VectorExample],
        inference: InferenceConfig,
    ) -> list[NDArray[np.float32]]:
        """Returns the vectors [n, H] of the texts of each example, of length 1."""
        pipeline = Embed(model, tokenizer, inference, pooling=self.pooling or "mean")
        prompted = [self._texts(example) for example in examples]
        # 同一段文字在文件里可能出现许多次：每段只算一次
        rows = {text: number for number, text in enumerate(dict.fromkeys(text for texts in prompted for text in texts))}
        vectors = pipeline(list(rows))
        return [vectors[[rows[text] for text in texts]] for texts in prompted]

    def metrics(
        self, examples: Sequence[VectorExample], predictions: Sequence[NDArray[np.float32]]
    ) -> dict[str, float]:
        """Returns the figures of the kind of examples, the one that decides first."""
        return {name: found.estimate for name, found in score_vectors(examples, predictions).intervals.items()}

    def selection_score(self, metrics: dict[str, float]) -> float:
        """Returns the first metric: it is that of the kind of the dev file."""
        return next(iter(metrics.values()))

    def evaluate(self, examples: Sequence[VectorExample], predictions: Sequence[NDArray[np.float32]]) -> Evaluation:
        """Adds intervals, and the examples that are farthest off."""
        found = score_vectors(examples, predictions)
        wrong = [Mistake(*mistake) for mistake in found.mistakes]
        return Evaluation(self.metrics(examples, predictions), found.intervals, mistakes=worst(wrong))

    @staticmethod
    def records(pipeline: Embed, rows: Rows) -> Iterator[Record]:
        """Yields the vectors, as lists of numbers."""
        for row, vector in zip(rows, pipeline([row[0] for row in rows]).tolist(), strict=True):
            yield {"prediction": vector, "input": row}

    def _texts(self, example: VectorExample) -> list[str]:
        """Returns the texts of an example with their prompts."""
        prompts = {QUERY: self.query_prompt or "", PASSAGE: self.passage_prompt or ""}
        return [prompts[role] + text for role, text in _roles(example)]

    def _targets(self, example: VectorExample) -> list[float]:
        """Returns what the loss is to reach, on a scale from 0 to 1: the score of a pair, or its margins."""
        scale = self.high - self.low
        if isinstance(example, ScoredText):
            return [(example.score - self.low) / scale]
        if isinstance(example, RelatedTexts) and example.scores and self._needs == "margins":
            return [(example.scores[0] - score) / scale for score in example.scores[1:]]
        return []


def _roles(example: VectorExample) -> list[tuple[str, str]]:
    """Returns the texts of an example, each with whether it asks or answers; texts that are compared both ask."""
    if isinstance(example, RelatedTexts):
        return [(QUERY, example.query), (PASSAGE, example.positive), *((PASSAGE, text) for text in example.negatives)]
    if isinstance(example, ScoredText):
        return [(QUERY, example.text), (QUERY, example.pair or "")]
    return [(PASSAGE if isinstance(example, CorpusPassage) else QUERY, example.text)]
