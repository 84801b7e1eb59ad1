"""Every block of shell and Python code of the READMEs and of the site runs, or says why not.

`docs/CONTRIBUTING-docs.md` tells of the comments above a block. The English pages run; the Chinese ones hold the same.
"""

import ast
import contextlib
import io
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = [ROOT / "README.md", *sorted((ROOT / "docs/en").rglob("*.md"))]
COMMENT = re.compile(r"<!-- (skip|slow|run|server|hidden)(.*?)-->\n*", re.DOTALL)
PART = re.compile(
    r"<!-- hidden\n(?P<hidden>.*?)-->|^```(?P<kind>bash|python)\n(?P<code>.*?)^```"
    r"|^<!-- prints -->\n```text\n(?P<prints>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def chinese_of(page: Path) -> Path:
    return (
        ROOT / "README.zh-CN.md" if page.name == "README.md" else ROOT / "docs/zh" / page.relative_to(ROOT / "docs/en")
    )


@dataclass(frozen=True)
class Block:
    kind: str
    code: str
    skipped: str = ""
    slow: str = ""
    server: str = ""
    prints: str = ""

    @property
    def is_left_out(self) -> bool:
        return bool(self.skipped or (self.slow and not os.environ.get("BERTSMITH_SLOW_BLOCKS")))

    def replaced(self, rules: list[str]) -> "Block":
        code = self.code
        for rule in rules:
            mark = rule[1:2]
            understood = rule.startswith("s") and mark and rule.count(mark) == 3
            assert understood, f"{rule!r} is no rule of the form s/OLD/NEW/"
            old, new = rule[2:-1].split(mark)
            assert old in code, f"{rule!r} replaces nothing in\n{code}"
            code = code.replace(old, new)
        return replace(self, code=code)


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page that are to run, with what the comments above each change."""
    found = []
    for part in PART.finditer(text):
        if part["hidden"] is not None:
            found.append(Block("bash", part["hidden"]))
            continue
        if part["prints"] is not None:
            assert found, f"no block above prints\n{part['prints']}"
            found[-1] = replace(found[-1], prints=part["prints"])
            continue
        rules, told = [], {"skip": "", "slow": "", "server": ""}
        above = text[: part.start()]
        while above.endswith(("-->\n", "-->\n\n")):
            start = above.rindex("<!--")
            kind, words = COMMENT.fullmatch(above[start:]).groups()
            words = words.removeprefix(":").strip()
            if kind == "run":
                rules.insert(0, words)
            elif kind in told:
                assert words, f"the comment {kind!r} says nothing:\n{part['code']}"
                told[kind] = words
            above = above[:start]
        found.append(Block(part["kind"], part["code"], told["skip"], told["slow"], told["server"]).replaced(rules))
        # 测试绝不能改动运行它的环境
        assert found[-1].skipped or "pip install" not in part["code"], f"skip what installs:\n{part['code']}"
    return found


def comparable(text: str) -> str:
    """The words of a text: numbers differ between processors, and the frames of tables with the width of numbers."""
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", re.sub(r"\d+(?:[.,]\d+)*(?:e-\d+)?", "0", text)).split())


def is_shown(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed; `…` stands for anything."""
    pattern = ".*".join(map(re.escape, comparable(shown).split("…")))
    return re.fullmatch(pattern, comparable(printed)) is not None


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("good\t0.9731\ta day", "good\t0.98\ta day\n", True),
        ("good\t0.9731\ta day", "bad\t0.9731\ta day\n", False),
        ("│ book │ 61.2% │\n└──────┘", "│ book  │   58% │\n└───────┘\n", True),
        ("1. book\n…", "1. book\n2. poem\n", True),
        ("1. book\n…", "1. poem\n2. book\n", False),
        ("1. book", "1. book\n2. poem\n", False),
    ],
)
def test_an_answer_is_compared_word_for_word(shown, printed, same):
    assert is_shown(shown, printed) is same


def test_comments_are_understood():
    text = "<!-- skip: why -->\n```bash\na\n```\n<!-- hidden\nb\n-->\n"
    text += "<!-- slow: minutes -->\n<!-- run: s/1/2/ -->\n<!-- run: s|x|y| -->\n```python\n1x\n```\n"
    text += "<!-- server: 8000 -->\n```bash\nc\n```\n```bash\nd\n```\n```text\nno answer\n```\n"
    text += "```bash\ne\n```\n<!-- prints -->\n```text\nf\n```\n"
    others = [Block("python", "2y\n", slow="minutes"), Block("bash", "c\n", server="8000"), Block("bash", "d\n")]
    others.append(Block("bash", "e\n", prints="f\n"))
    assert blocks_of(text) == [Block("bash", "a\n", "why"), Block("bash", "b\n"), *others]


