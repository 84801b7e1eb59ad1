import contextlib
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from bertsmith.data.corpus import manifest
from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import (
    atomic_path,
    held,
    locked,
    make_folder,
    require_utf8_names,
    working_in,
    write_json,
    write_text,
)
from bertsmith.model.folder import fingerprint_weights
from bertsmith.retrieval import stored
from bertsmith.train import state


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


def test_of_two_files_the_one_that_fails_is_named(tmp_path):
    source = tmp_path / "source"
    with (
        pytest.raises(RunFolderError, match=rf"^{source}: cannot be used \(No such file"),
        atomic_path(tmp_path / "a") as temporary,
    ):
        shutil.copyfile(source, temporary)


def test_a_file_system_without_locks_is_not_a_busy_folder(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    for wait in (locked, held):
        with pytest.raises(RunFolderError, match="its file system has no locks"), wait(tmp_path):
            pass


def test_a_lock_that_is_taken_away_while_one_waits_is_asked_for_anew(tmp_path):
    waits, has_it, may_go = threading.Event(), threading.Event(), threading.Event()

    def wait_for_it() -> None:
        waits.set()
        with locked(tmp_path, patience=60):
            has_it.set()
            may_go.wait(60)

    other = threading.Thread(target=wait_for_it)
    # 被拒绝的命令删掉自己的锁文件：等着的人手里打开的，是一个没有名字的文件
    with contextlib.suppress(InputError), locked(tmp_path):
        other.start()
        assert waits.wait(60)
        time.sleep(0.3)
        raise InputError("refused")
    try:
        assert has_it.wait(60)
        with pytest.raises(RunFolderError, match="another process is working"), locked(tmp_path):
            pass
    finally:
        may_go.set()
        other.join()


def test_a_refusal_takes_back_what_it_wrote_and_nothing_of_others(tmp_path):
    def refused(folder: Path, *work: str) -> None:
        with contextlib.suppress(InputError), working_in(folder, *work):
            write_text(folder / "new.txt", "new")
            raise InputError("refused")

    refused(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    refused(tmp_path / "a", "*.txt")
    assert (tmp_path / "a" / "new.txt").exists()
    # 等锁的时候别人做出了东西：被拒绝的只收回自己的
    folder = make_folder(tmp_path / "c")

    def refused_later() -> None:
        with contextlib.suppress(InputError), working_in(folder, patience=60):
            raise InputError("refused")

    other = threading.Thread(target=refused_later)
    with locked(folder):
        other.start()
        time.sleep(0.3)
        write_text(folder / "made.txt", "hours of work")
    other.join()
    assert (folder / "made.txt").exists()


def test_a_folder_where_a_file_stands_is_refused(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(RunFolderError, match="a file stands"):
        make_folder(tmp_path / "a" / "b")


@pytest.fixture
def private_by_default():
    """New files are their owner's alone, as on machines with a strict umask; some writers do so of themselves."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.parametrize(("mode", "readers"), [(0o755, 0o044), (0o750, 0o040), (0o700, 0o000)])
def test_whoever_may_read_a_folder_may_read_what_is_saved_in_it(tmp_path, private_by_default, mode, readers):
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    write_text(place / "a.txt", "甲")
    with atomic_path(place / "a.safetensors") as temporary:
        save_file({"weight": torch.zeros(3)}, temporary)
    with atomic_path(place / "model") as temporary:
        (temporary / "deep").mkdir(parents=True)
        save_file({"weight": torch.zeros(3)}, temporary / "model.safetensors")
        (temporary / "deep" / "a.txt").write_text("甲", encoding="utf-8")
    files = [path for path in place.rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {path.stat().st_mode & 0o077 for path in files} == {readers}


@pytest.fixture
def order(monkeypatch):
    """What was flushed and renamed, in order, by the number of the file or folder on its file system."""
    steps = []
    flush, rename = os.fsync, os.replace

    def recorded_flush(descriptor):
        flush(descriptor)
        steps.append(("flush", os.fstat(descriptor).st_ino))

    def recorded_rename(source, target):
        steps.append(("rename", os.stat(source).st_ino))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded_flush)
    monkeypatch.setattr(os, "replace", recorded_rename)
    return steps


def test_a_file_is_on_the_disk_before_it_gets_its_name_and_the_name_after(tmp_path, order):
    write_text(tmp_path / "a.txt", "甲")
    file, folder = (path.stat().st_ino for path in (tmp_path / "a.txt", tmp_path))
    assert order == [("flush", file), ("rename", file), ("flush", folder)]


def test_all_of_a_folder_is_on_the_disk_before_it_gets_its_name(tmp_path, order):
    with atomic_path(tmp_path / "model") as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "a.txt").write_text("a")
        (temporary / "deep" / "b.txt").write_text("b")
    names = ["model", "model/a.txt", "model/deep", "model/deep/b.txt"]
    model, *inside = [(tmp_path / name).stat().st_ino for name in names]
    assert {("flush", number) for number in (model, *inside)} <= set(order[: order.index(("rename", model))])
    assert order[-2:] == [("rename", model), ("flush", tmp_path.stat().st_ino)]


@pytest.fixture(params=[True, False], ids=["a file system", "a limit"])
def full_disk(request, small_disk):
    """A place of 1 MiB: a file system of its own, or by a limit on files where none can be mounted."""
    return small_disk(1 << 20, limit=600 << 10, may_mount=request.param)


def test_a_full_disk_loses_nothing(full_disk):
    place = full_disk.path
    write_text(place / "kept.txt", "kept")
    with pytest.raises(RunFolderError, match=full_disk.message):
        write_text(place / "large.txt", "x" * 3_000_000)
    with (
        pytest.raises(RunFolderError, match=rf"model\.safetensors: {full_disk.message}"),
        atomic_path(place / "model.safetensors") as temporary,
    ):
        save_file({"weight": torch.zeros(1_000_000)}, temporary)
    assert os.listdir(place) == ["kept.txt"]
    assert (place / "kept.txt").read_text() == "kept"


@pytest.mark.parametrize("may_mount", [True, False], ids=["a file system", "a limit"])
def test_a_run_on_a_full_disk_keeps_its_states_and_goes_on_when_there_is_room(
    small_disk, village_small, tmp_path, monkeypatch, may_mount
):
    from bertsmith.train.choosing import recipe_for
    from bertsmith.train.monitor import TrainingStopped, read_metrics
    from bertsmith.train.pretraining import RunOptions, pretrain
    from bertsmith.train.trainer import BertTrainer

    recipe = recipe_for("1/64", sequence_length=32, batch_size=8, steps=20, precision="float32")
    train_batch = BertTrainer.train_batch

    def train(run):
        said = io.StringIO()
        options = RunOptions(save_every=0.0, keep_states=1, evaluations=1)
        pretrain(run, *village_small, recipe, options, console=Console(file=said, width=200))
        return said.getvalue()

    def interrupted(self, batch):
        if self.step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return train_batch(self, batch)

    begun, undisturbed = tmp_path / "begun", tmp_path / "undisturbed"
    train(undisturbed)
    monkeypatch.setattr(BertTrainer, "train_batch", interrupted)
    with pytest.raises(TrainingStopped, match="after step 7 of 20"):
        train(begun)
    monkeypatch.undo()
    state = {path.name: path.read_bytes() for path in (begun / "state" / "step-000000007").iterdir()}
    # 先在宽裕处存下一个状态，再搬到小磁盘：模型还放得下，第二份训练状态放不下
    held = sum(path.stat().st_size for path in begun.rglob("*") if path.is_file())
    disk = small_disk(held + (600 << 10), limit=600 << 10, may_mount=may_mount)
    run = disk.path / "run"
    shutil.move(begun, run)
    with pytest.raises(RunFolderError, match=f"step-000000008: {disk.message}"):
        train(run)
    assert os.listdir(run / "state") == ["step-000000007"]
    assert {path.name: path.read_bytes() for path in (run / "state" / "step-000000007").iterdir()} == state
    disk.make_room()
    assert "resuming after step 7 of 20" in train(run)
    weights, rows = [], []
    for each in (undisturbed, run):
        weights.append((each / "model" / "model.safetensors").read_bytes())
        logged = read_metrics(each / "metrics.jsonl")
        rows.append([{name: row[name] for name in row.keys() - {"tokens_per_second", "mfu"}} for row in logged])
    assert weights[0] == weights[1]
    assert rows[0] == rows[1]


def test_a_fine_tuning_on_a_full_disk_goes_on_when_there_is_room(full_disk, tiny_model, tmp_path):
    from bertsmith.finetune.datasets.texts import LabelledText
    from bertsmith.finetune.run import fine_tune
    from bertsmith.finetune.settings import FineTuningSettings
    from bertsmith.finetune.tasks.classify import ClassificationTask

    words = {"bread": "good", "man": "bad", "book": "good", "woman": "bad"}
    examples = [LabelledText(f"the {word} !", None, label) for word, label in words.items()] * 4

    def tune(run):
        settings = FineTuningSettings(2, 8, learning_rate=1e-3)
        return fine_tune(ClassificationTask.of(examples), tiny_model, examples, examples, run, settings)

    # 模型本身放得下，训练状态放不下
    run = full_disk.path / "run"
    with pytest.raises(RunFolderError, match=full_disk.message):
        tune(run)
    assert (run / "model" / "model.safetensors").is_file()
    full_disk.make_room()
    assert tune(run).dev == tune(tmp_path / "run").dev
    weights = [(run / "model" / "model.safetensors").read_bytes() for run in (run, tmp_path / "run")]
    assert weights[0] == weights[1]


WRITES = """
import sys
from pathlib import Path
from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import locked, make_folder, write_text

place = Path(sys.argv[1])
writes = lambda: write_text(place / "new.txt", "new"), lambda: make_folder(place / "run"), locked(place).__enter__
for write in writes:
    try:
        write()
    except RunFolderError as error:
        print(error)
"""
COMMANDS = """
import contextlib, io, json, sys
from bertsmith.cli import main

for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, err.getvalue()]))
"""


@pytest.fixture
def closed(tmp_path):
    """A folder that nobody may write to, with a file in it."""
    place = tmp_path / "closed"
    write_text(place / "kept.txt", "kept")
    place.chmod(0o555)
    yield place
    assert [path.name for path in place.iterdir()] == ["kept.txt"]
    assert (place / "kept.txt").read_text() == "kept"
    place.chmod(0o755)


def test_a_place_that_cannot_be_written_is_one_line(closed, run_without_rights):
    ended = run_without_rights(WRITES, closed)
    assert ended.stdout.splitlines() == [
        f"{closed / name}: no permission to write there; choose another folder with --out"
        for name in ("new.txt", "run", "")
    ], ended.stderr


def test_commands_that_cannot_write_end_with_one_line(closed, run_without_rights, tiny_model, village_small, tmp_path):
    text, rows = tmp_path / "a.txt", tmp_path / "rows.tsv"
    write_text(text, "the man eats bread .\n\n" * 4)
    write_text(rows, "label\ttext\n" + "good\tthe man\nbad\ta book\n" * 4)
    inputs = {
        "pretrain": ["--corpus", village_small[0].folder, "--tokenizer", tmp_path / "words", "--steps", 2],
        "finetune": ["classify", "--model", tiny_model, "--train", rows, "--dev", rows],
        "corpus": [text, "--tokenizer", tiny_model],
        "embed": [text, "--model", tiny_model],
        "index": [tmp_path / "notes", "--model", tiny_model],
    }
    village_small[1].save(tmp_path / "words")
    write_text(tmp_path / "notes" / "a.txt", "the man eats bread .")
    commands = [[name, *map(str, words), "--out", str(closed / "new.npy")] for name, words in inputs.items()]
    # 文件夹本身已在、却不能写，也是一样
    commands += [[*words[:-1], str(closed)] for words in commands if words[0] in ("pretrain", "corpus")]
    ended = run_without_rights(COMMANDS, json.dumps(commands))
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(found) == len(commands), ended.stderr
    for (code, said), words in zip(found, commands, strict=True):
        assert code in (1, 2), words
        (said,) = (line for line in said.splitlines() if not line.startswith("bertsmith: warning: "))
        assert str(closed) in said
        assert "no permission to write there; choose another folder" in said


def test_only_its_own_leftovers_are_removed(tmp_path):
    """`pred` begins like `.pred.tsv.7.tmp`, and another machine may share the volume: both may be writing."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "pred") as temporary:
        temporary.write_text(str(1 / 0))
    *_, host, _, _ = temporary.name.split(".")
    left = [f".pred.{host}.{number}.tmp" for number in (ended.pid, os.getpid(), 1 << 70)]
    others = [".pred.tsv.7.tmp", ".pred.tsv.tmp", f".pred.other.{ended.pid}.tmp", f".pred.tsv.{host}.{ended.pid}.tmp"]
    for name in (*left, *others):
        (tmp_path / name).write_text("half", encoding="utf-8")
    write_text(tmp_path / "pred", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {*others, "pred"}


WRITES_SLOWLY = """
import pathlib, sys
from bertsmith.files import atomic_path
with atomic_path(pathlib.Path(sys.argv[1])) as temporary:
    temporary.write_text("late")
    print("writing", flush=True)
    sys.stdin.read()
"""


def test_two_processes_may_write_the_same_file(tmp_path):
    command = [sys.executable, "-c", WRITES_SLOWLY, tmp_path / "pred"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "writing\n"
        write_text(tmp_path / "pred", "early")
        assert (tmp_path / "pred").read_text() == "early"
        other.communicate(timeout=60)
    assert (other.returncode, (tmp_path / "pred").read_text()) == (0, "late")
    assert os.listdir(tmp_path) == ["pred"]


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunFolderError, match="a device or a pipe"):
        write_text(tmp_path / "pipe", "new")
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_that_is_not_utf8_comes_back_from_json(tmp_path):
    """Linux takes any bytes as a name; JSON writes them as escapes, other text refuses them."""
    path = tmp_path / "run.json"
    name = os.fsdecode(b"caf\xe9.txt")
    write_json(path, {"file": name})
    assert json.loads(path.read_text(encoding="utf-8")) == {"file": name}
    with pytest.raises(InputError, match=r"caf\\udce9.*rename that file"):
        write_text(path, name)
    assert json.loads(path.read_text(encoding="utf-8")) == {"file": name}
    with pytest.raises(InputError, match=r"caf\\udce9.*rename it"):
        require_utf8_names("a.txt", os.fsdecode(b"caf\xe9.txt"))


CHECKSUMS = {
    "an index": stored.checksum_of,
    "a corpus": manifest.checksum_of,
    "a training state": lambda path: state._checksum(path, {}),
    "weights": lambda path: fingerprint_weights(path.parent),
}


@pytest.mark.parametrize("checksum", CHECKSUMS.values(), ids=CHECKSUMS.keys())
def test_every_byte_of_a_large_file_is_in_its_checksum(checksum, tmp_path):
    """Of 9 MB: one over the first megabytes alone would do for all the small files of the other tests."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(9 << 20))
    found = {checksum(path)}
    for place in (0, 5 << 20, (9 << 20) - 1):
        with path.open("r+b") as file:
            file.seek(place)
            file.write(b"1")
        found.add(checksum(path))
    assert len(found) == 4
