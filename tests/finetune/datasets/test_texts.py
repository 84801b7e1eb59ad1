import csv
import gzip
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.texts import (
    LABELLED,
    MULTILABELLED,
    SCORED,
    LabelledText,
    MultiLabelledText,
    ScoredText,
    labels_of,
)

read_labelled, read_multilabelled, read_scored = LABELLED.read, MULTILABELLED.read, SCORED.read


def columns(header=None, **roles):
    return ReadingOptions(header=header, **{f"{role}_column": column for role, column in roles.items()})


def read(tmp_path, content, options=None):
    path = tmp_path / "data.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_labelled(path, options)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("index\tquestion\tsentence\tlabel", "7\tA\tB\tyes"),  # QNLI
        ("id\tqid1\tqid2\tquestion1\tquestion2\tlabel", "7\t1\t2\tA\tB\tyes"),  # QQP
        ("index\tsentence1\tsentence2\tlabel", "7\tA\tB\tyes"),  # RTE
        ("premise\thypo\tlabel", "A\tB\tyes"),  # XNLI's training file
        ("premise\thypothesis\tlabel", "A\tB\tyes"),
        ("question\tpassage\tlabel", "A\tB\tyes"),  # BoolQ
        ("label\ttext_a\ttext_b", "yes\tA\tB"),
    ],
)
def test_the_pairs_of_the_field_are_known(tmp_path, header, row):
    assert read(tmp_path, f"{header}\n{row}\n") == [LabelledText("A", "B", "yes")]


def test_of_two_columns_one_told_leaves_the_other(tmp_path):
    for told in (columns(label=0), columns(text=1), columns(text=1, label=0)):
        assert read(tmp_path, "ham\tGo until\n", told) == [LabelledText("Go until", None, "ham")]


def test_a_told_column_is_no_other(tmp_path):
    content = "Question\tSentence\tReview\nA\tB\tC\n"
    assert read(tmp_path, content, columns(pair="Sentence", label="Review")) == [LabelledText("A", "B", "C")]


def test_a_file_that_names_its_columns_is_told_no_header(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="its form names the columns"):
        read_labelled(path, columns(header=True))


def test_an_example_knows_its_place_and_is_no_other_for_it(tmp_path):
    (example,) = read(tmp_path, "text\tlabel\n\nis it?\tyes\n")
    assert example.at == f"{tmp_path / 'data.tsv'}: line 3: "
    assert example == LabelledText("is it?", None, "yes")
    assert repr(example) == repr(LabelledText("is it?", None, "yes"))


def test_columns_by_name_and_by_number(tmp_path):
    content = "id\tquestion\tverdict\n7\tis it?\tno\n"
    assert read(tmp_path, content, columns(text="question", label="verdict")) == [LabelledText("is it?", None, "no")]
    content = "7\tno\tis it?\n8\tyes\tit is\n"
    assert read(tmp_path, content, columns(text=2, label=1))[1] == LabelledText("it is", None, "yes")


