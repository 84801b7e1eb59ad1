"""Writing files so that a crash or a full disk never leaves half of one behind.

A file or a folder is written beside its place under a temporary name, flushed to the disk and renamed. Readers see
the old content or the new, nothing between. Errors of the machine become one line that names the path.

JSON files hold a dataclass, whose annotations are the schema:

    write_json(path, result)
    result = read_json(path, FineTuningResult, RunFolderError, "remove it or choose another --out")

Reading finds what is missing (fields with a default may be), unknown or of another type, with the place in the file,
and runs `__post_init__`. Every fault of a file (missing, cut off, not JSON) is one line with the path and the advice. A
checksum of the rest finds a digit that a disk turned into another digit, which is still JSON of the right shape.
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
import stat
import time
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from safetensors import SafetensorError

from bertsmith.errors import BertsmithError, CheckpointError, ConfigError, InputError, RunFolderError

HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, as JSON can hold one and Python reads a file name of other bytes; UTF-8 has none."""

_HOST = f"{zlib.crc32(os.uname().nodename.encode()):08x}"
"""Tells machines apart that share a volume: each has a process of any number."""
_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""The folders that this thread of work has locked."""


def printable(text: str) -> str:
    """Returns a text that every terminal and page can hold: file names and keys of JSON may have half a character."""
    return HALF_CHARACTER.sub("\ufffd", text)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write a file or fill a folder at; moves it to `path` when the block ends well.

    Missing parent folders are made. A file at `path` is replaced; a folder is not, since a rename over a folder with
    content is not atomic.
    """
    # 改名会把链接本身换掉：写到它指的地方
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.tmp")
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RunFolderError(f"{path}: is a device or a pipe; give the name of a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        # 被杀掉的进程留下的半成品：同名的临时文件不再有用
        own = re.compile(rf"\.{re.escape(path.name)}\.{_HOST}\.(\d+)\.tmp")
        for stale in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            # 名字以它开头的别的文件（pred 与 pred.tsv）、别的进程或别的机器的同名文件可能正在写：不能动
            if (match := own.fullmatch(stale.name)) and not _is_another(int(match[1])):
                _remove(stale)
        yield temporary
        _open_to_readers(temporary)
        # 先刷盘再改名：否则断电后可能出现名字正确、内容为空的文件
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        _remove(temporary)
        # 块里也读别的文件：怪那一个，而不是怪输出
        if isinstance(error, OSError) and _lies_elsewhere(error.filename, path, temporary):
            raise RunFolderError(f"{error.filename}: cannot be used ({error.strerror}); check it") from error
        raise RunFolderError(explain_failure(error, path)) from error
    except BaseException:
        _remove(temporary)
        raise


def _lies_elsewhere(name: object, path: Path, temporary: Path) -> bool:
    """Whether a file is neither the new one, nor in it, nor a folder above it."""
    if not isinstance(name, (str, Path)):
        return False
    place = Path(os.path.realpath(name))
    return place not in (path, *path.parents) and temporary not in (place, *place.parents)


def _is_another(process: int) -> bool:
    """Whether another process of that number is alive, of whichever user."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return process != os.getpid()


def _open_to_readers(path: Path) -> None:
    """Lets those read a new file who may read the folder it goes to: some writers make files private to one user."""
    readers = path.parent.stat().st_mode & 0o444
    for file in [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]:
        file.chmod(file.stat().st_mode | readers)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file by `atomic_path`."""
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 40) : error.end + 20]
        raise InputError(f"{path}: would hold a name that is not UTF-8 ({around!a}); rename that file") from None
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def require_utf8_names(*paths: str | Path) -> None:
    """Makes sure that names can be written down, before work begins whose result would hold them."""
    for path in map(str, paths):
        if HALF_CHARACTER.search(path):
            raise InputError(f"{path!a}: the name is not UTF-8; rename it")


def require_other_file(out: Path, source: Path) -> None:
    """Makes sure that a file about to be written is not the one that is read."""
    if out.exists() and source.exists() and out.samefile(source):
        raise InputError(f"--out {out}: is the file that is read; choose another")


