import json
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import sentence_transformers
import torch
import torch.nn.functional as F
import transformers

from bertsmith.errors import InputError
from bertsmith.files import from_json, to_json
from bertsmith.finetune.datasets.texts import RankingExample
from bertsmith.finetune.job import evaluate
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import task_of_model
from bertsmith.finetune.tasks.rank import RankingTask
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.inference.classify import Rank
from bertsmith.inference.engine import InferenceConfig
from bertsmith.interop.huggingface import export_huggingface
from bertsmith.interop.onnx import export_onnx
from bertsmith.journeys.compress import compress
from bertsmith.model import BertConfig, BertForSequenceClassification
from bertsmith.tokenizer import WordPieceTokenizer

SETTINGS = FineTuningSettings(epochs=6, batch_size=8, learning_rate=2e-3, precision="float32")
CPU = InferenceConfig("cpu", "float32")
TEXTS = {"the man": "eats bread .", "a woman": "eats bread !", "the book": "bread", "a man": "the bread"}


def make_pairs(times: int) -> list[RankingExample]:
    """Of the three texts of every query the one with bread is relevant."""
    return times * [
        RankingExample(query, text, float(text == right))
        for query, right in TEXTS.items()
        for text in ("reads a book", right, "the woman reads")
    ]


def test_a_ranker_learns_and_is_saved_for_everybody(tiny_model, tmp_path):
    train, dev = make_pairs(8), make_pairs(1)
    result = fine_tune(RankingTask.of(train), tiny_model, train, dev, tmp_path / "run", SETTINGS, test=dev)
    assert result.dev.metrics == {"mrr": 1.0, "accuracy_at_1": 1.0, "average_precision": 1.0, "ndcg_at_10": 1.0}
    folder = tmp_path / "run" / "model"
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "relevance"}
    assert "problem_type" not in config
    texts = [example.text for example in dev[:3]]
    assert Rank.load(folder)("the man", texts)[0].text == "eats bread ."
    ours = Rank(BertForSequenceClassification.from_pretrained(folder), WordPieceTokenizer.load(folder), CPU)
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    expected = reference.predict([("the man", text) for text in texts])
    np.testing.assert_allclose(ours.scores(["the man"] * 3, texts), expected, atol=1e-4)


def scores_of(folder, examples):
    """What `CrossEncoder` gives, with nothing told but the folder."""
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    return reference.predict([(example.query, example.text) for example in examples])


@pytest.fixture
def cross_encoder(tiny_model, tmp_path):
    """Saves a `CrossEncoder` that scores by its bare output; large random weights tell texts apart."""

    def save(prompt):
        torch.manual_seed(3)
        config = BertConfig.load(tiny_model).changed(id2label={0: "LABEL_0"}, initializer_range=0.5)
        BertForSequenceClassification(config).save_pretrained(tmp_path / "base")
        WordPieceTokenizer.load(tiny_model).save(tmp_path / "base")
        named = {"prompts": {"q": prompt}, "default_prompt_name": "q"} if prompt else {}
        theirs = sentence_transformers.CrossEncoder(
            str(tmp_path / "base"), activation_fn=torch.nn.Identity(), device="cpu", **named
        )
        theirs.save_pretrained(str(tmp_path / "theirs"))
        return tmp_path / "theirs"

    return save


def test_a_cross_encoder_is_scored_as_it_reads(cross_encoder):
    """With its prompt, which puts the texts into another order, and through its activation."""
    folder, examples = cross_encoder("the book "), make_pairs(1)
    task, _ = task_of_model(folder)
    expected = task.metrics(examples, scores_of(folder, examples))
    given = [{"query": one.query, "text": one.text, "relevance": one.relevance} for one in examples]
    assert evaluate(folder, given, precision="float32").metrics == pytest.approx(expected)
    pipeline = task.pipeline(task.load(folder), WordPieceTokenizer.load(folder), CPU)
    assert (pipeline.prompt, pipeline.activation) == ("the book ", "Identity")
    pipeline.prompt = ""
    assert task.metrics(examples, task.predicted(pipeline, examples)) != pytest.approx(expected)


@pytest.mark.parametrize(
    ("copied", "error"),
    [(export_huggingface, 1e-4), (lambda source, out: compress(source, out, int8=True), 0.2)],
    ids=["export huggingface", "compress"],
)
def test_a_copy_of_a_ranker_scores_as_it_does(cross_encoder, tmp_path, copied, error):
    """Of a stranger's folder, and of what training made of it."""
    theirs, examples, run = cross_encoder("the book "), make_pairs(1), tmp_path / "run"
    fine_tune(RankingTask.of(examples), theirs, examples, examples, run, replace(SETTINGS, epochs=1))
    for number, source in enumerate((theirs, run / "model")):
        copied(source, copy := tmp_path / f"copy-{number}")
        rank, expected = Rank.load(copy, precision="float32", device="cpu"), scores_of(source, examples)
        assert (rank.prompt, rank.activation) == ("the book ", "Identity")
        np.testing.assert_allclose(rank.scores(*RankingTask().columns(examples)), expected, atol=error)
        if copied is export_huggingface:
            np.testing.assert_allclose(scores_of(copy, examples), expected, atol=error)


