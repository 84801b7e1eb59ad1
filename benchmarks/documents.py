"""Measures reading documents: MB/s of HTML and Markdown, pages a second of PDF and Word, on one core.

Ours is the whole work of the process that reads a document for `index` and `corpus`, with its answer written and read
as JSON; it is done in this process, so that its processor time can be counted. The peer is the library alone, which
gives text without headings, places or code apart, and takes menus for text. All texts are made here: stories between
headings, lists, tables and menus.

    python benchmarks/documents.py
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bertsmith.data.reading.documents import _read
from bertsmith.tinyworld import draw_stories
from measured import CLOCKS, add_options, results_of
from side_by_side import EXPERT, OURS, in_turn, rounds_of
from tables import print_table


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--pages", type=int, default=200, help="of the PDF; the other files hold as much text")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if options.quick:
        options.pages, options.rounds = 5, 1
    results = results_of("documents", options)
    rows = [
        results.get({"name": name, "pages": options.pages}, partial(speed, kind, options))
        for name, kind in (("HTML", ".html"), ("PDF", ".pdf"), ("Word", ".docx"), ("Markdown", ".md"))
    ]
    print_table(rows)


def speed(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """How fast a kind of documents is read, and by its library alone."""
    make, alone, library = _KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"document{kind}")
        path.write_bytes(make(options.pages))

        def ours() -> dict[str, Any]:
            answer: dict[str, Any] = json.loads(json.dumps(_read(str(path), kind, "auto")))
            return answer

        contenders = {OURS: ours, EXPERT: lambda: alone(path)}
        times = in_turn(contenders, rounds=options.rounds, clock=CLOCKS[options.clock])
        characters = sum(len(text) for text, *_ in ours()["blocks"])
        paged = kind in (".pdf", ".docx")
        size = options.pages if paged else path.stat().st_size / 1e6
    rates = {name: [size / seconds for seconds in taken] for name, taken in times.items()}
    peers = {EXPERT: f"{library} {version(library)} alone"}
    return rounds_of(rates, peers=peers, unit="pages/s" if paged else "MB/s", figures={"characters": characters})


def stories(pages: int) -> Iterator[list[str]]:
    """Yields the paragraphs of each page, about 2,500 characters."""
    texts = (story.text for story in draw_stories(0, pages * 12))
    for _ in range(pages):
        page: list[str] = []
        while sum(map(len, page)) < 2500:
            page.append(next(texts))
        yield page


def html(pages: int) -> bytes:
    """One page of the web, with the weight of markup that such pages have."""
    menu = "".join(f'<li class="menu-item"><a href="/topic/{n}?from=menu">Topic {n}</a></li>' for n in range(40))
    parts = [f"<!doctype html><title>Stories</title><nav><ul>{menu}</ul></nav>"]
    for number, page in enumerate(stories(pages)):
        parts.append(f'<section id="part-{number}" class="part"><h2><a href="#part-{number}">Part {number}</a></h2>')
        for text in page:
            words = escape(text).replace(" the ", ' <a class="link" href="/the">the</a> ')
            parts.append(f'<div class="paragraph"><p style="margin:0">{words}</p></div>')
        parts.append("<table><tr><td>a</td><td>b</td></tr></table><ul><li>one</li><li>two</li></ul></section>")
    return "\n".join(parts).encode()


def pdf(pages: int) -> bytes:
    """A PDF of flowing text."""
    import fpdf

    made = fpdf.FPDF()
    made.set_font("Helvetica", size=10)
    made.set_auto_page_break(False)
    for number, page in enumerate(stories(pages)):
        made.add_page()
        made.start_section(f"Part {number}")
        made.multi_cell(0, 4, "\n\n".join(page))
    return bytes(made.output())


def word(pages: int) -> bytes:
    """A Word file of headings and paragraphs."""
    import docx

    made = docx.Document()
    for number, page in enumerate(stories(pages)):
        made.add_heading(f"Part {number}", 1)
        for text in page:
            made.add_paragraph(text)
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


def markdown(pages: int) -> bytes:
    """A Markdown file with emphasis, links and code."""
    parts = []
    for number, page in enumerate(stories(pages)):
        parts.append(f"## Part {number}\n")
        parts += [text.replace(" the ", " **the** ") + " [more](https://example.org/more)\n" for text in page]
        parts.append("```python\nprint(1)\n```\n")
    return "\n".join(parts).encode()


def selectolax_alone(path: Path) -> str:
    """The text of a page."""
    from selectolax.lexbor import LexborHTMLParser

    body = LexborHTMLParser(path.read_bytes()).body
    return body.text() if body else ""


def pypdfium2_alone(path: Path) -> list[str]:
    """The text of every page."""
    import pypdfium2

    return [page.get_textpage().get_text_bounded() for page in pypdfium2.PdfDocument(path)]


def docx_alone(path: Path) -> list[tuple[str, str]]:
    """Every paragraph with the name of its style, as the documentation reads them."""
    import docx

    return [(paragraph.style.name, paragraph.text) for paragraph in docx.Document(str(path)).paragraphs]


def markdown_alone(path: Path) -> int:
    """The tokens of a file."""
    from markdown_it import MarkdownIt

    return len(MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8")))


_KINDS: dict[str, tuple[Callable[[int], bytes], Callable[[Path], object], str]] = {
    ".html": (html, selectolax_alone, "selectolax"),
    ".pdf": (pdf, pypdfium2_alone, "pypdfium2"),
    ".docx": (word, docx_alone, "python-docx"),
    ".md": (markdown, markdown_alone, "markdown-it-py"),
}


if __name__ == "__main__":
    main()
