"""Every number of the lessons, recomputed: by hand, by torch's own functions, by the published counts."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.model import (
    BertConfig,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    prune_heads,
)
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.learn import COMPUTATIONS, LANGUAGES, Study, compute
from bertsmith_school.learn.facts import facts

TEXTS = [name for name, recipe in COMPUTATIONS.items() if any(each.kind == "text" for each in recipe.inputs)]


@pytest.fixture(scope="module")
def study():
    return Study.village()


def step_values(computation):
    return [step.value for step in computation.steps]


def test_two_tokens_by_hand():
    """X = (1 0; 1 2), worked on paper."""
    found = compute("two_tokens")
    x, q, k, v, scores, scaled, weights, z = (np.asarray(value) for value in step_values(found))
    np.testing.assert_array_equal(x, [[1, 0], [1, 2]])
    np.testing.assert_array_equal(q, [[1, 1], [1, 3]])
    np.testing.assert_array_equal(k, [[1, 0], [3, 2]])
    np.testing.assert_array_equal(v, [[2, 0], [2, 6]])
    np.testing.assert_array_equal(scores, [[1, 5], [1, 9]])
    np.testing.assert_allclose(scaled, np.array([[1, 5], [1, 9]]) / math.sqrt(2))
    # a softmax of two is a sigmoid of the difference
    first, second = (1 / (1 + math.exp(-gap / math.sqrt(2))) for gap in (4, 8))
    np.testing.assert_allclose(weights, [[1 - first, first], [1 - second, second]])
    np.testing.assert_allclose(z, [[2, 6 * first], [2, 6 * second]])
    assert found.values["own_weight"] == pytest.approx(second)


def test_attention_of_other_matrices_is_torchs():
    rng = np.random.default_rng(0)
    matrices = {"x": rng.normal(size=(3, 4)), **{name: rng.normal(size=(4, 2)) for name in ("query", "key", "value")}}
    found = compute("two_tokens", **{name: matrix.tolist() for name, matrix in matrices.items()})
    x, query, key, value = (torch.tensor(matrix) for matrix in matrices.values())
    expected = F.scaled_dot_product_attention(x @ query, x @ key, x @ value)
    np.testing.assert_allclose(found.values["z"], expected.numpy(), atol=1e-12)


def test_two_heads_by_hand():
    """X = (1 0; 1 2) again, a column for each head; the first head's keys are 0 and 2, the second's 1 and -1."""
    found = compute("two_heads")
    first, z_1, second, z_2, joined, projected = (np.asarray(value) for value in step_values(found))
    reads_1 = 1 / (1 + math.exp(2))
    # the second head asks with 0 and with 2: the one mixes evenly, the other has scores 2 and -2
    reads_2 = 1 / (1 + math.exp(-4))
    np.testing.assert_allclose(first, [[reads_1, 1 - reads_1]] * 2)
    np.testing.assert_allclose(second, [[0.5, 0.5], [reads_2, 1 - reads_2]])
    np.testing.assert_allclose(z_1, [[2], [2]])
    np.testing.assert_allclose(z_2, [[3], [6 * (1 - reads_2)]])
    np.testing.assert_allclose(joined, np.hstack([z_1, z_2]))
    np.testing.assert_allclose(projected, [[2, 5], [2, 2 + 6 * (1 - reads_2)]])
    assert (found.values["first_weight"], found.values["second_weight"]) == pytest.approx((reads_1, reads_2))


def test_two_heads_of_other_matrices_are_torchs():
    rng = np.random.default_rng(0)
    given = {name: rng.normal(size=(4, 4)) for name in ("x", "query", "key", "value", "output")}
    found = compute("two_heads", **{name: matrix.tolist() for name, matrix in given.items()})
    theirs = torch.nn.MultiheadAttention(4, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.tensor(np.hstack([given[name] for name in ("query", "key", "value")]).T))
        theirs.out_proj.weight.copy_(torch.tensor(given["output"].T))
        x = torch.tensor(given["x"])
        expected = theirs(x, x, x)[0]
    np.testing.assert_allclose(found.values["result"], expected.numpy(), atol=1e-12)


def test_a_block_ends_where_the_models_does(study):
    """With a block of torch's own that holds the same weights."""
    found = compute("first_block", study=study, text="the man reads the book", place=3).values
    model, config = study.model.backbone, study.model.config
    block = model.encoder.blocks[0]
    theirs = torch.nn.TransformerEncoderLayer(
        config.hidden_size, config.num_attention_heads, config.intermediate_size, activation="gelu", batch_first=True
    ).eval()
    with torch.inference_mode():
        for mine, parameter in (
            (block.attention.qkv, (theirs.self_attn.in_proj_weight, theirs.self_attn.in_proj_bias)),
            (block.attention.output, (theirs.self_attn.out_proj.weight, theirs.self_attn.out_proj.bias)),
            (block.intermediate, (theirs.linear1.weight, theirs.linear1.bias)),
            (block.output, (theirs.linear2.weight, theirs.linear2.bias)),
            (block.attention_norm, (theirs.norm1.weight, theirs.norm1.bias)),
            (block.output_norm, (theirs.norm2.weight, theirs.norm2.bias)),
        ):
            parameter[0].copy_(mine.weight)
            parameter[1].copy_(mine.bias)
        batch = RaggedBatch.from_sequences([study.tokenizer("the man reads the book")["input_ids"]])
        expected = theirs(model.embedding(batch)[None])[0, 3]
    np.testing.assert_allclose(found["output"], expected.numpy(), atol=1e-4)
    assert (found["piece"], found["hidden"], found["inner"]) == ("reads", 128, 512)


