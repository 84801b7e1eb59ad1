"""Attention as a picture: which token reads which.

Figures are made through matplotlib's object interface, so nothing global is touched and no screen is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib import font_manager
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertModel

CJK_FONTS: tuple[str, ...] = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "Microsoft YaHei"),
    *("PingFang SC", "SimHei", "Hiragino Sans GB", "Heiti TC", "Arial Unicode MS"),
)
"""Fonts with Chinese glyphs, as the common systems call them."""


@dataclass(frozen=True)
class Heatmap:
    """A figure, and a note for the reader where its labels had to be numbers."""

    figure: Figure
    note: str


@torch.inference_mode()
def attention_weights(model: BertModel, input_ids: Sequence[int], *, layer: int) -> NDArray[np.float32]:
    """Returns the attention probabilities of one layer for one sequence.

    Args:
        model: put into evaluation mode.
        input_ids: S ids, special tokens included.
        layer: 0 for the lowest; negative numbers count from the top.

    Returns:
        [A, S, S] float32; row i says how much token i takes from every token, and adds up to 1.
    """
    batch = RaggedBatch.from_sequences([input_ids]).to(model.embedding.word.weight.device)
    output = model.eval()(batch, need_maps=True)
    assert output.attentions is not None
    weights: NDArray[np.float32] = output.attentions[layer][0].cpu().numpy()
    return weights


def draw_heatmap(pieces: Sequence[str], weights: NDArray[np.float32], *, title: str) -> Heatmap:
    """Draws one attention map with its tokens on both axes.

    Args:
        pieces: S tokens.
        weights: [S, S], rows adding up to 1.
        title: above the figure.
    """
    size = float(np.clip(1.6 + 0.34 * len(pieces), 4, 16))
    figure = Figure(figsize=(size + 0.9, size), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(weights, cmap="Blues", vmin=0.0)
    labels, note = _labels(pieces)
    family = _cjk_font() if _needs_cjk(pieces) and not note else None
    axes.set_xticks(range(len(pieces)), labels, rotation=90, fontsize=9, family=family)
    axes.set_yticks(range(len(pieces)), labels, fontsize=9, family=family)
    axes.set_xlabel("read from")
    axes.set_ylabel("by token")
    axes.set_title(title, fontsize=11)
    figure.colorbar(image, ax=axes, shrink=0.75, label="attention probability")
    return Heatmap(figure, note)


def _labels(pieces: Sequence[str]) -> tuple[list[str], str]:
    if not _needs_cjk(pieces) or _cjk_font():
        return list(pieces), ""
    # 机器上没有中文字体时画出来是方框：改用编号，并把对照写在图外
    numbered = "  ".join(f"{number} {piece}" for number, piece in enumerate(pieces, 1))
    return [str(number) for number in range(1, len(pieces) + 1)], f"No font with Chinese glyphs was found: {numbered}"


def _needs_cjk(pieces: Sequence[str]) -> bool:
    return any("\u2e80" <= character <= "\uffef" for piece in pieces for character in piece)


def _cjk_font() -> str | None:
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((name for name in CJK_FONTS if name in installed), None)
