"""`bertsmith models`: the list, its rows by words, and the pages that show it."""

import csv
import re
from datetime import date
from pathlib import Path

import pytest

import bertsmith
from bertsmith.cli import main
from bertsmith.model import family_named

ROWS = list(
    csv.DictReader(
        (Path(bertsmith.__file__).parent / "published.tsv").open(encoding="utf-8"), delimiter="\t", quoting=3
    )
)
PAGES = Path(__file__).parents[2] / "docs"


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(["models", *words])
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return call


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_every_model_is_of_a_family_that_loads_here(row):
    assert family_named(row["family"])
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", row["name"])
    assert re.fullmatch(r"\d+M", row["parameters"])
    assert row["licence"] in ("MIT", "Apache-2.0")
    assert re.search(r"\d{4}", row["source"])
    assert row["card"] == f"https://huggingface.co/{row['name']}"
    assert date(2026, 11, 1) <= date.fromisoformat(row["read"])
    # 只有 BERT 的 pickle 权重能导入：别的家族要有 safetensors
    assert row["family"] == "bert" or "pickled" not in row["known for"]


def test_words_choose_rows_and_the_command_names_the_first(run):
    code, out, _ = run("vectors", "ZH")
    assert code == 0
    assert out.count("bge-") == 3
    assert "bertsmith index FOLDER --model BAAI/bge-small-zh-v1.5" in out
    assert "rerank" not in out
    code, _, err = run("klingon")
    assert (code, "no model has all of klingon" in err) == (2, True)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_shows_what_the_command_shows(language):
    page = (PAGES / language / "how-to/choose-a-model.md").read_text(encoding="utf-8")
    shown = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if "| `" in line]
    kept = ("name", "languages", "parameters", "tokens", "licence", "family")
    assert [row[:6] for row in shown] == [[row[name] for name in kept] for row in ROWS]
    years = [re.findall(r"\d{4}", row[-1]) for row in shown]
    assert years == [re.findall(r"\d{4}", row["source"]) for row in ROWS]
    cards = [re.findall(r"\((https:[^)]+)\)", row[-1]) for row in shown]
    assert cards == [[row["card"]] for row in ROWS]
    pickled = ["import.md" in row[-2] for row in shown]
    assert pickled == ["pickled" in row["known for"] for row in ROWS]
