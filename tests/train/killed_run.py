"""Runs a pre-training again and again in a forked child, and kills it: `killed_run.py FOLDER OUT KILLS [SETTINGS]`.

Forking saves the seconds that importing torch takes; the parent itself runs no torch operation, so that the children
start like fresh processes. FOLDER holds `corpus` and `tokenizer`. The run in OUT is killed at KILLS moments spread over
its steps, then left to finish. Prints how many kills fell into the writing of a state. SETTINGS, in JSON, change the
recipe.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # what torch loads with the first optimizer, three seconds that no child need spend

from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train import pretraining
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import RunOptions, pretrain

STEPS = 300
CHANGES = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
SETTINGS = {"sequence_length": 32, "batch_size": 8, "seed": 7, "precision": "float32", **CHANGES}
RECIPE = recipe_for("1/64", steps=STEPS, **SETTINGS)


def start(folder: Path, out: Path) -> int:
    """Forks a child that goes on with the run, and returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)
        pretraining.SAVING_SHARE = 1e9
        tokenizer = WordPieceTokenizer.load(folder / "tokenizer")
        corpus = TokenCorpus(folder / "corpus", tokenizer)
        pretrain(out, corpus, tokenizer, RECIPE, RunOptions(save_every=0.0, keep_states=2), listeners=())
        os._exit(0)
    except BaseException as error:
        print(f"child: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)


def last_step(out: Path) -> int:
    return max((int(path.name[5:]) for path in out.glob("state/step-*")), default=0)


def main() -> None:
    folder, out, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(1)
    targets = sorted(rng.sample(range(1, STEPS - 5), kills))
    while_saving = 0
    for number, target in enumerate(targets):
        child = start(folder, out)
        # every other kill waits for a state that is being written, the rest fall where they may
        while last_step(out) < target or (number % 2 and not list(out.glob("state/.step-*.tmp"))):
            assert os.waitpid(child, os.WNOHANG) == (0, 0), f"the run ended before step {target}"
            time.sleep(0.0005)
        time.sleep(rng.random() * (0.002 if number % 2 else 0.03))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        while_saving += bool(list(out.glob("state/.step-*.tmp")))
    assert os.waitpid(start(folder, out), 0)[1] == 0
    print(while_saving)


if __name__ == "__main__":
    main()
