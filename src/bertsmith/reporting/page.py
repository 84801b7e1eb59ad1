"""Reports as one self-contained HTML page: a heading, and tables and pictures one below the other.

A part of a page is a small dataclass that names its template, and gets there as `part`; a room may bring its own in its
folder `templates/`. Jinja2 escapes every value, so texts of users need no care here.
"""

from __future__ import annotations

import base64
import functools
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import rich.table
import rich.text
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.figure import Figure

CellStyle = Literal["text", "figure", "note", "code"]
"""How the cells of a column are set: a `figure` is never broken, a `note` is small and grey, `code` is monospaced."""

RASTER_DPI = 130
"""Pixels an inch of what a picture holds as an image: heat maps, and clouds of points drawn with `rasterized`."""


class Part(Protocol):
    """Something a page shows."""

    @property
    def template(self) -> str:
        """The template that draws it, found as in `environment`."""


@dataclass(frozen=True)
class Table:
    """A table under a heading.

    Attributes:
        note: a sentence between heading and table; empty for none.
        styles: of the columns from the left; the last one holds for all further columns.
        marked: the number of a row to highlight, from 0; None for none.
    """

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    styles: Sequence[CellStyle] = ("text", "figure")
    marked: int | None = None
    template: ClassVar[str] = "table.html"

    def for_terminal(self) -> rich.table.Table:
        """Returns the table as the terminal shows it, heading and note included."""
        shown = rich.table.Table(title=self.heading, title_justify="left", caption=self.note, caption_justify="left")
        for number, column in enumerate(self.columns):
            style = self.styles[min(number, len(self.styles) - 1)]
            shown.add_column(column, justify="right" if style == "figure" else "left", overflow="fold")
        for row in self.rows:
            shown.add_row(*map(rich.text.Text, row))
        return shown


@dataclass(frozen=True)
class Picture:
    """A figure with its heading, a sentence on how to read it, and a note below it.

    Lines, bars and text stay sharp at every size. A cloud of many points must be drawn with `rasterized`: each of them
    would be an element of the page otherwise.
    """

    heading: str
    explanation: str
    figure: Figure
    note: str = ""
    template: ClassVar[str] = "picture.html"

    @property
    def svg(self) -> str:
        """The figure as SVG in base64, always the same for the same figure."""
        buffer = io.BytesIO()
        # 编号的盐固定、不写日期：同样的结果再写一次，页面一字不差
        with rc_context({"svg.hashsalt": "bertsmith"}):
            self.figure.savefig(buffer, format="svg", dpi=RASTER_DPI, metadata={"Date": None})
        # 图片以 base64 内嵌：报告是单个文件，拷到哪里都能打开；几张图里的编号也不会相撞
        return base64.b64encode(buffer.getvalue()).decode("ascii")


@dataclass(frozen=True)
class FigureRow:
    """One line of the table of figures: what it is, its value, and the setting it holds for."""

    name: str
    value: str
    setting: str


def figures_table(figures: Sequence[FigureRow]) -> Table:
    """Returns the table of figures."""
    rows = [(row.name, row.value, row.setting) for row in figures]
    return Table("Figures", ("what", "value", "setting"), rows, styles=("text", "figure", "note"))


@functools.cache
def environment(package: str = "bertsmith.reporting") -> Environment:
    """Returns the templates of a package, with those of this room below them."""
    packages = dict.fromkeys((package, "bertsmith.reporting"))
    made = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in packages]),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["coded"] = _coded
    return made


def _coded(text: str) -> Markup:
    """Returns a sentence as HTML, with what stands between backticks as code."""
    # 先转义再加标签：用户的文字里若有标签，仍是文字
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def render_report(
    title: str,
    lead: str,
    parts: Sequence[Part],
    *,
    verdict: str = "",
    commands: Sequence[str] = (),
    package: str = "bertsmith.reporting",
    **values: Any,
) -> str:
    """Returns a whole page.

    The `verdict` says above the lead what came out. At the end stand `commands` to type next, with the paths of this
    run. Parts may use the templates of `package` besides those of this room.
    """
    template = environment(package).get_template("report.html")
    return template.render(title=title, lead=lead, parts=parts, verdict=verdict, commands=commands, **values)
