"""Reports as a reader meets them: what came out on top, what to type next at the end, and on a phone."""

import base64
import html
import re
import shlex
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.main import get_command

import bertsmith
from bertsmith.cli import all_commands, main
from bertsmith.tinyworld import draw_stories, render
from bertsmith.train.report import write_run_report
from bertsmith_school.study import Base, study_named
from bertsmith_school.study.report import write_report as write_study_report
from bertsmith_school.study.study import Row

pytestmark = pytest.mark.slow

CHROMIUM = Path("/usr/bin/chromium")
VERDICTS = {
    "quickstart": "word frequencies",
    "pretrain": "word frequencies",
    "finetune": "accuracy",
    "solve": "The best answer:",
    "topics": "topics in",
    "probe": "pairs are judged right",
    "study": "Loss: better than 80% mask",
    "attribute": "most (",
}
"""Report → words of its verdict."""


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert not ended.value.code


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The page of every command that writes one, made by the command on little data."""
    root = tmp_path_factory.mktemp("a_reader_of_reports")
    text, mine, rows = root / "text", root / "mine", root / "rows.tsv"
    text.mkdir()
    for number, story in enumerate(draw_stories(0, 120)):
        (text / f"{number:03d}.txt").write_text("\n".join(render(sentence) for sentence in story.sentences))
    labelled = (("the man reads the book", "good"), ("the dog sees the cow", "bad"))
    rows.write_text("".join(f"{said} on day {day}\t{label}\n" for day in range(160) for said, label in labelled))
    bertsmith.quickstart(text, mine, size="1/64", minutes=0.2, vocab_size=400, search=True)
    asked = ["--train", rows, "--dev", rows, "--test", rows, "--epochs", "1"]
    run("finetune", "classify", "--model", mine / "model", *asked, "--out", root / "classifier")
    run("attribute", "the man reads the book", "--model", root / "classifier/model", "--out", root / "why.html")
    run("probe", mine / "model", "--out", root / "probe")
    masking, base = study_named("masking"), Base("bert", "1/64", 32, 200)
    figures = {arm.name: {"loss": 3.0 - 0.1 * number} for number, arm in enumerate(masking.arms(base))}
    drawn = [Row(arm.name, arm.group, seed, figures[arm.name]) for arm in masking.arms(base) for seed in range(3)]
    (root / "study/runs").mkdir(parents=True)
    write_study_report(root / "study", masking, base, drawn, [])
    return {
        "quickstart": mine / "report.html",
        "pretrain": write_run_report([mine], root / "run.html"),
        "finetune": root / "classifier/report.html",
        "solve": bertsmith.solve(rows, root / "solved").report,
        "topics": bertsmith.topics(mine / "index", out=root / "topics", count=3).report,
        "probe": root / "probe/report.html",
        "study": root / "study/report.html",
        "attribute": root / "why.html",
    }


@pytest.mark.parametrize(("name", "verdict"), VERDICTS.items(), ids=VERDICTS.keys())
def test_a_report_says_what_came_out_and_what_to_type_next(reports, name, verdict):
    path = reports[name]
    page, root = path.read_text(encoding="utf-8"), reports["attribute"].parent
    said = re.search(r'<h1>.*?<p class="verdict">([^<]+)</p>\s*<p class="lead">', page, re.DOTALL)
    assert said, "no verdict between headline and lead"
    assert verdict in html.unescape(said[1])
    commands = re.findall(r"<pre><code>(.*?)</code></pre>", page.partition("<h2>Next</h2>")[2], re.DOTALL)
    words = [shlex.split(html.unescape(command)) for command in commands]
    assert words, "no command at the end"
    known = get_command(all_commands()).commands
    assert all(each[0] == "bertsmith" and each[1] in known for each in words)
    # 写出的文件夹还没有，读的都在
    read = [word for each in words for before, word in pairwise(each) if before != "--out"]
    paths = [Path(word.partition("*")[0]) for word in read if word.startswith(str(root))]
    assert paths
    assert all(each.exists() for each in paths)


@pytest.mark.parametrize("name", VERDICTS)
def test_pictures_of_a_report_are_sharp_and_its_page_is_small(reports, name):
    page = reports[name].read_text(encoding="utf-8")
    pictures = re.findall(r'<img [^>]*src="data:image/([\w+]+);base64,([^"]+)"', page)
    assert bool(pictures) == (name != "attribute")
    for kind, data in pictures:
        assert kind == "svg+xml"
        assert ElementTree.fromstring(base64.b64decode(data)).tag == "{http://www.w3.org/2000/svg}svg"
    assert len(page) < 1_000_000


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs a browser")
def test_no_report_scrolls_sideways_on_a_phone(reports):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        widths, shown = {}, {}
        for name, path in reports.items():
            page = browser.new_page(viewport={"width": 390, "height": 800})
            page.goto(path.as_uri())
            widths[name] = page.evaluate("document.documentElement.scrollWidth")
            shown[name] = page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        browser.close()
    assert widths == dict.fromkeys(reports, 390)
    assert shown == dict.fromkeys(reports, True)
