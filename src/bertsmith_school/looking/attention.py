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
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError, RunFolderError
from bertsmith.files import make_folder, write_text
from bertsmith.reporting.drawing import write_picture
from bertsmith.reporting.heatmap import draw_heatmap
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
