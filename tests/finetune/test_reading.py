"""What was read of the files of a run is said on the console, kept in its folder, and shown in its report and card."""

import io
import json
import re
import warnings
from html import unescape
from pathlib import Path

import fsspec
import pytest
from rich.console import Console

import bertsmith
from bertsmith.data.reading import sources
from bertsmith.errors import InputError, RunFolderError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.reading import READING_FILE, FilesRead, noted, tell_files
from bertsmith.finetune.report import write_report
from bertsmith.finetune.tasks import task_named
from typed_command import typed

ROWS = [
    (n, f"the man reads book {'abcdefghij'[n % 10] * (n // 10 + 1)}", "good" if n % 3 else "bad") for n in range(30)
]
LONG = "the man reads a book " * 20
FORM = "CSV with ',' between its columns, utf-8, with a header"
COLUMNS = "columns: text from Review Text, label from Verdict; not read: no"
NOTES = [
    "r.csv: columns found by names and content",
    "r.csv: left out 1 rows: line 32 has an empty label",
]


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "my data" / "r.csv"
    path.parent.mkdir()
    rows = [*ROWS, (30, "an unlabelled review", ""), (31, LONG, "good"), (32, ROWS[0][1], "bad")]
    path.write_text("no,Review Text,Verdict\n" + "".join(f"{n},{text},{label}\n" for n, text, label in rows))
    return path


@pytest.mark.filterwarnings("ignore:.*r.csv")
def test_what_was_read_is_said_kept_and_shown(reviews, tiny_model, tmp_path):
    screen, out = Console(file=io.StringIO(), width=80), tmp_path / "run"
    how = {"train": reviews, "epochs": 1, "faults": "skip", "console": screen}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = bertsmith.finetune("classify", tiny_model, out, **how)
    lines = [*screen.file.getvalue().splitlines(), *(str(one.message) for one in caught)]
    assert [line for line in lines if "Review Text" in line] == [COLUMNS]
    split = json.loads((out / "split.json").read_text(encoding="utf-8"))
    told = [
        ("train", f"r.csv: {FORM}; 32 rows for classify"),
        ("train", COLUMNS),
        ("train", "2 labels: good 21, bad 11"),
        ("train", bertsmith.look(reviews, model=tiny_model).length_line),
        ("train", "repeated: 1 rows are duplicates"),
        ("division", "r.csv is divided, classes evenly, equal and almost equal texts together: "
         f"{len(split['train'])} for train, {len(split['dev'])} for dev"),
        *(("note", note) for note in NOTES),
    ]  # fmt: skip
    assert told[3][1].endswith("1 are longer than the model reads (32), and would be cut")
    assert screen.file.getvalue().splitlines()[:5] == [line for _, line in told[:5]]
    assert f"no --dev: {told[5][1]}; see {out / 'split.json'}" in screen.file.getvalue()
    assert FilesRead.of_run(out).lines == told
    card = (done.model_folder / "README.md").read_text(encoding="utf-8")
    assert "".join(f"- {part}: `{line}`\n" for part, line in told) in card
    page = write_report(out).read_text(encoding="utf-8")
    first, rest = page.split("<h2>")[1:3]
    assert first.startswith("What was read</h2>")
    assert rest.startswith("Figures</h2>")
    cells = [unescape(cell) for cell in re.findall(r"<td.*?>(.*?)</td>", first)]
    assert cells == [cell for line in told for cell in line]
    assert str(tmp_path) not in first + card[card.index("## Data") : card.index("## Scores")]
    (out / READING_FILE).write_text("{}")
    with pytest.raises(RunFolderError, match=r"reading\.json: damaged .*; remove it"):
        write_report(out)


def test_what_is_warned_of_is_warned_of_all_the_same(reviews, tiny_model, tmp_path):
    how = {"train": reviews, "dev": reviews, "epochs": 1}
    with (
        pytest.warns(UserWarning, match="reads text from Review Text, label from Verdict"),
        pytest.raises(InputError, match="line 32 has an empty label"),
    ):
        bertsmith.finetune("classify", tiny_model, tmp_path / "run", **how)
    with pytest.warns(UserWarning, match="r.csv: left out 1 rows: line 32 has an empty label"):
        bertsmith.finetune("classify", tiny_model, tmp_path / "run", **how, faults="skip")
    assert FilesRead.of_run(tmp_path / "run").notes == tuple(NOTES)


def test_only_a_file_to_learn_from_has_too_few_of_a_label():
    rows = [{"text": f"text {n}", "label": label} for n, label in enumerate(("good", "good", "ugly"))]
    parts = dict.fromkeys(("train", "dev", "test", "data"), rows)
    examples = dict.fromkeys(parts, task_named("classify").spec.reader.read(rows))
    screen = Console(file=io.StringIO(), width=80)
    looks = tell_files("classify", parts, examples, ReadingOptions(), console=screen)
    told = [(part, line) for part, line in FilesRead(looks).lines if "labels" in line]
    few = "; once, which is too few to learn: ugly"
    assert told == [(part, "2 labels: good 2, ugly 1" + few * (part == "train")) for part in parts]
    assert [line for line in screen.file.getvalue().splitlines() if "labels" in line] == [line for _, line in told]


