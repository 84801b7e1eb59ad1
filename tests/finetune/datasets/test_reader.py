import pytest

from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.questions import QUESTIONS
from bertsmith.finetune.datasets.related import RELATED
from bertsmith.finetune.datasets.tagged import TAGGED
from bertsmith.finetune.datasets.texts import CHOICES, LABELLED, MULTILABELLED, RANKINGS, SCORED


@pytest.mark.parametrize(
    ("reader", "name", "value"),
    [
        (LABELLED, "separator", "|"),
        (SCORED, "choice_columns", (1, 2)),
        (RANKINGS, "offsets", "utf16"),
        (CHOICES, "tag_column", 1),
        (TAGGED, "header", False),
        (QUESTIONS, "label_column", 0),
        (RELATED, "choice_columns", ("a",)),
    ],
)
def test_an_option_that_the_files_have_no_use_for_is_refused(tmp_path, reader, name, value):
    flag = "--choice-column" if name == "choice_columns" else f"--{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=f"{flag} is not for the files of {reader.holds}; leave it out"):
        reader.read(tmp_path / "never.tsv", ReadingOptions(**{name: value}))
    with pytest.raises(ConfigError, match=f"{flag} is not for the files of a task; leave it out"):
        reader.read(tmp_path / "never.tsv", ReadingOptions(**{name: value}), task="a task")


def test_labels_need_something_between_them(tmp_path):
    assert "separator" in MULTILABELLED.options
    with pytest.raises(ConfigError, match="the separator between labels cannot be empty"):
        ReadingOptions(separator="")
