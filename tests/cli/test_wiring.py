"""Every option of a command reaches what does the work: each is given a value that is not its default."""

import os
import subprocess
import sys

import pytest
import typer
from typer.main import get_command

import bertsmith.data.corpus.build
import bertsmith.data.corpus.vocabulary
import bertsmith.interop
import bertsmith.serve.run
import bertsmith_school.lab.run
from bertsmith.cli import all_commands
from bertsmith.data.corpus.plan import CorpusOptions
from bertsmith.errors import InputError
from bertsmith.serve.settings import Limits, ServeSettings
from bertsmith.tokenizer import WordPieceTokenizer
from typed_command import typed


@pytest.fixture
def told(monkeypatch, capsys):
    """Runs a command whose work is replaced; returns what the work was told: its arguments, by place and by name."""

    def call(owner, name, *words):
        seen = []

        def work(*values, **named):
            seen.append((values, named))
            raise InputError("that is enough")

        monkeypatch.setattr(owner, name, work)
        given = [str(word) for word in words]
        # 新加的选项若没有写进这里的测试，这一行就会失败
        assert {word for word in given if word.startswith("--")} == options_of(given[0])
        assert "that is enough" in typed(capsys, *given, code=2)
        return seen[0]

    return call


def options_of(command):
    chosen = get_command(all_commands()).commands[command]
    parameters = chosen.get_params(typer.Context(chosen))
    found = {option for parameter in parameters for option in parameter.opts if option.startswith("--")}
    # --device 由所有会计算的命令共用，另有测试
    return found - {"--help", "--device"}


def test_every_option_of_serve_reaches_the_settings(told, tiny_model, tmp_path):
    words = (
        f"serve --model one={tiny_model} --model two={tiny_model} --host 0.0.0.0 --port 1234 --workers 3 --threads 5"
        f" --precision bf16 --engine auto --api-key-file {tmp_path / 'keys'} --cors-origin https://a.org --cors-origin https://b.org"
        " --queue 7 --deadline 11 --batch-tokens 13 --drain 19 --max-items 23 --max-characters 29"
        f" --max-tokens 31 --allow-host a.org --index notes={tmp_path / 'index'}"
    )
    expected = ServeSettings(
        models=(("one", str(tiny_model)), ("two", str(tiny_model))),
        indexes=(("notes", str(tmp_path / "index")),),
        host="0.0.0.0",
        port=1234,
        workers=3,
        threads=5,
        precision="bf16",
        engine="auto",
        key_file=str(tmp_path / "keys"),
        cors_origins=("https://a.org", "https://b.org"),
        allowed_hosts=("a.org",),
        queue=7,
        deadline=11.0,
        batch_tokens=13,
        drain=19.0,
        limits=Limits(items=23, characters=29, tokens=31),
    )
    assert told(bertsmith.serve.run, "serve", *words.split()) == ((expected,), {})


def test_every_option_of_the_lab_reaches_it(told, tiny_model, tmp_path):
    words = (
        f"lab --model mine={tiny_model} --runs {tmp_path / 'one'} --runs {tmp_path / 'two'} --host 0.0.0.0 --port 1234"
        f" --language zh --progress {tmp_path / 'cards.json'} --index notes={tmp_path / 'index'}"
        f" --api-key-file {tmp_path / 'keys'} --allow-host lab.example"
    )
    indexes = (("notes", str(tmp_path / "index")),)
    settings = ServeSettings(
        (("mine", str(tiny_model)),),
        indexes,
        host="0.0.0.0",
        port=1234,
        drain=0.0,
        key_file=str(tmp_path / "keys"),
        allowed_hosts=("lab.example",),
    )
    (given, runs), named = told(bertsmith_school.lab.run, "run_lab", *words.split())
    assert (given, list(runs)) == (settings, [tmp_path / "one", tmp_path / "two"])
    assert named == {"language": "zh", "progress": tmp_path / "cards.json"}


