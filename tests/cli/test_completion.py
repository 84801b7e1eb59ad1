"""The Tab key: what a real bash completes once the script of `--show-completion` is read."""

import shutil
import stat
import subprocess
import sys

import pytest


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(tmp_path):
    program = tmp_path / "bertsmith"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom bertsmith.cli import main\n\nmain()\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    script = """
        PATH="$1:$PATH"
        eval "$(bertsmith --show-completion bash)"
        COMP_WORDS=(bertsmith fine) COMP_CWORD=1
        _bertsmith_completion bertsmith; echo "${COMPREPLY[@]}"
        COMP_WORDS=(bertsmith predict --cl) COMP_CWORD=2
        _bertsmith_completion bertsmith; echo "${COMPREPLY[@]}"
    """
    done = subprocess.run(["bash", "-c", script, "bash", str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["finetune", "--class-thresholds"]
