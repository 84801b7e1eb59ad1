"""The attention of one text in one folder: a self-contained HTML page to explore, and a map as PNG for a report.

- in the page weights are stored as round(255 sqrt(p)), deflated, head by head: a 12 x 12 model on 128 tokens stays
  under 3 MB, and a weight is right to 0.4 percentage points at worst, small ones far better
- the page carries `pages/attention.css` and `pages/attention.js`, and a policy that lets nothing else run or be fetched
- tokens are the user's text: they stand in the page as JSON and are only ever shown as text
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import make_folder, write_text
from bertsmith.reporting.drawing import Drawing, drawable, write_picture
from bertsmith.reporting.page import environment
from bertsmith_school.looking.maps import (
    MEASURES,
    PAIRS,
    AttentionMaps,
    Floats,
    cls_attention,
    mean_over_heads,
    pair_shares,
    rollout,
    summaries,
    thumbnails,
)

_THUMBNAIL = 32
"""Cells a side of the small maps."""
_ROOMY, _CLOSE = 40, 120
"""Number of tokens up to which labels have room to spare, and from which they are as close as can be read."""


def attention_page(attention: AttentionMaps, *, layer: int | None = None, head: int | None = None) -> str:
    """Returns the page; it shows a layer and a head first, from 0: by default the last, and the mean of its heads."""
    layer = attention.maps.shape[0] - 1 if layer is None else layer
    require_head(attention, layer, head)
    num_layers, num_heads = attention.maps.shape[:2]
    reached = rollout(attention.maps)
    small = thumbnails(attention.maps, _THUMBNAIL)
    data = {
        "tokens": attention.tokens,
        "types": attention.sequence_ids,
        "pair": attention.is_pair,
        "layers": num_layers,
        "heads": num_heads,
        "layer": layer,
        "head": "mean" if head is None else head,
        # 逐头压缩：打开页面时只解压要看的那一张
        "maps": [[None if np.isnan(one).any() else _packed(one) for one in heads] for heads in attention.maps],
        "rollout": [_packed(one) for one in reached],
        "thumbnails": _packed(np.nan_to_num(small)),
        "thumbnail": small.shape[-1],
        "cls": _base64(_levels(cls_attention(attention.maps)).tobytes()),
        "clsRollout": _base64(_levels(reached[:, 0]).tobytes()),
        "measures": _measures(attention),
    }
    # "<" 写成 \u003c：文本里的 </script> 不能提前结束数据块
    payload = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    files = resources.files("bertsmith_school.looking") / "pages"
    style, script = ((files / f"attention.{ending}").read_text(encoding="utf-8") for ending in ("css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    lead = (
        f"{num_layers} layers of {num_heads} heads on {len(attention.tokens)} tokens" + ", a pair" * attention.is_pair
    )
    template = environment("bertsmith_school.looking").get_template("attention.html")
    carried = {"policy": policy, "style": style, "script": script, "payload": payload}
    return template.render(**carried, lead=lead, note=attention.note, pairs=attention.is_pair, pairs_named=PAIRS)


def require_head(attention: AttentionMaps, layer: int, head: int | None) -> None:
    """Makes sure that a layer and a head exist."""
    num_layers, num_heads = attention.maps.shape[:2]
    if not 0 <= layer < num_layers:
        raise InputError(f"there is no layer {layer + 1}; the model has layers 1 to {num_layers}")
    if head is None:
        return
    if not 0 <= head < num_heads:
        raise InputError(f"there is no head {head + 1}; the model has heads 1 to {num_heads}")
    if np.isnan(attention.maps[layer, head]).any():
        raise InputError(f"head {head + 1} of layer {layer + 1} was pruned; choose another")


def _measures(attention: AttentionMaps) -> list[dict[str, object]]:
    """Returns the measures as the page reads them; those of a pair come last."""
    found = summaries(attention)
    rows: list[tuple[str, str, bool, Floats]] = [
        (measure.name, measure.meaning, measure.is_share, found[key]) for key, measure in MEASURES.items()
    ]
    if attention.is_pair:
        shares = pair_shares(attention.maps, attention.sequence_ids)
        for place, name in enumerate(PAIRS):
            meaning = f"What the tokens of text {name[0]} give to those of text {name[-1]}."
            rows.append((name, meaning, True, shares[..., place // 2, place % 2]))
    return [
        {"name": name, "meaning": meaning, "share": is_share, "values": _rounded(values)}
        for name, meaning, is_share, values in rows
    ]


def _rounded(values: Floats) -> list[list[float | None]]:
    return [[None if np.isnan(value) else round(float(value), 5) for value in row] for row in values]


def _levels(weights: Floats) -> NDArray[np.uint8]:
    # 存平方根：1/128 这样的小权重也有足够的刻度，误差不超过 sqrt(p)/255
    levels: NDArray[np.uint8] = np.rint(255 * np.sqrt(np.clip(weights, 0, 1))).astype(np.uint8)
    return levels


def _packed(weights: Floats) -> str:
    return _base64(zlib.compress(_levels(weights).tobytes(), 6))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _digest(content: str) -> str:
    return "sha256-" + _base64(hashlib.sha256(content.encode("utf-8")).digest())


PAGE, PICTURE = "attention.html", "head.png"


def write_attention(
    attention: AttentionMaps, folder: Path, *, layer: int | None = None, head: int | None = None
) -> list[str]:
    """Writes `attention.html`, and as `head.png` the map of a layer and a head.

    Both count from 0; by default it is the last layer, and the mean of its heads. Returns lines that tell the reader
    what was written.
    """
    layers, heads = attention.maps.shape[:2]
    layer = layers - 1 if layer is None else layer
    page = attention_page(attention, layer=layer, head=head)
    _claim(folder)
    single = mean_over_heads(attention.maps)[layer] if head is None else attention.maps[layer, head]
    name = "mean over heads" if head is None else f"head {head + 1}"

    title = f"layer {layer + 1}, {name}"
    picture = draw_heatmap(attention.tokens, single, title=title, token_type_ids=attention.sequence_ids)
    # 页面先写：有它在，这个文件夹就认得出是谁的，中途停下也可以重来
    write_text(folder / PAGE, page)
    notes = [attention.note, picture.note, write_picture(picture.figure, folder / PICTURE)]
    size = (folder / PAGE).stat().st_size
    summary = f"{len(attention.tokens)} tokens, {layers} layers of {heads} heads"
    written = f"{folder / PAGE} ({size / 1e6:.1f} MB) and {PICTURE} beside it"
    return [f"{summary}: {written}", *filter(None, notes)]


def _claim(folder: Path) -> None:
    make_folder(folder)
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    if entries and not (folder / PAGE).is_file():
        raise RunFolderError(f"{folder}: is not empty and holds no {PAGE}; choose another --out")


def draw_heatmap(
    pieces: Sequence[str], weights: NDArray[np.float32], *, title: str, token_type_ids: Sequence[int] | None = None
) -> Drawing:
    """Draws one attention map [S, S], rows adding up to 1, with its tokens on both axes.

    Where `token_type_ids` [S] hold two segments, lines are drawn between them.
    """
    count = len(pieces)
    side = max(2.4, _token_inches(count) * count)
    labels, family, note = drawable(pieces)
    figure, axes, bar_axes = _label_axes(labels, side)
    # 多数权重很小：颜色随平方根加深，否则几乎全白
    shades = ScalarMappable(PowerNorm(0.5, 0, max(float(weights.max()), 1e-6)), "Blues")
    # 先按格子上色再放大：反过来，要给几千万个像素各算一次平方根
    axes.imshow(shades.to_rgba(weights, bytes=True), interpolation="nearest")
    points = _label_points(count)
    # 词元里的 $ 是文字，不是公式的开头
    axes.set_xticks(range(count), labels, rotation=90, fontsize=points, family=family, parse_math=False)
    axes.set_yticks(range(count), labels, fontsize=points, family=family, parse_math=False)
    borders = np.flatnonzero(np.diff(token_type_ids)) + 0.5 if token_type_ids is not None else ()
    for border in borders:
        axes.axhline(border, color="#c4622d", linewidth=0.8)
        axes.axvline(border, color="#c4622d", linewidth=0.8)
    axes.set_xlabel("read from")
    axes.set_ylabel("by token")
    axes.set_title(title, fontsize=11, loc="left")
    figure.colorbar(shades, ax=axes, cax=bar_axes, shrink=min(0.75, 6 / side), label="attention probability")
    return Drawing(figure, note)


def _label_axes(labels: Sequence[str], side: float) -> tuple[Figure, Axes, Axes | None]:
    """Returns a figure, its axes with room for tokens as labels, and those of the colour bar, or None to find them."""
    if len(labels) <= _CLOSE:
        figure = Figure(figsize=(side + 2.5, side + 1.8), layout="compressed")
        return figure, figure.add_subplot(), None
    # 自动排版要把上千个标签量好几遍，花掉一分钟：词多时按最长的标签自己留边
    room = 0.6 + max(map(_inches, labels))
    figure = Figure(figsize=(room + side + 1.2, room + side + 0.5))
    whole, high = figure.get_size_inches()
    axes = figure.add_axes((room / whole, room / high, side / whole, side / high))
    bar_axes = figure.add_axes(((room + side + 0.25) / whole, room / high, 0.2 / whole, min(side, 6) / high))
    return figure, axes, bar_axes


def _inches(label: str) -> float:
    """Returns how long a label is, at most; characters of the East are as wide as they are high."""
    points = _label_points(_CLOSE)
    return points / 72 * sum(1.0 if character >= "\u2e80" else 0.65 for character in label)


def _token_inches(count: int) -> float:
    """Returns how much of an axis each of `count` tokens gets, in inches: less as there are more, never too little."""
    return float(np.interp(count, [_ROOMY, _CLOSE], [0.3, 0.14]))


def _label_points(count: int) -> float:
    """Returns the size of the labels of `count` tokens, in points."""
    return float(np.interp(count, [_ROOMY, _CLOSE], [9.0, 7.0]))
