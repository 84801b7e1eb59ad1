"""The documents of a folder: which files, what stands in them, and what they say of themselves.

A document is a `.txt` or `.md` file, plain, gzip or zstd. Its name is the path below the folder, so that an index does
not change when the command is given from elsewhere. A Markdown file may begin with front matter, `key: value` lines
between two lines of `---`: these become metadata by which a search can be filtered.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertsmith.data.reading.decoding import check_encoding, detect_encoding
from bertsmith.data.reading.finding import find_text_files
from bertsmith.data.reading.sources import TEXT_ENDINGS, read_chunks
from bertsmith.errors import InputError

MARKDOWN_ENDINGS = (".md", ".md.gz", ".md.zst")
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_PAIR = re.compile(r"^([A-Za-z_][\w-]*)[ \t]*:[ \t]*(\S.*?)[ \t]*\r?$", re.MULTILINE)


@dataclass(frozen=True)
class Document:
    """The text of a file.

    Attributes:
        name: the path below the folder, with `/` between its parts.
        text: all of it, as decoded; places of passages are characters of this.
        body: where the text begins behind the front matter.
        metadata: of the front matter; empty where there is none.
    """

    name: str
    text: str
    body: int
    metadata: dict[str, str]

    @property
    def is_markdown(self) -> bool:
        """Whether its `#` lines are headings."""
        return self.name.lower().endswith(MARKDOWN_ENDINGS)


def digests_of(folder: str | Path) -> Iterator[tuple[str, str]]:
    """Yields the name of every document of a folder and a digest of its bytes, in the order of the names.

    Raises:
        InputError: the folder is missing, holds no document, or a file cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; name one with .txt or .md files")
    for path in find_text_files([folder], (*TEXT_ENDINGS, *MARKDOWN_ENDINGS)):
        digest = hashlib.blake2b(digest_size=16)
        for chunk in read_chunks(path):
            digest.update(chunk)
        yield path.relative_to(folder).as_posix(), digest.hexdigest()


def read_document(folder: str | Path, name: str, encoding: str = "auto") -> Document:
    """Reads one file.

    Args:
        folder: of the documents.
        name: of the document.
        encoding: `auto` or a codec.

    Raises:
        InputError: the file vanished, or is no text.
    """
    path = Path(folder) / name
    check_encoding(encoding)
    codec = detect_encoding(path) if encoding == "auto" else encoding
    content = b"".join(read_chunks(path))
    try:
        text = content.decode(codec)
    except UnicodeError as error:
        raise InputError(f"{path}: is not {codec} ({error.__class__.__name__}); pass another --encoding") from None
    found = _FRONT_MATTER.match(text) if name.lower().endswith(MARKDOWN_ENDINGS) else None
    if found is None:
        return Document(name, text, 0, {})
    return Document(name, text, found.end(), {key: value.strip("\"'") for key, value in _PAIR.findall(found[1])})
