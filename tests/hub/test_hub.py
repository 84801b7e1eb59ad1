"""A name of the Hub works wherever a model folder does, and everything that can go wrong is one line."""

import errno
import io
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tomllib
from hub_server import TOKEN
from rich.console import Console

from bertsmith import hub as door
from bertsmith import load_pipeline
from bertsmith.errors import CheckpointError
from bertsmith.finetune.tasks import all_tasks
from bertsmith.hub import hub_name, model_folder
from bertsmith.model import BertForPreTraining
from bertsmith.tokenizer import WordPieceTokenizer

TEXT = "the man [MASK] bread ."
EXAMPLES = "the man eats bread\tfood\nthe woman reads a book\tbook\n" * 2


@pytest.fixture
def named(hub, tiny_model):
    """The commit of the tiny model, under `org/tiny`."""
    hub.commit = hub.add("org/tiny", tiny_model)
    return hub


@pytest.fixture
def moved(named, tiny_model):
    """Moves the branch to other weights."""

    def move():
        model = BertForPreTraining.from_pretrained(tiny_model)
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
        model.save_pretrained(tiny_model)
        return named.add("org/tiny", tiny_model)

    return move


def downloaded(hub):
    return {line.rpartition("/")[2] for line in hub.requests if line.startswith("GET") and "/resolve/" in line}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("org/name", ("org/name", "")),
        ("org/name@v1.0", ("org/name", "v1.0")),
        ("org/name@refs/pr/3", ("org/name", "refs/pr/3")),
        ("name", None),
        ("/org/name", None),
        ("./org/name", None),
        ("../name", None),
        ("org/name/more", None),
        ("corpus/vocab.txt", None),
        ("org/name@", None),
        ("s3://org/name", None),
    ],
)
def test_what_looks_like_a_name(text, name):
    assert hub_name(text) == name


def test_a_path_that_exists_wins(named, tiny_model, run):
    shutil.copytree(tiny_model, "org/tiny")
    assert "piece" in run("fill-mask", TEXT, "--model", "org/tiny")
    assert not named.requests


