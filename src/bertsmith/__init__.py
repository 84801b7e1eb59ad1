"""bertsmith: from a folder of text files to a working BERT.

The names below are loaded when they are first used, so that `import bertsmith` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_NAMES = {
    "batch": "RaggedBatch",
    "data.corpus.build": "build_corpus",
    "data.corpus.vocabulary": "learn_vocabulary",
    "finetune.job": "evaluate finetune",
    "finetune.look": "look",
    "inference": "load_pipeline",
    "interop": "import_checkpoint",
    "interop.hub": "push_model",
    "interop.huggingface": "export_huggingface",
    "interop.onnx": "export_onnx",
    "journeys.adapt": "adapt",
    "journeys.compress": "compress",
    "journeys.distil": "distil",
    "journeys.plan": "plan",
    "journeys.quickstart": "quickstart",
    "journeys.solve": "solve",
    "journeys.topics": "topics",
    "kernels.layers": "best_device",
    "model": "BertConfig BertEmbedding BertEncoder BertForMaskedLM BertForMultipleChoice"
    " BertForNextSentencePrediction BertForPreTraining BertForQuestionAnswering"
    " BertForSequenceClassification BertForTokenClassification BertModel QASpanHead"
    " SequenceClassifier TokenClassifier TransformerBlock",
    "objectives": "MaskedLMLoss NSPLoss",
    "retrieval": "load_index",
    "retrieval.build": "index",
    "retrieval.mining": "mine",
    "retrieval.stored": "export_passages",
    "tokenizer": "WordPieceTokenizer learn_tokenizer load_tokenizer",
    "train.calls": "pretrain",
    "train.trainer": "BertTrainer",
}
"""Room and file → the public names that are written there."""

_HOMES = {name: f"bertsmith.{home}" for home, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from bertsmith.batch import RaggedBatch as RaggedBatch
    from bertsmith.data.corpus.build import build_corpus as build_corpus
    from bertsmith.data.corpus.vocabulary import learn_vocabulary as learn_vocabulary
    from bertsmith.finetune.job import evaluate as evaluate
    from bertsmith.finetune.job import finetune as finetune
    from bertsmith.finetune.look import look as look
    from bertsmith.inference import load_pipeline as load_pipeline
    from bertsmith.interop import import_checkpoint as import_checkpoint
    from bertsmith.interop.hub import push_model as push_model
    from bertsmith.interop.huggingface import export_huggingface as export_huggingface
    from bertsmith.interop.onnx import export_onnx as export_onnx
    from bertsmith.journeys.adapt import adapt as adapt
    from bertsmith.journeys.compress import compress as compress
    from bertsmith.journeys.distil import distil as distil
    from bertsmith.journeys.plan import plan as plan
    from bertsmith.journeys.quickstart import quickstart as quickstart
    from bertsmith.journeys.solve import solve as solve
    from bertsmith.journeys.topics import topics as topics
    from bertsmith.kernels.layers import best_device as best_device
    from bertsmith.model import BertConfig as BertConfig
    from bertsmith.model import BertEmbedding as BertEmbedding
    from bertsmith.model import BertEncoder as BertEncoder
    from bertsmith.model import BertForMaskedLM as BertForMaskedLM
    from bertsmith.model import BertForMultipleChoice as BertForMultipleChoice
    from bertsmith.model import BertForNextSentencePrediction as BertForNextSentencePrediction
    from bertsmith.model import BertForPreTraining as BertForPreTraining
    from bertsmith.model import BertForQuestionAnswering as BertForQuestionAnswering
    from bertsmith.model import BertForSequenceClassification as BertForSequenceClassification
    from bertsmith.model import BertForTokenClassification as BertForTokenClassification
    from bertsmith.model import BertModel as BertModel
    from bertsmith.model import QASpanHead as QASpanHead
    from bertsmith.model import SequenceClassifier as SequenceClassifier
    from bertsmith.model import TokenClassifier as TokenClassifier
    from bertsmith.model import TransformerBlock as TransformerBlock
    from bertsmith.objectives import MaskedLMLoss as MaskedLMLoss
    from bertsmith.objectives import NSPLoss as NSPLoss
    from bertsmith.retrieval import load_index as load_index
    from bertsmith.retrieval.build import index as index
    from bertsmith.retrieval.mining import mine as mine
    from bertsmith.retrieval.stored import export_passages as export_passages
    from bertsmith.tokenizer import WordPieceTokenizer as WordPieceTokenizer
    from bertsmith.tokenizer import learn_tokenizer as learn_tokenizer
    from bertsmith.tokenizer import load_tokenizer as load_tokenizer
    from bertsmith.train.calls import pretrain as pretrain
    from bertsmith.train.trainer import BertTrainer as BertTrainer


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertsmith' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
