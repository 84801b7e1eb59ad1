"""Answers read from span scores, and the switches of a model that must not change its numbers."""

import math
import random

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.model import (
    BertConfig,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    best_spans,
)
from bertsmith.model.heads import SpanScores

SEQUENCES = [[2, 7, 30, 3], [2, 3], [2, 5, 6, 7, 39, 9, 3]]


def spans_by_loops(start, end, allowed, count, max_tokens):
    """Every span, one after the other: earlier before later and shorter before longer where scores are equal."""
    found = []
    for first in range(len(start)):
        for last in range(first, min(len(start), first + max_tokens)):
            whole = True
            for token in range(first, last + 1):
                whole = whole and bool(allowed[token])
            if whole:
                found.append((first, last, float(np.float32(start[first]) + np.float32(end[last]))))
    return sorted(found, key=lambda span: -span[2])[:count]


def spans_of(start, end, allowed, **how):
    """The best spans of one sequence, without the rows that fill up."""
    rows = best_spans(SpanScores(start[None], end[None]), torch.tensor([allowed]), **how)[0].tolist()
    return [(int(first), int(last), score) for first, last, score in rows if score > -math.inf]


def random_scores(seed, size):
    draw = random.Random(seed)
    # 取值只有几个，平局很多
    start, end = ([draw.choice([-1.5, -0.25, 0.0, 0.5, 2.0]) for _ in range(size)] for _ in range(2))
    return start, end


