"""Labels as people have them: separators, encodings, headers of their own, lists of objects, a folder a class."""

import json

import pytest

from bertsmith.data.reading import lines, sources
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.questions import QUESTIONS
from bertsmith.finetune.datasets.related import RELATED
from bertsmith.finetune.datasets.tagged import TAGGED
from bertsmith.finetune.datasets.texts import CHOICES, LABELLED, MULTILABELLED, RANKINGS, SCORED, LabelledText

PAIRS = [("terrible waste of money 3", "negativ ☹"), ("superb, would buy again", "Very Positive")] * 6


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def table(separator, names=("Review Text", "Sentiment Label"), rows=PAIRS):
    quoted = [[f'"{cell}"' if separator in cell else cell for cell in row] for row in [names, *rows]]
    return "".join(separator.join(row) + "\n" for row in quoted)


def test_columns_are_found_by_the_words_of_their_names(tmp_path):
    path = write(tmp_path / "a.csv", "\ufeff" + table(";"))
    with pytest.warns(UserWarning, match="reads text from Review Text, label from Sentiment Label"):
        assert [(one.text, one.label) for one in LABELLED.read(path)] == PAIRS
    assert LABELLED.read(path, ReadingOptions(text_column="Review Text", label_column=("Sentiment Label",)))


def test_columns_are_found_by_what_is_in_them(tmp_path):
    rows = [(f"k{n}", f"das war sehr schön, Nummer {n}", "gut" if n % 3 else "schlecht") for n in range(12)]
    path = write(tmp_path / "a.csv", table(",", names=("Kennung", "Kommentar", "Urteil"), rows=rows))
    with pytest.warns(UserWarning, match="reads text from Kommentar, label from Urteil"):
        assert [(one.text, one.label) for one in LABELLED.read(path)] == [row[1:] for row in rows]
    numbers = [{"satz": text, "note": str(n / 2)} for n, (_, text, _) in enumerate(rows)]
    with pytest.warns(UserWarning, match="score from note"):
        assert [one.score for one in SCORED.read(numbers)] == [n / 2 for n in range(12)]
    two = [{"Kommentar": text, "Antwort": f"auch {text}", "Urteil": label} for _, text, label in rows]
    with pytest.raises(InputError, match="Kommentar, Antwort may all be the text; say which with --text-column"):
        LABELLED.read(two)
    with pytest.raises(InputError, match="no text column among a, b"):
        LABELLED.read([{"a": 1, "b": 2}] * 9)


def test_lists_of_objects_are_read(tmp_path):
    rows = [{"text": text, "label": label} for text, label in PAIRS]
    for content in (json.dumps(rows), json.dumps(rows, indent=1), json.dumps({"version": 1, "data": rows}, indent=1)):
        found = LABELLED.read(write(tmp_path / "a.json", content))
        assert [(one.text, one.label) for one in found] == PAIRS
    assert found[1].place.endswith("a.json: item 1 (from 0)")
    for content, message in (
        ('[{"text": "a"},\n{"text": ]\n', "line 2 is not valid JSON"),
        ('[{"text": "a"}, 3]', "item 1 .* is no JSON object"),
        ('{\n"a": [], "b": []}', "holds 2 lists of rows"),
    ):
        with pytest.raises(InputError, match=message):
            LABELLED.read(write(tmp_path / "b.json", content))


