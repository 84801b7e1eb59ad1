"""The school stands on the public interface of `bertsmith` alone: what the reference documents, and nothing else."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import bertsmith

ROOT = Path(__file__).parents[2]
SCHOOL = ROOT / "src" / "bertsmith_school"
PAGES = {language: ROOT / "docs" / language / "reference" / "api" for language in ("en", "zh")}


def documented(language):
    """The modules that the pages of the reference document."""
    pages = (page.read_text(encoding="utf-8") for page in PAGES[language].glob("*.md"))
    return {name for page in pages for name in re.findall(r"^::: (bertsmith[\w.]*)$", page, re.MULTILINE)}


DOCUMENTED = documented("en")


def is_public(module, name):
    """Whether a name stands in a documented module, as its own or in its `__all__`, or is such a module."""
    if f"{module}.{name}" in DOCUMENTED or module == "bertsmith.model.families":
        return True
    if module == "bertsmith":
        return name in bertsmith.__all__
    if module not in DOCUMENTED or name.startswith("_"):
        return False
    home = importlib.import_module(module)
    if hasattr(home, "__all__"):
        return name in home.__all__
    body = ast.parse(Path(home.__file__).read_text(encoding="utf-8")).body
    own = {getattr(node, "name", "") for node in body}
    for node in body:
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            own |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)} if target is not None else set()
    return name in own


def imported(path):
    """The names of `bertsmith` that a file imports, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bertsmith":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (("", alias.name) for alias in node.names if alias.name.split(".")[0] == "bertsmith")


@pytest.mark.parametrize("path", sorted(SCHOOL.rglob("*.py")), ids=lambda path: str(path.relative_to(SCHOOL)))
def test_a_file_imports_public_names_only(path):
    hidden = [f"{module}.{name}" for module, name in imported(path) if not is_public(module, name)]
    assert not hidden, f"not in docs/*/reference/api: {', '.join(hidden)}"


def test_both_languages_document_the_same_modules():
    assert documented("zh") == DOCUMENTED
