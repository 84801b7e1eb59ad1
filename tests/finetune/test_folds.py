"""Cross-validation scores every labelled example once, by a model that never saw it, and survives a kill."""

import io
import itertools
import json
from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timezone

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from sklearn.model_selection import StratifiedKFold

import bertsmith.finetune.search as folds_module
from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.questions import QUESTIONS, Answer, QuestionExample
from bertsmith.finetune.datasets.related import RELATED, CorpusPassage, JudgedQuery
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import LABELLED, LabelledText, MultiLabelledText, RankingExample
from bertsmith.finetune.job import ComparisonOptions, finetune
from bertsmith.finetune.run import FineTuningResult, FineTuningRun, fine_tune
from bertsmith.finetune.search import cross_validate
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.splits import almost_equal, fold_numbers, held_out
from bertsmith.finetune.tasks import all_tasks
from bertsmith.finetune.tasks.answer import AnsweringTask
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.embed import EmbeddingTask
from bertsmith.finetune.tasks.rank import RankingTask
from bertsmith.finetune.trials import spreads
from bertsmith.inference import load_pipeline

SETTINGS = FineTuningSettings(epochs=1, batch_size=8, learning_rate=2e-3)


def labelled(count, shares=("good", "bad", "bad")):
    return [LabelledText(f"the man {number} reads", None, shares[number % len(shares)]) for number in range(count)]


def test_parts_have_the_classes_of_the_whole_like_scikit_learns():
    examples = labelled(97, ("good", "bad", "bad", "bad", "fair", "bad", "bad"))
    parts = fold_numbers(ClassificationTask.of(examples), examples, 5, seed=3)
    labels = [example.label for example in examples]
    splits = StratifiedKFold(5, shuffle=True, random_state=0).split(labels, labels)
    theirs = sorted(sorted(Counter(labels[place] for place in test).items()) for _, test in splits)
    ours = sorted(
        sorted(Counter(label for label, part in zip(labels, parts, strict=True) if part == number).items())
        for number in range(5)
    )
    for one, two in zip(ours, theirs, strict=True):
        for label in ("good", "bad", "fair"):
            assert abs(dict(one)[label] - dict(two)[label]) <= 1
    assert parts == fold_numbers(ClassificationTask.of(examples), examples, 5, seed=3)
    assert parts != fold_numbers(ClassificationTask.of(examples), examples, 5, seed=4)


def test_what_belongs_together_stays_together():
    rows = [RankingExample(f"query {number // 4}", f"text {number}", float(number % 4 == 0)) for number in range(40)]
    parts = fold_numbers(RankingTask.of(rows), rows, 5, seed=0)
    assert all(len(set(parts[first : first + 4])) == 1 for first in range(0, 40, 4))
    assert Counter(parts) == dict.fromkeys(range(5), 8)
    questions = [QuestionExample(str(n), f"q{n}", f"passage {n % 3}", ()) for n in range(9)]
    found = fold_numbers(AnsweringTask(), questions, 3, seed=0)
    assert all(len({found[n] for n in range(9) if n % 3 == one}) == 1 for one in range(3))
    # 重复的文本若分在两边，测试集就见过了
    twice = labelled(10) * 2
    parts = fold_numbers(ClassificationTask.of(twice), twice, 4, seed=0)
    assert parts[:10] == parts[10:]
    with pytest.raises(InputError, match="10 examples that do not belong together, for 11 folds"):
        fold_numbers(ClassificationTask.of(twice), twice, 11, seed=0)
    with pytest.raises(ConfigError, match="give 2 or more"):
        fold_numbers(ClassificationTask.of(twice), twice, 1, seed=0)