def test_a_word_is_spelled_as_the_tokenizer_spells_it(study):
    found = compute("pieces_of_a_word", study=study, text="the reader walked homewards").values
    assert found["word"] == "homewards"
    assert found["pieces"] == study.tokenizer.tokenize("homewards")
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "u", "##aff", "##able", "a"])
    torch.manual_seed(0)
    small = Study(BertForPreTraining(BertConfig.named("1/64", vocab_size=10)).eval(), tokenizer)
    found = compute("pieces_of_a_word", study=small, text="a unaffable b").values
    # unaffable … un: 8 look-ups; ##affable … ##aff: 5; ##able: 1
    assert (found["pieces"], found["tries"]) == (["un", "##aff", "##able"], 14)
    with pytest.raises(InputError, match="has none of the words in 'b'"):
        compute("pieces_of_a_word", study=small, text="b")


def test_who_notices_a_change(study):
    found = compute("both_sides", study=study).values
    # [CLS] the man reads the X [SEP]: only X and what follows can know of it from the left
    assert (found["tokens"], found["changed_left"], found["changed_both"]) == (7, 2, 7)
    assert found["left"][:5] == [0.0] * 5
    assert (found["word"], found["other"], found["place"]) == ("book", "bread", 5)
    middle = compute("both_sides", study=study, first="the man reads", second="the woman reads").values
    assert (middle["changed_left"], middle["changed_both"]) == (3, 5)


def test_the_input_is_the_sum_of_three_rows_normalised(study):
    found = compute("input_sum", study=study, first="the man", second="the woman", place=5).values
    table = study.model.state_dict()
    ids = study.tokenizer("the man", "the woman")["input_ids"]
    total = (
        table["backbone.embedding.word.weight"][ids[5]]
        + table["backbone.embedding.position.weight"][5]
        + table["backbone.embedding.token_type.weight"][1]
    )
    norm = (table[f"backbone.embedding.norm.{name}"] for name in ("weight", "bias"))
    np.testing.assert_allclose(found["sum"], total, atol=1e-6)
    np.testing.assert_allclose(found["normed"], F.layer_norm(total, total.shape, *norm, eps=1e-12), atol=1e-5)
    assert (found["segment"], found["tokens"]) == (1, 7)


def test_a_model_with_pruned_heads_has_all_its_lessons(study, tmp_path):
    """Layers keep different numbers of heads: those that are left keep their own numbers."""
    model = BertForPreTraining.from_pretrained(study.folder)
    prune_heads(model, {0: [0]})
    model.save_pretrained(tmp_path)
    study.tokenizer.save(tmp_path)
    pruned, count = Study.load(tmp_path), study.model.config.num_attention_heads
    rows = compute("trained_heads", study=pruned).steps[0].value
    assert [row[1] for row in rows if row[0] == 1] == list(range(2, count + 1))
    assert compute("cls_summary", study=pruned).values["attention"][0] > 0


def test_cls_hears_every_word_until_its_paths_are_cut(study):
    found = compute("cls_summary", study=study, text="the man reads the book")
    assert (found.values["words"], found.values["moved"], found.values["moved_cut"]) == (5, 5, 0)
    # one move recomputed by itself
    ids = study.tokenizer("the man reads the book")["input_ids"]
    hidden = [*ids[:3], study.tokenizer.mask_token_id, *ids[4:]]
    with torch.inference_mode():
        states = [study.model.backbone(RaggedBatch.from_sequences([each])).cls[0] for each in (ids, hidden)]
    moved = float((states[0] - states[1]).norm() / states[0].norm())
    assert found.values["moves"][2] == pytest.approx(moved, abs=1e-5)
    assert sum(found.values["attention"]) == pytest.approx(1, abs=1e-5)


