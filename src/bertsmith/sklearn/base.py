"""What the estimators share: a fine-tuning run in a folder of its own, parameters, pickles.

Notable:
- parameters are the fields of a dataclass: scikit-learn asks of `__init__` that it names each and keeps it as given
- examples go to the run as objects; no table is written. The run folder is a temporary one unless `run_folder` names
  one, and the best weights live on in the estimator
- a share of the rows (`validation_fraction`) chooses the best epoch; labels stand in it as often as in all rows
- with `method="best"` it is `bertsmith.solve` that is given the rows, and its answer is kept
- a pickle holds the files of a model folder as bytes, never a pickled tensor; a live pipeline that was given as `model`
  is shared by clones, since it is only read
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from bertsmith.data.reading.tables import Cell
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.finetune.job import usual_rate
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings, runs_in
from bertsmith.finetune.splits import held_out
from bertsmith.finetune.tasks.task import Task
from bertsmith.hub import model_folder
from bertsmith.inference import load_pipeline
from bertsmith.inference.embed import Embed, SentenceFolder, write_sentence_folder
from bertsmith.inference.engine import Precision
from bertsmith.inference.pipeline import Device, Pipeline
from bertsmith.kernels.layers import best_device, device_named
from bertsmith.settings import divided


class EstimatorError(BertsmithError, ValueError):
    """Wrong data or a wrong parameter; a `ValueError`, as scikit-learn has it."""


@contextmanager
def as_value_error() -> Iterator[None]:
    """Raises the errors of bertsmith inside the block as `EstimatorError`, with the same line."""
    try:
        yield
    except EstimatorError:
        raise
    except BertsmithError as error:
        raise EstimatorError(str(error)) from error


def texts_of(inputs: Any) -> list[tuple[str, str | None]]:
    """Returns each input as a text and a second one, None where there is none.

    The inputs are N texts (a list, an array, a series), or N rows of one or two texts: a list of pairs, an array
    [N, 2], a data frame of one or two columns.
    """
    found = []
    for number, row in enumerate(rows_of(inputs)):
        cells = list(row) if isinstance(row, (list, tuple)) else [row]
        if not 1 <= len(cells) <= 2:
            raise EstimatorError(f"X: row {number} (from 0) has {len(cells)} columns; give a text, or a pair of texts")
        text, *pair = (_text(number, cell) for cell in cells)
        found.append((text, pair[0] if pair else None))
    if len({pair is None for _, pair in found}) > 1:
        raise EstimatorError("X: some rows are single texts and some are pairs; give one kind")
    return found


def rows_of(inputs: Any, name: str = "X", holds: str = "texts") -> list[Any]:
    """Returns N rows as Python's own lists and values; errors name the argument, and what it holds."""
    # 稀疏矩阵多半是词袋特征，被错放在这里：说清楚要的是文本
    if issparse(inputs):
        raise EstimatorError(f"{name}: is a sparse matrix, and sparse input is not supported; give the {holds}")
    if not isinstance(inputs, Iterable) and hasattr(inputs, "__array__"):
        inputs = np.asarray(inputs)
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Iterable):
        raise EstimatorError(f"{name}: is a {type(inputs).__name__}; give a list of {holds}")
    # 数据框迭代出来的是列名：取它的值
    values = inputs.to_numpy() if hasattr(inputs, "to_numpy") else inputs
    # 列表里的行也可能是 numpy 的数组和数
    rows = [_own(row) for row in _own(values)]
    if not rows:
        raise EstimatorError(f"{name}: holds no row: 0 samples; give at least one")
    return rows


def _own(value: Any) -> Any:
    """Returns an array as lists, and a number of NumPy as Python's own."""
    return value.tolist() if hasattr(value, "tolist") else value


def targets_of(targets: Any, count: int) -> list[Any]:
    """Returns the label of each of `count` rows."""
    if targets is None:
        raise EstimatorError("y is None: this estimator requires y to be passed; give a label for each row")
    found = rows_of(targets, "y", "labels")
    if len(found) != count:
        raise EstimatorError(f"X has {count} rows and y has {len(found)}; give a label for each row")
    return [label[0] if isinstance(label, list) and len(label) == 1 else label for label in found]


