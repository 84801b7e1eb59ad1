"""Sentence splitting against hand-made expectations, and what must hold for any text at all."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.data.reading.sentences import MAX_SENTENCE_LENGTH, split_sentences

# Each example is written with `|` where the sentences part; without it, it is the paragraph (plus a space in English).
ENGLISH = [
    "The cat sat.|It slept.",
    "Mr. Smith met Dr. Jones and Mrs. Brown.|They talked.",
    "We saw animals, e.g. Lions and tigers, i.e. Big cats.|All slept.",
    "He lives in the U.S. Congress pays him.",  # in doubt, no cut
    "He lives in the U.S.|He likes it.",
    "J. R. R. Tolkien wrote it.|C. S. Lewis read it.",
    "John F. Kennedy and Harry S. Truman spoke.|People listened.",
    "Pi is 3.14 and e is 2.71.|Both go on.",
    "See No. 5 and Vol. 2, pp. 10 f. for more.|The end.",
    "See No. IV.|Then rest.",
    "She said no.|I left.",
    "He came on Jan. 5 and left on Dec. 24.|Nobody saw him.",
    "Wait... what?|Yes!",
    "It ended...|Nobody came.",
    "I... I do not know.|Maybe.",
    "… And then it rained.|We went in.",
    "What?!|No!!!|Yes.",
    '"Go!" he said.|"Now!"',
    '"Will you come?" she asked.|"Perhaps."',
    "He said “Stop.”|Then he left.",
    "(She smiled.)|He did not.",
    "It is true.[12]|It was proved in 1905.[3][4]|Good.",
    "Visit example.com or www.test.org/a.html?x=1.|Then write to a.b@c.de.",
    "Open notes.txt and main.py first.|Read them.",
    "1. Wash the apples.|2. Cut them.",
    "IV. The voyage begins here.|Nobody knew.",
    "The year was 1984.|The rest is known.",
    "no stop at the end of this line",
    "Dogs, cats, etc. are animals.|They eat, sleep, etc.|The end.",
    "He met Martin Luther King Jr. in Atlanta.|They ate.",
    "He went to Washington, D.C.|The crowd waited.",
    "World War I.|The peace came.",
    "My iPhone broke.|iPhones do that.",
    "St. John's Church stood there.|So did Mt. Hope.",
    "Roe v. Wade was decided.|It mattered.",
    "It was _over_.|_She_ wept.",
    "He left at 5 p.m. on Monday.|She stayed.",
    "Really?|— Yes, he said.",
    "a film with no capitals .|it works all the same .|does it ?|yes",
    "The war ended .|<unk> was free .",
    'He said " I came . "|Then he left .',
    'It was late .|" Go home , " she said .',
    "It rained ( a lot . )|We left .",
]
CHINESE = [
    "今天天气很好。|我们去公园吧！|你去吗？|好",
    "他说：“我不去。”|然后走了。",
    "「走吧！」|他回头看。",
    "『真的？』|她问。",
    "真的吗？！|当然。",
    "红的是苹果；黄的是梨。|都好吃。",
    "我……我不知道。|你呢？",
    "圆周率是3.14。|网址是www.example.com。|完",
    "（他没有来。）|大家都走了。",
    "电影《你好！世界》很好看。|《真的吗？》也不错。",
    "你好吗?|我很好!|谢谢",
    '他走了。|"好吧。"|她说。',
    "他喊“走！”，没人动。|夜深了。",
    "BERT是2018年提出的。|It works well.",
    "作者为K. Radhakrishnan。|完。",
]


@pytest.mark.parametrize("example", ENGLISH)
def test_english_sentences_part_where_a_reader_parts_them(example: str) -> None:
    assert split_sentences(example.replace("|", " ")) == example.split("|")


@pytest.mark.parametrize("example", CHINESE)
def test_chinese_sentences_part_without_spaces(example: str) -> None:
    assert split_sentences(example.replace("|", "")) == example.split("|")


@pytest.mark.parametrize("blank", ["", " ", "\n\t \u3000"])
def test_blank_text_has_no_sentences(blank: str) -> None:
    assert split_sentences(blank) == []


def test_white_space_becomes_one_space() -> None:
    assert split_sentences("  One\ntwo.\t\tThree \u00a0 four. ") == ["One two.", "Three four."]


def test_endless_sentence_is_cut_at_white_space() -> None:
    pieces = split_sentences("word " * 3000)
    assert all(1 <= len(piece) <= MAX_SENTENCE_LENGTH for piece in pieces)
    assert " ".join(pieces) == ("word " * 3000).strip()
    assert len(pieces) == 8  # 14,999 characters


def test_endless_chinese_sentence_is_cut_after_a_comma() -> None:
    pieces = split_sentences("一二三四五六七八九，" * 500)
    assert [piece[-1] for piece in pieces] == ["，"] * len(pieces)
    assert "".join(pieces) == "一二三四五六七八九，" * 500


def test_endless_word_is_cut_hard() -> None:
    assert [len(piece) for piece in split_sentences("x" * 4100)] == [2000, 2000, 100]


SIGNS = list(".!?…。！？；，\"'”’」』）)]([《》“‘「-—_ \n\t\u3000\u0301😀1")
WORDS = ["...", "……", "Mr.", "No.", "e.g.", "U.S.", "J.", "<unk>", "[1]", "a", "A", "I", "The", "你", "好", "3.14"]
TRICKY = st.lists(st.sampled_from(SIGNS + WORDS), max_size=60).map("".join)


@settings(max_examples=500, deadline=None)
@given(st.one_of(TRICKY, st.text(max_size=200)))
def test_nothing_but_white_space_is_lost(paragraph: str) -> None:
    sentences = split_sentences(paragraph)
    assert "".join("".join(sentences).split()) == "".join(paragraph.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in sentences)


@settings(max_examples=30, deadline=None)
@given(st.text(alphabet="ab é,，你", min_size=2000, max_size=9000))
def test_nothing_is_lost_where_long_sentences_are_cut(paragraph: str) -> None:
    sentences = split_sentences(paragraph)
    assert "".join("".join(sentences).split()) == "".join(paragraph.split())
    assert all(0 < len(sentence) <= MAX_SENTENCE_LENGTH for sentence in sentences)


STRAINS = [".", ". ", '."', '. " ', "。", "。”", "…", "?!", "Mr. ", "A. ", "[1]", "《", "《。", "_", "a", "你.", "- . "]


@pytest.mark.parametrize("unit", STRAINS)
def test_time_is_linear_in_the_length(unit: str) -> None:
    def seconds(characters: int) -> float:
        text = unit * (characters // len(unit)) + "x"
        best = float("inf")
        for _ in range(3):
            # 只算本线程的处理器时间：机器忙的时候，墙上的时间什么也说明不了
            begin = time.thread_time()
            split_sentences(text)
            best = min(best, time.thread_time() - begin)
        return best

    # Eight times the text; quadratic time would take 64 times as long.
    assert seconds(160_000) < 24 * seconds(20_000) + 0.02
