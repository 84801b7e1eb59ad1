import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.kernels.ragged_attention import cut_into_rectangles
from bertsmith.model import BertConfig, BertModel

SEQUENCES = [[101, 7592, 102], [101, 102], [101, 5, 6, 7, 102]]


def test_positions_and_borders_are_counted_by_sequence():
    batch = RaggedBatch.from_sequences(SEQUENCES, [[0, 0, 0], [0, 0], [0, 0, 1, 1, 1]])
    assert batch.input_ids.tolist() == [101, 7592, 102, 101, 102, 101, 5, 6, 7, 102]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3, 4]
    assert batch.token_type_ids.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 5, 10]
    assert batch.cu_seqlens.dtype == torch.int32
    assert (batch.num_sequences, batch.num_tokens, batch.max_seqlen) == (3, 10, 5)
    assert batch.first_token_positions.tolist() == [0, 3, 5]


def test_padding_and_back_gives_the_same_tokens():
    batch = RaggedBatch.from_sequences(SEQUENCES)
    rectangle = batch.pad(batch.input_ids, fill=0)
    assert rectangle.tolist() == [[101, 7592, 102, 0, 0], [101, 102, 0, 0, 0], [101, 5, 6, 7, 102]]
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    again = RaggedBatch.from_padded(rectangle, mask)
    assert torch.equal(again.input_ids, batch.input_ids)
    assert torch.equal(again.cu_seqlens, batch.cu_seqlens)
    assert torch.equal(batch.padding_mask, mask.bool())
    assert torch.equal(batch.unpad(rectangle), batch.input_ids)


def test_equal_lengths_are_padded_without_a_copy():
    batch = RaggedBatch.from_sequences([[1, 2], [3, 4]])
    hidden = torch.randn(4, 8)
    assert batch.pad(hidden).data_ptr() == hidden.data_ptr()


def test_parts_are_cut_where_padding_costs_more():
    batch = RaggedBatch.from_sequences([[1] * length for length in (2, 3, 3, 10, 10)])
    assert [part.lengths for part in cut_into_rectangles(batch, 5)] == [[2, 3, 3], [10, 10]]
    assert [part.lengths for part in cut_into_rectangles(batch, 4)] == [[2], [3, 3], [10, 10]]
    # of the 500 places of the rectangle 278 are padding
    assert [part.lengths for part in cut_into_rectangles(batch, 136)] == [[2, 3, 3], [10, 10]]
    assert cut_into_rectangles(batch, 300) == [batch]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(0, 300))
def test_parts_are_the_same_sequences_with_less_to_compute(lengths, cut_cost):
    batch = RaggedBatch.from_sequences([[number + 1] * length for number, length in enumerate(lengths)])
    parts = cut_into_rectangles(batch, cut_cost)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))
    assert [length for part in parts for length in part.lengths] == lengths
    assert all(int(part.cu_seqlens[0]) == 0 and part.max_seqlen == max(part.lengths) for part in parts)
    computed = sum(part.num_sequences * part.max_seqlen**2 for part in parts)
    assert computed + (len(parts) - 1) * cut_cost <= len(lengths) * max(lengths) ** 2
    if cut_cost == 0:
        assert all(part.has_equal_lengths for part in parts)
    assert all(one is two for one, two in zip(cut_into_rectangles(batch, cut_cost), parts, strict=True))


@pytest.mark.parametrize(
    ("sequences", "message"),
    [([], "empty batch"), ([[1], []], "sequence 1 of the batch is empty")],
)
def test_empty_input_is_refused(sequences, message):
    for segments in (None, sequences):
        with pytest.raises(InputError, match=message):
            RaggedBatch.from_sequences(sequences, segments)


def test_segments_of_other_lengths_are_refused():
    with pytest.raises(InputError, match="differ in length"):
        RaggedBatch.from_sequences([[1, 2]], [[0]])


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(InputError, match="add up to 3"):
        RaggedBatch.from_flat(np.arange(4), np.array([3]))


@pytest.mark.parametrize("mask", [[[0, 1, 1]], [[1, 0, 1]]])
def test_left_padding_and_gaps_are_refused(mask):
    with pytest.raises(InputError, match="gap or left padding"):
        RaggedBatch.from_padded(torch.tensor([[1, 2, 3]]), torch.tensor(mask))


def test_wrong_shapes_are_refused():
    with pytest.raises(InputError, match=r"\[N, S\]"):
        RaggedBatch.from_padded(torch.tensor([1, 2, 3]))
    with pytest.raises(InputError, match="same shape"):
        RaggedBatch.from_padded(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 2))


@pytest.mark.parametrize("sequences", [SEQUENCES, [[1, 2, 3], [4, 5, 6]]])
@pytest.mark.parametrize("built_inside", [False, True])
def test_a_batch_met_in_inference_mode_can_still_be_trained_on(sequences, built_inside):
    torch.manual_seed(0)
    config = BertConfig.named("2/64", vocab_size=8000, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = BertModel(config)
    batch = RaggedBatch.from_sequences(sequences)
    with torch.inference_mode():
        if built_inside:
            batch = RaggedBatch.from_sequences(sequences).to("cpu")
        model(batch, need_maps=True)
        seen = model.eval()(batch).hidden_states
    assert seen.is_inference()
    model.train()(batch).hidden_states[:, :7].sum().backward()
    expected = BertModel(config)
    expected.load_state_dict(model.state_dict())
    expected(RaggedBatch.from_sequences(sequences)).hidden_states[:, :7].sum().backward()
    for parameter, other in zip(model.encoder.parameters(), expected.encoder.parameters(), strict=True):
        assert parameter.grad.equal(other.grad)
