"""Settings that are declared once, in (nested, frozen) dataclasses, and read by everything else.

A field made by `option` says its default, its help and its range. From that declaration come the command line's options
(`bertsmith.cli.options`), the tables of a TOML file (`to_table`, `from_table`) and changes by name (`changed`). A field
whose type is another such dataclass is a part: a panel in the help, a table in the file. A field of neither kind is no
setting of the user's, such as a limit that the code works out.

A dataclass with the base `Checked` checks each value against its declaration whenever it is made: from the command
line, from a file, in Python.
"""

from __future__ import annotations

import functools
import math
import operator
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bertsmith.errors import ConfigError
from bertsmith.files import from_json, to_json

SettingsT = TypeVar("SettingsT")
ThingT = TypeVar("ThingT")
_OPTION = "option"


@dataclass(frozen=True)
class Option:
    """What a field says of itself.

    Attributes:
        name: on the command line and in `changed`, with underscores; empty for that of the field.
        min, max, above, below: the range of a number; the last two are no part of it. A default may lie outside, where
            it stands for "not given".
        least_given: what a user may give at least, where the code may go lower; `min` unless given.
        shown_default: the default in words, where it is not the value of the field; empty for that.
        parse, parse_each: turns the text of the command line into the value, or each of many; None: the type says how.
        panel: heading in the help; empty for that of the dataclass.
    """

    help: str = ""
    name: str = ""
    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    least_given: float | None = None
    shown_default: str = ""
    parse: Callable[[str], Any] | None = None
    parse_each: Callable[[str], Any] | None = None
    panel: str = ""
    in_file_only: bool = False


def option(default: Any = MISSING, **declared: Any) -> Any:
    """Declares a dataclass field as a setting, by the attributes of `Option`; required without a default."""
    return field(default=default, metadata={_OPTION: Option(**{"least_given": declared.get("min"), **declared})})


@dataclass(frozen=True)
class Setting:
    """One setting of a dataclass or of a part of it.

    Attributes:
        path: names of the fields that lead to it.
        name: the name by which the user knows it, with underscores; unique in the whole.
        type: of its value; `X | None` is given as X, and as `optional`.
        default: `dataclasses.MISSING` where it has none.
        panel: heading of its part, the class attribute `panel`; empty where there is none.
    """

    path: tuple[str, ...]
    name: str
    type: Any
    optional: bool
    default: Any
    option: Option
    panel: str

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, where these are words of a `Literal`; empty for any."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def is_many(self) -> bool:
        """Whether it holds any number of values, in a tuple."""
        return get_origin(self.type) is tuple

    def listed(self, value: Any) -> Any:
        """Returns a value as it is, or a single one of a setting of many as a list of one."""
        is_one = isinstance(value, str) or not isinstance(value, Iterable)
        return [value] if self.is_many and is_one else value

    def require_choice(self, value: object, label: str) -> None:
        """Makes sure that a value is one of the choices."""
        if self.choices and value not in self.choices:
            raise ConfigError(f"{label} {value!r} is unknown; use {', '.join(self.choices)}")

    def checked(self, value: Any, *, by_user: bool = False) -> Any:
        """Returns a value as it is declared: of many as a tuple, and what the command line reads as text as read.

        Args:
            by_user: whether a user gave it, for whom the range may be narrower.

        Raises:
            ConfigError: it is of another type, no choice, or out of range.
        """
        if value is self.default or (value is None and self.optional):
            return value
        if not self.is_many:
            self.require_choice(value, self.name)
        value = self.listed(value)
        try:
            plain = to_json(value)
        except TypeError:
            # 表格之类写不成 JSON：选项收什么，这里也只收什么
            flag = "--" + self.name.replace("_", "-")
            raise ConfigError(f"{self.name} is a {type(value).__name__}; give what {flag} takes") from None
        try:
            found = from_json(self.type, plain, self.name)
        except (ValueError, TypeError, OverflowError) as error:
            if not isinstance(value, str) or self.option.parse is None:
                raise ConfigError(str(error)) from None
            # 命令行上的写法也认，如 tokens="1e9"
            found = self.option.parse(value)
        # 等于默认值的一定可以：范围之外的默认值表示“没有给出”
        if isinstance(found, (int, float)) and found != self.default:
            self._require_range(found, by_user=by_user)
        return found

    def _require_range(self, value: float, *, by_user: bool) -> None:
        ends = (
            ("at least", operator.ge, self.option.least_given if by_user else self.option.min),
            ("more than", operator.gt, self.option.above),
            ("at most", operator.le, self.option.max),
            ("less than", operator.lt, self.option.below),
        )
        # 整数可以大到变不成浮点数，但总是有限的
        is_finite = isinstance(value, int) or math.isfinite(value)
        if not is_finite or not all(end is None or holds(value, end) for _, holds, end in ends):
            wanted = " and ".join(f"{words} {end:.10g}" for words, _, end in ends if end is not None)
            raise ConfigError(f"{self.name} is {str(value)[:40]}; give {wanted if is_finite else 'a finite number'}")