def test_cutting_all_paths_into_cls_is_reading_it_alone(study):
    """The claim behind the lesson, checked with an explicit mask on every layer's scores."""
    model, ids = study.model.backbone, study.tokenizer("the man reads the book")["input_ids"]
    size, heads = len(ids), study.model.config.num_attention_heads
    with torch.inference_mode():
        hidden = model.embedding(RaggedBatch.from_sequences([ids]))
        blocked = torch.zeros(size, size)
        blocked[0, 1:] = -torch.inf
        for block in model.encoder.blocks:
            q, k, v = block.attention.qkv(hidden).view(size, 3, heads, -1).permute(1, 2, 0, 3)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=blocked).transpose(0, 1).reshape(size, -1)
            hidden = block.attention_norm(hidden + block.attention.output(mixed))
            hidden = block.output_norm(hidden + block.output(block.activation(block.intermediate(hidden))))
        alone = model(RaggedBatch.from_sequences([ids[:1]])).cls[0]
    torch.testing.assert_close(hidden[0], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("size", "published"), [("base", 109_482_240), ("large", 335_141_888)])
def test_the_count_is_the_published_one(size, published):
    found = compute("parameters", size=size).values
    assert found["without_heads"] == published
    with torch.device("meta"):
        model = BertForPreTraining(BertConfig.named(size))
    assert found["total"] == sum(p.numel() for p in model.parameters())
    assert found["encoder"] == sum(p.numel() for p in model.backbone.encoder.parameters())
    assert found["block"] * found["layers"] == found["encoder"]


def test_the_table_of_the_count_adds_up():
    found = compute("parameters", size="mini", vocab_size=1000)
    *parts, whole = [row[-1] for row in found.steps[-1].value]
    assert sum(parts) == whole == found.values["total"]
    assert sum(row[-1] for row in found.steps[1].value) == found.values["block"]


def test_shares_of_masking(study):
    found = compute("masking", study=study, seed=1).values
    assert found["pieces"] == 19
    assert found["chosen"] == 3  # 15 % of 19 is 2.85
    assert found["count"] == 3 * found["draws"]
    # five standard deviations of a share of so many draws
    for share, expected in (("masked_share", 0.8), ("random_share", 0.1), ("kept_share", 0.1)):
        assert found[share] == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / found["count"]))


def test_the_draw_that_is_shown_is_what_the_model_reads(study):
    found = compute("masking", study=study, seed=18)
    pieces, read = (found.steps[index].value.split() for index in (0, 2))
    fates = found.steps[3].value
    assert len(fates) == found.values["chosen"]
    for place, piece, becomes, _ in fates:
        assert (pieces[place], read[place]) == (piece, becomes)
    untouched = set(range(len(pieces))) - {row[0] for row in fates}
    assert all(pieces[place] == read[place] for place in untouched)


def test_masked_lm_loss_by_torch(study):
    found = compute("mlm_loss", study=study, text="the man reads the book", hidden="book").values
    ids = study.tokenizer("the man reads the book")["input_ids"]
    place, target = 5, ids[5]
    ids = [*ids[:place], study.tokenizer.mask_token_id, *ids[place + 1 :]]
    with torch.inference_mode():
        logits = study.model(RaggedBatch.from_sequences([ids]), torch.tensor([place])).mlm_logits[0].double()
    expected = float(logits.logsumexp(0) - logits[target])
    assert found["loss"] == pytest.approx(expected, abs=1e-5)
    assert math.exp(-found["loss"]) == pytest.approx(found["probabilities"][0], abs=1e-5)
    assert found["blind"] == pytest.approx(math.log(study.tokenizer.vocab_size))
    assert found["perplexity"] == pytest.approx(math.exp(expected), rel=1e-4)


