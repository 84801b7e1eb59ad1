"""Shapes in which people keep labels, and what each gives: the table of tasks-and-files.md, a test each."""

import json
import os
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.tasks import all_tasks
from spreadsheets import write_spreadsheet

DOCS = Path(__file__).parents[3] / "docs"
TWO = [("good soup", "yes"), ("bad room", "no")]
OBJECTS = [{"text": text, "label": label} for text, label in TWO]
FOUND = [f"{text} → {label}" for text, label in TWO]
PLAIN = "text,label\ngood soup,yes\nbad room,no\n"
REVIEWS = [(f"this is review number {n}", "good" if n % 3 else "bad") for n in range(12)]
WORDS = "EU {0}ORG\nrejects O\nthe O\n\nNew {1}LOC\nYork {2}LOC\n"
TAGGED = ["EU/{0}ORG rejects/O the/O", "New/{1}LOC York/{2}LOC"]
PASSAGE = "It\u00a0opened in 1998.\r\nIt closed in 2003."
SQUAD = {"id": "1", "question": "closed?", "answers": [{"text": "2003", "answer_start": PASSAGE.index("2003")}]}


def marked(template, *marks):
    return template.format(*marks) if isinstance(template, str) else [line.format(*marks) for line in template]


# shape → task, file, content, how it is read, what comes out; or what refuses it
SHAPES = {
    "commas": ("classify", "a.csv", PLAIN, {}, FOUND),
    "semicolons": ("classify", "a.csv", PLAIN.replace(",", ";"), {}, FOUND),
    "tabs": ("classify", "a.tsv", PLAIN.replace(",", "\t"), {}, FOUND),
    "bars": ("classify", "a.csv", PLAIN.replace(",", "|"), {}, FOUND),
    "a byte order mark": ("classify", "a.csv", PLAIN.encode("utf-8-sig"), {}, FOUND),
    "UTF-16 with a mark": ("classify", "a.csv", PLAIN.encode("utf-16"), {}, FOUND),
    "Latin-1": ("classify", "a.csv", "text,label\ncafé très bon,yes\nmal,no\n".encode("latin-1"), {},
                ["café très bon → yes", "mal → no"]),
    "GB 18030": ("classify", "a.csv", "text,label\n汤很好喝,好\n房间很脏,坏\n".encode("gb18030"),
                 {"encoding": "gb18030"}, ["汤很好喝 → 好", "房间很脏 → 坏"]),
    "CR LF": ("classify", "a.csv", PLAIN.replace("\n", "\r\n"), {}, FOUND),
    "quoted cells": ("classify", "a.csv", 'text,label\n"so ""good"", yes",1\n"two\nlines",0\n', {},
                     ['so "good", yes → 1', "two\nlines → 0"]),
    "quoted cells with tabs between": ("classify", "a.tsv", 'text\tlabel\n"two\nlines"\t0\none\t1\n', {},
                                       ["two\nlines → 0", "one → 1"]),
    "other names": ("classify", "a.csv", "Review Text,Sentiment Label\n" + PLAIN[11:], {}, FOUND),
    "names in another language": ("classify", "a.csv", "Kommentar,Urteil\n" + "".join(f"{t},{v}\n" for t, v in REVIEWS),
                                  {}, [f"{t} → {v}" for t, v in REVIEWS]),
    "no header": ("classify", "a.csv", PLAIN[11:], {}, FOUND),
    "many columns and no header": ("classify", "a.csv", "1,good soup,yes\n2,bad room,no\n",
                                   {"text_column": 1, "label_column": 2}, FOUND),
    "0 and 1 for words": ("classify", "a.csv", "text,label\ngood soup,1\nbad room,0\n", {},
                          ["good soup → 1", "bad room → 0"]),
    "words with spaces and emoji": ("classify", "a.csv", "text,label\ngood soup,Very Good 😀\nbad room,☹\n", {},
                                    ["good soup → Very Good 😀", "bad room → ☹"]),
    "JSON Lines": ("classify", "a.jsonl", "".join(f"{json.dumps(row)}\n" for row in OBJECTS), {}, FOUND),
    "JSON, a list": ("classify", "a.json", json.dumps(OBJECTS, indent=1), {}, FOUND),
    "JSON, nested": ("classify", "a.jsonl",
                     "".join(json.dumps({"review": {"body": t}, "meta": {"stars": v}}) + "\n" for t, v in TWO),
                     {"text_column": "review.body", "label_column": "meta.stars"}, FOUND),
    "a spreadsheet": ("classify", "a.xlsx", {"One": [["text", "label"], *map(list, TWO)]}, {}, FOUND),
    "several sheets": ("classify", "a.ods", {"About": [["x"]], "Data": [["text", "label"], *map(list, TWO)]},
                       {"sheet": "Data"}, FOUND),
    "a protected spreadsheet": ("classify", "a.ods", None, {}, "is protected by a password; save it without one"),
    "a column a label": ("multilabel", "a.csv", "text,rude,spam\na,1,0\nb,1,1\n",
                         {"label_column": ("rude", "spam")}, ["a → rude", "b → rude, spam"]),
    "lists that pandas wrote": ("multilabel", "a.csv", "text,labels\na,\"['x', 'y']\"\nb,[]\n", {},
                                ["a → x, y", "b → "]),
    "CoNLL with comments and document marks": (
        "tag", "a.conll", "-DOCSTART- -X- O O\n\n# id 1 domain=en\nEU NN B B-ORG\n\n# id 2 domain=en\nit PR B O\n", {},
        ["EU/B-ORG", "it/O"]),
    "BIO": ("tag", "a.conll", marked(WORDS, "B-", "B-", "I-"), {}, marked(TAGGED, "B-", "B-", "I-")),
    "IOB1": ("tag", "a.conll", marked(WORDS, "I-", "I-", "I-"), {}, marked(TAGGED, "I-", "I-", "I-")),
    "BIOES": ("tag", "a.conll", marked(WORDS, "S-", "B-", "E-"), {}, marked(TAGGED, "S-", "B-", "E-")),
    "BILOU": ("tag", "a.conll", marked(WORDS, "U-", "B-", "L-"), {}, marked(TAGGED, "U-", "B-", "L-")),
    "words and tags as lists": ("tag", "a.jsonl", '{"tokens": ["EU", "it"], "ner_tags": ["B-ORG", "O"]}\n', {},
                                ["EU/B-ORG it/O"]),
    "SQuAD with NBSP and CR LF": (
        "answer", "a.json", json.dumps({"data": [{"paragraphs": [{"context": PASSAGE, "qas": [SQUAD]}]}]}), {},
        ["closed? → 2003"]),
    "choices as the Hub has them": (
        "choose", "a.jsonl",
        '{"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}\n', {}, ["q → 1"]),
    "a binary file": ("classify", "a.csv", bytes(range(256)) * 9, {}, "looks binary"),
    "a ragged table": ("classify", "a.csv", PLAIN + "a,b,c\n", {}, "line 4 has 3 columns, the first has 2; check its"),
    "an empty column": ("classify", "a.csv", "text,label\na,\nb,\n", {}, "line 2 has an empty label"),
    "two columns of texts": ("classify", "a.csv", "text,review,label\na,b,x\nc,d,y\n", {},
                             "columns text, review may all be texts; say which with --text-column"),
    "a list for one label": ("classify", "a.csv", "text,label\na,\"['x', 'y']\"\n", {}, "is a list; write the class"),
}  # fmt: skip


