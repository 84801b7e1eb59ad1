"""The best answer for labels: simple and costly methods tried in the order of cost, then the best two together.

    majority    the commonest class, or the mean
    words       a linear model over n-grams, or a chain over tags (`finetune.words`): seconds
    frozen      a linear model over frozen states of each given encoder (Devlin et al. 2019, §5.3): one pass over texts
    contrastive of few texts with classes: the same over an encoder in which texts of one class were pulled together
                and others apart (Tunstall et al. 2022, §3)
    fine-tuned  the encoder whose features did best; and one that learned from the text: the same encoder adapted to it
                where it is of use, else one from nothing
    together    the outputs of words and of the best encoder, with weights that dev chose

Vectors hold no words: their answer is an encoder, and its weight beside BM25, which `bertsmith index` takes from
`task.json`. An encoder is tried as it is in place of frozen features.

Dev is used for every choice; test is scored once, with the final model. Of few labels none are set aside for dev: each
of five parts is held out in turn, and what is kept has learned from all. Each stage leaves something whole, and how
many rows and epochs fit into the time is kept before it begins; so the same command resumes where it was stopped.
`model/` is the answer (words, or an encoder with words beside it), `parts/` what each method left, `text/` the labelled
texts for pre-training, `label_next.csv` the rows to label next; `tries.json`, `solve.json` and `split.json` keep the
rest.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from bertsmith.data.reading.lines import require_file
from bertsmith.data.reading.records import FileNames
from bertsmith.data.reading.sources import find_text_files, is_url, text_endings
from bertsmith.errors import BertsmithError, ConfigError, RunFolderError
from bertsmith.files import atomic_path, claim_folder, read_json, working_in, write_json, write_text
from bertsmith.finetune.datasets import DataSource, ReadingOptions, local_sources, name_of
from bertsmith.finetune.datasets.texts import ScoredText
from bertsmith.finetune.job import SPLIT_FILE, usual_rate
from bertsmith.finetune.languages import WITHOUT_SPACES, scripts_in
from bertsmith.finetune.linear import Floats, in_order
from bertsmith.finetune.reading import FilesRead, noted
from bertsmith.finetune.run import digest_of, fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import load_task, save_task
from bertsmith.finetune.tasks.classify import ClassificationOptions, ClassificationTask, TextTask
from bertsmith.finetune.tasks.embed import EmbeddingTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.task import AdditiveTask, Evaluation, OutputsTask, fingerprints, leaks
from bertsmith.finetune.words import CHANCE, is_beyond_chance, majority, mix_of, train_linear, train_states, train_words
from bertsmith.hub import model_folder
from bertsmith.inference import load_pipeline
from bertsmith.inference.classify import REGRESSION, sequence_rows
from bertsmith.inference.embed import READS, Embed, Pooling, copy_sentence_files
from bertsmith.inference.engine import DEFAULT, InferenceConfig
from bertsmith.inference.linear import LinearPipeline, Mix, read_words
from bertsmith.inference.pipeline import require_pairs
from bertsmith.inference.task_file import TASK_FILE, stated_length
from bertsmith.inference.words import Words
from bertsmith.journeys.adapt import adapt
from bertsmith.journeys.labelled import SHAPES, LabelledRows, can_score, read_rows
from bertsmith.journeys.more_labels import FEWEST as LEAST_OF_CURVE
from bertsmith.journeys.more_labels import Curve, in_a_sentence, label_curve, label_next, write_rows
from bertsmith.journeys.quickstart import quickstart
from bertsmith.journeys.searching import SearchTask
from bertsmith.journeys.solved import Solved, Try, cells_of, solved_page
from bertsmith.journeys.source import text_files
from bertsmith.kernels.layers import best_device, on_device
from bertsmith.model import Backbone, ModelConfig
from bertsmith.model.folder import fingerprint_weights
from bertsmith.objectives import objective_named
from bertsmith.reporting.progress import say
from bertsmith.retrieval.dense import USUAL_WEIGHT
from bertsmith.seeding import generator
from bertsmith.settings import Checked, Result, built, divided, option
from bertsmith.tokenizer import load_tokenizer

SUGGESTED = ("classify", "multilabel", "answer", "choose")
"""Those whose predictions have probabilities, by which rows to label next are chosen."""
LABEL_NEXT = "label_next.csv"

CONTRASTIVE = FineTuningSettings(batch_size=8, learning_rate=1e-4)
"""How texts of a class are pulled together; chosen on SST-2's dev file, as is how often."""
LEAST_PULLED = 50
"""Rows; of 16 the frozen states were better on dev, of 64 and of 256 worse."""
PULLED = 320
"""Texts of a class that are pulled together, each 3 to 5 times."""
STEPS = 1200
"""Steps of fine-tuning that few labels get, in at most 20 epochs; many labels get three epochs, as in the paper."""
MOST_STATES = 250_000_000
"""Numbers of frozen states in memory at once: 1 GB."""
WEIGHTS = tuple(tenth / 10 for tenth in range(11))
"""Of vectors beside words in a search, to choose from."""
TOO_LATE = "not tried: too little time is left"
PRETRAINING_SHARE = 0.7
"""Of the time that is left; fine-tuning gets the rest."""
LEAST_PRETRAINING = 60.0
"""Seconds below which nothing is learned from text."""
TIMED_ROWS = 64
"""Rows that tell how long the others will take."""
TIMED_TEXTS = 512
"""Texts of which the milliseconds are shown."""
SHOWN = 12
"""Texts in the table of those of which the parts differ."""
MOST_SEEDS = 3
"""Seeds of the best encoder at most: with each, what dev can still tell apart gets less."""
CHINESE_PIECES = 16_384
"""Pieces longer than a character, for scripts without spaces: half as many pieces a text as characters."""
LEAST_ROWS = 0.25
"""An epoch over a smaller share of the rows is not worth its time."""


