"""The TOML file of a study's tasks."""

import pytest

from bertsmith.errors import InputError
from bertsmith_school.study.tasks import read_tasks, village_tasks

GOOD = '[mood]\ntask = "classify"\ntrain = "a.tsv"\ndev = "a.tsv"\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.tsv").write_text("a fine day\tgood\na bad day\tbad\nmore\tgood\n", encoding="utf-8")
    return tmp_path


def read(folder, text):
    path = folder / "tasks.toml"
    path.write_text(text, encoding="utf-8")
    return read_tasks(path)


def test_every_setting_goes_to_whom_it_belongs(folder):
    (task,) = read(folder, GOOD + "epochs = 7\nbatch_size = 4\nexamples = 2\ntext_column = 0\nlabel_column = 1\n")
    settings = task.tuning(128, "bert", seed=3)
    assert (settings.epochs, settings.batch_size, settings.seed) == (7, 4, 3)
    # 小模型用大学习率：与 bertsmith finetune 的默认相同
    assert settings.learning_rate == pytest.approx(3e-4)
    assert dict(task.reading) == {"text_column": 0, "label_column": (1,)}
    kind, found = task.read()
    assert kind.labels == ("bad", "good")
    assert (len(found["train"]), len(found["dev"])) == (2, 3)
    assert task.describe()["sizes"]["train"] == (folder / "a.tsv").stat().st_size


@pytest.mark.slow
def test_the_village_has_a_task_of_texts_and_one_of_words(tmp_path):
    sentiment, entities = read_tasks(village_tasks(tmp_path, seed=0))
    assert (sentiment.kind, entities.kind) == ("classify", "tag")
    assert len(entities.read()[1]["test"]) == 500
    features, _ = entities.read({"layers": "last", "tagger_head_size": 8})
    assert features.spec.name == "features"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no task"),
        ("= 3", "no usable TOML"),
        ("mood = 3", r"\[mood\]: write a table"),
        (GOOD.replace('"classify"', '"guess"'), r"\[mood\]: .*guess"),
        (GOOD.replace('train = "a.tsv"', ""), "train is missing"),
        (GOOD.replace('dev = "a.tsv"', ""), "too few to hold some out"),
        (GOOD.replace('dev = "a.tsv"', 'dev = "b.tsv"'), "b.tsv"),
        (GOOD + "epoch = 3", "epoch is no setting"),
        (GOOD + "epochs = 0", "epochs"),
        (GOOD + 'epochs = "three"', r"\[mood\]"),
        (GOOD + "examples = -1", "examples -1"),
        (GOOD + "examples = 1", "one class only"),
        (GOOD + "seed = 4", "seed is no setting"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(folder, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(folder, text)
    assert "\n" not in str(caught.value)


def test_no_file_at_all(tmp_path):
    with pytest.raises(InputError, match="no usable TOML"):
        read_tasks(tmp_path / "none.toml")
