"""The tables of README and documentation, made from the lines under `results/`.

A page holds `<!-- table: NAME -->` and, further down, `<!-- /table -->`; what stands between is written here
(`make bench-tables`), and a test fails where a page and its lines differ. `TABLES` declares every table once. Of
several lines with the same name, the last one counts. A comparison shows the median of ours, with the fastest and the
slowest round, and how many times as fast ours is as each kind of peer; of several experts, as the best.

`results/audit.jsonl` holds what an audit measured against better experts than those of the scripts. Where it has a row,
tables show its ratio with †. A commit with ‡ is older than the code that its line measures (`ROOMS`; docstrings and
comments aside), by the day on which the tables were made.

    python benchmarks/tables.py            # write all pages
    python benchmarks/tables.py pretrain_step latency        # print tables
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from chinese import chinese
from measured import HERE, RESULTS, Row, read_rows
from side_by_side import EXPERT, OURS, PEOPLE

ROOT = HERE.parent
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)
NOTHING = "not measured yet"
AUDITED, OLDER = "†", "‡"
CORE = "batch.py parallel.py kernels model"
TRAINED = f"{CORE} data objectives train"
TUNED = f"{CORE} finetune inference tokenizer"
ROOMS = {
    "adapters_memory": TUNED,
    "corpus": "data tokenizer",
    "documents": "data/reading",
    "embed": f"{CORE} inference tokenizer",
    "families": CORE,
    "families_learning": TRAINED,
    "finetune": TUNED,
    "gpu": TRAINED,
    "knowledge": f"{TRAINED} {TUNED} ../bertsmith_school/looking/pairs.py ../bertsmith_school/study",
    "labelled_tables": "data/reading finetune/datasets",
    "latency": f"{CORE} inference tokenizer",
    "learning_curves": TRAINED,
    "few_labels": f"{CORE} {TUNED} journeys",
    "never_behind": f"{CORE} {TUNED} journeys",
    "learning_curves_gpu": TRAINED,
    "model_forward": CORE,
    "own_text": f"{TRAINED} journeys tokenizer",
    "pretrain_step": f"{CORE} objectives train",
    "reviews_from_nothing": f"{TRAINED} {TUNED} journeys",
    "scaling": TRAINED,
    "search": f"{CORE} inference retrieval tokenizer",
    "search_quality": f"{CORE} inference retrieval tokenizer",
    "serve": f"{CORE} inference serve tokenizer",
    "solve": f"{TRAINED} {TUNED} journeys",
    "stream": f"{CORE} data objectives train",
    "tasks_from_nothing": f"{TRAINED} {TUNED}",
    "time_to_loss": TRAINED,
    "tokenizer": "tokenizer",
    "topics": "journeys/topics.py retrieval",
    "train_embed": TUNED,
    "vectors_quality": f"{TUNED} journeys retrieval train",
    "village": f"{TRAINED} journeys tinyworld tokenizer",
    "word_vectors": f"{CORE} ../bertsmith_school/neighbours",
}
"""File of results → the folders and files of `src/bertsmith` that its lines measure."""


@dataclass(frozen=True)
class Comparisons:
    """Ours and both kinds of peer, a line of results a row."""

    results: str
    shown: Mapping[str, str] = field(default_factory=dict)
    """Figures beside the times: key → format, such as `{"utilisation": "{:.0%}"}`."""
    prefixes: tuple[str, ...] = ("",)
    """With what the names of the lines begin that are in the table."""
    columns: Sequence[str] = ("ours", "as people write it", "as an expert writes it")
    """What ours and both kinds of peer are called."""

    def render(self, say: Callable[[str], str]) -> list[str]:
        """Returns the lines of the table."""
        # 没有对手的行是别的行的一部分，如全参数微调的内存
        rows = [row for row in latest(self.results) if "rounds" in row and row["name"].startswith(self.prefixes)]
        if not rows:
            return [say(NOTHING) + say(".")]
        heads = ["what", *self.columns, *self.shown]
        cells = [
            [
                say(row["name"]),
                spread(row["rounds"][OURS], row["unit"], say),
                against(row, PEOPLE, say),
                against_expert(row, say),
                *(self._figure(row, key) for key in self.shown),
            ]
            for row in rows
        ]
        shown = [*grid([say(head.replace("_", " ")) for head in heads], cells), "", *sources(rows, say)]
        return [*shown, *audits_of(rows, say)]

    def _figure(self, row: Row, key: str) -> str:
        # 峰值是按墙上时间测的：忙的机器上偏低，不能与处理器时间相比
        if key not in row["figures"] or (key == "utilisation" and row.get("clock") == "processor"):
            return ""
        return self.shown[key].format(row["figures"][key])


@dataclass(frozen=True)
class Figures:
    """Figures that are no comparison: what was learned, what was found."""

    results: str
    titles: Sequence[str]
    """Keys of a line whose values together name its row."""
    shown: Mapping[str, str]
    """Key of a line → format."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """What a line must say to be in the table."""
    over: str = ""
    """Key of a line, such as `seed`: lines that differ in it alone are one row, with mean and standard deviation."""

    def render(self, say: Callable[[str], str]) -> list[str]:
        """Returns the lines of the table."""
        # 连同提交与机器一起区分：新提交的行排在旧的之后，旧的不会顶替它
        apart = (self.over, *ORIGIN) if self.over else ()
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in latest(self.results, (*self.titles, *apart), self.where):
            groups.setdefault(tuple(row[key] for key in self.titles), []).append(row)
        if not groups:
            return [say(NOTHING) + say(".")]
        # 不同提交的代码不求平均：只留最后一次提交的
        rows = [[row for row in same if _origin(row) == _origin(same[-1])] for same in groups.values()]
        heads = [*self.titles, *([f"{self.over}s"] if self.over else []), *self.shown]
        cells = [
            [say(str(same[0][key])) for key in self.titles]
            + ([str(len(same))] if self.over else [])
            + [_mean([row[key] for row in same if key in row], form) for key, form in self.shown.items()]
            for same in rows
        ]
        used = [row for same in rows for row in same]
        return [*grid([say(head.replace("_", " ")) for head in heads], cells), "", *sources(used, say)]


@dataclass(frozen=True)
class Ratio:
    """A row of the README: the same work in every precision that was measured."""

    english: str
    chinese: str
    results: str
    names: Mapping[str, str]
    """What stands behind a ratio, such as a precision → name of the line."""
    command: str


@dataclass(frozen=True)
class Ratios:
    """The table of the README: ratios alone, and of what was measured alone; machines and commits stand elsewhere.

    Where the audit found the experts of a row held back, what it did not measure again is left out.
    """

    rows: Sequence[Ratio]

    def render(self, say: Callable[[str], str]) -> list[str]:
        """Returns the lines of the table."""
        cells: list[Any] = []
        for row in self.rows:
            found = {row_["name"]: row_ for row_ in latest(row.results)}
            lines = {short: found[name] for short, name in row.names.items() if name in found}
            if not lines:
                continue
            title = row.chinese if say("what") != "what" else row.english
            found_by = {short: audit for short, line in lines.items() if (audit := audit_of(line))}
            expert = [f"**{audit['ratio']}x**{AUDITED} {short}" for short, audit in found_by.items()]
            expert = expert or [f"**{ratio(line, EXPERT):.2f}x** {short}" for short, line in lines.items()]
            people = [f"{value:.2f}x {short}" for short, line in lines.items() if (value := ratio(line, PEOPLE))]
            cells.append([title, " · ".join(expert), " · ".join(people) or "–", f"`{row.command}`"])
        heads = ["what", "as an expert writes it", "as people write it", "command"]
        return grid([say(head) for head in heads], cells)


ORIGIN = ("commit", "processor")
"""What lines must share to be averaged: code and machine."""


def _origin(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ORIGIN)


def _mean(values: Sequence[float], form: str) -> str:
    """Returns the mean with the standard deviation; nothing of nothing."""
    if not values:
        return ""
    spread = f" ± {form.format(statistics.stdev(values))}" if len(values) > 1 else ""
    return form.format(statistics.mean(values)) + spread


def latest(results: str, titles: Sequence[str] = ("name",), where: Mapping[str, Any] | None = None) -> list[Row]:
    """Returns the last line of every name, in the order in which names first came."""
    rows = [{**row, "results": results} for row in read_rows(RESULTS / f"{results}.jsonl")]
    if rows and "side" in rows[0]:
        rows = comparisons(rows)
    for row in rows:
        if "curve" in row:
            row["seconds"] = row["curve"][-1][0]
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if (where or {}).items() <= row.items():
            found[tuple(row.get(key) for key in titles)] = row
    return list(found.values())


def comparisons(rows: Sequence[Row]) -> list[Row]:
    """Returns lines of whole runs, one a side and seed, as comparisons: the runs of a side are its rounds.

    Of several commits the last one with lines of a name counts.
    """
    found: dict[str, Row] = {}
    for name in dict.fromkeys(row["name"] for row in rows):
        same = [row for row in rows if row["name"] == name]
        same = [row for row in same if row["commit"] == same[-1]["commit"] and row["model"] == same[-1]["model"]]
        sides = {side: [row for row in same if row["side"] == side] for side in dict.fromkeys(r["side"] for r in same)}
        seconds = {side: [row["seconds"] for row in runs] for side, runs in sides.items()}
        figures: Row = {}
        for side, runs in sides.items():
            for score in [key for key in runs[0] if key.startswith("score")]:
                scores = [row[score] for row in runs]
                error = f" ± {statistics.stdev(scores) / len(scores) ** 0.5:.3f}" if len(scores) > 1 else ""
                how = score.removeprefix("score").replace("_", ", ")
                figures[f"score {side}{how}"] = f"{statistics.mean(scores):.3f}{error}"
            figures[f"MiB {side}"] = round(statistics.median(row["peak_mib"] for row in runs))
        found[name] = {**same[-1], "unit": "s", "rounds": seconds, "figures": figures}
    return list(found.values())


def best_of(row: Row, kind: str) -> str | None:
    """Returns the contender of a kind with the best median, or None where there is none."""
    names = [name for name in row["rounds"] if name.split(":")[0] == kind]
    best = max if is_rate(row["unit"]) else min
    return best(names, key=lambda name: statistics.median(row["rounds"][name])) if names else None


def ratio(row: Row, kind: str) -> float:
    """Returns how many times as good ours is as the best peer of a kind; 0 where there is none."""
    peer = best_of(row, kind)
    if peer is None:
        return 0.0
    ours, theirs = statistics.median(row["rounds"][OURS]), statistics.median(row["rounds"][peer])
    return float(ours / theirs if is_rate(row["unit"]) else theirs / ours)


def is_rate(unit: str) -> bool:
    """Returns whether more is better."""
    return unit.endswith("/s") or unit == "words/piece"


def against(row: Row, kind: str, say: Callable[[str], str] = str) -> str:
    """Returns the cell of a kind of peer: the ratio, and the peer's own figure."""
    peer = best_of(row, kind)
    if peer is None:
        return ""
    which = peer.partition(": ")[2]
    shown = f"{ratio(row, kind):.2f}x ({spread(row['rounds'][peer], row['unit'], say)})"
    return shown + say(", ") + say(which) if which else shown


