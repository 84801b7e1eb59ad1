"""Shapes in which people keep labels, and what each gives: the table of tasks-and-files.md, a test each."""

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertsmith
from bertsmith.data.reading.documents import readable_sources
from bertsmith.errors import InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.texts import shown as shown_text
from bertsmith.finetune.tasks import all_tasks
from bertsmith.inference.entities import entities_of, is_plain
from made_documents import pdf
from spreadsheets import write_spreadsheet

DOCS = Path(__file__).parents[3] / "docs"
TWO = [("good soup", "yes"), ("bad room", "no")]
OBJECTS = [{"text": text, "label": label} for text, label in TWO]
LINES = "".join(f"{json.dumps(row)}\n" for row in OBJECTS)
NESTED = [{"review": {"body": text}, "meta": {"stars": label}} for text, label in TWO]
FOUND = [f"{text} → {label}" for text, label in TWO]
PLAIN = "text,label\ngood soup,yes\nbad room,no\n"
CELLS = [["text", "label"], *map(list, TWO)]
WORKBOOKS = ("a.xlsx", "a.xlsm", "a.xlsb", "a.xls", "a.ods")
REVIEWS = [(f"this is review number {n}", "good" if n % 3 else "bad") for n in range(8)]
WORDS = "EU {0}ORG\nrejects O\nthe O\n\nNew {1}LOC\nYork {2}LOC\n"
TAGGED = ["EU/{0}ORG rejects/O the/O → ORG 0-0", "New/{1}LOC York/{2}LOC → LOC 0-1"]
PASSAGE = "It\u00a0opened in 1998.\r\nIt closed in 2003."
CHOICES = {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "B"}


class Case(NamedTuple):
    """A file, or a table in memory, how it is read, and what comes out, or what refuses it; `said` is warned of."""

    name: str
    content: Any
    expected: list[str] | str
    task: str = "classify"
    said: str = ""
    how: Mapping[str, Any] = MappingProxyType({})


def marked(template, *marks):
    return template.format(*marks) if isinstance(template, str) else [line.format(*marks) for line in template]


def tags(*marks):
    return [Case("a.conll", marked(WORDS, *marks), marked(TAGGED, *marks), "tag")]


def squad(passage, start, question="closed?", answer="2003"):
    asked = {"id": "1", "question": question, "answers": [{"text": answer, "answer_start": start}]}
    return json.dumps({"data": [{"paragraphs": [{"context": passage, "qas": [asked]}]}]})


def answering(header, rows=REVIEWS):
    return header + "".join(f"{text},{label}\n" for text, label in rows)


def parquet(names=None, **columns):
    """A table; `names` are the classes that the library `datasets` wrote for the column `ner_tags`."""
    said = {"info": {"features": {"ner_tags": {"feature": {"names": names}}}}}
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(said)} if names else {})


