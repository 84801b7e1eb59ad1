"""Bulk embedding: a row for every line, the same bytes after any number of kills, one line for what is wrong."""

import gzip
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from bertsmith.errors import BertsmithError, CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.inference import embed_files as module
from bertsmith.inference import load_pipeline
from bertsmith.inference.embed_files import EmbedSettings, embed_files
from typed_command import typed

WORDS = ["the", "man", "eats", "bread", ".", "the", "woman", "reads", "a", "book", "!"]


def lines_of(count):
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 9))) for _ in range(count)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines_of(50)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(module, "PART", 8)


def test_rows_are_the_pipelines_vectors_in_the_order_of_the_lines(text, tiny_model, tmp_path, small_parts):
    seen = []
    found = embed_files([text], tiny_model, tmp_path / "x.npy", on_progress=lambda *row: seen.append(row))
    vectors = np.load(tmp_path / "x.npy")
    assert (found.rows, found.blank, found.width) == (50, 0, 64)
    np.testing.assert_allclose(vectors, load_pipeline("embed", tiny_model)(lines_of(50)), atol=1e-6)
    assert seen[-1] == (50, 50)
    assert not (tmp_path / "x.npy.parts").exists()


def test_a_blank_line_keeps_its_row_and_is_like_nothing(tiny_model, tmp_path):
    (tmp_path / "a.txt").write_text("the man\n\n   \nthe woman", encoding="utf-8")
    found = embed_files([tmp_path / "a.txt"], tiny_model, tmp_path / "x.npy")
    vectors = np.load(tmp_path / "x.npy")
    assert (found.rows, found.blank) == (4, 2)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 0, 1], abs=1e-6)


def test_parquet_holds_the_same_vectors(text, tiny_model, tmp_path, small_parts):
    embed_files([text], tiny_model, tmp_path / "x.npy")
    embed_files([text], tiny_model, tmp_path / "x.parquet")
    column = pq.read_table(tmp_path / "x.parquet")["vector"]
    np.testing.assert_array_equal(np.array(column.to_pylist(), dtype=np.float32), np.load(tmp_path / "x.npy"))


def test_settings_reach_the_vectors(text, tiny_model, tmp_path):
    settings = EmbedSettings(pooling="max", normalize=False, dims=10, precision="float32")
    embed_files([text], tiny_model, tmp_path / "x.npy", settings)
    embed = load_pipeline("embed", tiny_model, precision="float32")
    expected = embed(lines_of(50), pooling="max", normalize=False, dims=10)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-6)


COMPUTED = """
import sys
import torch
from bertsmith import parallel
from bertsmith.inference import embed_files as module
module.PART = 8
torch.set_num_threads(2)
torch.ones(999, 999) @ torch.ones(999, 999)
parallel.available_cores = module.available_cores = lambda: 4
module.embed_files(sys.argv[3:], sys.argv[1], sys.argv[2], workers=2)
"""


@pytest.mark.slow
def test_several_files_by_several_processes_give_the_same_bytes(text, tiny_model, tmp_path, small_parts):
    """By a script without a guard, which has computed with threads: a fork of it would wait for these for ever."""
    with gzip.open(tmp_path / "more.txt.gz", "wt", encoding="utf-8") as handle:
        handle.write("the woman eats\r\nthe book\r\n")
    (tmp_path / "script.py").write_text(COMPUTED, encoding="utf-8")
    files = [text, tmp_path / "more.txt.gz"]
    embed_files(files, tiny_model, tmp_path / "one.npy")
    command = [sys.executable, tmp_path / "script.py", tiny_model, tmp_path / "two.npy", *files]
    subprocess.run(command, check=True, timeout=300)
    assert np.load(tmp_path / "one.npy").shape == (52, 64)
    assert (tmp_path / "one.npy").read_bytes() == (tmp_path / "two.npy").read_bytes()


KILLED = """
import sys
from bertsmith.inference import embed_files as module
module.PART = 4
original = module._FileWork._embed
def slow(self, texts):
    import time
    time.sleep(0.02)
    return original(self, texts)
module._FileWork._embed = slow
module.embed_files([sys.argv[1]], sys.argv[2], sys.argv[3])
"""


