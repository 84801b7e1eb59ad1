"""Tags that keep to their scheme: the best path against every path there is, and seqeval as a judge of the scheme."""

import itertools
import json

import numpy as np
import pytest
import torch
from seqeval.metrics import f1_score
from seqeval.scheme import IOB1, IOB2, IOBES, Entities

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.inference.entities import Entity, best_path, entities_of, is_iob1, transitions_of
from bertsmith.inference.tag import Tag
from bertsmith.model import BertConfig, BertForTokenClassification
from bertsmith.tokenizer import WordPieceTokenizer
from typed_command import typed

BIO = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
BIOES = ["B-X", "I-X", "E-X", "S-X", "O"]
BMES = ["B-X", "M-X", "E-X", "S-X", "B-Y", "M-Y", "E-Y", "S-Y", "O"]
BILOU = ["B-X", "I-X", "L-X", "U-X", "O"]


def test_which_tags_may_follow_which():
    bio = transitions_of(BIO)

    def allowed(*tags):
        return bio.allow([BIO.index(tag) for tag in tags])

    assert allowed("B-PER", "I-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-LOC")
    assert not any(
        allowed(*tags) for tags in (("I-PER",), ("O", "I-PER"), ("B-LOC", "I-PER"), ("B-PER", "I-PER", "I-LOC"))
    )
    bioes = transitions_of(BIOES)
    good = (["S-X", "O"], ["B-X", "I-X", "E-X"], ["B-X", "E-X", "S-X"])
    bad = (["B-X"], ["B-X", "O"], ["I-X", "E-X"], ["E-X"], ["S-X", "I-X"], ["B-X", "B-X", "E-X"])
    assert all(bioes.allow([BIOES.index(tag) for tag in tags]) for tags in good)
    assert not any(bioes.allow([BIOES.index(tag) for tag in tags]) for tags in bad)
    assert transitions_of(["NOUN", "VERB"]) is None


@pytest.mark.parametrize("labels", [BIO, BIOES])
def test_the_best_path_is_the_best_of_all_that_are_allowed(labels):
    rng, transitions = np.random.default_rng(1), transitions_of(labels)
    for length in (0, 1, 2, 4, 5):
        scores = np.log(rng.dirichlet(np.ones(len(labels)), size=length)) if length else np.zeros((0, len(labels)))
        paths = [path for path in itertools.product(range(len(labels)), repeat=length) if transitions.allow(path)]
        expected = max(paths, key=lambda path: sum(scores[place, tag] for place, tag in enumerate(path)))
        assert best_path(scores, transitions) == list(expected)


@pytest.mark.parametrize(
    ("labels", "scheme", "names"),
    [
        (BIO, IOB2, {}),
        (BIO, IOB1, {}),
        (["I-LOC", "I-PER", "B-PER", "O"], IOB1, {}),
        (BIOES, IOBES, {}),
        (BMES, IOBES, {"M": "I"}),
        (BILOU, IOBES, {"L": "E", "U": "S"}),
    ],
    ids=["BIO", "IOB1", "IOB1 by its tags", "BIOES", "BMES", "BILOU"],
)
def test_the_tags_of_every_scheme_are_kept_and_read_as_seqeval_reads_them(labels, scheme, names):
    rng, transitions = np.random.default_rng(len(labels)), transitions_of(labels, iob1=scheme is IOB1)
    assert is_iob1(labels) == (labels[0] == "I-LOC")
    marked = 0
    for length in rng.integers(1, 9, 300):
        path = best_path(np.log(rng.dirichlet(np.ones(len(labels)), size=length)), transitions)
        tags = [labels[place] for place in path]
        assert transitions.allow(path)
        strict = [[names.get(tag[0], tag[0]) + tag[1:] for tag in tags]]
        expected = [(one.tag, one.start, one.end - 1) for one in Entities(strict, scheme=scheme).entities[0]]
        assert [(one.type, one.first, one.last) for one in entities_of(tags)] == expected
        marked += len(expected)
    assert marked > 300


