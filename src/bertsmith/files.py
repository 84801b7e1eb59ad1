"""Writing files so that a crash or a full disk never leaves half of one behind.

A file or a folder is written beside its place under a temporary name, flushed to the disk and renamed. Readers see
the old content or the new, nothing between. Errors of the machine become one line that names the path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from bertsmith.errors import InputError, RunFolderError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write a file or fill a folder at; moves it to `path` when the block ends well.

    Args:
        path: the final place; its parent folders are made when missing. An existing file there is replaced; an
            existing folder is not, since a rename over a folder with content is not atomic.

    Raises:
        RunFolderError: the disk is full or the place cannot be written; what stood at `path` is untouched. Or there is
            a device or a pipe: a rename would put a file in its place.
    """
    # 改名会把链接本身换掉：写到它指的地方
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RunFolderError(f"{path}: is a device or a pipe; give the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        # 被杀掉的进程留下的半成品：同名的临时文件不再有用
        own = re.compile(rf"\.{re.escape(path.name)}\.\d+\.tmp")
        for stale in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            # 名字以它开头的别的文件（pred 与 pred.tsv）可能正在写：不能动
            if own.fullmatch(stale.name):
                _remove(stale)
        yield temporary
        _open_to_readers(temporary)
        # 先刷盘再改名：否则断电后可能出现名字正确、内容为空的文件
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        _remove(temporary)
        raise RunFolderError(explain_failure(error, path)) from error
    except BaseException:
        _remove(temporary)
        raise


def _open_to_readers(path: Path) -> None:
    """Lets those read a new file who may read the folder it goes to: some writers make files private to one user."""
    readers = path.parent.stat().st_mode & 0o444
    for file in [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]:
        file.chmod(file.stat().st_mode | readers)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file by `atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def require_other_file(out: Path, source: Path) -> None:
    """Makes sure that a file about to be written is not the one that is read.

    Raises:
        InputError: it is.
    """
    if out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"--out {out}: is the file that is read; choose another")


def make_folder(path: Path) -> Path:
    """Makes a folder with its parents.

    Raises:
        RunFolderError: a file stands in its place, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(explain_failure(error, path)) from error
    return path


def claim_folder(folder: Path, claim: str, request: dict[str, Any], *, beside: str = "") -> None:
    """Makes sure that an output folder is empty, or belongs to this very request.

    A folder that holds nothing but an earlier claim is free: nothing was made of that request yet.

    Args:
        folder: made when missing.
        claim: name of the file that says what the folder is for, such as `quickstart.json`.
        request: what is asked for; must survive JSON. Its `format`, where it has one, is the first version of
            bertsmith that wrote such folders.
        beside: name of an entry that may be there already; empty for none.

    Raises:
        RunFolderError: the folder holds something else, or the same kind of thing with other settings.
    """
    # 先走一遍 JSON：元组变成列表、键变成字符串，才能和读回来的相比
    request = json.loads(json.dumps(request))
    path = make_folder(folder) / claim
    others = [entry.name for entry in folder.iterdir() if entry.name not in (claim, beside) and entry.name[0] != "."]
    if not others:
        write_text(path, json.dumps(request, indent=1, ensure_ascii=False) + "\n")
        return
    kind = claim.removesuffix(".json")
    if not path.exists():
        raise RunFolderError(f"{folder}: is not empty and holds no {kind}; choose another --out")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        different = sorted(key for key in request.keys() | found.keys() if found.get(key) != request.get(key))
    except (ValueError, AttributeError) as error:
        raise RunFolderError(f"{path}: damaged ({error}); choose another --out") from None
    if "format" in different:
        raise RunFolderError(f"{folder}: {written_by_another(found)}; choose another --out")
    if different:
        raise RunFolderError(f"{folder}: holds a {kind} with another {' and '.join(different)}; choose another --out")


def written_by_another(claim: dict[str, Any]) -> str:
    """Says which version wrote a folder, given its claim; 0.1 wrote none into it."""
    return f"was written by bertsmith {claim.get('format', '0.1')}, which alone can go on with it"


@contextmanager
def locked(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Keeps a second process out of a run folder; the lock goes with the process, however it ends.

    Args:
        folder: to be locked.
        patience: seconds to wait for a process that holds the lock.

    Raises:
        RunFolderError: another process holds the lock, or the folder cannot be written.
    """
    deadline = time.monotonic() + patience
    try:
        handle = (folder / ".lock").open("w")
    except OSError as error:
        raise RunFolderError(explain_failure(error, folder)) from error
    with handle:
        while True:
            try:
                # 用 flock 而不是看锁文件在不在：进程怎样结束，内核都会放开它
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise RunFolderError(
                        f"{folder}: another process is working in it; wait for it or stop it"
                    ) from None
                time.sleep(0.1)
        yield


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Waits until nobody else, in this process or another, holds a file, and holds it while it is read and replaced.

    Raises:
        RunFolderError: its folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # 锁放在旁边的文件上：原文件会被改名替换，锁不住
        handle = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        raise RunFolderError(explain_failure(error, path)) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def explain_failure(error: OSError | SafetensorError, path: Path) -> str:
    """Returns one line on why a path could not be written, and what to do."""
    # safetensors 把系统错误号写在文字里：「No space left on device (os error 28)」
    written = re.search(r"os error (\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else int(written[1]) if written else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"{path}: the disk is full; what was saved before is intact, make room and run the same command again"
    if number == errno.EFBIG:
        return (
            f"{path}: larger than a file may be there (a limit of the file system or of the shell); what was saved"
            " before is intact, choose another --out"
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{path}: no permission to write there; choose another folder with --out"
    if number in (errno.EEXIST, errno.ENOTDIR):
        return f"{path}: a file stands where a folder is needed; choose another folder with --out"
    return f"{path}: cannot be written ({os.strerror(number) if number else error})"


def _flush_to_disk(path: Path) -> None:
    # 文件夹也要刷盘：里面的名字记在它自己身上
    for entry in [*path.rglob("*"), path]:
        if entry.is_dir():
            _flush_folder(entry)
        elif entry.is_file():
            with entry.open("rb") as handle:
                os.fsync(handle.fileno())


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
