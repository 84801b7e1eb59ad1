import json
import random

import pytest
import torch

from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.finetune.baselines import (
    BASELINES,
    Files,
    add_baselines,
    most_frequent_tags,
    read_baselines,
    run_baselines,
)
from bertsmith.finetune.baselines.neural import NEURAL_BASELINES, PieceTable, TextClassifier
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.tag import TaggingTask

WORDS = ("the", "man", "woman", "reads", "a", "book", ".", "!")


def bags(count, seed, *, ordered):
    """The label is whether `eats` or `bread` is there; or, with the same words in every text, which comes first."""
    draws = random.Random(seed)
    examples = []
    for _ in range(count):
        label = draws.choice(["no", "yes"])
        marks = ["eats", "bread"] if ordered else [{"no": "eats", "yes": "bread"}[label]]
        if ordered and label == "no":
            marks.reverse()
        around = [draws.choice(WORDS) for _ in range(6)]
        place = draws.randrange(7)
        examples.append(LabelledText(" ".join([*around[:place], *marks, *around[place:]]), None, label))
    return examples


def scores_of(train, dev, test, folder, names=BASELINES, seed=0, **options):
    files = Files(ClassificationTask.of(train, **options), train, dev, test)
    return dict(run_baselines(files, folder, names, seed=seed))


def accuracies(evaluations):
    return {name: evaluation.metrics["accuracy"] for name, evaluation in evaluations.items()}


def test_all_baselines_learn_a_word_and_the_majority_does_not(tiny_model):
    train, dev, test = (bags(count, seed, ordered=False) for count, seed in ((300, 0), (60, 1), (80, 2)))
    found = accuracies(scores_of(train, dev, test, tiny_model))
    assert list(found) == list(BASELINES)
    commonest = max(("no", "yes"), key=lambda label: sum(example.label == label for example in train))
    assert found.pop("majority") == pytest.approx(sum(example.label == commonest for example in test) / len(test))
    assert min(found.values()) > 0.97


def test_order_is_learned_by_windows_and_recurrence_but_not_by_a_bag(tiny_model):
    train, dev, test = (bags(count, seed, ordered=True) for count, seed in ((400, 0), (100, 1), (200, 2)))
    found = accuracies(scores_of(train, dev, test, tiny_model, [*NEURAL_BASELINES]))
    assert found["mean-pool"] < 0.65
    assert found["textcnn"] > 0.97
    assert min(found["bilstm"], found["gru"]) > 0.9


def pairs(count, seed):
    """The label is whether the second text has the same words as the first."""
    draws = random.Random(seed)
    examples = []
    for _ in range(count):
        first, other = draws.sample([["the", "man"], ["a", "book"], ["woman", "reads"], ["bread", "!"]], 2)
        label = draws.choice(["different", "same"])
        second = first if label == "same" else other
        examples.append(LabelledText(" ".join(first), " ".join(reversed(second)), label))
    return examples


def test_pairs_are_compared(tiny_model):
    train, dev, test = (pairs(count, seed) for count, seed in ((300, 0), (60, 1), (80, 2)))
    found = accuracies(scores_of(train, dev, test, tiny_model, ["tfidf", "mean-pool"]))
    assert min(found.values()) > 0.97


def test_the_same_seed_gives_the_same_figures_and_leaves_other_draws_alone(tiny_model):
    files = [bags(60, seed, ordered=True) for seed in range(3)]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = scores_of(*files, tiny_model, [*NEURAL_BASELINES], 1)  # type: ignore[call-arg]
    assert torch.equal(torch.rand(3), expected)
    assert scores_of(*files, tiny_model, [*reversed(NEURAL_BASELINES)], 1) == first  # type: ignore[call-arg]


@pytest.mark.parametrize("name", list(NEURAL_BASELINES))
def test_what_else_is_in_a_batch_changes_nothing(name):
    torch.manual_seed(0)
    short, long = [([3, 4],)], [([5, 6, 7, 8, 3, 4, 9, 5],)]
    table = PieceTable(torch.randn(10, 16), [*short, *long])
    model = TextClassifier(name, table, 3, paired=False).eval()
    alone = model(table.rows(short))
    together = model(table.rows([*short, *long]))
    torch.testing.assert_close(together[:1], alone)


