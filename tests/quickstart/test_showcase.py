"""The commands that a quickstart names at its end."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from bertsmith.quickstart.showcase import QuickstartResult, show_summary
from bertsmith.train.pretraining import PreTrainingResult
from bertsmith.train.recipe import recipe_for


@pytest.mark.parametrize(("size", "has_rate"), [("tiny", True), ("mini", True), ("1/64", True), ("small", False)])
def test_the_finetune_command_has_a_rate_that_suits_the_size(size, has_rate):
    recipe = recipe_for(size, minutes=1.0)
    pretraining = PreTrainingResult(Path("run"), recipe, {}, unigram_entropy=5.0, tokens_seen=1, seconds=1.0)
    shown = io.StringIO()
    show_summary(Path("run"), QuickstartResult(pretraining), [], Console(file=shown, width=200))
    (command,) = (line for line in shown.getvalue().splitlines() if "finetune classify" in line)
    assert ("--learning-rate 3e-4" in command) == has_rate
    assert command.endswith("--out runs/classifier")
