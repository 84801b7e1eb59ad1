"""`bertsmith lab`: what it is told, and what it refuses at once."""

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from bertsmith.errors import CheckpointError, InputError
from bertsmith.hub import BUNDLED
from bertsmith.serve import pages
from bertsmith.serve.settings import ServeSettings
from bertsmith_school.commands.lab import lab as command
from bertsmith_school.lab import run

app = typer.Typer()
app.command("lab")(command)


def called(arguments, monkeypatch):
    told = []
    monkeypatch.setattr(run, "run_lab", lambda *values, **named: told.append((values, named)))
    app(arguments, standalone_mode=False)
    return told[0]


def test_the_model_of_a_run_is_named_by_its_run(folders, tmp_path, monkeypatch):
    for name in ("one", "two"):
        shutil.copytree(folders["base"], tmp_path / name / "model")
    monkeypatch.chdir(tmp_path / "two")
    (settings, _), _ = called(["--model", str(tmp_path / "one/model"), "--model", "model"], monkeypatch)
    assert [name for name, _ in settings.models] == ["one", "two"]


def test_without_a_model_it_opens_with_the_trained_village_and_its_task(notes, monkeypatch):
    (settings, _), _ = called([], monkeypatch)
    assert settings.models == tuple((name, str(BUNDLED[name])) for name in ("village", "village-reviews"))
    # with an index it is the model of the index
    (settings, _), _ = called(["--index", str(notes)], monkeypatch)
    assert [name for name, _ in settings.models] == ["base"]


def test_a_folder_that_is_no_model_is_refused(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="no config.json"):
        called(["--model", str(tmp_path)], monkeypatch)


def test_runs_that_are_no_folder_are_refused(folders, tmp_path):
    settings = ServeSettings(models=(("base", str(folders["base"])),), threads=1)
    with pytest.raises(InputError, match="is no folder"):
        run.build_lab(settings, [tmp_path / "missing"])


def test_pages_and_endpoints_are_on_one_address(folders, runs, monkeypatch):
    httpx = pytest.importorskip("httpx")
    from starlette.testclient import TestClient

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
    reached = []

    class Caller(logging.Handler):
        def emit(self, record):
            address = httpx.URL(record.args[1])
            socket.create_connection((address.host, address.port), timeout=5).close()
            reached.append(address)

    told = logging.getLogger("bertsmith.serve")
    monkeypatch.setattr(told, "handlers", [Caller()])
    monkeypatch.setattr(told, "level", logging.INFO)
    monkeypatch.setattr(logging.getLogger("bertsmith.access"), "level", logging.WARNING)
    monkeypatch.setattr(pages, "configure_logs", lambda: None)
    monkeypatch.setattr(run, "build_lab", lambda *_, **__: None)
    monkeypatch.setattr(pages.uvicorn, "Config", lambda *_, **__: None)
    monkeypatch.setattr(pages.uvicorn, "Server", lambda _: SimpleNamespace(run=lambda **__: None))
    run.run_lab(ServeSettings(models=(("base", str(folders["base"])),), port=0))
    assert len(reached) == 1


@pytest.fixture
def started():
    """Runs labs as processes of their own."""
    with ExitStack() as held:

        def start(settings, files=None, **environment):
            code = (
                "import sys; from bertsmith.serve.settings import ServeSettings; "
                "from bertsmith_school.lab.run import run_lab"
            )
            command = [sys.executable, "-c", f"{code}; run_lab(ServeSettings.from_json(sys.argv[1]))"]
            if files is not None:
                command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
            lab = held.enter_context(
                subprocess.Popen([*command, settings.to_json()], stderr=subprocess.PIPE, text=True, env=environment)
            )
            held.callback(lab.kill)
            for line in lab.stderr:
                if address := re.search(r"open on http://[0-9.]+:(\d+)", line):
                    return lab, int(address[1])
            pytest.fail("the lab ended before it could be reached")

        yield start


def told(folders, **changes):
    return ServeSettings(models=(("base", str(folders["base"])),), port=0, threads=1, drain=0.0, **changes)


