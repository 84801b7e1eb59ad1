"""Attention as a picture: which token reads which.

Figures are made through matplotlib's object interface, so nothing global is touched and no screen is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertModel
from bertsmith.train.fonts import drawable


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
    labels, family, note = drawable(pieces)
    axes.set_xticks(range(len(pieces)), labels, rotation=90, fontsize=9, family=family)
    axes.set_yticks(range(len(pieces)), labels, fontsize=9, family=family)
    axes.set_xlabel("read from")
    axes.set_ylabel("by token")
    axes.set_title(title, fontsize=11)
    figure.colorbar(image, ax=axes, shrink=0.75, label="attention probability")
    return Heatmap(figure, note)
