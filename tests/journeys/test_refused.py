"""A command that is refused leaves nothing behind, so that the next try begins afresh, whatever it is about."""

import os
import sys
from types import SimpleNamespace

import click
import pytest
from typer.main import get_command

from bertsmith import WordPieceTokenizer, quickstart
from bertsmith.cli import all_commands, main
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import make_folder
from typed_command import typed

TEXT = "".join(f"The man eats {n} bread. The woman reads the book.\n\n" for n in "abcdefghijklmnopqrst")
SHORT = "--minutes 0.05"
_CLASSIFY = "finetune classify --model model --train rows.tsv"
# command -> a word of its refusal: another one would hide that this one is no longer reached
REFUSED = {
    f"quickstart little.txt --size 1/64 {SHORT}": "at least 3",
    f"quickstart text.txt --vocab-size 5 {SHORT}": "5",
    "quickstart nowhere.txt": "nowhere.txt",
    f"quickstart binary.txt --size 1/64 {SHORT}": "binary",
    f"adapt --model model --text little.txt {SHORT}": "at least 3",
    f"adapt --model nowhere --text text.txt {SHORT}": "nowhere",
    f"adapt --model model --text text.txt --sequence-length 400 {SHORT}": "400",
    "adapt --model bert-base-uncased --text text.txt": "did you mean google-bert/bert-base-uncased",
    f"distil --teacher model --text little.txt --keep-layers 0 {SHORT}": "at least 3",
    f"distil --teacher nowhere --text text.txt --size 1/64 {SHORT}": "nowhere",
    f"distil --teacher model --text text.txt --keep-layers 0,7 {SHORT}": "7",
    "finetune embed --model roberta-base --train rows.tsv": "did you mean FacebookAI/roberta-base",
    "compress model --layers 0,7": "7",
    "vocab text.txt --vocab-size 5": "5",
    "vocab empty.txt --vocab-size 500": "no words",
    "corpus little.txt --tokenizer model": "at least 3",
    "corpus text.txt --tokenizer nowhere": "nowhere",
    "corpus binary.txt --tokenizer model": "binary",
    "pretrain --corpus nowhere --tokenizer model --steps 2 --size 1/64": "nowhere",
    "pretrain --corpus shards --tokenizer model --steps 2 --from other": "other",
    "pretrain --corpus shards --tokenizer model --steps 2 --teacher other": "other",
    "finetune classify --model nowhere --train rows.tsv --dev rows.tsv": "nowhere",
    "finetune classify --model model --train same.tsv --dev same.tsv": "one class only",
    f"{_CLASSIFY} --dev nowhere.tsv": "nowhere.tsv",
    "finetune regress --model model --train scores.tsv --dev alike.tsv --seeds 2": "score",
    "finetune regress --model model --train scores.tsv --dev alike.tsv --folds 2": "score",
    "solve same.tsv": "one class only",
    "topics empties --model model": "hold no word",
    "index texts --model nowhere": "nowhere",
    "index empties --model model": "hold no word",
    "mine empty.txt --mode lexical": "empty.txt",
    "import text.txt": "text.txt",
    "export onnx nowhere": "nowhere",
    "export huggingface nowhere": "nowhere",
    "export passages nowhere --out parent/out.parquet": "nowhere",
    "embed nowhere.txt --model model --out parent/v.npy": "nowhere.txt",
    "embed text.txt --model model --prompt query --out parent/v.npy": "query",
    "predict --model nowhere --file rows.tsv": "nowhere",
    "evaluate --model nowhere --file rows.tsv": "nowhere",
    "compare word-vectors --corpus nowhere --tokenizer model": "nowhere",
    "compare lstm --corpus nowhere --tokenizer model": "nowhere",
    "compare seq2seq empty.txt": "empty.txt",
    "attention the --model nowhere": "nowhere",
    "attribute the --model nowhere --out parent/a.html": "nowhere",
    "probe nowhere": "nowhere",
    "report nowhere": "nowhere",
    "study masking --text little.txt --minutes 0.05": "at least 3",
}


@pytest.fixture
def place(tmp_path, tiny_model, monkeypatch):
    """A folder of text, rows and models."""
    tiny_model.rename(tmp_path / "model")
    other = WordPieceTokenizer.train(["zebras quickly jump over foxes"] * 3, vocab_size=60)
    (tmp_path / "other").mkdir()
    for file in (tmp_path / "model").iterdir():
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    other.save(tmp_path / "other")
    texts = {"text.txt": TEXT, "little.txt": "The man eats.\n", "empty.txt": "\n", "binary.txt": "\0\1" * 500}
    texts |= {"rows.tsv": "the man\tgood\na book\tbad\n" * 4, "same.tsv": "the man\tgood\n" * 4}
    texts |= {"scores.tsv": "the man\t0.5\na book\t0.25\n" * 4, "alike.tsv": "the man\t0.5\na book\t0.5\n" * 4}
    texts |= {"texts/a.md": "The man eats bread.", "empties/a.md": "\n"}
    for name, content in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["corpus", "text.txt", "--tokenizer", "model", "--out", "shards", "--workers", "1"])
    return tmp_path


