"""A page of figures: verdict on top, the next command at the end, readable on a phone."""

import shutil

import pytest

from bertsmith.reporting.page import Table, render_report


def page():
    rows = [["a_setting_with_a_very_long_name_that_nothing_breaks" * 2, "0.123456", "a note on it " * 9]] * 3
    table = Table("Figures", ["what", "value", "note"], rows, "See `bertsmith plan`.", ("code", "figure", "note"))
    told = {"verdict": "Better than <b>words</b>.", "commands": ["bertsmith predict --model " + "runs/a/b" * 20]}
    return render_report("A title", "Of `runs/mine`.", [table], **told)


def test_the_verdict_is_on_top_and_the_next_command_at_the_end():
    said = page()
    places = [said.index(text) for text in ("A title</h1>", "Better than", "Of <code>", "<h2>Figures", "<h2>Next")]
    assert places == sorted(places)
    assert "See <code>bertsmith plan</code>." in said
    assert "Better than &lt;b&gt;words&lt;/b&gt;." in said
    assert "<h2>Next" not in render_report("A title", "", [])


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser")
def test_no_page_scrolls_sideways_on_a_phone(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    (tmp_path / "page.html").write_text(page(), encoding="utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        shown = browser.new_page(viewport={"width": 390, "height": 800})
        shown.goto((tmp_path / "page.html").as_uri())
        width = shown.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert width == 390
