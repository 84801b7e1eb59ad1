"""README and home page: short, and every figure, result and command that a newcomer reads there is true."""

import importlib
import re
import statistics
from pathlib import Path

import pytest

from bertsmith.tinyworld import draw_reviews
from typed_command import typed

ROOT = Path(__file__).parents[2]
ENTRANCES = [ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "docs/en/index.md", ROOT / "docs/zh/index.md"]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def scripts(monkeypatch):
    """The modules that make tables and pictures."""
    for folder in ("benchmarks", "docs/site"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    return {name: importlib.import_module(name) for name in ("tables", "measured", "pictures")}


@pytest.mark.parametrize("page", ENTRANCES, ids=named)
def test_an_entrance_has_one_picture_one_table_of_four_rows_and_the_way_to_install(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == text.count("\n| --- ") == 1
    table = text[text.index("<!-- table: readme -->") : text.index("<!-- /table -->")]
    assert len(re.findall(r"^\| ", table, re.MULTILINE)) == 2 + 4
    assert not re.findall("commit|提交|‡", text)
    assert "git clone ADDRESS bertsmith && cd bertsmith" in text
    language = "zh" if "zh" in page.name or "zh" in page.parts else "en"
    (picture,) = re.findall(r"images/[\w.-]+", text)
    assert picture == f"images/learning-curves.{language}.svg"
    assert "GPU" in text
    assert "how-to/use-a-gpu.md" in text
    assert "solve" in text


@pytest.mark.parametrize("page", ENTRANCES, ids=named)
def test_five_lines_of_python_print_what_is_shown(page, capsys):
    ((code, shown),) = re.findall(
        r"^```python\n(.*?)^```\n```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(code.splitlines()) <= 5
    exec(code, {})
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("page", ENTRANCES, ids=named)
def test_the_command_prints_what_is_shown(page, tmp_path, monkeypatch, capsys):
    rows = [f"{review.text};{review.label}" for review in draw_reviews(0, 100, split="train")]
    (tmp_path / "reviews.csv").write_text("\n".join(["Review Text;Sentiment Label", *rows]) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    (shown,) = re.findall(r"^bertsmith look reviews\.csv.*?^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    # 之后的几行取决于装了哪些可选依赖
    whole, end = shown.removesuffix("…\n"), shown[-2:]
    assert end == "…\n"
    assert typed(capsys, "look", "reviews.csv").startswith(whole)


@pytest.mark.parametrize("page", ENTRANCES, ids=named)
def test_the_figures_of_the_three_reasons_are_those_of_the_lines(page, scripts):
    def mean(rows, key):
        return statistics.mean(row[key] for row in rows)

    tables, read = (
        scripts["tables"],
        lambda name: scripts["measured"].read_rows(ROOT / f"benchmarks/results/{name}.jsonl"),
    )
    curves = [row for row in read("learning_curves") if (row["threads"], row["precision"]) == (2, "bf16")]
    ours, theirs = (
        [row for row in curves if row["name"] == name and row["commit"] == curves[-1]["commit"]]
        for name in ("ours: modernbert", "expert: modernbert")
    )
    sst2 = [row for row in read("solve") if row["task"] == "sst2"]
    solved = [row for row in sst2 if (row["contender"], row["minutes"]) == ("checkpoint", 5.0)]
    (simple,) = [row for row in sst2 if row["contender"] == "simple"]
    tables = scripts["tables"]
    embedded = {row["name"]: tables.ratio(row, "people") for row in tables.latest("embed")}
    figures = [
        *(f"{mean(rows, 'mlm_loss'):.2f}" for rows in (ours, theirs)),
        *(f"{mean(rows, 'mlm_accuracy'):.0%}".replace("%", " %") for rows in (ours, theirs)),
        *(f"{value:.3f}" for value in (mean(solved, "score"), mean(solved, "encoder alone"), simple["score"])),
        *(f"{embedded[f'bulk, {precision}, engine auto']:.1f}" for precision in ("bf16", "float32")),
    ]
    reasons = page.read_text(encoding="utf-8").partition("\n## ")[2].partition("\n\n")[0]
    assert re.findall(r"\*\*(\d\.\d+)\*\*", reasons) == [figures[0], figures[4], figures[7]]
    assert not [figure for figure in figures if figure not in reasons]
