"""Data frames, data sets of the Hub's library and lists of dictionaries are read as the same rows in a file are."""

import json

import datasets
import numpy as np
import pandas as pd
import pytest
from datasets import Features

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.questions import QUESTIONS, Answer
from bertsmith.finetune.datasets.related import RELATED, read_unlabelled
from bertsmith.finetune.datasets.tagged import TAGGED
from bertsmith.finetune.datasets.texts import CHOICES, LABELLED, MULTILABELLED, RANKINGS, SCORED

RECORDS = {
    LABELLED: [{"text": "a b", "label": "yes"}, {"text": "c", "label": "no"}, {"text": "d", "label": "no"}],
    MULTILABELLED: [{"text": "a", "labels": ["x", "y"]}, {"text": "b", "labels": []}, {"text": "c", "labels": ["y"]}],
    SCORED: [{"sentence1": "a", "sentence2": "b", "score": 1.5}, {"sentence1": "c", "sentence2": "d", "score": 2.0}],
    RANKINGS: [{"query": "a", "text": "b", "label": 1}, {"query": "a", "text": "c", "label": 0}],
    CHOICES: [{"context": "a", "choices": ["b", "c"], "label": 1}] * 2,
    RELATED: [{"query": "a", "passage": "b"}, {"query": "c", "passage": "d"}],
    TAGGED: [{"tokens": ["a", "\u3000"], "ner_tags": ["B-PER", "O"]}, {"tokens": ["b"], "ner_tags": ["O"]}],
    QUESTIONS: [
        {"id": "1", "question": "who", "context": "the man", "answers": {"text": ["man"], "answer_start": [4]}},
        {"id": "2", "question": "why", "context": "the man", "answers": {"text": [], "answer_start": []}},
    ],
}


@pytest.mark.parametrize("reader", RECORDS, ids=lambda reader: reader.holds)
def test_rows_in_memory_are_read_as_rows_of_a_file(reader, tmp_path):
    records = RECORDS[reader]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    expected = reader.read(path)
    assert len(expected) == len(records)
    assert reader.read(records) == expected
    assert reader.read(pd.DataFrame(records)) == expected
    assert reader.read(datasets.Dataset.from_list(records)) == expected
    assert reader.read(datasets.Dataset.from_list(records).to_iterable_dataset()) == expected
    parquet = tmp_path / "rows.parquet"
    datasets.Dataset.from_list(records).to_parquet(parquet)
    assert reader.read(parquet) == expected
    # lists come out of Parquet as arrays, and an index is no column
    assert reader.read(pd.read_parquet(parquet).set_index(np.arange(len(records)) + 7)) == expected


def test_numbers_of_classes_are_read_by_their_names(tmp_path):
    text, tag = datasets.Value("string"), datasets.ClassLabel(names=["O", "B-PER", "I-PER"])
    entities = datasets.Dataset.from_dict(
        {"id": ["0", "1"], "tokens": [["Ann", "Lee", "sat"], ["no"]], "ner_tags": [[1, 2, 0], [0]]},
        features=Features(id=text, tokens=datasets.Sequence(text), ner_tags=datasets.Sequence(tag)),
    )
    first, second = TAGGED.read(entities)
    assert (first.tags, second.tags) == (("B-PER", "I-PER", "O"), ("O",))
    reviews = datasets.Dataset.from_dict(
        {"text": ["a", "b"], "label": [1, 0]},
        features=Features(text=text, label=datasets.ClassLabel(names=["neg", "pos"])),
    )
    assert [example.label for example in LABELLED.read(reviews)] == ["pos", "neg"]
    assert [example.score for example in SCORED.read(reviews)] == [1.0, 0.0], "a number is wanted here, not a name"
    several = datasets.Dataset.from_dict(
        {"text": ["a", "b"], "labels": [[0, 2], []]}, features=Features(text=text, labels=datasets.Sequence(tag))
    )
    assert [example.labels for example in MULTILABELLED.read(several)] == [("O", "I-PER"), ()]
    # what `datasets` writes into a Parquet file says the names, too
    for reader, data in ((TAGGED, entities), (LABELLED, reviews), (MULTILABELLED, several)):
        data.to_parquet(tmp_path / "data.parquet")
        assert reader.read(tmp_path / "data.parquet") == reader.read(data)


def test_columns_are_chosen_as_in_a_file():
    frame = pd.DataFrame({"id": [1, 2], "body": ["a", "b"], "verdict": pd.Categorical(["x", "y"])})
    read = LABELLED.read(frame, ReadingOptions(text_column="body", label_column=2))
    assert [(example.text, example.label) for example in read] == [("a", "x"), ("b", "y")]
    rows = [{"words": ["a"], "pos_tags": ["DT"], "ner_tags": ["O"]}]
    assert TAGGED.read(rows)[0].tags == ("O",)
    assert TAGGED.read(rows, ReadingOptions(tag_column="pos_tags"))[0].tags == ("DT",)


