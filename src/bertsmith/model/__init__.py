"""The network: configuration, embeddings, attention, blocks, heads and model folders."""

from bertsmith.model.attention import MultiHeadSelfAttention
from bertsmith.model.bert import AnyBert, BertEncoder, BertForPreTraining, BertForSequenceClassification, BertModel
from bertsmith.model.block import TransformerBlock
from bertsmith.model.config import BertConfig
from bertsmith.model.embeddings import BertEmbedding
from bertsmith.model.heads import MaskedLMHead, NextSentenceHead, SequenceClassifier

__all__ = [
    "AnyBert",
    "BertConfig",
    "BertEmbedding",
    "BertEncoder",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "BertModel",
    "MaskedLMHead",
    "MultiHeadSelfAttention",
    "NextSentenceHead",
    "SequenceClassifier",
    "TransformerBlock",
]
