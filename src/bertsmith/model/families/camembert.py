"""CamemBERT (Martin et al. 2020): RoBERTa over French, with whole words masked and a Unigram vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertsmith.model.families.roberta import RobertaConfig, variant


@dataclass(frozen=True)
class CamembertConfig(RobertaConfig):
    """RoBERTa's fields."""

    model_type: ClassVar[str] = "camembert"


FAMILY = variant("camembert", "Camembert", CamembertConfig, tokenizer="unigram")
