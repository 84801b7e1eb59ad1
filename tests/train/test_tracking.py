"""A run is followed by MLflow, Weights & Biases and listeners of one's own, also over a kill; none can end it."""

import struct

import pytest

from bertsmith.cli import main
from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.train.choosing import recipe_for
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import PreTrainingRun, RunOptions, pretrain
from bertsmith.train.tracking import TrackingOptions, tracker_named, usual_trackers
from bertsmith.train.trainer import BertTrainer
from typed_command import typed

RECIPE = recipe_for("1/64", sequence_length=32, batch_size=8, steps=12, seed=7, precision="float32")


class Killed(Exception):
    """Stands for the process dying between two steps."""


class Recorder:
    def __init__(self):
        self.seen = []

    def started(self, run):
        self.seen.append(("started", run.kind, run.step))

    def figures(self, kind, step, values):
        self.seen.append((kind, step))

    def artefact(self, path):
        self.seen.append(("artefact", path.name, path.exists()))

    def ended(self, outcome):
        self.seen.append(("ended", outcome))


def run_killed_once(folder, village, monkeypatch, tracker):
    """Saves a state after 5 steps, takes and tells 4 more, dies, and goes on to the end, those 4 once more."""
    corpus, tokenizer, _ = village
    train_batch, save, told = BertTrainer.train_batch, PreTrainingRun._save, Recorder()

    def dies(self, *parts):
        if self.step == 9:
            raise Killed
        return train_batch(self, *parts)

    with monkeypatch.context() as patched:
        patched.setattr(BertTrainer, "train_batch", dies)
        patched.setattr(PreTrainingRun, "_save", lambda self: save(self) if self.trainer.step <= 5 else None)
        patched.setattr("bertsmith.train.pretraining.SAVING_SHARE", 1e9)
        with pytest.raises(Killed):
            pretrain(folder, corpus, tokenizer, RECIPE, RunOptions(save_every=0.0), listeners=[tracker_named(tracker)])
    pretrain(folder, corpus, tokenizer, RECIPE, listeners=[told, tracker_named(tracker)])
    assert told.seen[0] == ("started", "pretrain", 5)
    return read_metrics(folder / "metrics.jsonl")


def test_a_listener_is_told_of_a_run_in_order(village, tmp_path):
    corpus, tokenizer, _ = village
    listener = Recorder()
    pretrain(tmp_path / "run", corpus, tokenizer, RECIPE, listeners=[listener])
    assert listener.seen[:2] == [("started", "pretrain", 0), ("heldout", 0)]
    assert ("train", 12) in listener.seen
    assert listener.seen[-4:] == [
        ("artefact", "recipe.toml", True),
        ("artefact", "metrics.jsonl", True),
        ("artefact", "model", True),
        ("ended", "finished"),
    ]


@pytest.mark.slow
def test_an_mlflow_run_holds_the_curves_once_and_goes_on_after_a_kill(village, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)
    rows = run_killed_once(tmp_path / "run", village, monkeypatch, "mlflow")
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("bertsmith")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["steps"] == "12"
    assert run.data.params["objective"] == "mlm+nsp"
    for kind in ("train", "heldout"):
        points = client.get_metric_history(run.info.run_id, f"{kind}/mlm_loss")
        assert len(points) == len({point.step for point in points})
        expected = {row["step"]: row["mlm_loss"] for row in rows if row["kind"] == kind}
        assert {point.step: point.value for point in points} == pytest.approx(expected)
    assert {one.path for one in client.list_artifacts(run.info.run_id)} == {"recipe.toml", "metrics.jsonl"}


