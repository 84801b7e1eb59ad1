"""What the command line sets for torch and OpenMP before they are loaded."""

import os
import subprocess
import sys

import pytest

from bertsmith.cli import ENVIRONMENT, main

PAST_A_PAGE = """
import os, torch
tensors = [torch.empty(3 << 20, dtype=torch.uint8) for _ in range(4)]
print(*(tensor.data_ptr() % os.sysconf("SC_PAGE_SIZE") for tensor in tensors))
"""


def test_what_you_set_yourself_stays(monkeypatch, capsys):
    spin, pages = ENVIRONMENT
    monkeypatch.setenv(spin, "7")
    monkeypatch.delenv(pages)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert (os.environ[spin], os.environ[pages]) == ("7", "1")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="huge pages are a matter of Linux")
@pytest.mark.parametrize(("switch", "aligned"), [("1", True), ("0", False)])
def test_torch_still_knows_the_switch_for_huge_pages(switch, aligned):
    """A switch that a later torch no longer reads would do nothing, unnoticed."""
    environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": switch}
    found = subprocess.run([sys.executable, "-c", PAST_A_PAGE], capture_output=True, check=True, env=environment)
    assert all(int(past) == 0 for past in found.stdout.split()) is aligned