def closed_by_ctrl_c(lab):
    lab.send_signal(signal.SIGINT)
    return lab.wait(30) == 0 and "Traceback" not in lab.stderr.read()


@pytest.mark.slow
def test_the_lab_cuts_off_a_head_that_drips(folders, started):
    lab, port = started(told(folders, deadline=2.0))
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        begun = time.monotonic()
        client.sendall(b"GET /en/ HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        with suppress(OSError):
            while time.monotonic() - begun < 15:
                client.sendall(b"a")
                time.sleep(0.1)
            pytest.fail("a dripping head was waited for")
        assert time.monotonic() - begun >= 1
    assert closed_by_ctrl_c(lab)


def resident_bytes(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
def test_slow_large_bodies_for_a_page_fill_no_memory_and_are_given_up(folders, started):
    """A hundred of them, each a byte short of its end, while others ask."""
    httpx = pytest.importorskip("httpx")
    settings = told(folders, deadline=4.0)
    lab, port = started(settings)
    address = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{address}/en/", timeout=20).status_code == httpx.codes.OK
    size, part = settings.limits.body_bytes - 1, b" " * 65_536
    head = b"POST /en/gradio_api/run/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
    before = resident_bytes(lab.pid)
    with ExitStack() as held:
        clients = [held.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(100)]
        for client in clients:
            client.settimeout(0.2)
            # 被拒绝的连接不再读：发不出去就算了
            with suppress(OSError):
                client.sendall(head)
                for _ in range(size // len(part)):
                    client.sendall(part)
        # 合计近 400 MB；额度是 64 MiB，另留余地给每条连接已收到、尚未读的部分
        assert resident_bytes(lab.pid) - before < 160 << 20
        assert httpx.get(f"{address}/en/config", timeout=20).status_code == httpx.codes.OK
        answers = []
        for client in clients:
            # 期限过后先回答，再关闭：再等也不会一直开着
            client.settimeout(20)
            received = b""
            with suppress(ConnectionError):
                while part := client.recv(4096):
                    received += part
            answers.append(received.partition(b"\r\n")[0])
    assert {answer.split()[1] for answer in answers if answer} <= {b"408", b"429"}
    assert b"HTTP/1.1 408 Request Timeout" in answers
    assert closed_by_ctrl_c(lab)


@pytest.mark.slow
def test_visitors_turn_cards_without_a_trace_on_the_disk(folders, started, tmp_path):
    """On an address that others reach; for who started the lab on its own machine there is one."""
    httpx = pytest.importorskip("httpx")
    for host, kept in (("0.0.0.0", False), ("127.0.0.1", True)):
        home = tmp_path / host
        home.mkdir()
        lab, port = started(
            told(folders, host=host), BERTSMITH_API_KEYS="k" * 32, XDG_DATA_HOME=str(home), HOME=str(home)
        )
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/en", auth=("", "k" * 32), timeout=60) as visitor:
            config = visitor.get("/config").json()
            ids = {one["props"].get("elem_id"): one["id"] for one in config["components"]}

            def press(button, *values, config=config, ids=ids, visitor=visitor):
                number = next(one["id"] for one in config["dependencies"] if [ids[button], "click"] in one["targets"])
                asked = {"fn_index": number, "data": values, "session_hash": "one"}
                answer = visitor.post("/gradio_api/run/predict", json=asked)
                assert answer.status_code == httpx.codes.OK, answer.text
                return str(answer.json()["data"])

            assert "card" in press("card-next", "why")
            press("card-turn", None)
            assert "card" in press("card-good", "why", None)
        assert closed_by_ctrl_c(lab)
        assert any(file.is_file() for file in home.rglob("*bertsmith*/*")) == kept


@pytest.mark.slow
def test_ctrl_c_closes_the_lab_although_a_page_is_open(folders, started):
    httpx = pytest.importorskip("httpx")
    lab, port = started(told(folders))
    with httpx.stream("GET", f"http://127.0.0.1:{port}/en/gradio_api/heartbeat/abc", timeout=60) as page:
        assert next(page.iter_lines())
        assert closed_by_ctrl_c(lab)
