import numpy as np
import pytest
import torch
import transformers

from bertsmith.errors import InputError
from bertsmith.inference.classify import Choose
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import BertConfig, BertForMultipleChoice
from bertsmith.tokenizer import WordPieceTokenizer

CPU = InferenceConfig("cpu", "float32")
CONTEXTS = ["the man eats", "a woman", "the book reads a very long story about bread " * 6]
CHOICES = [["bread", "a book !"], ["reads", "eats bread .", "the the man"], ["the", "a", "man", "woman"]]


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A model with a random head, as everybody would save it."""
    torch.manual_seed(1)
    # large random weights tell texts apart; small ones say much the same of all
    config = BertConfig.load(tiny_model).changed(initializer_range=0.2)
    BertForMultipleChoice(config).save_pretrained(tmp_path / "chooser")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "chooser")
    return tmp_path / "chooser"


@pytest.fixture
def choose(folder):
    return Choose(BertForMultipleChoice.from_pretrained(folder), WordPieceTokenizer.load(folder), CPU)


def test_probabilities_equal_transformers_for_any_number_of_choices(folder, choose):
    reference = transformers.AutoModelForMultipleChoice.from_pretrained(str(folder)).eval()
    tokenizer = transformers.BertTokenizerFast.from_pretrained(str(folder))
    for context, choices, found in zip(CONTEXTS, CHOICES, choose(CONTEXTS, CHOICES), strict=True):
        pairs = tokenizer(
            [context] * len(choices), choices, truncation=True, max_length=32, padding=True, return_tensors="pt"
        )
        with torch.inference_mode():
            expected = reference(**{name: values[None] for name, values in pairs.items()}).logits[0].softmax(-1)
        assert found.probabilities == pytest.approx(expected.tolist(), abs=1e-4)
        assert found.index == int(expected.argmax())
        assert sum(found.probabilities) == pytest.approx(1.0)
        assert max(found.probabilities) - min(found.probabilities) > 0.01


def test_a_choice_does_not_depend_on_the_other_questions(choose):
    alone = [choose([context], [choices])[0] for context, choices in zip(CONTEXTS, CHOICES, strict=True)]
    for one, two in zip(choose(CONTEXTS, CHOICES), alone, strict=True):
        assert one.index == two.index
        assert one.probabilities == pytest.approx(two.probabilities, abs=1e-5)


def test_one_choice_is_certain(choose):
    assert choose(["the man"], [["eats"]])[0].probabilities == (1.0,)


def test_what_makes_no_question_is_refused(choose):
    with pytest.raises(InputError, match=r"choices\[1\] is empty"):
        choose(["a", "b"], [["the"], []])
    with pytest.raises(InputError, match="2 contexts and 1 lists"):
        choose(["a", "b"], [["the", "man"]])
    with pytest.raises(InputError, match="list of choices for each"):
        choose(["a"], ["the man"])
    with pytest.raises(InputError, match="list of choices for each|not a string"):
        choose("a", "the man")


def test_a_choice_that_is_no_text_is_named_and_arrays_are_lists(choose):
    with pytest.raises(InputError, match="text 1 of 2 is None, not a string"):
        choose(["the man"], [["eats", None]])
    contexts, choices = np.array(["the man", "a book"]), np.array([["eats", "bread"], ["reads", "the"]])
    assert choose(contexts, choices) == choose(contexts.tolist(), choices.tolist())
