"""The heads: what reads the encoder's states and turns them into predictions.

Each is the few lines the paper gives it. A head knows nothing of losses or labels; those are in `objectives` and
`finetune`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.model.block import ACTIVATION_FUNCTIONS
from bertsmith.model.config import BertConfig
from bertsmith.model.layers import Dropout, LayerNorm, Linear


class MaskedLMHead(nn.Module):
    """Dense + activation + LayerNorm, then the word embedding itself as decoder, plus a bias per piece (§3.1).

    The decoder is tied: a piece is predicted by the similarity of the transformed state with that piece's embedding,
    so that both directions train one matrix.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATION_FUNCTIONS[config.hidden_act]
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(Tensor(config.vocab_size).zero_())

    def forward(self, states: Tensor, word_embedding: Tensor) -> Tensor:
        """Scores every piece.

        Args:
            states: [M, H], the encoder's states at the masked positions.
            word_embedding: [V, H], the embedding matrix that is also the decoder.

        Returns:
            [M, V] logits in the dtype of `states`.
        """
        transformed = self.norm(self.activation(self.transform(states)))
        return F.linear(transformed, word_embedding.to(states.dtype), self.bias.to(states.dtype))


class NextSentenceHead(nn.Module):
    """One linear layer over the pooled `[CLS]`: class 0 is "B follows A", class 1 "B is random" (§3.1)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Maps pooled states [N, H] to logits [N, 2]."""
        logits: Tensor = self.linear(pooled)
        return logits


class SequenceClassifier(nn.Module):
    """Dropout and one linear layer over the pooled `[CLS]` (§4.1: the only new parameters of fine-tuning)."""

    def __init__(self, config: BertConfig, num_labels: int) -> None:
        super().__init__()
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.linear = Linear(config.hidden_size, num_labels)

    def forward(self, pooled: Tensor) -> Tensor:
        """Maps pooled states [N, H] to class logits [N, num_labels]."""
        logits: Tensor = self.linear(self.dropout(pooled))
        return logits
