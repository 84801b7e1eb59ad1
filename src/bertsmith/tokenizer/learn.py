"""Learning a WordPiece vocabulary from texts: count words, then merge pairs of pieces.

- words are counted first (`count`); everything after costs what the *distinct* words cost, not the corpus
- pairs are merged by **frequency**, not by WordPiece's likelihood score count(ab) / (count(a) count(b)): that gives
  fewer pieces per word for a vocabulary of the same size, and spends no places on rare spellings whose letters occur
  nowhere else. The released BERT vocabularies' training code was never published; `tokenizers` merges by frequency, too
- equal counts are ordered by the text of the pair, so the result depends on nothing but the word counts
- merging (Sennrich et al. 2016, §3.2) costs what changes: every piece is one character, so a merge is `str.replace` in
  the words that hold the pair. A heap finds the next pair; an entry whose count has fallen is put back when it comes up
"""

import functools
import heapq
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bertsmith.errors import InputError
from bertsmith.files import HALF_CHARACTER
from bertsmith.settings import Checked, option
from bertsmith.tokenizer.count import count_words
from bertsmith.tokenizer.encoding import collector_paused
from bertsmith.tokenizer.normalize import Normalizer, is_standalone
from bertsmith.tokenizer.settings import BERT_TOKENS

# (stage, done, total): "counting" in characters with an unknown total (0), "merging" in pieces
Progress = Callable[[str, int, int], None]
Note = Callable[[str], None]
"""Told, in a sentence, what was left out or treated in a way that the user may not expect."""

MAX_WORD_CHARS = 100
"""Longer words are `[UNK]` for BERT; a vocabulary of text that is made of such words reads them whole."""
MOST_WORD_CHARS = 2000
"""Longest word that such a vocabulary reads: a sentence of a corpus is no longer."""
LEAST_LONG_SHARE = 0.01
"""Share of a text in long words from which it counts as made of them, as Thai or DNA is: they are no mere addresses."""


class AlphabetError(InputError):
    """A vocabulary is too small for the characters of its text."""


@dataclass(frozen=True)
class VocabularySettings(Checked):
    """What a learned vocabulary holds."""

    vocab_size: int = option(30522, min=1, help="Maximum number of pieces.")
    min_frequency: int = option(2, min=1, help="Do not merge pairs seen less often.")
    limit_alphabet: int | None = option(None, min=1, help="Keep only the N most frequent characters.")
    num_unused: int = option(0, min=0, name="unused", help="Reserve this many places: \\[unused0] and so on.")
    user_tokens: tuple[str, ...] = option(
        (), name="token", help="Token that is always one piece, such as <url>; may be repeated."
    )


