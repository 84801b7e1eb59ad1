"""A run that dies goes on as if nothing had happened."""

import errno
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.data.stream.stream import PreTrainingStream
from bertsmith.errors import CheckpointError, RunFolderError, TrainingError
from bertsmith.model import BertForPreTraining
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train import choosing, start
from bertsmith.train.choosing import native_settings, recipe_for
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import RunOptions, pretrain
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import heldout_set, make_trainer
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.trainer import BertTrainer

RECIPE = recipe_for("1/64", sequence_length=32, batch_size=8, steps=40, seed=7, precision="float32")
VOLATILE = ("tokens_per_second", "mfu")


class Killed(Exception):
    """Stands for the process dying between two steps."""


def weights_of(run):
    return load_file(run / "model" / "model.safetensors")


def metrics_of(run):
    rows = read_metrics(run / "metrics.jsonl")
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


def run_that_dies(run, village, recipe, monkeypatch, *, deadlines, **options):
    """Dies before these steps, each time with a state after every step behind it; then runs to its end."""
    corpus, tokenizer, _ = village
    original = BertTrainer.train_batch
    for deadline in deadlines:

        def dies(self, *parts, deadline=deadline):
            if self.step == deadline:
                raise Killed
            return original(self, *parts)

        monkeypatch.setattr(BertTrainer, "train_batch", dies)
        monkeypatch.setattr("bertsmith.train.pretraining.SAVING_SHARE", 1e9)
        with pytest.raises(Killed):
            pretrain(run, corpus, tokenizer, recipe, RunOptions(save_every=0.0, **options))
    monkeypatch.setattr(BertTrainer, "train_batch", original)
    return pretrain(run, corpus, tokenizer, recipe, RunOptions(**options))


def test_a_run_that_dies_three_times_ends_bit_for_bit_the_same(village, undisturbed, tmp_path, monkeypatch):
    counts = []
    counted = start.piece_vectors
    monkeypatch.setattr(start, "piece_vectors", lambda *given, **how: counts.append(1) or counted(*given, **how))
    run_that_dies(tmp_path, village, RECIPE, monkeypatch, deadlines=(5, 17, 18))
    assert_same_run(undisturbed, tmp_path)
    assert len(counts) == 1, "the vectors of a run that resumes come from its state"


