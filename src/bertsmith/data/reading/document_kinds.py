"""What stands in a document of each kind: HTML, PDF, Word, EPUB, e-mail and Markdown, as blocks of clean text.

These functions run in a process of their own, which `documents` bounds in time and memory: what they are given may be
broken or built to do harm. Whatever speaks against a document is an `InputError` of a few words.

- a heading knows its level, a block of Markdown its line and a block of a PDF its page; the rest of the markup goes
- code, and the bookmarks of a PDF, are marked as aside: they can be searched, and are no running text to learn from
- of a web page the part called `main` is read, where there is one, and never its menus, footers and forms
"""

from __future__ import annotations

import codecs
import contextlib
import io
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from bertsmith.data.reading.sources import detect_encoding, read_chunks
from bertsmith.errors import InputError

if TYPE_CHECKING:
    from zipfile import ZipFile

Metadata = dict[str, str | tuple[str, ...]]
"""Field of a document's front matter or head → its text, or its texts where it is a list; `author.name` for nested."""
Missing = Mapping[str, int]
"""What is not read of a document, such as `missing chapter(s)` → how many of them."""

MOST_BYTES = 1 << 28
"""Of a file, unpacked if it is gzip or zstd."""
_MOST_UNPACKED = 1 << 30  # bytes of all members of a zip file
_AGAIN = "export it again, or its text as .txt"


class Block(NamedTuple):
    """A stretch of a document; `aside` if it is no running text: code, or a bookmark of a PDF.

    A heading has a `level` from 1, others 0; `place` is the line or page, from 1, or 0 where the kind has neither.
    """

    text: str
    level: int = 0
    place: int = 0
    aside: bool = False


Blocks = Iterator[Block]


def read_kind(path: Path, ending: str, encoding: str = "auto") -> tuple[list[Block], Metadata, Missing]:
    """Reads a document of the kind that `ending` names, such as `.pdf`; an `InputError` says briefly why it cannot."""
    content, size = [], 0
    for chunk in read_chunks(path):
        content.append(chunk)
        size += len(chunk)
        if size > MOST_BYTES:
            raise InputError(f"larger than {MOST_BYTES >> 20} MB; split it")
    metadata: Metadata = {}
    missing = Counter[str]()
    if ending in (".md", ".markdown"):
        found: Iterable[Block] = _markdown(_decoded(b"".join(content), path, encoding), metadata)
    elif ending == ".eml":
        found = _mail(b"".join(content), metadata)
    elif ending in _IN_PARTS:
        found = _IN_PARTS[ending](b"".join(content), missing)
    else:
        found = _READERS[ending](b"".join(content))
    blocks = [Block(_CONTROL.sub("", block.text).strip("\n"), *block[1:]) for block in found]
    return blocks, metadata, +missing


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ufffe\uffff\ud800-\udfff]")


def _decoded(content: bytes, path: Path, encoding: str) -> str:
    codec = detect_encoding(path) if encoding == "auto" else encoding
    try:
        return content.decode(codec).removeprefix("\ufeff")
    except UnicodeError:
        raise InputError(f"is not {codec}; name its encoding with --encoding") from None


# --- Markdown -------------------------------------------------------------------------------------------------------

_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_DEEPEST, _MOST_FIELDS = 8, 1000
_PAIR = re.compile(r"^([A-Za-z_][\w-]*)[ \t]*:[ \t]*(\S.*?)[ \t]*\r?$", re.MULTILINE)
_TAG = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>", re.DOTALL)


def _markdown(text: str, metadata: Metadata) -> Blocks:
    """Reads CommonMark with tables; YAML between two lines of `---` at its beginning becomes metadata."""
    from markdown_it import MarkdownIt

    before = 0
    matter = _FRONT_MATTER.match(text)
    fields = _front_matter(matter[1]) if matter else {}
    # 没有字段的不是元数据：一条分隔线后面的正文，不能丢
    if matter and (fields or not matter[1].strip()):
        metadata |= fields
        before, text = text.count("\n", 0, matter.end()), text[matter.end() :]
    row: list[str] | None = None
    level = 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        place = before + token.map[0] + 1 if token.map else 0
        if token.type == "heading_open":
            level = int(token.tag[1])
        elif token.type == "heading_close":
            level = 0
        elif token.type == "tr_open":
            row, row_place = [], place
        elif token.type == "tr_close" and row is not None:
            yield Block(" | ".join(filter(None, row)), 0, row_place)
            row = None
        elif token.type == "inline":
            written = "".join(map(_inline, token.children or ()))
            if row is not None:
                row.append(written)
            elif written.strip() or level:
                yield Block(" ".join(written.split()) if level else written, level, place)
        elif token.type in ("fence", "code_block"):
            yield Block(token.content, 0, place + (token.type == "fence"), aside=True)
        elif token.type == "html_block" and (written := _TAG.sub("", token.content)).strip():
            yield Block(written.strip(), 0, place)


