"""The first lines of a command that reads texts: what was understood of them, before anything is made of them.

- the work reads it all again, so this look is short: encodings of the first `LOOKED_AT` bytes, one table of each ending
- nothing is refused here: what is wrong with a file is said by what reads it
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

from bertsmith.data.reading.sources import Source, Span, detect_encoding, few_names, is_prose, is_url, source_of
from bertsmith.data.reading.tables import columns_in_a_line, described, ending_of, kind_of, open_table
from bertsmith.errors import InputError
from bertsmith.files import printable

BETWEEN = {"file": "a file is one", "line": "a line is one", "blank-line": "blank lines between them"}
"""Rule of documents → what was taken for one."""

LOOKED_AT = 64_000_000
"""Bytes of text whose encodings are looked at; the encoding of a file is known when all of it was read."""

_LATER = "encoding found when read"


def opening_lines(
    paths: Sequence[str | Path],
    files: Sequence[Source | Path],
    encoding: str = "auto",
    documents: str = "",
    *,
    size: float | None = None,
    field: str = "text",
    sheet: str | None = None,
) -> list[str]:
    """Returns what was understood of texts: their kinds, size, encodings and documents; then how tables are read.

    Args:
        paths: what was named, of which these are the `files`.
        encoding: `auto`, or the codec that was named.
        documents: what separates documents; empty where it makes no difference.
        size: of the text, in bytes; None for about that of the files.
        field: as in `texts_in`.
        sheet: as in `texts_in`.
    """
    sources = [source_of(one) if isinstance(one, Path) else one for one in files]
    prose, tables = list[Source](), defaultdict[str, list[Source]](list)
    for one in sources:
        (prose if one.kind in ("text", "document") else tables[ending_of(Path(one.name))]).append(one)
    taken = [BETWEEN[documents]] * bool(prose) + ["a row of a table is one"] * bool(tables) if documents else []
    said = [
        few_names([f"{count:,} {kind}" for kind, count in endings_of(sources).items()]),
        f"{(sum(one.text_size for one in sources) if size is None else size) / 1e6:,.1f} MB",
        _first_encodings(prose, encoding),
        "documents: " + ", ".join(taken) if taken else "",
    ]
    lines = [f"{few_names(paths, 3)}: {'; '.join(filter(None, said))}"]
    lines += filter(None, (_of_table(alike, encoding, field, sheet) for alike in tables.values()))
    return [printable(line) for line in lines]


def endings_of(sources: Iterable[Source]) -> dict[str, int]:
    """Counts files by their endings, the most frequent first."""
    return dict(Counter(ending_of(Path(one.name)) or "without an ending" for one in sources).most_common())


def encodings_of(names: Iterable[str], encoding: str, further: int = 0) -> str:
    """Returns the encoding of text files, or how many have which; `further` ones are not looked at."""
    counts = Counter(_encoding_of(name) if encoding == "auto" else encoding for name in names)
    counts.update([_LATER if encoding == "auto" else encoding] * further)
    return ", ".join(name if len(counts) == 1 else f"{name} {count:,}" for name, count in counts.most_common())


def _encoding_of(name: str) -> str:
    try:
        return detect_encoding(Span(name))
    except InputError:
        return _LATER


def _first_encodings(prose: Sequence[Source], encoding: str) -> str:
    # 别的文档自己说明编码
    texts = [one for one in prose if is_prose(one.name)]
    # 网址要整个取下来、大文件要整个读过才知道：不让第一行字等着
    sizes = accumulate(one.text_size for one in texts)
    near = [one.name for one, total in zip(texts, sizes, strict=True) if total <= LOOKED_AT and not is_url(one.name)]
    return encodings_of(near, encoding, len(texts) - len(near))


def _of_table(alike: Sequence[Source], encoding: str, field: str, sheet: str | None) -> str:
    """Says how the first of some tables of one ending is read; nothing of a URL, or where that will be refused."""
    first = alike[0]
    if is_url(first.name):
        return ""
    path = Path(first.name)
    try:
        # 读的时候会再警告一次
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # 语料的 JSON Lines 只能是 UTF-8；一条记录可以是一本书：只读一条
            codec = "utf-8" if first.kind == "jsonl" else encoding
            table = open_table(path, kind_of(path), codec, sheet, ahead=1)
    except InputError:
        return ""
    table.add_nested([field])
    if field not in table.first:
        return ""
    form, columns = described(table, {table.first.index(field): "text"}, has_header=True)
    among = f", the first of {len(alike):,}" if len(alike) > 1 else ""
    return f"{path.name}{among}: {form}; {columns_in_a_line(columns)}"
