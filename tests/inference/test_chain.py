"""A chain over tags: its features beside strings, its probabilities beside all paths, and its folder."""

import itertools

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import bertsmith
from bertsmith.cli import app
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.finetune.tasks import save_task
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.inference import load_pipeline
from bertsmith.inference.chain import Chain, Steps, chances, looks, words_in
from bertsmith.inference.linear import WORDS_FILE, read_words

SENTENCES = [
    ["The", "man", "reads", "Ada's", "AB-12", "book", "."],
    ["the", "Man", "sang"],
    [],
    ["我们", "İstanbul", "", "readers", "x"],
    ["reads"],
]
LABELS = ("B-PER", "I-PER", "O")


def shape_of(word):
    kinds = ("X" if one.isupper() else "x" if one.islower() else "d" if one.isdigit() else one for one in word)
    return "".join("o" if "\u4e00" <= one <= "\u9fff" else one for one in kinds)


def strings_of(sentence):
    """The features of each word as strings, None where it has none: the order is that of `looks`."""
    given = [word or "\0" for word in sentence]
    plain, shapes = [word.lower() for word in given], [shape_of(word) for word in given]
    short = ["".join(one for one, _ in itertools.groupby(shape)) for shape in shapes]
    found = []
    for place, word in enumerate(plain):

        def at(rows, offset, place=place):
            return rows[place + offset] if 0 <= place + offset < len(rows) else None

        ends = [one[-3:] for one in plain]
        row = [given[place], word, shapes[place], short[place]]
        row += [word[:size] if len(word) >= size else None for size in range(1, 6)]
        row += [word[-size:] if len(word) >= size else None for size in range(1, 6)]
        row += [str(at(rows, offset)) for rows in (plain, short) for offset in (-2, -1, 1, 2)]
        row += [str(at(ends, offset)) for offset in (-1, 1)]
        row += [f"{at(plain, -1)} {word}", f"{word} {at(plain, 1)}", f"{at(plain, -1)} {at(plain, 1)}"]
        row += [f"{at(short, -1)} {short[place]}", f"{short[place]} {at(short, 1)}", f"{at(ends, -1)} {ends[place]}"]
        found.append(row)
    return found


def test_features_are_those_of_strings():
    """Two words have the same number in a column where, and only where, they have the same string."""
    numbers, strings = looks(SENTENCES), [row for sentence in SENTENCES for row in strings_of(sentence)]
    assert numbers.shape == (len(strings), len(strings[0]))
    for column, said in zip(numbers.T.tolist(), zip(*strings, strict=True), strict=True):
        assert [one == -1 for one in column] == [one is None for one in said]
        assert [column.index(one) for one in column] == [said.index(one) for one in said]
    named = {(place, one) for row in strings for place, one in enumerate(row) if one is not None}
    assert len(np.unique(numbers[numbers >= 0])) == len(named)
    assert looks([]).shape[0] == looks([[], []]).shape[0] == 0


def all_paths(scores, transitions):
    """The log normalizer of a sentence, the probabilities of its words' tags, and the expected pairs."""
    size, tags = scores.shape
    totals, words, pairs = [], np.zeros((size, tags)), np.zeros((tags, tags))
    for path in itertools.product(range(tags), repeat=size):
        steps = list(itertools.pairwise(path))
        total = sum(scores[word, tag] for word, tag in enumerate(path)) + sum(transitions[step] for step in steps)
        totals.append(total)
        words[range(size), path] += np.exp(total)
        for step in steps:
            pairs[step] += np.exp(total)
    whole = np.exp(totals).sum()
    return np.log(whole), words / whole, pairs / whole


def test_probabilities_are_those_of_all_paths():
    rng, sizes = np.random.default_rng(0), [3, 0, 1, 5, 3]
    scores, transitions = rng.normal(size=(sum(sizes), 3)), rng.normal(size=(3, 3))
    found = chances(scores, transitions, Steps.of(sizes))
    expected = [all_paths(one, transitions) for one in np.split(scores, np.cumsum(sizes)[:-1]) if len(one)]
    assert found[0] == pytest.approx(sum(one[0] for one in expected))
    np.testing.assert_allclose(found[1], np.concatenate([one[1] for one in expected]))
    np.testing.assert_allclose(found[2], sum(one[2] for one in expected))


def test_a_long_sentence_neither_overflows_nor_vanishes():
    scores = np.tile([900.0, -900.0], (3000, 1))
    normalizer, probabilities, _ = chances(scores, np.array([[-800.0, 5.0], [5.0, -800.0]]), Steps.of([3000]))
    assert np.isfinite(normalizer)
    assert np.isfinite(probabilities).all()
    assert chances(np.zeros((0, 2)), np.zeros((2, 2)), Steps.of([]))[0] == 0


