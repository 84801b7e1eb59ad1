"""Learning a WordPiece vocabulary from text.

Notable:
- words are counted first; everything after costs what the *distinct* words cost, not the corpus
- pairs are merged by **frequency**, not by WordPiece's likelihood score count(ab) / (count(a) count(b)): frequency
  gives fewer pieces per word for a vocabulary of the same size, and does not spend places on rare spellings whose
  letters happen to occur nowhere else (the score ranks a pair seen twice first if its halves are seen twice).
  The released BERT vocabularies' training code was never published; `tokenizers` merges by frequency, too
- a merge touches only the words that contain the pair (their pair counts change, no others), and a heap with stale
  entries finds the next pair
- equal counts are ordered by the text of the pair, so the result depends on nothing but the word counts
"""

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable

from bertsmith.errors import InputError
from bertsmith.tokenizer.files import SPECIAL_TOKENS
from bertsmith.tokenizer.normalize import Normalizer, is_standalone

_FOLD_AT = 1 << 20


def count_words(texts: Iterable[str], normalizer: Normalizer) -> Counter[str]:
    """Counts the normalised words of a corpus, in one pass.

    Args:
        texts: the corpus; any cut into strings gives the same counts as long as no word is cut.
        normalizer: how text becomes words.

    Returns:
        How often each word occurs.

    Raises:
        InputError: `texts` is one string, or holds something that is not a string.
    """
    if isinstance(texts, str):
        raise InputError("texts is a single string; pass a list or another iterable of strings")
    words: Counter[str] = Counter()
    # 先在 C 里数原始块，再对每个不同的块做一次慢的规范化
    chunks: Counter[str] = Counter()
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"text {number} is {type(text).__name__}, not str; decode it first")
        chunks.update(normalizer.split_cjk(text) or normalizer.chunks(text))
        if len(chunks) > _FOLD_AT:
            _fold(chunks, words, normalizer)
    _fold(chunks, words, normalizer)
    return words


def learn_vocab(
    words: Counter[str],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
    num_unused: int = 0,
    tokenize_chinese_chars: bool = True,
    max_word_chars: int = 100,
) -> list[str]:
    """Learns the pieces.

    Args:
        words: how often each word occurs.
        vocab_size: most pieces in the vocabulary.
        min_frequency: a pair seen less often is not merged.
        limit_alphabet: keep only this many characters, the most frequent ones; None keeps all.
        num_unused: how many `[unusedN]` places to reserve.
        tokenize_chinese_chars: CJK characters are words of their own.
        max_word_chars: longer words are `[UNK]` for the tokenizer, so nothing is learned from them.

    Returns:
        The vocabulary: `[PAD]`, `[unused0]` …, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]`, the alphabet sorted, the learned
        pieces in merge order. Smaller than `vocab_size` where the words support no more.

    Raises:
        InputError: a number is out of range, there are no words, or `vocab_size` cannot hold the alphabet.
    """
    for name, value, least in (
        ("vocab_size", vocab_size, 1),
        ("min_frequency", min_frequency, 1),
        ("limit_alphabet", 1 if limit_alphabet is None else limit_alphabet, 1),
        ("num_unused", num_unused, 0),
    ):
        if value < least:
            raise InputError(f"{name}={value} is too small; give at least {least}")
    usable = {word: count for word, count in words.items() if len(word) <= max_word_chars}
    if not usable:
        raise InputError("the texts hold no words to learn a vocabulary from; give at least one line of text")
    kept = _frequent_characters(usable, limit_alphabet)
    if limit_alphabet is not None:
        usable = {word: count for word, count in usable.items() if kept.issuperset(word)}
    alphabet = _alphabet(usable, kept, tokenize_chinese_chars)
    head = [SPECIAL_TOKENS[0], *(f"[unused{number}]" for number in range(num_unused)), *SPECIAL_TOKENS[1:]]
    needed = len(head) + len(alphabet)
    if vocab_size < needed:
        raise InputError(
            f"vocab_size={vocab_size} cannot hold the {len(head)} reserved tokens and the {len(alphabet)} character"
            f" pieces of this text; give at least {needed}, or keep fewer characters with limit_alphabet"
        )
    return head + _merge(usable, alphabet, vocab_size - len(head), min_frequency)