def make_folder(path: Path) -> Path:
    """Makes a folder with its parents; InputError where its name is not UTF-8."""
    # 写权重的库只认 UTF-8 的路径：开工之前就说，而不是训练完才说
    require_utf8_names(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(explain_failure(error, path)) from error
    return path


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yields all bytes of a file, some megabytes at a time, for a checksum of them."""
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            yield chunk


def claim_folder(folder: Path, claim: str, request: dict[str, Any], *, beside: str = "") -> None:
    """Makes sure that an output folder is empty, or belongs to this very request.

    A folder that holds nothing but an earlier claim is free: nothing was made of that request yet.

    Args:
        claim: name of the file that says what the folder is for, such as `quickstart.json`.
        request: what is asked for, in JSON's types; its `format`, if any, is the first version that wrote such folders.
        beside: name of an entry that may be there already; empty for none.
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
    found = read_json(path, dict[str, Any], RunFolderError, "choose another --out")
    different = _different(request, found)
    if "format" in different:
        raise RunFolderError(f"{folder}: {written_by_another(found)}; choose another --out")
    if different:
        raise RunFolderError(f"{folder}: holds a {kind} with another {' and '.join(different)}; choose another --out")


def _different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Returns the names of what two requests differ in, of settings each by itself."""
    names = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    if names == ["settings"] and one.keys() == other.keys():
        return _different(one["settings"], other["settings"])
    return names


def written_by_another(claim: dict[str, Any]) -> str:
    """Says which version wrote a folder, given its claim; 0.1 wrote none into it."""
    return f"was written by bertsmith {claim.get('format', '0.1')}, which alone can resume it"


@contextmanager
def locked(folder: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Keeps a second process out of a run folder; the lock goes with the process, however it ends.

    A part of the work that locks the folder again, such as the training of a journey, has it already.
    """
    place, deadline = folder.resolve(), time.monotonic() + patience
    if place in _HELD.get():
        yield
        return
    path = folder / ".lock"
    is_new = not path.exists()
    with contextlib.ExitStack() as stack:
        while True:
            try:
                handle = stack.enter_context(path.open("w"))
            except OSError as error:
                raise RunFolderError(explain_failure(error, folder)) from error
            try:
                # 用 flock 而不是看锁文件在不在：进程怎样结束，内核都会放开它
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # 等锁的时候文件可能被删掉：锁住一个没有名字的文件，挡不住别人
                if os.fstat(handle.fileno()).st_nlink:
                    break
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= deadline:
                    raise RunFolderError(
                        f"{folder}: another process is working in it; wait for it or stop it"
                    ) from None
                time.sleep(0.1)
            except OSError as error:
                raise _without_locks(folder, error) from error
            handle.close()
        held = _HELD.set(_HELD.get() | {place})
        try:
            yield
        except BertsmithError:
            # 文件夹原来是别人的：不在里面留下东西
            if is_new:
                path.unlink(missing_ok=True)
            raise
        finally:
            _HELD.reset(held)


@contextmanager
def working_in(folder: Path, *work: str, patience: float = 0.0) -> Iterator[None]:
    """Makes and locks a folder; takes back what the block wrote into an empty one, where the block ends in a refusal.

    So the next try, of something else, finds the folder free. Where a pattern of `work` matches something in the
    folder, all stays: that was hours of computing perhaps, with which the same command resumes.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with locked(make_folder(folder), patience=patience):
        # 等锁的时候别人可能做出了东西：拿到锁再看
        was_free = all(entry.name == ".lock" for entry in folder.iterdir())
        try:
            yield
        except (InputError, ConfigError, CheckpointError, RunFolderError):
            if was_free and not any(path for pattern in work for path in folder.glob(pattern)):
                for path in folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                for path in missing:
                    # 别人同时在里面放了东西：留着
                    with contextlib.suppress(OSError):
                        path.rmdir()
            raise


def _without_locks(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path}: its file system has no locks ({error.strerror}); choose a place on another disk")


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Waits until nobody else, in this process or another, holds a file, and holds it while it is read and replaced."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # 锁放在旁边的文件上：原文件会被改名替换，锁不住
        handle = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        raise RunFolderError(explain_failure(error, path)) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise _without_locks(path, error) from error
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


ValueT = TypeVar("ValueT")

MOST_JSON_BYTES = 1 << 27
"""The largest there are, tokenizers of a quarter of a million pieces, have a quarter of that."""
CHECKSUM = "checksum of the rest"
"""Name under which an object carries the checksum of its other fields."""


def write_json(path: Path, value: Any, *, checked: bool = False) -> None:
    """Writes `to_json(value)` by `atomic_path`; `checked` adds a checksum, for objects that only this package reads."""
    content = to_json(value)
    if checked:
        content = {**content, CHECKSUM: checksum_of(content)}
    write_text(path, json_text(content))


def json_text(value: Any) -> str:
    """Returns the text of a JSON file; the name of a file that is not UTF-8 stands in it as JSON can write it."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    # 文件名里不是 UTF-8 的字节，Python 记作孤立的代理字符：写不成 UTF-8，转义写法则可以
    if HALF_CHARACTER.search(text):
        text = json.dumps(value, indent=1)
    return text + "\n"


def read_bounded(path: Path, most: int = 0) -> bytes:
    """Reads a small file that somebody else may have made, of `most` bytes; 0 takes `MOST_JSON_BYTES`.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: it is larger than any file of its kind, or no plain file.
    """
    # 先看大小再读：下载来的文件夹里什么都可能有，管道和设备永远读不完
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("it is no plain file")
    if state.st_size > (most or MOST_JSON_BYTES):
        raise ValueError(f"it has {state.st_size >> 20} MiB, more than any such file should")
    return path.read_bytes()


def parse_json(path: Path, loads: Callable[[str], Any] = json.loads, most: int = 0) -> Any:
    """Reads a JSON file that somebody else may have made, or a TOML file with its `loads`, as `read_bounded` does.

    Raises ValueError also where it is nested too deeply, no UTF-8, or no JSON.
    """
    text = read_bounded(path, most).decode("utf-8-sig")
    try:
        return loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json(path: Path, kind: type[ValueT], error: type[BertsmithError], advice: str) -> ValueT:
    """Reads what `write_json` wrote."""
    try:
        content = parse_json(path)
        if isinstance(content, dict) and CHECKSUM in content and content.pop(CHECKSUM) != checksum_of(content):
            raise ValueError("its checksum differs")
        found: ValueT = from_json(kind, content)
        return found
    except FileNotFoundError:
        raise error(f"{path}: is missing; {advice}") from None
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror}); check the path and its permissions") from None
    except (ValueError, TypeError, OverflowError, RecursionError, BertsmithError) as reason:
        raise error(f"{path}: damaged ({_in_one_line(reason)}); {advice}") from None


