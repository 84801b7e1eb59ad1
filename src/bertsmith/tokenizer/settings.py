"""Everything that decides, besides the vocabulary, how text becomes ids: rules, special tokens, the user's tokens.

- a special token written in a text is plain text unless the caller asks for it, so that text from outside cannot forge
  a segment border; a token the user defined (`<url>`, `[E1]`) is always one token, that is what it is for
- both are matched as they are written, before anything is normalised; where several fit, the leftmost and longest
- the fingerprint of settings and vocabulary is written into token shards, so that ids made by one tokenizer are never
  fed to a model of another
"""

import hashlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bertsmith.errors import InputError
from bertsmith.files import HALF_CHARACTER
from bertsmith.tokenizer.normalize import Normalizer


class SpecialTokens(NamedTuple):
    """The names of the special tokens; BERT's own unless a tokenizer folder says otherwise."""

    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"


BERT_TOKENS = SpecialTokens()


class Settings(NamedTuple):
    """How text becomes ids; the fields are those of `WordPieceTokenizer`. `strip_accents=None` follows `lowercase`."""

    lowercase: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    special_tokens: SpecialTokens = BERT_TOKENS
    user_tokens: tuple[str, ...] = ()
    max_word_chars: int = 100

    def normalizer(self) -> Normalizer:
        """Makes the rules for words."""
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        return Normalizer(self.lowercase, strip_accents, self.tokenize_chinese_chars)

    def fingerprint(self, vocab: Sequence[str]) -> str:
        """Digests everything that decides the ids."""
        # None 与其实际取值同义，故取规范化器的值；后加的设置只在非默认时计入，旧摘要不变
        described: list[Any] = [self.max_word_chars, *vars(self.normalizer()).values(), vocab]
        if self.user_tokens or self.special_tokens != BERT_TOKENS:
            described += [self.user_tokens, self.special_tokens]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


class WrittenTokens:
    """Finds tokens that are written in a text."""

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = ids
        # 正则按先后取第一个能匹配的分支：先排长的，"[E12]" 才不会被 "[E1" 之类截断
        longest_first = sorted(ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def split(self, text: str) -> Iterator[tuple[str, int, int | None]]:
        """Cuts a text at the tokens written in it."""
        start = 0
        for match in self._pattern.finditer(text):
            if match.start() > start:
                yield text[start : match.start()], start, None
            yield match.group(), match.start(), self.ids[match.group()]
            start = match.end()
        if start < len(text):
            yield text[start:], start, None

    def stretches(self, text: str) -> list[str]:
        """Cuts the tokens out of a text."""
        return self._pattern.split(text)


def check_user_tokens(
    tokens: Sequence[str], special: Iterable[str], vocab: Container[str] | None = None
) -> tuple[str, ...]:
    """Refuses tokens that cannot be told apart or be written to a vocabulary file."""
    if isinstance(tokens, str):
        raise InputError(f"user_tokens is the single string {tokens!r}; pass a list of tokens")
    taken = set(special)
    for token in tokens:
        if not isinstance(token, str) or not token or token != token.strip() or "\n" in token or "\r" in token:
            raise InputError(f"user token {token!r} is empty, or has white space around it or a line break; trim it")
        if HALF_CHARACTER.search(token):
            raise InputError(f"user token {token!r} holds half a character, which no file can keep; write it in UTF-8")
        if token in taken:
            raise InputError(f"user token {token!r} is a special or reserved token, or is given twice; remove it")
        if vocab is not None and token not in vocab:
            raise InputError(f"user token {token!r} is not in the vocabulary; add it as a piece")
        taken.add(token)
    return tuple(tokens)
