"""`finetune --teacher`: the losses against literal computations, every task with a teacher, and what is refused."""

import json
import math
import shutil

import pytest
import torch

from bertsmith import load_pipeline, load_tokenizer
from bertsmith.errors import BertsmithError, ConfigError, InputError
from bertsmith.finetune.datasets.questions import Answer, QuestionExample
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import ChoiceExample, LabelledText, MultiLabelledText, RankingExample, ScoredText
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks import task_named
from bertsmith.finetune.teaching import TaughtLoss, TeachingOptions, labelled_by_teacher
from bertsmith.model import ModelForPreTraining
from bertsmith.objectives import ClassificationObjective, MultiLabelObjective, RegressionObjective
from bertsmith.tokenizer import WordPieceTokenizer
from typed_command import typed

WORDS = ["man", "book", "bread", "woman"]
SENTENCES = [(f"the {first} reads the {second} .", first, second) for first in WORDS for second in WORDS]
TEXTS = [text for text, _, _ in SENTENCES]
MARKS = [first in ("man", "woman") for _, first, _ in SENTENCES]
MARKED = list(zip(TEXTS, MARKS, strict=True))
TASKS = {
    "classify": [LabelledText(text, None, "good" if mark else "bad") for text, mark in MARKED],
    "multilabel": [MultiLabelledText(text, None, ("a", "b") if mark else ("b",)) for text, mark in MARKED],
    "regress": [ScoredText(text, None, 70.0 + 5 * mark) for text, mark in MARKED],
    "tag": [TaggedWords(tuple(text.split()), ("O", *("X" * mark or "O"), *"OOYO")) for text, mark in MARKED],
    "rank": [RankingExample("the man", text, float(mark)) for text, mark in MARKED],
    "choose": [ChoiceExample("the man", (text, "the book", "bread")[: 2 + mark], int(mark)) for text, mark in MARKED],
    "answer": [
        QuestionExample(str(number), "the man", text, (Answer(second, text.rindex(second)),))
        for number, (text, _, second) in enumerate(SENTENCES)
    ],
}
SHORT = FineTuningSettings(epochs=1, batch_size=8, learning_rate=1e-3, max_length=24, precision="float32")


def literal_divergence(own, other):
    """T² · KL for one row at temperature 2, number by number."""
    p, q = (torch.softmax(torch.tensor(row) / 2, 0).tolist() for row in (other, own))
    return 4 * sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))


def test_soft_labels_are_the_divergence_of_the_rows():
    own, other = [[1.0, -2.0, 0.5], [0.0, 0.0, 3.0]], [[0.0, 1.0, 2.0], [-1.0, 4.0, 1.0]]
    expected = sum(literal_divergence(*pair) for pair in zip(own, other, strict=True)) / 2
    found = ClassificationObjective().imitation(torch.tensor(own), torch.tensor(other))
    assert found.item() == pytest.approx(expected, rel=1e-5)
    # 空位没有概率，也不带来 NaN
    padded = [torch.tensor([[*row, -math.inf] for row in rows]) for rows in (own, other)]
    assert ClassificationObjective().imitation(*padded).item() == pytest.approx(expected, rel=1e-5)


