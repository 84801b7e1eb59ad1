"""The house stands as `docs/architecture.md` draws it, and its worked examples run."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "bertsmith"


def rooms_drawn():
    spec = importlib.util.spec_from_file_location("draw_architecture", ROOT / "docs/images/draw_architecture.py")
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
