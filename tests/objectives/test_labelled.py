"""The losses of fine-tuning against `transformers`, and the answers of question answering against their definition."""

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.errors import ConfigError
from bertsmith.model import (
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertsmith.objectives import (
    ChoiceObjective,
    ClassificationObjective,
    LabelledBatch,
    MultiLabelObjective,
    RegressionObjective,
    SpanObjective,
    TaggingObjective,
)

VOCAB = 50
LENGTHS = [7, 3, 12, 12, 20, 5]
LABELS = {0: "bad", 1: "good", 2: "mixed"}


def build(architecture, **changes):
    torch.manual_seed(0)
    model = architecture(BertConfig.named("2/128", vocab_size=VOCAB, max_position_embeddings=32, **changes))
    # a fresh head is nearly silent: with larger weights the classes are told apart
    torch.nn.init.normal_(model.classifier.linear.weight, std=0.5)
    return model.eval()


@pytest.mark.parametrize("class_weights", [None, (2.0, 0.5, 1.0)])
def test_a_weighted_loss_is_that_of_repeated_rows(class_weights):
    """The gradient of the whole, too: a weight of 3 is three equal rows."""
    torch.manual_seed(0)
    counts = torch.tensor([3, 1, 2])
    cases = [
        (ClassificationObjective(class_weights), torch.randn(3, 3), torch.tensor([0, 2, 1])),
        (MultiLabelObjective(), torch.randn(3, 4), torch.randint(0, 2, (3, 4))),
        (RegressionObjective(), torch.randn(3, 1), torch.randn(3)),
    ]
    for objective, rows, labels in cases:
        rows.requires_grad_()
        each = [objective.measure(rows[n : n + 1], LabelledBatch(None, labels[n : n + 1])).loss for n in range(3)]
        weights = counts / counts.float().mean()
        found = objective.measure(rows, LabelledBatch(None, labels, weights))
        repeated = objective.measure(
            rows.repeat_interleave(counts, 0), LabelledBatch(None, labels.repeat_interleave(counts, 0))
        )
        if class_weights is None or not isinstance(objective, ClassificationObjective):
            torch.testing.assert_close(found.loss, repeated.loss)
            torch.testing.assert_close(found.loss, (torch.stack(each) * counts).sum() / counts.sum())
            gradients = [torch.autograd.grad(one.loss, rows)[0] for one in (found, repeated)]
            torch.testing.assert_close(*gradients)
        else:
            own = torch.tensor(class_weights)[labels]
            torch.testing.assert_close(found.loss, (torch.stack(each) * weights * own).sum() / own.sum())


@pytest.fixture
def padded():
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(1, VOCAB, mask.shape, generator=generator) * mask
    types = (torch.arange(mask.shape[1]) >= 3).long() * mask
    return {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}


def ragged(padded):
    return RaggedBatch.from_padded(padded["input_ids"], padded["attention_mask"], padded["token_type_ids"])


def compare(model, measure, folder, inputs, labels):
    """Loss, and the gradient of the head, against the reference; returns the reference's logits."""
    model.save_pretrained(folder)
    reference = getattr(transformers, model.architecture).from_pretrained(folder).eval()
    output = reference(**inputs, labels=labels)
    output.loss.backward()
    measure.loss.backward()
    torch.testing.assert_close(measure.loss, output.loss, atol=1e-5, rtol=1e-5)
    gradient, expected = model.classifier.linear.weight.grad, reference.classifier.weight.grad
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4)
    return output.logits.detach()


def test_classification(padded, tmp_path):
    model = build(BertForSequenceClassification, id2label=LABELS, problem_type="single_label_classification")
    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    measure = ClassificationObjective()(model, LabelledBatch(ragged(padded), labels))
    logits = compare(model, measure, tmp_path, padded, labels)
    hits, count = measure.sums["accuracy"]
    assert hits / count == pytest.approx(sklearn.metrics.accuracy_score(labels, logits.argmax(-1)))
    total, count = measure.sums["loss"]
    assert total / count == pytest.approx(measure.loss.item())


def test_class_weights_are_those_of_torch(padded):
    model = build(BertForSequenceClassification, id2label=LABELS)
    weights, labels = (0.5, 4.0, 1.5), torch.tensor([0, 1, 2, 2, 1, 0])
    measure = ClassificationObjective(weights)(model, LabelledBatch(ragged(padded), labels))
    # by hand: the mean of -log p(label), each text counting as much as its class weighs
    logs = model(ragged(padded)).detach().double().log_softmax(-1).numpy()
    counts = np.array(weights)[labels]
    assert measure.loss.item() == pytest.approx(-(counts * logs[np.arange(6), labels]).sum() / counts.sum(), abs=1e-5)
    torch.testing.assert_close(
        measure.loss, torch.nn.CrossEntropyLoss(torch.tensor(weights))(model(ragged(padded)), labels)
    )