def test_resume_after_kill_gives_the_same_bytes(text, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART", 4)
    embed_files([text], tiny_model, tmp_path / "whole.npy")
    out = tmp_path / "x.npy"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(text), str(tiny_model), str(out)])
    parts = tmp_path / "x.npy.parts"
    deadline = time.monotonic() + 60
    while len(list(parts.glob("[0-9]*.npy"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    assert (parts / "request.json").is_file()
    embed_files([text], tiny_model, out)
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()


KILLED_AT_THE_END = """
import os, signal, sys
from bertsmith.inference import embed_files as module
module.PART = 4
original, calls = module._Part.read, []
def dies(self, width):
    calls.append(1)
    if len(calls) == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, width)
module._Part.read = dies
module.embed_files(sys.argv[3:], sys.argv[1], sys.argv[2], workers=2)
"""


def test_resume_after_a_kill_while_parts_are_put_together_gives_the_same_bytes(text, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PART", 4)
    (tmp_path / "more.txt").write_text("\n".join(lines_of(9)), encoding="utf-8")
    files = [text, tmp_path / "more.txt"]
    out = tmp_path / "out" / "x.npy"
    child = [sys.executable, "-c", KILLED_AT_THE_END, tiny_model, out, *files]
    ended = subprocess.run(child, check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not out.exists()
    assert list(out.parent.glob(".x.npy.*.tmp")), "a half of the output is there"
    embed_files(files, tiny_model, out)
    embed_files(files, tiny_model, tmp_path / "whole.npy")
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert [path.name for path in out.parent.iterdir()] == ["x.npy"]


@pytest.fixture
def broken_off(text, tiny_model, tmp_path, small_parts, monkeypatch):
    """An output of which four of seven parts are made."""
    original, calls = module._FileWork._embed, []

    def dies(self, texts):
        calls.append(1)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return original(self, texts)

    with monkeypatch.context() as patch:
        patch.setattr(module._FileWork, "_embed", dies)
        with pytest.raises(KeyboardInterrupt):
            embed_files([text], tiny_model, tmp_path / "x.npy")
    return tmp_path / "x.npy"


def test_what_is_there_is_told_first_and_not_computed_again(broken_off, text, tiny_model, tmp_path):
    embed_files([text], tiny_model, tmp_path / "whole.npy")
    seen = []
    embed_files([text], tiny_model, broken_off, on_progress=lambda *row: seen.append(row))
    assert seen == [(32, 50), (40, 50), (48, 50), (50, 50)]
    assert broken_off.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_folder_in_the_place_of_the_output_is_refused_at_once(text, tiny_model, tmp_path):
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(RunFolderError, match=r"x\.npy: is a folder"):
        embed_files([text], tiny_model, tmp_path / "x.npy")
    assert not (tmp_path / "x.npy.parts").exists()


def test_another_request_does_not_mix_with_the_one_broken_off(broken_off, text, tiny_model):
    with pytest.raises(RunFolderError, match=r"another request \(dims\)"):
        embed_files([text], tiny_model, broken_off, EmbedSettings(dims=8))


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt", "1_Pooling/config.json"])
def test_another_state_of_the_model_does_not_mix_with_the_one_broken_off(name, broken_off, text, tiny_model):
    (tiny_model / name).parent.mkdir(exist_ok=True)
    with (tiny_model / name).open("a", encoding="utf-8") as file:
        file.write('{"pooling_mode": "cls"}')
    with pytest.raises(RunFolderError, match=r"another request \(model files\)"):
        embed_files([text], tiny_model, broken_off)


def test_an_input_that_was_changed_is_noticed(broken_off, text, tiny_model):
    text.write_text("another\n" * 50, encoding="utf-8")
    with pytest.raises(InputError, match=r"lines\.txt: was changed"):
        embed_files([text], tiny_model, broken_off)


@pytest.mark.parametrize("place", [None, *range(0, 400, 17)])
def test_a_part_that_was_cut_off_or_has_a_flipped_bit_anywhere_is_noticed(broken_off, text, tiny_model, place):
    part = sorted(broken_off.with_name("x.npy.parts").glob("[0-9]*.npy"))[1]
    data = bytearray(part.read_bytes())
    if place is None:
        del data[-7:]
    else:
        data[-1 - place if place % 2 else place] ^= 1 << (place % 8)
    part.write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{part.name}: damaged .*checksum differs.*remove it"):
        embed_files([text], tiny_model, broken_off)
    part.unlink()
    embed_files([text], tiny_model, broken_off)
    assert len(np.load(broken_off)) == 50


def test_a_damaged_request_is_noticed(broken_off, text, tiny_model):
    (broken_off.with_name("x.npy.parts") / "request.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"request\.json: damaged"):
        embed_files([text], tiny_model, broken_off)


def test_a_second_process_is_kept_out(another_process, text, tiny_model, tmp_path):
    (tmp_path / "x.npy.parts").mkdir()
    with another_process(tmp_path / "x.npy.parts"), pytest.raises(RunFolderError, match="another process"):
        embed_files([text], tiny_model, tmp_path / "x.npy")


@pytest.mark.parametrize("may_mount", [True, False], ids=["a file system", "a limit"])
def test_a_full_disk_is_one_line_and_loses_nothing(text, tiny_model, tmp_path, small_parts, small_disk, may_mount):
    embed_files([text], tiny_model, tmp_path / "whole.npy")
    # 各部分放得下，合成的文件放不下
    disk = small_disk(44 << 10, limit=10 << 10, may_mount=may_mount)
    out = disk.path / "x.npy"
    with pytest.raises(RunFolderError, match=disk.message) as caught:
        embed_files([text], tiny_model, out)
    assert "\n" not in str(caught.value)
    assert len(list((disk.path / "x.npy.parts").glob("[0-9]*.npy"))) >= 3
    disk.make_room()
    assert embed_files([text], tiny_model, out).rows == 50
    assert out.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert os.listdir(disk.path) == ["x.npy"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "no line to embed"),
        (b"abc\0def\n" * 3, "NUL"),
        ("caf\u00e9 ".encode() + b"\xff\xfe\xfa caf\xe9\n", "not valid UTF-8"),
        (bytes(range(256)) * 20, "binary|NUL"),
    ],
)
def test_a_file_that_is_no_text_leaves_nothing_behind(content, error, tiny_model, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(InputError, match=error):
        embed_files([tmp_path / "a.txt"], tiny_model, tmp_path / "parent" / "x.npy")
    assert not (tmp_path / "parent").exists()


def test_a_disk_that_is_full_before_the_first_part_leaves_nothing_behind(text, tiny_model, tmp_path, monkeypatch):
    def full(*_, **__):
        raise RunFolderError("no space left")

    monkeypatch.setattr("bertsmith.inference.embed_files.write_json", full)
    with pytest.raises(RunFolderError, match="no space left"):
        embed_files([text], tiny_model, tmp_path / "parent" / "x.npy")
    assert not (tmp_path / "parent").exists()


@pytest.mark.parametrize("options", [["--out", "x.npy"], ["--json"], ["--compare", "the man"]])
@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.csv", 'id,text\n1,"the man, the woman"\n', "a.csv: is a table, and plain text is needed"),
        ("a.html", "<p>\nthe man\n</p>\n", "a.html: is a document, whose lines are no texts"),
        ("a.eml", "From: ada\n\nthe man\n", "a.eml: is a document, whose lines are no texts"),
    ],
)
def test_what_has_no_text_on_each_line_is_refused(
    options, name, content, error, tiny_model, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content, encoding="utf-8")
    there = sorted(os.listdir())
    said = typed(capsys, "embed", name, "--model", tiny_model, *options, code=2)
    assert f"{error}; write its texts to a .txt file, a line each" in said
    # 没有 --text-field 的命令，出路里也不提它
    assert "--text-field" not in said
    assert sorted(os.listdir()) == there


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"files": ["missing.txt"]}, "missing.txt: no such file"),
        ({"files": []}, "no file"),
        ({"out": "x.txt"}, r"must end in \.npy or \.parquet"),
        ({"folder": "nowhere"}, "no such model folder"),
        ({"settings": {"precision": "fp8"}}, "precision 'fp8' is unknown"),
        ({"settings": {"pooling": "sum"}}, "pooling 'sum' is unknown"),
        ({"settings": {"pooling": "last-four"}}, "needs 4 layers"),
        ({"settings": {"dims": 0}}, "dims is 0; give at least 1"),
        ({"settings": {"dims": 65}}, "dims 65 is outside 1 to 64"),
        ({"settings": {"prompt": "nowhere"}}, "nowhere"),
        ({"settings": {"encoding": "utf-99"}}, "no such text encoding"),
        ({"engine": "cloud"}, "'cloud' is unknown"),
    ],
)
def test_what_cannot_be_done_is_one_line(changes, error, text, tiny_model, tmp_path):
    request = {"files": [text], "folder": tiny_model, "out": tmp_path / "parent" / "x.npy", **changes}
    told = request.pop("settings", {})
    with pytest.raises(BertsmithError, match=error) as caught:
        embed_files(*(request.pop(name) for name in ("files", "folder", "out")), EmbedSettings(**told), **request)
    assert isinstance(caught.value, InputError | ConfigError | CheckpointError)
    assert not (tmp_path / "parent").exists()


@pytest.mark.slow
def test_ray_gives_the_same_vectors(text, tiny_model, tmp_path):
    ray = pytest.importorskip("ray")
    embed_files([text], tiny_model, tmp_path / "one.npy")
    try:
        embed_files([text], tiny_model, tmp_path / "two.npy", engine="ray", workers=1)
    finally:
        ray.shutdown()
    np.testing.assert_allclose(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"), atol=1e-6)


def test_only_a_line_feed_ends_a_line(tiny_model, tmp_path):
    lines = ["the man", "eats\u2028bread", "the\x85woman", "reads\fa\rbook", "the\u2029book"]
    (tmp_path / "a.txt").write_bytes("\r\n".join(lines).encode())
    embed_files([tmp_path / "a.txt"], tiny_model, tmp_path / "x.npy")
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), load_pipeline("embed", tiny_model)(lines), atol=1e-6)