def _inline(token: Any) -> str:
    """Returns what a reader sees of a part of a line: no marks, link targets, badges or tags."""
    if token.type in ("softbreak", "hardbreak") or (token.type == "html_inline" and token.content[:3].lower() == "<br"):
        return "\n"
    return token.content if token.type in ("text", "code_inline", "text_special") else ""


def _front_matter(matter: str) -> Metadata:
    """Returns the fields of front matter; where it is no YAML after all, those on lines of their own."""
    import yaml

    try:
        # BaseLoader 不认类型：日期、编号和 yes 都照原文是文字
        fields = yaml.load(matter, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError):
        fields = {key: value.strip("\"'") for key, value in _PAIR.findall(matter)}
    return dict(islice(_flat(fields, "", 0), _MOST_FIELDS)) if isinstance(fields, dict) else {}


def _flat(fields: dict[Any, Any], above: str, depth: int) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    for key, value in fields.items():
        name = unicodedata.normalize("NFC", f"{above}{key}")
        # 别名可以把几行写成天文数字的层数：层数和项数都有上限
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _flat(value, f"{name}.", depth + 1)
        elif isinstance(value, list):
            yield name, tuple(one for one in value if isinstance(one, str))
        elif isinstance(value, str):
            yield name, value


# --- HTML -----------------------------------------------------------------------------------------------------------

# 能当作 ASCII 读出来的声明不可能是 UTF-16：说是的，不算
_CHARSET = re.compile(
    rb"""<(?:meta[^>]+charset|\?xml[^>]+encoding)\s*=\s*["']?(?!utf.?(?:16|32))([\w.:-]+)""", re.IGNORECASE
)
# 网页和邮件里的这两个名字，按规范都是更大的那一个
_ALIASES = {"iso-8859-1": "cp1252", "gb2312": "gb18030"}
_NOT_READ = (
    "script, style, noscript, template, svg, math annotation, nav, footer, aside, button, select, input, textarea,"
    " iframe, object, canvas, dialog, [hidden], [aria-hidden=true], [role=navigation]"
)
_BLOCKS = (
    "address, article, blockquote, dd, details, div, dl, dt, fieldset, figcaption, figure, form, header, hr, li, main,"
    " ol, p, section, summary, table, tr, ul, caption"
)
# 这些字符先从原文里去掉，再当作标记插进去：文字一次由 C 取出，只有块元素经过 Python
_CONTROL_BYTES = bytes((*range(0x09), *range(0x0E, 0x20)))
_END, _LINE, _CELL = "\x05", "\x04", "\x03"
_HEADING = re.compile("\x01[1-6]")
_MARKS_OF_TAGS = (
    *((f"h{level}", f"{_END}\x01{level}", _END) for level in range(1, 7)),
    ("pre", f"{_END}\x02", _END),
    (_BLOCKS, _END, _END),
    ("br", "", _LINE),
    ("td, th", "", _CELL),
)
"""Tags, what is put before each of them, and behind."""


def _html(content: bytes | str, *, titled: bool = True) -> Blocks:
    """Reads a web page: its text, block by block; a page without `<h1>` stands under its title, where it has one."""
    from selectolax.lexbor import LexborHTMLParser

    text = content if isinstance(content, str) else _html_text(content)
    # 解码之后才去控制字符：ISO-2022-JP 靠 ESC 换字符集；在字节上去掉，比在文字上快得多
    tree = LexborHTMLParser(text.encode("utf-8", "replace").translate(None, _CONTROL_BYTES))
    named = tree.css_first("title")
    title = " ".join(named.text().split()) if named and titled else ""
    if tree.css_first("frameset"):
        raise InputError("frames only; their pages are files of their own")
    for node in tree.css(_NOT_READ):
        node.decompose()
    for tags, before, after in _MARKS_OF_TAGS:
        for node in tree.css(tags):
            if before:
                node.insert_before(before)
            node.insert_after(after)
    main = tree.css("main, [role=main]")
    # 有 main 就只读它；空壳的 main（内容由脚本填）退回整页
    root = main[0] if len(main) == 1 and main[0].text().strip(f" \t\n{_END}") else tree.body
    blocks = list(_marked(root.text() if root else ""))
    if title and not any(block.level == 1 for block in blocks):
        yield Block(title, 1)
    yield from blocks


