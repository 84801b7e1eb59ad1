"""The gradient of the word table: given as rows, seen by the optimizer as if it were whole."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig, BertForPreTraining, BertForSequenceClassification
from bertsmith.objectives import ClassificationObjective, LabelledBatch, PreTrainingObjective
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.train.tables import TableGradients
from bertsmith.train.trainer import BertTrainer, TrainerSettings

from .test_trainer import random_pretraining_batch

VOCAB = 40


def classifier():
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig.named("2/64", vocab_size=VOCAB, id2label={0: "no", 1: "yes"}))


def batch_of(seed):
    """Repeated words, and every batch others."""
    generator = torch.Generator().manual_seed(seed)
    tokens = RaggedBatch.from_padded(torch.randint(5, 12 + seed, (4, 9), generator=generator))
    return LabelledBatch(tokens, torch.tensor([0, 1, 1, 0]))


def losses_fail_at(step, objective):
    """An objective whose loss is not a number at one step."""
    steps = iter(range(1000))

    def measure(model, batch):
        found = objective(model, batch)
        return LossOutput(found.loss * (float("nan") if next(steps) == step else 1.0), found.sums)

    return measure


def trained(parts, **settings):
    model = classifier()
    objective = losses_fail_at(settings.pop("fails_at", -1), ClassificationObjective())
    trainer = BertTrainer(model, objective, TrainerSettings(20, 1e-2, **settings))
    seeds = iter(range(100))
    for _ in range(5):
        trainer.train_batch(*[batch_of(next(seeds)) for _ in range(parts)])
    return model.state_dict()


@pytest.mark.parametrize(
    "settings",
    [{}, {"parts": 3}, {"fails_at": 2}, {"optimizer": "lamb"}, {"units": {"backbone.embedding.*": 0.5}}],
    ids=["plain", "in parts", "a step skipped", "lamb", "in units"],
)
def test_training_moves_every_weight_as_with_whole_gradients(settings, monkeypatch):
    settings = {"parts": 1, **settings}
    by_rows = trained(**settings)
    monkeypatch.setattr(TableGradients, "by_rows", lambda tables: nullcontext())
    torch.testing.assert_close(by_rows, trained(**settings), rtol=1e-5, atol=1e-6)


def test_a_table_tied_to_the_output_gets_both_gradients():
    torch.manual_seed(0)
    model = BertForPreTraining(BertConfig.named("2/64", vocab_size=VOCAB)).eval()
    batch, tables = random_pretraining_batch(VOCAB), TableGradients(model)
    gradients = []
    for context in (nullcontext(), tables.by_rows()):
        model.zero_grad()
        with context:
            PreTrainingObjective()(model, batch).loss.backward()
        tables.lay_out()
        gradients.append(model.backbone.embedding.word.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-8)


def test_the_kept_gradient_forgets_the_rows_of_the_last_batch():
    table = nn.Embedding(6, 2)
    tables = TableGradients(table)
    places = set()
    for words in ([1, 1, 3], [4], [0, 3]):
        table.zero_grad()
        tables.clear()
        with tables.by_rows():
            table(torch.tensor(words)).sum().backward()
        assert table.weight.grad.is_sparse
        tables.lay_out()
        counts = torch.bincount(torch.tensor(words), minlength=6).float()
        assert table.weight.grad.tolist() == [[count, count] for count in counts.tolist()]
        places.add(table.weight.grad.data_ptr())
    assert len(places) == 1


def test_other_gradients_stay_whole():
    """What is not trained by the trainer, as a script of one's own, meets ordinary gradients, also after an error."""
    model = classifier()
    with pytest.raises(ZeroDivisionError):
        BertTrainer(model, lambda model, batch: 1 / 0, TrainerSettings(20, 1e-2)).train_batch(batch_of(0))
    ClassificationObjective()(model, batch_of(0)).loss.backward()
    assert not model.backbone.embedding.word.weight.grad.is_sparse


def test_a_table_that_is_to_be_sparse_always_stays_so():
    table = nn.Embedding(6, 2, sparse=True)
    with TableGradients(table).by_rows():
        pass
    assert table.sparse