SQUAD = {
    "version": "1.1",
    "data": [
        {
            "paragraphs": [
                {
                    "context": "a b ☹",
                    "qas": [
                        {"id": str(n), "question": "what ?", "answers": [{"text": "b", "answer_start": 2}]}
                        for n in range(20)
                    ],
                }
            ]
        }
    ],
}
LISTS = [
    (LABELLED, [{"text": text, "label": label} for text, label in PAIRS], {}),
    (RELATED, [{"query": f"what {n} ?", "positive": f"that {n} ☹"} for n in range(20)], {}),
    (RELATED, [{"query": f"what {n} ?", "positive": f"that {n} ☹"} for n in range(20)], {"indent": 1}),
    (QUESTIONS, SQUAD, {}),
    (RELATED, SQUAD, {}),
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(("reader", "document", "how"), LISTS)
def test_a_whole_document_may_be_one_line_longer_than_a_row(tmp_path, monkeypatch, reader, document, how, encoding):
    monkeypatch.setattr(lines, "MAX_LINE_LENGTH", 200)
    monkeypatch.setattr(sources, "CHUNK_SIZE", 128)
    text = json.dumps(document, ensure_ascii=False, **how)
    assert len(text) > 3 * 200
    found = reader.read(write(tmp_path / "a.json", text, encoding))
    assert len(found) == (20 if document is SQUAD else len(document))
    rows = "".join(json.dumps({"text": "a" * (300 if n == 3 else 3), "label": "x"}) + "\n" for n in range(4))
    with pytest.raises(InputError, match=r"b\.json: line 4 is longer than 200 characters"):
        LABELLED.read(write(tmp_path / "b.json", rows))


def test_a_folder_for_each_class_is_read(tmp_path):
    for name, text in (("pos/1.txt", "lovely\n"), ("pos/2.txt", "warm"), ("neg/1.txt", "dull"), ("unsup/1.txt", "?")):
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).write_text(text)
    (tmp_path / "train" / "neg" / "b.png").write_bytes(b"\x00")
    (tmp_path / "train" / "urls.txt").write_text("x")
    (tmp_path / "train" / "pos" / "circle").symlink_to(tmp_path / "train")
    (tmp_path / "train" / "pos" / "gone.txt").symlink_to(tmp_path / "nowhere")
    left_out = "neg/b.png, pos/gone.txt, unsup/1.txt, urls.txt"
    with pytest.warns(UserWarning, match=f"left out 4 files that are no text of a class: {left_out}"):
        found = LABELLED.read(tmp_path / "train")
    assert found == [LabelledText("dull", None, "neg"), *(LabelledText(one, None, "pos") for one in ("lovely", "warm"))]
    (tmp_path / "train" / "neg" / "2.txt").write_text(" \n")
    with pytest.raises(InputError, match=r"neg/2\.txt has an empty text"):
        LABELLED.read(tmp_path / "train")
    (tmp_path / "train" / "neg" / "2.txt").unlink()
    with pytest.raises(InputError, match=r"a folder of \.txt files for each of two classes is read"):
        LABELLED.read(tmp_path)


@pytest.mark.filterwarnings("ignore:.*left out 2 files")
@pytest.mark.parametrize(
    ("reader", "name", "good", "bad", "fault"),
    [
        (LABELLED, "a.tsv", "a\tx\nb\ty\n", "\tx\n", "has an empty text"),
        (LABELLED, "a.csv", "text,label\na,x\nb,y\n", "c\n", "has 1 columns, the first has 2"),
        (MULTILABELLED, "a.tsv", "text\tlabels\na\tx,y\nb\ty\n", "c\tx,,y\n", "has an empty label"),
        (SCORED, "a.tsv", "a\t1\nb\t2\n", "c\tmuch\n", "not a finite number"),
        (CHOICES, "a.jsonl", '{"context": "a", "choices": ["b", "c"], "label": 1}\n' * 2,
         '{"context": "a"}\n', "empty choice"),
        (RELATED, "a.tsv", "query\tpositive\na\tb\nc\td\n", "\tb\n", "has an empty query"),
        (RANKINGS, "a.tsv", "query\ttext\tlabel\na\tb\t1\na\tc\t0\n", "a\td\t7\n", r"not in \[0, 1\]"),
        (TAGGED, "a.jsonl", '{"tokens": ["a"], "tags": ["O"]}\n' * 2, '{"tokens": ["a"], "tags": []}\n', "0 tags"),
        (TAGGED, "a.conllu", ("1\ta\ta\tNOUN" + "\t_" * 6 + "\n\n") * 2, "1\tb\n", "2 columns; CoNLL-U has ten"),
        (TAGGED, "a.conllu", ("1\ta\ta\tNOUN" + "\t_" * 6 + "\n\n") * 2, "1\tb" + "\t_" * 8 + "\n", "has no upos"),
        (QUESTIONS, "a.jsonl", '{"question": "q", "context": "c d", "answers": []}\n' * 2,
         '{"question": "", "context": "c d", "answers": []}\n', "empty question"),
        (QUESTIONS, "a.jsonl", '{"question": "q", "context": "c d", "answers": []}\n' * 2,
         '{"question": "q", "context": "c d", "answers": {"text": ["c"], "answer_start": []}}\n', "of the same length"),
    ],
)  # fmt: skip
def test_rows_with_faults_are_refused_or_left_out_counted_and_listed(tmp_path, reader, name, good, bad, fault):
    path = write(tmp_path / name, good + bad)
    with pytest.raises(InputError, match=fault):
        reader.read(path)
    with pytest.warns(UserWarning, match=rf"left out 1 \w+.*(line|row) {(good + bad).count(chr(10))}.*{fault}"):
        assert len(reader.read(path, ReadingOptions(faults="skip"))) == 2
    with pytest.raises(InputError, match="; or leave such rows out with --faults skip"):
        reader.read(path)
    with pytest.raises(ConfigError, match="faults 'drop' is unknown; use refuse, skip"):
        ReadingOptions(faults="drop")


