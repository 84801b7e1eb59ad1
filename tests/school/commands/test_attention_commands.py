"""`bertsmith attention` and `attribute`: what is written and printed, and what is refused in one line."""

import pytest
import torch

from bertsmith.cli import main
from bertsmith.model import BertForSequenceClassification
from bertsmith.tokenizer import WordPieceTokenizer


def run(capsys, *words, code=0):
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    output = capsys.readouterr()
    assert caught.value.code == code, output.err
    if code == 0:
        return output.out
    (line,) = output.err.strip().splitlines()
    assert line.startswith("bertsmith: ")
    return line


@pytest.fixture
def classifier(tiny_model, tmp_path):
    torch.manual_seed(0)
    options = {"new_heads": True, "id2label": {0: "bad", 1: "good"}}
    BertForSequenceClassification.from_pretrained(tiny_model, **options).save_pretrained(tmp_path / "classifier")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "classifier")
    return tmp_path / "classifier"


def test_attention_writes_a_page_and_a_picture(capsys, tiny_model, tmp_path):
    out = tmp_path / "out"
    said = run(capsys, "attention", "--model", tiny_model, "the [MASK] eats", "a book", "--out", out, "--head", 1)
    assert said.startswith(f"8 tokens, 1 layers of 1 heads: {out / 'attention.html'}")
    assert "[MASK]" in (out / "attention.html").read_text(encoding="utf-8")
    assert {path.suffix for path in out.iterdir()} == {".html", ".png"}


def test_attention_of_a_text_that_is_too_long_says_what_was_cut(capsys, tiny_model, tmp_path):
    said = run(capsys, "attention", "--model", tiny_model, "the man " * 40, "--out", tmp_path / "out")
    assert "The text has 82 tokens, the model reads 32: the last 50 are cut off." in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([""], "holds no word"),
        (["the man", ""], "text 2, '', holds no word"),
        (["the man", "--layer", 2], "there is no layer 2; the model has layers 1 to 1"),
        (["the man", "--head", 9], "there is no head 9"),
        (["the man", "--head", 0], "--head"),
        (["the man", "--model", "nowhere"], "nowhere"),
    ],
)
def test_attention_refuses(capsys, tiny_model, tmp_path, options, message):
    command = ["attention", "--model", tiny_model, "--out", tmp_path / "out", *options]
    assert message in run(capsys, *command, code=2)
    assert not (tmp_path / "out").exists()


def test_attention_leaves_a_folder_of_others_alone(capsys, tiny_model, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    command = ["attention", "--model", tiny_model, "the man", "--out"]
    assert "choose another --out" in run(capsys, *command, tiny_model, code=2)
    assert "file stands where a folder is needed" in run(capsys, *command, tmp_path / "notes.txt", code=2)


def test_attribute_prints_the_check_and_writes_the_text(capsys, classifier, tmp_path):
    out = tmp_path / "why.html"
    said = run(capsys, "attribute", "--model", classifier, "the man eats bread", "--target", "good", "--out", out)
    flat = " ".join(said.split())
    assert flat.startswith("class 'good': ")
    assert "the man eats bread strongest: " in flat
    assert "F(text) - F(baseline) = " in flat
    assert "they agree within" in flat
    assert out.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([""], "holds no word"),
        (["the man", "--target", "great"], "its labels: bad, good"),
        (["the man", "--word", "man"], "taggers only"),
        (["the man", "--baseline", "zero"], "baseline 'zero' is unknown"),
        (["the man", "--out", "why.pdf"], "must end in .html"),
        (["a", "b", "c"], "classify reads 1 or 2 text(s), and 3 were given"),
    ],
)
def test_attribute_refuses(capsys, classifier, options, message):
    assert message in run(capsys, "attribute", "--model", classifier, *options, code=2)


def test_attribute_needs_a_head_and_a_place_for_its_file(capsys, tiny_model, classifier, tmp_path):

    assert "fine-tune it first" in run(capsys, "attribute", "--model", tiny_model, "the man", code=2)
    (tmp_path / "folder.html").mkdir()
    command = ["attribute", "--model", classifier, "the man", "--out", tmp_path / "folder.html"]
    assert "is a folder" in run(capsys, *command, code=2)


def test_attribute_goes_through_an_adapter(capsys, tiny_model, tmp_path):
    data = tmp_path / "data.tsv"
    data.write_text("the book\tgood\nthe man\tbad\n" * 4)
    command = ["finetune", "classify", "--model", tiny_model, "--train", data, "--dev", data, "--out", tmp_path / "run"]
    run(capsys, *command, "--adapter", "bottleneck", "--epochs", 1)
    said = run(capsys, "attribute", "--model", tiny_model, "--adapter", tmp_path / "run" / "adapter", "the book")
    assert "they agree within" in " ".join(said.split())