def shown(task, example):
    if task == "tag":
        return " ".join(f"{word}/{tag}" for word, tag in zip(example.words, example.tags, strict=True))
    if task == "answer":
        return f"{example.question} → {example.answers[0].text}"
    label = ", ".join(example.labels) if task == "multilabel" else example.label
    return f"{example.context if task == 'choose' else example.text} → {label}"


@pytest.mark.filterwarnings("ignore:.*found by names and content", "ignore:.*comment")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_gives_what_the_table_says(tmp_path, shape):
    task, name, content, how, expected = SHAPES[shape]
    path = tmp_path / name
    if isinstance(content, (bytes, str)):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        sheets = {"S": [["text", "label"]]} if content is None else content
        write_spreadsheet(path, sheets, protected=content is None)
    reader, options = all_tasks()[task].spec.reader, ReadingOptions(**how)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected) as caught:
            reader.read(path, options)
        assert "\n" not in str(caught.value)
    else:
        assert [shown(task, example) for example in reader.read(path, options)] == expected


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_of_the_page_has_every_shape(language):
    page = (DOCS / language / "reference" / "tasks-and-files.md").read_text(encoding="utf-8")
    rows = page.partition("<!-- shapes -->")[2].partition("<!-- /shapes -->")[0].strip().splitlines()[2:]
    assert len(rows) == len(SHAPES)
    if language == "en":
        assert [row.split("|")[1].strip() for row in rows] == list(SHAPES)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_one_line(tmp_path):
    (tmp_path / "a.csv").write_text(PLAIN)
    (tmp_path / "a.csv").chmod(0)
    with pytest.raises(InputError, match=r"a\.csv"):
        all_tasks()["classify"].spec.reader.read(tmp_path / "a.csv")


def test_a_file_that_vanishes_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text(PLAIN)
    monkeypatch.setattr("bertsmith.data.reading.tables.require_file", Path.unlink)
    with pytest.raises(InputError, match=r"a\.csv: .*No such file"):
        all_tasks()["classify"].spec.reader.read(path)


def test_ten_thousand_classes_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"text {n},class {n % 10_000}\n" for n in range(20_000)))
    assert len({one.label for one in all_tasks()["classify"].spec.reader.read(path)}) == 10_000
