"""Where the trained model of the village lies: a model folder that the package carries.

Lessons, the lab and the examples of the guides read it, so that their numbers mean something before anybody has trained
a model. `python -m bertsmith.quickstart.village` makes it.
"""

from __future__ import annotations

from pathlib import Path

from bertsmith.hub import BUNDLED

MADE = "made.json"
"""The file in the model folder that says how it was made and what it reaches."""


def trained_model() -> Path:
    """Returns the folder of the trained village model: BERT tiny, with both of its pre-training heads.

    Wherever a model folder is named, the name `village` means it too.
    """
    return BUNDLED["village"]
