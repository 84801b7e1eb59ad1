"""WordPiece tokenization: text to ids and back, vocabularies learned from text, files the whole field reads.

The rooms, in the order a text passes them: `characters` and `normalize` (text to words), `cache` and `lookup` (why this
is fast), `match` (words to pieces), `align` (offsets), `encoding` (model inputs), `flat` and `batches` (corpora),
`decode`. Learning: `count`, `merge`, `learn`. On disk: `settings`, `vocabulary`, `special`, `files`. `wordpiece` is the
tokenizer that ties them together. Nothing here imports torch, unless torch tensors are asked for.
"""

from bertsmith.tokenizer.encoding import Encoding
from bertsmith.tokenizer.flat import FlatIds, FlatTokens
from bertsmith.tokenizer.wordpiece import WordPieceTokenizer

__all__ = ["Encoding", "FlatIds", "FlatTokens", "WordPieceTokenizer"]
