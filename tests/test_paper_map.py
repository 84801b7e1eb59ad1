import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = (ROOT / "docs" / language / "explanation/paper-map.md" for language in ("en", "zh"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def names_in(text: str) -> list[str]:
    """Every dotted name of the package, in order."""
    # 入口点的组名（entry-points."bertsmith.tasks"、entry points `bertsmith.families`）不是模块
    return re.findall(r'(?<!entry-points\.")(?<!entry points `)\bbertsmith(?:\.\w+)+', text)


def rows_of(page: Path) -> list[str]:
    return [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]


def find(name: str) -> object:
    """Imports as much of a dotted name as is modules, and looks the rest up."""
    words = name.split(".")
    found: object = importlib.import_module(words[0])
    for number, word in enumerate(words[1:], 2):
        try:
            found = getattr(found, word)
        except AttributeError:
            found = importlib.import_module(".".join(words[:number]))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_on_a_page_is_there(page):
    for name in names_in(page.read_text(encoding="utf-8")):
        assert find(name) is not None, name


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda page: page.parts[-3])
def test_a_name_leads_to_where_the_thing_is_defined(page):
    """The map says in which file to look, so a name that is merely imported there would mislead."""
    for name in names_in(page.read_text(encoding="utf-8")):
        home = getattr(find(name), "__module__", None)
        assert home is None or not home.startswith("bertsmith") or name.startswith(f"{home}."), name


def test_the_two_languages_name_the_same_things_row_by_row():
    english, chinese = rows_of(ENGLISH), rows_of(CHINESE)
    assert sum(bool(names_in(row)) for row in english) > 40
    assert [names_in(row) for row in english] == [names_in(row) for row in chinese]


@pytest.mark.parametrize(("page", "table", "figure"), [(ENGLISH, "table", "figure"), (CHINESE, "表", "图")])
def test_every_section_table_and_figure_of_the_paper_is_on_the_map(page, table, figure):
    first_cells = " ".join(row.split("|")[1] for row in rows_of(page))
    chapters = ["§1", "§2.1", "§2.2", "§2.3", "§3", "§3.2", "§4.1", "§4.2", "§4.3", "§4.4", "§5.1", "§5.2", "§5.3"]
    appendix = ["§6", "A.1", "A.2", "A.3", "A.4", "A.5", "B.1", "C.1", "C.2"]
    tables = [f"{table} {number}" for number in range(1, 9)]
    figures = [f"{figure} {number}" for number in range(1, 6)]
    missing = [place for place in chapters + appendix + tables + figures if place not in first_cells]
    assert not missing
    assert "§3.1" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda page: page.parts[-3])
def test_a_row_without_code_says_why(page):
    for row in rows_of(page):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert cells[2] or cells[3], row
