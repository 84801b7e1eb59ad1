"""Bodies made to break things: the server answers them, briefly, and is as healthy afterwards as before."""

import asyncio
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from pydantic import ValidationError
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from bertsmith.serve.native import EmbedRequest, FillMaskRequest, PredictRequest
from bertsmith.serve.openai import EmbeddingsRequest

HEADERS = {"Content-Type": "application/json"}
POISONED = {
    "nul": json.dumps({"texts": ["a\0b\0", "\0"]}),
    "lone surrogate": '{"texts": ["\\ud800 and \\udfff"]}',
    "raw surrogate": b'{"texts": ["\xed\xa0\x80"]}',
    "not utf-8": b'{"texts": ["\xff\xfe"]}',
    "utf-16": '{"texts": ["a"]}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"texts": ["a"]}',
    "one word of half a million letters": json.dumps({"texts": ["a" * 490_000]}),
    "one word of a hundred thousand Chinese characters": json.dumps(
        {"texts": ["".join(map(chr, range(0x4E00, 0x9F00))) * 5]}
    ),
    "accents without end": json.dumps({"texts": ["e" + "\u0301" * 200_000]}),
    "blanks without end": json.dumps({"texts": [" \u200b\u00ad" * 163_000]}),
    "brackets without end": json.dumps({"texts": ["[" * 150_000]}),
    "masks without end": json.dumps({"texts": ["[MASK]" * 20_000]}),
    "deep lists": "[" * 100_000 + "]" * 100_000,
    "deep in a text": '{"texts": ' + "[" * 50_000 + "]" * 50_000 + "}",
    "deep objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "not a number": '{"texts": NaN}',
    "infinity": '{"texts": ["a"], "dimensions": Infinity}',
    "a number of a million digits": '{"texts": ["a"], "dimensions": ' + "9" * 1_000_000 + "}",
    "a large exponent": '{"texts": ["a"], "dimensions": 1e999999}',
    "the same key often": "{" + ",".join(['"texts": ["a"]'] * 20_000) + "}",
    "a long unknown key": json.dumps({"texts": ["a"], "k" * 500_000: 1}),
    "a surrogate in a key": '{"texts": ["a"], "\\ud800": 1}',
    "many unknown keys": json.dumps({"texts": ["a"], **{str(n): n for n in range(50_000)}}),
    "nothing": "",
    "null": "null",
    "a string": '"texts"',
    "half": '{"texts": ["a',
    "two": '{"texts": ["a"]} {"texts": ["a"]}',
    "control characters": b'{"texts": ["\x01\x02"]}',
}


@pytest.mark.parametrize("name", POISONED)
def test_a_poisoned_body_is_answered_and_stalls_nobody(server, name):
    body = POISONED[name]
    content = body if isinstance(body, bytes) else body.encode()
    with ThreadPoolExecutor(1) as pool:
        for path in ("/embed", "/fill-mask", "/tokenize", "/tag", "/v1/embeddings"):
            if path.startswith("/v1"):
                content = content.replace(b"texts", b"input").replace(b"{", b'{"model": "base", ', 1)
            sent = pool.submit(httpx.post, server.url + path, content=content, headers=HEADERS, timeout=60)
            # the event loop goes on serving others while this one is at work
            assert server.client.get("/health").status_code == 200
            response = sent.result()
            assert response.status_code in (200, 413, 422), (path, response.text[:300])
            assert len(response.content) < 20_000_000
    assert server.post("/embed", {"texts": ["a"]}).status_code == 200


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (EmbedRequest, {"texts": [0] * 9_999}),
        (PredictRequest, {"texts": ["a"], "pairs": [0] * 9_999}),
        (PredictRequest, {"texts": ["a"], "choices": [[]] * 9_999}),
        (PredictRequest, {"texts": ["a"], "choices": [[0] * 9_999]}),
        (FillMaskRequest, {"texts": ["a"], "candidates": [0] * 9_999}),
        (EmbeddingsRequest, {"model": "base", "input": [[]] * 9_999}),
        (EmbeddingsRequest, {"model": "base", "input": [["a"] * 9_999]}),
    ],
)
def test_a_list_is_checked_as_far_as_its_first_fault(kind, body):
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps(body))
    assert caught.value.error_count() < 8


def test_faults_without_number_are_counted_and_not_listed(server):
    response = server.post("/embed", {"texts": ["a"], **{f"key {n}": n for n in range(5_000)}})
    assert response.status_code == 422
    assert response.json()["error"]["message"] == "body: 5000 faults; /docs shows what is taken"


