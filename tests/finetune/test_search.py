import json
import shutil
import statistics

import pytest

import bertsmith.finetune.search as search_module
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.run import FineTuningResult
from bertsmith.finetune.search import PAPER_GRID, grid_cells, paper_grid, search
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.finetune.trials import SearchResult
from bertsmith.inference import load_pipeline

SETTINGS = FineTuningSettings(epochs=1, batch_size=8, learning_rate=2e-3)
GRID = {"learning_rate": (1e-9, 3e-3), "epochs": (1, 5)}


def make_examples(count, offset=0):
    words = {"good": ("bread", "book"), "bad": ("man", "woman")}
    labels = ["good" if (i + offset) % 2 else "bad" for i in range(count)]
    return [
        LabelledText(f"the {words[label][(i // 2) % 2]} reads" if i % 3 else f"a {words[label][i % 2]} !", None, label)
        for i, label in enumerate(labels)
    ]


TRAIN, DEV, TEST = make_examples(48), make_examples(20, 1), make_examples(24, 1)


def run_search(model, folder, **changes):
    arguments = {"test": TEST, "grid": GRID, "settings": SETTINGS, "train": TRAIN, "dev": DEV} | changes
    return search(ClassificationTask.of(TRAIN), model, run=folder, **arguments)


def test_the_papers_grid_is_that_of_appendix_a3():
    cells = grid_cells(PAPER_GRID, FineTuningSettings(seed=7))
    assert len(cells) == len(set(cells)) == 18
    assert {cell.batch_size for cell in cells} == {16, 32}
    assert {cell.learning_rate for cell in cells} == {5e-5, 3e-5, 2e-5}
    assert {cell.epochs for cell in cells} == {2, 3, 4}
    assert {cell.seed for cell in cells} == {7}


def test_the_grid_keeps_its_proportions_around_another_rate():
    assert paper_grid(5e-5) == PAPER_GRID
    assert paper_grid(1e-3)["learning_rate"] == (1e-3, 6e-4, 4e-4)


def test_a_grid_keeps_the_best_model_and_the_table(tiny_model, tmp_path):
    folder = tmp_path / "search"
    result = run_search(tiny_model, folder)
    names = ["lr1e-09-epochs1", "lr1e-09-epochs5", "lr0.003-epochs1", "lr0.003-epochs5"]
    assert [row.name for row in result.rows] == names
    singles = [FineTuningResult.load(folder / "runs" / name / "result.json") for name in names]
    assert [row.dev for row in result.rows] == [single.dev.metrics for single in singles]
    assert [row.test for row in result.rows] == [single.test.metrics for single in singles]
    scores = [single.dev.metrics["accuracy"] for single in singles]
    assert result.best == names[scores.index(max(scores))]
    assert max(scores) > scores[0]
    assert result.dev_spread == result.test_spread == {}
    # only the best model is left on the disk, and it is the one that had the best figures
    assert [path.parent.name for path in folder.rglob("model.safetensors")] == ["model"]
    predictions = load_pipeline("classify", folder / "model")([example.text for example in DEV])
    right = [p.label == example.label for p, example in zip(predictions, DEV, strict=True)]
    assert sum(right) / len(right) == max(scores)
    assert (folder / "report.html").exists()
    assert SearchResult.load(folder / "result.json") == result


def test_seeds_give_mean_and_sample_deviation(tiny_model, tmp_path):
    result = run_search(tiny_model, tmp_path / "seeds", grid=None, seeds=3)
    assert [row.settings for row in result.rows] == [{"seed": 0}, {"seed": 1}, {"seed": 2}]
    for rows, spread in (
        ([r.dev for r in result.rows], result.dev_spread),
        ([r.test for r in result.rows], result.test_spread),
    ):
        values = [row["accuracy"] for row in rows]
        found = spread["accuracy"]
        assert found.mean == pytest.approx(statistics.mean(values))
        assert found.deviation == pytest.approx(statistics.stdev(values))
        assert (found.low, found.high, found.seeds) == (min(values), max(values), 3)
    assert result.best_row.dev["accuracy"] == max(row.dev["accuracy"] for row in result.rows)


def test_with_both_the_grids_best_settings_are_repeated(tiny_model, tmp_path):
    result = run_search(tiny_model, tmp_path / "both", seeds=2)
    *grid, repeated = result.rows
    assert [row.settings["seed"] for row in grid] == [0] * 4
    first = max(grid, key=lambda row: row.dev["accuracy"])
    assert repeated.settings == {**first.settings, "seed": 1}
    assert result.dev_spread["accuracy"].mean == pytest.approx((first.dev["accuracy"] + repeated.dev["accuracy"]) / 2)
    assert "the mean on dev is a little too good" in (tmp_path / "both" / "report.html").read_text(encoding="utf-8")


class Killed(BaseException):
    pass


