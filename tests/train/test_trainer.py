import math

import numpy as np
import pytest
import torch

from bertsmith.data.stream.stream import heldout_batches
from bertsmith.errors import ConfigError, TrainingError
from bertsmith.objectives import MaskedLMLoss, NSPLoss
from bertsmith.train.choosing import recipe_for
from bertsmith.train.distributed import Ranks
from bertsmith.train.start import build_model, make_trainer, open_stream
from bertsmith.train.trainer import BertTrainer, TrainerSettings


def test_a_step_equals_adamw_by_hand():
    """One scalar weight, one step: clip, then AdamW with bias correction."""

    class Scalar(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[2.0]]))

    class Nothing:
        def to(self, device):
            return self

    def objective(model, batch):
        from bertsmith.objectives import LossOutput

        loss = 5.0 * model.weight.sum()
        return LossOutput(loss, {})

    settings = TrainerSettings(total_steps=10, learning_rate=0.1, warmup_share=0.0, weight_decay=0.01, clip_norm=1.0)
    trainer = BertTrainer(Scalar(), objective, settings)
    trainer.train_batch(Nothing())
    # gradient 5 is clipped to 1; first Adam step is g / (|g| + eps) = 1; decay 2 * (1 - 0.1 * 0.01)
    expected = 2.0 * (1 - 0.1 * 0.01) - 0.1 * 1.0 / (1.0 + 1e-6)
    assert trainer.model.weight.item() == pytest.approx(expected, rel=1e-5)
    assert trainer.learning_rate_of(trainer.step) == pytest.approx(0.1 * 9 / 10)


def test_sparse_gradients_of_a_table_are_clipped_and_move_it_as_dense_ones_do():
    from bertsmith.objectives import LossOutput

    class Rows:
        ids = torch.tensor([1, 4, 4, 7])

        def to(self, _):
            return self

    def loss(model, batch):
        total = (model(batch.ids) ** 3).sum()
        return LossOutput(total, {"loss": (float(total.detach()), 1)})

    for clip_norm in (0.1, 1e9):
        tables = []
        for sparse in (False, True):
            torch.manual_seed(0)
            table = torch.nn.Embedding(9, 5, sparse=sparse)
            settings = TrainerSettings(
                10, 0.1, warmup_share=0.0, weight_decay=0.0, clip_norm=clip_norm, optimizer="sgd"
            )
            BertTrainer(table, loss, settings).train_batch(Rows())
            tables.append(table.weight.detach())
        torch.testing.assert_close(tables[0], tables[1])


def test_masked_lm_loss_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    measure = MaskedLMLoss()(logits, torch.tensor([0, 2]))
    assert measure.loss.item() == pytest.approx(-(np.log(0.5) + np.log(0.1)) / 2, rel=1e-6)
    assert measure.sums["mlm_accuracy"] == (1, 2)


def test_next_sentence_loss_leaves_unlabelled_sequences_out():
    logits = torch.log(torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]]))
    measure = NSPLoss()(logits, torch.tensor([0, 1, -100]))
    assert measure.loss.item() == pytest.approx(-(np.log(0.9) + np.log(0.7)) / 2, rel=1e-6)
    assert measure.sums["nsp_accuracy"] == (2.0, 2)


def test_a_batch_without_any_label_costs_nothing():
    measure = NSPLoss()(torch.zeros(2, 2), torch.tensor([-100, -100]))
    assert measure.loss.item() == 0.0
    assert measure.sums["nsp_accuracy"] == (0.0, 0)


def test_the_fresh_output_bias_is_the_log_frequency(village):
    corpus, tokenizer, _ = village
    model = build_model(recipe_for("tiny", sequence_length=64), corpus, tokenizer)
    probabilities = model.masked_lm.bias.softmax(0).detach().numpy()
    smoothed = corpus.piece_counts + 1.0
    np.testing.assert_allclose(probabilities, smoothed / smoothed.sum(), rtol=1e-5)
    assert len(probabilities) == tokenizer.vocab_size