def learn_vocab(
    texts: Iterable[str],
    normalizer: Normalizer,
    settings: VocabularySettings,
    *,
    workers: int = 1,
    on_progress: Progress | None = None,
    on_note: Note | None = None,
) -> tuple[list[str], int]:
    """Learns a vocabulary from texts, read once: counts words, then merges pieces; says the longest word it reads.

    The vocabulary is `[PAD]`, `[unused0]` …, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]`, the user's tokens, the alphabet
    sorted, the learned pieces in merge order. It is smaller than `vocab_size` where the words support no more.
    """

    def tell(stage: str, done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(stage, done, total)

    counted = count_words(
        texts,
        normalizer,
        workers=workers,
        max_word_chars=MAX_WORD_CHARS,
        user_tokens=settings.user_tokens,
        on_text=lambda done: tell("counting", done, 0),
    )
    words, long_share = counted.words, counted.long_chars / max(1, counted.chars)
    is_long = long_share >= LEAST_LONG_SHARE
    if counted.long_words and on_note is not None:
        what = f"{counted.long_words:,} words of more than {MAX_WORD_CHARS} characters"
        done = "are learned from in parts" if is_long else "are left out, as [UNK]"
        on_note(f"{what} ({long_share:.1%} of the text) {done}; for text without spaces try --kind unigram")
    if is_long:
        # 不用空格的文字（泰文、DNA）整行就是一个“词”：切成几段来学，不能当作没有
        words = dict(Counter(words) + Counter(counted.parts))
    # 孤立的代理字符（JSON 里半个 😀）写不进 UTF-8 的词表；含它的词编码时反正是 [UNK]，不学
    words = {word: count for word, count in words.items() if not HALF_CHARACTER.search(word)}
    if not words:
        raise InputError("the texts hold no words to learn a vocabulary from; give at least one line of text")
    kept = set[str]().union(*words)
    if settings.limit_alphabet is not None:
        kept = _frequent_characters(words, settings.limit_alphabet)
        words = {word: count for word, count in words.items() if kept.issuperset(word)}
    pad, *special = BERT_TOKENS
    head = [pad, *unused_tokens(settings.num_unused), *special, *settings.user_tokens]
    # 用户的词元若恰是单个字符，就不必在字母表里再占一处
    whole_alphabet = _alphabet(words, kept, normalizer.tokenize_chinese_chars)
    alphabet = [piece for piece in whole_alphabet if piece not in settings.user_tokens]
    needed = len(head) + len(alphabet)
    if settings.vocab_size < needed:
        raise AlphabetError(
            f"a vocabulary of {settings.vocab_size} cannot hold the {len(head)} reserved tokens and the {len(alphabet)}"
            f" character pieces of this text; give it at least {needed}, or limit the alphabet"
        )
    with collector_paused():
        on_piece = functools.partial(tell, "merging")
        vocab = merge_pairs(words, head, alphabet, settings.vocab_size, settings.min_frequency, on_piece)
    return vocab, MOST_WORD_CHARS if is_long else MAX_WORD_CHARS


def unused_tokens(count: int) -> list[str]:
    """Returns the names of the places that are reserved for tokens to come."""
    return [f"[unused{number}]" for number in range(count)]


def _frequent_characters(words: Mapping[str, int], limit: int) -> set[str]:
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


_SURROGATES = range(0xD800, 0xE000)
_TELL_EVERY = 1000


def merge_pairs(
    words: Mapping[str, int],
    head: Sequence[str],
    alphabet: Sequence[str],
    size: int,
    min_frequency: int,
    on_piece: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Merges the most frequent pair, again and again, until the vocabulary is full or no pair is left.

    Args:
        words: how often each word occurs; none empty.
        head: pieces that come first and are no part of words.
        alphabet: the one-character pieces; a character of a word that is not among them is merged all the same.
        on_piece: told now and then how many pieces there are, and `size`.

    Returns:
        The head, the alphabet and the merged pieces in the order of their merges.
    """
    pieces = [*head, *alphabet]
    taken = set(pieces)
    symbol_of = _symbols()
    spelled, counts = _spell(words, symbol_of)
    piece_of = {symbol: piece for piece, symbol in symbol_of.items()}
    pair_counts, places = _count_pairs(spelled, counts)

    def entry(pair: str) -> tuple[int, str, str, str]:
        # 同频时按两个片段的文本排序，结果才与读入顺序无关
        return -pair_counts[pair], piece_of[pair[0]], piece_of[pair[1]], pair

    heap = [entry(pair) for pair, count in pair_counts.items() if count >= min_frequency]
    heapq.heapify(heap)
    while heap and len(pieces) < size:
        negative, left, right, pair = heapq.heappop(heap)
        count = pair_counts.get(pair, 0)
        if count != -negative:
            # 旧条目：计数只会被别的合并减少，按现值放回即可
            if count >= min_frequency:
                heapq.heappush(heap, entry(pair))
            continue
        merged = left + right.removeprefix("##")
        if merged not in taken:
            taken.add(merged)
            pieces.append(merged)
            if on_piece is not None and len(pieces) % _TELL_EVERY == 0:
                on_piece(len(pieces), size)
        piece_of[symbol_of[merged]] = merged
        for grown in _merge_pair(pair, symbol_of[merged], spelled, counts, pair_counts, places):
            if pair_counts[grown] >= min_frequency:
                heapq.heappush(heap, entry(grown))
    return pieces


def _symbols() -> defaultdict[str, str]:
    """Makes a table that gives every piece a character of its own, in the order in which they are asked for."""
    # 跳过代理区：内存里虽无妨，但换一种实现就可能出错
    free = (chr(place) for place in range(sys.maxunicode + 1) if place not in _SURROGATES)
    return defaultdict(lambda: next(free))


def _spell(words: Mapping[str, int], symbol_of: defaultdict[str, str]) -> tuple[list[str], list[int]]:
    """Spells every word of at least two characters in one-character pieces; with the counts beside."""
    spelled: list[str] = []
    counts: list[int] = []
    inside = {char: symbol_of["##" + char] for char in sorted(set().union(*(word[1:] for word in words)))}
    table = str.maketrans(inside)
    for word in sorted(words):
        if len(word) > 1:
            spelled.append(symbol_of[word[0]] + word[1:].translate(table))
            counts.append(words[word])
    return spelled, counts


def _count_pairs(spelled: Sequence[str], counts: Sequence[int]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Counts every pair of neighbours, and lists the words each one is in."""
    pair_counts: defaultdict[str, int] = defaultdict(int)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for index, (word, count) in enumerate(zip(spelled, counts, strict=True)):
        for start in range(len(word) - 1):
            pair = word[start : start + 2]
            pair_counts[pair] += count
            places[pair].append(index)
    return pair_counts, places


def _merge_pair(
    pair: str,
    new: str,
    spelled: list[str],
    counts: Sequence[int],
    pair_counts: dict[str, int],
    places: dict[str, list[int]],
) -> set[str]:
    """Replaces a pair in all words that hold it, and books the changed pair counts."""
    grown: set[str] = set()
    for index in places.pop(pair):
        word = spelled[index]
        start = word.find(pair)
        if start < 0:
            continue
        count = counts[index]
        end = start + 2
        if word.find(pair, start + 1) < 0:
            # 绝大多数词里这一对只出现一次：只有左右两个邻对变化
            spelled[index] = word[:start] + new + word[end:]
            fresh = []
            if start:
                pair_counts[word[start - 1 : start + 1]] -= count
                fresh.append(word[start - 1] + new)
            if end < len(word):
                pair_counts[word[end - 1 : end + 1]] -= count
                fresh.append(new + word[end])
        else:
            spelled[index] = replaced = word.replace(pair, new)
            for place in range(len(word) - 1):
                pair_counts[word[place : place + 2]] -= count
            fresh = []
            for place in range(len(replaced) - 1):
                neighbours = replaced[place : place + 2]
                if new in neighbours:
                    fresh.append(neighbours)
                else:
                    pair_counts[neighbours] += count
        for neighbours in fresh:
            pair_counts[neighbours] += count
            places[neighbours].append(index)
            grown.add(neighbours)
    del pair_counts[pair]
    return grown
