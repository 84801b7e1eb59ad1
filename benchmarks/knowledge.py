"""What finished models know: BLiMP, and the field's sets after fine-tuning, as `bertsmith study knowledge` does.

The share of pieces found where one is hidden, and where many are, stands beside ("How many are hidden" in the notes).
A run is the folder that `quickstart` or `pretrain` left. All 67,000 pairs of BLiMP are judged by both scores; each task
is learned with everything as it comes, for each seed, and scored on test by the epoch that dev chose. Stopped at any
moment, the same command goes on where it was.

    bertsmith quickstart ../shared/data/corpus ../shared/data/corpus_10m --hours 1 --out runs/hour
    python benchmarks/knowledge.py runs/hour [--seeds 3]
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

import bertsmith
from bertsmith import RaggedBatch, load_pipeline
from bertsmith.model.folder import fingerprint_weights
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith_school.looking.pairs import judge_blimp
from bertsmith_school.study.run import StudyOptions, score_models
from bertsmith_school.study.tasks import StudyTask, field_tasks
from measured import Row, add_options, commit, results_of
from real_data import DATA

NOVEL = "jane_austen_pride_and_prejudice.txt.gz"
FEW_PAIRS, FEW_LABELS = 3, 64
"""Pairs of a paradigm, and labelled sentences, of `--quick`."""


def main() -> None:
    """Measures what is not in the results yet, and prints the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=torch.get_num_threads())
    parser.add_argument("runs", nargs="*", type=Path, help="folders of finished runs")
    parser.add_argument("--seeds", type=int, default=3, help="of fine-tuning")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    # 模型读的是英文：中文评论的字大多不在词表里
    tasks = [task for task in field_tasks(DATA / "tasks")[0] if task.name != "ChnSentiCorp"]
    if options.quick:
        run = Path("runs/bench-quick/knowledge")
        bertsmith.quickstart(str(DATA / "corpus" / "wiki"), run, size="1/64", minutes=1.0, vocab_size=1000)
        options.runs, options.seeds = [run], 1
        tasks = [replace(task, examples=FEW_LABELS) for task in tasks if task.name == "SST-2"]
    results = results_of("knowledge", options)
    for run in options.runs:
        for seed in range(options.seeds):
            recipe = PreTrainingRecipe.load(run)
            model = {"family": recipe.model.family, "size": recipe.model.size, "minutes": recipe.length.minutes}
            # 同样的家族、大小和时间，配方或种子不同也是另一个模型
            model |= {"spread": recipe.data.masking.spread, "weights": fingerprint_weights(run / "model")[:12]}
            asked = {**model, "seed": seed}
            print(results.get(asked, partial(known, run, tasks, seed, quick=options.quick)), flush=True)


def known(run: Path, tasks: list[StudyTask], seed: int, *, quick: bool) -> Row:
    """Returns the score of each task with a seed; with the first, what the run came to, and BLiMP."""
    model = run / "model"
    # 旧代码的分数不能记在新提交名下
    rows = score_models([str(model)], tasks, run / "knowledge" / commit(), StudyOptions(seeds=seed + 1), Console())
    row = next(row for row in rows if row.seed == seed)
    if row.error:
        raise SystemExit(f"{run}: {row.error}")
    if seed:
        return dict(row.figures)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = next(line for line in reversed(lines) if line["kind"] == "heldout")
    learned = {name: last[name] for name in ("tokens", "mlm_loss", "unigram_entropy")}
    return {**learned, **row.figures, **hidden(model), **judged(model, run / "blimp" if quick else None)}


@torch.inference_mode()
def hidden(model: Path) -> Row:
    """Returns the share of pieces found by how many of 126 are hidden at a time, in 120 stretches of a novel."""
    pipeline = load_pipeline("fill-mask", model)
    tokenizer = pipeline.tokenizer
    with gzip.open(DATA / "corpus_10m" / NOVEL, "rt", encoding="utf-8") as text:
        ids = np.array(tokenizer.encode(text.read()))[3000 : 3000 + 126 * 120].reshape(120, 126)
    found: Row = {}
    for count in (1, 6, 19, 38):
        draws, right = np.random.default_rng(0), 0
        for row in ids:
            places = draws.choice(126, count, replace=False)
            given = np.concatenate([[tokenizer.cls_token_id], row, [tokenizer.sep_token_id]])
            given[places + 1] = tokenizer.mask_token_id
            logits = next(iter(pipeline.engine.model.published(RaggedBatch.from_sequences([given.tolist()])).values()))
            right += int((logits[places + 1].argmax(-1).numpy() == row[places]).sum())
        found[f"found of {count} hidden"] = right / (120 * count)
    return found


def judged(model: Path, few: Path | None = None) -> Row:
    """Returns by both scores the share of BLiMP's pairs judged right; `few` is a folder for a small part of them."""
    folder = few or DATA / "blimp"
    if few is not None:
        few.mkdir(exist_ok=True)
        for path in sorted((DATA / "blimp").glob("*.jsonl"))[::20]:
            with path.open(encoding="utf-8") as lines:
                (few / path.name).write_text("".join(islice(lines, FEW_PAIRS)), encoding="utf-8")
    found = judge_blimp(model, folder)
    wholes: Row = {f"BLiMP, {source}": found.together(source).share for source in found.judged}
    phenomena = dict.fromkeys(found.phenomena.values())
    parts = {name: {source: found.together(source, name).share for source in found.judged} for name in phenomena}
    return {"pairs": found.together(next(iter(found.judged))).pairs, **wholes, "phenomena": parts}


if __name__ == "__main__":
    main()
