"""One model against its class in `transformers`: states, logits and gradients, and folders in both directions."""

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from bertsmith.batch import RaggedBatch
from bertsmith.model import ModelForMultipleChoice
from bertsmith.model.folder import published_names

LENGTHS = [1, 2, 7, 64, 511, 512]


def check(config, head_class, our_class, *, lengths=LENGTHS, tolerance=1e-5):
    """Makes random weights there, and checks that they give the same numbers here and come back as they were."""
    with tempfile.TemporaryDirectory() as folder:
        reference = random_reference(config, head_class)
        reference.save_pretrained(f"{folder}/theirs")
        ours = our_class.from_pretrained(f"{folder}/theirs").eval()
        assert ours.architecture == head_class.__name__
        ours.save_pretrained(f"{folder}/ours")
        first, second = (load_file(Path(folder, name, "model.safetensors")) for name in ("theirs", "ours"))
        assert first.keys() == second.keys()
        assert all(value.numpy().tobytes() == second[name].numpy().tobytes() for name, value in first.items())
        again, report = head_class.from_pretrained(f"{folder}/ours", output_loading_info=True)
        assert not any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        for (name, value), other in zip(reference.state_dict().items(), again.state_dict().values(), strict=True):
            assert value.equal(other), name
        compare(ours, reference, lengths, tolerance)


def random_reference(config, head_class):
    """A model whose biases and norms are moved from 0 and 1: a swapped name would not show otherwise."""
    torch.manual_seed(0)
    reference = head_class(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return reference


def compare(ours, reference, lengths, tolerance):
    """Runs a ragged batch here and its sequences one by one there; then the gradients of one random functional."""
    generator = torch.Generator().manual_seed(1)
    # the reference gives [PAD] no gradient, and RoBERTa's no position
    first = ours.config.pad_token_id + 1
    ids = [torch.randint(first, ours.config.vocab_size, (length,), generator=generator) for length in lengths]
    types = [(torch.arange(length) * 2 >= length).long() % ours.config.type_vocab_size for length in lengths]
    batch = RaggedBatch.from_sequences([each.tolist() for each in ids], [each.tolist() for each in types])
    found = {
        name: value.split(batch.lengths) if name in ours.token_outputs else value
        for name, value in ours.published(batch).items()
    }
    assert found
    loss = expected_loss = torch.zeros(())
    for number, (tokens, segments) in enumerate(zip(ids, types, strict=True)):
        rows, rows_of_types = tokens[None], segments[None]
        if isinstance(ours, ModelForMultipleChoice):
            rows, rows_of_types = rows[None], rows_of_types[None]
        output = reference(rows, token_type_ids=rows_of_types)
        for name, values in found.items():
            own, expected = values[number], output[name][0]
            torch.testing.assert_close(own.reshape(expected.shape), expected, atol=tolerance, rtol=tolerance)
            weights = torch.randn(expected.shape, generator=generator) / expected.numel()
            loss = loss + (own.reshape(expected.shape) * weights).sum()
            expected_loss = expected_loss + (expected * weights).sum()
    loss.backward()
    expected_loss.backward()
    theirs = dict(reference.named_parameters(remove_duplicate=False))
    for name, parameter in ours.named_parameters():
        parts = [theirs[each].grad for each in published_names(name, ours.family.names)]
        torch.testing.assert_close(parameter.grad, torch.cat(parts), atol=tolerance, rtol=1e-4, msg=name)
