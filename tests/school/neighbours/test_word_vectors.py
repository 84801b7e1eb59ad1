"""Skip-gram and CBOW: their loss written out, their file, and what they learn of the village."""

import math

import numpy as np
import pytest
import torch
from gensim.models import KeyedVectors, Word2Vec

from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith_school.neighbours import WordVectorOptions, WordVectors, learn_word_vectors, runs, word2vec
from bertsmith_school.neighbours.word2vec import NegativeSampling, SentenceStream
from typed_command import typed


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_the_loss_is_that_of_every_pair_by_itself(village, method, monkeypatch):
    corpus, tokenizer = village
    options = WordVectorOptions(method=method, size=6, window=3, negatives=2, sample=0.0)
    batch = next(SentenceStream(corpus, step_pieces=40, seed=1))
    torch.manual_seed(0)
    model = word2vec.Word2Vec(len(tokenizer), 6)
    torch.nn.init.normal_(model.word.weight)
    torch.nn.init.normal_(model.context.weight)
    noise = torch.randint(5, len(tokenizer), (word2vec.SHARED_NEGATIVES,))
    monkeypatch.setattr(NegativeSampling, "_noise", lambda _: noise)
    counts = torch.from_numpy(corpus.piece_counts.copy())
    found = NegativeSampling(options, counts, set(tokenizer.special_ids))(model, batch)
    word, context = model.word.weight.detach().double(), model.context.weight.detach().double()

    def minus_log_sigmoid(x):
        return math.log1p(math.exp(-x)) if x > -30 else -x

    def against(vector):
        return 2 * np.mean([minus_log_sigmoid(-float(vector @ context[n])) for n in noise.tolist()])

    total = count = 0.0
    for ids in batch.input_ids.split(batch.lengths):
        words = ids.tolist()
        for place, centre in enumerate(words):
            near = [
                (words[other], (3 - abs(other - place) + 1) / 3)
                for other in range(max(0, place - 3), min(len(words), place + 4))
                if other != place
            ]
            if method == "cbow" and near:
                mean = sum(weight * word[other] for other, weight in near) / sum(weight for _, weight in near)
                total += minus_log_sigmoid(float(mean @ context[centre])) + against(mean)
                count += 1
            if method == "skip-gram":
                for other, weight in near:
                    true = minus_log_sigmoid(float(word[centre] @ context[other]))
                    total += weight * (true + against(word[centre]))
                    count += weight
    assert found.loss.item() == pytest.approx(total, rel=1e-4)
    assert found.sums["loss"] == (pytest.approx(total, rel=1e-4), round(count))


