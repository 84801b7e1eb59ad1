"""Cross-validation: the training file in K parts, each of which tests a model that learned from the others.

One test file of a few hundred examples says little; K parts test every labelled example once, and their spread says
how far a score can be trusted. The model that is kept is a last run, on the whole training file: the parts say how
good the recipe is, not which model to take.

Notable:
- a part is used for its score alone: the best epoch of each run is chosen on the dev file, or, where there is none, on
  a tenth of the other parts
- classes are spread evenly over the parts, as `sklearn.model_selection.StratifiedKFold` does it; examples that belong
  together (a query's texts, a passage's questions, equal texts) stay together
- kill-proof as a search is: every run has a folder, and the same call goes on where it was
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.errors import ConfigError, InputError
from bertsmith.files import locked
from bertsmith.finetune.report.run_report import write_report
from bertsmith.finetune.run import FineTuningResult, fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.task import ExampleT, PredictionT, Task
from bertsmith.finetune.trials import RUNS, SearchResult, Trial, claim_search, keep_weights, remove_weights, spreads
from bertsmith.seeding import generator
from bertsmith.train.tracking import RunListener

WHOLE = "all"
"""Name of the run on the whole training file."""

DEV_PARTS = 10
"""Without a dev file, one part in this many of what a run learns from chooses its epoch."""


def cross_validate(
    task: Task[ExampleT, PredictionT],
    model_folder: str | Path,
    train: Sequence[ExampleT],
    dev: Sequence[ExampleT] | None,
    run: str | Path,
    settings: FineTuningSettings,
    *,
    folds: int,
    test: Sequence[ExampleT] | None = None,
    teacher: str | None = None,
    console: Console | None = None,
    device: torch.device | str = "cpu",
    listeners: Sequence[RunListener] = (),
) -> SearchResult:
    """Fine-tunes K times, each time without one part of the training file, which scores; then once on the whole.

    Args:
        task: what is learned.
        model_folder: a model folder with its tokenizer.
        train: labelled examples.
        dev: labelled examples that choose the best epoch of every run; None takes a tenth of what a run learns from.
        run: the folder: `model/` of the last run, `runs/`, `result.json`, `report.html`. The same call goes on where it
            was interrupted, or returns the result that is there.
        settings: of every run.
        folds: K, at least 2.
        test: labelled examples that the last run's model sees, once.
        teacher: as in `fine_tune`.
        console: shows progress; silent when None.
        device: where the models live.
        listeners: are told of every run, one after the other.

    Returns:
        A row for each part and the last run; `fold_spread` has the mean and deviation over the parts.

    Raises:
        ConfigError: fewer than two folds.
        InputError: there are too few examples, or one does not fit the task.
        RunFolderError: the folder holds something else, or cannot be written.
        CheckpointError: the model folder is not usable.
        TrainingStopped: SIGINT or SIGTERM came; the same call goes on.
    """
    folder, console = Path(run), console or Console(quiet=True)
    parts = fold_numbers(task, train, folds, settings.seed)
    claim_search(folder, task, model_folder, settings, folds=folds, own_dev=dev is None)
    with locked(folder):

        def fine_tuned(name: str, kept: Sequence[ExampleT], scored: Sequence[ExampleT] | None) -> FineTuningResult:
            learned, chooses = (kept, dev) if dev is not None else _dev_of(task, kept, settings.seed)
            how: dict[str, Any] = {"teacher": teacher, "console": console, "device": device, "listeners": listeners}
            place = folder / RUNS / name
            return fine_tune(task, model_folder, learned, chooses, place, settings, test=scored, **how)

        rows = []
        for number in range(folds):
            name = f"fold-{number + 1}"
            console.print(f"fold {number + 1} of {folds}", highlight=False)
            kept = [one for one, part in zip(train, parts, strict=True) if part != number]
            scored = [one for one, part in zip(train, parts, strict=True) if part == number]
            rows.append(Trial.of(name, {"run": name}, fine_tuned(name, kept, scored)))
            # 各折的模型只为打分：分数记下了，权重就不必占地方
            remove_weights(folder / RUNS / name)
        console.print("the whole training file", highlight=False)
        whole = Trial.of(WHOLE, {"run": WHOLE}, fine_tuned(WHOLE, train, test))
        keep_weights(folder, WHOLE)
        metric = next(iter(whole.dev))
        found = SearchResult(metric, [*rows, whole], WHOLE, {}, {}, spreads([row.test for row in rows]))
        found.save(folder / "result.json")
        spread = found.fold_spread[metric]
        console.print(
            f"{folds} folds: {metric} {spread.mean:.4f} ± {spread.deviation:.4f}, from {spread.low:.4f} to"
            f" {spread.high:.4f}",
            highlight=False,
        )
        write_report(folder)
        return found


def fold_numbers(task: Task[ExampleT, Any], examples: Sequence[ExampleT], folds: int, seed: int) -> list[int]:
    """Deals examples into parts of about the same size, with about the same classes.

    Args:
        task: says what belongs together, and of which class an example is.
        examples: N of them.
        folds: K.
        seed: of the draws.

    Returns:
        For each example the number of its part, from 0; every part has one or more.

    Raises:
        ConfigError: fewer than two folds.
        InputError: there are fewer groups of examples than parts.
    """
    if folds < 2:
        raise ConfigError(f"folds {folds}: give 2 or more")
    groups: dict[Hashable, list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(task.group_of(example), []).append(number)
    if len(groups) < folds:
        raise InputError(
            f"the training file has {len(groups)} examples that do not belong together, for {folds} folds; give fewer"
            " folds or more examples"
        )
    together = list(groups.values())
    strata: dict[Hashable, list[list[int]]] = {}
    for place in generator(seed, "finetune/folds").permutation(len(together)).tolist():
        strata.setdefault(task.class_of(examples[together[place][0]]), []).append(together[place])
    numbers, sizes = [0] * len(examples), [0] * folds
    for members in strata.values():
        within = [0] * folds
        for group in members:
            # 先看这一类在哪一份里最少，再看哪一份最小：类别均匀，大小也均匀
            part = min(range(folds), key=lambda one: (within[one], sizes[one]))
            within[part] += len(group)
            sizes[part] += len(group)
            for number in group:
                numbers[number] = part
    return numbers


def _dev_of(
    task: Task[ExampleT, Any], examples: Sequence[ExampleT], seed: int
) -> tuple[list[ExampleT], list[ExampleT]]:
    """Returns what a run learns from, and the tenth of it that chooses its epoch."""
    count = min(DEV_PARTS, len({task.group_of(one) for one in examples}))
    parts = fold_numbers(task, examples, count, seed + 1)
    pairs = list(zip(examples, parts, strict=True))
    return [one for one, part in pairs if part > 0], [one for one, part in pairs if part == 0]
