import pytest
import typer
from typer.testing import CliRunner

from bertsmith.cli.options import Command, declares
from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.questions import QUESTIONS
from bertsmith.finetune.datasets.tagged import TAGGED
from bertsmith.finetune.datasets.texts import CHOICES, LABELLED, MULTILABELLED, RANKINGS, SCORED
from bertsmith.settings import built


def test_columns_are_typed_by_name_or_number():
    received = []

    @declares(ReadingOptions)
    def command(**settings):
        received.append(built(ReadingOptions, settings))

    app = typer.Typer()
    app.command("read", cls=Command)(command)
    app.command("other")(lambda: None)
    words = "read --text-column 0 --pair-column=-1 --label-column gold --choice-column 2 --choice-column b --no-header"
    CliRunner().invoke(app, [*words.split(), "--faults", "skip", "--word-column=-2"], catch_exceptions=False)
    expected = ReadingOptions(
        text_column=0,
        pair_column=-1,
        label_column="gold",
        choice_columns=(2, "b"),
        header=False,
        word_column=-2,
        faults="skip",
    )
    assert received == [expected]


@pytest.mark.parametrize(
    ("reader", "name", "value"),
    [
        (LABELLED, "separator", "|"),
        (SCORED, "choice_columns", (1, 2)),
        (RANKINGS, "offsets", "utf16"),
        (CHOICES, "tag_column", 1),
        (TAGGED, "header", False),
        (QUESTIONS, "label_column", 0),
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
