"""The heads: what reads the encoder's states and turns them into predictions.

Each says in `reads` which field of a `BackboneOutput` it takes. A classifier says in `output` which of its layers has a
row for each label, for folders that do not name theirs. Losses are in `objectives`. `HEADS` are the kinds that BERT
has; a family whose published heads differ defines its own modules for these kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import InputError
from bertsmith.kernels.cross_entropy import PieceScores
from bertsmith.kernels.layers import Dropout, LayerNorm, Linear
from bertsmith.kernels.matmul import linear
from bertsmith.model.config import ModelConfig

ACTIVATION_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
"""The functions behind the names that a configuration allows."""

Reads = Literal["hidden_states", "pooled", "cls", "mean"]
"""The field of a `BackboneOutput` that a head takes."""


class MaskedLMHead(nn.Module):
    """Dense + activation + LayerNorm, then the word embedding itself as decoder, plus a bias per piece.

    The paper (§3.1) asks for a softmax over the vocabulary; these layers are those of the release. A piece is predicted
    by the similarity of the transformed state with that piece's embedding, so that both directions train one matrix.
    Models with a decoder of their own (`config.tie_word_embeddings=False`) are read too.

    Attributes:
        compiled: whether `torch.compile` may fuse what is computed from the scores.
    """

    reads: ClassVar[Reads] = "hidden_states"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.compiled = False
        self.transform = Linear(config.hidden_size, config.embedding_size)
        self.activation = ACTIVATION_FUNCTIONS[config.hidden_act]
        self.norm = LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        if config.tie_word_embeddings:
            self.decoder = None
            self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        else:
            self.decoder = Linear(config.embedding_size, config.vocab_size)

    def forward(self, states: Tensor, word_embedding: Tensor) -> Tensor:
        """Scores every piece: states [M, H] and the embedding [V, E] that is also the decoder give logits [M, V]."""
        transformed = self.transformed(states)
        if self.decoder is not None:
            logits: Tensor = self.decoder(transformed)
            return logits
        return linear(transformed, word_embedding, self.bias)

    def transformed(self, states: Tensor) -> Tensor:
        """Maps states [M, H] to [M, E], which the decoder reads."""
        mapped: Tensor = self.norm(self.activation(self.transform(states)))
        return mapped

    def decode(self, transformed: Tensor, word_embedding: Tensor) -> PieceScores:
        """Scores every piece by its similarity with states [M, E] that are transformed already; when it is read."""
        if self.decoder is not None:
            return PieceScores(transformed, self.decoder.weight, self.decoder.bias, compiled=self.compiled)
        return PieceScores(transformed, word_embedding, self.bias, compiled=self.compiled)


class SpanBoundaryHead(nn.Module):
    """Describes a hidden piece by the two tokens around its span and its place in it (Joshi et al. 2020, §3.2).

    Two layers with GELU and LayerNorm over [left; right; place]; the masked-LM decoder then reads the result, so that
    both objectives share the embedding and the bias. The head serves training only; no model folder holds it.
    """

    PLACES, PLACE_SIZE = 20, 200
    """Places in a span that are told apart (later ones share the last), and the size of their embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.place = nn.Embedding(self.PLACES, self.PLACE_SIZE)
        self.first = Linear(2 * config.hidden_size + self.PLACE_SIZE, config.hidden_size)
        self.first_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.second = Linear(config.hidden_size, config.embedding_size)
        self.second_norm = LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor, spans: Tensor) -> Tensor:
        """Maps boundaries to states [M, E] for the decoder.

        Args:
            states: [T, H], the encoder's states.
            spans: [M, 3] int64: the tokens before and after each piece's span, among the T, and the piece's place.
        """
        left, right, place = spans.unbind(1)
        place = self.place(place.clamp(max=self.PLACES - 1)).to(states.dtype)
        joined = torch.cat([states.index_select(0, left), states.index_select(0, right), place], dim=1)
        hidden = self.first_norm(F.gelu(self.first(joined)))
        described: Tensor = self.second_norm(F.gelu(self.second(hidden)))
        return described