@pytest.mark.parametrize(
    ("source", "said", "note"),
    [
        ("/home/ann/x/sci/qrels/train.tsv", "/home/ann/x/sci: left out 2: /home/ann/x/sci/corpus.jsonl: line 3",
         "sci: left out 2: corpus.jsonl: line 3"),
        ("/home/ann/my texts", "left out '/home/ann/my texts/a/b.txt'", "left out 'my texts/a/b.txt'"),
        ("/home/ann/*/b.txt", "/home/ann/a/b.txt: line 3", "a/b.txt: line 3"),
        ("data/r.csv", "data/r.csv: 1/2 of old-data/r.csv", "r.csv: 1/2 of old-data/r.csv"),
        ("data/r.csv", f"{Path.cwd()}/data/r.csv: line 3", "r.csv: line 3"),
        ("../r.csv", "../r.csv: line 3", "r.csv: line 3"),
        ("r.csv", "r.csv: reads a/b from c", "r.csv: reads a/b from c"),
        ("/home/\udcff/gut\udcff.csv", "/home/\udcff/gut\udcff.csv: line 3", "gut\ufffd.csv: line 3"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_a_note_names_no_folder_of_this_machine(source, said, note):
    notes = []
    with noted(notes, [[{"text": "a"}], "/home/other.csv", source]):
        warnings.warn(said, stacklevel=1)
    assert notes == [note]


@pytest.mark.filterwarnings("ignore:.*left out 2")
def test_no_folder_of_this_machine_is_kept_of_a_beir_folder(tiny_model, tmp_path):
    folder = tmp_path / "ann" / "sci"
    (folder / "qrels").mkdir(parents=True)
    passages = [{"_id": "d1", "text": "the man"}, {"_id": "d2", "text": "a book"}, {"_id": "", "text": "bread"}]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in passages))
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "who"}\n{"_id": "q2", "text": "what"}\n')
    (folder / "qrels" / "train.tsv").write_text("q1\td1\t1\nq2\td2\t1\nq9\td1\t1\n")
    how = {"train": folder / "qrels" / "train.tsv", "dev": folder / "qrels" / "train.tsv", "faults": "skip"}
    done = bertsmith.finetune("embed", tiny_model, tmp_path / "run", **how, epochs=1)
    (note,) = FilesRead.of_run(tmp_path / "run").notes
    left_out = "corpus.jsonl: line 3 has an empty _id · train.tsv: judges query 'q9', which queries.jsonl lacks"
    assert note.startswith(f"sci: left out 2 judgements and texts: {left_out}; ")
    card = (done.model_folder / "README.md").read_text(encoding="utf-8")
    for kept in ((tmp_path / "run" / READING_FILE).read_text(), done.report.read_text(encoding="utf-8"), card):
        assert str(folder.parent) not in kept


URL = "memory://read-once/r.csv"


@pytest.mark.filterwarnings("ignore:.*r.csv")
def test_a_url_is_downloaded_once(reviews, tiny_model, tmp_path, monkeypatch):
    with fsspec.open(URL, "wb") as file:
        file.write(reviews.read_bytes())
    opened, open_source = [], sources.open_source
    monkeypatch.setattr(sources, "open_source", lambda name: opened.append(name) or open_source(name))
    found = bertsmith.look(URL)
    assert (found.first_line, found.notes[:1]) == (f"r.csv: {FORM}; 32 rows for classify", tuple(NOTES[:1]))
    assert opened.count(URL) == 1
    bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=URL, epochs=1, faults="skip")
    read = FilesRead.of_run(tmp_path / "run")
    assert (read.files["train"].form, read.files["train"].name, read.notes) == (FORM, "r.csv", tuple(NOTES))
    assert opened.count(URL) == 2
    bertsmith.evaluate(tmp_path / "run" / "model", URL, faults="skip", console=Console(quiet=True))
    assert opened.count(URL) == 3
    bertsmith.solve(URL, tmp_path / "solved", faults="skip")
    assert opened.count(URL) == 4
    with pytest.raises(InputError, match=f"^{URL}: line 32 has an empty label"):
        bertsmith.look(URL, task="classify", faults="refuse")


@pytest.mark.parametrize("command", ["finetune", "evaluate"])
@pytest.mark.filterwarnings("ignore:.*r.csv")
def test_every_command_begins_with_what_it_read(reviews, tiny_model, tmp_path, capsys, command):
    words = ["classify", "--train", reviews, "--dev", reviews, "--epochs", 1, "--out", tmp_path / "run"]
    said = typed(capsys, "finetune", *words, "--model", tiny_model, "--faults", "skip")
    if command == "evaluate":
        words = ["--model", tmp_path / "run" / "model", "--file", reviews, "--faults", "skip"]
        said = typed(capsys, "evaluate", *words)
    lines = said.splitlines()
    assert lines[:3] == [f"r.csv: {FORM}; 32 rows for classify", COLUMNS, "2 labels: good 21, bad 11"]
    assert lines[3].endswith("1 are longer than the model reads (32), and would be cut")