# 两页各一行，原样；再是这一行的每一句话各一个例子
SHAPES = {
    ("commas | `.csv` | read",
     "逗号 | `.csv` | 读入"): [Case("a.csv", PLAIN, FOUND)],
    ("semicolons | `.csv` | read; the separator is found",
     "分号 | `.csv` | 读入；分隔符自动识别"): [Case("a.csv", PLAIN.replace(",", ";"), FOUND)],
    ("tabs | `.tsv`, or any ending that is not known | read",
     "制表符 | `.tsv`，或认不得的扩展名 | 读入"): [
        Case(name, PLAIN.replace(",", "\t"), FOUND) for name in ("a.tsv", "a.dat", "a")],
    ("bars | `.csv` | read",
     "竖线 | `.csv` | 读入"): [Case("a.csv", PLAIN.replace(",", "|"), FOUND)],
    ("a byte order mark | any text | dropped",
     "字节顺序标记 | 任何文本 | 去掉"): [
        Case("a.csv", PLAIN.encode("utf-8-sig"), FOUND), Case("a.jsonl", LINES.encode("utf-8-sig"), FOUND)],
    ("UTF-16 with a mark | any text | read",
     "带标记的 UTF-16 | 任何文本 | 读入"): [
        Case("a.csv", PLAIN.encode("utf-16"), FOUND), Case("a.json", json.dumps(OBJECTS).encode("utf-16"), FOUND)],
    ("Latin-1 | any text | read, also as Windows writes it",
     "Latin-1 | 任何文本 | 读入，Windows 的写法也可以"): [
        Case("a.csv", "text,label\ncafé très bon,yes\nmal,no\n".encode("latin-1"), ["café très bon → yes", "mal → no"]),
        Case("a.csv", "text,label\n“café” – bon,yes\nmal,no\n".encode("cp1252"), ["“café” – bon → yes", "mal → no"])],
    ("GB 18030 | any text | read with `--encoding gb18030`; refused without, with the line",
     "GB 18030 | 任何文本 | 加 `--encoding gb18030` 读入；不加则拒绝，并说出行号"): [
        Case("a.csv", "text,label\n汤很好喝,好\n房间很脏,坏\n".encode("gb18030"),
             ["汤很好喝 → 好", "房间很脏 → 坏"], how={"encoding": "gb18030"}),
        Case("a.csv", "text,label\n汤很好喝,好\n房间很脏,坏\n".encode("gb18030"),
             "line 2 is not valid UTF-8.*name its encoding, for example --encoding gb18030")],
    ("CR LF | any text | read",
     "CR LF | 任何文本 | 读入"): [
        Case("a.csv", PLAIN.replace("\n", "\r\n"), FOUND),
        Case("a.tsv", PLAIN.replace(",", "\t").replace("\n", "\r\n"), FOUND)],
    ("quoted cells | `.csv` | commas, quotes and line ends in a cell are its text",
     "带引号的单元格 | `.csv` | 单元格里的逗号、引号、换行都是正文"): [
        Case("a.csv", 'text,label\n"so ""good"", yes",1\n"two\nlines",0\n',
             ['so "good", yes → 1', "two\nlines → 0"])],
    ("quoted cells with tabs between | `.tsv` | read, where the first lines fit together only so",
     "制表符分隔、带引号的单元格 | `.tsv` | 开头几行只有这样才对得齐时读入"): [
        Case("a.tsv", 'text\tlabel\n"two\nlines"\t0\none\t1\n', ["two\nlines → 0", "one → 1"]),
        Case("a.tsv", 'text\tlabel\n"so good"\t0\none\t1\n', ['"so good" → 0', "one → 1"])],
    ("other names | `classify`, `multilabel`, `regress`: a header of your own, such as `Review Text` | found by its"
     " words, and said",
     "别的列名 | `classify`、`multilabel`、`regress`：自己的表头，如 `Review Text` | 按名称里的词找到，并说明"): [
        Case("a.csv", "Review Text,Sentiment Label\n" + PLAIN[11:], FOUND,
             said="reads text from Review Text, label from Sentiment Label: found by names and content")],
    ("names in another language | the same tasks: a header of your own, such as `Kommentar` | found by what the columns"
     " hold, from 8 rows, and said",
     "别的语言的列名 | 同样的任务：自己的表头，如 `Kommentar` | 按列的内容找到（8 行起），并说明"): [
        Case("a.csv", answering("Kommentar,Urteil\n"), [f"{text} → {label}" for text, label in REVIEWS],
             said="reads text from Kommentar, label from Urteil: found by names and content"),
        Case("a.csv", answering("Kommentar,Urteil\n", REVIEWS[:7]), "is it a header.*say --header or --no-header")],
    ("no header | text and label | read",
     "没有表头 | 文本和标签 | 读入"): [Case("a.csv", PLAIN[11:], FOUND)],
    ("many columns and no header | | asked for: `--text-column 1 --label-column 2`",
     "列很多而没有表头 | | 要求指明：`--text-column 1 --label-column 2`"): [
        Case("a.csv", "1,good soup,yes\n2,bad room,no\n",
             "3 columns and no header; say which is which by number, such as --text-column 1 --label-column 2"),
        Case("a.csv", "1,good soup,yes\n2,bad room,no\n", FOUND, how={"text_column": 1, "label_column": 2})],
    ("0 and 1 for words | a label | classes `0` and `1`",
     "用 0 和 1 作类别 | 标签 | 类别 `0` 和 `1`"): [
        Case("a.csv", "text,label\ngood soup,1\nbad room,0\n", ["good soup → 1", "bad room → 0"])],
    ("true and false | a label in JSON, Parquet or a spreadsheet | classes `true` and `false`",
     "用真和假作类别 | JSON、Parquet、电子表格里的标签 | 类别 `true` 和 `false`"): [
        Case("a.jsonl", '{"text": "good soup", "label": true}\n{"text": "bad room", "label": false}\n',
             ["good soup → true", "bad room → false"]),
        Case("a.parquet", parquet(text=["good soup", "bad room"], label=[True, False]),
             ["good soup → true", "bad room → false"]),
        Case("a.xlsx", {"S": [["text", "label"], ["good soup", True], ["bad room", False]]},
             ["good soup → true", "bad room → false"])],
    ("words with spaces and emoji | a label | as they are",
     "带空格和表情的词 | 标签 | 原样"): [
        Case("a.csv", "text,label\ngood soup,Very Good 😀\nbad room,☹\n",
             ["good soup → Very Good 😀", "bad room → ☹"])],
    ("JSON Lines | `.jsonl`, `.ndjson`, `.json` | an object a line",
     "JSON Lines | `.jsonl`、`.ndjson`、`.json` | 每行一个对象"): [
        Case(name, LINES, FOUND) for name in ("a.jsonl", "a.ndjson", "a.json")],
    ("JSON, a list | `.json` | a list of objects, or an object with one",
     "JSON 列表 | `.json` | 对象的列表，或含一个列表的对象"): [
        Case("a.json", json.dumps(OBJECTS, indent=1), FOUND),
        Case("a.json", json.dumps({"version": 1, "data": OBJECTS}, indent=1), FOUND)],
    ("JSON, nested | `.jsonl`, `.json`, structs of Parquet | `--text-column review.body`",
     "嵌套的 JSON | `.jsonl`、`.json`、Parquet 的结构 | `--text-column review.body`"): [
        Case(name, content, FOUND, how={"text_column": "review.body", "label_column": "meta.stars"})
        for name, content in (("a.jsonl", "".join(f"{json.dumps(row)}\n" for row in NESTED)),
                              ("a.json", json.dumps(NESTED)), ("a.parquet", pa.Table.from_pylist(NESTED)))],
    ("a spreadsheet | `.xlsx`, `.xlsm`, `.xlsb`, `.xls`, `.ods` | the first sheet that is shown",
     "电子表格 | `.xlsx`、`.xlsm`、`.xlsb`、`.xls`、`.ods` | 第一张显示的表"): [
        *(Case(name, {"One": CELLS}, FOUND) for name in WORKBOOKS),
        Case("hidden.xlsx", {"Hidden": [["x"]], "One": CELLS}, FOUND)],
    ("several sheets | the same | the first, which is said, or `--sheet Data`",
     "好几张表 | 同上 | 第一张，并说明；或 `--sheet Data`"): [
        *(Case(name, {"One": CELLS, "Two": [["x"]]}, FOUND,
               said="reads the sheet 'One', the first of 2; --sheet names another") for name in WORKBOOKS),
        *(Case(name, {"About": [["x"]], "Data": CELLS}, FOUND, how={"sheet": "Data"}) for name in WORKBOOKS)],
    ("a protected spreadsheet | the same | refused: save it without the password, or as CSV",
     "有密码的电子表格 | 同上 | 拒绝：去掉密码再存，或存成 CSV"): [
        Case(name, "protected", "is protected by a password; save it without one, or as CSV")
        for name in ("a.xlsx", "a.xlsb", "a.xls", "a.ods")],
    ("a folder for each class | `classify` | the folders' names are the classes; files that are no text are left out,"
     " and counted",
     "每个类别一个文件夹 | `classify` | 文件夹名就是类别；不是文本的文件略去并计数"): [
        Case("train", {"yes/1.txt": "good soup\n", "no/1.txt": "bad room", "no/2.png": "x"}, FOUND[::-1],
             said=r"left out 1 files that are no text of a class: no/2\.png")],
    ("a data frame | Python | read as a table with its columns",
     "数据框 | Python | 按它的列当作表格读入"): [
        Case("", pd.DataFrame(OBJECTS), FOUND),
        Case("", pd.DataFrame({"id": [1, 2], "Kritik": [text for text, _ in TWO], "y": [1, 0]}),
             ["good soup → 1", "bad room → 0"], how={"text_column": "Kritik", "label_column": "y"})],
    ("a column a label | `multilabel` | `--label-column rude --label-column spam`, or found where all hold 0 and 1",
     "每个标签一列 | `multilabel` | `--label-column rude --label-column spam`；各列都是 0 和 1 时自动找到"): [
        Case("a.csv", "text,rude,spam\na,1,0\nb,1,1\n", ["a → rude", "b → rude, spam"], "multilabel",
             how={"label_column": ("rude", "spam")}),
        Case("a.csv", "text,rude,spam\na,1,0\nb,1,1\n", ["a → rude", "b → rude, spam"], "multilabel",
             said="reads label from rude, spam")],
    ("lists that pandas wrote | `multilabel` | `['x', 'y']` is two labels",
     "pandas 写的列表 | `multilabel` | `['x', 'y']` 是两个标签"): [
        Case("a.csv", "text,labels\na,\"['x', 'y']\"\nb,[]\n", ["a → x, y", "b → "], "multilabel")],
    ("CoNLL with comments and document marks | `tag` | both are skipped, comments counted",
     "带注释和文档标记的 CoNLL | `tag` | 两者都略过，注释计数"): [
        Case("a.conll",
             "-DOCSTART- -X- O O\n\n# id 1 domain=en\nEU NN B B-ORG\n\n# id 2 domain=en\nit PR B O\n",
             ["EU/B-ORG → ORG 0-0", "it/O → "], "tag", said="skipped 2 comment lines, the first is line 3")],
    ("BIO | `tag` | entities", "BIO | `tag` | 实体"): tags("B-", "B-", "I-"),
    ("IOB1 | `tag` | entities", "IOB1 | `tag` | 实体"): tags("I-", "I-", "I-"),
    ("BIOES | `tag` | entities", "BIOES | `tag` | 实体"): tags("S-", "B-", "E-"),
    ("BILOU | `tag` | entities", "BILOU | `tag` | 实体"): tags("U-", "B-", "L-"),
    ("inconsistent tags | `tag` | refused with the line of the sentence: `PER` beside `B-PER`",
     "不一致的标注 | `tag` | 拒绝并说出句子所在的行：`B-PER` 之外又有 `PER`"): [
        Case("a.conll", "EU O\n\nAda B-PER\nLee PER\n",
             "the sentence from line 3: the tag 'PER' has no letter such as B- and the others have; correct it",
             "tag")],
    ("words and tags as lists | `tag`: JSON, Parquet | read; numbers by their names in the file",
     "词和标注是列表 | `tag`：JSON、Parquet | 读入；数字按文件里的名称"): [
        Case("a.jsonl", '{"tokens": ["EU", "it"], "ner_tags": ["B-ORG", "O"]}\n', ["EU/B-ORG it/O → ORG 0-0"], "tag"),
        Case("a.parquet", parquet(["O", "B-ORG"], tokens=[["EU", "it"]], ner_tags=[[1, 0]]),
             ["EU/B-ORG it/O → ORG 0-0"], "tag"),
        Case("a.jsonl", '{"tokens": ["EU", "it"], "ner_tags": [1, 0]}\n',
             "the tags are numbers and nothing says what they are called", "tag")],
    ("SQuAD with NBSP and CR LF | `answer` | offsets count characters; others with `--offsets`",
     "带 NBSP 和 CR LF 的 SQuAD | `answer` | 位置按字符数；其他数法用 `--offsets`"): [
        Case("a.json", squad(PASSAGE, PASSAGE.index("2003")), ["closed? → 2003"], "answer"),
        Case("a.json", squad("😀 closed in 2003", 13), "pass --offsets utf16", "answer"),
        Case("a.json", squad("😀 closed in 2003", 13), ["closed? → 2003"], "answer", how={"offsets": "utf16"})],
    ("choices as the Hub has them | `choose` | the right one is found by its name",
     "Hub 上的选项 | `choose` | 按名称找到正确的一项"): [Case("a.jsonl", json.dumps(CHOICES), ["q → 1"], "choose")],
    ("a protected PDF | text for `corpus`, `index` and others | left out, with the reason",
     "有密码的 PDF | `corpus`、`index` 等的文本 | 略去，并说明原因"): [
        Case("a.pdf", pdf("secret", password="user"), r"left out 1 file\(s\): 1 \.pdf \(protected by a password", "")],
    ("frames in HTML | the same | left out, with the reason",
     "HTML 框架页 | 同上 | 略去，并说明原因"): [
        Case("a.html", "<html><frameset><frame src=b.html></frameset></html>",
             r"left out 1 file\(s\): 1 \.html \(frames only", "")],
    ("a binary file | | refused, with the line of its first NUL",
     "二进制文件 | | 拒绝，说出第一个 NUL 所在的行"): [
        Case("a.csv", b"text,label\na,x\nb,\0\n", r"looks binary \(line 3 holds a NUL byte\), not text; leave it out")],
    ("a ragged table | | refused with the line; left out with `--faults skip`",
     "列数不齐的表格 | | 拒绝并说出行号；`--faults skip` 时略去"): [
        Case("a.csv", PLAIN + "a,b,c\n", "line 4 has 3 columns, the first has 2; check its separators and quotes"),
        Case("a.csv", PLAIN + "a,b,c\n", FOUND, said="left out 1 rows: line 4 has 3 columns", how={"faults": "skip"})],
    ("an empty column | | refused with the line",
     "空的一列 | | 拒绝并说出行号"): [Case("a.csv", "text,label\na,\nb,\n", "line 2 has an empty label")],
    ("two columns of texts | | asked for: `--text-column`, and `--pair-column` if two",
     "两列文本 | | 要求指明：`--text-column`，是文本对时再加 `--pair-column`"): [
        Case("a.csv", "text,review,label\na,b,x\nc,d,y\n",
             "columns text, review may all be texts; say which with --text-column, and --pair-column if two"),
        Case("a.csv", "text,review,label\na,b,x\nc,d,y\n", ["b → x", "d → y"], how={"text_column": "review"}),
        Case("a.csv", "text,review,label\na,b,x\nc,d,y\n", ["a ⏐ b → x", "c ⏐ d → y"],
             how={"text_column": "text", "pair_column": "review"})],
    ("a list for one label | `classify` | refused with the line: `multilabel`",
     "一个标签却是列表 | `classify` | 拒绝并说出行号：用 `multilabel`"): [
        Case("a.csv", "text,label\na,\"['x', 'y']\"\n",
             "line 2: the label .* is a list; write the class alone, or learn several labels with multilabel")],
}  # fmt: skip


