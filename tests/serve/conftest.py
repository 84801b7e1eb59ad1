"""Small models of every kind, and servers that really listen: in a thread, or as a process of their own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
import torch
import uvicorn

from bertsmith.inference.task_file import write_task_file
from bertsmith.model import (
    BertConfig,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertsmith.retrieval import build_index
from bertsmith.serve.app import build_app
from bertsmith.serve.guard import ApiKeys
from bertsmith.serve.run import uvicorn_options
from bertsmith.serve.settings import ServeSettings
from bertsmith.tokenizer import WordPieceTokenizer

SENTENCES = ["the man eats bread .", "the woman reads a book !", "where is the market ?", "un café à Zürich"]


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> dict[str, Path]:
    """A random model of each kind, over one vocabulary; their weights are large, so that texts differ."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = WordPieceTokenizer.train(SENTENCES * 3, vocab_size=250)
    config = BertConfig.named("4/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=64).changed(
        initializer_range=0.2
    )
    torch.manual_seed(0)
    three = {0: "bad", 1: "fair", 2: "good"}
    problems = {
        "classify": ("single_label_classification", three),
        "multilabel": ("multi_label_classification", three),
        "regress": ("regression", {0: "score"}),
        "rank": (None, {0: "relevance"}),
    }
    made = {
        name: BertForSequenceClassification(config.changed(problem_type=problem, id2label=labels))
        for name, (problem, labels) in problems.items()
    }
    made["base"] = BertForPreTraining(config)
    made["tag"] = BertForTokenClassification(config.changed(id2label={0: "O", 1: "B-PER", 2: "I-PER"}))
    made["answer"] = BertForQuestionAnswering(config)
    made["choose"] = BertForMultipleChoice(config)
    for name, model in made.items():
        model.save_pretrained(root / name)
        tokenizer.save(root / name)
    reader = {"task": "answer", "max_length": 32, "stride": 8, "max_answer_tokens": 5, "null_threshold": 0.0}
    write_task_file(root / "answer", reader)
    return {name: root / name for name in made}


class LiveServer:
    """A server in a thread of the tests' own process, for what needs no signals."""

    def __init__(self, models, *, keys=(), **settings):
        settings = {"threads": 1, "port": 0, "host": "127.0.0.1"} | settings
        given = tuple((name, str(folder)) for name, folder in models.items())
        self.app = build_app(ServeSettings(models=given, **settings), keys=ApiKeys(keys))
        config = uvicorn.Config(self.app, port=0, **uvicorn_options(self.app.state.admission.settings))
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.005)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=30)

    @property
    def admission(self):
        return self.app.state.admission

    def post(self, path, body, **more):
        return self.client.post(path, json=body, **more)

    def close(self):
        self.client.close()
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture(scope="session")
def server_class():
    """For test files that need a server of their own for longer than a test."""
    return LiveServer


@pytest.fixture(scope="session")
def server(models, tmp_path_factory):
    """Serves a model of each kind, and an index."""
    root = tmp_path_factory.mktemp("searched")
    (root / "texts").mkdir()
    (root / "texts" / "notes.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    build_index(root / "texts", models["base"], root / "index")
    with contextlib.closing(LiveServer(models, indexes=(("notes", str(root / "index")),))) as live:
        yield live


@pytest.fixture
def start(models):
    """Starts servers of the base model, with other settings."""
    with contextlib.ExitStack() as stack:

        def begin(given=None, **settings):
            live = LiveServer(given or {"base": models["base"]}, **settings)
            stack.callback(live.close)
            return live

        yield begin


class ServerProcess:
    """`bertsmith serve` as a user starts it."""

    def __init__(self, *arguments, log: Path, files: int | None = None, **environment):
        """Starts it; `files` is how many it may have open, None for as many as the tests."""
        self.log = log
        limited = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh"] if files else []
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*limited, sys.executable, "-c", _COMMAND, *map(str, arguments)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
                start_new_session=True,
            )

    @property
    def text(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_ready(self, seconds=120):
        """Waits until it answers; returns its address."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.text
            found = re.search(r"http://127\.0\.0\.1:\d+", self.text)
            if found:
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"{found[0]}/ready").status_code == 200:
                        return found[0]
            time.sleep(0.05)
        raise AssertionError(f"not ready: {self.text}")

    def close(self):
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)


_COMMAND = """
import sys
import typer
from bertsmith.cli.options import Command
from bertsmith.cli.search import serve
from bertsmith.errors import BertsmithError
app = typer.Typer()
app.command(cls=Command)(serve)
try:
    app(sys.argv[1:], standalone_mode=False)
except BertsmithError as error:
    sys.exit(f"bertsmith: {error}")
"""


@pytest.fixture(scope="session")
def process_class():
    """For test files that keep a process for longer than a test."""
    return ServerProcess


@pytest.fixture
def run_server(tmp_path):
    """Starts server processes, and ends what is left of them."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments, **environment):
            process = ServerProcess(*arguments, log=tmp_path / "server.log", **environment)
            stack.callback(process.close)
            return process

        yield begin
