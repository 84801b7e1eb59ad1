"""The calls in Python: their examples run, their settings are checked."""

import doctest
from pathlib import Path

import pytest

import bertsmith
import bertsmith.finetune.calls
from bertsmith import sklearn as estimators
from bertsmith.errors import ConfigError, InputError
from bertsmith.result import Result
from bertsmith.tinyworld import draw_reviews, draw_stories

ROWS = [{"text": "the man reads", "label": "good"}, {"text": "the woman eats", "label": "bad"}] * 4


def test_rows_in_memory_give_what_the_command_gives_for_a_file(tiny_model, tmp_path, capsys):
    from bertsmith.cli import main

    made = bertsmith.finetune("classify", tiny_model, tmp_path / "one", train=ROWS, dev=ROWS, epochs=2, batch_size=4)
    assert isinstance(made, Result)
    assert made.metrics == made.details.dev.metrics
    assert (made.model_folder, made.report) == (tmp_path / "one" / "model", tmp_path / "one" / "report.html")
    assert made.report.exists()
    card = (made.model_folder / "README.md").read_text(encoding="utf-8")
    assert "list in memory" in card
    file = tmp_path / "rows.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS), encoding="utf-8")
    command = ["finetune", "classify", "--model", tiny_model, "--train", file, "--dev", file, "--epochs", 2]
    with pytest.raises(SystemExit):
        main([str(word) for word in [*command, "--batch-size", 4, "--out", tmp_path / "two"]])
    assert "best epoch" in capsys.readouterr().out
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1]
    found = bertsmith.evaluate(made.model_folder, ROWS)
    assert found.metrics == pytest.approx(made.metrics)
    # the same rows go on with the run that a file began
    again = bertsmith.finetune("classify", tiny_model, tmp_path / "two", train=ROWS, dev=ROWS, epochs=2, batch_size=4)
    assert again.metrics == made.metrics


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 2}, "epoch: there is no such setting; did you mean epochs? All are in `bertsmith finetune --help`"),
        ({"epochs": "two"}, 'epochs is "two", not a whole number'),
        ({"epochs": 0}, "epochs is 0; give at least 1"),
        ({"dropout": 1.5}, "dropout is 1.5; give at least 0 and at most 0.9"),
        ({"precision": "int3"}, "precision 'int3' is unknown; use auto, bf16, float32"),
        ({"stride": 64}, "--stride is not for classify; leave it out"),
        ({"search": "paper", "epochs": 2}, "--epochs: --search paper tries several by itself"),
        ({"encoding": "latin-1"}, "--encoding is for files, and train is a table in memory"),
    ],
)
def test_settings_are_checked_before_any_work(settings, message, tiny_model, tmp_path):
    with pytest.raises(ConfigError) as caught:
        bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=ROWS, dev=ROWS, **settings)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_wrong_row_is_named(tiny_model, tmp_path):
    bad = [*ROWS, {"text": "the man", "label": None}]
    with pytest.raises(InputError, match=r"dev: row 8 \(from 0\) has an empty label"):
        bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=ROWS, dev=bad)
    with pytest.raises(ConfigError, match="give --train and --dev"):
        bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=ROWS)


@pytest.fixture
def sample(tmp_path, monkeypatch):
    """The folder that the guides begin in, as far as these pages need it."""
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    stories = [story.text for story in draw_stories(0, 150)]
    for number in range(3):
        Path("texts", f"part-{number}.txt").write_text("\n\n".join(stories[number::3]) + "\n", encoding="utf-8")
    for name, count in (("train", 60), ("dev", 20)):
        rows = [f"{review.text}\t{review.label}" for review in draw_reviews(0, count, split=name)]
        Path(f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    bertsmith.learn_vocabulary("texts", "runs/mine/tokenizer", vocab_size=500)
    bertsmith.build_corpus("texts", "runs/mine/tokenizer", "runs/mine/corpus", documents="blank-line", workers=1)
    bertsmith.pretrain("runs/mine/corpus", "runs/mine/tokenizer", "runs/mine", size="1/64", steps=4)
    return tmp_path


EXAMPLES = [
    *(getattr(bertsmith, name) for name in ("learn_vocabulary", "build_corpus", "pretrain")),
    bertsmith.finetune.calls.finetune,
    *(getattr(bertsmith, name) for name in ("evaluate", "index", "distil")),
    *(getattr(estimators, name) for name in estimators.__all__),
]


@pytest.mark.slow
def test_the_examples_of_the_docstrings_run(sample):
    runner = doctest.DocTestRunner()
    for owner in EXAMPLES:
        (example,) = (test for test in doctest.DocTestFinder(recurse=False).find(owner, owner.__name__))
        assert example.examples, owner
        assert runner.run(example).failed == 0, owner
