"""The house stands as the page on architecture draws it, and its worked examples run."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "bertsmith"


def rooms_drawn():
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs/site/architecture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [room for _, rooms in module.BANDS for names, _ in rooms for room in names.split(" · ")]


ROOMS = rooms_drawn()


def test_every_room_is_drawn():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(ROOMS) == sorted(folders | files)


def imports_of(path):
    """The rooms that a file imports from, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "bertsmith":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bertsmith."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("bertsmith."))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_those_before_it(room):
    allowed = set(ROOMS[: ROOMS.index(room) + 1]) - ({"data"} if room == "model" else set())
    folder = PACKAGE / room
    for path in folder.rglob("*.py") if folder.is_dir() else [folder.with_suffix(".py")]:
        found = {name for name in imports_of(path) if not name.startswith("__")}
        assert found <= allowed, f"{path.relative_to(PACKAGE)} imports {sorted(found - allowed)}"


def imports_within(room):
    """File of a room → the files of it that it imports, at its top or inside functions, not for types alone."""
    files = {
        path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
        for path in (PACKAGE / room).rglob("*.py")
    }
    found = {}
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for_types = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
            for inner in ast.walk(node)
        }
        wanted = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and id(node) not in for_types:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & files.keys()
                wanted |= inner or ({node.module} & files.keys())
        found[name] = wanted - {name}
    return found


@pytest.mark.parametrize("room", [room for room in ROOMS if (PACKAGE / room).is_dir()])
def test_no_files_of_a_room_import_each_other_in_a_circle(room):
    left = imports_within(room)
    # 一层层拿走不再依赖别人的文件：剩下拿不走的就是圈
    while free := {name for name, wanted in left.items() if not wanted & left.keys()}:
        left = {name: wanted for name, wanted in left.items() if name not in free}
    assert not left, f"{room}: {sorted(left)}"


def test_the_toolkit_knows_nothing_of_the_school():
    # `make docs` 把网站放在包里：有的文件夹也叫 .py
    for path in (path for path in PACKAGE.rglob("*.py") if path.is_file()):
        assert "bertsmith_school" not in path.read_text(encoding="utf-8"), path.relative_to(PACKAGE)


PAGES = [ROOT / "docs" / language / "explanation/architecture.md" for language in ("en", "zh")]
EXAMPLES = ["tests/finetune/tasks/grade.py", "tests/model/prenorm.py"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parts[-3])
def test_every_file_of_the_page_is_there(page):
    text = page.read_text(encoding="utf-8")
    way = re.findall(r"^\d+\. `([\w/.]+)`[:：]", text, re.MULTILINE)
    assert len(way) == 20
    assert all((PACKAGE / path).is_file() for path in way)
    changes = [row for row in text.splitlines() if row.startswith("|") and "`src/" in row]
    assert len(changes) >= 15
    for path in re.findall(r"`(src/[\w/.]+)`", "\n".join(changes)):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parts[-3])
def test_the_worked_examples_are_the_files_that_are_tested(page):
    """`tests/model/test_families.py` and `tests/finetune/tasks/test_registry.py` run them."""
    linked = re.findall(r"\]\(../../../(tests/[\w/.]+)\)", page.read_text(encoding="utf-8"))
    assert sorted(linked) == EXAMPLES
    assert all((ROOT / path).is_file() for path in linked)
