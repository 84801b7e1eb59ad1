"""The campaign of kills covers every command that promises to resume, and ends with a table."""

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
