"""The reference of the command line, an overview and a page for each command, made from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args, get_origin

import typer
from typer.main import get_command

WORDS = {
    "en": {
        "command": "command",
        "option": "option",
        "means": "what it does",
        "default": "default",
        "required": "required",
        "all": "All commands",
    },
    "zh": {
        "command": "命令",
        "option": "选项",
        "means": "作用",
        "default": "默认值",
        "required": "必填",
        "all": "全部命令",
    },
}


class NamedCommand(NamedTuple):
    """A command with its words, such as `export onnx`, and the panel of the help that it stands in."""

    panel: str
    name: str
    command: Any

    @property
    def anchor(self) -> str:
        """Its name in links."""
        return self.name.replace(" ", "-")


def page_of(anchor: str) -> str:
    """Returns the page of a command, beside the overview."""
    # 有条命令叫 index：不加前缀，它的页会占掉总目录的地址
    return f"commands/bertsmith-{anchor}.md"


@cache
def commands() -> list[NamedCommand]:
    """Returns every command, panel by panel as `bertsmith --help` has them, groups of commands by their members."""
    from bertsmith.cli import all_commands

    def walk(group: Any, before: str, panel: str) -> Iterator[NamedCommand]:
        for word, one in group.commands.items():
            if getattr(one, "hidden", False):
                continue
            shown = panel or str(one.rich_help_panel)
            if hasattr(one, "commands"):
                yield from walk(one, f"{before}{word} ", shown)
            else:
                yield NamedCommand(shown, f"{before}{word}", one)

    found = list(walk(get_command(all_commands()), "", ""))
    panels = list(dict.fromkeys(one.panel for one in found))
    return sorted(found, key=lambda one: panels.index(one.panel))


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


def command_page(one: NamedCommand, language: str) -> str:
    """Returns the page of a command: what it does, how it is called, its options by panel."""
    words, name, command = WORDS[language], one.name, one.command
    # 有的选项（如 --device）到问起时才有：params 里还看不到
    found = command.get_params(typer.Context(command))
    parameters = [one for one in found if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in parameters if not one.opts[0].startswith("-")]
    usage = " ".join(one.name.upper() + ("..." if one.nargs == -1 else "") for one in arguments)
    text = inspect.cleandoc(command.help or "")
    lines = [f"# bertsmith {name}", "", text, "", "```text"]
    lines += [" ".join(f"bertsmith {name} {usage} [OPTIONS]".split()), "```", ""]
    panels: dict[str, list[str]] = {}
    for one in parameters:
        panels.setdefault(getattr(one, "rich_help_panel", None) or "", []).append(_row(one, words))
    for panel, rows in panels.items():
        if panel:
            lines += [f"**{panel}**", ""]
        lines += [f"| {words['option']} | {words['means']} | {words['default']} |", "|---|---|---|", *rows, ""]
    return "\n".join([*lines, f"[{words['all']}](../commands.md)", ""])


def command_list(language: str, titles: Mapping[str, str]) -> str:
    """Returns the overview: a table for each panel, with a link and the first sentence for each command.

    Args:
        titles: panel → its name in the language, where it has another.
    """
    words, lines = WORDS[language], []
    for panel, members in groupby(commands(), key=lambda one: one.panel):
        lines += [f"## {titles.get(panel, panel)} {{ #commands-{panel.lower()} }}", ""]
        lines += [f"| {words['command']} | {words['means']} |", "|---|---|"]
        for one in members:
            first = inspect.cleandoc(one.command.help or "").partition("\n\n")[0]
            # 锚点仍叫命令的名字：站外旧的链接照样有效
            link = f"[`bertsmith {one.name}`]({page_of(one.anchor)}){{ #{one.anchor} }}"
            lines.append(f"| {link} | {_cell(first)} |")
        lines.append("")
    return "\n".join(lines)


def command_navigation() -> list[dict[str, list[dict[str, str]]]]:
    """Returns the pages of the commands as the navigation of MkDocs has them, by panel."""
    panels = groupby(commands(), key=lambda one: one.panel)
    return [{panel: [{one.name: f"reference/{page_of(one.anchor)}"} for one in members]} for panel, members in panels]
