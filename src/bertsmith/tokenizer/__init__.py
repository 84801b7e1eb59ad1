"""Tokenization: text to ids and back, vocabularies learned from text, files the whole field reads.

`base` is the interface that the other rooms know; `load_tokenizer` (`loading`) finds the tokenizer of a folder.
WordPiece, in the order a text passes its files: `normalize` (text to words), `lookup` (words to pieces, and why this is
fast), `encoding` (arrays and model inputs); `wordpiece` ties them together. Learning: `count`, `learn`; on disk:
`settings`, `files`. Other kinds (byte-level BPE, Unigram): `library`, and `kinds` to learn them. `coverage` says how
well a vocabulary suits a text. Nothing here imports torch, unless torch tensors are asked for, nor `tokenizers`, unless
such a tokenizer is.
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
