"""Every block of shell and Python code of the READMEs and of the site runs, or says why not.

`docs/CONTRIBUTING-docs.md` tells of the comments above a block. The English pages run; the Chinese ones hold the same.
"""

import ast
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGLISH = [ROOT / "README.md", *sorted((ROOT / "docs/en").rglob("*.md"))]
COMMENT = re.compile(r"<!-- (skip|run|hidden)(.*?)-->\n*", re.DOTALL)
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

    def replaced(self, rules: list[str]) -> "Block":
        code = self.code
        for rule in rules:
            mark = rule[1:2]
            understood = rule.startswith("s") and mark and rule.count(mark) == 3
            assert understood, f"{rule!r} is no rule of the form s/OLD/NEW/"
            old, new = rule[2:-1].split(mark)
            assert old in code, f"{rule!r} replaces nothing in\n{code}"
            code = code.replace(old, new)
        return Block(self.kind, code, self.skipped)


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page that are to run, with what the comments above each change."""
    found = []
    for part in PART.finditer(text):
        if part["hidden"] is not None:
            found.append(Block("bash", part["hidden"]))
            continue
        rules, skipped = [], ""
        above = text[: part.start()]
        while above.endswith(("-->\n", "-->\n\n")):
            start = above.rindex("<!--")
            kind, told = COMMENT.fullmatch(above[start:]).groups()
            if kind == "run":
                rules.insert(0, told.removeprefix(":").strip())
            elif kind == "skip":
                skipped = told.removeprefix(":").strip()
                assert skipped, f"a block is skipped without a reason:\n{part['code']}"
            above = above[:start]
        found.append(Block(part["kind"], part["code"], skipped).replaced(rules))
    return found


def test_comments_are_understood():
    text = "<!-- skip: why -->\n```bash\na\n```\n<!-- hidden\nb\n-->\n"
    text += "<!-- run: s/1/2/ -->\n<!-- run: s|x|y| -->\n```python\n1x\n```\n"
    assert blocks_of(text) == [Block("bash", "a\n", "why"), Block("bash", "b\n"), Block("python", "2y\n")]


@pytest.mark.parametrize("wrong", ["<!-- run: 1 -->", "<!-- run: s/3/2/ -->", "<!-- skip: -->"])
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
def test_the_blocks_of_a_page_run(page, sample, shell, tmp_path, monkeypatch):
    folder = tmp_path / "page"
    shutil.copytree(sample, folder)
    monkeypatch.chdir(folder)
    names: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks_of(page.read_text(encoding="utf-8")), 1):
        if block.skipped:
            continue
        if block.kind == "bash":
            shell(block.code, folder)
        else:
            exec(compile(block.code, f"{named(page)}, block {number}", "exec"), names)
