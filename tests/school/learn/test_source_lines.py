"""Lines that a lesson shows: they stand in the file under the number that is printed, and are those that differ."""

from pathlib import Path

import pytest

import bertsmith
from bertsmith.model.attention import MultiHeadSelfAttention
from bertsmith.model.families import albert, bert, distilbert, electra, modernbert, roberta
from bertsmith_school.learn.source_lines import (
    code_lines,
    differing_lines,
    differing_settings,
    lines_naming,
    whole_body,
)

PACKAGE = Path(bertsmith.__file__).parents[1]

SWAPPED = [
    (bert.BertEmbedding.forward, roberta.RobertaEmbedding.forward),
    (bert.BertEmbedding.forward, distilbert.DistilBertEmbedding.forward),
    (bert.BertEmbedding.forward, albert.FactorisedEmbedding.forward),
    (bert.BertEncoder.__init__, albert.SharedEncoder.__init__),
    (bert.BertModel.__init__, electra.ElectraModel.__init__),
    (bert.TransformerBlock.__init__, modernbert.ModernBertBlock.__init__),
    (bert.TransformerBlock.forward, modernbert.ModernBertBlock.forward),
]


class Plain:
    def forward(self, x):
        """Adds.

        x: a number.
        """
        # why
        first = x + 1  # a remark
        second: int = first * 2
        return second

    def backward(self, x):
        return x


class Swapped(Plain):
    def forward(self, x):
        first = x + 1
        for _ in range(2):
            first += 1
        second = first * 2
        return second  # noqa: RET504


class Extended(Plain):
    def forward(self, x):
        return 3 * super().forward(x)


class Stranger:
    def forward(self, x):
        return super().forward(x)


def shown(step):
    return [(row[0], row[-1]) for row in step.cells()]


def test_what_is_the_same_but_for_remarks_and_annotations_is_not_shown():
    step = differing_lines(Plain.forward, Swapped.forward, "en")
    assert shown(step) == [("+", "for _ in range(2):"), ("+", "    first += 1")]
    assert step.label == "Plain.forward → Swapped.forward"


def test_lines_that_still_run_through_super_are_not_called_gone():
    assert shown(differing_lines(Plain.forward, Extended.forward, "en")) == [("+", "return 3 * super().forward(x)")]
    # the super() of a class that is no Plain runs something else
    assert ("-", "return second") in shown(differing_lines(Plain.forward, Stranger.forward, "en"))


def test_code_is_without_docstring_and_comments():
    assert [line.code.strip() for line in code_lines(Plain.forward)] == [
        "first = x + 1  # a remark",
        "second: int = first * 2",
        "return second",
    ]
    assert shown(lines_naming(Plain.forward, "first", "en"))[0][1] == "first = x + 1  # a remark"
    assert shown(whole_body(Plain.backward, "en"))[0][1] == "return x"


@pytest.mark.parametrize(("theirs", "ours"), SWAPPED, ids=lambda method: method.__qualname__)
def test_every_line_stands_in_its_file_under_its_number(theirs, ours):
    step = differing_lines(theirs, ours, "en")
    files = dict(zip("-+", step.note.split(" → ") * 2, strict=False)) if " → " in step.note else {}
    assert step.cells()
    for sign, number, code in step.cells():
        text = (PACKAGE / files.get(sign, step.note)).read_text(encoding="utf-8").splitlines()
        assert text[int(number) - 1].strip() == code.strip()


def test_the_lines_of_attention_that_only_modernbert_reaches():
    codes = [code for _, code in lines_naming(MultiHeadSelfAttention.forward, "rotary_base", "en").cells()]
    assert any("rotated(" in code for code in codes)
    assert all("rotary_base" in code for code in codes)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("roberta", {"max_position_embeddings": ("512", "514"), "pad_token_id": ("0", "1")}),
        ("distilbert", {"num_hidden_layers": ("12", "6"), "type_vocab_size": ("2", "–")}),
        ("albert", {"objective": ("mlm+nsp", "mlm+sop"), "vocab_size": ("30522", "30000")}),
        ("electra", {"objective": ("mlm+nsp", "rtd")}),
        ("modernbert", {"max_position_embeddings": ("512", "8192"), "num_hidden_layers": ("12", "22")}),
    ],
)
def test_settings_as_published(family, expected):
    rows = {name: (theirs, ours) for name, theirs, ours in differing_settings(family, "en").cells()}
    assert {name: rows.get(name) for name in expected} == expected
    assert all(theirs != ours for theirs, ours in rows.values())
    assert "hidden_size" not in rows
