"""What the command line sets for torch, OpenMP and oneDNN before they are loaded."""

import os
import subprocess
import sys

import pytest

from bertsmith.cli import ENVIRONMENT, main
from bertsmith.kernels.matmul import has_packed_kernels

PAST_A_PAGE = """
import os, torch
tensors = [torch.empty(3 << 20, dtype=torch.uint8) for _ in range(4)]
print(*(tensor.data_ptr() % os.sysconf("SC_PAGE_SIZE") for tensor in tensors))
"""

THREE_MATMULS_OF_TWO_SHAPES = """
import torch
for rows in (32, 48, 32):
    torch.ops.mkldnn._linear_pointwise(torch.ones(rows, 64), torch.ones(64, 64), None, "none", [], "")
"""

HUNDREDS_OF_SHAPES = """
import re, torch
def memory():
    # 不用 getrusage：它的峰值从启动它的进程继承而来
    return int(re.findall(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[0])
torch.set_num_threads(1)
weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(1536, 384))
begun = memory()
for rows in range(300, 800):
    torch.ops.mkldnn._linear_pointwise(torch.ones(rows, 384), weight, None, "none", [], "")
print((memory() - begun) // 1024)
"""


def test_what_you_set_yourself_stays(monkeypatch, capsys):
    spin, pages, *_ = ENVIRONMENT
    monkeypatch.setenv(spin, "7")
    monkeypatch.delenv(pages)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert (os.environ[spin], os.environ[pages]) == ("7", "1")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="huge pages are a matter of Linux")
@pytest.mark.parametrize(("switch", "aligned"), [("1", True), pytest.param("0", False, marks=pytest.mark.slow)])
def test_torch_still_knows_the_switch_for_huge_pages(switch, aligned):
    """A switch that a later torch no longer reads would do nothing, unnoticed."""
    environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": switch}
    found = subprocess.run([sys.executable, "-c", PAST_A_PAGE], capture_output=True, check=True, env=environment)
    assert all(int(past) == 0 for past in found.stdout.split()) is aligned


@pytest.mark.skipif(not has_packed_kernels(), reason="torch has no oneDNN here")
@pytest.mark.parametrize(("capacity", "compiled"), [pytest.param("1", 3, marks=pytest.mark.slow), ("64", 2)])
def test_onednn_still_knows_how_many_shapes_to_keep(capacity, compiled):
    environment = {
        **os.environ,
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": capacity,
        "ONEDNN_VERBOSE": "profile_create",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", THREE_MATMULS_OF_TWO_SHAPES]
    found = subprocess.run(command, capture_output=True, check=True, env=environment, text=True)
    lines = found.stdout.splitlines()
    assert sum("create:cache_miss" in line and ",inner_product," in line for line in lines) == compiled, found.stdout


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's figures of memory")
@pytest.mark.skipif(not has_packed_kernels(), reason="torch has no oneDNN here")
def test_torch_still_knows_how_many_shapes_to_keep_besides():
    """A server's batches come in hundreds of shapes: with torch's own 1,024 its memory grew by the minute."""
    grown = []
    for kept in (ENVIRONMENT["LRU_CACHE_CAPACITY"], "1024"):
        environment = {**os.environ, **ENVIRONMENT, "LRU_CACHE_CAPACITY": kept}
        found = subprocess.run(
            [sys.executable, "-c", HUNDREDS_OF_SHAPES], capture_output=True, check=True, env=environment
        )
        grown.append(int(found.stdout))
    assert grown[0] < 0.7 * grown[1], grown