def test_words_of_a_raw_text():
    text = "Hi, don't 我们 go!! x_1 é\u0301"
    assert [text[start:end] for start, end in words_in(text)] == [
        *("Hi", ",", "don", "'", "t", "我", "们", "go", "!", "!", "x_1", "é\u0301"),
    ]
    assert words_in("") == words_in(" \n") == []


def chain_of(mix=(0.0, 1.0, 0.0)):
    """A chain that has seen the first sentence; drawn weights."""
    rng = np.random.default_rng(0)
    seen = looks(SENTENCES[:1])
    features = np.unique(seen[seen >= 0]).astype(np.int32)
    weights = rng.normal(size=(len(features), 3)).astype(np.float32)
    bias, transitions = (rng.normal(size=shape).astype(np.float32) for shape in (3, (3, 3)))
    return Chain(LABELS, features, weights, bias, transitions, mix)


@pytest.fixture
def alone(tmp_path):
    folder = tmp_path / "alone"
    folder.mkdir()
    chain_of().save(folder)
    save_task(TaggingTask(LABELS), folder, 0)
    return folder


def test_a_sentence_has_the_probabilities_of_its_features():
    chain = chain_of()
    expected = []
    for sentence in SENTENCES:
        scores = np.zeros((len(sentence), 3)) + chain.bias
        for word, numbers in enumerate(looks([sentence])):
            for number in numbers:
                scores[word] += chain.weights[chain.features == number].sum(0)
        if sentence:
            expected.append(all_paths(scores, chain.transitions)[1])
    np.testing.assert_allclose(chain.logits(SENTENCES).exp().numpy(), np.concatenate(expected), rtol=1e-4)


def test_a_folder_of_a_chain_alone_is_a_model(alone):
    pipeline = load_pipeline("tag", alone)
    torch.testing.assert_close(pipeline.logits(SENTENCES), chain_of().logits(SENTENCES))
    rows = pipeline.score_words(SENTENCES)
    assert [len(row.tags) for row in rows] == [7, 3, 0, 5, 1]
    best = chain_of().logits(SENTENCES[:1]).argmax(-1).tolist()
    assert list(rows[0].tags) == [LABELS[place] for place in best]
    (entities,) = (pipeline(["The man reads."]),)
    assert all(one.text == "The man reads."[one.start : one.end] for one in entities[0])
    assert CliRunner().invoke(app, ["predict", "The man reads", "--model", str(alone)]).exit_code == 0
    examples = [{"words": ["The", "man"], "tags": ["B-PER", "O"]}] * 10
    assert bertsmith.evaluate(alone, examples).metrics == bertsmith.evaluate(alone, examples, only="words").metrics
    with pytest.raises(ConfigError, match="holds words alone"):
        load_pipeline("tag", alone, only="encoder")
    with pytest.raises(InputError, match="lists of words"):
        pipeline.score_words(["the man"])


def test_a_damaged_file_is_refused(alone):
    chain = chain_of()
    assert read_words(alone, Chain).mix == chain.mix
    Chain(LABELS[:2], chain.features, chain.weights, chain.bias, chain.transitions).save(alone)
    with pytest.raises(CheckpointError, match="do not fit together"):
        load_pipeline("tag", alone)
    (alone / WORDS_FILE).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="damaged"):
        load_pipeline("tag", alone)


def test_tags_besides_o_are_chosen_where_o_is_not_likelier_by_enough(alone):
    pipeline = load_pipeline("tag", alone)
    outputs = torch.tensor([[0.2, 0.1, 0.7], [0.05, 0.05, 0.9]]).log()
    assert [row.tags for row in pipeline.told(outputs, [1, 1])] == [("O",), ("O",)]
    pipeline.outside = 1.5
    told = pipeline.told(outputs, [1, 0, 1])
    assert [row.tags for row in told] == [("B-PER",), (), ("O",)]
    # 概率照旧是原来的：偏移只改判断
    assert told[0].probabilities == pytest.approx([0.2])
    save_task(TaggingTask(LABELS, outside=1.5), alone, 0)
    assert load_pipeline("tag", alone).outside == 1.5


def test_a_server_tags_with_words_alone(alone):
    from fastapi.testclient import TestClient

    from bertsmith.serve.app import build_app
    from bertsmith.serve.settings import served

    with TestClient(build_app(served([f"tags={alone}"], None)), base_url="http://127.0.0.1") as client:
        answer = client.post("/tag", json={"texts": ["The man reads"]})
        assert answer.status_code == 200, answer.text
