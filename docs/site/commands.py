"""The reference of the command line, made from the commands themselves each time the site is built."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import typer
from typer.main import get_command

WORDS = {
    "en": {"option": "option", "means": "what it does", "default": "default", "required": "required", "none": ""},
    "zh": {"option": "选项", "means": "作用", "default": "默认值", "required": "必填", "none": ""},
}


def commands() -> Iterator[tuple[str, Any]]:
    """Yields every command and its name, groups of commands by their members."""
    from bertsmith.cli import all_commands

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for word, one in getattr(command, "commands", {}).items():
            if getattr(one, "hidden", False):
                continue
            if hasattr(one, "commands"):
                yield from walk(one, f"{name}{word} ")
            else:
                yield f"{name}{word}", one

    yield from walk(get_command(all_commands()), "")


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def _kind(parameter: Any) -> str:
    """Returns what a parameter takes: `PATH`, `INT 0..65535`, `en, zh` and the like; nothing for a switch."""
    if parameter.metavar:
        return str(parameter.metavar).replace("|", ", ")
    kind = parameter.type_descriptor.annotation
    # list[Path]、int | None：一层层取到里面的类
    while get_args(kind) and get_origin(kind) is not Literal:
        kind = next(one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is Literal:
        return ", ".join(str(one) for one in get_args(kind))
    if not isinstance(kind, type):
        return "TEXT"
    if kind is bool:
        return ""
    if issubclass(kind, Enum):
        return ", ".join(str(one.value) for one in kind)
    name = {"str": "TEXT"}.get(kind.__name__, kind.__name__.upper())
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is not None and high is not None:
        return f"{name} {low:g}..{high:g}"
    if low is not None:
        return f"{name} ≥ {low:g}"
    return name if high is None else f"{name} ≤ {high:g}"


def _default(parameter: Any) -> str:
    value = parameter.default
    # 没有默认值、关着的开关，都不必写
    if value in (None, False, (), [], "") or callable(value) or parameter.show_default is False:
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _row(parameter: Any, words: dict[str, str]) -> str:
    names = " ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if not parameter.opts or not parameter.opts[0].startswith("-"):
        names = f"`{parameter.name.upper()}`"
    taken = _kind(parameter)
    label = f"{names} `{taken}`" if taken and taken != names.strip("`") else names
    help_text = getattr(parameter, "help", None) or ""
    found = re.fullmatch(r"(.*?)\s*Default: (.*?)\.?", help_text, re.DOTALL)
    text, default = (found[1], found[2]) if found else (help_text, "")
    if parameter.required:
        default = f"*{words['required']}*"
    default = _cell(default) if default else _default(parameter)
    return f"| {label} | {_cell(text)} | {default} |"


def command_page(name: str, command: Any, language: str) -> str:
    """Returns the section of a command: what it does, how it is called, its options by panel."""
    words = WORDS[language]
    # 有的选项（如 --device）到问起时才有：params 里还看不到
    found = command.get_params(typer.Context(command))
    parameters = [one for one in found if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in parameters if not one.opts[0].startswith("-")]
    usage = " ".join(one.name.upper() + ("..." if one.nargs == -1 else "") for one in arguments)
    anchor = name.replace(" ", "-")
    text = inspect.cleandoc(command.help or "")
    lines = [f"## bertsmith {name} {{ #{anchor} }}", "", text, "", "```text"]
    lines += [" ".join(f"bertsmith {name} {usage} [OPTIONS]".split()), "```", ""]
    panels: dict[str, list[str]] = {}
    for one in parameters:
        panels.setdefault(getattr(one, "rich_help_panel", None) or "", []).append(_row(one, words))
    for panel, rows in panels.items():
        if panel:
            lines += [f"**{panel}**", ""]
        lines += [f"| {words['option']} | {words['means']} | {words['default']} |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def command_pages(language: str) -> str:
    """Returns the sections of all commands."""
    return "\n".join(command_page(name, command, language) for name, command in commands())
