"""Left-to-right attention: no token may depend on what comes after it, on any path."""

import pytest
import torch

from bertsmith.batch import CAUSAL, FULL, AttentionMask, RaggedBatch
from bertsmith.errors import InputError
from bertsmith.model import BertConfig, BertForMaskedLM, BertModel

VOCAB_SIZE = 50


def make_model(**changes):
    torch.manual_seed(0)
    return BertModel(BertConfig.named("2/64", vocab_size=VOCAB_SIZE, initializer_range=0.2, **changes)).eval()


def make_batch(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return RaggedBatch.from_sequences(
        [torch.randint(5, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
    )


# which path attention takes: rectangles, padded rectangles, groups; short ones by matmul, long ones by the fused kernel
LENGTHS = {
    "equal short": [9] * 4,
    "unequal short": [9, 5, 12],
    "grouped short": [5] * 4 + [9] * 4,
    "equal long": [40] * 3,
    "unequal long": [40, 33, 57],
    "grouped long": [40] * 4 + [57] * 4,
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_path_agrees_with_the_printed_equation(lengths, dtype):
    """The explicit path, sequence by sequence, is the oracle; its maps are zero above the diagonal."""
    model, batch = make_model(), make_batch(lengths)
    model.set_compute_dtype(dtype)
    with torch.no_grad():
        explicit = model(batch, need_maps=True, mask=CAUSAL)
        output = model(batch, mask=CAUSAL)
    tolerance = 1e-5 if dtype == torch.float32 else 0.08
    torch.testing.assert_close(output.hidden_states, explicit.hidden_states, atol=tolerance, rtol=tolerance)
    for maps in explicit.attentions:
        for attention in maps:
            assert torch.all(attention.triu(1) == 0)
            torch.testing.assert_close(attention.sum(-1), torch.ones(attention.shape[:2]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_a_prefix_has_the_same_states_alone(lengths):
    """The definition: cutting a sequence short changes none of the states that are left."""
    model, batch = make_model(), make_batch(lengths)
    with torch.no_grad():
        whole = model(batch, mask=CAUSAL).hidden_states.split(batch.lengths)
        for ids, states in zip(batch.input_ids.split(batch.lengths), whole, strict=True):
            prefix = model(RaggedBatch.from_sequences([ids[:4].tolist()]), mask=CAUSAL)
            torch.testing.assert_close(prefix.hidden_states, states[:4], atol=1e-5, rtol=1e-5)


def test_training_with_dropout_sees_nothing_to_the_right():
    """The path of training; gradients of early predictions do not reach later tokens, checkpointed or not."""
    model = make_model(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).train()
    batch = make_batch([12, 12, 7])
    for checkpointing in ("none", "attention", "blocks"):
        model.set_gradient_checkpointing(checkpointing)
        embedded = model.embedding(batch).detach().requires_grad_()
        (model.encoder(embedded, batch, mask=CAUSAL).states[5] @ torch.arange(64.0)).backward()
        assert embedded.grad[:6].abs().amax(1).min() > 0
        assert embedded.grad[6:].abs().max() == 0


def test_the_summary_is_read_from_the_last_token():
    model, batch = make_model(), make_batch([9, 5, 12])
    with torch.no_grad():
        output = model(batch, mask=CAUSAL)
    assert torch.equal(output.cls, output.hidden_states[[8, 13, 25]])
    assert torch.equal(model(batch).cls, model(batch).hidden_states[[0, 9, 14]])


def test_a_causal_folder_is_a_causal_model_in_transformers(tmp_path):
    """`is_decoder` of `config.json` means the same network and the same mask there; it survives saving and loading."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = BertConfig.named("2/64", vocab_size=VOCAB_SIZE, initializer_range=0.2, is_decoder=True)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    ours = BertForMaskedLM.from_pretrained(tmp_path).eval()
    assert ours.config.is_decoder
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    batch = make_batch([11, 11])
    with torch.no_grad():
        logits = ours(batch, torch.arange(22))
        expected = peer(input_ids=batch.input_ids.view(2, 11)).logits
        summary = ours.backbone(batch)
    torch.testing.assert_close(logits.view_as(expected), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(summary.cls, summary.hidden_states[[10, 21]])


def test_a_model_that_reads_both_ways_says_nothing_of_it(tmp_path):
    BertForMaskedLM(BertConfig.named("1/64", vocab_size=VOCAB_SIZE)).save_pretrained(tmp_path)
    assert "is_decoder" not in (tmp_path / "config.json").read_text()


def explicit_attention(attention, states, length, prefix):
    """softmax(Q Kᵀ / √D) V of one sequence, with the mask of a prefix LM written out."""
    row, column = torch.arange(length)[:, None], torch.arange(length)[None]
    readable = (column <= row) | (column < prefix)
    query, key, value = attention.qkv(states).view(length, 3, attention.num_heads, -1).permute(1, 2, 0, 3)
    scores = query @ key.transpose(1, 2) / attention.head_size**0.5
    mixed = scores.masked_fill(~readable, -torch.inf).softmax(-1) @ value
    return attention.output(mixed.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("training", [False, True])
def test_a_prefix_mask_is_the_explicit_one(lengths, training):
    """Every token reads the whole prefix, and otherwise what comes before it; also a prefix longer than a sequence."""
    attention, batch = make_model().encoder.blocks[0].attention.train(training), make_batch(lengths)
    attention.dropout.probability = 0.0
    prefixes = [0, 3, 100, 1, 5, 7, 2, 4][: len(lengths)]
    mask = AttentionMask.prefix(prefixes)
    states = torch.randn(batch.num_tokens, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = attention(states, batch, mask=mask).states
        with_maps = attention(states, batch, mask=mask, need_maps=True).states
        expected = torch.cat(
            [
                explicit_attention(attention, own, length, prefix)
                for own, length, prefix in zip(states.split(lengths), lengths, prefixes, strict=True)
            ]
        )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(with_maps, expected, atol=1e-5, rtol=1e-5)


def test_the_ends_of_a_prefix_mask_are_the_other_two():
    model, batch = make_model(), make_batch([9, 5, 12])
    with torch.no_grad():
        for prefix, mask in ((0, CAUSAL), (12, FULL)):
            found = model(batch, mask=AttentionMask.prefix([prefix] * 3)).hidden_states
            torch.testing.assert_close(found, model(batch, mask=mask).hidden_states, atol=1e-5, rtol=1e-5)


def test_impossible_prefixes_are_refused():
    with pytest.raises(InputError, match="-1 is negative"):
        AttentionMask.prefix([3, -1])
    with pytest.raises(InputError, match="2 prefix lengths for 3 sequences"):
        make_model()(make_batch([9, 5, 12]), mask=AttentionMask.prefix([3, 1]))
