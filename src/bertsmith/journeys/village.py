"""The bundled village as text to learn from, and the trained model of it that the package carries.

`python -m bertsmith.journeys.village` makes that model: what `bertsmith quickstart` trains on the village, with more
steps. It is BERT tiny (2 layers of 128) with the paper's two objectives, world and weights of seed 0, stored in
bfloat16, in half the space of float32, and read back as float32. `made.json` beside the weights says how it was made
and what it reaches on stories that were held out. The same processor makes the same file again with the same version
of the code, another one the same figures up to rounding.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from bertsmith.files import make_folder, write_json, write_text
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.journeys.source import TextSource, default_vocab_sizes, learn_vocabulary, shards_of
from bertsmith.model import BertForPreTraining
from bertsmith.tinyworld import MADE, draw_captions, draw_reviews, draw_stories, render, trained_model
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import pretrain

STORIES, CAPTIONS = 6000, 2000
REVIEWS = {"train": 200, "dev": 200, "test": 1000}
"""Few labels to learn from, as in life; many to judge by, so that the comparison is not luck."""

SIZE, STEPS, BATCH, LENGTH, SEED = "tiny", 4000, 32, 64, 0
"""Of the model that the package carries."""


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
        "command": "python -m bertsmith.journeys.village",
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
    parser = argparse.ArgumentParser(prog="python -m bertsmith.journeys.village", description=__doc__)
    parser.add_argument("out", nargs="?", default=str(trained_model()), help="model folder; default: the package's own")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--work", help="keep text, shards and run in this folder; default: a temporary one")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        console.print(make_village_model(given.out, steps=given.steps, work=given.work or temporary, console=console))


if __name__ == "__main__":
    main()