@cache
def audits() -> dict[tuple[str, str], Row]:
    """Returns what was measured against better experts: file of results and name of a line → line of the audit."""
    return {(row["results"], row["name"]): row for row in read_rows(RESULTS / "audit.jsonl")}


def audit_of(row: Row) -> Row | None:
    """Returns what the audit says about a line of results."""
    return audits().get((row["results"], row["name"]))


def against_expert(row: Row, say: Callable[[str], str]) -> str:
    """Returns the cell of the expert: the audit's ratio where there is one, then that of the expert first written."""
    audit, first = audit_of(row), against(row, EXPERT, say)
    return f"{audit['ratio']}x{AUDITED}{say('; ')}{say('as first written')}{say(': ')}{first}" if audit else first


def audits_of(rows: Sequence[Row], say: Callable[[str], str]) -> list[str]:
    """Returns the footnote to the ratios of the audit: where and when, and what its experts do."""
    found = [audit for row in rows if (audit := audit_of(row))]
    if not found:
        return []
    key = "expert_zh" if say("what") != "what" else "expert"
    experts = dict.fromkeys(f"{audit[key]}" for audit in found)
    where = dict.fromkeys(
        say(f"{audit['processor']}, {_threads(audit['threads'])}, processor time, {audit['date']}") for audit in found
    )
    what = say("audit") + say(", ") + say("; ").join(where) + say(": ") + say("; ").join(experts) + say(".")
    return ["", f"{AUDITED} {what}"]


