"""What bertsmith does on a GPU: whether it is right, then how fast, in ten minutes at most, with data of its own.

1. `tests/cuda`: every path of CUDA against the CPU (variable-length attention forward and backward, windows, bf16,
   training, skipped batches, no waiting within a step)
2. pre-training steps of BERT and ModernBERT in base and large, at 128 and 512 tokens, beside `transformers` as people
   and as an expert write it: tokens a second, and the share of the matmul's peak. Ours as `pretrain --compile`, the
   expert with `torch.compile` and without; then our own ways beside each other: Muon, without `--compile`, AdamW
3. texts of 4 to 512 tokens through base in bf16: texts a second
4. two processes against one, where there are two GPUs

What is learned in a minute on a GPU: `learning_curves.py --device cuda`.

What was measured is kept in `results/gpu.jsonl`: stopped, or out of time, the script resumes where it was. On a machine
without a GPU it says what it would measure; `--device cpu --quick` runs a tiny share of it on the CPU, to see that it
does run.

    python benchmarks/gpu.py [--minutes 10] [--only texts "step of bert-large"]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.inference.engine import packs_by_length
from bertsmith.model import ModelForPreTraining, family_named
from bertsmith.objectives import objective_named
from bertsmith.train.distributed import Ranks, connected_ranks
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from measured import HERE, Results
from model_forward import forward_names, forward_peers
from pretrain_step import PIECES, PRECISIONS, Setting, finished, measure, random_batch
from side_by_side import EXPERT, OURS, PEOPLE, in_turn, rounds_of
from tables import print_table

TOKENS_PER_STEP = {"tiny": 256, "base": 32_768, "large": 16_384}
ROUNDS = 5
Work = Callable[[], dict[str, Any]]


def main() -> None:
    """Measures what is not in the results yet, as long as there is time, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="begin nothing more after so many")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORDS", help="what begins with these")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu needs --quick")
    parser.add_argument("--quick", action="store_true", help="a tiny share of everything: no results")
    parser.add_argument("--results", type=Path, help="folder of the lines, instead of benchmarks/results")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cpu" and not options.quick:
        parser.error("--device cpu only shows that the script runs: give --quick")
    if options.rank:
        steps_of_a_rank()
        return
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    planned_work = planned(options.device, options.quick)
    work = {what: each for what, each in planned_work.items() if what.startswith(tuple(options.only))}
    if not work:
        parser.error(f"--only {' '.join(options.only)} leaves nothing of: {'; '.join(planned_work)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here; on a machine with one this would measure:", *work, sep="\n- ")
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    device = f"{name} x {torch.cuda.device_count()}" if options.device == "cuda" else name
    results = Results(
        "gpu", threads=torch.get_num_threads(), quick=options.quick, folder=options.results, device=device
    )
    deadline = time.monotonic() + 60 * options.minutes
    rows, left = [], []
    for what, each in work.items():
        if time.monotonic() >= deadline:
            left.append(what)
            continue
        try:
            rows.append(results.get({"name": what}, partial(measured, each)))
        except (Exception, SystemExit):
            # 一样量不成，别的照量：有 GPU 的机器也许只借几分钟
            traceback.print_exc()
            left.append(what)
            continue
        print(json.dumps(rows[-1]), flush=True)
    # 「ways」各行比的是我们自己的几种做法，不该排在对手的名下：文档里有它们自己的表
    print_table([row for row in rows if "rounds" in row and not row["name"].startswith("ways")])
    for row in rows:
        if "error" in row:
            print(f"{row['name']}: {row['error']}")
    if left:
        print("out of time, or failed; run it again for:", *left, sep="\n- ")


