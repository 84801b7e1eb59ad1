import gzip
import json
import re
import warnings

import pytest

from bertsmith.errors import InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.questions import QUESTIONS, Answer, QuestionExample

CONTEXT = "Denver won. The city is in Colorado."


def read(path, **how):
    return QUESTIONS.read(path, ReadingOptions(**how))


def skipped(path):
    """Returns the examples that are left, and the warning of the others."""
    with pytest.warns(UserWarning, match="left out") as caught:
        found = read(path, faults="skip")
    return found, str(caught[0].message)


def question(identity="q1", *answers, **more):
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": identity, "question": "Who won?", "answers": found, **more}


def write(tmp_path, *questions, context=CONTEXT, name="data.json", **layout):
    document = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    text = json.dumps(document, **layout)
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return tmp_path / name


def test_answers_and_no_answer(tmp_path):
    none = question("q2", is_impossible=True, plausible_answers=[{"text": "Denver", "answer_start": 0}])
    for name in ("data.json", "data.json.gz"):
        path = write(tmp_path, question("q1", ("Denver", 0), ("The city", 12)), none, name=name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            examples = read(path, faults="skip")
        answers = (Answer("Denver", 0), Answer("The city", 12))
        assert examples == [
            QuestionExample("q1", "Who won?", CONTEXT, answers),
            QuestionExample("q2", "Who won?", CONTEXT, ()),
        ]
        assert [example.is_impossible for example in examples] == [False, True]


def test_a_wrong_offset_is_refused_or_skipped_and_counted(tmp_path):
    questions = [question("q1", ("Denver", 1), ("Denver", 0)), question("q2", ("won", -3)), question("q3", ("won", 7))]
    path = write(tmp_path, *questions, indent=1)
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    place = next(n for n, text in enumerate(path.read_text().split("\n"), 1) if '"q1"' in text)
    assert f"data.json: line {place}, question 'q1': the passage has 'enver ' at character 1" in message
    examples, said = skipped(path)
    assert [(example.id, example.answers) for example in examples] == [
        ("q1", (Answer("Denver", 0),)),
        ("q3", (Answer("won", 7),)),
    ]
    # 一个错位的答案；另一题的答案错位，这一题也就没有答案了
    assert said.startswith(f"{path}: left out 3 questions and answers: line {place}, question 'q1': ")
    assert "question 'q2': none of its answers is left" in said
    path = write(tmp_path, question("q1", ("won", 7), question=" "), questions[2])
    examples, said = skipped(path)
    assert ([example.id for example in examples], said.count("empty question")) == (["q3"], 1)
    path = write(tmp_path, question("", ("won", 7)), questions[2])
    examples, said = skipped(path)
    assert [example.id for example in examples] == ["q3"]
    assert said == f"{path}: left out 1 questions and answers: data[0].paragraphs[0].qas[0] has no id"


@pytest.mark.parametrize(
    ("kind", "context", "start", "reason"),
    [
        ("utf16", "😀 Denver 🏈 won.", 13, "a character above U+FFFF counts as two"),
        ("utf8", "Där, in Denver, won.", 17, "bytes of UTF-8 are counted"),
        ("crlf", "Denver\nplayed\nand won.", 20, "a line end counts as two characters"),
    ],
)
def test_offsets_of_another_kind_are_named_and_read(tmp_path, kind, context, start, reason):
    path = write(tmp_path, question("q1", ("won", start)), context=context)
    with pytest.raises(InputError, match=rf"{re.escape(reason)}.*: pass --offsets {kind}"):
        read(path)
    (example,) = read(path, offsets=kind)
    assert example.answers == (Answer("won", context.index("won")),)
    wrong = write(tmp_path, question("q1", ("won", start + 1)), context=context)
    with pytest.raises(InputError, match="correct answer_start, or ask to skip such faults"):
        read(wrong)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([], "holds no question"),
        ([question("q1")], "question 'q1': it has no answers"),
        ([question("q1", ("Denver", 0), is_impossible=True)], "is_impossible and has answers"),
        ([question("q1", ("won", 7)), question("q1", ("won", 7))], "its id occurs twice"),
        ([question("q1", ("won", "7"))], 'an answer needs a "text" and an "answer_start"'),
        ([question("q1", ("", 0))], "it has an empty answer"),
        ([question("q1", ("won", 4_000))], "the passage has nothing at character 4000"),
        ([question("q1", ("won", 7), question=" ")], "question 'q1': it has an empty question"),
        ([question("", ("won", 7))], "data[0].paragraphs[0].qas[0] has no id"),
        (["what?"], "data[0].paragraphs[0].qas[0] has no id"),
    ],
)
def test_bad_questions_are_refused_with_file_and_line(tmp_path, questions, message):
    with pytest.raises(InputError, match="data.json: ") as caught:
        read(write(tmp_path, *questions))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_line_is_named_where_its_id_says_which(tmp_path):
    """Ids may be numbers, which occur elsewhere too, and answers may have ids (DRCD)."""
    numbered = write(tmp_path, question(7, ("won", 0)), indent=1)
    place = next(n for n, text in enumerate(numbered.read_text().split("\n"), 1) if '"id": 7' in text)
    numbered.write_text(numbered.read_text().replace("{", '{"version": 7,', 1))
    with pytest.raises(InputError, match=f"data.json: line {place}, question '7': the passage has"):
        read(numbered)
    both = question("q1", ("won", 0))
    both["answers"][0]["id"] = "q1"
    with pytest.raises(InputError, match="data.json: question 'q1': the passage has"):
        read(write(tmp_path, both, indent=1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [\n{"paragraphs": \n', "line 3 is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", 'the file has no list "data"'),
        (b'{"data": [{}]}', 'data[0] has no list "paragraphs"'),
        (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "data[0].paragraphs[0] has no context"),
        (b'{"data": [{"paragraphs": [{"context": "caf\xe9"}]}]}', "line 1 is not valid utf-8"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    (tmp_path / "data.json").write_bytes(content)
    with pytest.raises(InputError, match="data.json: ") as caught:
        read(tmp_path / "data.json", encoding="utf-8")
    assert message in str(caught.value)


def plain_count(path):
    rows = [
        paragraph["context"][answer["answer_start"] :].startswith(answer["text"])
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for entry in paragraph["qas"]
        for answer in entry["answers"]
    ]
    return len(rows), rows.count(False)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_xquad_is_read_whole(shared_data, language):
    path = shared_data / "tasks" / "xquad" / f"xquad.{language}.json"
    examples = read(path)
    assert (len(examples), 0) == (1190, 0) == plain_count(path)
    assert all(e.context[a.start : a.start + len(a.text)] == a.text for e in examples for a in e.answers)


def test_the_faults_of_cmrc_are_found(shared_data):
    path = shared_data / "tasks" / "cmrc2018" / "trial.json"
    with pytest.raises(InputError, match=r"trial.json: line \d+, question 'TRIAL_\d+_QUERY_\d+': the passage has"):
        read(path)
    examples, said = skipped(path)
    assert plain_count(path) == (1002, 5)
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    questions = [q for article in articles for paragraph in article["paragraphs"] for q in paragraph["qas"]]
    empty = [q["id"] for q in questions if not q["question"].strip()]
    assert len(empty) == 2
    left = {example.id for example in examples}
    lost = [q["id"] for q in questions if q["id"] not in left]
    # 每题一个答案：五个错位的各占两行（答案、没有答案的题），两题没有题面
    assert (set(empty) <= set(lost), len(lost), len(examples)) == (True, 7, 995)
    assert "left out 12 questions and answers" in said


def test_a_passage_without_text_is_a_fault_like_others(tmp_path):
    good = {"context": CONTEXT, "qas": [question("q1", ("Denver", 0))]}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": " ", "qas": [question("q0")]}, good]}]}))
    with pytest.raises(InputError, match=r"data\[0\]\.paragraphs\[0\] has an empty context"):
        read(path)
    examples, said = skipped(path)
    assert [one.id for one in examples] == ["q1"]
    assert "data[0].paragraphs[0] has an empty context" in said
    rows = [{"context": text, **question(name, ("Denver", 0))} for name, text in (("q0", ""), ("q1", CONTEXT))]
    with pytest.warns(UserWarning, match="left out 1 questions and answers: .*the row has an empty context"):
        assert [one.id for one in QUESTIONS.read(rows, ReadingOptions(faults="skip"))] == ["q1"]
