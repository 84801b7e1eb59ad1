"""What a task is: everything in which the shapes of fine-tuning differ (Devlin et al. 2019, figure 4).

What a task *is*, it declares once, in its `TaskSpec`: command line, readers, predictions, model card and server read it
from there. What it *does* is in `Task`; the run (`run.py`) knows nothing else about it. A task is a frozen dataclass
whose fields are what the training file taught and `task.json` keeps.
"""

from __future__ import annotations

import math
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError, InputError
from bertsmith.files import from_json, to_json
from bertsmith.finetune.datasets import DataSource, Reader
from bertsmith.finetune.metrics import Interval, in_digits
from bertsmith.finetune.metrics.calibration import Calibration, ClassThreshold
from bertsmith.finetune.metrics.classification import ClassScores
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.inference.embed import length_limit
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.pipeline import Pipeline
from bertsmith.model import ModelConfig, PretrainedModel
from bertsmith.model.folder import read_architecture
from bertsmith.objectives import LabelledBatch, LossOutput
from bertsmith.seeding import torch_seed
from bertsmith.settings import Checked
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.trainer import Batch

Bilingual = tuple[str, str]
"""The same in English and in Chinese."""


@dataclass(frozen=True)
class NoOptions:
    """The options of a task that has none."""

    panel: ClassVar[str] = "Options of the task"


@dataclass(frozen=True)
class InputFields:
    """What the texts of one input of the model are called: the first, a second, and any number of further `lines`.

    A line of a file of inputs has `least` to `most` fields; with `pairs` one or two, as the model was trained.
    """

    first: Bilingual
    second: Bilingual | None = None
    lines: Bilingual | None = None
    least: int = 1
    most: int = 1
    pairs: bool = False


@dataclass(frozen=True)
class CardText:
    """What the model card says about a task.

    Attributes:
        does: completes "This model …".
        ours: the arguments of a call of the pipeline; of a task over texts or pairs, the second form is for pairs.
        theirs: a call with the field's libraries, `FOLDER` for the model, in the same forms.
    """

    hub_task: str
    does: str
    limit: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


def auto_model(name: str) -> tuple[str]:
    """Returns for a card how the library `transformers` loads a folder whose task has no pipeline there."""
    return (f'from transformers import {name}\n\n{name}.from_pretrained("FOLDER")',)


WINDOWS_LIMIT = (
    "Longer inputs are read in overlapping windows; what is farther apart than a window is never seen together."
)


FRESH_RATE = 1e-3
"""Suits adapters, and layers over features that stay as they are."""

_RATE_FACTORS: tuple[tuple[float, float], ...] = ((128, 6.0), (256, 4.0), (512, 2.0), (math.inf, 1.0))
"""Greatest hidden size → how many times the rate of base models suits."""

# 归一化在前的小模型经得起大步；归一化在后的（BERT 原来的块）会被带坏
_FAMILY_RATE_FACTORS = {"modernbert": ((256, 12.0), *_RATE_FACTORS[2:])}
"""Family → the same, where it differs (docs/notes/measurements.md, "The rate of small models")."""


@dataclass(frozen=True)
class TaskSpec:
    """The declarations of a task.

    Attributes:
        name: the word on the command line and in `task.json`, such as `classify`; also the name of its pipeline.
        pipeline: predicts with a trained model; says which fields of the task it is given, and at which endpoint.
        options: a dataclass of options of `bertsmith finetune`, which `Task.learned_from` receives.
        learning_rate: a peak to begin with; the paper's unless the task trains few and fresh weights.
        predicts_number: whether a mistake is a distance rather than a wrong choice.
        is_explained: whether its scores can be attributed to words.
        has_baselines: whether simpler models can be trained for comparison, see `baselines`.
    """

    name: str
    title: Bilingual
    architecture: type[PretrainedModel]
    reader: Reader[Any]
    pipeline: type[Pipeline]
    inputs: InputFields
    card: CardText
    options: type = NoOptions
    learning_rate: float = 5e-5
    batch_size: int = 16
    predicts_number: bool = False
    is_explained: bool = True
    has_baselines: bool = False

    def usual_rate(self, adapter: str | None, *, hidden_size: int, family: str = "bert") -> float:
        """Returns a first peak learning rate; small models do best at high ones, to 3e-4 (Turc et al. 2019, §4.1)."""
        # 适配器和新写的层本来就用大学习率：与模型大小无关
        if adapter or self.learning_rate >= FRESH_RATE:
            return max(FRESH_RATE, self.learning_rate)
        factors = _FAMILY_RATE_FACTORS.get(family, _RATE_FACTORS)
        return self.learning_rate * next(factor for width, factor in factors if hidden_size <= width)


