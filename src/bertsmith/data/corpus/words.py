"""Which tokens continue a word: for masking whole words, also in Chinese, where a word is several tokens.

BERT's tokenizer makes every Chinese character a word of its own. Masking whole words (Cui et al. 2019) needs the real
words, which `jieba` finds. A token continues the word of the token before when it is a `##` piece (or what the
tokenizer has instead), or when it begins inside a word of jieba's that has a Chinese character.
"""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError
from bertsmith.tokenizer import FlatIds, Tokenizer

_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")


def encode_with_words(sentences: Sequence[str], tokenizer: Tokenizer) -> tuple[FlatIds, NDArray[np.bool_]]:
    """Turns sentences into ids, and says of each id, [T] bool, whether it continues the word of the one before."""
    cut = word_cutter().cut
    tokens = tokenizer.align_flat(sentences)
    first = np.zeros(len(tokens.ids), dtype=np.bool_)
    first[tokens.bounds[:-1][np.diff(tokens.bounds) > 0]] = True
    continues = np.zeros(len(tokens.ids), dtype=np.bool_)
    continues[1:] = tokens.word_ids[1:] == tokens.word_ids[:-1]
    # 每个字符一位：落在含汉字的词内部而不在词首。所有句子首尾相接，一次取出全部 token 的答案
    inside = [_inside_words(cut(sentence), len(sentence)) for sentence in sentences]
    begins = np.cumsum([0, *(len(sentence) for sentence in sentences)])[:-1]
    places = tokens.starts + np.repeat(begins, np.diff(tokens.bounds))
    # 末尾多一位：句末的空格片段可以没有字符，它的位置在最后一个字符之后
    continues |= np.concatenate([*inside, np.zeros(1, dtype=np.bool_)])[places]
    return FlatIds(tokens.ids, tokens.bounds), continues & ~first


@functools.cache
def word_cutter() -> Any:
    """Returns jieba's cutter, its dictionary loaded; `ConfigError` where it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import jieba
    except ImportError:
        raise ConfigError("--words jieba needs jieba; install it with: pip install 'bertsmith[zh]'") from None
    jieba.setLogLevel(logging.WARNING)
    cutter = jieba.Tokenizer()
    cutter.initialize()
    return cutter


def _inside_words(words: Any, length: int) -> NDArray[np.bool_]:
    inside = np.zeros(length, dtype=np.bool_)
    place = 0
    for word in words:
        if len(word) > 1 and _CHINESE.search(word):
            inside[place + 1 : place + len(word)] = True
        place += len(word)
    return inside
