"""What a server refuses: too much, too late, without a key, not JSON; and that it tells nobody what a text said."""

import json
import logging
import socket
import threading
import time

import httpx
import pytest

from bertsmith.serve.request import LOCAL, client_of, has_share
from bertsmith.serve.settings import Limits

KEY = "a-key-for-the-tests-0001"
EMBED = {"texts": ["the man eats"]}


def problem(response):
    assert response.headers["content-type"] == "application/json"
    return response.json()["error"]


@pytest.fixture
def busy(start):
    """A server whose computing thread, once it has taken a batch, is held until `open` is set."""

    def begin(**settings):
        live = start(**settings)
        batcher = live.admission.batcher
        live.computing, live.open = threading.Event(), threading.Event()
        run = batcher._run

        def held(lane, chunks):
            live.computing.set()
            assert live.open.wait(60)
            return run(lane, chunks)

        batcher._run = held
        return live

    return begin


def wait_for(condition):
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.002)
    raise AssertionError("never happened")


def in_background(count, work):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(work()), daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, answers


def test_more_than_the_queue_holds_is_refused_and_the_rest_is_answered(busy):
    live = busy(queue=4)
    threads, answers = in_background(4, lambda: httpx.post(f"{live.url}/embed", json=EMBED, timeout=30))
    wait_for(lambda: live.admission.free == 0)
    refused = live.post("/embed", EMBED)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert problem(refused)["code"] == "queue_full"
    assert 'endpoint="/embed",status="429"} 1.0' in live.client.get("/metrics").text
    # what needs no place is answered all the same
    assert live.client.get("/health").status_code == 200
    live.open.set()
    for thread in threads:
        thread.join(20)
    assert [answer.status_code for answer in answers] == [200] * 4
    wait_for(lambda: live.admission.free == 4)


def test_a_late_answer_is_504_and_its_work_is_dropped(busy):
    live = busy(deadline=1.0, queue=4)

    def ask():
        return httpx.post(f"{live.url}/embed", json=EMBED, timeout=30)

    # 机器太忙时第一个请求可能还没开始计算就已超时：再发，直到有一批被取走
    threads, first = in_background(1, ask)
    while not live.computing.wait(1.5):
        threads[0].join(20)
        threads, first = in_background(1, ask)
    late = live.post("/embed", EMBED)
    assert late.status_code == 504
    assert problem(late)["code"] == "deadline"
    assert live.admission.batcher.waiting_tokens == 0
    threads[0].join(20)
    assert first[0].status_code == 504
    live.open.set()
    wait_for(lambda: live.admission.free == 4)
    assert live.post("/embed", EMBED).status_code == 200