SHOWN_MISTAKES = 20
"""How many of the worst mistakes are kept."""

ModelT = TypeVar("ModelT", bound=PretrainedModel)
ExampleT = TypeVar("ExampleT")
PredictionT = TypeVar("PredictionT")
TaskT = TypeVar("TaskT", bound="Task[Any, Any]")
OutputsT = TypeVar("OutputsT", bound="OutputsTask[Any, Any]")
Record = dict[str, Any]
"""A prediction for people and for JSON: `prediction`, `probability` where there is one, details, and the `input`."""
Rows = Sequence[tuple[Any, ...]]
"""Inputs, each as its fields: texts, or of a tagger one tuple of words."""


@dataclass(frozen=True)
class EncodedExample:
    """What stays in one batch: one sequence, or all choices of a question, with a label for the task's `batch`."""

    input_ids: list[list[int]]
    token_type_ids: list[list[int]]
    label: Any
    weight: float = 1.0


@dataclass(frozen=True)
class Mistake:
    """A prediction that is wrong, or far off; `confidence` in [0, 1] or, of a predicted number, how far off it is."""

    text: str
    expected: str
    predicted: str
    confidence: float


@dataclass(frozen=True)
class Evaluation:
    """How a model does on labelled examples.

    Attributes:
        metrics: name → value, the task's metric first.
        intervals: name → 95 % bootstrap interval, for those metrics that have one.
        classes: label → precision, recall, F1 and support, where the task has labels.
        confusion: `[K][K]` counts, true label by predicted one, in the order of `classes`; or None, also for very many.
        mistakes: the worst ones, worst first.
        thresholds: label → what a threshold of its own does for it, where the task has some.
        seen: how many of the examples stand in the training file as well, with the same texts.
        unseen: the metrics without these, where there are some of either kind.
        cautions: what the examples are too few, too many or too alike to tell, as the ends of "on this file, …".
    """

    metrics: dict[str, float]
    intervals: dict[str, Interval] = field(default_factory=dict)
    classes: dict[str, ClassScores] = field(default_factory=dict)
    confusion: list[list[int]] | None = None
    mistakes: list[Mistake] = field(default_factory=list)
    calibration: Calibration | None = None
    thresholds: dict[str, ClassThreshold] = field(default_factory=dict)
    seen: int = 0
    unseen: dict[str, float] = field(default_factory=dict)
    cautions: list[str] = field(default_factory=list)

    @property
    def remarks(self) -> list[str]:
        """What stands beside the figures, for people."""
        if not self.seen:
            return self.cautions
        metric = next(iter(self.unseen), "")
        without = f"without them {metric} is {in_digits(self.unseen[metric])}" if metric else "none is new"
        return [f"{self.seen:,} examples stand in the training file as well; {without}", *self.cautions]


FEW = 10
"""Fewer examples cannot carry a figure."""
SAME_SCORES = "all scores are the same: a correlation is of nothing"


