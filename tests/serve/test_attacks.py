"""Clients who hold connections and do nothing with them, against a real process: it goes on answering others."""

import contextlib
import http.client
import json
import resource
import select
import socket
import time
from pathlib import Path

import httpx
import pytest

from bertsmith.serve.connection import HEAD_SECONDS, MOST_CONNECTIONS

EMBED = {"texts": ["the man eats bread ."]}
HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


FILES = 256
KEPT = 128
"""Connections that a server keeps which may open 256 files: 128 are for all else."""


@pytest.fixture(scope="module")
def attacked(models, process_class, tmp_path_factory):
    """Starts server processes, which are to be alive and well at the end."""
    log = tmp_path_factory.mktemp("attacked")

    @contextlib.contextmanager
    def begin(deadline, **more):
        options = ("--model", models["base"], "--port", 0, "--threads", 1, "--deadline", deadline)
        process = process_class(*options, log=log / f"{deadline}.log", **more)
        try:
            yield process.wait_ready()
            assert process.process.poll() is None, process.text
            assert "Traceback" not in process.text
        finally:
            process.close()

    return begin


@pytest.fixture(scope="module")
def url(attacked):
    """A server with a short deadline."""
    with attacked(4) as address:
        yield address


@pytest.fixture(scope="module")
def patient_url(attacked):
    """A server of few files and a long deadline: it ends connections early for want of room alone."""
    with attacked(60, files=FILES) as address:
        yield address


@pytest.fixture
def flood():
    """Opens connections that send the beginning of something."""
    with contextlib.ExitStack() as stack:

        def begin(url, count, first=b""):
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


def heard_from(clients):
    """Tells which connections the server has answered or ended; it does neither while it waits for the client."""
    waiting = select.poll()
    for client in clients:
        waiting.register(client, select.POLLIN)
    heard = {number for number, _ in waiting.poll(0)}
    return [client.fileno() in heard for client in clients]


@pytest.mark.parametrize(
    "first",
    [b"", b"POST /emb", HEAD % 1000 + b'{"texts"', b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "],
    ids=["silent", "slow head", "slow body", "slow header"],
)
def test_more_idle_connections_than_the_server_keeps_shut_nobody_out(patient_url, flood, first):
    begun = time.monotonic()
    clients = flood(patient_url, 2 * KEPT + 76, first)
    assert_answers(patient_url)
    ended = heard_from(clients)
    # 最早来的让了位，最晚来的还在；再晚些，请求头的时限也会断开连接，就看不出是谁断的
    assert all(ended[: KEPT + 76])
    assert not any(ended[-100:])
    assert time.monotonic() - begun < HEAD_SECONDS, "too slow to tell who closed them"


def test_thousands_of_silent_connections_at_the_usual_limits_shut_nobody_out(attacked, flood):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        with attacked(50) as address:
            flood(address, 2 * MOST_CONNECTIONS + 76)
            assert_answers(address)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_a_head_that_drips_is_cut_off(url, flood):
    (client,) = flood(url, 1)
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
    (client,) = flood(url, 1, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.recv(4096).startswith(b"HTTP/1.1 200")
    begun = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - begun < 15:
            client.sendall(b"G")
            time.sleep(0.2)
        pytest.fail("a dripping head was waited for")
    assert_answers(url)


def test_an_idle_connection_outlives_the_time_for_a_head(start):
    """Patience with those who keep a connection for the next request."""
    live = start(deadline=0.5)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=10)) as session:
        session.connect()
        used = session.sock
        for pause in (0.0, 1.0):
            time.sleep(pause)
            session.request("GET", "/health")
            answer = session.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            # http.client 也会悄悄重连：必须还是同一条连接
            assert session.sock is used


def test_many_large_bodies_at_a_time_are_refused_and_small_ones_are_not(patient_url, flood):
    size = httpx.get(f"{patient_url}/info").json()["limits"]["body_bytes"] - 1
    budget = max(4 * (size + 1), 64 << 20)
    part = b" " * 65_536
    clients = flood(patient_url, budget // size + 6, HEAD % size)
    for client in clients:
        client.settimeout(10)
        with contextlib.suppress(OSError):
            for _ in range(size // len(part)):
                client.sendall(part)
    end = time.monotonic() + 20
    while not any(heard_from(clients)) and time.monotonic() < end:
        time.sleep(0.01)
    assert_answers(patient_url)
    # 受理了的大请求此时还占着额度：小请求是在它们旁边得到回答的
    heard = heard_from(clients)
    assert heard.count(False) >= budget // size // 2
    refused = []
    for client, is_heard in zip(clients, heard, strict=True):
        with contextlib.suppress(OSError):
            refused += [client.recv(4096)] if is_heard else []
    assert refused
    assert all(answer.startswith(b"HTTP/1.1 429") and b"bodies_full" in answer for answer in refused)


def resident_bytes(pid):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads a process's memory from /proc")
def test_slow_large_bodies_fill_no_memory_and_shut_out_no_small_request(url, flood):
    """All stay open, a byte short of their end, while others ask."""
    info = httpx.get(f"{url}/info").json()
    size, pid = info["limits"]["body_bytes"] - 1, info["pid"]
    before = resident_bytes(pid)
    clients = flood(url, 200, HEAD % size)
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
