"""A pre-training that writes down every step, on its own or by torchrun.

    watched_run.py FOLDER OUT LOG [STOP_AT [KILLED_RANK]]

FOLDER holds `corpus` and `tokenizer`. The variable SETTINGS, in JSON, changes the recipe. LOG gets a line a step: the
digest of the global batch and its loss. At step STOP_AT the last rank, and no other, receives SIGTERM. Or KILLED_RANK
is killed after it, when the others have begun the next step and wait for its gradient; a state is then saved after
every step.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train import muon, pretraining
from bertsmith.train.choosing import recipe_for
from bertsmith.train.distributed import connected_ranks
from bertsmith.train.monitor import TrainingStopped
from bertsmith.train.pretraining import RunOptions, pretrain
from bertsmith.train.trainer import BertTrainer

sys.path.insert(0, str(Path(__file__).parents[1] / "data" / "stream"))
from digests import digest

STEPS = 50
CHANGES = json.loads(os.environ.get("SETTINGS", "{}"))
SETTINGS = {"sequence_length": 32, "batch_size": 9, "seed": 7, "precision": "float32", "dropout": 0.0, **CHANGES}
RECIPE = recipe_for("2/64", steps=STEPS, **SETTINGS)


def main() -> None:
    torch.set_num_threads(1)
    # 有 bf16 指令的机器上，正交化把梯度末位之差放大到 1/256；这里比的是分工，不是舍入
    muon.best_compute_dtype = lambda device: torch.float32
    folder, out, log = map(Path, sys.argv[1:4])
    stop_at = int(sys.argv[4]) if len(sys.argv) > 4 else STEPS
    killed_rank = int(sys.argv[5]) if len(sys.argv) > 5 else None
    options = RunOptions()
    if killed_rank is not None:
        options, pretraining.SAVING_SHARE = RunOptions(save_every=0.0), 1e9
    original = BertTrainer.train_batch

    def watched(self, batch):
        if self.step == stop_at and self.ranks.rank == killed_rank:
            os.kill(os.getpid(), signal.SIGKILL)
        measure = original(self, batch)
        shares = self.ranks.gather(batch)
        if self.ranks.is_first:
            with log.open("a") as handle:
                handle.write(json.dumps([self.step, digest(shares), float(measure.loss)]) + "\n")
        is_last = self.ranks.rank == self.ranks.world_size - 1
        if self.step == stop_at and stop_at < STEPS and is_last and killed_rank is None:
            os.kill(os.getpid(), signal.SIGTERM)
        return measure

    BertTrainer.train_batch = watched
    with connected_ranks() as (ranks, device):
        tokenizer = WordPieceTokenizer.load(folder / "tokenizer")
        corpus = TokenCorpus(folder / "corpus", tokenizer)
        try:
            pretrain(out, corpus, tokenizer, RECIPE, options, listeners=(), device=device, ranks=ranks)
        except TrainingStopped as stopped:
            print(stopped)


if __name__ == "__main__":
    main()
