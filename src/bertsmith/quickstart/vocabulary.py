"""A vocabulary that suits an amount of text."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from bertsmith.data.reading.text import read_text
from bertsmith.quickstart.source import TextSource
from bertsmith.tokenizer import Tokenizer, TokenizerKind, learn_tokenizer
from bertsmith.tokenizer.learn import AlphabetError


def learn_vocabulary(source: TextSource, kind: TokenizerKind, sizes: Sequence[int]) -> Tokenizer:
    """Learns a vocabulary of the first of some sizes that holds the characters of the text."""
    *smaller, largest = sizes
    for size in smaller:
        # 中文哪怕只有几百 KB，不同的字也可能有四千多个：放不下就用大一号的词表
        with contextlib.suppress(AlphabetError):
            return learn_tokenizer(read_text(source.files, source.encoding), kind=kind, vocab_size=size)
    return learn_tokenizer(read_text(source.files, source.encoding), kind=kind, vocab_size=largest)


def default_vocab_sizes(corpus_bytes: int) -> list[int]:
    """Returns how many pieces suit an amount of text, and the larger sizes, for text of very many characters.

    Rare pieces are never learned, and cost time at every step.
    """
    bytes_below = {4096: 1_000_000, 8192: 20_000_000, 16384: 200_000_000, 30522: math.inf}
    return [size for size, limit in bytes_below.items() if corpus_bytes < limit]
