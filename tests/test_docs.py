"""The pages are true: links lead somewhere, commands exist, the guide's code runs."""

import ast
import functools
import re
from pathlib import Path

import pytest
import tomllib
import typer
from typer.main import get_command

from typed_command import typed

ROOT = Path(__file__).parents[1]
SITE = {language: sorted((ROOT / "docs" / language).rglob("*.md")) for language in ("en", "zh")}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *SITE["en"], *SITE["zh"]])
# 建好的网站里，源码的页是以 .py 结尾的文件夹
SOURCES = [path for path in sorted((ROOT / "src").rglob("*.py")) if path.is_file()]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose_of(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """What a heading is called in a link, by GitHub's rule; of the page of commands, what the program has."""
    if page.parts[-2:] == ("reference", "commands.md"):
        return {name.replace(" ", "-") for name in command_names()}
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of(page: Path) -> list[str]:
    prose = prose_of(page)
    links = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'\bsrc="([^"]+)"', prose)
    return [link for link in links if not re.match(r"[a-z]+:", link)]


def commands_in(text: str) -> list[list[str]]:
    """Every line of shell code, and every piece of inline code, that starts with `bertsmith`; as words."""
    shell = [line for kind, block in FENCE.findall(text) if kind == "bash" for line in block.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    lines = [line.strip().removeprefix(".venv/bin/") for line in shell + inline]
    return [line.partition(" #")[0].split()[1:] for line in lines if re.match(r"bertsmith [a-z]", line)]


@functools.cache
def command_names() -> list[str]:
    """Every command, those of groups with the group's name before them."""
    from bertsmith.cli import all_commands

    found = []
    for name, command in get_command(all_commands()).commands.items():
        found += [f"{name} {one}" for one in getattr(command, "commands", {})] or [name]
    return found


def what_is_wrong(words: list[str]) -> str | None:
    """Walks down the command groups, and looks the options up."""
    from bertsmith.cli import all_commands

    command = get_command(all_commands())
    for word in words:
        if not hasattr(command, "commands"):
            break
        if word not in command.commands:
            return f"there is no command {word!r}"
        command = command.commands[word]
    parameters = command.get_params(typer.Context(command))
    known = {"--debug", *(name for parameter in parameters for name in parameter.opts + parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    return f"there is no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_relative_link_leads_somewhere(page):
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


# the changelog tells of commands as they were
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=named)
def test_every_command_that_is_written_exists(page):
    for words in commands_in(page.read_text(encoding="utf-8")):
        assert not what_is_wrong(words), f"bertsmith {' '.join(words)}: {what_is_wrong(words)}"


def test_the_two_readmes_name_the_same_commands_and_pages():
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"

    def commands(page: Path) -> set[str]:
        return {words[0] for words in commands_in(page.read_text(encoding="utf-8"))}

    def pages(page: Path) -> set[str]:
        return {
            link.replace(".zh-CN", "").replace("docs/zh/", "docs/en/").replace(".zh.svg", ".en.svg")
            for link in links_of(page)
        }

    assert commands(english) == commands(chinese)
    assert pages(english) == pages(chinese)


# one Chinese term for one thing; what must not be written → what is written instead
OTHER_TERMS = {
    "验证集": "开发集", "留出损失": "留出集损失", "验证损失": "留出集损失", "附加包": "可选依赖",
    "特殊符号": "特殊词元", "遮盖": "掩码", "整词": "全词掩码", "原始代码": "官方代码", "汇聚层": "池化层",
    "最小对比": "最小对立对", "最小对（": "最小对立对", "最小对*": "最小对立对", "句序预测": "句子顺序预测",
    "补齐": "填充", "闪卡": "记忆卡片", "片段嵌入": "段嵌入", "您": "你",
    "et al.": "等，2019", "以一行话结束": "报一行错误后退出", "检出目录": "克隆下来的仓库目录", "看清内部": "模型剖析",
    "掩码准确率": "掩码预测准确率", "掩码预测正确": "掩码预测准确率",
}  # fmt: skip


@pytest.mark.parametrize("page", [ROOT / "README.zh-CN.md", *SITE["zh"]], ids=named)
def test_a_chinese_page_has_one_term_for_one_thing(page):
    text = page.read_text(encoding="utf-8")
    found = {f"{term}: write {instead}" for term, instead in OTHER_TERMS.items() if term in text}
    assert not found


# what must not be written → plain words for it
OTHER_WORDS = {
    r"\b(?:goes|go) on (?:there|where|with|exactly)\b": "resumes",
    r"\b(?:run|fit|training|command) goes on\b": "resumes, or continues",
    r"\bgo on training\b": "continue training",
    r"\b(?:told|tells)\b.{0,25}\bright\b": "predicted correctly",
    r"\bloss of two minutes\b": "the loss that an expert's loop reaches in two minutes",
    r"\bmore than a coin\b": "it beats a coin toss",
    r"\bdashed line means\b": "below the dashed line the model uses context",
    r"\bpromises too much\b": "is too optimistic",
    r"\b[Ll]ikewise\b": "the same, said again",
    r"\b[Ss]ee there\b": "the name of the section",
}


def public_docstrings() -> dict[str, str]:
    """Every docstring that the reference may show: of modules, and of what has no underscore before its name."""
    found = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                name = getattr(node, "name", "")
                if not name.startswith("_"):
                    found[f"{named(path)}: {name}"] = ast.get_docstring(node) or ""
    return found


def test_english_has_plain_words():
    lessons = sorted((ROOT / "src/bertsmith_school/learn/parts").glob("*.en.*"))
    assert lessons
    texts = {named(page): page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *SITE["en"], *lessons)}
    for where, text in (texts | public_docstrings()).items():
        found = [f"{term}: write {instead}" for term, instead in OTHER_WORDS.items() if re.search(term, text)]
        assert not found, where


def test_what_an_extra_installs_is_written_in_one_way():
    """From the package; or, where a developer changes it, from the clone with the versions of the tests."""
    texts = [path.read_text(encoding="utf-8") for path in [*PAGES, *SOURCES]]
    written = {one for text in texts for one in re.findall(r"pip install [^`\n]*?\[[a-z,]+\]\S?", text)}
    assert len(written) > 10
    spelling = r"pip install (?:'bertsmith\[[a-z,]+\]'|-c constraints\.txt -e '\.\[[a-z,]+\]')"
    assert not [one for one in written if not re.fullmatch(spelling, one)]


def names_of_pages(language: str) -> list[str]:
    return [page.relative_to(ROOT / "docs" / language).as_posix() for page in SITE[language]]


def test_both_languages_have_the_pages_of_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    navigation = sorted(re.findall(r"- ([\w/.-]+\.md)$", settings, re.MULTILINE))
    assert names_of_pages("en") == names_of_pages("zh") == navigation


@pytest.mark.parametrize("page", SITE["en"], ids=named)
def test_both_languages_name_the_same_commands_and_options(page):
    def told(one: Path) -> set[str]:
        text = COMMENT.sub("", one.read_text(encoding="utf-8"))
        return {word for words in commands_in(text) for word in words[:1] + [w for w in words if w.startswith("--")]}

    assert told(page) == told(ROOT / "docs/zh" / page.relative_to(ROOT / "docs/en"))


def test_every_public_name_is_in_the_reference():
    """A page of the reference shows a module whole, by its `__all__`."""
    import bertsmith

    for language in SITE:
        text = "".join(page.read_text(encoding="utf-8") for page in SITE[language] if page.parent.name == "api")
        shown = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
        public = {
            f"bertsmith.{path.parent.name}"
            for path in (ROOT / "src/bertsmith").glob("*/__init__.py")
            if "\n__all__ = [" in path.read_text(encoding="utf-8")
        }
        assert public <= shown
        assert {bertsmith._HOMES[name] for name in bertsmith.__all__} <= shown


def test_the_size_table_of_the_guides_is_what_the_command_prints(capsys):

    rows = [line.split() for line in typed(capsys, "plan", "--family", "bert", "--no-measure").splitlines()]
    printed = {row[0]: row[1:] for row in rows if len(row) == 12}
    for language in SITE:
        page = ROOT / "docs" / language / "explanation/model.md"
        shown = [line.split() for line in page.read_text(encoding="utf-8").splitlines()]
        table = {row[0]: row[1:] for row in shown if row and row[0] in printed and len(row) == 12}
        assert table
        # the last column is what a step keeps in the machine's own precision
        assert {name: row[:-1] for name, row in table.items()} == {name: row[:-1] for name, row in printed.items()}


CODE_CELL = re.compile(r"\[`(\w+)`\]\(((?:\.\./)+src/[\w/]+\.py)\)|`([^`]+)`")


@functools.cache
def classes_of(path: Path) -> dict[str, str]:
    """The source of every class of a file, by name."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    return {one.name: ast.get_source_segment(source, one) or "" for one in tree.body if isinstance(one, ast.ClassDef)}


FAMILIES = [ROOT / "docs" / language / "reference/families.md" for language in SITE]


def rows_of(page: Path) -> list[str]:
    """The rows that quote code: a class of BERT's, or "one network", in the first cell."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith(("| [`", "| one network", "| 一个网络"))]


@pytest.mark.parametrize("page", FAMILIES, ids=named)
def test_every_line_that_the_page_of_families_quotes_stands_in_its_class(page):
    rows = rows_of(page)
    quoted = 0
    for row in rows:
        for cell in row.strip("|").split("|")[:2]:
            where, source = "", ""
            for name, file, code in CODE_CELL.findall(cell):
                if name:
                    where, source = name, classes_of((page.parent / file).resolve())[name]
                else:
                    assert code in source, (where, code)
                    quoted += 1
    assert quoted > 50


@pytest.mark.parametrize("page", FAMILIES, ids=named)
def test_every_class_of_a_family_is_on_the_page_of_families(page):
    text = page.read_text(encoding="utf-8")
    for path in (ROOT / "src/bertsmith/model/families").glob("*.py"):
        if path.stem in ("__init__", "bert"):
            continue
        for name in classes_of(path):
            link = f"[`{name}`](../../../src/bertsmith/model/families/{path.name})"
            assert name.startswith("_") or link in text, name


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_on_installing_lists_every_extra(language):
    page = (ROOT / "docs" / language / "how-to/install.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    for_developers = {"test", "check", "bench", "mutants", "release"}
    listed = re.findall(r"^\| `(\w+)`", page, re.MULTILINE)
    assert {*listed, "lab"} == extras - for_developers


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_on_reliability_names_the_files_that_are_mutated(language):
    page = (ROOT / "docs" / language / "explanation/reliability.md").read_text(encoding="utf-8")
    mutated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]["only_mutate"]
    (line,) = [line for line in page.splitlines() if line.startswith("`make mutants` ")]
    assert re.findall(r"`([\w/]+\.py)`", line) == [name.removeprefix("src/bertsmith/") for name in mutated]
