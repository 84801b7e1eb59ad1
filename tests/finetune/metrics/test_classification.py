import warnings

import numpy as np
import pytest
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities
from sklearn import metrics as reference

from bertsmith.finetune.metrics.classification import (
    class_counts,
    class_metrics,
    class_scores,
    confusion_matrix,
    entity_scores,
    label_scores,
    multilabel_metrics,
)
from bertsmith.inference.entities import Entity, entities_of, is_plain, odd_tags

pytestmark = pytest.mark.filterwarnings("error")


def draw_classes(rng, num_labels):
    size = int(rng.integers(1, 40))
    labels = rng.integers(0, num_labels, size)
    return labels.tolist(), np.where(rng.random(size) < 0.5, labels, rng.integers(0, num_labels, size)).tolist()


def test_class_metrics_equal_their_definitions():
    rng = np.random.default_rng(5)
    for _ in range(100):
        labels, predictions = draw_classes(rng, 3)
        pairs = list(zip(labels, predictions, strict=True))
        found = class_metrics(*class_counts(labels, predictions, 3))
        assert found["accuracy"] == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
        for name, scores in enumerate(class_scores(labels, predictions, 3)):
            hits = pairs.count((name, name))
            precision = hits / predictions.count(name) if name in predictions else 0.0
            recall = hits / labels.count(name) if name in labels else 0.0
            f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
            assert (scores.precision, scores.recall, scores.support) == (precision, recall, labels.count(name))
            assert scores.f1 == pytest.approx(f1)
        confusion = confusion_matrix(labels, predictions, 3)
        assert confusion == [[pairs.count((true, guess)) for guess in range(3)] for true in range(3)]
        f1s = [scores.f1 for scores in class_scores(labels, predictions, 3)]
        assert found["macro_f1"] == pytest.approx(np.mean([f1s[name] for name in {*labels, *predictions}]))
        # Matthews (Gorodkin 2004): the correlation of the two sets of indicators, one for each class
        true, guess = (np.eye(3)[column] for column in (labels, predictions))
        spread = [((column - column.mean(0)) ** 2).sum() for column in (true, guess)]
        covariance = ((true - true.mean(0)) * (guess - guess.mean(0))).sum()
        expected = covariance / np.sqrt(spread[0] * spread[1]) if min(spread) > 1e-12 else 0.0
        assert found["matthews"] == pytest.approx(expected, abs=1e-9)
        weights = rng.random(len(labels)).tolist()
        weighed = class_metrics(*class_counts(labels, predictions, 3, weights))
        how = {"sample_weight": weights}
        assert weighed["accuracy"] == pytest.approx(reference.accuracy_score(labels, predictions, **how))
        assert weighed["macro_f1"] == pytest.approx(reference.f1_score(labels, predictions, average="macro", **how))
        if min(spread) > 1e-12:
            assert weighed["matthews"] == pytest.approx(reference.matthews_corrcoef(labels, predictions, **how))


def test_more_classes_than_examples():
    found = class_metrics(*class_counts(list(range(40)), [0] * 40, 40))
    assert found == {"accuracy": 1 / 40, "macro_f1": pytest.approx(2 / 41 / 40), "matthews": 0.0}
    assert confusion_matrix([0, 1], [1, 1], 500) is not None
    assert confusion_matrix([0, 1], [1, 1], 501) is None


def test_matthews_by_hand_and_with_more_examples_than_fit_into_64_bits():
    # TP 3, TN 1, FP 1, FN 1: (3*1 - 1*1) / sqrt(4*4*2*2) = 1/4
    labels, predictions = [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1]
    for often in (1, 50_000):
        found = class_metrics(*class_counts(labels * often, predictions * often, 2))
        assert found["matthews"] == pytest.approx(0.25)
    assert class_metrics(*class_counts([1, 1, 0], [1, 1, 1], 2))["matthews"] == 0.0


