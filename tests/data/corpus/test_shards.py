import numpy as np
import pytest

from bertsmith.data.corpus.build import build_from_documents, build_shards
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.data.corpus.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.data.reading.text import Document, read_documents
from bertsmith.errors import CheckpointError, InputError, RunFolderError
from bertsmith.tokenizer import WordPieceTokenizer

WORDS = [
    "the",
    "man",
    "woman",
    "eats",
    "reads",
    "bread",
    "book",
    "a",
    "river",
    "runs",
    "by",
    "house",
    "and",
    "dog",
    "sleeps",
    "there",
]


def make_documents(count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Document(f"{i}.txt", tuple(" ".join(rng.choice(WORDS, 6)) + "." for _ in range(rng.integers(2, 9))))
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer.train([" ".join(WORDS) + " ."] * 3, vocab_size=300)


def test_a_corpus_gives_its_documents_back(tokenizer, tmp_path):
    documents = make_documents(200)
    corpus = build_from_documents(documents, tokenizer, tmp_path, heldout_share=0.1, shard_tokens=1000)
    found = [
        tuple(tokenizer.decode(ids.tolist()) for ids in corpus.document(split, i))
        for split in (TRAIN, HELDOUT)
        for i in range(corpus.counts[split].documents)
    ]
    assert sorted(found) == sorted(document.sentences for document in documents)
    assert corpus.counts[TRAIN].documents + corpus.counts[HELDOUT].documents == 200
    assert 5 <= corpus.counts[HELDOUT].documents <= 40
    assert len(list(tmp_path.glob("train-*.arrow"))) > 3


def test_counts_and_entropy_equal_a_count_by_hand(tokenizer, tmp_path):
    corpus = build_from_documents(make_documents(50), tokenizer, tmp_path)
    ids = np.concatenate([s for i in range(corpus.counts[TRAIN].documents) for s in corpus.document(TRAIN, i)])
    assert corpus.counts[TRAIN].tokens == len(ids)
    values, counts = np.unique(ids, return_counts=True)
    assert corpus.piece_counts[values].tolist() == counts.tolist()
    share = counts / counts.sum()
    assert corpus.unigram_entropy == pytest.approx(float(-(share * np.log(share)).sum()))


def test_the_split_does_not_depend_on_the_order_of_files(tokenizer, tmp_path):
    documents = make_documents(100)
    for name, order in (("a", documents), ("b", documents[::-1])):
        build_from_documents(order, tokenizer, tmp_path / name, heldout_share=0.2)
    first, second = (
        sorted(np.concatenate(corpus.document(HELDOUT, i)).tolist() for i in range(corpus.counts[HELDOUT].documents))
        for corpus in (TokenCorpus(tmp_path / "a"), TokenCorpus(tmp_path / "b"))
    )
    assert first == second


@pytest.mark.parametrize(("count", "size"), [(3, {"shard_tokens": 1}), (9, {"shard_tokens": 1}), (3, {})])
def test_few_documents_still_leave_one_to_hold_out(tokenizer, tmp_path, count, size):
    corpus = build_from_documents(make_documents(count), tokenizer, tmp_path, heldout_share=0.0001, **size)
    assert (corpus.counts[TRAIN].documents, corpus.counts[HELDOUT].documents) == (count - 1, 1)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_documents_are_refused(tokenizer, tmp_path, count):
    with pytest.raises(InputError, match="at least 3 are needed"):
        build_from_documents(make_documents(count), tokenizer, tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_a_corpus_that_is_there_is_not_replaced(tokenizer, tmp_path):
    build_from_documents(make_documents(20), tokenizer, tmp_path)
    before = (tmp_path / "manifest.json").read_bytes()
    with pytest.raises(RunFolderError, match="holds a corpus already"):
        build_from_documents(make_documents(30), tokenizer, tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_documents_at_hand_and_files_of_them_give_the_same_shards(tokenizer, tmp_path):
    texts = [" ".join(document.sentences) for document in make_documents(80)]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([*texts, *texts[:5]]))
    documents = list(read_documents([path]))
    options = CorpusOptions(keep_duplicates=True, heldout_share=0.1)
    build_shards([path], tokenizer, tmp_path / "files", options)
    build_from_documents(documents, tokenizer, tmp_path / "hand", heldout_share=0.1)
    for shard in (tmp_path / "files").glob("*.arrow"):
        assert shard.read_bytes() == (tmp_path / "hand" / shard.name).read_bytes()


def test_another_tokenizer_is_refused(tokenizer, tmp_path):
    build_from_documents(make_documents(20), tokenizer, tmp_path)
    other = WordPieceTokenizer([*tokenizer.vocab, "extra"])
    with pytest.raises(CheckpointError, match="another tokenizer"):
        TokenCorpus(tmp_path, other)


def test_a_missing_shard_is_named(tokenizer, tmp_path):
    build_from_documents(make_documents(20), tokenizer, tmp_path)
    (tmp_path / "train-00000.arrow").unlink()
    with pytest.raises(CheckpointError, match=r"train-00000\.arrow"):
        TokenCorpus(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "damaged"),
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"version": 2}', "damaged .*tokenizer is missing"),
        ('{"version": 99}', "format version 99, not 2"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, content, reason):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"manifest\.json: .*{reason}.*build the corpus again"):
        TokenCorpus(tmp_path)


def test_a_folder_without_manifest_is_no_corpus(tmp_path):
    with pytest.raises(CheckpointError, match=r"no manifest\.json"):
        TokenCorpus(tmp_path)


def test_parts_that_another_process_makes_are_left_alone(another_process, tokenizer, tmp_path):
    part = tmp_path / ".parts" / "00000" / "000.npz"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half")
    with another_process(tmp_path), pytest.raises(RunFolderError, match="another process"):
        build_from_documents(make_documents(50), tokenizer, tmp_path)
    assert part.read_bytes() == b"half"
