"""A command that is refused leaves nothing behind, so that the next try begins afresh, whatever it is about."""

import sys
from types import SimpleNamespace

import pytest

from bertsmith import WordPieceTokenizer, quickstart
from bertsmith.cli import main
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import locked, make_folder
from typed_command import typed

TEXT = "".join(f"The man eats {n} bread. The woman reads the book.\n\n" for n in "abcdefghijklmnopqrst")
SHORT = "--minutes 0.05"
REFUSED = {
    "quickstart, too little text": f"quickstart little.txt --size 1/64 {SHORT}",
    "quickstart, a vocabulary that holds no alphabet": f"quickstart text.txt --vocab-size 5 {SHORT}",
    "quickstart, no text there": "quickstart nowhere.txt",
    "quickstart, text that is binary": f"quickstart binary.txt --size 1/64 {SHORT}",
    "adapt, too little text": f"adapt --model model --text little.txt {SHORT}",
    "adapt, no model": f"adapt --model nowhere --text text.txt {SHORT}",
    "adapt, sequences that do not fit": f"adapt --model model --text text.txt --sequence-length 400 {SHORT}",
    "distil, too little text": f"distil --teacher model --text little.txt --keep-layers 0 {SHORT}",
    "distil, no teacher": f"distil --teacher nowhere --text text.txt --size 1/64 {SHORT}",
    "distil, layers that the teacher lacks": f"distil --teacher model --text text.txt --keep-layers 0,7 {SHORT}",
    "adapt, a name without its organisation": "adapt --model bert-base-uncased --text text.txt",
    "finetune, a name without its organisation": "finetune embed --model roberta-base --train rows.tsv",
    "compress, layers that the model lacks": "compress model --layers 0,7",
    "vocab, too small": "vocab text.txt --vocab-size 5",
    "vocab, no text": "vocab empty.txt --vocab-size 500",
    "corpus, too little text": "corpus little.txt --tokenizer model",
    "corpus, no tokenizer": "corpus text.txt --tokenizer nowhere",
    "corpus, text that is binary": "corpus binary.txt --tokenizer model",
    "pretrain, no corpus": "pretrain --corpus nowhere --tokenizer model --steps 2 --size 1/64",
    "pretrain, a model of other pieces": "pretrain --corpus shards --tokenizer model --steps 2 --from other",
    "pretrain, a teacher of other pieces": "pretrain --corpus shards --tokenizer model --steps 2 --teacher other",
    "finetune, no model": "finetune classify --model nowhere --train rows.tsv --dev rows.tsv",
    "finetune, labels of one value": "finetune classify --model model --train same.tsv --dev same.tsv",
    "finetune, no file": "finetune classify --model model --train rows.tsv --dev nowhere.tsv",
    "index, no model": "index texts --model nowhere",
    "index, no text": "index empties --model model",
    "mine, no pairs": "mine empty.txt --mode lexical",
    "import, no checkpoint": "import text.txt",
    "export onnx, no model": "export onnx --model nowhere",
    "embed, no text": "embed nowhere.txt --model model",
    "word-vectors, no corpus": "word-vectors --corpus nowhere --tokenizer model",
    "seq2seq, no pairs": "seq2seq empty.txt",
    "study, too little text": "study masks --text little.txt --minutes 0.05",
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
    texts |= {"texts/a.md": "The man eats bread.", "empties/a.md": "\n"}
    for name, content in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["corpus", "text.txt", "--tokenizer", "model", "--out", "shards", "--workers", "1"])
    return tmp_path


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_a_refusal_leaves_nothing(place, capsys, words, request):
    before = sorted(place.rglob("*"))
    said = typed(capsys, *words.split(), "--out", "parent/out", code=2)
    assert said.splitlines()[-1].startswith("bertsmith: "), said
    assert sorted(place.rglob("*")) == before
    if "organisation" in request.node.name:
        assert "did you mean google-bert/bert-base-uncased" in said or "did you mean FacebookAI/roberta-base" in said


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
    monkeypatch.setattr(module, "best_size", lambda *_: SimpleNamespace(size="1/64", steps=1, loss=1.0))
    with pytest.raises(ReachedTraining):
        quickstart("text.txt", "out", minutes=9)
    assert asked == [1, 9]
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
}


@pytest.mark.parametrize(("words", "claim"), CLAIMED.items(), ids=CLAIMED.keys())
def test_a_folder_that_another_process_still_prepares_stays_its_own(place, capsys, words, claim):
    with locked(make_folder(place / "out")):
        (place / "out" / claim).write_text("{}")
        said = typed(capsys, *words.split(), "--out", "out", code=2)
        assert "out: another process is working in it" in said
    assert (place / "out" / claim).read_text() == "{}"