def test_cross_validation_goes_on_after_a_kill_and_reports_mean_and_deviation(tiny_model, tmp_path, monkeypatch):
    examples, task = labelled(30), ClassificationTask.of(labelled(30))
    seen = []

    def dies(*values, test, **named):
        seen.append((values[2], values[3], test))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return fine_tune(*values, test=test, **named)

    monkeypatch.setattr(folds_module, "fine_tune", dies)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(task, tiny_model, examples, None, tmp_path / "run", SETTINGS, folds=3)
    monkeypatch.setattr(folds_module, "fine_tune", fine_tune)
    found = cross_validate(task, tiny_model, examples, None, tmp_path / "run", SETTINGS, folds=3)
    for learned, chooses, scored in seen:
        texts = [{example.text for example in part} for part in (learned, chooses, scored)]
        assert len(set.union(*texts)) == sum(map(len, texts)) == 30
    assert [row.name for row in found.rows] == ["fold-1", "fold-2", "fold-3", "all"]
    scores = [
        FineTuningResult.load(tmp_path / f"run/runs/fold-{n}/result.json").test.metrics["accuracy"] for n in (1, 2, 3)
    ]
    spread = found.fold_spread["accuracy"]
    assert (spread.mean, spread.deviation) == pytest.approx((np.mean(scores), np.std(scores, ddof=1)))
    assert found.best == "all"
    assert load_pipeline("classify", tmp_path / "run" / "model")(["the man 1 reads"])
    assert not list((tmp_path / "run").glob("runs/fold-*/model"))
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Cross-validation" in page
    assert f"{spread.mean:.4f}" in page
    assert cross_validate(task, tiny_model, examples, None, tmp_path / "run", SETTINGS, folds=3) == found


def test_folds_as_a_job(tiny_model, tmp_path):
    train = tmp_path / "train.tsv"
    train.write_text("".join(f"{example.text}\t{example.label}\n" for example in labelled(24)))
    how = {"train": train, "folds": 2, "epochs": 1, "batch_size": 8, "learning_rate": 2e-3}
    result = finetune("classify", tiny_model, tmp_path / "run", **how).details
    assert result.test is None
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "over 2 folds" in card
    assert "`a part of train.tsv`" in card
    assert json.loads((tmp_path / "run" / "search.json").read_text())["folds"] == 2
    for options, words in [
        ({"folds": 2, "seeds": 2}, "leave --search and --seeds out"),
        ({"trials": 5}, "say --search optuna"),
        ({"search": "grid"}, "use paper, optuna"),
    ]:
        with pytest.raises(ConfigError, match=words):
            ComparisonOptions(**options)
    taught = {"teacher": str(tiny_model), "teacher_text": (str(train),)}
    with pytest.raises(ConfigError, match="leave --teacher-text out"):
        finetune("classify", tiny_model, tmp_path / "t", **how, **taught)
    with pytest.raises(ConfigError, match="embed has none here"):
        finetune("embed", tiny_model, tmp_path / "e", **how)


def reviews(count):
    draws = np.random.default_rng(5)
    texts = (" ".join("".join(map(chr, draws.integers(97, 123, 5))) for _ in range(8)) for _ in range(count))
    return [LabelledText(text, None, "good" if number % 4 else "bad") for number, text in enumerate(texts)]


def test_a_file_alone_is_divided_evenly_and_copies_stay_together():
    examples = reviews(400)
    copies = [LabelledText(one.text.upper() + " !!", None, one.label) for one in examples[:40]]
    longer = [LabelledText(f"{one.text} {one.text} indeed", None, one.label) for one in examples[40:60]]
    near = [LabelledText(f"{one.text} {one.text}", None, one.label) for one in examples[40:60]]
    whole = [*examples, *copies, *longer, *near]
    task = ClassificationTask.of(whole)
    parts = held_out(task, whole, 3, with_test=True)
    assert sorted(number for numbers in parts.values() for number in numbers) == list(range(len(whole)))
    assert [len(parts[name]) / len(whole) for name in ("train", "dev", "test")] == pytest.approx(
        [0.6, 0.2, 0.2], abs=0.01
    )
    for numbers in parts.values():
        bad = [whole[number].label for number in numbers].count("bad") / len(numbers)
        assert bad == pytest.approx(0.25, abs=0.03)
    side = {number: name for name, numbers in parts.items() for number in numbers}
    assert all(side[number] == side[400 + number] for number in range(40))
    # 一对几乎相同的文本至少十有八九在同一边
    assert sum(side[440 + number] == side[460 + number] for number in range(20)) >= 18
    assert len(set(almost_equal(task, examples))) == 400
    assert parts == held_out(task, whole, 3, with_test=True)
    assert parts != held_out(task, whole, 4, with_test=True)
    assert set(held_out(task, whole[:150], 3, with_test=True)) == {"train", "dev"}
    rare = [*examples, LabelledText("something else", None, "rare")]
    assert 400 in held_out(ClassificationTask.of(rare), rare, 1, with_test=True)["train"]
    with pytest.raises(InputError, match="9 different examples, too few to hold some out; give --dev"):
        held_out(task, examples[:9] * 3, 0, with_test=True)


