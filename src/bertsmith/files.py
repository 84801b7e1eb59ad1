"""Writing files so that a crash or a full disk never leaves half of one behind.

A file is written beside its place under a temporary name, flushed to the disk and renamed; a folder likewise. Readers
see the old content or the new, nothing between. Errors of the machine become one line that names the path.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from bertsmith.errors import RunFolderError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write a file or fill a folder at; moves it to `path` when the block ends well.

    Args:
        path: the final place; its parent folders are made when missing. An existing file there is replaced; an
            existing folder is not, since a rename over a folder with content is not atomic.

    Raises:
        RunFolderError: the disk is full or the place cannot be written; what stood at `path` is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        # 先刷盘再改名：否则断电后可能出现名字正确、内容为空的文件
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        _remove(temporary)
        raise RunFolderError(_explain(error, path)) from error
    except BaseException:
        _remove(temporary)
        raise


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file by `atomic_path`."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def make_folder(path: Path) -> Path:
    """Makes a folder with its parents.

    Raises:
        RunFolderError: a file stands in its place, or it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(_explain(error, path)) from error
    return path


def _explain(error: OSError | SafetensorError, path: Path) -> str:
    # safetensors 把系统错误号写在文字里：「No space left on device (os error 28)」
    written = re.search(r"os error (\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else int(written[1]) if written else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"{path}: the disk is full; what was saved before is intact, make room and run the same command again"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{path}: no permission to write there; choose another folder with --out"
    if number in (errno.EEXIST, errno.ENOTDIR):
        return f"{path}: a file stands where a folder is needed; choose another folder with --out"
    return f"{path}: cannot be written ({os.strerror(number) if number else error})"


def _flush_to_disk(path: Path) -> None:
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    if path.is_dir():
        _flush_folder(path)


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
        path.unlink(missing_ok=True)
