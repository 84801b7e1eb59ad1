"""What the estimators share: a fine-tuning run in a folder of its own, parameters, pickles.

Notable:
- parameters are the fields of a dataclass: scikit-learn asks of `__init__` that it names each and keeps it as given
- examples go to the run as objects; no table is written. The run folder is a temporary one unless `run_folder` names
  one, and the best weights live on in the estimator
- a share of the rows (`validation_fraction`) chooses the best epoch; labels stand in it as often as in all rows
- a pickle holds the files of a model folder as bytes, never a pickled tensor; a live pipeline that was given as `model`
  is shared by clones, since it is only read
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from bertsmith.errors import ConfigError
from bertsmith.finetune.job import usual_rate
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.settings import FineTuningSettings, runs_in
from bertsmith.finetune.tasks.task import Task
from bertsmith.hub import model_folder
from bertsmith.inference.loading import load_pipeline
from bertsmith.inference.pipeline import Pipeline
from bertsmith.kernels.layers import best_device
from bertsmith.options import divided
from bertsmith.sklearn.folders import PackedPipeline, files_in, write_folder
from bertsmith.sklearn.inputs import EstimatorError, as_value_error

Model = str | Path | Pipeline
"""A model folder, `org/name` of the Hub, or a live pipeline."""


# eq、repr 用 BaseEstimator 的：估计器按身份比较，显示时只列改过的参数
@dataclass(eq=False, repr=False)
class FineTuned(BaseEstimator):  # type: ignore[misc]
    """An estimator that fine-tunes; inherited from `BaseEstimator`, whose parameters and clones scikit-learn relies on.

    Its fields are the parameters, which `BertClassifier` explains; nothing is loaded before `fit`.

    Attributes:
        pipeline_: predicts, after `fit`.
        evaluation_: how the kept weights do on the rows that chose the epoch.
        n_iter_: the best epoch, from 1.
    """

    model: Model
    _: KW_ONLY
    n_epochs: int = 3
    batch_size: int = 16
    learning_rate: float | None = None
    validation_fraction: float = 0.1
    random_state: Any = None
    device: str | None = None
    run_folder: str | Path | None = None
    verbose: bool = False
    settings: Mapping[str, Any] | None = None

    def _fine_tune(self, task: Task[Any, Any], examples: Sequence[Any], labels: Sequence[Any]) -> FineTuningResult:
        """Fine-tunes on examples; `labels` say which of them are of one kind."""
        (chosen,) = divided(dict(self.settings or {}), FineTuningSettings, command="finetune")
        for name, own in (("epochs", "n_epochs"), ("seed", "random_state"), *_OWN):
            if name in chosen:
                raise ConfigError(f"settings: {name} is the parameter {own} of the estimator; set it there")
        # None 表示用 numpy 的全局状态，和 scikit-learn 的约定一样
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        train, dev = self._split(examples, labels, seed)
        with ExitStack() as stack:
            start = self._start(stack)
            run = Path(self.run_folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="bertsmith-")))
            rate = self.learning_rate or usual_rate(task.name, start, chosen.get("adapter"))
            settings = FineTuningSettings(
                **{
                    "epochs": self.n_epochs,
                    "batch_size": self.batch_size,
                    "learning_rate": rate,
                    "seed": seed,
                    **chosen,
                }
            )
            if settings.adapter == "bottleneck":
                raise ConfigError("settings: a bottleneck adapter makes no model folder; use lora, or no adapter")
            console = Console() if self.verbose else None
            result = fine_tune(
                task, start, train, dev, run, settings, console=console, device=self.device or best_device()
            )
            self._precision = runs_in(settings.precision)
            self.pipeline_ = load_pipeline(task.name, run / "model", precision=self._precision, device=self.device)
            self._texts = files_in(run / "model", weights=False)
        self.evaluation_, self.n_iter_ = result.dev, result.epoch
        return result

    def _start(self, stack: ExitStack) -> Path:
        """Returns the folder to start from; that of a live pipeline lasts as long as the stack."""
        if isinstance(self.model, Pipeline):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bertsmith-")))
            write_folder(self.model, folder)
            return folder
        if not isinstance(self.model, (str, Path)):
            raise EstimatorError(f"model is a {type(self.model).__name__}; give a model folder, org/name or a pipeline")
        return model_folder(self.model)

    def _split(self, examples: Sequence[Any], labels: Sequence[Any], seed: int) -> tuple[list[Any], list[Any]]:
        """Divides examples into those that are learned and those that choose the epoch, kind by kind."""
        if not 0 <= self.validation_fraction < 1:
            raise EstimatorError(f"validation_fraction {self.validation_fraction} is outside [0, 1)")
        kinds: dict[Any, list[int]] = {}
        for number in np.random.default_rng(seed).permutation(len(examples)).tolist():
            kinds.setdefault(labels[number], []).append(number)
        held = [n for group in kinds.values() for n in group[: round(self.validation_fraction * len(group))]]
        if not self._can_choose([labels[number] for number in held]):
            # 数据太少，留不出能分高下的验证行：用全部行来选轮次
            return list(examples), list(examples)
        out = set(held)
        return [one for n, one in enumerate(examples) if n not in out], [examples[n] for n in sorted(held)]

    def _can_choose(self, held: Sequence[Any]) -> bool:
        """Tells whether held-out rows with these labels can tell good epochs from bad ones."""
        return len(held) > 0

    def __sklearn_is_fitted__(self) -> bool:
        """Tells whether `fit` has been called."""
        return hasattr(self, "pipeline_")

    def _fitted(self) -> Any:
        check_is_fitted(self)
        return self.pipeline_

    def __sklearn_clone__(self) -> Any:
        """Returns an unfitted copy; a live pipeline is shared."""
        if not isinstance(self.model, Pipeline):
            return super().__sklearn_clone__()
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        """Says that inputs are texts, and that each start may differ by its seed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.non_deterministic = self.random_state is None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Returns the parameters, with pipelines as the bytes of their folders."""
        state: dict[str, Any] = dict(super().__getstate__())
        for name, texts in (("pipeline_", state.get("_texts", {})), ("model", {})):
            if isinstance(state.get(name), Pipeline):
                with as_value_error():
                    state[name] = PackedPipeline.of(state[name], texts, state.get("_precision"))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes what `__getstate__` returned."""
        unpacked = {k: v.unpacked() if isinstance(v, PackedPipeline) else v for k, v in state.items()}
        super().__setstate__(unpacked)

    def save(self, folder: str | Path) -> None:
        """Writes the fitted model as a model folder for `bertsmith predict`, `serve` and `load_pipeline`.

        Raises:
            EstimatorError: the folder is not empty.
        """
        pipeline, place = self._fitted(), Path(folder)
        if place.exists() and any(place.iterdir()):
            raise EstimatorError(f"{place}: is not empty; choose another folder")
        with tempfile.TemporaryDirectory(prefix="bertsmith-") as temporary:
            packed = PackedPipeline.of(pipeline, getattr(self, "_texts", {}))
            for name, content in packed.files.items():
                path = Path(temporary) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            shutil.copytree(temporary, place, dirs_exist_ok=True)


_OWN = (("batch_size", "batch_size"), ("learning_rate", "learning_rate"))
