"""Which tokens continue a word, against jieba and the pieces themselves."""

import sys

import jieba
import numpy as np
import pytest

from bertsmith.data.corpus.build import build_from_documents, build_shards
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.data.corpus.words import encode_with_words
from bertsmith.data.reading.text import Document, read_documents
from bertsmith.errors import ConfigError
from bertsmith.tokenizer import WordPieceTokenizer

ALPHABET = "一个人在中国北京大学学习数据科学他的朋友喜欢买恤看书0123456789abcdefghijklmnopqrstuvwxyz。，.!'"
LATIN = "abcdefghijklmnopqrstuvwxyz0123456789"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(ALPHABET), *(f"##{c}" for c in LATIN)]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(PIECES)


def marked(text, tokenizer):
    """The pieces, a `+` before those that continue."""
    ids, continues = encode_with_words([text], tokenizer)
    return [("+" if c else "") + tokenizer.vocab[i] for i, c in zip(ids.ids.tolist(), continues.tolist(), strict=True)]


def test_characters_after_the_first_of_a_chinese_word_continue(tokenizer):
    assert list(jieba.cut("他在北京大学学习。")) == ["他", "在", "北京大学", "学习", "。"]
    assert marked("他在北京大学学习。", tokenizer) == ["他", "在", "北", "+京", "+大", "+学", "学", "+习", "。"]


def test_pieces_inside_a_word_continue(tokenizer):
    assert marked("a man's book", tokenizer) == [
        "a", "m", "+##a", "+##n", "'", "s", "b", "+##o", "+##o", "+##k"
    ]  # fmt: skip


def test_a_word_of_both_scripts_is_one(tokenizer):
    assert list(jieba.cut("他买T恤")) == ["他", "买", "T恤"]
    assert marked("他买T恤", tokenizer) == ["他", "买", "t", "+恤"]


def test_the_first_of_a_sentence_never_continues(tokenizer):
    ids, continues = encode_with_words(["北京", "", "学", "学习", "man"], tokenizer)
    starts = ids.bounds[:-1][np.diff(ids.bounds) > 0]
    assert not continues[starts].any()
    assert continues.tolist() == [False, True, False, False, True, False, True, True]


def test_a_real_corpus_agrees_with_jieba_sentence_by_sentence(shared_data, tmp_path):
    files = sorted((shared_data / "corpus_zh").rglob("*.txt"))[:1]
    tokenizer = WordPieceTokenizer.load(shared_data / "vocab-chinese-21128.txt")
    documents = list(read_documents(files, documents="blank-line"))[:60]
    corpus = build_from_documents(documents, tokenizer, tmp_path / "out", heldout_share=0.3, words="jieba")
    assert corpus.has_words
    found = {
        np.concatenate(corpus.document(split, n)).tobytes(): (corpus.document(split, n), corpus.continuations(split, n))
        for split in (TRAIN, HELDOUT)
        for n in range(corpus.counts[split].documents)
    }
    checked = 0
    for document in documents:
        encoded = [tokenizer(sentence) for sentence in document.sentences]
        ids = [row["input_ids"][1:-1] for row in encoded]
        key = np.array([index for row in ids for index in row], dtype=np.int32).tobytes()
        sentences, continuations = found[key]
        for sentence, row, tokens, continues in zip(document.sentences, encoded, sentences, continuations, strict=True):
            assert continues.shape == tokens.shape
            assert continues.dtype == np.bool_
            # word by word, with jieba's own positions
            inside = set()
            for word, start, end in jieba.tokenize(sentence):
                if any("\u4e00" <= c <= "\u9fff" for c in word):
                    inside |= set(range(start + 1, end))
            expected = [
                n > 0 and (start in inside or tokenizer.vocab[index].startswith("##"))
                for n, (index, (start, _)) in enumerate(zip(row["input_ids"][1:-1], row["offsets"][1:-1], strict=True))
            ]
            assert continues.tolist() == expected
            checked += sum(expected)
    assert checked > 1000


def test_words_are_the_same_whatever_the_workers_and_after_dropping(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("bertsmith.data.corpus.plan._SMALLEST_CHUNK", 200)
    monkeypatch.setattr("bertsmith.data.corpus.plan._CHUNKS", 10**9)
    texts = [f"{n}。他的朋友在北京大学学习数据科学。他喜欢看书, a man's book {n}." for n in range(40)]
    (tmp_path / "a.txt").write_text("\n\n".join([*texts, *texts[:7]]), encoding="utf-8")
    options = CorpusOptions(words="jieba", heldout_share=0.3)
    for workers in (1, 2):
        corpus = build_shards([tmp_path / "a.txt"], tokenizer, tmp_path / str(workers), options, workers=workers)
        assert corpus.counts[TRAIN].documents + corpus.counts[HELDOUT].documents == 40
        for split in (TRAIN, HELDOUT):
            for n in range(corpus.counts[split].documents):
                sentences = corpus.document(split, n)
                for ids, continues in zip(sentences, corpus.continuations(split, n), strict=True):
                    pieces = [tokenizer.vocab[index] for index in ids]
                    if "北" in pieces:
                        place = pieces.index("北")
                        assert continues[place : place + 4].tolist() == [False, True, True, True]
                    assert all(p.startswith("##") <= c for p, c in zip(pieces, continues.tolist(), strict=True))
    for path in (tmp_path / "1").glob("*.arrow"):
        assert path.read_bytes() == (tmp_path / "2" / path.name).read_bytes()


def test_a_corpus_without_words_says_how_to_get_them(tokenizer, tmp_path):
    documents = [Document("a", (f"他看书{n}",)) for n in range(5)]
    build_from_documents(documents, tokenizer, tmp_path)
    corpus = TokenCorpus(tmp_path)
    assert corpus.has_words is False
    with pytest.raises(ConfigError, match="--words jieba"):
        corpus.continuations(TRAIN, 0)


def test_without_jieba_the_extra_is_named(monkeypatch):
    from bertsmith.data.corpus.words import word_cutter

    word_cutter.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(ConfigError, match=r"bertsmith\[zh\]"):
        CorpusOptions(words="jieba")
