"""The estimators do what scikit-learn asks of estimators, on texts."""

import copy
import io
import json
import pickle
import pickletools
import re

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from bertsmith import load_pipeline
from bertsmith.errors import BertsmithError
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.inference.classify import Prediction
from bertsmith.inference.tag import WordTags
from bertsmith.sklearn import BertClassifier, BertEmbedder, BertRegressor, BertTagger
from bertsmith.tokenizer import WordPieceTokenizer

TEXTS = ["the man reads a book", "the woman eats bread"] * 10
LABELS = ["reads", "eats"] * 10
QUICK = {"n_epochs": 2, "batch_size": 4, "learning_rate": 3e-3, "random_state": 0}


def test_a_classifier_learns_and_gives_the_classes_it_was_given(tiny_model):
    classifier = BertClassifier(str(tiny_model), **{**QUICK, "n_epochs": 6}).fit(TEXTS, LABELS)
    assert classifier.score(TEXTS, LABELS) == 1.0
    assert classifier.classes_.tolist() == ["eats", "reads"]
    found = classifier.predict_proba(np.array(["the man reads", "eats bread"]))
    assert found.shape == (2, 2)
    assert found.sum(1) == pytest.approx(1)
    assert 1 <= classifier.n_iter_ <= 6
    # whole numbers come back as whole numbers, and pairs are columns of a frame
    pairs = pd.DataFrame({"one": TEXTS, "two": TEXTS[::-1]}, index=range(100, 120))
    numbered = BertClassifier(tiny_model, class_weight={7: 2.0}, **QUICK).fit(pairs, pd.Series([7, 3] * 10))
    assert set(numbered.predict(pairs).tolist()) <= {3, 7}
    with pytest.raises(ValueError, match="the model was trained on pairs of texts"):
        numbered.predict(TEXTS)


def test_a_weight_counts_like_as_many_rows(tiny_model, tmp_path):
    """In one batch of all rows a weight of 3 is three equal rows, to rounding; a weight of 0 is a row left out."""
    texts, labels = ["the man reads", "the woman eats", "a book", "bread"], ["x", "y", "y", "x"]
    weights = [3, 1, 2, 0]
    one_batch = {
        **QUICK,
        "n_epochs": 3,
        "batch_size": 100,
        "validation_fraction": 0.0,
        "settings": {"dropout": 0.0, "precision": "float32"},
    }
    for kind, targets in ((BertClassifier, labels), (BertRegressor, [1.0, 2.0, 3.0, 9.0])):
        repeated = [number for number, weight in enumerate(weights) for _ in range(weight)]
        rows = [texts[n] for n in repeated], [targets[n] for n in repeated]
        weighted = kind(tiny_model, **one_batch).fit(texts, targets, sample_weight=weights)
        alike = kind(tiny_model, **one_batch).fit(texts[:3], targets[:3])
        longer = kind(tiny_model, **one_batch).fit(*rows)
        say = "predict_proba" if kind is BertClassifier else "predict"
        found, expected, plain = (getattr(one, say)(texts) for one in (weighted, longer, alike))
        assert np.abs(found - plain).max() > 1e-3
        # a regressor learns from the mean and the spread of its rows, which repeating changes
        if kind is BertClassifier:
            assert found == pytest.approx(expected, abs=1e-4)
    # 长的句子词多，还要切成两段：每个词都按句子的权重算
    words = [["the", "man", "reads"], ["a", "book"] * 20, ["the", "woman"], ["bread"]]
    tags = [["O", "X", "O"], ["O", "Y"] * 20, ["Y", "O"], ["X"]]
    weighted = BertTagger(tiny_model, **one_batch).fit(words, tags, sample_weight=weights)
    longer = BertTagger(tiny_model, **one_batch).fit([words[n] for n in repeated], [tags[n] for n in repeated])
    alike = BertTagger(tiny_model, **one_batch).fit(words[:3], tags[:3])
    found, expected, plain = (one.pipeline_.logits(words) for one in (weighted, longer, alike))
    assert (found - plain).abs().max() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    doubled = BertClassifier(tiny_model, **QUICK).fit(TEXTS, LABELS, sample_weight=np.full(20, 2.0))
    assert np.array_equal(
        doubled.predict_proba(TEXTS), BertClassifier(tiny_model, **QUICK).fit(TEXTS, LABELS).predict_proba(TEXTS)
    )