def test_labels_that_do_not_compete_are_compared_one_by_one():
    own, other = [[1.0, -2.0]], [[0.5, 3.0]]
    expected = sum(literal_divergence([a, 0.0], [b, 0.0]) for a, b in zip(own[0], other[0], strict=True)) / 2
    found = MultiLabelObjective().imitation(torch.tensor(own), torch.tensor(other))
    assert found.item() == pytest.approx(expected, rel=1e-5)
    assert RegressionObjective().imitation(torch.tensor([[1.0]]), torch.tensor([[3.0]])).item() == 4.0


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A random model that knows the words."""
    from bertsmith.model import family_named

    folder = tmp_path_factory.mktemp("start")
    tokenizer = WordPieceTokenizer.train(TEXTS * 4, vocab_size=60)
    torch.manual_seed(0)
    config = family_named("bert").config.named("1/64", vocab_size=len(tokenizer)).with_position_limit(32)
    ModelForPreTraining(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def teachers(start, tmp_path_factory):
    """A fine-tuned folder for each task, made when it is asked."""
    made = {}

    def teacher_of(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("teachers") / name
            task = task_named(name).of(TASKS[name])
            fine_tune(
                task, start, TASKS[name], TASKS[name], made[name], FineTuningSettings(**{**vars(SHORT), "epochs": 4})
            )
        return str(made[name] / "model")

    return teacher_of


@pytest.mark.parametrize("name", TASKS)
def test_every_task_learns_from_a_teacher(name, start, teachers, tmp_path):
    task = task_named(name).of(TASKS[name])
    fine_tune(task, start, TASKS[name], TASKS[name], tmp_path, SHORT, teacher=teachers(name))
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["teacher_loss"] > 0
    # 老师面对自己，没有什么可学：输出相同，这一项为零
    tokenizer = load_tokenizer(start)
    loss = TaughtLoss(task, teachers(name), tokenizer, 24, torch.device("cpu"), torch.float32)
    batch = task.batch(task.encode(tokenizer, TASKS[name], 24)[:4])
    model = task.load(teachers(name)).eval()
    if name == "regress":
        # 存下的模型给出的是原来的尺度
        last = model.classifier.get_submodule(model.classifier.output)
        with torch.no_grad():
            last.weight /= task.spread
            last.bias.sub_(task.mean).div_(task.spread)
    found = loss(model, batch)
    value, count = found.sums["teacher_loss"]
    assert value / count == pytest.approx(0.0, abs=1e-4)
    hard = task.objective(model, batch).loss
    assert found.loss.item() == pytest.approx(hard.item() / 2, abs=1e-4)


def test_labels_in_another_order_are_the_same_labels(start, teachers):
    task = task_named("classify").of(TASKS["classify"])
    teacher = task_named("classify").of([*TASKS["classify"]])
    rows = torch.tensor([[1.0, 2.0]])
    assert task.from_teacher(teacher, rows).equal(rows)
    turned = type(task)(tuple(reversed(task.labels)))  # type: ignore[call-arg]
    assert turned.from_teacher(teacher, rows).tolist() == [[2.0, 1.0]]


def test_texts_without_labels_are_judged_by_the_teacher(teachers, tmp_path):
    (tmp_path / "more.txt").write_text("\n".join(TEXTS) + "\n\n", encoding="utf-8")
    task = task_named("classify").of(TASKS["classify"])
    teaching = TeachingOptions(teachers("classify"), (str(tmp_path / "more.txt"),))
    examples = labelled_by_teacher(task, teaching, "auto")
    assert [example.text for example in examples] == TEXTS
    assert {example.label for example in examples} <= {"good", "bad"}


@pytest.mark.parametrize("name", ["multilabel", "regress"])
def test_other_tasks_get_labels_of_the_teacher(name, start, teachers, tmp_path):
    (tmp_path / "more.txt").write_text(TEXTS[0], encoding="utf-8")
    task = task_named(name).of(TASKS[name])
    (example,) = labelled_by_teacher(task, TeachingOptions(teachers(name), (str(tmp_path / "more.txt"),)), "auto")
    assert type(example) is type(TASKS[name][0])
    assert task.encode(load_tokenizer(start), [example], 24)


def test_lines_that_cannot_be_labelled_are_counted(teachers, tmp_path, monkeypatch):
    from bertsmith.finetune.tasks.classify import ClassificationTask

    records = ClassificationTask.records

    def refuses_bread(pipeline, rows):
        if any("bread" in text for (text,) in rows):
            raise InputError("there is bread in it")
        return records(pipeline, rows)

    monkeypatch.setattr(ClassificationTask, "records", refuses_bread)
    (tmp_path / "more.txt").write_text("the man\n\nthe bread\n", encoding="utf-8")
    teaching = TeachingOptions(teachers("classify"), (str(tmp_path / "more.txt"),))
    with pytest.warns(UserWarning, match=r"more\.txt: left out 1 lines: line 3: there is bread in it"):
        (example,) = labelled_by_teacher(task_named("classify").of(TASKS["classify"]), teaching, "auto")
    assert example.text == "the man"


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_pairs_without_relevance_get_that_of_the_teacher(teachers, tmp_path, activation):
    """Its sigmoid, also where the folder gives scores without one."""
    shutil.copytree(teachers("rank"), tmp_path / "teacher")
    task = tmp_path / "teacher" / "task.json"
    task.write_text(json.dumps(json.loads(task.read_text()) | {"activation": activation}))
    (tmp_path / "more.txt").write_text("the man\tthe man reads the book .", encoding="utf-8")
    teaching = TeachingOptions(str(tmp_path / "teacher"), (str(tmp_path / "more.txt"),))
    (example,) = labelled_by_teacher(task_named("rank").of(TASKS["rank"]), teaching, "auto")
    assert (example.query, example.text) == ("the man", "the man reads the book .")
    pipeline = load_pipeline("rank", tmp_path / "teacher")
    assert pipeline.activation == activation
    expected = pipeline.logits([example.query], [example.text])[0, 0].sigmoid().item()
    assert example.relevance == pytest.approx(expected, abs=1e-6)


def test_the_command_learns_from_labels_a_teacher_and_more_text(start, teachers, tmp_path, capsys):
    lines = "\n".join(["text\tlabel", *(f"{example.text}\t{example.label}" for example in TASKS["classify"])])
    (tmp_path / "train.tsv").write_text(lines, encoding="utf-8")
    (tmp_path / "more.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    train, more = str(tmp_path / "train.tsv"), str(tmp_path / "more.txt")
    command = ["finetune", "classify", "--model", str(start), "--train", train, "--dev", train, "--epochs", "1"]
    command += ["--max-length", "24", "--out", str(tmp_path / "run")]
    said = typed(capsys, *command, "--teacher", teachers("classify"), "--teacher-text", more)
    assert "more.txt: an input a line, utf-8" in said.splitlines()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert rows[0]["teacher_loss"] > 0
    assert rows[0]["step"] == 2  # 32 texts in batches of 16
    # 卡片里的例子数与来处：16 行有标签的，16 行由老师标注的
    card = (tmp_path / "run/model/README.md").read_text(encoding="utf-8")
    assert "| train | `train.tsv, and more.txt as the teacher labels it` | 32 | learned from |" in card
    assert "say with --teacher who labels it" in typed(capsys, *command, "--teacher-text", more, code=2)


def test_what_cannot_teach(start, teachers, tmp_path):
    task = task_named("classify").of(TASKS["classify"])
    tokenizer = load_tokenizer(start)

    def taught(task, folder, tokenizer=tokenizer, max_length=24):
        TaughtLoss(task, str(folder), tokenizer, max_length, torch.device("cpu"), torch.float32)

    with pytest.raises(ConfigError, match="the teacher answers for embed, not for classify"):
        taught(task, start)
    with pytest.raises(BertsmithError, match="nowhere"):
        taught(task, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="answers for tag, not for classify"):
        taught(task, teachers("tag"))
    with pytest.raises(ConfigError, match="other labels"):
        taught(type(task)(("good", "awful")), teachers("classify"))  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="another vocabulary"):
        taught(task, teachers("classify"), WordPieceTokenizer.train(["other words entirely"], vocab_size=40))
    with pytest.raises(ConfigError, match="reads 32 pieces"):
        taught(task, teachers("classify"), max_length=64)
    (tmp_path / "more.txt").write_text("the man", encoding="utf-8")
    with pytest.raises(ConfigError, match="without labels"):
        labelled_by_teacher(
            task_named("tag").of(TASKS["tag"]), TeachingOptions(teachers("tag"), (str(tmp_path / "more.txt"),)), "auto"
        )