class Checked:
    """Base of a dataclass of settings: what does not fit its declaration is refused when one is made."""

    def __post_init__(self) -> None:
        kind: type = type(self)
        for setting in _own(kind):
            (name,) = setting.path
            # 冻结的数据类：读成声明的类型（列表成元组），只能这样放回去
            object.__setattr__(self, name, setting.checked(getattr(self, name)))
        self._check_together()

    def _check_together(self) -> None:
        """Raises `ConfigError` where values do not go together; fills in what depends on others."""


def named(name: str, known: Mapping[str, ThingT], what: str) -> ThingT:
    """Returns the thing that a setting's word stands for; `what` says what such a thing is called, such as `family`."""
    if name not in known:
        raise ConfigError(f"{what} {name!r} is unknown; use one of {', '.join(known)}")
    return known[name]


def installed(group: str, use: Callable[[Any], Any] = lambda thing: thing) -> dict[str, Any]:
    """Returns by name what other packages name as entry points of a group, each as `use` gives it back."""
    found: dict[str, Any] = {}
    for entry in metadata.entry_points(group=group):
        try:
            thing = use(entry.load())
        except Exception as error:
            # 别人的包坏了，不该连我们的也用不了
            warnings.warn(f"{entry.value}, an entry point {group}, cannot be used ({error})", stacklevel=2)
            continue
        if found.setdefault(entry.name, thing) is not thing:
            said = f"{entry.value}, an entry point {group}, is not used: another is called {entry.name!r} as well"
            warnings.warn(said, stacklevel=2)
    return found


def settings_of(kind: type) -> list[Setting]:
    """Returns the settings of a dataclass, those of its parts included, in the order of declaration."""
    found = list(_settings_of(kind, ()))
    names = [setting.name for setting in found]
    if len(set(names)) < len(names):
        raise ValueError(f"{kind.__name__}: two settings are called {max(names, key=names.count)}")
    return found


@functools.cache
def _own(kind: type) -> tuple[Setting, ...]:
    """Returns the settings of a dataclass without those of its parts."""
    # 没有声明的不解析类型：别人的类里，类型的名字可能只有检查器看得到
    if not any(_OPTION in one.metadata for one in fields(kind)):
        return ()
    return tuple(setting for setting in _settings_of(kind, ()) if len(setting.path) == 1)


