"""Whatever a user gives that cannot be used ends with one line, exit code 2, and nothing lost."""

import json
import subprocess
import sys

import pytest

from bertsmith.cli import main
from typed_command import typed

TEXT = "".join(f"The man eats {n} bread. The woman reads the book.\n\n" for n in "abcdefghijklmnopqrst")


@pytest.fixture
def fails(capsys):
    """Runs a command that must fail, and returns the one line it says, after `read` lines on what it has read."""

    def run(*words, read=0):
        with pytest.raises(SystemExit) as caught:
            main([str(word) for word in words])
        said = capsys.readouterr().err.strip().splitlines()
        lines = [line for line in said if not line.startswith("bertsmith: warning: ")][read:]
        assert caught.value.code == 2
        assert len(lines) == 1, lines
        assert lines[0].startswith("bertsmith: ")
        return lines[0]

    return run


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


CORPORA = {
    "an empty folder": (None, "no .txt"),
    "an empty file": (b"", "no sentence found"),
    "only white space": (b" \n\t\n \n", "no sentence found"),
    "a binary file": (bytes(range(256)) * 40, "binary"),
    "NUL bytes": (b"The man eats.\x00\x00The dog sleeps.\n" * 50, "binary"),
    "invalid UTF-8": ("Où est la bibliothèque?\n".encode() * 3 + b"caf\xe9 br\xfbl\xe9 \xff\xfe\n", "line 4"),
    "a 50 MB single line": (b"word " * 10_000_000, "line 1"),
    "too few documents": (b"The man eats the bread.\n", "at least 3"),
}


@pytest.mark.parametrize("name", CORPORA)
def test_an_unusable_corpus(fails, tmp_path, name):
    content, message = CORPORA[name]
    folder = tmp_path / "corpus"
    folder.mkdir()
    if content is not None:
        write(folder / "a.txt", content)
    line = fails("quickstart", folder, "--out", tmp_path / "out")
    assert message in line, line
    assert str(folder) in line or message == "at least 3", line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--size", "huge"], "huge"),
        (["--size", "2/100"], "multiple of 64"),
        (["--documents", "page"], "--documents"),
        (["--minutes", "-1"], "--minutes"),
        (["--minutes", "nan"], "minutes"),
        (["--minutes", "inf"], "minutes"),
        (["--vocab-size", 10], "alphabet"),
        (["--encoding", "klingon"], "klingon"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_an_impossible_option(fails, tmp_path, options, message):
    line = fails("quickstart", write(tmp_path / "a.txt", TEXT), "--out", tmp_path / "out", *options)
    assert message in line, line


@pytest.mark.usefixtures("unhurried")
def test_a_folder_with_other_settings(fails, capsys, tmp_path):
    corpus, out = write(tmp_path / "a.txt", TEXT), tmp_path / "out"
    common = ["quickstart", corpus, "--out", out, "--size", "1/64", "--minutes", 0.05]
    typed(capsys, *common)
    line = fails(*common, "--seed", 5)
    assert "seed" in line
    assert "choose another --out" in line
    # and what is there cannot be overwritten by another command either
    data = write(tmp_path / "d.tsv", "a\tx\nb\ty\n")
    files = ["--train", data, "--dev", data]
    assert "is not empty" in fails("finetune", "classify", "--model", out / "model", *files, "--out", out)


@pytest.mark.parametrize(
    "command", ["predict word", "fill-mask [MASK]", "index text", "serve", "evaluate --file a.tsv"]
)
def test_a_folder_without_a_model_is_told_with_the_one_that_was_meant(fails, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "text" / "a.txt", TEXT)
    write(tmp_path / "a.tsv", "a\tx\nb\ty\n")
    write(tmp_path / "run" / "model" / "config.json", "{}")
    words = command.split() + (["--out", "index"] if command.startswith("index") else [])
    assert "this is not a model folder; did you mean run/model?" in fails(*words, "--model", "run")
    assert "none: there is no such folder" in fails(*words, "--model", "none")


def test_a_classifier_that_fills_no_masks_says_so(fails):
    line = fails("fill-mask", "the [MASK]", "--model", "village-reviews")
    assert "was fine-tuned for classify, and has no head for fill-mask; name the model it came from" in line


def test_a_folder_that_is_not_ours_is_left_alone(fails, tmp_path):
    keep = write(tmp_path / "out" / "thesis.txt", "do not touch")
    assert "not empty" in fails("quickstart", "--out", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    assert keep.read_text() == "do not touch"


def test_a_file_where_the_folder_should_be(fails, tmp_path):
    out = write(tmp_path / "out", "I am a file")
    line = fails("quickstart", "--out", out)
    assert "file stands where a folder is needed" in line


def test_a_model_without_classifier(fails, tiny_model):
    assert "holds a BertForPreTraining, which predicts nothing here; fine-tune it first" in fails(
        "predict", "--model", tiny_model, "the man"
    )
    # what needs no head, its vectors, can be scored: a file that asks for something else is refused
    assert 'the file has no list "data"' in fails(
        "evaluate", "--model", tiny_model, "--file", tiny_model / "config.json"
    )


def test_a_run_without_an_end(fails, tmp_path):
    common = ["pretrain", "--corpus", tmp_path, "--tokenizer", tmp_path, "--out", tmp_path / "run"]
    assert "--minutes, --steps, --tokens or --flops" in fails(*common)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "inf"], "--tokens inf is no number of tokens"),
        (["--tokens", "nan"], "--tokens"),
        (["--steps", 9, "--phases", "16:nan,32:0.5"], "phases: the shares must be positive"),
    ],
)
def test_an_end_or_a_phase_that_is_no_number(fails, tmp_path, options, message):
    common = ["pretrain", "--corpus", tmp_path, "--tokenizer", tmp_path, "--out", tmp_path / "run"]
    assert message in fails(*common, *options)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_that_does_not_belong_to_the_model(fails, tiny_model):
    vocabulary = (tiny_model / "vocab.txt").read_text() + "".join(f"extra{n}\n" for n in range(500))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tiny_model / name).unlink()
    (tiny_model / "vocab.txt").write_text(vocabulary)
    assert "do not belong together" in fails("fill-mask", "--model", tiny_model, "the [MASK]")


