"""The closed forms against the modules themselves: parameters, operations and saved tensors are counted on them."""

import math

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.kernels.matmul import measure_matmul_flops
from bertsmith.model import NAMED_SIZES, BertConfig, BertForPreTraining, BertModel
from bertsmith.model.sizes import BatchCosts, ParameterCounts
from bertsmith.objectives.pretraining import MaskedLMLoss, NSPLoss

SAVED_TOLERANCE = 0.05
"""Not in the closed form: ids and positions (under 1 %), and, for a single sequence or head, one more [T, H] a block,
for then query and value remain views of a projection that is kept whole beside the scaled key."""

CASES = [("1/64", 3, 20, 100), ("2/128", 4, 40, 500), ("3/192", 2, 64, 2000), ("2/128", 1, 96, 40)]
"""Size, N, S, V."""


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    "config",
    [BertConfig.named(name) for name in NAMED_SIZES]
    + [
        BertConfig.named("3/192", vocab_size=77, max_position_embeddings=64, type_vocab_size=3),
        BertConfig(hidden_size=60, num_attention_heads=5, num_hidden_layers=2, intermediate_size=100, vocab_size=300),
        BertConfig.named("1/64", vocab_size=77, tie_word_embeddings=False),
        BertConfig.named("2/128", vocab_size=77, pruned_heads={1: (0,)}),
    ],
    ids=lambda config: f"{config.num_hidden_layers}/{config.hidden_size}",
)
def test_parameter_counts_are_the_modules_own(config):
    with torch.device("meta"):
        model = BertForPreTraining(config)
    counts = ParameterCounts.of(config)
    assert counts.embeddings == count(model.backbone.embedding)
    assert counts.encoder == count(model.backbone.encoder)
    assert counts.pooler == count(model.backbone.pooler)
    assert counts.heads == count(model.masked_lm) + count(model.next_sentence)
    assert counts.total == count(model)


@pytest.mark.parametrize(("size", "published"), [("base", 109_482_240), ("large", 335_141_888)])
def test_without_heads_the_counts_are_the_published_ones(size, published):
    counts = ParameterCounts.of(BertConfig.named(size))
    assert counts.total - counts.heads == published


def built(size, num_sequences, length, vocab_size, *, dtype=torch.float32, **overrides):
    config = BertConfig.named(size, vocab_size=vocab_size, **overrides)
    torch.manual_seed(0)
    model = BertForPreTraining(config)
    model.set_compute_dtype(dtype)
    batch = RaggedBatch.from_sequences([[1] * length] * num_sequences)
    return model, batch, BatchCosts(config, num_sequences, length)


def training_loss(model, batch, costs, *, need_states=False):
    output = model.train()(batch, torch.arange(costs.num_masked), need_states=need_states)
    masked_lm = MaskedLMLoss()(output.mlm_logits, torch.ones(costs.num_masked, dtype=torch.int64))
    next_sentence = NSPLoss()(output.nsp_logits, torch.zeros(costs.batch_size, dtype=torch.int64))
    return masked_lm.loss + next_sentence.loss


@pytest.fixture
def counted_matmuls(monkeypatch):
    """torch's counter knows its own matmuls, not those of oneDNN."""
    monkeypatch.setattr("bertsmith.kernels.matmul.onednn_is_faster", lambda: False)
    monkeypatch.setattr("bertsmith.kernels.matmul.has_packed_kernels", lambda: False)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inference_operations_are_those_of_the_matmuls_that_run(case, counted_matmuls):
    model, batch, costs = built(*case)
    # the explicit path, for torch does not count the operations of its fused CPU attention
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.backbone.eval()(batch, need_maps=True)
    assert counter.get_total_flops() == costs.inference_flops


def test_heads_that_were_pruned_cost_nothing(counted_matmuls):
    model, batch, costs = built("3/192", 3, 20, 100, pruned_heads={0: (1,), 2: (0, 2)})
    with FlopCounterMode(display=False) as counter:
        training_loss(model, batch, costs).backward()
    assert counter.get_total_flops() == costs.training_flops


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_operations_are_those_of_the_matmuls_that_run(case, counted_matmuls):
    model, batch, costs = built(*case)
    with FlopCounterMode(display=False) as counter:
        training_loss(model, batch, costs).backward()
    assert counter.get_total_flops() == costs.training_flops


def saved_bytes(model, batch, costs):
    """Adds up the distinct storages that autograd keeps, without the parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        # holding the storage keeps its address from being given to another tensor
        kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        # the loss holds the graph, and with it what was saved
        loss = training_loss(model, batch, costs, need_states=True)
    assert loss.requires_grad
    return sum(storage.nbytes() for address, storage in kept.items() if address not in parameters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_activation_memory_is_what_autograd_keeps(case, dtype):
    model, batch, costs = built(*case, dtype=dtype)
    assert costs.activation_bytes(dtype) == pytest.approx(saved_bytes(model, batch, costs), rel=SAVED_TOLERANCE)


def test_activation_memory_without_dropout():
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, batch, costs = built(*CASES[1], dtype=torch.bfloat16, **off)
    kept = saved_bytes(model, batch, costs)
    assert costs.activation_bytes(torch.bfloat16) == pytest.approx(kept, rel=SAVED_TOLERANCE)


@pytest.mark.parametrize("size", ["tiny", "base"])
def test_weights_and_optimizer_take_16_bytes_a_parameter(size):
    config = BertConfig.named(size)
    with torch.device("meta"):
        parameters = count(BertModel(config)) + ParameterCounts.of(config).heads
    costs = BatchCosts(config, 1, 128)
    assert costs.weight_bytes == 4 * parameters
    assert costs.weight_bytes + costs.optimizer_bytes == 16 * parameters


def test_the_masked_positions_are_as_many_as_the_data_stream_chooses():
    # the paper's setting: 128 tokens, 19.2 of them predicted
    assert BatchCosts(BertConfig.named("tiny"), 32, 128).num_masked == 32 * 19
    assert BatchCosts(BertConfig.named("tiny"), 7, 3).num_masked == 7


@pytest.mark.parametrize(
    ("num_sequences", "length", "message"),
    [(0, 8, "batch_size is 0"), (1, 0, "sequence_length is 0"), (1, 513, "513, but the model has 512 positions")],
)
def test_batches_the_model_cannot_read_are_refused(num_sequences, length, message):
    with pytest.raises(ConfigError, match=message):
        BatchCosts(BertConfig.named("tiny"), num_sequences, length)


def test_a_measured_speed_is_a_rate_and_leaves_the_random_state_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    speed = measure_matmul_flops(64, 256, torch.float32)
    assert math.isfinite(speed)
    assert speed > 0
    assert torch.rand(4).equal(expected)
