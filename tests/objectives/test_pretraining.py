import copy

import pytest
import torch
import torch.nn.functional as F

from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.data.stream.stream import PreTrainingStream, StreamSettings
from bertsmith.errors import ConfigError
from bertsmith.model import BertForMaskedLM, BertForPreTraining, family_named
from bertsmith.objectives import (
    LossOutput,
    objective_named,
)
from bertsmith.objectives.pretraining import _REGISTERED, LanguageModel, LossTerm, PreTrainingObjective, register
from bertsmith.train.choosing import recipe_for
from bertsmith.train.pretraining import pretrain
from bertsmith.train.report import write_run_report
from bertsmith.train.state import load_latest_state, save_state
from bertsmith.train.trainer import BertTrainer, TrainerSettings

SPANS = MaskingSettings(kind="span")
COMBINATIONS = [(name, MaskingSettings()) for name, each in _REGISTERED.items() if each.needs.targets != "nothing"] + [
    ("mlm", MaskingSettings(kind="whole-word")),
    ("mlm", SPANS),
    ("mlm+nsp", SPANS),
    ("mlm+sop", SPANS),
]
FIGURES = {
    "mlm": {"mlm_loss", "mlm_accuracy"},
    "ltr": {"ltr_loss", "ltr_accuracy"},
    "rtd": {"mlm_loss", "mlm_accuracy", "rtd_loss", "rtd_accuracy", "rtd_recall"},
}


