"""What a corpus loses is counted, and what differs stays: unknown words, repeated lines, special tokens as text."""

import json
import random
import re
import tracemalloc
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertsmith
from bertsmith.data.corpus import commit
from bertsmith.data.corpus.build import build_shards
from bertsmith.data.corpus.partial_shards import DROPPED
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.shards import HELDOUT, TRAIN
from bertsmith.errors import ConfigError, InputError
from bertsmith.tokenizer import WordPieceTokenizer, learn_tokenizer
from typed_command import typed

SYLLABLES = ["กา", "มา", "นี", "ลู", "โต", "ไป", "ดี", "ปลา", "นา", "ตา"]
FOOTER = ["This mail is confidential.", "Page footer of the company."]


def unspaced(number, count=90):
    draw = random.Random(number)
    return "".join(draw.choice(SYLLABLES) for _ in range(count))


def documents_of(corpus, splits=(TRAIN, HELDOUT)):
    return [
        [s.tolist() for s in corpus.document(split, n)]
        for split in splits
        for n in range(corpus.counts[split].documents)
    ]


def statistics_of(folder):
    return json.loads((folder / "statistics.json").read_text())


@pytest.fixture
def english():
    return WordPieceTokenizer.train(["the man eats bread and reads a book at home . "] * 5, vocab_size=200)


def write(folder, texts):
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number:03d}.txt").write_text(text, encoding="utf-8")
    return folder


def test_text_without_spaces_becomes_a_vocabulary_and_a_corpus(tmp_path):
    texts = write(tmp_path / "texts", [f"{unspaced(n)}\n{unspaced(n + 100)}\n" for n in range(40)])
    notes = []
    vocabulary = bertsmith.learn_vocabulary(texts, tmp_path / "v", vocab_size=300, on_note=notes.append, workers=1)
    assert vocabulary.metrics["pieces"] == 300
    assert any("80 words of more than 100 characters" in note and "--kind unigram" in note for note in notes)
    corpus = bertsmith.build_corpus(texts, tmp_path / "v", tmp_path / "c", workers=1)
    assert corpus.metrics["documents"] + corpus.metrics["heldout_documents"] == 40
    assert (
        corpus.metrics["unknown_rate"]
        == corpus.metrics["unknown_characters"]
        == corpus.metrics["exact_duplicates"]
        == 0
    )


@pytest.mark.parametrize("near", [None, 0.8])
def test_documents_whose_words_cannot_be_spelled_are_no_duplicates(english, tmp_path, near):
    if near is not None:
        pytest.importorskip("datasketch")
    texts = [f"the man\n\n{unspaced(n, 50)} bread\n\n{unspaced(n + 50, 50)} a book" for n in range(12)]
    folder = write(tmp_path / "t", [*texts, texts[3]])
    corpus = build_shards([folder], english, tmp_path / "c", CorpusOptions(near_duplicates=near))
    assert len(documents_of(corpus)) == 12
    found = statistics_of(tmp_path / "c")
    assert found["duplicates"] == {"exact": 1, "near": 0}
    # 丢掉重复之前就数：十三篇都在内
    assert found["characters"] == sum(len(line) for text in [*texts, texts[3]] for line in text.split("\n"))
    unknown = sum(len(word) for text in [*texts, texts[3]] for word in text.split() if not word.isascii())
    # 词末被去掉的元音符号不算在词的跨度里
    assert found["unknown_characters"] == pytest.approx(unknown, rel=0.01)


def test_case_still_makes_no_difference_where_the_vocabulary_makes_none(english, tmp_path):
    texts = ["the man ñandú", "The Man Ñandú", "the man eats", "a book", "bread and a book"]
    corpus = build_shards([write(tmp_path / "t", texts)], english, tmp_path / "c")
    assert len(documents_of(corpus)) == 4


@pytest.fixture
def mails(tmp_path):
    draw = random.Random(1)
    words = ["the", "man", "eats", "bread", "reads", "a", "book", "home"]
    own = [["".join([" ".join(draw.choices(words, k=9)), "."]) for _ in range(3)] for _ in range(60)]
    return write(tmp_path / "mails", ["\n".join([*lines, *FOOTER]) + "\n" for lines in own]), own


def test_repeated_lines_are_reported_with_their_share_of_the_tokens(english, mails, tmp_path):
    held = build_shards([mails[0]], english, tmp_path / "c", CorpusOptions(heldout_share=0.2)).counts[HELDOUT]
    found = statistics_of(tmp_path / "c")["repeated_lines"]
    footer = sum(len(english.encode(line)) for line in FOOTER)
    own = sum(len(english.encode(line)) for lines in mails[1] for line in lines)
    assert (found["lines"], found["copies"], found["dropped"]) == (2, 120, 0)
    assert found["token_share"] == pytest.approx(60 * footer / (60 * footer + own))
    assert found["heldout_token_share"] == pytest.approx(held.documents * footer / held.tokens)


