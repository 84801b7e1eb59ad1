"""The calls in Python: their examples run, their settings are checked."""

import doctest
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pandas as pd
import pytest
import torch

import bertsmith
import bertsmith.finetune.job
from bertsmith import sklearn as estimators
from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.kernels.layers import best_device, on_device
from bertsmith.kernels.matmul import has_int8_kernels
from bertsmith.settings import Result
from bertsmith.tinyworld import draw_reviews, draw_stories
from typed_command import typed

ROWS = [{"text": "the man reads", "label": "good"}, {"text": "the woman eats", "label": "bad"}] * 4


def test_rows_in_memory_give_what_the_command_gives_for_a_file(tiny_model, tmp_path, capsys):

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
    assert "best epoch" in typed(capsys, *command, "--batch-size", 4, "--out", tmp_path / "two")
    weights = [(tmp_path / run / "model" / "model.safetensors").read_bytes() for run in ("one", "two")]
    assert weights[0] == weights[1]
    found = bertsmith.evaluate(made.model_folder, ROWS)
    assert found.metrics == pytest.approx(made.metrics)
    kinds = {kind: bertsmith.evaluate(made.model_folder, ROWS, precision=kind).details for kind in ("float32", "bf16")}
    assert kinds["float32"].mistakes != kinds["bf16"].mistakes
    with pytest.raises(ConfigError, match="precision 'int3' is unknown; use float32, bf16, int8, auto"):
        bertsmith.evaluate(made.model_folder, ROWS, precision="int3")
    # the same rows go on with the run that a file began
    again = bertsmith.finetune("classify", tiny_model, tmp_path / "two", train=ROWS, dev=ROWS, epochs=2, batch_size=4)
    assert again.metrics == made.metrics


@pytest.mark.skipif(not has_int8_kernels(), reason="no int8 kernels in this torch")
def test_a_model_is_scored_in_8_bits(tiny_model, tmp_path):
    made = bertsmith.finetune("classify", tiny_model, tmp_path / "one", train=ROWS, dev=ROWS[:3], epochs=1)
    # 每行都标错：错得最多的几行连同概率列在 mistakes 里
    wrong = [{"text": row["text"], "label": "bad" if row["label"] == "good" else "good"} for row in ROWS]
    plain, rounded = (bertsmith.evaluate(made.model_folder, wrong, precision=kind) for kind in ("float32", "int8"))
    assert plain.details.mistakes != rounded.details.mistakes


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
    with pytest.raises(InputError, match="2 different examples, too few to hold some out; give --dev"):
        bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=ROWS)
    with pytest.raises(ConfigError, match="give --train, with --dev where you have it"):
        bertsmith.finetune("embed", tiny_model, tmp_path / "run")


STORIES = [story.text for story in draw_stories(0, 60)]


@pytest.mark.parametrize("kind", ["frame", "dictionaries", "data set", "generator"])
def test_documents_in_memory_give_what_a_file_of_them_gives(kind, tmp_path):
    import datasets

    records = [{"body": text, "number": number} for number, text in enumerate([*STORIES, None, ""])]
    made = {
        "frame": lambda: pd.DataFrame(records),
        "dictionaries": lambda: records,
        "data set": lambda: datasets.Dataset.from_list(records),
        "generator": lambda: (record for record in records),
    }[kind]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    folders = []
    for name, source in (("file", lambda: tmp_path / "a.jsonl"), ("memory", made)):
        vocabulary, corpus = (tmp_path / f"{name}-{what}" for what in ("vocabulary", "corpus"))
        learned = bertsmith.learn_vocabulary(source(), vocabulary, vocab_size=300, text_field="body", workers=1)
        assert learned.metrics["files"] == 1
        # 再来一次：同样的行是同一份请求
        for _ in range(2):
            built = bertsmith.build_corpus(source(), vocabulary, corpus, text_field="body", workers=1)
        assert built.metrics["documents"] + built.metrics["heldout_documents"] == 60
        folders.append((vocabulary, corpus))
    for one, other in zip(*folders, strict=True):
        assert sorted(path.name for path in one.iterdir()) == sorted(path.name for path in other.iterdir())
        for path in [*one.glob("vocab.txt"), *one.glob("*.arrow")]:
            assert path.read_bytes() == (other / path.name).read_bytes()
    with pytest.raises(RunFolderError, match="other settings \\(sources\\)"):
        bertsmith.build_corpus(records[1:], vocabulary, corpus, text_field="body", workers=1)


