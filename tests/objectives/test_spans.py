"""The question-answering loss against `transformers` and against its definition."""

import math

import pytest
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.model import BertConfig, BertForQuestionAnswering
from bertsmith.objectives import LabelledBatch, SpanObjective

VOCAB = 50


@pytest.fixture
def reader():
    torch.manual_seed(0)
    model = BertForQuestionAnswering(BertConfig.named("2/128", vocab_size=VOCAB, max_position_embeddings=32))
    torch.nn.init.normal_(model.spans.linear.weight, std=0.5)
    return model.eval()


def sequences_of(lengths):
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in lengths]
    return ids, [[0] * 3 + [1] * (length - 3) for length in lengths]


def reference_loss(folder, ids, types, labels):
    """The mean over sequences, given to `transformers` one by one: it counts padding among the places."""
    model = transformers.BertForQuestionAnswering.from_pretrained(folder).eval()
    losses = [
        model(
            input_ids=torch.tensor([one]),
            token_type_ids=torch.tensor([kinds]),
            start_positions=torch.tensor([first]),
            end_positions=torch.tensor([last]),
        ).loss
        for one, kinds, (first, last) in zip(ids, types, labels, strict=True)
    ]
    loss = torch.stack(losses).mean()
    loss.backward()
    return loss, model.qa_outputs.weight.grad


@pytest.mark.parametrize("lengths", [[9, 9, 9], [4, 20, 7, 32]])
def test_loss_and_gradient_are_those_of_transformers(reader, tmp_path, lengths):
    ids, types = sequences_of(lengths)
    # first a sequence without answer, then one of a single token, then up to the last token
    labels = [(0, 0), (5, 5), (4, lengths[2] - 1), (3, 30)][: len(lengths)]
    measure = SpanObjective()(reader, LabelledBatch(RaggedBatch.from_sequences(ids, types), torch.tensor(labels)))
    measure.loss.backward()
    reader.save_pretrained(tmp_path)
    loss, gradient = reference_loss(tmp_path, ids, types, labels)
    torch.testing.assert_close(measure.loss, loss, atol=1e-5, rtol=0)
    torch.testing.assert_close(reader.spans.linear.weight.grad, gradient, atol=1e-5, rtol=1e-4)


class StandIn(torch.nn.Module):
    """Returns scores that were given to it."""

    def __init__(self, start, end):
        super().__init__()
        self.scores = torch.tensor(start), torch.tensor(end)

    def forward(self, batch):
        return self.scores


def test_the_figures_are_those_of_a_hand_calculation():
    # two sequences of 2 and 3 tokens: all scores 0 but one of ln 3, so that its probability is 3 / (3 + S - 1)
    bump = math.log(3)
    model = StandIn([0.0, bump, 0.0, 0.0, bump], [0.0, bump, bump, 0.0, 0.0])
    tokens = RaggedBatch.from_sequences([[2, 3], [2, 5, 3]])
    measure = SpanObjective()(model, LabelledBatch(tokens, torch.tensor([[1, 1], [2, 1]])))
    first = (-math.log(3 / 4) - math.log(3 / 4)) / 2
    second = (-math.log(3 / 5) - math.log(1 / 5)) / 2
    assert measure.loss.item() == pytest.approx((first + second) / 2)
    assert measure.sums["loss"] == pytest.approx((first + second, 2))
    assert measure.sums["accuracy"] == (1, 2)  # the second start is right, its end is not


def test_the_loss_of_a_sequence_does_not_depend_on_its_company(reader):
    ids, types = sequences_of([4, 30])
    alone = [
        SpanObjective()(reader, LabelledBatch(RaggedBatch.from_sequences([one], [kinds]), torch.tensor([[3, 3]]))).loss
        for one, kinds in zip(ids, types, strict=True)
    ]
    labels = torch.tensor([[3, 3], [3, 3]])
    together = SpanObjective()(reader, LabelledBatch(RaggedBatch.from_sequences(ids, types), labels)).loss
    torch.testing.assert_close(together, torch.stack(alone).mean(), atol=1e-5, rtol=0)


def test_bf16_scores_are_summed_in_float32(reader):
    ids, types = sequences_of([20, 31])
    batch = LabelledBatch(RaggedBatch.from_sequences(ids, types), torch.tensor([[4, 6], [0, 0]]))
    exact = SpanObjective()(reader, batch).loss
    reader.set_compute_dtype(torch.bfloat16)
    measure = SpanObjective()(reader, batch)
    assert measure.loss.dtype == torch.float32
    torch.testing.assert_close(measure.loss, exact, atol=0.1, rtol=0)