@pytest.mark.parametrize(
    "changes",
    [
        {"phases": ((16, 0.5, 0.4, 3), (32, 0.5, 0.2))},
        {"optimizer": "lamb", "schedule": "trapezoid"},
        {"objective": "mlm", "masking": "span", "batch_tokens": 200},
        pytest.param({"objective": "ltr+nsp", "schedule": "cosine"}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: "-".join(map(str, changes)),
)
def test_every_kind_of_run_survives(village, tmp_path, monkeypatch, changes):
    """Deaths on both sides of the border between phases, and on it; batches drawn ahead and not; in parts."""
    corpus, tokenizer, _ = village
    recipe = recipe_for("1/64", **{"sequence_length": 32, "batch_size": 8, "steps": 20, "seed": 7, **changes})
    pretrain(tmp_path / "whole", corpus, tokenizer, recipe, RunOptions(accumulate=2))
    run_that_dies(tmp_path / "dies", village, recipe, monkeypatch, deadlines=(9, 10, 11), accumulate=2, workers=1)
    assert_same_run(tmp_path / "whole", tmp_path / "dies")


def test_a_phase_has_its_own_length(village, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    recipe = RECIPE.changed(phases=((16, 0.75), (32, 0.25)), steps=8)
    longest = []
    original = BertTrainer.train_batch

    def watched(self, batch):
        longest.append(batch.tokens.max_seqlen)
        return original(self, batch)

    monkeypatch.setattr(BertTrainer, "train_batch", watched)
    pretrain(tmp_path, corpus, tokenizer, recipe)
    assert max(longest[:6]) <= 16
    assert min(longest[6:]) > 16


@pytest.mark.slow
def test_skipped_batches_are_the_same_after_a_death(village, tmp_path, monkeypatch):
    """A loss limit that some batches exceed: which are skipped, and how often, does not depend on the deaths."""
    corpus, tokenizer, _ = village
    monkeypatch.setattr("bertsmith.train.start.EXPLODED_LOSS", 0.66)
    recipe = RECIPE.changed(skipped_share=1.0, skips_in_a_row=40, first_vectors="drawn")
    pretrain(tmp_path / "whole", corpus, tokenizer, recipe)
    skipped = [row["skipped"] for row in metrics_of(tmp_path / "whole") if "skipped" in row]
    assert 0 < skipped[-1] < 40
    run_that_dies(tmp_path / "dies", village, recipe, monkeypatch, deadlines=(3, 4, 20))
    assert_same_run(tmp_path / "whole", tmp_path / "dies")


PHASES = [[16, 0.6, 0.3, 12], [32, 0.4, 0.15]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        ({}, 40),
        ({"family": "modernbert", "sequence_length": None}, 12),
        ({"family": "modernbert", "sequence_length": None, "phases": PHASES, "precision": "bf16"}, 12),
        ({"optimizer": "lamb", "schedule": "trapezoid"}, 12),
    ],
)
def test_kills_change_nothing(village, tmp_path, settings, kills):
    """SIGKILL at moments spread over 300 steps, a state being written at many of them."""
    script = Path(__file__).with_name("killed_run.py")
    while_saving = {}
    for name, times in (("undisturbed", 0), ("killed", kills)):
        command = [sys.executable, str(script), str(village[2]), str(tmp_path / name), str(times), json.dumps(settings)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr
        while_saving[name] = int(done.stdout)
    assert_same_run(tmp_path / "undisturbed", tmp_path / "killed")
    assert while_saving["killed"] >= kills // 4
    best = [load_file(tmp_path / name / "best" / "model.safetensors") for name in while_saving]
    assert all(value.equal(best[1][name]) for name, value in best[0].items())


def test_a_finished_run_is_not_trained_again(village, undisturbed, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    shutil.copytree(undisturbed, tmp_path / "run")
    monkeypatch.setattr(BertTrainer, "train_batch", lambda *_: pytest.fail("trained again"))
    result = pretrain(tmp_path / "run", corpus, tokenizer, RECIPE)
    assert result.heldout["mlm_loss"] > 0
    assert_same_run(undisturbed, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"learning_rate": 5e-4}, "learning_rate 0.001 there, 0.0005 now"), ({"steps": 50}, "steps 40 there")],
)
def test_another_request_is_refused(village, undisturbed, changes, message):
    corpus, tokenizer, _ = village
    with pytest.raises(RunFolderError, match=message):
        pretrain(undisturbed, corpus, tokenizer, RECIPE.changed(**changes))


def test_a_run_from_a_machine_with_bf16_says_how_to_go_on_without(village, tmp_path, monkeypatch):
    """The processor is another, the request the same: it asks for a word, and with it comes to the same weights."""
    corpus, tokenizer, _ = village
    recipe = RECIPE.changed(precision="bf16", steps=6)
    pretrain(tmp_path / "whole", corpus, tokenizer, recipe)
    original = BertTrainer.train_batch
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.train.pretraining.SAVING_SHARE", 1e9)
        patch.setattr(BertTrainer, "train_batch", lambda self, *b: original(self, *b) if self.step < 3 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pretrain(tmp_path / "moved", corpus, tokenizer, recipe, RunOptions(save_every=0.0))
    with pytest.raises(RunFolderError, match=r"was begun in bf16, and float32 .* pass --precision bf16 to resume"):
        pretrain(tmp_path / "moved", corpus, tokenizer, recipe.changed(precision="float32"))
    monkeypatch.setattr(choosing, "native_precision", lambda _device: "float32")
    kept = {"precision": "bf16", "batch_size": RECIPE.data.batch_size, "mask_spread": 0.0}
    with pytest.warns(UserWarning, match="resumes in bf16, as it was begun; this machine is faster in float32"):
        assert native_settings("cpu", tmp_path / "moved") == kept
    assert native_settings("cpu", tmp_path / "new") == native_settings("cpu") == {"precision": "float32"}
    pretrain(tmp_path / "moved", corpus, tokenizer, recipe)
    whole, moved = weights_of(tmp_path / "whole"), weights_of(tmp_path / "moved")
    assert all(value.equal(moved[name]) for name, value in whole.items())


def test_a_run_of_another_version_goes_on_where_its_settings_are_known(village, undisturbed, tmp_path):
    corpus, tokenizer, _ = village
    shutil.copytree(undisturbed, tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.toml"
    recipe.write_text(re.sub(r'version = "[^"]*"', 'version = "9.9"', recipe.read_text()))
    pretrain(tmp_path / "run", corpus, tokenizer, RECIPE)
    assert_same_run(undisturbed, tmp_path / "run")


def fresh_trainer(village, steps):
    corpus, tokenizer, _ = village
    trainer = make_trainer(RECIPE, corpus, tokenizer)
    stream = PreTrainingStream(corpus, tokenizer, RECIPE.stream_settings())
    for _ in range(steps):
        trainer.train_batch(next(stream))
    return trainer


def test_as_many_states_as_asked_for_are_kept_and_the_best(village, tmp_path):
    trainer = fresh_trainer(village, 1)
    for step in range(1, 9):
        trainer.step = step
        save_state(tmp_path, trainer, {"n": step}, keep=3, best_step=2)
    assert [int(path.name[5:]) for path in sorted(tmp_path.iterdir())] == [2, 6, 7, 8]


@pytest.mark.parametrize(("evaluations", "steps"), [(4, [0, 2, 4, 5, 7]), (1, [0, 7]), (0, [])])
def test_a_run_is_evaluated_as_often_as_asked_for_after_its_start(village, tmp_path, evaluations, steps):
    corpus, tokenizer, _ = village
    pretrain(tmp_path, corpus, tokenizer, RECIPE.changed(steps=7), RunOptions(evaluations=evaluations))
    assert [row["step"] for row in metrics_of(tmp_path) if row["kind"] == "heldout"] == steps


def test_the_best_model_is_the_one_with_the_lowest_heldout_loss(village, tmp_path):
    """A rate that is far too high from the middle on would spoil the last model; here any curve will do."""
    corpus, tokenizer, _ = village
    recipe = RECIPE.changed(learning_rate=0.05)
    pretrain(tmp_path, corpus, tokenizer, recipe, RunOptions(save_every=0.0, keep_states=1))
    heldout = {row["step"]: row for row in metrics_of(tmp_path) if row["kind"] == "heldout" and row["step"]}
    for row in heldout.values():
        assert row["perplexity"] == pytest.approx(math.exp(row["mlm_loss"]))
    losses = {step: row["mlm_loss"] + row["nsp_loss"] for step, row in heldout.items()}
    best = BertForPreTraining.from_pretrained(tmp_path / "best")
    trainer = make_trainer(recipe, corpus, tokenizer)
    trainer.model.load_state_dict(best.state_dict())
    found = trainer.evaluate(heldout_set(recipe, corpus, tokenizer))
    assert found["mlm_loss"] + found["nsp_loss"] == pytest.approx(min(losses.values()), abs=1e-5)
    assert WordPieceTokenizer.load(tmp_path / "best").vocab == tokenizer.vocab


@pytest.mark.slow
def test_the_best_model_is_kept_though_later_ones_are_worse_and_the_run_dies(village, tmp_path, monkeypatch):
    """The held-out loss rises from the middle on: what is best is not what is last."""
    corpus, tokenizer, _ = village
    original = BertTrainer.evaluate

    def rises(self, heldout):
        figures = original(self, heldout)
        return {**figures, "mlm_loss": figures["mlm_loss"] + max(0, self.step - 20)}

    monkeypatch.setattr(BertTrainer, "evaluate", rises)
    pretrain(tmp_path / "whole", corpus, tokenizer, RECIPE)
    run_that_dies(tmp_path / "dies", village, RECIPE, monkeypatch, deadlines=(19, 23, 36))
    assert_same_run(tmp_path / "whole", tmp_path / "dies")
    whole, dies = (load_file(tmp_path / run / "best" / "model.safetensors") for run in ("whole", "dies"))
    assert all(value.equal(dies[name]) for name, value in whole.items())
    last = weights_of(tmp_path / "whole")
    assert not all(value.equal(last[name]) for name, value in whole.items())


@pytest.mark.parametrize("damage", ["flip", "truncate", "no json", "no tensors", "another step"])
def test_a_damaged_state_is_named_and_the_one_before_is_used(village, tmp_path, damage):
    trainer = fresh_trainer(village, 2)
    for step in (2, 3):
        trainer.step = step
        save_state(tmp_path, trainer, {"n": step}, keep=2)
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
    elif damage == "another step":
        content = (newest / "state.json").read_text()
        (newest / "state.json").write_text(content.replace('"step": 3', '"step": 7'))
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
    # set aside, not thrown away: what the disk spoilt may still be of use, and the place is free for a new state
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged-step-000000003", "step-000000002"]


def two_states(village, folder):
    trainer = fresh_trainer(village, 1)
    for step in (1, 2):
        trainer.step = step
        save_state(folder, trainer, {"n": step}, keep=2)
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("device lost")])
def test_a_device_without_room_costs_no_state(village, tmp_path, monkeypatch, error):
    states = two_states(village, tmp_path)
    restored = fresh_trainer(village, 0)

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(restored.model, "load_state_dict", fails)
    with pytest.raises(type(error), match=str(error)):
        load_latest_state(tmp_path, restored)
    assert sorted(path.name for path in tmp_path.iterdir()) == states


def test_a_state_that_cannot_be_read_just_now_is_not_damaged(village, tmp_path, monkeypatch):
    states = two_states(village, tmp_path)

    def fails(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("bertsmith.train.state._checksum", fails)
    newest = r"step-000000002: cannot be read \(Too many open files\).* resume from the state before"
    with pytest.raises(RunFolderError, match=newest):
        load_latest_state(tmp_path, fresh_trainer(village, 0))
    assert sorted(path.name for path in tmp_path.iterdir()) == states


def test_a_state_of_another_model_is_refused_and_kept(village, tmp_path):
    states = two_states(village, tmp_path)
    for changes, name in (({"size": "2/64"}, r"encoder\S* and \d+ more"), ({"sequence_length": 16}, "position")):
        other = make_trainer(RECIPE.changed(**changes), *village[:2])
        with pytest.raises(CheckpointError, match=f"step-000000002: the training state is of another model .*{name}"):
            load_latest_state(tmp_path, other)
    assert sorted(path.name for path in tmp_path.iterdir()) == states


def test_a_run_whose_states_are_all_damaged_does_not_begin_anew(village, undisturbed, tmp_path):
    corpus, tokenizer, _ = village
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    for state in (run / "state").iterdir():
        (state / "tensors.safetensors").write_bytes(b"spoilt")
    rows = metrics_of(run)
    with (
        pytest.warns(UserWarning, match="damaged training state"),
        pytest.raises(RunFolderError, match="all training states are damaged"),
    ):
        pretrain(run, corpus, tokenizer, RECIPE)
    # and not at the second try either
    with pytest.raises(RunFolderError, match=r"put a whole one back .* or remove \S+state to begin anew"):
        pretrain(run, corpus, tokenizer, RECIPE)
    assert metrics_of(run) == rows


def test_a_half_written_state_is_ignored_and_removed(village, tmp_path):
    (tmp_path / ".step-000000009.123.tmp").mkdir(parents=True)
    assert load_latest_state(tmp_path, fresh_trainer(village, 0)) is None
    assert not list(tmp_path.iterdir())


def test_a_loss_that_is_not_finite_stops_the_run(village, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    original = BertTrainer.train_batch

    def breaks(self, batch):
        if self.step == 3:
            self.model.backbone.embedding.norm.bias.data.fill_(float("nan"))
        return original(self, batch)

    monkeypatch.setattr(BertTrainer, "train_batch", breaks)
    with pytest.raises(TrainingError, match="not finite"):
        pretrain(tmp_path, corpus, tokenizer, RECIPE)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "adamw", "learning_rate": 1e4}, r"lower the learning rate \(10000\)$"),
        (
            {"optimizer": "muon", "matrix_rate": 1e6, "learning_rate": 1e4},
            r"\(10000\) or the matrix rate \(1e\+06\)$",
        ),
    ],
)
def test_rates_that_explode_end_the_run_and_are_named(village, tmp_path, settings, said):
    corpus, tokenizer, _ = village
    recipe = RECIPE.changed(**settings, steps=200, skips_in_a_row=3)
    with pytest.raises(TrainingError, match=said):
        pretrain(tmp_path / "run", corpus, tokenizer, recipe, listeners=())


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


