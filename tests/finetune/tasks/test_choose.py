import json

import pytest
import torch
import torch.nn.functional as F

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.files import from_json, to_json
from bertsmith.finetune.datasets.texts import ChoiceExample
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.choose import ChoiceTask
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.inference.classify import Choice, Choose
from bertsmith.tokenizer import WordPieceTokenizer

SETTINGS = FineTuningSettings(epochs=8, batch_size=8, learning_rate=2e-3, precision="float32")


def make_questions(count: int, *, mixed: bool = False) -> list[ChoiceExample]:
    """The right choice is the one with bread; some questions have a third choice."""
    wrong = ("reads a book", "the woman reads", "a book !")
    examples = []
    for i in range(count):
        choices = [wrong[i % 3], wrong[(i + 1) % 3]][: 1 + (mixed and i % 2)]
        label = i % (len(choices) + 1)
        choices.insert(label, "eats bread" if i % 5 else "bread !")
        examples.append(ChoiceExample("the man" if i % 4 else "a woman", tuple(choices), label))
    return examples


@pytest.mark.parametrize("mixed", [False, True])
def test_a_chooser_learns_also_from_mixed_numbers_of_choices(tiny_model, tmp_path, mixed):
    train, dev = make_questions(64, mixed=mixed), make_questions(20, mixed=mixed)
    result = fine_tune(ChoiceTask.of(train), tiny_model, train, dev, tmp_path / "run", SETTINGS, test=dev)
    assert result.dev.metrics == {"accuracy": 1.0, "mrr": 1.0}
    assert result.dev.mistakes == []
    assert json.loads((tmp_path / "run" / "model" / "task.json").read_text())["task"] == "choose"
    found = Choose.load(tmp_path / "run" / "model")([e.context for e in dev], [e.choices for e in dev])
    assert [choice.index for choice in found] == [example.label for example in dev]


@pytest.mark.parametrize("mixed", [False, True])
def test_the_loss_is_the_mean_over_questions(tiny_model, mixed):
    """Each question by itself, its choices in a batch of their own, is the definition."""
    task, tokenizer = ChoiceTask(), WordPieceTokenizer.load(tiny_model)
    model = task.build(tiny_model, FineTuningSettings()).eval()
    encoded = task.encode(tokenizer, make_questions(9, mixed=mixed), 32)
    measure = task.objective(model, task.batch(encoded))
    losses, hits = [], 0
    for example in encoded:
        _, right = example.label
        logits = model(RaggedBatch.from_sequences(example.input_ids, example.token_type_ids), len(example.input_ids))
        losses.append(F.cross_entropy(logits, torch.tensor([right])))
        hits += int(logits.argmax()) == right
    expected = torch.stack(losses).mean()
    assert measure.loss.item() == pytest.approx(expected.item(), abs=1e-5)
    assert measure.sums["accuracy"] == (hits, 9)
    gradients = [torch.autograd.grad(loss, model.classifier.linear.weight)[0] for loss in (measure.loss, expected)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=0)
    assert gradients[0].isfinite().all()


def test_units_hold_all_choices_and_fit(tiny_model):
    long = ChoiceExample("the man eats bread " * 30, ("a book !", "the woman reads"), 1)
    example = ChoiceTask().encode(WordPieceTokenizer.load(tiny_model), [long], 24)[0]
    assert [len(ids) for ids in example.input_ids] == [24, 24]
    tokenizer = WordPieceTokenizer.load(tiny_model)
    for ids, types, choice in zip(example.input_ids, example.token_type_ids, long.choices, strict=True):
        # the context gives way, the choice stays whole
        assert ids[types.index(1) :] == [*tokenizer.encode(choice), tokenizer.sep_token_id]


def test_the_figures_and_the_worst_mistakes():
    examples = [
        ChoiceExample("q", ("a", "b", "c"), 0),
        ChoiceExample("r", ("a", "b"), 1),
        ChoiceExample("s", ("a", "b"), 0),
    ]
    predictions = [Choice(1, (0.3, 0.6, 0.1)), Choice(1, (0.2, 0.8)), Choice(1, (0.1, 0.9))]
    scores = ChoiceTask().evaluate(examples, predictions)
    assert scores.metrics == pytest.approx({"accuracy": 1 / 3, "mrr": (1 / 2 + 1 + 1 / 2) / 3})
    assert scores.intervals["accuracy"].estimate == pytest.approx(1 / 3)
    assert [(m.text, m.expected, m.predicted, m.confidence) for m in scores.mistakes] == [
        ("s", "a", "b", 0.9),
        ("q", "a", "b", 0.6),
    ]
    assert from_json(Evaluation, json.loads(json.dumps(to_json(scores)))) == scores
    assert ChoiceTask.from_description(ChoiceTask().describe()) == ChoiceTask()


def test_what_cannot_be_learned_is_refused(tiny_model):
    with pytest.raises(InputError, match="nothing to learn"):
        ChoiceTask.of([ChoiceExample("the man", ("eats",), 0)])
    tokenizer = WordPieceTokenizer.load(tiny_model)
    with pytest.raises(InputError, match="the right choice 2 is none of 2"):
        ChoiceTask().encode(tokenizer, [ChoiceExample("the man", ("eats", "reads"), 2)], 32)
