"""`bertsmith learn` at a terminal, in a pipe, and with wrong input."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertsmith.cli import main


class Typed(io.StringIO):
    """What somebody types at a terminal; its end is the end of input."""

    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty data home, English, 80 columns, and standard input that would fail if anybody read it."""
    for name in ("LC_ALL", "LC_MESSAGES", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    folders = {"XDG_DATA_HOME": tmp_path / "data", "XDG_CACHE_HOME": tmp_path / "cache"}
    for name, value in {"LANG": "C.UTF-8", "COLUMNS": "80", "TERM": "dumb", **folders}.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path / "data" / "bertsmith" / "learn.json"


@pytest.fixture
def run(capsys):
    def run(*words, code=0):
        with pytest.raises(SystemExit) as caught:
            main(["learn", *map(str, words)])
        output = capsys.readouterr()
        assert caught.value.code == code, output.err
        return output.err if code else output.out

    return run


@pytest.fixture
def type_in(run, monkeypatch):
    """Runs with a terminal on both ends."""

    def type_in(typed, *words):
        monkeypatch.setattr(sys, "stdin", Typed(typed))
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        return run(*words)

    return type_in


def test_reading_goes_on_where_it_stopped(run):
    first = run()
    assert "1  Why" in first
    assert "village model that comes with bertsmith" in first
    assert "bertsmith.model.attention.MultiHeadSelfAttention" in first
    assert next(line for line in run("--list").splitlines() if "✓" in line).startswith("1")
    assert "4  Fine-tuning" in run("fine-tuning")
    assert "2  Input and architecture" in run()


def test_all_is_read(run, home):
    home.parent.mkdir(parents=True)
    names = ("why", "architecture", "pre-training", "fine-tuning", "experiments", "details", "families")
    read = {name: {"read": True} for name in names}
    home.write_text(json.dumps({"format": 2, "cards": {}, "lessons": read}))
    assert run().count("✓") == 7
    shown = run("--model", "anything", code=2)
    assert shown.count("\n") == 1
    assert "all parts are read" in shown
    assert "bertsmith learn 1 --model" in shown


def test_chinese_by_the_environment(run, monkeypatch):
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "微调" in run("4")
    assert run("4", "--language", "en").startswith("\n4  Fine-tuning")


def test_ones_own_model(run, tiny_model):
    assert str(tiny_model) in run("1", "--model", tiny_model).replace("\n  ", " ").replace("\n", "")


@pytest.mark.parametrize(("what", "shown"), [("--quiz", "→ c  All of them."), ("--cards", "K vectors of length H")])
def test_in_a_pipe_everything_is_printed(run, home, what, shown):
    assert shown in run("4", what)
    assert not home.exists()


def test_a_pipe_that_never_ends_is_not_waited_for():
    reader, writer = os.pipe()
    try:
        command = [sys.executable, "-m", "bertsmith", "learn", "4", "--quiz"]
        shown = subprocess.run(command, stdin=reader, capture_output=True, text=True, timeout=300, check=True)
    finally:
        os.close(writer)
    assert "All of them." in shown.stdout


@pytest.mark.slow
def test_an_output_that_cannot_write_chinese():
    command = [sys.executable, "-m", "bertsmith", "learn", "4", "--language", "zh"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert "2,307" in shown.stdout


def test_a_quiz_at_a_terminal(type_in, home):
    shown = type_in("c\nx\nA\na\nb\n", "4", "--quiz")
    assert shown.count("Right.") == 3
    assert "One of a, b, c." in shown
    assert "Not quite:" in shown
    assert "3 of 4 right." in shown
    assert json.loads(home.read_text())["lessons"]["fine-tuning"]["quiz"] == [3, 4]


def test_the_quiz_of_all_parts_goes_through_all(type_in, home):
    type_in("a\n" * 40, "--quiz")
    assert len(json.loads(home.read_text())["lessons"]) == 7


def test_the_end_of_input_ends_kindly(type_in, home):
    assert "Stopped here; finished parts and answered cards are kept." in type_in("c\n", "4", "--quiz")
    assert "Stopped here" in type_in("", "4", "--cards")
    assert "Stopped here" in type_in("\n", "4", "--cards")
    assert not home.exists()


def test_cards_at_a_terminal(type_in, home):
    shown = type_in("\n3\n\nno\n1\n", "4", "--cards")
    assert "K vectors of length H" in shown
    assert "A number from 1 to 4." in shown
    assert "Again in 1 day(s)." in shown
    kept = json.loads(home.read_text())["cards"]
    good, again = (review["stability"] for review in kept.values())
    assert good > again
    # the two that were asked are not due before tomorrow
    assert "[1/3]" in type_in("", "4", "--cards")
    type_in("\n3\n\n3\n\n3\n", "4", "--cards")
    assert "No card is due." in type_in("", "4", "--cards")


def test_exercises_at_a_terminal(type_in):
    shown = type_in("no idea\n2,052\n7\n", "4", "--exercises")
    assert "A number, such as" in shown
    assert shown.count("Right.") == shown.count("Not quite:") == 1
    assert "Stopped here" in type_in("", "4", "--exercises")


def test_a_lesson_leaves_its_pictures_and_says_where(run, tmp_path):
    shown = run("3", "--language", "zh").replace("\n", "")
    saved = sorted((tmp_path / "cache/bertsmith/pictures").iterdir())
    drawn = ("learning_curve", "masking", "one_example")
    assert [path.name for path in saved] == [f"3-pre-training-{id}.zh.svg" for id in drawn]
    assert all(str(path) in shown for path in saved)


def test_pictures_that_cannot_be_kept_do_not_end_the_lesson(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    shown = run("3")
    assert str(tmp_path / "file")[:20] in shown
    assert "In the code" in shown


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--pictures"], ["4-fine-tuning-head_sizes.en.svg"]),
        (["--notebooks", "--language", "zh"], ["4-fine-tuning.zh.ipynb"]),
    ],
)
def test_what_is_written_is_said(run, tmp_path, words, names):
    option, *rest = words
    shown = run("4", option, tmp_path / "out", *rest)
    assert [path.name for path in (tmp_path / "out").iterdir()] == names
    assert shown == "".join(f"{tmp_path / 'out' / name}\n" for name in names)


def test_cards_for_anki(run, tmp_path):
    assert run("--anki", tmp_path / "cards.txt") == f"{tmp_path / 'cards.txt'}: 37 cards\n"


def test_a_real_terminal(home):
    command = [sys.executable, "-m", "bertsmith", "learn", "4", "--quiz"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command)
    shown, typed, end = b"", [b"c\n", b"\x04"], time.monotonic() + 300
    while time.monotonic() < end:
        if not select.select([terminal], [], [], 0.5)[0]:
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        shown += chunk
        if not chunk:
            break
        if b"a/b/c? " in shown[-16:] and typed:
            os.write(terminal, typed.pop(0))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = shown.decode()
    assert "Right." in text
    assert "Stopped here" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["8"], "there is no part '8'"),
        ([""], "there is no part ''"),
        (["why", "--quiz", "--cards"], "choose one"),
        (["--pictures", "a", "--anki", "b"], "--pictures and --anki are 2 things; choose one"),
        (["1", "--anki", "/dev/null/cards.txt"], "/dev/null/cards.txt"),
        (["1", "--notebooks", "/dev/null/books"], "/dev/null/books"),
        (["--anki", "x", "--model", "y"], "leave it out here"),
        (["1", "--list"], "leave the part out"),
        (["1", "--quiz", "--model", "x"], "leave it out here"),
        (["1", "--model", "no-such-folder"], "no-such-folder"),
        (["1", "--language", "fr"], "fr"),
        (["1", "--progress", "/"], "it is no plain file"),
        (["\udcff"], "there is no part"),
    ],
)
def test_wrong_input_is_one_line(run, words, message):
    shown = run(*words, code=2)
    assert message in shown
    assert shown.count("\n") == 1


def test_damaged_progress_is_one_line_and_stays(run, tmp_path):
    path = tmp_path / "learn.json"
    path.write_text('{"format": 1, "cards": {')
    shown = run("1", "--progress", path, code=2)
    assert shown.count("\n") == 1
    assert "damaged" in shown
    assert path.read_text() == '{"format": 1, "cards": {'


def test_the_command_imports_nothing_heavy():
    check = (
        "import sys; import bertsmith_school.commands.learn; "
        "sys.exit(bool({'torch', 'numpy', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_the_guides_name_the_same_commands():
    pages = [Path(__file__).parents[3] / f"docs/{language}/how-to/learn.md" for language in ("en", "zh")]
    english, chinese = (page.read_text(encoding="utf-8") for page in pages)
    assert english.count("bertsmith learn") == chinese.count("bertsmith learn")
