"""A plan measures text and machine, keeps nothing, and promises what the law says."""

import gzip
import math
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from bertsmith import WordPieceTokenizer, plan
from bertsmith.data.corpus.build import build_shards
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.shards import TRAIN
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.journeys import plan as planning
from bertsmith.journeys.plan import Forecast, Pace, Plan, PlanOptions
from bertsmith.settings import divided
from bertsmith.tinyworld import draw_stories, render
from bertsmith.train.forecast import LAWS
from typed_command import typed

SIZES = ("1/64", "2/64")


@pytest.fixture
def text(tmp_path):
    """Four files, one of them packed."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(4):
        stories = "\n\n".join(" ".join(render(s) for s in story.sentences) for story in draw_stories(number, 150))
        (folder / f"{number}.txt").write_text(stories, encoding="utf-8")
    packed = folder / "3.txt"
    (folder / "3.txt.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return folder


LAW = replace(LAWS["modernbert"], largest_miss=0.1, tokens_per_parameter=20.0)


def forecast(size, parameters, loss, *, steps=100, tokens=3e6, measured=True, doubts=()):
    return Forecast(size, parameters, 16, Pace(0.1, 0.0), measured, steps, tokens, 1.0, loss, loss, loss, doubts)


SMALL, LARGE = forecast("1/64", 100_000, 4.0), forecast("tiny", 300_000, 4.2)


def planned(*forecasts):
    return Plan(0.5, 1, 1.0, 400, 6.0, LAW, list(forecasts))


def test_what_a_time_would_bring(text):
    found = plan(text, minutes=0.5, size=SIZES[::-1], vocab_size=400)
    assert [forecast.size for forecast in found.forecasts] == list(SIZES)
    law = LAWS["modernbert"]
    for forecast in found.forecasts:
        # the time of the steps, of saving and of thirteen evaluations, each a forward pass over the held-out text
        evaluating = 0.04 * found.text_tokens / 3 / (forecast.tokens / forecast.steps) * forecast.pace.step
        assert forecast.steps == pytest.approx((30 - 13 * evaluating) / (1.02 * forecast.pace.step), abs=1)
        assert forecast.measured
        assert forecast.passes == pytest.approx(forecast.tokens / found.text_tokens)
        expected = law.loss(forecast.parameters, forecast.tokens, found.unigram_entropy, text_tokens=found.text_tokens)
        assert forecast.loss == expected
        assert forecast.loss_of_twice_the_time <= forecast.loss
        assert forecast.loss_of_twice_the_text <= forecast.loss
        assert forecast.doubts == law.doubts(forecast.parameters, forecast.tokens, found.text_tokens)
    assert found.best in found.forecasts


def test_a_size_too_small_for_the_time_is_not_the_best():
    assert planned(SMALL, LARGE).best is LARGE
    assert planned(SMALL).best is SMALL


def test_a_size_that_takes_too_few_steps_is_not_the_best():
    assert planned(SMALL, forecast("mini", 2_000_000, 3.0, steps=5)).best is SMALL


def test_a_size_that_takes_too_long_to_measure_is_guessed(text, monkeypatch):
    monkeypatch.setattr(planning, "MEASURING_SECONDS", 0.0)
    small, large = plan(text, minutes=0.5, size=("1/64", "8/256"), vocab_size=400).forecasts
    assert (small.measured, large.measured) == (True, False)
    assert ["its steps were not timed" in one.doubts for one in (small, large)] == [False, True]
    assert large.pace.step > 5 * small.pace.step


def test_each_size_that_was_asked_for_is_answered(text):
    asked = ("large", "1/64")
    found = plan(text, minutes=0.5, size=asked, vocab_size=400)
    assert [(forecast.size, forecast.fits) for forecast in found.forecasts] == [("1/64", True), ("large", False)]
    assert found.best.size == "1/64"


def test_hours_are_minutes():
    for given, minutes in (({"hours": 2}, 120), ({"hours": 2, "minutes": 30.0}, 150), ({"hours": None}, None)):
        (chosen,) = divided(given, PlanOptions, command="plan")
        assert chosen.get("minutes") == minutes
    for hours in (0, -1, math.nan, math.inf, "2"):
        with pytest.raises(ConfigError, match="hours is"):
            divided({"hours": hours}, PlanOptions, command="plan")
    with pytest.raises(ConfigError, match="no such setting"):
        divided({"hours": 1}, ReadingOptions, command="evaluate")


@pytest.mark.parametrize("batch_size", [16, 128])
def test_another_batch_than_was_measured_is_doubted(text, monkeypatch, batch_size):
    usual = planning._recipe
    monkeypatch.setattr(planning, "_recipe", lambda *asked: usual(*asked).changed(batch_size=batch_size))
    found = plan(text, minutes=1, size=("1/64",), vocab_size=400)
    assert ("no run with 128 sequences in a batch was measured" in found.best.doubts) == (batch_size == 128)


def test_the_time_that_is_advised_is_enough(text):
    how = {"size": ("small",), "vocab_size": 400}
    with pytest.raises(ConfigError) as refused:
        plan(text, minutes=0.05, **how)
    enough = float(re.search(r"give ([\d.]+) minutes", str(refused.value)).group(1))
    # 机器忙闲不同：给它三倍的余地
    (forecast,) = plan(text, minutes=3 * enough, **how).forecasts
    assert forecast.fits


def test_a_part_of_the_text_stands_for_all_of_it(text, tmp_path, monkeypatch):
    files = sorted(text.glob("*.txt"))
    (text / "3.txt.gz").unlink()
    tokenizer = WordPieceTokenizer.train((file.read_text() for file in files), vocab_size=400)
    options = CorpusOptions(documents="blank-line", heldout_share=0.04, keep_duplicates=True)
    whole = build_shards(files, tokenizer, tmp_path / "corpus", options).counts[TRAIN].tokens
    monkeypatch.setattr(planning, "SAMPLED_BYTES", files[0].stat().st_size * 3 // 2)
    found = plan(text, minutes=0.5, size=SIZES[:1], vocab_size=400, documents="blank-line")
    assert found.text_bytes == sum(file.stat().st_size for file in files)
    assert found.text_tokens == pytest.approx(whole, rel=0.1)


def test_files_that_are_a_text_each_share_the_sample(text, monkeypatch):
    first = text / "0.txt"
    monkeypatch.setattr(planning, "SAMPLED_BYTES", first.stat().st_size)
    found = plan(text, minutes=0.5, size=SIZES[:1], vocab_size=400)
    packed = (text / "3.txt.gz").stat().st_size
    assert found.text_bytes == sum(file.stat().st_size for file in text.glob("*.txt")) + 3 * packed


def test_the_command_names_the_size_and_the_next_command(text, capsys):
    before = sorted(text.iterdir())
    out = typed(capsys, "plan", "--text", str(text), "--minutes", "0.5", "--size", "1/64", "--vocab-size", "400")
    assert "1/64 learns most in 0.5 minutes" in out
    assert f"bertsmith quickstart {text} --vocab-size 400 --family modernbert --size 1/64 --minutes 0.5" in out
    assert sorted(text.iterdir()) == before


def test_the_next_command_reads_the_text_as_the_plan_did(capsys, monkeypatch):
    monkeypatch.setattr(planning, "plan", lambda *_, **__: planned(SMALL, LARGE))
    out = typed(
        capsys, "plan", "--text", "my texts", "--documents", "blank-line", "--encoding", "gbk", "--vocab-size", "400"
    )
    assert "1/64 is no choice: it would read 30 tokens a parameter, and over 20, the most that was measured" in out
    assert "bertsmith quickstart 'my texts' --documents blank-line --encoding gbk --vocab-size 400 --family" in out


def test_what_is_a_guess_is_called_one(capsys, monkeypatch):
    slow = forecast("mini", 2_000_000, 3.0, steps=5, measured=False)
    found = planned(replace(LARGE, doubts=["a", "b"]), slow)
    monkeypatch.setattr(planning, "plan", lambda *_, **__: found)
    out = typed(capsys, "plan", "--text", "a")
    assert "This is a guess: a; b." in out
    assert "~0.10" in out
    assert "too slow" in out
    assert "~: guessed from the next smaller size" in out
    monkeypatch.setattr(planning, "plan", lambda *_, **__: replace(planned(LARGE), minutes=150))
    out = typed(capsys, "plan", "--text", "a")
    assert "within 0.10 nats of the English runs" in out
    assert "tiny learns most in 2.5 hours" in out


@pytest.mark.slow
def test_processes_measure_together(text):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "bertsmith",
    ]
    command += ["plan", "--text", str(text), "--minutes", "0.5", "--size", "1/64", "--vocab-size", "400"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("1/64 learns most in 0.5 minutes") == 1
    assert "torchrun --nproc-per-node 2 -m bertsmith pretrain --corpus runs/shards" in done.stdout
    assert f"bertsmith corpus {text} --tokenizer runs/tokenizer --out runs/shards" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"family": "distilbert"}, "no law of distilbert is known"),
        ({"family": "bret"}, "no law of bret is known"),
        ({"size": ("huge",)}, "huge"),
        (
            {"size": ("small",), "minutes": 0.05},
            r"small takes \d+ of at least 20 steps on this machine; give .* or a smaller size",
        ),
    ],
)
def test_a_plan_that_cannot_be_made(text, options, said):
    with pytest.raises(ConfigError, match=said):
        plan(text, **{"minutes": 0.5, "vocab_size": 400, **options})


@pytest.mark.parametrize("content", ["", "one line\n"])
def test_too_little_text(tmp_path, content):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(BertsmithError, match=r"a\.txt|document"):
        plan(tmp_path / "a.txt", minutes=0.5, size=SIZES[:1])
