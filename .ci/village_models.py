"""Makes the trained models of the village that the package carries: `make village-model`.

They are what `bertsmith quickstart` trains on the village, with more steps.

- `village` is BERT tiny (2 layers of 128) with the paper's two objectives, world and weights of seed 0, stored in
  bfloat16, in half the space of float32, and read back as float32
- `village-reviews` is that model, fine-tuned to tell good reviews from bad ones, stored in 8 bits

`made.json` beside the weights says how they were made and what they reach on stories or reviews that were held out. The
same processor makes the same files again with the same version of the code, another one the same figures up to
rounding.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.files import write_json
from bertsmith.finetune.job import evaluate
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.hub import BUNDLED
from bertsmith.journeys.source import default_vocab_sizes, learn_vocabulary, shards_of
from bertsmith.journeys.village import REVIEW_RECIPE, bundled_world
from bertsmith.model import BertForPreTraining, BertForSequenceClassification
from bertsmith.tinyworld import MADE, trained_model
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import pretrain

SIZE, STEPS, BATCH, LENGTH, SEED = "tiny", 4000, 32, 64, 0
COMMAND = "make village-model"


def make_village_model(out: Path, steps: int, work: Path, console: Console) -> dict[str, Any]:
    """Draws the village, trains the model on it and saves it; returns what `made.json` holds.

    Args:
        work: for the text, the shards and the run; the same folder again resumes where a run stopped.
    """
    world = bundled_world(work / "world", seed=SEED)
    tokenizer = learn_vocabulary(world, "wordpiece", default_vocab_sizes(world.bytes))
    # 图注常有重复：都留下，词频才与文本一致（与 quickstart 相同）
    corpus = shards_of(world, tokenizer, work / "corpus", keep_duplicates=True)
    recipe = recipe_for(
        SIZE, sequence_length=LENGTH, batch_size=BATCH, steps=steps, precision="float32", seed=SEED, dropout=0.0
    )
    result = pretrain(work / "run", corpus, tokenizer, recipe, console=console)
    BertForPreTraining.from_pretrained(work / "run" / "model").save_pretrained(out, weights="bf16")
    tokenizer.save(out)
    made = {
        "command": COMMAND,
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


def make_review_model(out: Path, start: Path, work: Path, console: Console) -> dict[str, Any]:
    """Fine-tunes a village model on the reviews and saves the classifier; returns what `made.json` holds."""
    run, world = work / "reviews", work / "world"
    train, dev, _ = bundled_world(world, seed=SEED).reviews.values()
    # 学习率再大些：留下的是第一个全对的那一轮，小步走到那里时，头给出的概率还不高
    settings = replace(REVIEW_RECIPE, learning_rate=5e-4, seed=SEED, precision="float32")
    fine_tune(ClassificationTask.of(train), start, train, dev, run, settings, console=console)
    shutil.copytree(run / "model", out, dirs_exist_ok=True)
    # 8 位存放，包只大半兆；打分也用存下来的权重，而不是存放之前的
    BertForSequenceClassification.from_pretrained(run / "model").save_pretrained(out, weights="int8")
    scores = evaluate(out, world / "reviews-test.tsv", device="cpu").metrics
    made = {
        "command": COMMAND,
        "start": "village",
        "seed": SEED,
        "labelled": len(train),
        "epochs": settings.epochs,
        "learning_rate": settings.learning_rate,
        "test": {name: round(value, 4) for name, value in sorted(scores.items())},
    }
    write_json(out / MADE, made)
    return made


def main() -> None:
    """Makes the models in the place that the package reads them from, or in another folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = str(trained_model().parent)
    parser.add_argument("out", nargs="?", default=default, help="folder of both models; default: the package's own")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--work", help="keep text, shards and run in this folder; default: a temporary one")
    given = parser.parse_args()
    console = Console()
    village, reviews = (Path(given.out) / folder.name for folder in BUNDLED.values())
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(given.work or temporary)
        console.print(make_village_model(village, given.steps, work, console))
        console.print(make_review_model(reviews, village, work, console))


if __name__ == "__main__":
    main()
