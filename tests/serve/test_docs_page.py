"""The page at /docs, in a real browser: it shows every endpoint, answers on a click, and talks to no other host."""

import ast
import json
import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from bertsmith.serve.endpoint import ENDPOINTS

GUIDES = [Path(__file__).parents[2] / f"docs/{language}/how-to/serve-and-deploy.md" for language in ("en", "zh")]


def test_the_page_loads_nothing_from_elsewhere(server):
    page = server.client.get("/docs")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http://" not in page.text
    assert "https://" not in page.text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_an_endpoint_can_be_tried_in_a_browser(server):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        asked, problems = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{server.url}/docs")
        box = page.locator("details", has=page.locator("summary code", has_text="/fill-mask"))
        box.locator("summary").click()
        box.locator("textarea").fill('{"texts": ["the man eats [MASK] ."], "top_k": 2}')
        box.get_by_role("button", name="Send").click()
        output = box.locator("pre")
        sync_api.expect(output).to_contain_text("200 in", timeout=30_000)
        sync_api.expect(output).to_contain_text("probability")
        shown = page.locator("summary code").all_inner_texts()
        browser.close()
    assert {"/embed", "/predict", "/v1/embeddings", "/health", "/metrics"} <= set(shown)
    assert not problems
    assert all(url.startswith((server.url, "data:")) for url in asked)


def test_what_is_served_comes_first(start, models):
    """A classifier alone: its endpoint opens the page, and what it cannot answer closes it."""
    paths = start({"reviews": models["classify"]}).client.get("/openapi.json").json()["paths"]
    assert next(iter(paths)) == "/predict"
    groups = dict.fromkeys(operation["tags"][0] for methods in paths.values() for operation in methods.values())
    assert list(groups) == ["models", "server", "not served by these models"]
    assert set(ENDPOINTS) < set(paths)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.parts[-3])
def test_the_guide_asks_every_endpoint_by_curl_and_from_python(guide):
    """The same requests in both ways, with all kinds of texts that an endpoint takes: `pairs` and `choices` too."""
    page = guide.read_text(encoding="utf-8")
    curl = re.compile(r"^curl -s localhost:8000(/\S*) .* -d '(.*)'$", re.MULTILINE)
    by_curl = {(path, canonical(json.loads(body))) for path, body in curl.findall(page)}
    calls = [
        node
        for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ask"
    ]
    from_python = {
        (call.args[0].value, canonical({one.arg: ast.literal_eval(one.value) for one in call.keywords}))
        for call in calls
    }
    assert by_curl == from_python
    asked = defaultdict(set)
    for path, body in by_curl:
        asked[path] |= json.loads(body).keys()
    taken = {path: shapes[0].request_type for path, shapes in ENDPOINTS.items()}
    assert asked.keys() == taken.keys()
    assert all({one.text_fields[0], *one.same_length} <= asked[path] for path, one in taken.items())


def canonical(body):
    return json.dumps(body, sort_keys=True)