def test_repeated_lines_are_dropped_but_one_and_never_held_out(english, mails, tmp_path):
    options = CorpusOptions(heldout_share=0.2, drop_repeated_lines=10)
    corpus = build_shards([mails[0]], english, tmp_path / "c", options)
    lines = {split: [line for text in documents_of(corpus, [split]) for line in text] for split in (TRAIN, HELDOUT)}
    for line in map(english.encode, FOOTER):
        assert (lines[TRAIN].count(line), lines[HELDOUT].count(line)) == (1, 0)
    assert len(lines[TRAIN]) + len(lines[HELDOUT]) == 3 * 60 + 2
    assert statistics_of(tmp_path / "c")["repeated_lines"]["dropped"] == 118
    assert corpus.counts[TRAIN].tokens == sum(map(len, lines[TRAIN])) == corpus.piece_counts.sum()
    assert build_shards([mails[0]], english, tmp_path / "c", options).counts == corpus.counts


class Arrays:
    """The arrays of a partial shard, made up."""

    def __init__(self, **arrays):
        self.load = arrays.__getitem__


def made_up(documents, seed):
    draws = np.random.default_rng(seed)
    counts = draws.integers(1, 8, documents)
    many = int(counts.sum())
    return Arrays(
        sentences=counts,
        sentence_hashes=draws.integers(0, many // 2, many).astype(np.uint64),
        sentence_lengths=draws.integers(1, 50, many),
        texts=draws.integers(0, 2**63, documents).astype(np.uint64),
        lengths=counts * 20,
    )


@pytest.mark.parametrize("least", [None, 2, 4])
def test_repeated_lines_are_those_that_a_plain_count_finds(least):
    partial_shards = [made_up(60, seed) for seed in range(3)]
    splits = [np.random.default_rng(seed).choice([0, 0, 1, 2], 60).astype(np.int8) for seed in range(3)]
    rows = [
        (split, place, int(line))
        for part, (partial, group) in enumerate(zip(partial_shards, splits, strict=True))
        for split, place, line in zip(
            np.repeat(group, partial.load("sentences")).tolist(),
            np.repeat(np.arange(60) + 60 * part, partial.load("sentences")).tolist(),
            partial.load("sentence_hashes"),
            strict=True,
        )
    ]
    holders = defaultdict(set)
    for split, place, line in rows:
        if split != DROPPED:
            holders[line].add(place)
    repeated = {line for line, places in holders.items() if len(places) >= (least or commit.REPEATED)}
    kept, expected = set(), []
    for split, _, line in rows:
        drop = least is not None and split != DROPPED and line in repeated and (split != 0 or line in kept)
        kept |= {line} if split == 0 else set()
        expected.append(not drop)
    _, stays, figures = commit._without_repeated_lines(partial_shards, splits, CorpusOptions(drop_repeated_lines=least))
    assert np.concatenate(stays).tolist() == expected
    assert figures["lines"] == len(repeated)
    assert figures["copies"] == sum(split != DROPPED and line in repeated for split, _, line in rows)


def test_the_commit_takes_some_forty_bytes_a_sentence():
    partial_shards = [made_up(20_000, seed) for seed in range(2)]
    splits = [np.zeros(20_000, dtype=np.int8)] * 2
    splits[0] = np.ones(20_000, dtype=np.int8)
    many = sum(len(partial.load("sentence_hashes")) for partial in partial_shards)
    tracemalloc.start()
    commit._without_repeated_lines(partial_shards, splits, CorpusOptions())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * many


@pytest.mark.parametrize("share", [0.001, 0.1, 0.4])
def test_what_is_held_out_by_size_is_what_fits_in_the_order_of_the_numbers(share):
    partial = made_up(200, 1)
    # numbers above the share: by them alone nothing would be held out
    texts = np.sort(partial.load("texts")) // 2 + np.uint64(2**63)
    partial = Arrays(texts=texts, lengths=partial.load("lengths"))
    (found,) = commit._settled([np.zeros(200, dtype=np.int8)], [partial], share, 0)
    sizes, held = partial.load("lengths").tolist(), []
    for number, size in enumerate(sizes):
        if sum(sizes[each] for each in held) + size <= share * sum(sizes):
            held.append(number)
    assert np.flatnonzero(found).tolist() == (held or [int(np.argmin(sizes))])


def test_lines_that_are_all_repeated_are_refused_not_emptied(english, tmp_path):
    pairs = [f"{a}\n{b}\n" for a in ("the man", "a book", "bread") for b in ("at home", "eats", "reads")]
    texts = write(tmp_path / "t", pairs)
    with pytest.raises(InputError, match="fewer than two texts to train on, or none to validate on; give a larger"):
        build_shards([texts], english, tmp_path / "c", CorpusOptions(drop_repeated_lines=2))
    with pytest.raises(ConfigError, match="drop_repeated_lines is 1; give at least 2"):
        CorpusOptions(drop_repeated_lines=1)


def test_one_text_that_is_left_to_train_on_is_refused():
    """Two documents of it, and a third whose only line is dropped: no other text is left for a random second half."""
    partial = Arrays(
        sentences=np.array([2, 1, 1, 1]),
        sentence_hashes=np.array([5, 7, 8, 5, 9], dtype=np.uint64),
        sentence_lengths=np.ones(5, dtype=np.int64),
        texts=np.array([1, 1, 2, 3], dtype=np.uint64),
    )
    splits = [np.array([0, 0, 0, 1], dtype=np.int8)]
    commit._without_repeated_lines([partial], splits, CorpusOptions())
    with pytest.raises(InputError, match="--drop-repeated-lines 2 leaves fewer than two texts to train on"):
        commit._without_repeated_lines([partial], splits, CorpusOptions(drop_repeated_lines=2))


ROWS = [*("the man eats", "a book", "bread at home", "reads a book"), *[None, "", " \n", None]]


def rows_in(folder, name):
    """Rows of which four hold no text; None for rows in memory."""
    path, records = folder / name, [{"text": text} for text in ROWS]
    if name == "a.parquet":
        # the last row group holds no text at all
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=4)
    elif name == "a.jsonl":
        path.write_text("\n".join(map(json.dumps, records)))
    elif name == "a.csv":
        path.write_text("n,text\n" + "".join(f"{n},{text or ''}\n" for n, text in enumerate(ROWS) if text != " \n"))
    return path if name else records


