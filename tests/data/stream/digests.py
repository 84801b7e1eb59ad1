"""A fingerprint of a global batch, to tell whether two streams draw the same."""

import hashlib

import torch

from bertsmith.data.stream.pairs import NO_LABEL


def digest(shares):
    """Does not depend on how many ranks share the batch; `shares` are theirs, in the order of the ranks."""
    split = [list(_sequences(share)) for share in shares]
    hashed = hashlib.blake2b(digest_size=16)
    for number in range(sum(len(share) for share in split)):
        hashed.update(split[number % len(split)][number // len(split)])
    return hashed.hexdigest()


def _sequences(batch):
    """Yields all that a batch says of each of its sequences."""
    targets = torch.full_like(batch.tokens.input_ids, NO_LABEL)
    targets[batch.masked_positions] = batch.masked_labels
    tokens = torch.stack([batch.tokens.input_ids, batch.tokens.token_type_ids, targets]).cpu().numpy()
    bounds = batch.tokens.cu_seqlens.tolist()
    for label, first, last in zip(batch.next_sentence_labels.tolist(), bounds, bounds[1:], strict=False):
        yield tokens[:, first:last].tobytes() + label.to_bytes(8, "little", signed=True)
