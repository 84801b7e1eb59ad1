"""Everything that decides, besides the vocabulary, how text becomes ids.

The fingerprint of settings and vocabulary is written into token shards, so that ids made by one tokenizer are never
fed to a model of another.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from bertsmith.tokenizer.normalize import Normalizer
from bertsmith.tokenizer.special import BERT_TOKENS, SpecialTokens


class Settings(NamedTuple):
    """How text becomes ids; the fields are those of `WordPieceTokenizer`. `strip_accents=None` follows `lowercase`."""

    lowercase: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    special_tokens: SpecialTokens = BERT_TOKENS
    user_tokens: tuple[str, ...] = ()
    max_word_chars: int = 100

    def normalizer(self) -> Normalizer:
        """Makes the rules for words.

        Returns:
            The normalizer for these settings.
        """
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        return Normalizer(self.lowercase, strip_accents, self.tokenize_chinese_chars)

    def fingerprint(self, vocab: Sequence[str]) -> str:
        """Digests everything that decides the ids.

        Args:
            vocab: the pieces.

        Returns:
            Hex digits; equal for two tokenizers exactly when they give the same ids.
        """
        # None 与其实际取值同义，故取规范化器的值；后加的设置只在非默认时计入，旧摘要不变
        described: list[Any] = [self.max_word_chars, *vars(self.normalizer()).values(), vocab]
        if self.user_tokens or self.special_tokens != BERT_TOKENS:
            described += [self.user_tokens, self.special_tokens]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()
