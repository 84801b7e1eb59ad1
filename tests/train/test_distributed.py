"""Two processes train what one trains."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bertsmith.files import locked
from bertsmith.train.monitor import read_metrics

SCRIPT = Path(__file__).with_name("watched_run.py")
STEPS = 50


def watched_run(village_folder, out, log, *, ranks, stop_at=None, killed_rank=None, **settings):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    options = [str(option) for option in (stop_at, killed_rank) if option is not None]
    words = [str(SCRIPT), str(village_folder), str(out), str(log), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SETTINGS": json.dumps(settings)}
    done = subprocess.run(
        [sys.executable, *launcher, *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode == 0) == (killed_rank is None), done.stderr
    return done.stdout


def steps_of(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(village, tmp_path_factory):
    """One process, 50 steps."""
    folder = tmp_path_factory.mktemp("alone")
    watched_run(village[2], folder / "run", folder / "log", ranks=1)
    return folder


@pytest.fixture(scope="module")
def together(village, tmp_path_factory):
    """Two processes, 50 steps."""
    folder = tmp_path_factory.mktemp("together")
    watched_run(village[2], folder / "run", folder / "log", ranks=2)
    return folder


def metrics_of(folder):
    return read_metrics(folder / "run" / "metrics.jsonl")


def assert_same_training(alone, folder, *, error=1e-5, weights=1e-4, apart=1e-4):
    expected, found = steps_of(alone / "log"), steps_of(folder / "log")
    assert [step for step, _, _ in found] == list(range(1, STEPS + 1))
    assert [batch for _, batch, _ in found] == [batch for _, batch, _ in expected]
    for (step, _, loss), (_, _, other) in zip(expected, found, strict=True):
        assert other == pytest.approx(loss, abs=error), step
    before, after = (load_file(run / "run" / "model" / "model.safetensors") for run in (alone, folder))
    for name, value in before.items():
        assert (after[name] - value).abs().max() < weights, name
    away = sum(float((after[name] - value).square().sum()) for name, value in before.items())
    assert away**0.5 <= apart * sum(float(value.square().sum()) for value in before.values()) ** 0.5


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(alone, together):
    """Nine sequences for two ranks: unequal shares, weighted by the counts of the whole batch."""
    assert_same_training(alone, together)
    for row, other in zip(metrics_of(together), metrics_of(alone), strict=True):
        assert (row["step"], row["tokens"]) == (other["step"], other["tokens"])
        assert row["mlm_loss"] == pytest.approx(other["mlm_loss"], abs=1e-5)


@pytest.mark.slow
def test_a_run_moves_from_one_rank_to_two_and_back(village, alone, tmp_path):
    """Stopped by a signal that one rank alone receives, and gone on with by another number of ranks."""
    for ranks, stop_at in ((1, 15), (2, 30), (1, None)):
        said = watched_run(village[2], tmp_path / "run", tmp_path / "log", ranks=ranks, stop_at=stop_at)
        assert (f"stopped after step {stop_at} of {STEPS}" in said) == (stop_at is not None)
    assert_same_training(alone, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "errors"),
    [
        ({"family": "modernbert"}, {}),
        ({"optimizer": "lamb", "schedule": "cosine"}, {}),
        ({"sequence_length": None, "phases": [[16, 0.5, 0.3, 12], [32, 0.5, 0.15]]}, {}),
        # 每个进程各自舍入到 bf16：末位之差随训练长大
        ({"family": "modernbert", "precision": "bf16"}, {"error": 0.02, "weights": 0.1, "apart": 0.02}),
    ],
)
def test_other_recipes_move_between_numbers_of_ranks(village, tmp_path, settings, errors):
    watched_run(village[2], tmp_path / "alone" / "run", tmp_path / "alone" / "log", ranks=1, **settings)
    for ranks, stop_at in ((2, 30), (1, None)):
        watched_run(village[2], tmp_path / "run", tmp_path / "log", ranks=ranks, stop_at=stop_at, **settings)
    assert_same_training(tmp_path / "alone", tmp_path, **errors)


@pytest.mark.slow
def test_an_error_on_the_first_rank_is_said_once_and_ends_all(village, tmp_path):
    """The command line under torchrun: a run of two ranks, then a request that the folder refuses."""
    folder = village[2]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "bertsmith", "pretrain", "--corpus", str(folder / "corpus"), "--out", str(tmp_path / "run")]
    command += ["--tokenizer", str(folder / "tokenizer"), "--size", "1/64", "--sequence-length", "32"]
    command += ["--batch-size", "8", "--accumulate", "2", "--minutes", "0.05"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    good, bad = (
        subprocess.run([*command, *more], env=environment, capture_output=True, text=True, timeout=300, check=False)
        for more in ([], ["--seed", "1"])
    )
    assert good.returncode == 0, good.stderr
    assert good.stdout.count("held out:") == 1
    assert bad.returncode != 0
    assert bad.stderr.count("holds a run with other settings (seed 0 there, 1 now)") == 1
    assert "bertsmith/train" not in bad.stderr, "a traceback besides torchrun's own"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process of its parent's death")
def test_ranks_end_with_the_launcher_that_was_killed(village, tmp_path):
    """They let go of the folder: the same command resumes at once."""
    folder, run = village[2], tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "bertsmith", "pretrain", "--corpus", str(folder / "corpus"), "--out", str(run), "--steps", "3000"]
    command += ["--tokenizer", str(folder / "tokenizer"), "--size", "1/64", "--sequence-length", "32", "--batch-size=8"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    log = run / "metrics.jsonl"
    # 有了训练的一行，各进程就都在训练，文件夹已上锁
    while not (log.exists() and '"train"' in log.read_text()):
        assert time.monotonic() < end
        time.sleep(0.1)
    launcher.kill()
    launcher.wait()
    with locked(run, patience=60):
        assert not (run / "model").exists()


@pytest.mark.slow
def test_a_run_one_of_whose_ranks_was_killed_goes_on_to_the_same_bytes(village, together, tmp_path):
    """First the second rank, then the one that saves; the launcher returns only when the other one has ended, too."""
    for stop_at, killed_rank in ((15, 1), (30, 0)):
        # 管道由各进程共用：有一个还挂着，这里就等到超时
        watched_run(village[2], tmp_path / "run", tmp_path / "log", ranks=2, stop_at=stop_at, killed_rank=killed_rank)
        assert not (tmp_path / "run" / "model").exists()
        assert len(steps_of(tmp_path / "log")) == stop_at
    watched_run(village[2], tmp_path / "run", tmp_path / "log", ranks=2)
    # 每一步恰好记了一次：是从存下的状态接着做的，不是从头再来
    assert steps_of(tmp_path / "log") == steps_of(together / "log")
    weights = [(each / "run" / "model" / "model.safetensors").read_bytes() for each in (tmp_path, together)]
    assert weights[0] == weights[1]
    for row, other in zip(metrics_of(tmp_path), metrics_of(together), strict=True):
        for name in (row.keys() | other.keys()) - {"tokens_per_second", "mfu"}:
            assert row[name] == other[name], (row["step"], name)
