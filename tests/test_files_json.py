"""Dataclasses as JSON files: what is written is read again, and every fault of a file is one line with the way out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from bertsmith.errors import CheckpointError, ConfigError, RunFolderError
from bertsmith.files import from_json, read_json, to_json, write_json


@dataclass(frozen=True)
class Score:
    mean: float
    kind: Literal["dev", "test"] = "dev"


@dataclass(frozen=True)
class Result:
    name: str
    scores: Mapping[str, Score]
    labels: dict[int, str]
    pair: tuple[float, int]
    rows: list[list[int]] | None = None
    best: Score | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    cached: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name is empty")


RESULT = Result(
    "小", {"a": Score(0.1), "b": Score(2, "test")}, {0: "x", 1: "y"}, (1.5, 2), [[1], []], Score(3.0), {"k": [1]}
)


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, RESULT)
    assert "小" in path.read_text(encoding="utf-8")
    assert read_json(path, Result, RunFolderError, "") == RESULT


def test_numbers_of_numpy_and_nothing_that_is_derived():
    found = to_json(Result("a", {}, {}, (np.float32(0.5), np.int64(3)), cached=object()))
    assert found["pair"] == [0.5, 3]
    assert "cached" not in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON at line 1"),
        ('{"name": "a",', "not JSON"),
        ("[1]", "the whole is .1., not an object"),
        ('{"name": "a"}', "scores is missing"),
        ('{"name": 1, "scores": {}, "labels": {}, "pair": [1, 2]}', "name is 1, not text"),
        (
            '{"name": "a", "scores": {"x": {"mean": "1"}}, "labels": {}, "pair": [1, 2]}',
            'scores.x.mean is "1", not a num',
        ),
        ('{"name": "a", "scores": {"x": {"mean": true}}, "labels": {}, "pair": [1, 2]}', "not a number"),
        (
            '{"name": "a", "scores": {"x": {"mean": 1, "kind": "train"}}, "labels": {}, "pair": [1, 2]}',
            "'dev' or 'test'",
        ),
        ('{"name": "a", "scores": {}, "labels": {"one": "x"}, "pair": [1, 2]}', "not a number as key"),
        ('{"name": "a", "scores": {}, "labels": {}, "pair": [1]}', "not a list of 2"),
        ('{"name": "a", "scores": {}, "labels": {}, "pair": [1, 2], "rows": [[1], 2]}', r"rows\[1\] is 2, not a list"),
        ('{"name": "a", "scores": {}, "labels": {}, "pair": [1, 2], "seconds": 3}', "seconds is unknown"),
        ('{"name": "", "scores": {}, "labels": {}, "pair": [1, 2]}', "name is empty"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_every_fault_is_one_line_with_the_way_out(tmp_path, text, reason):
    path = tmp_path / "result.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RunFolderError, match=reason) as caught:
        read_json(path, Result, RunFolderError, "choose another --out")
    message = str(caught.value)
    assert message.startswith(f"{path}: damaged (")
    assert message.endswith("; choose another --out")
    assert "\n" not in message


def test_files_that_are_no_text_or_no_files(tmp_path):
    path = tmp_path / "result.json"
    with pytest.raises(CheckpointError, match="is missing; look elsewhere"):
        read_json(path, Result, CheckpointError, "look elsewhere")
    path.write_bytes(b'{"name": "\xff"}')
    with pytest.raises(CheckpointError, match="not UTF-8 at byte 10"):
        read_json(path, Result, CheckpointError, "look elsewhere")
    with pytest.raises(CheckpointError, match="damaged"):
        read_json(tmp_path, Result, CheckpointError, "look elsewhere")
    with pytest.raises(CheckpointError, match="cannot be read .Not a directory.; check the path and its permissions"):
        read_json(path / "inner.json", Result, CheckpointError, "look elsewhere")


def test_plain_types():
    assert from_json(dict[str, Any], {"a": [1]}) == {"a": [1]}
    assert from_json(float, 3) == 3.0
    assert from_json(int | str, "x") == "x"
