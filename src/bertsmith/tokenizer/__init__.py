"""Tokenization: text to ids and back, vocabularies learned from text, files the whole field reads.

`base` is the interface that the other rooms know. In WordPiece a text passes `normalize` (text to words), `lookup`
(words to pieces) and `encoding` (arrays and model inputs); `wordpiece` ties them together. `library` is for other kinds
(byte-level BPE, Unigram). Nothing here imports torch, unless torch tensors are asked for, nor `tokenizers`, unless such
a tokenizer is.
"""

from bertsmith.tokenizer.base import Tokenizer
from bertsmith.tokenizer.encoding import Encoding, FlatIds, FlatTokens, Template
from bertsmith.tokenizer.kinds import TokenizerKind, learn_tokenizer
from bertsmith.tokenizer.library import LibraryTokenizer
from bertsmith.tokenizer.loading import load_tokenizer
from bertsmith.tokenizer.wordpiece import WordPieceTokenizer

__all__ = [
    "Encoding",
    "FlatIds",
    "FlatTokens",
    "LibraryTokenizer",
    "Template",
    "Tokenizer",
    "TokenizerKind",
    "WordPieceTokenizer",
    "learn_tokenizer",
    "load_tokenizer",
]
