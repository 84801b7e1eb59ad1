"""`look` says what the readers of `finetune` and `corpus` make of a file."""

import gzip
import json
import sys
import types
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertsmith
from bertsmith.data.reading import lines, sources
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import InputForms, Reader, ReadingOptions
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.languages import languages_in, scripts_in
from bertsmith.finetune.look import look_at
from bertsmith.finetune.tasks import task_named
from bertsmith.tokenizer import learn_tokenizer
from spreadsheets import write_spreadsheet
from typed_command import typed

HEAD = "id;Review Text;Sentiment Label\n"
ROWS = [f"{n};a long review of number {n};{'good' if n % 3 else 'bad'}\n" for n in range(30)]


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(
        HEAD + "".join(ROWS) + "31;a long review of number 2;bad\n32;alone in its class;ugly\n33;;bad\n",
        encoding="utf-16",
    )
    return path


def test_a_table_is_understood_column_by_column(reviews):
    found = bertsmith.look(reviews)
    assert found.form == "CSV with ';' between its columns, utf-16, with a header"
    assert (found.task, found.rows) == ("classify", 32)
    assert found.columns == {"id": "", "Review Text": "text", "Sentiment Label": "label"}
    assert found.labels == {"good": 20, "bad": 11, "ugly": 1}
    assert (found.repeated, found.contradictions) == (1, 1)
    assert (found.lengths.unit, found.lengths.half, found.lengths.longest) == ("words", 6, 6)
    assert found.scripts == {"Latin": 1.0}
    assert any("left out 1 rows: line 34 has an empty text" in note for note in found.notes)
    assert "r.csv: columns found by names and content" in found.notes
    with pytest.raises(InputError, match="line 34 has an empty text"):
        bertsmith.look(reviews, faults="refuse")


def test_the_command_prints_lines_or_json(reviews, tmp_path, capsys, tiny_model):
    for name, rows in (("d.csv", ROWS[:12]), ("t.csv", [*ROWS[8:20], "40;a review like no other;good\n"])):
        (tmp_path / name).write_text(HEAD + "".join(rows))
    others = ("--dev", tmp_path / "d.csv", "--test", tmp_path / "t.csv")
    lines = typed(capsys, "look", reviews, "--model", tiny_model, *others).splitlines()
    assert lines[0] == "r.csv: CSV with ';' between its columns, utf-16, with a header; 32 rows for classify"
    own = "text from Review Text, label from Sentiment Label"
    # 每个文件的列名只说一次
    assert [line for line in lines if "Review Text" in line] == [
        f"columns: {own}; not read: id",
        *(f"{name}: reads {own}: found by names and content" for name in ("d.csv", "t.csv")),
    ]
    assert "3 labels: good 20, bad 11, ugly 1; once, which is too few to learn: ugly" in lines
    assert [line for line in lines if "as well" in line] == [
        "dev: 12 of its 12 rows stand in r.csv as well",
        "test: 12 of its 13 rows stand in r.csv as well",
        "test: 4 of its 13 rows stand in d.csv as well",
    ]
    (lengths,) = (line for line in lines if line.startswith("pieces: "))
    assert "are longer than the model reads" in lengths
    assert json.loads(typed(capsys, "look", reviews, "--json"))["labels"] == {"good": 20, "bad": 11, "ugly": 1}


def test_what_a_model_would_cut_is_what_its_sequences_are_long(tiny_model):
    tokenizer = bertsmith.load_tokenizer(tiny_model)
    limit = bertsmith.BertConfig.load(tiny_model).position_limit
    rows = [{"text": "the man " * n, "label": str(n % 2)} for n in (1, 2, limit)]
    found = bertsmith.look(rows, model=tiny_model)
    assert found.lengths.longest == len(tokenizer(rows[-1]["text"])["input_ids"]) > limit
    assert (found.lengths.unit, found.lengths.limit, found.lengths.cut) == ("pieces", limit, 1)


PAIR = {"query": "the man " * 10, "positive": "a book " * 10}
ANSWER = {"text": ["man"], "answer_start": [4]}