@pytest.mark.parametrize(
    ("kind", "task", "tags"),
    [
        (BertClassifier, ClassificationTask, None),
        (BertRegressor, RegressionTask, None),
        (BertTagger, TaggingTask, ("N", "V")),
        (BertTagger, TaggingTask, ("B-N", "B-V")),
    ],
)
def test_weights_choose_the_epoch(tiny_model, kind, task, tags, monkeypatch):
    """The epoch that is right where the weight lies is kept, though another one is right more often."""
    targets = [float(n % 2) for n in range(20)]
    rows = (TEXTS, targets) if tags is None else ([["man"]] * 20, [[tags[n % 2]] for n in range(20)])

    def predicts(self, model, tokenizer, examples, inference):
        own = next(turned, ())
        scores = [1 - target if n in own else target for n, target in enumerate(targets)]
        if kind is BertRegressor:
            return scores
        if kind is BertTagger:
            return [WordTags((tags[int(score)],), (1.0,)) for score in scores]
        return [Prediction(str(score), {"0.0": 1 - score, "1.0": score}) for score in scores]

    monkeypatch.setattr(task, "predict", predicts)
    how = QUICK | {"n_epochs": 2, "validation_fraction": 0.0}
    for weights, epoch in (([10.0] * 10 + [0.1] * 10, 2), (None, 1)):
        # 第一轮错在前十行，第二轮错在后十一行
        turned = iter([range(10), range(9, 20)])
        assert kind(tiny_model, **how).fit(*rows, sample_weight=weights).n_iter_ == epoch


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "X has 20 rows; sample_weight has 1"),
        ([[1.0, 2.0]] * 20, "sample_weight: row 0 (from 0) is [1.0, 2.0]"),
        ([1.0, pd.NA, *[2.0] * 18], "sample_weight: row 1 (from 0) is <NA>"),
        ([1.0] * 19 + [-1.0], "sample_weight: row 19 (from 0) is -1.0"),
        ([float("nan")] * 20, "sample_weight: row 0 (from 0) is nan"),
        ([0] * 20, "sample_weight: all are 0"),
        (2.0, "sample_weight: is a float; give a list of numbers"),
        ([], "sample_weight: holds no row"),
    ],
)
def test_weights_that_cannot_be(weights, message, tiny_model):
    for kind in (BertClassifier, BertRegressor, BertTagger):
        rows = (TEXTS, [1, 2] * 10) if kind is not BertTagger else ([["a", "book"]] * 20, [["O", "X"]] * 20)
        with pytest.raises(ValueError, match=re.escape(message)):
            kind(tiny_model, **QUICK).fit(*rows, sample_weight=weights)


def test_a_grid_over_two_rates_runs(tiny_model):
    model = make_pipeline(BertClassifier(str(tiny_model), **{**QUICK, "n_epochs": 6}))
    grid = GridSearchCV(model, {"bertclassifier__learning_rate": [1e-8, 3e-3]}, cv=2).fit(TEXTS, LABELS)
    assert grid.best_params_ == {"bertclassifier__learning_rate": 3e-3}
    assert grid.predict(TEXTS[:2]).tolist() == LABELS[:2]


def test_the_same_seed_gives_the_same_model_and_fits_leave_no_trace(tiny_model):
    model = BertClassifier(str(tiny_model), **QUICK)
    first = model.fit(TEXTS, LABELS).predict_proba(TEXTS)
    assert np.array_equal(clone(model).fit(TEXTS, LABELS).predict_proba(TEXTS), first)
    assert np.array_equal(model.fit(TEXTS, LABELS).predict_proba(TEXTS), first)
    assert model.set_params(n_epochs=1).n_epochs == 1


@pytest.mark.parametrize(("chosen", "rate"), [(None, 3e-4), (2e-5, 2e-5)])
def test_a_small_model_is_fitted_at_a_small_models_rate_unless_told_otherwise(tiny_model, tmp_path, chosen, rate):
    BertClassifier(tiny_model, n_epochs=1, learning_rate=chosen, run_folder=tmp_path / "run").fit(TEXTS, LABELS)
    begun = json.loads((tmp_path / "run" / "finetune.json").read_text(encoding="utf-8"))
    assert begun["settings"]["learning_rate"] == pytest.approx(rate)