def checksum_of(content: dict[str, Any]) -> str:
    """Returns the checksum of an object of JSON, whatever the order and the spaces it is written with."""
    # 比较的是内容而不是字节：换一种缩进不算损坏
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def to_json(value: Any) -> Any:
    """Returns dataclasses, mappings and sequences as JSON has them, without fields that take no part in comparisons."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value) if one.compare}
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, (str, int, float, type(None))):
        return value
    if isinstance(value, Sequence):
        return [to_json(inner) for inner in value]
    # numpy 的数和数组都有 tolist；为这一句导入 numpy，会拖慢每一条命令的 --help
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def from_json(kind: Any, value: Any, place: str = "") -> Any:
    """Returns a value of a type from its form in JSON.

    Args:
        kind: a dataclass, `list`, `tuple`, `dict`, `Mapping`, `Sequence`, a union, a `Literal`, `Any`, or a plain type.
        place: where it stands in the file, such as `dev.metrics`; for messages.

    Raises:
        ValueError: the value does not fit the type; the message names the place.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _dataclass_from(cast(type, kind), value, place)
    if origin in (Union, types.UnionType):
        return _union_from(arguments, value, place)
    if origin is Literal:
        return value if value in arguments else _refuse(place, value, " or ".join(map(repr, arguments)))
    if origin in (dict, Mapping, types.MappingProxyType) or (origin and issubclass(origin, Mapping)):
        if not isinstance(value, dict):
            _refuse(place, value, "an object")
        # JSON 的键总是字符串：整数键（如 id2label）在这里变回整数
        return {
            _key(arguments[0], name, place): from_json(arguments[1], v, _at(place, name)) for name, v in value.items()
        }
    if origin in (tuple, list) or (origin and issubclass(origin, Sequence)):
        return _sequence_from(origin, arguments, value, place)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        _refuse(place, value, _WORDS.get(kind, kind.__name__))
    return value


def _dataclass_from(kind: type, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        _refuse(place, value, "an object")
    hints = get_type_hints(kind)
    known = {one.name: one for one in fields(kind) if one.init and one.compare}
    for name in value:
        if name not in known:
            raise ValueError(f"{_at(place, name)} is unknown")
    for name, one in known.items():
        if name not in value and one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{_at(place, name)} is missing")
    return kind(**{name: from_json(hints[name], inner, _at(place, name)) for name, inner in value.items()})


def _union_from(kinds: Sequence[Any], value: Any, place: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    members = [kind for kind in kinds if kind is not type(None)]
    for kind in members[:-1]:
        with contextlib.suppress(ValueError):
            return from_json(kind, value, place)
    return from_json(members[-1], value, place)


def _sequence_from(origin: Any, kinds: Sequence[Any], value: Any, place: str) -> Any:
    if not isinstance(value, list):
        _refuse(place, value, "a list")
    if origin is not tuple or Ellipsis in kinds:
        kinds = [kinds[0]] * len(value)
    elif len(value) != len(kinds):
        _refuse(place, value, f"a list of {len(kinds)}")
    made = [from_json(kind, one, f"{place}[{n}]") for n, (kind, one) in enumerate(zip(kinds, value, strict=True))]
    return tuple(made) if origin is tuple else made


def _key(kind: Any, name: str, place: str) -> Any:
    if kind is int:
        return int(name) if name.removeprefix("-").isdecimal() else _refuse(place, name, "a number as key")
    return name


def _at(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def _refuse(place: str, value: Any, wanted: str) -> NoReturn:
    # TOML 里有 JSON 没有的日期：连同类型一起说
    shown = json.dumps(value, ensure_ascii=False, default=lambda one: f"{type(one).__name__} {one}")
    raise ValueError(f"{place or 'the whole'} is {shown[:40]}{'…' if len(shown) > 40 else ''}, not {wanted}")


def _in_one_line(reason: BaseException) -> str:
    if isinstance(reason, json.JSONDecodeError):
        return f"not JSON at line {reason.lineno}: {reason.msg}"
    if isinstance(reason, UnicodeDecodeError):
        return f"not UTF-8 at byte {reason.start:,}"
    return " ".join(str(reason).split()) or type(reason).__name__