@dataclass(frozen=True)
class SolveOptions(Checked):
    """What is asked for, besides how the files are read."""

    panel: ClassVar[str] = "What is tried"

    task: str | None = option(None, help=f"{', '.join(SHAPES)}; default: by the labels.")
    minutes: float = option(10.0, min=0.01, help="Minutes for all together; words take seconds and always run.")
    seed: int = option(0, help="Random seed.")
    suggest: int = option(50, min=1, help="Rows of --unlabelled to label next.")


@dataclass(frozen=True)
class Plan:
    """What was decided before an encoder was trained: on how many rows, how often."""

    rows: int
    epochs: int


@dataclass
class Notes:
    """What is kept while the methods are tried."""

    tries: dict[str, Try] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    minutes: dict[str, float] = field(default_factory=dict)


def solve(
    train: DataSource,
    out: str | Path = "runs/solve",
    *,
    dev: DataSource | None = None,
    test: DataSource | None = None,
    text: FileNames = (),
    model: str | Path | Sequence[str | Path] = (),
    unlabelled: str | Path | None = None,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[Solved]:
    """Finds the best answer for labelled texts or words: a linear model, an encoder, or both together.

    Examples:
        >>> import bertsmith
        >>> rows = [{"text": "a warm and lovely story", "label": "good"}, {"text": "a dull story", "label": "bad"}] * 8
        >>> solved = bertsmith.solve(rows, "solved", dev=rows)
        >>> solved.details.answer, solved.metrics["accuracy"]
        ('words', 1.0)

    Args:
        train: a labelled file or its URL, or rows in memory; as are `dev` and `test`. Without `dev`, parts of `train`
            are held out for both; of fewer than 500 rows each fifth in turn, and none for test.
        out: the folder; the same call resumes where it was broken off.
        dev: used for every choice.
        test: scored once, with the final model.
        text: files or folders of text without labels, to which the best encoder is adapted, or from which one is
            pre-trained.
        model: encoders to try: folders, or names on the Hub.
        unlabelled: a file of rows without labels: those that would teach most are written to `label_next.csv`.
        console: gets a line for each method; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith solve`, with underscores: `minutes`, `task`, `label_column` and so on.

    Returns:
        `metrics` on test, else on dev; `model_folder`: the answer, which `load_pipeline` takes; `report`: the page;
        `details`: a `Solved`.

    Raises:
        InputError: rows are not usable; the message names the file and line.
        BertsmithError: a setting is impossible, the task has another shape, or the folder is not usable.
        TrainingStopped: a signal came, and the state is saved.
    """
    reading, chosen, given = divided(settings, ReadingOptions, SolveOptions, ClassificationOptions, command="solve")
    options = built(SolveOptions, chosen)
    folder, models = Path(out), [str(one) for one in ([model] if isinstance(model, (str, Path)) else model)]
    if len(set(models)) < len(models):
        raise ConfigError("--model names a folder twice; name each once")
    named = {"train": train, "dev": dev, "test": test}
    # 生成器只能读一遍，而标签的形状与内容各要读一遍
    sources = {name: list(one) if isinstance(one, Iterator) else one for name, one in named.items() if one is not None}
    with on_device(device), working_in(folder, "tries.json", "parts/*"):
        asked = built(ReadingOptions, reading)
        notes = list[str]()
        with local_sources(sources) as local, noted(notes, local.values(), console):
            console = console or Console(quiet=True)
            rows = read_rows(local, asked, options.task, given, options.seed, console, bool(text or models))
        if unlabelled is not None:
            if rows.task.name not in SUGGESTED:
                raise ConfigError(f"--unlabelled: a prediction of {rows.task.name} has no probability; leave it out")
            if not is_url(str(unlabelled)):
                require_file(Path(unlabelled))
        files = text_files(text) if text else []
        # 只记名字和大小，不打开：文本改过之后，同一条命令不能当作续训；输出的文件夹可以就在文本旁边
        found = find_text_files(files, text_endings()) if files else []
        own = [file for file in found if folder.resolve() not in file.resolve().parents]
        kind = _VectorJob if isinstance(rows.task, EmbeddingTask) else _Job
        job = kind(rows, folder, options, files, models, console)
        request = {
            "task": {"task": rows.task.name, **rows.task.describe()},
            "minutes": options.minutes,
            "seed": options.seed,
            "text": [[str(file.resolve()), file.stat().st_size] for file in own],
            "models": [fingerprint_weights(one) for one in models],
            **{name: digest_of(part) for name, part in rows.parts.items()},
            **({"folds": rows.folds} if rows.folds else {}),
        }
        # 已经上了锁：只有一份申请的文件夹算是空的，别人可能正在里面准备
        claim_folder(folder, "solve.json", request)
        if rows.split:
            write_json(folder / SPLIT_FILE, {"seed": options.seed, **rows.split})
        solved = job.finish(name_of(train), FilesRead(rows.looks, notes=tuple(notes)))
        if unlabelled is not None:
            write_rows(label_next(folder / "model", unlabelled, options.suggest, asked), folder / LABEL_NEXT)
    return Result(folder, (solved.test or solved.dev).metrics, folder / "model", folder / "report.html", solved)


class _Job:
    """The methods in their folder, from what is there to the end."""

    def __init__(
        self,
        rows: LabelledRows,
        folder: Path,
        options: SolveOptions,
        text: Sequence[str],
        models: Sequence[str],
        console: Console,
    ) -> None:
        self.task, self.folder, self.options, self.text = rows.task, folder, options, text
        short = [Path(model).resolve().name if Path(model).is_dir() else model for model in models]
        numbered = [f"{name} {place}" for place, name in enumerate(short, 1)]
        # 名字也是文件夹的名字：my_bert 与 my-bert 会落在同一处，后者就读到前者的输出
        called = next((each for each in (short, models) if len(set(map(_file_name, each))) == len(each)), numbered)
        self.models: dict[str, str | Path] = dict(zip(called, models, strict=True))
        self.train, self.test, self.folds = rows.parts["train"], rows.parts.get("test"), rows.folds
        self.dev = rows.parts.get("dev", self.train)
        self.held = "folds" if self.folds else "dev"
        self.console = console
        self.shown = console if console.is_terminal else None
        notes = folder / "tries.json"
        self.notes = read_json(notes, Notes, RunFolderError, "choose another --out") if notes.exists() else Notes()
        self.outputs: dict[str, Tensor] = {}
        self.weighed: dict[str, tuple[Mix, Floats]] = {}
        self.tuned: dict[str, str] = {}
        """Fine-tuned encoders → which of `models` each began with."""

    def finish(self, source: str, read: FilesRead) -> Solved:
        """Tries what is left, puts the answer into its folder, and writes the report."""
        done = self.folder / "result.json"
        if done.exists():
            return read_json(done, Solved, RunFolderError, "remove it or choose another --out")
        # 分折时，留出的行本来就是训练文件的行
        held = {} if self.folds else {"dev": self.dev}
        for line in leaks(self.train, {**held, "test": self.test or ()}):
            say(f"warning: {line}", self.console)
        self._do("majority", self._majority)
        self._do("words", self._words)
        for called in self.models:
            self._frozen(called)
        best = self._best([name for name in self.outputs if name.startswith("frozen ")])
        for called in self.models:
            if best in ("", f"frozen {called}"):
                self._contrastive(called)
                self._encoder(f"fine-tuned {called}", called)
                continue
            # 特征已经输得超出偶然：调它只会占掉赢家的时间
            note = f"not tried: its features do worse than those of {best.removeprefix('frozen ')}"
            worse = Try(f"fine-tuned {called}", note=note)
            self._do(worse.name, lambda _, found=worse: found)
        if self.text:
            self._from_text()
        self._more_seeds()
        solved = replace(self._together(), curve=self._curve())
        # 结果最后写：有了它，同一条命令就不再补画报告
        sizes = {"train": len(self.train), self.held: len(self.dev), "test": len(self.test or ())}
        page = solved_page(
            solved, source, read, self.folder, self.task, sizes, len(set(self.folds)), self._apart(solved)
        )
        write_text(self.folder / "report.html", page)
        write_json(done, solved, checked=True)
        return solved

    def _apart(self, solved: Solved) -> Sequence[tuple[str, ...]]:
        """Returns the texts of dev of which words and encoder disagree most, where the answer is both."""
        if not all(solved.mix[:2]) or not isinstance(self.task, AdditiveTask):
            return ()
        best = solved.answer.removeprefix("words + ")
        pipeline = load_pipeline(self.task.name, self.folder / "model", only="words")
        outputs, weights = (self.outputs["words"], self.outputs[best]), (solved.mix[1], solved.mix[0])
        return self.task.apart(pipeline, self.dev, outputs, weights, SHOWN)

    def _more_seeds(self) -> None:
        """Fine-tunes the best encoder again with other seeds, while there is time; dev takes the best of them."""
        best = self._best([name for name in self.tuned if name in self.outputs])
        # 留出法要训六次：时间不够再换种子
        if not best or self.folds:
            return
        for seed in range(1, MOST_SEEDS):
            name = f"{best}, seed {seed}"
            # 开始之前先记下：中断后再来，试的还是这几个
            if name in self.notes.plans or self.left > self.notes.tries[best].seconds:
                self.notes.plans.setdefault(name, self.notes.plans[best])
                self._keep()
                self._encoder(name, self.tuned[best], seed)

    @property
    def additive(self) -> AdditiveTask[Any, Any]:
        """The task, whose outputs can be added up."""
        return cast("AdditiveTask[Any, Any]", self.task)

    @property
    def left(self) -> float:
        """Seconds of the time that are not spent."""
        return 60 * self.options.minutes - sum(one.seconds for one in self.notes.tries.values())

    def _do(self, name: str, work: Any) -> None:
        """Runs a method that has not run yet, and keeps what it came to."""
        path = self.folder / "parts" / _file_name(name)
        if name not in self.notes.tries:
            begun = time.monotonic()
            try:
                found: Try = work(path)
            except BertsmithError as error:
                found = Try(name, note=f"did not run: {error}")
            found = replace(found, seconds=round(max(found.seconds, time.monotonic() - begun), 2))
            self.notes.tries[name] = found
            self._keep()
            for part in set(self.folds):
                shutil.rmtree(_of_part(path, part), ignore_errors=True)
            self._tell(found)
        if (path / "dev.npy").exists():
            self.outputs[name] = torch.from_numpy(np.load(path / "dev.npy", allow_pickle=False))

    def _keep(self) -> None:
        write_json(self.folder / "tries.json", self.notes)

    def _tell(self, found: Try) -> None:
        cells = cells_of(found, self.task.metric)
        say(" · ".join(cell for cell in cells if cell), self.console)

    def _came_to(self, name: str, found: Evaluation, **more: Any) -> Try:
        return Try(name, found.metrics[self.task.metric], found.intervals.get(self.task.metric), **more)

    def _majority(self, _path: Path) -> Try:
        """Scores the commonest class, the share of each label, or the mean: outputs that no text changes."""
        pipeline = self.task.pipeline(majority(self.additive, self.train), cast("Any", None), DEFAULT)
        outputs = self.task.outputs(pipeline, self.dev)
        task = self.task.decided(pipeline, outputs, self.dev)
        return self._came_to("majority", task.evaluate(self.dev, task.told(pipeline, outputs, self.dev)))

    def _words(self, path: Path) -> Try:
        path.mkdir(parents=True, exist_ok=True)
        words, fit = train_linear(self.additive, self.train, None if self.folds else self.dev, folds=self.folds)
        words.save(path)
        save_task(self.task, path, 0)
        note = f"strength {fit.strength:g}, {len(words.features):,} features"
        if fit.rows is not None:
            note += f", {fit.rows:,} of {len(self.train):,} rows"
        return self._measured("words", path, path, note, fit.outputs)

    def _frozen(self, called: str) -> None:
        """Trains a linear model over the states of an encoder, which are of whole texts."""
        task, name = self.task, f"frozen {called}"
        if not isinstance(task, TextTask):
            return

        def work(path: Path) -> Try:
            states = _States(task, self.models[called])

            def fitting() -> Plan | None:
                few = self._rows(min(len(self.train), TIMED_ROWS))
                begun = time.monotonic()
                states(few)
                each = (time.monotonic() - begun) / len(few)
                rows = int(self.left / each) - (0 if self.folds else len(self.dev))
                count = min(len(self.train), rows, MOST_STATES // states.width)
                least = len(self.train) if self.folds else LEAST_ROWS * len(self.train)
                return Plan(count, 1) if count >= least else None

            plan = self._planned(name, fitting)
            if plan is None:
                return Try(name, note=TOO_LATE)
            rows = self._rows(plan.rows)
            held, dev = (None, None) if self.folds else (states(self.dev), self.dev)
            words, fit = train_states(task, states.pooling, states(rows), rows, held, dev, folds=self.folds)
            states.save(path / "model", words)
            note = f"strength {fit.strength:g}, {states.pooling}{self._some(plan)}"
            return self._measured(name, path, path / "model", note, fit.outputs)

        self._do(name, work)

    def _contrastive(self, called: str) -> None:
        """Pulls texts of one class together and others apart, then trains a linear model over their states."""
        task, name = self.task, f"contrastive {called}"
        # 一批里的每一对都是一个例子：几十条标签就有上千对可学，而分类头只有几十条
        if not (self.folds and isinstance(task, ClassificationTask)) or task.paired:
            return
        self.tuned[name] = called

        def work(path: Path) -> Try:
            if len(self.train) < LEAST_PULLED:
                return Try(name, note=f"not tried: {len(self.train)} rows are too few for it")
            times = max(3, min(5, PULLED // len(self.train)))
            settings = replace(CONTRASTIVE, epochs=times, seed=self.options.seed)
            # 特征读的是文本本身，调的时候也不加文件夹里的提示词
            pulling = EmbeddingTask.of(self.train, query_prompt="", passage_prompt="")
            plan = self._planned(name, lambda: self._fitting(pulling, self.models[called], settings))
            if plan is None or plan.epochs < times:
                return Try(name, note=TOO_LATE)
            strengths = []

            def pulled(rows: Sequence[Any], place: Path) -> _States:
                # 每轮都要存一次权重，比这几步还久：把几轮并作一轮
                once = replace(settings, epochs=1)
                fine_tune(pulling, self.models[called], [*rows] * times, rows, place, once, device=best_device())
                return _States(task, place / "model", pulling.starting_from(place / "model").pooling)

            def learned(learn: Sequence[Any], own: Sequence[Any], place: Path) -> Tensor:
                states = pulled(learn, place)
                _, fit = train_states(task, states.pooling, states(learn), learn, states(own), own)
                strengths.append(fit.strength)
                return fit.outputs

            outputs = self._by_folds(path, learned)
            assert outputs is not None
            states = pulled(self.train, path / "pulled")
            # 强度取各份所选的几何平均：在学过的文本上再选，总会选得太弱
            strength = float(np.exp(np.log(strengths).mean()))
            given = (task, states.pooling, states(self.train), self.train, None, None, [strength])
            words, _ = train_states(*given, folds=self.folds)
            states.save(path / "model", words)
            shutil.rmtree(path / "pulled")
            note = f"each text {times} times, strength {strength:.3g}, {states.pooling}"
            return self._measured(name, path, path / "model", note, outputs)

        self._do(name, work)

    def _measured(self, name: str, path: Path, model: Path, note: str, outputs: Tensor) -> Try:
        """Scores outputs for what was held out, and keeps them; times the folder that they are of."""
        pipeline = load_pipeline(self.task.name, model)
        speed = self._speed(pipeline)
        # 门槛也由留出的部分定：这一份单独用时，得分与报告里说的一致
        kept, length = load_task(model)
        task = cast("OutputsTask[Any, Any]", kept).decided(pipeline, outputs, self.dev)
        save_task(task, model, length)
        with atomic_path(path / "dev.npy") as temporary, temporary.open("wb") as file:
            np.save(file, outputs.numpy(), allow_pickle=False)
        found = task.evaluate(self.dev, task.told(pipeline, outputs, self.dev))
        return self._came_to(name, found, size=_size(model), milliseconds=speed, note=note)

    def _speed(self, pipeline: Any) -> float:
        """Returns the milliseconds that a pipeline takes for a text."""
        some = self.dev[:TIMED_TEXTS]
        begun = time.monotonic()
        self.task.outputs(pipeline, some)
        return round(1000 * (time.monotonic() - begun) / len(some), 3)

    def _encoder(self, name: str, called: str, seed: int = 0) -> None:
        """Fine-tunes a folder as far as the time allows, and where folds say that it pays beside its frozen states."""
        start, frozen = self.models[called], f"frozen {called}"
        self.tuned[name] = called

        def work(path: Path) -> Try:
            batch_size = self.task.spec.batch_size
            settings = FineTuningSettings(
                epochs=max(3, min(20, -(-STEPS * batch_size // len(self.train)))),
                batch_size=batch_size,
                learning_rate=usual_rate(self.task.name, start, None),
                seed=self.options.seed + seed,
            )
            few = self.folds and len(self.train) < self.task.least_tuned
            # 已经学过这些标签的编码器，例子再少也值得试
            if few and self.task.fresh_because(model_folder(start), settings):
                return Try(name, note=f"not tried: {len(self.train)} rows are too few for it")
            plan = self._planned(name, lambda: self._fitting(self.task, start, settings))
            if plan is None:
                return Try(name, note=TOO_LATE)
            settings = replace(settings, epochs=plan.epochs)
            how: dict[str, Any] = {"console": self.shown, "device": best_device()}
            results = []

            def learned(learn: Sequence[Any], own: Sequence[Any], place: Path) -> Tensor:
                results.append(fine_tune(self.task, start, learn, own, place, settings, **how))
                return self._outputs(place / "model", own)

            told = None
            if self.folds:
                # 六次训练太贵：第一份都赢不了冻结的特征，就到此为止
                told = self._by_folds(path, learned, frozen)
                if told is None:
                    return Try(
                        name, note=f"stopped: no better than {frozen} on the first of {len(set(self.folds))} parts"
                    )
                # 全部数据上再训一次：没有留出的部分来选轮数，用各折选出的平均
                settings = replace(settings, epochs=max(1, round(float(np.mean([one.epoch for one in results])))))
            results.append(fine_tune(self.task, start, self._rows(plan.rows), self.dev, path, settings, **how))
            if told is None:
                told = self._outputs(path / "model", self.dev)
            note = f"epoch {results[-1].epoch} of {settings.epochs}{self._some(plan)}"
            found = self._measured(name, path, path / "model", note, told)
            return replace(found, seconds=sum(one.seconds for one in results))

        self._do(name, work)

    def _by_folds(
        self, path: Path, learned: Callable[[Sequence[Any], Sequence[Any], Path], Tensor], against: str = ""
    ) -> Tensor | None:
        """Returns outputs for each row by what learned from the other parts; None where the first is not ahead.

        `learned` trains on the first rows in a folder, and returns outputs for the second; `against` is the method that
        must be beaten on the first part.
        """
        folds, outputs = np.asarray(self.folds), []
        for number in np.unique(folds):
            part = np.flatnonzero(folds == number)
            learn, own = ([self.train[n] for n in one] for one in (np.flatnonzero(folds != number), part))
            outputs.append(learned(learn, own, _of_part(path, number)))
            if len(outputs) == 1 and not self._gains(own, part, outputs[0], against):
                return None
        return in_order(torch.cat(outputs), self.task.rows(self.train), folds)

    def _gains(self, examples: Sequence[Any], part: Any, outputs: Tensor, other: str) -> bool:
        """Tells whether outputs for a part score better than another method did; True where that has not run."""
        if other not in self.outputs:
            return True
        kind: Any = load_pipeline(self.task.name, self.folder / "parts" / "words")
        both = (outputs, self.outputs[other][torch.from_numpy(part)])
        ours, theirs = (self.task.metrics(examples, kind.told(one))[self.task.metric] for one in both)
        return ours > theirs

    def _outputs(self, model: Path, examples: Sequence[Any]) -> Tensor:
        # 向量的提示词写在文件夹里
        return self.task.starting_from(model).outputs(load_pipeline(self.task.name, model), examples)

    def _some(self, plan: Plan) -> str:
        return "" if plan.rows == len(self.train) else f", {plan.rows:,} of {len(self.train):,} rows"

    def _rows(self, count: int) -> list[Any]:
        if count == len(self.train):
            return self.train
        order = generator(self.options.seed, "solve/rows").permutation(len(self.train))[:count]
        return [self.train[number] for number in sorted(order.tolist())]

    def _planned(self, name: str, fitting: Callable[[], Plan | None]) -> Plan | None:
        """Returns what was decided for a method, now or before it was interrupted; None where the time is too short."""
        if name not in self.notes.plans and (plan := fitting()) is not None:
            self.notes.plans[name] = plan
            self._keep()
        return self.notes.plans.get(name)

    def _fitting(self, task: OutputsTask[Any, Any], start: str | Path, settings: FineTuningSettings) -> Plan | None:
        """Times a few steps, and returns how many rows and epochs fit into the time, at most those of the settings."""
        count = len(self.train)
        with tempfile.TemporaryDirectory(prefix="bertsmith-") as place:
            few = self._rows(min(count, TIMED_ROWS))
            if not can_score(task, few):
                # 稀有的类可能一行也没抽到，试跑就会被拒：补上一行
                few += next(([one] for one in self.train if can_score(task, [*few, one])), [])
            begun = time.monotonic()
            quick = replace(settings, epochs=1)
            seconds = fine_tune(task, start, few, few, place, quick, device=best_device()).seconds
            # 试跑与正式的各载入、保存一次
            left = self.left - 2 * (time.monotonic() - begun - seconds)
        # 每轮还要在 dev 上评一次分，一行约为训练的三分之一
        each, scoring = seconds / len(few), seconds / len(few) * len(self.dev) / 3
        if self.folds:
            left /= len(set(self.folds)) + 1
        if left >= (epoch := each * count + scoring):
            return Plan(count, min(settings.epochs, int(left / epoch)))
        rows = int((left - scoring) / each)
        return Plan(rows, 1) if rows >= LEAST_ROWS * count and not self.folds else None

    def _from_text(self) -> None:
        """Adapts the best encoder to the text and the labelled texts, or pre-trains one; then tunes it."""
        best = self._best([name for name in self.outputs if name != "words"])
        # 编码器对答案有用，就接着它学（Gururangan 等，2020）；没用（如另一种语言的）或学不了，才从零开始
        if best and self._mixes([best])[best][0][0]:
            encoder = best.split(" ", 1)[1]
            if self._learned(f"adapted {encoder}", f"{encoder} adapted", self.models[encoder]):
                return
        self._learned("pre-trained from nothing", "from nothing", None)

    def _learned(self, name: str, called: str, start: str | Path | None) -> bool:
        """Learns from the text, and tunes what came of it; False where the start cannot."""
        place = self.folder / "parts" / _file_name(called)

        def learned(_path: Path) -> Try:
            seconds = self.notes.minutes.get(name, PRETRAINING_SHARE * self.left / 60) * 60
            if seconds < LEAST_PRETRAINING:
                return Try(name, note=TOO_LATE)
            self.notes.minutes[name] = round(seconds / 60, 2)
            self._keep()
            own = self.folder / "text" / "labelled.txt"
            if not own.exists():
                texts = dict.fromkeys(" ".join(text.split()) for one in self.train for text in one.texts)
                write_text(own, "\n\n".join(text for text in texts if text) + "\n")
            how: dict[str, Any] = {
                "minutes": self.notes.minutes[name],
                "console": self.shown,
                "seed": self.options.seed,
                "device": best_device(),
            }
            files = [*self.text, str(own)]
            if start is not None:
                if objective_named(ModelConfig.load(start).family.objective).needs.pairs != "none":
                    # 带标签的文本各自独立：没有真正的下一句
                    how["objective"] = "mlm"
                with warnings.catch_warnings():
                    # 句向量会不会变差，由开发集说
                    warnings.filterwarnings("ignore", message=".*is a sentence encoder")
                    loss = adapt(start, files, place, **how).metrics["loss_after"]
                return Try(name, seconds=seconds, note=f"held-out loss {loss:.2f}")
            letters = (text for one in self.train for text in one.texts)
            if next(iter(scripts_in(letters)), "") in WITHOUT_SPACES and util.find_spec("tokenizers"):
                # 不用空格分词的文字：比单字长的词片让同样的时间读到多一倍的文本
                how |= {"tokenizer": "unigram", "vocab_size": CHINESE_PIECES}
            made = quickstart(files, place, **how)
            loss, known = made.metrics["mlm_loss"], made.metrics["unigram_entropy"]
            said = f"masked-LM loss {loss:.2f}; {known:.2f} by word frequencies alone"
            return Try(name, seconds=made.details.pretraining.seconds, note=said)

        self._do(name, learned)
        if (place / "model" / "config.json").exists():
            self.models[called] = place / "model"
            self._frozen(called)
            self._encoder(f"fine-tuned {called}", called)
            return True
        return self.notes.tries[name].note == TOO_LATE

    def _mixes(self, names: Sequence[str]) -> dict[str, tuple[Mix, Floats]]:
        """Returns for each encoder how it is weighed beside words, and the losses of dev with it."""
        for name in names:
            if name not in self.weighed:
                self.weighed[name] = self._mix(name)
        return {name: self.weighed[name] for name in names}

    def _mix(self, name: str) -> tuple[Mix, Floats]:
        task, target = self.additive, [getattr(one, "score", None) for one in self.dev]
        truth = target if task.problem == REGRESSION else task.targets(self.dev)
        # 标签太少时似然分不出高下，而编码器事先就懂得多：要词显著更好才只用词
        slack = -CHANCE if self.folds else CHANCE
        return mix_of(task.problem, self.outputs[name], self.outputs["words"], truth, slack)

    def _best(self, names: Sequence[str]) -> str:
        """Returns the encoder that does best beside words; empty for none."""
        mixes = self._mixes(names)
        for name, called in self.tuned.items():
            frozen = f"frozen {called}"
            # 微调几乎总胜过它自己冻结的特征：留出的部分明确说不，才信相反的
            if {name, frozen} <= mixes.keys() and not is_beyond_chance(mixes[frozen][1], mixes[name][1]):
                del mixes[frozen]
        return min(mixes, key=lambda name: float(mixes[name][1].sum()), default="")

    def _together(self) -> Solved:
        """Weighs the best encoder beside words, and makes a folder of what is worth keeping."""
        names = [name for name in self.outputs if name != "words"]
        best, mix = self._best(names), (0.0, 1.0, 0.0)
        if best:
            mix = self._mixes([best])[best][0]
        answer = "words" if not mix[0] else best if not mix[1] else f"words + {best}"
        target = self.folder / "model"
        shutil.rmtree(target, ignore_errors=True)
        begun = time.monotonic()
        with atomic_path(target) as made:
            task, predictions, speed = self._kept(made, best, mix)
            size = _size(made)
        test, learned = None, fingerprints(self.train)
        found = task.scored(self.dev, predictions, () if self.folds else learned)
        if self.test is not None:
            pipeline = load_pipeline(self.task.name, target)
            test = task.scored(self.test, task.predicted(pipeline, self.test), learned)
        shares = f"encoder {mix[0]:.3g}, words {mix[1]:.3g}" if all(mix[:2]) else "one part is enough"
        cost = {"seconds": time.monotonic() - begun, "size": size, "milliseconds": speed}
        last = self._came_to(f"answer: {answer}", found, **cost, note=shares)
        self._tell(last)
        return Solved(self.task.name, answer, mix, found, test, (*self.notes.tries.values(), last))

    def _kept(self, made: Path, best: str, mix: Mix) -> tuple[OutputsTask[Any, Any], Sequence[Any], float]:
        """Makes the folder; returns its task, its predictions for what was held out, and the milliseconds of a text."""
        parts = self.folder / "parts"
        encoder = parts / _file_name(best) / "model"
        if mix[0]:
            shutil.copytree(encoder, made)
        else:
            made.mkdir()
        max_length = read_json(encoder / TASK_FILE, dict, RunFolderError, "")["max_length"] if mix[0] else 0
        # 编码器自己的提示词、激活函数也要写进 task.json
        task = self.task.starting_from(encoder) if mix[0] else self.task
        save_task(task, made, max_length)
        kind = cast("type[LinearPipeline]", self.task.spec.pipeline).words_kind
        words, layer = read_words(parts / "words", kind), read_words(made, kind)
        assert words is not None
        if mix[1]:
            words.beside(layer).mixed(mix).save(made)
        pipeline = load_pipeline(self.task.name, made)
        outputs = torch.zeros(())
        for weight, one in zip(mix, (best, "words"), strict=False):
            outputs = outputs + weight * self.outputs[one] if weight else outputs
        speed = self._speed(pipeline)
        # 温度与阈值也只看留出的部分，按两部分合起来的输出定
        task = task.decided(pipeline, outputs + mix[2], self.dev)
        predictions = task.told(pipeline, outputs + mix[2], self.dev)
        task = task.calibrated(self.dev, predictions)
        save_task(task, made, max_length)
        return task, predictions, speed

    def _curve(self) -> Curve:
        """Returns the score of words by the number of rows, where time is left, and says what more would bring."""
        words = self.notes.tries["words"]
        late = words.seconds > self.left or len(self.train) < 2 * LEAST_OF_CURVE
        if words.score is None or late or not isinstance(self.task, AdditiveTask):
            return ()
        curve = label_curve(self.task, self.train, self.dev, words.score, self.options.seed, self.folds)
        if curve:
            say(in_a_sentence(curve, self.task.metric), self.console)
        return curve


class _VectorJob(_Job):
    """The methods for vectors: words are BM25, and the answer is an encoder that an index weighs beside them."""

    task: EmbeddingTask

    def _majority(self, _path: Path) -> Try:
        return Try("majority", note="not tried: vectors have none")

    def _words(self, _path: Path) -> Try:
        """Scores words alone; of pairs with scores, the model that `regress` keeps."""
        if self._is_scored:
            task, note = RegressionTask.of(self.train), "a linear model over n-grams, as --task regress keeps it"
            _, fit = train_words(task, self.train, self.dev)
            found = task.evaluate(self.dev, fit.outputs[:, 0].tolist())
        else:
            nothing = [np.zeros((len(one.texts), 1), dtype=np.float32) for one in self.dev]
            found, note = SearchTask(self.task.loss_name, weight=0.0).evaluate(self.dev, nothing), "BM25"
        return self._came_to("words", found, note=note)

    def _frozen(self, called: str) -> None:
        """Takes an encoder as it is; its vectors are compared by their cosines."""
        name, start = f"frozen {called}", self.models[called]

        def work(path: Path) -> Try:
            folder = model_folder(start)
            task, length = self.task.starting_from(folder), stated_length(folder)
            model, tokenizer = Backbone.from_pretrained(start, need_pooler=False), load_tokenizer(start)
            with atomic_path(path / "model") as made:
                model.save_pretrained(made)
                tokenizer.save(made, model_max_length=model.config.position_limit)
                task.add_files(made, model.config, length)
                save_task(task, made, length)
            return self._measured(name, path, path / "model", "as it is", self._outputs(path / "model", self.dev))

        self._do(name, work)

    @property
    def _is_scored(self) -> bool:
        return isinstance(self.train[0], ScoredText)

    def _mix(self, name: str) -> tuple[Mix, Floats]:
        """Returns the weights of an encoder's vectors and of words, and how a search by both does, negated."""
        vectors = self.task.told(None, self.outputs[name], self.dev)
        scores = {
            weight: SearchTask(self.task.loss_name, weight=weight).metrics(self.dev, vectors)[self.task.metric]
            for weight in ((1.0,) if self._is_scored else WEIGHTS)
        }
        # 开发集分不出高下的，取离通常的权重最近的
        weight = max(scores, key=lambda one: (scores[one], -abs(one - USUAL_WEIGHT)))
        return (weight, round(1 - weight, 1), 0.0), np.array([-scores[weight]])

    def _kept(self, made: Path, best: str, mix: Mix) -> tuple[OutputsTask[Any, Any], Sequence[Any], float]:
        """Copies the encoder, and writes its weight to where `bertsmith index` reads it."""
        if not best:
            raise ConfigError("no encoder could be tried; give more --minutes or another --model, and another --out")
        shutil.copytree(self.folder / "parts" / _file_name(best) / "model", made)
        kept, length = load_task(made)
        assert isinstance(kept, EmbeddingTask)
        save_task(replace(kept, weight=None if self._is_scored else mix[0]), made, length)
        task = SearchTask(self.task.loss_name, weight=mix[0]).starting_from(made)
        return task, task.told(None, self.outputs[best], self.dev), self._speed(load_pipeline("embed", made))


class _States:
    """What the layers of an encoder hold of texts: the features of a linear model."""

    def __init__(self, task: TextTask[Any, Any], start: str | Path, pooling: Pooling | None = None) -> None:
        config = ModelConfig.load(start)
        if task.paired:
            require_pairs(config, "pairs of texts")
        self._task, self._start, self._length = task, model_folder(start), stated_length(model_folder(start))
        self.pooling: Pooling = pooling or ("last-four" if config.num_hidden_layers >= 4 else "mean")
        self._model, self._tokenizer = Backbone.from_pretrained(start, need_pooler=False), load_tokenizer(start)
        inference = InferenceConfig(best_device(), max_length=self._length)
        self._encoder = Embed(self._model, self._tokenizer, inference, pooling=self.pooling)
        self.width = self._encoder.width()

    def __call__(self, examples: Sequence[Any]) -> Tensor:
        """Returns the states [N, W] of texts."""
        return sequence_rows(self._encoder, *self._task.columns(examples), READS[self.pooling], self.width)

    def save(self, folder: Path, words: Words) -> None:
        """Writes the encoder and the linear model over its states as a folder that predicts."""
        with atomic_path(folder) as made:
            self._model.save_pretrained(made)
            self._tokenizer.save(made, model_max_length=self._model.config.position_limit)
            copy_sentence_files(self._start, made)
            words.save(made)
            save_task(self._task, made, self._length)


def _size(folder: Path) -> int:
    """Returns the bytes of a model folder."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file() and file.suffix != ".npy")


def _of_part(path: Path, part: int) -> Path:
    """Returns where a method keeps what learned from all parts but one."""
    return path.with_name(f"{path.name}-{part}")


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name)