def test_a_pickle_holds_the_files_of_a_model_folder(tiny_model):
    model = BertClassifier(str(tiny_model), **QUICK).fit(TEXTS, LABELS)
    written = pickle.dumps(model)
    names = {value for code, value, _ in pickletools.genops(io.BytesIO(written)) if isinstance(value, str)}
    assert {"model.safetensors", "task.json", "vocab.txt"} <= names
    assert not any("torch" in name for name in names)
    assert np.array_equal(pickle.loads(written).predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert np.array_equal(copy.deepcopy(model).predict_proba(TEXTS), model.predict_proba(TEXTS))


@pytest.mark.parametrize(("device", "loaded"), [("cpu", "cpu"), (None, "None"), ("cuda:99", "None")])
def test_a_pickle_is_read_back_onto_its_device_where_there_is_one(tiny_model, monkeypatch, device, loaded):
    written = pickle.dumps(BertClassifier(str(tiny_model), **QUICK).fit(TEXTS, LABELS).set_params(device=device))
    seen = []

    def load(*values, device=None, **how):
        seen.append(str(device))
        return load_pipeline(*values, device=device, **how)

    monkeypatch.setattr("bertsmith.sklearn.base.load_pipeline", load)
    assert pickle.loads(written).device == device
    assert seen == [loaded]


def test_a_live_pipeline_is_a_start_too(tiny_model, tmp_path):
    live = load_pipeline("next-sentence", tiny_model)
    model = BertClassifier(live, **QUICK)
    assert clone(model).model is live
    expected = BertClassifier(str(tiny_model), **QUICK).fit(TEXTS, LABELS).predict_proba(TEXTS)
    assert np.allclose(model.fit(TEXTS, LABELS).predict_proba(TEXTS), expected, atol=1e-6)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.model(["the man"], ["eats"]), live(["the man"], ["eats"]))
    model.save(tmp_path / "saved")
    assert load_pipeline("classify", tmp_path / "saved")(TEXTS[:1])[0].label == "reads"
    with pytest.raises(ValueError, match="is not empty"):
        model.save(tmp_path / "saved")


def test_a_regressor_gives_numbers(tiny_model):
    model = BertRegressor(str(tiny_model), **{**QUICK, "n_epochs": 8}).fit(TEXTS, np.array([100.0, 2.0] * 10))
    assert model.predict(["the man reads a book"])[0] > model.predict(["the woman eats bread"])[0] + 10
    assert len(cross_val_score(clone(model).set_params(n_epochs=1), TEXTS, [100.0, 2.0] * 10, cv=2)) == 2


def test_a_tagger_gives_a_tag_for_each_word(tiny_model):
    words = [["the", "man", "reads"], ["a", "book"]] * 10
    tags = [["O", "B-PER", "O"], ["O", "O"]] * 10
    tagger = BertTagger(str(tiny_model), **{**QUICK, "n_epochs": 6}).fit(words, tags)
    assert tagger.predict(words[:2]) == tags[:2]
    assert tagger.predict([words[0], [], words[1]]) == [tags[0], [], tags[1]]
    assert tagger.predict([[]]) == [[]]
    assert tagger.score(words, tags) == 1.0
    assert pickle.loads(pickle.dumps(tagger)).predict(words[:2]) == tags[:2]
    assert len(cross_val_score(clone(tagger).set_params(n_epochs=1), words, tags, cv=2)) == 2


