"""The rows of a sheet of a spreadsheet, each cell written as it would stand in a CSV.

This runs in the process that `documents` bounds: two cells at opposite corners fit into a kilobyte, and the library
makes the whole rectangle between them.
"""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Any

from bertsmith.data.reading.document_kinds import check_unpacked
from bertsmith.data.reading.sources import few_names, open_source
from bertsmith.errors import InputError


def read_sheet(path: Path, sheet: str | None) -> dict[str, Any]:
    """Reads a sheet, by default the first that is shown; an `InputError` says briefly why it cannot.

    Returns:
        `name` of the sheet, the `names` to choose from, and `rows`, each with its number, from 1; blank ones are left
        out.
    """
    # 读别的文件用不着这个库：用到时才导入
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError, SheetVisibleEnum

    with open_source(str(path)) as file:
        is_compound = file.read(4) == b"\xd0\xcf\x11\xe0"
    # .xls 不是压缩包；真坏了的，下面会说
    with contextlib.suppress(zipfile.BadZipFile, OSError), zipfile.ZipFile(path) as packed:
        check_unpacked(packed)
    try:
        book = CalamineWorkbook.from_path(path)
        shown = [one.name for one in book.sheets_metadata if one.visible == SheetVisibleEnum.Visible]
        names = shown or book.sheet_names
        if not names or (sheet is not None and sheet not in book.sheet_names):
            raise InputError(f"has no sheet {sheet or ''!r}; it has {few_names(book.sheet_names)}")
        chosen = book.get_sheet_by_name(names[0] if sheet is None else sheet)
        cells = chosen.to_python(skip_empty_area=False)
    except PasswordError:
        raise InputError("is protected by a password; save it without one, or as CSV") from None
    except (CalamineError, OSError) as error:
        reason = "a protected or older one?" if is_compound else " ".join(str(error).split())
        raise InputError(f"not a readable workbook ({reason}); save it again, or as CSV") from None
    if not cells:
        there = f"; name another of {few_names(names)} with --sheet" if len(names) > 1 else "; give one example a row"
        raise InputError(f"the sheet {chosen.name!r} is empty{there}")
    rows = [(number, list(map(_as_written, row))) for number, row in enumerate(cells, 1) if any(c != "" for c in row)]
    return {"name": chosen.name, "names": names, "rows": rows}


def _as_written(cell: object) -> str:
    """Returns a cell as a CSV has it: in a sheet every number is a float, also the class 1."""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    return str(cell).lower() if isinstance(cell, bool) else str(cell)
