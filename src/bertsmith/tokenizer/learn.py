"""Learning a WordPiece vocabulary from texts.

Notable:
- words are counted first (`count`); everything after costs what the *distinct* words cost, not the corpus
- pairs are merged by **frequency**, not by WordPiece's likelihood score count(ab) / (count(a) count(b)): frequency
  gives fewer pieces per word for a vocabulary of the same size, and does not spend places on rare spellings whose
  letters happen to occur nowhere else (the score ranks a pair seen twice first if its halves are seen twice).
  The released BERT vocabularies' training code was never published; `tokenizers` merges by frequency, too
- equal counts are ordered by the text of the pair, so the result depends on nothing but the word counts
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bertsmith.errors import InputError
from bertsmith.options import option, settings_of
from bertsmith.tokenizer.batches import collector_paused
from bertsmith.tokenizer.characters import is_standalone
from bertsmith.tokenizer.count import count_words
from bertsmith.tokenizer.merge import merge_pairs
from bertsmith.tokenizer.normalize import Normalizer
from bertsmith.tokenizer.settings import BERT_TOKENS

# (stage, done, total): "counting" in characters with an unknown total (0), "merging" in pieces
Progress = Callable[[str, int, int], None]

MAX_WORD_CHARS = 100
_SURROGATE = re.compile("[\ud800-\udfff]")


class AlphabetError(InputError):
    """A vocabulary is too small for the characters of its text."""


@dataclass(frozen=True)
class VocabularySettings:
    """What a learned vocabulary holds.

    Raises:
        InputError: a number is out of range.
    """

    vocab_size: int = option(30522, min=1, help="Maximum number of pieces.")
    min_frequency: int = option(2, min=1, help="Do not merge pairs seen less often.")
    limit_alphabet: int | None = option(None, min=1, help="Keep only the N most frequent characters.")
    num_unused: int = option(0, min=0, name="unused", help="Reserve this many places: \\[unused0] and so on.")
    user_tokens: tuple[str, ...] = option(
        (), name="token", help="Token that is always one piece, such as <url>; may be repeated."
    )

    def __post_init__(self) -> None:
        """Checks the ranges that the fields declare."""
        for setting in settings_of(VocabularySettings):
            (name,), least = setting.path, setting.option.min
            value = getattr(self, name)
            if least is not None and value is not None and value < least:
                raise InputError(f"{name}={value} is too small; give at least {least:.0f}")


def learn_vocab(
    texts: Iterable[str],
    normalizer: Normalizer,
    settings: VocabularySettings,
    *,
    workers: int = 1,
    on_progress: Progress | None = None,
) -> list[str]:
    """Learns a vocabulary from texts: counts words, then merges pieces.

    Args:
        texts: the corpus, read once.
        normalizer: how text becomes words.
        settings: what the vocabulary holds.
        workers: processes that count.
        on_progress: told the stage, what is done and the total (0 where it is unknown).

    Returns:
        The vocabulary: `[PAD]`, `[unused0]` …, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]`, the user's tokens, the alphabet
        sorted, the learned pieces in merge order. Smaller than `vocab_size` where the words support no more.

    Raises:
        InputError: there are no words, or a text is not a string.
        AlphabetError: `vocab_size` cannot hold the alphabet.
    """

    def tell(stage: str, done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(stage, done, total)

    words = count_words(
        texts,
        normalizer,
        workers=workers,
        max_word_chars=MAX_WORD_CHARS,
        user_tokens=settings.user_tokens,
        on_text=lambda done: tell("counting", done, 0),
    )
    # 孤立的代理字符（JSON 里半个 😀）写不进 UTF-8 的词表；含它的词编码时反正是 [UNK]，不学
    if _SURROGATE.search("".join(set().union(*words))):
        words = {word: count for word, count in words.items() if not _SURROGATE.search(word)}
    if not words:
        raise InputError("the texts hold no words to learn a vocabulary from; give at least one line of text")
    kept = _frequent_characters(words, settings.limit_alphabet)
    if settings.limit_alphabet is not None:
        words = {word: count for word, count in words.items() if kept.issuperset(word)}
    pad, *special = BERT_TOKENS
    head = [pad, *unused_tokens(settings.num_unused), *special, *settings.user_tokens]
    # 用户的词元若恰是单个字符，就不必在字母表里再占一处
    alphabet = [
        piece
        for piece in _alphabet(words, kept, normalizer.tokenize_chinese_chars)
        if piece not in settings.user_tokens
    ]
    needed = len(head) + len(alphabet)
    if settings.vocab_size < needed:
        raise AlphabetError(
            f"a vocabulary of {settings.vocab_size} cannot hold the {len(head)} reserved tokens and the {len(alphabet)}"
            f" character pieces of this text; give it at least {needed}, or limit the alphabet"
        )
    with collector_paused():
        return merge_pairs(
            words,
            head,
            alphabet,
            settings.vocab_size,
            settings.min_frequency,
            lambda done, total: tell("merging", done, total),
        )


def unused_tokens(count: int) -> list[str]:
    """Returns the names of the places that are reserved for tokens to come."""
    return [f"[unused{number}]" for number in range(count)]


def _frequent_characters(words: Mapping[str, int], limit: int | None) -> set[str]:
    if limit is None:
        return set().union(*words)
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    return set(sorted(counts, key=lambda char: (-counts[char], char))[:limit])


def _alphabet(words: Mapping[str, int], kept: set[str], tokenize_chinese_chars: bool) -> list[str]:
    """Lists the one-character pieces: the forms that occur, and both forms of ASCII letters and digits."""
    inside: set[str] = set().union(*(word[1:] for word in words))
    pieces = {word[0] for word in words} | {"##" + char for char in inside}
    # ASCII 字母数字两种形式都留：小语料里没出现在词首/词中的字母，换一段文本就会出现
    pieces |= {form for char in kept if char.isascii() and char.isalnum() for form in (char, "##" + char)}
    # 标点和汉字永远独立成词，它们的 ## 形式用不上，不占词表
    pieces -= {"##" + char for char in kept if is_standalone(char, tokenize_chinese_chars)}
    return sorted(pieces)