@pytest.mark.parametrize("weights", [(1.0, 0.0), (1.0, -2.0), (float("nan"), 1.0)])
def test_class_weights_must_be_positive(weights):
    with pytest.raises(ConfigError, match="must be positive"):
        ClassificationObjective(weights)


def test_several_labels(padded, tmp_path):
    model = build(BertForSequenceClassification, id2label=LABELS, problem_type="multi_label_classification")
    labels = torch.tensor([[0, 0, 0], [1, 0, 1], [1, 1, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    measure = MultiLabelObjective()(model, LabelledBatch(ragged(padded), labels))
    logits = compare(model, measure, tmp_path, padded, labels.float())
    total, count = measure.sums["loss"]
    assert count == len(LENGTHS)
    assert total / count == pytest.approx(sklearn.metrics.log_loss(labels.flatten(), logits.sigmoid().flatten()), 1e-4)


def test_regression(padded, tmp_path):
    model = build(BertForSequenceClassification, id2label={0: "score"}, problem_type="regression")
    labels = torch.tensor([0.0, 5.0, -1.5, 2.25, 3.0, 0.5])
    measure = RegressionObjective()(model, LabelledBatch(ragged(padded), labels))
    logits = compare(model, measure, tmp_path, padded, labels)
    total, count = measure.sums["loss"]
    assert total / count == pytest.approx(sklearn.metrics.mean_squared_error(labels, logits[:, 0]), 1e-4)


def test_tagging_learns_the_first_pieces_only(padded, tmp_path):
    model = build(BertForTokenClassification, id2label=LABELS)
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 3, padded["input_ids"].shape, generator=generator)
    nothing = (torch.rand(labels.shape, generator=generator) < 0.4) | (padded["attention_mask"] == 0)
    labels = labels.masked_fill(nothing, NO_LABEL)
    real = padded["attention_mask"].bool()
    measure = TaggingObjective()(model, LabelledBatch(ragged(padded), labels[real]))
    logits = compare(model, measure, tmp_path, padded, labels)
    words = labels != NO_LABEL
    hits, count = measure.sums["accuracy"]
    assert count == int(words.sum())
    assert hits / count == pytest.approx(sklearn.metrics.accuracy_score(labels[words], logits.argmax(-1)[words]))


def test_a_batch_without_words_has_no_loss(padded):
    model = build(BertForTokenClassification, id2label=LABELS)
    tokens = ragged(padded)
    measure = TaggingObjective()(model, LabelledBatch(tokens, torch.full((tokens.num_tokens,), NO_LABEL)))
    measure.loss.backward()
    assert measure.loss.item() == 0.0
    assert measure.sums["accuracy"] == (0, 0)


@pytest.mark.parametrize("num_choices", [2, 3])
def test_multiple_choice(padded, tmp_path, num_choices):
    model = build(BertForMultipleChoice)
    labels = torch.tensor([1, 0, 1] if num_choices == 2 else [2, 0])
    measure = ChoiceObjective()(model, LabelledBatch(ragged(padded), labels))
    questions = {name: values.view(len(labels), num_choices, -1) for name, values in padded.items()}
    logits = compare(model, measure, tmp_path, questions, labels)
    hits, count = measure.sums["accuracy"]
    assert hits / count == pytest.approx(sklearn.metrics.accuracy_score(labels, logits.argmax(-1)))


def test_labels_go_to_the_device_with_the_tokens(padded):
    batch = LabelledBatch(ragged(padded), torch.zeros(6, dtype=torch.int64)).to("meta")
    assert batch.labels.device.type == batch.tokens.input_ids.device.type == "meta"


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


def test_bf16_scores_are_summed_in_float32(reader):
    ids, types = sequences_of([20, 31])
    batch = LabelledBatch(RaggedBatch.from_sequences(ids, types), torch.tensor([[4, 6], [0, 0]]))
    exact = SpanObjective()(reader, batch).loss
    reader.set_compute_dtype(torch.bfloat16)
    measure = SpanObjective()(reader, batch)
    assert measure.loss.dtype == torch.float32
    torch.testing.assert_close(measure.loss, exact, atol=0.1, rtol=0)
