"""Lines of the package's own code as steps of a lesson, read from the functions that run, so that none goes stale."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from bertsmith.model import family_named
from bertsmith_school.learn.lesson import Cell, Language, Step, Text

Function = Callable[..., Any]


class Line(NamedTuple):
    """A line of code: its number in its file, from 1, and what it says."""

    number: int
    code: str

    @property
    def bare(self) -> str:
        """The line without indentation, type annotation and the comment behind it: what is compared."""
        return re.sub(r"^([\w.]+): [^=]+ = ", r"\1 = ", self.code.partition("  # ")[0].strip())


def code_lines(function: Function) -> list[Line]:
    """Returns the lines of a function's body, indented as in the body, without docstring and comments."""
    source, first = inspect.getsourcelines(function)
    (definition,) = ast.parse(textwrap.dedent("".join(source))).body
    assert isinstance(definition, ast.FunctionDef)
    # 文档字符串说的是意思，这里比的是做法：从第一条真正的语句开始
    body = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
    start = body[0].lineno - 1
    lines = textwrap.dedent("".join(source[start:])).splitlines()
    numbered = [Line(first + start + number, line) for number, line in enumerate(lines)]
    return [line for line in numbered if line.code.strip() and not line.code.lstrip().startswith("#")]


def differing_lines(bert: Function, own: Function, language: Language) -> Step:
    """Returns which lines of BERT's function are gone from a family's (`-`), and which are new in it (`+`)."""
    theirs, ours = code_lines(bert), code_lines(own)
    # 子类的方法调用了 super() 时，BERT 的那些行照样运行，不算去掉
    extends = _class_of(bert) in _class_of(own).__mro__ and any(f"super().{own.__name__}(" in x.code for x in ours)
    rows: list[tuple[str, Line]] = []
    changes = SequenceMatcher(None, [line.bare for line in theirs], [line.bare for line in ours], autojunk=False)
    for kind, start, end, own_start, own_end in changes.get_opcodes():
        if kind != "equal":
            rows += [] if extends else [("-", line) for line in theirs[start:end]]
            rows += [("+", line) for line in ours[own_start:own_end]]
    return _step(f"{bert.__qualname__} → {own.__qualname__}", rows, (bert, own), language)


def lines_naming(function: Function, name: str, language: Language) -> Step:
    """Returns the lines of a function in which a name stands."""
    rows = [("", line) for line in code_lines(function) if name in line.code]
    return _step(f"{function.__qualname__}: {name}", rows, (function,), language)


def whole_body(function: Function, language: Language) -> Step:
    """Returns all lines of a function that has no counterpart in BERT."""
    return _step(function.__qualname__, [("", line) for line in code_lines(function)], (function,), language)


def differing_settings(family: str, language: Language) -> Step:
    """Returns what is set otherwise than in BERT: objective, vocabulary, and the defaults of `config.json`."""
    bert, own = family_named("bert"), family_named(family)
    rows: list[tuple[Cell, ...]] = [
        (name, getattr(bert, name), getattr(own, name))
        for name in ("objective", "tokenizer")
        if getattr(bert, name) != getattr(own, name)
    ]
    theirs, ours = (_defaults(each.config) for each in (bert, own))
    rows += [(name, theirs[name], ours[name]) for name in theirs if name in ours and theirs[name] != ours[name]]
    rows += [(name, value, "–") for name, value in theirs.items() if name not in ours]
    columns = (Text("setting", "设定")(language), bert.name, own.name)
    return Step(Text("what is set otherwise", "不同的设定")(language), rows, _files((own.config,)), columns=columns)


def _defaults(config: type) -> dict[str, str]:
    return {each.name: str(each.default) for each in fields(config) if each.default is not MISSING}


def _class_of(method: Function) -> type:
    found: type = getattr(sys.modules[method.__module__], method.__qualname__.partition(".")[0])
    return found


def _step(label: str, rows: Sequence[tuple[str, Line]], functions: Iterable[Function], language: Language) -> Step:
    columns = Text("line|code", "行|代码")(language).split("|")
    signs = any(sign for sign, _ in rows)
    table = [((sign,) if signs else ()) + (f"{line.number}", line.code) for sign, line in rows]
    return Step(label, table, _files(functions), columns=("", *columns) if signs else tuple(columns))


def _files(things: Iterable[Any]) -> str:
    # 与“在代码里”的链接同一种写法：从包的根目录写起
    return " → ".join(dict.fromkeys(f"{thing.__module__.replace('.', '/')}.py" for thing in things))
