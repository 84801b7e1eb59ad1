"""What MkDocs is taught beyond its plugins: links to the code, pages made from the code, names of sections in Chinese.

- A page may link to any file of the project as GitHub reads it (`../../../src/bertsmith/model/block.py`). The site has
  a page for every source file and a copy of every picture and report that is linked, so it needs no repository. A
  linked Markdown file, such as the notes of measurements, becomes a page as it reads, with its own links.
- Pictures that are made from measurements are drawn when the site is built (`pictures.py`).
- Every command has a page, `reference/commands/bertsmith-NAME.md`; `<!-- commands -->` is replaced by the list of them,
  `<!-- names -->` by the public names, and `<!-- changelog -->` by the changelog: none can be out of date. GitHub has
  the overview `reference/commands.md` alone, so pages link to `commands.md#NAME`, which leads to the page of NAME.
- Each language is a site of its own, with its own index to search; `extra.sections` translates the navigation.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(ROOT / "src"))

from commands import command_list, command_navigation, command_page, commands, page_of  # noqa: E402
from names import names_table  # noqa: E402
from pictures import redrawn  # noqa: E402

COPIED = {".png", ".svg", ".gif", ".html", ".json"}
LANGUAGE_OF = {".py": "python", ".toml": "toml", ".md": "markdown", ".json": "json", ".css": "css", ".sh": "bash"}
_CODE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)[^\n]*\n.*?^(?P=indent)(?P=fence) *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


COMMANDS = "reference/commands.md"
"""The overview of the commands."""


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Changes what stands outside fenced blocks of code."""
    parts, end = [], 0
    for block in _CODE.finditer(text):
        parts += [change(text[end : block.start()]), block.group()]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def linked_file(page: Path, path: str) -> Path | None:
    """Returns the file of the project that a link leads to; none where it leads into the web."""
    if re.match(r"[a-z]+:", path):
        return None
    target = Path(os.path.normpath(page.parent / path))
    return target if target.is_relative_to(ROOT) else None


def place_in_site(target: Path, pages: Path) -> str | None:
    """Returns where a file from outside the pages of a language stands in the site; none for a page."""
    if target.is_relative_to(pages) or not target.is_file():
        return None
    name = target.relative_to(ROOT).as_posix()
    return f"assets/{name}" if target.suffix in COPIED else f"source/{name}.md"