@pytest.mark.parametrize(
    ("task", "row", "longest", "windows"),
    [
        ("classify", {"text": PAIR["query"], "text_b": PAIR["positive"], "label": "x"}, 43, False),
        ("embed", PAIR, 22, False),
        ("choose", {"context": "the man", "choices": ["a book " * 9, "a book"], "label": 1}, 23, False),
        ("tag", {"tokens": ["man"] * 40, "tags": ["O"] * 39 + ["B-X"]}, 42, True),
        ("answer", {"question": "a book", "context": "the man " * 20, "answers": ANSWER}, 45, True),
    ],
)
def test_what_is_measured_is_what_the_task_reads_together(tiny_model, task, row, longest, windows):
    found = bertsmith.look([row], task=task, model=tiny_model)
    assert found.lengths.longest == longest
    told = "are read in windows" if windows else "would be cut"
    # 文本前面可能还有提示词，不算在内：只能说个大概
    about = "about " if task == "embed" else ""
    assert found.length_line.endswith(f"; {about}{longest > 32:d} are longer than the model reads (32), and {told}")


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_special_tokens_are_those_of_the_family(kind):
    pytest.importorskip("tokenizers")
    pair = ("the man reads a book", "a book")
    tokenizer = learn_tokenizer(pair, kind=kind, vocab_size=300)
    rows = [{"text": pair[0], "text_b": pair[1], "label": "x"}]
    examples = task_named("classify").spec.reader.read(rows)
    longest = look_at("classify", rows, examples, ReadingOptions(), tokenizer, 32).lengths.longest
    assert longest == len(tokenizer(*pair)["input_ids"])


@pytest.mark.parametrize(
    ("name", "content", "task", "rows"),
    [
        ("a.conll", "EU B-ORG\nrejects O\n\nPeter B-PER\nsleeps O\n", "tag", 2),
        ("a.txt", "EU B-ORG\nrejects O\n\nPeter B-PER\nsleeps O\n", "tag", 2),
        ("a.jsonl", '{"tokens": ["a", "b"], "tags": ["O", "B-X"]}\n', "tag", 1),
        ("a.tsv", "query\ttext\tlabel\nq\tt\t1\nq\tu\t0\n", "rank", 2),
        ("a.jsonl", '{"context": "c", "choices": ["a", "b"], "label": 0}\n', "choose", 1),
        ("a.tsv", "query\tpositive\na\tb\nc\td\n", "embed", 2),
        ("a.csv", "text,labels\na,x\nb,\"x,y\"\n", "multilabel", 2),
        ("a.csv", "text,score\n" + "".join(f"text {n},{n / 7}\n" for n in range(30)), "regress", 30),
        ("a.csv", "text,label\n" + "".join(f"text {n},{n / 7}\n" for n in range(30)), "regress", 30),
        ("a.json", json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [
            {"id": "1", "question": "q", "answers": [{"text": "b", "answer_start": 2}]}]}]}]}), "answer", 1),
        ("a.txt", "First text. Two sentences.\n\nSecond text.\n", "", 2),
        ("a.jsonl", '{"text": "only text"}\n{"text": "and more"}\n', "", 2),
    ],
)  # fmt: skip
def test_the_task_is_found_by_what_can_read_it(tmp_path, name, content, task, rows):
    (tmp_path / name).write_text(content)
    found = bertsmith.look(tmp_path / name)
    assert (found.task, found.rows) == (task, rows), list(found.lines())


