"""A run that is killed between keeping its best weights and saving its state ends with the same bytes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.finetune.datasets.texts import ScoredText
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.train.monitor import read_metrics

TUNED = """
import os, signal, sys
from bertsmith.finetune.run import FineTuningRun
from bertsmith.train.monitor import MetricsLog

tests, place, number, model, run = sys.argv[1:]
sys.path.insert(0, tests)
from test_killed import tune

def dies_in(owner, name):
    original, calls = getattr(owner, name), []

    def dies(self, *rest):
        original(self, *rest)
        calls.append(1)
        if len(calls) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dies)

if place:
    dies_in(*{"weights": (FineTuningRun, "_write_model"), "rows": (MetricsLog, "append")}[place])
tune(model, run)
"""


def tune(model, run):
    """Three epochs, of which not the first is the best."""
    words = ("bread", "book", "woman", "man")
    examples = [ScoredText(f"the {word} reads", None, float(score)) for score, word in enumerate(words)] * 4
    settings = FineTuningSettings(epochs=3, batch_size=4, learning_rate=1e-4)
    return fine_tune(RegressionTask.of(examples), model, examples, examples, run, settings)


def tuned(model, run, place="", number=0):
    """The run in a process of its own, which dies at a place: threads that other tests set change the last bits."""
    words = [sys.executable, "-c", TUNED, Path(__file__).parent, place, str(number), model, run]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    assert ended.returncode == (-signal.SIGKILL if place else 0), ended.stderr


def made_by(run):
    """Every byte that was made, but for what is said of time."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    files = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    kept = {name: value for name, value in result.items() if name not in ("seconds", "checksum of the rest")}
    return files, kept, read_metrics(run / "metrics.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "number"),
    [("weights", 1), ("weights", 2), ("rows", 4)],
    ids=["first best weights", "better weights", "rows of the second epoch"],
)
def test_a_run_killed_before_its_state_is_saved_ends_the_same(tiny_model, tmp_path, place, number):
    # 运行文件夹的名字写在模型卡里：两处用同一个
    killed, whole = tmp_path / "killed" / "run", tmp_path / "whole" / "run"
    tuned(tiny_model, killed, place, number)
    # 新的最好权重已在，它那一轮的状态还没有写
    assert (killed / "model" / "model.safetensors").is_file()
    assert not (killed / "result.json").exists()
    assert len(list(killed.glob("state/step-*"))) == (number > 1)
    tuned(tiny_model, killed)
    tuned(tiny_model, whole)
    assert made_by(killed) == made_by(whole)