def records_of(file):
    """Reads a `.wandb` file: blocks of 32 KiB with records in LevelDB's log format, each a protocol buffer."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (left := -place % 32768) and left < 7:
            place += left
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record, parts = Record.FromString(parts), b""
            yield record


@pytest.mark.slow
def test_weights_and_biases_offline_holds_the_curves_and_goes_on_after_a_kill(village, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    rows = run_killed_once(tmp_path / "run", village, monkeypatch, "wandb")
    files = sorted((tmp_path / "run" / "tracking").glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1
    found, config, exits = {}, {}, []
    for file in files:
        for record in records_of(file):
            for item in record.history.item:
                if (name := item.key or ".".join(item.nested_key)) in ("heldout/mlm_loss", "train/mlm_loss"):
                    found[name, record.history.step.num] = float(item.value_json)
            config |= {one.key: one.value_json for one in record.run.config.update}
            exits += [record.exit.exit_code] if record.HasField("exit") else []
    expected = {(f"{row['kind']}/mlm_loss", row["step"]): row["mlm_loss"] for row in rows}
    assert found == pytest.approx(expected)
    assert config["size"] == '"1/64"'
    assert exits == [1, 0]


def test_a_fine_tuning_run_is_told_too(tiny_model, tmp_path):
    examples = [LabelledText(f"the {word}", None, word) for word in ("book", "man") * 4]
    listener = Recorder()
    settings = FineTuningSettings(epochs=2, batch_size=4)
    task = ClassificationTask.of(examples)
    for _ in range(2):
        fine_tune(task, tiny_model, examples, examples, tmp_path / "run", settings, test=examples, listeners=[listener])
    # 第二次调用只返回已有的结果，没有什么可说
    assert listener.seen == [
        ("started", "finetune", 0),
        ("train", 2),
        ("dev", 2),
        ("train", 4),
        ("dev", 4),
        ("test", 4),
        ("artefact", "result.json", True),
        ("artefact", "metrics.jsonl", True),
        ("artefact", "model", True),
        ("ended", "finished"),
    ]


def test_a_listener_that_fails_costs_one_warning_and_not_the_run(village, tmp_path):
    corpus, tokenizer, _ = village

    class Broken(Recorder):
        def figures(self, kind, step, values):
            super().figures(kind, step, values)
            raise ConnectionError("the server\nis gone")

    broken, sound = Broken(), Recorder()
    with pytest.warns(RuntimeWarning) as caught:
        pretrain(tmp_path / "run", corpus, tokenizer, RECIPE, listeners=[broken, sound])
    (warning,) = [str(one.message) for one in caught if "Broken" in str(one.message)]
    assert "run: Broken failed (ConnectionError: the server is gone); the run continues without it" in warning
    assert broken.seen == [("started", "pretrain", 0), ("heldout", 0)]
    assert sound.seen[-1] == ("ended", "finished")


def test_a_run_that_fails_says_so_to_its_listeners(village, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    listener = Recorder()

    def dies(self, *_):
        raise Killed

    monkeypatch.setattr(BertTrainer, "train_batch", dies)
    with pytest.raises(Killed):
        pretrain(tmp_path / "run", corpus, tokenizer, RECIPE, listeners=[listener])
    assert listener.seen[-1] == ("ended", "failed")


def test_track_on_the_command_line(village, tmp_path, capsys, monkeypatch):
    folder = village[2]
    assert TrackingOptions().listeners() is None
    assert TrackingOptions(("none",)).listeners() == []
    assert [type(one).__name__ for one in usual_trackers()] == ["TensorBoard"]
    with pytest.raises(ConfigError, match="say with --track mlflow or --track wandb"):
        TrackingOptions(("tensorboard",), track_model=True)
    common = [f"--corpus={folder / 'corpus'}", f"--tokenizer={folder / 'tokenizer'}", f"--out={tmp_path / 'run'}"]
    words = ["pretrain", *common, "--size", "1/64", "--steps", "2", "--sequence-length", "32"]
    assert "use mlflow, tensorboard, wandb or none" in typed(capsys, *words, "--track", "neptune", code=2)
    # 说好的记录服务没有：训练照样到底，只有一行警告
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'missing' / 'mlflow.db'}")
    (tmp_path / "missing").write_text("a file, where the folder should be")
    with pytest.raises(SystemExit) as caught:
        main([*words, "--track", "mlflow", "--track", "tensorboard"])
    output = capsys.readouterr()
    assert caught.value.code == 0, output.err
    assert "MLflow failed" in output.err
    assert list((tmp_path / "run" / "tensorboard").iterdir())