def weights_of(weights: Any, count: int) -> list[float] | None:
    """Returns the weight of each of `count` rows; None where all are alike."""
    if weights is None:
        return None
    rows = rows_of(weights, "sample_weight", "numbers")
    if len(rows) != count:
        raise EstimatorError(f"X has {count} rows; sample_weight has {len(rows)}; give one for each row")
    # NaN 与什么比都不成立；pd.NA 不是数，要先问类型
    wrong = (n for n, row in enumerate(rows) if not isinstance(row, (int, float)) or not 0 <= row < math.inf)
    if (number := next(wrong, None)) is not None or not any(rows):
        reason = "all are 0" if number is None else f"row {number} (from 0) is {rows[number]}"
        raise EstimatorError(f"sample_weight: {reason}; give finite numbers from 0, one of them positive")
    return None if len(set(rows)) == 1 else [float(row) for row in rows]


def is_missing(value: Any) -> bool:
    """Tells None, NaN, NaT and `pd.NA` from values: what has no value is not equal to itself, or says nothing of it."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        # pd.NA 的比较还是 pd.NA，不能当作真假；数组没有单一的真假，但不是缺失
        return not hasattr(value, "__len__")


def _text(number: int, value: Any) -> str:
    place = f"X: row {number} (from 0)"
    # 空文本照收，与 TfidfVectorizer 一致：一批里的一条空文本不该让整批失败
    if isinstance(value, str) and not value.strip():
        return ""
    if not is_missing(value) and not isinstance(value, str):
        raise EstimatorError(f"{place}: the text is a {type(value).__name__}, not text")
    with as_value_error():
        return Cell(place, "text", None if is_missing(value) else value).text()


WEIGHTS, TEXTS = (".safetensors",), (".json", ".txt", ".model")
"""Endings of what a model folder is made of; anything else in it is left out."""


@dataclass(frozen=True)
class PackedPipeline:
    """A pipeline as its files: path inside the folder → its bytes (safetensors, JSON, text)."""

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    precision: Precision | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, texts: Mapping[str, bytes], precision: Precision | None = None) -> PackedPipeline:
        """Packs a pipeline; `texts` are files that the run wrote beside the weights, such as `task.json`."""
        with tempfile.TemporaryDirectory(prefix="bertsmith-") as place:
            write_folder(pipeline, Path(place))
            return cls(pipeline.name, {**texts, **files_in(Path(place))}, precision)

    def unpacked(self, device: Device = None) -> Any:
        """Returns the pipeline."""
        with tempfile.TemporaryDirectory(prefix="bertsmith-") as place:
            self.write(Path(place))
            return load_pipeline(self.name, place, precision=self.precision, device=device)

    def write(self, folder: Path) -> None:
        """Writes the files into a folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_folder(pipeline: Pipeline, folder: Path) -> None:
    """Writes the words, the model and the tokenizer of a live pipeline, and how it pools where it makes vectors."""
    if (words := getattr(pipeline, "words", None)) is not None:
        words.save(folder)
        if pipeline.tokenizer is None:
            return
    model = getattr(pipeline.engine, "model", None)
    if model is None or getattr(pipeline.engine, "kind", "torch") != "torch":
        raise ConfigError("the pipeline runs on another engine than torch; load it with engine='torch'")
    model.save_pretrained(folder)
    pipeline.tokenizer.save(folder, model_max_length=pipeline.max_length)
    if isinstance(pipeline, Embed):
        if pipeline.pooling not in ("mean", "cls", "max"):
            raise ConfigError(f"pooling {pipeline.pooling} has no place in a model folder; use mean, cls or max")
        says = SentenceFolder(
            pooling=pipeline.pooling,
            max_length=pipeline.max_length,
            normalize=pipeline.unit_length,
            prompts=pipeline.prompts,
            default_prompt=pipeline.default_prompt,
            similarity=pipeline.similarity,
            dims=pipeline.dims,
        )
        write_sentence_folder(folder, says, pipeline.hidden_size)


def files_in(folder: Path, *, weights: bool = True) -> dict[str, bytes]:
    """Returns the files of a model folder by their paths inside it; with or without the weights."""
    endings = (*TEXTS, *WEIGHTS) if weights else TEXTS
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in endings
    }


_CHOSEN = ("n_epochs", "batch_size", "learning_rate", "class_weight", "validation_fraction")
_SETTINGS = ("minutes", "hours", "text", "balanced", "metric")
"""Parameters that the method `best` chooses by itself, and the settings that it takes."""

