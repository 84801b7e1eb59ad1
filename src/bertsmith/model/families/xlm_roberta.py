"""XLM-RoBERTa (Conneau et al. 2020): RoBERTa over text in a hundred languages, cut into one Unigram vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertsmith.model.families.roberta import RobertaConfig, variant


@dataclass(frozen=True)
class XLMRobertaConfig(RobertaConfig):
    """RoBERTa's fields."""

    model_type: ClassVar[str] = "xlm-roberta"


FAMILY = variant("xlm-roberta", "XLMRoberta", XLMRobertaConfig, tokenizer="unigram")
