"""What vectors are learned from: the kind is found from the columns; what could be two things is refused."""

import json

import pytest

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.related import (
    RELATED,
    CorpusPassage,
    JudgedQuery,
    RelatedTexts,
    read_unlabelled,
    related_of_beir,
)
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText

PAIR = RelatedTexts("a man", "eats bread")
MINED = RelatedTexts("a man", "eats bread", ("reads", "sleeps"))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.tsv", "a man\teats bread\n", PAIR),
        ("a.csv", 'query,passage\n"a man","eats bread"\n', PAIR),
        (
            "a.tsv",
            "anchor\tpositive\tnegative\na man\teats bread\treads\n",
            RelatedTexts("a man", "eats bread", ("reads",)),
        ),
        ("a.tsv", "a man\teats bread\treads\n", RelatedTexts("a man", "eats bread", ("reads",))),
        ("a.tsv", "query\tpositive\tnegative_2\tnegative_1\na man\teats bread\tsleeps\treads\n", MINED),
        ("a.jsonl", '{"query": "a man", "positive": "eats bread", "negatives": ["reads", "sleeps"]}', MINED),
        (
            "a.jsonl",
            '{"query": "a man", "positive": "eats bread", "negative": "reads"}',
            RelatedTexts("a man", "eats bread", ("reads",)),
        ),
        (
            "a.jsonl",
            '{"query": "a man", "positive": "eats bread", "negatives": ["reads"], "scores": [0.9, 0.2]}',
            RelatedTexts("a man", "eats bread", ("reads",), (0.9, 0.2)),
        ),
        ("a.csv", "a man,eats bread,3.8\n", ScoredText("a man", "eats bread", 3.8)),
        ("a.csv", "sentence1,sentence2,score\na man,eats bread,3.8\n", ScoredText("a man", "eats bread", 3.8)),
        ("a.tsv", "text\tlabel\na man\tperson\n", LabelledText("a man", None, "person")),
        ("a.jsonl", '{"text": "a man", "label": 3}', LabelledText("a man", None, "3")),
    ],
)
def test_the_columns_say_what_a_file_is_made_of(name, text, expected, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert RELATED.read(tmp_path / name) == [expected]


def test_a_line_may_lack_its_negatives(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = (
        {"query": "a man", "positive": "eats bread", "negatives": []},
        {"query": "a man", "positive": "eats bread"},
    )
    path.write_text("\n".join(map(json.dumps, [{"query": "q", "positive": "p", "negatives": ["n"]}, *lines])))
    assert RELATED.read(path)[1:] == [PAIR, PAIR]


def test_columns_can_be_named(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("frage\tantwort\tfalsch\na man\teats bread\treads\n")
    options = ReadingOptions(text_column="frage", pair_column="antwort", negative_column="falsch")
    assert RELATED.read(path, options) == [RelatedTexts("a man", "eats bread", ("reads",))]
    path.write_text("a man\tperson\na book\tthing\n")
    told = ReadingOptions(text_column=0, label_column=1)
    assert RELATED.read(path, told) == [LabelledText("a man", None, "person"), LabelledText("a book", None, "thing")]


def test_questions_and_their_passages_are_pairs(tmp_path):
    def entry(number, **more):
        return {
            "id": str(number),
            "question": f"who {number}?",
            "answers": [{"text": "man", "answer_start": 2}],
            **more,
        }

    impossible = entry(2, answers=[], is_impossible=True)
    squad = {"data": [{"paragraphs": [{"context": "a man eats", "qas": [entry(1), impossible]}]}]}
    for name, text in (("a.json", json.dumps(squad)), ("b.json", json.dumps(squad, indent=1))):
        (tmp_path / name).write_text(text)
        assert RELATED.read(tmp_path / name) == [RelatedTexts("who 1?", "a man eats")]
    squad["data"][0]["paragraphs"][0]["qas"] = [impossible]
    (tmp_path / "c.json").write_text(json.dumps(squad))
    with pytest.raises(InputError, match=r"c\.json: no query has a text that answers it"):
        RELATED.read(tmp_path / "c.json")


@pytest.fixture
def beir(tmp_path):
    def lines(*records):
        return "\n".join(map(json.dumps, records)) + "\n"

    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    passages = ({"_id": "d1", "title": "Bread", "text": "is eaten"}, {"_id": "d2", "title": "", "text": "a book"})
    (folder / "corpus.jsonl").write_text(lines(*passages))
    (folder / "queries.jsonl").write_text(
        lines({"_id": "q1", "text": "what is eaten"}, {"_id": "q2", "text": "unused"})
    )
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq1\tgone\t0\n")
    return folder


def test_a_folder_of_beir(beir):
    found = RELATED.read(beir)
    assert found == [
        CorpusPassage("d1", "Bread is eaten"),
        CorpusPassage("d2", "a book"),
        JudgedQuery("q1", "what is eaten", (("d1", 2.0), ("d2", 0.0), ("gone", 0.0))),
    ]
    assert RELATED.read(beir / "qrels" / "test.tsv") == found
    assert related_of_beir(found) == [RelatedTexts("what is eaten", "Bread is eaten")]


def test_what_is_wrong_with_a_folder_of_beir_is_said(beir):
    judged = beir / "qrels" / "test.tsv"
    (beir / "qrels" / "dev.tsv").write_text("q1\td1\t1\n")
    with pytest.raises(InputError, match="holds dev.tsv, test.tsv; name one of its files"):
        RELATED.read(beir)
    for text, message in (
        ("q9\td1\t1\n", "judges query 'q9', which queries.jsonl lacks"),
        ("q1\td9\t1\n", "judges text 'd9', which corpus.jsonl lacks"),
        ("q1\td1\tgood\nq1\td1\tgood\n", "judgement 'good' is not a finite number"),
    ):
        judged.write_text(text)
        with pytest.raises(InputError, match=message):
            RELATED.read(judged)
    judged.write_text("q1\td1\t1\n")
    (beir / "corpus.jsonl").write_text('{"id": "d1", "text": "a"}\n')
    with pytest.raises(InputError, match="no _id or no text among id, text"):
        RELATED.read(judged)


def test_faults_of_a_folder_of_beir_are_left_out_where_asked(beir):
    whole = RELATED.read(beir)
    with (beir / "qrels" / "test.tsv").open("a") as judged:
        judged.write("q9\td1\t1\nq1\td9\t1\nq1\td1\n\td1\t1\nq1\td2\tgood\n")
    with (beir / "corpus.jsonl").open("a") as passages:
        passages.write('{"_id": "", "text": "no name"}\n')
    with pytest.raises(InputError, match="line 7 has 2 columns; .*; or leave such rows out with --faults skip"):
        RELATED.read(beir)
    with pytest.warns(UserWarning, match="beir: left out 6 judgements and texts: ") as caught:
        assert RELATED.read(beir, ReadingOptions(faults="skip")) == whole
    for said in (
        "line 7 has 2 columns",
        "line 8 has an empty judgement",
        "line 3 has an empty _id",
        "judges query 'q9'",
    ):
        assert said in str(caught[0].message)


def test_a_folder_of_beir_that_judges_nothing_relevant_is_refused(beir):
    judged = beir / "qrels" / "test.tsv"
    for rows in ("", "q1\td2\t0\n"):
        judged.write_text(f"query-id\tcorpus-id\tscore\n{rows}")
        with pytest.raises(InputError, match="test.tsv: no query has a text that answers it"):
            RELATED.read(judged)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "", "holds no line|is empty|no row"),
        ("a.tsv", "one column\n", "one column of texts and nothing beside it"),
        (
            "a.tsv",
            "a man\tgood\n" * 30,
            "column 1 has 1 different values only; if they are classes, say --label-column 1",
        ),
        ("a.csv", "sentence1,sentence2,score\na,b,nan\n", "'nan' is not a finite number"),
        ("a.csv", "sentence1,sentence2,score\na,b,1e99\n", "the score 1e99 does not fit 32 bits; scale the scores"),
        ("a.csv", "sentence1,sentence2,label\na,b,entailment\n", "'entailment' is not a finite number"),
        ("a.tsv", "query\tpositive\na\t\n", "line 2 has an empty text"),
        (
            "a.jsonl",
            '{"query": "a", "positive": "b", "negatives": ["c"], "scores": [1]}',
            "1 scores for a positive and 1",
        ),
        ("a.jsonl", '{"query": "a", "positive": "b", "negatives": [3.5, {}]}', "negatives is a dict"),
        ("a.jsonl", '{"query": "a", "positive"', "not valid JSON"),
        ("a.json", '{"data": [{"x": 1}]}', 'has no list "paragraphs"'),
    ],
)
def test_bad_input_is_one_line_with_its_place(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        RELATED.read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def sentences_of(number):
    return [f"Sentence {letter} of story {number} is here." for letter in "abcdefgh"]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "texts"
    place.mkdir()
    for number in range(30):
        (place / f"{number:02d}.txt").write_text(" ".join(sentences_of(number)) + "\n")
    return place


def number_of(text):
    return text.split(" of story ")[1].split()[0]


def test_a_sentence_and_what_stands_around_it(folder):
    train, dev = read_unlabelled(folder, "cloze")
    assert len(train) + len(dev) == 60
    kept = 0
    for pair in train + dev:
        story = sentences_of(number_of(pair.query))
        first = 4 * (story.index(pair.query) // 4)
        rest = [sentence for sentence in story[first : first + 4] if sentence != pair.query]
        kept += pair.query in pair.positive
        assert pair.positive in (" ".join(rest), " ".join(story[first : first + 4]))
    assert 0 < kept < 20
    # the epoch is chosen by documents that nothing was learned from
    assert {number_of(pair.query) for pair in train}.isdisjoint(number_of(pair.query) for pair in dev)


def test_a_book_is_held_out_with_all_its_parts(tmp_path):
    def book(number):
        return " ".join(f"Sentence {place} of story {number} is here." for place in range(300))

    books = tmp_path / "books"
    books.mkdir()
    for number in range(12):
        (books / f"{number}.txt").write_text(book(number) + "\n")
    train, dev = read_unlabelled(books)
    assert {number_of(pair.query) for pair in train}.isdisjoint(number_of(pair.query) for pair in dev)
    # of one book alone, parts are held out
    (tmp_path / "one.txt").write_text(book(0) + "\n")
    train, dev = read_unlabelled(tmp_path / "one.txt")
    assert train
    assert dev


def test_a_stretch_and_the_next_one(folder):
    train, dev = read_unlabelled(folder, "adjacent")
    story = sentences_of(number_of(train[0].query))
    assert (train[0].query, train[0].positive) == (" ".join(story[:2]), " ".join(story[2:4]))
    assert len(train) % 3 == 0
    assert dev == read_unlabelled(folder, "cloze")[1]


def test_words_in_a_row_and_the_stretch_they_are_from(folder):
    train, dev = read_unlabelled(folder, "span")
    for pair in train:
        story = sentences_of(number_of(pair.positive))
        assert pair.positive in (" ".join(story[:4]), " ".join(story[4:]))
        assert f" {pair.query} " in f" {pair.positive} "
    assert {len(pair.query.split()) for pair in train} <= set(range(3, 13))
    assert len({len(pair.query.split()) for pair in train}) > 5
    assert dev == read_unlabelled(folder, "cloze")[1]


def test_a_span_of_chinese_is_of_characters(tmp_path):
    for number in range(80):
        (tmp_path / f"{number:02d}.txt").write_text(
            f"第{number}家店的汤很好喝。第{number}位老板人不错。", encoding="utf-8"
        )
    train, _ = read_unlabelled(tmp_path, "span")
    assert all(pair.query in pair.positive and 2 <= len(pair.query) <= 13 for pair in train)
    # 一段的一半以下：句子不会整个变成问题
    assert max(len(pair.query) for pair in train) <= 13 < min(len(pair.positive) for pair in train)


def test_a_sentence_and_itself(folder):
    train, _ = read_unlabelled(folder, "same")
    assert all(pair.query == pair.positive for pair in train)
    assert len({pair.query for pair in train}) == len(train)


def test_the_same_seed_gives_the_same_pairs(folder):
    assert read_unlabelled(folder, seed=3) == read_unlabelled(folder, seed=3) != read_unlabelled(folder, seed=4)


def test_copies_are_left_out(folder):
    (folder / "99.txt").write_text((folder / "00.txt").read_text())
    train, dev = read_unlabelled(folder, "adjacent")
    assert len({pair.positive for pair in train}) == len(train)
    assert len({pair.query for pair in dev}) == len(dev)


def test_text_that_gives_nothing_is_refused(tmp_path, folder):
    with pytest.raises(ConfigError, match="positives 'next' are unknown; use span, cloze, adjacent, same"):
        read_unlabelled(folder, "next")
    (tmp_path / "a.txt").write_text("One sentence only.\n")
    with pytest.raises(InputError, match="1 documents give 0 pairs to learn from and 0 to choose the epoch by"):
        read_unlabelled(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(InputError, match="no sentence found"):
        read_unlabelled(tmp_path / "b.txt")
    with pytest.raises(InputError, match="0 documents give 0 pairs"):
        read_unlabelled([{"text": "* * *"}])
