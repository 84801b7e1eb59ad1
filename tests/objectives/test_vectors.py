"""The losses over vectors against `sentence-transformers` and against sums written out by hand."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, losses
from torch.nn.functional import normalize

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.inference.embed import mean_states
from bertsmith.model import BertConfig, BertModel
from bertsmith.objectives.vectors import Matryoshka, VectorBatch, VectorObjective, vector_loss_named, vector_losses

H = 16


def draw(count, seed=0):
    return torch.randn(count, H, generator=torch.Generator().manual_seed(seed))


def batch_of(pairs, negatives=0, *, identities=None, owners=None, targets=()):
    texts = [[1, 2]] * (2 * pairs + negatives)
    owners = [number % pairs for number in range(negatives)] if owners is None else owners
    return VectorBatch.of(texts, identities or list(range(len(texts))), owners, torch.tensor(targets))


@pytest.fixture(scope="module")
def reference(minilm_folder):
    return SentenceTransformer(str(minilm_folder), device="cpu")


@pytest.mark.parametrize("negatives", [0, 8])
def test_info_nce_is_the_loss_of_sentence_transformers(negatives, reference):
    """Theirs has one direction; the other is the same with the columns exchanged, where there are no negatives."""
    vectors = draw(16 + negatives)
    ours = vector_loss_named("info-nce")(0.05)(vectors, batch_of(8, negatives))
    forward = losses.MultipleNegativesRankingLoss(reference, scale=20)
    parts = [vectors[:8], vectors[8:16], *([vectors[16:]] if negatives else [])]
    expected = forward.compute_loss_from_embeddings(parts, None)
    expected += forward.compute_loss_from_embeddings([vectors[8:16], vectors[:8]], None)
    torch.testing.assert_close(ours, expected / 2)


def test_copies_of_a_positive_or_a_query_are_no_negatives():
    """Pairs: a-x, b-x, a-y, c-z; a negative of c that is x. By hand, which columns each query is told apart from."""
    a, b, c, x, y, z = range(6)
    batch = batch_of(4, 1, identities=[a, b, a, c, x, x, y, z, x], owners=[3])
    assert batch.false_negatives.int().tolist() == [
        [0, 1, 1, 0, 1],
        [1, 0, 0, 0, 1],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    vectors = draw(9, 3)
    unit = normalize(vectors.double(), dim=-1).numpy()
    scores = unit[:4] @ unit[4:].T / 0.1
    kept = [[0, 3], [1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3, 4]]
    forward = [np.log(np.exp(scores[n, kept[n]]).sum()) - scores[n, n] for n in range(4)]
    kept_queries = [[0, 3], [1, 2, 3], [1, 2, 3], [0, 1, 2, 3]]
    backward = [np.log(np.exp(scores[kept_queries[n], n]).sum()) - scores[n, n] for n in range(4)]
    expected = (np.mean(forward) + np.mean(backward)) / 2
    assert vector_loss_named("info-nce")(0.1)(vectors, batch).item() == pytest.approx(expected, abs=1e-5)


def test_the_losses_of_scores_are_those_of_sentence_transformers(reference):
    vectors, scores = draw(12, 1), torch.tensor([0.0, 0.2, 0.2, 0.5, 0.9, 1.0])
    batch = batch_of(6, targets=scores.tolist())
    cosent = losses.CoSENTLoss(reference, scale=20).compute_loss_from_embeddings([vectors[:6], vectors[6:]], scores)
    torch.testing.assert_close(vector_loss_named("cosent")(0.05)(vectors, batch), cosent)
    regression = losses.CosineSimilarityLoss(reference)
    expected = regression.compute_loss_from_embeddings([vectors[:6], vectors[6:]], scores)
    torch.testing.assert_close(vector_loss_named("cosine")(0.05)(vectors, batch), expected)


def test_equal_scores_teach_no_order():
    assert vector_loss_named("cosent")(0.05)(draw(8), batch_of(4, targets=[0.5] * 4)).item() == 0.0


def test_margins_and_similarities_by_hand():
    vectors = draw(7, 2)
    unit = normalize(vectors.double(), dim=-1).numpy()
    batch = batch_of(2, 3, owners=[0, 1, 1], targets=[0.3, -0.1, 0.0])
    cosines = unit @ unit.T
    margins = [cosines[0, 2] - cosines[0, 4], cosines[1, 3] - cosines[1, 5], cosines[1, 3] - cosines[1, 6]]
    expected = np.mean((np.array(margins) - [0.3, -0.1, 0.0]) ** 2)
    assert vector_loss_named("margin-mse")()(vectors, batch).item() == pytest.approx(expected, abs=1e-6)
    assert vector_loss_named("margin-mse")()(draw(4), batch_of(2)).item() == 0.0

    teacher = torch.randn(7, 5, generator=torch.Generator().manual_seed(9))
    wanted = normalize(teacher.double(), dim=-1).numpy()
    gaps = (cosines - wanted @ wanted.T)[~np.eye(7, dtype=bool)]
    batch = batch_of(2, 3, targets=teacher.tolist())
    assert vector_loss_named("similarities")()(vectors, batch).item() == pytest.approx(np.mean(gaps**2), abs=1e-6)


def test_matryoshka_is_the_mean_over_the_widths():
    vectors, batch = draw(8), batch_of(4)
    loss = vector_loss_named("info-nce")(0.05)
    found = Matryoshka(loss, (4, 16))(vectors, batch)
    torch.testing.assert_close(found, (loss(vectors[:, :4], batch) + loss(vectors, batch)) / 2)
    with pytest.raises(ConfigError, match="different positive numbers"):
        Matryoshka(loss, (4, 4))


def test_texts_are_laid_out_by_length_and_found_again():
    texts = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
    batch = VectorBatch.of(texts, [0, 1, 2, 3])
    assert batch.tokens.lengths == [1, 2, 3, 4]
    found = [batch.tokens.sequences(place, place + 1).input_ids.tolist() for place in batch.places.tolist()]
    assert found == texts
    assert batch.num_queries == 2


@pytest.mark.parametrize("size", [1, 5, 64])
def test_gradient_caching_gives_the_gradient_of_the_whole_batch(size):
    """To the rounding of float32, without dropout; also where the last group is smaller."""
    torch.manual_seed(0)
    model = BertModel(BertConfig.named("2/64", vocab_size=50), need_pooler=False).eval()
    draws = np.random.default_rng(0)
    texts = [draws.integers(1, 50, length).tolist() for length in draws.integers(2, 20, 24)]
    batch = VectorBatch.of(texts, list(range(24)), [0, 3, 3, 5])
    gradients = []
    for mini_batch_size in (0, size):
        model.zero_grad()
        objective = VectorObjective(vector_loss_named("info-nce")(), mean_states, mini_batch_size)
        objective(model, batch).loss.backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    scale = float(gradients[0].abs().max())
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5 * scale, rtol=1e-5)


def test_gradient_caching_drops_the_same_units_in_both_passes():
    """With dropout: the plain loss over the same groups, one after the other, draws the same and has this gradient."""
    torch.manual_seed(0)
    model = BertModel(BertConfig.named("2/64", vocab_size=50), need_pooler=False).train()
    texts = [[number % 40 + 1] * (2 + number % 7) for number in range(24)]
    batch = VectorBatch.of(texts, list(range(24)))
    loss = vector_loss_named("info-nce")()

    def plain():
        groups = [batch.tokens.sequences(first, min(first + 7, 24)) for first in range(0, 24, 7)]
        return loss(torch.cat([mean_states(model, group) for group in groups])[batch.places], batch)

    def cached():
        return VectorObjective(loss, mean_states, 7)(model, batch).loss

    gradients = []
    for measure in (plain, cached):
        model.zero_grad()
        torch.manual_seed(5)
        measure().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert float(gradients[0].abs().max()) > 0
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-5)


def test_what_no_loss_is_called_is_refused():
    assert {"info-nce", "cosent", "cosine", "margin-mse", "similarities"} <= vector_losses().keys()
    with pytest.raises(ConfigError, match="loss 'triplet' is unknown; use one of cosent, cosine, info-nce"):
        vector_loss_named("triplet")
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="must be a positive number"):
            vector_loss_named("info-nce")(wrong)


def test_a_batch_moves_between_devices_whole():
    moved = batch_of(2, 1, targets=[0.5]).to("meta")
    assert isinstance(moved.tokens, RaggedBatch)
    assert {moved.places.device.type, moved.targets.device.type, moved.tokens.input_ids.device.type} == {"meta"}