def test_a_word_of_several_pieces_is_hidden_whole(study):
    word = next(w for w in ("cow", "sheep", "market") if len(study.tokenizer.tokenize(w)) > 1)
    found = compute("mlm_loss", study=study, text=f"the {word} sleeps", hidden=word)
    assert found.values["pieces"] == len(study.tokenizer.tokenize(word))
    assert found.steps[0].value.split().count("[MASK]") == found.values["pieces"]
    mean = sum(-math.log(p) for p in found.values["probabilities"]) / found.values["pieces"]
    assert found.values["loss"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(("truth", "label"), [("is next", 0), ("is random", 1)])
def test_next_sentence_loss_by_torch(study, truth, label):
    found = compute("nsp_loss", study=study, first="the man reads", second="he sleeps", truth=truth).values
    encoded = study.tokenizer("the man reads", "he sleeps")
    state = study.model.state_dict()
    with torch.inference_mode():
        batch = RaggedBatch.from_sequences([encoded["input_ids"]], [encoded["token_type_ids"]])
        cls = study.model.backbone(batch).hidden_states[0]
        pooled = torch.tanh(F.linear(cls, state["backbone.pooler.weight"], state["backbone.pooler.bias"]))
        logits = F.linear(pooled, state["next_sentence.linear.weight"], state["next_sentence.linear.bias"])
    assert found["loss"] == pytest.approx(float(F.cross_entropy(logits[None], torch.tensor([label]))), abs=1e-5)
    assert found["next"] + found["random"] == pytest.approx(1)
    assert found["coin"] == pytest.approx(0.6931, abs=1e-4)


def test_head_sizes_are_those_of_the_real_models():
    found = compute("head_sizes", size="tiny", labels=4)
    config = BertConfig.named("tiny", id2label={n: str(n) for n in range(4)})
    rows = {row[0]: row[2:4] for row in found.steps[0].value}
    models = [
        BertForSequenceClassification,
        BertForTokenClassification,
        BertForQuestionAnswering,
        BertForMultipleChoice,
    ]
    for (new, old), build in zip(rows.values(), models, strict=True):
        with torch.device("meta"):
            model = build(config)
        encoder = sum(p.numel() for p in model.backbone.parameters())
        assert (new, old) == (sum(p.numel() for p in model.parameters()) - encoder, encoder)


def test_the_best_span_by_trying_all():
    rng = np.random.default_rng(0)
    for _ in range(20):
        start, end = rng.integers(-5, 6, (2, 6)).tolist()
        found = compute("answer_span", start=start, end=end).values
        scores = {(i, j): start[i] + end[j] for i in range(1, 6) for j in range(i, 6)}
        assert found["score"] == max(scores.values()) == scores[found["first"], found["last"]]
        assert found["null"] == start[0] + end[0]
        assert found["answered"] == (found["score"] > found["null"])
        assert found["spans"] == 15


def test_the_rate_at_a_step_by_hand():
    found = compute("schedule", steps=100, warmup=10)
    rates = {step: float(rate) for step, rate in found.steps[0].value}
    # rises in tenths, then falls in ninetieths
    assert rates == {0: 1e-5, 5: 6e-5, 10: 1e-4, 55: 5e-5, 99: pytest.approx(1e-4 / 90, rel=1e-2)}
    paper = compute("schedule").values
    assert paper["tokens"] == 131_072_000_000
    assert paper["passes"] == pytest.approx(39.72, abs=0.01)
    assert paper["saved"] == pytest.approx(0.9 * (512 - 128) / 512)


def test_derived_gradients_match_measured_ones():
    found = compute("gradient_check", seed=3).values
    assert found["largest"] < 1e-6
    assert found["key_bias"] < 1e-12


def test_the_ablation_shows_what_it_says():
    found = compute("ablation").values
    assert found["whole_top"] == "reads"
    assert found["bag_top"] == "near"
    assert found["whole_verbs"] > 0.8 > 0.5 > found["bag_verbs"]
    assert found["left_verbs"] > 0.8
    assert found["left_reads"] < 0.5 < found["whole_reads"]
    assert found["whole_loss"] < min(found["bag_loss"], found["left_loss"])


def test_attention_is_recovered_as_far_as_it_can_be():
    found = compute("recovered_attention").values
    assert (found["numbers"], found["constant_unseen"], found["flat_unseen"]) == (16, 4, 7)
    assert found["seen_error"] < 1e-5 < found["constant_error"]


def test_the_facts_are_the_papers():
    known = facts()
    assert (known.masking.rate, known.masking.mask_share, known.masking.random_share) == (0.15, 0.8, 0.1)
    assert known.kept_share == pytest.approx(0.1)
    assert known.overall_mask_share == pytest.approx(0.12)
    base = known.base
    assert (base.num_hidden_layers, base.hidden_size, base.num_attention_heads, base.head_size) == (12, 768, 12, 64)
    assert (round(known.base_millions), round(known.large_millions)) == (109, 335)
    assert base.vocab_size == 30522
    assert known.coin_loss == pytest.approx(0.6931, abs=1e-4)
    assert (known.grid_rates, known.grid_batches, known.grid_epochs) == ("5e-5, 3e-5, 2e-5", "16, 32", "2, 3, 4")
    assert known.grid_size == 18
    assert (known.peak_rate, known.batch_tokens) == ("1e-4", 256 * 512)


@pytest.mark.parametrize("id", COMPUTATIONS)
def test_a_computation_says_the_same_in_both_languages(id):
    english, chinese = (compute(id, language=language) for language in LANGUAGES)
    assert english.title != chinese.title
    assert len(english.steps) == len(chinese.steps)
    for first, second in zip(english.steps, chinese.steps, strict=True):
        assert np.shape(first.cells()) == np.shape(second.cells())
        assert len(first.columns) == len(second.columns)
    for name, value in english.values.items():
        if isinstance(value, int | float):
            assert chinese.values[name] == value, name


def test_a_real_model_without_its_heads_says_so(minilm_folder):
    study = Study.load(minilm_folder)
    assert "fresh weights" in study.note("en")
    assert "masked-LM head, next-sentence head" in study.note("en")
    found = compute("both_sides", study=study).values
    assert (found["changed_left"], found["changed_both"]) == (2, 7)
    assert found["left"][:5] == [0.0] * 5
    first, second = (compute("mlm_loss", study=Study.load(minilm_folder)).values["loss"] for _ in range(2))
    assert first == second


def test_a_folder_with_all_heads_is_taken_as_it_is(tiny_model):
    study = Study.load(tiny_model)
    assert study.fresh == ()
    expected = BertForPreTraining.from_pretrained(tiny_model).state_dict()
    for name, value in study.model.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("id", TEXTS)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no words|not in"),
        ("  \n", "no words|not in"),
        ("\x00", "no words|not in"),
        ("\ud800", "surrogate"),
        ("word " * 5000, "pieces"),
        (7, "must be a text"),
        (None, "must be a text"),
    ],
)
def test_texts_that_cannot_be_computed_with(study, id, text, message):
    name = next(each.name for each in COMPUTATIONS[id].inputs if each.kind == "text")
    with pytest.raises(InputError, match=message):
        compute(id, study=study, **{name: text})


