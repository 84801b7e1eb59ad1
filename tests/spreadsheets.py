"""Spreadsheets as small as they can be: what Excel and LibreOffice write, without their styles."""

import struct
import zipfile
from html import escape

_OPEN = "urn:oasis:names:tc:opendocument:xmlns"
_OFFICE = "http://schemas.openxmlformats.org"


def write_spreadsheet(path, sheets, *, protected=False, hidden=()):
    """Writes a spreadsheet, by its ending, of sheets, each a list of rows of text, numbers, booleans and None.

    The cells of an .xls and an .xlsb may be text only.
    """
    if path.suffix == ".xls":
        path.write_bytes(_compound_file("Workbook", _xls(sheets, protected)))
        return path
    if protected and path.suffix != ".ods":
        path.write_bytes(_compound_file("EncryptedPackage", b""))
        return path
    write = {".ods": _write_ods, ".xlsb": _write_xlsb}.get(path.suffix, _write_xlsx)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        write(packed, sheets, protected, hidden)
    return path


def _write_xlsx(packed, sheets, _protected, hidden):
    relations = f'<Relationships xmlns="{_OFFICE}/package/2006/relationships">'
    kinds = f"{_OFFICE}/officeDocument/2006/relationships"
    packed.writestr("[Content_Types].xml", f'<Types xmlns="{_OFFICE}/package/2006/content-types"/>')
    packed.writestr(
        "_rels/.rels",
        f'{relations}<Relationship Id="r" Type="{kinds}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    )
    listed, links = "", ""
    for number, (name, rows) in enumerate(sheets.items(), 1):
        state = ' state="hidden"' if name in hidden else ""
        listed += f'<sheet name="{escape(name)}" sheetId="{number}" r:id="r{number}"{state}/>'
        links += f'<Relationship Id="r{number}" Type="{kinds}/worksheet" Target="worksheets/{number}.xml"/>'
        content = "".join(f"<row>{''.join(map(_xlsx_cell, row))}</row>" for row in rows)
        packed.writestr(
            f"xl/worksheets/{number}.xml",
            f'<worksheet xmlns="{_OFFICE}/spreadsheetml/2006/main"><sheetData>{content}</sheetData></worksheet>',
        )
    packed.writestr(
        "xl/workbook.xml",
        f'<workbook xmlns="{_OFFICE}/spreadsheetml/2006/main" xmlns:r="{kinds}"><sheets>{listed}</sheets></workbook>',
    )
    packed.writestr("xl/_rels/workbook.xml.rels", f"{relations}{links}</Relationships>")


def _xlsx_cell(value):
    if value is None:
        return "<c/>"
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'
    return f'<c t="{"b" if isinstance(value, bool) else "n"}"><v>{float(value):g}</v></c>'


def _write_ods(packed, sheets, protected, _hidden):
    lock = '<manifest:encryption-data manifest:checksum="x"/>' if protected else ""
    packed.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
    packed.writestr(
        "META-INF/manifest.xml",
        f'<manifest:manifest xmlns:manifest="{_OPEN}:manifest:1.0">'
        f'<manifest:file-entry manifest:full-path="content.xml">{lock}</manifest:file-entry></manifest:manifest>',
    )
    tables = "".join(
        f'<table:table table:name="{escape(name)}">'
        + "".join(f"<table:table-row>{''.join(map(_ods_cell, row))}</table:table-row>" for row in rows)
        + "</table:table>"
        for name, rows in sheets.items()
    )
    packed.writestr(
        "content.xml",
        f'<office:document-content xmlns:office="{_OPEN}:office:1.0" xmlns:table="{_OPEN}:table:1.0"'
        f' xmlns:text="{_OPEN}:text:1.0">'
        f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body></office:document-content>",
    )


def _ods_cell(value):
    if value is None:
        return "<table:table-cell/>"
    if isinstance(value, str):
        return f'<table:table-cell office:value-type="string"><text:p>{escape(value)}</text:p></table:table-cell>'
    if isinstance(value, bool):
        return f'<table:table-cell office:value-type="boolean" office:boolean-value="{str(value).lower()}"/>'
    return f'<table:table-cell office:value-type="float" office:value="{value}"/>'


def _write_xlsb(packed, sheets, _protected, _hidden):
    listed, links = b"", ""
    for number, (name, rows) in enumerate(sheets.items(), 1):
        link = _wide(f"r{number}")
        listed += _brt(0x9C, struct.pack("<II", 0, number) + link + _wide(name))
        kind = f"{_OFFICE}/officeDocument/2006/relationships/worksheet"
        links += f'<Relationship Id="r{number}" Type="{kind}" Target="worksheets/sheet{number}.bin"/>'
        cells = b"".join(
            _brt(0, struct.pack("<I", row) + bytes(13))
            + b"".join(_brt(6, struct.pack("<II", column, 0) + _wide(cell)) for column, cell in enumerate(row_cells))
            for row, row_cells in enumerate(rows)
        )
        size = struct.pack("<4I", 0, len(rows) - 1, 0, max(map(len, rows)) - 1)
        sheet = _brt(0x94, size) + _brt(0x91) + cells + _brt(0x92)
        packed.writestr(f"xl/worksheets/sheet{number}.bin", sheet)
    # 第二条是填充：读它的库有的版本不读第一条的长度，从哪里接着读都对得上
    packed.writestr("xl/workbook.bin", listed + _brt(0x90) + b"\x02\x01\x00" + _brt(0x9D))
    relations = f'<Relationships xmlns="{_OFFICE}/package/2006/relationships">{links}</Relationships>'
    packed.writestr("xl/_rels/workbook.bin.rels", relations)


def _brt(kind, content=b""):
    """A record of the binary format: its kind and its length in groups of seven bits."""
    first = bytes([kind]) if kind < 0x80 else bytes([kind & 0x7F | 0x80, kind >> 7])
    length = bytes([len(content)]) if len(content) < 0x80 else bytes([len(content) & 0x7F | 0x80, len(content) >> 7])
    return first + length + content


def _wide(text):
    return struct.pack("<I", len(text)) + text.encode("utf-16-le")


def _xls(sheets, protected):
    """The stream of an Excel 97 workbook: records of the globals, then of each sheet."""

    def record(kind, content=b""):
        return struct.pack("<HH", kind, len(content)) + content

    def begin(kind):
        return record(0x809, struct.pack("<HHHHII", 0x600, kind, 0, 0, 0, 0))

    end, lock = record(0x0A), record(0x2F, struct.pack("<HHH", 1, 1, 1)) if protected else b""
    bodies = []
    for rows in sheets.values():
        labels = [
            record(0x204, struct.pack("<HHHHB", row, column, 0, len(text), 1) + text.encode("utf-16-le"))
            for row, cells in enumerate(rows)
            for column, text in enumerate(cells)
        ]
        bodies.append(begin(0x10) + b"".join(labels) + end)

    def named(start):
        starts = [start + sum(map(len, bodies[:number])) for number in range(len(bodies))]
        return b"".join(
            record(0x85, struct.pack("<IBBBB", at, 0, 0, len(name), 1) + name.encode("utf-16-le"))
            for at, name in zip(starts, sheets, strict=True)
        )

    head = begin(0x05) + lock
    return head + named(len(head) + len(named(0)) + len(end)) + end + b"".join(bodies)


def _compound_file(name, content):
    """A file of Microsoft's compound format, which old and protected workbooks are, with one stream in it."""
    # 不足 4096 字节的流要放进小扇区：补到那么长，就只需要大的
    content = content.ljust(4096, b"\0")
    content += bytes(-len(content) % 512)
    count, free, last = len(content) // 512, 0xFFFFFFFF, 0xFFFFFFFE

    def entry(called, kind, child, start, size):
        wide = (called + "\0").encode("utf-16-le")
        head = wide.ljust(64, b"\0") + struct.pack("<HBBIII", len(wide), kind, 1, free, free, child)
        return head + bytes(36) + struct.pack("<IQ", start, size)

    folder = entry("Root Entry", 5, 1, last, 0) + entry(name, 2, free, 2, len(content))
    places = [0xFFFFFFFD, last, *range(3, count + 2), last]
    table = struct.pack("<128I", *places, *[free] * (128 - len(places)))
    head = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    head += struct.pack("<9I", 0, 1, 1, 0, 4096, last, 0, last, 0) + struct.pack("<109I", 0, *[free] * 108)
    return head + table + folder.ljust(512, b"\0") + content
