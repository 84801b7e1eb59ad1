"""The one reader of what is no plain text: Markdown, HTML, PDF, Word, EPUB, e-mail; and spreadsheets, for `tables`.

- a file is read by a process of its own, which is killed when it takes longer than `SECONDS` and cannot take more than
  `MEMORY`: a broken or hostile file costs itself, never the run
- what cannot be read is left out; one line counts it by kind and reason, and pages and chapters that are missing
- files are read on all cores before the work begins, and what stood in them is kept until the program ends, in a
  temporary folder: the worker processes, and the second and third reading of a corpus, take it from there
- for training, a document is what it would be if it had been saved as `.txt`
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.data.reading.document_kinds import Block, Metadata, Missing, read_kind
from bertsmith.data.reading.lines import read_lines, split_lines
from bertsmith.data.reading.sheets import read_sheet
from bertsmith.data.reading.sources import (
    Source,
    corpus_endings,
    document_ending,
    find_sources,
    find_text_files,
    left_out,
    local_copy,
    text_endings,
)
from bertsmith.errors import InputError
from bertsmith.parallel import available_cores

SECONDS = 120.0
"""A document that takes longer is left out."""
MEMORY = 4 << 30
"""Bytes that reading may take (Linux)."""
MOST_CHARACTERS = 100_000_000
"""A document that holds more is left out."""
PASSING = ("pip install ", "took longer than ", "its reader died", "needs more than ")
"""How faults begin that another time or another machine may not have: a library that is missing, too little power."""
FileT = TypeVar("FileT", Path, Source)


def lines_of(place: Any, encoding: str = "auto") -> Iterator[str]:
    """Reads the lines of a text file as `read_lines` does, or those that a document would have if it were one.

    A blank line stands between two paragraphs, and none behind a heading. Code is left out.
    """
    if not document_ending(str(place)):
        yield from read_lines(place, encoding)
        return
    for block in read_blocks(str(place), encoding)[0]:
        if not block.aside:
            yield from split_lines(block.text)
            # 标题与后文之间不空行：按空行分文档时，标题不会单独成篇
            yield from () if block.level else ("",)


def read_blocks(name: str | Path, encoding: str = "auto") -> tuple[list[Block], Metadata]:
    """Reads a document: what stands in it, and what it says of itself; `encoding` (`auto`, a codec) is for Markdown."""
    answer = _answered(str(name), encoding)
    if "fault" in answer:
        raise InputError(f"{name}: {answer['fault']}")
    fields = {field: tuple(value) if isinstance(value, list) else value for field, value in answer["metadata"].items()}
    return [Block(*block) for block in answer["blocks"]], fields


def sheet_of(path: Path, sheet: str | None) -> dict[str, Any]:
    """Reads a sheet of a spreadsheet, see `read_sheet`."""
    answer: dict[str, Any] = json.loads(_ask(os.path.abspath(path), "", sheet))
    if "fault" in answer:
        raise InputError(f"{path}: {answer['fault']}")
    return answer


def text_bytes(file: Path, encoding: str = "auto") -> int:
    """Returns the size of a text file, or of the text in a document, in bytes; about that of a packed text file."""
    if not document_ending(str(file)):
        # 压缩过的按展开后的大小估计：读出来的、要训练的都是展开的文本
        return int(Source(str(file), file.stat().st_size).text_size)
    return sum(len(line.encode()) + 1 for line in lines_of(file, encoding))


def readable_sources(paths: Sequence[str | Path], encoding: str = "auto") -> tuple[list[Source], str]:
    """Finds the files of a corpus as `find_sources`, without documents that cannot be read; says what is left out."""
    sources, faults, missing = without_unreadable(find_sources(paths), encoding)
    return sources, left_out(paths, corpus_endings(), faults, missing)


def readable_files(paths: Sequence[str | Path], encoding: str = "auto", beside: Path | None = None) -> list[Path]:
    """Finds text files and documents that can be read; one warning counts what is left out."""
    found = find_text_files(paths, text_endings())
    if beside is not None:
        found = [file for file in found if beside.resolve() not in file.resolve().parents]
        if not found:
            raise InputError(f"{paths[0]}: no file of text besides what is in {beside}")
    files, faults, missing = without_unreadable(found, encoding)
    if note := left_out(paths, text_endings(), faults, missing):
        warnings.warn(note, stacklevel=2)
    return files


def without_unreadable(
    files: Sequence[FileT], encoding: str = "auto", *, beside_others: bool = False
) -> tuple[list[FileT], dict[str, str], dict[str, Missing]]:
    """Reads the documents among files on all cores, and keeps what stands in them.

    Returns the files that can be read; by their names, as `left_out` tells it, why the others cannot, and what is
    missing of those that can. `InputError` where none can, unless there are others beside these files.
    """
    names = {str(one.name if isinstance(one, Source) else one): one for one in files}
    documents = [name for name in names if document_ending(name)]
    if documents:
        _kept()

    def ask(name: str) -> tuple[str, Missing]:
        answer = _answered(name, encoding, keep=True)
        # 只留下这两项：所有文档的文字不必同时在内存里
        return answer.get("fault", ""), answer.get("missing", {})

    with ThreadPoolExecutor(min(available_cores(), len(documents)) or 1) as threads:
        answers = dict(zip(documents, threads.map(ask, documents), strict=True))
    faults = {name: fault for name, (fault, _) in answers.items() if fault}
    if files and len(faults) == len(names) and not beside_others:
        name, fault = next(iter(faults.items()))
        others = f"; and {len(faults) - 1} other document(s) cannot be read" if len(faults) > 1 else ""
        raise InputError(f"{name}: {fault}{others}")
    missing = {name: found for name, (_, found) in answers.items() if found}
    return [one for name, one in names.items() if name not in faults], faults, missing


# --- What was read once ---------------------------------------------------------------------------------------------


@cache
def _kept() -> Path:
    """Returns the folder of what was read; the process that made it removes it when it ends."""
    folder, owner = Path(tempfile.mkdtemp(prefix="bertsmith-")), os.getpid()
    # 派生的进程结束时也会走到这里：文件夹不是它的
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def _answered(name: str, encoding: str, *, keep: bool = False) -> dict[str, Any]:
    """Returns the blocks and metadata of a document, or its fault."""
    try:
        state = os.stat(name) if "://" not in name else None
        # 打开管道会一直等下去
        if state is not None and not os.path.isfile(name):
            return {"fault": "is no regular file; save what it gives to one"}
    except OSError as error:
        return {"fault": f"cannot be read ({error.strerror}); check the file and its rights"}
    identity = (name, encoding, state and (state.st_ino, state.st_size, state.st_mtime_ns))
    held = keep or _kept.cache_info().currsize
    place = _kept() / hashlib.sha256(repr(identity).encode()).hexdigest() if held else None
    if place and place.is_file():
        found: dict[str, Any] = json.loads(place.read_bytes())
        return found
    try:
        with local_copy(name) as path:
            # 等着的进程还在它出生时的文件夹里：相对的名字它找不到
            line = _ask(os.path.abspath(path), document_ending(name), encoding)
    except InputError as error:
        line = json.dumps({"fault": str(error).removeprefix(f"{name}: ")}).encode()
    found = json.loads(line)
    if keep and place:
        try:
            place.write_bytes(line)
        except OSError:
            # 临时盘满了：只是下次要再读一遍
            place.unlink(missing_ok=True)
    return found


# --- The process that reads -----------------------------------------------------------------------------------------


_COMMAND = "import sys; sys.path[:] = {path!r}; from bertsmith.data.reading.documents import _serve; _serve()"
_idle: dict[int, list[_Reader]] = {}
"""Process → its readers that wait for work: what was forked off must not share a pipe with its parent."""


class _Reader:
    """A process that reads documents, one after another, until it is killed."""

    def __init__(self) -> None:
        # -I：当前文件夹里叫 email.py 之类的文件不会被当成模块
        command = [sys.executable, "-I", "-c", _COMMAND.format(path=sys.path)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def ask(self, *request: str | None) -> bytes:
        """Returns the answer, a JSON line; empty where the process was killed, or died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # 库卡在 C 里时，线程和信号都叫不停它：只有杀掉进程
        limit = threading.Timer(SECONDS, self.process.kill)
        limit.start()
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            return self.process.stdout.readline()
        except BrokenPipeError:
            return b""
        finally:
            limit.cancel()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def _ask(path: str, ending: str, how: str | None) -> bytes:
    """Has a file read, as `_read` does it, by a process that waits, or by a new one."""
    idle = _idle.setdefault(os.getpid(), [])
    try:
        reader = idle.pop()
    except IndexError:
        reader = _Reader()
    begun, line = time.monotonic(), b""
    try:
        line = reader.ask(path, ending, how)
    finally:
        if not line:
            reader.end()
    if line:
        idle.append(reader)
        return line
    late = time.monotonic() - begun >= SECONDS
    fault = f"took longer than {SECONDS:g} seconds" if late else "its reader died, probably for lack of memory"
    return json.dumps({"fault": f"{fault}; {_smaller(ending)}"}).encode()