def test_a_killed_build_from_rows_goes_on_with_the_same_rows(tmp_path, monkeypatch):
    from bertsmith.data.corpus import build

    rows = [{"text": text} for text in STORIES]
    vocabulary = bertsmith.learn_vocabulary(rows, tmp_path / "vocabulary", vocab_size=300, workers=1).folder
    whole = bertsmith.build_corpus(rows, vocabulary, tmp_path / "whole", workers=1).details
    with monkeypatch.context() as patched:
        patched.setattr(build, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            bertsmith.build_corpus(rows, vocabulary, tmp_path / "killed", workers=1)
    assert list((tmp_path / "killed" / ".parts").glob("0*"))
    monkeypatch.setattr(build, "write_partial_shards", None)
    assert bertsmith.build_corpus(rows, vocabulary, tmp_path / "killed", workers=1).details.counts == whole.counts


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"text": ["a"]}, "text: is a dictionary of text; give one of its splits, or a dictionary for each row"),
        (
            [{"body": "a"}],
            r"text: row 0 \(from 0\) has no column 'text' \(it has body\); name the right one with text_fie",
        ),
        ([{"text": "a"}, {"text": 3}], r"text: row 1 \(from 0\): column 'text' holds int, not text"),
        (pd.DataFrame({"text": []}), "text: no row holds text in the column 'text'"),
        (pd.Series(["a text"]), r"text: row 0 \(from 0\) is a str, not a dictionary of its columns"),
        (3, "text: is a int; give a file, a data frame or a list of dictionaries"),
    ],
)
def test_documents_in_memory_that_cannot_be_read_are_named(rows, message, tiny_model, tmp_path):
    with pytest.raises(InputError, match=message):
        bertsmith.learn_vocabulary(rows, tmp_path / "out")
    with pytest.raises(InputError, match=message):
        bertsmith.build_corpus(rows, tiny_model, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda rows: bertsmith.quickstart(rows, "out"), "corpus: is a DataFrame, and files are needed; write the"),
        (lambda rows: bertsmith.plan(rows), "text: is a DataFrame, and files are needed; write the texts to a .txt"),
        (lambda rows: bertsmith.adapt("village", rows, "out"), "text: is a DataFrame, and files are needed"),
        (lambda rows: bertsmith.distil("village", rows, "out", size="1/64"), "text: is a DataFrame, and files are"),
        (lambda rows: bertsmith.index(rows, "village", "out"), "folder: is a DataFrame; hits name file and line"),
        (
            lambda rows: bertsmith.finetune("classify", "village", "out", teacher="village", teacher_text=rows),
            "teacher_text is a DataFrame; give what --teacher-text takes",
        ),
    ],
)
def test_rows_are_refused_where_files_are_needed(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InputError, ConfigError), match=message):
        call(pd.DataFrame({"text": STORIES}))
    assert not list(tmp_path.iterdir())


def test_pairs_in_memory_are_mined_as_a_file_of_them(tmp_path, capsys):

    pairs = [{"query": f"who {word}?", "text": f"the man who {word} sang"} for word in ("ate", "slept", "ran")]
    found = bertsmith.mine(pd.DataFrame(pairs), tmp_path / "memory.jsonl", mode="lexical", margin=0.0)
    assert found.metrics == {"pairs": 3, "texts": 3, "negatives": 6, "without": 0}
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    words = ["mine", tmp_path / "pairs.jsonl", "--out", tmp_path / "file.jsonl", "--mode", "lexical", "--margin", "0"]
    assert "3 pairs, 6 negatives out of 3 texts" in typed(capsys, *words)
    assert found.folder.read_bytes() == (tmp_path / "file.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="label_column: there is no such setting"):
        bertsmith.mine(pairs, tmp_path / "memory.jsonl", mode="lexical", label_column="text")
    with pytest.raises(InputError, match="pairs: row 0 \\(from 0\\)"):
        bertsmith.mine([{"query": "who?", "text": None}], tmp_path / "memory.jsonl", mode="lexical")


def test_a_model_is_made_smaller_and_scored_on_rows(tiny_model, tmp_path):
    tuned = bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=ROWS, dev=ROWS, epochs=1)
    small = bertsmith.compress(tuned.model_folder, tmp_path / "small", dev=ROWS, bf16=True)
    assert next(iter(small.metrics)) == "score"
    assert small.metrics["megabytes"] == pytest.approx(small.details[0].megabytes / 2)
    assert bertsmith.evaluate(small.model_folder, ROWS).metrics["accuracy"] == pytest.approx(small.metrics["score"])
    with pytest.raises(ConfigError, match="nothing to do"):
        bertsmith.compress(tuned.model_folder, tmp_path / "none")


def test_a_call_computes_where_it_is_told_and_no_other_does(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    together = Barrier(2)

    def chosen(name):
        with on_device(name):
            together.wait(10)
            return best_device().type

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(chosen, ["mps", "cpu"])) == ["mps", "cpu"]
    with on_device("mps"), on_device(None) as place:
        assert place.type == "mps"
    assert best_device().type != "mps"
    for call in (
        lambda: bertsmith.evaluate(tiny_model, ROWS, device="tpu"),
        lambda: bertsmith.index(tmp_path, tiny_model, tmp_path / "index", device="tpu"),
        lambda: bertsmith.compress(tiny_model, tmp_path / "small", bf16=True, device="tpu"),
        lambda: bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=ROWS, dev=ROWS, device="tpu"),
    ):
        with pytest.raises(ConfigError, match="device 'tpu': torch sees none of that name here; there are cpu"):
            call()


def test_a_package_can_be_called_by_its_name():
    import bertsmith.finetune.settings

    with pytest.raises(ConfigError, match="epoch: there is no such setting; did you mean epochs"):
        bertsmith.finetune("classify", "village", "out", epoch=1)


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
    bertsmith.finetune.job.finetune,
    *(getattr(bertsmith, name) for name in ("evaluate", "index", "mine", "distil", "adapt", "compress", "plan")),
    bertsmith.quickstart,
    *(getattr(estimators, name) for name in estimators.__all__),
]


@pytest.mark.slow
def test_the_examples_of_the_docstrings_run(sample):
    runner = doctest.DocTestRunner()
    for owner in EXAMPLES:
        (example,) = (test for test in doctest.DocTestFinder(recurse=False).find(owner, owner.__name__))
        assert example.examples, owner
        assert runner.run(example).failed == 0, owner
