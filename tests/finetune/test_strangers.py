"""Folders that another tool has tuned, and files with a bad row in them."""

import json

import pytest
import torch
import transformers

from bertsmith.finetune.job import evaluate, finetune
from bertsmith.finetune.predict import Predictor, as_line
from bertsmith.finetune.tasks import task_of_model
from bertsmith.inference.task_file import write_task_file
from bertsmith.model import BertConfig
from bertsmith.model.architectures import ModelForPreTraining, ModelForQuestionAnswering
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.train.monitor import read_metrics
from typed_command import typed

WORDS = "the man eats bread . the woman reads a book !"


def save(path, model=None, **changes):
    torch.manual_seed(0)
    tokenizer = WordPieceTokenizer.train([WORDS] * 3, vocab_size=200)
    shape = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 32, **changes}
    if model is None:
        config = transformers.BertConfig(
            hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64, **shape
        )
        transformers.BertForSequenceClassification(config).save_pretrained(path)
    else:
        model(BertConfig.named("1/64", **shape)).save_pretrained(path)
    tokenizer.save(path)
    return path


def test_a_classifier_of_transformers_is_evaluated_by_the_labels_of_its_config(tmp_path):
    labels = {0: "bread", 1: "book"}
    folder = save(tmp_path / "theirs", id2label=labels, label2id={label: number for number, label in labels.items()})
    rows = [
        ("the man eats bread .", "bread"),
        ("the woman reads a book !", "book"),
        ("a book", "book"),
        ("bread !", "bread"),
    ]
    (tmp_path / "test.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    task, _ = task_of_model(folder)
    assert (task.name, list(task.labels)) == ("classify", ["bread", "book"])
    predicted = [record["prediction"] for record in Predictor.load(folder).predict_placed([("", t) for t, _ in rows])]
    right = sum(label == said for (_, label), said in zip(rows, predicted, strict=True))
    found = evaluate(folder, tmp_path / "test.tsv")
    assert found.metrics["accuracy"] == pytest.approx(right / len(rows))


TEXTS = ["the man eats bread .", "the woman reads a book !", "a book", "bread !", "the man reads ."]
OTHERS = {
    "multilabel": (transformers.BertForSequenceClassification, {"problem_type": "multi_label_classification"}),
    "regress": (transformers.BertForSequenceClassification, {"problem_type": "regression", "num_labels": 1}),
    "tag": (transformers.BertForTokenClassification, {}),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_heads_of_transformers_are_evaluated_too(kind, tmp_path):
    head, changes = OTHERS[kind]
    if kind != "regress":
        changes = {**changes, "id2label": {0: "X", 1: "Y"}, "label2id": {"X": 0, "Y": 1}}
    folder = save(tmp_path / "theirs", **changes)
    theirs = head(transformers.BertConfig.from_pretrained(folder)).eval()
    theirs.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        outputs = [theirs(**tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
    if kind == "tag":
        # 每个词恰是一个词片：去掉两端的特殊词元，一行就是一个词
        rows = [{"words": text.split(), "tags": ["X"] * len(text.split())} for text in TEXTS]
        told = torch.cat([rows[1:-1].argmax(-1) for rows in outputs])
        expected = {"accuracy": (told == 0).float().mean().item()}
    elif kind == "multilabel":
        rows = [{"text": text, "labels": ["X"]} for text in TEXTS]
        told = torch.stack(outputs).sigmoid() >= 0.5
        expected = {"exact_match": (told == torch.tensor([True, False])).all(-1).float().mean().item()}
    else:
        rows = [{"text": text, "score": float(number)} for number, text in enumerate(TEXTS)]
        errors = torch.cat(outputs) - torch.arange(5.0)
        expected = {"rmse": errors.square().mean().sqrt().item()}
    assert task_of_model(folder)[0].name == kind
    found = evaluate(folder, rows).metrics
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-3)


def test_a_classifier_of_transformers_teaches(tmp_path):
    labels = {0: "bread", 1: "book"}
    teacher = save(tmp_path / "theirs", id2label=labels, label2id={label: number for number, label in labels.items()})
    start = save(tmp_path / "start", ModelForPreTraining)
    rows = [{"text": text, "label": labels[number % 2]} for number, text in enumerate(TEXTS * 2)]
    finetune("classify", start, tmp_path / "run", train=rows, dev=rows, teacher=str(teacher), epochs=1)
    assert any("teacher_loss" in row for row in read_metrics(tmp_path / "run" / "metrics.jsonl"))


@pytest.fixture
def reader(tmp_path):
    folder = save(tmp_path / "answers", ModelForQuestionAnswering)
    write_task_file(
        folder, {"task": "answer", "max_length": 16, "stride": 4, "max_answer_tokens": 5, "null_threshold": None}
    )
    return folder


LINES = [
    "the man\tthe man eats bread .",
    "the man\t\u200b",
    "the man " * 9 + "\ta book",
    "a book\tthe woman reads a book !",
]


def test_a_row_that_cannot_be_answered_says_so_in_its_place(reader):
    records = list(Predictor.load(reader).predict_placed([(f"line {n}", line) for n, line in enumerate(LINES, 1)]))
    good = list(Predictor.load(reader).predict_placed([("", LINES[0]), ("", LINES[3])]))
    assert [records[0], records[3]] == good
    assert "line 2: question 'the man': its passage" in records[1]["fault"]
    assert "leaves no room" in records[2]["fault"]
    assert as_line(records[2]).startswith("(line 3: question")


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_the_exit_code_tells_of_bad_rows_and_the_rest_is_written(form, reader, tmp_path, capsys):
    (tmp_path / "in.tsv").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    out = tmp_path / f"out.{form}"
    assert "2 input(s) could not be predicted" in typed(
        capsys, "predict", "--model", reader, "--file", tmp_path / "in.tsv", "--out", out, code=2
    )
    lines = out.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    if form == "jsonl":
        assert ["fault" in json.loads(line) for line in lines] == [False, True, True, False]