def test_no_arguments_show_the_help_only(capsys):
    assert "See --help" not in typed(capsys, code=2)


def test_debug_shows_the_traceback(tmp_path):
    from bertsmith.errors import InputError

    with pytest.raises(InputError):
        main(["quickstart", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"), "--debug"])


def test_what_stands_behind_two_dashes_is_no_option(tmp_path, capsys):
    assert "--debug: " in typed(capsys, "quickstart", "--out", tmp_path / "out", "--", "--debug", code=2)


def test_help_answers_without_loading_torch():
    code = (
        "import sys, bertsmith.cli as c\ntry: c.main(['--help'])\nexcept SystemExit: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_vocabulary_does_not_replace_that_of_a_model(fails, tiny_model, tmp_path):
    before = (tiny_model / "vocab.txt").read_bytes()
    assert "holds a model" in fails("vocab", write(tmp_path / "a.txt", TEXT), "--out", tiny_model, "--vocab-size", 60)
    assert (tiny_model / "vocab.txt").read_bytes() == before


@pytest.mark.usefixtures("unhurried")
def test_more_text_is_learned_from_where_too_little_was_given(fails, tmp_path, capsys):
    write(tmp_path / "text" / "a.txt", "The man reads.\n")
    command = ["quickstart", tmp_path / "text", "--size", "1/64", "--minutes", 0.05, "--out", tmp_path / "out"]
    assert "at least 3" in fails(*command)
    write(tmp_path / "text" / "b.txt", "Zebras jump over quick foxes. Foxes vex wizards.\n\n" * 20)
    write(tmp_path / "text" / "c.txt", TEXT)
    typed(capsys, *command)
    assert "z" in (tmp_path / "out" / "tokenizer" / "vocab.txt").read_text().split()


@pytest.mark.parametrize("command", ["vocab", "quickstart"])
def test_a_codec_that_does_not_say_where_it_fails(fails, tmp_path, command):
    text = write(tmp_path / "a.txt", TEXT)
    line = fails(command, text, "--encoding", "utf-16", "--out", tmp_path / "out", read=command == "vocab")
    assert f"{text}: is not utf-16" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch-size", 4, "--batch-tokens", 64], "leave out one"),
        (["--objective", "ltr", "--mask-rate", 0.3], "--mask-rate is for masks"),
        (["--objective", "ltr+nsp", "--max-predictions-per-seq", 3], "--max-predictions-per-seq is for masks"),
        (["--mask-share", "nan"], "'--mask-share': "),
        (["--mask-rate", 0], "mask_rate is 0.0; give more than 0 and less than 1"),
        (["--mask-rate", 1.5], "mask_rate is 1.5; give more than 0 and less than 1"),
        (
            ["--optimizer", "adamw", "--matrix-rate", 0.1],
            "--matrix-rate is for --optimizer muon, and this run takes adamw",
        ),
        (["--from", "MODEL", "--matrix-rate", 0.1], "--matrix-rate is for --optimizer muon, and this run takes adamw"),
        (["--family", "modernbert", "--sinusoids", 0.1], "'modernbert' has no position table; leave out --sinusoids"),
        (["--random-share", "nan"], "'--random-share': "),
        (["--evaluations", 0], "equal to 1"),
        (["--minutes", 0.01], "equal to 0.05"),
    ],
)
def test_options_of_pre_training_that_cannot_be_followed(fails, tiny_model, tmp_path, options, message):
    files = ["--corpus", tmp_path, "--tokenizer", tmp_path, "--out", tmp_path / "out"]
    options = [tiny_model if word == "MODEL" else word for word in options]
    assert message in fails("pretrain", *files, "--steps", 3, *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("log", [b'{"kind":"train"}\n', b'{"kind":"dev","step":3}\n', b'{"kind":"tr'])
def test_a_log_of_something_else_has_no_report(fails, tmp_path, log):
    write(tmp_path / "run" / "metrics.jsonl", log)
    assert "no metrics.jsonl with figures" in fails("report", tmp_path / "run")


@pytest.mark.parametrize("line", [bytes(range(256)).replace(b"\n", b""), b"[1]", b'{"kind":"train","step":', b"{}{}"])
def test_a_spoilt_log_has_no_report(fails, tmp_path, line):
    write(tmp_path / "run" / "metrics.jsonl", b'{"kind":"train","step":1,"tokens":9}\n' + line + b"\n")
    assert "metrics.jsonl: line 2 is damaged; put a whole copy back" in fails("report", tmp_path / "run")


def test_an_added_token_without_its_text(fails, tiny_model):
    path = tiny_model / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    (tiny_model / "tokenizer.json").unlink()
    for added in ({"lstrip": False}, {"content": 5}, "word"):
        path.write_text(json.dumps({**config, "added_tokens_decoder": {"0": added}}), encoding="utf-8")
        assert "tokenizer_config.json" in fails("fill-mask", "the [MASK]", "--model", tiny_model)


@pytest.mark.parametrize(("words", "goes_on"), [(["fill-mask", "[MASK]"], False), (["embed", "a.txt"], True)])
def test_ctrl_c_says_so(tiny_model, tmp_path, monkeypatch, capsys, words, goes_on):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bertsmith.inference.load_pipeline", interrupt)
    monkeypatch.setattr("bertsmith.inference.embed_files.embed_files", interrupt)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt", TEXT)
    out = ["--out", "x.npy"] if goes_on else []
    said = "bertsmith: interrupted" + ("; run the same command again to resume" if goes_on else "")
    assert typed(capsys, *words, "--model", tiny_model, *out, code=130).strip() == said
