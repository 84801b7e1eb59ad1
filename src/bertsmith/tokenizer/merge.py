"""Byte-pair merging (Sennrich et al. 2016, §3.2) whose cost follows the changes, not the corpus.

Notable:
- every piece is stood for by one character, a word by a short string of them: merging a pair is then `str.replace`,
  a pair is a slice of two characters, and both run in C on a few bytes
- a merge touches only the words that hold the pair and changes only the pair counts beside it
- a heap finds the next pair; counts that fell since an entry was made are noticed when it comes up, and put back
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

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
        alphabet: the one-character pieces; any other character of a word is added to nothing and merged with nothing.
        size: most pieces, with the head.
        min_frequency: pairs seen less often are not merged.
        on_piece: told now and then how many pieces there are, and `size`.

    Returns:
        The head, the alphabet and the merged pieces in the order of their merges.
    """
    pieces = [*head, *alphabet]
    taken = set(pieces)
    symbols = _Symbols()
    spelled, counts = _spell(words, symbols)
    pair_counts, places = _count_pairs(spelled, counts)

    def entry(pair: str) -> tuple[int, str, str, str]:
        # 同频时按两个片段的文本排序，结果才与读入顺序无关
        return -pair_counts[pair], symbols.piece(pair[0]), symbols.piece(pair[1]), pair

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
        for grown in _merge_pair(pair, symbols.symbol(merged), spelled, counts, pair_counts, places):
            if pair_counts[grown] >= min_frequency:
                heapq.heappush(heap, entry(grown))
    return pieces


class _Symbols:
    """One character for every piece, in the order in which they turn up."""

    def __init__(self) -> None:
        self._symbols: dict[str, str] = {}
        self._pieces: dict[str, str] = {}
        self._next = 0

    def symbol(self, piece: str) -> str:
        """Gives the character that stands for a piece."""
        symbol = self._symbols.get(piece)
        if symbol is None:
            # 跳过代理区：内存里虽无妨，但换一种实现就可能出错
            if self._next == _SURROGATES.start:
                self._next = _SURROGATES.stop
            symbol = chr(self._next)
            self._next += 1
            self._symbols[piece] = symbol
            self._pieces[symbol] = piece
        return symbol

    def piece(self, symbol: str) -> str:
        """Gives the piece that a character stands for."""
        return self._pieces[symbol]


def _spell(words: Mapping[str, int], symbols: _Symbols) -> tuple[list[str], list[int]]:
    """Spells every word of at least two characters in one-character pieces; with the counts beside."""
    spelled: list[str] = []
    counts: list[int] = []
    inside = {char: symbols.symbol("##" + char) for char in sorted(set().union(*(word[1:] for word in words)))}
    table = str.maketrans(inside)
    for word in sorted(words):
        if len(word) > 1:
            spelled.append(symbols.symbol(word[0]) + word[1:].translate(table))
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
    """Replaces a pair in all words that hold it, and books the changed pair counts.

    Args:
        pair: the pair, two symbols.
        new: the symbol of the merged piece.
        spelled: the words; changed in place.
        counts: how often each word occurs.
        pair_counts: how often each pair occurs; changed in place.
        places: the words each pair is in, and perhaps words it was in earlier; changed in place.

    Returns:
        The pairs that became more frequent; each holds the new symbol.
    """
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
