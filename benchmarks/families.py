"""The families against `transformers`: a forward pass, and texts of 4,096 tokens.

The peers, with the same weights, are those of `model_forward.py`; steps of pre-training are in `pretrain_step.py`.
Outputs are compared first.

- forward: 6/384, 32 texts of 128 tokens, and 128 texts of 4 to 128
- long: ModernBERT of width 768 on texts of 4,096 tokens, time and peak memory, each side in a process of its own

With one thread the clock counts the seconds of the processor: who waits for a core is not slower.

    python benchmarks/families.py [--precision float32] [--layers 22] [--only long]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.model import ModelForPreTraining, family_named
from measured import CLOCKS, add_options, precisions, results_of
from model_forward import (
    ATTENTIONS,
    LIBRARY,
    PRECISIONS,
    closeness,
    forward_names,
    forward_peers,
    forward_work,
    our_states,
    peer_states,
)
from side_by_side import EXPERT, OURS, PEOPLE, in_turn, rounds_of
from tables import print_table

FAMILIES = ("bert", "roberta", "modernbert")
PIECES, LENGTH, FORWARD_BATCH = 30522, 128, 32
LONG_TEXTS, LONG_LENGTH = 2, 4096


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--precision", choices=PRECISIONS, help="one instead of all that the processor multiplies")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layers", type=int, default=3, help="of the model that reads long texts; 22 is the whole")
    parser.add_argument("--only", choices=("forward", "long"))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.layers = 1, 1
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    chosen = precisions(options)
    if options.child:
        read_long_texts(options.child[0], options.child[1], PRECISIONS[chosen[0]], options)
        return
    results, rows = results_of("families", options), []
    for precision in chosen:
        for family in FAMILIES if options.only != "long" else ():
            for texts, lengths in text_lengths(options.quick).items():
                name = f"forward, {family} 6/384, {texts}, {precision}"
                what = {"name": name}
                rows.append(results.get(what, partial(forward, family, precision, lengths, options)))
        if options.only != "forward":
            what = {"name": f"two texts of 4,096 tokens, modernbert {options.layers}/768, {precision}"}
            rows.append(results.get(what, partial(long_texts, precision, options)))
    print_table(rows)


def text_lengths(quick: bool) -> dict[str, list[int]]:
    """Returns the lengths of equal texts and of ragged ones."""
    rng, count = np.random.default_rng(0), 2 if quick else FORWARD_BATCH
    ragged = [int(length) for length in rng.integers(4, LENGTH + 1, size=4 * count)]
    return {f"{count} texts of {LENGTH}": [LENGTH] * count, f"{4 * count} texts of 4 to {LENGTH}": ragged}


def forward(family: str, precision: str, lengths: list[int], options: argparse.Namespace) -> dict[str, Any]:
    """Times the states of some texts."""
    torch.manual_seed(0)
    config = family_named(family).config.named("6/384", vocab_size=PIECES, pad_token_id=1)
    ours = ModelForPreTraining(config, pair_head=False).eval()
    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(folder)
        peers = forward_peers(folder, precision)
    ours.set_compute_dtype(PRECISIONS[precision])
    rng = np.random.default_rng(1)
    sequences = [rng.integers(1000, PIECES, size=length).tolist() for length in lengths]
    figures = closeness(our_states(ours.backbone, sequences), peer_states(peers[PEOPLE], sequences, PEOPLE, "float32"))
    work: dict[str, Callable[[], object]] = {OURS: lambda: our_states(ours.backbone, sequences)}
    work |= forward_work(peers, sequences, precision)
    times = in_turn(work, rounds=options.rounds, clock=CLOCKS[options.clock])
    return rounds_of(times, peers=forward_names(work, precision), figures=figures)


def long_texts(precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times ModernBERT on long texts in processes of their own, in turn, and reads their peaks of memory."""
    experts = [f"{EXPERT}: {how}" for how in ATTENTIONS]
    results: dict[str, list[dict[str, Any]]] = {who: [] for who in (OURS, *experts)}
    with tempfile.TemporaryDirectory() as name:
        run_child("make", name, precision, options)
        for _ in range(1 if options.quick else 2):
            for who, found in results.items():
                found.append(run_child(who, name, precision, options))
        states = {who: [torch.load(Path(name) / f"{who}.pt", weights_only=True)] for who in results}
        figures: dict[str, Any] = closeness(states[OURS], states[experts[0]])
    for what in ("peak", "grown"):
        figures |= {f"{what}_mib_{who}": round(max(one[what] for one in each)) for who, each in results.items()}
    times = {who: [value for one in each for value in one["seconds"]] for who, each in results.items()}
    cast = ", bf16 weights" * (precision == "bf16")
    return rounds_of(times, peers=dict.fromkeys(experts, f"{LIBRARY}{cast}, no mask"), figures=figures)


def run_child(who: str, folder: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs this script as a process of its own, and reads its last line."""
    command = [sys.executable, __file__, "--child", who, folder, "--precision", precision]
    for name in ("rounds", "threads", "layers", "clock"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def read_long_texts(who: str, folder: str, dtype: torch.dtype, options: argparse.Namespace) -> None:
    """Makes the model, or reads the texts with it: keeps the states, and prints seconds and MiB."""
    if who == "make":
        torch.manual_seed(0)
        family = family_named("modernbert")
        config = family.config.named("base", num_hidden_layers=options.layers, vocab_size=PIECES, pad_token_id=1)
        family.backbone(config).save_pretrained(folder)
        print("{}")
        return
    ids = torch.randint(1000, PIECES, (LONG_TEXTS, LONG_LENGTH), generator=torch.Generator().manual_seed(0))
    run = our_reader(folder, ids, dtype) if who == OURS else peer_reader(folder, ids, dtype, who.split(": ")[1])
    # 从这里起重新记峰值：载入时的高点不算
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    seconds, clock = [], CLOCKS[options.clock]
    with torch.inference_mode():
        for _ in range(options.rounds + 1):
            begun = clock()
            states = run()
            seconds.append(clock() - begun)
    most = peak()
    torch.save(states, Path(folder) / f"{who}.pt")
    print(json.dumps({"seconds": seconds[1:], "peak": most, "grown": most - before}))


def our_reader(folder: str, ids: Tensor, dtype: torch.dtype) -> Callable[[], Tensor]:
    """Returns what computes the states [T, H] of the texts with our model."""
    model = family_named("modernbert").backbone.from_pretrained(folder).eval()
    model.set_compute_dtype(dtype)
    return lambda: model(RaggedBatch.from_padded(ids)).hidden_states


def peer_reader(folder: str, ids: Tensor, dtype: torch.dtype, attention: str) -> Callable[[], Tensor]:
    """The same with `transformers`, weights kept in the precision of ours."""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=dtype).eval()
    return lambda: model(input_ids=ids).last_hidden_state.flatten(0, 1)


def peak() -> float:
    """Returns the most memory this process has had since it was last reset, in MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


if __name__ == "__main__":
    main()
