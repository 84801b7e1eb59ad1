"""The losses of classification, several labels, regression, tagging and multiple choice against `transformers`."""

import numpy as np
import pytest
import sklearn.metrics
import torch
import transformers

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError
from bertsmith.model import (
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertsmith.objectives import (
    ChoiceObjective,
    ClassificationObjective,
    LabelledBatch,
    MultiLabelObjective,
    RegressionObjective,
    TaggingObjective,
)
from bertsmith.objectives.labelled import NO_LABEL

VOCAB = 50
LENGTHS = [7, 3, 12, 12, 20, 5]
LABELS = {0: "bad", 1: "good", 2: "mixed"}


def build(architecture, **changes):
    torch.manual_seed(0)
    model = architecture(BertConfig.named("2/128", vocab_size=VOCAB, max_position_embeddings=32, **changes))
    # a fresh head is nearly silent: with larger weights the classes are told apart
    torch.nn.init.normal_(model.classifier.linear.weight, std=0.5)
    return model.eval()


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
