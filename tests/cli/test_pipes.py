"""Lines through a pipe: read as they come, answered as JSON Lines at once, and quiet when the reader leaves."""

import io
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from bertsmith.cli import main
from bertsmith.inference import load_pipeline
from bertsmith.model import BertConfig, BertForMaskedLM, BertForSequenceClassification
from bertsmith.tokenizer import WordPieceTokenizer


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a command with lines on its standard input, a real pipe."""

    def call(*words, piped="", code=0):
        read, write = os.pipe()
        writer = threading.Thread(target=lambda: (os.write(write, piped.encode()), os.close(write)))
        writer.start()
        with open(read) as handle, monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", handle)
            with pytest.raises(SystemExit) as caught:
                main([str(word) for word in words])
            handle.buffer.read()
        writer.join()
        output = capsys.readouterr()
        assert caught.value.code == code, output.err
        return [json.loads(line) for line in output.out.splitlines()] if code == 0 else output.err

    return call


@pytest.fixture
def classifier(tiny_model, tmp_path):
    config = BertConfig.load(tiny_model)
    model = BertForSequenceClassification(config.changed(id2label={0: "bad", 1: "good"}))
    model.save_pretrained(tmp_path / "classifier")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "classifier")
    return tmp_path / "classifier"


LINES = ["the man eats bread .", "the woman reads !"]


def test_every_predicting_command_reads_a_pipe_and_prints_json(run, tiny_model, classifier):
    found = run("predict", "--model", classifier, "--json", piped="\n".join([LINES[0], "", LINES[1]]))
    expected = load_pipeline("classify", classifier)(LINES)
    assert [row["prediction"] for row in found] == [expected[0].label, None, expected[1].label]
    assert found[2]["probabilities"] == pytest.approx(expected[1].probabilities)
    # 命令行上的与管道里的可以混用，次序不变
    found = run("predict", "a book", "-", "--model", classifier, "--json", piped=LINES[1] + "\r\n")
    assert [row["input"] for row in found] == [["a book"], [LINES[1]]]

    masked = ["the man eats [MASK] .", "[MASK] reads"]
    found = run("fill-mask", "-", "--model", tiny_model, "--top-k", 2, "--json", piped="\n".join(masked) + "\n")
    expected = load_pipeline("fill-mask", tiny_model)(masked, top_k=2)
    assert [row["text"] for row in found] == masked
    assert [[one["piece"] for one in row["masks"][0]] for row in found] == [
        [one.piece for one in row[0]] for row in expected
    ]

    found = run("embed", "--model", tiny_model, "--json", "--dims", 4, piped="\n".join([LINES[0], "", LINES[1]]))
    vectors = load_pipeline("embed", tiny_model)(LINES, dims=4)
    np.testing.assert_allclose([found[0]["vector"], found[2]["vector"]], vectors, atol=1e-5)
    assert found[1] == {"text": "", "vector": None}

    found = run("embed", "-", "--compare", "the man", "--model", tiny_model, "--json", piped="\n".join(LINES))
    assert [row["other"] for row in found] == LINES
    scores = load_pipeline("embed", tiny_model).compare(["the man"], LINES)[0]
    assert [row["similarity"] for row in found] == pytest.approx(scores.tolist(), abs=1e-5)

    both = ["\t".join(LINES), "", "\t".join(LINES[::-1])]
    found = run("predict", "--next-sentence", "--model", tiny_model, "--json", piped="\n".join(both))
    expected = load_pipeline("next-sentence", tiny_model)(LINES, LINES[::-1])
    assert [found[0]["probability"], found[2]["probability"]] == pytest.approx(expected.tolist(), abs=1e-5)
    assert found[1] == {"text": "", "next_text": "", "probability": None}


def test_embedding_files_as_json(run, tiny_model, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(LINES))
    found = run("embed", tmp_path / "a.txt", "-", "--model", tiny_model, "--json", "--raw", piped="a book\n")
    assert [row["text"] for row in found] == [*LINES, "a book"]
    vectors = load_pipeline("embed", tiny_model)([*LINES, "a book"], normalize=False)
    np.testing.assert_allclose([row["vector"] for row in found], vectors, atol=1e-5)


def test_generating_and_words_and_searching_from_a_pipe(run, tiny_model, tmp_path):
    from bertsmith.retrieval import build_index
    from bertsmith_school.neighbours import WordVectors

    config = BertConfig.load(tiny_model).changed(is_decoder=True)
    BertForMaskedLM(config).save_pretrained(tmp_path / "ltr")
    WordPieceTokenizer.load(tiny_model).save(tmp_path / "ltr")
    found = run("generate", "-", "--model", tmp_path / "ltr", "--max-new-tokens", 3, "--json", piped="\n".join(LINES))
    assert [row["text"] for row in found] == LINES
    assert found[0]["generated"] == load_pipeline("generate", tmp_path / "ltr")(LINES[0], max_new_tokens=3).text

    (tmp_path / "words").mkdir()
    words = WordVectors(["man", "woman", "bread"], np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], dtype=np.float32))
    words.save(tmp_path / "words")
    found = run("compare", "nearest", tmp_path / "words", "-", "--count", 1, "--json", piped="man\nwoman\n")
    assert [(row["plus"], row["word"]) for row in found] == [(["man"], "woman"), (["woman"], "man")]

    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("The man eats bread.")
    build_index(tmp_path / "notes", tiny_model, tmp_path / "index")
    found = run("search", tmp_path / "index", "-", "--json", piped="bread\nman\n")
    assert [(row["query"], row["file"]) for row in found] == [("bread", "a.txt"), ("man", "a.txt")]


def test_a_search_on_a_pipe_goes_on_across_an_update(tiny_model, tmp_path, monkeypatch):
    """In a process of its own, which keeps the index that it opened: a question, an update by this one, a question."""
    from bertsmith.retrieval import build, build_index

    monkeypatch.setattr(build, "EXACT_ROWS", 1)
    notes, index = tmp_path / "notes", tmp_path / "index"
    notes.mkdir()
    (notes / "a.txt").write_text("The man eats bread.")
    (notes / "b.txt").write_text("The woman reads a book!")
    build_index(notes, tiny_model, index)
    assert (index / "generation-00001" / "codes.faiss").is_file()
    command = [sys.executable, "-m", "bertsmith", "search", str(index), "-", "-k", "1", "--json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, bufsize=1, **pipes)
    for query in ("bread", "eats"):
        process.stdin.write(query + "\n")
        process.stdin.flush()
        found = json.loads(process.stdout.readline())
        assert (found["query"], found["text"]) == (query, "The man eats bread.")
        (notes / "a.txt").write_text("A zebra runs.")
        build_index(notes, tiny_model, index)
    assert [path.name for path in index.glob("generation-*")] == ["generation-00002"]
    process.communicate()
    assert process.returncode == 0


def test_what_is_wrong_with_a_pipe_is_one_line(run, tiny_model, classifier, monkeypatch):
    said = run("predict", "-", "--model", classifier, piped="the man\nthe\twoman\n", code=2)
    assert said == "bertsmith: standard input: line 2 has 2 field(s) instead of 1: 'the\\twoman'\n"
    said = run("predict", "--next-sentence", "--model", tiny_model, piped="the man\n", code=2)
    assert said == "bertsmith: standard input: line 1 has no tab between text A and text B\n"
    said = run("predict", "-", "--model", classifier, "--encoding", "utf-16", piped="the man\n", code=2)
    assert said.startswith("bertsmith: standard input: a line after line 0 is not utf-16 (")
    said = run("predict", "-", "--model", classifier, "--encoding", "hex", piped="the man\n", code=2)
    assert said.startswith("bertsmith: --encoding 'hex': no such text encoding")
    assert "leave --out" in run("embed", "-", "--model", tiny_model, "--json", "--out", "v.npy", code=2)
    assert "print them with --json" in run("embed", "-", "--model", tiny_model, code=2)
    monkeypatch.setattr(sys, "stdin", io.StringIO("not a pipe"))
    assert "give a text, or - for the lines" in run_alone(monkeypatch, tiny_model)


def run_alone(monkeypatch, model):
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    with pytest.raises(SystemExit) as caught:
        main(["fill-mask", "--model", str(model)])
    assert caught.value.code == 2
    return told.getvalue()


def test_a_line_is_answered_before_the_next_one_comes_and_a_closed_pipe_is_quiet(classifier):
    """In a process of its own: a line goes in, its answer comes out; then nobody reads any more."""
    command = [sys.executable, "-m", "bertsmith", "predict", "-", "--model", str(classifier), "--json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, bufsize=1, **pipes)
    for line in LINES:
        process.stdin.write(line + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["input"] == [line]
    process.stdout.close()
    try:
        for _ in range(200):
            process.stdin.write(LINES[0] + "\n")
            process.stdin.flush()
            time.sleep(0.01)
            if process.poll() is not None:
                break
        process.stdin.close()
    except BrokenPipeError:
        pass
    assert process.wait(30) == 1
    assert process.stderr.read() == ""
