"""The sentences that a computation starts from where the reader gives none: such as the model's vocabulary can write.

A vocabulary of English gets English, one of Chinese gets Chinese. One that knows neither (of another language, of a
trade, of genes) gets the English sentences word for word in pieces of its own: they say nothing, but what they have in
common and where they differ stays as it was, and that is what the computations look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from bertsmith.tokenizer import Tokenizer

Sentences = Mapping[str, str]
"""The texts of a computation by the names of its inputs."""

Ids = Mapping[str, list[int]]
"""The same texts as ids."""

Suits = Callable[[Ids], bool]
"""Whether texts are such as a computation takes."""

LONG = 4
"""Letters from which on a piece is likely to be a word and no part of one."""


def starting_sentences(
    tokenizer: Tokenizer, options: Sequence[Sentences], suits: Suits | None = None
) -> dict[str, str]:
    """Chooses the sentences that a vocabulary writes in the fewest pieces, none of them unknown.

    Args:
        tokenizer: the model's.
        options: the same sentences in several languages; earlier ones are preferred.
        suits: what the computation asks of them besides; None for nothing.

    Returns:
        One of the options; the first, in pieces of the vocabulary, where none can be written.
    """
    best, fewest = None, 0
    for sentences in options:
        ids = {name: tokenizer.encode(text) for name, text in sentences.items()}
        size = sum(map(len, ids.values()))
        known = all(each and tokenizer.unk_token_id not in each for each in ids.values())
        fits = known and (suits is None or suits(ids))
        # 词表里虽有字母、却要一个个拼出来的英文不算合适：能用更少词片写成的优先
        if fits and (best is None or size < fewest):
            best, fewest = sentences, size
    return dict(best) if best is not None else _in_own_pieces(tokenizer, options[0])


def _in_own_pieces(tokenizer: Tokenizer, sentences: Sentences) -> dict[str, str]:
    words = list(dict.fromkeys(word for text in sentences.values() for word in text.split()))
    pieces = list(islice(_whole_pieces(tokenizer), len(words)))
    if not pieces:
        return dict(sentences)
    # 一个词对一个词片：哪里相同、哪里不同都保留；词片不够时轮流用，相邻的两个词仍然不同
    replaced = {word: pieces[number % len(pieces)] for number, word in enumerate(words)}
    return {name: " ".join(replaced[word] for word in text.split()) for name, text in sentences.items()}


def _whole_pieces(tokenizer: Tokenizer) -> Iterator[str]:
    """Yields the pieces that are words by themselves: of letters first, of several before single ones."""
    # 词表大致按频率排列；同样长的保持原来的次序，得到的就是常见的词
    ordered = sorted(tokenizer.vocab, key=lambda piece: (not piece.isalpha(), -min(len(piece), LONG)))
    for piece in ordered:
        index = tokenizer.piece_to_id[piece]
        if index not in tokenizer.special_ids and tokenizer.encode(piece) == [index]:
            yield piece
