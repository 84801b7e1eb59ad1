"""The network: families, task models, model folders, and what can be changed in a model that exists."""

from bertsmith.model.architectures import (
    LabelledModel,
    ModelForMaskedLM,
    ModelForMultipleChoice,
    ModelForNextSentencePrediction,
    ModelForPreTraining,
    ModelForQuestionAnswering,
    ModelForReplacedTokenDetection,
    ModelForSequenceClassification,
    ModelForTokenClassification,
    PreTrainingOutput,
    TaskModel,
    architectures_by_name,
    load_any,
)
from bertsmith.model.attention import MultiHeadSelfAttention
from bertsmith.model.backbone import Backbone, BackboneOutput, PretrainedModel, layer_numbers
from bertsmith.model.config import NAMED_SIZES, ModelConfig
from bertsmith.model.families.bert import (
    BertConfig,
    BertEmbedding,
    BertEncoder,
    BertModel,
    TransformerBlock,
)
from bertsmith.model.family import Family, families, family_named
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
from bertsmith.model.surgery import (
    as_distilbert,
    cut_vocabulary,
    extend_positions,
    extend_vocabulary,
    freeze,
    keep_layers,
    layers_written,
    prune_heads,
    resize_vocabulary,
)

# BERT 的任务模型在领域里的名字：与任何家族共用的是同一个类，家族由配置决定
BertForPreTraining = ModelForPreTraining
BertForMaskedLM = ModelForMaskedLM
BertForNextSentencePrediction = ModelForNextSentencePrediction
BertForSequenceClassification = ModelForSequenceClassification
BertForTokenClassification = ModelForTokenClassification
BertForQuestionAnswering = ModelForQuestionAnswering
BertForMultipleChoice = ModelForMultipleChoice

__all__ = [
    "NAMED_SIZES",
    "Backbone",
    "BackboneOutput",
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
    "Family",
    "LabelledModel",
    "LayerFeatures",
    "MaskedLMHead",
    "ModelConfig",
    "ModelForMaskedLM",
    "ModelForMultipleChoice",
    "ModelForNextSentencePrediction",
    "ModelForPreTraining",
    "ModelForQuestionAnswering",
    "ModelForReplacedTokenDetection",
    "ModelForSequenceClassification",
    "ModelForTokenClassification",
    "MultiHeadSelfAttention",
    "MultipleChoiceHead",
    "NextSentenceHead",
    "PreTrainingOutput",
    "PretrainedModel",
    "QASpanHead",
    "SequenceClassifier",
    "SpanBoundaryHead",
    "TaskModel",
    "TokenClassifier",
    "TransformerBlock",
    "architectures_by_name",
    "as_distilbert",
    "best_spans",
    "cut_vocabulary",
    "extend_positions",
    "extend_vocabulary",
    "families",
    "family_named",
    "freeze",
    "keep_layers",
    "layer_numbers",
    "layers_written",
    "load_any",
    "prune_heads",
    "resize_vocabulary",
]
