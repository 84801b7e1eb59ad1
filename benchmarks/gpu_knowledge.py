"""What a base model knows after ten million words and some minutes on a GPU, from nothing: BLiMP and SST-2.

1. text: 16,384 pieces and the shards of both English folders, 10.4 million words; `--text-only` makes them alone, where
   no GPU waits for it, to be carried along in `runs/gpu_knowledge`
2. pre-training: ModernBERT in base (12/768) with its default recipe, for `--minutes`, as `pretrain --compile`
3. BLiMP: all 67,000 pairs by both scores, in TF32 on a GPU
4. SST-2: fine-tuned with everything as it comes, for each seed; accuracy on test

Seven minutes of pre-training leave two of nine for the rest. What was measured is kept in
`results/gpu_knowledge.jsonl`; stopped at any moment, the same command goes on where it was. On a machine without a GPU
it says what it would measure; `--quick` runs a tiny share of everything on the CPU.

    python benchmarks/gpu_knowledge.py --text-only
    python benchmarks/gpu_knowledge.py [--minutes 7] [--seeds 1]
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import bertsmith
from bertsmith.data.corpus.manifest import MANIFEST
from bertsmith.kernels.layers import on_device
from knowledge import FEW_LABELS, judged
from measured import Row, add_options, results_of
from objectives import prepare
from real_data import DATA

PIECES = 16_384


def main() -> None:
    """Measures what is not in the results yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=torch.get_num_threads())
    parser.add_argument("--size", default="base")
    parser.add_argument("--minutes", type=float, default=7.0, help="of pre-training")
    parser.add_argument("--seeds", type=int, default=1, help="of fine-tuning")
    parser.add_argument("--text-only", action="store_true", help="make vocabulary and shards, and end")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_knowledge"))
    options = parser.parse_args()
    if options.quick:
        options.size, options.minutes, options.out = "1/64", 0.05, Path("runs/bench-quick/gpu_knowledge")
    torch.set_num_threads(options.threads)
    few = options.out / "blimp" if options.quick else None
    on_gpu = torch.cuda.is_available() and not options.quick
    work = {
        "pre-training": partial(pretrained, options, on_gpu=on_gpu),
        "blimp": partial(judged, options.out / "run" / "model", few),
    }
    work |= {f"sst2, seed {seed}": partial(classified, options, seed) for seed in range(options.seeds)}
    if not (on_gpu or options.quick or options.text_only):
        print("no GPU here; on a machine with one this would measure:", *work, sep="\n- ")
        return
    # 做好的分片不与文本核对：带到另一台机器上，文本不必一起带
    if not (options.out / "shards" / MANIFEST).exists():
        prepare(options.out, quick=options.quick, folders=("corpus", "corpus_10m"), vocab_size=PIECES)
    if options.text_only:
        return
    # 掩码分数要 float32 的位数，却不必全要：TF32 快几倍，误差只有 bf16 的八分之一
    torch.set_float32_matmul_precision("high")
    results = results_of("gpu_knowledge", options, device=torch.cuda.get_device_name() if on_gpu else "")
    with on_device("cuda" if on_gpu else "cpu"):
        for what, measure in work.items():
            asked = {"what": what, "size": options.size, "minutes": options.minutes}
            print(results.get(asked, partial(timed, measure)), flush=True)


def timed(measure: partial[Row]) -> Row:
    """Returns what was measured, and in how many seconds: of a run that was interrupted, those since then."""
    begun = time.perf_counter()
    return {**measure(), "seconds": round(time.perf_counter() - begun, 1)}


def pretrained(options: argparse.Namespace, *, on_gpu: bool) -> Row:
    """Pre-trains; returns how long that took over all restarts, what was read, and the held-out figures."""
    how = {"family": "modernbert", "size": options.size, "minutes": options.minutes, "compile": on_gpu}
    shards, tokenizer, out = (options.out / name for name in ("shards", "tokenizer", "run"))
    run = bertsmith.pretrain(shards, tokenizer, out, console=Console(), **how)
    found = {"training_seconds": run.details.seconds, "steps": run.details.steps, "tokens": run.details.tokens_seen}
    return {**found, **run.metrics}


def classified(options: argparse.Namespace, seed: int) -> Row:
    """Fine-tunes on SST-2; returns the accuracies of the epoch that dev chose."""
    files: dict[str, Any] = {name: DATA / "tasks" / "sst2" / f"{name}.tsv" for name in ("train", "dev", "test")}
    for name, path in files.items() if options.quick else ():
        files[name] = options.out / path.name
        with path.open(encoding="utf-8") as lines:
            files[name].write_text("".join(islice(lines, FEW_LABELS)), encoding="utf-8")
    out, model = options.out / f"sst2-{seed}", options.out / "run" / "model"
    run = bertsmith.finetune("classify", model, out, **files, seed=seed)
    dev, test = run.details.dev.metrics["accuracy"], run.metrics["accuracy"]
    return {"epoch": run.details.epoch, "dev": dev, "score": test}


if __name__ == "__main__":
    main()