def test_rows_of_a_list_may_be_arrays_and_numbers_of_numpy(tiny_model):
    weights = [np.float32(2.0), np.int64(1)] * 10
    tuned = BertClassifier(tiny_model, **QUICK).fit(TEXTS, LABELS, sample_weight=weights)
    plain = BertClassifier(tiny_model, **QUICK).fit(TEXTS, LABELS, sample_weight=[2.0, 1.0] * 10)
    assert np.array_equal(tuned.predict_proba(TEXTS), plain.predict_proba(TEXTS))
    pairs = [np.array([text, "the story"]) for text in TEXTS]
    assert set(BertClassifier(tiny_model, **QUICK).fit(pairs, LABELS).predict(pairs)) <= {*LABELS}
    words, tags = [["the", "man", "reads"], ["a", "book"]] * 10, [["O", "B-PER", "O"], ["O", "O"]] * 10
    tagger = BertTagger(tiny_model, **QUICK).fit([np.array(row) for row in words], [np.array(row) for row in tags])
    assert tagger.predict([np.array(row) for row in words[:2]]) == tagger.predict(words[:2])


def test_an_embedder_feeds_a_classifier_of_scikit_learn(tiny_model):
    embedder = BertEmbedder(str(tiny_model), pooling="max", dims=8)
    whole = make_pipeline(embedder, LogisticRegression()).fit(TEXTS, LABELS)
    assert whole.score(TEXTS, LABELS) == 1.0
    assert np.array_equal(pickle.loads(pickle.dumps(whole)).predict_proba(TEXTS), whole.predict_proba(TEXTS))
    vectors = embedder.transform(pd.Series(TEXTS[:3]))
    expected = load_pipeline("embed", tiny_model)(TEXTS[:3], pooling="max", dims=8)
    assert np.array_equal(vectors, expected)
    assert embedder.get_feature_names_out().tolist() == [f"bertembedder{n}" for n in range(8)]
    tuned = BertEmbedder(str(tiny_model), **QUICK).fit(TEXTS, LABELS)
    before, after = (each(TEXTS[:2]) for each in (load_pipeline("embed", tiny_model), tuned.transform))
    assert after[0] @ after[1] < before[0] @ before[1], "texts of two classes have moved apart"


PEOPLE = ("man", "woman", "child", "king", "cook")
SAID = [f"the {who} {does} {what}" for does in ("reads", "eats") for who in PEOPLE for what in ("books", "bread")]


def test_a_pipeline_that_was_pickled_reads_as_much_of_a_text(tiny_model):
    WordPieceTokenizer.load(tiny_model).save(tiny_model, model_max_length=8)
    for name in ("embed", "next-sentence"):
        pickled = pickle.loads(pickle.dumps(BertClassifier(load_pipeline(name, tiny_model))))
        assert pickled.model.max_length == 8
    tuned = BertClassifier(tiny_model, **QUICK, settings={"max_length": 6}).fit(TEXTS, LABELS)
    again = pickle.loads(pickle.dumps(tuned))
    assert tuned.pipeline_.max_length == again.pipeline_.max_length == 6


def test_a_frame_keeps_its_index_whether_fitted_before_or_at_once(tiny_model):
    frame = pd.DataFrame({"text": TEXTS[:4]}, index=[2, 0, 3, 1])
    embedder = BertEmbedder(tiny_model).set_output(transform="pandas")
    pd.testing.assert_frame_equal(embedder.fit_transform(frame), embedder.fit(frame).transform(frame))
    assert embedder.fit_transform(frame).index.tolist() == [2, 0, 3, 1]
    live = BertEmbedder(load_pipeline("embed", tiny_model)).set_output(transform="pandas")
    assert isinstance(clone(live).fit_transform(frame), pd.DataFrame)


def test_the_best_method_is_what_solve_finds(tmp_path):
    """Probabilities stand in the order of `classes_`, which is not that of the folder; a pickle answers as it does."""
    numbers = ["10"] * 10 + ["9"] * 10
    best = BertClassifier(method="best", random_state=0, run_folder=tmp_path / "run").fit(SAID, numbers)
    assert best.classes_.tolist() == ["10", "9"]
    assert best.predict(SAID).tolist() == numbers
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert result["answer"] == "words"
    assert best.evaluation_.metrics["accuracy"] == result["dev"]["metrics"]["accuracy"]
    again = pickle.loads(pickle.dumps(best))
    assert again.predict_proba(SAID) == pytest.approx(best.predict_proba(SAID))
    best.save(tmp_path / "kept")
    assert load_pipeline("classify", tmp_path / "kept")(SAID[:1])[0].label == "10"


