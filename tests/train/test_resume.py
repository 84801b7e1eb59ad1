"""A run that dies goes on as if nothing had happened."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from bertsmith.data.stream import PreTrainingStream
from bertsmith.errors import RunFolderError, TrainingError
from bertsmith.files import locked
from bertsmith.train.pretraining import make_trainer, pretrain, stream_settings
from bertsmith.train.recipe import PreTrainingRecipe, recipe_for
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.trainer import BertTrainer

RECIPE = recipe_for("1/64", sequence_length=32, batch_size=8, total_steps=40, seed=7, precision="float32")
VOLATILE = ("tokens_per_second",)


class Killed(Exception):
    """Stands for the process dying between two steps."""


def weights_of(run):
    return load_file(run / "model" / "model.safetensors")


def metrics_of(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in VOLATILE} for row in rows]


def assert_same_run(first, second):
    expected, found = weights_of(first), weights_of(second)
    assert expected.keys() == found.keys()
    for name in expected:
        assert expected[name].equal(found[name]), name
    assert metrics_of(first) == metrics_of(second)


@pytest.fixture(scope="module")
def undisturbed(village, tmp_path_factory):
    corpus, tokenizer, _ = village
    run = tmp_path_factory.mktemp("undisturbed")
    pretrain(run, corpus, tokenizer, RECIPE)
    return run


def test_a_run_that_dies_three_times_ends_bit_for_bit_the_same(village, undisturbed, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    original = BertTrainer.train_batch
    for deadline in (5, 17, 18):

        def dies(self, batch, deadline=deadline):
            if self.step == deadline:
                raise Killed
            return original(self, batch)

        monkeypatch.setattr(BertTrainer, "train_batch", dies)
        # a state after every step that allows it
        monkeypatch.setattr("bertsmith.train.pretraining.SAVING_SHARE", 1e9)
        with pytest.raises(Killed):
            pretrain(tmp_path, corpus, tokenizer, RECIPE, save_every=0.0)
    monkeypatch.setattr(BertTrainer, "train_batch", original)
    pretrain(tmp_path, corpus, tokenizer, RECIPE)
    assert_same_run(undisturbed, tmp_path)


@pytest.mark.slow
def test_kill_9_at_random_moments_loses_nothing(village, undisturbed, tmp_path):
    _, _, folder = village
    command = [
        *(sys.executable, "-m", "bertsmith", "pretrain", "--corpus", str(folder / "corpus")),
        *("--tokenizer", str(folder / "tokenizer"), "--out", str(tmp_path), "--size", "1/64", "--steps", "40"),
        *("--sequence-length", "32", "--batch-size", "8", "--seed", "7", "--precision", "float32", "--save-every", "0"),
    ]
    rng = random.Random(0)
    kills = 0
    for _ in range(12):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_until = time.monotonic() + 60
        seen = {path.name for path in tmp_path.glob("state/step-*")}
        while process.poll() is None and not {path.name for path in tmp_path.glob("state/step-*")} - seen:
            assert time.monotonic() < wait_until, "the run makes no progress"
            time.sleep(0.005)
        time.sleep(rng.random() * 0.1)
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        if kills == 3:
            break
    assert kills >= 1
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_same_run(undisturbed, tmp_path)


def test_a_finished_run_is_not_trained_again(village, undisturbed, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    shutil.copytree(undisturbed, tmp_path / "run")
    monkeypatch.setattr(BertTrainer, "train_batch", lambda *_: pytest.fail("trained again"))
    result = pretrain(tmp_path / "run", corpus, tokenizer, RECIPE)
    assert result.heldout["mlm_loss"] > 0
    assert_same_run(undisturbed, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"learning_rate": 5e-4}, "learning_rate 0.001 there, 0.0005 now"), ({"total_steps": 50}, "total_steps 40 there")],
)
def test_another_request_is_refused(village, undisturbed, changes, message):
    corpus, tokenizer, _ = village
    with pytest.raises(RunFolderError, match=message):
        pretrain(undisturbed, corpus, tokenizer, RECIPE.replace(**changes))


def fresh_trainer(village, steps):
    corpus, tokenizer, _ = village
    trainer = make_trainer(RECIPE, corpus)
    stream = PreTrainingStream(corpus, tokenizer, stream_settings(RECIPE))
    for _ in range(steps):
        trainer.train_batch(next(stream))
    return trainer


def test_two_states_are_kept_and_no_temporary_files(village, tmp_path):
    trainer = fresh_trainer(village, 1)
    for step in range(1, 6):
        trainer.step = step
        save_state(tmp_path, trainer, {"n": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000004", "step-000000005"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "no json", "no tensors"])
def test_a_damaged_state_is_named_and_the_one_before_is_used(village, tmp_path, damage):
    trainer = fresh_trainer(village, 2)
    for step in (2, 3):
        trainer.step = step
        save_state(tmp_path, trainer, {"n": step})
    newest = tmp_path / "step-000000003"
    tensors = newest / "tensors.safetensors"
    if damage == "flip":
        content = bytearray(tensors.read_bytes())
        content[-10] ^= 4
        tensors.write_bytes(content)
    elif damage == "truncate":
        tensors.write_bytes(tensors.read_bytes()[:1000])
    elif damage == "no json":
        (newest / "state.json").write_text("[]")
    else:
        tensors.unlink()
    restored = fresh_trainer(village, 0)
    with pytest.warns(UserWarning, match="step-000000003: damaged training state"):
        assert load_latest_state(tmp_path, restored) == {"n": 2}
    assert restored.step == 2
    for (name, value), other in zip(
        trainer.model.state_dict().items(), restored.model.state_dict().values(), strict=True
    ):
        assert value.equal(other), name


def test_a_half_written_state_is_ignored_and_removed(village, tmp_path):
    (tmp_path / ".step-000000009.123.tmp").mkdir(parents=True)
    assert load_latest_state(tmp_path, fresh_trainer(village, 0)) is None
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_not_finite_stops_the_run(village, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    original = BertTrainer.train_batch

    def breaks(self, batch):
        if self.step == 3:
            self.model.bert.embedding.norm.bias.data.fill_(float("nan"))
        return original(self, batch)

    monkeypatch.setattr(BertTrainer, "train_batch", breaks)
    with pytest.raises(TrainingError, match="not finite"):
        pretrain(tmp_path, corpus, tokenizer, RECIPE)


def test_another_corpus_in_the_same_folder_is_refused(village, undisturbed, village_small):
    corpus, tokenizer = village_small
    with pytest.raises(RunFolderError, match="corpus .* there"):
        pretrain(undisturbed, corpus, tokenizer, RECIPE)


def test_a_folder_of_something_else_is_left_alone(village, tmp_path):
    corpus, tokenizer, _ = village
    (tmp_path / "metrics.jsonl").write_text("precious")
    with pytest.raises(RunFolderError, match="of something else"):
        pretrain(tmp_path, corpus, tokenizer, RECIPE)
    assert (tmp_path / "metrics.jsonl").read_text() == "precious"


def test_two_processes_do_not_work_in_one_folder(village, tmp_path):
    corpus, tokenizer, _ = village
    with locked(tmp_path), pytest.raises(RunFolderError, match="another process"):
        pretrain(tmp_path, corpus, tokenizer, RECIPE)


def test_minutes_become_steps_that_are_kept(village, tmp_path):
    corpus, tokenizer, _ = village
    request = RECIPE.replace(total_steps=0, minutes=0.02)
    result = pretrain(tmp_path, corpus, tokenizer, request)
    assert result.recipe.total_steps >= 20
    assert PreTrainingRecipe.load(tmp_path) == result.recipe
    # 1.2 s at this size are some dozens of steps, neither one nor ten thousand
    assert result.recipe.total_steps < 5000
    assert pretrain(tmp_path, corpus, tokenizer, request).recipe == result.recipe


def test_a_foreign_recipe_is_refused(tmp_path):
    (tmp_path / "recipe.toml").write_text("size = 'tiny'\nflavour = 1\n")
    with pytest.raises(RunFolderError, match="flavour"):
        PreTrainingRecipe.load(tmp_path)
    (tmp_path / "recipe.toml").write_text("size =")
    with pytest.raises(RunFolderError, match="cannot be read"):
        PreTrainingRecipe.load(tmp_path)