def test_two_processes_do_not_work_in_one_folder(another_process, village, tmp_path):
    corpus, tokenizer, _ = village
    with another_process(tmp_path), pytest.raises(RunFolderError, match="another process"):
        pretrain(tmp_path, corpus, tokenizer, RECIPE)


def test_minutes_become_steps_that_are_kept(village, tmp_path):
    corpus, tokenizer, _ = village
    request = RECIPE.changed(steps=0, minutes=0.02)
    result = pretrain(tmp_path, corpus, tokenizer, request)
    assert result.recipe.trainer.total_steps >= 20
    assert PreTrainingRecipe.load(tmp_path) == result.recipe
    # 1.2 s at this size are some dozens of steps, neither one nor ten thousand
    assert result.recipe.trainer.total_steps < 5000
    assert pretrain(tmp_path, corpus, tokenizer, request).recipe == result.recipe


def test_a_foreign_recipe_is_refused(tmp_path):
    (tmp_path / "recipe.toml").write_text("version = '9.9'\nseed = 1\n[model]\nflavour = 1\n")
    with pytest.raises(RunFolderError, match="which bertsmith 9.9 wrote.*model.flavour is no setting"):
        PreTrainingRecipe.load(tmp_path)
    (tmp_path / "recipe.toml").write_text("size = 'tiny'\nbatch_size = 32\n")
    with pytest.raises(RunFolderError, match="written by bertsmith 0.1, .*choose another --out"):
        PreTrainingRecipe.load(tmp_path)
    (tmp_path / "recipe.toml").write_text("size =")
    with pytest.raises(RunFolderError, match="cannot be read"):
        PreTrainingRecipe.load(tmp_path)