@pytest.mark.parametrize(("count", "expected"), [(999, 200), (1000, 100)])
def test_of_a_thousand_rows_a_tenth_is_held_out_and_of_fewer_a_fifth(count, expected):
    examples = reviews(count)
    parts = held_out(ClassificationTask.of(examples), examples, 0, with_test=True)
    assert [len(parts["dev"]), len(parts["test"])] == pytest.approx([expected, expected], abs=2)


def test_a_file_alone_is_enough(tiny_model, tmp_path):
    train, screen = tmp_path / "reviews.tsv", Console(file=io.StringIO())
    train.write_text("".join(f"{example.text}\t{example.label}\n" for example in reviews(220)))
    found = finetune("classify", tiny_model, tmp_path / "run", train=train, epochs=1, console=screen).details
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert len(split["train"]) + len(split["dev"]) + len(split["test"]) == 220
    counts = ", ".join(f"{len(split[name])} for {name}" for name in ("train", "dev", "test"))
    how_so = "reviews.tsv is divided, classes evenly, equal and almost equal texts together"
    assert f"no --dev: {how_so}: {counts}; see {tmp_path / 'run' / 'split.json'}\n" in screen.file.getvalue()
    assert sum(row.support for row in found.test.classes.values()) == len(split["test"]) >= 40
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "a part of reviews.tsv" in card
    again = finetune("classify", tiny_model, tmp_path / "run", train=train, epochs=1).details
    assert (again.dev, again.test) == (found.dev, found.test)


@pytest.mark.parametrize("seeds", [1, 2])
def test_which_rows_are_held_out_is_written_before_training(tiny_model, tmp_path, monkeypatch, seeds):
    rows = [{"text": one.text, "label": one.label} for one in reviews(40)]
    out, how = tmp_path / "run", {"train": rows, "epochs": 1, "seeds": seeds}
    with pytest.raises(InputError, match="does not occur in the training file"):
        finetune("classify", tiny_model, out, **how, test=[{"text": "new", "label": "never seen"}])
    assert not out.exists()

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FineTuningRun, "_train", dies)
        with pytest.raises(KeyboardInterrupt):
            finetune("classify", tiny_model, out, **how)
    kept = (out / "split.json").read_bytes()
    split = json.loads(kept)
    assert sorted(split["train"] + split["dev"]) == list(range(40))
    with pytest.raises(RunFolderError, match="choose another --out"):
        finetune("classify", tiny_model, out, **how, seed=7)
    finetune("classify", tiny_model, out, **how)
    assert (out / "split.json").read_bytes() == kept


def table(tmp_path, examples, **columns):
    rows = [{"text": one.text, "label": one.label} for one in examples]
    for name, values in columns.items():
        rows = [{**row, name: value} for row, value in zip(rows, values, strict=True)]
    path = tmp_path / "table.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["with folds", "alone"])