def _fold(chunks: Counter[str], words: Counter[str], normalizer: Normalizer) -> None:
    """Moves the counts of raw chunks to the words they hold."""
    for chunk, count in chunks.items():
        for part in normalizer.split_cjk(chunk) or (chunk,):
            for word in normalizer.words(part):
                words[word] += count
    chunks.clear()


def _frequent_characters(words: dict[str, int], limit: int | None) -> set[str]:
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    if limit is None or len(counts) <= limit:
        return set(counts)
    return set(sorted(counts, key=lambda char: (-counts[char], char))[:limit])


def _alphabet(words: dict[str, int], kept: set[str], tokenize_chinese_chars: bool) -> list[str]:
    """Lists the one-character pieces: the forms that occur, and both forms of ASCII letters and digits."""
    pieces = {word[0] for word in words} | {"##" + char for word in words for char in word[1:]}
    # ASCII 字母数字两种形式都留：小语料里没出现在词首/词中的字母，换一段文本就会出现
    pieces |= {form for char in kept if char.isascii() and char.isalnum() for form in (char, "##" + char)}
    # 标点和汉字永远独立成词，它们的 ## 形式用不上，不占词表
    pieces -= {"##" + char for char in kept if is_standalone(char, tokenize_chinese_chars)}
    return sorted(pieces)


def _merge(words: dict[str, int], alphabet: list[str], size: int, min_frequency: int) -> list[str]:
    """Merges the most frequent pair, again and again, until there are `size` pieces or no pair is left."""
    pieces = list(alphabet)
    ids = {piece: index for index, piece in enumerate(pieces)}
    # 单字符的词没有可合并的对，先排除；按文本排序使结果与读入顺序无关
    spelled = sorted(word for word in words if len(word) > 1)
    counts = [words[word] for word in spelled]
    symbols = [[ids[word[0]], *(ids["##" + char] for char in word[1:])] for word in spelled]
    pair_counts: defaultdict[tuple[int, int], int] = defaultdict(int)
    places: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for index, (word, count) in enumerate(zip(symbols, counts, strict=True)):
        for pair in itertools.pairwise(word):
            pair_counts[pair] += count
            places[pair].add(index)

    def entry(pair: tuple[int, int]) -> tuple[int, str, str, tuple[int, int]]:
        return -pair_counts[pair], pieces[pair[0]], pieces[pair[1]], pair

    heap = [entry(pair) for pair, count in pair_counts.items() if count >= min_frequency]
    heapq.heapify(heap)
    while heap and len(pieces) < size:
        negative, _, _, pair = heapq.heappop(heap)
        count = pair_counts.get(pair, 0)
        if count != -negative:
            # 堆里的旧条目：计数只会被别的合并减少，按现值重新入堆即可
            if count >= min_frequency:
                heapq.heappush(heap, entry(pair))
            continue
        merged = pieces[pair[0]] + pieces[pair[1]].removeprefix("##")
        new = ids.setdefault(merged, len(pieces))
        if new == len(pieces):
            pieces.append(merged)
        grown: set[tuple[int, int]] = set()
        for index in places.pop(pair):
            symbols[index] = _merge_word(symbols[index], pair, new, index, counts[index], pair_counts, places, grown)
        pair_counts.pop(pair, None)
        for changed in grown:
            if pair_counts.get(changed, 0) >= min_frequency:
                heapq.heappush(heap, entry(changed))
    return pieces


def _merge_word(
    word: list[int],
    pair: tuple[int, int],
    new: int,
    index: int,
    count: int,
    pair_counts: defaultdict[tuple[int, int], int],
    places: defaultdict[tuple[int, int], set[int]],
    grown: set[tuple[int, int]],
) -> list[int]:
    """Replaces the pair in one word and books the change of its pair counts."""
    result: list[int] = []
    position, last = 0, len(word) - 1
    while position <= last:
        if position < last and word[position] == pair[0] and word[position + 1] == pair[1]:
            result.append(new)
            position += 2
        else:
            result.append(word[position])
            position += 1
    if len(result) == len(word):
        return word
    for old in itertools.pairwise(word):
        pair_counts[old] -= count
    for fresh in itertools.pairwise(result):
        pair_counts[fresh] += count
        if new in fresh:
            places[fresh].add(index)
            grown.add(fresh)
    return result