def make(village_small, objective, masking, **changes):
    corpus, tokenizer = village_small
    settings = StreamSettings(sequence_length=48, batch_size=8, masking=masking, **changes)
    measured = objective_named(objective).for_masking(masking.kind)
    torch.manual_seed(0)
    config = family_named("electra" if objective == "rtd" else "bert").config.named(
        "2/64", vocab_size=tokenizer.vocab_size, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return (
        measured,
        lambda **of: PreTrainingStream(corpus, tokenizer, settings, measured.needs, **of),
        (measured.build_model(config)),
    )


@pytest.mark.parametrize(("objective", "masking"), COMBINATIONS, ids=str)
def test_every_combination_learns(village_small, objective, masking):
    measured, stream_of, model = make(village_small, objective, masking)
    trainer = BertTrainer(model, measured, TrainerSettings(total_steps=40, learning_rate=3e-3))
    stream = stream_of()
    losses = [trainer.train_batch(next(stream)) for _ in range(40)]
    expected = set(FIGURES[objective[:3]])
    for extra in ("nsp", "sop"):
        if objective.endswith(extra):
            expected |= {f"{extra}_loss", f"{extra}_accuracy"}
    if masking.kind == "span":
        expected |= {"sbo_loss", "sbo_accuracy"}
    assert set(losses[0].sums) == expected
    assert sum(m.loss.item() for m in losses[-10:]) < sum(m.loss.item() for m in losses[:10]) - 5
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("objective", "masking"), COMBINATIONS, ids=str)
def test_the_last_block_computes_only_what_is_read_and_changes_nothing(village_small, objective, masking):
    measured, stream_of, model = make(village_small, objective, masking)
    batch, computed = next(stream_of()), []
    model = model.generator if objective == "rtd" else model
    block = model.backbone.encoder.blocks[-1].output
    block.register_forward_hook(lambda *called: computed.append(len(called[-1])))
    tokens, masked = batch.tokens, batch.masked_positions
    if objective == "rtd":
        read, whole = model(tokens, masked), model(tokens)[masked]
    else:
        outputs = measured.run(model, batch), measured.run(model, batch, need_states=True)
        read, whole = (measured.measure(output, batch).loss for output in outputs)
    torch.testing.assert_close(read, whole)
    for ours, theirs in zip(
        *(torch.autograd.grad(one.sum(), [*model.parameters()]) for one in (read, whole)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    few = tokens.num_tokens if masking.kind == "span" else len(masked) + tokens.num_sequences
    assert computed == [few, tokens.num_tokens]


@pytest.mark.parametrize(("objective", "masking"), COMBINATIONS, ids=str)
@pytest.mark.parametrize("world_size", [2, 4])
def test_the_losses_and_gradients_of_the_ranks_add_up_to_one_process(village_small, objective, masking, world_size):
    measured, stream_of, model = make(village_small, objective, masking)
    alone = copy.deepcopy(model)
    whole = measured(alone, next(stream_of()))
    whole.loss.backward()
    total, sums = 0.0, {}
    for rank in range(world_size):
        stream = stream_of(rank=rank, world_size=world_size)
        measure = measured(model, next(stream))
        measure.loss.backward()
        total += measure.loss.item()
        for name, (value, count) in measure.sums.items():
            old = sums.get(name, (0.0, 0))
            sums[name] = (old[0] + value, old[1] + count)
    assert total == pytest.approx(whole.loss.item(), rel=1e-5)
    assert {name: count for name, (_, count) in sums.items()} == {n: count for n, (_, count) in whole.sums.items()}
    for name, (value, _) in whole.sums.items():
        assert sums[name][0] == pytest.approx(value, rel=1e-4), name
    for (name, expected), found in zip(alone.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, atol=1e-5, rtol=1e-4, msg=name)


def test_left_to_right_loss_by_hand(village_small):
    """log-softmax of each prefix's last state, token by token."""
    measured, stream_of, model = make(village_small, "ltr", MaskingSettings())
    batch = next(stream_of())
    model.eval()
    from bertsmith.batch import RaggedBatch

    total = count = 0
    with torch.no_grad():
        measure = measured(model, batch)
        for ids in batch.tokens.input_ids.split(batch.tokens.lengths):
            for end in range(1, len(ids)):
                prefix = RaggedBatch.from_sequences([ids[:end].tolist()])
                logits = model(prefix, torch.tensor([end - 1])).mlm_logits
                total -= logits.log_softmax(-1)[0, ids[end]].item()
                count += 1
    assert measure.sums["ltr_loss"][1] == count
    assert measure.loss.item() == pytest.approx(total / count, rel=1e-4)


def test_the_span_boundary_prediction_reads_the_boundaries_alone(village_small):
    """Changing any other state leaves it as it is, and its value is the published formula."""
    _, stream_of, model = make(village_small, "mlm", SPANS)
    batch = next(stream_of())
    head, spans = model.span_boundary, batch.masked_spans
    states = torch.randn(batch.tokens.num_tokens, 64)
    with torch.no_grad():
        found = head(states, spans)
        inside = torch.ones(len(states), dtype=torch.bool)
        inside[spans[:, :2].flatten()] = False
        changed = states + inside[:, None] * torch.randn(states.shape)
        assert torch.equal(head(changed, spans), found)
        left, right, place = spans[3].tolist()
        joined = torch.cat([states[left], states[right], head.place.weight[place]])
        first = F.layer_norm(F.gelu(head.first.weight @ joined + head.first.bias), (64,), eps=1e-12)
        second = F.layer_norm(F.gelu(head.second.weight @ first + head.second.bias), (64,), eps=1e-12)
    torch.testing.assert_close(found[3], second, atol=1e-5, rtol=1e-5)
    later = torch.tensor([[left, right, 19], [left, right, 400]])
    assert torch.equal(*head(states, later))


@pytest.mark.parametrize(("objective", "plain"), [("mlm", BertForMaskedLM), ("mlm+sop", BertForPreTraining)])
def test_the_span_head_stays_in_the_state_and_out_of_the_folder(village_small, tmp_path, objective, plain):
    measured, stream_of, model = make(village_small, objective, SPANS)
    assert model.span_boundary is not None
    stream = stream_of()
    trainer = BertTrainer(model, measured, TrainerSettings(total_steps=6, learning_rate=1e-3))
    for _ in range(3):
        trainer.train_batch(next(stream))
    save_state(tmp_path / "state", trainer, {}, keep=1)
    again = BertTrainer(make(village_small, objective, SPANS)[2], measured, trainer.settings)
    load_latest_state(tmp_path / "state", again)
    batch = next(stream)
    assert torch.equal(again.train_batch(batch).loss, trainer.train_batch(batch).loss)
    for (name, value), other in zip(model.state_dict().items(), again.model.state_dict().values(), strict=True):
        assert torch.equal(value, other), name

    model.save_pretrained(tmp_path / "model")
    loaded = plain.from_pretrained(tmp_path / "model").eval()
    model.eval()
    with torch.no_grad():
        ours = model(batch.tokens, batch.masked_positions, masked_spans=batch.masked_spans)
        theirs = loaded(batch.tokens, batch.masked_positions)
    assert torch.equal(ours.mlm_logits, theirs if plain is BertForMaskedLM else theirs.mlm_logits)


def test_impossible_objectives_are_refused():
    for objective in ("nsp", "mlm+xyz", ""):
        with pytest.raises(ConfigError, match="unknown; use one of"):
            objective_named(objective)
    with pytest.raises(ConfigError, match="hides no spans"):
        objective_named("ltr").for_masking("span")


def test_an_objective_from_elsewhere_is_one_registration(village_small, tmp_path):
    """A loss with a name of its own: recipes, the run, its log and its report know it."""

    class SmoothedLoss(LossTerm):
        name, title = "smooth", "smoothed masked-LM"

        def forward(self, logits, labels, *, total=None):
            output = super().forward(logits, labels, total=total)
            return LossOutput(0.9 * output.loss, output.sums)

    register(PreTrainingObjective("smoothed", LanguageModel(SmoothedLoss(), targets="masked")))
    corpus, tokenizer = village_small
    small = {"sequence_length": 32, "batch_size": 8, "steps": 3}
    result = pretrain(tmp_path, corpus, tokenizer, recipe_for("1/64", objective="smoothed", **small))
    assert {"smooth_loss", "smooth_accuracy", "perplexity"} <= result.heldout.keys()
    assert "smoothed masked-LM loss" in write_run_report([tmp_path]).read_text()
