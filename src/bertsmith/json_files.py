"""JSON files that hold a dataclass: results, descriptions, manifests, states.

    write_json(path, result)
    result = read_json(path, FineTuningResult, RunFolderError, "remove it or choose another --out")

Notable:
- the annotations of the dataclass are the schema: what is missing, unknown or of another type is found on reading, with
  the place inside the file, and so are the checks of `__post_init__`; a field with a default may be missing
- every fault of a file (missing, cut off, not JSON, not UTF-8, another shape) is one line with the path and the advice
- a file that others build on may carry a checksum of all the rest of it: a digit that a disk turned into another digit
  is still JSON of the right shape
"""

from __future__ import annotations

import json
import types
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from bertsmith.errors import BertsmithError
from bertsmith.files import write_text

ValueT = TypeVar("ValueT")

CHECKSUM = "checksum of the rest"
"""Name under which an object carries the checksum of its other fields."""


def write_json(path: Path, value: Any, *, checked: bool = False) -> None:
    """Writes a value as `to_json` gives it, by `files.atomic_path`.

    Args:
        path: the file.
        value: what it holds.
        checked: whether it gets a checksum, which `read_json` compares; for objects that this package alone reads.
    """
    content = to_json(value)
    if checked:
        content = {**content, CHECKSUM: checksum_of(content)}
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path, kind: type[ValueT], error: type[BertsmithError], advice: str) -> ValueT:
    """Reads what `write_json` wrote.

    Args:
        path: the file.
        kind: what it holds: a dataclass, or another type that `from_json` reads.
        error: what is raised where the file is not usable.
        advice: the way out, such as `choose another --out`; ends the message.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(content, dict) and CHECKSUM in content and content.pop(CHECKSUM) != checksum_of(content):
            raise ValueError("its checksum differs")
        found: ValueT = from_json(kind, content)
        return found
    except FileNotFoundError:
        raise error(f"{path}: is missing; {advice}") from None
    except RecursionError:
        raise error(f"{path}: damaged (nested too deeply); {advice}") from None
    except (OSError, ValueError, TypeError, OverflowError, BertsmithError) as reason:
        raise error(f"{path}: damaged ({_in_one_line(reason)}); {advice}") from None


def checksum_of(content: dict[str, Any]) -> str:
    """Returns the checksum of an object of JSON, whatever the order and the spaces it is written with."""
    # 比较的是内容而不是字节：换一种缩进不算损坏
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def to_json(value: Any) -> Any:
    """Returns dataclasses, mappings and sequences as the dictionaries and lists that JSON has.

    A field of a dataclass that takes no part in comparisons is left out: it is not what the value is, but what was
    worked out from it.
    """
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
        value: as `json.loads` gives it.
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
        try:
            return from_json(kind, value, place)
        except ValueError:
            continue
    return from_json(members[-1], value, place)


def _sequence_from(origin: Any, kinds: Sequence[Any], value: Any, place: str) -> Any:
    if not isinstance(value, list):
        _refuse(place, value, "a list")
    if origin is tuple and Ellipsis not in kinds:
        if len(value) != len(kinds):
            _refuse(place, value, f"a list of {len(kinds)}")
        return tuple(
            from_json(kind, inner, f"{place}[{n}]") for n, (kind, inner) in enumerate(zip(kinds, value, strict=True))
        )
    made = [from_json(kinds[0], inner, f"{place}[{number}]") for number, inner in enumerate(value)]
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
    shown = json.dumps(value, ensure_ascii=False)
    raise ValueError(f"{place or 'the whole'} is {shown[:40]}{'…' if len(shown) > 40 else ''}, not {wanted}")


def _in_one_line(reason: BaseException) -> str:
    if isinstance(reason, json.JSONDecodeError):
        return f"not JSON at line {reason.lineno}: {reason.msg}"
    if isinstance(reason, UnicodeDecodeError):
        return f"not UTF-8 at byte {reason.start:,}"
    return " ".join(str(reason).split()) or type(reason).__name__
