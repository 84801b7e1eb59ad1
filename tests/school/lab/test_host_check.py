"""Who may ask the lab, and how much they may send: Host headers and bodies."""

import asyncio
import socket

import pytest

pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[school]'")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from bertsmith.errors import InputError
from bertsmith.serve.guard import CLIENT, is_own_name
from bertsmith.serve.pages import AdmittedBodies
from bertsmith.serve.request import LOCAL
from bertsmith.serve.settings import Limits, ServeSettings
from bertsmith_school.lab import run

MOST = Limits().body_bytes


KEY = "a-key-of-the-lab-0123"


def client_of(folders, host="127.0.0.1", **settings):
    told = ServeSettings(models=(("base", str(folders["base"])),), host=host, threads=1, drain=0.0, **settings)
    return TestClient(run.build_lab(told), base_url="http://127.0.0.1:8001")


@pytest.fixture(scope="module")
def client(folders):
    with client_of(folders) as client:
        yield client


@pytest.mark.parametrize(
    "name",
    ["localhost:8001", "localhost", "LOCALHOST:8001", "127.0.0.1:8001", "127.0.0.1", "127.1.2.3:80", "[::1]:8001"],
)
def test_a_lab_on_loopback_answers_to_this_machines_names(client, name):
    assert client.get("/en/", headers={"host": name}).status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "evil.example:8001",
        "evil.example",
        "127.evil.example:8001",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost:8001@evil.example",
        "192.168.0.7:8001",
        "[fe80::1]:8001",
        "[::1",
        "",
    ],
)
def test_every_other_name_is_refused_everywhere(client, name):
    for path in ("/", "/en/", "/zh/gradio_api/info", "/info", "/health"):
        answer = client.get(path, headers={"host": name}, follow_redirects=False)
        assert answer.status_code == 403
        assert answer.text.count("\n") == 0
        assert "ask for localhost" in answer.json()["error"]["message"]
    answer = client.post("/fill-mask", json={"texts": ["the [MASK]"]}, headers={"host": name})
    assert answer.status_code == 403


def test_the_name_on_the_command_line_is_answered_to():
    assert is_own_name("Mine.local:8001", {"mine.local"})
    assert not is_own_name("mine.local:8001", {"127.0.0.1"})


def test_a_lab_that_listens_to_others_asks_for_a_key_and_goes_by_addresses_and_allowed_names(folders, monkeypatch):
    monkeypatch.delenv("BERTSMITH_API_KEYS", raising=False)
    with pytest.raises(InputError, match=r"--host 0\.0\.0\.0: others reach the lab there; .* --api-key-file"):
        client_of(folders, host="0.0.0.0")
    monkeypatch.setenv("BERTSMITH_API_KEYS", KEY)
    with client_of(folders, host="0.0.0.0", allowed_hosts=("Lab.example",)) as client:
        for path in ("/", "/en/", "/en/config", "/zh/gradio_api/info", "/info"):
            answer = client.get(path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Basic ")
        for given in ("", "wrong" * 4, f"{KEY}x"):
            assert client.get("/en/", auth=("anybody", given)).status_code == 401
        assert client.get("/en/", headers={"authorization": "Basic no base64!"}).status_code == 401
        assert client.get("/en/", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
        client.auth = ("anybody", KEY)
        for name in ("lab.example:8001", "192.0.2.7:8001", "[2001:db8::1]:8001", socket.gethostname()):
            assert client.get("/en/", headers={"host": name}).status_code == 200
        for name in ("evil.example:8001", "192.0.2.7.evil.example", ""):
            answer = client.get("/en/", headers={"host": name})
            assert answer.status_code == 403
            assert "--allow-host" in answer.json()["error"]["message"]


def test_a_lab_on_loopback_asks_for_a_key_where_it_is_given_some(folders, tmp_path):
    (tmp_path / "keys").write_text(f"{KEY}\n")
    with client_of(folders, key_file=str(tmp_path / "keys")) as client:
        assert client.get("/en/").status_code == 401
        assert client.get("/en/", auth=("", KEY)).status_code == 200


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_body_that_is_too_large_for_a_page_gets_413(client, language):
    body = b'{"data": ["' + b"a" * MOST + b'"]}'
    for content in (body, iter([body[: MOST // 2], body[MOST // 2 :]])):
        answer = client.post(f"/{language}/gradio_api/run/predict", content=content)
        assert answer.status_code == 413
        assert str(MOST) in answer.json()["error"]["message"]


def test_a_body_that_fits_reaches_the_page(client):
    config = client.get("/en/config").json()
    (button,) = (one["id"] for one in config["components"] if one["props"].get("elem_id") == "fill-add")
    (number,) = (one["id"] for one in config["dependencies"] if [button, "click"] in one["targets"])
    text = "今" * 20_000
    asked = {"fn_index": number, "data": [text], "session_hash": "a"}
    answer = client.post("/en/gradio_api/run/predict", json=asked)
    assert answer.json()["data"] == [f"{text} [MASK]"]


def test_a_body_arrives_whole_and_once(client):
    """In pieces, with the hang-up after it still to be heard."""
    seen, sent = [], []
    parts = [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "body": b"cd", "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def app(scope, receive, send):
        while not seen or seen[-1]["type"] != "http.disconnect":
            seen.append(await receive())

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/en/x", "headers": [], CLIENT: LOCAL}
    asyncio.run(AdmittedBodies(app, admission=client.app.state.admission)(scope, receive, send))
    assert b"".join(one.get("body", b"") for one in seen) == b"abcd"
    assert [one["type"] for one in seen].count("http.disconnect") == 1
    assert sent == []


def test_without_a_key_a_body_is_not_even_measured(folders, tmp_path):
    (tmp_path / "keys").write_text(f"{KEY}\n")
    with client_of(folders, key_file=str(tmp_path / "keys")) as client:
        answer = client.post("/en/gradio_api/run/predict", content=b"a" * (MOST + 1))
        assert answer.status_code == 401