def test_killed_anywhere_it_goes_on_and_trains_nothing_twice(tiny_model, tmp_path, monkeypatch):
    expected = run_search(tiny_model, tmp_path / "whole")
    folder = tmp_path / "killed"
    trained = []
    real = search_module.fine_tune

    def counting(task, model, train, dev, run, *arguments, **named):
        if not (run / "result.json").exists():
            trained.append(run.name)
        return real(task, model, train, dev, run, *arguments, **named)

    def killed_after(function, times):
        calls = []

        def call(*arguments, **named):
            calls.append(1)
            result = function(*arguments, **named)
            if len(calls) == times:
                raise Killed
            return result

        return call

    # after the first run, after the third, after the best model was moved, before the report was written
    cuts = (
        ("fine_tune", killed_after(counting, 1)),
        ("fine_tune", killed_after(counting, 3)),
        ("keep_weights", killed_after(search_module.keep_weights, 1)),
        ("write_report", killed_after(lambda folder: None, 1)),
    )
    for name, replacement in cuts:
        with monkeypatch.context() as patch:
            patch.setattr(search_module, "fine_tune", counting)
            patch.setattr(search_module, name, replacement)
            with pytest.raises(Killed):
                run_search(tiny_model, folder)
    assert not (folder / "report.html").exists()
    monkeypatch.setattr(search_module, "fine_tune", counting)
    result = run_search(tiny_model, folder)
    assert sorted(trained) == sorted(row.name for row in expected.rows)
    assert [(row.name, row.dev, row.test) for row in result.rows] == [
        (row.name, row.dev, row.test) for row in expected.rows
    ]
    assert result.best == expected.best
    first, second = (path / "model" / "model.safetensors" for path in (folder, tmp_path / "whole"))
    assert first.read_bytes() == second.read_bytes()
    assert (folder / "report.html").exists()


def test_the_same_command_again_returns_the_result_and_another_is_refused(tiny_model, tmp_path, monkeypatch):
    folder = tmp_path / "search"
    arguments = {"grid": None, "seeds": 2, "test": None}
    first = run_search(tiny_model, folder, **arguments)
    monkeypatch.setattr("bertsmith.finetune.run.BertTrainer", lambda *_, **__: pytest.fail("trained again"))
    assert run_search(tiny_model, folder, **arguments) == first
    with pytest.raises(RunFolderError, match="holds a search with another seeds"):
        run_search(tiny_model, folder, **{**arguments, "seeds": 3})
    with pytest.raises(RunFolderError, match="another train"):
        run_search(tiny_model, folder, **arguments, train=make_examples(40))
    shutil.rmtree(folder / "runs")
    with pytest.raises(RunFolderError, match="runs/ are gone"):
        run_search(tiny_model, folder, **arguments)
    (folder / "result.json").write_text(json.dumps({"best": "x"}))
    with pytest.raises(RunFolderError, match="damaged"):
        SearchResult.load(folder / "result.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": None}, "no search"),
        ({"grid": {"epochs": (1,)}}, "no search"),
        ({"seeds": 0}, "give 1 or more"),
        ({"grid": {"speed": (1, 2)}}, "'speed' is no setting"),
        ({"grid": {"seed": (1, 2)}}, "does not hold the seed"),
        ({"grid": {"epochs": (2, 2)}}, "different values"),
        ({"grid": {"epochs": ()}}, "at least one"),
        ({"grid": {"epochs": (0, 1)}}, "at least 1"),
    ],
)
def test_impossible_searches_are_refused_before_anything_is_written(tiny_model, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        run_search(tiny_model, tmp_path / "search", **changes)
    assert not (tmp_path / "search").exists()


def test_a_folder_of_something_else_is_left_alone(tiny_model, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty"):
        run_search(tiny_model, tmp_path / "precious")


def test_of_runs_with_the_same_correlation_the_one_with_the_smaller_error_is_kept(tiny_model, tmp_path, monkeypatch):
    metrics = {
        0: {"pearson": 0.9012, "spearman": 0.9, "rmse": 9.0},
        1: {"pearson": 0.9010, "spearman": 0.9, "rmse": 0.3},
        2: {"pearson": 0.8, "spearman": 0.8, "rmse": 0.1},
    }

    def fine_tuned(*arguments, **_):
        arguments[4].mkdir(parents=True)
        return FineTuningResult(1, Evaluation(metrics[arguments[5].seed]), None, 1.0)

    monkeypatch.setattr("bertsmith.finetune.search.fine_tune", fine_tuned)
    monkeypatch.setattr("bertsmith.finetune.search.write_report", lambda _: None)
    scored = [ScoredText("the man", None, 1.0), ScoredText("a book", None, 2.0)]
    result = search(RegressionTask.of(scored), tiny_model, scored, scored, tmp_path / "run", SETTINGS, seeds=3)
    assert result.best_row.settings == {"seed": 1}