def _marked(text: str) -> Blocks:
    for stretch in text.split(_END):
        if stretch.startswith("\x02"):
            if stretch[1:].strip():
                yield Block(stretch[1:].replace(_LINE, "\n"), aside=True)
            continue
        if not stretch or stretch.isspace():
            continue
        level = int(stretch[1]) if _HEADING.match(stretch) else 0
        lines = (" ".join(line.split()) for line in stretch[2 * bool(level) :].split(_LINE))
        # 行末的单元格标记多一个：先去掉空的
        cells = (" | ".join(filter(None, map(str.strip, line.split(_CELL)))) for line in lines)
        if written := ("\n", " ")[bool(level)].join(filter(None, cells)):
            yield Block(written, level)


def _html_text(content: bytes) -> str:
    """Decodes a page: by its byte order mark, else as it says itself, else as UTF-8."""
    marks = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
    marked = [codec for mark, codec in marks.items() if content.startswith(mark)]
    declared = _declared(content)
    # 声明错了的，再试 UTF-8
    text = _decoded_by((*marked, *declared, "utf-8"), content)
    if text is None:
        said = (
            f"is not {declared[0]}, as it says, nor UTF-8"
            if declared
            else "does not say its encoding, and is not UTF-8"
        )
        raise InputError(f"{said}; save it as UTF-8")
    return text


def _declared(content: bytes) -> list[str]:
    """Returns the encoding that a page says it is in, if it does."""
    said = _CHARSET.search(content, 0, 4096)
    return [said[1].decode().lower()] if said else []


def _decoded_by(names: Sequence[str], content: bytes) -> str | None:
    """Decodes by the first of these encodings that fits the whole content."""
    for name in names:
        with contextlib.suppress(UnicodeError, LookupError):
            return content.decode(_ALIASES.get(name, name))
    return None


# --- PDF ------------------------------------------------------------------------------------------------------------


def _pdf(content: bytes, missing: Counter[str]) -> Blocks:
    """Reads the text of a PDF page by page, under its bookmarks, without the lines around most pages."""
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(content)
        texts = [_page_text(document, number) for number in range(len(document))]
        bookmarks: dict[int, list[tuple[int, str]]] = {}
        for mark in document.get_toc(max_depth=6):
            page = mark.get_dest() and mark.get_dest().get_index()
            if page is not None and (title := " ".join(mark.get_title().split())):
                bookmarks.setdefault(page, []).append((mark.level + 1, title))
    except pdfium.PdfiumError as error:
        is_locked = "assword" in str(error)
        raise InputError("protected by a password; save it without" if is_locked else f"damaged; {_AGAIN}") from None
    if not any(texts):
        raise InputError("no text: scanned? run OCR over it, such as ocrmypdf")
    missing.update({"damaged page(s)": texts.count(None), "page(s) without text, scanned?": texts.count("")})
    for number, page in enumerate(_without_running_lines(_rejoined([text or "" for text in texts]))):
        start = 0
        for level, title in bookmarks.get(number, ()):
            # 书签只说第几页：标题的文字在页中哪里，就从哪里分开
            found = re.compile(r"\s+".join(map(re.escape, title.split()))).search(page, start)
            if found and page[start : found.start()].strip():
                yield Block(page[start : found.start()], 0, number + 1)
            start = found.start() if found else start
            yield Block(title, level, number + 1, aside=True)
        if page[start:].strip():
            yield Block(page[start:], 0, number + 1)


def _page_text(document: Any, number: int) -> str | None:
    """Returns the text of a page; None for one that is damaged."""
    import pypdfium2 as pdfium

    try:
        page = document[number]
        text = page.get_textpage().get_text_bounded()
    except pdfium.PdfiumError:
        # 坏了一页，其余的照读
        return None
    page.close()
    return str(text).replace("\r\n", "\n").strip()


