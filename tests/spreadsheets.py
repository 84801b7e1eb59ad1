"""Spreadsheets as small as they can be: what Excel and LibreOffice write, without their styles."""

import zipfile
from html import escape

_OPEN = "urn:oasis:names:tc:opendocument:xmlns"
_OFFICE = "http://schemas.openxmlformats.org"


def write_spreadsheet(path, sheets, *, protected=False, hidden=()):
    """Writes an .xlsx or .ods of sheets, each a list of rows of text, numbers, booleans and None."""
    write = _write_ods if path.suffix == ".ods" else _write_xlsx
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