def test_a_pass_is_every_sentence_once_and_a_place_is_enough_to_go_on(village):
    corpus, _ = village
    documents = [corpus.document("train", number) for number in range(corpus.counts["train"].documents)]
    size = corpus.counts["train"].tokens
    passes = [next(SentenceStream(corpus, step_pieces=size, seed=seed)) for seed in (0, 0, 1)]
    for one in passes:
        sentences = [tuple(ids.tolist()) for ids in one.input_ids.split(one.lengths)]
        assert sorted(sentences) == sorted(tuple(ids.tolist()) for document in documents for ids in document)
    assert passes[0].input_ids.equal(passes[1].input_ids)
    assert not passes[0].input_ids.equal(passes[2].input_ids)
    stream, again = (SentenceStream(corpus, step_pieces=97, seed=0) for _ in range(2))
    read = []
    while stream.position.epoch == 0:
        again.position = stream.position
        batch, same = next(stream), next(again)
        assert batch.input_ids.equal(same.input_ids)
        assert batch.lengths == same.lengths
        read.append(batch.input_ids)
    # 每步的词数相同：步数正好是遍数
    assert torch.cat(read)[:size].equal(passes[0].input_ids)
    assert len(read) == -(-size // 97)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_near_words_are_those_of_gensim_as_nearly_as_gensim_finds_them_again(village, method, tmp_path):
    corpus, tokenizer = village
    options = WordVectorOptions(method=method, size=32, epochs=4)
    ours = learn_word_vectors(tmp_path / "run", corpus, tokenizer, options)
    peers = []
    for seed in (1, 2):
        # 文档的次序也是随机的一部分：两次都按文件的次序读，会比任何别的次序更像
        order = np.random.default_rng(seed).permutation(corpus.counts["train"].documents).tolist()
        sentences = [[tokenizer.vocab[n] for n in ids] for number in order for ids in corpus.document("train", number)]
        sizes = {"vector_size": options.size, "window": options.window, "negative": options.negatives, "min_count": 1}
        rates = {"sample": options.sample, "alpha": options.rate, "epochs": options.epochs}
        peer = Word2Vec(sentences, sg=int(method == "skip-gram"), seed=seed, workers=1, **sizes, **rates)
        peers.append(WordVectors(peer.wv.index_to_key, peer.wv.vectors))
    words = ours.words[:300]
    near = [[{other for other, _ in each.nearest([word])} for word in words] for each in (ours, *peers)]

    def shared(one, other):
        return np.mean([len(a & b) / 10 for a, b in zip(near[one], near[other], strict=True)])

    assert (shared(0, 1) + shared(0, 2)) / 2 > shared(1, 2) - 0.03


def test_the_file_is_what_gensim_reads_and_nearest_is_its_most_similar(tmp_path):
    rng = np.random.default_rng(0)
    ours = WordVectors([f"word{number}" for number in range(50)], rng.normal(size=(50, 8)).astype(np.float32))
    ours.save(tmp_path)
    peer = KeyedVectors.load_word2vec_format(str(tmp_path / "vectors.bin"), binary=True)
    assert peer.index_to_key == ours.words
    np.testing.assert_array_equal(peer.vectors, ours.vectors)
    for plus, minus in ((["word3"], []), (["word3", "word9"], ["word20"])):
        found, expected = ours.nearest(plus, minus, 7), peer.most_similar(plus, minus, topn=7)
        assert [word for word, _ in found] == [word for word, _ in expected]
        np.testing.assert_allclose([c for _, c in found], [c for _, c in expected], atol=1e-5)
    again = WordVectors.load(tmp_path)
    np.testing.assert_array_equal(again.vectors, ours.vectors)
    peer.save_word2vec_format(str(tmp_path / "vectors.bin"), binary=True)
    assert WordVectors.load(tmp_path).words == ours.words
    np.testing.assert_array_equal(ours.vector("word7"), ours.vectors[7])
    WordVectors(["New York", "b"], ours.vectors[:2]).save(tmp_path)
    assert WordVectors.load(tmp_path).words == ["New_York", "b"]


def test_a_run_that_dies_goes_on_bit_for_bit(village, tmp_path, monkeypatch):
    corpus, tokenizer = village
    options = WordVectorOptions(size=8, epochs=1)
    whole = learn_word_vectors(tmp_path / "whole", corpus, tokenizer, options)
    monkeypatch.setattr(runs, "SAVE_EVERY", 0.0)
    train, taken = word2vec.BertTrainer.train_batch, []

    def dying(self, *parts):
        taken.append(self.step)
        if len(taken) == 9:
            raise ConnectionError("the process dies here")
        return train(self, *parts)

    monkeypatch.setattr(word2vec.BertTrainer, "train_batch", dying)
    with pytest.raises(ConnectionError):
        learn_word_vectors(tmp_path / "killed", corpus, tokenizer, options)
    again = learn_word_vectors(tmp_path / "killed", corpus, tokenizer, options)
    # 死前做完八步，第八步之后存过：接着从第八步做起
    assert taken[8:10] == [8, 8]
    assert again.words == whole.words
    np.testing.assert_array_equal(again.vectors, whole.vectors)


def test_a_finished_run_is_read_and_another_is_refused(village, tmp_path, monkeypatch):
    corpus, tokenizer = village
    options = WordVectorOptions(size=8, epochs=1)
    first = learn_word_vectors(tmp_path / "run", corpus, tokenizer, options)
    monkeypatch.setattr(word2vec, "_train", None)
    np.testing.assert_array_equal(
        learn_word_vectors(tmp_path / "run", corpus, tokenizer, options).vectors, first.vectors
    )
    with pytest.raises(RunFolderError, match="another size"):
        learn_word_vectors(tmp_path / "run", corpus, tokenizer, WordVectorOptions(size=9, epochs=1))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged"),
        (b"two 3\n", "damaged"),
        (b"2 2\na " + bytes(8), "damaged"),
        (b"1 2\na " + bytes(7), "damaged"),
        (b"1 1\na " + np.float32(np.nan).tobytes(), "finite"),
        (b"2 1\na " + bytes(4) + b"a " + bytes(4), "damaged"),
        (b"1 1\na " + bytes(4) + b"more", "damaged"),
        (b"1 1\n\xff " + bytes(4), "damaged"),
        (b"9999999999 9999999999\n", "damaged"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, content, message):
    (tmp_path / "vectors.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        WordVectors.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_no_file_and_no_word(tmp_path):
    with pytest.raises(CheckpointError, match="word-vectors"):
        WordVectors.load(tmp_path)
    vectors = WordVectors(["a", "b"], np.eye(2, dtype=np.float32))
    for call, message in (
        (lambda: vectors.nearest(["c"]), "'c' has no vector"),
        (lambda: vectors.nearest([]), "give a word"),
        (lambda: vectors.nearest(["a"], count=0), "count 0"),
    ):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize(
    "change", [{"method": "glove"}, {"window": 0}, {"epochs": 0}, {"sample": -1.0}, {"learning_rate": 0.0}], ids=str
)
def test_settings_that_cannot_work(change):
    with pytest.raises(ConfigError):
        WordVectorOptions(**change)


def test_the_commands(village, tmp_path, capsys):
    corpus, _ = village
    vocab, out = corpus.folder.parent / "vocab", tmp_path / "out"
    given = ["--corpus", corpus.folder, "--tokenizer", vocab, "--out", out, "--size", 8, "--epochs", 1]
    assert "vectors of 8 numbers" in typed(capsys, "compare", "word-vectors", *given)
    lines = typed(capsys, "compare", "nearest", out, "man", "bread", "--minus", "woman", "--count", "3").splitlines()
    expected = WordVectors.load(out).nearest(["man", "bread"], ["woman"], 3)
    assert lines == [f"{cosine:.4f}\t{word}" for word, cosine in expected]
    assert "'zebra' has no vector" in typed(capsys, "compare", "nearest", out, "zebra", code=2)