def _rejoined(pages: list[str]) -> list[str]:
    """Joins words that a line's end parts: with the hyphen where it is a compound's, as far as the text tells."""
    # pdfium 把行末的连字符写成 \x02，并去掉换行；是断词还是复合词，先看同一份文件里别处怎样写
    if not any("\x02" in page for page in pages):
        return pages
    words = {word.lower() for page in pages for word in re.findall(r"\w+(?:-\w+)*", page)}

    def whole(found: re.Match[str]) -> str:
        first, second = found.groups()
        joined, compound = first + second, f"{first}-{second}"
        is_compound = compound.lower() in words or (joined.lower() not in words and not second[0].islower())
        return compound if is_compound else joined

    return [re.sub(r"(\w+)\x02(\w+)", whole, page).replace("\x02", "") for page in pages]


def _without_running_lines(pages: list[str]) -> list[str]:
    """Drops the first and last lines that most pages share, but for the first of them, and the numbers of pages."""
    lines = [page.split("\n") for page in pages]
    # 只有一两行的页（幻灯片、表单）没有页眉页脚可言：删了就什么也不剩
    long = [number for number, page in enumerate(lines) if len(page) > 2]
    if len(long) < 4:
        return pages
    for end in (0, -1):
        shared = Counter(lines[number][end].strip() for number in long)
        counting = Counter(_counting(lines[number][end], number) for number in long)
        seen = set[str]()
        for number in long:
            line = lines[number][end].strip()
            repeats = shared[line] > len(long) / 2 and line in seen
            seen.add(line)
            mask = _counting(line, number)
            if repeats or (mask and counting[mask] > len(long) / 2):
                del lines[number][end]
    return ["\n".join(page) for page in lines]


def _counting(line: str, page: int) -> str:
    """Returns a short line with its number less that of the page: equal for all lines that number the pages."""
    line = line.strip()
    if len(line) > 30 or not (found := re.search("[0-9]{1,6}", line)):
        return ""
    return f"{line[: found.start()]}{int(found[0]) - page:+}{line[found.end() :]}"


# --- Word, EPUB -----------------------------------------------------------------------------------------------------


def _unzipped(content: bytes) -> ZipFile:
    # 每条命令都会导入这个文件：只有一种文档用得着的，用到时才导入
    import zipfile

    if content.startswith(b"\xd0\xcf\x11\xe0"):
        raise InputError("protected by a password, or of an old format; save it without, as .docx")
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        raise InputError(f"damaged; {_AGAIN}") from None
    check_unpacked(archive)
    return archive


def check_unpacked(archive: ZipFile) -> None:
    """Refuses a zip file that unpacks to too much."""
    # zip 炸弹：几 KB 可以展开成几 GB；zipfile 不会读出比声明更多的字节
    if sum(member.file_size for member in archive.infolist()) > _MOST_UNPACKED:
        raise InputError(f"unpacks to more than {_MOST_UNPACKED >> 20} MB; split it")


