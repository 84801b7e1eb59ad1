"""Readers of words with tags: CoNLL columns and CoNLL-U.

Notable:
- a CoNLL file is split at tabs if its first word line has one, at spaces otherwise: a word may hold the other
- a word may be white space alone, such as U+3000 in files with a Chinese character a line
- of CoNLL-U the syntactic words are read, as treebanks are scored: of `29-30 didn't` the words 29 `did` and 30 `n't`,
  and never the empty nodes (`8.1`), which are not in the text
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.data.reading.lines import Placed, numbered_lines
from bertsmith.errors import InputError

ConlluField = Literal["upos", "xpos", "feats"]
_CONLLU_COLUMNS: dict[ConlluField, int] = {"upos": 3, "xpos": 4, "feats": 5}
_DOCUMENT_MARK = "-DOCSTART-"


@dataclass(frozen=True)
class TaggedWords(Placed):
    """The words of a sentence and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_conll(
    path: str | Path,
    *,
    word: int = 0,
    tag: int = -1,
    alternatives: str | None = None,
    encoding: str = "auto",
) -> list[TaggedWords]:
    """Reads a CoNLL file: a word a line with its columns, a blank line or `-DOCSTART-` between sentences.

    Args:
        path: the file, plain or packed (`.gz`, `.zst`).
        word: number of the column with the word, from 0; negative counts from the end.
        tag: number of the column with the tag.
        alternatives: separates the tags of annotators who did not agree; the first is taken. The test file of WNUT-17
            has such tags, with a comma.
        encoding: `auto` or a codec's name.

    Raises:
        InputError: the file is missing, empty, damaged or in another encoding, a column does not exist, a line is
            ragged or lacks its word or tag. The message names file and line.
    """
    path = Path(path)
    sentences = [_sentence(path, rows, word, tag, alternatives) for rows in _blocks(_conll_rows(path, encoding))]
    if not sentences:
        raise InputError(f"{path}: holds no sentence; give one word a line as word TAB tag, a blank line between")
    return sentences


def read_conllu(path: str | Path, *, field: ConlluField = "upos", encoding: str = "auto") -> list[TaggedWords]:
    """Reads the words of a CoNLL-U file with one of their tags.

    Args:
        path: the file, plain or packed (`.gz`, `.zst`).
        field: `upos`, the universal part of speech; `xpos`, the language's own; `feats`, the features as one tag,
            where `_` means that there are none.
        encoding: `auto` or a codec's name.

    Raises:
        InputError: as `read_conll`, and where a line has other than ten columns, the numbers of the words have a gap
            or a word lacks the field.
    """
    path = Path(path)
    column = _CONLLU_COLUMNS[field]
    sentences = []
    for rows in _blocks(_conllu_rows(path, encoding)):
        for expected, (number, cells) in enumerate(rows, 1):
            if cells[0] != str(expected):
                raise InputError(f"{path}: line {number} has the id {cells[0]!r}, {expected} comes next")
            if not cells[1].strip():
                raise InputError(f"{path}: line {number} has an empty word")
            if not cells[column] or (cells[column] == "_" and field != "feats"):
                raise InputError(f"{path}: line {number} has no {field}; choose another field")
        words, tags = (tuple(cells[place] for _, cells in rows) for place in (1, column))
        sentences.append(TaggedWords(words, tags, place=f"{path}: the sentence from line {rows[0][0]}"))
    if not sentences:
        raise InputError(f"{path}: holds no sentence")
    return sentences


def tags_of(sentences: Sequence[TaggedWords]) -> list[str]:
    """Returns the tags that occur, in alphabetical order."""
    return sorted({tag for sentence in sentences for tag in sentence.tags})


_Rows = list[tuple[int, list[str]]]


def _blocks(rows: Iterator[tuple[int, list[str]]]) -> Iterator[_Rows]:
    """Groups rows into sentences; an empty row ends one."""
    block: _Rows = []
    for number, cells in rows:
        if cells:
            block.append((number, cells))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _conll_rows(path: Path, encoding: str) -> Iterator[tuple[int, list[str]]]:
    width = 0
    by_tab = False
    for number, line in numbered_lines(path, encoding):
        if not line.strip() or line.startswith(_DOCUMENT_MARK):
            yield number, []
            continue
        # 第一行决定分隔符：制表符分列的文件里词可以含空格（反之不行）
        by_tab = by_tab if width else "\t" in line
        cells = line.split("\t") if by_tab else re.split(" +", line.strip(" "))
        width = width or len(cells)
        if width < 2:
            raise InputError(f"{path}: line {number} has one column; give one word a line as word TAB tag")
        if len(cells) != width:
            raise InputError(
                f"{path}: line {number} has {len(cells)} columns, the first has {width}; a word or a tag is missing "
                "or has the separator in it"
            )
        yield number, cells


def _sentence(path: Path, rows: _Rows, word: int, tag: int, alternatives: str | None) -> TaggedWords:
    width = len(rows[0][1])
    for column in (word, tag):
        if not -width <= column < width:
            raise InputError(f"{path}: no column {column}; line {rows[0][0]} has {width}, counted from 0")
    words, tags = [], []
    for number, cells in rows:
        name = cells[tag].strip()
        name = name.split(alternatives)[0].strip() if alternatives else name
        if not cells[word]:
            raise InputError(f"{path}: line {number} has an empty word")
        if not name:
            raise InputError(f"{path}: line {number} has no tag")
        # 逐字标注的中文里，全角空格也是一个“字”：它切不出词片，以 [UNK] 占位
        words.append(cells[word].strip() or cells[word])
        tags.append(name)
    return TaggedWords(tuple(words), tuple(tags), place=f"{path}: the sentence from line {rows[0][0]}")


def _conllu_rows(path: Path, encoding: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in numbered_lines(path, encoding):
        if not line.strip():
            yield number, []
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != 10:
            raise InputError(f"{path}: line {number} has {len(cells)} columns; CoNLL-U has ten, separated by tabs")
        # 多词标记（29-30）重复了后面各词，空节点（8.1）不在原文里：都跳过
        if not re.fullmatch(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+", cells[0]):
            yield number, cells
