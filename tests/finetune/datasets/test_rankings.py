import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.texts import RANKINGS, RankingExample

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
        assert RANKINGS.read(tmp_path / name) == GOLDEN, name


def test_columns_are_named_or_counted(tmp_path):
    (tmp_path / "a.tsv").write_text("id\tb\ta\tgrade\n7\tthe man\twho eats?\t1\n8\ta book, say\twho eats?\t0.25\n")
    assert (
        RANKINGS.read(tmp_path / "a.tsv", ReadingOptions(text_column="a", pair_column="b", label_column="grade"))
        == GOLDEN
    )
    (tmp_path / "b.tsv").write_text("7\tthe man\twho eats?\t1\n8\ta book, say\twho eats?\t0.25\n")
    assert RANKINGS.read(tmp_path / "b.tsv", ReadingOptions(text_column=2, pair_column=1, label_column=3)) == GOLDEN
    (tmp_path / "c.tsv").write_text("query\ttext\t1\nwho\tman\t0\n")
    assert len(RANKINGS.read(tmp_path / "c.tsv", ReadingOptions(header=False))) == 2


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
        RANKINGS.read(tmp_path / "a.tsv")


def test_a_missing_file_and_column_are_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        RANKINGS.read(tmp_path / "a.tsv")
    (tmp_path / "a.tsv").write_text("query\ttext\tlabel\nq\ta\t1\n")
    with pytest.raises(InputError, match="no column 'answer'"):
        RANKINGS.read(tmp_path / "a.tsv", ReadingOptions(pair_column="answer"))
