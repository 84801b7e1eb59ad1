"""The numbers of the lesson on families: by published counts, closed forms, torch's own layers, and by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.model import BertForPreTraining, ModelForMaskedLM, ModelForPreTraining
from bertsmith.model.family import families
from bertsmith_school.learn import COMPUTATIONS, Study, compute
from bertsmith_school.learn.computations.families import as_modernbert
from bertsmith_school.learn.computations.reading import bert_block
from bertsmith_school.learn.minibert import simple_sentences


@pytest.fixture(scope="module")
def study():
    return Study.village()


@pytest.fixture(scope="module")
def fresh(study):
    """The same shape with fresh weights, whose norms have no gain and no bias yet."""
    torch.manual_seed(0)
    return Study(BertForPreTraining(study.model.config.changed(initializer_range=0.1)).eval(), study.tokenizer)


def test_new_masks_ask_for_more_than_one_mask_does(study):
    found = compute("roberta_masks", study=study)
    rows = found.steps[-1].value
    assert [row[0] for row in rows] == list(range(1, 11))
    assert {row[2] for row in rows} == {found.values["chosen"]} == {3}
    together = [row[3] for row in rows]
    assert together == sorted(together)
    assert 3 < together[-1] <= found.values["pieces"] - 2
    # with p = 3/17 a piece is missed ten times in a row by (1 - p)^10: two or three of seventeen
    chances = [compute("roberta_masks", study=study, seed=seed).values["together"] for seed in range(20)]
    assert np.mean(chances) == pytest.approx(17 * (1 - (14 / 17) ** 10), abs=1)


def test_robertas_first_token_takes_the_row_after_the_paddings(study):
    rows = compute("roberta_masks", study=study, text="the man reads").steps[2].value
    assert [row[1:] for row in rows] == [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6)]


def test_distilberts_count_is_the_published_one():
    found = compute("distilbert_layers", size="base").values
    assert (found["bert"], found["own"]) == (109_482_240, 66_362_880)
    assert (found["whole"], found["layers"], found["work"]) == (12, 6, 0.5)


def test_alberts_count_is_the_published_one():
    found = compute("albert_sharing", size="base").values
    assert found["own"] == 11_683_584
    assert found["words"] == 30000 * 768
    assert found["factored"] == 30000 * 128 + 128 * 768 + 768
    # 12 blocks of 4 H² + 8 H² weights, and here a matrix from E to H before them
    assert found["work"] == pytest.approx(1 + 128 * 768 / (12 * 12 * 768**2))


def test_alberts_count_with_another_vocabulary():
    few, many = (compute("albert_sharing", size="mini", vocab_size=size).values["own"] for size in (1000, 2000))
    assert many - few == 1000 * 128


@pytest.mark.parametrize("seed", [0, 1])
def test_replaced_words_are_counted_by_comparing_sentences(seed):
    found = compute("electra_replaced", seed=seed)
    sentences, values = set(simple_sentences()), found.values
    assert values["words"] == sum(len(one.split()) for one in simple_sentences())
    # fifteen hundredths of five words, and of three, are less than one: one is hidden
    assert values["asked"] == values["sentences"] == len(simple_sentences())
    assert values["guessed"] + values["replaced"] == values["asked"]
    assert 0 < values["replaced"] < values["asked"]
    for gaps, _, read, marks in found.steps[3].value:
        (gap,) = (place for place, word in enumerate(gaps.split()) if word == "[MASK]")
        match = [word == other for word, other in zip(gaps.split(), read.split(), strict=True)]
        assert match.count(False) == 1
        assert not match[gap]
        assert [place for place, mark in enumerate(marks.split()) if mark == "✗"] in ([], [gap])
        if "✗" not in marks:
            assert read in sentences


def test_a_generator_draws_by_its_probabilities():
    from bertsmith_school.learn.computations.families import _drawn

    filled = {"reads": 0.6, "eats": 0.3, "near": 0.1}
    draws = [_drawn(filled, draw) for draw in (np.arange(1000) + 0.5) / 1000]
    assert [draws.count(word) for word in filled] == [600, 300, 100]


def test_modernberts_block_by_torchs_functions(study):
    """Pre-norm, turned queries and keys, GeGLU, over BERT's own matrices."""
    found = compute("modernbert_block", study=study, text="the man reads the book", place=3)
    block, ids = bert_block(study), study.tokenizer("the man reads the book")["input_ids"]
    with torch.inference_mode():
        x = study.model.backbone.embedding(RaggedBatch.from_sequences([ids]))
        size, (length, width) = block.attention.head_size, x.shape
        n = F.layer_norm(x, (width,), block.attention_norm.weight, block.attention_norm.bias, 1e-12)
        q, k, v = block.attention.qkv(n).view(length, 3, -1, size).permute(1, 2, 0, 3)
        angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, size, 2) / size)
        turn = torch.polar(torch.ones_like(angles), angles)
        q, k = (torch.complex(*each.chunk(2, -1)) * turn for each in (q, k))
        scores = (q @ k.conj().transpose(1, 2)).real / math.sqrt(size)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1)
        y = x + block.attention.output(mixed)
        m = F.layer_norm(y, (width,), block.output_norm.weight, block.output_norm.bias, 1e-12)
        up = as_modernbert(block, study).intermediate
        first, gate = F.linear(m, up.weight, up.bias).chunk(2, -1)
        expected = (y + block.output(F.gelu(first) * gate))[3]
    np.testing.assert_allclose(found.values["output"], expected.numpy(), atol=2e-4)
    torch.testing.assert_close(up.weight[: len(block.intermediate.weight)], block.intermediate.weight)