def test_multi_label_scores_equal_scikit_learn():
    rng = np.random.default_rng(3)
    for _ in range(100):
        shape = (int(rng.integers(1, 20)), int(rng.integers(2, 6)))
        labels, predictions = rng.random(shape) < 0.3, rng.random(shape) < 0.4
        found = multilabel_metrics(labels, predictions)
        for average, ours in (("micro", found["micro_f1"]), ("macro", found["macro_f1"])):
            expected = reference.f1_score(labels, predictions, average=average, zero_division=0.0)
            assert ours == pytest.approx(expected)
        assert found["exact_match"] == pytest.approx(reference.accuracy_score(labels, predictions))
        rows = reference.precision_recall_fscore_support(labels, predictions, zero_division=0.0)
        assert [s.recall for s in label_scores(labels, predictions)] == pytest.approx(rows[1].tolist())


BIO = ["O", "O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-creative-work", "I-creative-work"]
BIOES = [*BIO, "E-PER", "S-PER", "E-LOC", "S-LOC", "B", "I", "E", "S"]


@pytest.mark.parametrize("names", [BIO, BIOES], ids=["BIO", "BIOES"])
def test_entities_equal_seqeval_on_ten_thousand_sentences(names):
    """Random tags break every rule of their scheme, so the lenient readings are all met."""
    rng = np.random.default_rng(len(names))
    for _ in range(5000):
        tags = [names[i] for i in rng.integers(0, len(names), int(rng.integers(1, 15)))]
        assert [(e.type, e.first, e.last) for e in entities_of(tags)] == get_entities(tags)


@pytest.mark.parametrize("renamed", [{"I": "M"}, {"E": "L", "S": "U"}], ids=["BMES", "BILOU"])
def test_the_letters_of_other_schemes_are_read_as_those_of_bioes(renamed):
    """So what `seqeval` reads of BIOES is read of these, whatever rules the tags break."""
    rng = np.random.default_rng(3)
    # 单独一个 L 也可能是普通标签
    names = [tag for tag in BIOES if "-" in tag or tag == "O"]
    for _ in range(2000):
        tags = [names[i] for i in rng.integers(0, len(names), int(rng.integers(1, 15)))]
        others = [renamed.get(tag[0], tag[0]) + tag[1:] for tag in tags]
        assert [(e.type, e.first, e.last) for e in entities_of(others)] == get_entities(tags)


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
        scores = entity_scores(tags, predictions, plain=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for average, ours in (("micro", scores.overall.f1), ("macro", scores.macro_f1)):
                expected = seqeval.f1_score(tags, predictions, average=average, zero_division=0)
                assert ours == pytest.approx(expected)
            assert scores.overall.precision == pytest.approx(seqeval.precision_score(tags, predictions))
            assert scores.overall.recall == pytest.approx(seqeval.recall_score(tags, predictions))
            assert scores.word_accuracy == pytest.approx(seqeval.accuracy_score(tags, predictions))
            report = seqeval.classification_report(tags, predictions, output_dict=True, zero_division=0)
        for name, row in scores.types.items():
            assert (row.f1, row.support) == pytest.approx((report[name]["f1-score"], report[name]["support"]))


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


def test_one_tag_makes_no_scheme_and_an_odd_one_is_named():
    plain = ["Name", "Phone", "E-mail", "O"]
    assert is_plain([plain])
    assert entities_of(["E-mail", "E-mail", "Name"], plain=True) == [Entity("E-mail", 0, 1), Entity("Name", 2, 2)]
    assert is_plain([["NAME", "SOFTWARE", "B-LOC"]])
    assert is_plain([["E-mail"]])
    assert (odd_tags(plain), odd_tags(["B-LOC", "I-LOC", "PER", "O"])) == ([], ["PER"])
    # 别人的模型里有 X、[CLS] 这样的标签：别的标签仍按方案读，这些按连续的一段读
    assert not is_plain([["B-LOC", "I-LOC", "X", "O"]])
    assert entities_of(["B-LOC", "X", "X", "B-LOC"]) == [Entity("LOC", 0, 0), Entity("X", 1, 2), Entity("LOC", 3, 3)]


def test_parts_of_speech_that_are_letters_are_no_scheme():
    """Italian treebanks tag prepositions `E`, nouns `S`, adverbs `B`."""
    assert is_plain([["A", "B", "E", "RD", "S", "V", "I"]])
    assert not is_plain([["B", "I", "O"], ["O"]])
    assert is_plain([["O", "O"]])
    assert entity_scores([["S", "V"]], [["S", "S"]]).overall.support == 2
