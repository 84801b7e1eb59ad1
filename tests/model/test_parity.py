"""The model against `transformers`: same weights, same numbers."""

import pytest
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig, BertModel
from bertsmith.model.architectures import ModelForMaskedLM
from bertsmith.model.family import family_named


def random_batch(lengths, vocab_size=500):
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in lengths]
    types = [[0] * (length // 2) + [1] * (length - length // 2) for length in lengths]
    return sequences, types, RaggedBatch.from_sequences(sequences, types)


@torch.no_grad()
def test_bf16_stays_close_to_float32():
    torch.manual_seed(0)
    model = BertModel(BertConfig.named("mini", vocab_size=500)).eval()
    _, _, batch = random_batch([7, 64, 128, 33])
    expected = model(batch).hidden_states
    model.set_compute_dtype(torch.bfloat16)
    states = model(batch).hidden_states.float()
    assert torch.nn.functional.cosine_similarity(states, expected, dim=-1).min() > 0.999


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_gradients_in_bf16_stay_close_to_those_in_float32(family):
    """Within 5 % of the norm of a matrix's gradient, 10 % of a vector's, whose terms cancel; a step of bf16 is 2^-8."""
    torch.manual_seed(0)
    config = family_named(family).config.named("mini", vocab_size=500, pad_token_id=0)
    model = ModelForMaskedLM(config).eval()
    _, _, batch = random_batch([7, 64, 128, 33])
    places = torch.arange(0, batch.num_tokens, 7)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model.set_compute_dtype(dtype)
        model.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(batch, places).float(), batch.input_ids[places])
        loss.backward()
        found.append({name: each.grad.float() for name, each in model.named_parameters() if each.grad is not None})
    exact, rounded = found
    assert exact.keys() == rounded.keys()
    largest = max(float(each.norm()) for each in exact.values())
    for name, expected in exact.items():
        # a bias before a softmax has a gradient of rounding alone
        if float(expected.norm()) > 1e-3 * largest:
            assert float((rounded[name] - expected).norm() / expected.norm()) < (0.05 if expected.dim() > 1 else 0.1), (
                name
            )
