"""The commands, one after the other, as the README shows them."""

import gzip
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.cli import main
from bertsmith.tinyworld import draw_reviews, draw_stories
from typed_command import typed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    text = "\n\n".join(story.text for story in draw_stories(0, 80))
    (folder / "stories.txt").write_text(text + "\n", encoding="utf-8")
    for split in ("train", "dev"):
        lines = [f"{review.text}\t{review.label}\n" for review in draw_reviews(0, 40, split=split)]
        (folder / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def test_from_text_to_predictions(folder, capsys):
    stories, tokenizer, shards = folder / "stories.txt", folder / "tokenizer", folder / "shards"
    assert "pieces from 1 file(s)" in typed(capsys, "vocab", stories, "--out", tokenizer, "--vocab-size", 800)
    assert "entropy" in typed(capsys, "corpus", stories, "--tokenizer", tokenizer, "--out", shards)
    common = ["--corpus", shards, "--tokenizer", tokenizer, "--size", "1/64", "--sequence-length", 32]
    trained = typed(capsys, "pretrain", *common, "--steps", 20, "--out", folder / "run")
    assert "mlm_loss" in trained
    assert "20/20" in trained
    model = folder / "run" / "model"
    filled = typed(capsys, "fill-mask", "--model", model, "the man reads the [MASK].", "--top-k", 3)
    assert filled.count("%") == 3
    data = ["--train", folder / "train.tsv", "--dev", folder / "dev.tsv"]
    tuned = typed(
        capsys, "finetune", "classify", "--model", model, *data, "--out", folder / "classifier", "--epochs", 1
    )
    assert "dev: accuracy" in tuned
    classifier = folder / "classifier" / "model"
    predicted = typed(capsys, "predict", "--model", classifier, "The day was awful.")
    label, probability, text = predicted.strip().split("\t")
    assert label in ("good", "bad")
    assert 0.5 <= float(probability) <= 1.0
    assert text == "The day was awful."
    written = typed(capsys, "predict", "--model", classifier, "--file", stories, "--out", folder / "p.tsv")
    assert "80 predictions" in written
    lines, rows = (path.read_text(encoding="utf-8").split("\n") for path in (stories, folder / "p.tsv"))
    assert [row.split("\t")[-1] for row in rows] == lines, "every prediction on the line of its text"
    assert "159 vectors of 64" in typed(capsys, "embed", stories, "--model", model, "--out", folder / "v.npy")
    vectors = np.load(folder / "v.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors[::2], axis=1), 1.0, atol=1e-5)
    pieces = typed(capsys, "inspect", "tokens", "the man reads", "--tokenizer", tokenizer)
    assert "reads" in pieces


def test_a_vocabulary_is_learned_from_whatever_a_corpus_is_built_from(tmp_path, capsys):
    """The same text three ways gives the same pieces: nothing of JSON's syntax, escapes or other fields is learned."""
    texts = [f"{story.text} Café 北京\x0cnaïve\x0bÉlan" for story in draw_stories(0, 20)]
    records = [{"id": f"identifier{number}", "body": text} for number, text in enumerate(texts)]
    inputs = {
        "text": tmp_path / "a.txt",
        "json": tmp_path / "b.jsonl.gz",
        "parquet": tmp_path / "c.parquet",
    }
    inputs["text"].write_text("\n".join(texts), encoding="utf-8")
    inputs["json"].write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    pq.write_table(pa.Table.from_pylist(records), inputs["parquet"])
    for name, path in inputs.items():
        said = typed(capsys, "vocab", path, "--text-field", "body", "--out", tmp_path / name, "--vocab-size", 400)
        assert "pieces from 1 file(s)" in said
    learned = {name: (tmp_path / name / "vocab.txt").read_text(encoding="utf-8") for name in inputs}
    assert learned["json"] == learned["text"]
    assert learned["parquet"] == learned["text"]
    # one command line for both
    both = [inputs["json"], inputs["parquet"], "--text-field", "body"]
    typed(capsys, "vocab", *both, "--out", tmp_path / "tokenizer", "--vocab-size", 400)
    assert "entropy" in typed(
        capsys, "corpus", *both, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "shards"
    )


def test_a_list_of_tweets_is_a_document_a_line_and_what_repeats_is_said(tmp_path, capsys):
    own = [f"{'so ' * (n % 7)}late again, bus {n} to the sea, who else waits? #bus" for n in range(450)]
    path, made = tmp_path / "tweets.txt", tmp_path / "made"
    path.write_text("\n".join([*own, *own[:50]]) + "\n", encoding="utf-8")
    rule = "tweets.txt: a line is a document, as none of its 500 lines is blank"
    looked = typed(capsys, "look", path).splitlines()
    assert looked[0] == "tweets.txt: text, utf-8, 1,000 sentences in documents (a line is one); 500 documents"
    assert {"repeated: 50 documents are duplicates", rule} <= set(looked)
    typed(capsys, "vocab", path, "--out", made, "--vocab-size", 300)
    built = typed(capsys, "corpus", path, "--tokenizer", made, "--out", tmp_path / "shards").splitlines()
    assert "dropped 50 duplicates" in built
    assert sum(int(line.split()[1]) for line in built[:2]) == 450
    assert "documents: line; in " in built[-1]
    one = ["corpus", path, "--tokenizer", made, "--out", tmp_path / "other", "--documents", "file"]
    assert "has 1 different document(s)" in typed(capsys, *one, code=2)


FORM = "articles.csv: CSV with ';' between its columns, utf-8, with a header"
COLUMNS = "columns: text from body; not read: id"


@pytest.mark.parametrize("command", ["vocab", "corpus", "index", "predict"])
def test_a_command_begins_with_what_it_read_and_keeps_its_output_apart(command, tiny_model, tmp_path, capsys):
    table, text, out = tmp_path / "articles.csv", tmp_path / "text", ["--out", tmp_path / "out"]
    rows = [f"{number};The man eats bread number {number}. The woman reads." for number in range(9)]
    table.write_text("\n".join(["id;body", *rows]), encoding="utf-8")
    text.mkdir()
    for number in range(3):
        (text / f"{number}.txt").write_text(f"The man eats bread number {number}.", encoding="utf-8")
    (text / "3.md").write_bytes("# Café\n\nThe woman reads a book!".encode("latin-1"))
    from_table = [table, "--text-field", "body", "--workers", 1]
    folder = f"{text}: 3 .txt, 1 .md; 0.0 MB; utf-8 3, iso-8859-1 1; documents: a file is one"
    words, lines = {
        "vocab": ([*from_table, "--vocab-size", 200, *out], [f"{table}: 1 .csv; 0.0 MB", f"{FORM}; {COLUMNS}"]),
        "corpus": (
            [*from_table, "--tokenizer", tiny_model, *out],
            [f"{table}: 1 .csv; 0.0 MB; documents: a row of a table is one", f"{FORM}; {COLUMNS}"],
        ),
        "index": ([text, "--model", tiny_model, "--overlap", 3, *out], [folder]),
        "predict": (["--model", "village-reviews", "--file", table, "--text-column", "body"], [FORM, COLUMNS]),
    }[command]
    with pytest.raises(SystemExit) as ended:
        main([command, *map(str, words)])
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    told = [line for line in said.err.splitlines() if not line.startswith("bertsmith: warning: ")]
    assert told[: len(lines)] == lines
    assert said.out
    assert not set(lines) & set(said.out.splitlines())


def test_what_a_corpus_loses_and_repeats_is_said(tmp_path, capsys):
    texts = tmp_path / "texts"
    texts.mkdir()
    own = [f"On day {number} the man eats {number} loaves of bread at home." for number in range(40)]
    for number, line in enumerate([*own, own[0]]):
        lines = [line, "This mail is confidential.", "[MASK] the [SEP]", "面包" * 9]
        (texts / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    words = tmp_path / "words.txt"
    words.write_text("\n\n".join(own), encoding="utf-8")
    typed(capsys, "vocab", words, "--out", tmp_path / "made", "--vocab-size", 400)
    corpus = ["corpus", texts, "--tokenizer", tmp_path / "made", "--heldout", 0.2]
    built = typed(capsys, *corpus, "--out", tmp_path / "shards")
    for told in (
        r"^dropped 1 duplicates$",
        r"^\d+\.\d% of the characters are in words that the vocabulary cannot spell; .* --kind bpe or unigram",
        r"^82 special tokens stand in the text as words: plain characters$",
        r"^120 lines repeat one that stands in 10 documents or more: \d+\.\d% of the tokens, \d+\.\d% of the held-out"
        r" ones; bertsmith corpus --drop-repeated-lines 10 keeps one copy of each, and none held out$",
        r"; documents: file; in ",
    ):
        assert re.search(told, built, re.MULTILINE), built
    dropped = typed(capsys, *corpus, "--drop-repeated-lines", 10, "--out", tmp_path / "others")
    assert "dropped 117 copies of repeated lines" in dropped


def test_the_version(capsys):
    assert typed(capsys, "--version").startswith("bertsmith ")


def test_a_vocabulary_among_its_text_is_not_learned_from(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("the man eats the bread\n" * 9, encoding="utf-8")
    for _ in range(2):
        assert "from 1 file(s)" in typed(capsys, "vocab", tmp_path, "--out", tmp_path / "made", "--vocab-size", 60)
    # nor is a corpus built from it
    corpus = [tmp_path, "--tokenizer", tmp_path / "made", "--out", tmp_path / "shards", "--documents", "blank-line"]
    stories = "\n\n".join(story.text for story in draw_stories(0, 9))
    (tmp_path / "text.txt").write_text(stories, encoding="utf-8")
    typed(capsys, "corpus", *corpus)
    manifest = (tmp_path / "shards" / "manifest.json").read_text(encoding="utf-8")
    assert "text.txt" in manifest
    assert "vocab.txt" not in manifest
