"""The bundled village as text to learn from, and the trained models of it that the package carries.

`python -m bertsmith.journeys.village` makes them: what `bertsmith quickstart` trains on the village, with more steps.

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

from bertsmith.files import make_folder, write_json, write_text
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.job import evaluate
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.hub import BUNDLED
from bertsmith.journeys.source import TextSource, default_vocab_sizes, learn_vocabulary, shards_of
from bertsmith.model import BertForPreTraining, BertForSequenceClassification
from bertsmith.tinyworld import MADE, draw_captions, draw_reviews, draw_stories, render, trained_model
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import pretrain

STORIES, CAPTIONS = 6000, 2000
REVIEWS = {"train": 200, "dev": 200, "test": 1000}
"""Few labels to learn from, as in life; many to judge by, so that the comparison is not luck."""

REVIEW_RECIPE = FineTuningSettings(epochs=20, batch_size=16, learning_rate=2e-4)
"""Of a small model on the reviews: it needs a higher rate than the paper's 2e-5 and more epochs than its 2 to 4. 200
labels are 13 steps an epoch, and 10 epochs are sometimes too few."""

SIZE, STEPS, BATCH, LENGTH, SEED = "tiny", 4000, 32, 64, 0
"""Of the models that the package carries."""

COMMAND = "python -m bertsmith.journeys.village"


def bundled_world(folder: Path, *, seed: int) -> TextSource:
    """Draws the village's stories and reviews into `stories.txt` and `reviews-*.tsv` in a folder, and opens them."""
    stories = make_folder(folder) / "stories.txt"
    # 同一个种子画出的故事处处相同：已经有的不必再画
    if not stories.exists():
        texts = [story.text for story in draw_stories(seed, STORIES)]
        texts += [render(caption) for caption in draw_captions(seed, CAPTIONS)]
        write_text(stories, "\n\n".join(texts) + "\n")
    reviews = {}
    for split, count in REVIEWS.items():
        drawn = draw_reviews(seed, count, split=split)
        reviews[split] = [LabelledText(review.text, None, review.label) for review in drawn]
        path = folder / f"reviews-{split}.tsv"
        if not path.exists():
            write_text(path, "".join(f"{review.text}\t{review.label}\n" for review in reviews[split]))
    settings = {"sources": "tinyworld", "world_seed": seed, "stories": STORIES, "captions": CAPTIONS}
    return TextSource("the bundled village", [stories], "blank-line", "auto", settings, reviews)


def make_village_model(
    out: str | Path, *, steps: int = STEPS, work: str | Path, console: Console | None = None
) -> dict[str, Any]:
    """Draws the village, trains the model on it and saves it; returns what `made.json` holds.

    Args:
        work: for the text, the shards and the run; the same folder again resumes where a run stopped.
    """
    out, work = Path(out), Path(work)
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


def make_review_model(
    out: str | Path, start: str | Path, *, work: str | Path, console: Console | None = None
) -> dict[str, Any]:
    """Fine-tunes a village model on the reviews and saves the classifier; returns what `made.json` holds.

    Args:
        start: folder of the village model.
        work: as in `make_village_model`.
    """
    out, run, world = Path(out), Path(work) / "reviews", Path(work) / "world"
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
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    default = str(trained_model().parent)
    parser.add_argument("out", nargs="?", default=default, help="folder of both models; default: the package's own")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--work", help="keep text, shards and run in this folder; default: a temporary one")
    given = parser.parse_args()
    console = Console()
    village, reviews = (Path(given.out) / folder.name for folder in BUNDLED.values())
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or temporary
        console.print(make_village_model(village, steps=given.steps, work=work, console=console))
        console.print(make_review_model(reviews, village, work=work, console=console))


if __name__ == "__main__":
    main()
