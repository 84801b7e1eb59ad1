"""Attention maps as PNG pictures: all heads, `[CLS]` by layer, the measures, rollout, a pair's shares.

The numbers come from `maps` and `summaries`; a single map is drawn by `heatmap`. Figures are made through matplotlib's
object interface, so nothing global is touched and no screen is needed. Colours grow with the square root of a weight:
most weights are small, and would all look white otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from bertsmith.interpret.heatmap import draw_weights, label_axes, label_points, token_inches
from bertsmith.interpret.maps import AttentionMaps, Floats, cls_attention, thumbnails
from bertsmith.interpret.summaries import MEASURES, PAIRS, pair_shares, summaries
from bertsmith.reporting.drawing import Drawing
from bertsmith.reporting.fonts import drawable

_MAP_COLOURS = "Blues"
_TILE_PIXELS = 96


def draw_heads(attention: AttentionMaps) -> Figure:
    """Draws all layers x heads as a grid of small maps without labels; layer 1 is the lowest row, as in the network.

    Every map has its own scale, from white to its largest weight. Pruned heads are grey.
    """
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
    panels = [(measure.name, found[name], measure.is_share) for name, measure in MEASURES.items()]
    return _draw_panels(panels, "viridis")


def draw_pair_shares(attention: AttentionMaps) -> Figure:
    """Draws the four shares of a pair as pictures of layers x heads."""
    shares = pair_shares(attention.maps, attention.sequence_ids)
    places = [(reader, read) for reader in (0, 1) for read in (0, 1)]
    return _draw_panels(
        [(name, shares[..., i, j], True) for name, (i, j) in zip(PAIRS, places, strict=True)], "viridis"
    )


def _draw_panels(panels: Sequence[tuple[str, Floats, bool]], colours: str) -> Figure:
    """Draws values [L, A] side by side; shares run from 0 to 1, other measures from 0 to their largest value."""
    num_layers, num_heads = panels[0][1].shape
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    width, height = np.clip([0.24 * num_heads + 1.3, 0.24 * num_layers + 1.0], 2.6, 8)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (name, values, is_share) in zip(grid, panels, strict=False):
        highest = 1.0 if is_share else max(float(np.nanmax(values)), 1e-6)
        image = axes.imshow(values, cmap=colours, vmin=0, vmax=highest, origin="lower", aspect="auto")
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