def test_of_many_faults_ten_are_listed_and_the_others_counted(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tx\nb\ty\n" + "\tx\n" * 12)
    with pytest.warns(UserWarning, match="left out 12 rows: line 3 has an empty text · ") as caught:
        assert len(LABELLED.read(path, ReadingOptions(faults="skip"))) == 2
    said = str(caught[0].message)
    assert said.count("has an empty text") == 10
    assert said.endswith("line 12 has an empty text · and 2 more")


def test_lists_in_cells_are_read_or_refused(tmp_path):
    cells = ["\"['sport', 'news']\"", "['food']", '"[""it\'s"", \'two words\']"', "[]", r"['a' 'b\\n' 'c\x41' 'd\e']"]
    path = write(tmp_path / "a.csv", "text,labels\n" + "".join(f"some text,{cell}\n" for cell in cells))
    found = [one.labels for one in MULTILABELLED.read(path)]
    assert found == [("sport", "news"), ("food",), ("it's", "two words"), (), ("a", r"b\n", "cA", "de")]
    for cell in ("[1 0]", "[1. 0.]", '"[1, 0, 0]"'):
        rows = f"some text,{cell}\n" * 2
        with pytest.raises(InputError, match="line 2.*labels are given by name"):
            MULTILABELLED.read(write(tmp_path / "b.csv", "text,labels\n" + rows))
    with pytest.raises(InputError, match="line 2: the label .* looks like a list and is none"):
        MULTILABELLED.read(write(tmp_path / "c.csv", 'text,labels\nsome text,"[sport, news]"\n'))
    with pytest.raises(InputError, match=r"line 2: the label .* is a list; .*multilabel"):
        LABELLED.read(path, ReadingOptions(label_column=("labels",)))
    # 人写的括号不是列表
    plain = write(tmp_path / "d.csv", "text,label\na,(other)\nb,[x]\n")
    assert [one.label for one in LABELLED.read(plain)] == ["(other)", "[x]"]


def test_a_column_a_label_is_read(tmp_path):
    rows = ["0000,my cat sings,0,0,1", "0001,fool click here,1,1,0", "0002,thanks for the help,0,0,0"]
    path = write(tmp_path / "z.csv", "\ufeffid,comment_text,rude,spam,offtopic\n" + "\n".join(rows * 3) + "\n")
    how = {"text_column": "comment_text", "label_column": ("rude", "spam", "offtopic")}
    found = MULTILABELLED.read(path, ReadingOptions(**how))
    assert [one.labels for one in found[:3]] == [("offtopic",), ("rude", "spam"), ()]
    with pytest.warns(UserWarning, match="text from comment_text, label from rude, spam, offtopic"):
        assert MULTILABELLED.read(path) == found
    with pytest.raises(ConfigError, match="--label-column is given 3 times, and there is one such column"):
        LABELLED.read(path, ReadingOptions(**how))
    wrong = write(tmp_path / "a.csv", "text,a,b\nx,1,0\ny,2,0\n")
    with pytest.raises(InputError, match="line 3: the label a is '2', not 0 or 1"):
        MULTILABELLED.read(wrong, ReadingOptions(label_column=("a", "b")))


def test_choices_are_found_by_their_own_names():
    named = {"question_stem": "q", "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}, "answerKey": "3"}
    listed = {"question": "q", "choices": [{"label": "A", "text": "a"}, {"label": "B", "text": "b"}], "answerKey": "B"}
    told = {"context": "q", "endings": ["left", "right"], "answer": "right"}
    assert [CHOICES.read([row])[0].label for row in (named, listed, told)] == [2, 1, 1]
    with pytest.raises(InputError, match="the label '4' is none of its 3 choices, 1, 2, 3"):
        CHOICES.read([named | {"answerKey": "4"}])


def test_dates_are_no_classes_and_a_row_counter_is_no_score(tmp_path):
    """A spreadsheet as a shop exports it: number, comment, verdict, day."""
    rows = [(n, f"a long comment of customer {n}", "yes" if n % 3 else "no", f"{1 + n % 4}.5.2024") for n in range(20)]
    path = write(
        tmp_path / "a.csv", "Nr,Kommentar,Urteil,Tag\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    )
    with pytest.warns(UserWarning, match="reads text from Kommentar, label from Urteil"):
        assert {one.label for one in LABELLED.read(path)} == {"yes", "no"}
    with pytest.raises(InputError, match="no score column among Nr, Kommentar, Urteil, Tag"):
        SCORED.read(path)
