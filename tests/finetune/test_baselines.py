import json
import random

import pytest

from bertsmith.errors import RunFolderError
from bertsmith.finetune.baselines import (
    add_baselines,
    baselines_of,
    most_frequent_tags,
    read_baselines,
)
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.tag import TaggingTask

WORDS = ("the", "man", "woman", "reads", "a", "book", ".", "!")


def bags(count, seed):
    """The label is whether `eats` or `bread` is there."""
    draws = random.Random(seed)
    examples = []
    for _ in range(count):
        label = draws.choice(["no", "yes"])
        around = [draws.choice(WORDS) for _ in range(6)]
        around.insert(draws.randrange(7), {"no": "eats", "yes": "bread"}[label])
        examples.append(LabelledText(" ".join(around), None, label))
    return examples


def test_words_learn_a_word_and_the_majority_does_not(tmp_path):
    train, dev, test = (bags(count, seed) for count, seed in ((300, 0), (60, 1), (80, 2)))
    found = add_baselines(tmp_path, ClassificationTask.of(train), train, dev, test)
    assert list(found) == ["majority", "tfidf"]
    commonest = max(("no", "yes"), key=lambda label: sum(example.label == label for example in train))
    share = sum(example.label == commonest for example in test) / len(test)
    assert found["majority"].metrics["accuracy"] == pytest.approx(share)
    assert found["tfidf"].metrics["accuracy"] > 0.97


def test_figures_are_kept_and_only_missing_baselines_trained(tmp_path, monkeypatch):
    files = [bags(40, seed) for seed in range(3)]
    task = ClassificationTask.of(files[0])
    first = add_baselines(tmp_path, task, *files)
    path = tmp_path / "baselines.json"
    kept = json.loads(path.read_text())
    del kept["evaluations"]["majority"]
    # an earlier version wrote the seed, and the figures of networks
    kept |= {"seed": 3, "evaluations": {**kept["evaluations"], "gru": kept["evaluations"]["tfidf"]}}
    path.write_text(json.dumps(kept))
    monkeypatch.setattr("bertsmith.finetune.baselines.train_words", lambda *_: pytest.fail("trained"))
    assert add_baselines(tmp_path, task, *files) == {**first, "gru": first["tfidf"]}
    assert read_baselines(tmp_path).on == "test"
    with pytest.raises(RunFolderError, match="is on test"):
        add_baselines(tmp_path, task, *files[:2], None)
    path.write_text(json.dumps({"on": "test"}))
    with pytest.raises(RunFolderError, match="damaged"):
        read_baselines(tmp_path)


def test_words_get_their_most_frequent_tag(tmp_path):
    train = [
        TaggedWords(("the", "run", "ends"), ("DET", "NOUN", "VERB")),
        TaggedWords(("run", "the", "run"), ("VERB", "DET", "NOUN")),
        TaggedWords(("a", "man"), ("DET", "NOUN")),
    ]
    first, empty = most_frequent_tags(train, [["run", "the", "dog"], []])
    assert (first.tags, empty.tags) == (("NOUN", "DET", "DET"), ())
    assert first.probabilities == pytest.approx((2 / 3, 1.0, 3 / 8))
    evaluation = add_baselines(tmp_path, TaggingTask.of(train), train, train, None)["most frequent tag"]
    assert evaluation.metrics["accuracy"] == 7 / 8
    found = read_baselines(tmp_path)
    assert (found.on, found.evaluations) == ("dev", {"most frequent tag": evaluation})


def test_balanced_words_look_for_the_rare_class():
    """Where nothing can be learned, weights decide: without them the common class alone is predicted."""
    draws = random.Random(0)

    def noise(count):
        labels = ["rare" if number % 10 == 0 else "common" for number in range(count)]
        return [LabelledText(" ".join(draws.choice(WORDS) for _ in range(6)), None, label) for label in labels]

    train, dev = noise(200), noise(100)
    for balanced in (False, True):
        task = ClassificationTask.of(train, balanced=balanced, metric="macro_f1")
        found = baselines_of(task)["tfidf"](train, dev, dev)
        assert (sum(one.label == "rare" for one in found) > 15) == balanced
