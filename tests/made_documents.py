"""Small documents of every kind, as bytes, for tests that read them."""

import io
import zipfile
from email.message import EmailMessage

import docx
import fpdf
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls


def pdf(*pages, bookmarks=(), password=None):
    """A PDF with a text on each page; `bookmarks` are (page from 0, level from 0, title)."""
    made = fpdf.FPDF()
    made.set_font("Helvetica", size=11)
    for number, page in enumerate(pages):
        made.add_page()
        for at, level, title in bookmarks:
            if at == number:
                made.start_section(title, level)
        made.multi_cell(0, 5, page)
    if password:
        made.set_encryption("owner", user_password=password)
    return bytes(made.output())


def word(*parts):
    """A Word file: a str is a paragraph or its XML, `(level, title)` a heading, a list of rows a table."""
    made = docx.Document()
    for part in parts:
        if isinstance(part, str) and part.startswith("<w:"):
            # the first tag says what w: stands for
            made.element.body.insert(-1, parse_xml(part.replace(">", f" {nsdecls('w')}>", 1)))
        elif isinstance(part, str):
            made.add_paragraph(part)
        elif isinstance(part, tuple):
            made.add_heading(part[1], part[0])
        else:
            table = made.add_table(0, len(part[0]))
            for row in part:
                for cell, text in zip(table.add_row().cells, row, strict=True):
                    cell.text = text
    stream = io.BytesIO()
    made.save(stream)
    return stream.getvalue()


def epub(*chapters, encryption=""):
    """An EPUB of chapters of XHTML, in reverse order in the archive."""
    items = "".join(f'<item id="c{n}" href="text/c%20{n}.xhtml"/>' for n in range(len(chapters)))
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    package = (
        f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{spine}</spine></package>'
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    )
    files = {"META-INF/container.xml": container, "OEBPS/book.opf": package}
    files |= {f"OEBPS/text/c {n}.xhtml": chapters[n] for n in reversed(range(len(chapters)))}
    return zipped(files | ({"META-INF/encryption.xml": encryption} if encryption else {}))


def zipped(files):
    """A zip file of texts by their names."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return stream.getvalue()


def mail(text, html=None, **headers):
    """An e-mail with a plain part, an HTML part, or both, and an attachment."""
    made = EmailMessage()
    for name, value in headers.items():
        made[name] = value
    if text is not None:
        made.set_content(text, charset="iso-8859-1")
    if html is not None:
        (made.add_alternative if text is not None else made.set_content)(html, subtype="html")
    made.add_attachment(b"secret attachment", maintype="text", subtype="csv", filename="a.csv")
    return made.as_bytes()