Model = str | Path | Pipeline
"""A model folder, `org/name` of the Hub, or a live pipeline."""


# eq、repr 用 BaseEstimator 的：估计器按身份比较，显示时只列改过的参数
@dataclass(eq=False, repr=False)
class FineTuned(BaseEstimator):  # type: ignore[misc]
    """An estimator that fine-tunes; `BertClassifier` explains its parameters, and nothing is loaded before `fit`.

    Attributes:
        pipeline_: predicts, after `fit`.
        evaluation_: how the kept weights do on the rows that chose the epoch.
        n_iter_: the best epoch, from 1; the method `best` leaves none.
    """

    model: Model | None = None
    _: KW_ONLY
    method: Literal["fine-tune", "best"] = "fine-tune"
    n_epochs: int = 3
    batch_size: int = 16
    learning_rate: float | None = None
    validation_fraction: float = 0.1
    random_state: Any = None
    device: str | None = None
    run_folder: str | Path | None = None
    verbose: bool = False
    settings: Mapping[str, Any] | None = None

    def _fine_tune(
        self,
        task: Task[Any, Any],
        examples: Sequence[Any],
        labels: Sequence[Any],
        weights: Sequence[float] | None = None,
    ) -> None:
        """Fine-tunes on examples; `labels` say which of them are of one kind, `weights` how much each counts."""
        if self.method == "best":
            self._solve(task, examples, weights)
            return
        if self.method != "fine-tune":
            raise EstimatorError(f"method {self.method!r} is unknown; give 'fine-tune' or 'best'")
        (chosen,) = divided(dict(self.settings or {}), FineTuningSettings, command="finetune")
        for name in sorted(chosen.keys() & {"epochs", "seed", "batch_size", "learning_rate"}):
            own = {"epochs": "n_epochs", "seed": "random_state"}.get(name, name)
            raise ConfigError(f"settings: {name} is the parameter {own} of the estimator; set it there")
        # None 表示用 numpy 的全局状态，和 scikit-learn 的约定一样
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        learned, held = self._split(labels, seed)
        train, dev = [examples[n] for n in learned], [examples[n] for n in held]
        of_rows = None if weights is None else ([weights[n] for n in learned], [weights[n] for n in held])
        with ExitStack() as stack:
            start = self._start(stack)
            run = Path(self.run_folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="bertsmith-")))
            rate = self.learning_rate or usual_rate(task.name, start, chosen.get("adapter"))
            chosen |= {"epochs": self.n_epochs, "batch_size": self.batch_size, "learning_rate": rate, "seed": seed}
            settings = FineTuningSettings(**chosen)
            if settings.adapter == "bottleneck":
                raise ConfigError("settings: a bottleneck adapter makes no model folder; use lora, or no adapter")
            console = Console() if self.verbose else None
            result = fine_tune(
                task,
                start,
                train,
                dev,
                run,
                settings,
                weights=of_rows,
                console=console,
                device=self.device or best_device(),
            )
            self._precision = runs_in(settings.precision)
            self.pipeline_ = load_pipeline(task.name, run / "model", precision=self._precision, device=self.device)
            self._texts = files_in(run / "model", weights=False)
        self.evaluation_, self.n_iter_ = result.dev, result.epoch

    def _solve(self, task: Task[Any, Any], examples: Sequence[Any], weights: Sequence[float] | None) -> None:
        """Keeps the best answer that `solve` finds; it holds out parts of few rows in turn."""
        from bertsmith.journeys.labelled import FEW
        from bertsmith.journeys.solve import solve

        changed = [one.name for one in fields(self) if one.name in _CHOSEN and getattr(self, one.name) != one.default]
        for name in changed or (["sample_weight"] if weights is not None else []):
            raise ConfigError(f"{name}: the method 'best' chooses by itself, and counts all rows alike; leave it out")
        if unknown := sorted({*(self.settings or {})} - {*_SETTINGS}):
            raise ConfigError(f"settings: {unknown[0]} is none of the method 'best'; it takes {', '.join(_SETTINGS)}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        dev = list[int]()
        if len(examples) >= FEW:
            split = held_out(task, examples, seed, with_test=False)
            # 只在留出的句子里出现的标签没有可学的：这样的句子也拿来学
            known = {tag for number in split["train"] for tag in getattr(examples[number], "tags", ())}
            dev = [number for number in split["dev"] if known.issuperset(getattr(examples[number], "tags", ()))]
        held = set(dev)
        with ExitStack() as stack:
            run = Path(self.run_folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="bertsmith-")))
            found = solve(
                [example for number, example in enumerate(examples) if number not in held],
                run,
                dev=[examples[number] for number in dev] or None,
                model=self._start(stack) if isinstance(self.model, Pipeline) else self.model or (),
                console=Console() if self.verbose else None,
                device=self.device,
                **{"task": task.name, "seed": seed, **(self.settings or {})},
            )
            self._precision = None
            self.pipeline_ = load_pipeline(task.name, run / "model", device=self.device)
            self._texts = files_in(run / "model", weights=False)
        self.evaluation_ = found.details.dev
        self.__dict__.pop("n_iter_", None)

    def _start(self, stack: ExitStack) -> Path:
        """Returns the folder to start from; that of a live pipeline lasts as long as the stack."""
        if isinstance(self.model, Pipeline):
            if self.model.tokenizer is None:
                raise EstimatorError("model is a pipeline of words alone; give one with an encoder")
            # 文件夹的名字会出现在报告里
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bertsmith-"))) / "model"
            folder.mkdir()
            write_folder(self.model, folder)
            return folder
        if not isinstance(self.model, (str, Path)):
            raise EstimatorError(f"model is a {type(self.model).__name__}; give a model folder, org/name or a pipeline")
        return model_folder(self.model)

    def _split(self, labels: Sequence[Any], seed: int) -> tuple[list[int], list[int]]:
        """Divides the numbers of examples into those that are learned and those that choose the epoch, by kind."""
        if not 0 <= self.validation_fraction < 1:
            raise EstimatorError(f"validation_fraction {self.validation_fraction} is outside [0, 1)")
        kinds: dict[Any, list[int]] = {}
        for number in np.random.default_rng(seed).permutation(len(labels)).tolist():
            kinds.setdefault(labels[number], []).append(number)
        held = [n for group in kinds.values() for n in group[: round(self.validation_fraction * len(group))]]
        if not self._can_choose([labels[number] for number in held]):
            # 数据太少，留不出能分高下的验证行：用全部行来选轮次
            return list(range(len(labels))), list(range(len(labels)))
        return sorted({*range(len(labels))} - {*held}), sorted(held)

    def _can_choose(self, held: Sequence[Any]) -> bool:
        """Tells whether held-out rows with these labels can tell good epochs from bad ones."""
        return len(held) > 0

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "pipeline_")

    def _fitted(self) -> Any:
        check_is_fitted(self)
        return self.pipeline_

    def __sklearn_clone__(self) -> Any:
        if not isinstance(self.model, Pipeline):
            return super().__sklearn_clone__()
        twin = type(self)(**self.get_params(deep=False))
        # clone() 除了参数还带走这两样：输出的形式与元数据的去向
        for name in ("_sklearn_output_config", "_metadata_request"):
            if hasattr(self, name):
                setattr(twin, name, copy.deepcopy(getattr(self, name)))
        return twin

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.non_deterministic = self.random_state is None
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        for name, texts in (("pipeline_", state.get("_texts", {})), ("model", {})):
            if isinstance(state.get(name), Pipeline):
                with as_value_error():
                    state[name] = PackedPipeline.of(state[name], texts, state.get("_precision"))
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        try:
            device: Device = device_named(str(state.get("device")))
        except ConfigError:
            # 没有指明，或者这台机器上没有那块设备：用这里有的，而不是读不回来
            device = None
        unpacked = {k: v.unpacked(device) if isinstance(v, PackedPipeline) else v for k, v in state.items()}
        super().__setstate__(unpacked)

    def save(self, folder: str | Path) -> None:
        """Writes the fitted model as a model folder for `bertsmith predict`, `serve` and `load_pipeline`."""
        pipeline, place = self._fitted(), Path(folder)
        if place.exists() and any(place.iterdir()):
            raise EstimatorError(f"{place}: is not empty; choose another folder")
        PackedPipeline.of(pipeline, getattr(self, "_texts", {})).write(place)
