import gzip

import pytest

from bertsmith.errors import InputError
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.tagged import TAGGED, TaggedWords, tags_of


def write(tmp_path, content, name="data.conll"):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / name


def line(*cells):
    return "\t".join([*cells, *["_"] * (10 - len(cells))]) + "\n"


def test_two_columns_with_blank_lines_between(tmp_path):
    content = "\n\nNew\tB-LOC\nYork\tI-LOC\n\t\n#tag\tO\n"
    expected = [TaggedWords(("New", "York"), ("B-LOC", "I-LOC")), TaggedWords(("#tag",), ("O",))]
    assert TAGGED.read(write(tmp_path, content)) == expected
    assert TAGGED.read(write(tmp_path, gzip.compress(content.encode()), "data.conll.gz")) == expected
    assert tags_of(expected) == ["B-LOC", "I-LOC", "O"]


def test_four_columns_of_the_shared_task(tmp_path):
    content = (
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n-DOCSTART- -X- -X- O\nPeter NNP B-NP B-PER\r\n"
    )
    path = write(tmp_path, content)
    assert TAGGED.read(path) == [TaggedWords(("EU", "rejects"), ("B-ORG", "O")), TaggedWords(("Peter",), ("B-PER",))]
    assert TAGGED.read(path, ReadingOptions(word_column=0, tag_column=1))[0].tags == ("NNP", "VBZ")


def test_a_word_may_hold_a_space_where_tabs_separate(tmp_path):
    assert TAGGED.read(write(tmp_path, "10 000\tCD\nkm\tNN\n")) == [TaggedWords(("10 000", "km"), ("CD", "NN"))]


def test_a_word_may_be_white_space(tmp_path):
    """As in Chinese files with a character a line; a line without a tag is a blank one."""
    for content in ("京\tB\n\u3000\tO\n \tO\n\u3000\n", "京 B\n\u3000 O\n\xa0 O\n"):
        (sentence,) = TAGGED.read(write(tmp_path, content))
        assert sentence.tags == ("B", "O", "O")
        assert sentence.words[1] == "\u3000"


def test_tags_are_not_read_from_cells_of_text(tmp_path):
    path = write(tmp_path, b"words,tags\na,O\n", "data.csv")
    with pytest.raises(InputError, match="words and tags are read from CoNLL, CoNLL-U, JSON or Parquet, not"):
        TAGGED.read(path)


def test_the_ending_of_conllu_may_be_in_capitals(tmp_path):
    path = write(tmp_path, line("1", "I", "I", "PRON"), "DEV.CONLLU")
    assert TAGGED.read(path) == [TaggedWords(("I",), ("PRON",))]


def test_the_first_of_several_tags_is_taken(tmp_path):
    path = write(tmp_path, "Apple\tB-corporation,B-product\n")
    assert TAGGED.read(path)[0].tags == ("B-corporation,B-product",)
    assert TAGGED.read(path, ReadingOptions(alternatives=","))[0].tags == ("B-corporation",)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("", {}, "holds no sentence"),
        ("word\n", {}, "line 1 has one column"),
        ("a\tO\nb\n", {}, "line 2 has 1 columns, the first has 2"),
        ("a\tO\nb O\n", {}, "line 2 has 1 columns"),
        ("a\tO\n\nb\tO\tO\n", {}, "line 3 has 3 columns"),
        ("a\tO\nb\t\n", {}, "line 2 has no tag"),
        ("a\tO\n\tO\n", {}, "line 2 has an empty word"),
        ("a\tO\n", {"tag_column": 2}, "no column 2"),
        ("a\tO\n", {"word_column": -3}, "no column -3"),
        (b"a\tO\ncaf\xe9\tO\n", {"encoding": "utf-8"}, "line 2 is not valid utf-8"),
    ],
)
def test_bad_conll_is_refused_with_file_and_line(tmp_path, content, options, message):
    with pytest.raises(InputError, match="data.conll: ") as caught:
        TAGGED.read(write(tmp_path, content), ReadingOptions(**options))
    assert message in str(caught.value)


