"""What was read of the files of a run is said on the console, kept in its folder, and shown in its report and card."""

import io
import json
import re
from html import unescape

import pytest
from rich.console import Console

import bertsmith
from bertsmith.errors import InputError, RunFolderError
from bertsmith.finetune.reading import READING_FILE, FilesRead
from bertsmith.finetune.report import write_report
from typed_command import typed

ROWS = [
    (n, f"the man reads book {'abcdefghij'[n % 10] * (n // 10 + 1)}", "good" if n % 3 else "bad") for n in range(30)
]
LONG = "the man reads a book " * 20
FORM = "CSV with ',' between its columns, utf-8, with a header"
COLUMNS = "columns: text from Review Text, label from Verdict; not read: no"
NOTES = [
    "r.csv: reads text from Review Text, label from Verdict: found by names and content",
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
    done = bertsmith.finetune("classify", tiny_model, out, **how)
    split = json.loads((out / "split.json").read_text(encoding="utf-8"))
    told = [
        ("train", f"r.csv: {FORM}; 32 rows for classify"),
        ("train", COLUMNS),
        ("train", "2 labels: good 21, bad 11"),
        ("train", bertsmith.look(reviews, model=tiny_model).length_line),
        ("train", "repeated: 1 rows stand twice"),
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
