"""The bundled world: a small village whose stories teach a BERT in a minute, and whose odds are known exactly."""

from bertsmith.tinyworld.stories import draw_captions, draw_stories, render
from bertsmith.tinyworld.tasks import draw_questions, draw_reviews, draw_tagged_sentences
from bertsmith.tinyworld.trained import MADE, trained_model

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
