"""A skip that is on no list fails the run: tried on a run of its own, with a copy of the plugin."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest

def test_passes():
    pass

@pytest.mark.skipif(True, reason="no such processor")
def test_may_be_skipped():
    pass

@pytest.mark.xfail(reason="known")
def test_may_be_expected_to_fail():
    assert False
"""
ANOTHER = """
def test_also_passes():
    pytest.skip("nobody looks")

@pytest.mark.xfail(reason="known")
def test_fails_as_expected():
    assert False
"""
MODULE = """
import pytest
pytest.importorskip("no_such_package", reason="not installed")
"""


def run_tests(folder, *more, **environment):
    """Runs the tests of a folder in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", folder]
    return subprocess.run(
        [*command, *more], check=False, capture_output=True, text=True, cwd=folder, env=kept | environment
    )


@pytest.mark.parametrize(
    ("files", "fails", "said"),
    [
        ({"test_a.py": TESTS}, False, []),
        (
            {"test_a.py": TESTS + ANOTHER, "test_b.py": MODULE},
            True,
            [
                "test_a.py::test_also_passes: Skipped: nobody looks",
                "test_a.py::test_fails_as_expected: expected to fail: known",
                "test_b.py: Skipped: not installed",
            ],
        ),
    ],
    ids=["only listed ones", "a test and a file besides"],
)
def test_only_listed_skips_let_a_run_pass(tmp_path, files, fails, said):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path / "conftest.py")
    (tmp_path / "listed.txt").write_text("# why\ntest_a.py::test_may_be_  # on some machines\n", encoding="utf-8")
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    ended = run_tests(tmp_path, BERTSMITH_EXPECTED_SKIPS=str(tmp_path / "listed.txt"))
    assert ended.returncode == int(fails), ended.stdout + ended.stderr
    lines = [line for line in ended.stdout.splitlines() if line.startswith("SKIPPED, and not expected to be: ")]
    assert [line.removeprefix("SKIPPED, and not expected to be: ") for line in lines] == said