_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH, _TABLE, _WRITTEN = f"{_W}p", f"{_W}tbl", f"{_W}t"
_PARTS = {_PARAGRAPH, _TABLE, f"{_W}tr", f"{_W}tc"}
_AROUND_PARTS = {f"{_W}{name}" for name in ("sdt", "sdtContent", "customXml", "ins", "moveTo")}
_MARKS = {f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-"}
_NOT_WRITTEN = {f"{_W}{name}" for name in ("pPr", "rPr", "del", "moveFrom", "rt", "txbxContent")}


def _docx(content: bytes) -> Blocks:
    """Reads paragraphs and tables of a Word file in order, with all changes accepted; its heading styles count."""
    from docx import Document

    _unzipped(content)
    document = Document(io.BytesIO(content))
    # 逐段解析样式要慢二十倍：样式表只看一次
    styles = {style.style_id: style.name or "" for style in document.styles}
    titles = 0
    for part in _word_parts(document.element.body):
        if part.tag == _TABLE:
            yield from _word_rows(part)
        elif (text := _word_text(part)).strip():
            style = styles.get(part.style or "", "")
            named = re.fullmatch(r"Heading (\d)|(Title)", style)
            titles += style == "Title"
            # 文档标题在各级标题之上
            yield Block(text, int(named[1] or 0) + bool(titles) if named else 0)


def _word_parts(above: Any) -> Iterator[Any]:
    """Yields the paragraphs and tables of a body or cell, the rows of a table, or the cells of a row."""
    for part in above:
        if part.tag in _PARTS:
            yield part
        elif part.tag in _AROUND_PARTS:
            # python-docx 不看内容控件里面：里面的段落、行和单元格会不声不响地丢掉
            yield from _word_parts(part)


def _word_rows(table: Any) -> Blocks:
    """Yields every row as a line; a table in one of its cells follows, with rows of its own."""
    for row in _word_parts(table):
        # 合并的单元格在 XML 里只有一个：值相同的两格不是合并，都留下
        inside = [list(_word_parts(cell)) for cell in _word_parts(row)]
        texts = (" ".join(_word_text(part) for part in cell if part.tag == _PARAGRAPH) for cell in inside)
        yield Block(" | ".join(filter(None, (" ".join(text.split()) for text in texts))))
        for part in chain.from_iterable(inside):
            if part.tag == _TABLE:
                yield from _word_rows(part)


def _word_text(above: Any) -> str:
    """Returns the text of a paragraph, with insertions and content controls, without deletions and text boxes."""
    return "".join(
        part.text or "" if part.tag == _WRITTEN else _MARKS.get(part.tag) or _word_text(part)
        for part in above
        if part.tag not in _NOT_WRITTEN
    )


def _epub(content: bytes, missing: Counter[str]) -> Blocks:
    """Reads the chapters of an EPUB in the order of its spine, each as a web page."""
    from xml.etree import ElementTree
    from zipfile import BadZipFile

    archive = _unzipped(content)
    names = set(archive.namelist())
    try:
        container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        package = container.findall(".//{*}rootfile")[0].get("full-path", "")
        root = ElementTree.fromstring(archive.read(package))
        items = {item.get("id"): item.get("href", "") for item in root.findall(".//{*}item")}
        spine = [items.get(one.get("idref"), "") for one in root.findall(".//{*}itemref")]
    except (KeyError, IndexError, ElementTree.ParseError, BadZipFile) as error:
        raise InputError(f"damaged: no list of chapters; {_AGAIN}") from error
    guarded = archive.read("META-INF/encryption.xml") if "META-INF/encryption.xml" in names else b""
    for href in spine:
        chapter = posixpath.normpath(posixpath.join(posixpath.dirname(package), unquote(href)))
        if href and chapter.encode() in guarded:
            raise InputError("protected against copying; take a copy without protection")
        # 书照读，缺的章要说出来
        missing["missing chapter(s)"] += chapter not in names
        if chapter in names:
            yield from _html(archive.read(chapter))


# --- E-mail ---------------------------------------------------------------------------------------------------------


def _mail(content: bytes, metadata: Metadata) -> Blocks:
    """Reads the text of an e-mail under its subject: its plain part, or HTML where that is empty; no attachments."""
    import email
    import email.policy

    message = email.message_from_bytes(content, policy=email.policy.default)
    for field in ("from", "to", "date", "subject"):
        if value := " ".join(str(message.get(field, "")).split()):
            metadata[field] = value
    if "subject" in metadata:
        yield Block(str(metadata["subject"]), 1)
    for subtype in ("plain", "html"):
        part = message.get_body((subtype,))
        # 纯文本那一份可以是空的：正文就只在 HTML 里
        if part is not None and (blocks := list(_mail_body(part))):
            yield from blocks
            return


def _mail_body(part: Any) -> Blocks:
    """Reads a part of an e-mail, in the encoding that its head, or else its page, says; or else UTF-8 or Western."""
    content = part.get_payload(decode=True)
    is_page = part.get_content_subtype() == "html"
    said = part.get_content_charset()
    declared = [said] if said else _declared(content) * is_page
    # 一个字节也不替换：都不是，就说出来
    written = _decoded_by((*declared, "utf-8", "cp1252"), content)
    if written is None:
        raise InputError(f"is not {' or '.join((*declared, 'UTF-8'))}; save it as UTF-8")
    if is_page:
        for block in _html(written, titled=False):
            yield block._replace(level=block.level + 1) if block.level else block
        return
    yield from (Block(part) for part in re.split(r"\n[ \t]*\n", written.replace("\r\n", "\n")) if part.strip())


_READERS: dict[str, Callable[[bytes], Iterable[Block]]] = {
    ".html": _html,
    ".htm": _html,
    ".xhtml": _html,
    ".docx": _docx,
}
_IN_PARTS: dict[str, Callable[[bytes, Counter[str]], Iterable[Block]]] = {".pdf": _pdf, ".epub": _epub}
"""Readers of what can be read in part; they count what is missing."""
