"""ChnSentiCorp from nothing, by the commands of a user, beside TF-IDF.

A folder holds the Chinese Wikipedia passages and the training reviews without their labels. `bertsmith quickstart`
learns pieces longer than a character and a ModernBERT mini from it, and `bertsmith finetune classify` learns the
labels, with everything else as it comes. TF-IDF learns from the labels alone. Everything runs on
the cores of the process; `seconds` says how long.

    python benchmarks/reviews_from_nothing.py --minutes 9 --seeds 5
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.tasks import task_named
from finetune import Split
from measured import Row, add_options, results_of
from real_data import DATA
from tasks_from_nothing import sentiment_baseline

TASK = DATA / "tasks" / "chnsenticorp"
COLUMNS = ReadingOptions(text_column="text_a", label_column=("label",))
PIECES = 16_384
"""Runs of characters such as 早餐 or 性价比: half as many pieces a review as characters."""


def main() -> None:
    """Runs what is not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--minutes", type=float, default=9.0, help="of pre-training")
    parser.add_argument("--seeds", type=int, default=5, help="of fine-tuning")
    parser.add_argument("--out", type=Path, default=Path("runs/reviews_from_nothing"))
    options = parser.parse_args()
    how = ["--size", "1/64"] if options.quick else []
    if options.quick:
        options.minutes, options.seeds, options.out = 1.0, 1, Path("runs/bench-quick/reviews_from_nothing")
    results = results_of("reviews_from_nothing", options)
    made = {"minutes": options.minutes, "pieces": PIECES}
    texts = options.out / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in ("train", "dev", "test"):
        files[name] = options.out / f"{name}.tsv"
        lines = (TASK / f"{name}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        files[name].write_text("".join(lines[: 65 if options.quick else None]), encoding="utf-8")
    split = Split(*(task_named("classify").spec.reader.read(file, COLUMNS) for file in files.values()))
    for path in [] if options.quick else sorted((DATA / "corpus_zh").glob("*.txt")):
        shutil.copyfile(path, texts / path.name)
    reviews = [example.text for example in split.train]
    (texts / "reviews.txt").write_text("\n\n".join(reviews), encoding="utf-8")
    run = options.out / "run"
    words = f"--documents blank-line --tokenizer unigram --vocab-size {PIECES} --minutes {options.minutes}".split()
    quickstart = ["quickstart", str(texts), *words, *how, "--out", str(run)]
    print(results.get({"what": "pre-training", **made, "seed": 0}, partial(pretrained, quickstart, run)))
    labelled = [f"--{name}={file}" for name, file in files.items()]
    for seed in range(options.seeds):
        out = options.out / f"classifier-{seed}"
        classify = ["finetune", "classify", "--model", str(run / "model"), *labelled, "--seed", str(seed)]
        asked = {"what": "bertsmith", **made, "seed": seed}
        print(results.get(asked, partial(classified, [*classify, "--out", str(out)], out)))
    baseline = partial(sentiment_baseline, "tfidf", "classify", split)
    print(results.get({"what": "tfidf", **made, "seed": 0}, baseline))


def pretrained(command: list[str], run: Path) -> Row:
    """Runs the quickstart; returns how long it took, vocabulary and report included, and what it reached."""
    # 从头计时：上次留下的文件夹会让它一开始就做完
    shutil.rmtree(run, ignore_errors=True)
    seconds = _seconds_of(command)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = [row for row in rows if row["kind"] == "heldout"][-1]
    return {"seconds": seconds, "steps": last["step"], **{key: last[key] for key in ("mlm_loss", "mlm_accuracy")}}


def classified(command: list[str], out: Path) -> Row:
    """Fine-tunes; returns how long it took, and the accuracies of the epoch that dev chose."""
    shutil.rmtree(out, ignore_errors=True)
    seconds = _seconds_of(command)
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    scores = {name: result[part]["metrics"]["accuracy"] for name, part in (("dev", "dev"), ("score", "test"))}
    return {"seconds": seconds, "epoch": result["epoch"], **scores}


def _seconds_of(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "bertsmith", *command], check=True)
    return round(time.perf_counter() - begun, 1)


if __name__ == "__main__":
    main()