def _settings_of(kind: type, path: tuple[str, ...]) -> Iterator[Setting]:
    hints = get_type_hints(kind)
    for one in fields(kind):
        if _OPTION in one.metadata:
            declared = one.metadata[_OPTION]
            bare, optional = _without_none(hints[one.name])
            name = declared.name or one.name
            panel = declared.panel or getattr(kind, "panel", "")
            yield Setting((*path, one.name), name, bare, optional, one.default, declared, panel)
        elif is_dataclass(hints[one.name]):
            yield from _settings_of(hints[one.name], (*path, one.name))


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Returns X and True for `X | None`, and any other type with False."""
    members = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType) and type(None) in members:
        rest = [member for member in members if member is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return hint, False


def built(kind: type[SettingsT], values: Mapping[str, Any]) -> SettingsT:
    """Returns settings, some given by name and the others as declared; `ConfigError` for an unknown name."""
    return _made(kind, None, values)


def changed(base: SettingsT, **values: Any) -> SettingsT:
    """Returns a copy of settings with some of them changed, by name."""
    return _made(type(base), base, values)


def _made(kind: type[SettingsT], base: SettingsT | None, values: Mapping[str, Any]) -> SettingsT:
    """Returns settings with some values; the others are those of a base, or as declared."""
    known = settings_of(kind)
    names = [setting.name for setting in known]
    unknown = sorted(values.keys() - set(names))
    if unknown:
        raise ConfigError(f"there is no setting {unknown[0]!r}; there are {', '.join(names)}")
    given: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for setting in known:
        if setting.name in values:
            place, *below = setting.path
            (parts.setdefault(place, {}) if below else given)[setting.name if below else place] = values[setting.name]
    for place, some in parts.items():
        part = get_type_hints(kind)[place]
        given[place] = _made(part, None if base is None else getattr(base, place), some)
    return kind(**given) if base is None else replace(base, **given)  # type: ignore[type-var]


def divided(values: Mapping[str, Any], *kinds: type, command: str) -> list[dict[str, Any]]:
    """Divides settings among the dataclasses that declare them, and checks each: what a call in Python was given.

    Args:
        values: name → value, as the options of a command with underscores; None means "as declared".
        *kinds: the dataclasses, no two with a setting of the same name.
    """
    # 只写在文件里的设置不是选项：是找出来的，不是选出来的
    known = [{one.name: one for one in settings_of(kind) if not one.option.in_file_only} for kind in kinds]
    names = [name for settings in known for name in settings]
    if "minutes" in names:
        values = in_minutes(values)
    for name in values:
        if name not in names:
            close = get_close_matches(name, names, 1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise ConfigError(f"{name}: there is no such setting; {meant}All are in `bertsmith {command} --help`")
    return [
        {
            name: settings[name].checked(value, by_user=True)
            for name, value in values.items()
            if name in settings and value is not None
        }
        for settings in known
    ]


HOURS = Setting((), "hours", float, True, None, Option("In hours, added to the minutes.", least_given=0.001), "")
"""Beside every setting `minutes`."""


def in_minutes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in which `hours`, where they are given, are added to the `minutes`."""
    rest = {name: value for name, value in values.items() if name != "hours"}
    hours = HOURS.checked(values.get("hours"), by_user=True)
    return rest if hours is None else {**rest, "minutes": (rest.get("minutes") or 0.0) + 60 * hours}


def values_of(settings: Any) -> dict[str, Any]:
    """Returns name → value of all settings."""
    return {one.name: functools.reduce(getattr, one.path, settings) for one in settings_of(type(settings))}


def to_table(settings: Any) -> dict[str, Any]:
    """Returns settings as nested tables that TOML can hold; what is None is left out."""
    table: dict[str, Any] = {}
    values = values_of(settings)
    for setting in settings_of(type(settings)):
        within = table
        for name in setting.path[:-1]:
            within = within.setdefault(name, {})
        if values[setting.name] is not None:
            within[setting.path[-1]] = to_json(values[setting.name])
    return table


def from_table(kind: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """Returns name → value of nested tables, from `to_table` or by hand; `ConfigError` for a wrong name or type."""
    known = {setting.path: setting for setting in settings_of(kind)}
    values = {}
    for path, value in _flat(table, {path[:-1] for path in known}, ()):
        if path not in known:
            raise ConfigError(f"{'.'.join(path)} is no setting of this version")
        try:
            values[known[path].name] = from_json(known[path].type, known[path].listed(value), ".".join(path))
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return values


def _flat(
    table: Mapping[str, Any], parts: set[tuple[str, ...]], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        here = (*path, name)
        if isinstance(value, Mapping) and any(part[: len(here)] == here for part in parts):
            yield from _flat(value, parts, here)
        else:
            yield here, value


DetailsT = TypeVar("DetailsT")


@dataclass(frozen=True)
class Result(Generic[DetailsT]):
    """What a call made.

    Attributes:
        folder: what was made: the folder, of `mine` the file, that was given as `out`; of an evaluation, the model's.
        metrics: name → value of the figures that matter, the first the most.
        model_folder: a model folder that came out, or was evaluated; None where there is none, as for a corpus.
        report: a page, or a picture, that shows more; None where there is none.
        details: all that is known, as the object that the work itself returns.
    """

    folder: Path
    metrics: Mapping[str, float]
    model_folder: Path | None
    report: Path | None
    details: DetailsT
