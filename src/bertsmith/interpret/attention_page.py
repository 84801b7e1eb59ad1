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
import html
import json
import zlib
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.interpret.maps import AttentionMaps, Floats, cls_attention, rollout, thumbnails
from bertsmith.interpret.summaries import MEASURES, PAIRS, pair_shares, summaries

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
        "types": attention.token_type_ids,
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
    return _PAGE.format(
        policy=html.escape(policy),
        style=style,
        script=script,
        payload=payload,
        lead=html.escape(_lead(attention)),
        note=f"<p><b>{html.escape(attention.note)}</b></p>" if attention.note else "",
        hide_pairs="" if attention.is_pair else " hidden",
        legend="".join(f"<span><i id='hue-{place}'></i>{name}</span>" for place, name in enumerate(PAIRS)),
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
        shares = pair_shares(attention.maps, attention.token_type_ids).reshape(*attention.maps.shape[:2], 4)
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


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention</title><link rel="icon" href="data:,"><style>{style}</style></head><body>
<h1>Attention</h1>
<p class="quiet">{lead}. A row is a token, and says how much it reads from every token; a row adds up to 100 %.</p>
{note}<noscript><p><b>This page draws its pictures with a script of its own; allow it to run.</b></p></noscript>
<p id="problem" role="alert" hidden></p>
<h2 id="name"></h2>
<div class="controls">
<label>Layer <select id="layer"></select></label>
<label>Head <select id="head"></select></label>
<label{hide_pairs}><input type="checkbox" id="pairs" checked> colours for the pair</label>
</div>
<div class="legend" id="legend"{hide_pairs}>{legend}</div>
<h3>In the text</h3>
<p class="quiet">Point at a token, or go there with the arrow keys: the stronger a colour, the more it reads there.</p>
<label><input type="checkbox" id="reverse"> the other way round: who reads it</label>
<div class="tokens" id="tokens" role="toolbar" aria-label="Tokens"></div>
<output id="tokenreadout"></output>
<h3>As a map</h3>
<div class="controls">
<label>Cells <input type="range" id="cell" min="4" max="40" value="20" aria-label="size of the cells"></label>
<button type="button" id="fit">Fit</button>
</div>
<output id="readout"></output>
<div><div class="view" id="map"></div></div>
<p class="quiet">Colours grow with the square root of the weight, up to the largest in the map. Weights are stored in
8 bits: right to 0.4 percentage points, small ones far better.</p>
<h2>All heads</h2>
<p class="quiet">Each on its own scale; the last layer is on top. Choose one to see it large.</p>
<div class="grid" id="grid"></div>
<h2>[CLS] by layer</h2>
<h3>What it reads, mean of the heads</h3>
<output id="clsreadout"></output>
<div><div class="view" id="cls"></div></div>
<h3>What reaches it: attention rollout</h3>
<p class="quiet">A state is half itself and half what it reads; multiplied through the layers, this is how much of
each input token arrives (Abnar and Zuidema 2020). It knows nothing of values and feed-forward layers.</p>
<output id="clsrolloutreadout"></output>
<div><div class="view" id="clsrollout"></div></div>
<h2>What each head does</h2>
<p class="quiet">Means over the tokens; layers from below, heads from the left; entropy in nats, distance in tokens.</p>
<output id="measurereadout"></output>
<div class="measures" id="measures"></div>
<h3>In numbers</h3>
<p class="quiet">Choose a heading to sort, a head to see it.</p>
<div class="scroll" tabindex="0" role="region" aria-label="Measures of all heads"><table><thead><tr id="headings"></tr>
</thead><tbody id="rows"></tbody></table></div>
<script type="application/json" id="data">{payload}</script>
<script>{script}</script>
</body></html>
"""