def test_nothing_of_the_hub_is_loaded_for_a_local_folder(tiny_model):
    code = (
        "import sys, bertsmith.cli\nfrom bertsmith import load_pipeline\n"
        "load_pipeline('fill-mask', sys.argv[1])\nassert 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tiny_model)], check=True)


def test_fill_mask_by_name_says_what_the_folder_says(named, tiny_model, run):
    assert run("fill-mask", TEXT, "--model", "org/tiny") == run("fill-mask", TEXT, "--model", tiny_model)


def test_only_safetensors_and_texts_of_the_folder_itself_are_downloaded(hub, tiny_model):
    for name in ("pytorch_model.bin", "tf_model.h5", "script.py", "onnx/model.onnx", "onnx/config.json"):
        (tiny_model / name).parent.mkdir(exist_ok=True)
        (tiny_model / name).write_bytes(b"x")
    for name in ("modules.json", "1_Pooling/config.json"):
        (tiny_model / name).parent.mkdir(exist_ok=True)
        (tiny_model / name).write_text("{}")
    hub.add("org/tiny", tiny_model)
    folder = model_folder("org/tiny")
    texts = {"special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "modules.json"}
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == texts | {"config.json", "model.safetensors", "1_Pooling/config.json"}


def test_a_tokenizer_by_name_leaves_the_weights_there(named, tiny_model, run):
    assert WordPieceTokenizer.load("org/tiny").vocab == WordPieceTokenizer.load(tiny_model).vocab
    run("inspect", "tokens", "the man", "--tokenizer", "org/tiny")
    assert "vocab.txt" in downloaded(named)
    assert "model.safetensors" not in downloaded(named)


def test_from_python(named, tiny_model):
    ours = BertForPreTraining.from_pretrained("org/tiny").state_dict()
    theirs = BertForPreTraining.from_pretrained(tiny_model).state_dict()
    assert all(ours[name].equal(value) for name, value in theirs.items())
    vectors = load_pipeline("embed", "org/tiny")(["the man"])
    assert np.array_equal(vectors, load_pipeline("embed", tiny_model)(["the man"]))


def test_one_process_reads_one_commit(named, moved):
    before = model_folder("org/tiny")
    moved()
    assert model_folder("org/tiny") == before
    assert sum("/revision/main" in line for line in named.requests) == 1


def test_a_revision_by_branch_tag_or_commit(named, moved, run):
    first = run("fill-mask", TEXT, "--model", "org/tiny")
    moved()
    second = run("fill-mask", TEXT, "--model", "org/tiny")
    assert first != second
    named.model("org/tiny").branches["v1"] = named.commit
    assert run("fill-mask", TEXT, "--model", "org/tiny@v1") == first
    assert run("fill-mask", TEXT, "--model", f"org/tiny@{named.commit}") == first


def test_the_second_time_the_cache_will_do(named, run, monkeypatch):
    from huggingface_hub import constants

    first = run("fill-mask", TEXT, "--model", "org/tiny")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(named.requests)
    assert run("fill-mask", TEXT, "--model", "org/tiny") == first
    assert len(named.requests) == asked
    # and with the line down instead of switched off
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert run("fill-mask", TEXT, "--model", "org/tiny") == first


def test_embedding_that_was_broken_off_goes_on_with_its_commit(named, moved, run, tiny_model, monkeypatch):
    from bertsmith.inference import embed_files

    Path("texts.txt").write_text("the man eats bread\nthe woman\n")
    expected = load_pipeline("embed", tiny_model)(["the man eats bread", "the woman"])

    def stop(*_):
        raise CheckpointError("stopped")

    with monkeypatch.context() as broken:
        broken.setattr(embed_files, "_put_together", stop)
        with pytest.raises(CheckpointError, match="stopped"):
            embed_files.embed_files(["texts.txt"], "org/tiny", "v.npy", workers=1)
    moved()
    run("embed", "texts.txt", "--model", "org/tiny", "--out", "v.npy")
    assert np.array_equal(np.load("v.npy"), expected)


def test_the_workers_of_a_study_read_the_commit_that_it_began_with(named, moved, tmp_path, monkeypatch):
    from bertsmith_school.study import StudyOptions, run, score_models
    from bertsmith_school.study.tasks import StudyTask

    # 模型的词表拼不出中文：不会真的去微调
    Path("train.tsv").write_text("男人吃面包\t食\n女人读书\t书\n", encoding="utf-8")
    task = StudyTask("food", "classify", dict.fromkeys(("train", "dev", "test"), "train.tsv"))
    read = []

    def elsewhere(work, plans, **_):
        work = pickle.loads(pickle.dumps(work))
        moved()
        for known in (door._commits, door._folders):
            known.clear()
        for plan in plans:
            assert [row.error for row in work(plan)] == [""]
            read.append(model_folder("org/tiny").name)
        raise CheckpointError("enough")

    monkeypatch.setattr(run, "parallel_map", elsewhere)
    options = StudyOptions(seeds=1, jobs=2)
    with pytest.raises(CheckpointError, match="enough"):
        score_models(["org/tiny"], [task], tmp_path / "out", options, Console(file=io.StringIO()))
    assert read == [named.commit]


@pytest.mark.slow
def test_fine_tuning_notes_its_commit_and_keeps_to_it(named, moved, run, fails):
    Path("train.tsv").write_text(EXAMPLES)
    job = ("finetune", "classify", "--train", "train.tsv", "--dev", "train.tsv", "--epochs", 1, "--batch-size", 2)
    said = run(*job, "--model", "org/tiny", "--out", "run")
    noted = json.loads(Path("run/finetune.json").read_text())["start"]
    assert noted == {"name": "org/tiny", "commit": named.commit}
    assert "org/tiny" in Path("run/model/README.md").read_text()
    # interrupted before the result was written, and the branch has moved meanwhile
    commit = moved()
    Path("run/result.json").unlink()
    assert run(*job, "--model", "org/tiny", "--out", "run") == said
    assert "another model and start" in fails(*job, "--model", f"org/tiny@{commit}", "--out", "run")
    run(*job, "--model", "org/tiny", "--out", "fresh")
    assert json.loads(Path("fresh/finetune.json").read_text())["start"]["commit"] == commit
    assert run("predict", "the man", "--model", "run/model")


@pytest.mark.parametrize(
    ("task", "row", "length"),
    [("embed", "the man\ta book", 9), ("rank", "the man\ta book\t1", 9), ("classify", "the man\tfood", 32)],
)
def test_fine_tuning_by_name_reads_as_much_as_the_folder_says(hub, tiny_model, run, task, row, length):
    (tiny_model / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    hub.add("org/short", tiny_model)
    limits = [
        all_tasks()[task].length_limit(folder, asked) for folder in ("org/short", tiny_model) for asked in (0, 5, 40)
    ]
    assert limits == [length, 5, 32] * 2
    others = {"embed": "who\tthe man", "rank": "the man\tbread\t0", "classify": "bread\tbook"}
    head = {"embed": "query\tpositive", "rank": "query\ttext\tlabel", "classify": "text\tlabel"}
    Path("train.tsv").write_text(
        "\n".join([head[task], *[row, others[task]] * 2, row.replace("man", "man " * 40)]) + "\n"
    )
    job = ("finetune", task, "--train", "train.tsv", "--dev", "train.tsv", "--epochs", 1, "--batch-size", 2)
    said = run(*job, "--model", "org/short", "--out", "run")
    assert f"longer than the model reads ({length})" in said
    assert json.loads(Path("run/model/task.json").read_text())["max_length"] == length
    assert f"It reads {length} word pieces at a time" in Path("run/model/README.md").read_text()


def test_a_noted_commit_that_is_gone_is_named(named, moved, run, fails, tmp_path):
    Path("train.tsv").write_text(EXAMPLES)
    job = ("finetune", "classify", "--train", "train.tsv", "--dev", "train.tsv", "--epochs", 1, "--model", "org/tiny")
    run(*job, "--out", "run")
    moved()
    del named.model("org/tiny").commits[named.commit]
    shutil.rmtree(tmp_path / "cache")
    assert f"no revision '{named.commit}'" in fails(*job, "--out", "run")


@pytest.mark.slow
def test_a_search_notes_its_commit(named, moved, run):
    Path("train.tsv").write_text(EXAMPLES)
    job = ("finetune", "classify", "--train", "train.tsv", "--dev", "train.tsv", "--epochs", 1, "--seeds", 2)
    said = run(*job, "--model", "org/tiny", "--out", "run")
    moved()
    assert run(*job, "--model", "org/tiny", "--out", "run").splitlines()[-2:] == said.splitlines()[-2:]
    assert json.loads(Path("run/search.json").read_text())["start"]["commit"] == named.commit


def test_pretraining_on_from_a_name_notes_its_commit(named, moved, run, fails):
    stories = ("the man eats bread . the woman reads a book !\n" * number for number in range(3, 20))
    Path("text.txt").write_text("\n".join(stories))
    run("corpus", "text.txt", "--tokenizer", "org/tiny", "--out", "corpus", "--documents", "blank-line")
    assert "model.safetensors" not in downloaded(named)
    job = ("pretrain", "--corpus", "corpus", "--tokenizer", "org/tiny", "--out", "run", "--track", "none")
    run(*job, "--from", "org/tiny", "--steps", 2)
    model = tomllib.loads(Path("run/recipe.toml").read_text())["model"]
    assert (model["start_from"], model["start_commit"]) == ("org/tiny", named.commit)
    commit = moved()
    run(*job, "--from", "org/tiny", "--steps", 2)
    assert "start_commit" in fails(*job, "--from", f"org/tiny@{commit}", "--steps", 2)


def test_an_adapter_by_name(named, run):
    Path("train.tsv").write_text(EXAMPLES)
    job = ("finetune", "classify", "--train", "train.tsv", "--dev", "train.tsv", "--epochs", 1, "--adapter", "lora")
    run(*job, "--model", "org/tiny", "--out", "run")
    named.add("org/adapter", Path("run/adapter"))
    said = run("predict", "the man", "--model", "org/tiny", "--adapter", "org/adapter")
    assert said == run("predict", "the man", "--model", "org/tiny", "--adapter", "run/adapter")


def test_export_attention_and_similarity_by_name(named, run):
    run("export", "huggingface", "org/tiny", "--out", "copy")
    run("attention", "the man", "--model", "org/tiny", "--out", "maps")
    run("embed", "--compare", "the man", "--compare", "the woman", "--model", "org/tiny")
    assert Path("copy/model.safetensors").is_file()


def test_texts_and_tasks_from_datasets(named, run, fails, token):
    files = {"train.tsv": EXAMPLES.encode(), "a/x.txt": b"the man eats bread .\n" * 9, "a/y.txt": b"a book !\n" * 9}
    named.add("org/data", files, kind="datasets")
    named.repositories["datasets/org/data"].private = True
    address = "hf://datasets/org/data"
    for number, text in enumerate(("a/x.txt", "a", "a/*.txt")):
        run("vocab", f"{address}/{text}", "--out", f"vocab{number}", "--vocab-size", 60, "--workers", 2)
    assert Path("vocab1/vocab.txt").read_text() == Path("vocab2/vocab.txt").read_text()
    stories = ["the man eats bread . the woman reads a book !\n" * number for number in range(3, 9)]
    named.add("org/stories", {f"{number}.txt": text.encode() for number, text in enumerate(stories)}, kind="datasets")
    made = ("corpus", "--tokenizer", "org/tiny", "--documents", "file")
    assert "train:" in run(*made, "hf://datasets/org/stories", "--out", "corpus", "--workers", 2)
    train = ("--train", f"{address}/train.tsv", "--dev", f"{address}/train.tsv", "--epochs", 1)
    run("finetune", "classify", "--model", "org/tiny", *train, "--out", "run")
    assert "accuracy" in run("evaluate", "--model", "run/model", "--file", f"{address}/train.tsv")
    line = fails("evaluate", "--model", "run/model", "--file", f"{address}/none.tsv")
    assert f"{address}/none.tsv" in line
    line = fails("evaluate", "--model", "run/model", "--file", f"{address}/a/x.txt")
    assert f"{address}/a/x.txt" in line
    assert "/tmp" not in line


def break_gated(hub, monkeypatch):
    hub.model("org/tiny").gated = True


def break_private(hub, monkeypatch):
    hub.model("org/tiny").private = True


def break_pickles(hub, monkeypatch):
    files = hub.model("org/tiny").commits[hub.commit]
    hub.add("org/tiny", {"pytorch_model.bin": b"x", **{name: files[name] for name in ("config.json", "vocab.txt")}})


def break_not_a_model(hub, monkeypatch):
    hub.add("org/tiny", {"README.md": b"x"})


def break_offline(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def break_line(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def break_short(hub, monkeypatch):
    hub.cut = "short"


def break_full_disk(hub, monkeypatch):
    from huggingface_hub import file_download

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_download, "http_get", full)


BROKEN = {
    "gated": (break_gated, "org/tiny", "(gated); ask for access on .*org/tiny and set HF_TOKEN"),
    "private": (break_private, "org/tiny", "no such repository, or it is private; .* set HF_TOKEN"),
    "missing": (None, "org/none", "no such folder here, and the Hub has no such repository"),
    "revision": (None, "org/tiny@v9", "no revision 'v9'"),
    "pickles": (break_pickles, "org/tiny", "no safetensors; pytorch_model.bin may run code .*bertsmith import"),
    "no model": (break_not_a_model, "org/tiny", "is no model folder"),
    "offline": (break_offline, "org/tiny", "no such folder here, .*HF_HUB_OFFLINE is set"),
    "no network": (break_line, "runs/mine", "runs/mine: no such folder here, and the Hub .* cannot be reached"),
    "truncated": (break_short, "org/tiny", "broke off in the middle of a file"),
    "full disk": (break_full_disk, "org/tiny", "the disk of .*cache is full; make room, or set HF_HOME"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_the_hub_does_not_give(named, fails, name, monkeypatch, tmp_path):
    damage, model, message = BROKEN[name]
    if damage:
        damage(named, monkeypatch)
    Path("texts.txt").write_text("the man\n")
    line = fails("embed", "texts.txt", "--model", model, "--out", "v.npy")
    assert re.search(message.replace("(gated)", r"\(gated\)"), line), line
    # nothing is left behind: no output, no half of a file
    assert os.listdir() == ["texts.txt"]
    assert not list((tmp_path / "cache").rglob("*.incomplete"))


@pytest.mark.parametrize("damage", [break_short, break_full_disk])
def test_after_a_broken_download_the_next_one_is_whole(named, fails, run, monkeypatch, damage):
    with monkeypatch.context() as broken:
        damage(named, broken)
        fails("fill-mask", TEXT, "--model", "org/tiny")
    named.cut = ""
    assert "piece" in run("fill-mask", TEXT, "--model", "org/tiny")


@pytest.mark.slow  # the library waits a second before each of five new tries
def test_a_line_that_breaks_in_the_middle(named, fails):
    named.cut = "drop"
    assert "broke off in the middle of a file" in fails("fill-mask", TEXT, "--model", "org/tiny")


def test_what_a_token_opens(named, run, token):
    named.model("org/tiny").gated = True
    assert "piece" in run("fill-mask", TEXT, "--model", "org/tiny")


def test_names_of_what_is_served(named):
    settings = pytest.importorskip("bertsmith.serve.settings")
    folder = str(model_folder("org/tiny"))
    assert settings.named_models(["org/tiny", "other=org/tiny@main"]) == (("tiny", folder), ("other", folder))


@pytest.fixture
def environment(hub, tmp_path):
    own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    return {**os.environ, **own, "HF_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("command", ["serve", pytest.param("lab", marks=pytest.mark.slow)])
def test_a_server_of_a_name(named, environment, command):
    httpx = pytest.importorskip("httpx")
    named.model("org/tiny").gated = True
    arguments = [sys.executable, "-m", "bertsmith", command, "--model", "org/tiny@main", "--port", "0"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment) as process:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if address := re.search(r"(http://127\.0\.0\.1:\d+)", line):
                break
        else:
            pytest.fail("".join(lines))
        try:
            models = httpx.get(f"{address[1]}/info", timeout=60).json()["models"]
            answer = httpx.post(f"{address[1]}/fill-mask", json={"texts": [TEXT]}, timeout=60)
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
    assert [model["name"] for model in models] == ["tiny"]
    assert answer.status_code == httpx.codes.OK


def test_the_command_itself_prints_nothing_but_its_answer(named, environment):
    arguments = [sys.executable, "-m", "bertsmith", "fill-mask", TEXT, "--model", "org/tiny"]
    first = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert "piece" in first.stdout
    assert first.stderr == ""
