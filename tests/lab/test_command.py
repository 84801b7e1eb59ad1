"""`bertsmith lab`: what it is told, and what it refuses at once."""

import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import typer

from bertsmith.cli.lab import lab as command
from bertsmith.errors import InputError
from bertsmith.lab import run

app = typer.Typer()
app.command("lab")(command)


def called(arguments, monkeypatch):
    told = []
    monkeypatch.setattr(run, "run_lab", lambda *values, **named: told.append((values, named)))
    app(arguments, standalone_mode=False)
    return told[0]


def test_everything_that_is_told_arrives(folders, runs, tmp_path, monkeypatch):
    arguments = ["--model", f"mine={folders['base']}", "--model", str(folders["tag"]), "--runs", str(runs)]
    arguments += ["--port", "0", "--language", "zh", "--progress", str(tmp_path / "cards.json")]
    arguments += ["--api-key-file", str(tmp_path / "keys"), "--allow-host", "lab.example"]
    (settings, folders_of_runs), named = called(arguments, monkeypatch)
    assert settings.models == (("mine", str(folders["base"])), ("tag", str(folders["tag"])))
    assert (settings.host, settings.port) == ("127.0.0.1", 0)
    assert (settings.key_file, settings.allowed_hosts) == (str(tmp_path / "keys"), ("lab.example",))
    assert list(folders_of_runs) == [runs]
    assert named == {"language": "zh", "progress": tmp_path / "cards.json"}


def test_without_a_model_it_opens_with_the_trained_village(notes, monkeypatch):
    from bertsmith.tinyworld import trained_model

    (settings, _), _ = called([], monkeypatch)
    assert settings.models == (("village", str(trained_model())),)
    # with an index it is the model of the index
    (settings, _), _ = called(["--index", str(notes)], monkeypatch)
    assert [name for name, _ in settings.models] == ["base"]


def test_a_folder_that_is_no_model_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no config.json"):
        called(["--model", str(tmp_path)], monkeypatch)


def test_runs_that_are_no_folder_are_refused(folders, tmp_path):
    from bertsmith.serve.settings import ServeSettings

    settings = ServeSettings(models=(("base", str(folders["base"])),), threads=1)
    with pytest.raises(InputError, match="is no folder"):
        run.build_lab(settings, [tmp_path / "missing"])


def test_pages_and_endpoints_are_on_one_address(folders, runs, monkeypatch):
    httpx = pytest.importorskip("httpx")
    from starlette.testclient import TestClient

    from bertsmith.serve.settings import ServeSettings

    monkeypatch.setenv("BERTSMITH_API_KEYS", "k" * 32)
    settings = ServeSettings(models=(("base", str(folders["base"])),), threads=1, drain=0.0)
    app = run.build_lab(settings, [runs], language="zh")
    with TestClient(app, base_url="http://127.0.0.1:8001") as client:
        assert client.get("/", follow_redirects=False).headers["location"] == "/zh/"
        for path in ("/en/", "/zh/", "/favicon.ico", "/manifest.json", "/docs", "/health"):
            assert client.get(path).status_code == httpx.codes.OK
        page = client.get("/en/").text
        assert "fonts.googleapis" not in page
        answer = client.post("/fill-mask", json={"texts": ["the [MASK]"]})
        assert answer.status_code == httpx.codes.OK


def test_the_address_is_told_when_it_can_be_reached(folders, monkeypatch):
    httpx = pytest.importorskip("httpx")
    from bertsmith.serve.settings import ServeSettings

    reached = []

    class Caller(logging.Handler):
        def emit(self, record):
            address = httpx.URL(record.args[0])
            socket.create_connection((address.host, address.port), timeout=5).close()
            reached.append(address)

    told = logging.getLogger("bertsmith.lab")
    monkeypatch.setattr(told, "handlers", [Caller()])
    monkeypatch.setattr(told, "level", logging.INFO)
    monkeypatch.setattr(logging.getLogger("bertsmith.access"), "level", logging.WARNING)
    monkeypatch.setattr(run, "configure_logs", lambda: None)
    monkeypatch.setattr(run, "build_lab", lambda *_, **__: None)
    monkeypatch.setattr(run.uvicorn, "Config", lambda *_, **__: None)
    monkeypatch.setattr(run.uvicorn, "Server", lambda _: SimpleNamespace(run=lambda **__: None))
    run.run_lab(ServeSettings(models=(("base", str(folders["base"])),), port=0))
    assert len(reached) == 1


@pytest.mark.parametrize(("host", "is_kept"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_others_turn_no_cards_in_the_file_of_who_started_the_lab(folders, monkeypatch, host, is_kept):
    from bertsmith.serve.settings import ServeSettings

    seen = []
    monkeypatch.setenv("BERTSMITH_API_KEYS", "k" * 32)
    monkeypatch.setattr(run, "configure_logs", lambda: None)
    monkeypatch.setattr(run, "build_lab", lambda *_, progress, **__: seen.append(progress))
    monkeypatch.setattr(run.uvicorn, "Config", lambda *_, **__: None)
    monkeypatch.setattr(run.uvicorn, "Server", lambda _: SimpleNamespace(run=lambda **__: None))
    run.run_lab(ServeSettings(models=(("base", str(folders["base"])),), host=host, port=0))
    (progress,) = seen
    assert (progress is None) == is_kept
    assert is_kept or not progress.parent.exists(), "kept after the lab was closed"


@pytest.mark.slow
def test_more_silent_connections_than_the_lab_keeps_shut_nobody_out(folders, tmp_path):
    """A lab that others reach: silence, heads that never end, and no key."""
    httpx = pytest.importorskip("httpx")
    from bertsmith.serve.connection import MOST_CONNECTIONS

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    code = "from bertsmith.cli.lab import lab; import typer; typer.run(lab)"
    arguments = ["--model", str(folders["base"]), "--host", "0.0.0.0", "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BERTSMITH_API_KEYS": "k" * 32}
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as lab, ExitStack() as held:
        try:
            for line in lab.stderr:
                if address := re.search(r"open on http://0\.0\.0\.0:(\d+)", line):
                    break
            port = int(address[1])
            for number in range(MOST_CONNECTIONS + 76):
                client = held.enter_context(socket.create_connection(("127.0.0.1", port), 10))
                if number % 2:
                    client.sendall(b"GET /en/ HTTP/1.1\r\nHost: loc")
            for _ in range(3):
                page = httpx.get(f"http://127.0.0.1:{port}/en/", auth=("", "k" * 32), timeout=20)
                assert page.status_code == httpx.codes.OK
            assert httpx.get(f"http://127.0.0.1:{port}/en/", timeout=20).status_code == httpx.codes.UNAUTHORIZED
            held.close()
            lab.send_signal(signal.SIGINT)
            assert lab.wait(30) == 0
        finally:
            lab.kill()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_ctrl_c_closes_the_lab_although_a_page_is_open(folders):
    httpx = pytest.importorskip("httpx")
    code = "from bertsmith.cli.lab import lab; import typer; typer.run(lab)"
    arguments = [sys.executable, "-c", code, "--model", str(folders["base"]), "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment) as lab:
        for line in lab.stderr:
            if address := re.search(r"open on (http://\S+)", line):
                break
        with httpx.stream("GET", f"{address[1]}/en/gradio_api/heartbeat/abc", timeout=60) as page:
            assert next(page.iter_lines())
            lab.send_signal(signal.SIGINT)
            assert lab.wait(30) == 0
        assert "Traceback" not in lab.stderr.read()
