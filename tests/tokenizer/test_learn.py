"""Learned vocabularies: the published order, determinism, and a slow, obvious trainer as the oracle."""

import itertools
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bertsmith.errors import ConfigError, InputError
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith.tokenizer.count import count_words
from bertsmith.tokenizer.normalize import Normalizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def slow_merges(words: Counter[str], pieces: list[str], size: int, min_frequency: int) -> list[str]:
    """Recounts every pair after every merge: slow, and plainly right."""
    spelled = {word: [word[0], *("##" + char for char in word[1:])] for word in words}
    pieces = list(pieces)
    while len(pieces) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in spelled.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < min_frequency:
            break
        merged = best[0] + best[1].removeprefix("##")
        if merged not in pieces:
            pieces.append(merged)
        for parts in spelled.values():
            for place in range(len(parts) - 1):
                if tuple(parts[place : place + 2]) == best:
                    parts[place : place + 2] = [merged]
    return pieces


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("min_frequency", [1, 3])
def test_merges_equal_those_of_the_obvious_trainer(seed: int, min_frequency: int) -> None:
    draw = random.Random(seed)
    text = ["".join(draw.choice("aab") for _ in range(draw.randint(1, 7))) for _ in range(60)]
    alphabet = ["##a", "##b", "a", "b"]
    learned = WordPieceTokenizer.train(text, vocab_size=40, min_frequency=min_frequency).vocab
    assert learned == SPECIAL + slow_merges(Counter(text), alphabet, 35, min_frequency)


def test_published_order_with_reserved_places() -> None:
    vocab = WordPieceTokenizer.train(["ab ab ab, !"], vocab_size=100, num_unused=2).vocab
    head = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert vocab == [*head, "!", "##a", "##b", ",", "a", "b", "ab"]


def test_ties_are_broken_by_text() -> None:
    # 四对计数相同：按文本先后合并
    vocab = WordPieceTokenizer.train(["dc dc", "ba ba", "bc bc", "da da"], vocab_size=100).vocab
    assert [piece for piece in vocab if len(piece.removeprefix("##")) == 2] == ["ba", "bc", "da", "dc"]


def test_order_and_cut_of_the_texts_do_not_matter() -> None:
    draw = random.Random(1)
    words = [draw.choice(["hello", "help", "yellow", "fellow", "low", "Élan", "北京", "o'clock"]) for _ in range(400)]
    one = WordPieceTokenizer.train([" ".join(words)], vocab_size=80).vocab
    draw.shuffle(words)
    assert WordPieceTokenizer.train(iter(words), vocab_size=80).vocab == one


def test_chinese_characters_and_punctuation_get_no_continuation_form() -> None:
    vocab = WordPieceTokenizer.train(["北京。上海abc，x-y 天気です"] * 3, vocab_size=200).vocab
    assert {"北", "京", "。", "，", "-", "##b"} <= set(vocab)
    assert not {"##北", "##京", "##。", "##，", "##-", "北京"} & set(vocab)


def test_every_word_of_the_training_text_can_be_spelled() -> None:
    text = ["The quick brown fox; 北京 ñandú Ωmega — 3.14 한국어 😀 q"]
    tokenizer = WordPieceTokenizer.train(text, vocab_size=500)
    assert tokenizer.unk_token_id not in tokenizer.encode(text[0])


def test_half_a_character_is_not_learned(tmp_path: Path) -> None:
    """A lone surrogate, as `"\\ud83d"` in JSON gives, has no place in a vocabulary file; its word is `[UNK]`."""
    broken = WordPieceTokenizer.train(["hi there \ud83d hi\udc00"] * 3, vocab_size=100)
    broken.save(tmp_path)
    assert WordPieceTokenizer.load(tmp_path).vocab == WordPieceTokenizer.train(["hi there"] * 3, vocab_size=100).vocab
    assert broken.tokenize("hi \ud83d") == ["hi", "[UNK]"]
    with pytest.raises(InputError, match="no words"):
        WordPieceTokenizer.train(["\ud83d \udc00"])
    with pytest.raises(InputError, match="user token"):
        WordPieceTokenizer.train(["hi"], user_tokens=["<\udcff>"])


def test_vocab_size_below_the_alphabet_says_what_is_needed() -> None:
    with pytest.raises(InputError, match="at least 13"):
        WordPieceTokenizer.train(["abcd"], vocab_size=12)
    assert len(WordPieceTokenizer.train(["abcd"], vocab_size=13, min_frequency=1)) == 13


def test_limit_alphabet_keeps_the_frequent_characters() -> None:
    tokenizer = WordPieceTokenizer.train(["aa bb aa bb ab zq"], vocab_size=11, limit_alphabet=2)
    assert {"a", "##a", "b", "##b"} <= set(tokenizer.vocab)
    assert tokenizer.tokenize("zq ab")[0] == "[UNK]"


@pytest.mark.parametrize("texts", [[], [""], [" \n\t", "\x00\u200b"]])
def test_text_without_words_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="no words"):
        WordPieceTokenizer.train(texts)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="single string"):
        WordPieceTokenizer.train("hello")
    with pytest.raises(InputError, match="text 2 is bytes"):
        WordPieceTokenizer.train(["hello", b"hello"])  # type: ignore[list-item]
    for options in ({"vocab_size": 0}, {"min_frequency": 0}, {"limit_alphabet": 0}, {"num_unused": -1}):
        ((name, value),) = options.items()
        with pytest.raises(ConfigError, match=f"{name.removeprefix('num_')} is {value}; give at least"):
            WordPieceTokenizer.train(["hello"], **options)


