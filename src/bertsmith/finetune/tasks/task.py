"""What a task is: everything in which the shapes of fine-tuning differ (Devlin et al. 2019, figure 4).

A task says which model it trains, how examples become sequences and labels, what is learned from them, how predictions
are read off, and how they are scored. The run (`run.py`) knows nothing else about it. `Task` holds what most tasks have
in common; a task is a frozen dataclass over it, whose fields are what the training file taught and `task.json` keeps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets.rows import DataSource
from bertsmith.finetune.metrics.bootstrap import Interval
from bertsmith.finetune.metrics.calibration import Calibration, ClassThreshold
from bertsmith.finetune.metrics.classification import ClassScores
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.spec import TaskSpec
from bertsmith.inference.engine import InferenceConfig
from bertsmith.json_files import from_json, to_json
from bertsmith.model import ModelConfig, PretrainedModel
from bertsmith.objectives import LabelledBatch
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.seeding import torch_seed
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.trainer import Batch

SHOWN_MISTAKES = 20
"""How many of the worst mistakes are kept."""

ModelT = TypeVar("ModelT", bound=PretrainedModel)
ExampleT = TypeVar("ExampleT")
PredictionT = TypeVar("PredictionT")
TaskT = TypeVar("TaskT", bound="Task[Any, Any]")
Record = dict[str, Any]
"""A prediction for people and for JSON: `prediction`, `probability` where there is one, details, and the `input`."""
Rows = Sequence[tuple[str, ...]]
"""Inputs, each as its fields."""


@dataclass(frozen=True)
class EncodedExample:
    """What is never divided between two batches: one sequence, or all choices of a question, with its label.

    Attributes:
        input_ids: ids of each sequence, special tokens included.
        token_type_ids: their segments, in the same lengths.
        label: as the task's `batch` understands it.
    """

    input_ids: list[list[int]]
    token_type_ids: list[list[int]]
    label: Any


@dataclass(frozen=True)
class Mistake:
    """A prediction that is wrong, or far off.

    `confidence` says how sure the model was of it, in [0, 1]; of a predicted number, how far off it is.
    """

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
        confusion: `[K][K]` counts, true label by predicted one, in the order of `classes`; or None.
        mistakes: the worst ones, worst first.
        calibration: how far the probabilities can be trusted, where the task has some.
        thresholds: label → what a threshold of its own does for it, where the task has some.
    """

    metrics: dict[str, float]
    intervals: dict[str, Interval] = field(default_factory=dict)
    classes: dict[str, ClassScores] = field(default_factory=dict)
    confusion: list[list[int]] | None = None
    mistakes: list[Mistake] = field(default_factory=list)
    calibration: Calibration | None = None
    thresholds: dict[str, ClassThreshold] = field(default_factory=dict)