def test_an_answer_has_a_size(server):
    """A body of a few bytes asks for an answer of megabytes."""
    body = {"texts": ["[MASK] " * 20] * 126, "top_k": 20}
    response = server.post("/fill-mask", body)
    assert (response.status_code, response.json()["error"]["param"]) == (413, "top_k")
    assert "2520 masks with 20 pieces each; at most 50000" in response.json()["error"]["message"]
    assert server.post("/fill-mask", body | {"top_k": 19}).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e9\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Endless: " + b"y" * 1_000_000,
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"X-More: y\r\n" * 100_000,
        b"GET /%00%ff%ed%a0%80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_a_broken_head_is_refused(server, head):
    async def send():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(head)
            await writer.drain()
            return await asyncio.wait_for(reader.read(40), 10)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    answer = asyncio.run(send())
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer
    assert server.client.get("/health").status_code == 200


def test_a_head_that_comes_with_the_end_of_a_large_body_is_read(server):
    body = b'{"texts": ["a"]' + b" " * 200_000 + b"}"
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def send():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request + request[:20])
        await writer.drain()
        answers = await reader.readuntil(b"\r\n\r\n")
        writer.write(request[20:])
        # 第一个答案的正文之后，就是第二个答案的头
        answers += await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return answers.count(b"HTTP/1.1 200 OK")

    assert asyncio.run(asyncio.wait_for(send(), 30)) == 2


@pytest.mark.slow
def test_schemathesis_finds_no_server_error_and_no_answer_but_those_described(server):
    """Requests drawn from the description itself, well-formed and otherwise."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    described = [status_code_conformance, content_type_conformance, response_schema_conformance]
    tried = []
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in schemathesis.GenerationMode:
            cases = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
            )
            @given(case=cases)
            def check(case):
                response = case.call(base_url=server.url)
                assert response.status_code < 500, (case.path, case.body, response.text)
                case.validate_response(response, checks=described)
                tried.append(response.status_code)

            try:
                check()
            except Unsatisfiable:
                # an operation without parameters cannot be asked wrongly
                assert operation.method.lower() == "get"
    assert len(tried) > 120
    assert {200, 422} <= set(tried)


ALPHABET = '{}[]":,\\ntrueflsau0123456789.-+eE \t\n\0\x7fé北🙂\ud800/'


def hostile_bodies(seed, count):
    """Bodies of every degree of brokenness: noise, JSON of the wrong shape, and good requests with bytes changed."""
    draw = random.Random(seed)

    def value(depth=0):
        kind = draw.randrange(9 if depth < 4 else 6)
        if kind < 2:
            return "".join(draw.choices(ALPHABET, k=draw.randrange(12)))
        if kind < 6:
            return draw.choice([None, True, -1, 0, 10 ** draw.randrange(40), 1.5, 1e308, float("nan"), [], {}, ""])
        if kind == 6:
            return {draw.choice(["texts", "model", "a", "top_k", "pairs"]): value(depth + 1) for _ in range(3)}
        return [value(depth + 1) for _ in range(draw.randrange(5))]

    for _ in range(count):
        kind = draw.randrange(4)
        if kind == 0:
            yield draw.randbytes(draw.randrange(200))
        elif kind == 1:
            yield "".join(draw.choices(ALPHABET, k=draw.randrange(100))).encode("utf-8", "surrogatepass")
        elif kind == 2:
            fields = draw.sample(["texts", "pairs", "model", "input", "query", "top_k", "choices", "contexts"], 4)
            yield json.dumps({field: value() for field in fields}).encode()
        else:
            good = bytearray(json.dumps({"texts": ["the man eats [MASK] ."] * draw.randrange(1, 4)}).encode())
            for _ in range(draw.randrange(4)):
                good[draw.randrange(len(good))] = draw.randrange(256)
            yield bytes(good)


@pytest.mark.slow
def test_ten_thousand_hostile_bodies_leave_a_healthy_server(server):
    paths = ["/embed", "/predict", "/fill-mask", "/tag", "/answer", "/rerank", "/similarity", "/next-sentence"]
    paths += ["/tokenize", "/v1/embeddings"]
    statuses = {}

    async def client(seed):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for number, body in enumerate(hostile_bodies(seed, 1250)):
            path = paths[(seed + number) % len(paths)].encode()
            head = (
                b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            )
            writer.write(head % (path, len(body)) + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer[9:12])
            statuses[status] = statuses.get(status, 0) + 1
            assert status < 500, (path, body, answer)
            lines = dict(line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:] if line)
            await reader.readexactly(int(lines[b"content-length"]))
        writer.close()

    async def all_clients():
        await asyncio.gather(*(client(seed) for seed in range(8)))

    asyncio.run(all_clients())
    assert sum(statuses.values()) == 10_000
    assert {200, 422} <= set(statuses)
    for _ in range(2000):
        if server.admission.free == server.admission.settings.queue:
            break
        time.sleep(0.005)
    assert server.admission.free == server.admission.settings.queue
    assert server.admission.batcher.waiting_tokens == 0
    assert server.post("/embed", {"texts": ["the man eats"]}).status_code == 200