@atexit.register
def _end_readers() -> None:
    for reader in _idle.pop(os.getpid(), []):
        reader.end()


def _serve() -> None:
    """Answers the requests on standard input, a JSON line each, until that ends."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "wb")
    # 库往标准输出里写的话不能混进回答
    os.dup2(2, 1)
    for request in sys.stdin.buffer:
        answers.write(json.dumps(_read(*json.loads(request))).encode() + b"\n")
        answers.flush()


def _smaller(ending: str) -> str:
    return "split it" if ending else "clear cells far from the table, or save it as CSV"


def _read(path: str, ending: str, how: str | None) -> dict[str, Any]:
    """Reads a document in the encoding `how`; without an `ending` a spreadsheet, of which `how` names the sheet."""
    try:
        if not ending:
            return read_sheet(Path(path), how)
        blocks, metadata, missing = read_kind(Path(path), ending, how or "auto")
    except InputError as error:
        return {"fault": str(error).removeprefix(f"{path}: ")}
    except ImportError as error:
        return {"fault": f"pip install 'bertsmith[documents]' reads it ({error.name} is missing)"}
    except MemoryError:
        return {"fault": f"needs more than {MEMORY >> 30} GiB of memory; {_smaller(ending)}"}
    except Exception as error:
        # 库对坏文件抛什么都有可能；这里是边界
        written = "its text as .txt" if ending else "the sheet as CSV"
        return {"fault": f"damaged ({type(error).__name__}); export it again, or {written}"}
    if sum(len(block.text) for block in blocks) > MOST_CHARACTERS:
        return {"fault": f"holds more than {MOST_CHARACTERS:,} characters; split it"}
    if ending not in (".md", ".markdown") and not any(block.text for block in blocks):
        return {"fault": "holds no text; export it again, or its text as .txt"}
    return {"blocks": blocks, "metadata": metadata, "missing": missing}
