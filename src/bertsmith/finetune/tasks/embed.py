"""The task of sentence vectors: texts that belong together get vectors that point the same way.

- one encoder reads query and text apart from each other (Reimers and Gurevych 2019, §3), so that the vectors of a
  million texts are computed once, whatever is asked later
- the columns of the training file decide the loss, those of the dev file the metric (`embed_kinds`)
- whatever shares a batch is a negative of the others, so a batch never holds two copies of a positive: pairs are dealt
  like cards. What else says the same as a positive is left out of the negatives by the loss
- the folder is one of `sentence-transformers`, with pooling, length and prompts
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import DataSource
from bertsmith.finetune.datasets.related import (
    RELATED,
    CorpusPassage,
    JudgedQuery,
    Positives,
    RelatedTexts,
    VectorExample,
    read_unlabelled,
)
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.embed_kinds import (
    VectorScores,
    loss_for,
    require_different,
    score_range,
    score_vectors,
    to_learn,
)
from bertsmith.finetune.tasks.task import (
    FEW,
    SAME_SCORES,
    CardText,
    EncodedExample,
    Evaluation,
    InputFields,
    Mistake,
    OutputsTask,
    Record,
    Rows,
    TaskSpec,
    alike,
    new_model,
    worst,
)
from bertsmith.inference import load_pipeline
from bertsmith.inference.embed import (
    READS,
    Embed,
    SentenceFolder,
    SimilarityFunction,
    StoredPooling,
    read_sentence_folder,
    write_sentence_folder,
)
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import Backbone, ModelConfig
from bertsmith.objectives.vectors import Matryoshka, Needs, VectorBatch, VectorObjective, vector_loss_named
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer

QUERY, PASSAGE = "query", "passage"
"""The names of the two prompts in a folder."""


@dataclass(frozen=True)
class EmbeddingOptions(Checked):
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
class EmbeddingTask(OutputsTask[VectorExample, "NDArray[np.float32]"]):
    """Vectors of texts that say how alike the texts are.

    Attributes:
        pooling: how a text becomes a vector; None, as for the prompts, until a run takes that of the model's folder.
        query_prompt: what is put before a query, or a text that is compared.
        passage_prompt: what is put before a text that answers a query.
        matryoshka: widths at which the first numbers of a vector are one, too.
        mini_batch_size: texts that are encoded at a time; 0 for all of a batch.
        teacher: folder of the model whose judgement is learned; empty for none.
        low: score that counts as 0; `high` is the one that counts as 1.
        unit_length: whether vectors are scaled to length 1 before they are compared.
        dims: how many numbers of a vector are used, the first ones; 0 for all. Learned from are all.
        weight: of the vectors beside words in a search, in [0, 1], as `bertsmith solve` chose it; None: not chosen.
    """

    loss_name: str = "info-nce"
    temperature: float = 0.05
    pooling: StoredPooling | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    matryoshka: tuple[int, ...] = ()
    mini_batch_size: int = option(0, min=0)
    teacher: str = ""
    low: float = 0.0
    high: float = 1.0
    similarity: SimilarityFunction = "cosine"
    unit_length: bool = True
    default_prompt: str = ""
    dims: int = 0
    weight: float | None = option(None, min=0.0, max=1.0)

    unasked: ClassVar = {"default_prompt": "", "dims": 0, "weight": None}
    has_folds: ClassVar[bool] = False
    obeys_folder: ClassVar[bool] = True
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
            ('(["first text", "second text"])',),
            (
                "from sentence_transformers import SentenceTransformer\n\n"
                'SentenceTransformer("FOLDER").encode(["first text", "second text"])',
            ),
        ),
        options=EmbeddingOptions,
        batch_size=64,
        is_explained=False,
    )

    def _check_together(self) -> None:
        self.objective  # noqa: B018 - 组不起来的选项要在训练之前就报

    @property
    def metric(self) -> str:
        """The metric of the kind that the loss learns from; a dev file of another kind has its own, see `evaluate`."""
        return "spearman" if self._needs == "scores" else "ndcg_at_10"

    def keys_of(self, example: VectorExample) -> tuple[Hashable, ...]:
        """Returns its query and its text: a batch of one and a test of the other would know each other's answers."""
        if isinstance(example, (CorpusPassage, JudgedQuery)):
            raise InputError(
                f"{example.at}queries and passages of a BEIR folder are not divided; name another file of its qrels"
                " with --dev"
            )
        return (*super().keys_of(example), *(example.known_by if isinstance(example, RelatedTexts) else ()))

    def classes_of(self, example: VectorExample) -> tuple[Hashable, ...]:
        """Returns the class of a labelled text."""
        return (example.label,) if isinstance(example, LabelledText) else ()

    @property
    def _needs(self) -> Needs:
        return vector_loss_named(self.loss_name).needs

    @classmethod
    def learned_from(cls, train: Sequence[VectorExample], options: EmbeddingOptions) -> EmbeddingTask:
        """Finds out what a training file is made of, and takes the loss for it."""
        if options.positives is not None:
            raise ConfigError("positives are found in text without labels; give --unlabelled, or leave --positives out")
        examples = to_learn(train)
        name = loss_for(examples, options.loss, options.teacher)
        low, high = score_range(examples)
        require_different(examples)
        chosen = (options.temperature, options.pooling, options.query_prompt, options.passage_prompt)
        return cls(
            name, *chosen, options.matryoshka or (), options.mini_batch_size, options.teacher or "", low=low, high=high
        )

    @classmethod
    def from_documents(
        cls, folder: DataSource, options: dict[str, Any], encoding: str, seed: int
    ) -> tuple[list[Any], list[Any]]:
        """Returns pairs of what stands together in documents; see `read_unlabelled`."""
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
        left_open = {
            "pooling": says.pooling,
            "query_prompt": says.prompt_of("query"),
            "passage_prompt": says.prompt_of("passage"),
        }
        taken: dict[str, Any] = {name: value for name, value in left_open.items() if getattr(self, name) is None}
        default = says.prompts.get(says.default_prompt, "")
        # 用户自己选了提示词或宽度的，文件夹里的默认就不再作数
        if {"query_prompt", "passage_prompt"} <= taken.keys():
            taken["default_prompt"] = default
        return replace(self, **taken, dims=0 if self.matryoshka else says.dims)

    def as_in(self, folder: Path) -> EmbeddingTask:
        """Returns the task with everything that a folder says of its vectors, to score them as they are used."""
        says = read_sentence_folder(folder)
        return replace(self.starting_from(folder), similarity=says.similarity, unit_length=says.normalize)

    def build(self, folder: Path, settings: FineTuningSettings) -> Backbone:
        """Returns the encoder of a folder."""
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
        named = {QUERY: self.query_prompt, PASSAGE: self.passage_prompt, "document": self.passage_prompt}
        prompts = {name: text for name, text in named.items() if text}
        default = next((name for name, text in prompts.items() if text == self.default_prompt), "default")
        if self.default_prompt:
            prompts[default] = self.default_prompt
        says = SentenceFolder(
            pooling=self.pooling or "mean",
            max_length=max_length,
            normalize=True,
            prompts=prompts,
            default_prompt=default if self.default_prompt else "",
            dims=self.dims,
        )
        write_sentence_folder(folder, says, config.hidden_size)

    def blind_to(self, examples: Sequence[VectorExample]) -> list[str]:
        """Says where there is nothing to correlate with."""
        return alike((example.score for example in examples if isinstance(example, ScoredText)), SAME_SCORES)

    def check_dev(self, dev: Sequence[VectorExample]) -> None:
        """Makes sure besides that there are two classes, or two texts to find."""
        super().check_dev(dev)
        require_different(to_learn(dev), "the dev file")

    @staticmethod
    def sequences_of(example: VectorExample) -> list[tuple[str, ...]]:
        """Returns every text alone."""
        return [(text,) for text in example.texts]

    def cautions(self, examples: Sequence[VectorExample]) -> list[str]:
        """Says besides where there are so few texts that a right one is found by chance."""
        texts = {example.positive for example in examples if isinstance(example, RelatedTexts)}
        texts |= {example.id for example in examples if isinstance(example, CorpusPassage)}
        said = f"there are {len(texts)} texts to find only: chance alone finds the right one among the first ten"
        return [*super().cautions(examples), *([said] if 0 < len(texts) <= FEW else [])]

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
            # 差距要在 [0, 1] 的分数之间取：不经 sigmoid 的排序模型给出的是 logit
            ranker.activation = "Sigmoid"
            judged = [(each.query, text) for each in learned for text in (each.positive, *each.negatives)]
            scores = iter(ranker.scores(*map(list, zip(*judged, strict=True))).tolist())
            rows = [[next(scores) for _ in each.input_ids[1:]] for each in encoded]
            targets = [[first - score for score in others] for first, *others in rows]
        return [
            replace(example, label=(example.label[0], target)) for example, target in zip(encoded, targets, strict=True)
        ]

    def batches(self, encoded: Sequence[EncodedExample], size: int, draws: np.random.Generator) -> list[list[int]]:
        """Divides an epoch into batches with no positive twice; of a class an even number, an odd text is left out."""
        if self._needs == "scores":
            return super().batches(encoded, size, draws)
        groups: dict[int, list[int]] = {}
        is_classes = len(encoded[0].input_ids) == 1
        for number in draws.permutation(len(encoded)).tolist():
            identities, _ = encoded[number].label
            # 一条文本按类分组，一对按正例分组
            groups.setdefault(identities[0] if is_classes else identities[1], []).append(number)
        if is_classes:
            # 一类里两两成对：落单的一条这一轮不学，下一轮轮到别人
            pairs = [group[n : n + 2] for group in groups.values() for n in range(0, len(group) - 1, 2)]
            count = -(-len(pairs) // max(1, size // 2))
            dealt = [[number for pair in pairs[first::count] for number in pair] for first in range(count)]
        else:
            # 像发牌一样轮流发给各批：同一个正例的几份挨在一起，必然落到不同的批
            cards = [number for group in groups.values() for number in group]
            count = max(-(-len(cards) // size), *map(len, groups.values()))
            dealt = [cards[first::count] for first in range(count)]
        return [dealt[number] for number in draws.permutation(count).tolist()]

    def batch(self, encoded: Sequence[EncodedExample]) -> VectorBatch:
        """Lays out queries, positives and negatives; of texts with classes, every two of a class are a pair."""
        if len(encoded[0].input_ids) == 1:
            encoded = _paired(encoded)
        columns = [[example.input_ids[side] for example in encoded] for side in (0, 1)]
        numbers = [[example.label[0][side] for example in encoded] for side in (0, 1)]
        negatives = [ids for example in encoded for ids in example.input_ids[2:]]
        owners = [number for number, example in enumerate(encoded) for _ in example.input_ids[2:]]
        targets = [target for example in encoded for target in example.label[1]]
        if self._needs == "teacher":
            sides = [[example.label[1][side] for example in encoded] for side in (0, 1)]
            targets = [*sides[0], *sides[1], *(each for example in encoded for each in example.label[1][2:])]
        return VectorBatch.of(
            [*columns[0], *columns[1], *negatives],
            [*numbers[0], *numbers[1], *(number for example in encoded for number in example.label[0][2:])],
            owners,
            torch.from_numpy(np.array(targets, dtype=np.float32)),
        )

    def pipeline(self, model: Backbone, tokenizer: Tokenizer, inference: InferenceConfig) -> Embed:
        """Returns the encoder; the prompts are put before the texts here."""
        return Embed(model, tokenizer, inference, pooling=self.pooling or "mean", dims=self.dims)

    def predicted(self, pipeline: Embed, examples: Sequence[VectorExample]) -> list[NDArray[np.float32]]:
        """Returns the vectors [n, H] of the texts of each example, of length 1 where they are compared so."""
        prompted = [self._texts(example) for example in examples]
        # 同一段文字在文件里可能出现许多次：每段只算一次
        rows = {text: number for number, text in enumerate(dict.fromkeys(text for texts in prompted for text in texts))}
        # 提示已经在文本里：文件夹的默认提示不再加一次
        vectors = pipeline(list(rows), normalize=self.unit_length or self.similarity == "cosine", prompt="")
        return [vectors[[rows[text] for text in texts]] for texts in prompted]

    def outputs(self, pipeline: Embed, examples: Sequence[VectorExample]) -> torch.Tensor:
        """Returns the vectors [R, H] of the R texts of all examples, in their order."""
        return torch.from_numpy(np.concatenate(self.predicted(pipeline, examples)))

    def told(
        self, _pipeline: Any, outputs: torch.Tensor, examples: Sequence[VectorExample]
    ) -> list[NDArray[np.float32]]:
        """Returns the vectors [n, H] of the texts of each example."""
        return np.split(outputs.numpy(), np.cumsum([len(_roles(example)) for example in examples])[:-1])

    def compared(self, examples: Sequence[VectorExample], predictions: Sequence[NDArray[np.float32]]) -> VectorScores:
        """Returns how well vectors compare texts."""
        return score_vectors(examples, predictions, self.similarity)

    def metrics(
        self, examples: Sequence[VectorExample], predictions: Sequence[NDArray[np.float32]]
    ) -> dict[str, float]:
        """Returns the figures of the kind of examples, the one that decides first."""
        return self.compared(examples, predictions).metrics

    def selection_score(self, metrics: dict[str, float]) -> float:
        """Returns the first metric: it is that of the kind of the dev file."""
        return next(iter(metrics.values()))

    def evaluate(self, examples: Sequence[VectorExample], predictions: Sequence[NDArray[np.float32]]) -> Evaluation:
        """Adds intervals, and the examples that are farthest off."""
        found = self.compared(examples, predictions)
        wrong = [Mistake(*mistake) for mistake in found.mistakes]
        return Evaluation(found.metrics, found.intervals, mistakes=worst(wrong))

    @classmethod
    def records(cls, pipeline: Embed, rows: Rows) -> Iterator[Record]:
        """Yields the vectors, as lists of numbers."""
        for row, vector in zip(rows, pipeline([row[0] for row in rows]).tolist(), strict=True):
            yield {"prediction": vector, "input": row}

    def _texts(self, example: VectorExample) -> list[str]:
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


def _paired(encoded: Sequence[EncodedExample]) -> list[EncodedExample]:
    """Returns every two texts of a class as one example."""
    waiting: dict[int, EncodedExample] = {}
    pairs = []
    for example in encoded:
        label = example.label[0][0]
        if label not in waiting:
            waiting[label] = example
            continue
        other = waiting.pop(label)
        pairs.append(
            EncodedExample(
                other.input_ids + example.input_ids,
                other.token_type_ids + example.token_type_ids,
                ([label] * 2, other.label[1] + example.label[1]),
            )
        )
    return pairs
