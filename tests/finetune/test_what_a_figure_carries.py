"""A figure whose sample cannot carry it says so beside it; texts that were learned from are scored apart."""

import pytest
from rich.console import Console

import bertsmith
from bertsmith.finetune.datasets.questions import Answer, QuestionExample
from bertsmith.finetune.datasets.related import RelatedTexts
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import ChoiceExample, LabelledText, MultiLabelledText, RankingExample, ScoredText
from bertsmith.finetune.tasks import task_named
from bertsmith.finetune.tasks.task import Evaluation, fingerprint_of
from bertsmith.inference.classify import Prediction
from typed_command import typed

TEXTS = [f"text number {number}" for number in range(12)]
LABELLED = [LabelledText(text, None, "ab"[number % 2]) for number, text in enumerate(TEXTS)]
TAGGED = [TaggedWords(("a", "b"), ("B-X", "O")) for _ in TEXTS]
SCORED = [ScoredText(text, None, float(number)) for number, text in enumerate(TEXTS)]
MANY = [RelatedTexts(text, f"answer to {text}") for text in TEXTS]
TOLD = {
    "few rows": ("classify", LABELLED, LABELLED[:4], "there are 4 examples only"),
    "one class": ("classify", LABELLED, [one for one in LABELLED if one.label == "a"] * 2, "all are 'a'"),
    "one set of labels": (
        "multilabel",
        [MultiLabelledText(text, None, ("ab"[number % 2],)) for number, text in enumerate(TEXTS)],
        [MultiLabelledText(text, None, ("a",)) for text in TEXTS],
        "all have the same labels",
    ),
    "one score": (
        "regress",
        SCORED,
        [ScoredText(text, None, 2.0) for text in TEXTS],
        "a correlation is of nothing",
    ),
    "no entity": ("tag", TAGGED, [TaggedWords(("a", "b"), ("O", "O")) for _ in TEXTS], "it has no entity"),
    "nothing wrong to rank": (
        "rank",
        [RankingExample("q", text, float(number % 2)) for number, text in enumerate(TEXTS)],
        [RankingExample("q", text, 1.0) for text in TEXTS],
        "1 of 1 queries have relevant texts only",
    ),
    "one tag": (
        "tag",
        [TaggedWords(("a", "b"), ("DET", "NOUN")) for _ in TEXTS],
        [TaggedWords(("a", "a"), ("DET", "DET")) for _ in TEXTS],
        "all words are 'DET'",
    ),
    "one place": (
        "choose",
        [ChoiceExample(text, ("yes", "no"), number % 2) for number, text in enumerate(TEXTS)],
        [ChoiceExample(text, ("yes", "no"), 1) for text in TEXTS],
        "the right choice is always number 2",
    ),
    "no answer": (
        "answer",
        [QuestionExample(text, "what?", text, (Answer("text", 0),)) for text in TEXTS],
        [QuestionExample(text, "what?", text, ()) for text in TEXTS],
        "no question has an answer",
    ),
    "pairs of one score": (
        "embed",
        [ScoredText(text, text, float(number)) for number, text in enumerate(TEXTS)],
        [ScoredText(text, text, 2.0) for text in TEXTS],
        "a correlation is of nothing",
    ),
    "two scores": (
        "regress",
        SCORED,
        SCORED[:2],
        "there are 2 examples only",
    ),
    "few texts to find": (
        "embed",
        MANY,
        [RelatedTexts(f"q {n}", f"answer {n % 3}") for n in range(12)],
        "3 texts to find",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_a_file_that_cannot_carry_a_figure_says_so(case):
    name, train, dev, said = TOLD[case]
    told = task_named(name).of(train).cautions(dev)
    assert [one for one in told if said in one]


@pytest.mark.parametrize("name", ["classify", "tag"])
def test_a_file_that_carries_its_figure_says_nothing(name):
    examples = {"classify": LABELLED, "tag": TAGGED}[name]
    assert task_named(name).of(examples).cautions(examples) == []


def test_texts_that_were_learned_from_are_counted_and_scored_apart():
    """Nine texts of twelve were learned, and predicted well; of the three new ones one is right."""
    task = task_named("classify").of(LABELLED)
    labels = [example.label for example in LABELLED[:10]] + ["a", "a"]
    predictions = [Prediction(label, {"a": float(label == "a"), "b": float(label == "b")}) for label in labels]
    dev = [*LABELLED[:9], *(LabelledText(f"new {n}", None, "b") for n in range(3))]
    # 大小写、全角和空白不同的，还是同一句话
    learned = {fingerprint_of(LabelledText(f" ＴＥＸＴ  number {n}", None, "a")) for n in range(9)}
    found = task.scored(dev, predictions, learned)
    assert found.seen == 9
    assert found.metrics["accuracy"] == pytest.approx(10 / 12)
    assert found.unseen["accuracy"] == pytest.approx(1 / 3)
    assert found.remarks[0].startswith("9 examples stand in the training file as well; without them")
    assert Evaluation({}).remarks == []


def test_a_dev_file_that_is_the_training_file_does_not_pass_in_silence(tiny_model, tmp_path, capsys):
    rows = [{"text": example.text, "label": example.label} for example in LABELLED]
    bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=rows, dev=rows, epochs=1, console=Console())
    assert "12 of 12 examples of dev stand in the training file as well" in capsys.readouterr().out
    for page in ("report.html", "model/README.md"):
        said = (tmp_path / "run" / page).read_text(encoding="utf-8")
        assert "stand in the training file as well; none is new" in said, page
    few = tmp_path / "few.tsv"
    few.write_text("".join(f"{row['text']}\t{row['label']}\n" for row in rows[:4]), encoding="utf-8")
    assert "there are 4 examples only" in typed(capsys, "evaluate", "--model", tmp_path / "run/model", "--file", few)
