"""The folder in which the blocks of a page run: what `docs/CONTRIBUTING-docs.md` lists, made once."""

import gzip
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub_server import HubServer

from bertsmith.model import BertModel, ModelForMaskedLM, ModelForPreTraining, family_named
from bertsmith.tinyworld import draw_questions, draw_reviews, draw_stories, draw_tagged_sentences
from bertsmith.tokenizer import WordPieceTokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """A Hub on this machine, for the commands of the pages and for Python in this process."""
    from huggingface_hub import HfFileSystem, constants

    server = HubServer()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.constants(tmp_path_factory.mktemp("cache")).items():
            patch.setattr(constants, name, value)
        HfFileSystem.clear_instance_cache()
        yield server
    server.close()


@pytest.fixture(scope="session")
def environment(tmp_path_factory, hub) -> dict[str, str]:
    """What a reader's shell has: `bertsmith` and `python` as this test has them, and a Hub."""
    bin_folder = tmp_path_factory.mktemp("bin")
    for name, arguments in (("bertsmith", "-m bertsmith"), ("python", "")):
        (bin_folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (bin_folder / name).chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(tmp_path_factory.mktemp("hf-home")),
        "HF_HUB_DISABLE_XET": "1",
        "COLUMNS": "120",
    }


@pytest.fixture(scope="session")
def shell(environment):
    """Runs a block of shell code in a folder, and returns what it prints."""

    def run(code: str, folder: Path) -> str:
        data = {"XDG_DATA_HOME": str(folder / "data-home")}
        command = ["bash", "-euo", "pipefail", "-c", code]
        done = subprocess.run(
            command, cwd=folder, env={**environment, **data}, capture_output=True, text=True, timeout=2400, check=False
        )
        assert done.returncode == 0, f"{code}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        return done.stdout

    return run


@pytest.fixture
def start(environment):
    """Starts a command that runs until it is stopped, on a free port, and waits until it answers there."""
    running = []

    def begin(command: str, folder: Path) -> int:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        words = [*shlex.split(command), "--port", str(port)]
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running.append(process)
        for _ in range(1200):
            with socket.socket() as one:
                if process.poll() is None and one.connect_ex(("127.0.0.1", port)) == 0:
                    return port
            if process.poll() is not None:
                break
            time.sleep(0.1)
        process.kill()
        raise AssertionError(f"{command} does not answer:\n{process.communicate()[0][-1500:]}")

    yield begin
    for process in running:
        process.terminate()
    for process in running:
        process.communicate(timeout=60)


@pytest.fixture(scope="session")
def sample(tmp_path_factory, shell, hub) -> Path:
    """A folder with text, labelled files, a run of pre-training, a classifier and an index; some of it on the Hub."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "texts").mkdir()
    stories = [story.text for story in draw_stories(0, 300)]
    for number in range(3):
        # 一篇故事一段：空行把文件分成文档
        text = "\n\n".join(stories[number::3]) + "\n"
        (folder / "texts" / f"part-{number}.txt").write_text(text, encoding="utf-8")
    for name, count in (("train", 60), ("dev", 20)):
        rows = [f"{review.text}\t{review.label}" for review in draw_reviews(0, count, split=name)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    exported = [f"{review.text};{review.label}" for review in draw_reviews(0, 100, split="train")]
    (folder / "reviews.csv").write_text("\n".join(["Review Text;Sentiment Label", *exported]) + "\n", encoding="utf-8")
    new = [review.text for review in draw_reviews(0, 5, split="new")]
    (folder / "new.txt").write_text("\n".join(new) + "\n", encoding="utf-8")
    scored = [f"{a}\t{b}\t{n % 6}" for n, (a, b) in enumerate(zip(stories[:30], stories[30:60], strict=True))]
    (folder / "pairs.tsv").write_text("\n".join(["a\tb\tscore", *scored]) + "\n", encoding="utf-8")
    sentences = draw_tagged_sentences(0, 40, split="train")
    tagged = ["\n".join(f"{w} {t}" for w, t in zip(one.words, one.tags, strict=True)) for one in sentences]
    (folder / "tagged.conll").write_text("\n\n".join(tagged) + "\n", encoding="utf-8")
    asked = []
    for number, one in enumerate(draw_questions(0, 30, split="train")):
        answer = {"text": one.answer, "answer_start": one.context.index(one.answer)}
        question = {"id": str(number), "question": one.question, "answers": [answer]}
        asked.append({"context": one.context, "qas": [question]})
    squad = {"version": "1.1", "data": [{"title": "village", "paragraphs": asked}]}
    (folder / "answers.json").write_text(json.dumps(squad), encoding="utf-8")
    shell(
        "bertsmith quickstart texts --documents blank-line --family bert --size 2/128 --minutes 0.3 --out runs/mine\n"
        "bertsmith finetune classify --model runs/mine/model --train train.tsv --dev dev.tsv --epochs 1"
        " --out runs/reviews\n"
        "bertsmith index texts --model runs/mine/model --out runs/mine.index\n",
        folder,
    )
    tokenizer = WordPieceTokenizer.load(folder / "runs/mine/model")
    for name, family, kind, positions in (
        ("google-bert/bert-base-uncased", "bert", ModelForPreTraining, 512),
        ("sentence-transformers/all-MiniLM-L6-v2", "bert", BertModel, 512),
        ("org/name", "bert", ModelForPreTraining, 512),
        ("answerdotai/ModernBERT-base", "modernbert", ModelForMaskedLM, 8192),
    ):
        published = tmp_path_factory.mktemp("published")
        config = family_named(family).config.named("1/64", vocab_size=tokenizer.vocab_size)
        kind(config.with_position_limit(positions)).save_pretrained(published)
        tokenizer.save(published)
        hub.add(name, published)
    documents = "".join(f"{json.dumps({'text': story})}\n" for story in stories)
    hub.add("org/texts", {"stories.jsonl.gz": gzip.compress(documents.encode())}, kind="datasets")
    labelled = {name: (folder / name).read_bytes() for name in ("train.tsv", "dev.tsv")}
    hub.add("org/task", labelled, kind="datasets")
    return folder
