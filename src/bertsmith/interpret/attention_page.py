"""Attention to explore, as one self-contained HTML page: every head, on a screen of any size, without a network.

Notable:
- weights are stored as round(255 sqrt(p)), deflated, head by head: a 12 x 12 model on 128 tokens stays under 3 MB, and
  a weight is right to 0.4 percentage points at worst, small ones far better
- style and behaviour are `pages/attention.css` and `pages/attention.js`; the page carries both, and a policy that lets
  nothing else run and nothing be fetched
- tokens are the user's text: they stand in the page as JSON and are only ever shown as text
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.interpret.maps import AttentionMaps, Floats, cls_attention, rollout, thumbnails
from bertsmith.interpret.summaries import MEASURES, PAIRS, pair_shares, summaries
from bertsmith.reporting.page import environment

_THUMBNAIL = 32
"""Cells a side of the small maps."""


def attention_page(attention: AttentionMaps, *, layer: int | None = None, head: int | None = None) -> str:
    """Returns the page.

    Args:
        attention: of a text or pair.
        layer: shown first, from 0; None for the last one.
        head: shown first, from 0; None for the mean of the layer's heads.

    Raises:
        InputError: there is no such layer or head.
    """
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
    files = resources.files("bertsmith.interpret") / "pages"
    style, script = ((files / f"attention.{ending}").read_text(encoding="utf-8") for ending in ("css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    template = environment("bertsmith.interpret").get_template("attention.html")
    return template.render(
        policy=policy,
        style=style,
        script=script,
        payload=payload,
        lead=_lead(attention),
        note=attention.note,
        pairs=attention.is_pair,
        pairs_named=PAIRS,
    )


def require_head(attention: AttentionMaps, layer: int, head: int | None) -> None:
    """Makes sure that a layer and a head exist.

    Raises:
        InputError: there is no such layer or head, or the head was pruned.
    """
    num_layers, num_heads = attention.maps.shape[:2]
    if not 0 <= layer < num_layers:
        raise InputError(f"there is no layer {layer + 1}; the model has layers 1 to {num_layers}")
    if head is None:
        return
    if not 0 <= head < num_heads:
        raise InputError(f"there is no head {head + 1}; the model has heads 1 to {num_heads}")
    if np.isnan(attention.maps[layer, head]).any():
        raise InputError(f"head {head + 1} of layer {layer + 1} was pruned; choose another")


def _lead(attention: AttentionMaps) -> str:
    num_layers, num_heads, size = attention.maps.shape[:3]
    return f"{num_layers} layers of {num_heads} heads on {size} tokens" + (", a pair" if attention.is_pair else "")


def _measures(attention: AttentionMaps) -> list[dict[str, object]]:
    """Returns the measures as the page reads them; those of a pair come last."""
    found = summaries(attention)
    rows: list[tuple[str, str, bool, Floats]] = [
        (measure.name, measure.meaning, measure.is_share, found[key]) for key, measure in MEASURES.items()
    ]
    if attention.is_pair:
        shares = pair_shares(attention.maps, attention.sequence_ids).reshape(*attention.maps.shape[:2], 4)
        rows += [
            (name, f"What the tokens of text {name[0]} give to those of text {name[-1]}.", True, shares[..., place])
            for place, name in enumerate(PAIRS)
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
