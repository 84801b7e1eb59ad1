import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_example_runs():
    command = [sys.executable, str(EXAMPLES / "bert_in_forty_lines.py"), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if line.endswith("%")]) == 5