def test_both_tables_of_a_block_begin_with_the_same_state_and_berts_ends_normed(fresh):
    found = compute("modernbert_block", study=fresh)
    theirs, ours = (step.value for step in found.steps if step.label in ("BERT", "ModernBERT"))
    assert theirs[0] == ours[0]
    assert theirs[-1][-1] == pytest.approx(math.sqrt(128), rel=1e-4)
    assert found.values["own_length"] > theirs[-1][-1]


def test_the_gradient_at_the_top_is_one_and_states_of_a_post_norm_keep_their_length(fresh):
    rows = compute("modernbert_block", study=fresh).steps[-1].value
    assert [row[0] for row in rows] == [0, 3, 6, 9, 12]
    assert (rows[-1][2], rows[-1][4]) == (1.0, 1.0)
    assert [row[1] for row in rows] == pytest.approx([math.sqrt(128)] * 5, rel=1e-3)
    lengths = [row[3] for row in rows]
    assert lengths == sorted(lengths)


def test_a_score_of_turned_vectors_by_complex_numbers():
    query, key = [1.0, 2.0, 0.5, -1.0], [0.3, -2.0, 1.0, 4.0]
    values = compute("rotary_shift", query=query, key=key, first=11, second=4, shift=100, base=50).values
    pairs = zip(zip(query[:2], query[2:], strict=True), zip(key[:2], key[2:], strict=True), (1, 50**-0.5), strict=True)
    expected = sum(
        (complex(*q) * np.exp(1j * 11 * speed) * (complex(*k) * np.exp(1j * 4 * speed)).conjugate()).real
        for q, k, speed in pairs
    )
    assert values["scores"] == pytest.approx([expected] * 4, abs=1e-4)
    assert (values["apart"], values["moved"]) == (7, 300)
    assert abs(values["table"] - values["table_last"]) > 0.01


def test_a_query_and_a_key_at_one_place_are_not_turned_against_each_other():
    values = compute("rotary_shift", first=9, second=9).values
    assert values["turned"] == pytest.approx(values["unmoved"], abs=1e-5)


@pytest.mark.parametrize(("window", "layers", "every"), [(64, 22, 3), (1, 4, 1), (300, 7, 10)])
def test_pairs_in_a_window_by_counting_them(window, layers, every):
    found = compute("local_window", window=window, layers=layers, every=every)
    whole = len(range(0, layers, every))
    for length, full, near, _, share in found.steps[-1].value[:2]:
        places = np.arange(length)
        counted = int((np.abs(places[:, None] - places) <= window).sum())
        assert (full, near) == (length**2, counted)
        assert share == f"{(whole * full + (layers - whole) * near) / (layers * full):.1%}"
    assert found.values["whole"] == whole
    assert found.values["full"] == 8192**2


def test_the_picture_of_a_window():
    rows = [line for (line,) in compute("local_window").steps[2].value]
    assert rows[0].split() == ["■"] * 3 + ["·"] * 9
    assert rows[5].split() == ["·"] * 3 + ["■"] * 5 + ["·"] * 4


@pytest.mark.parametrize(
    ("id", "inputs", "message"),
    [
        ("rotary_shift", {"query": [1, 2, 3]}, "query has 3 numbers and key 4"),
        ("rotary_shift", {"query": [1], "key": [1]}, "even number"),
        ("rotary_shift", {"query": [math.nan, 1]}, "all finite"),
        ("rotary_shift", {"first": 10**6}, "whole number from 0"),
        ("local_window", {"window": 0}, "whole number from 1"),
        ("albert_sharing", {"vocab_size": 0}, "from 1 to"),
        ("electra_replaced", {"seed": -1}, "from 0 to"),
        ("modernbert_block", {"place": 60}, "tokens 0 to"),
        ("distilbert_layers", {"size": "huge"}, "use one of tiny"),
    ],
)
def test_inputs_that_are_not_possible(id, inputs, message):
    with pytest.raises(InputError, match=message):
        compute(id, **inputs)


PAIRS = {"nsp_loss", "one_example", "choose_ending"}

CANNOT = {
    "distilbert": {"input_sum", *PAIRS},
    "modernbert": {"input_sum", *PAIRS, "first_block", "modernbert_block"},
    "bert": set(),
}
"""What a model of a family cannot compute; of the others it is what asks for the next sentence."""


@pytest.mark.parametrize("name", families())
def test_lessons_compute_on_a_model_of_any_family(name, tmp_path, study):
    """What cannot be computed says why in a line; all else runs."""
    family, tokenizer = families()[name], study.tokenizer
    torch.manual_seed(0)
    config = family.config.named("1/64", vocab_size=tokenizer.vocab_size, pad_token_id=0)
    model = (ModelForPreTraining if "next_sentence" in family.heads else ModelForMaskedLM)(config)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    loaded = Study.load(tmp_path)
    impossible = CANNOT.get(name, PAIRS)
    for id, recipe in COMPUTATIONS.items():
        if id in impossible:
            with pytest.raises(InputError, match=family.name):
                compute(id, study=loaded)
        elif recipe.needs_study:
            assert compute(id, study=loaded).steps
