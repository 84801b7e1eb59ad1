"""Weighs the repository: files and lines of every room, and what the lines are. `make weigh` runs it.

A line counts once: docstring, import, blank or comment, else code. The site that `make docs` builds is not counted.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("code", "docstrings", "imports", "blank or comment")


def weighed(path: Path) -> Counter[str]:
    """Returns the lines of a file by kind, and 1 under `files`."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    kinds = ["blank or comment" if not line.strip() or line.strip().startswith("#") else "code" for line in lines]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            kind = "imports"
        # 只是一个字符串的语句就是文档：模块、类、函数的，和常量下面的
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kind = "docstrings"
        else:
            continue
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            kinds[number] = kind
    return Counter(kinds) + Counter(files=1, lines=len(lines))


def main() -> None:
    """Prints a table: the rooms of both packages, their sums, all of `src`, the tests."""
    print(f"{'':34}{'files':>7}{'lines':>9}" + "".join(f"{kind:>18}" for kind in KINDS))
    whole: Counter[str] = Counter()
    for package in ("src/bertsmith", "src/bertsmith_school", "tests"):
        rooms: dict[str, Counter[str]] = {}
        for path in sorted((ROOT / package).rglob("*.py")):
            inside = path.relative_to(ROOT / package).parts
            if inside[0] != "site":
                rooms.setdefault(inside[0] if len(inside) > 1 else "(loose files)", Counter()).update(weighed(path))
        together = sum(rooms.values(), Counter[str]())
        for room, counts in [*(rooms.items() if package != "tests" else ()), ("", together)]:
            show(f"  {package}/{room}" if room else package, counts)
        if package != "tests":
            whole += together
    show("src", whole)


def show(name: str, counts: Counter[str]) -> None:
    """Prints a row."""
    print(f"{name:34}{counts['files']:7,}{counts['lines']:9,}" + "".join(f"{counts[kind]:18,}" for kind in KINDS))


if __name__ == "__main__":
    main()