@pytest.mark.parametrize(("name", "count"), [("a.parquet", 4), ("a.jsonl", 4), ("a.csv", 3), ("", 4)])
def test_rows_without_text_are_counted_wherever_they_are_read(tmp_path, capsys, name, count):
    text, said = rows_in(tmp_path, name), f"skipped {count} row(s) without text"
    with pytest.warns(UserWarning, match=re.escape(f": {said}")):
        bertsmith.learn_vocabulary(text, tmp_path / "v", vocab_size=60, workers=1)
    for _ in range(2):
        corpus = bertsmith.build_corpus(text, tmp_path / "v", tmp_path / "c", workers=2)
        assert corpus.metrics["documents"] + corpus.metrics["heldout_documents"] == 4
        assert corpus.metrics["empty_rows"] == statistics_of(tmp_path / "c")["empty_rows"] == count
    if name:
        told = typed(capsys, "corpus", text, "--tokenizer", tmp_path / "v", "--out", tmp_path / "c")
        assert f"{said}\n" in told
        assert any(note.endswith(f"{name}: {said}") for note in bertsmith.look(text, task="text").notes)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_special_tokens_that_stand_in_the_text_are_words_and_counted(tmp_path, kind):
    scraped = ["[MASK] the [SEP] man <s> eats </s> [UNK] bread <mask> <pad> [CLS] ."] * 2
    texts = write(tmp_path / "t", ["\n".join([*scraped, f"the man reads book {n} at home ."]) for n in range(30)])
    notes = []
    size = 60 if kind == "unigram" else 330
    learned = bertsmith.learn_vocabulary(
        texts, tmp_path / "v", kind=kind, vocab_size=size, on_note=notes.append, workers=1
    ).details
    assert any("[MASK] 60 times" in note for note in notes)
    own = [learned.vocab[index] for index in range(len(learned)) if index not in learned.special_ids]
    written = re.compile(r"\[(mask|sep)|(mask|sep)\]|</?s>|<mask", re.IGNORECASE)
    assert not [piece for piece in own if written.search(piece)]
    corpus = bertsmith.build_corpus(texts, tmp_path / "v", tmp_path / "c", workers=1, documents="file")
    assert corpus.metrics["special_tokens_as_text"] == 30 * 2 * 8
    allowed = {learned.unk_token_id}
    assert not {i for d in documents_of(corpus.details) for s in d for i in s} & set(learned.special_ids) - allowed


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_the_first_word_of_a_sentence_counts(tmp_path, kind):
    lines = ["bread", "the man", "man eats bread", "eats the bread"]
    size = 40 if kind == "unigram" else 400
    tokenizer = learn_tokenizer([line for line in lines for _ in range(50)], kind=kind, vocab_size=size)
    texts = write(tmp_path / "t", ["\n".join([line] * 3) for line in lines])
    build_shards([texts], tokenizer, tmp_path / "c", CorpusOptions(documents="file"))
    found = statistics_of(tmp_path / "c")
    assert found["words"] == 3 * sum(len(line.split()) for line in lines)
    assert found["pieces_per_word"] == pytest.approx(found["tokens"] / found["words"])
