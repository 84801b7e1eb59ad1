"""The bundled world: a small village whose stories teach a BERT in a minute, and whose odds are known exactly."""

from pathlib import Path

from bertsmith.hub import BUNDLED
from bertsmith.tinyworld.stories import draw_captions, draw_stories, render
from bertsmith.tinyworld.tasks import draw_questions, draw_reviews, draw_tagged_sentences

__all__ = [
    "MADE",
    "draw_captions",
    "draw_questions",
    "draw_reviews",
    "draw_stories",
    "draw_tagged_sentences",
    "render",
    "trained_model",
]

MADE = "made.json"
"""The file in the folder of a bundled model that says how it was made and what it reaches."""


def trained_model() -> Path:
    """Returns the folder of the trained village model: BERT tiny, with both of its pre-training heads.

    The package carries it, so that the numbers of lessons and examples mean something before anybody has trained.
    Wherever a model folder is named, the name `village` means it too, and `village-reviews` the same model fine-tuned
    to tell good reviews from bad ones. `make village-model` makes both.
    """
    return BUNDLED["village"]
