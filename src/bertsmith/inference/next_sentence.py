"""The pipeline over the next-sentence head of pre-training: does a text follow another (Devlin et al. 2019, §3.1)?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.inference.checks import parts, require_list
from bertsmith.inference.pipeline import Pipeline
from bertsmith.model import ModelConfig, ModelForNextSentencePrediction, ModelForPreTraining


class NextSentence(Pipeline, name="next-sentence"):
    """Tells whether a text follows another, as pre-training asked it."""

    architectures = (ModelForNextSentencePrediction, ModelForPreTraining)
    needs_fine_tuning = False
    endpoints = ("/next-sentence",)
    two_texts = "next sentences"

    @classmethod
    def is_for(cls, architecture: str, config: ModelConfig) -> bool:
        """Tells whether a folder has the head, and a model that can tell two texts apart."""
        # 只认一种句段的模型读不了句对：有那个头也没有用
        return super().is_for(architecture, config) and config.reads_pairs

    def __call__(self, texts: Sequence[str], next_texts: Sequence[str]) -> NDArray[np.float64]:
        """Scores pairs; where the two are too long together, the longer one is cut.

        Args:
            texts: N texts A.
            next_texts: N texts B, one for each.

        Returns:
            [N], the probability that B follows A.

        Raises:
            InputError: a single string was given, or the numbers differ.
        """
        require_list(texts, next_texts)
        found = np.empty(len(texts))
        for part in parts(len(texts)):
            encoded = self.tokenizer(list(texts[part]), list(next_texts[part]), max_length=self.max_length)
            logits = self.engine.run(encoded["input_ids"], encoded["token_type_ids"], next_sentence_logits)
            # 第 0 类是「B 接在 A 之后」，与发布的模型一致
            found[part] = logits.double().softmax(-1)[:, 0].numpy()
        return found


def next_sentence_logits(model: ModelForNextSentencePrediction | ModelForPreTraining, batch: RaggedBatch) -> Tensor:
    """Reads [N, 2], the logits of "B follows A" and "B is random"."""
    logits: Tensor = model.next_sentence(model.backbone(batch).pooled)
    return logits
