"""Tokenization: text to ids and back, vocabularies learned from text, files the whole field reads.

`base` is the interface that the other rooms know; `load_tokenizer` (`loading`) finds the tokenizer of a folder.
WordPiece, in the order a text passes its files: `characters` and `normalize` (text to words), `match` (words to
pieces), `cache` and `lookup` (why this is fast; ids, and offsets if asked for), `flat`, `template` and `encoding`
(arrays and model inputs), `decode`. Learning: `count`, `merge`, `learn`. On disk: `settings`, `vocabulary`, `files`.
`wordpiece` is the tokenizer that ties them together. Other kinds (byte-level BPE, Unigram): `library` over the
`tokenizers` library, `library_json`, and `kinds` to learn them. Nothing here imports torch, unless torch tensors are
asked for, nor `tokenizers`, unless such a tokenizer is.
"""

from bertsmith.tokenizer.base import Tokenizer
from bertsmith.tokenizer.encoding import Encoding
from bertsmith.tokenizer.flat import FlatIds, FlatTokens
from bertsmith.tokenizer.kinds import TokenizerKind, learn_tokenizer
from bertsmith.tokenizer.library import LibraryTokenizer
from bertsmith.tokenizer.loading import load_tokenizer
from bertsmith.tokenizer.template import Template
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