@pytest.mark.parametrize(("words", "reason"), REFUSED.items())
def test_a_refusal_leaves_nothing(place, capsys, words, reason):
    before = sorted(place.rglob("*"))
    out = [] if "--out" in words else ["--out", "parent/out"]
    said = typed(capsys, *words.split(), *out, code=2).splitlines()[-1]
    assert said.startswith("bertsmith: ")
    assert reason in said
    assert sorted(place.rglob("*")) == before


def test_every_command_that_writes_is_refused_above():
    def named(group, before=()):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from named(command, (*before, name))
            elif any("--out" in option.opts for option in command.get_params(click.Context(command))):
                yield " ".join((*before, name))

    tried = {words if group in ("export", "compare") else group for group, words in map(_first_words, REFUSED)}
    assert set(named(get_command(all_commands()))) == tried


def _first_words(words):
    first, second, *_ = words.split()
    return first, f"{first} {second}"


class ReachedTraining(Exception):
    """Ends a quickstart where its training would begin."""


def test_a_corpus_that_was_made_outlives_too_few_minutes(place, monkeypatch):
    module = sys.modules["bertsmith.journeys.quickstart"]
    asked = []

    def best_size(corpus, tokenizer, family, minutes):
        asked.append(minutes)
        raise ConfigError("give 9 minutes")

    def pretrain(out, corpus, tokenizer, recipe, **how):
        asked.append(recipe.length.minutes)
        raise ReachedTraining

    monkeypatch.setattr(module, "best_size", best_size)
    monkeypatch.setattr(module, "pretrain", pretrain)
    with pytest.raises(ConfigError, match="give 9 minutes"):
        quickstart("text.txt", "out", minutes=1)
    made = {path: path.stat().st_mtime_ns for path in (place / "out" / "corpus").iterdir() if path.name[0] != "."}
    assert made
    monkeypatch.setattr(module, "best_size", lambda *_: SimpleNamespace(size="1/64", steps=1, loss=1.0, measured=False))
    with pytest.raises(ReachedTraining):
        quickstart("text.txt", "out", minutes=9)
    # 准备用去的时间从分钟数里扣除
    assert asked == [pytest.approx(1, abs=0.5), pytest.approx(9, abs=0.5)]
    assert made == {path: path.stat().st_mtime_ns for path in made}
    with pytest.raises(RunFolderError, match="holds a quickstart with another seed"):
        quickstart("text.txt", "out", minutes=9, seed=1)


FINETUNE = "finetune classify --model model --train rows.tsv --dev rows.tsv"
CLAIMED = {
    FINETUNE: "finetune.json",
    f"{FINETUNE} --seeds 2": "search.json",
    f"{FINETUNE} --folds 2": "search.json",
    "solve rows.tsv --dev rows.tsv": "solve.json",
    "compare word-vectors --corpus shards --tokenizer model": "word-vectors.json",
    "compare lstm --corpus shards --tokenizer model": "lstm.json",
    "compare seq2seq rows.tsv": "seq2seq.json",
    "quickstart text.txt": "quickstart.json",
    "adapt --model model --text text.txt": "adapt.json",
    "distil --teacher model --text text.txt --keep-layers 0": "distil.json",
}


SAVES = [
    *CLAIMED,
    "pretrain --corpus shards --tokenizer model --steps 2 --size 1/64",
    "compress model --bf16",
    "import model",
    "export onnx model",
    "export huggingface model",
    "study masking --text text.txt",
    "vocab text.txt --vocab-size 60",
    "corpus text.txt --tokenizer model",
]


@pytest.mark.parametrize("words", SAVES)
def test_a_folder_whose_name_is_not_utf8_is_refused_before_the_work(place, capsys, words):
    """The libraries that write weights take no such path."""
    before = sorted(place.rglob("*"))
    said = typed(capsys, *words.split(), "--out", os.fsdecode(b"gut\xff"), code=2)
    assert "gut" in said
    assert "the name is not UTF-8" in said
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(("words", "claim"), CLAIMED.items(), ids=CLAIMED.keys())
def test_a_folder_that_another_process_still_prepares_stays_its_own(place, another_process, capsys, words, claim):
    with another_process(make_folder(place / "out")):
        (place / "out" / claim).write_text("{}")
        said = typed(capsys, *words.split(), "--out", "out", code=2)
        assert "out: another process is working in it" in said
    assert (place / "out" / claim).read_text() == "{}"
