"""bertsmith: from a folder of text files to a working BERT.

The names below are loaded when they are first used, so that `import bertsmith` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "BertConfig": "bertsmith.model",
    "BertEmbedding": "bertsmith.model",
    "BertEncoder": "bertsmith.model",
    "BertForMaskedLM": "bertsmith.model",
    "BertForMultipleChoice": "bertsmith.model",
    "BertForNextSentencePrediction": "bertsmith.model",
    "BertForPreTraining": "bertsmith.model",
    "BertForQuestionAnswering": "bertsmith.model",
    "BertForSequenceClassification": "bertsmith.model",
    "BertForTokenClassification": "bertsmith.model",
    "BertModel": "bertsmith.model",
    "BertTrainer": "bertsmith.train.trainer",
    "MaskedLMLoss": "bertsmith.objectives",
    "NSPLoss": "bertsmith.objectives",
    "QASpanHead": "bertsmith.model",
    "RaggedBatch": "bertsmith.batch",
    "SequenceClassifier": "bertsmith.model",
    "TokenClassifier": "bertsmith.model",
    "TransformerBlock": "bertsmith.model",
    "WordPieceTokenizer": "bertsmith.tokenizer",
    "build_corpus": "bertsmith.data.corpus.calls",
    "distil": "bertsmith.quickstart.calls",
    "evaluate": "bertsmith.finetune.calls",
    "finetune": "bertsmith.finetune.calls",
    "index": "bertsmith.retrieval.calls",
    "learn_tokenizer": "bertsmith.tokenizer",
    "learn_vocabulary": "bertsmith.data.corpus.calls",
    "load_index": "bertsmith.retrieval",
    "load_pipeline": "bertsmith.inference",
    "load_tokenizer": "bertsmith.tokenizer",
    "pretrain": "bertsmith.train.calls",
}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from bertsmith.batch import RaggedBatch as RaggedBatch
    from bertsmith.data.corpus.calls import build_corpus as build_corpus
    from bertsmith.data.corpus.calls import learn_vocabulary as learn_vocabulary
    from bertsmith.finetune.calls import evaluate as evaluate
    from bertsmith.finetune.calls import finetune as finetune
    from bertsmith.inference import load_pipeline as load_pipeline
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
    from bertsmith.quickstart.calls import distil as distil
    from bertsmith.retrieval import load_index as load_index
    from bertsmith.retrieval.calls import index as index
    from bertsmith.tokenizer import WordPieceTokenizer as WordPieceTokenizer
    from bertsmith.tokenizer import learn_tokenizer as learn_tokenizer
    from bertsmith.tokenizer import load_tokenizer as load_tokenizer
    from bertsmith.train.calls import pretrain as pretrain
    from bertsmith.train.trainer import BertTrainer as BertTrainer


def __getattr__(name: str) -> Any:
    """Loads a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bertsmith' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
