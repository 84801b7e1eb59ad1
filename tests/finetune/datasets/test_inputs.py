"""What a model reads, in files that it could have learned from: found as in fine-tuning, labels or none."""

import json

import pandas
import pytest

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.inputs import Input, read_inputs
from bertsmith.finetune.tasks import task_named

CSV = 'id,text\n17,"the film was lovely, superb and warm"\n18,"the film was ""dull"" and\nhorrid"\n'
TEXTS = [("the film was lovely, superb and warm",), ('the film was "dull" and\nhorrid',)]


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(task, path, counts=range(1, 2), **options):
    found = read_inputs(task_named(task).spec.reader.inputs, path, ReadingOptions(**options), task=task, counts=counts)
    return None if found is None else list(found)


SQUAD = {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "q1", "question": "who ?"}]}]}]}
CASES = {
    "classify": ("a.jsonl", lines({"id": 1, "text": "a b"}), [("a b",)], {"id": 1}),
    "a label comes back": ("classify a.csv", "text,label\na b,good\n", [("a b",)], {"label": "good"}),
    "by order": ("classify a.tsv", "a b\tgood\n", [("a b",)], {"1": "good"}),
    "multilabel": ("a.csv", "text,sport,news\na b,1,0\n", [("a b",)], {"sport": "1", "news": "0"}),
    "regress": ("a.csv", "sentence1,sentence2,score\na,b,\n", [("a", "b")], {"score": ""}),
    "tag": ("a.jsonl", lines({"id": 1, "tokens": ["a b", "c"]}), [(("a b", "c"),)], {"id": 1}),
    "text of a tagger": ("tag a.csv", "id,text\n1,a b\n", [("a b",)], {"id": "1"}),
    "words alone": ("tag a.conll", "a\nb\n\nc\n", [(("a", "b"),), (("c",),)], {}),
    "word and tag between tabs": ("tag a.tsv", "a\tX\nb\tO\n\nc\tX\n", [(("a", "b"),), (("c",),)], {}),
    "word and tag in a text file": ("tag a.txt", "a\tX\nb\tO\n\nc\tX\n", [(("a", "b"),), (("c",),)], {}),
    "texts with a header and a blank line": (
        "tag a.tsv",
        "text\tid\none two\t1\n\nthree\t2\n",
        [("one two",), ("three",)],
        {"id": "1"},
    ),
    "tags not needed": ("tag a.conllu", "1\tdogs\t_\t_\t_\t_\t0\t_\t_\t_\n", [(("dogs",),)], {}),
    "features": ("a.conll", "a\tX\nb\tY\n", [(("a", "b"),)], {}),
    "answer": ("a.json", json.dumps(SQUAD, indent=1), [("who ?", "a b")], {"id": "q1"}),
    "questions": ("answer a.csv", "id,question,context\n1,who ?,a b\n", [("who ?", "a b")], {"id": "1"}),
    "choose": ("a.csv", "ctx,ending0,ending1,sent2,n\nc,x,y,so,7\n", [("c", "so x", "so y")], {"n": "7"}),
    "ARC": (
        "choose a.jsonl",
        lines({"id": "A", "question": "q ?", "choices": {"text": ["x", "y"], "label": ["A", "B"]}}),
        [("q ?", "x", "y")],
        {"id": "A"},
    ),
    "rank": ("a.tsv", "id\tquery\ttext\n1\tq\tt\n", [("q", "t")], {"id": "1"}),
    "embed": ("a.csv", "id,passage\n1,a b\n", [("a b",)], {"id": "1"}),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_are_found_and_other_columns_come_back(name, tmp_path):
    file, content, texts, others = CASES[name]
    task, file = file.split() if " " in file else (name, file)
    path = tmp_path / file
    path.write_text(content, encoding="utf-8")
    found = read(task, path)
    assert [one.texts for one in found] == texts
    assert found[0].others == others
    assert not any(one.fault for one in found)


def test_a_single_sentence_of_words_is_told_by_its_column(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tX\nb\tO\n", encoding="utf-8")
    assert [one.texts for one in read("tag", tmp_path / "a.tsv", word_column=0)] == [(("a", "b"),)]


def test_csv_parquet_and_json_give_the_same(tmp_path):
    (tmp_path / "a.csv").write_text(CSV, encoding="utf-8")
    frame = pandas.read_csv(tmp_path / "a.csv")
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    for name, ids in (("a.csv", ["17", "18"]), ("a.parquet", [17, 18]), ("a.jsonl", [17, 18])):
        found = read("classify", tmp_path / name)
        assert [one.texts for one in found] == TEXTS
        assert [one.others for one in found] == [{"id": number} for number in ids]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "text\nthe man\n"),
        ("a.txt", "the man\tgood\n"),
        ("a.tsv", "the man\nthe woman\n"),
        ("a.jsonl", '"the man"\n["the woman"]\n'),
        ("a.json", "\n"),
    ],
)
def test_an_input_a_line_is_no_table(name, content, tmp_path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read("classify", tmp_path / name) is None


def test_a_row_without_text_says_so_and_the_rest_go_on(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,a\n2,\n3\n4,b\n", encoding="utf-8")
    found = read("classify", path)
    assert [one.texts for one in found] == [("a",), (), (), ("b",)]
    assert found[1] == Input(f"{path}: line 3", (), {"id": "2"}, f"{path}: line 3 has an empty text")
    assert "line 4 has 1 columns, the first has 2" in found[2].fault


def test_columns_are_told_as_in_fine_tuning(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,2,3\n4,5,6\n", encoding="utf-8")
    with pytest.raises(InputError, match="such as --text-column 0, or --header"):
        read("classify", path)
    path.write_text("text,review,n\na,b,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="may all be texts; say which with --text-column"):
        read("classify", path)
    assert [one.texts for one in read("classify", path, text_column="review")] == [("b",)]
    assert [one.texts for one in read("classify", path, text_column=1, pair_column=0, header=True)] == [("b", "a")]
    with pytest.raises(ConfigError, match="--choice-column is not for the files of classify"):
        read("classify", path, choice_columns=("n",))


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("a.conll", "a\tX\nb\n", "line 2 has 1 columns, the first has 2; a word or a tag is missing"),
        ("a.conllu", "1\ta\n", "line 1 has 2 columns; CoNLL-U has ten, separated by tabs$"),
    ],
)
def test_no_option_is_advised_that_prediction_lacks(tmp_path, name, content, fault):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=fault) as caught:
        read("tag", tmp_path / name)
    assert "--faults" not in str(caught.value)


def test_a_header_of_unknown_names_is_asked_for(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,words\n1,a b c d\n2,d e f g\n", encoding="utf-8")
    with pytest.raises(InputError, match="first line, id, words, a header"):
        read("classify", path)
    with pytest.warns(UserWarning, match="text from words"):
        assert [one.texts for one in read("classify", path, header=True)] == [("a b c d",), ("d e f g",)]
    assert [one.texts for one in read("classify", path, text_column="words")] == [("a b c d",), ("d e f g",)]


TOLD = {
    "a.csv": ("id;text\n1;a b\n", ["CSV with ';' between its columns, utf-8, with a header"]),
    "a.tsv": ("a b\tgood\n", ["TSV with tabs between its columns, utf-8, without a header"]),
    "a.jsonl": (lines({"id": 1, "text": "a b"}), ["JSON, utf-8"]),
    "a.txt": ("café\n".encode("latin-1"), ["an input a line, iso-8859-1"]),
    "tag a.conll": ("a\nb\n", ["a word a line, utf-8"]),
    "answer a.json": (json.dumps(SQUAD, indent=1), ["one JSON document, utf-8"]),
}


@pytest.mark.parametrize("name", TOLD)
def test_it_is_told_how_a_file_was_understood_before_a_row_is_read(name, tmp_path):
    (content, (form,)), (*task, file) = TOLD[name], name.split()
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    task, notes = (*task, "classify")[0], []
    how = {"task": task, "counts": range(1, 2), "on_note": notes.append}
    read_inputs(task_named(task).spec.reader.inputs, path, ReadingOptions(), **how)
    columns = {
        "a.csv": ["columns: text from text; not read: id"],
        "a.tsv": ["columns: text from column 0; not read: column 1"],
        "a.jsonl": ["columns: text from text; not read: id"],
    }
    assert notes == [f"{file}: {form}", *columns.get(file, [])]
