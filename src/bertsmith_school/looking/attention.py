"""The attention of one text in one folder: a self-contained HTML page to explore, and PNG pictures for a report.

- in the page weights are stored as round(255 sqrt(p)), deflated, head by head: a 12 x 12 model on 128 tokens stays
  under 3 MB, and a weight is right to 0.4 percentage points at worst, small ones far better
- the page carries `pages/attention.css` and `pages/attention.js`, and a policy that lets nothing else run or be fetched
- tokens are the user's text: they stand in the page as JSON and are only ever shown as text
- in pictures colours grow with the square root of a weight: most weights are small, and would all look white otherwise
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
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import make_folder, write_text
from bertsmith.reporting.drawing import Drawing, drawable, write_picture
from bertsmith.reporting.heatmap import draw_heatmap, draw_weights, label_axes, label_points, token_inches
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
        rows += [
            (name, f"What the tokens of text {name[0]} give to those of text {name[-1]}.", True, shares)
            for name, shares in _by_pair(attention).items()
        ]
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


_MAP_COLOURS = "Blues"
_TILE_PIXELS = 96


def draw_heads(attention: AttentionMaps) -> Figure:
    """Draws all layers x heads, layer 1 lowest, each map from white to its largest weight; pruned heads are grey."""
    num_layers, num_heads, length = attention.maps.shape[:3]
    tiles = np.sqrt(thumbnails(attention.maps, _TILE_PIXELS))
    tiles /= np.maximum(tiles.max((-1, -2), keepdims=True), 1e-6)
    # 拼成一张图、只用一个坐标系：每个头一个坐标系时，排版要花十几秒；缝隙和被剪掉的头是 NaN，画成灰色
    side = tiles.shape[-1]
    gap = max(1, side // 16)
    pitch = side + gap
    mosaic = np.full((num_layers * pitch, num_heads * pitch), np.nan, dtype=np.float32)
    for layer, head in np.ndindex(num_layers, num_heads):
        top, left = (num_layers - 1 - layer) * pitch, head * pitch
        mosaic[top : top + side, left : left + side] = tiles[layer, head]
    inches = float(np.clip(16 / max(num_layers, num_heads), 0.6, 1.7))
    figure = Figure(figsize=(num_heads * inches + 0.7, num_layers * inches + 0.9), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(mosaic[:, :-gap][:-gap], cmap=colormaps[_MAP_COLOURS].with_extremes(bad="#d5dce4"), vmin=0, vmax=1)
    middles = pitch * np.arange(max(num_layers, num_heads)) + (side - 1) / 2
    axes.set_xticks(middles[:num_heads], [str(head + 1) for head in range(num_heads)])
    axes.set_yticks(middles[:num_layers], [str(num_layers - row) for row in range(num_layers)])
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(f"Every head on {length} tokens, each on its own scale", fontsize=11)
    return figure


def draw_cls(attention: AttentionMaps) -> Drawing:
    """Draws what `[CLS]` reads in each layer, the mean of its heads."""
    weights = cls_attention(attention.maps)
    num_layers, size = weights.shape
    labels, family, note = drawable(attention.tokens)
    # 层数少时图也不能矮到色条和标题挤不下
    width, height = max(3.0, token_inches(size) * size), max(1.2, 0.3 * num_layers)
    figure, axes, bar_axes = label_axes(labels, width, height, square=False)
    shades = draw_weights(axes, weights, highest=1, origin="lower")
    axes.set_xticks(range(size), labels, rotation=90, fontsize=label_points(size), family=family, parse_math=False)
    axes.set_yticks(range(num_layers), [str(layer + 1) for layer in range(num_layers)], fontsize=9)
    axes.set_ylabel("layer")
    axes.set_title("What [CLS] reads, mean over heads", fontsize=11, loc="left")
    figure.colorbar(shades, ax=axes, cax=bar_axes, label="attention probability")
    return Drawing(figure, note)


def draw_summaries(attention: AttentionMaps) -> Figure:
    """Draws every measure as a picture of layers x heads."""
    found = summaries(attention)
    return _draw_panels([(measure.name, found[name], measure.is_share) for name, measure in MEASURES.items()])


def draw_pair_shares(attention: AttentionMaps) -> Figure:
    """Draws the four shares of a pair as pictures of layers x heads."""
    return _draw_panels([(name, shares, True) for name, shares in _by_pair(attention).items()])


def _by_pair(attention: AttentionMaps) -> dict[str, Floats]:
    """Returns the four shares of a pair by name, each [L, A]."""
    shares = pair_shares(attention.maps, attention.sequence_ids)
    return {name: shares[..., place // 2, place % 2] for place, name in enumerate(PAIRS)}


def _draw_panels(panels: Sequence[tuple[str, Floats, bool]]) -> Figure:
    """Draws values [L, A] side by side; shares run from 0 to 1, other measures from 0 to their largest value."""
    num_layers, num_heads = panels[0][1].shape
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    width, height = np.clip([0.24 * num_heads + 1.3, 0.24 * num_layers + 1.0], 2.6, 8)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, values, is_share) in zip(grid, panels, strict=False):
        highest = 1.0 if is_share else max(float(np.nanmax(values)), 1e-6)
        image = axes.imshow(values, cmap="viridis", vmin=0, vmax=highest, origin="lower", aspect="auto")
        axes.set_title(name, fontsize=10)
        for axis, count in ((axes.xaxis, num_heads), (axes.yaxis, num_layers)):
            step = max(1, count // 6)
            axis.set_ticks(range(0, count, step), [str(place + 1) for place in range(0, count, step)], fontsize=8)
        axes.set_xlabel("head", fontsize=8)
        axes.set_ylabel("layer", fontsize=8)
        colorbar = figure.colorbar(image, ax=axes, shrink=0.9)
        colorbar.ax.tick_params(labelsize=7)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure


PAGE = "attention.html"


def write_attention(
    attention: AttentionMaps, folder: Path, *, layer: int | None = None, head: int | None = None
) -> list[str]:
    """Writes `attention.html`, and as PNG one head, all heads, `[CLS]`, rollout, the measures, and a pair's shares.

    Pictures of an earlier text in the folder are replaced. The single map is that of a layer and a head, from 0; by
    default of the last layer, and of the mean of its heads. Returns lines that tell the reader what was written.
    """
    layers, heads = attention.maps.shape[:2]
    layer = layers - 1 if layer is None else layer
    require_head(attention, layer, head)
    _claim(folder)
    page = attention_page(attention, layer=layer, head=head)
    single = mean_over_heads(attention.maps)[layer] if head is None else attention.maps[layer, head]
    name = "mean over heads" if head is None else f"head {head + 1}"

    def draw(weights: Floats, title: str) -> Drawing:
        return draw_heatmap(attention.tokens, weights, title=title, token_type_ids=attention.sequence_ids)

    pictures: dict[str, Drawing] = {
        "head.png": draw(single, f"layer {layer + 1}, {name}"),
        "heads.png": Drawing(draw_heads(attention), ""),
        "cls.png": draw_cls(attention),
        "rollout.png": draw(rollout(attention.maps)[-1], f"Attention rollout, up to layer {layers}"),
        "measures.png": Drawing(draw_summaries(attention), ""),
    }
    if attention.is_pair:
        pictures["pair.png"] = Drawing(draw_pair_shares(attention), "")
    notes = [attention.note]
    # 上一次是句对、这一次不是：旧的 pair.png 不能留下来冒充
    (folder / "pair.png").unlink(missing_ok=True)
    # 页面最先写：有它在，这个文件夹就认得出是谁的，中途停下也可以重来
    write_text(folder / PAGE, page)
    for file, picture in pictures.items():
        notes += [picture.note, write_picture(picture.figure, folder / file)]
    size = (folder / PAGE).stat().st_size
    summary = f"{len(attention.tokens)} tokens, {layers} layers of {heads} heads"
    files = f"{folder / PAGE} ({size / 1e6:.1f} MB) and {', '.join(pictures)} beside it"
    # 同一条字体提示每张图都会给出：只说一次
    return [f"{summary}: {files}", *dict.fromkeys(note for note in notes if note)]


def _claim(folder: Path) -> None:
    make_folder(folder)
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    if entries and not (folder / PAGE).is_file():
        raise RunFolderError(f"{folder}: is not empty and holds no {PAGE}; choose another --out")
