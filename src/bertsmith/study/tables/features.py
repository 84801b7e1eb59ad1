"""Which layers serve as features of a tagger (Devlin et al. 2019, §5.3, table 7)."""

from __future__ import annotations

from typing import get_args

from bertsmith.model import ModelConfig
from bertsmith.model.features import LayerChoice
from bertsmith.study.study import Arm, Base, Study, start

FEWEST_LAYERS = 4
"""From which on the last four can be told from all."""


class Features(Study):
    """Fine-tuning, and a BiLSTM over frozen states of the six choices of table 7."""

    name, title = "features", "Frozen: which layers are the best features"
    source = "Devlin et al. 2019, §5.3, table 7"
    found = (
        "On CoNLL-2003 (dev F1), fine-tuning reaches 96.4; a BiLSTM over the last four layers, concatenated, 96.1; over"
        " the second to last 95.6, the last 94.9, the embeddings 91.0."
    )
    columns = ()
    needs_tags = True

    def arms(self, base: Base) -> list[Arm]:
        """Returns fine-tuning and the choices that the model has layers for."""
        begun = start(objective="mlm")
        layers, _ = ModelConfig.shape_of(base.size)
        choices = [c for c in get_args(LayerChoice) if layers >= FEWEST_LAYERS or not c.endswith("last-four")]
        return [
            Arm("fine-tuned", begun),
            *(
                Arm(f"features: {choice}", begun, {"": {"layers": choice, "tagger_head_size": 256}})
                for choice in choices
            ),
        ]