def shown(task, example):
    if task == "tag":
        found = entities_of(example.tags, plain=is_plain([example.tags]))
        words = " ".join(f"{word}/{tag}" for word, tag in zip(example.words, example.tags, strict=True))
        return f"{words} → {', '.join(f'{one.type} {one.first}-{one.last}' for one in found)}"
    if task == "answer":
        return f"{example.question} → {example.answers[0].text}"
    label = ", ".join(example.labels) if task == "multilabel" else example.label
    return f"{example.context if task == 'choose' else shown_text(example)} → {label}"


def made(folder, case):
    """Returns what is read: a file or a folder of a name and content, or what is in memory."""
    path, content = folder / case.name, case.content
    if not case.name:
        return content
    if isinstance(content, (bytes, str)) and content != "protected":
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif isinstance(content, pa.Table):
        pq.write_table(content, path)
    elif not path.suffix:
        for name, text in content.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
    else:
        sheets = {"S": CELLS} if content == "protected" else content
        write_spreadsheet(path, sheets, protected=content == "protected", hidden=("Hidden",))
    return path


ALL = [(shape, case) for (shape, _), cases in SHAPES.items() for case in cases]


NAMES = [f"{shape.partition(' | ')[0]}-{number}" for number, (shape, _) in enumerate(ALL)]