@cache
def is_older(results: str, commit: str) -> bool:
    """Returns whether the code that lines of a file measure has changed since a commit; False where git cannot say.

    Docstrings and comments are no code: what they say takes no time.
    """
    changed = _git("diff", "--name-only", commit, "--", *(f"src/bertsmith/{room}" for room in ROOMS[results].split()))
    return any(
        not (path.endswith(".py") and (ROOT / path).exists())
        or code_of(_git("show", f"{commit}:{path}")) != code_of((ROOT / path).read_text())
        for path in changed.splitlines()
    )


def _git(*command: str) -> str:
    try:
        return subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, check=False, text=True).stdout
    except OSError:
        return ""


@cache
def code_of(source: str) -> str:
    """Returns what a Python file runs, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]  # type: ignore[attr-defined]
    return ast.dump(tree)


def unmarked(text: str) -> str:
    """Returns the text of a page without the marks of lines that are older than the code: they depend on the day."""
    return re.sub(rf" \({OLDER} [^)]*\)|{OLDER}", "", text)


def spread(values: Sequence[float], unit: str, say: Callable[[str], str] = str) -> str:
    """Returns the median with the lowest and the highest, in a unit that reads well."""
    middle = statistics.median(values)
    scale, shown = (1000.0, "ms") if unit == "s" and middle < 2 else (1.0, say(unit))
    digits = 0 if scale * middle >= 100 else 1 if scale * middle >= 10 else 2
    low, high = (f"{scale * value:,.{digits}f}" for value in (min(values), max(values)))
    return f"{scale * middle:,.{digits}f} {shown}" + (f" ({low}–{high})" if len(values) > 1 else "")


def grid(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Lays cells out as Markdown."""
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *cells)]


