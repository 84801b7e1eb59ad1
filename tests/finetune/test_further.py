"""Further pre-training on a task's texts, before its labels: what is read, what comes of it, what is refused."""

import itertools

import pytest
import torch
from typer.testing import CliRunner

from bertsmith.cli import app
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune import further
from bertsmith.finetune.datasets.questions import Answer, QuestionExample
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import ChoiceExample, LabelledText, RankingExample, ScoredText
from bertsmith.finetune.further import FurtherOptions, pretrain_further
from bertsmith.model import ModelForMaskedLM
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.trainer import BertTrainer

# 每篇都不同：同样的文字算一篇
TEXTS = [" ".join(words) for words in itertools.permutations(("the", "man", "reads", "a", "book"))][:32]
EXAMPLES = [LabelledText(f"{text} . the woman eats bread !", None, "a") for text in TEXTS]
SHORT = FurtherOptions(adapt=0.05)


@pytest.mark.parametrize(
    ("example", "texts"),
    [
        (LabelledText("one", None, "a"), ("one",)),
        (ScoredText("one", "two", 1.0), ("one", "two")),
        (ChoiceExample("one", ("two", "three"), 0), ("one", "two", "three")),
        (RankingExample("one", "two", 1.0), ("one", "two")),
        (TaggedWords(("one", "two"), ("A", "B")), ("one two",)),
        (QuestionExample("7", "one", "two", (Answer("two", 0),)), ("one", "two")),
    ],
)
def test_every_kind_of_example_has_its_texts(example, texts):
    assert example.texts == texts


@pytest.mark.slow
def test_the_model_goes_on_and_a_second_call_finds_it_done(tiny_model, tmp_path, monkeypatch):
    folder = pretrain_further(tiny_model, EXAMPLES, tmp_path / "run", SHORT)
    before, after = ModelForMaskedLM.from_pretrained(tiny_model), ModelForMaskedLM.from_pretrained(folder)
    assert not torch.equal(before.backbone.embedding.word.weight, after.backbone.embedding.word.weight)
    # 句对没有意义：只填空
    assert PreTrainingRecipe.load(tmp_path / "run" / "further").objective == "mlm"
    monkeypatch.setattr(BertTrainer, "train_batch", lambda *_: pytest.fail("trained again"))
    assert pretrain_further(tiny_model, EXAMPLES, tmp_path / "run", SHORT) == folder


@pytest.mark.slow
def test_more_text_is_read_as_well(tiny_model, tmp_path):
    (tmp_path / "more.txt").write_text("a book reads the woman .\n\n" * 20, encoding="utf-8")
    pretrain_further(tiny_model, EXAMPLES, tmp_path / "alone", SHORT)
    pretrain_further(tiny_model, EXAMPLES, tmp_path / "both", FurtherOptions(0.05, (str(tmp_path / "more.txt"),)))
    tokenizer = load_tokenizer(tiny_model)
    folders = (next((tmp_path / run / "further").glob("corpus-*")) for run in ("alone", "both"))
    alone, both = (TokenCorpus(folder, tokenizer) for folder in folders)
    assert both.piece_counts.sum() > alone.piece_counts.sum()


def test_other_texts_in_the_same_folder_are_another_corpus(tiny_model, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(further, "pretrain", lambda _, corpus, *rest, **how: read.append(corpus.fingerprint))
    (tmp_path / "more.txt").write_text("a book reads the woman .\n\n" * 20, encoding="utf-8")
    more = FurtherOptions(0.05, (str(tmp_path / "more.txt"),))
    for examples, options in ((EXAMPLES, SHORT), (EXAMPLES[:16], SHORT), (EXAMPLES, more), (EXAMPLES, SHORT)):
        pretrain_further(tiny_model, examples, tmp_path / "run", options)
    assert read[0] == read[3]
    assert len(set(read)) == 3


def test_more_text_is_read_in_the_encoding_that_is_named(tiny_model, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(further, "pretrain", lambda _, corpus, *rest, **how: found.append(corpus.fingerprint))
    text = "人读书。一个女人吃面包。\n\n" * 20
    for name, encoding in (("a.txt", "utf-8"), ("b.txt", "utf-16-le")):
        (tmp_path / name).write_text(text, encoding=encoding)
        options = FurtherOptions(0.05, (str(tmp_path / name),))
        pretrain_further(tiny_model, EXAMPLES, tmp_path / name[0], options, encoding=encoding)
    assert found[0] == found[1]


def test_what_cannot_be_read_is_said(tiny_model, tmp_path):
    with pytest.raises(InputError, match="at least 3 are needed"):
        pretrain_further(tiny_model, EXAMPLES[:2], tmp_path / "few", SHORT)
    with pytest.raises(InputError, match="nowhere"):
        pretrain_further(tiny_model, EXAMPLES, tmp_path / "missing", FurtherOptions(0.05, (str(tmp_path / "nowhere"),)))
    with pytest.raises(ConfigError, match="--adapt for how many minutes"):
        FurtherOptions(adapt_text=("more.txt",))


@pytest.mark.slow
def test_the_command_reads_first_and_then_learns_the_labels(tiny_model, tmp_path):
    rows = "".join(f"{text}\t{'a' if n % 2 else 'b'}\n" for n, text in enumerate(TEXTS[:24]))
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text(rows, encoding="utf-8")
    words = ["finetune", "classify", "--model", tiny_model, "--train", tmp_path / "train.tsv"]
    words += ["--dev", tmp_path / "dev.tsv", "--out", tmp_path / "run", "--adapt", 0.05, "--epochs", 1]
    (tmp_path / "more.txt").write_text("a book reads the woman .\n\n" * 20, encoding="utf-8")
    words += ["--adapt-text", tmp_path / "more.txt"]
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 'more.txt'}: 1 .txt; 0.0 MB; utf-8; documents: blank lines between them" in result.output
    assert (tmp_path / "run" / "further" / "model" / "model.safetensors").is_file()
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