@pytest.mark.parametrize(("shape", "case"), ALL, ids=NAMES)
def test_a_shape_gives_what_the_table_says(tmp_path, shape, case):
    source, options = made(tmp_path, case), ReadingOptions(**case.how)
    if not case.task:
        (tmp_path / "good.txt").write_text("Bread.\n")
        sources, said = readable_sources([tmp_path])
        assert [Path(one.name).name for one in sources] == ["good.txt"], shape
        assert re.match(case.expected, said), said
        return
    kind = all_tasks()[case.task]
    if isinstance(case.expected, str):
        with pytest.raises(InputError, match=case.expected) as caught:
            kind.of(kind.spec.reader.read(source, options))
        assert "\n" not in str(caught.value)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = kind.spec.reader.read(source, options)
    assert [shown(case.task, example) for example in found] == case.expected, shape
    told = [str(one.message) for one in caught]
    assert len(told) == bool(case.said), told
    assert all(re.search(case.said, one) for one in told), told


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_of_the_page_has_every_shape(language):
    page = (DOCS / language / "reference" / "tasks-and-files.md").read_text(encoding="utf-8")
    rows = page.partition("<!-- shapes -->")[2].partition("<!-- /shapes -->")[0].strip().splitlines()[2:]
    expected = [row[language == "zh"] for row in SHAPES]
    assert [[cell.strip() for cell in row.split("|")[1:4]] for row in rows] == [
        [cell.strip() for cell in row.split("|")] for row in expected
    ]