def test_rows_of_a_group_stay_on_one_side(tmp_path, kind):
    customers = [f"c{number % 23}" for number in range(300)]
    path = table(tmp_path, reviews(300), customer=customers)
    examples = LABELLED.read(path, ReadingOptions(group_column="customer"))
    assert [one.group for one in examples] == customers
    task = ClassificationTask.of(examples)
    if kind == "alone":
        parts = held_out(task, examples, 0, with_test=True)
        side = {number: name for name, numbers in parts.items() for number in numbers}
        assert all(len(numbers) > 30 for numbers in parts.values())
    else:
        side = dict(enumerate(fold_numbers(task, examples, 5, seed=0)))
    for customer in set(customers):
        assert len({side[number] for number in range(300) if customers[number] == customer}) == 1


@pytest.mark.parametrize("written", ["2024-{month:02}-03", "2024-{month:02}-03T10:00:00Z", "{month}"])
def test_the_latest_rows_are_held_out(tmp_path, written):
    months = np.random.default_rng(2).permutation([1 + number % 12 for number in range(300)]).tolist()
    path = table(tmp_path, reviews(300), day=[written.format(month=month) for month in months])
    examples = LABELLED.read(path, ReadingOptions(time_column="day"))
    parts = held_out(ClassificationTask.of(examples), examples, 0, with_test=True)
    found = {name: {months[number] for number in numbers} for name, numbers in parts.items()}
    assert max(found["train"]) < min(found["dev"]) <= max(found["dev"]) < min(found["test"])
    assert len(parts["test"]) >= 25
    assert len(parts["dev"]) >= 25


def test_that_the_latest_rows_are_held_out_is_said(tiny_model, tmp_path):
    path, screen = table(tmp_path, reviews(40), day=list(range(40))), Console(file=io.StringIO())
    how = {"time_column": "day", "epochs": 1, "console": screen}
    finetune("classify", tiny_model, tmp_path / "run", train=path, **how)
    said = "the latest rows held out, equal and almost equal texts together: 32 for train, 8 for dev; see "
    assert f"no --dev: table.jsonl is divided, {said}" in screen.file.getvalue()