@pytest.mark.parametrize("wanted", [True, False])
def test_slow_blocks_run_where_they_are_wanted(wanted, monkeypatch):
    monkeypatch.setenv("BERTSMITH_SLOW_BLOCKS", "1" if wanted else "")
    assert Block("bash", "a\n", slow="minutes").is_left_out is not wanted
    assert Block("bash", "a\n", skipped="a GPU").is_left_out


def test_a_block_that_installs_must_be_skipped():
    with pytest.raises(AssertionError, match="skip what installs"):
        blocks_of("```bash\npip install a\n```\n")


@pytest.mark.parametrize("wrong", ["<!-- run: 1 -->", "<!-- run: s/3/2/ -->", "<!-- skip: -->", "<!-- server: -->"])
def test_a_wrong_comment_is_noticed(wrong):
    with pytest.raises(AssertionError):
        blocks_of(f"{wrong}\n```python\n1\n```\n")


class _WithoutTexts(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) else node


@pytest.mark.parametrize("page", ENGLISH, ids=named)
def test_the_chinese_page_has_the_same_python(page):
    def python(one: Path) -> list[str]:
        blocks = [block for block in blocks_of(one.read_text(encoding="utf-8")) if block.kind == "python"]
        return [ast.dump(_WithoutTexts().visit(ast.parse(block.code))) for block in blocks]

    assert python(page) == python(chinese_of(page))


@pytest.mark.parametrize("page", ENGLISH, ids=named)
def test_the_chinese_page_shows_the_same_answers(page):
    def answers(one: Path) -> list[str]:
        return [block.prints for block in blocks_of(one.read_text(encoding="utf-8")) if block.prints]

    assert answers(page) == answers(chinese_of(page))


ANSWERING = re.compile(r"^(?:bertsmith (?:predict|fill-mask|search|embed --compare)\b|curl |head )", re.MULTILINE)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/en/tutorials").glob("*.md")), ids=named)
def test_a_tutorial_shows_each_answer(page):
    """A reader compares it with his own, and `test_the_blocks_of_a_page_run` with what is printed."""
    for block in blocks_of(page.read_text(encoding="utf-8")):
        assert block.prints or not ANSWERING.search(block.code), block.code


RUNNING = [page for page in ENGLISH if re.search("^```(bash|python)$", page.read_text(encoding="utf-8"), re.MULTILINE)]
# 教程最久：先跑，最后不必只等它们
RUNNING.sort(key=lambda page: page.parent.name != "tutorials")
QUICKSTART = "bertsmith quickstart --out runs/quickstart\n"
"""What `make quickstart` runs: with BERTSMITH_QUICKSTART, the folder that it ended with, a page goes on from there."""


@pytest.mark.guides
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("page", RUNNING, ids=named)
def test_the_blocks_of_a_page_run(page, sample, shell, start, tmp_path, monkeypatch):
    folder = tmp_path / "page"
    shutil.copytree(sample, folder)
    monkeypatch.chdir(folder)
    names: dict[str, object] = {"__name__": "page"}
    ports: dict[str, int] = {}
    blocks = blocks_of(page.read_text(encoding="utf-8"))
    if (finished := os.environ.get("BERTSMITH_QUICKSTART")) and QUICKSTART in [block.code for block in blocks]:
        shutil.copytree(finished, folder / "runs/quickstart")
    for number, block in enumerate(blocks, 1):
        code = block.code
        # 页面上的端口也许有人在用：服务换到空闲的端口，后面的请求跟着换
        for port, free in ports.items():
            code = code.replace(f":{port}", f":{free}")
        if block.is_left_out:
            continue
        if block.server:
            for command, port in zip(code.splitlines(), block.server.split(), strict=True):
                ports[port] = start(command.replace(f"--port {port}", ""), folder)
            continue
        if block.kind == "bash":
            printed = shell(code, folder)
        else:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, f"{named(page)}, block {number}", "exec"), names)
            printed = out.getvalue()
        assert not block.prints or is_shown(block.prints, printed), f"{code}\nprints\n{printed}"
