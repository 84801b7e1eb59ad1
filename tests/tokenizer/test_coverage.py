"""Coverage against counts made by hand."""

from bertsmith import WordPieceTokenizer
from bertsmith.tokenizer import learn_tokenizer
from bertsmith.tokenizer.coverage import measure_coverage

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "cat", "##s", "dog", "##e", "##d", "."]


def test_words_pieces_and_what_cannot_be_spelled_are_counted():
    tokenizer = WordPieceTokenizer(VOCAB)
    coverage = measure_coverage(tokenizer, ["The cats .", "the dog zoo cats", "", "cats dogs ."])
    # the | cat ##s | . || the | dog | [UNK] | cat ##s || cat ##s | dog ##s | .
    assert (coverage.words, coverage.pieces, coverage.whole, coverage.unknown) == (10, 14, 5, 1)
    assert coverage.costly == {"cats": (3, 2), "zoo": (1, 2), "dogs": (1, 2)}
    assert coverage.pieces_per_word == 1.4
    assert coverage.costliest(2) == ["cats"]
    assert coverage.costliest(2, min_frequency=1) == ["cats", "dogs"]
    assert coverage.characters == sum(map(len, ["The cats .", "the dog zoo cats", "", "cats dogs ."]))


def test_a_word_is_counted_as_the_tokenizer_reads_it():
    texts = ["cáts CATS cats ca\u0301ts"]
    assert measure_coverage(WordPieceTokenizer(VOCAB), texts).costly == {"cats": (4, 2)}
    cased = measure_coverage(WordPieceTokenizer(VOCAB, lowercase=False), ["cáts CATS cats"])
    assert cased.costly == {"cáts": (1, 2), "CATS": (1, 2), "cats": (1, 2)}


def test_no_text_is_no_words():
    coverage = measure_coverage(WordPieceTokenizer(VOCAB), ["", "  "])
    assert (coverage.words, coverage.pieces, coverage.pieces_per_word) == (0, 0, 0.0)


def test_only_as_much_is_read_as_is_asked_for():
    tokenizer = WordPieceTokenizer(VOCAB)
    assert measure_coverage(tokenizer, (["cat"] * 3 for _ in range(0)), max_characters=5).words == 0
    lines = ["cat " * (1 << 18)] * 3
    assert measure_coverage(tokenizer, lines, max_characters=5).words == 1 << 18


def test_a_byte_level_vocabulary_spells_everything():
    tokenizer = learn_tokenizer(["the cat sat on the mat"] * 5, kind="bpe", vocab_size=300)
    coverage = measure_coverage(tokenizer, ["the zebra 斑马"])
    assert coverage.unknown == 0
    assert coverage.words >= 2
