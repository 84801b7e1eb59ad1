"""Makes the trained village model that the package carries: `python -m bertsmith.quickstart.village`.

The model is what `bertsmith quickstart` trains on the bundled world, with more steps: BERT tiny (2 layers of 128), the
paper's two objectives, world and weights of seed 0. It is stored in bfloat16, in half the space of float32, and read
back as float32. `made.json` beside the weights says how it was made and what it reaches on stories that were held out.
The same processor makes the same file again with the same version of the code, another one the same figures up to
rounding.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.data.corpus.build import build_corpus
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.json_files import write_json
from bertsmith.model import BertForPreTraining
from bertsmith.quickstart.source import HELDOUT_SHARE, bundled_world
from bertsmith.quickstart.vocabulary import default_vocab_sizes, learn_vocabulary
from bertsmith.tinyworld import MADE, trained_model
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import pretrain

SIZE, STEPS, BATCH, LENGTH, SEED = "tiny", 4000, 32, 64, 0


def make_village_model(
    out: str | Path, *, steps: int = STEPS, work: str | Path, console: Console | None = None
) -> dict[str, Any]:
    """Draws the village, trains the model on it and saves it.

    Args:
        out: the model folder.
        steps: of pre-training.
        work: for the text, the shards and the run; the same folder again goes on where a run stopped.
        console: shows progress; silent when None.

    Returns:
        What `made.json` holds: the settings, and the figures on the held-out stories.

    Raises:
        RunFolderError: a folder cannot be written, or `work` holds a run with other settings.
    """
    out, work = Path(out), Path(work)
    world = bundled_world(work / "world", seed=SEED)
    tokenizer = learn_vocabulary(world, "wordpiece", default_vocab_sizes(world.bytes))
    # 图注常有重复：都留下，词频才与文本一致（与 quickstart 相同）
    kept = CorpusOptions(documents=world.documents, heldout_share=HELDOUT_SHARE, keep_duplicates=True)
    corpus = build_corpus(world.files, tokenizer, work / "corpus", kept, workers=None)
    recipe = recipe_for(
        SIZE, sequence_length=LENGTH, batch_size=BATCH, steps=steps, precision="float32", seed=SEED, dropout=0.0
    )
    result = pretrain(work / "run", corpus, tokenizer, recipe, console=console)
    BertForPreTraining.from_pretrained(work / "run" / "model").save_pretrained(out, weights="bf16")
    tokenizer.save(out)
    made = {
        "command": "python -m bertsmith.quickstart.village",
        "world": "bertsmith.tinyworld",
        "seed": SEED,
        "size": SIZE,
        "steps": steps,
        "batch_size": BATCH,
        "sequence_length": LENGTH,
        "tokens_seen": result.tokens_seen,
        "unigram_entropy": round(result.unigram_entropy, 4),
        "heldout": {name: round(value, 4) for name, value in sorted(result.heldout.items())},
    }
    # 最后写成：有了它，文件夹才是完整的
    write_json(out / MADE, made)
    return made


def main() -> None:
    """Makes the model in the place that the package reads it from, or in another folder."""
    parser = argparse.ArgumentParser(prog="python -m bertsmith.quickstart.village", description=__doc__)
    parser.add_argument("out", nargs="?", default=str(trained_model()), help="model folder; default: the package's own")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--work", help="keep text, shards and run in this folder; default: a temporary one")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        made = make_village_model(given.out, steps=given.steps, work=given.work or temporary, console=console)
    console.print(made)


if __name__ == "__main__":
    main()
