"""`fill-mask`, `embed` and `predict --next-sentence` on the command line."""

import numpy as np
import pytest

import bertsmith
from bertsmith.cli import main
from bertsmith.inference import load_pipeline
from bertsmith.inference.engine import Engine
from bertsmith.model import BertConfig, BertForMaskedLM
from bertsmith.tokenizer import WordPieceTokenizer
from typed_command import typed


def test_embedding_a_file_keeps_a_row_for_every_line(tiny_model, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("the man eats\n\na book !\n", encoding="utf-8")
    out = tmp_path / "v.npy"
    said = typed(capsys, "embed", tmp_path / "a.txt", "--model", tiny_model, "--out", out, "--precision", "float32")
    assert f"3 vectors of 64 numbers in {out}, computed in float32 (1 blank lines are zeros)" in said
    vectors = np.load(out)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 1], abs=1e-5)


def test_embedding_a_file_begins_with_what_was_understood_of_it(tiny_model, tmp_path, capsys):
    path, out = tmp_path / "a.txt", tmp_path / "v.npy"
    path.write_bytes("the m\xe4n\n".encode("latin-1"))
    for more in (["--out", out], ["--json"], ["--compare", "the man"]):
        with pytest.raises(SystemExit):
            main([str(word) for word in ("embed", path, "--model", tiny_model, *more)])
        said = capsys.readouterr()
        # 答案在标准输出，说明不在
        assert f"{path}: 1 .txt; 0.0 MB; iso-8859-1\n" in said.err
        assert str(path) not in said.out


def test_options_of_embedding(tiny_model, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("the man eats\na book !\n", encoding="utf-8")
    options = ["--pooling", "cls", "--raw", "--dims", 5, "--batch-tokens", 8, "--precision", "float32"]
    common = ["--model", tiny_model, "--out", tmp_path / "v.npy", *options]
    typed(capsys, "embed", tmp_path / "a.txt", tmp_path / "a.txt", *common)
    pipeline = load_pipeline("embed", tiny_model, precision="float32")
    expected = pipeline(["the man eats", "a book !"] * 2, pooling="cls", normalize=False)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected[:, :5], atol=1e-5)


def test_engines_of_embed_and_predict(tiny_model, tmp_path, capsys, monkeypatch):
    asked = []
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Engine, "_compile", lambda _, kind: asked.append(kind))
    rows = [{"text": text, "label": text} for text in ("the", "a")] * 8
    bertsmith.finetune("classify", tiny_model, tmp_path / "run", train=rows, dev=rows, epochs=1)
    (tmp_path / "a.txt").write_text("the man eats\n", encoding="utf-8")
    for words in (
        ["embed", tmp_path / "a.txt", "--out", tmp_path / "v.npy", "--model", tiny_model],
        ["embed", tmp_path / "a.txt", "--json", "--model", tiny_model],
        ["embed", "--compare", "a", "--compare", "the man", "--model", tiny_model],
        ["predict", "the man", "--model", tmp_path / "run" / "model"],
    ):
        typed(capsys, *words)
        assert asked == []
        typed(capsys, *words, "--engine", "openvino")
        assert set(asked) == {"openvino"}
        asked.clear()
    for words in (["--compare", "a"], [tmp_path / "a.txt", "--json"]):
        assert "leave" in typed(capsys, "embed", *words, "--model", tiny_model, "--engine", "ray", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "the man", "caf\udce9"],
        ["fill-mask", "caf\udce9 [MASK]"],
        ["embed", "--compare", "the man", "--compare", "caf\udce9"],
        ["predict", "--next-sentence", "caf\udce9"],
    ],
    ids=lambda words: words[0],
)
def test_bytes_that_are_no_characters_are_refused_before_the_model_is_loaded(words, tmp_path, capsys):
    said = typed(capsys, *words, "--model", tmp_path / "missing", code=2)
    assert r"'caf\udce9" in said
    assert "convert the text" in said
    assert said.count("\n") == 1


def test_filling_from_candidates(tiny_model, capsys):
    words = ["the man eats [MASK] .", "--model", tiny_model, "--candidate", "bread", "--candidate", "book"]
    said = typed(capsys, "fill-mask", *words)
    assert said.count("%") == 2
    assert "bread" in said
    assert "book" in said


def test_similarity_lists_the_most_alike_first(minilm_folder, capsys):
    texts = ("The man eats bread.", "Stock markets fell.", "A person is eating.")
    compared = [word for text in texts for word in ("--compare", text)]
    lines = typed(capsys, "embed", *compared, "--model", minilm_folder).splitlines()
    scores = [float(line.split("\t")[0]) for line in lines]
    assert [line.split("\t")[1] for line in lines] == ["A person is eating.", "Stock markets fell."]
    assert scores == sorted(scores, reverse=True)


def test_next_sentence_prints_the_pipelines_probability(tiny_model, capsys):
    said = typed(capsys, "predict", "--next-sentence", "the man eats .\ta book !", "--model", tiny_model)
    expected = load_pipeline("next-sentence", tiny_model)(["the man eats ."], ["a book !"])[0]
    assert float(said) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["embed", "--compare", "a", "--out", "v.npy"], "--compare prints"),
        (["embed", "--compare", "a", "--dims", "4"], "--compare prints"),
        (["predict", "a\tb", "--next-sentence", "--calibrated"], "--next-sentence takes texts"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words, message, tiny_model, capsys):
    assert message in typed(capsys, *words, "--model", tiny_model, code=2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sizes", "plan"),
        ("similarity", "embed --compare"),
        ("next-sentence", "predict --next"),
        ("lstm", "compare lstm"),
    ],
)
def test_an_old_name_is_refused_in_one_line_with_the_new_one(old, new, capsys):
    said = typed(capsys, old, "anything", "--model", "x", code=2)
    assert said.count("\n") == 1
    assert f"{old} is now: bertsmith {new}" in said


def test_pieces_in_brackets_are_no_markup(tiny_model, capsys):
    tokenizer = WordPieceTokenizer([*WordPieceTokenizer.load(tiny_model).vocab, "[/E1]", "[unused1]"])
    tokenizer.save(tiny_model)
    config = BertConfig.load(tiny_model).changed(vocab_size=tokenizer.vocab_size)
    BertForMaskedLM(config).save_pretrained(tiny_model)
    said = typed(capsys, "fill-mask", "--model", tiny_model, "the [MASK]", "--top-k", tokenizer.vocab_size)
    assert "[/E1]" in said
    assert "[unused1]" in said
