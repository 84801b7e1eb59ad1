"""The pictures of the pages: in the language of their page, with the figures of the committed lines."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs/site"
MADE = ["images/architecture", "images/learning-curves", "images/learning-curves-sizes", "images/quickstart-loss"]
MADE += [f"studies/{path.stem}" for path in sorted((ROOT / "docs/studies").glob("*.json"))]


@pytest.fixture
def pictures(monkeypatch):
    monkeypatch.syspath_prepend(str(SITE))
    return importlib.import_module("pictures")


def words_of(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


def test_every_picture_is_known(pictures):
    assert list(pictures.PICTURES) == MADE


@pytest.mark.parametrize("name", MADE)
def test_a_committed_picture_has_the_words_and_figures_of_its_lines_in_both_languages(name, pictures):
    for language in ("en", "zh"):
        path = ROOT / f"docs/{name}.{language}.svg"
        drawn = pictures.redrawn(path)
        assert words_of(path.read_text(encoding="utf-8")) == words_of(drawn), "run make bench-tables"
        assert bool(re.search("[\u4e00-\u9fff]", "".join(words_of(drawn)))) is (language == "zh")


def test_what_is_no_picture_of_measurements_is_copied_as_it_is(pictures):
    assert pictures.redrawn(ROOT / "docs/studies/sizes.json") is None
    assert pictures.redrawn(ROOT / "docs/images/lessons/3-pre-training-masking.zh.svg") is None


def test_the_title_of_the_learning_curves_states_the_result_of_the_lines(pictures, monkeypatch):
    lines = [
        {"name": name, "threads": 2, "precision": "bf16", "minutes": 10.0, "commit": commit, "curve": curve}
        for name, commit, curve in (
            ("ours: modernbert", "old", [[60, 1, 1.0, 0.5]]),
            ("ours: modernbert", "new", [[60, 1, 4.0, 0.1], [600, 2, 3.0, 0.2]]),
            ("ours: modernbert", "new", [[60, 1, 4.0, 0.1], [600, 2, 2.0, 0.2]]),
            ("expert: modernbert", "new", [[60, 1, 6.0, 0.1], [600, 2, 5.0, 0.2]]),
        )
    ]
    entropy = [{"unigram_entropy": 7.0}]
    monkeypatch.setattr(pictures, "read_rows", lambda path: lines if path.stem == "learning_curves" else entropy)
    title = "Ten minutes on two cores: 2.50 nats, an expert's loop over transformers 5.00"
    assert title in words_of(pictures.drawn("images/learning-curves", "en"))
    assert "两个核上十分钟：本项目降到 2.50 nat，围绕 transformers 的专家写法 5.00" in words_of(
        pictures.drawn("images/learning-curves", "zh")
    )


def test_three_sizes_of_which_a_newer_run_has_one_side_are_three_panels(pictures, monkeypatch):
    """While a run is unfinished the site is still built, from the last commit that is whole."""
    common = {"threads": 1, "precision": "bf16", "minutes": 10.0, "curve": [[60, 1, 4.0, 0.1], [600, 2, 3.0, 0.2]]}
    asked = [("whole", name, size) for size in ("tiny", "small", "4/768") for name in pictures.CURVES]
    asked += [("begun", name, "tiny") for name in pictures.CURVES] + [("begun", next(iter(pictures.CURVES)), "small")]
    lines = [common | {"commit": commit, "name": name, "size": size} for commit, name, size in asked]
    entropy = [{"unigram_entropy": 7.0}]
    monkeypatch.setattr(pictures, "read_rows", lambda path: lines if path.stem == "learning_curves" else entropy)
    panels = pictures.learning_curves_of_sizes().axes
    assert [panel.get_title().partition(":")[0] for panel in panels] == ["tiny", "small", "4/768"]
    # 右上一格的下面没有格子：它自己写横轴的刻度
    assert [panel.xaxis.get_tick_params()["labelbottom"] for panel in panels] == [False, True, True]


PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]+src=\"([^\"]+)\"")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_picture_of_a_page_is_in_its_language(language):
    readme = ROOT / ("README.md" if language == "en" else "README.zh-CN.md")
    pages = [readme, *(ROOT / "docs" / language).rglob("*.md")]
    shown = [one or other for page in pages for one, other in PICTURE.findall(page.read_text(encoding="utf-8"))]
    assert len(shown) > 20
    assert not [path for path in shown if not path.endswith(f".{language}.svg")]
