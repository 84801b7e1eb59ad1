"""Every block of shell and Python code of the READMEs and of the site runs, or says why not.

`docs/CONTRIBUTING-docs.md` tells of the comments above a block. The English pages run; the Chinese ones hold the same.
"""

import ast
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
    r"<!-- hidden\n(?P<hidden>.*?)-->|^```(?P<kind>bash|python)\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL
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


def test_comments_are_understood():
    text = "<!-- skip: why -->\n```bash\na\n```\n<!-- hidden\nb\n-->\n"
    text += "<!-- slow: minutes -->\n<!-- run: s/1/2/ -->\n<!-- run: s|x|y| -->\n```python\n1x\n```\n"
    text += "<!-- server: 8000 -->\n```bash\nc\n```\n"
    others = [Block("python", "2y\n", slow="minutes"), Block("bash", "c\n", server="8000")]
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


RUNNING = [page for page in ENGLISH if re.search("^```(bash|python)$", page.read_text(encoding="utf-8"), re.MULTILINE)]


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
    for number, block in enumerate(blocks_of(page.read_text(encoding="utf-8")), 1):
        code = block.code
        # 页面上的端口也许有人在用：服务换到空闲的端口，后面的请求跟着换
        for port, free in ports.items():
            code = code.replace(f":{port}", f":{free}")
        if block.is_left_out:
            continue
        if block.server:
            for command, port in zip(code.splitlines(), block.server.split(), strict=True):
                ports[port] = start(command.replace(f"--port {port}", ""), folder)
        elif block.kind == "bash":
            shell(code, folder)
        else:
            exec(compile(code, f"{named(page)}, block {number}", "exec"), names)