READS = """
import sys
from bertsmith.errors import InputError
from bertsmith.finetune.tasks import all_tasks
try:
    all_tasks()["classify"].spec.reader.read(sys.argv[1])
except InputError as error:
    print(error)
"""


def test_a_file_without_permission_is_one_line(tmp_path, run_without_rights):
    (tmp_path / "a.csv").write_text(PLAIN)
    (tmp_path / "a.csv").chmod(0)
    ended = run_without_rights(READS, tmp_path / "a.csv")
    said = f"{tmp_path / 'a.csv'}: cannot be read (Permission denied); check the file and its rights\n"
    assert ended.stdout == said, ended.stderr


def test_a_folder_without_permission_is_one_line(tmp_path, run_without_rights):
    """One of the classes as much as the folder of them: a class must not be missing without a word."""
    for name in ("neg", "pos"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "1.txt").write_text("dull")
    for closed in (tmp_path / "train" / "pos", tmp_path / "train"):
        closed.chmod(0)
        ended = run_without_rights(READS, tmp_path / "train")
        closed.chmod(0o700)
        said = f"{closed}: the folder cannot be read (Permission denied); check its rights\n"
        assert ended.stdout == said, ended.stderr


def test_a_file_that_vanishes_is_one_line(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_text(PLAIN)
    monkeypatch.setattr("bertsmith.data.reading.tables.require_file", Path.unlink)
    with pytest.raises(InputError, match=r"a\.csv: .*No such file"):
        all_tasks()["classify"].spec.reader.read(path)


def of_many_classes(path, count):
    path.write_text("text,label\n" + "".join(f"text {n},class {n % 10_000}\n" for n in range(count)))
    return path


def test_ten_thousand_classes_are_read_and_counted(tmp_path):
    line = bertsmith.look(of_many_classes(tmp_path / "a.csv", 20_000)).label_line
    assert line.startswith("10,000 labels: class 0 2, class 1 2, ")
    assert line.endswith(" and 9,988 more")


@pytest.mark.slow
def test_ten_thousand_classes_are_learned_and_what_is_dropped_is_said(tiny_model, tmp_path):
    path, dev = of_many_classes(tmp_path / "a.csv", 10_000), of_many_classes(tmp_path / "dev.csv", 40)
    how = {"train": path, "dev": dev, "epochs": 1, "batch_size": 256, "max_length": 8}
    done = bertsmith.finetune("classify", tiny_model, tmp_path / "run", **how)
    assert len(done.details.dev.classes) == 10_000
    assert done.details.dev.confusion is None
    said = "10,000 labels are too many for a confusion matrix, which has 500 at most"
    assert done.details.dev.remarks[-1] == said
    assert said in done.report.read_text(encoding="utf-8")