@pytest.mark.filterwarnings("ignore:.*reads the sheet")
def test_spreadsheets_and_folders(tmp_path):
    path = write_spreadsheet(tmp_path / "a.xlsx", {"One": [["text", "label"], ["a", 1], ["b", 0]], "Two": [["x"]]})
    found = bertsmith.look(path)
    assert (found.form, found.labels) == ("spreadsheet, with a header", {"1": 1, "0": 1})
    assert any("reads the sheet 'One', the first of 2" in note for note in found.notes)
    for name in ("t/pos/a.txt", "t/neg/b.txt", "t/c.pdf", "t/neg/d.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "one."}' if name.endswith("l") else "Two of them. Good.\n")
    text = bertsmith.look(tmp_path / "t")
    assert (text.task, text.rows, text.kinds, text.repeated) == ("", 3, {".txt": 2, ".jsonl": 1}, 1)
    assert "1 .pdf" in text.notes[0]
    assert bertsmith.look(tmp_path / "t", task="classify", faults="skip").labels == {"neg": 1, "pos": 1}


def test_a_guess_is_no_better_than_its_columns(tmp_path):
    rows = [
        f"a long sentence of number {n},another sentence with number {n},{'x' if n % 2 else 'y'}" for n in range(20)
    ]
    (tmp_path / "two.csv").write_text("\n".join(["title,comment,label", *rows]))
    with pytest.raises(InputError, match="columns title, comment may all be the text; say which with --text-column"):
        bertsmith.look(tmp_path / "two.csv")
    (tmp_path / "empty.csv").write_text("text,label\none,\ntwo,\n")
    said = "no row is left of 2; .*an empty label; name another column with --text-column or --label-column"
    with pytest.raises(InputError, match=said):
        bertsmith.look(tmp_path / "empty.csv")
    for name in ("pos/a.txt", "neg/b.txt"):
        (tmp_path / "train" / name).parent.mkdir(parents=True)
        (tmp_path / "train" / name).write_text("One sentence.\n")
    assert "its folders may be classes: --task classify reads them as such" in bertsmith.look(tmp_path / "train").notes


def test_text_without_labels_is_read_from_the_column_that_is_named(tmp_path):
    path = tmp_path / "articles.csv"
    rows = [f"a{n},Title {n},A long body of article {n}. It has two sentences.\n" for n in range(12)]
    path.write_text("id,title,body\n" + "".join(rows))
    for how in ({}, {"task": "text"}):
        found = bertsmith.look(path, text_column="body", **how)
        assert (found.task, found.rows, found.lengths.longest) == ("", 12, 10)
    with pytest.raises(InputError, match="no column 'text' .*with --text-column, such as --text-column 'body'"):
        bertsmith.look(path, task="text")
    with pytest.raises(InputError, match=r"1 \.csv \(tables: name them, with the column as --text-column\)"):
        bertsmith.look(tmp_path)


LOOKS = """
import sys
import bertsmith
from bertsmith.errors import InputError
try:
    bertsmith.look(sys.argv[1])
except InputError as error:
    print(error)
"""


def test_a_folder_without_permission_is_one_line(tmp_path, run_without_rights):
    (tmp_path / "closed").mkdir(mode=0)
    ended = run_without_rights(LOOKS, tmp_path / "closed")
    said = f"{tmp_path / 'closed'}: the folder cannot be read (Permission denied); check its rights\n"
    assert ended.stdout == said, ended.stderr


def test_the_encodings_of_files_and_folders_of_text_are_counted(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("Ein schöner Satz.\n", encoding="utf-8")
    (tmp_path / "3.txt").write_bytes("Ein schöner Satz.\n".encode("latin-1"))
    assert bertsmith.look(tmp_path).form.startswith("text, utf-8 3, iso-8859-1 1, 4 sentences in documents (")
    assert bertsmith.look(tmp_path / "3.txt").form.startswith("text, iso-8859-1, 1 sentences in documents (")
    (tmp_path / "a.conll").write_bytes("schöner O\nSatz B-X\n".encode("utf-16"))
    assert bertsmith.look(tmp_path / "a.conll").form == "a word a line, utf-16"
    for name in ("train/pos/a.txt", "train/neg/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"caf\xe9")
    assert bertsmith.look(tmp_path / "train", task="classify").form == "folder, iso-8859-1"


@pytest.mark.parametrize(
    ("task", "row", "columns"),
    [
        ("tag", {"tokens": ["a"], "ner_tags": ["O"], "id": 1}, {"tokens": "word", "ner_tags": "tag", "id": ""}),
        ("embed", {"query": "a", "positive": "b"}, {"query": "query or text", "positive": "text"}),
        ("answer", {"question": "what?", "context": "the man", "answers": ANSWER, "title": "t"},
         {"question": "question", "context": "context", "answers": "answers", "title": ""}),
        ("classify", {"review": {"body": "a"}, "label": "x", "who": "k"},
         {"label": "label", "who": "group", "review.body": "text"}),
    ],
)  # fmt: skip
def test_every_column_that_is_read_is_named(tmp_path, task, row, columns):
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "a.json").write_text(json.dumps([row], indent=1))
    how = {"text_column": "review.body", "group_column": "who"} if task == "classify" else {}
    # SQuAD 的 .json 只有一种形式：问题不能写成列表
    for name in ("a.jsonl",) if task == "answer" else ("a.jsonl", "a.json"):
        assert bertsmith.look(tmp_path / name, task=task, **how).columns == columns


def test_columns_of_one_name_are_told_apart(tmp_path):
    (tmp_path / "a.csv").write_text("text,label,text\none,x,two\nthree,y,four\n")
    found = bertsmith.look(tmp_path / "a.csv", task="classify", text_column=0)
    assert found.columns == {"text (column 0)": "text", "label": "label", "text (column 2)": ""}


QUESTION = {"id": "1", "question": "q ?", "context": "a b", "answers": [{"text": "b", "answer_start": 2}]}
SQUAD = json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [QUESTION]}]}]})