class Task(Checked, ABC, Generic[ExampleT, PredictionT]):
    """One shape of fine-tuning; what has a body here suits most tasks, what is abstract each of them writes."""

    spec: ClassVar[TaskSpec]
    problem_type: ClassVar[str | None] = None
    """Field of `config.json`: what the outputs mean, where they are classes, labels or a number."""
    unasked: ClassVar[Mapping[str, Any]] = {}
    """Fields that `task.json` has only where they are something else than this."""
    has_folds: ClassVar[bool] = True
    """Whether predictions for the parts of a file, by several models, can be scored together."""
    least_tuned: ClassVar[int] = 100
    """Examples below which an encoder with a fresh head does no better than other methods; `solve` leaves it out."""
    obeys_folder: ClassVar[bool] = False
    """Whether texts are read as the folder that a run starts from says: how much of them, and after which prompts."""

    @property
    @abstractmethod
    def metric(self) -> str:
        """The metric by which the best epoch is chosen; larger is better."""

    @classmethod
    def of(cls: type[TaskT], train: Sequence[Any], **options: Any) -> TaskT:
        """Returns the task that a training file is for."""
        known = [one.name for one in fields(cls.spec.options)]
        for name in options:
            if name not in known:
                raise ConfigError(f"--{name.replace('_', '-')} is not for {cls.spec.name}; leave it out")
        return cls.learned_from(train, cls.spec.options(**options))

    @classmethod
    @abstractmethod
    def learned_from(cls: type[TaskT], train: Sequence[Any], options: Any) -> TaskT:
        """Returns the task with what it takes from a training file, such as its labels, and a `spec.options`."""

    @classmethod
    def from_documents(
        cls, _folder: DataSource, _options: dict[str, Any], _encoding: str, _seed: int
    ) -> tuple[list[Any], list[Any]]:
        """Returns training and dev examples that text without labels gives; for tasks that can learn so."""
        raise ConfigError(f"{cls.spec.name} learns from labels; give --train and --dev instead of --unlabelled")

    @property
    def name(self) -> str:
        """The word on the command line, such as `classify`."""
        return self.spec.name

    def describe(self) -> dict[str, Any]:
        """Returns what else than the weights makes the model, as JSON: labels, thresholds."""
        told = to_json(self).items()
        return {name: value for name, value in told if name not in self.unasked or value != self.unasked[name]}

    @classmethod
    def from_description(cls: type[TaskT], values: dict[str, Any]) -> TaskT:
        """Reads what `describe` returned, alone or in `task.json`.

        Raises:
            ValueError: a value is missing, unknown or of another kind.
            ConfigError: one is out of range.
        """
        beside = ("task", "max_length")
        made: TaskT = from_json(cls, {name: value for name, value in values.items() if name not in beside})
        return made

    def config_fields(self) -> dict[str, Any]:
        """Returns the fields of `config.json` that the task sets."""
        # 起始文件夹若是别的任务的模型，它的标签名不能留下：别的库按标签数建头，会装不进去
        return {"id2label": dict(enumerate(getattr(self, "labels", ()))), "problem_type": self.problem_type}

    def build(self, folder: Path, settings: FineTuningSettings) -> PretrainedModel:
        """Returns a model to train: that of a folder whose head is kept, else its encoder under a fresh head."""
        return new_model(self.spec.architecture, folder, settings, **self.config_fields())

    def fresh_because(self, folder: Path, settings: FineTuningSettings) -> str:
        """Returns why the head starts afresh, for people; empty where the folder's is kept."""
        if settings.from_random:
            return "the weights are random"
        said = self.config_fields()
        return fresh_because(self.spec.architecture, folder, said["id2label"], said["problem_type"])

    def load(self, folder: Path) -> PretrainedModel:
        """Returns the model that a run of this task saved."""
        return self.spec.architecture.from_pretrained(folder)

    def starting_from(self: TaskT, _folder: Path) -> TaskT:
        """Returns the task with what it takes from the folder that a run starts from."""
        return self

    @classmethod
    def length_limit(cls, folder: str | Path, asked: int = 0) -> int:
        """Returns the most ids of a sequence, in a run from a folder; `asked` is what the user says, or 0."""
        config = ModelConfig.load(folder)
        # 别的任务读模型放得下的全部：文件夹说的长度是为它原来的用途
        return length_limit(folder, config, asked or (0 if cls.obeys_folder else config.position_limit))

    def as_in(self: TaskT, folder: Path) -> TaskT:
        """Returns the task as a folder without `task.json` is scored."""
        return self.starting_from(folder)

    def add_files(self, folder: Path, config: ModelConfig, max_length: int) -> None:
        """Adds to a saved model or adapter what other tools read of the task; here nothing."""

    def blind_to(self, _examples: Sequence[ExampleT]) -> list[str]:
        """Returns why the metric cannot tell good models from bad ones on a file; here nothing."""
        return []

    def check_dev(self, dev: Sequence[ExampleT]) -> None:
        """Makes sure that the metric can tell good epochs from bad ones on the dev file."""
        for reason in self.blind_to(dev):
            raise InputError(f"the dev file: {reason}; no epoch can be chosen by {self.metric}")

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, examples: Sequence[ExampleT], max_length: int) -> list[EncodedExample]:
        """Turns examples into sequences and labels; one example may give several, or none."""

    def rows(self, examples: Sequence[ExampleT]) -> list[int]:
        """Returns how many rows of outputs each example has."""
        return [1] * len(examples)

    def add_targets(
        self, encoded: list[EncodedExample], _examples: Sequence[ExampleT], _inference: InferenceConfig
    ) -> list[EncodedExample]:
        """Returns the encoded training examples with what another model says of them; here as they are."""
        return encoded

    def batches(self, encoded: Sequence[EncodedExample], size: int, draws: np.random.Generator) -> list[list[int]]:
        """Divides the numbers of an epoch's examples into batches of at most `size`, as many in every epoch."""
        order = draws.permutation(len(encoded)).tolist()
        return [order[first : first + size] for first in range(0, len(order), size)]

    def batch(self, encoded: Sequence[EncodedExample]) -> Batch:
        """Lays N encoded examples end to end; labels [N, ...], of the dtype that torch gives such numbers."""
        labels = torch.tensor([example.label for example in encoded])
        return LabelledBatch(tokens_of(encoded), labels, weights_of([example.weight for example in encoded]))

    @property
    @abstractmethod
    def objective(self) -> Callable[[Any, Any], LossOutput]:
        """The loss of a model on what `batch` gives; a `LabelledObjective` can be learned from a teacher, too."""

    def from_teacher(self, teacher: Task[Any, Any], rows: Tensor) -> Tensor:
        """Returns a teacher's rows [R, C] as the objective lays them out: here the labels in the same order."""
        own, other = (getattr(task, "labels", ()) for task in (self, teacher))
        if set(own) != set(other):
            known = ", ".join(map(str, other[:8]))
            raise ConfigError(f"the teacher knows other labels ({known}); fine-tune it on the same ones")
        return rows[:, [other.index(label) for label in own]] if own else rows

    def example_from(self, record: Record) -> ExampleT:  # noqa: ARG002
        """Returns a text without a label as an example, labelled as a teacher's `records` say."""
        raise ConfigError(f"{self.name} does not learn from text without labels; leave --teacher-text out")

    def group_of(self, example: Any) -> Hashable:
        """Returns what examples have in common that must not be divided between training and test: here their texts."""
        return self.texts_of(example)

    @staticmethod
    def texts_of(example: Any) -> tuple[str, ...]:
        """Returns the texts of an example."""
        texts: tuple[str, ...] = example.texts
        return texts

    @staticmethod
    def sequences_of(example: Any) -> list[tuple[str, ...]]:
        """Returns the texts of each sequence that an example gives the model; here of one, of all its texts."""
        return [example.texts]

    def keys_of(self, example: Any) -> tuple[Hashable, ...]:
        """Returns what examples must not share that are divided between training and test."""
        return (self.group_of(example), *((("group", example.group),) if example.group else ()))

    def classes_of(self, example: Any) -> tuple[Hashable, ...]:  # noqa: ARG002
        """Returns the classes that are spread evenly over the parts of a file; here none."""
        return ()

    def on_scale(self, _model: PretrainedModel) -> AbstractContextManager[None]:
        """Gives the model, inside the block, the scale of the labels; for tasks that are learned on another one."""
        return nullcontext()

    def predict(
        self, model: Any, tokenizer: Tokenizer, examples: Sequence[ExampleT], inference: InferenceConfig
    ) -> list[PredictionT]:
        """Predicts every example, whatever its label."""
        return self.predicted(self.pipeline(model, tokenizer, inference), examples)

    def pipeline(self, model: Any, tokenizer: Tokenizer, inference: InferenceConfig) -> Any:
        """Returns the pipeline over a model, told what `task.json` will tell it."""
        # 评分用的就是以后预测用的同一条流水线、同样的设置：报告的分数才是用户得到的
        known = (one.name for one in fields(self.spec.pipeline.settings))
        told = {name: getattr(self, name) for name in known if hasattr(self, name)}
        return self.spec.pipeline(model, tokenizer, inference, **told)

    def predicted(self, pipeline: Any, examples: Sequence[ExampleT]) -> list[PredictionT]:
        """Returns what the pipeline says of each example; here of its only text."""
        return list(pipeline([text for example in examples for text in self.texts_of(example)]))

    def with_best_threshold(self: TaskT, _examples: Sequence[ExampleT], _predictions: Sequence[PredictionT]) -> TaskT:
        """Returns the task with the threshold that does best on dev predictions; itself where it has none."""
        return self

    def calibrated(self: TaskT, _examples: Sequence[ExampleT], _predictions: Sequence[PredictionT]) -> TaskT:
        """Returns the task with the temperature and the thresholds of classes that dev predictions ask for."""
        return self

    def cautions(self, examples: Sequence[ExampleT]) -> list[str]:
        """Says what the examples of a file are too few or too alike to tell."""
        few = f"there are {len(examples)} examples only: a figure on so few says little"
        return [*([few] if len(examples) < FEW else []), *self.blind_to(examples)]

    def scored(
        self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT], learned: Collection[Hashable] = ()
    ) -> Evaluation:
        """Evaluates, and says besides what the file cannot tell."""
        found = replace(self.evaluate(examples, predictions), cautions=self.cautions(examples))
        new = [number for number, example in enumerate(examples) if fingerprint_of(example) not in learned]
        if len(new) == len(examples):
            return found
        unseen: dict[str, float] = {}
        # 有的子集评不了分，例如一条相关文本也不剩
        with suppress(InputError):
            if new:
                unseen = self.metrics([examples[number] for number in new], [predictions[number] for number in new])
        return replace(found, seen=len(examples) - len(new), unseen=unseen)

    @abstractmethod
    def metrics(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> dict[str, float]:
        """Scores predictions; the task's metric comes first."""

    def selection_score(self, metrics: dict[str, float]) -> float:
        """Returns what epochs and runs are compared by on dev; larger is better."""
        return metrics[self.metric]

    def weighed_score(
        self, _examples: Sequence[ExampleT], _predictions: Sequence[PredictionT], _weights: Sequence[float]
    ) -> float:
        """Returns `selection_score` where each example counts by its weight; most tasks raise `ConfigError`."""
        raise ConfigError(f"the examples of {self.name} have no weights; leave them out")

    @abstractmethod
    def evaluate(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> Evaluation:
        """Scores predictions with all details; its metrics are those of `metrics`."""

    @classmethod
    @abstractmethod
    def records(cls, pipeline: Any, rows: Rows) -> Iterator[Record]:
        """Yields a record for each input, by a `spec.pipeline`; each has as many fields as `spec.inputs` says."""


def alike(values: Iterable[Hashable], caution: str) -> list[str]:
    """Returns a caution where all values of a file are the same; `{!r}` in it stands for that value."""
    different = set(values)
    return [caution.format(*different)] if len(different) == 1 else []


class OutputsTask(Task[ExampleT, PredictionT]):
    """A task whose predictions are told from one array of numbers, which can be kept."""

    @abstractmethod
    def outputs(self, pipeline: Any, examples: Sequence[ExampleT]) -> Tensor:
        """Returns the outputs [R, K] of a pipeline for examples."""

    @abstractmethod
    def told(self, pipeline: Any, outputs: Tensor, examples: Sequence[ExampleT]) -> list[PredictionT]:
        """Returns what outputs for examples say, decided as the task has it."""

    def decided(self: OutputsT, pipeline: Any, outputs: Tensor, examples: Sequence[ExampleT]) -> OutputsT:
        """Returns the task with the threshold that does best on outputs for dev; itself where it has none."""
        return self.with_best_threshold(examples, self.told(pipeline, outputs, examples))


class AdditiveTask(OutputsTask[ExampleT, PredictionT]):
    """A task whose outputs are rows of log odds or numbers, so that those of two models can be added up."""

    @property
    def problem(self) -> str:
        """What a row of outputs means: one of `PROBLEM_TYPES`; of a word with one tag of several `SINGLE`."""
        return str(self.config_fields()["problem_type"] or _SINGLE)

    @abstractmethod
    def targets(self, examples: Sequence[ExampleT]) -> Sequence[Any]:
        """Returns what the loss compares each row of outputs with."""

    @abstractmethod
    def shown(self, examples: Sequence[ExampleT]) -> list[tuple[str, str]]:
        """Returns for each row of outputs, or each example, what was read, and what is true, for people."""

    def said(self, pipeline: Any, outputs: Tensor) -> list[str]:
        """Returns what rows of outputs say, each by itself, for people; here the likeliest label."""
        return [pipeline.labels[place] for place in outputs.argmax(-1).tolist()]

    def apart(
        self,
        pipeline: Any,
        examples: Sequence[ExampleT],
        outputs: tuple[Tensor, Tensor],
        weights: tuple[float, float],
        count: int,
    ) -> list[tuple[str, ...]]:
        """Returns at most `count` places where two parts differ most: what was read, what is true, what each says.

        `outputs` [R, K] are those of the parts, `weights` what the answer multiplies them by.
        """
        apart = weights[0] * outputs[0] - weights[1] * outputs[1]
        # 各类的得分同加一个数不改变概率：先减去平均再比
        if self.problem == _SINGLE:
            apart = apart - apart.mean(1, keepdim=True)
        places, shown = apart.abs().amax(1).argsort(descending=True)[:count], self.shown(examples)
        said = zip(*(self.said(pipeline, one[places]) for one in outputs), strict=True)
        return [(*shown[place], *both) for place, both in zip(places.tolist(), said, strict=True)]


class WordsTask(AdditiveTask[ExampleT, PredictionT]):
    """A task each of whose rows of outputs is of a text or a pair, of which `Words` gives one as well."""

    @abstractmethod
    def columns(self, examples: Sequence[ExampleT]) -> tuple[list[str], list[str] | None]:
        """Returns the text of each row, and the second text of each where there are pairs."""

    def encode(self, tokenizer: Tokenizer, examples: Sequence[ExampleT], max_length: int) -> list[EncodedExample]:
        """Returns one sequence `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` for each row, with its target."""
        encoded = tokenizer(*self.columns(examples), max_length=max_length)
        rows = zip(encoded["input_ids"], encoded["token_type_ids"], self.targets(examples), strict=True)
        return [EncodedExample([ids], [types], target) for ids, types, target in rows]

    def outputs(self, pipeline: Any, examples: Sequence[ExampleT]) -> Tensor:
        """Returns [R, K]."""
        outputs: Tensor = pipeline.logits(*self.columns(examples))
        return outputs

    def predicted(self, pipeline: Any, examples: Sequence[ExampleT]) -> list[PredictionT]:
        """Returns what the pipeline says of each example."""
        return self.told(pipeline, self.outputs(pipeline, examples), examples)


def new_model(architecture: type[ModelT], folder: Path, settings: FineTuningSettings, **changes: Any) -> ModelT:
    """Returns the model of a folder, with its head where that is for the same labels, else under fresh heads."""
    # 新的头由种子单独决定：多种子的比较里，它和数据的次序都随种子变，而与别处用掉多少随机数无关
    torch.manual_seed(torch_seed(settings.seed, "finetune/new weights"))
    if settings.dropout is not None:
        changes |= dict.fromkeys(ModelConfig.load(folder).dropouts(), settings.dropout)
    if settings.from_random:
        return architecture(ModelConfig.load(folder).changed(**changes))
    labels = changes.get("id2label") or {}
    if fresh_because(architecture, folder, labels, changes.get("problem_type")):
        return architecture.from_pretrained(folder, new_heads=True, **changes)
    # 同样的标签：接着学，而不是把学会的头悄悄丢掉
    known = list(ModelConfig.load(folder).id2label.values())
    model = architecture.from_pretrained(folder, **{name: one for name, one in changes.items() if name != "id2label"})
    if labels:
        if len(labels) > 1:
            order, last = [known.index(label) for label in labels.values()], last_layer(model)
            with torch.no_grad():
                for parameter in (last.weight, last.bias):
                    parameter.copy_(parameter[order])
        model.set_config(model.config.changed(id2label=labels))
    return model


def last_layer(model: Any) -> Any:
    """Returns the layer of a model's head that gives the outputs."""
    return model.classifier.get_submodule(model.classifier.output)


def fresh_because(
    architecture: type[PretrainedModel], folder: Path, labels: Mapping[int, str], problem: str | None
) -> str:
    """Returns why a folder's head cannot be learned on for a task; empty where it can."""
    config = ModelConfig.load(folder)
    known, own_heads = config.id2label, set(architecture.heads) - {"pooler"}
    if not own_heads or read_architecture(folder) != config.family.name + architecture.suffix:
        return "there is none for this task in the folder"
    if not labels:
        return ""
    if len(known) == len(labels) == 1:
        # 一个输出的头：数与相关度的尺度不同，不能互相接着学
        return "" if config.problem_type == problem else f"{LOST} is for another task"
    if len(labels) > 1 and (config.problem_type or _SINGLE) != (problem or _SINGLE):
        return f"{LOST} is for another task"
    if set(known.values()) != set(labels.values()):
        return f"{LOST} has other labels ({', '.join(map(str, list(known.values())[:8]))})"
    return ""


_SINGLE = "single_label_classification"
LOST = "the folder's"
"""How the reason begins where a head that was learned is thrown away."""


def fingerprints(examples: Iterable[Any]) -> set[Hashable]:
    """Returns what examples of another file are known by; those that may stand in both are left out."""
    return {fingerprint_of(example) for example in examples if example.known_by}


def fingerprint_of(example: Any) -> Hashable:
    """Returns what two examples have in common whose texts are the same but for case, width and white space."""
    texts = (" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in example.known_by)
    return (type(example).__name__, *texts)


def leaks(train: Iterable[Any], others: Mapping[str, Sequence[Any]]) -> list[str]:
    """Says for each other file how many of its examples are learned from, too: their score says nothing of new text."""
    learned, said = fingerprints(train), []
    for name, examples in others.items():
        if count := sum(fingerprint_of(one) in learned for one in examples):
            said.append(f"{count:,} of {len(examples):,} examples of {name} stand in the training file as well")
    return said


def tokens_of(encoded: Sequence[EncodedExample]) -> RaggedBatch:
    """Lays the sequences of encoded examples end to end."""
    return RaggedBatch.from_sequences(
        [ids for example in encoded for ids in example.input_ids],
        [types for example in encoded for types in example.token_type_ids],
    )


def weights_of(weights: Sequence[float]) -> Tensor | None:
    """Returns weights as a tensor; None where all are 1."""
    return None if all(weight == 1 for weight in weights) else torch.tensor(weights)


def worst(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """Returns the surest of the wrong predictions, surest first; of numbers, those that are farthest off."""
    return sorted(mistakes, key=lambda mistake: -mistake.confidence)[:SHOWN_MISTAKES]
