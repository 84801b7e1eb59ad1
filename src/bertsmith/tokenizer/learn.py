"""Learning a WordPiece vocabulary from word counts.

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

from bertsmith.errors import InputError
from bertsmith.tokenizer.characters import is_standalone
from bertsmith.tokenizer.collector import collector_paused
from bertsmith.tokenizer.count import count_words
from bertsmith.tokenizer.merge import merge_pairs
from bertsmith.tokenizer.normalize import Normalizer
from bertsmith.tokenizer.special import BERT_TOKENS

# (stage, done, total): "counting" in characters with an unknown total (0), "merging" in pieces
Progress = Callable[[str, int, int], None]

MAX_WORD_CHARS = 100
_SURROGATE = re.compile("[\ud800-\udfff]")


class AlphabetError(InputError):
    """A vocabulary is too small for the characters of its text."""


def learn_from_texts(
    texts: Iterable[str],
    normalizer: Normalizer,
    *,
    vocab_size: int,
    min_frequency: int,
    limit_alphabet: int | None,
    num_unused: int,
    user_tokens: tuple[str, ...],
    workers: int,
    on_progress: Progress | None,
) -> list[str]:
    """Learns a vocabulary from texts: counts words, then merges.

    Args:
        texts: the corpus, read once.
        normalizer: how text becomes words.
        vocab_size: as in `learn_vocab`, like the next four.
        min_frequency: see there.
        limit_alphabet: see there.
        num_unused: see there.
        user_tokens: see there.
        workers: processes that count.
        on_progress: told the stage, what is done and the total (0 where it is unknown).

    Returns:
        The vocabulary.

    Raises:
        InputError: as in `count_words` and `learn_vocab`.
    """
    for name, value, least in (
        ("vocab_size", vocab_size, 1),
        ("min_frequency", min_frequency, 1),
        ("limit_alphabet", 1 if limit_alphabet is None else limit_alphabet, 1),
        ("num_unused", num_unused, 0),
    ):
        if value < least:
            raise InputError(f"{name}={value} is too small; give at least {least}")

    def tell(stage: str, done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(stage, done, total)

    words = count_words(
        texts,
        normalizer,
        workers=workers,
        max_word_chars=MAX_WORD_CHARS,
        user_tokens=user_tokens,
        on_text=lambda done: tell("counting", done, 0),
    )
    return learn_vocab(
        words,
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        limit_alphabet=limit_alphabet,
        num_unused=num_unused,
        user_tokens=user_tokens,
        tokenize_chinese_chars=normalizer.tokenize_chinese_chars,
        on_piece=lambda done, total: tell("merging", done, total),
    )


def learn_vocab(
    words: dict[str, int],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
    num_unused: int = 0,
    user_tokens: tuple[str, ...] = (),
    tokenize_chinese_chars: bool = True,
    on_piece: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Learns the pieces.

    Args:
        words: how often each word occurs.
        vocab_size: most pieces in the vocabulary.
        min_frequency: a pair seen less often is not merged.
        limit_alphabet: keep only this many characters, the most frequent ones; None keeps all.
        num_unused: how many `[unusedN]` places to reserve.
        user_tokens: pieces to put in as they are.
        tokenize_chinese_chars: CJK characters are words of their own.
        on_piece: told now and then how many pieces there are, and how many there can be.

    Returns:
        The vocabulary: `[PAD]`, `[unused0]` …, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]`, the user's tokens, the alphabet
        sorted, the learned pieces in merge order. Smaller than `vocab_size` where the words support no more.

    Raises:
        InputError: there are no words.
        AlphabetError: `vocab_size` cannot hold the alphabet.
    """
    # 孤立的代理字符（JSON 里半个 😀）写不进 UTF-8 的词表；含它的词编码时反正是 [UNK]，不学
    if _SURROGATE.search("".join(set().union(*words))):
        words = {word: count for word, count in words.items() if not _SURROGATE.search(word)}
    if not words:
        raise InputError("the texts hold no words to learn a vocabulary from; give at least one line of text")
    kept = _frequent_characters(words, limit_alphabet)
    if limit_alphabet is not None:
        words = {word: count for word, count in words.items() if kept.issuperset(word)}
    pad, *special = BERT_TOKENS
    head = [pad, *unused_tokens(num_unused), *special, *user_tokens]
    # 用户的词元若恰是单个字符，就不必在字母表里再占一处
    alphabet = [piece for piece in _alphabet(words, kept, tokenize_chinese_chars) if piece not in user_tokens]
    needed = len(head) + len(alphabet)
    if vocab_size < needed:
        raise AlphabetError(
            f"a vocabulary of {vocab_size} cannot hold the {len(head)} reserved tokens and the {len(alphabet)}"
            f" character pieces of this text; give it at least {needed}, or limit the alphabet"
        )
    with collector_paused():
        return merge_pairs(words, head, alphabet, vocab_size, min_frequency, on_piece)


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
