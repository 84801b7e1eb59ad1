from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertsmith.errors import InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.tagged import TAGGED
from bertsmith.inference.engine import InferenceConfig
from bertsmith.inference.tag import Tag, WordPieces, pieces_of_words, word_windows
from bertsmith.model import BertForTokenClassification
from bertsmith.tokenizer import WordPieceTokenizer

BIO = ("B-PER", "I-PER", "B-LOC", "I-LOC", "O")
CPU = InferenceConfig("cpu", "float32")


def make_tagger(folder: Path, labels, out: Path) -> Path:
    """A tagger with a random head whose tags differ from word to word."""
    torch.manual_seed(1)
    names = dict(enumerate(labels))
    model = BertForTokenClassification.from_pretrained(folder, new_heads=True, id2label=names, initializer_range=0.5)
    model.save_pretrained(out)
    WordPieceTokenizer.load(folder).save(out)
    return out


@pytest.fixture
def tagger(tiny_model, tmp_path) -> Tag:
    folder = make_tagger(tiny_model, BIO, tmp_path / "tagger")
    return Tag(BertForTokenClassification.from_pretrained(folder), WordPieceTokenizer.load(folder), CPU)


@pytest.fixture(scope="module")
def real_tagger(minilm_folder, tmp_path_factory) -> Path:
    return make_tagger(minilm_folder, BIO, tmp_path_factory.mktemp("tagger"))


TEXTS = [
    "Angela Merkel met Barack Obama in New-York, on Monday.",
    "Où est le café Müller ?",
    "x",
    "",
    " \u200b ",
    "unbelievably long-winded (and antidisestablishmentarian) sentences!",
    "北京 is big.",
]


def test_entities_equal_those_of_the_reference_pipeline(real_tagger):
    """`first` reads a word at its first piece and averages over words, as ours does."""
    ours = Tag(BertForTokenClassification.from_pretrained(real_tagger), WordPieceTokenizer.load(real_tagger), CPU)
    texts = [text for text in TEXTS if text.strip(" \u200b")]
    reference = transformers.pipeline("token-classification", str(real_tagger), aggregation_strategy="first")
    found = ours(texts)
    assert sum(map(len, found)) > 5
    for entities, expected in zip(found, (reference(text) for text in texts), strict=True):
        assert [(e.type, e.start, e.end) for e in entities] == [
            (row["entity_group"], row["start"], row["end"]) for row in expected
        ]
        assert [e.probability for e in entities] == pytest.approx([float(row["score"]) for row in expected], abs=1e-4)


def test_an_entity_is_the_characters_it_names(tagger):
    for text, entities in zip(TEXTS, tagger(TEXTS), strict=True):
        for entity in entities:
            assert entity.text == text[entity.start : entity.end] != ""
            assert 0 < entity.probability <= 1


@pytest.mark.parametrize(
    ("text", "tags", "found"),
    [
        (
            "the man eats bread in the book",
            ["O", "B-PER", "I-PER", "E-PER", "O", "S-LOC", "S-LOC"],
            [("PER", "man eats bread"), ("LOC", "the"), ("LOC", "book")],
        ),
        (
            "the man eats.",
            ["DET", "NOUN", "VERB", "PUNCT"],
            [("DET", "the"), ("NOUN", "man"), ("VERB", "eats"), ("PUNCT", ".")],
        ),
        ("the man eats a book", ["PER", "PER", "O", "O", "THING"], [("PER", "the man"), ("THING", "book")]),
        ("the cafe\u0301 eats", ["DET", "NOUN", "VERB"], [("DET", "the"), ("NOUN", "cafe\u0301"), ("VERB", "eats")]),
    ],
    ids=["BIOES", "plain", "plain with an O", "an accent of its own"],
)
def test_tags_become_entities(text, tags, found, tagger, monkeypatch):
    """The entities where the model would predict these tags."""
    labels, wanted = list(dict.fromkeys(tags)), iter(tags)

    def run_tokens(sequences, _types, _read):
        pieces = [tagger.tokenizer.vocab[index] for index in sequences[0][1:-1]]
        # inside a word label 0 stands, so that reading there would show
        numbers = [0 if piece.startswith("##") else labels.index(next(wanted)) for piece in pieces]
        return [torch.eye(len(labels))[[0, *numbers, 0]].log()]

    monkeypatch.setattr(tagger, "labels", labels)
    monkeypatch.setattr(tagger.engine, "run_tokens", run_tokens)
    assert [(entity.type, entity.text) for entity in tagger([text])[0]] == found


def test_words_that_are_nothing_to_the_tokenizer_get_a_tag(tagger):
    sentences = [["the", "\u200b", "man", "\ufffd", "", "☃", "w" * 200], [], ["\u00ad"]]
    rows = tagger.score_words(sentences)
    assert [len(row.tags) for row in rows] == [7, 0, 1]
    assert {tag for row in rows for tag in row.tags} <= set(BIO)
    assert tagger.tag_words(sentences) == [list(row.tags) for row in rows]


