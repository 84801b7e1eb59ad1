"""Rotary positions against their definition, and windows of attention against the equation that hides keys."""

import pytest
import torch
from torch.autograd import gradcheck

from bertsmith import RaggedBatch
from bertsmith.batch import FULL
from bertsmith.kernels.layers import ROWS, _turned, rotate
from bertsmith.kernels.ragged_attention import LONG_IN_WINDOWS
from bertsmith.model.attention import MultiHeadSelfAttention, rotary_angles, rotated
from bertsmith.model.families.modernbert import ModernBertConfig


def batch_of(*lengths):
    return RaggedBatch.from_sequences([[5] * length for length in lengths])


def test_the_angles_are_those_of_the_paper():
    cosine, sine = rotary_angles(batch_of(1, 7), head_size=4, base=10_000.0)
    # place 3 of the second sequence: the first pair turns by 3 radians, the second by 3 / 100
    torch.testing.assert_close(cosine[4], torch.tensor([3.0, 0.03]).cos())
    torch.testing.assert_close(sine[4], torch.tensor([3.0, 0.03]).sin())
    assert cosine[0].tolist() == [1, 1]
    assert sine[1].tolist() == [0, 0]


def test_a_product_of_query_and_key_depends_on_their_distance_alone():
    torch.manual_seed(0)
    batch, same = batch_of(40), torch.randn(1, 3, 2, 8).expand(40, -1, -1, -1)
    query, key, value = rotated(same, batch, 100.0).unbind(1)
    scores = torch.einsum("iad,jad->aij", query, key)
    for distance in (-5, 0, 3):
        diagonal = scores.diagonal(distance, 1, 2)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    assert value.equal(same[:, 2])


def test_the_fast_rotation_is_the_equation_and_so_is_its_gradient():
    torch.manual_seed(0)
    angles = torch.randn(5, 3, dtype=torch.float64)
    qkv = torch.randn(5, 3, 2, 6, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(rotate(qkv, angles.cos(), angles.sin()), _turned(qkv, angles.cos(), angles.sin()))
    assert gradcheck(lambda x: rotate(x, angles.cos(), angles.sin()), (qkv,))


@pytest.mark.parametrize("tokens", [1, ROWS, 2 * ROWS + 5])
def test_in_parts_and_in_place_it_is_the_same(tokens):
    torch.manual_seed(0)
    angles, qkv = torch.randn(tokens, 4), torch.randn(tokens, 3, 2, 8)
    wanted = _turned(qkv, angles.cos(), angles.sin())
    torch.testing.assert_close(rotate(qkv.clone(), angles.cos(), angles.sin()), wanted)
    with torch.no_grad():
        torch.testing.assert_close(rotate(qkv.clone(), angles.cos(), angles.sin()), wanted)


def test_angles_made_for_looking_serve_training_too():
    batch, qkv = batch_of(3), torch.randn(3, 3, 1, 4)
    with torch.inference_mode():
        rotated(qkv.clone(), batch, 100.0)
    leaf = qkv.clone().requires_grad_()
    rotated(leaf, batch, 100.0).sum().backward()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("lengths", [(1,), (9,), (200, 200), (1, 50, 13, 97, 4), (64, 3), (65,)])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_windows_in_blocks_are_the_equation_with_hidden_keys(lengths, dropout):
    torch.manual_seed(0)
    config = ModernBertConfig.named("1/64", vocab_size=9, pad_token_id=0, num_attention_heads=4)
    attention = MultiHeadSelfAttention(config, bias=False, rotary_base=100.0, window=4)
    attention.dropout.probability = dropout
    attention.train(dropout > 0)
    batch = batch_of(*lengths)
    hidden = torch.randn(batch.num_tokens, 64)
    blocks = hidden.clone().requires_grad_()
    looking = hidden.clone().requires_grad_()
    mixed, _ = attention(blocks, batch)
    mixed.square().sum().backward()
    assert blocks.grad.isfinite().all()
    if dropout:
        return
    explained, maps = attention(looking, batch, need_maps=True)
    explained.square().sum().backward()
    torch.testing.assert_close(mixed, explained, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(blocks.grad, looking.grad, rtol=1e-4, atol=1e-5)
    for length, each in zip(lengths, maps, strict=True):
        places = torch.arange(length)
        far = (places[:, None] - places).abs() > 4
        assert (each[:, far] == 0).all()
        assert (each[:, ~far] > 0).all()


def test_long_texts_are_cut_into_blocks_whose_cost_grows_with_the_length():
    scores = []

    def counting(query, key, value, hidden):
        scores.append(query.shape[:-1].numel() * key.shape[-2])
        return value.new_zeros(*query.shape)

    from bertsmith.kernels import ragged_attention

    for length in (8 * 256, 16 * 256):
        qkv = torch.randn(length, 3, 2, 8)
        ragged_attention.ragged_attention(qkv, batch_of(length), FULL.within(64), counting, training=True, dropout=0.1)
    assert scores[1] == 2 * scores[0]
    assert LONG_IN_WINDOWS * 64 < 256


def test_a_window_that_holds_the_text_hides_nothing():
    assert FULL.within(8).hidden_by_place(9, torch.device("cpu")) is None
    assert FULL.within(8).hidden_by_place(10, torch.device("cpu")).sum() == 2
    assert FULL.within(None) is FULL