@pytest.mark.parametrize(
    ("id", "inputs", "message"),
    [
        ("nothing", {}, "there is no computation"),
        ("two_tokens", {"z": 1}, "has no input 'z'"),
        ("two_tokens", {"x": [[1, 2], [3]]}, "rows of one length"),
        ("two_tokens", {"x": [[math.nan, 1]]}, "all finite"),
        ("two_tokens", {"x": [[1, 2, 3]]}, "query has 2 rows; it needs 3"),
        ("two_tokens", {"key": [[1], [1]]}, "must have one shape"),
        ("two_tokens", {"x": []}, "rows of numbers"),
        ("two_tokens", {"x": [["a", "b"]]}, "must be numbers"),
        ("two_heads", {"query": [[1], [1]]}, "even number of columns"),
        ("two_heads", {"key": [[1, 2, 3, 4], [1, 2, 3, 4]]}, r"key is \[2, 4\]"),
        ("two_heads", {"output": [[1, 2]]}, "output has 1 rows; it needs 2"),
        ("two_heads", {"x": [[1, 2, 3]]}, "query has 2 rows; it needs 3"),
        ("first_block", {"place": 60}, "tokens 0 to"),
        ("parameters", {"size": "huge"}, "use one of tiny"),
        ("parameters", {"vocab_size": 0}, "from 1 to"),
        ("parameters", {"vocab_size": True}, "whole number"),
        ("input_sum", {"place": 60}, "tokens 0 to"),
        ("both_sides", {"second": "the man reads the book"}, "change one word"),
        ("both_sides", {"second": "the man"}, "change one word"),
        (
            "both_sides",
            {"first": "the man reads the book", "second": "the woman eats the bread"},
            "differ in several places",
        ),
        ("mlm_loss", {"hidden": "sheep"}, "is not in"),
        ("mlm_loss", {"hidden": ""}, "is not in"),
        ("nsp_loss", {"truth": "maybe"}, "use one of is next, is random"),
        ("answer_span", {"start": [1, 2], "end": [1]}, "give as many"),
        ("answer_span", {"start": [1], "end": [1]}, "give as many"),
        ("schedule", {"steps": 10, "warmup": 11}, "longer than the run"),
    ],
)
def test_inputs_that_are_not_possible(id, inputs, message):
    with pytest.raises(InputError, match=message):
        compute(id, **inputs)
