import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentence_transformers
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.rankings import RankingColumns, RankingExample, read_rankings
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.rank import RankingTask, average_precision
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.rank import Rank
from bertsmith.json_files import from_json, to_json
from bertsmith.model import BertForSequenceClassification
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
    assert result.dev.metrics == {"mrr": 1.0, "accuracy_at_1": 1.0, "average_precision": 1.0}
    folder = tmp_path / "run" / "model"
    config = json.loads((folder / "config.json").read_text())
    assert config["id2label"] == {"0": "relevance"}
    assert "problem_type" not in config
    texts = [example.text for example in dev[:3]]
    assert Rank.load(folder)("the man", texts)[0].text == "eats bread ."
    ours = Rank(BertForSequenceClassification.from_pretrained(folder), WordPieceTokenizer.load(folder), CPU)
    reference = sentence_transformers.CrossEncoder(str(folder), device="cpu", max_length=32)
    expected = reference.predict([("the man", text) for text in texts])
    np.testing.assert_allclose(ours.scores(["the man"] * 3, texts), expected, atol=1e-4)


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
    assert task.loss(model, batch).loss.item() == pytest.approx(expected.item(), abs=1e-6)
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
        {"mrr": (1 / 2 + 1) / 2, "accuracy_at_1": 1 / 2, "average_precision": ((1 / 2 + 2 / 3) / 2 + 1) / 2}
    )
    assert found.intervals["mrr"].estimate == pytest.approx(0.75)
    assert [(m.text, m.expected, m.predicted, m.confidence) for m in found.mistakes] == [("a", "a0", "a1", 0.8)]
    assert from_json(Evaluation, json.loads(json.dumps(to_json(found)))) == found


def test_average_precision_equals_scikit_learn():
    draws = np.random.default_rng(0)
    for _ in range(200):
        relevant = draws.random(int(draws.integers(1, 30))) < 0.4
        relevant[0] = True
        scores = draws.permutation(len(relevant)) / len(relevant)
        assert average_precision(scores, relevant) == pytest.approx(average_precision_score(relevant, scores))


def test_a_model_that_scores_all_alike_has_found_nothing():
    figures = RankingTask().metrics(make_pairs(1), [0.5] * 12)
    assert figures == pytest.approx({"mrr": 1 / 3, "accuracy_at_1": 0.0, "average_precision": 1 / 3})


def test_what_cannot_be_ranked_is_refused(tiny_model):
    same = [RankingExample("q", "a", 1.0), RankingExample("q", "b", 1.0)]
    with pytest.raises(InputError, match="equally relevant"):
        RankingTask.of(same)
    with pytest.raises(InputError, match="no query has a text"):
        RankingTask().metrics([RankingExample("q", "a", 0.0)], [0.3])
    with pytest.raises(InputError, match=r"3.0 is not in \[0, 1\]"):
        RankingTask().encode(WordPieceTokenizer.load(tiny_model), [RankingExample("q", "a", 3.0)], 32)


GOLDEN = [RankingExample("who eats?", "the man", 1.0), RankingExample("who eats?", "a book, say", 0.25)]


def test_the_same_pairs_in_every_form(tmp_path):
    rows = [("who eats?", "the man", "1"), ("who eats?", "a book, say", "0.25")]
    body = "".join("\t".join(row) + "\n" for row in rows)
    (tmp_path / "bare.tsv").write_text(body)
    (tmp_path / "named.tsv").write_text(
        "relevance\tpassage\tquestion\n1\tthe man\twho eats?\n.25\ta book, say\twho eats?\n"
    )
    (tmp_path / "a.csv").write_text('Query,Document,Label\nwho eats?,the man,TRUE\nwho eats?,"a book, say",0.25\n')
    with gzip.open(tmp_path / "a.tsv.gz", "wt") as file:
        file.write("query\ttext\tscore\n" + body)
    records = [dict(zip(("query", "text", "label"), row, strict=True)) for row in rows]
    records[0]["label"] = True  # type: ignore[assignment]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    table = pa.table({"query": ["who eats?"] * 2, "passage": ["the man", "a book, say"], "label": [1.0, 0.25]})
    pq.write_table(table, tmp_path / "a.parquet")
    for name in ("bare.tsv", "named.tsv", "a.csv", "a.tsv.gz", "a.jsonl", "a.parquet"):
        assert read_rankings(tmp_path / name) == GOLDEN, name


def test_columns_are_named_or_counted(tmp_path):
    (tmp_path / "a.tsv").write_text("id\tb\ta\tgrade\n7\tthe man\twho eats?\t1\n8\ta book, say\twho eats?\t0.25\n")
    assert read_rankings(tmp_path / "a.tsv", RankingColumns("a", "b", "grade")) == GOLDEN
    (tmp_path / "b.tsv").write_text("7\tthe man\twho eats?\t1\n8\ta book, say\twho eats?\t0.25\n")
    assert read_rankings(tmp_path / "b.tsv", RankingColumns(2, 1, 3)) == GOLDEN
    (tmp_path / "c.tsv").write_text("query\ttext\t1\nwho\tman\t0\n")
    assert len(read_rankings(tmp_path / "c.tsv", RankingColumns(header=False))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query\ttext\tlabel\nq\ta\t3\n", r"line 2: the relevance '3' is not in \[0, 1\]; divide grades"),
        ("query\ttext\tlabel\nq\ta\t-0.5\n", "line 2: the relevance"),
        ("query\ttext\tlabel\nq\ta\tnan\n", "line 2: the relevance 'nan'"),
        ("query\ttext\tlabel\nq\ta\tyes\n", "line 2: the relevance 'yes'"),
        ("query\ttext\tlabel\nq\t \t1\n", "line 2 has an empty text"),
        ("query\ttext\tlabel\n\ta\t1\n", "line 2 has an empty query"),
        ("query\ttext\tlabel\nq\ta\n", "line 2 has 2 columns, the first has 3"),
        ("query\ttext\tlabel\n", "holds a header and no example"),
        ("query\ttext\tmark\nq\ta\t1\n", "no relevance column among query, text, mark"),
        ("q\t1\n", "no relevance column among q, 1; call it label, or name it with --label-column"),
        ("12\tq1\t1\ttext here\n", "4 columns and no header; say which is which by number"),
        ("", "holds no line"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, message):
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_rankings(tmp_path / "a.tsv")


def test_a_missing_file_and_column_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_rankings(tmp_path / "a.tsv")
    (tmp_path / "a.tsv").write_text("query\ttext\tlabel\nq\ta\t1\n")
    with pytest.raises(InputError, match="no column 'answer'"):
        read_rankings(tmp_path / "a.tsv", RankingColumns(text="answer"))
