import errno
import os
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import save_file

from bertsmith.errors import RunFolderError
from bertsmith.files import atomic_path, make_folder, write_text


def test_a_file_appears_whole_and_leaves_nothing_behind(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "甲")
    assert (tmp_path / "deep" / "a.txt").read_text(encoding="utf-8") == "甲"
    assert os.listdir(tmp_path / "deep") == ["a.txt"]


def test_a_failure_keeps_the_old_content(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_path(path) as temporary:
        temporary.write_text(str(1 / 0))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "no permission"), (errno.EIO, "cannot be written")],
)
def test_errors_of_the_machine_become_one_line(tmp_path, number, message):
    with pytest.raises(RunFolderError, match=message) as caught, atomic_path(tmp_path / "a"):
        raise OSError(number, os.strerror(number))
    assert str(tmp_path / "a") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_where_a_file_stands_is_refused(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(RunFolderError, match="a file stands"):
        make_folder(tmp_path / "a" / "b")


@pytest.fixture
def full_disk(tmp_path):
    """A real file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("a small file system needs root and mount")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_loses_nothing(full_disk):
    write_text(full_disk / "kept.txt", "kept")
    with pytest.raises(RunFolderError, match="the disk is full"):
        write_text(full_disk / "large.txt", "x" * 3_000_000)
    with (
        pytest.raises(RunFolderError, match=r"model\.safetensors: the disk is full"),
        atomic_path(full_disk / "model.safetensors") as temporary,
    ):
        save_file({"weight": torch.zeros(1_000_000)}, temporary)
    assert os.listdir(full_disk) == ["kept.txt"]
    assert (full_disk / "kept.txt").read_text() == "kept"


def test_a_run_on_a_full_disk_keeps_its_states_and_goes_on_when_there_is_room(full_disk, tmp_path, village_small):
    from bertsmith.train.pretraining import pretrain
    from bertsmith.train.recipe import recipe_for

    corpus, tokenizer = village_small
    recipe = recipe_for("1/64", sequence_length=32, batch_size=8, total_steps=20, precision="float32")
    # 模型本身放得下，两份训练状态放不下
    with pytest.raises(RunFolderError, match="the disk is full"):
        pretrain(full_disk / "run", corpus, tokenizer, recipe, save_every=0.0)
    shutil.copytree(full_disk / "run", tmp_path / "run")
    result = pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    assert result.recipe.total_steps == 20
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
