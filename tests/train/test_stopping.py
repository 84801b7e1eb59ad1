"""Signals: the first one saves and ends, the second one ends."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bertsmith.train.choosing import recipe_for
from bertsmith.train.monitor import TrainingStopped, stop_requests
from bertsmith.train.pretraining import pretrain
from bertsmith.train.trainer import BertTrainer

RECIPE = recipe_for("1/64", sequence_length=32, batch_size=8, steps=20, seed=7, precision="float32")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_saves_the_step_it_comes_in(village, tmp_path, monkeypatch, number):
    corpus, tokenizer, _ = village
    original = BertTrainer.train_batch

    def interrupted(self, batch):
        if self.step == 6:
            os.kill(os.getpid(), number)
        return original(self, batch)

    before = signal.getsignal(number)
    monkeypatch.setattr(BertTrainer, "train_batch", interrupted)
    with pytest.raises(TrainingStopped, match="stopped after step 7 of 20, all saved in .*; the same command resumes"):
        pretrain(tmp_path, corpus, tokenizer, RECIPE)
    assert signal.getsignal(number) == before
    assert (tmp_path / "state" / "step-000000007").is_dir()
    monkeypatch.setattr(BertTrainer, "train_batch", original)
    steps = []
    monkeypatch.setattr(BertTrainer, "train_batch", lambda self, b: steps.append(self.step) or original(self, b))
    pretrain(tmp_path, corpus, tokenizer, RECIPE)
    assert steps == list(range(7, 20))


def test_outside_the_main_thread_signals_are_left_alone():
    handlers = []

    def work():
        with stop_requests() as request:
            handlers.append((request.made, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [(False, signal.getsignal(signal.SIGTERM))]


def start_command(village, out, steps):
    folder = village[2]
    command = [sys.executable, "-m", "bertsmith", "pretrain", "--corpus", str(folder / "corpus")]
    command += ["--tokenizer", str(folder / "tokenizer"), "--out", str(out), "--size", "1/64", "--steps", str(steps)]
    command += ["--sequence-length", "32", "--batch-size", "8", "--save-every", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(out.glob("state/step-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_the_command_ends_with_0_and_says_how_to_go_on(village, tmp_path):
    process = start_command(village, tmp_path, 100_000)
    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    assert "the same command resumes" in said
    assert "Traceback" not in complaints


def test_a_second_signal_ends_at_once():
    """A loop that never looks at the request: the first signal is noted, the second one kills."""
    code = (
        "import time\nfrom bertsmith.train.monitor import stop_requests\n"
        "with stop_requests() as request:\n    print('ready', flush=True)\n"
        "    while not request.made: time.sleep(0.01)\n"
        "    print('noted', flush=True)\n    while True: time.sleep(0.05)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "noted\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == -signal.SIGTERM
    process.stdout.close()
