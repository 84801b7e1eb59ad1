"""The network: configuration, embeddings, attention, blocks, heads and model folders."""

from bertsmith.model.architectures import (
    ARCHITECTURES,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    load_any,
)
from bertsmith.model.attention import MultiHeadSelfAttention
from bertsmith.model.bert import BertEncoder, BertModel
from bertsmith.model.block import TransformerBlock
from bertsmith.model.config import BertConfig
from bertsmith.model.embeddings import BertEmbedding
from bertsmith.model.features import LayerFeatures
from bertsmith.model.heads import (
    MaskedLMHead,
    MultipleChoiceHead,
    NextSentenceHead,
    QASpanHead,
    SequenceClassifier,
    SpanBoundaryHead,
    TokenClassifier,
    best_spans,
)
from bertsmith.model.pretrained import PretrainedBert
from bertsmith.model.span_boundary import BertWithSpanBoundary
from bertsmith.model.surgery import (
    extend_positions,
    extend_vocabulary,
    freeze,
    keep_layers,
    prune_heads,
    resize_vocabulary,
)

__all__ = [
    "ARCHITECTURES",
    "BertConfig",
    "BertEmbedding",
    "BertEncoder",
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "BertWithSpanBoundary",
    "LayerFeatures",
    "MaskedLMHead",
    "MultiHeadSelfAttention",
    "MultipleChoiceHead",
    "NextSentenceHead",
    "PretrainedBert",
    "QASpanHead",
    "SequenceClassifier",
    "SpanBoundaryHead",
    "TokenClassifier",
    "TransformerBlock",
    "best_spans",
    "extend_positions",
    "extend_vocabulary",
    "freeze",
    "keep_layers",
    "load_any",
    "prune_heads",
    "resize_vocabulary",
]
