"""Peak memory of training with adapters, against full fine-tuning of the same model.

Each contender trains a base-sized classifier (12/768) on the same batches of 16 x 128 tokens, in a process of its own;
what is reported is the peak of the whole process, interpreter and libraries included, and the median time of a step.
Adapters compute attention again in the backward pass, as they do by default on the command line; LoRA is measured
without that as well.
The aim: at most 60 % of full fine-tuning's peak.

    python benchmarks/adapters_memory.py [--precision float32] [--steps 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from measured import Row, add_options, peak_mib, results_of
from side_by_side import EXPERT, OURS, rounds_of
from tables import print_table

FIGURES = ("before", "seconds", "learning")
CONTENDERS = ("full", "lora", "lora, attention kept", "bottleneck")
LENGTH, LABELS = 128, 2


def main() -> None:
    """Measures every contender; this process imports nothing large, since a child's peak starts at its parent's."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("--precision", choices=("bf16", "float32"), default="float32")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.sequences, options.steps = 2, 1
    if options.child:
        measure(options.child[0], Path(options.child[1]), options)
        return
    results, rows = results_of("adapters_memory", options), []
    size = {"batch": f"{options.sequences} x {LENGTH}", "steps": options.steps}
    with tempfile.TemporaryDirectory() as name:
        run_child("make", name, options)
        full = results.get(
            {"name": f"full fine-tuning, {options.precision}", **size}, partial(run_child, "full", name, options)
        )
        for contender in CONTENDERS[1:]:
            against_full = partial(compared, contender, name, full, options)
            rows.append(results.get({"name": f"{contender}, {options.precision}", **size}, against_full))
    print_table(rows)


def compared(contender: str, folder: str, full: Row, options: argparse.Namespace) -> Row:
    """Sets the peak of a contender against that of full fine-tuning."""
    found = run_child(contender, folder, options)
    figures = {f"{key} {who}": round(row[key], 2) for who, row in (("ours", found), ("full", full)) for key in FIGURES}
    rounds = {OURS: [found["peak"]], EXPERT: [full["peak"]]}
    return rounds_of(rounds, peers={EXPERT: "full fine-tuning, ours"}, unit="MiB", figures=figures)


def run_child(contender: str, folder: str, options: argparse.Namespace) -> dict[str, float]:
    """Runs this script as a process of its own, and reads its last line."""
    command = [sys.executable, __file__, "--child", contender, folder, "--precision", options.precision]
    for name in ("sequences", "steps", "threads"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(contender: str, folder: Path, options: argparse.Namespace) -> None:
    """Trains a few steps and prints the peak in MiB; or makes the model folder that all start from."""
    import torch

    from bertsmith.batch import RaggedBatch
    from bertsmith.finetune.settings import compute_dtype
    from bertsmith.model import BertConfig, BertForSequenceClassification, BertModel
    from bertsmith.model.peft import AdapterSettings, add_adapter
    from bertsmith.objectives import ClassificationObjective, LabelledBatch
    from bertsmith.train.trainer import BertTrainer, TrainerSettings

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if contender == "make":
        BertModel(BertConfig.named("base")).save_pretrained(folder)
        print("{}")
        return
    before = peak_mib()
    labels = {number: str(number) for number in range(LABELS)}
    model = BertForSequenceClassification.from_pretrained(folder, new_heads=True, id2label=labels)
    if contender != "full":
        add_adapter(model, AdapterSettings("bottleneck" if contender == "bottleneck" else "lora"))
        # 与 `bertsmith finetune --adapter` 的默认一致
        model.set_gradient_checkpointing("none" if contender.endswith("kept") else "attention")
    model.set_compute_dtype(compute_dtype(options.precision, "cpu"))
    trainer = BertTrainer(model, ClassificationObjective(), TrainerSettings(options.steps, 1e-4))
    ids = torch.randint(1000, 30000, (options.sequences, LENGTH))
    batch = LabelledBatch(RaggedBatch.from_padded(ids), torch.arange(options.sequences) % LABELS)
    seconds = []
    for _ in range(options.steps):
        begun = time.perf_counter()
        trainer.train_batch(batch)
        seconds.append(time.perf_counter() - begun)
    learning = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    figures = {"peak": peak_mib(), "before": before, "seconds": statistics.median(seconds), "learning": learning}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
