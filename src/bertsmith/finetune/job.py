"""`bertsmith.finetune` and `bertsmith.evaluate`: files in; model, scores, baselines, card and report out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from rich.console import Console

from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import from_json, read_json, write_json, write_text
from bertsmith.finetune.adapters import load_adapted
from bertsmith.finetune.baselines import add_baselines
from bertsmith.finetune.card import DataFile, model_card
from bertsmith.finetune.datasets import DataSource, ReadingOptions, local_sources, name_of
from bertsmith.finetune.further import FurtherOptions, pretrain_further
from bertsmith.finetune.reading import READING_FILE, FilesRead, noted, tell_files, tell_texts
from bertsmith.finetune.report import write_report
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.search import cross_validate, dev_of, paper_grid, search, usual_space
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.splits import held_out
from bertsmith.finetune.tasks import all_tasks, load_task, options_of_all_tasks, task_named, task_of_model
from bertsmith.finetune.tasks.task import Evaluation, Task
from bertsmith.finetune.teaching import TeachingOptions, labelled_by_teacher
from bertsmith.finetune.trials import RUNS, SearchResult
from bertsmith.hub import model_folder
from bertsmith.inference import load_pipeline
from bertsmith.inference.engine import InferenceConfig, Precision
from bertsmith.inference.linear import WORDS_FILE, Part
from bertsmith.kernels.layers import on_device
from bertsmith.model import ModelConfig
from bertsmith.reporting.progress import say
from bertsmith.settings import Checked, Result, built, divided, option
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.tracking import Outcome, RunListener, StartedRun, TrackingOptions

PAPER, OPTUNA = "paper", "optuna"

SPLIT_FILE = "split.json"
"""In a run folder: which rows of the training file were held out for dev and test, where no dev file was given."""

TRIALS = 30
"""Settings that Optuna tries unless a number is given."""


@dataclass(frozen=True)
class ComparisonOptions(Checked):
    """What else is trained, to choose from or to compare with."""

    panel: ClassVar[str] = "Search and comparison"

    search: Literal["paper", "optuna"] | None = option(
        None,
        help="paper: the 18 runs of its grid; optuna: --trials runs. Keeps the best.",
    )
    trials: int = option(
        0, min=2, shown_default="30 with --search optuna", help="Number of settings that Optuna tries."
    )
    seeds: int = option(1, min=1, help="Number of seeds: reports mean and deviation, keeps the best run.")
    folds: int = option(0, min=2, help="Cross-validate in this many parts of the training file, then train on all.")
    baselines: bool = option(False, help="classify and tag: score simpler models as well, for the report.")

    def _check_together(self) -> None:
        if self.trials and self.search != OPTUNA:
            raise ConfigError("--trials: say --search optuna, which makes them")
        if self.folds and (self.search is not None or self.seeds > 1):
            raise ConfigError("--folds scores one recipe: leave --search and --seeds out, or search first")


def finetune(
    task: str,
    model: str | Path,
    out: str | Path,
    *,
    train: DataSource | None = None,
    dev: DataSource | None = None,
    test: DataSource | None = None,
    unlabelled: DataSource | None = None,
    console: Console | None = None,
    device: torch.device | str | None = None,
    listeners: Sequence[RunListener] = (),
    **settings: Any,
) -> Result[FineTuningResult]:
    """Fine-tunes a model on labelled rows; resumes where an earlier call was broken off.

    Examples:
        >>> import bertsmith
        >>> rows = [{"text": "a warm and lovely story", "label": "good"}, {"text": "a dull story", "label": "bad"}] * 8
        >>> tuned = bertsmith.finetune("classify", "run/model", "tuned", train=rows, dev=rows, epochs=1)
        >>> list(tuned.metrics)[:2]
        ['accuracy', 'macro_f1']

    Args:
        task: `classify`, `tag`, `answer` and so on; see `bertsmith finetune --help`.
        model: the model to start from: a folder, or `org/name` of the Hub.
        out: the run folder.
        train: a labelled file or its URL; or a data frame, a `datasets.Dataset`, or a list of dictionaries. So are
            `dev`, by which the best epoch is chosen, and `test`, which is scored with the weights that `dev` chose.
            Without `dev`, parts of `train` are held out for both, and `split.json` says which.
        unlabelled: of `embed`: a folder of text files, or rows with a column `text`, to learn from instead.
        console: shows progress; silent when None.
        device: None takes the GPU where there is one.
        listeners: are told how the runs go, besides those that `track` names.
        **settings: the options of `bertsmith finetune`, with underscores, such as `epochs` and `label_column`.

    Returns:
        `metrics`: on `test` where there is one, else on `dev`; `model_folder`: the model, or the adapter; `report`: the
        page; `details`: the best epoch, and both evaluations with all details.

    Raises:
        ConfigError: a setting is unknown, impossible, or not for this task.
        InputError: rows are not usable; the message names the file and line, or the row.
        RunFolderError: the run folder holds something else, or cannot be written.
        CheckpointError: the model folder is not usable.
        TrainingStopped: a signal came, and the state is saved.
    """
    given = divided(settings, *_GROUPS, options_of_all_tasks(), command="finetune")
    chosen, options = given[1], given[-1]
    reading, compared = built(ReadingOptions, given[0]), built(ComparisonOptions, given[3])
    for name in ("epochs", "batch_size"):
        if compared.search == PAPER and name in chosen:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag}: --search paper tries several by itself; leave one of the two out")
    recipe = built(FineTuningSettings, chosen)
    if "learning_rate" not in chosen:
        recipe = replace(recipe, learning_rate=usual_rate(task, model, recipe.adapter))
    kind = task_named(task)
    if "batch_size" not in chosen:
        recipe = replace(recipe, batch_size=kind.spec.batch_size)
    further, teaching = built(FurtherOptions, given[2]), built(TeachingOptions, given[4])
    told = [*(built(TrackingOptions, given[5]).listeners() or ()), *listeners]
    _check_comparison(kind, compared, teaching, unlabelled)
    divides = dev is None and unlabelled is None and not compared.folds
    if (unlabelled is None) == (train is None):
        raise ConfigError("give --train, with --dev where you have it, or --unlabelled")
    if reading.time_column is not None and not divides:
        raise ConfigError("--time-column divides a training file by time; leave out --dev and --folds, or this")
    if reading.group_column is not None and not (divides or compared.folds):
        raise ConfigError("--group-column keeps rows of a training file together; leave out --dev, or this")
    named = {"train": train, "dev": dev, "test": test}
    files = {name: source for name, source in named.items() if source is not None}
    folder, notes = Path(out), list[str]()
    # 老师和预测也在这块设备上：它们各自去问，不一路传下去
    with on_device(device) as place:
        with local_sources(files) as local:
            with noted(notes, local.values(), console):
                examples = {
                    name: kind.spec.reader.read(source, reading, task=task, name=name) for name, source in local.items()
                }
            limit = kind.length_limit(model, recipe.max_length)
            reads: dict[str, Any] = {"tokenizer": load_tokenizer(model), "limit": limit}
            looks = tell_files(task, local, examples, reading, console=console, **reads)
        teacher = teaching.teacher
        if teacher is not None and any(one.name == "teacher" for one in fields(kind.spec.options)):
            # 句向量从老师的向量里学，不从标签的分布里学：由任务自己处理
            options["teacher"], teacher = teacher, None
        if unlabelled is not None:
            if isinstance(unlabelled, (str, Path)):
                tell_texts([unlabelled], reading.encoding, console)
            with noted(notes, [unlabelled]):
                pairs = kind.from_documents(unlabelled, options, reading.encoding, recipe.seed)
            # 自己给了 dev 的，就用自己的；文件夹里留出的那份只在没有时才用
            examples = dict(zip(("train", "dev"), pairs, strict=True)) | examples
            files = {"train": unlabelled, "dev": unlabelled} | files
        made = kind.of(examples["train"], **options)
        parts: dict[str, list[int]] = {}
        division = ""
        if divides:
            whole = examples["train"]
            with noted(notes, []):
                parts = held_out(made, whole, recipe.seed, with_test=test is None)
            examples |= {name: [whole[number] for number in numbers] for name, numbers in parts.items()}
            files |= dict.fromkeys(parts, files["train"])
            said = ", ".join(f"{len(numbers):,} for {name}" for name, numbers in parts.items())
            by = "the latest rows held out" if reading.time_column is not None else "classes evenly"
            how_so = f"{name_of(files['train'])} is divided, {by}, equal and almost equal texts together"
            division = f"{how_so}: {said}"
            say(f"no --dev: {division}; see {folder / SPLIT_FILE}", console)
            columns = {"group_column": reading.group_column, "time_column": reading.time_column}
            told_by = {name: column for name, column in columns.items() if column is not None}
            # 同样的行以后还要能拿来评分：行号按文件里例子的次序，从 0 数起
            told.insert(0, _HeldOutRows(folder / SPLIT_FILE, {"seed": recipe.seed, **told_by, **parts}))
        if teaching.teacher_text:
            on_note = None if console is None else partial(say, console=console)
            more = labelled_by_teacher(made, teaching, reading.encoding, on_note)
            examples["train"] = [*examples["train"], *more]
        learned, chooses, scored = (examples.get(name) for name in named)
        assert learned is not None
        if compared.baselines and chooses is None:
            raise ConfigError("--baselines are chosen on the dev file; give --dev")
        how: dict[str, Any] = {"console": console, "device": place}
        start = Path(model)
        if further.adapt:
            if further.adapt_text:
                tell_texts(further.adapt_text, reading.encoding, console)
            start = pretrain_further(
                model, learned, folder, further, encoding=reading.encoding, seed=recipe.seed, **how
            )
        found = (learned, chooses, folder, recipe)
        rest = {"test": scored, "teacher": teacher, "listeners": told, **how}
        result, searched, best = _trained(made, start, found, compared, tuple(chosen), rest)
        # 卡片和报告先写好：基线要算很久，中途停下也不能让训练的结果没有报告
        data = {name: DataFile(name_of(source), len(examples[name])) for name, source in files.items()}
        data |= {name: replace(data[name], name=f"a part of {data[name].name}") for name in parts}
        if chooses is None:
            # 没有 dev 文件：训练文件自己的一份挑轮次
            for name, rows in zip(("train", "dev"), dev_of(made, learned, recipe.seed), strict=True):
                data[name] = DataFile(f"a part of {name_of(files['train'])}", len(rows))
        if teaching.teacher_text:
            taught = ", ".join(map(name_of, teaching.teacher_text))
            data["train"] = replace(data["train"], name=f"{data['train'].name}, and {taught} as the teacher labels it")
        read = FilesRead(looks, division, tuple(notes))
        write_json(folder / READING_FILE, read)
        _write_cards(folder, Path(model), result, best, data, searched, read)
        write_report(folder)
        if compared.baselines:
            assert chooses is not None
            add_baselines(folder, made, learned, chooses, scored, console=console)
            write_report(folder)
    kept = folder / "model" if (folder / "model").is_dir() else folder / "adapter"
    return Result(folder, (result.test or result.dev).metrics, kept, folder / "report.html", result)


@dataclass(frozen=True)
class _HeldOutRows:
    """Writes which rows are held out as training begins: nothing is refused any more, and a kill leaves them there."""

    path: Path
    rows: Mapping[str, Any]

    def started(self, _run: StartedRun) -> None:
        write_json(self.path, self.rows)

    def figures(self, _kind: str, _step: int, _values: Mapping[str, float]) -> None:
        pass

    def artefact(self, _path: Path) -> None:
        pass

    def ended(self, _outcome: Outcome) -> None:
        pass


_GROUPS = (ReadingOptions, FineTuningSettings, FurtherOptions, ComparisonOptions, TeachingOptions, TrackingOptions)


def _check_comparison(
    kind: type[Task[Any, Any]],
    compared: ComparisonOptions,
    teaching: TeachingOptions,
    unlabelled: DataSource | None,
) -> None:
    name = kind.spec.name
    if compared.baselines and not kind.spec.has_baselines:
        known = [name for name, task in all_tasks().items() if task.spec.has_baselines]
        raise ConfigError(f"baselines are for {' and '.join(known)}, not for {name}; leave them out")
    if compared.folds and (not kind.has_folds or unlabelled is not None):
        raise ConfigError(f"--folds needs a training file whose parts can be test files; {name} has none here")
    if compared.folds and teaching.teacher_text:
        raise ConfigError("--folds would take the teacher's labels for the truth; leave --teacher-text out")


def _trained(
    task: Task[Any, Any],
    start: Path,
    found: tuple[Sequence[Any], Sequence[Any] | None, Path, FineTuningSettings],
    compared: ComparisonOptions,
    fixed: tuple[str, ...],
    rest: dict[str, Any],
) -> tuple[FineTuningResult, SearchResult | None, FineTuningSettings]:
    """Trains once, or as often as the comparison asks; returns the best run, the search, and the settings of that."""
    learned, chooses, folder, settings = found
    if compared.folds:
        searched = cross_validate(task, start, learned, chooses, folder, settings, folds=compared.folds, **rest)
    elif chooses is not None and (compared.search is not None or compared.seeds > 1):
        tried: dict[str, Any] = {}
        if compared.search == PAPER:
            tried["grid"] = paper_grid(settings.learning_rate)
        elif compared.search == OPTUNA:
            # 适配器冻结了编码器：逐层的学习率无从谈起
            given = (*fixed, "layer_decay") if settings.adapter else fixed
            tried = {"space": usual_space(settings.learning_rate, fixed=given), "trials": compared.trials or TRIALS}
        searched = search(task, start, learned, chooses, folder, settings, seeds=compared.seeds, **tried, **rest)
    else:
        assert chooses is not None
        return fine_tune(task, start, learned, chooses, folder, settings, **rest), None, settings
    place = folder / RUNS / searched.best
    asked = read_json(place / "finetune.json", dict[str, Any], RunFolderError, "choose another --out")
    result = FineTuningResult.load(place / "result.json")
    return result, searched, from_json(FineTuningSettings, asked["settings"])


def evaluate(
    model: str | Path,
    data: DataSource,
    *,
    adapter: str | Path | None = None,
    precision: str = "auto",
    device: torch.device | str | None = None,
    only: Part | None = None,
    console: Console | None = None,
    **reading: Any,
) -> Result[Evaluation]:
    """Scores a fine-tuned model on labelled rows, with the thresholds that its run found.

    Examples:
        >>> import bertsmith
        >>> rows = [{"text": "a lovely story", "label": "good"}, {"text": "a dull story", "label": "bad"}]
        >>> found = bertsmith.evaluate("tuned/model", rows)
        >>> 0 <= found.metrics["accuracy"] <= 1, sorted(found.details.classes)
        (True, ['bad', 'good'])

    Args:
        model: the model folder that `finetune` made, or its name on the Hub; any encoder is scored for its vectors.
        data: labelled rows, as in `finetune`.
        adapter: the folder of an adapter over that model.
        precision: of the matmuls: `auto`, `bf16`, `float32` or `int8`.
        device: None takes the GPU where there is one.
        only: `words` or `encoder`: one part of a folder of `bertsmith solve`.
        console: shows what was read; silent when None.
        **reading: how the rows are read: `text_column`, `label_column` and so on, as in `finetune`.

    Returns:
        `metrics`; `details`: intervals, scores by class, the confusion matrix, and the worst mistakes.

    Raises:
        ConfigError: an option is unknown or not for this task, or the precision is.
        CheckpointError: the folder holds no fine-tuned model.
        InputError: the rows are not usable, or do not fit the model.
    """
    (given,) = divided(reading, ReadingOptions, command="evaluate")
    options = built(ReadingOptions, given)
    if only is not None and adapter is not None:
        raise ConfigError("--only is for folders of bertsmith solve, which have no adapter; leave one of the two out")
    described = Path(model if adapter is None else adapter)
    with on_device(device) as place:
        task, max_length = task_of_model(described)
        # 这里的 auto 不测量：同一个文件的分数不该随机器的忙闲而变
        inference = InferenceConfig(place, None if precision == "auto" else cast("Precision", precision), max_length)
        is_solved = adapter is None and (only is not None or (model_folder(described) / WORDS_FILE).exists())
        reads: dict[str, Any] = {}
        with local_sources({"data": data}) as local:
            with noted([], [], console):
                examples = task.spec.reader.read(local["data"], options, task=task.name)
            if not is_solved:
                reads = {"tokenizer": load_tokenizer(model), "limit": inference.length_for(ModelConfig.load(model))}
            if console is not None:
                tell_files(task.name, local, {"data": examples}, options, console=console, **reads)
        if is_solved:
            pipeline = load_pipeline(task.name, described, precision=inference.precision, device=place, only=only)
            predictions = task.predicted(pipeline, examples)
        else:
            scored = task.load(described) if adapter is None else load_adapted(model, adapter)
            predictions = task.predict(scored, reads["tokenizer"], examples, inference)
        found = task.scored(examples, predictions)
    return Result(Path(model), found.metrics, Path(model), None, found)


def usual_rate(task: str, model: str | Path, adapter: str | None) -> float:
    """Returns a peak learning rate to begin with: small models and fresh weights bear more."""
    config = ModelConfig.load(model)
    return task_named(task).spec.usual_rate(adapter, hidden_size=config.hidden_size, family=config.family.model_type)


def _write_cards(
    out: Path,
    base: Path,
    result: FineTuningResult,
    settings: FineTuningSettings,
    files: Mapping[str, DataFile],
    searched: SearchResult | None,
    read: FilesRead,
) -> None:
    # 适配器没有自己的词表和结构：它的卡片按主干来写
    whose: dict[Path, dict[str, Any]] = {
        out / "model": {"model_folder": out / "model"},
        out / "adapter": {"model_folder": base, "adapter": out / "adapter"},
    }
    for folder, described in whose.items():
        # 同样的文件夹只会得到同样的卡片：已有的可能是用户改过的，不覆盖
        if folder.is_dir() and not (folder / "README.md").exists():
            # 用户没有说长度时，起点的文件夹可能说了：写实际读的
            task, length = load_task(folder)
            told: dict[str, Any] = {"base": str(base), "files": files, "searched": searched, "read": read, **described}
            card = model_card(result, task, replace(settings, max_length=length), **told)
            write_text(folder / "README.md", card)
