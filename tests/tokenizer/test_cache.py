"""The memory of chunks: bounded whatever the text, and loyal to what is used."""

import random
import string

import pytest

from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.tokenizer.lookup import ENTRY_WEIGHT, MAX_CACHED_CHARS, ChunkCache


def weight(cache: ChunkCache) -> int:
    return sum(len(chunk) + ENTRY_WEIGHT for part in (cache, cache._old) for chunk in part)


def test_memory_stays_under_its_cap() -> None:
    cache = ChunkCache(len, capacity=1000)
    for number in range(10_000):
        chunk = f"chunk{number}" * (number % 6 + 1)
        assert cache[chunk] == len(chunk)
        assert weight(cache) <= 2000


def test_ids_do_not_depend_on_what_was_seen_before() -> None:
    tokenizer = WordPieceTokenizer(["[UNK]", "a", "##b", "b", "北"])
    tokenizer._encoder.ids.capacity = 100
    texts = [f"ab{'b' * n} b{n} 北ab北" for n in range(50)]
    first = tokenizer.encode_batch(texts)
    assert tokenizer.encode_batch(texts) == first
    assert first == [WordPieceTokenizer(tokenizer.vocab).encode(text) for text in texts]


@pytest.mark.slow
def test_hostile_text_cannot_grow_the_tokenizers_memories_past_their_caps() -> None:
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *string.ascii_lowercase])
    draw = random.Random(0)
    for _ in range(40):
        # 每个块都从未出现过，长度贴着缓存的上限
        text = " ".join("".join(draw.choices(string.ascii_lowercase, k=MAX_CACHED_CHARS)) for _ in range(2500))
        tokenizer.encode(text)
        tokenizer(text, truncation=False)
        for cache in (tokenizer._encoder.ids, tokenizer._encoder.tokens):
            assert weight(cache) <= 2 * cache.capacity
