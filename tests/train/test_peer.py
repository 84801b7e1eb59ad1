"""Training against `transformers` and torch's own AdamW: the same losses, step for step."""

import random

import pytest
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.model import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertsmith.objectives import ClassificationObjective, LabelledBatch, SpanObjective, TaggingObjective
from bertsmith.train.trainer import BertTrainer, TrainerSettings

STEPS, WARMUP, RATE, DECAY = 12, 3, 1e-3, 0.01


def draw_rows(draw, lengths):
    return [[draw.randrange(5, 60) for _ in range(length)] for length in lengths]


def padded(rows, fill=0):
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])


def one_class(draw, rows):
    labels = torch.tensor([draw.randrange(3) for _ in rows])
    return labels, {"labels": labels}


def a_tag_each(draw, rows):
    labels = [[draw.choice([-100, 0, 1, 2]) for _ in row] for row in rows]
    return torch.tensor([tag for row in labels for tag in row]), {"labels": padded(labels, -100)}


def a_span(draw, rows):
    spans = torch.tensor([sorted(draw.sample(range(len(row)), 2)) for row in rows])
    return spans, {"start_positions": spans[:, 0], "end_positions": spans[:, 1]}


@pytest.mark.parametrize(
    ("architecture", "objective", "labelled", "lengths"),
    [
        (BertForSequenceClassification, ClassificationObjective(), one_class, (5, 17, 9, 28)),
        (BertForTokenClassification, TaggingObjective(), a_tag_each, (5, 17, 9, 28)),
        # 对方的答案损失把填充位置也算进 softmax，只有等长时才是同一个损失
        (BertForQuestionAnswering, SpanObjective(), a_span, (20, 20, 20, 20)),
    ],
)
def test_a_run_has_the_losses_of_transformers(architecture, objective, labelled, lengths, tiny_model, tmp_path):
    torch.manual_seed(0)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "vocab_size": 64}
    names = {} if architecture is BertForQuestionAnswering else {"id2label": {0: "a", 1: "b", 2: "c"}}
    ours = architecture(BertConfig.load(tiny_model).changed(**still, **names))
    ours.save_pretrained(tmp_path)
    theirs = getattr(transformers, f"Bert{architecture.suffix}").from_pretrained(tmp_path).train()
    settings = TrainerSettings(STEPS, RATE, warmup_share=WARMUP / STEPS, weight_decay=DECAY, epsilon=1e-8)
    trainer = BertTrainer(ours, objective, settings)
    kept = [value for name, value in theirs.named_parameters() if "bias" in name or "LayerNorm" in name]
    shrunk = [value for name, value in theirs.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    groups = [{"params": shrunk, "weight_decay": DECAY}, {"params": kept, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP, (STEPS - step) / (STEPS - WARMUP))
    )
    draw = random.Random(0)
    for step in range(STEPS):
        rows = draw_rows(draw, lengths)
        labels, arguments = labelled(draw, rows)
        measure = trainer.train_batch(LabelledBatch(RaggedBatch.from_sequences(rows), labels))
        mask = padded([[1] * len(row) for row in rows])
        loss = theirs(input_ids=padded(rows), attention_mask=mask, **arguments).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        assert float(measure.loss.detach()) == pytest.approx(loss.item(), abs=2e-4), f"step {step}"


@pytest.mark.parametrize("architecture", [BertForSequenceClassification, BertForTokenClassification])
def test_dropout_spreads_the_scores_as_that_of_transformers(architecture, tiny_model, tmp_path):
    torch.manual_seed(0)
    often = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2, "initializer_range": 0.5}
    config = BertConfig.load(tiny_model).changed(**often, id2label={0: "a", 1: "b", 2: "c"})
    ours = architecture(config).train()
    ours.save_pretrained(tmp_path)
    theirs = getattr(transformers, f"Bert{architecture.suffix}").from_pretrained(tmp_path).train()
    # one sequence many times: every copy draws dropout of its own
    copies, row = 4000, list(range(5, 13))
    with torch.no_grad():
        drawn = ours(RaggedBatch.from_sequences([row] * copies)).reshape(copies, -1)
        expected = theirs(torch.tensor([row] * copies)).logits.reshape(copies, -1)
    error = ((drawn.var(0) + expected.var(0)) / copies).sqrt()
    assert ((drawn.mean(0) - expected.mean(0)).abs() < 4 * error).all()
    # a dropout left out anywhere would change the spread by more than this
    assert (drawn.std(0) / expected.std(0)).log().abs().max() < 0.08