def test_iob1_is_known_by_its_sentences_and_by_its_tags():
    rows = [(("Ann", "met", "Ben", "Cy"), ("I-PER", "O", "I-PER", "B-PER")), (("so",), ("O",))]
    task = TaggingTask.of([TaggedWords(*row) for row in rows], constrained=True)
    assert (task.scheme, task.labels) == ("IOB1", ("B-PER", "I-PER", "O"))
    assert TaggingTask.of([TaggedWords(("Ann", "sang"), ("B-PER", "O"))]).scheme == ""
    # BMES 里断开的 B：后面的 B 另起一个实体，前面的不会消失
    assert entities_of(["B-X", "M-X", "B-X", "E-X"]) == [Entity("X", 0, 1), Entity("X", 2, 3)]


@pytest.fixture
def tagger(tiny_model, tmp_path):
    torch.manual_seed(3)
    config = BertConfig.load(tiny_model).changed(id2label=dict(enumerate(BIO)), initializer_range=0.3)
    BertForTokenClassification(config).save_pretrained(tmp_path / "tagger")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "tagger")
    return tmp_path / "tagger"


def test_a_pipeline_keeps_to_the_scheme_also_over_windows(tagger):
    sentences = [["the", "man", "eats", "bread", "."], ["a", "book"] * 40, [], ["woman"]]
    greedy, constrained = Tag.load(tagger), Tag.load(tagger)
    constrained.constrained = True
    free, kept = greedy.tag_words(sentences), constrained.tag_words(sentences)
    assert [len(tags) for tags in kept] == [len(words) for words in sentences]
    transitions = transitions_of(BIO)
    numbers = [[BIO.index(tag) for tag in tags] for tags in kept]
    assert all(transitions.allow(row) for row in numbers)
    assert not all(transitions.allow([BIO.index(tag) for tag in tags]) for tags in free)
    # 守规矩的标签，seqeval 的严格模式与宽松模式读出的实体相同
    truth = [["B-PER"] + ["O"] * (len(tags) - 1) for tags in kept if tags]
    found = [tags for tags in kept if tags]
    assert f1_score(truth, found) == f1_score(truth, found, mode="strict", scheme=IOB2)
    rows = constrained.score_words(sentences[:1])[0]
    assert all(0 < value <= 1 for value in rows.probabilities)


def test_fine_tuning_and_predicting_with_it(tiny_model, tagger, tmp_path, capsys):
    (tmp_path / "a.conll").write_text("the\tO\nman\tB-PER\neats\tI-PER\n\na\tO\nbook\tO\n\n" * 4)
    files = ["--train", tmp_path / "a.conll", "--dev", tmp_path / "a.conll"]
    words = ["finetune", "tag", "--model", tiny_model, *files, "--out", tmp_path / "run", "--epochs", 1]
    typed(capsys, *words, "--constrained")
    assert json.loads((tmp_path / "run" / "model" / "task.json").read_text())["constrained"] is True
    assert Tag.load(tmp_path / "run" / "model").constrained
    expected = Tag.load(tagger)
    expected.constrained = True
    found = json.loads(typed(capsys, "predict", "the man eats", "--model", tagger, "--constrained", "--json"))[
        "entities"
    ]
    assert [one["text"] for one in found] == [one.text for one in expected(["the man eats"])[0]]


def test_tags_that_have_no_scheme_or_break_it_are_refused():
    both = [TaggedWords(("the", "man"), ("O", "I-PER")), TaggedWords(("a", "b"), ("B-PER", "O"))]
    with pytest.raises(InputError, match=r"sentence 1: its tags .* \(O I-PER\), nor is the file IOB1"):
        TaggingTask.of(both, constrained=True)
    with pytest.raises(ConfigError, match="these tags have no scheme"):
        TaggingTask.of([TaggedWords(("the", "man"), ("DET", "NOUN"))], constrained=True)