@pytest.mark.parametrize("name", ["squad.txt", "train-v1.1", "download?id=3", "a.json", "a.JSON.gz"])
def test_whatever_a_document_of_questions_is_called_it_is_shown(tmp_path, name):
    content = SQUAD.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = bertsmith.look(tmp_path / name, task="answer")
    assert (found.first_line, found.columns) == (f"{name}: one JSON document, utf-8; 1 rows for answer", {})


def test_questions_on_one_line_longer_than_a_row_are_found_to_be_questions(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_LENGTH", 60)
    monkeypatch.setattr(sources, "CHUNK_SIZE", 50)
    (tmp_path / "a.json").write_text(SQUAD)
    assert bertsmith.look(tmp_path / "a.json").first_line == "a.json: one JSON document, utf-8; 1 rows for answer"


def test_what_is_shown_never_refuses_what_was_read(tmp_path, monkeypatch):
    """Parquet may have two columns of one name, and a reader from outside may know a form that is no table."""
    columns = [[QUESTION[name]] for name in ("question", "context", "context", "answers")]
    columns[3] = [{"text": ["b"], "answer_start": [2]}]
    names = ["question", "context", "context", "answers"]
    pq.write_table(pa.Table.from_arrays([pa.array(column) for column in columns], names=names), tmp_path / "a.parquet")
    assert bertsmith.look(tmp_path / "a.parquet", task="answer").first_line == "a.parquet: 1 rows for answer"
    kind = task_named("classify")

    def parse(path, _options):
        return [LabelledText(path.read_bytes()[1:4].decode(), None, "x")]

    rest = (lambda *_: [], InputForms(()), lambda _table: None, lambda *_: False)
    reader = Reader("texts", (), *rest, parse)
    monkeypatch.setattr(kind, "spec", replace(kind.spec, reader=reader))
    (tmp_path / "a.bin").write_bytes(b"\0one\0")
    found = bertsmith.look(tmp_path / "a.bin", task="classify")
    assert (found.labels, found.columns) == ({"x": 1}, {})
    assert found.form.startswith("a form of its own")


def test_passages_of_beir_are_not_repeated_rows(tmp_path):
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("q\td\t1\n")
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"_id": one, "text": one}) + "\n" for one in "def"))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "what?"}) + "\n")
    found = bertsmith.look(tmp_path)
    assert (found.form, found.rows, found.repeated) == ("folder, utf-8", 4, 0)
    assert bertsmith.look(tmp_path / "qrels/test.tsv", task="embed").columns == {}