def test_quotes_and_windows_line_ends_are_just_text(tmp_path):
    content = b'\xef\xbb\xbfa "quoted" word\tx\r\n\r\nit\'s "open\ty\r\n'
    assert [e.text for e in read(tmp_path, content)] == ['a "quoted" word', "it's \"open"]


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path):
    assert len(read(tmp_path, "one\u2028two\tx\nthree\ty\n")) == 2


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", None, "holds no line"),
        ("\n \n", None, "holds no line"),
        ("is it?\tit is\tyes\n", None, "3 columns and no header; say which is which by number"),
        (
            "is it?\tit is\tyes\n",
            columns(label=2),
            "3 columns and no header; say which is which by number",
        ),
        ("text\tlabel\na\tx\n", columns(text="label"), "a column has one use"),
        (
            "text\tpremise\thypothesis\tlabel\na\tb\tc\tx\n",
            columns(pair="hypothesis"),
            "text, premise may all be",
        ),
        ("comment\tcategory\na\tx\nb\ty\nc\tx\n", None, "line 1: is it a header? no other line has the label"),
        ("评论内容\t情感 标签 名\na\tx\nb\ty\nc\tx\n", None, "line 1: is it a header?"),
        ("0\t1\na\tx\nb\ty\n", None, "line 1 only counts its columns; is it a header? say --header or --no-header"),
        (
            "0\t1\t2\na\tb\tx\n",
            columns(text=0, pair=1, label=2),
            "line 1 only counts its columns",
        ),
        ("text\tlabel\tlabel\na\tx\t1\n", None, "2 columns are called 'label'; choose one by number, counted from 0"),
        ("text\ttext\tlabel\na\tb\tx\n", None, "2 columns are called 'text'"),
        ("premise\thypothesis\thypothesis\tlabel\na\tb\tc\tx\n", None, "2 columns are called 'hypothesis'"),
        ("a\ta\ty\nb\tc\tx\n", columns(text="a", label="y"), "2 columns are called 'a'"),
        ("review\tquestion\tlabel\na\tb\tx\n", None, "columns review, question may all be texts"),
        ("text\tlabel\na\tx\n\t\n", None, "line 3 has an empty text"),
        (
            "text\tlabel\na\tx\n",
            columns(label="label", header=False),
            "without a header no column has a name",
        ),
        ("text\tlabel\n", None, "a header and no example"),
        ("a\t1\nb\n", None, "line 2 has 1 columns, the first has 2"),
        ("a\t1\nb\t1\tc\n", None, "line 2 has 3 columns"),
        ("a\t1\n\t0\n", None, "line 2 has an empty text"),
        ("a\t1\nb\t \n", None, "line 2 has an empty label"),
        ("just text\nmore\n", None, "no label column"),
        ("a\t1\n", columns(text="review"), "no column 'review'"),
        ("a\t1\n", columns(label=5), "no column 5"),
        (b"caf\xc3\xa9\t1\n\xff\xfe\x00broken\t0\n", None, "data.tsv"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path, content, columns, message):
    with pytest.raises(InputError, match="data.tsv") as caught:
        read(tmp_path, content, columns)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("read_file", "content", "options", "hint"),
    [
        (read_labelled, "1\tgood soup and warm bread\tgood\n", None, "--text-column 1 --label-column 2"),
        (read_labelled, "1\tis it?\tyes\n", columns(label=2), "--text-column 1"),
        (
            read_labelled,
            "yes\tit is so\t7\nno\tit is not\t8\nyes\tso it is\t9\n",
            None,
            "--label-column 0 --text-column 1",
        ),
        (
            read_labelled,
            "1\tthe soup was hot\tthe soup was cold\tno\n",
            None,
            "--text-column 1 --pair-column 2 --label-column 3",
        ),
        (
            read_labelled,
            "".join(f"{n}\tgood\tsoup {n} and warm bread\t{'no' if n % 3 else 'yes'}\n" for n in range(12)),
            columns(time=1),
            "--text-column 2 --label-column 3",
        ),
        (
            read_scored,
            "".join(f"{n}\tsoup {n} and warm bread\t{n * n % 7}\n" for n in range(12)),
            None,
            "--text-column 1 --label-column 2",
        ),
    ],
)
def test_the_hint_by_number_never_learns_from_the_id(tmp_path, read_file, content, options, hint):
    path = tmp_path / "data.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=rf"such as {hint}, or --header"):
        read_file(path, options)


def test_what_looks_like_a_header_can_be_told(tmp_path):
    counted = "0\t1\na\tx\nb\ty\n"
    assert [e.text for e in read(tmp_path, counted, columns(header=True, text=0, label=1))] == [
        "a",
        "b",
    ]
    assert [e.text for e in read(tmp_path, counted, columns(header=False))] == ["0", "a", "b"]
    twice = "text\ttext\tlabel\na\tb\tx\n"
    assert [e.text for e in read(tmp_path, twice, columns(header=True, text=1))] == ["b"]
    # neither a lone grade nor a sentence looks like a name
    assert len(read(tmp_path, "so good!\t5\na\t1\nb\t1\n")) == 3
    assert len(read(tmp_path, "I would not see it twice\tbad\na\tgood\nb\tgood\n")) == 3