def test_the_best_method_takes_what_fine_tuning_takes(tiny_model):
    """Pairs, an empty text, labels with spaces, equal weights, a live pipeline; the rows are not read as a file is."""
    pairs = [[text, "the story" if number % 3 else ""] for number, text in enumerate(SAID)]
    labels = [" a"] * 10 + ["b"] * 10
    weights = [0.0, *[2.0] * 19]
    best = BertClassifier(method="best", random_state=0).fit(pairs, labels, sample_weight=weights)
    assert best.predict(pairs).tolist() == labels
    live = load_pipeline("fill-mask", tiny_model)
    model = BertRegressor(live, method="best", random_state=0, settings={"minutes": 0.2})
    model.fit(SAID, np.linspace(0.5, 9.5, 20))
    assert pickle.loads(pickle.dumps(model)).predict(SAID) == pytest.approx(model.predict(SAID), abs=1e-3)
    with pytest.raises(ValueError, match="a pipeline of words alone"):
        BertClassifier(best.pipeline_, **QUICK).fit(TEXTS, LABELS)


def test_of_many_rows_a_part_chooses_and_a_tag_that_stands_once_is_learned():
    words = [[*text.split(), str(number)] for number, text in enumerate(SAID * 26)]
    tags = [["O", "N", "V", "O", "O"] for _ in words]
    tags[7][0] = "RARE"
    for seed in range(2):
        best = BertTagger(method="best", random_state=seed).fit(words, tags)
        assert best.score(words, tags) > 0.99


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        ("the man", ["a"], "X: is a str; give a list of texts"),
        ([], [], "X: holds no row"),
        (["a", pd.NA], ["x", "y"], "X: row 1 (from 0) has an empty text"),
        (["a", float("nan")], ["x", "y"], "X: row 1 (from 0) has an empty text"),
        (["a", "b"], ["x", pd.NA], "y: row 1 (from 0) is NaN or empty"),
        (["a", None], ["x", "y"], "X: row 1 (from 0) has an empty text"),
        (["a", 3], ["x", "y"], "X: row 1 (from 0): the text is a int, not text"),
        ([["a", "b", "c"]], ["x"], "X: row 0 (from 0) has 3 columns"),
        ([["a", "b"], "c"], ["x", "y"], "some rows are single texts and some are pairs"),
        (["a", "b"], ["x"], "X has 2 rows and y has 1"),
        (["a", "b"], "xy", "y: is a str; give a list of labels"),
        (["a", "b"], None, "requires y to be passed"),
        (["a", "b"], ["x", None], "y: row 1 (from 0) is NaN or empty"),
        (["a", "b"], [0.5, 1.5], "Unknown label type"),
        (["a", "b"], ["x", "x"], "y has one class only (x)"),
    ],
)
def test_wrong_data_is_a_value_error_of_one_line(inputs, labels, message, tiny_model):
    with pytest.raises(ValueError) as caught:
        BertClassifier(str(tiny_model), **QUICK).fit(inputs, labels)
    assert isinstance(caught.value, BertsmithError)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model": "nowhere"}, "nowhere"),
        ({"model": 3}, "model is a int; give a model folder"),
        ({"n_epochs": 0}, "epochs is 0; give at least 1"),
        ({"validation_fraction": 1.0}, "validation_fraction 1.0 is outside [0, 1)"),
        ({"class_weight": "even"}, "a str among {'balanced'} or None. Got 'even' instead"),
        ({"class_weight": {"read": 9.0}}, "The classes, ['eats', 'reads'], are not in class_weight"),
        ({"settings": {"epoch": 3}}, "epoch: there is no such setting; did you mean epochs?"),
        ({"settings": {"epochs": 3}}, "settings: epochs is the parameter n_epochs"),
        ({"settings": {"dropout": 2.0}}, "dropout is 2.0; give at least 0 and at most 0.9"),
        ({"settings": {"adapter": "bottleneck"}}, "makes no model folder"),
        ({"model": None}, "model is a NoneType; give a model folder"),
        ({"method": "worst"}, "method 'worst' is unknown; give 'fine-tune' or 'best'"),
        ({"method": "best"}, "n_epochs: the method 'best' chooses by itself"),
        (
            {"method": "best", "n_epochs": 3, "batch_size": 16, "learning_rate": None, "settings": {"seed": 1}},
            "settings: seed is none of the method 'best'; it takes minutes, hours, text",
        ),
    ],
)
def test_wrong_parameters_are_told_when_fitted(parameters, message, tiny_model):
    model = BertClassifier(**{"model": str(tiny_model), **QUICK, **parameters})
    with pytest.raises(ValueError) as caught:
        model.fit(TEXTS, LABELS)
    assert message in str(caught.value)


