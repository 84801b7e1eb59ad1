"""The Plotly figures of the lab, from arrays and texts.

No font, script or map is fetched from anywhere. Plotly reads a little HTML in labels, so visitors' texts are escaped.
Grey writing on a transparent ground serves the light and the dark theme alike.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from bertsmith_school import RUN_COLOURS
from bertsmith_school.looking.coloured import printable

_GREY, _GRID = "#7a8794", "rgba(128,128,128,0.22)"
_WHITE = "rgba(128,128,128,0.06)"
PAIR_COLOURS = {(0, 0): "#1f5fae", (0, 1): "#d96f1e", (1, 0): "#2b8a57", (1, 1): "#8a4fa3"}
"""Colour of each direction between the texts of a pair: (reader, read)."""

_UNUSED_BUTTONS = ("zoom", "pan", "select", "lasso", "zoomIn", "zoomOut", "autoScale", "resetScale")
"""What Plotly's bar offers besides saving as PNG."""

_LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
_LONGEST_LABEL = 60
CELL = 19
"""Pixels of a token in a map: as close as its labels can be read."""


def label(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Returns a text as Plotly shows it literally, on one line and cut where it is long."""
    text = " ".join(printable(text).split())
    return html.escape(text if len(text) <= longest else text[: longest - 1] + "…", quote=False)


def map_width(tokens: int) -> int:
    """Returns the least width of a map in pixels, labels included."""
    return 130 + CELL * tokens


def draw_map(
    tokens: Sequence[str],
    weights: NDArray[np.float32],
    token_type_ids: Sequence[int],
    *,
    words: tuple[str, str],
    by_pair: bool,
) -> go.Figure:
    """Draws who reads whom: weights [S, S] of S pieces and segments, or one colour for each direction of a pair."""
    names = [label(token, 24) for token in tokens]
    types = np.asarray(token_type_ids)
    colours: Mapping[tuple[int, int], str] = PAIR_COLOURS if by_pair else {(0, 0): PAIR_COLOURS[0, 0]}
    strongest = float(np.sqrt(weights.max()))
    figure = go.Figure()
    for (reader, read), colour in colours.items():
        shown = np.outer(types == reader, types == read) if by_pair else np.ones_like(weights, dtype=bool)
        # 颜色按平方根：多数权重很小，线性着色时几乎全白；悬停时显示真实的权重
        cells = _cells(
            np.where(shown, np.sqrt(weights), np.nan),
            f"<b>%{{y}}</b> {label(words[0])}<br><b>%{{x}}</b> {label(words[1])}<br>%{{customdata:.1%}}",
            colour=colour,
        )
        figure.add_trace(cells.update(customdata=weights, zmax=strongest, showscale=False, hoverongaps=False))
    _axes(figure, names, names)
    # 边距按最长的标签自己算：让 Plotly 自动量边距要重画好几遍，点击后的等待会翻倍
    room = 20 + max(map(_pixels, names))
    figure.update_layout(height=room + 8 + CELL * len(tokens), margin=_margin(room, room, 8))
    return _with_own_margins(figure)


def draw_heads(
    values: NDArray[np.float32], *, share: bool, words: tuple[str, str], chosen: tuple[int, int | None]
) -> go.Figure:
    """Draws one number for every head [L, A], the lowest layer at the bottom; a layer and head from 0 are marked."""
    layers = len(values)
    shape = "%{z:.1%}" if share else "%{z:.2f}"
    cells = _cells(values, f"{words[0]} %{{y}}, {words[1]} %{{x}}<br>{shape}", first=1)
    figure = go.Figure(cells.update(zmin=None, colorbar_tickformat=".0%" if share else ".2f"))
    layer, head = chosen
    # 均值和 rollout 不属于某一个头：不标
    if head is not None:
        box = {"x0": head + 0.5, "x1": head + 1.5, "y0": layer + 0.5, "y1": layer + 1.5}
        figure.add_shape(type="rect", **box, line={"color": PAIR_COLOURS[0, 1], "width": 3})
    _plain(figure)
    figure.update_layout(height=90 + 26 * layers, margin=_margin(46, 8, 40))
    for axes, word in ((figure.update_xaxes, words[1]), (figure.update_yaxes, words[0])):
        axes(title=word, dtick=1, showgrid=False)
    return _with_own_margins(figure)


def draw_scatter(texts: Sequence[str], points: NDArray[np.float64], axes: tuple[str, str]) -> go.Figure:
    """Draws N texts as points [N, 2]; they are shown where they are few, and when pointed at."""
    named = len(texts) <= 40
    figure = go.Figure(
        go.Scatter(
            x=points[:, 0],
            y=points[:, 1],
            mode="markers+text" if named else "markers",
            text=[f"{number}" for number in range(1, len(texts) + 1)],
            customdata=[label(text, 90) for text in texts],
            textposition="top center",
            marker={"size": 10, "color": PAIR_COLOURS[0, 0], "line": {"width": 1, "color": "white"}},
            hovertemplate="%{text}. %{customdata}<extra></extra>",
        )
    )
    _plain(figure)
    figure.update_layout(height=420, margin=_margin(46, 12, 44), hovermode="closest")
    figure.update_xaxes(title=axes[0], zeroline=True)
    figure.update_yaxes(title=axes[1], zeroline=True)
    return figure


def draw_matrix(texts: Sequence[str], values: NDArray[np.float32]) -> go.Figure:
    """Draws the similarity [N, N] of texts, which are numbered from 1; pointing at a cell shows both."""
    numbers = [str(number) for number in range(1, len(texts) + 1)]
    shown = [label(text, 50) for text in texts]
    cells = _cells(values, "%{text[1]}<br>%{text[0]}<br>%{z:.3f}")
    cells.update(zmin=-1, zmax=1, colorscale=[[0, PAIR_COLOURS[0, 1]], [0.5, _WHITE], [1, PAIR_COLOURS[0, 0]]])
    few = len(texts) <= 12
    cells.update(text=[[[one, two] for one in shown] for two in shown], texttemplate="%{z:.2f}" if few else None)
    figure = go.Figure(cells)
    _axes(figure, numbers, numbers, angle=0)
    figure.update_layout(height=max(300, 80 + 24 * len(texts)), margin=_margin(34, 34, 8))
    return figure


def draw_topics(
    points: NDArray[np.float32], groups: NDArray[np.int64], names: Sequence[str], texts: Sequence[str]
) -> go.Figure:
    """Draws D passages as points [D, 2] in the colours of their groups [D], which count from 1 as the K names do."""
    figure = go.Figure()
    for number, name in enumerate(names, 1):
        own = np.flatnonzero(groups == number)
        if len(own):
            figure.add_scatter(
                x=points[own, 0],
                y=points[own, 1],
                mode="markers",
                marker={"size": 7, "color": RUN_COLOURS[(number - 1) % len(RUN_COLOURS)], "opacity": 0.7},
                customdata=[label(texts[row], 90) for row in own],
                hovertemplate=f"<b>{label(name)}</b><br>%{{customdata}}<extra></extra>",
            )
            x, y = np.median(points[own], axis=0)
            # 图上只写编号：几十个主题的用词写不下，列在上面
            ground = {"bgcolor": "rgba(255,255,255,0.85)", "font": {"color": "#111", "size": 13}}
            figure.add_annotation(x=x, y=y, text=f"<b>{number}</b>", showarrow=False, **ground)
    _plain(figure)
    figure.update_layout(height=460, margin=_margin(8, 12, 8), hovermode="closest", showlegend=False)
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(visible=False)
    return figure


def draw_over_time(names: Sequence[str], periods: Sequence[str], counts: NDArray[np.int64], *, title: str) -> go.Figure:
    """Draws how much of each of P periods K topics have, from their passages [K, P], which pointing at a cell shows."""
    shown = [label(name, 24) for name in names]
    cells = _cells(counts / np.maximum(counts.sum(axis=0), 1), "%{y}<br>%{x}: %{z:.1%} (%{customdata:,})")
    figure = go.Figure(cells.update(customdata=counts, colorbar_tickformat=".0%"))
    _axes(figure, [label(one) for one in periods], shown)
    heading = {"text": label(title, 90), "font": {"size": 13}, "x": 0, "xanchor": "left"}
    figure.update_layout(height=130 + 24 * len(names), margin=_margin(12 + max(map(_pixels, shown)), 30, 70))
    figure.update_layout(title=heading).update_xaxes(side="bottom")
    return _with_own_margins(figure)


def draw_curves(runs: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, over: str, title: str) -> go.Figure:
    """Draws one figure of several runs: name → where, and how much."""
    figure = go.Figure()
    for number, (name, (xs, ys)) in enumerate(runs.items()):
        colour = RUN_COLOURS[number % len(RUN_COLOURS)]
        dash = ("solid", "dash", "dot")[number // len(RUN_COLOURS) % 3]
        figure.add_scatter(
            x=list(xs),
            y=list(ys),
            name=label(name),
            mode="lines+markers" if len(xs) < 60 else "lines",
            line={"color": colour, "width": 2, "dash": dash},
            hovertemplate=f"{label(name)}<br>{label(over)} %{{x:,}}: %{{y:.4g}}<extra></extra>",
        )
    _plain(figure)
    figure.update_layout(
        height=420,
        margin=_margin(56, 40, 44),
        showlegend=True,
        legend=_LEGEND,
        # 定时刷新时保住用户的缩放：同一个 uirevision 表示“还是这张图”
        uirevision=label(f"{title}/{over}"),
    )
    figure.update_xaxes(title=label(over))
    figure.update_yaxes(title=label(title))
    return figure


def _cells(values: NDArray[Any], hover: str, *, first: int = 0, colour: str = PAIR_COLOURS[0, 0]) -> go.Heatmap:
    """Returns values [rows, columns] as cells, the larger the darker, and what pointing at one says."""
    rows, columns = values.shape
    return go.Heatmap(
        z=values,
        x=list(range(first, first + columns)),
        y=list(range(first, first + rows)),
        zmin=0,
        colorscale=[[0, _WHITE], [1, colour]],
        xgap=1,
        ygap=1,
        colorbar={"thickness": 10},
        hovertemplate=f"{hover}<extra></extra>",
    )


def _margin(left: int, top: int, bottom: int) -> dict[str, int]:
    return {"l": left, "r": 8, "t": top, "b": bottom}


def _pixels(name: str) -> int:
    """Returns about how wide a label is drawn; Chinese characters are twice as wide as Latin letters."""
    return sum(13 if character > "\u2e80" else 8 for character in html.unescape(name))


def _axes(figure: go.Figure, columns: Sequence[str], rows: Sequence[str], *, angle: int = -90) -> None:
    _plain(figure)
    for axes, names in ((figure.update_xaxes, columns), (figure.update_yaxes, rows)):
        shared = {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": names}
        axes(showgrid=False, zeroline=False, **shared)
    figure.update_xaxes(tickangle=angle, side="top")
    figure.update_yaxes(autorange="reversed")


def _with_own_margins(figure: go.Figure) -> go.Figure:
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(automargin=False, ticklabeloverflow="allow")
    return figure


def _plain(figure: go.Figure) -> None:
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": _GREY, "size": 12, "family": "system-ui, 'Noto Sans CJK SC', 'PingFang SC', sans-serif"},
        hoverlabel={"align": "left"},
        dragmode=False,
        modebar={"remove": _UNUSED_BUTTONS, "bgcolor": "rgba(0,0,0,0)", "color": _GREY, "activecolor": _GREY},
    )
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(gridcolor=_GRID, zerolinecolor=_GRID, automargin=True)