def test_pieces_of_the_model_keep_their_directions():
    embeddings = torch.randn(20, 8) * 0.04
    table = PieceTable(embeddings, [([7, 3],), ([3],)])
    assert table.rows([([3, 7],)]) == [([1, 2],)]
    cosine = torch.nn.functional.cosine_similarity(table.weights[1:], embeddings[[3, 7]])
    torch.testing.assert_close(cosine, torch.ones(2))


def test_figures_are_kept_and_only_missing_baselines_trained(tiny_model, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    files = [bags(40, seed, ordered=False) for seed in range(3)]
    compared = {"model_folder": tiny_model, "names": ["majority"]}
    task = ClassificationTask.of(files[0])
    first = add_baselines(run, task, *files, **compared)
    monkeypatch.setattr("bertsmith.finetune.baselines.train_neural_baseline", lambda *_, **__: pytest.fail("trained"))
    both = add_baselines(run, task, *files, **compared | {"names": ["majority", "tfidf"]})
    assert list(both) == ["majority", "tfidf"]
    assert both["majority"] == first["majority"]
    found = read_baselines(run)
    assert (found.on, found.evaluations) == ("test", both)
    with pytest.raises(RunFolderError, match="is of seed 0 on test"):
        add_baselines(run, task, *files, **compared, seed=1)
    (run / "baselines.json").write_text(json.dumps({"on": "test"}))
    with pytest.raises(RunFolderError, match="damaged"):
        read_baselines(run)


def test_words_get_their_most_frequent_tag(tmp_path):
    train = [
        TaggedWords(("the", "run", "ends"), ("DET", "NOUN", "VERB")),
        TaggedWords(("run", "the", "run"), ("VERB", "DET", "NOUN")),
        TaggedWords(("a", "man"), ("DET", "NOUN")),
    ]
    first, empty = most_frequent_tags(train, [["run", "the", "dog"], []])
    assert (first.tags, empty.tags) == (("NOUN", "DET", "DET"), ())
    assert first.probabilities == pytest.approx((2 / 3, 1.0, 3 / 8))
    evaluation = add_baselines(tmp_path, TaggingTask.of(train), train, train, None, model_folder="")[
        "most frequent tag"
    ]
    assert evaluation.metrics["accuracy"] == 7 / 8
    found = read_baselines(tmp_path)
    assert (found.on, found.evaluations) == ("dev", {"most frequent tag": evaluation})


def test_what_cannot_be_is_said(tiny_model):
    examples = bags(20, 0, ordered=False)
    with pytest.raises(ConfigError, match="'bert' is unknown; use some of majority"):
        scores_of(examples, examples, None, tiny_model, ["bert"])
    with pytest.raises(InputError, match="label 'odd' does not occur"):
        scores_of(examples, [LabelledText("the man", None, "odd")], None, tiny_model, ["majority"])
    with pytest.raises(InputError, match="a pair of texts"):
        scores_of(examples, [LabelledText("the man", "a", "yes")], None, tiny_model, ["majority"])
    with pytest.raises(InputError, match="at least one example"):
        scores_of(examples, examples, [], tiny_model, ["majority"])


def test_texts_without_a_word_are_told_apart_by_their_characters(tiny_model):
    silent = [LabelledText("!! !", None, "yes"), LabelledText("?? ?", None, "no")] * 5
    assert scores_of(silent, silent, None, tiny_model, ["tfidf"])["tfidf"].metrics["accuracy"] == 1.0


def test_balanced_baselines_look_for_the_rare_class(tiny_model, monkeypatch):
    """Where nothing can be learned, weights decide: without them the common class alone is predicted."""
    draws = random.Random(0)

    def noise(count):
        labels = ["rare" if number % 10 == 0 else "common" for number in range(count)]
        return [LabelledText(" ".join(draws.choice(WORDS) for _ in range(6)), None, label) for label in labels]

    train, dev = noise(200), noise(100)
    original, seen = torch.nn.functional.cross_entropy, []

    def weighed(logits, labels, weight=None):
        seen.append(weight)
        return original(logits, labels, weight)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", weighed)
    for balanced in (False, True):
        seen.clear()
        names = ["tfidf", "mean-pool"]
        found = scores_of(train, dev, None, tiny_model, names, balanced=balanced, metric="macro_f1")
        assert (sum(row[1] for row in found["tfidf"].confusion) > 15) == balanced
        # 200 texts, 180 of them common: 200 / (2 * 180) and 200 / (2 * 20)
        expected = pytest.approx([0.5556, 5.0], abs=1e-4) if balanced else None
        assert all((weight if weight is None else weight.tolist()) == expected for weight in seen)
        assert seen