def test_vectors_are_not_learned_from_labels_that_are_missing(tiny_model):
    with pytest.raises(ValueError, match=re.escape("y: row 2 (from 0) is NaN or empty")):
        BertEmbedder(tiny_model, n_epochs=1).fit(TEXTS, ["a", "b", None, float("nan")] * 5)


def test_an_embedder_has_no_best_method(tiny_model):
    with pytest.raises(ValueError, match="method 'best': vectors are learned by fine-tuning alone"):
        BertEmbedder(str(tiny_model), method="best").fit(TEXTS)


def test_a_tagger_needs_two_tags(tiny_model):
    with pytest.raises(ValueError, match="y has one class of words only, the tag O; at least two"):
        BertTagger(str(tiny_model), **QUICK).fit([["the", "man"], ["eats"]], [["O", "O"], ["O"]])


def test_nothing_is_predicted_before_fitting(tiny_model):
    for kind, method in ((BertClassifier, "predict"), (BertTagger, "predict"), (BertEmbedder, "transform")):
        with pytest.raises(NotFittedError):
            getattr(kind(str(tiny_model)), method)(TEXTS)


WORDS = ["the", "man", "eats", "bread", "woman", "reads", "a", "book"]


def as_text(rows):
    """Numbers as words, so that the checks of scikit-learn, which know tables of numbers only, can run."""
    values = np.asarray(rows)
    if values.dtype.kind in "OUS" or values.ndim != 2:
        return rows
    ranks = np.clip((values.astype(float) + 4).round(), 0, len(WORDS) - 1).astype(int)
    return [" ".join(WORDS[rank] for rank in row) for row in ranks]


def tags_for(targets, sentences):
    """A number for a row -> that number for each of its words; what is no such list goes on as it is."""
    if targets is None or np.asarray(targets).ndim != 1 or len(targets) != len(sentences):
        return targets
    return [[str(target)] * len(words) for target, words in zip(np.asarray(targets).tolist(), sentences, strict=True)]


class TaggerOfTexts(BertTagger):
    """A tagger that takes texts and a number for each, and gives the number of the first tag."""

    def fit(self, X, y=None):  # noqa: N803
        sentences = words_of(X)
        return super().fit(sentences, tags_for(y, sentences))

    def predict(self, X):  # noqa: N803
        found = super().predict(words_of(X))
        # the score of the tagger asks for tags, the checks for numbers
        return found if isinstance(X[0], list) else np.array([float(tags[0]) for tags in found])

    def score(self, X, y):  # noqa: N803
        sentences = words_of(X)
        return super().score(sentences, tags_for(y, sentences))


def words_of(texts):
    return [text.split() if isinstance(text, str) else text for text in texts] if isinstance(texts, list) else texts


def over_numbers(kind):
    class OverNumbers(kind):
        def __init__(self, model, n_epochs=1, random_state=0):
            kind.__init__(self, model, n_epochs=n_epochs, random_state=random_state)

        if kind in (BertClassifier, BertRegressor):

            def fit(self, X, y=None, sample_weight=None):  # noqa: N803
                return super().fit(as_text(X), y, sample_weight)

        else:

            def fit(self, X, y=None):  # noqa: N803
                return super().fit(as_text(X), y)

        def __sklearn_tags__(self):
            tags = super().__sklearn_tags__()
            tags.input_tags.two_d_array = True
            tags.no_validation = True
            tags.target_tags.required = kind is not BertEmbedder
            if tags.classifier_tags is not None:
                tags.classifier_tags.poor_score = True
            if tags.regressor_tags is not None:
                tags.regressor_tags.poor_score = True
            return tags

    for name in ("predict", "predict_proba", "transform", "score"):
        if hasattr(kind, name):
            setattr(OverNumbers, name, _over(kind, name))
    # a pickle finds the class by its name here
    OverNumbers.__name__ = OverNumbers.__qualname__ = f"{kind.__name__}OverNumbers"
    return OverNumbers


