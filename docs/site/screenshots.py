"""Takes pictures of what a newcomer meets, to be looked at: README, home page, lesson, report, and tabs of the lab.

    python docs/site/screenshots.py FOLDER

All are of this checkout, 1,280 and 390 pixels wide, in English and Chinese where there are both. Needs the extras
`docs`, `school` and `test`, and Chromium; takes some minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from markdown_it import MarkdownIt
from playwright.sync_api import Page, sync_playwright

import bertsmith
from bertsmith.tinyworld import draw_reviews

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = "/usr/bin/chromium"
WIDTHS, HEIGHT, MOST_HEIGHT = (1280, 390), 900, 3600
"""Pixels: of the windows, and how far down a picture of a long page goes."""

TABS = {
    "fill": (None, "#fill-results .bar"),
    "attention": ("#attention-button", "#attention-map .js-plotly-plot"),
    "task": (None, "#task-results .bar"),
    "learn": (None, "#lesson-why .steps"),
}
"""Tab of the lab → the button to press, if any, and what there is to wait for."""

READMES = {"en": "README.md", "zh": "README.zh-CN.md"}
PLAIN_PAGE = """<!doctype html>
<meta charset="utf-8">
<base href="{base}/">
<style>
body {{ max-width: 860px; margin: auto; padding: 16px; font: 16px/1.5 sans-serif }}
img {{ max-width: 100% }}
pre, table {{ display: block; overflow-x: auto; border-collapse: collapse }}
pre, code {{ background: #f3f4f6 }}
th, td {{ border: 1px solid #ccc; padding: 4px 8px }}
</style>
{body}"""
"""Much as GitHub shows a README."""


@contextmanager
def served(*words: str) -> Iterator[str]:
    """Runs a command of bertsmith that serves pages on a free port, and lends its address."""
    command = [sys.executable, "-u", "-m", "bertsmith", *words, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        try:
            said = []
            for line in running.stdout:
                said.append(line)
                if found := re.search(r"http://[\d.]+:\d+", line):
                    yield found[0]
                    return
            raise SystemExit(f"bertsmith {' '.join(words)} serves nothing:\n{''.join(said)}")
        finally:
            running.terminate()


def written_readme(language: str, folder: Path) -> Path:
    """Writes the README of a language as a page into a folder, and returns its file."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    body = markdown.render((ROOT / READMES[language]).read_text(encoding="utf-8"))
    path = folder / f"readme-{language}.html"
    path.write_text(PLAIN_PAGE.format(base=ROOT.as_uri(), body=body), encoding="utf-8")
    return path


def take(page: Page, path: Path) -> None:
    """Takes a picture of a page from its top."""
    # 图画好、动画停下再拍；实验室的页面一直连着服务器，等不到网络空闲
    page.wait_for_timeout(1000)
    size = page.viewport_size
    assert size is not None
    height = min(MOST_HEIGHT, page.evaluate("document.scrollingElement.scrollHeight"))
    page.screenshot(path=path, full_page=True, clip={"x": 0, "y": 0, "width": size["width"], "height": height})
    print(path)


def main(folder: Path) -> None:
    """Takes all pictures into a folder: NAME-LANGUAGE-WIDTH.png."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, served("docs", "--no-browser") as site, served("lab") as lab:
        reviews = [{"text": one.text, "label": one.label} for one in draw_reviews(0, 200, split="train")]
        recipe = {"epochs": 20, "learning_rate": 5e-4}
        report = bertsmith.finetune("classify", "village", Path(work) / "run", train=reviews, **recipe).report
        assert report is not None
        with sync_playwright() as engine:
            browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": HEIGHT})
                page.set_default_timeout(120_000)
                page.goto(report.resolve().as_uri())
                take(page, folder / f"report-{width}.png")
                for language in READMES:
                    page.goto(written_readme(language, Path(work)).as_uri())
                    take(page, folder / f"readme-{language}-{width}.png")
                    page.goto(f"{site}/{language}/")
                    take(page, folder / f"home-{language}-{width}.png")
                    page.goto(f"{lab}/{language}/")
                    for tab, (button, shown) in TABS.items():
                        page.click(f"[role=tab][data-tab-id={tab}]")
                        if button is not None:
                            page.click(button)
                        page.wait_for_selector(shown)
                        take(page, folder / f"lab-{tab}-{language}-{width}.png")
                page.close()
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