def source_page(target: Path) -> str:
    """Returns a page that shows a file: Markdown as it reads, all else as code."""
    name = target.relative_to(ROOT).as_posix()
    if target.suffix == ".md":
        return f"---\nsearch:\n  exclude: true\n---\n{target.read_text(encoding='utf-8')}"
    kind = LANGUAGE_OF.get(target.suffix, "text")
    # 围栏比文件里任何一行都长，文件自己的 ``` 就不会提前结束它
    fence = "`" * 12
    text = target.read_text(encoding="utf-8")
    return f"---\nsearch:\n  exclude: true\nhide: [toc]\n---\n# {name}\n\n{fence}{kind}\n{text}\n{fence}\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages of the commands into the navigation, below their overview."""
    (reference,) = (item["Reference"] for item in config.nav or () if "Reference" in item)
    reference.insert(reference.index(COMMANDS) + 1, {"Each command": command_navigation()})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pictures of the theme, a page for each command, and all files outside the pages that a page links to."""
    pages = Path(config.docs_dir)
    for one in commands():
        path = f"reference/{page_of(one.anchor)}"
        files.append(File.generated(config, path, content=command_page(one, pages.name)))
    for picture in (ROOT / "docs/site/assets").iterdir():
        files.append(File.generated(config, f"assets/{picture.name}", abs_src_path=str(picture)))
    found: set[Path] = set()
    unread = list(pages.rglob("*.md"))
    while unread:
        page = unread.pop()
        for link in _LINK.finditer(_CODE.sub("", page.read_text(encoding="utf-8"))):
            target = linked_file(page, link["path"])
            if target is None or target in found or not place_in_site(target, pages):
                continue
            found.add(target)
            # 另一种语言的页属于另一个站点，不再跟进
            if target.suffix == ".md" and not target.is_relative_to(ROOT / "docs" / other_language(pages)):
                unread.append(target)
    for target in sorted(found):
        place = place_in_site(target, pages) or ""
        if target.suffix in COPIED:
            # 图按现在的数据行重画：网站上的图不会比表旧
            picture = redrawn(target) if target.is_relative_to(ROOT / "docs") else None
            made = {"abs_src_path": str(target)} if picture is None else {"content": picture}
            files.append(File.generated(config, place, **made))
        elif not target.is_relative_to(ROOT / "docs" / other_language(pages)):
            hidden = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, place, content=source_page(target), inclusion=hidden))
    return files


def other_language(pages: Path) -> str:
    """Returns `zh` for the English pages, `en` for the Chinese."""
    return "zh" if pages.name == "en" else "en"


def on_nav(nav: Navigation, *, config: MkDocsConfig, **_: Any) -> Navigation:
    """Translates the names of the sections."""

    def translate(items: list[Any]) -> None:
        for item in items:
            if isinstance(item, Section):
                item.title = config.extra["sections"].get(item.title, item.title)
                translate(item.children)

    translate(nav.items)
    return nav


def with_names(module: re.Match[str]) -> str:
    """Adds to the reference of a module its public names, which a reader of the source alone may not find."""
    # 有的包用到名字时才导入：`__all__` 是算出来的，只读源码的 griffe 不知道
    names = getattr(importlib.import_module(module[1]), "__all__", None)
    members = f"    options:\n      members: [{', '.join(names)}]\n" if names else ""
    return f"::: {module[1]}\n{members}\n"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Fills in what is made from the code, and turns links to files of the project into links of the site."""
    pages = Path(config.docs_dir)
    if page.file.src_uri.startswith("source/"):
        here = ROOT / page.file.src_uri.removeprefix("source/").removesuffix(".md")
        if here.suffix != ".md":
            return markdown
    elif page.file.abs_src_path is not None:
        here = Path(page.file.abs_src_path)
    else:
        return markdown
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", command_list(pages.name, config.extra["sections"]))
    if "<!-- names -->" in markdown:
        markdown = markdown.replace("<!-- names -->", names_table(pages.name))
    if page.file.src_uri.startswith("reference/api/"):
        markdown = re.sub(r"^::: ([\w.]+)\n(?! )", with_names, markdown + "\n", flags=re.MULTILINE)
    if "<!-- changelog -->" in markdown:
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n")[2]
        # 更新日志的链接从项目根算起
        markdown = markdown.replace("<!-- changelog -->", re.sub(r"\]\((?![a-z]+:|#)", "](../../../", text))

    def relinked(link: re.Match[str]) -> str:
        target = linked_file(here, link["path"])
        if target is None:
            return link.group()
        translated = ROOT / "docs" / other_language(pages)
        if target.is_relative_to(translated):
            # 另一种语言是另一个站点：MkDocs 不认识那里的页，所以写成 HTML 链接
            url = target.relative_to(translated).with_suffix("").as_posix().removesuffix("index")
            up = "../" * (page.url.count("/") + 1)
            text = link["before"][1:-2]
            return f'<a href="{up}{translated.name}/{url.rstrip("/")}/{link["anchor"] or ""}">{text}</a>'
        place = place_in_site(target, pages)
        if place is not None:
            path = os.path.relpath(place, Path(page.file.src_uri).parent)
            # 只有 Markdown 的页有标题可跳；代码页没有
            anchor = link["anchor"] or "" if target.suffix == ".md" else ""
            return f"{link['before']}{path}{anchor})"
        if not target.is_relative_to(pages):
            return link["before"].lstrip("!")[1:-2]
        anchor = link["anchor"] or ""
        if anchor and target == pages / COMMANDS:
            target, anchor = target.parent / page_of(anchor[1:]), ""
        path = os.path.relpath(target.relative_to(pages), Path(page.file.src_uri).parent)
        return f"{link['before']}{path}{anchor})"

    return outside_code(markdown, lambda text: _LINK.sub(relinked, text))


def on_post_page(output: str, **_: Any) -> str:
    """Takes out the links by which the theme would look for other languages in a map of the site.

    The map has full addresses alone, and the address of this site is not known: it is served anywhere. The switch of
    languages is a plain link to the same page.
    """
    return re.sub(r'<link rel="alternate"[^>]*>', "", output)
