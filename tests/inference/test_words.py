"""A folder of words, alone or beside an encoder, is a model like any other."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from typer.testing import CliRunner

import bertsmith
from bertsmith.cli import app
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.finetune.tasks import save_task
from bertsmith.finetune.tasks.choose import ChoiceTask
from bertsmith.finetune.tasks.classify import ClassificationTask, MultiLabelTask
from bertsmith.finetune.tasks.rank import RankingTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.inference import load_pipeline
from bertsmith.inference.classify import MULTI, REGRESSION, SINGLE
from bertsmith.inference.words import CHOICES, RELEVANCE, Words
from bertsmith.model import ModelConfig, ModelForSequenceClassification
from bertsmith.tokenizer import load_tokenizer

TEXTS = ["the man eats bread", "the woman reads", "", "a book !"]
TASKS = {
    SINGLE: ClassificationTask(("no", "yes"), temperature=2.0, positive_threshold=0.3),
    MULTI: MultiLabelTask(("x", "y"), thresholds=(0.5, 0.5)),
    REGRESSION: RegressionTask(mean=1.0),
    RELEVANCE: RankingTask(),
    CHOICES: ChoiceTask(),
}


def words_of(problem, mix):
    draws = np.random.default_rng(0)
    labels = TASKS[problem].config_fields()["id2label"].values()
    features = np.arange(0, 2 << 18, 7, dtype=np.int32)
    outputs = 2 if problem == MULTI else 1
    weights = draws.normal(size=(len(features), outputs)).astype(np.float32)
    bias = draws.normal(size=outputs).astype(np.float32)
    return Words(problem, tuple(labels), features, np.ones(len(features), np.float32), weights, bias, mix)


@pytest.fixture(params=[SINGLE, MULTI, REGRESSION])
def both(request, tiny_model, tmp_path):
    """A folder with an encoder and words, and what it is for."""
    torch.manual_seed(1)
    task, folder = TASKS[request.param], tmp_path / "both"
    config = ModelConfig.load(tiny_model).changed(**task.config_fields())
    ModelForSequenceClassification(config).save_pretrained(folder)
    load_tokenizer(tiny_model).save(folder)
    save_task(task, folder, 32)
    words_of(request.param, (0.7, 1.5, 0.25 if request.param == REGRESSION else 0.0)).save(folder)
    return folder, task


@pytest.fixture
def alone(tmp_path):
    folder = tmp_path / "alone"
    folder.mkdir()
    save_task(TASKS[SINGLE], folder, 0)
    words_of(SINGLE, (0.0, 1.0, 0.0)).save(folder)
    return folder


def logits(pipeline):
    return pipeline.logits(TEXTS, None)


def test_the_outputs_of_both_parts_are_added_up(both):
    folder, task = both
    whole, words, encoder = (
        load_pipeline(task.name, folder, only=only, precision="float32") for only in (None, "words", "encoder")
    )
    offset = 0.25 if task.name == "regress" else 0.0
    expected = 0.7 * logits(encoder) + 1.5 * logits(words) + offset
    torch.testing.assert_close(logits(whole), expected)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    read = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        torch.testing.assert_close(logits(encoder), theirs(**read).logits, atol=1e-4, rtol=1e-4)
    if task.name == "classify":
        whole.is_calibrated = True
        found = [list(one.probabilities.values()) for one in whole(TEXTS)]
        torch.testing.assert_close(torch.tensor(found), (expected / 2).softmax(-1))


def test_the_commands_take_the_folder(both, tmp_path):
    folder, task = both
    values = {"classify": ["yes", "no"], "multilabel": ["x", "x,y"], "regress": ["1.5", "2"]}[task.name]
    file = tmp_path / "rows.csv"
    rows = "".join(f'{text},"{values[n % 2]}"\n' for n, text in enumerate(["the man", "a book"] * 6))
    file.write_text("text,label\n" + rows)
    found = {only: bertsmith.evaluate(folder, file, only=only).metrics for only in (None, "words", "encoder")}
    assert len({tuple(metrics.values()) for metrics in found.values()}) >= (3 if task.name == "regress" else 1)
    for more in ([], ["--only", "words"]):
        run = CliRunner().invoke(app, ["predict", "the man", "--model", str(folder), "--json", *more])
        pipeline = load_pipeline(task.name, folder, only=more[1] if more else None)
        expected = task.record(pipeline(["the man"])[0])
        assert json.loads(run.stdout) == json.loads(json.dumps({**expected, "input": ["the man"]}))


def test_words_alone_need_no_encoder(alone):
    pipeline = load_pipeline("classify", alone)
    torch.testing.assert_close(logits(pipeline), words_of(SINGLE, (0.0, 1.0, 0.0)).logits(TEXTS))
    pipeline.uses_thresholds = True
    assert [one.label for one in pipeline(TEXTS)] == [
        "yes" if row[1] > 0.3 else "no" for row in logits(pipeline).softmax(-1).tolist()
    ]
    assert pipeline("the man").label in ("no", "yes")
    assert CliRunner().invoke(app, ["predict", "the man", "--model", str(alone)]).exit_code == 0
    rows = [{"text": text, "label": "yes"} for text in ("the man", "a book")] * 6
    assert bertsmith.evaluate(alone, rows, only="words").metrics == bertsmith.evaluate(alone, rows).metrics


def test_a_server_answers_with_words_alone(alone):
    from fastapi.testclient import TestClient

    from bertsmith.serve.app import build_app
    from bertsmith.serve.settings import served

    settings = served([f"words={alone}"], None)
    with TestClient(build_app(settings), base_url="http://127.0.0.1") as client:
        found = client.post("/predict", json={"texts": TEXTS[:2]}).json()["predictions"]
        expected = load_pipeline("classify", alone)(TEXTS[:2])
        assert [one["label"] for one in found] == [one.label for one in expected]
        (told,) = client.get("/info").json()["models"]
        assert told["engine"] == "words"
        assert "layers" not in told
        assert client.post("/tokenize", json={"texts": ["a"]}).status_code == 422


@pytest.mark.parametrize("task", [RankingTask(), ChoiceTask()])
def test_commands_and_a_server_rank_and_choose_with_words_alone(task, tmp_path):
    from fastapi.testclient import TestClient

    from bertsmith.serve.app import build_app
    from bertsmith.serve.settings import served

    folder = tmp_path / "words"
    folder.mkdir()
    save_task(task, folder, 0)
    words_of(task.problem, (0.0, 1.0, 0.0)).save(folder)
    pipeline, texts = load_pipeline(task.name, folder), ["the man eats bread", "the woman reads", "a book !"]
    with TestClient(build_app(served([f"words={folder}"], None)), base_url="http://127.0.0.1") as client:
        if task.name == "rank":
            best = pipeline("the book", texts)[0]
            found = client.post("/rerank", json={"query": "the book", "texts": texts}).json()[0]
            assert (found["index"], found["score"]) == (best.index, pytest.approx(best.score))
            told = {"prediction": pipeline.scores(["the book"], texts[:1])[0], "input": ["the book", texts[0]]}
        else:
            best = pipeline("the book", texts[:2])
            body = {"texts": ["the book"], "choices": [texts[:2]]}
            (found,) = client.post("/predict", json=body).json()["predictions"]
            assert (found["choice"], found["probabilities"]) == (best.index, pytest.approx(best.probabilities))
            told = {"prediction": texts[best.index], "input": ["the book", *texts[:2]]}
    run = CliRunner().invoke(app, ["predict", "\t".join(told["input"]), "--model", str(folder), "--json"])
    assert {name: json.loads(run.stdout)[name] for name in told} == told


def test_what_cannot_be_is_said(alone, both, tiny_model):
    folder, task = both
    with pytest.raises(ConfigError, match="holds words alone; leave --only out"):
        load_pipeline("classify", alone, only="encoder")
    with pytest.raises(CheckpointError, match="was fine-tuned for 'classify', not for 'tag'"):
        load_pipeline("tag", alone)
    with pytest.raises(ConfigError, match="--only is not for fill-mask"):
        load_pipeline("fill-mask", tiny_model, only="words")
    pipeline = load_pipeline("classify", alone)
    with pytest.raises(InputError, match="single texts; leave out the second"):
        pipeline(["a"], ["b"])
    words_of(SINGLE if task.name != "classify" else MULTI, (0.5, 1.0, 0.0)).save(folder)
    with pytest.raises(CheckpointError, match="its words are for"):
        load_pipeline(task.name, folder)