TAGS, QUESTION = {"tokens": ["a"], "ner_tags": ["O"]}, RECORDS[QUESTIONS][0]


@pytest.mark.parametrize(
    ("reader", "rows", "message"),
    [
        (LABELLED, [], "train: holds no row"),
        (LABELLED, pd.DataFrame({"text": [], "label": []}), "train: holds no row"),
        (LABELLED, 7, "train: is a int; give a file, a data frame or a list of dictionaries"),
        (LABELLED, {"text": ["a"], "label": ["b"]}, "train: is a dictionary of text, label; give one of its splits"),
        (LABELLED, ["a"], "train: row 0 (from 0) is a str, not a dictionary of its columns"),
        (LABELLED, [{"text": "a", "y": "b"}], "train: no label column among text, y; call it label, or name it with"),
        (
            LABELLED,
            pd.DataFrame({"text": ["a", "b"], "label": ["x", None]}),
            "train: row 1 (from 0) has an empty label",
        ),
        (
            LABELLED,
            pd.DataFrame({"text": ["a", pd.NA], "label": ["x", "y"]}),
            "train: row 1 (from 0) has an empty text",
        ),
        (LABELLED, [{"text": ["a"], "label": "x"}], "train: row 0 (from 0): the text is a list, not text"),
        (
            LABELLED,
            pd.DataFrame({"text": pd.to_datetime(["2020-01-01"]), "label": ["x"]}),
            "the text is a Timestamp, not text",
        ),
        (SCORED, [{"text": "a", "score": "high"}], "train: row 0 (from 0): the score 'high' is not a finite number"),
        (TAGGED, [TAGS, {"tokens": ["a"], "ner_tags": []}], "train: row 1 (from 0): 1 words and 0 tags"),
        (TAGGED, [{"tokens": ["a"], "ner_tags": [3]}], "the tags are numbers and nothing says what they are called"),
        (TAGGED, [{"tokens": "a b", "ner_tags": "O O"}], "the list of words is a str, not a list"),
        (TAGGED, [{"tokens": ["a", ""], "ner_tags": ["O", "O"]}], "train: row 0 (from 0): word 1 is empty"),
        (TAGGED, [{"tokens": []}], "train: no tag column among tokens; call it ner_tags, or name it with --tag-column"),
        (QUESTIONS, [{"question": "a", "context": "b"}], "train: no column answers among question, context"),
        (QUESTIONS, [QUESTION, QUESTION], "train: row 1 (from 0): question '1': its id occurs twice"),
        (QUESTIONS, [{**QUESTION, "context": ""}], "train: row 0 (from 0): the row has an empty context"),
        (QUESTIONS, [{**QUESTION, "answers": {"text": ["man"]}}], 'need a list "text" and a list "answer_start"'),
        (
            QUESTIONS,
            [{**QUESTION, "answers": {"text": ["man"], "answer_start": [0]}}],
            "train: row 0 (from 0): question '1': the passage has 'the' at character 0, not the answer 'man'",
        ),
    ],
)
def test_bad_rows_are_named(reader, rows, message):
    with pytest.raises(InputError) as caught:
        reader.read(rows, name="train")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_class_without_a_name_and_options_of_files_are_refused():
    unlabelled_test_split = datasets.Dataset.from_dict(
        {"text": ["a"], "label": [-1]},
        features=Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["n", "p"])),
    )
    with pytest.raises(InputError, match="row 0 .from 0.: the label -1 is none of the 2 classes"):
        LABELLED.read(unlabelled_test_split)
    for options, message in (
        (ReadingOptions(encoding="gb18030"), "--encoding is for files"),
        (ReadingOptions(word_column=1), "--word-column is not for the files of classify"),
    ):
        with pytest.raises(ConfigError, match=message):
            LABELLED.read(RECORDS[LABELLED], options, task="classify")
    with pytest.raises(InputError, match="leave out --header and --no-header"):
        LABELLED.read(RECORDS[LABELLED], ReadingOptions(header=True))


def test_faults_of_questions_are_left_out_where_asked():
    shifted = {**QUESTION, "id": "3", "answers": {"text": ["man"], "answer_start": [0]}}
    with pytest.warns(UserWarning, match="rows: left out 2 questions and answers"):
        (kept,) = QUESTIONS.read([QUESTION, shifted], ReadingOptions(faults="skip"))
    assert kept.answers == (Answer("man", 4),)


def test_documents_in_memory_give_the_pairs_of_the_same_files(tmp_path):
    texts = [" ".join(f"Story {n} has a sentence {k}." for k in range(9)) for n in range(8)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    assert read_unlabelled(pd.DataFrame({"text": texts})) == read_unlabelled(tmp_path)
    with pytest.raises(InputError, match="unlabelled: no column text among body"):
        read_unlabelled([{"body": "a"}])
    with pytest.raises(InputError, match=r"unlabelled: row 1 \(from 0\) has an empty text"):
        read_unlabelled([{"text": texts[0]}, {"text": None}])
