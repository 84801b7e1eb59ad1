"""WordPiece tokenization: text to ids and back, vocabularies learned from text, files the whole field reads.

The files, in the order a text passes them: `characters` and `normalize` (text to words), `match` (words to pieces),
`cache` and `lookup` (why this is fast; ids, and offsets if asked for), `flat` and `encoding` (arrays and model inputs),
`decode`. Learning: `count`, `merge`, `learn`. On disk: `settings`, `vocabulary`, `files`. `wordpiece` is the
tokenizer that ties them together. Nothing here imports torch, unless torch tensors are asked for.
"""

from bertsmith.tokenizer.encoding import Encoding
from bertsmith.tokenizer.flat import FlatIds, FlatTokens
from bertsmith.tokenizer.wordpiece import WordPieceTokenizer

__all__ = ["Encoding", "FlatIds", "FlatTokens", "WordPieceTokenizer"]
