"""The bundled village as text to learn from, and as labelled reviews."""

from __future__ import annotations

from pathlib import Path

from bertsmith.files import make_folder, write_text
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.journeys.source import TextSource
from bertsmith.tinyworld import draw_captions, draw_reviews, draw_stories, render

STORIES, CAPTIONS = 6000, 2000
REVIEWS = {"train": 200, "dev": 200, "test": 1000}
"""Few labels to learn from, as in life; many to judge by, so that the comparison is not luck."""

REVIEW_RECIPE = FineTuningSettings(epochs=20, batch_size=16, learning_rate=2e-4)
"""Of a small model on the reviews: it needs a higher rate than the paper's 2e-5 and more epochs than its 2 to 4. 200
labels are 13 steps an epoch, and 10 epochs are sometimes too few."""


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