@pytest.mark.parametrize(("count", "with_test"), [(300, False), (150, True)])
def test_the_latest_rows_are_held_out_where_there_is_no_test_part(tmp_path, count, with_test):
    path = table(tmp_path, reviews(count), day=list(range(count)))
    examples = LABELLED.read(path, ReadingOptions(time_column="day"))
    parts = held_out(ClassificationTask.of(examples), examples, 0, with_test=with_test)
    assert parts == {"train": list(range(count * 4 // 5)), "dev": list(range(count * 4 // 5, count))}


def test_rows_of_one_moment_are_not_divided(tmp_path):
    days = [1] * 90 + [2] * 60
    path = table(tmp_path, reviews(150), day=days)
    examples = LABELLED.read(path, ReadingOptions(time_column="day"))
    parts = held_out(ClassificationTask.of(examples), examples, 0, with_test=False)
    assert {name: {days[number] for number in numbers} for name, numbers in parts.items()} == {"train": {1}, "dev": {2}}
    alike = [replace(example, time=1.0) for example in examples]
    with pytest.raises(InputError, match="too few different times to hold out dev; give --dev"):
        held_out(ClassificationTask.of(alike), alike, 0, with_test=False)


def test_folds_of_few_groups_choose_epochs_by_a_group_and_the_card_counts_it(tiny_model, tmp_path):
    path = table(tmp_path, reviews(60), customer=[f"c{number % 6}" for number in range(60)])
    how = {"train": path, "group_column": "customer", "epochs": 1}
    finetune("classify", tiny_model, tmp_path / "run", **how, folds=3)
    whole = json.loads((tmp_path / "run" / "runs" / "all" / "finetune.json").read_text())
    assert (whole["train"]["examples"], whole["dev"]["examples"]) == (50, 10)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "| train | `a part of table.jsonl` | 50 |" in card
    assert "| dev | `a part of table.jsonl` | 10 |" in card
    two = table(tmp_path, reviews(60), customer=[f"c{number % 2}" for number in range(60)])
    with pytest.raises(InputError, match="without a fold, all of the training file belongs together; give --dev"):
        finetune("classify", tiny_model, tmp_path / "two", **how | {"train": two}, folds=2)


def test_a_figure_that_some_folds_lack_has_no_spread():
    found = spreads([{"f1": 0.5, "has_answer_f1": 0.4}, {"f1": 0.7}, {"f1": 0.6, "has_answer_f1": 0.5}])
    assert found.keys() == {"f1"}
    assert found["f1"].mean == pytest.approx(0.6)


def test_typed_dates_are_times(tmp_path):
    days = [date(2024, 5, 31), datetime(2024, 5, 31, 9, 30), datetime(2024, 5, 31, tzinfo=timezone.utc)]
    times, told = [1717113600.0, 1717147800.0, 1717113600.0], ReadingOptions(time_column="day")
    rows = [{"text": one.text, "label": one.label, "day": day} for one, day in zip(reviews(3), days, strict=True)]
    for source in (rows, pd.DataFrame(rows)):
        assert [one.time for one in LABELLED.read(source, told)] == times
    kinds = (pa.date32(), pa.timestamp("us"), pa.timestamp("ns", tz="UTC"))
    for row, kind, expected in zip(rows, kinds, times, strict=True):
        columns = {name: [value] for name, value in row.items()} | {"day": pa.array([row["day"]], kind)}
        pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
        assert [one.time for one in LABELLED.read(tmp_path / "rows.parquet", told)] == [expected]
    missing = pd.DataFrame(rows).assign(day=pd.to_datetime(["2024-05-31", "2024-05-31", None]))
    with pytest.raises(InputError, match=r"row 2 \(from 0\) has an empty time"):
        LABELLED.read(missing, told)


def test_columns_of_groups_and_times_are_checked(tiny_model, tmp_path):
    path = table(tmp_path, reviews(20), day=["soon"] * 20, who=["a"] * 20)
    with pytest.raises(InputError, match="line 1: the time 'soon' is no number and no date such as 2024-05-31"):
        LABELLED.read(path, ReadingOptions(time_column="day"))
    with pytest.raises(InputError, match="no column 'dya'; its header has text, label, day, who"):
        LABELLED.read(path, ReadingOptions(time_column="dya"))
    for option, also in (
        ("time_column", {"dev": path}),
        ("time_column", {"folds": 2}),
        ("group_column", {"dev": path}),
    ):
        with pytest.raises(ConfigError, match="leave out --dev"):
            finetune("classify", tiny_model, tmp_path / "x", train=path, **{option: "day"}, **also)


WITH_COLUMNS = {
    "tag": {"tokens": ["a", "b"], "tags": ["O", "B-X"]},
    "answer": {"question": "what?", "context": "a b", "answers": {"text": ["b"], "answer_start": [2]}},
    "embed": {"query": "a", "positive": "b"},
    "rank": {"query": "a", "text": "b", "label": 1},
    "choose": {"context": "a", "choices": ["b", "c"], "label": 0},
}


@pytest.mark.parametrize("task", WITH_COLUMNS)
def test_every_table_may_have_columns_of_groups_and_times(tmp_path, task):
    reader = all_tasks()[task].spec.reader
    rows = [{**WITH_COLUMNS[task], "who": {"id": name}, "day": day} for name, day in (("k", "1"), ("m", "soon"))]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for source in (path, rows):
        found = reader.read(source, ReadingOptions(group_column="who.id"))
        assert [one.group for one in found] == ["k", "m"]
        with pytest.warns(UserWarning, match="left out 1 .*: the time 'soon' is no number"):
            (left,) = reader.read(source, ReadingOptions(time_column="day", faults="skip"))
        assert left.time == 1.0
        with pytest.raises(InputError, match="no column 'whom'; its header has"):
            reader.read(source, ReadingOptions(group_column="whom"))


SQUAD = {"data": [{"paragraphs": [{"context": "a b", "qas": [
    {"id": "1", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}]}]}]}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "name", "content", "form"),
    [
        ("tag", "a.conll", "EU B-ORG\n", "CoNLL and CoNLL-U"),
        ("tag", "a.conllu", "1\ta\t_\tX" + "\t_" * 6 + "\n", "CoNLL and CoNLL-U"),
        ("answer", "a.json", json.dumps(SQUAD), "SQuAD's form"),
        ("embed", "a.json", json.dumps(SQUAD), "SQuAD's form"),
        ("embed", "qrels/a.tsv", "q\tt\t1\n", "a BEIR folder"),
        ("classify", "folder/pos/a.txt", "text", "a folder for each class"),
    ],
)
def test_a_file_without_columns_refuses_them(tmp_path, task, name, content, form):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
    path = tmp_path / name.removesuffix("/pos/a.txt")
    for option in ("group_column", "time_column"):
        flag = "--" + option.replace("_", "-")
        with pytest.raises(ConfigError, match=f"{flag} is not for the files of {form}; leave it out"):
            all_tasks()[task].spec.reader.read(path, ReadingOptions(**{option: "who"}))


def test_a_column_of_groups_is_never_the_label(tmp_path):
    rows = [{"Satz": f"ein langer Satz Nummer {n}", "Urteil": "gut" if n % 2 else "mies", "Kunde": f"k{n % 3}"}
            for n in range(12)]  # fmt: skip
    with pytest.raises(InputError, match="columns Urteil, Kunde may all be the label"):
        LABELLED.read(rows)
    with pytest.warns(UserWarning, match="label from Urteil"):
        assert LABELLED.read(rows, ReadingOptions(group_column="Kunde"))[0].group == "k0"


def test_texts_of_one_form_are_divided_all_the_same():
    filled = [LabelledText(f"ticket {n}: the printer on floor {n % 7} of our house is out of paper again, please help",
                           None, "ab"[n % 2]) for n in range(100)]  # fmt: skip
    whole = [*filled, *filled[:10]]
    with pytest.warns(UserWarning, match="texts are near-duplicates; only exact duplicates are kept in the same part"):
        parts = held_out(ClassificationTask.of(whole), whole, 0, with_test=False)
    side = {number: name for name, numbers in parts.items() for number in numbers}
    assert len(parts["dev"]) == pytest.approx(22, abs=2)
    assert all(side[number] == side[100 + number] for number in range(10))


@pytest.mark.filterwarnings("ignore:100 texts are near-duplicates", "error:150 texts are near-duplicates")
def test_a_group_larger_than_a_part_is_learned_from(tmp_path):
    customers = ["large" if number < 150 else f"c{number % 30}" for number in range(300)]
    examples = LABELLED.read(table(tmp_path, reviews(300), customer=customers), ReadingOptions(group_column="customer"))
    parts = held_out(ClassificationTask.of(examples), examples, 0, with_test=True)
    assert set(range(150)) <= set(parts["train"])
    assert len(parts["dev"]) == pytest.approx(30, abs=5)
    few = [replace(example, group=str(number % 8)) for number, example in enumerate(reviews(60))]
    with pytest.raises(InputError, match="8 different examples, too few to hold some out"):
        held_out(ClassificationTask.of(few), few, 0, with_test=False)
    few = [replace(example, group="a" if number < 50 else str(number % 9)) for number, example in enumerate(few)]
    few += [replace(example, text=f"another {example.text}", group="b") for example in few[:50]]
    with pytest.raises(InputError, match="most rows of the training file belong together in a few groups; give --dev"):
        held_out(ClassificationTask.of(few), few, 0, with_test=False)


@pytest.mark.parametrize(
    ("mark", "name"), [("-DOCSTART- O", "a.conll"), ("# newdoc id = 7", "a.conll"), ("# newdoc id = 7", "a.conllu")]
)
def test_sentences_of_a_document_stay_on_one_side(tmp_path, mark, name):
    texts, beside = [one.text.split() for one in reviews(240)], "\t_" * 6 if name == "a.conllu" else ""
    lines = [[f"{n}\t{word}\t_\t{'OB'[n % 2]}{beside}" if beside else f"{word} {'OB'[n % 2]}"
              for n, word in enumerate(text, 1)] for text in texts]  # fmt: skip
    sentences = ["\n".join(own) + "\n" for own in lines]
    blocks = [f"{mark}\n" + "\n" * (not beside) + "\n".join(sentences[n : n + 6]) for n in range(0, 240, 6)]
    (tmp_path / name).write_text("\n".join(blocks))
    examples = all_tasks()["tag"].spec.reader.read(tmp_path / name)
    assert len(examples) == 240
    parts = held_out(all_tasks()["tag"].of(examples), examples, 0, with_test=True)
    side = {number: name for name, numbers in parts.items() for number in numbers}
    assert all(len({side[n] for n in range(first, first + 6)}) == 1 for first in range(0, 240, 6))


def test_kinds_of_entities_and_rare_labels_are_spread_evenly():
    draws = np.random.default_rng(4)
    texts = [one.text.split() for one in reviews(400)]
    kinds = ["B-PER" if n % 3 else "B-LOC" if n % 20 else "B-ART" for n in draws.permutation(400).tolist()]
    tagged = [TaggedWords(tuple(text), (*["O"] * 7, kind)) for text, kind in zip(texts, kinds, strict=True)]
    labels = [("PER", "B") if kind == "B-PER" else (kind,) for kind in kinds]
    sets = [MultiLabelledText(" ".join(text), None, own) for text, own in zip(texts, labels, strict=True)]
    asked = [QuestionExample(str(n), "what?", " ".join(text), () if kind == "B-ART" else (Answer(text[0], 0),))
             for n, (text, kind) in enumerate(zip(texts, kinds, strict=True))]  # fmt: skip
    for name, examples in (("tag", tagged), ("multilabel", sets), ("answer", asked)):
        parts = held_out(all_tasks()[name].of(examples), examples, 1, with_test=True)
        for part in ("dev", "test"):
            found = Counter(kinds[number] for number in parts[part])
            assert found["B-ART"] - kinds.count("B-ART") // 5 in (0, 1)
            if name != "answer":
                assert found["B-LOC"] == pytest.approx(kinds.count("B-LOC") / 5, abs=1)


def test_classes_of_two_rows_are_held_out_and_of_one_are_not():
    examples = [replace(one, label=f"class {n % 300}") for n, one in enumerate(reviews(600))]
    parts = held_out(ClassificationTask.of(examples), examples, 0, with_test=True)
    assert len(parts["dev"]) > 80
    assert len(parts["test"]) > 80
    assert {examples[n].label for n in parts["dev"]} <= {examples[n].label for n in parts["train"]}
    alone = [replace(one, label=f"class {n}") for n, one in enumerate(examples)]
    with pytest.raises(InputError, match="have too few rows each to hold some out; give --dev"):
        held_out(ClassificationTask.of(alone), alone, 0, with_test=True)


def test_a_class_that_is_held_out_alone_is_learned_with_its_group():
    rare = [replace(one, group="g") for one in reviews(3)]
    rare[0] = replace(rare[0], label="rare")
    whole = [*rare, *(replace(one, text=f"other {one.text}") for one in reviews(60)[3:])]
    for seed in range(8):
        parts = held_out(ClassificationTask.of(whole), whole, seed, with_test=False)
        assert {0, 1, 2} <= set(parts["train"])


@pytest.mark.parametrize("form", ["SQuAD's", "the Hub's"])
@pytest.mark.parametrize(("articles", "whole"), [(30, True), (5, False)])
def test_questions_of_an_article_stay_on_one_side_where_there_are_enough(tmp_path, form, articles, whole):
    texts = [one.text for one in reviews(240)]
    answers = [{"text": text[:5], "answer_start": 0} for text in texts]
    if form == "SQuAD's":
        asked = [{"context": text, "qas": [{"id": text, "question": "what?", "answers": [answer]}]}
                 for text, answer in zip(texts, answers, strict=True)]  # fmt: skip
        data = [{"title": "t", "paragraphs": asked[n::articles]} for n in range(articles)]
        (tmp_path / "a.json").write_text(json.dumps({"data": data}))
        examples = QUESTIONS.read(tmp_path / "a.json")
    else:
        examples = QUESTIONS.read(
            [{"id": text, "title": f"t{n % articles}", "question": "what?", "context": text,
              "answers": {name: [value] for name, value in answer.items()}}
             for n, (text, answer) in enumerate(zip(texts, answers, strict=True))])  # fmt: skip
    article = {text: n % articles for n, text in enumerate(texts)}
    parts = held_out(AnsweringTask(), examples, 0, with_test=True)
    found = [{article[examples[number].context] for number in numbers} for numbers in parts.values()]
    assert all(one.isdisjoint(two) is whole for one, two in itertools.combinations(found, 2))


def test_pairs_to_embed_are_divided_by_query_and_by_text(tiny_model, tmp_path):
    words = [one.text for one in reviews(240)]
    pairs = [{"query": words[n // 2], "positive": words[120 + n // 3]} for n in range(240)]
    examples = RELATED.read(pairs)
    parts = held_out(EmbeddingTask.of(examples), examples, 0, with_test=False)
    sides = [{one for n in numbers for one in (f"q{pairs[n]['query']}", f"p{pairs[n]['positive']}")}
             for numbers in parts.values()]  # fmt: skip
    assert sides[0].isdisjoint(sides[1])
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    found = finetune("embed", tiny_model, tmp_path / "run", train=path, epochs=1)
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert sorted(split["train"] + split["dev"] + split["test"]) == list(range(240))
    assert found.details.test.seen == 0
    corpus = [CorpusPassage("1", "one"), JudgedQuery("1", "what?", (("1", 1.0),), place="q.jsonl: line 1")]
    with pytest.raises(InputError, match="a BEIR folder are not divided; name another file of its qrels with --dev"):
        held_out(EmbeddingTask(), corpus, 0, with_test=False)


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("multilabel", [{"text": one.text, "labels": [one.label]} for one in reviews(240)]),
        ("regress", [{"text": one.text, "score": n % 5} for n, one in enumerate(reviews(240))]),
        ("tag", [{"tokens": one.text.split(), "tags": ["O"] * 7 + ["B-X"]} for one in reviews(240)]),
        ("answer", [{"question": "what?", "context": one.text,
                     "answers": {"text": [one.text[:5]], "answer_start": [0]}} for one in reviews(240)]),
        ("choose", [{"context": one.text, "choices": ["a", "b"], "label": 1} for one in reviews(240)]),
        ("rank", [{"query": one.text, "text": two, "label": int(two == "a")} for one in reviews(120) for two in "ab"]),
    ],
)  # fmt: skip
def test_every_task_divides_a_file_alone_and_scores_what_it_has_seen_apart(tiny_model, tmp_path, task, rows):
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = finetune(task, tiny_model, tmp_path / "run", train=path, epochs=1, max_length=32).details
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    assert sorted(split["train"] + split["dev"] + split["test"]) == list(range(240))
    assert (found.dev.seen, found.test.seen) == (0, 0)
    half = tmp_path / "half.jsonl"
    half.write_text("".join(json.dumps(row) + "\n" for row in rows[:160]))
    screen, parts = Console(file=io.StringIO()), {"train": half, "dev": path, "test": path}
    how = {**parts, "epochs": 1, "max_length": 32, "console": screen}
    again = finetune(task, tiny_model, tmp_path / "leaks", **how).details
    for name, scored in (("dev", again.dev), ("test", again.test)):
        assert scored.seen == 160
        assert scored.unseen
        assert f"160 of 240 examples of {name} stand in the training file as well" in screen.file.getvalue()
