"""The commands, one after the other, as the README shows them."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