def test_real_text_compresses_as_well_as_the_reference_trainer(shared_data: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    lines = (shared_data / "corpus" / "wiki" / "wikitext2_valid.txt").read_text(encoding="utf-8").split("\n")
    train, held_out = lines[::2], lines[1::2]
    ours = WordPieceTokenizer.train(train, vocab_size=8000)
    reference = tokenizers.BertWordPieceTokenizer()
    reference.train_from_iterator(train, vocab_size=8000, show_progress=False)
    peer = sum(len(row.ids) for row in reference.encode_batch(held_out, add_special_tokens=False))
    assert sum(map(len, ours.encode_batch(held_out))) <= 1.005 * peer


def corpus_lines(count: int) -> list[str]:
    draw = random.Random(7)
    return [
        " ".join(f"{draw.choice('abcde')}{draw.choice(['x', 'yy', 'é', '北'])}" * draw.randint(1, 4))
        for _ in range(count)
    ]


def test_workers_do_not_change_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.tokenizer.count._BATCH_CHARS", 200)
    lines = corpus_lines(300)
    one = WordPieceTokenizer.train(lines, vocab_size=120).vocab
    assert WordPieceTokenizer.train(lines[::-1], vocab_size=120, workers=2).vocab == one


@pytest.mark.parametrize("workers", [1, 2])
def test_word_counts_are_exact_when_they_do_not_fit_into_memory(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsmith.tokenizer.count._BATCH_CHARS", 300)
    draw = random.Random(3)
    words = [
        f"w{int(draw.expovariate(0.02))}\ud800" if draw.random() < 0.1 else f"w{int(draw.expovariate(0.02))}"
        for _ in range(4000)
    ]
    lines = [" ".join(words[start : start + 20]) for start in range(0, len(words), 20)]
    everything = Counter(words)
    by_rank = sorted(everything, key=lambda word: (-everything[word], word))
    assert count_words(lines, Normalizer(), workers=workers).words == everything
    monkeypatch.setattr("bertsmith.tokenizer.count.MAX_WORDS", 50)
    for order in (lines, lines[::-1]):
        kept = count_words(order, Normalizer(), workers=workers).words
        assert kept == {word: everything[word] for word in by_rank[:50]}


def test_more_temporary_files_than_may_be_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr("bertsmith.tokenizer.count._BATCH_CHARS", 20)
    monkeypatch.setattr("bertsmith.tokenizer.count.MAX_WORDS", 4)
    draw = random.Random(5)
    words = [f"w{draw.randrange(200)}" for _ in range(2000)]
    everything = Counter(words)
    by_rank = sorted(everything, key=lambda word: (-everything[word], word))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, hard))
    try:
        kept = count_words(words, Normalizer()).words
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert kept == {word: everything[word] for word in by_rank[:4]}


def test_user_tokens_are_one_piece_and_teach_nothing() -> None:
    text = ["see <url> and [E1] here"] * 5
    tokenizer = WordPieceTokenizer.train(text, vocab_size=100, user_tokens=["<url>", "[E1]"])
    assert tokenizer.vocab[:7] == [*SPECIAL, "<url>", "[E1]"]
    assert tokenizer.tokenize("see <url>[E1] <URL>")[:3] == ["see", "<url>", "[E1]"]
    assert "<" not in tokenizer.vocab
    assert tokenizer.decode(tokenizer.encode("see <url> here")) == "see <url> here"
    for wrong in (["[MASK]"], ["x", "x"], [""], ["a\n"], "<url>"):
        with pytest.raises(InputError, match="user"):
            WordPieceTokenizer.train(text, user_tokens=wrong)


def test_a_reserved_place_cannot_be_a_user_token_and_that_is_said_at_once() -> None:
    def unread() -> Iterator[str]:
        pytest.fail("the texts were read first")
        yield ""

    with pytest.raises(InputError, match=r"'\[unused1\]' is a special or reserved token"):
        WordPieceTokenizer.train(unread(), num_unused=5, user_tokens=["[unused1]"])
    vocab = WordPieceTokenizer.train(["a"], num_unused=5, user_tokens=["[unused5]"]).vocab
    assert vocab.count("[unused5]") == 1


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    WordPieceTokenizer.train(["the man"] * 10, on_progress=lambda *step: told.append(step))
    assert ("counting", 70, 0) in told


def test_long_words_are_learned_from_where_the_text_is_made_of_them(
    tmp_path: Path,
) -> None:
    draw = random.Random(2)
    reads = ["".join(draw.choices("ACGT", k=150)) for _ in range(60)]
    notes: list[str] = []
    tokenizer = WordPieceTokenizer.train(reads, vocab_size=200, on_note=notes.append)
    assert len(tokenizer) == 200
    assert "60 words of more than 100 characters (100.0% of the text) are learned from in parts" in notes[0]
    assert tokenizer.unk_token_id not in tokenizer.encode(reads[0])
    tokenizer.save(tmp_path)
    assert WordPieceTokenizer.load(tmp_path).encode_batch(reads) == tokenizer.encode_batch(reads)
    # transformers 的 BertTokenizer 总以一百个字符为限：文件夹要说明按 tokenizer.json 读
    peer = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    assert peer(reads[0])["input_ids"] == tokenizer(reads[0])["input_ids"]


def test_a_few_long_words_are_left_out_and_said() -> None:
    lines = ["the man eats bread and reads a book"] * 400
    notes: list[str] = []
    tokenizer = WordPieceTokenizer.train([*lines, "x" * 101], vocab_size=120, on_note=notes.append)
    assert tokenizer.fingerprint == WordPieceTokenizer.train(lines, vocab_size=120).fingerprint
    assert len(notes) == 1
    assert notes[0].startswith("1 words of more than 100 characters (0.7% of the text) are left out, as [UNK]")
