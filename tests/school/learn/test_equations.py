"""The equations of the lessons are those of the code that trains, and what a reader writes is compared with it."""

import pytest
import torch

from bertsmith.errors import InputError
from bertsmith_school.learn import COMPUTATIONS, check_equation, compute
from bertsmith_school.learn.equations import EQUATIONS, attention, source_of

WITHOUT = {
    "two_stages": "counts",
    "who_reads_whom": "lays out the mask of both_sides",
    "own_answer": "counts",
    "looking_up": "is the equation of two_tokens, with a name for each number",
    "trained_heads": "looks at the shares of two_heads in a trained model",
    "cls_summary": "is the whole model, with paths cut",
    "published": "the paper's figures",
    "larger_networks": "the paper's figures",
    "paper_ablation": "the paper's figures",
    "ablation": "trains with the equations of the part on pre-training",
    "several_seeds": "trains with the equations of the part on pre-training",
    "swapped_modules": "names classes",
    "roberta_masks": "is the equation of masking, drawn again in every pass",
}
"""Computation → why no equation stands beside it."""


def test_every_computation_has_an_equation_or_a_reason():
    assert sorted([*EQUATIONS, *WITHOUT]) == sorted(COMPUTATIONS)


@pytest.mark.parametrize("id", EQUATIONS)
def test_an_equation_is_that_of_the_package_in_ten_lines(id):
    assert check_equation(id, EQUATIONS[id]) < (0.01 if id == "masking" else 1e-5)
    assert id in COMPUTATIONS
    assert len(source_of(EQUATIONS[id]).splitlines()) <= 12


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (lambda q, k, v: attention(q, k * 2, v), "two_tokens: differs from bertsmith's by up to"),
        (lambda q, k, v: attention(q, k, v)[0], "two_tokens: the result has the shape"),
        (lambda q, k, v: attention(q, k, v) * torch.nan, "two_tokens: differs from bertsmith's by up to nan"),
        (lambda *_: None, "two_tokens: returns NoneType; give 1 tensor"),
    ],
)
def test_what_is_written_wrongly_is_said(written, said):
    with pytest.raises(InputError, match=said):
        check_equation("two_tokens", written)


def test_an_equation_that_is_not_there_is_said():
    with pytest.raises(InputError, match="no equation 'published'"):
        check_equation("published", attention)


def test_hidden_tokens_are_not_read():
    assert compute("both_sides").code == source_of(EQUATIONS["both_sides"])
    query, key, value = torch.randn(3, 4, 8).unbind(0)
    first = EQUATIONS["both_sides"](query, key, value, torch.ones(4, 4).tril())[0]
    assert torch.allclose(first, value[0])


@pytest.mark.parametrize("id", [id for id in EQUATIONS if id != "masking"])
def test_a_result_that_is_slightly_off_is_refused(id):
    with pytest.raises(InputError, match="differs from bertsmith's"):
        check_equation(id, lambda *given: EQUATIONS[id](*given) * 1.01)
