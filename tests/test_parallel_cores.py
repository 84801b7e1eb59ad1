"""How many cores a process may use is what its machine or container allows."""

import os

import pytest

from bertsmith import parallel


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("5000 100000", 1),
        ("6400000 100000", 8),
        ("", 8),
        ("many 1", 8),
        ("1 0", 8),
    ],
)
def test_a_quota_counts_besides_the_cores(text, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(parallel, "_QUOTA", tmp_path / "cpu.max")
    assert parallel.available_cores() == 8
    (tmp_path / "cpu.max").write_text(text, encoding="ascii")
    assert parallel.available_cores() == expected
