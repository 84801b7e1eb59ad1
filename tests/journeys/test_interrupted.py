"""A quickstart that is stopped again and again, between any two of the files it writes, ends as the undisturbed one."""

import itertools
import os

import pytest
from safetensors.torch import load_file

import bertsmith
from bertsmith import files
from bertsmith.finetune.run import FineTuningResult
from bertsmith.journeys import quickstart, village


class Killed(BaseException):
    """No error that anybody handles."""


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(quickstart, "WORLD_STEPS", 10)
    for name, count in (("STORIES", 80), ("CAPTIONS", 20), ("REVIEWS", {"train": 32, "dev": 16, "test": 24})):
        monkeypatch.setattr(village, name, count)


def run(out):
    return bertsmith.quickstart(out=out, size="1/64").details


@pytest.mark.slow
def test_a_quickstart_that_is_stopped_between_any_two_files_ends_the_same(tmp_path, small, monkeypatch):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole)
    replace, deaths = os.replace, 0
    for allowed in itertools.islice(itertools.cycle((2, 5, 12, 90)), 30):
        left = [allowed]

        def dies(source, target, left=left):
            replace(source, target)
            left[0] -= 1
            if left[0] == 0:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(files.os, "replace", dies)
            try:
                result = run(broken)
            except Killed:
                deaths += 1
                continue
        break
    else:
        pytest.fail("never came to an end")
    assert deaths >= 5
    assert (broken / "report.html").exists()
    for name in ("tokenizer/vocab.txt", "world/stories.txt", "world/reviews-train.tsv"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    assert [p.name for p in sorted((broken / "corpus").glob("*.arrow"))] == [
        p.name for p in sorted((whole / "corpus").glob("*.arrow"))
    ]
    for folder in ("model", "sentiment/pretrained/model", "sentiment/random/model"):
        ours, theirs = (load_file(out / folder / "model.safetensors") for out in (broken, whole))
        assert ours.keys() == theirs.keys()
        assert all(ours[name].equal(theirs[name]) for name in ours), folder
    for name, evaluation in result.sentiment.items():
        expected = FineTuningResult.load(whole / "sentiment" / name / "result.json").test
        assert evaluation.metrics == expected.metrics