@pytest.mark.parametrize("precision", ["float32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_training_learns(village, precision):
    corpus, tokenizer, _ = village
    recipe = recipe_for("2/64", sequence_length=64, steps=100, precision=precision, learning_rate=3e-3)
    trainer = make_trainer(recipe, corpus, tokenizer)
    stream = open_stream(recipe, corpus, tokenizer)
    unseen = heldout_batches(corpus, tokenizer, recipe.stream_settings(), max_sequences=64)
    before = trainer.evaluate(unseen)["mlm_loss"]
    for _ in range(100):
        trainer.train_batch(next(stream))
    assert trainer.evaluate(unseen)["mlm_loss"] < before - 0.2
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())


def test_evaluation_changes_nothing(village):
    corpus, tokenizer, _ = village
    recipe = recipe_for("2/64", sequence_length=64, steps=5)
    trainer = make_trainer(recipe, corpus, tokenizer)
    batch = next(open_stream(recipe, corpus, tokenizer))
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    assert trainer.evaluate([batch]) == trainer.evaluate([batch])
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


@pytest.mark.parametrize(
    "changes",
    [
        {"total_steps": -1},
        {"warmup_share": 1.5},
        {"learning_rate": 0.0},
        {"clip_norm": -1.0},
        {"optimizer": "adam"},
        {"schedule": "sine"},
        {"skips_in_a_row": 0},
        {"skipped_share": 1.5},
    ],
)
def test_impossible_settings_are_refused(changes):
    with pytest.raises(ConfigError):
        TrainerSettings(**{"total_steps": 5, "learning_rate": 0.1, **changes})


def test_a_trainer_must_know_how_many_steps_there_are():
    with pytest.raises(ConfigError, match="at least 1"):
        BertTrainer(torch.nn.Linear(1, 1), lambda *_: None, TrainerSettings())


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm+sop", "ltr"])
def test_a_step_in_parts_is_the_step_on_the_whole(village, objective):
    """Seven sequences in three parts of unequal size and unequal counts, against one batch."""
    corpus, tokenizer, _ = village
    recipe = recipe_for(
        "2/64",
        sequence_length=48,
        batch_size=7,
        steps=5,
        dropout=0.0,
        learning_rate=1e-4,
        objective=objective,
        # Muon 在 bf16 里求正交矩阵：梯度差一点舍入，方向就差一格
        optimizer="adamw",
    )
    whole, parts = make_trainer(recipe, corpus, tokenizer), make_trainer(recipe, corpus, tokenizer)
    stream = open_stream(recipe, corpus, tokenizer)
    for _ in range(5):
        batch = next(stream)
        expected, found = whole.train_batch(batch), parts.train_batch(*batch.split(3))
        assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-5)
        assert found.sums.keys() == expected.sums.keys()
        for name, (value, count) in expected.sums.items():
            assert found.sums[name] == (pytest.approx(value, abs=1e-3), count)
    for (name, value), other in zip(whole.model.named_parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(other, value, atol=1e-5, rtol=1e-4, msg=name)


def test_dropout_drops_other_elements_at_every_step_and_on_every_rank():
    """Ones through a dropout of a half, summed: one step's number is another's if they draw from one seed."""
    from bertsmith.objectives import LossOutput

    def losses(rank):
        # 权重不动：损失之差只来自 dropout
        model = torch.nn.Sequential(torch.nn.Linear(400, 400, bias=False), torch.nn.Dropout(0.5))
        torch.nn.init.ones_(model[0].weight)

        def objective(model, batch):
            loss = (model(batch) * torch.arange(400)).mean()
            return LossOutput(loss, {"loss": (float(loss.detach()), 1)})

        settings = TrainerSettings(8, 1e-30, weight_decay=0.0)
        trainer = BertTrainer(model, objective, settings, seed=3, ranks=Ranks(rank))
        return [trainer.train_batch(torch.ones(400)).loss.item() for _ in range(8)]

    first, second = losses(0), losses(1)
    assert len({*first, *second}) == 16
    assert losses(1) == second


def breaking_trainer(losses, *, loss_limit=math.inf, **settings):
    """A trainer of one weight; the loss of step i is the weight plus `losses[i]`."""
    from bertsmith.objectives import LossOutput

    model = torch.nn.Linear(1, 1, bias=False)

    class Number:
        def __init__(self, value):
            self.value = value

        def to(self, device):
            return self

    def objective(model, batch):
        loss = model.weight.sum() * (1.0 if np.isfinite(batch.value) else float("nan")) + batch.value
        return LossOutput(loss, {"loss": (float(loss.detach()), 1)})

    trainer = BertTrainer(
        model, objective, TrainerSettings(1000, 1e-3, warmup_share=0.0, **settings), loss_limit=loss_limit
    )
    return trainer, [Number(loss) for loss in losses]


def test_a_bad_batch_is_skipped_and_counted():
    """Not a number, infinite, or absurdly large: the weights stay, the step counts, the figures leave it out."""
    trainer, batches = breaking_trainer([1.0, float("nan"), float("inf"), 60.0, 1.0], loss_limit=50.0)
    moved = []
    for batch in batches:
        before = trainer.model.weight.item()
        measure = trainer.train_batch(batch)
        moved.append(trainer.model.weight.item() != before)
        assert bool(measure.sums) == moved[-1]
    assert moved == [True, False, False, False, True]
    assert (trainer.step, trainer.skipped, trainer.skipped_in_a_row) == (5, 3, 0)


def learn_all(trainer, batches):
    for batch in batches:
        trainer.train_batch(batch)


def test_too_many_bad_batches_in_a_row_end_the_training():
    trainer, batches = breaking_trainer([1.0] + [float("nan")] * 9, skips_in_a_row=4)
    with pytest.raises(TrainingError, match="step 5: .* in 4 batches, 4 of them in a row .*lower the learning rate .0"):
        learn_all(trainer, batches)


def test_too_large_a_share_of_bad_batches_ends_the_training():
    """Of 1,000 steps 1 % is 10: every other batch is bad, so the eleventh is met at step 22."""
    trainer, batches = breaking_trainer([1.0, float("nan")] * 50, skips_in_a_row=4, skipped_share=0.01)
    with pytest.raises(TrainingError, match="step 22: .* in 11 batches, 1 of them in a row"):
        learn_all(trainer, batches)