def test_every_option_of_vocab_reaches_the_learning(told, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("the man", encoding="utf-8")
    read = []
    monkeypatch.setattr(
        bertsmith.data.corpus.vocabulary, "read_all_lines", lambda _, **named: read.append(named) or ["the man"]
    )
    words = (
        f"vocab {tmp_path / 'a.txt'} --out {tmp_path / 'out'} --vocab-size 77 --min-frequency 3 --limit-alphabet 9"
        " --cased --unused 5 --token <url> --token <user> --workers 2 --encoding latin-1 --text-field body"
        " --kind bpe --sheet Articles"
    )
    values, named = told(bertsmith.data.corpus.vocabulary, "learn_tokenizer", *words.split())
    assert values == (["the man"],)
    assert callable(named.pop("on_progress"))
    assert callable(named.pop("on_note"))
    assert named == {
        "kind": "bpe",
        "vocab_size": 77,
        "lowercase": False,
        "min_frequency": 3,
        "limit_alphabet": 9,
        "num_unused": 5,
        "user_tokens": ("<url>", "<user>"),
        "workers": 2,
    }
    assert read == [{"encoding": "latin-1", "field": "body", "sheet": "Articles"}]


def test_every_option_of_corpus_reaches_the_building(told, tiny_model, tmp_path, monkeypatch):
    # 只看选项有没有传到：不载入 jieba 的词典
    monkeypatch.setattr("bertsmith.data.corpus.plan.word_cutter", lambda: None)
    words = (
        f"corpus a.txt b.txt --tokenizer {tiny_model} --out {tmp_path / 'out'} --documents blank-line --heldout 0.3"
        " --encoding latin-1 --text-field body --workers 3 --engine ray --shard-tokens 99 --keep-duplicates"
        " --near-duplicates 0.7 --drop-repeated-lines 12 --words jieba --sheet Articles"
    )
    (text, tokenizer, out, options), named = told(bertsmith.data.corpus.build, "build_shards", *words.split())
    assert (list(text), out) == (["a.txt", "b.txt"], tmp_path / "out")
    assert tokenizer.vocab == WordPieceTokenizer.load(tiny_model).vocab
    assert options == CorpusOptions(
        documents="blank-line",
        encoding="latin-1",
        text_field="body",
        sheet="Articles",
        heldout_share=0.3,
        shard_tokens=99,
        keep_duplicates=True,
        near_duplicates=0.7,
        drop_repeated_lines=12,
        words="jieba",
    )
    assert callable(named.pop("on_progress"))
    assert callable(named.pop("on_note"))
    assert named == {"engine": "ray", "workers": 3}


def test_every_option_of_import_reaches_it(told, tmp_path):
    source, out = tmp_path / "from", tmp_path / "to"
    values, named = told(bertsmith.interop, "import_checkpoint", "import", source, "--out", out, "--lowercase")
    assert values == (source, out)
    assert named == {"lowercase": True}


def test_inspect_tokens_shows_a_pair_and_special_tokens_where_asked(tiny_model, capsys):
    def shown(*words):
        return typed(capsys, "inspect", "tokens", "the [MASK]", "--tokenizer", tiny_model, *words)

    assert "[MASK]" not in shown()
    assert "[MASK]" in shown("--special")
    assert shown().count("[SEP]") == 1
    assert shown("--pair", "a book").count("[SEP]") == 2


def test_commands_of_a_broken_package_are_one_warning(tmp_path):
    folder = tmp_path / "broken-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[bertsmith.commands]\nbroken = nowhere_at_all:register\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "bertsmith", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("bertsmith ")
    said = "nowhere_at_all:register, an entry point bertsmith.commands, cannot be used (No module named"
    assert done.stderr.strip() == f"bertsmith: warning: {said} 'nowhere_at_all')"


def test_every_command_stands_in_one_of_five_panels():
    commands = get_command(all_commands()).commands
    panels = dict.fromkeys(each.rich_help_panel for each in commands.values())
    assert list(panels) == ["Start", "Train", "Use", "Look", "Exchange"]
    assert commands["compare"].rich_help_panel == commands["lab"].rich_help_panel == "Look"