class Task(ABC, Generic[ExampleT, PredictionT]):
    """One shape of fine-tuning; what has a body here suits most tasks, what is abstract each of them writes."""

    spec: ClassVar[TaskSpec]
    has_folds: ClassVar[bool] = True
    """Whether a part of the training file can serve as a test file."""

    @property
    @abstractmethod
    def metric(self) -> str:
        """The metric by which the best epoch is chosen; larger is better."""

    @classmethod
    def of(cls: type[TaskT], train: Sequence[Any], **options: Any) -> TaskT:
        """Returns the task that a training file is for.

        Args:
            train: its examples.
            **options: fields of `spec.options`.

        Raises:
            ConfigError: there is no such option, or it is impossible.
            InputError: the examples are not enough for the task.
        """
        known = [one.name for one in fields(cls.spec.options)]
        for name in options:
            if name not in known:
                raise ConfigError(f"--{name.replace('_', '-')} is not for {cls.spec.name}; leave it out")
        return cls.learned_from(train, cls.spec.options(**options))

    @classmethod
    @abstractmethod
    def learned_from(cls: type[TaskT], train: Sequence[Any], options: Any) -> TaskT:
        """Returns the task with what it takes from a training file, such as its labels.

        Args:
            train: examples.
            options: a `spec.options`.

        Raises:
            ConfigError: an option is impossible.
            InputError: there is nothing to learn.
        """

    @classmethod
    def from_documents(
        cls,
        folder: DataSource,  # noqa: ARG003
        options: dict[str, Any],  # noqa: ARG003
        *,
        encoding: str,  # noqa: ARG003
        seed: int,  # noqa: ARG003
    ) -> tuple[list[Any], list[Any]]:
        """Returns training and dev examples that text without labels gives; for tasks that can learn so.

        Args:
            folder: a folder, file or pattern of text files, or rows in memory.
            options: the fields of `spec.options` that were chosen; those that concern the text alone are taken out.
            encoding: of the files.
            seed: of the draws.

        Raises:
            ConfigError: the task learns from labels only.
        """
        raise ConfigError(f"{cls.spec.name} learns from labels; give --train and --dev instead of --unlabelled")

    @property
    def name(self) -> str:
        """The word on the command line, such as `classify`."""
        return self.spec.name

    def describe(self) -> dict[str, Any]:
        """Returns what else than the weights makes the model, as JSON: labels, thresholds."""
        found: dict[str, Any] = to_json(self)
        return found

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
        return {"id2label": {}, "problem_type": None}

    def build(self, folder: Path, settings: FineTuningSettings) -> PretrainedModel:
        """Returns a model to train: the encoder of a folder under a new head."""
        return new_model(self.spec.architecture, folder, settings, **self.config_fields())

    def load(self, folder: Path) -> PretrainedModel:
        """Returns the model that a run of this task saved."""
        return self.spec.architecture.from_pretrained(folder)

    def starting_from(self: TaskT, _folder: Path) -> TaskT:
        """Returns the task with what it takes from the folder that a run starts from."""
        return self

    def add_files(self, folder: Path, config: ModelConfig, max_length: int) -> None:
        """Adds to a saved model or adapter what other tools read of the task; here nothing."""

    def check_dev(self, dev: Sequence[ExampleT]) -> None:
        """Makes sure that the metric can tell good epochs from bad ones on the dev file.

        Raises:
            InputError: it would be the same whatever the model predicts.
        """

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, examples: Sequence[ExampleT], max_length: int) -> list[EncodedExample]:
        """Turns examples into sequences and labels; one example may give several, or none."""

    def add_targets(
        self,
        encoded: list[EncodedExample],
        _examples: Sequence[ExampleT],
        _inference: InferenceConfig,
    ) -> list[EncodedExample]:
        """Returns the encoded training examples with what another model says of them; here as they are."""
        return encoded

    def batches(self, encoded: Sequence[EncodedExample], size: int, draws: np.random.Generator) -> list[list[int]]:
        """Divides the examples of an epoch into batches, the same number of them in every epoch.

        Args:
            encoded: all of them.
            size: examples in a batch, at most.
            draws: of this epoch.

        Returns:
            The numbers of the examples of each batch, in the order of training.
        """
        order = draws.permutation(len(encoded)).tolist()
        return [order[first : first + size] for first in range(0, len(order), size)]

    def batch(self, encoded: Sequence[EncodedExample]) -> Batch:
        """Lays N encoded examples end to end; labels [N, ...], of the dtype that torch gives such numbers."""
        return LabelledBatch(tokens_of(encoded), torch.tensor([example.label for example in encoded]))

    @property
    @abstractmethod
    def objective(self) -> Callable[[Any, Any], LossOutput]:
        """The loss of a model on what `batch` gives; a `LabelledObjective` can be learned from a teacher, too."""

    def from_teacher(self, teacher: Task[Any, Any], rows: Tensor) -> Tensor:
        """Returns a teacher's rows as the student's objective lays them out: here the labels in the same order.

        Args:
            teacher: its task.
            rows: [R, C], as the objective's `rows` made them of the teacher's model.

        Raises:
            ConfigError: the teacher knows other labels.
        """
        own, other = (getattr(task, "labels", ()) for task in (self, teacher))
        if set(own) != set(other):
            known = ", ".join(map(str, other[:8]))
            raise ConfigError(f"the teacher knows other labels ({known}); fine-tune it on the same ones")
        return rows[:, [other.index(label) for label in own]] if own else rows

    def example_from(self, record: Record) -> ExampleT:  # noqa: ARG002
        """Returns a text without a label as an example, labelled as a teacher's `records` say.

        Raises:
            ConfigError: the task has no such examples.
        """
        raise ConfigError(f"{self.name} does not learn from text without labels; leave --teacher-text out")

    def group_of(self, example: Any) -> Hashable:
        """Returns what examples have in common that must not be divided between training and test: here their texts."""
        texts: Hashable = example.texts
        return texts

    def class_of(self, example: Any) -> Hashable:  # noqa: ARG002
        """Returns the class by which cross-validation spreads examples evenly; None where there is none."""
        return None

    def on_scale(self, _model: PretrainedModel) -> AbstractContextManager[None]:
        """Gives the model, inside the block, the scale of the labels; for tasks that are learned on another one."""
        return nullcontext()

    @abstractmethod
    def predict(
        self, model: Any, tokenizer: Tokenizer, examples: Sequence[ExampleT], inference: InferenceConfig
    ) -> list[PredictionT]:
        """Predicts every example, whatever its label."""

    def with_best_threshold(self: TaskT, _examples: Sequence[ExampleT], _predictions: Sequence[PredictionT]) -> TaskT:
        """Returns the task with the threshold that does best on dev predictions; itself where it has none."""
        return self

    def calibrated(self: TaskT, _examples: Sequence[ExampleT], _predictions: Sequence[PredictionT]) -> TaskT:
        """Returns the task with the temperature and the thresholds of classes that dev predictions ask for."""
        return self

    @abstractmethod
    def metrics(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> dict[str, float]:
        """Scores predictions; the task's metric comes first."""

    def selection_score(self, metrics: dict[str, float]) -> float:
        """Returns what epochs and runs are compared by on dev; larger is better."""
        return metrics[self.metric]

    @abstractmethod
    def evaluate(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> Evaluation:
        """Scores predictions with all details; its metrics are those of `metrics`."""

    def check_baselines(
        self, train: Sequence[ExampleT], dev: Sequence[ExampleT], test: Sequence[ExampleT] | None
    ) -> None:
        """Makes sure, before anything is trained, that `add_baselines` will be able to.

        Raises:
            ConfigError: something is missing for it.
            InputError: the files do not allow it.
        """

    def add_baselines(
        self,
        run: Path,
        train: Sequence[ExampleT],
        dev: Sequence[ExampleT],
        test: Sequence[ExampleT] | None,
        *,
        model_folder: Path,
        seed: int,
        console: Console | None,
        device: torch.device | str,
    ) -> None:
        """Trains simpler models on the same files, and keeps their scores in the run folder; see `spec.has_baselines`.

        Args:
            run: the folder of a finished run.
            train: labelled examples, like all that follow.
            dev: scored where there is no test file.
            test: scored where there is one.
            model_folder: whose tokenizer and embeddings the baselines may use.
            seed: of everything random.
            console: shows progress; silent when None.
            device: where they are trained.
        """
        raise NotImplementedError

    @staticmethod
    @abstractmethod
    def records(pipeline: Any, rows: Rows) -> Iterator[Record]:
        """Predicts inputs with the task's pipeline.

        Args:
            pipeline: an instance of `spec.pipeline`.
            rows: each with as many fields as `spec.inputs` says.

        Yields:
            A record for each, in order.
        """


def new_model(architecture: type[ModelT], folder: Path, settings: FineTuningSettings, **changes: Any) -> ModelT:
    """Returns the encoder of a folder under fresh heads.

    Args:
        architecture: the model's class.
        folder: a model folder.
        settings: say whether the encoder starts from random weights too, and with which dropout.
        **changes: fields of the configuration, such as `id2label`.
    """
    # 新的头由种子单独决定：多种子的比较里，它和数据的次序都随种子变，而与别处用掉多少随机数无关
    torch.manual_seed(torch_seed(settings.seed, "finetune/new weights"))
    if settings.dropout is not None:
        changes |= {
            "hidden_dropout_prob": settings.dropout,
            "attention_probs_dropout_prob": settings.dropout,
            "classifier_dropout": None,
        }
    if settings.from_random:
        return architecture(ModelConfig.load(folder).changed(**changes))
    return architecture.from_pretrained(folder, new_heads=True, **changes)


def tokens_of(encoded: Sequence[EncodedExample]) -> RaggedBatch:
    """Lays the sequences of encoded examples end to end."""
    return RaggedBatch.from_sequences(
        [ids for example in encoded for ids in example.input_ids],
        [types for example in encoded for types in example.token_type_ids],
    )


def worst(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """Returns the surest of the wrong predictions, surest first; of numbers, those that are farthest off."""
    return sorted(mistakes, key=lambda mistake: -mistake.confidence)[:SHOWN_MISTAKES]
