"""Settings that are declared once, in (nested, frozen) dataclasses, and read by everything else.

A field made by `option` says its default, its help and its range. From that declaration come the command line's options
(`bertsmith.cli.options`), the tables of a TOML file (`to_table`, `from_table`) and changes by name (`changed`). A field
whose type is another such dataclass is a part: a panel in the help, a table in the file. A field of neither kind is no
setting of the user's, such as a limit that the code works out.
"""

from __future__ import annotations

import functools
import math
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
        shown_default: the default in words, where it is not the value of the field; empty for that.
        parse, parse_each: turns the text of the command line into the value, or each of many; None: the type says how.
        panel: heading in the help; empty for that of the dataclass.
    """

    help: str
    name: str = ""
    min: float | None = None
    max: float | None = None
    shown_default: str = ""
    parse: Callable[[str], Any] | None = None
    parse_each: Callable[[str], Any] | None = None
    panel: str = ""
    in_file_only: bool = False


def option(default: Any = MISSING, **declared: Any) -> Any:
    """Declares a dataclass field as a setting, by the attributes of `Option`; required without a default."""
    return field(default=default, metadata={_OPTION: Option(**declared)})


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


def named(name: str, known: Mapping[str, ThingT], what: str) -> ThingT:
    """Returns the thing that a setting's word stands for; `what` says what such a thing is called, such as `family`."""
    if name not in known:
        raise ConfigError(f"{what} {name!r} is unknown; use one of {', '.join(known)}")
    return known[name]


def installed(group: str, use: Callable[[Any], Any] = lambda thing: thing) -> dict[str, Any]:
    """Returns by name what other packages name as entry points of a group, each as `use` gives it back."""
    found = {}
    for entry in metadata.entry_points(group=group):
        try:
            found[entry.name] = use(entry.load())
        except Exception as error:
            # 别人的包坏了，不该连我们的也用不了
            warnings.warn(f"{entry.value}, an entry point {group}, cannot be used ({error})", stacklevel=2)
    return found


def settings_of(kind: type) -> list[Setting]:
    """Returns the settings of a dataclass, those of its parts included, in the order of declaration."""
    found = list(_settings_of(kind, ()))
    names = [setting.name for setting in found]
    if len(set(names)) < len(names):
        raise ValueError(f"{kind.__name__}: two settings are called {max(names, key=names.count)}")
    return found


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
            name: _checked(settings[name], value)
            for name, value in values.items()
            if name in settings and value is not None
        }
        for settings in known
    ]


def in_minutes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in which `hours`, where they are given, are added to the `minutes`."""
    rest = {name: value for name, value in values.items() if name != "hours"}
    hours = values.get("hours")
    if hours is None:
        return rest
    if not isinstance(hours, (int, float)) or not 0 < hours < math.inf:
        raise ConfigError(f"hours is {hours!r}; give a number above 0")
    return {**rest, "minutes": (rest.get("minutes") or 0.0) + 60 * hours}


def _checked(setting: Setting, value: Any) -> Any:
    if not setting.is_many:
        setting.require_choice(value, setting.name)
    value = setting.listed(value)
    try:
        plain = to_json(value)
    except TypeError:
        # 表格之类写不成 JSON：选项收什么，这里也只收什么
        flag = "--" + setting.name.replace("_", "-")
        raise ConfigError(f"{setting.name} is a {type(value).__name__}; give what {flag} takes") from None
    try:
        found = from_json(setting.type, plain, setting.name)
    except (ValueError, TypeError) as error:
        if not isinstance(value, str) or setting.option.parse is None:
            raise ConfigError(str(error)) from None
        # 命令行上的写法也认，如 tokens="1e9"
        found = setting.option.parse(value)
    least, most = setting.option.min, setting.option.max
    if isinstance(found, (int, float)) and not (
        (least is None or found >= least or found == setting.default) and (most is None or found <= most)
    ):
        wanted = " and ".join(
            f"at {word} {end:g}" for word, end in (("least", least), ("most", most)) if end is not None
        )
        raise ConfigError(f"{setting.name} is {found}; give {wanted}")
    return found


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
            within[setting.path[-1]] = _plain(values[setting.name])
    return table


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


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