def sources(rows: Sequence[Row], say: Callable[[str], str]) -> list[str]:
    """Returns the line below a table: machines and versions, each with its threads, commits and days."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(machine_of(row), []).append(row)
    told = []
    for machine, same in found.items():
        parts = [machine]
        if "commit" in same[0]:
            # 脚本刚测完就打印的行没有 results：它们不会早于代码
            older = [row for row in same if "results" in row and is_older(row["results"], row["commit"])]
            commits = [{"commit": row["commit"] + OLDER * (row in older)} for row in same]
            parts += [_threads(_each(same, "threads")), f"commit {_each(commits, 'commit')}"]
            parts += [_each(same, "date")]
        told.append(say(", ".join(parts)))
    text = say("; ").join(told)
    note = f" ({OLDER} {say('older than the code')})" if OLDER in text else ""
    return [text + note + say(".")] if told else []


def _each(rows: Sequence[Row], key: str) -> str:
    """Returns what lines say under a key, each value once."""
    return " / ".join(dict.fromkeys(str(row[key]) for row in rows))


def _threads(count: str | int) -> str:
    return f"{count} thread" + ("" if str(count) == "1" else "s")


def machine_of(row: Row) -> str:
    """Returns where a line was measured, with which packages, by which clock."""
    if "commit" not in row:
        return "measured before lines named their commit"
    wide = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in row["features"]][:1]
    device = row.get("device") or f"{row['processor']} ({', '.join(wide)})"
    packages = [f"{name} {row['versions'][name]}" for name in ("torch", "transformers") if name in row["versions"]]
    return ", ".join([device, *packages, *(["processor time"] if row.get("clock") == "processor" else [])])


def print_table(rows: Sequence[Row]) -> None:
    """Prints comparisons as they will stand in the documentation."""
    cells = [
        [row["name"], spread(row["rounds"][OURS], row["unit"])]
        + [against(row, kind) for kind in (PEOPLE, EXPERT)]
        + ["; ".join(f"{key} {value}" for key, value in row["figures"].items())]
        for row in rows
    ]
    print("\n".join([*grid(["what", OURS, "people", "expert", "other figures"], cells), "", *sources(rows, str)]))


def said_in(page: Path) -> Callable[[str], str]:
    """Returns what translates a heading or a name for a page."""
    return chinese if "zh" in page.parts or "zh-CN" in page.name else str


def updated(page: Path) -> str:
    """Returns the text of a page with its tables made anew.

    Raises:
        KeyError: the page names a table that is not declared.
    """
    say = said_in(page)

    def table(found: re.Match[str]) -> str:
        return found[1] + "\n".join(TABLES[found[2]].render(say)) + "\n" + found[3]

    return MARKED.sub(table, page.read_text(encoding="utf-8"))


def pages() -> list[Path]:
    """Returns all pages with tables."""
    found = [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if MARKED.search(page.read_text(encoding="utf-8"))]


README_ROWS = (
    Ratio(
        "time to reach the loss that an expert's loop reaches in two minutes (6.02 nats, mini);"
        " `transformers`' ModernBERT",
        "达到专家写法训练两分钟的损失所需时间（6.02 nat，mini）；对 `transformers` 的 ModernBERT",
        "time_to_loss",
        {"bf16": "mini, bf16, 2 minutes of the expert"},
        "python benchmarks/time_to_loss.py --minutes 2",
    ),
    Ratio(
        "fine-tuning on SST-2, one seed; `Trainer`",
        "SST-2 微调，一个种子；对 `Trainer`",
        "finetune",
        {"bf16": "sst2, bf16"},
        "python benchmarks/finetune.py --seeds 1",
    ),
    Ratio(
        "sentences to vectors, `--engine auto`; ONNX Runtime or OpenVINO (int8: cosine 0.992, ours 0.999),"
        " `sentence-transformers`",
        "句子变成向量，`--engine auto`；对 ONNX Runtime 或 OpenVINO（int8：余弦 0.992，本项目 0.999），"
        "`sentence-transformers`",
        "embed",
        {precision: f"bulk, {precision}, engine auto" for precision in ("bf16", "float32", "int8")},
        "python benchmarks/embed.py",
    ),
    Ratio(
        "a server under 32 connections; OpenVINO behind a queue, FastAPI + `sentence-transformers`",
        "32 个连接下的服务器；对排队攒批的 OpenVINO，FastAPI + `sentence-transformers`",
        "serve",
        {precision: f"32 connections, {precision}" for precision in ("bf16", "float32")},
        "python benchmarks/serve.py",
    ),
)

FOUND = dict.fromkeys(("words_mrr", "vectors_before_mrr", "vectors_after_mrr", "sum_after_mrr"), "{:.3f}")
LIKENESS = dict.fromkeys(("likeness", "likeness_before", "likeness_after"), "{:.3f}")
AFTER = dict.fromkeys(("words_recall_at_1", "vectors_after_recall_at_1", "sum_after_recall_at_1"), "{:.3f}")
LEARNED = {
    "steps": "{:,.0f}",
    "tokens": "{:,.0f}",
    "unigram_entropy": "{:.3f}",
    "mlm_loss": "{:.3f}",
    "mlm_accuracy": "{:.1%}",
}

TABLES: dict[str, Comparisons | Figures | Ratios] = {
    "readme": Ratios(README_ROWS),
    "pretrain_step": Comparisons("pretrain_step", {"utilisation": "{:.0%}", "with Muon": "{:.2f}x"}),
    "model_forward": Comparisons("model_forward"),
    "families": Comparisons("families"),
    "finetune": Comparisons(
        "finetune",
        {f"score {side}": "{}" for side in (OURS, PEOPLE, EXPERT)}
        | {f"score {OURS}, {how}": "{}" for how in ("float32", "int8")},
    ),
    "train_embed": Comparisons(
        "train_embed",
        {f"score {side}": "{}" for side in (OURS, PEOPLE, EXPERT)}
        | {f"MiB {side}": "{:,}" for side in (OURS, PEOPLE, EXPERT)},
    ),
    "embed": Comparisons("embed", {f"cosine {OURS}": "{:.4f}"}),
    "latency": Comparisons("latency", {f"cosine {OURS}": "{:.4f}"}),
    "serve": Comparisons("serve"),
    "search": Comparisons("search", {f"found {OURS}": "{:.2f}", f"of ten {OURS}": "{:.2f}", f"MiB {OURS}": "{:,}"}),
    "search_quality": Figures("search_quality", ("name",), dict.fromkeys(("recall@1", "recall@10", "mrr"), "{:.3f}")),
    "vectors_likeness": Figures(
        "vectors_quality",
        ("side", "epochs"),
        {"before": "{:.3f}", "after": "{:.3f}", "seconds": "{:,.0f}"},
        {"task": "stsb"},
        "seed",
    ),
    "vectors_trained": Figures("vectors_quality", ("fold", "epochs"), FOUND | AFTER, {"task": "xquad"}),
    "vectors_from_nothing": Figures(
        "vectors_quality", ("minutes",), {**FOUND, "weight": "{:.2f}", **LIKENESS}, {"task": "nothing"}, "seed"
    ),
    "tokenizer": Comparisons("tokenizer"),
    "stream": Comparisons("stream"),
    "corpus": Comparisons("corpus"),
    "documents": Comparisons("documents"),
    "labelled_tables": Comparisons("labelled_tables", {"MB": "{}"}),
    "adapters_memory": Comparisons("adapters_memory"),
    "time_to_loss": Comparisons("time_to_loss", {"loss": "{:.3f}", "loss_ours": "{:.3f}"}),
    "families_learning": Figures(
        "families_learning", ("family", "size", "minutes", "precision"), LEARNED, {"what": "pre-training"}
    ),
    "families_short": Figures(
        "families_learning",
        ("family",),
        {"mlm_loss": LEARNED["mlm_loss"], "mlm_accuracy": LEARNED["mlm_accuracy"]},
        {"what": "pre-training"},
    ),
    "families_sst2": Figures(
        "families_learning",
        ("family", "size", "minutes", "precision"),
        dict.fromkeys(("accuracy", "macro_f1"), "{:.3f}"),
        {"what": "sst2"},
        "seed",
    ),
    "learning_curves": Figures(
        "learning_curves",
        ("name", "size", "minutes", "precision", "threads", "seed"),
        {"seconds": "{:,.0f}"} | {key: LEARNED[key] for key in ("steps", "tokens", "mlm_loss", "mlm_accuracy")},
    ),
    "learning_curves_gpu": Figures(
        "learning_curves_gpu",
        ("name", "size", "minutes", "batch_size", "compile"),
        {key: LEARNED[key] for key in ("steps", "tokens", "mlm_loss", "mlm_accuracy")},
        over="seed",
    ),
    "solve": Figures(
        "solve",
        ("task", "contender", "minutes"),
        {
            "score": "{:.3f}",
            "dev": "{:.3f}",
            "words alone": "{:.3f}",
            "encoder alone": "{:.3f}",
            "seconds": "{:,.0f}",
        },
        over="seed",
    ),
    "few_labels": Figures(
        "few_labels",
        ("labels", "contender"),
        {"score": "{:.3f}", "seconds": "{:,.1f}"},
        over="draw",
    ),
    "never_behind": Figures(
        "never_behind",
        ("task", "rows"),
        dict.fromkeys(("score", "standard error", "peer", "words", "frozen", "fine-tuned"), "{:.3f}")
        | {"behind": "{:+.2f}"},
        over="draw",
    ),
    "tasks_from_nothing": Figures(
        "tasks_from_nothing", ("task", "contender"), {"score": "{:.3f}", "mlm_loss": "{:.3f}"}, {}, "seed"
    ),
    "reviews_from_nothing": Figures(
        "reviews_from_nothing",
        ("what", "minutes"),
        {"score": "{:.3f}", "dev": "{:.3f}", "seconds": "{:,.0f}"},
        over="seed",
    ),
    "knowledge": Figures(
        "knowledge",
        ("family", "size", "minutes"),
        {"tokens": "{:,.0f}", "mlm_loss": "{:.3f}"}
        | dict.fromkeys(("BLiMP, Salazar et al. 2020", "BLiMP, Kauf & Ivanova 2023"), "{:.3f}")
        | dict.fromkeys(("SST-2", "STS-B", "UD", "WNUT-17", "XQuAD"), "{:.3f}"),
        over="seed",
    ),
    "village": Figures(
        "village",
        ("name",),
        {
            "seconds": "{:,.0f}",
            "pretraining_seconds": "{:,.0f}",
            "mlm_loss": "{:.3f}",
            "model_loss": "{:.3f}",
            "reader_loss": "{:.3f}",
            "reader_entropy": "{:.3f}",
            "nsp_accuracy": "{:.1%}",
            "reader_nsp": "{:.1%}",
            "sentiment_pretrained": "{:.1%}",
            "sentiment_random": "{:.1%}",
        },
        over="seed",
    ),
    "own_text": Figures(
        "own_text", ("name",), {"asked_seconds": "{:,.0f}", "seconds": "{:,.0f}", **LEARNED}, over="seed"
    ),
    "scaling": Figures(
        "scaling",
        ("family", "size", "asked_tokens"),
        {key: LEARNED[key] for key in ("steps", "mlm_loss", "mlm_accuracy")},
    ),
    "word_vectors": Figures(
        "word_vectors",
        ("name", "epochs", "seeds"),
        {
            "overlap": "{:.1%}",
            "overlap_of_gensim_with_itself": "{:.1%}",
            "plurals": "{:.1%}",
            "plurals_gensim": "{:.1%}",
            "words_per_second": "{:,.0f}",
            "words_per_second_gensim": "{:,.0f}",
        },
    ),
    "topics": Figures(
        "topics",
        ("passages", "contender"),
        {
            "seconds": "{:,.1f}",
            "coherence": "{:.3f}",
            "diversity": "{:.0%}",
            "topics": "{:,}",
            "in_no_topic": "{:.0%}",
        },
    ),
    "gpu": Comparisons("gpu", {"utilisation": "{:.0%}"}, ("step of", "texts of", "two processes")),
    "gpu_ways": Comparisons(
        "gpu", {}, ("ways of",), ("Muon, --compile", "Muon, without --compile", "AdamW, without --compile")
    ),
}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}\n", *TABLES[name].render(str), "", sep="\n")
    for page in [] if sys.argv[1:] else pages():
        page.write_text(updated(page), encoding="utf-8")
        print(page.relative_to(ROOT))
