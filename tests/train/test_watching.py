"""What can be watched: the curves of TensorBoard, the utilisation, the report."""

import json
import re
import struct
import sys

import pytest

from bertsmith.errors import ConfigError, InputError
from bertsmith.settings import values_of
from bertsmith.train.choosing import recipe_for
from bertsmith.train.monitor import MetricsLog, read_metrics
from bertsmith.train.optimizer import learning_rate_at
from bertsmith.train.pretraining import pretrain, verdict_on
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.report import write_run_report
from bertsmith.train.tracking import tracker_named
from typed_command import typed

RECIPE = recipe_for("1/64", sequence_length=32, batch_size=8, steps=24, seed=7, precision="float32")


@pytest.fixture(scope="module")
def runs(village, tmp_path_factory):
    """Two runs that differ in their objective."""
    corpus, tokenizer, _ = village
    folder = tmp_path_factory.mktemp("runs")
    pretrain(folder / "paper", corpus, tokenizer, RECIPE, listeners=[tracker_named("tensorboard")])
    pretrain(folder / "plain", corpus, tokenizer, RECIPE.changed(objective="mlm"), listeners=())
    return folder


def curves_of(folder):
    """Reads TensorBoard's files: length, checksum, protocol buffer, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    curves = {}
    for file in sorted(folder.iterdir()):
        content, place = file.read_bytes(), 0
        while place < len(content):
            (length,) = struct.unpack_from("<Q", content, place)
            event = Event.FromString(content[place + 12 : place + 12 + length])
            for value in event.summary.value:
                curves.setdefault(value.tag, {})[event.step] = value.simple_value
            place += 16 + length
    return curves


def test_tensorboard_shows_what_the_log_holds(runs):
    curves = curves_of(runs / "paper" / "tensorboard")
    rows = read_metrics(runs / "paper" / "metrics.jsonl")
    for kind in ("train", "heldout"):
        expected = {row["step"]: row["mlm_loss"] for row in rows if row["kind"] == kind}
        assert curves[f"{kind}/mlm_loss"] == pytest.approx(expected)
    assert not (runs / "plain" / "tensorboard").exists()


def test_tensorboard_is_asked_for_and_missing(village, tmp_path, monkeypatch):
    corpus, tokenizer, _ = village
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigError, match=r"--track tensorboard: .*pip install 'bertsmith\[track\]'"):
        tracker_named("tensorboard")
    pretrain(tmp_path / "run", corpus, tokenizer, RECIPE.changed(steps=2))
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_the_log_has_a_utilisation_between_nothing_and_everything(runs):
    rows = [row for row in read_metrics(runs / "paper" / "metrics.jsonl") if row["kind"] == "train"]
    assert all(0 < row["mfu"] < 1 for row in rows)


def test_the_log_has_the_rate_with_which_each_step_was_taken(runs):
    trainer = PreTrainingRecipe.load(runs / "paper").trainer
    steps = trainer.total_steps
    for row in read_metrics(runs / "paper" / "metrics.jsonl"):
        if row["kind"] == "train":
            warmup = round(trainer.warmup_share * steps)
            rate = learning_rate_at(row["step"] - 1, peak=trainer.learning_rate, warmup_steps=warmup, total_steps=steps)
            assert row["learning_rate"] == pytest.approx(rate)


def test_the_report_of_a_run(runs, tmp_path):
    page = write_run_report([runs / "paper"], tmp_path / "report.html").read_text()
    last = [row for row in read_metrics(runs / "paper" / "metrics.jsonl") if row["kind"] == "heldout"][-1]
    assert "24 of 24" in page
    assert f"{last['mlm_loss']:.3f} nats" in page
    assert f"perplexity {last['perplexity']:.1f}" in page
    assert verdict_on(last["mlm_loss"], last["unigram_entropy"]) in page
    assert page.count("data:image/svg+xml;base64,") == 2
    assert "<h2>Recipe</h2>" in page
    assert not re.search(r"(src|href)='(?!data:)", page)


def test_the_report_says_in_words_what_the_loss_means(tmp_path):
    figures = {"mlm_loss": 6.4, "perplexity": 601.8, "unigram_entropy": 6.3}
    for name, start, losses in (("new", "", (6.9, 6.4)), ("further", "a/model", (3.2, 2.9)), ("old", "", (6.4,))):
        folder = tmp_path / name
        folder.mkdir()
        RECIPE.changed(**{"from": start}).save(folder)
        for step, loss in enumerate(losses):
            row = {"kind": "heldout", "step": step, "tokens": 100 * step, **figures, "mlm_loss": loss}
            MetricsLog(folder / "metrics.jsonl", keep_bytes=10**6).append(row)
    worse = "Worse than word frequencies (6.40 nats, and 6.30 by frequencies alone): give more minutes"
    assert worse in write_run_report([tmp_path / "new"]).read_text()
    assert "frequencies" not in write_run_report([tmp_path / "old"]).read_text()
    page = write_run_report([tmp_path / "new", tmp_path / "further"], tmp_path / "both.html").read_text()
    assert f"new: {worse}" in page
    assert "further: The model it began from has 3.20 nats on the held-out text, this one 2.90" in page


def test_several_runs_are_overlaid(runs, capsys):
    assert "both.html" in typed(capsys, "report", runs / "paper", runs / "plain", "--out", runs / "both.html")
    page = (runs / "both.html").read_text()
    assert "Pre-training: 2 runs" in page
    assert "paper: steps" in page
    assert "plain: masked-LM loss" in page
    differing = page.split("Where the recipes differ")[1]
    assert "objective" in differing
    assert "learning_rate" not in differing


def test_a_run_that_has_just_begun_has_a_report(runs, tmp_path):
    """Only the evaluation before the first step is there, and the last line is cut off."""
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "recipe.toml").write_text((runs / "paper" / "recipe.toml").read_text())
    first = (runs / "paper" / "metrics.jsonl").read_text().splitlines()[0]
    (begun / "metrics.jsonl").write_text(first + '\n{"kind": "tr')
    assert "0 of 24" in write_run_report([begun]).read_text()
    assert (begun / "report.html").is_file()


def test_a_folder_without_figures_and_a_quickstart_are_refused(runs, tmp_path):
    with pytest.raises(InputError, match="no metrics.jsonl with figures"):
        write_run_report([tmp_path])
    with pytest.raises(InputError, match="named twice"):
        write_run_report([runs / "paper", runs / "paper"])
    (tmp_path / "quickstart.json").write_text("{}")
    with pytest.raises(InputError, match="quickstart's own report"):
        write_run_report([tmp_path])


def test_every_option_of_the_command_reaches_the_recipe(village, tmp_path, capsys):
    folder = village[2]
    options = {
        "objective": "mlm", "masking": "whole-word", "mask_rate": 0.2, "mask_share": 0.7, "random_share": 0.2,
        "static_masking": 3, "packing": "full", "batch_tokens": 300, "learning_rate": 0.002, "optimizer": "lamb",
        "schedule": "cosine", "dropout": 0.0, "precision": "float32", "seed": 5, "skips_in_a_row": 9,
        "skipped_share": 0.5, "tokens": 2000, "flops": 1e12,
    }  # fmt: skip
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    words += ["--size=1/64", "--phases=16:0.5,32:0.5", "--accumulate=2", "--keep-states=1", "--workers=1"]
    words += ["--track=none", "--save-every=0", "--steps=40"]
    common = [f"--corpus={folder / 'corpus'}", f"--tokenizer={folder / 'tokenizer'}", f"--out={tmp_path / 'run'}"]
    for _ in range(2):
        output = typed(capsys, "pretrain", *common, *words)
        assert "perplexity" in output
    recipe = PreTrainingRecipe.load(tmp_path / "run")
    assert {name: values_of(recipe)[name] for name in options} == options
    assert recipe.length.phases == ((16, 0.5), (32, 0.5))
    assert recipe.trainer.total_steps < 40
    last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == recipe.trainer.total_steps


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give an end: --minutes, --steps, --tokens or --flops"),
        (["--steps=5", "--from=model", "--size=tiny"], "--from brings its own size"),
        (["--steps=5", "--from=model", "--first-vectors=counted"], "--from brings its own vectors"),
        (["--steps=5", "--from=model", "--sinusoids=0.1"], "--from brings its own positions"),
        (["--steps=5", "--phases=1"], "LENGTH:SHARE"),
        (["--steps=5", "--objective=mlm+x"], "objective 'mlm+x' is unknown"),
        (["--steps=5", "--optimizer=adam"], "optimizer 'adam' is unknown; use one of adamw, lamb"),
        (["--steps=5", "--schedule=flat"], "schedule 'flat' is unknown"),
        (["--steps=5", "--masking=letter"], "masking 'letter' is unknown"),
        (["--steps=5", "--keep-states=0"], "keep-states"),
    ],
)
def test_impossible_requests_end_with_one_line_and_leave_no_run(village, tmp_path, capsys, words, message):
    folder = village[2]
    common = [f"--corpus={folder / 'corpus'}", f"--tokenizer={folder / 'tokenizer'}", f"--out={tmp_path / 'run'}"]
    assert message in typed(capsys, "pretrain", *common, *words, code=2)
    assert not (tmp_path / "run" / "recipe.toml").exists()
