"""The frame of the benchmarks: lines answer for their own code and machine alone, tables are those of the lines."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest

from bertsmith.journeys.plan import too_short

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("measured")


@pytest.fixture
def tables(measured):
    return importlib.import_module("tables")


def test_every_table_of_the_pages_is_made_from_the_committed_lines(tables):
    # 早于代码的记号随代码变，不参与比较：改代码不应让这个测试失败
    shown = {page: page.read_text(encoding="utf-8") for page in tables.pages()}
    stale = [
        page.name for page, text in shown.items() if tables.unmarked(tables.updated(page)) != tables.unmarked(text)
    ]
    assert not stale, f"{stale} differ from benchmarks/results; run make bench-tables"


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_a_readme_shows_committed_ratios_and_those_of_the_audit_where_there_are_any(tables, name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for row in tables.README_ROWS:
        (shown,) = [line for line in text.splitlines() if line.startswith((f"| {row.english} |", f"| {row.chinese} |"))]
        lines = {line["name"]: line for line in tables.latest(row.results)}
        measured = [lines[each] for each in row.names.values() if each in lines]
        first = {f"**{tables.ratio(line, 'expert'):.2f}x**" for line in measured}
        people = {f"{tables.ratio(line, 'people'):.2f}x" for line in measured}
        audits = [audit for line in measured if (audit := tables.audit_of(line))]
        expected = {f"**{audit['ratio']}x**†" for audit in audits} or first
        assert set(re.findall(r"\*\*[\d.]+x\*\*†?", shown)) == expected
        assert set(re.findall(r"(?<![*\d.])\d+\.\d+x", shown)) <= people


def test_the_audit_is_about_lines_that_exist_and_says_how(measured, tables):
    for audit in measured.read_rows(BENCHMARKS / "results" / "audit.jsonl"):
        assert audit["name"] in {line["name"] for line in tables.latest(audit["results"])}
        assert all(audit[key] for key in ("expert", "expert_zh", "processor", "date"))
        assert 0 < float(audit["ratio"]) < 10


def test_a_line_is_older_where_code_changed_not_where_words_did(tables):
    code = 'def f(x):\n    """Says much."""\n    return x  # why\n'
    assert tables.code_of(code) == tables.code_of("def f(x):\n    return x\n")
    assert tables.code_of(code) != tables.code_of(code.replace("return x", "return -x"))


KEPT = re.compile(
    "(bert|roberta|albert|electra|distilbert|modernbert|mini|tiny|small|base|large|float\\d*|bf16|int8|avx\\w*|amx\\w*|torch|cpu"
    "|transformers|eager|sdpa|gensim|skip|gram|cbow|auto|openvino|onnxruntime|tokie|mrr|recall|nat|tfidf|bertsmith|setfit|solve"
    "|[0-9a-f]{7,12}|crfsuite|sst2|stsb|wnut17|chnsenticorp|xquad|quickstart|lora|bottleneck|mlm\\w*|nsp_token)"
)
"""What is called alike in both languages: models, tasks, libraries, instructions."""


def test_the_tables_of_chinese_pages_are_chinese(tables):
    """Heads, names of rows, units, contenders and the line below: nothing is left in English but names."""
    for name, table in tables.TABLES.items():
        lines = "\n".join(table.render(tables.chinese))
        words = set(re.findall(r"(?<![\w.@-])[a-z][a-z]\w+", re.sub("`[^`]*`|--\\w+", "", lines)))
        left = {word for word in words if not KEPT.fullmatch(word)}
        assert not left, f"{name}: {sorted(left)}; benchmarks/chinese.py has the words"


def test_every_line_says_where_it_comes_from(measured):
    for path in (BENCHMARKS / "results").glob("*.jsonl"):
        for row in measured.read_rows(path):
            if "commit" in row:
                assert {"versions", "processor", "features", "threads", "load_before", "load_after"} <= row.keys()
                assert not row["commit"].endswith("+changed"), f"{path.name}: measured with changes not committed"


def test_a_line_answers_for_its_own_commit_only(measured, tmp_path, monkeypatch):
    taken = []

    def measure():
        taken.append(1)
        return {"seconds": 1.0}

    monkeypatch.setattr(measured, "commit", lambda: "abc")
    first = measured.Results("x", threads=2, folder=tmp_path)
    assert first.get({"name": "a"}, measure)["seconds"] == 1.0
    measured.Results("x", threads=2, folder=tmp_path).get({"name": "a"}, measure)
    assert len(taken) == 1
    measured.Results("x", threads=1, folder=tmp_path).get({"name": "a"}, measure)
    measured.Results("x", threads=2, folder=tmp_path).get({"name": "b"}, measure)
    assert len(taken) == 3
    monkeypatch.setattr(measured, "commit", lambda: "def")
    measured.Results("x", threads=2, folder=tmp_path).get({"name": "a"}, measure)
    assert len(taken) == 4


def test_quickstart_keeps_its_minutes_and_learns_or_says_how_many_it_needs(tables):
    """Every committed line is within 1.25 of the time asked for and below word frequencies, or has a refusal."""
    lines = tables.latest("own_text", ("name", "seed"))
    texts = [f"{megabytes} MB of English{minutes}" for megabytes in (0.5, 2.4, 10) for minutes in ("", ", --minutes 1")]
    assert {f"quickstart on {text}" for text in (*texts, "the bundled village")} <= {line["name"] for line in lines}
    for line in lines:
        if "refused" in line:
            assert re.search(r"of at least \d+ steps .*; give [\d.]+ minutes", line["refused"])
        else:
            # 最早的一行没有写要求的时间：不说就是十分钟
            assert line["seconds"] <= 1.25 * line.get("asked_seconds", 600)
            assert line["mlm_loss"] < line["unigram_entropy"]


@pytest.mark.parametrize("spent", [0.0, 0.2, 0.4])
def test_only_a_refusal_of_the_minutes_is_a_result(measured, monkeypatch, spent):
    own_text = importlib.import_module("own_text")
    said = str(too_short("tiny", 3, 1.0, 0.5, spent, smaller=True))
    ended = {"stderr": f"bertsmith: warning: 1 text was cut\nbertsmith: {said}\n"}
    monkeypatch.setattr(own_text.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 2, **ended))
    assert own_text.learned([], 30.0, 0)["refused"] == f"bertsmith: {said}"
    # 以 2 结束的还有别的错误：不能当作测得的结果
    ended["stderr"] = "bertsmith: data/a.txt: no such file\n"
    with pytest.raises(subprocess.CalledProcessError):
        own_text.learned([], 30.0, 0)


@pytest.mark.parametrize(
    ("language", "said"),
    [("en", r"Grouping ([\d,]+) passages took ([\d.]+) seconds"), ("zh", r"([\d,]+) 个段落的分组用了单核 ([\d.]+) 秒")],
)
def test_the_guide_to_topics_says_what_a_line_shows(tables, language, said):
    page = (ROOT / f"docs/{language}/how-to/topics.md").read_text(encoding="utf-8")
    passages, seconds = re.search(said, page).groups()
    lines = tables.latest("topics", ("passages", "contender"))
    ours = {f"{line['passages']:,}": f"{line['seconds']:.1f}" for line in lines if line["contender"] == "bertsmith"}
    assert ours[passages] == seconds


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"rounds": {"ours": [0.5, 0.0]}}, r"rounds\.ours 0\.0"),
        ({"rounds": {"ours": [0.5]}, "difference": float("nan")}, "difference nan"),
        ({"loss": float("inf")}, "loss inf"),
        ({"rounds": {"ours": [0.5]}, "figures": {"cosine ours": 0.0}}, r"figures\.cosine ours 0\.0"),
        ({"seconds": 3.0, "accuracy_int8": 0.0}, r"accuracy_int8 0\.0"),
        ({"mlm_loss": 3.0, "mlm_accuracy": 0}, r"mlm_accuracy 0\.0"),
        ({"note": "nothing"}, "no figure"),
    ],
)
def test_a_figure_that_no_measurement_gives_ends_the_run_also_a_quick_one(measured, tmp_path, found, said):
    results = measured.Results("some", threads=1, folder=tmp_path, quick=True)
    with pytest.raises(SystemExit, match=f"task: .*{said}.*nothing was written"):
        results.get({"name": "task"}, lambda: found)
    assert not results.path.exists()
    assert results.get({"name": "task"}, lambda: {"rounds": {"ours": [0.5]}, "matthews": 0.0})["matthews"] == 0.0


def test_a_ratio_is_of_medians_and_of_the_best_expert(tables):
    row = {"unit": "s", "rounds": {"ours": [2.0, 1.0, 9.0], "expert: a": [6.0], "expert: b": [3.0]}}
    assert tables.ratio(row, "expert") == 1.5
    assert tables.ratio(row, "people") == 0.0
    rate = {"unit": "texts/s", "rounds": {"ours": [10.0], "people": [4.0], "expert: a": [20.0], "expert: b": [5.0]}}
    assert tables.ratio(rate, "people") == 2.5
    assert tables.ratio(rate, "expert") == 0.5
