"""The built site in a real browser: both languages, wide and narrow, search, every link, language and theme."""

import functools
import json
import os
import re
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest
import typer
from typer.main import get_command

from bertsmith.cli import all_commands
from bertsmith.errors import ConfigError
from bertsmith.reporting.site import find_site, is_stale, site_server

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
needs_mkdocs = pytest.mark.skipif(
    find_spec("material") is None or find_spec("mkdocstrings") is None, reason="the extra `docs` is not installed"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with every warning an error; the CI names the one that it has just built so."""
    built = os.environ.get("BERTSMITH_BUILT_SITE")
    if built and not is_stale(Path(built), ROOT):
        return Path(built)
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, str(ROOT / "docs/site/build.py"), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def address(site):
    with site_server(site, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    sync = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("no /usr/bin/chromium")
    with sync.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])


@functools.cache
def html_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@needs_mkdocs
@pytest.mark.slow
def test_every_link_of_the_site_leads_to_a_page_and_a_place_in_it(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    broken = []
    for page in pages:
        # 研究的报告是别的程序写的完整网页，不属于站点；404 页的链接从根算起
        if "assets" in page.parts or page.name == "404.html":
            continue
        for link in set(re.findall(r'\b(?:href|src)="([^"]+)"', html_of(page))):
            if re.match(r"[a-z]+:", link):
                continue
            path, anchor = urldefrag(urljoin(f"/{page.relative_to(site).as_posix()}", link))
            target = site / unquote(urlsplit(path).path).lstrip("/")
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and f'id="{unquote(anchor)}"' not in html_of(target)):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert not broken, broken[:20]


@needs_mkdocs
@pytest.mark.slow
def test_the_site_asks_nothing_of_the_network(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)"', html_of(page))
        loaded += re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(https?:[^"]+)"', html_of(page))
        assert not loaded, page


@needs_mkdocs
@pytest.mark.slow
def test_every_public_name_and_command_is_in_the_built_reference(site):
    import bertsmith.inference

    names = html_of(site / "en/reference/api/overview/index.html")
    assert all(f"<code>{name}</code>" in names for name in bertsmith.__all__)
    shown = html_of(site / "zh/reference/api/inference/index.html")
    assert all(f'id="bertsmith.inference.{name}"' in shown for name in bertsmith.inference.__all__)


def options_of_commands():
    """Every command with its options, as they are found when it runs."""

    def walk(group, before):
        for word, one in group.commands.items():
            if hasattr(one, "commands"):
                yield from walk(one, f"{before}{word}-")
            else:
                parameters = one.get_params(typer.Context(one))
                yield f"{before}{word}", [name for each in parameters for name in (*each.opts, *each.secondary_opts)]

    yield from walk(get_command(all_commands()), "")


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_command_has_a_page_with_every_option(site, language):
    overview, commands = site / language / "reference/commands/index.html", dict(options_of_commands())
    assert "--device" in commands["finetune"]
    pages = {page.parent.name for page in overview.parent.glob("*/index.html")}
    assert pages == {f"bertsmith-{command}" for command in commands}
    for command, options in commands.items():
        page = html_of(overview.parent / f"bertsmith-{command}" / "index.html")
        assert f'<h1 id="bertsmith-{command}">' in page
        assert set(re.findall(r"<code>(-[^<]+)</code>", page)) >= {one for one in options if one[0] == "-"} - {"--help"}
        assert f'<a href="bertsmith-{command}/" id="{command}">' in html_of(overview)


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_link_to_a_command_leads_to_its_page(site, language):
    """GitHub has the overview alone: `commands.md#finetune` there, the page of `finetune` here."""
    page = html_of(site / language / "reference/tasks-and-files/index.html")
    assert 'href="../commands/bertsmith-finetune/"' in page
    assert "commands/#" not in page


SEARCHED = {"en": ("pre-training", "en/"), "zh": ("预训练", "zh/")}


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_reader_searches_and_switches_language_and_theme(address, browser, language, width):
    asked, other = SEARCHED[language][0], {"en": "zh", "zh": "en"}[language]
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
    foreign, errors = [], []
    page.on("request", lambda request: None if request.url.startswith(address) else foreign.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_default_timeout(60_000)

    page.goto(f"{address}{language}/how-to/pretrain/")
    assert page.locator("html").get_attribute("lang") == language
    # 窄屏也不能横向滚动：宽的东西在自己的框里滚
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    if width < 1000:
        page.locator("label.md-header__button[for=__search]").click()
    box = page.locator(".md-search__input")
    box.click()
    box.press_sequentially(asked)
    page.locator(".md-search-result__item").first.wait_for()
    found = page.locator(".md-search-result__link")
    # 结果还在陆续写进页面：一次取完，不逐个去问
    links = found.evaluate_all("links => links.map(link => new URL(link.href).pathname)")
    assert len(links) > 2
    assert all(link.startswith(f"/{language}/") for link in links), links
    found.first.click()
    page.wait_for_url(f"{address}{language}/**")

    page.goto(f"{address}{language}/how-to/pretrain/")
    page.locator(".md-header__option .md-select button").hover()
    page.locator(f".md-select__link[hreflang={other}]").click()
    page.wait_for_url(f"{address}{other}/how-to/pretrain/")

    assert page.locator("body").get_attribute("data-md-color-scheme") == "default"
    page.locator("form[data-md-component=palette] label:visible").click()
    assert page.locator("body").get_attribute("data-md-color-scheme") == "slate"
    page.close()
    assert not foreign
    assert not errors


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("language", "asked"), [("en", "install"), ("zh", "安装")])
def test_a_search_for_install_leads_to_the_page_on_installing(address, browser, language, asked):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}{language}/?q={asked}")
    first = "path => document.querySelector('.md-search-result__link')?.pathname === path"
    page.wait_for_function(first, arg=f"/{language}/how-to/install/", timeout=60_000)
    page.close()


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_opens_whole_in_a_browser(site, address, browser, language):
    """From link to link, as a reader goes; each page wide and narrow, with its pictures and without an error."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors = []
    page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
    page.on(
        "response", lambda answer: errors.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None
    )
    page.on("request", lambda one: None if one.url.startswith(address) else errors.append(f"{page.url}: {one.url}"))
    # 搜索有自己的测试：这里每页都给它两条，不必每页把几兆的索引再建一遍
    index = json.loads((site / language / "search/search_index.json").read_text(encoding="utf-8"))
    page.route("**/search_index.json", lambda route: route.fulfill(json={**index, "docs": index["docs"][:2]}))
    page.set_default_timeout(60_000)
    opened, ahead = set(), [f"{address}{language}/"]
    while ahead:
        url = ahead.pop()
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto(url)
        opened.add(url)
        assert page.locator("html").get_attribute("lang") == language, url
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{url} at {width} pixels"
        # 懒加载的图片要滚到眼前才取：直接要它们全部取来
        broken = page.evaluate("""async () => {
            const pictures = [...document.images];
            pictures.forEach(picture => { picture.loading = "eager"; });
            await Promise.allSettled(pictures.map(picture => picture.decode()));
            return pictures.filter(picture => !picture.naturalWidth).map(picture => picture.src);
        }""")
        assert not broken, f"{url}: {broken}"
        links = page.locator("a[href]").evaluate_all("links => links.map(link => link.href.split('#')[0])")
        # 不以斜线结尾的是附件，如研究的报告与数据
        pages = {one for one in links if one.startswith(f"{address}{language}/") and one.endswith("/")}
        ahead += sorted(pages - opened - set(ahead))
    page.close()
    assert not errors, errors[:20]
    unreached = {one.relative_to(site / language).as_posix() for one in (site / language).rglob("index.html")}
    unreached -= {f"{url.removeprefix(f'{address}{language}/')}index.html" for url in opened}
    assert not unreached, f"no link leads to {sorted(unreached)}"


@needs_mkdocs
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_pictures_of_what_a_newcomer_meets_are_taken_by_one_command(tmp_path):
    if not CHROMIUM.exists():
        pytest.skip("no /usr/bin/chromium")
    command = [sys.executable, str(ROOT / "docs/site/screenshots.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    tabs = ("readme", "home", "lab-fill", "lab-attention", "lab-task", "lab-learn")
    kinds = ["report", *(f"{tab}-{language}" for tab in tabs for language in ("en", "zh"))]
    assert {path.stem for path in tmp_path.iterdir()} == {f"{kind}-{width}" for kind in kinds for width in (1280, 390)}


@pytest.mark.parametrize(
    ("changed", "stale"),
    [
        ("mkdocs.zh.yml", True),
        ("CHANGELOG.md", True),
        ("docs/en/index.md", True),
        ("docs/notes/stumbles.md", True),
        ("docs/studies/data.json", True),
        ("benchmarks/results/embed.jsonl", True),
        ("src/bertsmith/seeding.py", True),
        ("src/bertsmith_school/learn/parts/1-why.zh.md", True),
        ("docs/site/__pycache__/hooks.cpython-311.pyc", False),
        ("src/bertsmith.egg-info/PKG-INFO", False),
        ("tests/test_docs.py", False),
    ],
)
def test_a_site_is_stale_when_something_that_it_shows_is_newer(tmp_path, changed, stale):
    site, source = tmp_path / "src/bertsmith/site", tmp_path / changed
    assert is_stale(site, tmp_path)
    for second, path in enumerate((source, site / "index.html"), 1):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (second, second))
    assert not is_stale(site, tmp_path)
    os.utime(source, (3, 3))
    assert is_stale(site, tmp_path) is stale


def test_the_site_of_a_wheel_is_served_as_it_is(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text("hello")
    assert find_site(tmp_path / "site", tmp_path) == tmp_path / "site"


@needs_mkdocs
def test_a_line_is_said_before_the_site_is_built(tmp_path, capsys):
    script = tmp_path / "docs/site/build.py"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit('no theme')")
    with pytest.raises(ConfigError, match=r"build\.py: the documentation could not be built: no theme"):
        find_site(tmp_path / "site", tmp_path)
    assert capsys.readouterr().out == "Building the documentation, which takes about a minute ...\n"


def test_without_a_site_one_line_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"in a checkout.* pip install -c constraints\.txt -e '\.\[docs\]'"):
        find_site(tmp_path / "site", tmp_path)


def test_a_taken_port_is_named(tmp_path):
    with site_server(tmp_path, 0) as server, pytest.raises(ConfigError, match=f"port {server.server_port}: .*--port"):
        site_server(tmp_path, server.server_port)
