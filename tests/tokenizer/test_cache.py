"""The memory of chunks: bounded whatever the text, and loyal to what is used."""

from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.tokenizer.cache import MAX_CACHED_CHARS, ChunkCache


def test_memory_stays_under_its_cap() -> None:
    cache = ChunkCache(len, capacity=100)
    for number in range(10_000):
        assert cache[f"chunk{number}"] == len(f"chunk{number}")
        assert cache.alive() <= 200


def test_frequent_chunks_survive_a_flood_of_new_ones() -> None:
    computed: list[str] = []

    def compute(chunk: str) -> int:
        computed.append(chunk)
        return len(chunk)

    cache = ChunkCache(compute, capacity=100)
    for number in range(10_000):
        assert cache["the"] == 3
        assert cache[f"chunk{number}"] > 0
    assert computed.count("the") == 1


def test_long_chunks_are_not_kept() -> None:
    cache = ChunkCache(len, capacity=100)
    assert cache["a" * (MAX_CACHED_CHARS + 1)] == MAX_CACHED_CHARS + 1
    assert cache.alive() == 0


def test_ids_do_not_depend_on_what_was_seen_before() -> None:
    tokenizer = WordPieceTokenizer(["[UNK]", "a", "##b", "b", "北"])
    tokenizer._ids.capacity = 3
    texts = [f"ab{'b' * n} b{n} 北ab北" for n in range(50)]
    first = tokenizer.encode_batch(texts)
    assert tokenizer.encode_batch(texts) == first
    assert first == [WordPieceTokenizer(tokenizer.vocab).encode(text) for text in texts]
