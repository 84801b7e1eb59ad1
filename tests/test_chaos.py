"""The campaign of kills finds what it looks for: a trial of a command that resumes, and of one that would not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import chaos
from bertsmith.cli import _RESUMING


def test_every_command_that_promises_to_resume_is_killed():
    killed = [command.words for command in chaos.COMMANDS]
    assert [name for name in _RESUMING if not any(words.startswith(f"{name} ") for words in killed)] == []


@pytest.mark.slow
def test_a_campaign_ends_with_a_table_and_a_line_a_trial(tmp_path):
    script = Path(chaos.__file__)
    words = [sys.executable, script, "--minutes", "0.01", "--only", "corpus", "--out", tmp_path / "chaos"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = (tmp_path / "chaos/trials.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["outcome"] == "same"
    assert row["undisturbed"] > 0
    assert "| corpus | 1 |" in ended.stdout


@pytest.mark.slow
def test_a_command_that_forgets_ends_differently_and_one_that_refuses_is_told(tmp_path):
    script = tmp_path / "command.py"
    script.write_text(
        "import sys, time, pathlib\n"
        "out = pathlib.Path(sys.argv[2]); started = out / 'started'\n"
        "if started.exists() and sys.argv[1] == 'refuses': sys.exit('error: was here before')\n"
        "again = started.exists(); started.touch(); time.sleep(0.5)\n"
        "(out / 'made').write_text('again' if again else 'once')\n"
    )

    class Own(chaos.Command):
        def arguments(self, inputs, out):
            return [sys.executable, str(script), self.words, str(out)]

    for words, outcome, message in (("forgets", "different", "made"), ("refuses", "refused", "error: was here before")):
        command = Own("own", words, ("made",))
        expected, _ = chaos.run_undisturbed(command, tmp_path, tmp_path / "trial")
        # 总在写下「来过」之后、写出结果之前杀掉
        moments = type("Moments", (), {"uniform": lambda *_: 0.3, "random": lambda _: 1.0})()
        trial = chaos.run_trial(command, tmp_path, tmp_path / "trial", expected, 1.0, moments)
        assert trial.outcome == outcome
        assert trial.kills >= 1
        assert trial.message == message
