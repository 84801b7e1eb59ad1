"""The commands that a quickstart names at its end."""

import io
from pathlib import Path

from rich.console import Console

from bertsmith.journeys.showcase import QuickstartResult, show_summary
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import PreTrainingResult


def test_the_next_commands_leave_the_rate_to_the_size():
    recipe = recipe_for("tiny", minutes=1.0)
    pretraining = PreTrainingResult(Path("run"), recipe, {}, unigram_entropy=5.0, tokens_seen=1, seconds=1.0, steps=1)
    shown = io.StringIO()
    show_summary(Path("run"), QuickstartResult(pretraining), [], Console(file=shown, width=200))
    (command,) = (line for line in shown.getvalue().splitlines() if "finetune classify" in line)
    assert "--learning-rate" not in command
    assert command.endswith("--out runs/classifier")
