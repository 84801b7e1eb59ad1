"""Runs as *Training* sees them: found, read as they grow, and kept apart from broken ones."""

import json
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[school]'")

from bertsmith_school.lab.training import MOST_POINTS, Run, RunFolders, curve, figures_of


def write(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def loss(step, value, kind="train"):
    return {"kind": kind, "step": step, "loss": value}


def test_runs_are_found_below_a_folder_and_named_apart(tmp_path):
    write(tmp_path / "one" / "run", [])
    write(tmp_path / "two" / "run", [])
    write(tmp_path / "search" / "runs" / "seed-1", [])
    assert list(RunFolders((tmp_path,)).find()) == ["one/run", "search/runs/seed-1", "two/run"]
    assert list(RunFolders((tmp_path / "one" / "run",)).find()) == ["run"]


def test_a_run_that_is_named_twice_is_one_run(tmp_path, monkeypatch):
    run = write(tmp_path / "search" / "run", [])
    monkeypatch.chdir(tmp_path)
    assert list(RunFolders((tmp_path, run, Path("search"), Path("search/../search/run"))).find()) == ["run"]


def test_a_run_that_begins_while_one_looks_appears(tmp_path):
    runs = RunFolders((tmp_path,))
    assert runs.find() == {}
    write(tmp_path / "late", [loss(1, 2.0)])
    assert list(runs.find()) == ["late"]


def test_a_run_is_read_again_when_it_has_grown(tmp_path):
    folder = write(tmp_path / "run", [loss(1, 2.0)])
    runs = RunFolders((tmp_path,))
    assert runs.read(folder) is runs.read(folder)
    with (folder / "metrics.jsonl").open("a") as handle:
        handle.write(json.dumps(loss(2, 1.5)) + '\n{"kind": "tra')
    assert curve(runs.read(folder), ("train", "loss"), "step") == ([1.0, 2.0], [2.0, 1.5])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "cannot be read"),
        (b"", "no figures yet"),
        (b'{"step": 0}\n{"step": 1}\n{}\n', "3 lines of metrics.jsonl are not figures"),
        (b'{"kind": "train"}\n"x"\n', "cannot be read"),
        (b'{"kind": "tra', "no figures yet"),
        (b"{}{}", "cannot be read"),
        (None, "no metrics.jsonl"),
    ],
)
def test_a_broken_run_says_what_is_wrong(tmp_path, content, said):
    folder = tmp_path / "run"
    folder.mkdir()
    if content is not None:
        (folder / "metrics.jsonl").write_bytes(content)
    run = RunFolders((folder,)).read(folder)
    assert said in run.trouble.en
    assert run.trouble.zh
    assert figures_of([run]) == []


def test_what_is_no_number_is_not_drawn():
    run = Run(
        ({"kind": "train", "step": 1, "loss": "high", "tied": True, "note": None}, loss(2, 1.0), loss(3, 10**400))
    )
    assert figures_of([run]) == [("train", "loss")]
    assert curve(run, ("train", "loss"), "step") == ([2.0], [1.0])
    assert curve(run, ("train", "loss"), "epoch") == ([], [])


def test_the_most_telling_figure_comes_first():
    run = Run(
        (
            {"kind": "train", "step": 1, "tokens": 9, "learning_rate": 0.1, "mlm_loss": 4.0},
            {"kind": "heldout", "step": 1, "mlm_accuracy": 0.1, "mlm_loss": 4.0},
        )
    )
    assert figures_of([run])[0] == ("heldout", "mlm_loss")
    tuned = Run((loss(1, 2.0), {"kind": "dev", "step": 1, "epoch": 1, "accuracy": 0.5}))
    assert figures_of([tuned])[0] == ("dev", "accuracy")


def test_a_long_run_is_thinned_out_and_keeps_its_last_point():
    run = Run(tuple(loss(step, 1 / step) for step in range(1, 10_001)))
    xs, ys = curve(run, ("train", "loss"), "step")
    assert MOST_POINTS <= len(xs) <= 2 * MOST_POINTS
    assert (xs[-1], ys[-1]) == (10_000.0, 1e-4)
    assert xs == sorted(xs)
