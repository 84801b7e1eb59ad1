"""Clients who hold connections and do nothing with them, against a real process: it goes on answering others."""

import contextlib
import json
import resource
import socket
import time
from pathlib import Path

import httpx
import pytest

from bertsmith.serve import connection

EMBED = {"texts": ["the man eats bread ."]}
HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def url(models, process_class, tmp_path_factory):
    """A server process with a short deadline."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    log = tmp_path_factory.mktemp("attacked") / "server.log"
    process = process_class("--model", models["base"], "--port", 0, "--threads", 1, "--deadline", 4, log=log)
    try:
        yield process.wait_ready()
        assert process.process.poll() is None, process.text
        assert "Traceback" not in process.text
    finally:
        process.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def flood(url):
    """Opens connections that send the beginning of something."""
    with contextlib.ExitStack() as stack:

        def begin(count, first=b""):
            opened = []
            for _ in range(count):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10))
                if first:
                    with contextlib.suppress(OSError):
                        client.sendall(first)
                opened.append(client)
            return opened

        yield begin


def assert_answers(url):
    for _ in range(3):
        assert httpx.get(f"{url}/health", timeout=10).status_code == 200
        answer = httpx.post(f"{url}/embed", json=EMBED, timeout=10)
        assert answer.status_code == 200, answer.text


def is_closed(client, seconds):
    client.settimeout(seconds)
    try:
        # 408 之类的回答也算：之后对方关闭
        while client.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize(
    "first",
    [b"", b"POST /emb", HEAD % 1000 + b'{"texts"', b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "],
    ids=["silent", "slow head", "slow body", "slow header"],
)
def test_more_idle_connections_than_the_server_keeps_shut_nobody_out(url, flood, first):
    clients = flood(2 * connection.MOST_CONNECTIONS + 76, first)
    assert_answers(url)
    # 最早来的让了位
    assert is_closed(clients[0], 10)


def test_a_head_that_drips_is_cut_off(url, flood):
    (client,) = flood(1)
    begun = time.monotonic()
    with contextlib.suppress(OSError):
        for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-Slow: a\r\n" * 100:
            client.sendall(bytes([byte]))
            time.sleep(0.1)
            if time.monotonic() - begun > 15:
                pytest.fail("a dripping head was waited for")
    assert time.monotonic() - begun >= 2
    assert_answers(url)


def test_a_second_head_that_drips_is_cut_off_too(url, flood):
    (client,) = flood(1, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.recv(4096).startswith(b"HTTP/1.1 200")
    begun = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - begun < 15:
            client.sendall(b"G")
            time.sleep(0.2)
        pytest.fail("a dripping head was waited for")
    assert_answers(url)


def test_an_idle_connection_stays_for_a_while(url):
    """Patience with those who keep a connection for the next request."""
    with httpx.Client(base_url=url) as session:
        assert session.get("/health").status_code == 200
        time.sleep(5)
        assert session.get("/health").status_code == 200


def test_many_large_bodies_at_a_time_are_refused_and_small_ones_are_not(url, flood):
    size = httpx.get(f"{url}/info").json()["limits"]["body_bytes"] - 1
    budget = max(4 * (size + 1), 64 << 20)
    part = b" " * 65_536
    clients = flood(budget // size + 6, HEAD % size)
    answers = []
    for client in clients:
        client.settimeout(10)
        with contextlib.suppress(OSError):
            for _ in range(size // len(part)):
                client.sendall(part)
    for client in clients:
        with contextlib.suppress(OSError):
            answers.append(client.recv(4096))
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429")]
    assert refused
    assert all(b"bodies_full" in answer for answer in refused)
    for client in clients:
        client.close()
    time.sleep(0.5)
    assert_answers(url)


def resident_bytes(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
def test_slow_large_bodies_fill_no_memory_and_shut_out_no_small_request(url, flood):
    """All stay open, a byte short of their end, while others ask."""
    info = httpx.get(f"{url}/info").json()
    size, pid = info["limits"]["body_bytes"] - 1, info["pid"]
    before = resident_bytes(pid)
    clients = flood(200, HEAD % size)
    part = b" " * 65_536
    for client in clients:
        client.settimeout(0.2)
        # 被拒绝的连接不再读：发不出去就算了
        with contextlib.suppress(OSError):
            for _ in range(size // len(part)):
                client.sendall(part)
    answer = httpx.post(f"{url}/embed", json=EMBED, timeout=10)
    assert answer.status_code == 200, answer.text
    # 合计要发 700 MiB 以上；额度是 64 MiB，另留余地给每条连接已收到、尚未读的部分
    assert resident_bytes(pid) - before < 200 << 20
    for client in clients:
        client.close()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", ""])
def test_a_page_that_calls_itself_something_else_is_refused(url, host):
    """DNS rebinding: its own name, our address."""
    answer = httpx.post(f"{url}/embed", json=EMBED, headers={"host": host})
    assert answer.status_code == 403
    assert json.loads(answer.text)["error"]["code"] == "foreign_host"


def test_a_proxy_may_be_named(run_server, models):
    process = run_server("--model", models["base"], "--port", 0, "--threads", 1, "--allow-host", "bert.example.org")
    address = process.wait_ready()
    for host, status in (("bert.example.org", 200), ("other.example.org", 403)):
        assert httpx.post(f"{address}/embed", json=EMBED, headers={"host": host}).status_code == status


def test_with_keys_any_name_will_do(run_server, models):
    process = run_server(
        "--model", models["base"], "--port", 0, "--threads", 1, BERTSMITH_API_KEYS="secret-of-16-chars"
    )
    address = process.wait_ready()
    headers = {"host": "bert.example.org", "authorization": "Bearer secret-of-16-chars"}
    assert httpx.post(f"{address}/embed", json=EMBED, headers=headers).status_code == 200
