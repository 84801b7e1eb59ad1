"""Learning a task from a model that knows it already (Hinton et al. 2015; Tang et al. 2019; Sanh et al. 2019, §3).

    loss = ½ · loss of the labels + ½ · T² · KL(teacher ‖ student)

The teacher is a fine-tuned folder of the same task, and reads the student's own batches: both have one vocabulary.
Text without labels is labelled by the teacher first; there all that is learned comes from it. (Vectors are learned from
vectors, see `tasks.embed`: that task takes a teacher in its own way.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets import Faults, ReadingOptions
from bertsmith.finetune.predict import Predictor
from bertsmith.finetune.tasks import task_of_model
from bertsmith.finetune.tasks.task import ExampleT, Task
from bertsmith.hub import model_folder
from bertsmith.inference.classify import Rank
from bertsmith.objectives import LossOutput
from bertsmith.objectives.labelled import LabelledBatch, LabelledObjective
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class TeachingOptions(Checked):
    """Who teaches, besides the labels."""

    panel: ClassVar[str] = "Learning from a teacher"

    teacher: str | None = option(None, help="Fine-tuned model to learn from as well; embed: an encoder.")
    teacher_text: tuple[str, ...] = option((), help="Unlabelled inputs, one per line, that the teacher labels.")

    def _check_together(self) -> None:
        if self.teacher_text and not self.teacher:
            raise ConfigError("--teacher-text: say with --teacher who labels it")


class TaughtLoss:
    """The loss of a task, and a teacher's view of the same batches."""

    def __init__(
        self, task: Task[Any, Any], folder: str, tokenizer: Tokenizer, max_length: int, device: torch.device, dtype: Any
    ) -> None:
        self.task, self.teacher_task = task, task_of_model(model_folder(folder))[0]
        if not isinstance(task.objective, LabelledObjective):
            raise ConfigError(f"{task.name} has no scores to compare with a teacher's; leave --teacher out")
        if type(self.teacher_task.objective) is not type(task.objective):
            raise ConfigError(f"{folder}: the teacher answers for {self.teacher_task.name}, not for {task.name}")
        if load_tokenizer(model_folder(folder)).vocab != tokenizer.vocab:
            raise ConfigError(f"{folder}: the teacher reads another vocabulary than the model; both must share one")
        self.teacher = self.teacher_task.load(model_folder(folder)).to(device).eval().requires_grad_(False)
        self.teacher.set_compute_dtype(dtype)
        if self.teacher.config.position_limit < max_length:
            raise ConfigError(
                f"{folder}: the teacher reads {self.teacher.config.position_limit} pieces, the model {max_length}; set"
                " --max-length"
            )
        labels = len(getattr(task, "labels", ())) or 1
        task.from_teacher(self.teacher_task, torch.zeros(0, labels))

    def __call__(self, model: Any, batch: LabelledBatch) -> LossOutput:
        """Returns the mean of both losses; adds the sum `teacher_loss`, by row, to those of the labels."""
        objective: Any = self.task.objective
        rows = objective.rows(model, batch)
        hard = objective.measure(rows, batch)
        with torch.no_grad():
            taught = self.task.from_teacher(self.teacher_task, objective.rows(self.teacher, batch))
        soft = objective.imitation(rows, taught)
        sums = {**hard.sums, "teacher_loss": (float(soft.detach()) * len(rows), len(rows))}
        return LossOutput((hard.loss + soft) / 2, sums)


def labelled_by_teacher(
    task: Task[ExampleT, Any], teaching: TeachingOptions, encoding: str, on_note: Callable[[str], None] | None = None
) -> Sequence[ExampleT]:
    """Returns the inputs of `teacher_text` as examples; empty lines are left out, and faulty ones with a warning.

    Before a file is read, `on_note` is told how it was understood, a line each.
    """
    assert teaching.teacher
    predictor, reading = Predictor.load(str(model_folder(teaching.teacher))), ReadingOptions(encoding=encoding)
    if isinstance(predictor.pipeline, Rank):
        # 不经 sigmoid 的排序模型给出的是 logit，学的却是 [0, 1] 里的相关度
        predictor.pipeline.activation = "Sigmoid"
    examples = []
    for file in teaching.teacher_text:
        faults = Faults(reading)
        for record in predictor.predict_file(file, reading, on_note=on_note):
            if record["prediction"] is not None:
                examples.append(task.example_from(record))
            elif "fault" in record:
                faults.found.append(record["fault"])
        faults.tell(file, "lines")
    return examples