def test_the_graph_of_a_ranker_gives_its_scores(cross_encoder, tmp_path):
    """And no vectors, though a `modules.json` lies beside it; the folder says what goes before and comes after."""
    source, copy, examples = cross_encoder("the book "), tmp_path / "copy", make_pairs(1)
    export_onnx(source, copy)
    says = Rank.settings_in(copy)
    assert (says.prompt, says.activation) == ("the book ", "Identity")
    queries, texts = [says.prompt + one.query for one in examples], [one.text for one in examples]
    tokens = transformers.AutoTokenizer.from_pretrained(copy)(queries, texts, padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(str(copy / "model.onnx"))
    (found,) = session.run(None, {each.name: tokens[each.name] for each in session.get_inputs()})
    np.testing.assert_allclose(found[:, 0], scores_of(source, examples), atol=1e-4)


@pytest.mark.parametrize("prompt", ["", "the book "])
def test_a_cross_encoder_keeps_its_prompt_and_its_activation(cross_encoder, tiny_model, tmp_path, prompt):
    theirs, train, dev = cross_encoder(prompt), make_pairs(2), make_pairs(1)
    result = fine_tune(RankingTask.of(train), theirs, train, dev, tmp_path / "run", replace(SETTINGS, epochs=1))
    folder = tmp_path / "run" / "model"
    rank = Rank.load(folder, precision="float32", device="cpu")
    assert (rank.prompt, rank.activation) == (prompt, "Identity")
    expected = scores_of(folder, dev)
    np.testing.assert_allclose(rank.scores(*RankingTask().columns(dev)), expected, atol=1e-4)
    # 选轮次的分数也带着提示词
    assert result.dev.metrics == pytest.approx(RankingTask().metrics(dev, expected))
    assert len(RankingTask(prompt).encode(rank.tokenizer, dev, 16)[0].input_ids[0]) == len(
        rank.tokenizer(prompt + dev[0].query, dev[0].text)["input_ids"]
    )
    # 句向量文件夹的提示词不是给排序用的
    (tiny_model / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    )
    assert RankingTask().starting_from(tiny_model) == RankingTask()


def test_a_model_for_another_task_starts_afresh(tiny_model, tmp_path):
    """What the folder says of its own outputs does not stay in the ranker's configuration."""
    changes = {"id2label": {0: "score"}, "problem_type": "regression"}
    BertForSequenceClassification.from_pretrained(tiny_model, new_heads=True, **changes).save_pretrained(tmp_path)
    config = RankingTask().build(tmp_path, FineTuningSettings()).config
    assert config.problem_type is None
    assert config.id2label == {0: "relevance"}


def test_the_loss_is_binary_cross_entropy_with_graded_targets(tiny_model):
    task = RankingTask()
    model = task.build(tiny_model, FineTuningSettings()).eval()
    examples = [RankingExample("the man", "eats", 0.25), RankingExample("a book", "the woman reads .", 1.0)]
    batch = task.batch(task.encode(WordPieceTokenizer.load(tiny_model), examples, 32))
    logits = model(batch.tokens)[:, 0].double()
    p = logits.sigmoid()
    y = torch.tensor([0.25, 1.0])
    expected = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    assert task.objective(model, batch).loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert F.sigmoid(logits).tolist() == pytest.approx(
        task.predict(model, WordPieceTokenizer.load(tiny_model), examples, CPU), abs=1e-5
    )


def test_figures_by_hand():
    """Query a: the relevant texts come 2nd and 3rd; query b: 1st; query c has none and is left out."""
    examples = [
        RankingExample("a", "a0", 1.0),
        RankingExample("b", "b0", 0.5),
        RankingExample("a", "a1", 0.2),
        RankingExample("c", "c0", 0.0),
        RankingExample("a", "a2", 0.7),
        RankingExample("b", "b1", 0.0),
    ]
    scores = [0.6, 0.9, 0.8, 0.99, 0.1, 0.3]
    found = RankingTask().evaluate(examples, scores)
    assert found.metrics == pytest.approx(
        {
            "mrr": (1 / 2 + 1) / 2,
            "accuracy_at_1": 1 / 2,
            "average_precision": ((1 / 2 + 2 / 3) / 2 + 1) / 2,
            "ndcg_at_10": ((0.2 + 1.0 / np.log2(3) + 0.7 / 2) / (1.0 + 0.7 / np.log2(3) + 0.2 / 2) + 1) / 2,
        }
    )
    assert found.intervals["mrr"].estimate == pytest.approx(0.75)
    assert [(m.text, m.expected, m.predicted, m.confidence) for m in found.mistakes] == [("a", "a0", "a1", 0.8)]
    assert from_json(Evaluation, json.loads(json.dumps(to_json(found)))) == found


def test_a_model_that_scores_all_alike_has_found_nothing():
    figures = RankingTask().metrics(make_pairs(1), [0.5] * 12)
    assert figures == pytest.approx(
        {"mrr": 1 / 3, "accuracy_at_1": 0.0, "average_precision": 1 / 3, "ndcg_at_10": 1 / 2}
    )


def test_what_cannot_be_ranked_is_refused(tiny_model):
    same = [RankingExample("q", "a", 1.0), RankingExample("q", "b", 1.0)]
    with pytest.raises(InputError, match="equally relevant"):
        RankingTask.of(same)
    with pytest.raises(InputError, match="no query has a text"):
        RankingTask().metrics([RankingExample("q", "a", 0.0)], [0.3])
    with pytest.raises(InputError, match=r"3.0 is not in \[0, 1\]"):
        RankingTask().encode(WordPieceTokenizer.load(tiny_model), [RankingExample("q", "a", 3.0)], 32)
