"""WordPiece tokenization: text to ids and back, vocabularies learned from text, files the whole field reads.

The rooms: `normalize` (text to words), `cache` (why this is fast), `wordpiece` (the tokenizer), `encoding` (model
inputs: `[CLS]`/`[SEP]`, truncation, padding), `learn` (a vocabulary from a corpus), `files` (what is on disk).
Nothing here imports torch.
"""

from bertsmith.tokenizer.encoding import Encoding
from bertsmith.tokenizer.wordpiece import WordPieceTokenizer

__all__ = ["Encoding", "WordPieceTokenizer"]