def planned(device: str, quick: bool) -> dict[str, Work]:
    """Returns everything there is to measure, by its name, what matters most first."""
    if quick:
        tiny = Setting("bert", "tiny", TOKENS_PER_STEP["tiny"] // 32, "float32", 32, device)
        work: dict[str, Work] = {"step of bert-tiny at 32, float32": partial(step, tiny, rounds=1)}
        work["ways of our step of bert-tiny at 32, float32"] = partial(own_steps, tiny, rounds=1)
        work["texts of 4 to 64 tokens, tiny, float32"] = partial(embedding, "tiny", "float32", device, quick)
        return {"every CUDA path against the CPU": cuda_tests, **work} if device == "cuda" else work
    work = {"every CUDA path against the CPU": cuda_tests}
    for size in ("base", "large"):
        for length, family in itertools.product((128, 512), ("bert", "modernbert")):
            setting = Setting(family, size, TOKENS_PER_STEP[size] // length, "bf16", length, device, compiled=True)
            name = f"{family}-{size} at {length}, bf16, compiled"
            work[f"step of {name}"] = partial(step, setting)
            work[f"ways of our step of {name}"] = partial(own_steps, setting)
        if size == "base":
            work["texts of 4 to 512 tokens, base, bf16"] = partial(embedding, "base", "bf16", device, quick)
    work["two processes against one, base at 128, bf16"] = two_processes
    return work


def measured(work: Work) -> dict[str, Any]:
    """Runs one measurement; what does not fit this GPU says so, and the others go on."""
    try:
        return work()
    except torch.cuda.OutOfMemoryError as error:
        return {"error": f"does not fit this GPU: {str(error).splitlines()[0]}"}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def cuda_tests() -> dict[str, Any]:
    """Runs the tests marked `cuda`, and returns what pytest says last."""
    command = [sys.executable, "-m", "pytest", "-n0", "-m", "cuda", "tests/cuda", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=HERE.parent, capture_output=True, text=True)
    said = done.stdout.strip().splitlines()
    if done.returncode:
        print(done.stdout)
    return {"passed": done.returncode == 0, "pytest": said[-1] if said else done.stderr[-500:]}


def step(setting: Setting, *, rounds: int = ROUNDS) -> dict[str, Any]:
    """Times steps of ours and of the peers, with AdamW; the figures are in tokens a second."""
    return in_tokens(measure(setting, rounds, setting.compiled, clock="wall"), setting)


def own_steps(setting: Setting, *, rounds: int = ROUNDS) -> dict[str, Any]:
    """Times steps of ours with Muon, the default: as the setting says, and without `torch.compile`; then with AdamW."""
    plain = replace(setting, compiled=False)
    work = {OURS: own_step(setting, "muon"), PEOPLE: own_step(plain, "muon"), EXPERT: own_step(plain, "adamw")}
    peers = {PEOPLE: "ours with Muon, without --compile", EXPERT: "ours with AdamW, without --compile"}
    return in_tokens(rounds_of(in_turn(work, rounds=rounds, warmup=3), peers=peers), setting)


def own_step(setting: Setting, optimizer: str, ranks: Ranks | None = None) -> Callable[[], object]:
    """Returns a step of ours over one batch, over and over; with ranks, this one's part of it."""
    torch.manual_seed(0)
    config = family_named(setting.family).config.named(setting.size, vocab_size=PIECES, pad_token_id=1)
    model = ModelForPreTraining(config.changed(attention_probs_dropout_prob=0.0), pair_head=setting.has_pairs)
    model.set_compute_dtype(PRECISIONS[setting.precision])
    objective = objective_named("mlm+nsp" if setting.has_pairs else "mlm")
    settings = TrainerSettings(10**6, 1e-4, optimizer=optimizer)
    trainer = BertTrainer(model, objective, settings, device=setting.device, ranks=ranks)
    if setting.compiled:
        model.compile_blocks()
    return finished(partial(trainer.train_batch, random_batch(setting)), setting.device)


def in_tokens(found: dict[str, Any], setting: Setting) -> dict[str, Any]:
    """Turns seconds of steps into tokens a second."""
    tokens = setting.sequences * setting.length
    rates = {who: [tokens / seconds for seconds in each] for who, each in found["rounds"].items()}
    return rounds_of(rates, peers=found["peers"], unit="tokens/s", figures=found["figures"])


def embedding(size: str, precision: str, device: str, quick: bool) -> dict[str, Any]:
    """Times the states of ragged texts: ours, and `transformers` padded, as they come and sorted by length."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    longest, count = (64, 16) if quick else (512, 1024)
    lengths = rng.integers(4, longest + 1, size=count).tolist()
    sequences = [rng.integers(1000, PIECES, size=length).tolist() for length in lengths]
    ours = family_named("bert").backbone(family_named("bert").config.named(size, vocab_size=PIECES, pad_token_id=1))
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        peers = {who: peer.to(device) for who, peer in forward_peers(folder, precision, ["sdpa"]).items()}
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    ours.set_compute_dtype(dtype)
    ours.eval().to(device)

    @torch.inference_mode()
    def read() -> object:
        packs = packs_by_length(lengths, 32_768)
        batches = [RaggedBatch.from_sequences([sequences[number] for number in pack]) for pack in packs]
        return [ours(batch.to(device)).hidden_states for batch in batches]

    @torch.inference_mode()
    def read_padded(who: str) -> object:
        order = list(range(count))
        if who != PEOPLE:
            order.sort(key=lengths.__getitem__)
        states = []
        for start in range(0, count, 64):
            rows = [torch.tensor(sequences[number]) for number in order[start : start + 64]]
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0).to(device)
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16" and who == PEOPLE):
                states.append(peers[who](input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state)
        return states

    work: dict[str, Callable[[], object]] = {OURS: read, **{who: partial(read_padded, who) for who in peers}}
    times = in_turn({who: finished(each, device) for who, each in work.items()}, rounds=1 if quick else ROUNDS)
    rates = {who: [len(sequences) / seconds for seconds in each] for who, each in times.items()}
    return rounds_of(rates, peers=forward_names(work, precision), unit="texts/s")


def two_processes() -> dict[str, Any]:
    """Times training over two GPUs against one, the same tokens for each GPU."""
    if torch.cuda.device_count() < 2:
        return {"error": "there is one GPU"}
    rates = {}
    for who, count in ((OURS, 2), (EXPERT, 1)):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        done = subprocess.run([*command, __file__, "--rank"], check=True, capture_output=True, text=True)
        rates[who] = json.loads(done.stdout.splitlines()[-1])
    return rounds_of(rates, peers={EXPERT: "ours on one GPU"}, unit="tokens/s")


def steps_of_a_rank() -> None:
    """Takes steps as one of several processes; the first prints the tokens a second of all."""
    with connected_ranks() as (ranks, device):
        setting = Setting("bert", "base", TOKENS_PER_STEP["base"] // 128, "bf16", 128, str(device))
        times = in_turn({OURS: own_step(setting, "adamw", ranks)}, rounds=ROUNDS, warmup=3)
        if ranks.is_first:
            tokens = setting.sequences * setting.length * ranks.world_size
            print(json.dumps([tokens / seconds for seconds in times[OURS]]))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
