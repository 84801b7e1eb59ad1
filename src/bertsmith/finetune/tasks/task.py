"""What a task is: everything in which the shapes of fine-tuning differ (Devlin et al. 2019, figure 4).

A task says which model it trains, how examples become sequences and labels, what is learned from them, how predictions
are read off, and how they are scored. The run (`run.py`) knows nothing else about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from bertsmith.batch import RaggedBatch
from bertsmith.finetune.metrics.bootstrap import Interval
from bertsmith.finetune.metrics.classification import ClassScores
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import ModelConfig, PretrainedModel
from bertsmith.objectives import LabelledBatch
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.seeding import torch_seed
from bertsmith.tokenizer import WordPieceTokenizer

SHOWN_MISTAKES = 20
"""So many of the worst mistakes are kept."""

ModelT = TypeVar("ModelT", bound=PretrainedModel)
ExampleT = TypeVar("ExampleT")
PredictionT = TypeVar("PredictionT")


@dataclass(frozen=True)
class Unit:
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
        figures: name → value, the task's metric first.
        intervals: name → 95 % bootstrap interval, for those figures that have one.
        classes: label → precision, recall, F1 and support, where the task has labels.
        confusion: [K][K] counts, true label by predicted one, in the order of `classes`; None where the task has none.
        mistakes: the worst ones, worst first.
    """

    figures: dict[str, float]
    intervals: dict[str, Interval] = field(default_factory=dict)
    classes: dict[str, ClassScores] = field(default_factory=dict)
    confusion: list[list[int]] | None = None
    mistakes: list[Mistake] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the same as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Evaluation:
        """Reads what `to_json` returned.

        Raises:
            KeyError: a field is missing.
            TypeError: one is of another kind.
        """
        return cls(
            figures=dict(values["figures"]),
            intervals={name: Interval(**interval) for name, interval in values["intervals"].items()},
            classes={name: ClassScores(**scores) for name, scores in values["classes"].items()},
            confusion=values["confusion"],
            mistakes=[Mistake(**mistake) for mistake in values["mistakes"]],
        )


class Task(Protocol[ExampleT, PredictionT]):
    """One shape of fine-tuning."""

    @property
    def name(self) -> str:
        """The word on the command line, such as `classify`."""

    @property
    def metric(self) -> str:
        """The figure by which the best epoch is chosen; larger is better."""

    def describe(self) -> dict[str, Any]:
        """Returns what else than the weights makes the model, as JSON: labels, thresholds. See `tasks.load_task`."""

    def build(self, folder: Path, settings: FineTuningSettings) -> PretrainedModel:
        """Returns a model to train: the encoder of a folder under a new head."""

    def load(self, folder: Path) -> PretrainedModel:
        """Returns the model that a run of this task saved."""

    def encode(self, tokenizer: WordPieceTokenizer, examples: Sequence[ExampleT], max_length: int) -> list[Unit]:
        """Turns examples into what is learned from; one example may give several units, or none."""

    def batch(self, units: Sequence[Unit]) -> LabelledBatch:
        """Puts units together."""

    def measure(self, model: Any, batch: LabelledBatch) -> LossOutput:
        """Returns the loss of a batch."""

    def predict(
        self, model: Any, tokenizer: WordPieceTokenizer, examples: Sequence[ExampleT], inference: InferenceConfig
    ) -> list[PredictionT]:
        """Predicts every example, whatever its label."""

    def tuned(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT], /) -> Task[ExampleT, PredictionT]:
        """Returns the task with its thresholds set by dev predictions; itself where it has none."""

    def figures(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> dict[str, float]:
        """Scores predictions; the metric comes first."""

    def evaluate(self, examples: Sequence[ExampleT], predictions: Sequence[PredictionT]) -> Evaluation:
        """Scores predictions with all details; its figures are those of `figures`."""


@runtime_checkable
class HasUnits(Protocol):
    """A task whose new layer gives numbers that are not of the size of 1."""

    @property
    def units(self) -> dict[str, float]:
        """The units of its parameters, as `TrainerSettings.units` takes them."""


@runtime_checkable
class HasStanding(Protocol):
    """A task whose epochs are not told apart well enough by its metric alone."""

    def standing(self, figures: dict[str, float]) -> float:
        """Returns what epochs and runs are compared by; larger is better."""


def selection_score(task: Task[Any, Any], figures: dict[str, float]) -> float:
    """Returns what figures on dev are compared by; larger is better."""
    return task.standing(figures) if isinstance(task, HasStanding) else figures[task.metric]


@runtime_checkable
class ChecksDev(Protocol):
    """A task that not every dev file can choose for."""

    def check_dev(self, dev: Any) -> None:
        """Makes sure that the metric is defined on the dev file.

        Raises:
            InputError: it is not.
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


def tokens_of(units: Sequence[Unit]) -> RaggedBatch:
    """Lays the sequences of units end to end."""
    return RaggedBatch.from_sequences(
        [ids for unit in units for ids in unit.input_ids], [types for unit in units for types in unit.token_type_ids]
    )


def worst(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """Returns the surest of the wrong predictions, surest first; of numbers, those that are farthest off."""
    return sorted(mistakes, key=lambda mistake: -mistake.confidence)[:SHOWN_MISTAKES]
