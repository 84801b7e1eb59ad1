import pytest

from bertsmith.errors import InputError
from bertsmith.finetune.readers import Columns, LabelledText, labels_of, read_labelled_tsv


def read(tmp_path, content, columns=None, **options):
    path = tmp_path / "data.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_labelled_tsv(path, columns, **options)


def test_text_and_label_without_a_header(tmp_path):
    examples = read(tmp_path, "a fine film\t1\nnot so fine\t0\n")
    assert examples == [LabelledText("a fine film", None, "1"), LabelledText("not so fine", None, "0")]


def test_a_header_is_found_by_its_names(tmp_path):
    assert read(tmp_path, "label\ttext_a\n1\t很好\n0\t不好\n") == [
        LabelledText("很好", None, "1"),
        LabelledText("不好", None, "0"),
    ]


def test_pairs(tmp_path):
    content = "sentence1\tsentence2\tlabel\nA man eats.\tHe eats.\tyes\n"
    assert read(tmp_path, content) == [LabelledText("A man eats.", "He eats.", "yes")]


def test_columns_by_name_and_by_number(tmp_path):
    content = "id\tquestion\tverdict\n7\tis it?\tno\n"
    assert read(tmp_path, content, Columns(text="question", label="verdict")) == [LabelledText("is it?", None, "no")]
    content = "7\tno\tis it?\n8\tyes\tit is\n"
    assert read(tmp_path, content, Columns(text=2, label=1))[1] == LabelledText("it is", None, "yes")


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
        ("text\tlabel\n", None, "a header and no example"),
        ("a\t1\nb\n", None, "line 2 has 1 columns, the first has 2"),
        ("a\t1\nb\t1\tc\n", None, "line 2 has 3 columns"),
        ("a\t1\n\t0\n", None, "line 2 has an empty text"),
        ("a\t1\nb\t \n", None, "line 2 has an empty label"),
        ("just text\nmore\n", None, "no label column"),
        ("a\t1\n", Columns(text="review"), "no column 'review'"),
        ("a\t1\n", Columns(label=5), "no column 5"),
        (b"caf\xc3\xa9\t1\n\xff\xfe\x00broken\t0\n", None, "data.tsv"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path, content, columns, message):
    with pytest.raises(InputError, match="data.tsv") as caught:
        read(tmp_path, content, columns)
    assert message in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_labelled_tsv(tmp_path / "nowhere.tsv")


def test_labels_are_in_a_stable_order():
    def examples(*labels):
        return [LabelledText("x", None, label) for label in labels]

    assert labels_of(examples("10", "9", "-1")) == ["-1", "9", "10"]
    assert labels_of(examples("②", "①")) == ["①", "②"]
    assert labels_of(examples("good", "bad", "good")) == ["bad", "good"]
    with pytest.raises(InputError, match="one class only"):
        labels_of(examples("a", "a"))


def test_the_shared_task_files_are_read(shared_data):
    sst2 = read_labelled_tsv(next((shared_data / "tasks" / "sst2").glob("*dev*")))
    assert len(sst2) == 872
    assert labels_of(sst2) == ["0", "1"]
    chinese = read_labelled_tsv(next((shared_data / "tasks" / "chnsenticorp").glob("*dev*")))
    assert len(chinese) == 1200
    assert labels_of(chinese) == ["0", "1"]