class NextSentenceHead(nn.Module):
    """One linear layer over the pooled `[CLS]`: class 0 is "B follows A", class 1 "B is random" (§3.1)."""

    reads: ClassVar[Reads] = "pooled"
    published: ClassVar[str] = "seq_relationship_logits"
    """What `transformers` calls its output in a pre-training model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        """Maps pooled states [N, H] to logits [N, 2]."""
        logits: Tensor = self.linear(pooled)
        return logits


class SequenceClassifier(nn.Module):
    """Dropout and one linear layer over the pooled `[CLS]` (§4.1: the only new parameters of fine-tuning).

    `config.problem_type` says what the outputs are: classes of a softmax, labels with a sigmoid each, or a number.
    """

    reads: ClassVar[Reads] = "pooled"
    output: ClassVar[str] = "linear"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = classifier_dropout(config)
        self.linear = Linear(config.hidden_size, count_labels(config))

    def forward(self, pooled: Tensor) -> Tensor:
        """Maps pooled states [N, H] to logits [N, num_labels], in float32."""
        # bf16 只有 8 位有效数字：回归的数、排序的分会大片相同，所以最后一层总用 float32
        logits: Tensor = self.linear(self.dropout(pooled).float())
        return logits


class TokenClassifier(SequenceClassifier):
    """The same over every token's state (§5.3; the tag is read at a word's first piece)."""

    reads: ClassVar[Reads] = "hidden_states"

    def forward(self, states: Tensor) -> Tensor:
        """Maps states [T, H] to logits [T, num_labels]."""
        logits: Tensor = self.linear(self.dropout(states))
        return logits


class MultipleChoiceHead(nn.Module):
    """Dropout and one vector whose product with the pooled `[CLS]` is the score of a choice (§4.4)."""

    reads: ClassVar[Reads] = "pooled"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dropout = classifier_dropout(config)
        self.linear = Linear(config.hidden_size, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """Maps pooled states [N, H] to scores [N], in float32."""
        scores: Tensor = self.linear(self.dropout(pooled).float())
        return scores.squeeze(-1)


class SpanScores(NamedTuple):
    """How well each token would start (`start` [T]) and end (`end` [T]) the answer."""

    start: Tensor
    end: Tensor


class QASpanHead(nn.Module):
    """A start vector S and an end vector E; a token's score is its state's product with each (§4.2)."""

    reads: ClassVar[Reads] = "hidden_states"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.linear = Linear(config.hidden_size, 2)

    def forward(self, states: Tensor) -> SpanScores:
        """Maps states [T, H] to start and end scores [T], in float32."""
        start, end = self.linear(states.float()).unbind(-1)
        return SpanScores(start, end)


def best_spans(scores: SpanScores, allowed: Tensor, *, count: int = 20, max_tokens: int = 30) -> Tensor:
    """Finds the best answers in each of N sequences: from token i to token j by S·T_i + E·T_j (§4.2).

    Against "no answer", S·C + E·C at `[CLS]`, the best one must be higher by more than τ (§4.3).

    Args:
        scores: start and end scores [N, S] of the tokens.
        allowed: [N, S] bool, the tokens that an answer may consist of: those of the passage, which lie in a row.

    Returns:
        [N, count, 3] float32: first token, last token (inside) and score, best first; of equals the earlier start, then
        the shorter. Rows with a score of minus infinity fill up the end.
    """
    start, end = (score.detach().float().masked_fill(~allowed, -torch.inf) for score in scores)
    width = min(max_tokens, start.shape[1])
    # [N, S, W]：第 i 行是从 i 开始、长 1 到 W 的答案；段落是连续的，首尾都在其中，途中就都在其中
    ends = F.pad(end, (0, width - 1), value=-torch.inf).unfold(1, width, 1)
    pairs = (start[:, :, None] + ends).flatten(1)
    pairs = F.pad(pairs, (0, max(0, count - pairs.shape[1])), value=-torch.inf)
    # 把浮点数的位模式变成同序的整数，再拼上位置：没有两个相等的键，平局的次序在任何机器上都一样
    bits = (pairs + 0.0).view(torch.int32)
    keys = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).long() * 2**31
    places = (keys - torch.arange(pairs.shape[1], device=pairs.device)).topk(count).indices
    first = places // width
    return torch.stack([first.float(), (first + places % width).float(), pairs.gather(1, places)], -1)


def classifier_dropout(config: ModelConfig) -> Dropout:
    """Returns the dropout before a classifier: its own rate, or that of the hidden states."""
    own = config.classifier_dropout
    return Dropout(config.hidden_dropout_prob if own is None else own)


def count_labels(config: ModelConfig) -> int:
    """Returns how many labels a classifier has; InputError where the configuration names none."""
    if not config.id2label:
        raise InputError("a classifier needs the names of its labels; give id2label")
    return len(config.id2label)


HEADS: Mapping[str, type[nn.Module]] = {
    "masked_lm": MaskedLMHead,
    "next_sentence": NextSentenceHead,
    "sequence_classifier": SequenceClassifier,
    "token_classifier": TokenClassifier,
    "multiple_choice": MultipleChoiceHead,
    "spans": QASpanHead,
}
"""Kind of head → BERT's module for it."""
