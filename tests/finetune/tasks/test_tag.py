import json

import pytest
import torch
import transformers
from seqeval.metrics import f1_score
from sklearn.metrics import accuracy_score

from bertsmith.data.stream.pairs import NO_LABEL
from bertsmith.errors import InputError
from bertsmith.files import from_json, to_json
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.tagged import TAGGED, TaggedWords
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.tag import TaggingTask
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.tag import Tag, WordTags
from bertsmith.tokenizer import WordPieceTokenizer

SETTINGS = FineTuningSettings(epochs=6, batch_size=8, learning_rate=3e-3, precision="float32")
PEOPLE, THINGS = ("man", "woman"), ("bread", "book")


def make_entities(count: int) -> list[TaggedWords]:
    """People of two words, things of one; other words are outside."""
    examples = []
    for i in range(count):
        words = ("the", PEOPLE[i % 2], "eats", "a", THINGS[(i // 2) % 2], ".", "!")[: 6 + i % 2]
        tags = ("B-PER", "I-PER", "O", "O", "B-THING", "O", "O")[: len(words)]
        examples.append(TaggedWords(words, tags))
    return examples


def make_plain(count: int) -> list[TaggedWords]:
    tags = {"the": "DET", "a": "DET", "eats": "VERB", ".": "PUNCT", "!": "PUNCT"}
    return [TaggedWords(e.words, tuple(tags.get(word, "NOUN") for word in e.words)) for e in make_entities(count)]


def test_a_tagger_learns_and_is_saved_for_everybody(tiny_model, tmp_path):
    train, dev = make_entities(64), make_entities(20)
    result = fine_tune(TaggingTask.of(train), tiny_model, train, dev, tmp_path / "run", SETTINGS, test=dev)
    assert next(iter(result.dev.metrics)) == "f1"
    assert result.dev.metrics["f1"] == 1.0
    assert set(result.dev.classes) == {"PER", "THING"}
    assert result.test is not None
    assert result.test.mistakes == []
    folder = tmp_path / "run" / "model"
    assert json.loads((folder / "task.json").read_text())["labels"] == ["B-PER", "B-THING", "I-PER", "O"]
    tagger = Tag.load(folder)
    assert tagger.tag_words([example.words for example in dev]) == [list(example.tags) for example in dev]
    entities = tagger(["The man eats a book ."])[0]
    assert [(e.type, e.text) for e in entities] == [("PER", "The man"), ("THING", "book")]


def test_parts_of_speech_are_scored_by_word(tiny_model, tmp_path):
    train = make_plain(64)
    task = TaggingTask.of(train)
    assert task.metric == "accuracy"
    result = fine_tune(task, tiny_model, train, train[:20], tmp_path / "run", SETTINGS)
    assert result.dev.metrics["accuracy"] == 1.0
    assert list(result.dev.classes) == ["DET", "NOUN", "PUNCT", "VERB"]


def test_labels_stand_at_first_pieces_only(tiny_model):
    tokenizer = WordPieceTokenizer.load(tiny_model)
    example = TaggedWords(("the", "manreads", "\u200b", "man"), ("O", "B-X", "O", "B-X"))
    unit = TaggingTask(("B-X", "O")).encode(tokenizer, [example], 32)[0]
    ids, labels = unit.input_ids[0], unit.label
    sizes = [len(tokenizer.encode(word)) or 1 for word in example.words]
    assert sizes[1] > 1
    expected = [NO_LABEL]
    for size, label in zip(sizes, (1, 0, 1, 0), strict=True):
        expected += [label] + [NO_LABEL] * (size - 1)
    assert labels == [*expected, NO_LABEL]
    assert len(ids) == len(labels)
    assert ids[1 + sum(sizes[:2])] == tokenizer.unk_token_id


def test_the_loss_is_the_one_of_transformers(tiny_model, tmp_path):
    """Continuations and special tokens carry -100 there; the mean is over the words of all units of the batch."""
    train = make_entities(6)
    task = TaggingTask.of(train)
    model = task.build(tiny_model, FineTuningSettings()).eval()
    model.save_pretrained(tmp_path)
    reference = transformers.BertForTokenClassification.from_pretrained(str(tmp_path)).eval()
    assert reference.config.id2label == dict(enumerate(task.labels))
    batch = task.batch(task.encode(WordPieceTokenizer.load(tiny_model), train, 32))
    tokens = batch.tokens
    with torch.no_grad():
        ours = task.objective(model, batch).loss
        expected = reference(
            input_ids=tokens.pad(tokens.input_ids),
            attention_mask=tokens.padding_mask.long(),
            labels=tokens.pad(batch.labels, fill=NO_LABEL),
        ).loss
    assert float(ours) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("max_length", [512, 16])
def test_labels_come_back_for_every_sentence_of_real_data(shared_data, max_length):
    """WNUT-17 and UD, whole and cut into windows: every word is learned exactly once, with its own tag."""
    tokenizer = WordPieceTokenizer.load(shared_data / "vocab-uncased-30522.txt")
    tasks = shared_data / "tasks"
    wnut = [
        TAGGED.read(tasks / "wnut17" / f"{part}.conll", ReadingOptions(alternatives=","))
        for part in ("train", "dev", "test")
    ]
    ewt = [TAGGED.read(tasks / "ud_ewt" / f"{part}.conllu") for part in ("dev", "test")]
    for files in (wnut, ewt):
        examples = [example for sentences in files for example in sentences]
        task = TaggingTask.of(examples)
        units = task.encode(tokenizer, examples, max_length)
        back = [task.labels[label] for unit in units for label in unit.label if label != NO_LABEL]
        assert back == [tag for example in examples for tag in example.tags]
        assert max(len(unit.label) for unit in units) <= max_length
        for unit in units:
            assert len(unit.label) == len(unit.input_ids[0]) == len(unit.token_type_ids[0])
            starts = [index for index, label in zip(unit.input_ids[0], unit.label, strict=True) if label != NO_LABEL]
            assert not any(tokenizer.vocab[index].startswith("##") for index in starts)
        assert (len(units) > len(examples)) == (max_length == 16)


def guesses(examples: list[TaggedWords], changes: dict[tuple[int, int], str]) -> list[WordTags]:
    """The true tags, some of them changed."""
    return [
        WordTags(
            tuple(changes.get((n, place), tag) for place, tag in enumerate(example.tags)),
            tuple(0.5 + 0.01 * place for place in range(len(example.tags))),
        )
        for n, example in enumerate(examples)
    ]


def test_entity_figures_equal_seqeval():
    examples = make_entities(30)
    changes = {(0, 0): "O", (3, 1): "B-PER", (5, 4): "B-PER", (7, 2): "B-THING", (9, 5): "B-THING"}
    predictions = guesses(examples, changes)
    scores = TaggingTask.of(examples).evaluate(examples, predictions)
    truth, found = [list(e.tags) for e in examples], [list(p.tags) for p in predictions]
    assert scores.metrics["f1"] == pytest.approx(f1_score(truth, found))
    assert scores.metrics["macro_f1"] == pytest.approx(f1_score(truth, found, average="macro"))
    assert scores.intervals["f1"].low < scores.metrics["f1"] < scores.intervals["f1"].high
    assert from_json(Evaluation, json.loads(json.dumps(to_json(scores)))) == scores


def test_plain_figures_equal_scikit_learn():
    examples = make_plain(30)
    predictions = guesses(examples, {(0, 0): "NOUN", (3, 1): "DET", (5, 4): "VERB"})
    scores = TaggingTask.of(examples).evaluate(examples, predictions)
    truth = [tag for e in examples for tag in e.tags]
    found = [tag for p in predictions for tag in p.tags]
    assert scores.metrics["accuracy"] == pytest.approx(accuracy_score(truth, found))
    assert scores.intervals["accuracy"].estimate == pytest.approx(scores.metrics["accuracy"])
    assert scores.confusion is not None
    assert sum(map(sum, scores.confusion)) == len(truth)


def test_mistakes_name_what_was_found_and_missed_in_context():
    words = (*"abcdefghij", "Angela", "Merkel", *"klmnopqr", "Paris")
    tags = ["O"] * 10 + ["B-PER", "I-PER"] + ["O"] * 8 + ["B-LOC"]
    example = TaggedWords(words, tuple(tags))
    found = list(tags)
    found[10:12] = ["O", "B-PER"]
    found[20] = "O"
    found[0] = "B-LOC"
    prediction = WordTags(tuple(found), tuple(0.9 if place < 5 else 0.6 for place in range(len(found))))
    mistakes = TaggingTask(("B-LOC", "B-PER", "I-PER", "O")).evaluate([example], [prediction]).mistakes
    assert [(m.expected, m.predicted) for m in mistakes] == [
        ("O", "a (LOC)"),
        ("Angela Merkel (PER)", "Merkel (PER)"),
        ("Paris (LOC)", "O"),
    ]
    assert [m.confidence for m in mistakes] == pytest.approx([0.9, 0.6, 0.6])
    assert mistakes[0].text == "»a« b c d e f g h i …"
    assert mistakes[1].text == "… c d e f g h i j »Angela Merkel« k l m n o p q r …"


def test_a_long_sentence_is_predicted_whole(tiny_model):
    example = TaggedWords(("the", "man") * 60, ("B-PER", "I-PER") * 60)
    task = TaggingTask(("B-PER", "I-PER", "O"))
    model = task.build(tiny_model, FineTuningSettings())
    predictions = task.predict(model, WordPieceTokenizer.load(tiny_model), [example], InferenceConfig("cpu", "float32"))
    assert len(predictions[0].tags) == len(predictions[0].probabilities) == 120


def test_an_unknown_tag_names_its_word():
    task = TaggingTask(("B-PER", "O"))
    strange = [make_entities(1)[0], TaggedWords(("the", "snow"), ("O", "B-ICE"))]
    with pytest.raises(InputError, match=r"sentence 1: the tag 'I-PER' of the word 'man' does not occur"):
        task.metrics(strange, guesses(strange, {}))


@pytest.mark.parametrize(
    ("labels", "metric"),
    [
        (("B-PER", "I-PER", "O"), "f1"),
        (("B-X", "E-X", "I-X", "S-X"), "f1"),
        (("O", "PER"), "f1"),
        (("ADJ", "NOUN"), "accuracy"),
    ],
)
def test_the_tags_decide_the_metric(labels, metric):
    assert TaggingTask(labels).metric == metric
    assert TaggingTask.from_description(TaggingTask(labels).describe()) == TaggingTask(labels)