@pytest.mark.parametrize("size", [1, 2, 9, 40])
@pytest.mark.parametrize("max_tokens", [1, 3, 30, 100])
@pytest.mark.parametrize("count", [1, 5, 2000])
@pytest.mark.parametrize("mask", ["all", "passage", "none"])
def test_spans_are_those_of_three_loops(size, max_tokens, count, mask):
    start, end = random_scores(f"{size} {max_tokens} {count} {mask}", size)
    allowed = {
        "all": [True] * size,
        "passage": [size // 3 <= place < size - 1 for place in range(size)],
        "none": [False] * size,
    }[mask]
    best = spans_of(torch.tensor(start), torch.tensor(end), allowed, count=count, max_tokens=max_tokens)
    assert best == spans_by_loops(start, end, allowed, count, max_tokens)


def test_the_published_defaults_are_twenty_spans_of_thirty_tokens():
    start, end = torch.randn(60), torch.randn(60)
    best = spans_of(start, end, [True] * 60)
    assert len(best) == 20
    assert best == spans_by_loops(start.numpy(), end.numpy(), [True] * 60, 20, 30)


def test_scores_with_a_gradient_and_in_bf16_are_read_too():
    start = torch.tensor([0.0, 1.0, 3.0], requires_grad=True)
    best = spans_of(start.bfloat16(), start.bfloat16(), [False, True, True], count=2)
    assert best == [(2, 2, 6.0), (1, 2, 4.0)]


def random_model(kind=BertForPreTraining, **changes):
    torch.manual_seed(0)
    config = BertConfig.named("3/128", vocab_size=40, max_position_embeddings=16, **changes)
    return kind(config)


def loss_of(model, batch):
    output = model(batch, torch.tensor([1, 5, 9]))
    return cross_entropy(output.mlm_logits, torch.tensor([4, 5, 6])) + output.nsp_logits[:, 0].sum()


@pytest.mark.parametrize("sequences", [SEQUENCES, [[2, 5, 6, 3]] * 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_checkpointing_gives_the_same_loss_and_gradients_with_dropout(sequences, dtype):
    batch = RaggedBatch.from_sequences(sequences)
    runs = []
    for what in ("none", "attention", "blocks"):
        model = random_model().train()
        model.set_compute_dtype(dtype)
        model.set_gradient_checkpointing(what)
        calls = {"blocks": [], "attention": []}
        block = model.backbone.encoder.blocks[1]
        block.register_forward_pre_hook(lambda *_, calls=calls: calls["blocks"].append(1))
        block.attention.dropout.register_forward_pre_hook(lambda *_, calls=calls: calls["attention"].append(1))
        torch.manual_seed(5)
        loss = loss_of(model, batch)
        loss.backward()
        # 确实重算了：整层或只有注意力跑了两遍
        assert len(calls["blocks"]) == (2 if what == "blocks" else 1)
        assert len(calls["attention"]) == (1 if what == "none" else 2)
        runs.append((loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}))
    loss, gradients = runs[0]
    for other_loss, other_gradients in runs[1:]:
        assert loss == other_loss
        for name, gradient in gradients.items():
            assert gradient.equal(other_gradients[name]), name


def test_gradient_checkpointing_can_be_switched_off_and_rests_in_evaluation():
    batch = RaggedBatch.from_sequences(SEQUENCES)
    model = random_model()
    calls = []
    model.backbone.encoder.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model.set_gradient_checkpointing("blocks")
    loss_of(model.eval(), batch).backward()
    model.set_gradient_checkpointing("none")
    loss_of(model.train(), batch).backward()
    assert len(calls) == 2


@pytest.mark.parametrize("what", ["attention", "blocks"])
def test_gradient_checkpointing_works_over_a_frozen_part(what):
    model = random_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model.backbone.embedding.requires_grad_(False)
    model.backbone.encoder.blocks[0].requires_grad_(False)
    model.set_gradient_checkpointing(what)
    loss_of(model.train(), RaggedBatch.from_sequences(SEQUENCES)).backward()
    assert model.backbone.encoder.blocks[0].intermediate.weight.grad is None
    assert model.backbone.encoder.blocks[1].intermediate.weight.grad.any()


def test_unknown_gradient_checkpointing_is_refused():
    with pytest.raises(ConfigError, match="'layers' is unknown; use none, attention, blocks"):
        random_model().set_gradient_checkpointing("layers")


@torch.no_grad()
@pytest.mark.parametrize("wanted", [[0, 2], {1}, (2, 0), []])
def test_maps_of_some_layers_are_those_of_all_and_the_states_stay(wanted):
    model = random_model(BertModel).eval()
    batch = RaggedBatch.from_sequences(SEQUENCES)
    whole, some, none = model(batch, need_maps=True), model(batch, need_maps=wanted), model(batch)
    assert len(whole.attentions) == 3
    assert len(some.attentions) == len(wanted)
    assert none.attentions is None
    for layer, maps in zip(sorted(wanted), some.attentions, strict=True):
        assert [map_.shape for map_ in maps] == [(2, len(ids), len(ids)) for ids in SEQUENCES]
        for map_, other in zip(maps, whole.attentions[layer], strict=True):
            torch.testing.assert_close(map_, other, atol=1e-6, rtol=0)
    for output in (some, whole):
        torch.testing.assert_close(output.hidden_states, none.hidden_states, atol=1e-5, rtol=0)


@pytest.mark.parametrize("sequences", [SEQUENCES, pytest.param([[2, 5, 6, 3]] * 3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "mode", [torch.enable_grad, pytest.param(torch.no_grad, marks=pytest.mark.slow), torch.inference_mode]
)
@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_model_is_one_graph_and_gives_the_same_numbers(sequences, mode, training, monkeypatch):
    torch._dynamo.reset()
    # 编译时不用排好的权重，它的舍入差最后一位
    monkeypatch.setattr("bertsmith.kernels.matmul.has_packed_kernels", lambda: False)
    model = random_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train(training)
    positions = torch.tensor([1, 5, 9])
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with mode():
        batch = RaggedBatch.from_sequences(sequences)
        expected = model(RaggedBatch.from_sequences(sequences), positions)
        output = compiled(batch, positions)
        encoder = torch.compile(model.backbone, backend="eager", fullgraph=True)
        states = encoder(RaggedBatch.from_sequences(sequences)).hidden_states
    assert output.mlm_logits.equal(expected.mlm_logits)
    assert output.nsp_logits.equal(expected.nsp_logits)
    assert output.encoded.hidden_states.equal(expected.encoded.hidden_states)
    assert states.equal(expected.encoded.hidden_states)
    # 同一批数据先经过编译的模型，之后照样能训练
    loss_of(model, batch).backward()


def test_gradients_of_a_compiled_model_are_the_same():
    torch._dynamo.reset()
    batch = RaggedBatch.from_sequences(SEQUENCES)
    runs = []
    for compiled in (False, True):
        model = random_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
        runner = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
        loss_of(runner, batch).backward()
        runs.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in runs[0].items():
        assert gradient.equal(runs[1][name]), name


@pytest.mark.slow
def test_a_compiled_model_draws_dropout_as_it_does_when_it_is_not():
    torch._dynamo.reset()
    model = random_model().train()
    batch = RaggedBatch.from_sequences(SEQUENCES)
    losses = []
    for runner in (model, torch.compile(model, backend="eager")):
        torch.manual_seed(3)
        losses.append(loss_of(runner, batch).item())
    assert losses[0] == losses[1]


@torch.no_grad()
@pytest.mark.parametrize(
    "architecture", [BertForSequenceClassification, BertForMultipleChoice, BertForQuestionAnswering]
)
def test_the_last_layer_is_float32_in_bf16_too(architecture):
    """With 8 bits of mantissa, numbers near 2,000 would be multiples of 8, and the scores of a ranker would tie."""
    torch.manual_seed(0)
    labels = {"id2label": {0: "score"}} if architecture is BertForSequenceClassification else {}
    model = architecture(BertConfig.named("1/64", vocab_size=100, **labels)).eval()
    model.set_compute_dtype(torch.bfloat16)
    head = model.spans if architecture is BertForQuestionAnswering else model.classifier
    head.linear.bias.fill_(1987.3)
    head.linear.weight.mul_(50)
    batch = RaggedBatch.from_sequences([[2, first, second, 3] for first in range(5, 15) for second in range(20, 30)])
    output = model(batch, 1) if architecture is BertForMultipleChoice else model(batch)
    numbers = output.start if architecture is BertForQuestionAnswering else output
    assert numbers.dtype == torch.float32
    assert len(numbers.unique()) > 60
