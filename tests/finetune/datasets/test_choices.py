import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.texts import CHOICES, ChoiceExample

read_choices = CHOICES.read


SWAG = """,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,v1,1,He sits. She,He sits.,She,gold,"stands up, slowly.",runs.,sleeps.,eats.,2
"""


def write(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path / name


def test_swag(tmp_path):
    choices = ("She stands up, slowly.", "She runs.", "She sleeps.", "She eats.")
    assert read_choices(write(tmp_path, "a.csv", SWAG)) == [ChoiceExample("He sits.", choices, 2)]


def test_lists_of_choices(tmp_path):
    lines = '{"context": "a", "choices": ["x", "y"], "label": 1}\n'
    lines += '{"context": "b", "choices": ["x", 3, "z"], "label": "C"}\n'
    expected = [ChoiceExample("a", ("x", "y"), 1), ChoiceExample("b", ("x", "3", "z"), 2)]
    assert read_choices(write(tmp_path, "a.jsonl", lines)) == expected
    pq.write_table(pa.table({"question": ["a"], "options": [["x", "y"]], "answer": ["B"]}), tmp_path / "a.parquet")
    assert read_choices(tmp_path / "a.parquet") == expected[:1]


def test_named_columns(tmp_path):
    path = write(tmp_path, "a.tsv", "q\tright\tgood\tbad\na\t0\tx\ty\n")
    columns = ReadingOptions(text_column="q", choice_columns=("good", 3), label_column=1)
    assert read_choices(path, columns) == [ChoiceExample("a", ("x", "y"), 0)]


def test_columns_are_counted_in_a_file_without_a_header(tmp_path):
    path = write(tmp_path, "a.tsv", "a\tx\ty\t0\nb\tx\ty\tB\n")
    counted = ReadingOptions(text_column=0, choice_columns=(1, 2), label_column=3)
    expected = [ChoiceExample("a", ("x", "y"), 0), ChoiceExample("b", ("x", "y"), 1)]
    assert read_choices(path, counted) == expected
    assert read_choices(path, replace(counted, header=False)) == expected
    assert read_choices(path, replace(counted, header=True)) == expected[1:]
    with pytest.raises(InputError, match="4 columns and no header; say which is which by number"):
        read_choices(path, ReadingOptions(text_column=0, label_column=3, header=False))
    # a label that is none tells a header, whatever the names
    assert read_choices(write(tmp_path, "b.tsv", "q\tone\ttwo\tgold\na\tx\ty\t0\n"), counted) == expected[:1]


@pytest.mark.parametrize("choices", [(1, 1), (1, 0), (1, 3)])
def test_a_column_has_one_use(tmp_path, choices):
    path = write(tmp_path, "a.tsv", "q\tright\tgood\tgold\na\tx\ty\t0\n")
    with pytest.raises(InputError, match="a column has one use; check --text-column, --choice-column"):
        read_choices(path, ReadingOptions(text_column=0, choice_columns=choices, label_column=3, header=True))


def test_choices_are_ordered_by_their_numbers(tmp_path):
    header = ",".join(f"choice{n}" for n in range(11))
    path = write(tmp_path, "a.csv", f"context,{header},label\nc,{','.join(f't{n}' for n in range(11))},10\n")
    assert read_choices(path)[0].choices[2] == "t2"
    assert read_choices(path)[0].choices[10] == "t10"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "context,choice0,choice1,label\na,x,y,2\n", "line 2: the label '2' is none of its 2 choices"),
        ("a.csv", "context,choice0,choice1,label\na,x,y,-1\n", "line 2: the label '-1'"),
        ("a.csv", "context,choice0,choice1,label\na,x,,0\n", "line 2 has an empty choice 1"),
        ("a.csv", "context,choice0,choice1,label\n", "a header and no example"),
        (
            "a.csv",
            "context,choice0,label\na,x,0\n",
            "no choices among context, choice0, label; call them choice0, choice1, ... or name each with --choice",
        ),
        (
            "a.csv",
            "context,choice0,choice1\na,x,y\n",
            "no label column among context, choice0, choice1; call it label, or name it with --label-column",
        ),
        (
            "a.csv",
            "choice0,choice1,label\nx,y,0\n",
            "no context column among choice0, choice1, label; call it context, or name it with --text-column",
        ),
        ("a.jsonl", '{"context": "a", "choices": ["x"], "label": 0}\n', "line 1 has fewer than two choices"),
        ("a.jsonl", '{"context": "a", "choices": "x", "label": 0}\n', "line 1 has fewer than two choices"),
        ("a.jsonl", '{"context": "", "choices": ["x", "y"], "label": 0}\n', "line 1 has an empty context"),
    ],
)
def test_bad_choices_are_refused_with_file_and_line(tmp_path, name, content, message):
    with pytest.raises(InputError, match=name) as caught:
        read_choices(write(tmp_path, name, content))
    assert message in str(caught.value)


def test_a_question_on_an_article_stands_before_every_choice(tmp_path):
    path = tmp_path / "race.jsonl"
    record = {"article": "It rained.", "question": "Why?", "options": ["Clouds.", "Sun."], "answer": "A"}
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    assert read_choices(path) == [ChoiceExample("It rained.", ("Why? Clouds.", "Why? Sun."), 0)]