def test_what_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(InputError, match=r"a\.jsonl: no text column among a; call it text"):
        bertsmith.look(tmp_path / "a.jsonl")
    (tmp_path / "a.conll").write_text("one\n\ntwo\n")
    with pytest.raises(InputError, match=r"a\.conll: line 1 has one column"):
        bertsmith.look(tmp_path / "a.conll")
    with pytest.raises(InputError, match="no such file"):
        bertsmith.look(tmp_path / "b.csv")
    with pytest.raises(ConfigError, match="task 'sort' is unknown"):
        bertsmith.look(tmp_path / "a.jsonl", task="sort")


def test_a_file_of_a_folder_that_cannot_be_read_is_noted_and_the_others_are_looked_at(tmp_path):
    (tmp_path / "good.txt").write_text("A tree is green.\n")
    (tmp_path / "arc.jsonl").write_text('{"text": "a book"}\n{"question": "what?"}\n')
    found = bertsmith.look(tmp_path)
    assert found.rows == 1
    assert any("arc.jsonl: line 2 has no field 'text'" in note for note in found.notes)
    (tmp_path / "good.txt").unlink()
    with pytest.raises(InputError, match="arc.jsonl: line 2"):
        bertsmith.look(tmp_path)


def test_scripts_are_shares_of_the_letters():
    assert scripts_in(["ab", "цд, 12", "我们"]) == {"Latin": 1 / 3, "Cyrillic": 1 / 3, "Chinese": 1 / 3}
    assert scripts_in(["12 !"]) == {}


class WordsOnly:
    """Stands for py3langid: knows a word of each language."""

    @classmethod
    def from_model_file(cls, name, *, norm_probs, min_confidence):
        assert (name, norm_probs, min_confidence) == ("the model", True, 0.2)
        return cls()

    def classify(self, text):
        known = {"the": "en", "der": "de", "侬": "wuu", "1": "zxx"}
        return next((code for word, code in known.items() if word in text), "und"), 0.9


@pytest.fixture
def langid(monkeypatch):
    module = types.SimpleNamespace(LanguageIdentifier=WordsOnly, MODEL_FILE="the model")
    monkeypatch.setitem(sys.modules, "py3langid", types.SimpleNamespace(langid=module))
    monkeypatch.setitem(sys.modules, "py3langid.langid", module)


def test_languages_are_shares_of_the_characters(langid, tmp_path, capsys):
    assert languages_in(["the 12345", "der 12345678901", "侬" * 15, "???"]) == pytest.approx(
        {"de": 15 / 42, "zh": 15 / 42, "en": 9 / 42, "other": 3 / 42}
    )
    # 两千条里后一半是另一种语言：均匀地取，才看得见
    assert languages_in([*["the"] * 1000, *["der"] * 1000]) == {"en": 0.5, "de": 0.5}
    assert languages_in([*["the"] * 997, *["der"] * 3]) == {"en": 0.997}
    for name, text in (("a.txt", "the one sentence.\n"), ("b.txt", "ja, der zweite S.\n")):
        (tmp_path / name).write_text(text)
    assert bertsmith.look(tmp_path).languages == {"en": 0.5, "de": 0.5}
    assert "languages: en 50.0%, de 50.0%" in typed(capsys, "look", tmp_path).splitlines()
    with pytest.raises(ConfigError, match="is text without labels; leave --dev out"):
        bertsmith.look(tmp_path, dev=tmp_path)


def test_where_no_languages_can_be_told_the_way_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    rows = [{"text": "a good book", "label": "a"}, {"text": "a bad book", "label": "b"}]
    assert bertsmith.look(rows).languages == {}
    assert "languages: pip install 'bertsmith[documents]' tells them" in bertsmith.look(rows).notes


def test_languages_are_told_by_the_real_library():
    pytest.importorskip("py3langid", reason="not installed")
    assert list(languages_in(["The man reads a book", "Der Mann liest ein Buch, sehr schön"])) == ["de", "en"]
    assert languages_in(["这个人在看书", "一天就坏了"]) == {"zh": 1.0}