def test_every_word_of_a_long_sentence_gets_the_tag_of_its_best_window(tagger):
    """The model reads 32 ids; every word is compared with a run over its own best window, cut by brute force."""
    words = [("the", "man", "eats", "thebread", "manreads", "woman's")[(i * i) % 6] for i in range(150)]
    tags = tagger.tag_words([words])[0]
    assert len(tags) == 150
    pieces = pieces_of_words(tagger.tokenizer, [words])
    for window in word_windows(tagger.tokenizer, pieces, 32):
        assert len(window.input_ids) <= 32
        rows = tagger.engine.run_tokens([window.input_ids], None, lambda model, batch: model(batch))[0]
        for word, position in zip(window.words, window.positions, strict=True):
            assert tags[word] == BIO[int(rows[position].argmax())]


@pytest.mark.parametrize("seed", range(30))
def test_windows_read_every_word_once_where_it_has_most_context(tagger, seed):
    """Against the definition: the smaller of the contexts left and right; a sentence's edge is all the context."""
    draws = np.random.default_rng(seed)
    room = int(draws.integers(1, 40))
    sizes = draws.integers(1, min(room, 1 + int(draws.integers(1, 12))) + 1, int(draws.integers(1, 120))).tolist()
    bounds = np.cumsum([0, *sizes]).tolist()
    sentence = WordPieces(list(range(10, 10 + bounds[-1])), sizes)
    windows = list(word_windows(tagger.tokenizer, [sentence], room + 2))
    assert [word for window in windows for word in window.words] == list(range(len(sizes)))
    spans = [(window.input_ids[1] - 10, window.input_ids[-2] - 10 + 1) for window in windows]
    assert all(end - start <= room for start, end in spans)
    assert {start for start, _ in spans} <= set(bounds)
    assert {end for _, end in spans} <= set(bounds)

    def context(span, word):
        if not span[0] <= bounds[word] < bounds[word + 1] <= span[1]:
            return -1
        left = float("inf") if span[0] == 0 else bounds[word] - span[0]
        right = float("inf") if span[1] == bounds[-1] else span[1] - bounds[word + 1]
        return min(left, right)

    for window, span in zip(windows, spans, strict=True):
        for word, position in zip(window.words, window.positions, strict=True):
            assert window.input_ids[position] == 10 + bounds[word]
            assert context(span, word) == max(context(other, word) for other in spans)


def test_a_word_longer_than_a_sequence_keeps_its_first_pieces(tagger):
    ids = list(range(5, 65))
    windows = list(word_windows(tagger.tokenizer, [WordPieces(ids, [1, 58, 1])], 12))
    assert [word for window in windows for word in window.words] == [0, 1, 2]
    assert windows[1].input_ids[1:-1] == ids[1:11]


def test_too_little_room_and_strings_for_lists_are_refused(tagger):
    with pytest.raises(InputError, match="no room"):
        list(word_windows(tagger.tokenizer, [WordPieces([5], [1])], 2))
    with pytest.raises(InputError, match="lists of words"):
        tagger.tag_words(["the man"])
    assert tagger.tag_words([]) == []


def real_sentences(shared_data: Path) -> list[tuple[str, ...]]:
    tasks = shared_data / "tasks"
    files = [
        TAGGED.read(tasks / "wnut17" / f"{part}.conll", ReadingOptions(alternatives=","))
        for part in ("train", "dev", "test")
    ]
    files += [TAGGED.read(tasks / "ud_ewt" / f"{part}.conllu") for part in ("dev", "test")]
    return [sentence.words for sentences in files for sentence in sentences]


def test_word_starts_of_real_data_equal_the_reference(shared_data, tmp_path):
    """`transformers` splits the same words into the same ids and finds the same first pieces."""
    tokenizer = WordPieceTokenizer.load(shared_data / "vocab-uncased-30522.txt")
    tokenizer.save(tmp_path)
    reference = transformers.BertTokenizerFast.from_pretrained(str(tmp_path))
    sentences = real_sentences(shared_data)
    encoded = reference([list(words) for words in sentences], is_split_into_words=True)
    windows = list(word_windows(tokenizer, pieces_of_words(tokenizer, sentences), 512))
    assert len(windows) == len(sentences)
    different = []
    for number, (window, ids) in enumerate(zip(windows, encoded["input_ids"], strict=True)):
        word_ids = encoded.word_ids(number)
        starts = {word: place for place, word in reversed(list(enumerate(word_ids))) if word is not None}
        if window.input_ids != ids or dict(zip(window.words, window.positions, strict=True)) != starts:
            different.append(sentences[number])
    # the reference drops words without a piece, which here hold their place as [UNK]
    assert all(any(not tokenizer.encode(word) for word in words) for words in different), different[:2]
    assert len(different) < 20