def test_multiword_tokens_and_empty_nodes_of_conllu(tmp_path):
    content = (
        "# text = I didn't\n"
        + line("1", "I", "I", "PRON", "PRP", "Case=Nom")
        + line("2-3", "didn't")
        + line("2", "did", "do", "AUX", "VBD")
        + line("3", "n't", "not", "PART", "RB")
        + line("3.1", "go", "go", "VERB", "VB")
        + "\n# next\n"
        + line("1", "_", "_", "SYM", "NFP")
    )
    path = write(tmp_path, content, "data.conllu")
    assert TAGGED.read(path) == [
        TaggedWords(("I", "did", "n't"), ("PRON", "AUX", "PART")),
        TaggedWords(("_",), ("SYM",)),
    ]
    assert TAGGED.read(path, ReadingOptions(tag_column="xpos"))[0].tags == ("PRP", "VBD", "RB")
    assert TAGGED.read(path, ReadingOptions(tag_column="feats"))[0].tags == ("Case=Nom", "_", "_")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("# nothing\n", "holds no sentence"),
        ("1\ta\tNOUN\n", "line 1 has 3 columns; CoNLL-U has ten"),
        (line("1", "a", "a", "X") + line("3", "b", "b", "X"), "line 2 has the id '3', 2 comes next"),
        (line("1", "a", "a", "X") + line("1", "b", "b", "X"), "line 2 has the id '1', 2 comes next"),
        (line("1", "a"), "line 1 has no upos"),
        (line("1", " ", "a", "X"), "line 1 has an empty word"),
    ],
)
def test_bad_conllu_is_refused_with_file_and_line(tmp_path, content, message):
    with pytest.raises(InputError, match="data.conllu: ") as caught:
        TAGGED.read(write(tmp_path, content, "data.conllu"))
    assert message in str(caught.value)


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_wnut_holds_what_a_plain_split_finds(shared_data, part):
    path = shared_data / "tasks" / "wnut17" / f"{part}.conll"
    expected, block = [], []
    for text in [*path.read_text(encoding="utf-8").split("\n"), ""]:
        if text.strip():
            block.append(tuple(text.split("\t")))
        elif block:
            expected.append(block)
            block = []
    sentences = TAGGED.read(path)
    assert [list(zip(s.words, s.tags, strict=True)) for s in sentences] == expected
    # the test file keeps every annotator's tag; with the first of them all three parts have the 13 tags
    assert len(tags_of(TAGGED.read(path, ReadingOptions(alternatives=",")))) == 13


@pytest.mark.parametrize("part", ["dev", "test"])
def test_the_treebank_holds_its_numbered_words(shared_data, part):
    path = shared_data / "tasks" / "ud_ewt" / f"{part}.conllu"
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = [text.split("\t") for text in lines if text[:1].isdigit()]
    expected = [(row[1], row[3]) for row in rows if row[0].isdigit()]
    sentences = TAGGED.read(path)
    assert [pair for s in sentences for pair in zip(s.words, s.tags, strict=True)] == expected
    assert len(sentences) == sum(text.startswith("# sent_id") for text in lines)
    assert len(tags_of(sentences)) == 17


@pytest.mark.parametrize(
    ("text", "words", "skipped"),
    [
        ("# newdoc\nada B-PER\nmoved O\n\n# newdoc\n# O\n1 O\n", [["ada", "moved"], ["#", "1"]], 2),
        ("# id 00-1f\tdomain=en\nada _ _ B-PER\nmoved _ _ O\n", [["ada", "moved"]], 1),
        ("#\thttp://example.org/0 [2009]\nada\tB-PER\tO\nmoved\tO\tO\n", [["ada", "moved"]], 1),
        ("#begin document (a); part 000\nada B-PER\nmoved O\n\n#end document\n", [["ada", "moved"]], 2),
    ],
)
def test_comments_before_sentences_are_skipped_and_counted(tmp_path, text, words, skipped):
    path = tmp_path / "a.conll"
    path.write_text(text)
    with pytest.warns(UserWarning, match=rf"skipped {skipped} comment lines, the first is line 1: '#"):
        found = TAGGED.read(path)
    assert [list(sentence.words) for sentence in found] == words


def test_a_sign_that_is_a_word_stays_one(tmp_path, recwarn):
    path = tmp_path / "a.conll"
    path.write_text("# #\n200 CD\n\n# CD\n#1 CD\n\n#love NN\n")
    assert [sentence.words for sentence in TAGGED.read(path)] == [("#", "200"), ("#", "#1"), ("#love",)]
    assert not recwarn.list


def test_sentences_with_faults_are_left_out_where_asked(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("ada B-PER\n\nmoved\n\nto O\n")
    with pytest.raises(InputError, match="line 3 has 1 columns"):
        TAGGED.read(path)
    with pytest.warns(UserWarning, match="left out 1 sentences: line 3 has 1 columns"):
        found = TAGGED.read(path, ReadingOptions(faults="skip"))
    assert [sentence.words for sentence in found] == [("ada",), ("to",)]


def test_a_row_without_a_word_is_left_out_and_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"tokens": ["a"], "tags": ["O"]}\n{"tokens": [], "tags": []}\n' * 2)
    with pytest.warns(UserWarning, match=r"a\.jsonl: left out 2 sentence\(s\) without a word"):
        assert len(TAGGED.read(tmp_path / "a.jsonl")) == 2