def _over(kind, name):
    def call(self, X, *y):  # noqa: N803
        return getattr(kind, name)(self, as_text(X), *y)

    def call_with_y(self, X, y=None):  # noqa: N803
        return getattr(kind, name)(self, as_text(X), y)

    return call_with_y if name == "score" else call


BertClassifierOverNumbers = over_numbers(BertClassifier)
BertRegressorOverNumbers = over_numbers(BertRegressor)
BertEmbedderOverNumbers = over_numbers(BertEmbedder)
TaggerOfTextsOverNumbers = over_numbers(TaggerOfTexts)


DRAWN = {
    "check_sample_weight_equivalence_on_dense_data": "rows are drawn into batches and held out by their number; see"
    " test_a_weight_counts_like_as_many_rows"
}
EXPECTED = {"check_transformer_general": "texts have no number of columns that could differ between fit and transform"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (BertClassifierOverNumbers, DRAWN),
        (BertRegressorOverNumbers, DRAWN),
        (TaggerOfTextsOverNumbers, {}),
        (BertEmbedderOverNumbers, EXPECTED),
    ],
)
def test_the_checks_of_scikit_learn_pass(kind, expected, tiny_model):
    results = check_estimator(kind(str(tiny_model)), expected_failed_checks=expected, on_fail=None, on_skip=None)
    failed = {one["check_name"]: repr(one["exception"])[:300] for one in results if one["status"] == "failed"}
    assert not failed
    assert {one["check_name"] for one in results if one["status"] == "xfail"} == expected.keys()
    assert sum(one["status"] == "passed" for one in results) > 30


@pytest.mark.parametrize("kind", [BertClassifier, BertRegressor, BertTagger, BertEmbedder])
def test_scikit_learn_accepts_them_as_they_are(kind, tiny_model):
    # of an estimator that takes texts it checks little, and warns of that
    with pytest.warns(SkipTestWarning, match="Can.t test estimator"):
        check_estimator(kind(str(tiny_model)))


@pytest.mark.parametrize("kind", [BertClassifier, BertRegressor, BertTagger, BertEmbedder])
def test_a_sparse_matrix_is_refused_as_one(kind, tiny_model):
    with pytest.raises(ValueError, match="X: is a sparse matrix"):
        kind(str(tiny_model)).fit(csr_matrix([[1.0, 0.0]] * 20), LABELS)


SOME = ["the man reads", "", " ", "a book"] * 4
SOME_WORDS = [["the", "man", "reads"], [], [], ["a", "book"]] * 4


@pytest.mark.parametrize(
    ("kind", "rows", "targets", "say"),
    [
        (BertClassifier, SOME, ["x", "y"] * 8, "predict_proba"),
        (BertRegressor, SOME, [1.0, 2.0] * 8, "predict"),
        (BertEmbedder, SOME, ["x", "y"] * 8, "transform"),
        (BertTagger, SOME_WORDS, [["O", "X", "O"], [], [], ["O", "X"]] * 4, "predict"),
    ],
)
def test_empty_texts_and_generators_are_taken(kind, rows, targets, say, tiny_model):
    how = {"n_epochs": 1, "random_state": 0}
    found = getattr(kind(tiny_model, **how).fit(iter(rows), iter(targets)), say)(iter(rows))
    expected = getattr(kind(tiny_model, **how).fit(rows, targets), say)(rows)
    assert len(found) == len(rows)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_generator_is_read_once(tiny_model):
    embedder = BertEmbedder(tiny_model)
    expected = embedder.fit(SOME).transform(SOME)
    assert np.array_equal(embedder.fit_transform(text for text in SOME), expected)


def test_a_number_that_is_missing_is_told_with_its_row(tiny_model):
    with pytest.raises(ValueError, match=r"y: row 1 \(from 0\) is <NA>; give a finite number"):
        BertRegressor(tiny_model).fit(["a", "b"], [1.0, pd.NA])
