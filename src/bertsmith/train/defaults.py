"""The best recipe known for each family and size, in one table; `--family` and `--size` are the only dials.

Found at equal time on the same text with the same held-out masks; the runs are in docs/notes/measurements.md under
"What learns best".
What helps every family in a short run:
- 30 % of the pieces are hidden instead of 15 %: twice as much to learn from per token read (Wettig et al. 2023)
- pieces start with vectors counted from the text (`data.corpus.cooccurrence`), not with random ones: a run of minutes
  spends most of its time on learning which words are alike
- Muon for all matrices that give states, with a short warm-up: its steps have one size from the first on
- sequences filled across documents, without a second segment: no token of a batch is lost
- no dropout while the text is not read often (`MANY_PASSES`)

Models with rotary positions find their neighbours early. Where positions are a learned table, the table starts as
sinusoids (Vaswani et al. 2017, §3.5), which are such neighbours already; everything else of the model stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MANY_PASSES = 20.0
"""Passes over the text from which a fresh model takes dropout: by then masks alone no longer make it new."""

DROPOUT = 0.1
"""That of the paper, from `MANY_PASSES` on."""

_ROTARY: Mapping[str, Any] = {
    "optimizer": "muon",
    "learning_rate": 2e-3,
    "matrix_rate": 0.02,
    "warmup_share": 0.01,
    "mask_rate": 0.3,
    "first_vectors": "counted",
}
_POST_NORM: Mapping[str, Any] = {
    "optimizer": "muon",
    "learning_rate": 1e-3,
    "matrix_rate": 0.02,
    "warmup_share": 0.03,
    "mask_rate": 0.3,
    "sinusoids": 0.2,
    "first_vectors": "counted",
}
# ELECTRA 的判别器要分辨真假：遮得多，原词就少，假词又太容易看出来
_REPLACED: Mapping[str, Any] = {**_POST_NORM, "mask_rate": 0.15}
BEST: Mapping[str, Mapping[str, Any]] = {"modernbert": _ROTARY, "electra": _REPLACED}
"""Family → settings at the width of mini, 256; a family that is not here takes those of BERT's block."""

MEASURED_WIDTH = 256

GPU_TOKENS = 128 * 128
"""Of a step of fresh weights on a GPU, at least. With fewer it waits for the host: in a minute on an H200 ModernBERT
base took 958 steps of 128 sequences and learned to 2.91 nats, and 735 of 32 and learned to 3.55 (one run each)."""


def best_settings(family: str, hidden_size: int) -> dict[str, Any]:
    """Returns the settings that suit fresh weights of a family and width, by name.

    The rate of the matrices holds for every width, since an orthogonal step changes all outputs alike. That of tables,
    norms and biases falls with the width, as Adam's does (Yang et al. 2021).

    Args:
        family: a `model_type`.
        hidden_size: H.
    """
    found = dict(BEST.get(family, _POST_NORM))
    found["learning_rate"] *= min(1.0, MEASURED_WIDTH / hidden_size)
    # 离收敛还远时步数最要紧：小批量；base 以上一步本来就慢，批量大些更稳
    return {"batch_size": 16 if hidden_size < 768 else 32, **found}


def settings_to_continue(hidden_size: int) -> dict[str, Any]:
    """Returns the settings that suit a trained model: AdamW at a quarter of what fresh weights of that width bear.

    What was learned should move, not be lost.

    Args:
        hidden_size: H.
    """
    known = {128: (32, 1e-3), 256: (16, 1e-3), 512: (16, 5e-4), 768: (32, 2e-4), 1024: (32, 1e-4)}
    batch_size, learning_rate = known[max((width for width in known if width <= hidden_size), default=128)]
    return {"batch_size": batch_size, "learning_rate": learning_rate / 4}