def test_numbers_are_no_header_and_no_score_in_silence(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("0,1\ngood,3.5\nbad,1.0\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 1 only counts its columns"):
        read_scored(path)
    assert [example.score for example in read_scored(path, columns(header=True, text=0, label=1))] == [3.5, 1.0]


def test_labels_are_in_a_stable_order():
    def examples(*labels):
        return [LabelledText("x", None, label) for label in labels]

    assert labels_of(examples("10", "9", "-1")) == ["-1", "9", "10"]
    assert labels_of(examples("②", "①")) == ["①", "②"]
    assert labels_of(examples("good", "bad", "good")) == ["bad", "good"]
    with pytest.raises(InputError, match="one class only"):
        labels_of(examples("a", "a"))


AWKWARD = [
    {"text": 'a "quoted" word, and a comma', "pair": "two\nlines", "label": "yes"},
    {"text": "很好", "pair": "tab\there", "label": "no"},
    {"text": "one\u2028two", "pair": "x", "label": "yes"},
]


def test_every_form_holds_the_same_examples(tmp_path):
    """The writers are the standard library's and pyarrow's, so the forms are the ones others write."""
    with (tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["text", "pair", "label"])
        writer.writeheader()
        writer.writerows(AWKWARD)
    lines = "".join(json.dumps(record) + "\n" for record in AWKWARD)
    (tmp_path / "b.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "b.json").write_text(lines, encoding="utf-8")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    pq.write_table(pa.Table.from_pylist(AWKWARD), tmp_path / "e.parquet")
    expected = [LabelledText(**record) for record in AWKWARD]
    for name in ("a.csv", "b.jsonl", "b.json", "c.jsonl.gz", "d.csv.gz", "e.parquet"):
        assert read_labelled(tmp_path / name) == expected, name
        assert read_labelled(tmp_path / name, columns(text=1, label=2))[1].text == "tab\there", name


def test_a_header_can_be_told_or_denied(tmp_path):
    content = "utterance\tverdict\nis it?\tno\n"
    assert len(read(tmp_path, content)) == 2
    assert read(tmp_path, content, columns(header=True, text=0, label=1)) == [LabelledText("is it?", None, "no")]
    assert len(read(tmp_path, "text\tlabel\na\tb\n", columns(header=False))) == 2


def write(tmp_path, name, content):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / name


def test_sets_of_labels(tmp_path):
    expected = [MultiLabelledText("a", None, ("x", "y")), MultiLabelledText("b", None, ())]
    assert read_multilabelled(write(tmp_path, "a.tsv", "text\tlabels\na\tx, y,x\nb\t\n")) == expected
    assert (
        read_multilabelled(write(tmp_path, "a.csv", "text,labels\na,x|y\nb,\n"), ReadingOptions(separator="|"))
        == expected
    )
    lines = '{"text": "a", "labels": ["x", "y"]}\n{"text": "b", "labels": []}\n'
    assert read_multilabelled(write(tmp_path, "a.jsonl", lines)) == expected
    pq.write_table(pa.table({"text": ["a", "b"], "labels": [["x", "y"], None]}), tmp_path / "a.parquet")
    assert read_multilabelled(tmp_path / "a.parquet") == expected
    assert labels_of(expected) == ["x", "y"]
    with pytest.raises(InputError, match="no text of the training file has a label"):
        labels_of(expected[1:])


def test_numbers(tmp_path):
    path = write(tmp_path, "a.csv", "sentence1,sentence2,score\na,b,3.5\nc,d,-1e-2\n")
    assert read_scored(path) == [ScoredText("a", "b", 3.5), ScoredText("c", "d", -0.01)]
    assert read_scored(write(tmp_path, "a.jsonl", '{"text": "a", "score": 2}\n')) == [ScoredText("a", None, 2.0)]
    pq.write_table(pa.table({"text": ["a"], "score": [Decimal("3.50")]}), tmp_path / "a.parquet")
    assert read_scored(tmp_path / "a.parquet") == [ScoredText("a", None, 3.5)]


def test_pairs_on_which_annotators_did_not_agree_are_no_class(tmp_path):
    """SNLI and MNLI label them `-`; elsewhere that may be a class like another."""
    rows = "premise\thypothesis\tlabel\na\tb\tentailment\na\tc\t-\na\td\t-\n"
    with pytest.raises(InputError, match=r"line 3: the label '-' means .* remove such rows \(2 in all\)"):
        read_labelled(write(tmp_path, "a.tsv", rows))
    assert len(read_labelled(write(tmp_path, "a.tsv", "text\tlabel\na\t+\nb\t-\n"))) == 2


@pytest.mark.parametrize(
    ("reader", "name", "content", "message"),
    [
        (read_labelled, "a.csv", 'text,label\na,1\n"b,0\nc,1\n', "line 3 is not valid CSV"),
        (read_labelled, "a.csv", 'text,label\n"x\ny",1\na,1,2\n', "line 4 has 3 columns, the first has 2"),
        (read_labelled, "a.csv", "text,label\n ,1\n", "line 2 has an empty text"),
        (read_labelled, "a.csv", "", "holds no line"),
        (read_labelled, "a.csv", "text,label\na\rb,1\n", "line 2 is not valid CSV (a carriage return in a cell"),
        (read_labelled, "a.tsv", "text\tverdict\ra\t1\rb\t2\r", "no label column among text, 'verdict\\ra'"),
        (read_labelled, "a.tsv", "text\tlabel\na\t1\t2\n", "line 2 has 3 columns, the first has 2"),
        (read_labelled, "a.tsv.gz", gzip.compress(b"a\t1\n" * 99, mtime=0)[:-9], "damaged or truncated gzip"),
        (read_labelled, "a.jsonl", '{"text": "a", "label": 1}\n{"text": \n', "line 2 is not valid JSON"),
        (read_labelled, "a.jsonl", "[" * 100_000, "line 1 is not valid JSON"),
        (read_labelled, "a.jsonl", '{"text": "a", "label": 1}\n\n["a", 1]\n', "line 3 is no JSON object"),
        (read_labelled, "a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', "line 2 has an empty label"),
        (read_labelled, "a.jsonl", '{"text": {"en": "a"}, "label": 1}\n', "line 1: the text is a dict, not text"),
        (read_labelled, "a.jsonl", '{"text": "a\\ud800", "label": 1}\n', "line 1 holds half of a surrogate pair"),
        (read_labelled, "a.jsonl", '{"body": "a", "label": 1}\n', "no text column among body, label"),
        (read_labelled, "a.jsonl", "\n", "holds no line"),
        (read_labelled, "a.parquet", b"PAR1 not really", "not a readable Parquet file"),
        (read_multilabelled, "a.tsv", "text\tlabels\na\tx,,y\n", "line 2 has an empty label"),
        (read_multilabelled, "a.jsonl", '{"text": "a", "labels": [0, 1, 1]}\n', "line 1: the same label twice; labels"),
        (read_multilabelled, "a.jsonl", '{"text": "a", "labels": ["x", "x"]}\n', "line 1: the same label twice"),
        (read_multilabelled, "a.tsv", "text\tlabels\na\t0,1,0\n", "line 2: the same label twice"),
        (
            read_multilabelled,
            "a.jsonl",
            '{"text": "a", "labels": [0, 1]}\n{"text": "b", "labels": [1, 0]}\n',
            "line 1: labels are given by name",
        ),
        (read_scored, "a.tsv", "text\tscore\na\t1\nb\thigh\n", "line 3: the score 'high' is not a finite number"),
        (read_scored, "a.tsv", "text\tscore\na\t1\nb\t1e39\n", "line 3: the score 1e39 does not fit 32 bits"),
        (read_scored, "a.tsv", "text\tscore\na\t1\nb\t-1e-39\n", "line 3: the score -1e-39 does not fit"),
        (read_scored, "a.tsv", "text\tscore\na\t1e999\n", "line 2: the score '1e999'"),
        (read_scored, "a.tsv", "text\tscore\na\tnan\n", "line 2: the score 'nan'"),
    ],
)
def test_every_form_says_what_is_wrong_and_where(tmp_path, reader, name, content, message):
    with pytest.raises(InputError, match=name) as caught:
        reader(write(tmp_path, name, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_cell_of_parquet_is_named_by_its_row(tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"], "label": [1.0, None]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="a.parquet: row 2 has an empty label"):
        read_labelled(tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": [b"a"], "label": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="row 1: the text is a bytes, not text"):
        read_labelled(tmp_path / "a.parquet")


def test_the_shared_files_hold_what_a_plain_split_finds(shared_data):
    for path in sorted((shared_data / "tasks").glob("*/*.tsv")):
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        if path.parent.name == "chnsenticorp":
            expected = [(row[1].strip(), row[0]) for row in rows[1:]]
        else:
            expected = [(row[0].strip(), row[1]) for row in rows]
        assert [(example.text, example.label) for example in read_labelled(path)] == expected


def test_the_first_record_may_lack_what_may_be_empty(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "labels": ["x"]}\n', encoding="utf-8")
    assert read_multilabelled(path) == [MultiLabelledText("a", None, ()), MultiLabelledText("b", None, ("x",))]


def test_a_header_of_unknown_names_is_no_text_with_labels(tmp_path):
    path = tmp_path / "data.tsv"
    path.write_text("user comment\ttags\na\tx\nb\ty,x\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 1: is it a header"):
        read_multilabelled(path)
    assert len(read_multilabelled(path, columns(header=True, text=0, label=1))) == 2


def test_rows_without_content_are_named_and_blank_lines_are_not(tmp_path):
    assert len(read(tmp_path, "text\tlabel\na\tx\n\u3000\n")) == 1
    path = tmp_path / "data.csv"
    path.write_text("text,label\na,x\n\n,\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 4 has an empty text"):
        read_labelled(path)


def test_a_cell_may_be_a_long_article(tmp_path):
    long = "word " * 40_000
    (tmp_path / "a.csv").write_text(f'text,label\n"{long}",x\nshort,y\n', encoding="utf-8")
    assert [len(example.text) > 100_000 for example in read_labelled(tmp_path / "a.csv")] == [True, False]


def test_parquet_with_other_bytes_than_utf8_is_named(tmp_path):
    texts = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    pq.write_table(pa.table({"text": texts, "label": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="a.parquet: text after row 0 is not UTF-8"):
        read_labelled(tmp_path / "a.parquet")


def test_parquet_that_was_packed_once_more_is_told_so(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "label": ["x"]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    with pytest.raises(InputError, match="unpack it first"):
        read_labelled(tmp_path / "b.parquet.gz")