def test_a_client_that_hangs_up_frees_its_place(busy):
    live = busy(queue=2)
    held = in_background(1, lambda: httpx.post(f"{live.url}/embed", json=EMBED, timeout=60))
    # 第一批已被取走，后来的请求才一定留在队列里
    assert live.computing.wait(20)
    body = json.dumps(EMBED).encode()
    with socket.create_connection(("127.0.0.1", live.port)) as client:
        client.sendall(
            b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        wait_for(lambda: live.admission.free == 0)
        wait_for(lambda: live.admission.batcher.waiting_tokens > 0)
    wait_for(lambda: live.admission.free == 1)
    assert live.admission.batcher.waiting_tokens == 0
    live.open.set()
    held[0][0].join(20)
    assert held[1][0].status_code == 200


def test_a_client_that_does_not_read_its_answer_is_cut_off(start):
    live = start(deadline=4)
    body = json.dumps({"texts": ["a"] * 450, "others": ["b"] * 450}).encode()
    with socket.socket() as client:
        # 缓冲区都很小：答案有几 MB，服务端一定发不完
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", live.port))
        client.sendall(
            b"POST /similarity HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert client.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: not live.server.server_state.connections)
    assert live.post("/embed", EMBED).status_code == 200


def test_an_answer_that_grows_with_two_lists_is_bounded(start):
    live = start()
    response = live.post("/similarity", {"texts": ["a"] * 501, "others": ["b"] * 500})
    assert response.status_code == 413
    assert (problem(response)["code"], problem(response)["param"]) == ("too_many_cosines", "others")
    assert live.post("/similarity", {"texts": ["a"] * 500, "others": ["b"] * 500}).status_code == 200


def test_a_body_that_never_ends_gets_408_and_holds_no_place(start):
    live = start(deadline=1.5, queue=1)
    with socket.create_connection(("127.0.0.1", live.port)) as client:
        client.sendall(
            b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        assert live.post("/embed", EMBED).status_code == 200
        assert client.recv(20).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    ("body", "status", "code", "where"),
    [
        ({"texts": ["a"] * 11}, 413, "too_many_items", "texts"),
        ({"texts": ["a" * 150, "b" * 150]}, 413, "too_many_characters", "texts[1]"),
        ({"texts": ["the man eats bread . " * 3] * 4}, 413, "too_many_tokens", None),
        ({"texts": []}, 422, "invalid_request", "texts"),
        ({"texts": "a text"}, 422, "invalid_request", "texts"),
        ({"texts": ["a", 5]}, 422, "invalid_request", "texts.1"),
        ({"texts": ["a", None]}, 422, "invalid_request", "texts.1"),
        ({}, 422, "invalid_request", "texts"),
        ({"texts": ["a"], "colour": "red"}, 422, "invalid_request", "colour"),
        ({"texts": ["a"], "model": "../../etc/passwd"}, 404, "model_not_found", "model"),
        ([], 422, "invalid_request", None),
    ],
)
def test_what_is_too_much_or_wrong_is_named_with_its_place(start_limited, body, status, code, where):
    response = start_limited.post("/embed", body)
    assert response.status_code == status, response.text
    assert (problem(response)["code"], problem(response)["param"]) == (code, where)
    assert "passwd" not in response.text


@pytest.fixture(scope="module")
def start_limited(models, server_class):
    live = server_class({"base": models["base"]}, limits=Limits(items=10, characters=280, tokens=40))
    yield live
    live.close()


def chunks_of(size, count):
    for _ in range(count):
        yield b"x" * size


@pytest.mark.parametrize("outcome", [200, 422, 413])
def test_the_bytes_of_a_body_are_given_back_however_it_ends(start, outcome):
    """Else a server refuses every large body with 429 some time after it began."""
    live = start(limits=Limits(characters=50_000, tokens=200_000))
    size = live.admission.settings.limits.body_bytes
    padding = {200: size // 2, 422: size // 2, 413: 2 * size}[outcome]
    body = json.dumps({"texts": ["a"] if outcome == 200 else [1]}) + " " * padding

    def chunks():
        # 不先说多长：边读边数
        yield from (body[at : at + 65_536].encode() for at in range(0, len(body), 65_536))

    headers = {"Content-Type": "application/json"}
    for _ in range(2 * live.admission.settings.reading_bytes // len(body) + 2):
        assert live.client.post("/embed", content=chunks(), headers=headers).status_code == outcome
    assert not live.admission._bytes


def test_a_body_is_cut_off_while_it_is_read(start_limited):
    most = start_limited.admission.settings.limits.body_bytes
    headers = {"Content-Type": "application/json"}
    announced = start_limited.client.post("/embed", content=b" " * (most + 1), headers=headers)
    assert (announced.status_code, problem(announced)["code"]) == (413, "body_too_large")
    chunked = start_limited.client.post("/embed", content=chunks_of(most // 8, 9), headers=headers)
    assert (chunked.status_code, problem(chunked)["code"]) == (413, "body_too_large")
    assert start_limited.admission.free == start_limited.admission.settings.queue


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_only_json_is_read(start_limited, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    response = start_limited.client.post("/embed", content=b'{"texts": ["a"]}', headers=headers)
    assert (response.status_code, problem(response)["code"]) == (415, "not_json")


def test_unknown_paths_and_methods_have_the_same_shape(start_limited):
    assert start_limited.client.get("/nothing").status_code == 404
    assert problem(start_limited.client.get("/nothing"))["code"] == "http_error"
    response = start_limited.client.get("/embed")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": KEY}, 401),
        ({"X-API-Key": KEY[:-1]}, 401),
        ({"Authorization": "Bearer " + "é" * 30}, 401),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer {KEY}"}, 200),
        ({"X-API-Key": KEY}, 200),
    ],
)
def test_a_key_opens_and_nothing_else_does(keyed, headers, status):
    encoded = {name: value.encode() for name, value in headers.items()}
    response = keyed.post("/embed", EMBED, headers=encoded)
    assert response.status_code == status
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
        assert problem(response)["code"] == "no_key"


@pytest.fixture(scope="module")
def keyed(models, server_class):
    live = server_class({"base": models["base"]}, keys=["another-key-for-tests-02", KEY])
    yield live
    live.close()


def test_a_client_that_fills_the_queue_leaves_places_to_other_keys(busy):
    names = ["first-key-of-16-chars", "second-key-of-16-chars"]
    live = busy(queue=8, keys=names)
    first, second = ({"authorization": f"Bearer {name}"} for name in names)

    def ask(headers):
        return httpx.post(f"{live.url}/embed", json=EMBED, headers=headers, timeout=30)

    # 一个客户占的位子不超过空位的三倍：8 个位子里最多占 6 个
    threads, answers = in_background(10, lambda: ask(first))
    wait_for(lambda: len(answers) == 4)
    assert {answer.status_code for answer in answers} == {429}
    more, others = in_background(3, lambda: ask(second))
    wait_for(lambda: len(others) == 1)
    assert others[0].status_code == 429
    live.open.set()
    for thread in [*threads, *more]:
        thread.join(20)
    assert sorted(answer.status_code for answer in answers) == [200] * 6 + [429] * 4
    assert sorted(answer.status_code for answer in others) == [200] * 2 + [429]
    wait_for(lambda: live.admission.free == 8)


@pytest.mark.slow
def test_a_thousand_requests_of_one_key_do_not_starve_another(start):
    """The flood goes on all the while; each request of the other key is answered, and none waits long."""
    names = ["first-key-of-16-chars", "second-key-of-16-chars"]
    live = start(queue=16, keys=names)
    first, second = ({"authorization": f"Bearer {name}"} for name in names)
    over = threading.Event()

    def flood():
        statuses = []
        with httpx.Client(base_url=live.url, headers=first, timeout=30) as session:
            while not over.is_set():
                statuses.append(session.post("/embed", json={"texts": EMBED["texts"] * 40}).status_code)
        return statuses

    threads, floods = in_background(24, flood)
    waits = []
    with httpx.Client(base_url=live.url, headers=second, timeout=30) as session:
        for _ in range(30):
            begun = time.monotonic()
            assert session.post("/embed", json=EMBED).status_code == 200
            waits.append(time.monotonic() - begun)
    over.set()
    for thread in threads:
        thread.join(30)
    flooded = [status for statuses in floods for status in statuses]
    assert {200, 429} <= set(flooded)
    assert max(waits) < 5


def test_an_address_that_fills_the_queue_leaves_places_to_others(busy):
    """Without keys; a proxy of this machine tells the addresses apart."""
    live = busy(queue=8)

    def ask(address):
        return httpx.post(f"{live.url}/embed", json=EMBED, headers={"x-forwarded-for": address}, timeout=30)

    threads, answers = in_background(10, lambda: ask("203.0.113.7"))
    wait_for(lambda: len(answers) == 4)
    assert problem(answers[0])["code"] == "queue_full"
    more, others = in_background(2, lambda: ask("203.0.113.8"))
    wait_for(lambda: live.admission.free == 0)
    live.open.set()
    for thread in [*threads, *more]:
        thread.join(20)
    assert [answer.status_code for answer in others] == [200, 200]
    wait_for(lambda: live.admission.free == 8)


@pytest.mark.parametrize(
    ("key", "num_keys", "address", "client"),
    [
        (1, 2, "203.0.113.7", "key 1"),
        (0, 1, "203.0.113.7", "203.0.113.7"),
        (0, 0, "2001:db8::1", "20010db800000000::"),
        (0, 0, "2001:db8::ffff:2", "20010db800000000::"),
        (0, 0, "::ffff:203.0.113.7", "203.0.113.7"),
        (0, 0, "127.0.0.9", LOCAL),
        (0, 0, "::1", LOCAL),
        (0, 0, "::ffff:127.0.0.1", LOCAL),
        (0, 0, None, LOCAL),
    ],
)
def test_a_client_is_a_key_or_an_address(key, num_keys, address, client):
    assert client_of(key, num_keys, address) == client


def test_newcomers_find_a_place_whoever_came_before():
    """Ten greedy clients, one after the other, on 64 places."""
    held, free = [], 64
    for number in range(10):
        taken = 0
        while free and has_share(f"key {number}", taken, free):
            taken, free = taken + 1, free - 1
        held.append(taken)
    assert held[0] == 48
    assert min(held[:4]) >= 1
    assert free >= 0
    assert sum(held) + free == 64


def test_the_description_says_how_a_key_is_sent(keyed, server):
    told = keyed.client.get("/openapi.json").json()
    assert told["components"]["securitySchemes"]["bearer"] == {"type": "http", "scheme": "bearer"}
    assert told["paths"]["/embed"]["post"]["security"] == [{"bearer": []}, {"header": []}]
    assert told["paths"]["/health"]["get"]["security"] == []
    assert "securitySchemes" not in server.client.get("/openapi.json").json()["components"]


def test_probes_and_the_page_need_no_key_figures_and_models_do(keyed):
    for path in ("/health", "/ready", "/docs", "/openapi.json"):
        assert keyed.client.get(path).status_code == 200, path
    for path in ("/info", "/metrics", "/v1/models", "/nothing"):
        assert keyed.client.get(path).status_code == 401, path


def test_pages_of_other_origins_may_call_only_where_they_are_told_so(start):
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    closed = start()
    assert "access-control-allow-origin" not in closed.client.options("/embed", headers=asked).headers
    assert "access-control-allow-origin" not in closed.post("/embed", EMBED, headers=asked).headers
    opened = start(cors_origins=("https://example.org",), keys=[KEY])
    assert opened.client.options("/embed", headers=asked).headers["access-control-allow-origin"] == asked["Origin"]
    other = asked | {"Origin": "https://example.com"}
    assert "access-control-allow-origin" not in opened.client.options("/embed", headers=other).headers


def test_the_queue_is_told_as_it_is_now(start):
    live = start(queue=8)
    live.admission.free -= 5
    try:
        assert "bertsmith_queue_requests 5.0" in live.client.get("/metrics").text
    finally:
        live.admission.free += 5
    assert "bertsmith_queue_requests 0.0" in live.client.get("/metrics").text


def test_no_text_reaches_the_log(start, models, caplog, monkeypatch):
    secret = "zanzibar"
    live = start({"base": models["base"], "answer": models["answer"]})
    for name in ("bertsmith", "bertsmith.access", "bertsmith.error", "uvicorn.error", "uvicorn.access"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    # 同一进程里先跑的测试可能把记录请求的级别调高了
    caplog.set_level(logging.INFO, "bertsmith.access")
    with caplog.at_level(logging.DEBUG):
        assert live.post("/embed", {"texts": [secret]}).status_code == 200
        assert live.post("/embed", {"texts": [secret], secret: 1}).status_code == 422
        assert live.post("/fill-mask", {"texts": [f"no {secret}"]}).status_code == 422
        assert live.post("/embed", {"texts": ["a"], "model": secret}).status_code == 404
        assert live.client.get(f"/{secret}?q={secret}").status_code == 404
        assert live.client.request(secret.upper(), "/embed").status_code == 400
        live.client.post("/embed", content=secret, headers={"Content-Type": "application/json"})

        def broken(*_):
            raise ValueError(f"about {secret}")

        monkeypatch.setattr(live.app.state.models.named("base").pipelines["embed"].engine.engine, "run", broken)
        failed = live.post("/embed", {"texts": [secret]})
        assert (failed.status_code, problem(failed)["code"]) == (500, "internal_error")
    # the client's own log does tell what it sent
    text = "\n".join(row.getMessage() for row in caplog.records if not row.name.startswith("http"))
    assert secret not in text.lower()
    assert "ValueError at test_limits.py" in text
    assert "POST /embed 200" in text
    assert "items=1 tokens=" in text


def test_the_figures_tell_what_happened(start):
    live = start(queue=3)
    for _ in range(3):
        live.post("/embed", {"texts": ["the man", "a woman"]})
    live.post("/embed", {"texts": []})
    live.client.get("/a/b/c")
    text = live.client.get("/metrics").text
    assert 'bertsmith_requests_total{endpoint="/embed",status="200"} 3.0' in text
    assert 'bertsmith_requests_total{endpoint="/embed",status="422"} 1.0' in text
    assert 'bertsmith_requests_total{endpoint="unmatched",status="404"} 1.0' in text
    assert 'bertsmith_items_total{endpoint="/embed"} 6.0' in text
    assert 'bertsmith_request_seconds_count{endpoint="/embed"} 4.0' in text
    assert "bertsmith_batch_tokens_count" in text
    assert "bertsmith_queue_requests 0.0" in text
