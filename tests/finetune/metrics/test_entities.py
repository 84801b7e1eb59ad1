import warnings

import numpy as np
import pytest
from seqeval import metrics as reference
from seqeval.metrics.sequence_labeling import get_entities

from bertsmith.finetune.metrics.bootstrap import bootstrap_interval, f1_of_means
from bertsmith.finetune.metrics.entities import entity_counts, entity_scores
from bertsmith.inference.entities import Entity, entities_of, is_plain

BIO = ["O", "O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-creative-work", "I-creative-work"]
BIOES = [*BIO, "E-PER", "S-PER", "E-LOC", "S-LOC", "B", "I", "E", "S"]


@pytest.mark.parametrize("names", [BIO, BIOES], ids=["BIO", "BIOES"])
def test_entities_equal_seqeval_on_ten_thousand_sentences(names):
    """Random tags break every rule of their scheme, so the lenient readings are all met."""
    rng = np.random.default_rng(len(names))
    for _ in range(5000):
        tags = [names[i] for i in rng.integers(0, len(names), int(rng.integers(1, 15)))]
        assert [(e.type, e.first, e.last) for e in entities_of(tags)] == get_entities(tags)


@pytest.mark.parametrize("names", [BIO, BIOES], ids=["BIO", "BIOES"])
def test_scores_equal_seqeval(names):
    rng = np.random.default_rng(len(names) + 1)
    for _ in range(150):
        tags, predictions = [], []
        for length in rng.integers(1, 15, int(rng.integers(1, 6))):
            sentence = [names[i] for i in rng.integers(0, len(names), length)]
            tags.append(sentence)
            predictions.append([t if rng.random() < 0.8 else names[rng.integers(0, len(names))] for t in sentence])
        if is_plain(tags) and is_plain(predictions):
            continue
        scores = entity_scores(tags, predictions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for average, ours in (("micro", scores.overall.f1), ("macro", scores.macro_f1)):
                expected = reference.f1_score(tags, predictions, average=average, zero_division=0)
                assert ours == pytest.approx(expected)
            assert scores.overall.precision == pytest.approx(reference.precision_score(tags, predictions))
            assert scores.overall.recall == pytest.approx(reference.recall_score(tags, predictions))
            assert scores.word_accuracy == pytest.approx(reference.accuracy_score(tags, predictions))
            report = reference.classification_report(tags, predictions, output_dict=True, zero_division=0)
        for name, row in scores.types.items():
            assert (row.f1, row.support) == pytest.approx((report[name]["f1-score"], report[name]["support"]))


def test_a_published_example():
    """The example in the documentation of seqeval: one of two entities found."""
    tags = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predictions = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    scores = entity_scores(tags, predictions)
    assert scores.overall.f1 == 0.5
    assert scores.types["PER"].f1 == 1.0
    assert scores.types["MISC"].f1 == 0.0
    assert entity_counts(tags, predictions).tolist() == [[0, 1, 1], [1, 1, 1]]
    assert bootstrap_interval(entity_counts(tags, predictions), f1_of_means).estimate == 0.5


def test_tags_without_prefix_are_runs():
    """Also `ORG`, which begins with the letter of `O`."""
    assert entities_of(["ORG", "ORG", "O", "PER", "LOC"], plain=True) == [
        Entity("ORG", 0, 1),
        Entity("PER", 3, 3),
        Entity("LOC", 4, 4),
    ]
    scores = entity_scores([["ORG", "ORG", "O", "PER"]], [["ORG", "O", "O", "PER"]])
    assert (scores.overall.precision, scores.overall.recall, scores.word_accuracy) == (0.5, 0.5, 0.75)


def test_a_model_that_predicts_nothing_scores_zero():
    scores = entity_scores([["B-PER", "O"]], [["O", "O"]])
    assert (scores.overall.precision, scores.overall.recall, scores.overall.f1, scores.overall.support) == (0, 0, 0, 1)
    empty = entity_scores([["O", "O"]], [["O", "O"]])
    assert (empty.overall.f1, empty.macro_f1, empty.types, empty.word_accuracy) == (0.0, 0.0, {}, 1.0)


def test_last_and_only_words_may_be_called_so_and_underscores_do_as_well():
    """BILOU is BIOES in other letters (Ratinov and Roth 2009)."""
    bioes = ["S-PER", "S-PER", "O", "B-LOC", "I-LOC", "E-LOC", "B-LOC", "E-LOC", "O"]
    bilou = [tag.replace("S-", "U-").replace("E-", "L-") for tag in bioes]
    for tags in (bilou, [tag.replace("-", "_") for tag in bioes], [tag.replace("-", "_") for tag in bilou]):
        assert not is_plain([tags])
        assert entities_of(tags) == entities_of(bioes)
        assert set(entity_scores([tags], [tags]).types) == {"LOC", "PER"}
    # types keep their own underscores
    assert entities_of(["B_work_of_art", "I_work_of_art"]) == [Entity("work_of_art", 0, 1)]


def test_parts_of_speech_with_underscores_are_no_scheme():
    assert is_plain([["U_x", "S_bar", "O"]])
    assert is_plain([["B_x", "I_x", "NOUN"]])
    assert is_plain([["LOC", "U-turn", "O"]])


def test_parts_of_speech_that_are_letters_are_no_scheme():
    """Italian treebanks tag prepositions `E`, nouns `S`, adverbs `B`."""
    assert is_plain([["A", "B", "E", "RD", "S", "V", "I"]])
    assert not is_plain([["B", "I", "O"], ["O"]])
    assert is_plain([["O", "O"]])
    assert entity_scores([["S", "V"]], [["S", "S"]]).overall.support == 2
