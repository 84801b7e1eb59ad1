"""The command itself: how it starts, stops, and survives the death of a worker."""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.serve import run
from bertsmith.serve.guard import ApiKeys
from bertsmith.serve.run import listening_socket
from bertsmith.serve.settings import Limits, ServeSettings, named_models

EMBED = {"texts": ["the man eats bread ."]}


@pytest.mark.slow
def test_sigterm_under_load_answers_every_accepted_request(run_server, models):
    process = run_server("--model", models["base"], "--port", 0, "--threads", 1, "--drain", 2)
    url = process.wait_ready()
    lost, answered, after = [], [], []
    stopping = threading.Event()

    def client():
        with httpx.Client(base_url=url, timeout=20) as session:
            while True:
                try:
                    response = session.post("/embed", json={"texts": ["the man eats bread . " * 9] * 20})
                except httpx.ConnectError:
                    # the door is closed: nothing was accepted
                    return
                except (httpx.ReadError, httpx.RemoteProtocolError) as error:
                    # HTTP/1.1 的空闲连接随时会关：那时正在路上的请求没有被读到，也就没有被接受
                    if not stopping.is_set():
                        lost.append(error)
                    return
                answered.append(response.status_code)
                if stopping.is_set():
                    after.append(response.status_code)

    threads = [threading.Thread(target=client, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    while len(answered) < 30:
        time.sleep(0.01)
    stopping.set()
    process.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    draining = httpx.get(f"{url}/ready")
    assert (draining.status_code, draining.json()["status"]) == (503, "stopping")
    assert draining.headers["connection"] == "close"
    assert process.process.wait(30) == 0
    for thread in threads:
        thread.join(20)
    assert not lost
    assert after
    assert set(answered) <= {200, 429}
    # 读到的都回答了，回答了的都到了：服务器记下的答复与客户收到的一样多
    assert process.text.count("POST /embed 200") == answered.count(200)
    assert "POST /embed 4" not in process.text.replace("POST /embed 429", "")
    assert "Traceback" not in process.text


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_the_service_up(run_server, models):
    process = run_server("--model", models["base"], "--port", 0, "--workers", 2, "--threads", 1, "--drain", 0)
    url = process.wait_ready()
    workers = two_workers(url)
    before = httpx.get(f"{url}/metrics").text
    assert "bertsmith_requests_total" in before
    victim = workers.pop()
    os.kill(victim, signal.SIGKILL)
    answered = 0
    for _ in range(50):
        # a connection that the dead one held is reset; the next one is not
        with contextlib.suppress(httpx.TransportError):
            answered += httpx.post(f"{url}/embed", json=EMBED, timeout=20).status_code == 200
    assert answered >= 45
    end = time.monotonic() + 180
    while time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/info").json()["pid"] not in (victim, *workers):
                break
    else:
        raise AssertionError("no new worker came")
    counted = re.findall(
        r'bertsmith_requests_total\{endpoint="/embed",status="200"\} (\d+)', httpx.get(f"{url}/metrics").text
    )
    # whoever answers tells the figures of all, the dead one's included
    assert int(counted[0]) == answered
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(120) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_drains_as_one_to_the_parent(run_server, models, number):
    """Ctrl-C and systemd tell every process; the parent then tells its workers again."""
    process = run_server("--model", models["base"], "--port", 0, "--workers", 2, "--threads", 1, "--drain", 4)
    url = process.wait_ready()
    two_workers(url)
    os.killpg(process.process.pid, number)
    begun, statuses = time.monotonic(), []
    while time.monotonic() - begun < 3:
        statuses.append((httpx.get(f"{url}/ready").status_code, httpx.post(f"{url}/embed", json=EMBED).status_code))
        time.sleep(0.1)
    # the first rounds may come before the signal has
    assert statuses[-1] == (503, 200)
    assert {answer for _, answer in statuses} == {200}
    assert process.process.wait(60) == 0
    assert "Traceback" not in process.text


@pytest.mark.slow
def test_a_worker_that_cannot_start_again_leaves_the_others_at_work(run_server, models, tmp_path):
    """A deployment may be swapping the folder just then."""
    folder, aside = shutil.copytree(models["base"], tmp_path / "model"), tmp_path / "aside"
    process = run_server("--model", folder, "--port", 0, "--workers", 2, "--threads", 1, "--drain", 0)
    url = process.wait_ready()
    workers = two_workers(url)
    end = time.monotonic() + 180
    folder.rename(aside)
    os.kill(workers.pop(), signal.SIGKILL)
    while "bertsmith: " not in process.text and time.monotonic() < end:
        time.sleep(0.5)
    time.sleep(2)
    assert process.process.poll() is None, process.text
    assert httpx.post(f"{url}/embed", json=EMBED, timeout=20).status_code == 200
    aside.rename(folder)
    assert workers < two_workers(url)
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(120) == 0


def two_workers(url):
    """Waits until two workers answer; returns their process numbers."""
    found, end = set(), time.monotonic() + 180
    while len(found) < 2 and time.monotonic() < end:
        with contextlib.suppress(httpx.TransportError):
            found.add(httpx.get(f"{url}/info").json()["pid"])
    assert len(found) == 2
    return found


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_damaged_folder_ends_the_start_with_one_line(run_server, models, tmp_path, workers):
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        (broken / name).write_bytes((models["base"] / name).read_bytes())
    (broken / "model.safetensors").write_bytes(b"not a tensor")
    process = run_server("--model", broken, "--port", 0, "--workers", workers)
    assert process.process.wait(120) not in (0, None)
    assert "model.safetensors" in process.text
    assert "Traceback" not in process.text


def test_an_address_in_use_is_said_before_anything_is_loaded(models):
    some = (("base", str(models["base"])),)
    with listening_socket(ServeSettings(models=some, port=0)) as taken:
        taken.listen()
        settings = ServeSettings(models=some, port=taken.getsockname()[1])
        with pytest.raises(InputError, match=rf"127.0.0.1:{settings.port} .*pass another"), listening_socket(settings):
            pass


def test_the_address_is_told_when_it_can_be_reached(models, monkeypatch):
    reached = []

    def connect(_, address):
        socket.create_connection(address, timeout=5).close()
        reached.append(address)

    monkeypatch.setattr(run, "_announce", connect)
    monkeypatch.setattr(run, "configure_logs", lambda: None)
    monkeypatch.setattr(run, "_tune", lambda: None)
    monkeypatch.setattr(run.uvicorn.Server, "run", lambda *_, **__: None)
    run.serve(ServeSettings(models=(("base", str(models["base"])),), port=0, threads=1))
    assert len(reached) == 1


def test_names_of_models(models, tmp_path):
    base, tag = str(models["base"]), str(models["tag"])
    assert named_models([base, f"names={tag}"]) == (("base", base), ("names", tag))
    odd = tmp_path / "a=b"
    odd.mkdir()
    (odd / "config.json").write_text("{}")
    assert named_models([f"it={odd}"]) == (("it", str(odd)),)
    for given, said in (
        ([base, base], "two are called 'base'"),
        ([str(tmp_path / "none")], "there is no such folder"),
        ([str(tmp_path)], "no config.json"),
        ([f"../x={base}"], "cannot be a name"),
        ([str(odd)], "cannot be a name"),
    ):
        with pytest.raises((InputError, CheckpointError), match=said):
            named_models(given)


def test_settings_out_of_range_are_refused():
    some = (("a", "b"),)
    for values, message in (
        ({"models": ()}, "no model to serve"),
        ({"queue": 0}, "queue is 0; give at least 1"),
        ({"deadline": 0.0}, "deadline is 0.0; give more than 0 and at most 86400"),
        ({"deadline": float("nan")}, "deadline is nan; give a finite number"),
        ({"deadline": 1e10}, "deadline is 10000000000.0; give more than 0 and at most 86400"),
        ({"drain": -1.0}, "drain is -1.0"),
        ({"port": 70000}, "port is 70000; give at least 0 and at most 65535"),
    ):
        with pytest.raises(ConfigError, match=message):
            ServeSettings(**{"models": some} | values)
    with pytest.raises(ConfigError, match="max_items is 0; give at least 1"):
        Limits(items=0)
    sent = json.loads(ServeSettings(some).to_json())
    with pytest.raises(ConfigError, match="queue is 0"):
        ServeSettings.from_json(json.dumps({**sent, "queue": 0}))


def test_settings_travel_to_workers_unchanged():
    settings = ServeSettings((("a", "b"),), port=1, limits=Limits(items=3), cors_origins=("https://example.org",))
    assert ServeSettings.from_json(settings.to_json()) == settings


def test_keys_are_read_from_a_file_or_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "keys"
    file.write_text("# ours\n\n0123456789abcdef\nfedcba9876543210\n")
    for keys in (ApiKeys.read(file), read_from_environment(monkeypatch, "0123456789abcdef, fedcba9876543210")):
        assert keys.admit([(b"x-api-key", b"fedcba9876543210")]) is not None
        assert keys.admit([(b"x-api-key", b"fedcba987654321")]) is None
        assert keys.admit([]) is None
    assert not read_from_environment(monkeypatch, "")
    assert ApiKeys().admit([]) == 0


@pytest.mark.parametrize(
    "given",
    [b"0123456789abcde", b"0123456789abcdefg", b"0123456789abcdef0123456789abcdef", b"123456789abcdef", b"", b" "],
)
def test_a_key_that_only_begins_or_ends_like_one_opens_nothing(given):
    keys = ApiKeys(["0123456789abcdef", "fedcba9876543210"])
    basic = base64.b64encode(b"user:" + given)
    for header in (
        (b"x-api-key", given),
        (b"authorization", b"Bearer " + given),
        (b"authorization", b"Basic " + basic),
    ):
        assert keys.admit([header]) is None
    assert keys.admit([(b"x-api-key", b"0123456789abcdef")]) == 0


def read_from_environment(monkeypatch, value):
    monkeypatch.setenv("BERTSMITH_API_KEYS", value)
    return ApiKeys.read(None)


def test_keys_that_cannot_be_used_are_refused_without_being_told(tmp_path):
    file = tmp_path / "keys"
    for text in ("", "# only a comment\n", "short-secret\n", "ключ-ключ-ключ-ключ\n"):
        file.write_text(text)
        with pytest.raises(InputError) as caught:
            ApiKeys.read(file)
        assert "secret" not in str(caught.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        ApiKeys.read(file)
    with pytest.raises(InputError, match="cannot be read"):
        ApiKeys.read(tmp_path / "nothing")


def test_the_defaults_of_the_command_are_those_of_the_settings(monkeypatch, models):
    import typer

    import bertsmith.serve.run
    from bertsmith.cli.options import Command
    from bertsmith.cli.search import serve

    seen = []
    monkeypatch.setattr(bertsmith.serve.run, "serve", seen.append)
    app = typer.Typer()
    app.command(cls=Command)(serve)
    result = CliRunner().invoke(app, ["--model", str(models["base"])])
    assert result.exit_code == 0, result.output
    assert seen == [ServeSettings(models=(("base", str(models["base"])),))]


def test_the_server_loads_nothing_it_does_not_need(run_server, models, tmp_path):
    """Start-up is mostly imports: what is heavy and of no use here must stay outside."""
    import subprocess
    import sys

    command = (
        "import sys, json; from bertsmith.serve.app import build_app; from bertsmith.serve.settings import *;"
        f"build_app(ServeSettings(named_models([{str(models['base'])!r}])));"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    found = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=120)
    loaded = set(json.loads(found.stdout))
    assert "torch" in loaded
    assert not loaded & {"transformers", "pyarrow", "matplotlib", "pandas", "sentence_transformers", "sklearn", "rich"}


def test_deploy_files_name_real_options():
    import typer
    from typer.main import get_command

    from bertsmith.cli.options import Command
    from bertsmith.cli.search import serve

    app = typer.Typer()
    app.command(cls=Command)(serve)
    command = get_command(app)
    known = {name for parameter in command.get_params(typer.Context(command)) for name in parameter.opts}
    folder = Path(__file__).parents[2] / "deploy"
    for file, begins in (("Dockerfile", "ENTRYPOINT"), ("bertsmith-serve.service", "ExecStart=")):
        (command,) = [line for line in (folder / file).read_text().splitlines() if line.startswith(begins)]
        used = set(re.findall(r"--[a-z][a-z-]*", command))
        assert used
        assert used <= known, used - known
