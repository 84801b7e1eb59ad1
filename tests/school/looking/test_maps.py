import numpy as np
import pytest
import torch
import transformers

from bertsmith.errors import CheckpointError, InputError
from bertsmith.model import BertForPreTraining, prune_heads
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.looking.maps import cls_attention, load_for_maps, maps_of, rollout, thumbnails

TEXT, PAIR = "The man who wrote 5 books reads the newspaper.", "He likes unbelievable stories."


@pytest.mark.parametrize("pair", [None, PAIR])
def test_maps_are_those_of_transformers_on_a_real_checkpoint(minilm_folder, pair):
    found = maps_of(*load_for_maps(minilm_folder), TEXT, pair)
    theirs = transformers.BertModel.from_pretrained(minilm_folder, attn_implementation="eager").eval()
    encoded = transformers.AutoTokenizer.from_pretrained(minilm_folder)(TEXT, pair, return_tensors="pt")
    with torch.no_grad():
        expected = torch.cat(theirs(**encoded, output_attentions=True).attentions).numpy()
    assert found.maps.shape == (6, 12, len(found.tokens), len(found.tokens))
    np.testing.assert_allclose(found.maps, expected, atol=1e-5)
    assert found.sequence_ids == encoded["token_type_ids"][0].tolist()
    assert [found.tokens[place] for place in found.separators] == ["[SEP]"] * (1 if pair is None else 2)
    assert found.is_pair == (pair is not None)
    assert found.note == ""


def test_a_model_with_a_head_is_looked_into_as_well(tiny_model):
    model, tokenizer = BertForPreTraining.from_pretrained(tiny_model), WordPieceTokenizer.load(tiny_model)
    found = maps_of(model, tokenizer, "the man eats [MASK] .")
    assert found.tokens == ["[CLS]", "the", "man", "eats", "[MASK]", ".", "[SEP]"]
    np.testing.assert_allclose(found.maps.sum(-1), 1, atol=1e-5)
    with pytest.raises(CheckpointError, match="Linear has no encoder"):
        maps_of(torch.nn.Linear(1, 1), tokenizer, "the man")


def test_rollout_is_what_one_multiplies_by_hand():
    first = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
    second = np.array([[[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    # the heads' mean is [[.5, .5], [.5, .5]], then [[0, 1], [.5, .5]]; half of it and half of the identity
    lower = np.array([[0.75, 0.25], [0.25, 0.75]])
    upper = np.array([[0.5, 0.5], [0.25, 0.75]])
    reached = rollout(np.stack([first, second]).astype(np.float32))
    np.testing.assert_allclose(reached, [lower, upper @ lower], atol=1e-6)


def test_rollout_rows_add_up_to_one_on_a_real_checkpoint(minilm_folder):
    maps = maps_of(*load_for_maps(minilm_folder), TEXT, PAIR).maps
    np.testing.assert_allclose(rollout(maps).sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(cls_attention(maps), maps.mean(1)[:, 0], atol=1e-6)


def test_pruned_heads_leave_a_gap_and_nothing_else(minilm_folder):
    model, tokenizer = load_for_maps(minilm_folder)
    whole = maps_of(model, tokenizer, TEXT)
    prune_heads(model, {0: [1, 4]})
    found = maps_of(model, tokenizer, TEXT)
    assert np.isnan(found.maps[0, [1, 4]]).all()
    np.testing.assert_allclose(found.maps[0, [0, 2, 3, 11]], whole.maps[0, [0, 2, 3, 11]], atol=1e-5)
    np.testing.assert_allclose(rollout(found.maps).sum(-1), 1, atol=1e-6)


def test_a_text_that_is_too_long_is_cut_and_the_note_says_so(tiny_model):
    model, tokenizer = load_for_maps(tiny_model)
    found = maps_of(model, tokenizer, "the man " * 100)
    assert len(found.tokens) == 32
    assert found.note == "The text has 202 tokens, the model reads 32: the last 170 are cut off."
    found = maps_of(model, tokenizer, "the man " * 100, "a book")
    assert found.tokens[-4:] == ["[SEP]", "a", "book", "[SEP]"]


@pytest.mark.parametrize("text", ["", "   \n\t", "\x00\x07", "\u200b"])
def test_a_text_without_a_word(tiny_model, text):
    model, tokenizer = load_for_maps(tiny_model)
    with pytest.raises(InputError, match="text 1, .* holds no word"):
        maps_of(model, tokenizer, text)
    with pytest.raises(InputError, match="text 2, .* holds no word"):
        maps_of(model, tokenizer, "the man", text)


def test_something_that_is_no_text(tiny_model):
    model, tokenizer = load_for_maps(tiny_model)
    with pytest.raises(InputError, match="text 1 is a list; give a string"):
        maps_of(model, tokenizer, ["the man"])


def test_strange_characters_are_tokens_like_others(tiny_model):
    found = maps_of(*load_for_maps(tiny_model), "the \ud800 man \U0001f600 \x00 \u202e book")
    assert found.tokens[1] == "the"
    assert np.isfinite(found.maps).all()


def test_a_diagonal_does_not_fade_in_a_thumbnail():
    small = thumbnails(np.eye(100, dtype=np.float32)[None], 32)
    assert small.shape == (1, 32, 32)
    np.testing.assert_array_equal(small[0].diagonal(), 1)
    assert small.sum() < 100
    assert thumbnails(np.eye(5, dtype=np.float32), 32).shape == (5, 5)
