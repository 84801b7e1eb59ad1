"""What the computations read where nobody gave them a sentence: words of the model's own vocabulary, or an error."""

import pytest
import torch
from rich.console import Console

from bertsmith.errors import InputError
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.learn import COMPUTATIONS, Study, compute, find_lesson
from bertsmith_school.learn.terminal import show_lesson

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHINESE = "他早上在家里看书，她晚上在家里看报。他们下午和朋友一起去公园散步，看电影，很早睡觉。"
RUSSIAN = "мальчик читает книгу утром а девочка пьёт чай вечером дома"
VOCABULARIES = {
    "english": lambda: Study.village().tokenizer,
    "chinese": lambda: WordPieceTokenizer.train([CHINESE] * 3, vocab_size=200),
    "chinese with letters": lambda: WordPieceTokenizer.train([f"{CHINESE} abcdefghijklmnopqrstuvwxyz"], vocab_size=200),
    "few chinese characters": lambda: WordPieceTokenizer.train(["今天天气很好"] * 3, vocab_size=40),
    "russian": lambda: WordPieceTokenizer.train([RUSSIAN] * 3, vocab_size=200),
    "genes": lambda: WordPieceTokenizer([*SPECIAL, "A", "C", "G", "T", "##A", "ACG", "TTG"], lowercase=False),
    "numbers": lambda: WordPieceTokenizer([*SPECIAL, "1", "2", "##3"]),
}
ON_A_MODEL = [id for id, recipe in COMPUTATIONS.items() if recipe.needs_study]


def study_of(tokenizer, **config):
    torch.manual_seed(0)
    shape = BertConfig.named("1/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=64, **config)
    return Study(BertForPreTraining(shape).eval(), tokenizer)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_computation_runs_on_any_vocabulary(name):
    study = study_of(VOCABULARIES[name]())
    for id in ON_A_MODEL:
        assert compute(id, study=study).steps
        for text in COMPUTATIONS[id].sentences(study.tokenizer).values():
            assert "[UNK]" not in study.tokenizer.tokenize(text), id
    values = compute("both_sides", study=study).values
    # the sentences differ in their last word alone
    assert values["place"] == values["tokens"] - 2
    assert (values["changed_left"], values["changed_both"]) == (2, values["tokens"])


def test_the_sentences_are_in_the_vocabularys_language():
    chosen = {name: COMPUTATIONS["mlm_loss"].sentences(build()) for name, build in VOCABULARIES.items()}
    assert chosen["english"] == {"text": "the man reads the book", "hidden": "book"}
    # letters alone do not make a vocabulary English
    assert chosen["chinese"] == chosen["chinese with letters"] == {"text": "他早上在家里看书", "hidden": "书"}
    # word for word: `the` twice, the hidden word last; whole words before single letters
    assert chosen["genes"] == {"text": "ACG TTG A ACG C", "hidden": "C"}
    assert chosen["numbers"] == {"text": "1 2 1 1 2", "hidden": "2"}
    for text in (sentences["text"] for sentences in chosen.values()):
        words = text.split() if " " in text else list(text)
        assert len(words) > 4


def test_what_the_reader_gives_is_never_replaced():
    study = study_of(VOCABULARIES["chinese"]())
    with pytest.raises(InputError, match="change one word"):
        compute("both_sides", study=study, first="他在家", second="他在家里看")
    # one sentence of the reader's own: the other is not replaced either
    with pytest.raises(InputError, match="is not in"):
        compute("mlm_loss", study=study, text="他在家")
    assert compute("masking", study=study, seed=3).values["pieces"] > 20


def test_a_sentence_of_unknown_words_alone_cannot_be_masked():
    study = study_of(VOCABULARIES["genes"]())
    with pytest.raises(InputError, match="has none of the words in 'hello'; write another"):
        compute("masking", study=study, text="hello")


@pytest.mark.parametrize("id", ["input_sum", "nsp_loss"])
def test_a_model_of_one_segment_says_that_it_takes_no_pair(id):
    with pytest.raises(InputError, match="knows a single segment"):
        compute(id, study=study_of(Study.village().tokenizer, type_vocab_size=1))


@pytest.mark.parametrize(("language", "said"), [("en", "Not computed: "), ("zh", "算不出来：")])
def test_a_computation_that_fails_leaves_the_rest_of_the_lesson(language, said):
    """A model of one segment cannot add up a pair's embeddings; attention and [CLS] go on."""
    study = study_of(Study.village().tokenizer, type_vocab_size=1)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show_lesson(console, find_lesson("architecture", language), study, language)
    shown = console.export_text()
    assert shown.count(said) == 1
    assert "knows a single segment" in shown
    for id in (section.computation for section in find_lesson("architecture").sections):
        assert f"▸ {COMPUTATIONS[id].title(language)}" in shown
    assert "109,482,240" in shown
    # 代码里有花括号；文字里的是没有填上的占位
    assert not [line for line in shown.splitlines() if "{" in line and "name" not in line]
    assert "bertsmith.model.families.bert.BertEmbedding" in shown
