"""The log of a run: what was written is read, half a last line is left out, and damage is told with its line."""

import json

import pytest

from bertsmith.errors import RunFolderError
from bertsmith.train.monitor import MetricsLog, figures_before_training, read_metrics

ROWS = [
    {"kind": "heldout", "step": 0, "mlm_loss": 6.5, "perplexity": float("inf")},
    {"kind": "train", "step": 4, "tokens": 190, "mlm_loss": 5.25e-05, "mfu": 0.0},
    {"kind": "heldout", "step": 4, "mlm_loss": 4.125, "perplexity": None},
]


@pytest.fixture
def log(tmp_path):
    written = MetricsLog(tmp_path / "metrics.jsonl")
    for row in ROWS:
        written.append(row)
    return written.path


def test_rows_come_back_as_they_were_written_and_every_line_is_json(log):
    assert read_metrics(log) == ROWS
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [0, 4, 4]
    assert figures_before_training(log) == ROWS[0]


def test_no_flipped_bit_of_a_log_changes_a_figure(log):
    """Two bits of every byte, the highest among them: with it the byte is no ASCII any more."""
    content = log.read_bytes()
    for place in range(len(content)):
        for bit in {7, place % 7}:
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            log.write_bytes(damaged)
            said = ""
            try:
                assert read_metrics(log) == ROWS, (place, bit)
            except RunFolderError as error:
                said = str(error)
            # 行尾坏了，两行并成一行，说的是前一行
            line = content[:place].count(b"\n") + 1
            assert not said or f"metrics.jsonl: line {line} is damaged; " in said, (place, bit)


def test_a_line_of_a_log_that_is_nested_without_end_is_damaged(log):
    log.write_bytes(log.read_bytes() + b"[" * 200_000 + b"\n")
    with pytest.raises(RunFolderError, match=rf"metrics\.jsonl: line {len(ROWS) + 1} is damaged"):
        read_metrics(log)


def test_a_log_cut_off_anywhere_has_the_rows_before(log):
    content = log.read_bytes()
    for length in range(len(content)):
        log.write_bytes(content[:length])
        # 只缺行尾的一行是完整的
        assert read_metrics(log) == ROWS[: content[: length + 1].count(b"\n")]


def test_logs_of_versions_without_checksums_are_read_and_gone_on_with(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[:2]) + '{"kind": "tr')
    assert read_metrics(path) == ROWS[:2]
    MetricsLog(path, keep_bytes=path.stat().st_size - 12).append(ROWS[2])
    assert read_metrics(path) == ROWS


def test_a_log_without_the_first_figures_says_so(tmp_path):
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl: holds no held-out figures of step 0"):
        figures_before_training(tmp_path / "metrics.jsonl")
