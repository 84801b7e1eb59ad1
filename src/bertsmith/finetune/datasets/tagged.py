"""Readers of words with tags: CoNLL columns, CoNLL-U, and tables with a sentence a row.

Notable:
- a CoNLL file is split at tabs if its first word line has one, at spaces otherwise: a word may hold the other
- a word may be white space alone, such as U+3000 in files with a Chinese character a line
- lines before a sentence that begin with `#` are comments where they do not look like the other lines: other columns
  (`#<tab>URL`, `# id … domain=en`), or a tag that no other line has (`# newdoc`). They are counted, and `# O` is a word
- a table has a list of words and one of tags in each row; the data set or Parquet file names tags that are numbers
- of CoNLL-U the syntactic words are read, as treebanks are scored: of `29-30 didn't` the words 29 `did` and 30 `n't`,
  and never the empty nodes (`8.1`), which are not in the text
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path

from bertsmith.data.reading.lines import Placed, numbered_lines
from bertsmith.data.reading.tables import TABLE_KINDS, Cell, Table, ending_of, kind_of, require_unicode
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets import (
    ENOUGH_DOCUMENTS,
    Column,
    Faults,
    InputForms,
    Layout,
    Reader,
    ReadingOptions,
    require_used,
)
from bertsmith.finetune.datasets.columns import BESIDE, find_columns, has_any, read_rows
from bertsmith.finetune.datasets.inputs import Input
from bertsmith.finetune.datasets.texts import TEXT_NAMES

_CONLLU_COLUMNS, _CONLLU_WIDTH = {"upos": 3, "xpos": 4, "feats": 5}, 10
_DOCUMENT_MARK = "-DOCSTART-"
_STARTS_DOCUMENT = re.compile(r"-DOCSTART-|# ?newdoc\b|# ?begin document\b")

WORD_LINES = (".conll", ".conllu", ".bio", ".iob")
"""Endings of files with a word in each line."""


@dataclass(frozen=True)
class TaggedWords(Placed):
    """The words of a sentence and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """What it has to read."""
        return (" ".join(self.words),)


def _is_table(path: Path, _options: ReadingOptions) -> bool:
    return kind_of(path) in ("jsonl", "parquet")


def _read_lines(path: Path, options: ReadingOptions) -> list[TaggedWords]:
    # 两种格式的列含义不同：CoNLL-U 有固定的十列，按字段名取；CoNLL 的列随文件而变，按编号取
    ending = ending_of(path)
    if ending in TABLE_KINDS:
        # 一格里放不下一串词；按行和空格切开，它也能“读成”词和标签，一直训练到底
        raise InputError(f"{path}: words and tags are read from CoNLL, CoNLL-U, JSON or Parquet, not from {ending}")
    require_used(options, (*_OF_WORDS, "faults"), "CoNLL and CoNLL-U")
    sentences = _conllu(path, options) if ending == ".conllu" else _conll(path, options)
    if not sentences:
        raise InputError(f"{path}: holds no sentence; give one word a line and a blank line between sentences")
    return sentences


def _words(cell: Cell, _options: ReadingOptions) -> tuple[str, ...]:
    """Reads a list of words; one may be white space, but not empty."""
    words = []
    for number, word in enumerate(_listed(cell)):
        if not isinstance(word, str) or not word:
            held = "is empty" if word in ("", None) else f"is a {type(word).__name__}, not text"
            raise InputError(f"{cell.place}: word {number} {held}")
        require_unicode(cell.place, word)
        words.append(word.strip() or word)
    return tuple(words)


def _tags(cell: Cell, options: ReadingOptions) -> tuple[str, ...]:
    """Reads a list of tags, or of the numbers of tags that have names."""
    tags = []
    for number, tag in enumerate(_listed(cell)):
        # 没有名字的号码看不出实体：会悄悄按逐词正确率、而不是按实体来评分
        if isinstance(tag, int) and not cell.names:
            raise InputError(
                f"{cell.place}: the tags are numbers and nothing says what they are called; write tags such as B-PER,"
                " or give a data set whose features name the classes"
            )
        name = Cell(cell.place, f"tag of word {number}", tag, cell.names).text()
        tags.append(name.split(options.alternatives)[0].strip() if options.alternatives else name)
    return tuple(tags)


def _listed(cell: Cell) -> list[object]:
    if not isinstance(cell.value, list):
        held = "nothing" if cell.value is None else f"a {type(cell.value).__name__}"
        raise InputError(f"{cell.place}: the list of {cell.what}s is {held}, not a list with an item for each word")
    return cell.value


_LAYOUT = Layout(
    (
        Column("words", "word_column", ("tokens", "words"), _words, called="word"),
        Column("tags", "tag_column", ("ner_tags", "tags", "labels", "upos"), _tags, called="tag"),
    ),
    lambda _names, _options: True,
)


def _read_table(table: Table, options: ReadingOptions) -> list[TaggedWords]:
    rows = read_rows(table, _LAYOUT, find_columns(table, _LAYOUT, options), _sentence, options)
    # 没有词的句子相当于 CoNLL 文件里多出的空行
    sentences = [row for row in rows if row.words]
    if not sentences:
        raise InputError(f"{table.path}: holds no sentence; give a list of words and a list of tags in each row")
    if len(sentences) < len(rows):
        warnings.warn(f"{table.path}: left out {len(rows) - len(sentences):,} sentence(s) without a word", stacklevel=2)
    return sentences


def _sentence(words: tuple[str, ...], tags: tuple[str, ...], place: str) -> TaggedWords:
    if len(words) != len(tags):
        raise InputError(f"{place}: {len(words)} words and {len(tags)} tags; each word has one tag")
    return TaggedWords(words, tags, place=place)


_LONE_WORDS = replace(_LAYOUT, columns=_LAYOUT.columns[:1])
_TEXTS = Layout((Column("text", "text_column", TEXT_NAMES),), has_any(*((name,) for name in TEXT_NAMES)), ("text",))


def _sentences(path: Path, options: ReadingOptions) -> Iterator[Input] | None:
    """Reads the words of CoNLL files, which may stand alone where the ending says that they are words."""
    ending = ending_of(path)
    if ending == ".conllu":
        # feats 一列允许空着：没有标注过的文件也能读
        sentences = _conllu(path, replace(options, tag_column="feats"))
    elif ending in WORD_LINES:
        sentences = _conll(path, options, least=1)
    elif ending not in TABLE_KINDS and (isinstance(options.word_column, int) or _is_word_a_line(path, options)):
        sentences = _conll(path, options)
    else:
        return None
    return (Input(sentence.place, (sentence.words,)) for sentence in sentences)


def _is_word_a_line(path: Path, options: ReadingOptions) -> bool:
    """Tells words with tags by the blank lines between sentences, with as many cells in every line."""
    lines = [line for _, line in islice(numbered_lines(path, options.encoding), _LINES_TO_TELL)]
    widths = {line.count("\t") for line in lines if line.strip() and not line.startswith(_DOCUMENT_MARK)}
    blank = any(not line.strip() for line in "\n".join(lines).strip().split("\n"))
    return blank and len(widths) == 1 and widths != {0} and not _TEXTS.is_header(lines[0].lower().split("\t"), options)


_LINES_TO_TELL = 1000

_OF_WORDS = ("word_column", "tag_column", "alternatives")

TAGGED = Reader(
    "words with tags",
    (*_OF_WORDS, *BESIDE),
    _read_table,
    InputForms((_LONE_WORDS, _TEXTS), lambda words=None, text=None: (words or text,), _sentences, "a word a line"),
    lambda _table: _LAYOUT,
    _is_table,
    _read_lines,
)
"""Sentences as `TaggedWords`: from JSON Lines and Parquet, from CoNLL-U by the ending `.conllu`, from CoNLL otherwise.

Of CoNLL-U the universal part of speech is read, or the field that `tag_column` names. Of CoNLL the word is in the first
column and the tag in the last, unless told by number. WNUT-17 has the tags of several annotators, with a comma.
"""


def tags_of(sentences: Sequence[TaggedWords]) -> list[str]:
    """Returns the tags that occur, in alphabetical order."""
    return sorted({tag for sentence in sentences for tag in sentence.tags})


def _conll(path: Path, options: ReadingOptions, least: int = 2) -> list[TaggedWords]:
    """Returns the sentences of a CoNLL file: a word a line, a blank line or `-DOCSTART-` between sentences."""
    word = 0 if options.word_column is None else options.word_column
    tag = -1 if options.tag_column is None else options.tag_column
    if isinstance(word, str):
        raise ConfigError(f"{path}: --word-column {word!r}: the columns of CoNLL files have no names; give a number")
    if isinstance(tag, str):
        raise ConfigError(f"{path}: --tag-column {tag!r}: the columns of CoNLL files have no names; give a number")
    faults, width, found = Faults(options), 0, list[TaggedWords]()
    lines = list(numbered_lines(path, options.encoding))
    document_of = _documents(lines)
    for rows in _blocks(_conll_rows(path, lines, least)):
        width = width or len(rows[0][1])
        for column in (word, tag):
            if not -width <= column < width:
                raise InputError(f"{path}: no column {column}; line {rows[0][0]} has {width}, counted from 0")
        words, tags = [], []
        with faults.skipped():
            for number, cells in rows:
                if len(cells) != width:
                    raise InputError(
                        f"{path}: line {number} has {len(cells)} columns, the first has {width}; a word or a tag is"
                        " missing or has the separator in it"
                    )
                name = cells[tag].strip()
                name = name.split(options.alternatives)[0].strip() if options.alternatives else name
                if not cells[word]:
                    raise InputError(f"{path}: line {number} has an empty word")
                if not name:
                    raise InputError(f"{path}: line {number} has no tag")
                # 逐字标注的中文里，全角空格也是一个“字”：它切不出词片，以 [UNK] 占位
                words.append(cells[word].strip() or cells[word])
                tags.append(name)
            place = f"{path}: the sentence from line {rows[0][0]}"
            found.append(TaggedWords(tuple(words), tuple(tags), place=place, group=document_of(rows[0][0])))
    faults.tell(path, "sentences")
    return found


def _conllu(path: Path, options: ReadingOptions) -> list[TaggedWords]:
    """Returns the sentences of a CoNLL-U file; of `feats`, `_` is a tag and means that there are none."""
    field = "upos" if options.tag_column is None else options.tag_column
    if isinstance(field, int) or options.word_column is not None or options.alternatives is not None:
        raise ConfigError(f"{path}: CoNLL-U has fixed columns; choose --tag-column upos, xpos or feats, no others")
    if field not in _CONLLU_COLUMNS:
        raise ConfigError(f"{path}: --tag-column {field!r} is none of {', '.join(_CONLLU_COLUMNS)}")
    faults, found = Faults(options), list[TaggedWords]()
    lines = list(numbered_lines(path, options.encoding))
    column, document_of = _CONLLU_COLUMNS[field], _documents(lines)
    for rows in _blocks(_conllu_rows(lines)):
        with faults.skipped():
            for expected, (number, cells) in enumerate(rows, 1):
                if len(cells) != _CONLLU_WIDTH:
                    held = f"{len(cells)} columns; CoNLL-U has ten, separated by tabs"
                    raise InputError(f"{path}: line {number} has {held}")
                if cells[0] != str(expected):
                    raise InputError(f"{path}: line {number} has the id {cells[0]!r}, {expected} comes next")
                if not cells[1].strip():
                    raise InputError(f"{path}: line {number} has an empty word")
                if not cells[column] or (cells[column] == "_" and field != "feats"):
                    raise InputError(f"{path}: line {number} has no {field}; choose another field")
            words, tags = (tuple(cells[place] for _, cells in rows) for place in (1, column))
            place = f"{path}: the sentence from line {rows[0][0]}"
            found.append(TaggedWords(words, tags, place=place, group=document_of(rows[0][0])))
    faults.tell(path, "sentences")
    return found


def _documents(lines: _Lines) -> Callable[[int], str]:
    """Returns what tells a line's document; of few documents nothing does."""
    starts = [number for number, line in lines if _STARTS_DOCUMENT.match(line)]
    # 同一篇里的句子互相知道名字：篇数够多时整篇地划分
    return lambda line: str(bisect(starts, line)) if len(starts) >= ENOUGH_DOCUMENTS else ""


_Lines = Sequence[tuple[int, str]]
_Row = tuple[int, list[str]]


def _blocks(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    # 没有格子的行分开句子
    return (list(block) for has_cells, block in groupby(rows, lambda row: bool(row[1])) if has_cells)


def _conll_rows(path: Path, lines: _Lines, least: int) -> Iterator[_Row]:
    width = 0
    by_tab = False
    comments = _comments(path, lines)
    for number, line in lines:
        if not line.strip() or line.startswith(_DOCUMENT_MARK) or number in comments:
            yield number, []
            continue
        # 第一行决定分隔符：制表符分列的文件里词可以含空格（反之不行）
        by_tab = by_tab if width else "\t" in line
        cells = _columns(line, by_tab)
        width = width or len(cells)
        if width < least:
            raise InputError(f"{path}: line {number} has one column; give one word a line as word TAB tag")
        yield number, cells


def _columns(line: str, by_tab: bool) -> list[str]:
    return line.split("\t") if by_tab else re.split(" +", line.strip(" "))


_COMMENT = re.compile(r"#(\s|begin document|end document)")


def _comments(path: Path, lines: _Lines) -> set[int]:
    """Returns the numbers of the lines that are comments, and warns of them."""
    candidates: dict[int, str] = {}
    tags: set[str] = set()
    by_tab, width, starts = False, 0, True
    for number, line in lines:
        if not line.strip() or line.startswith(_DOCUMENT_MARK):
            starts = True
        elif starts and _COMMENT.match(line):
            candidates[number] = line
        else:
            # 第一个不像注释的行说出文件的样子：分隔符和列数
            by_tab, starts = by_tab if width else "\t" in line, False
            cells = _columns(line, by_tab)
            width = width or len(cells)
            tags.add(cells[-1].strip())
    rows = {number: _columns(line, by_tab) for number, line in candidates.items()}
    found = {number for number, cells in rows.items() if len(cells) != width or cells[-1].strip() not in {*tags, "#"}}
    if found and width:
        first = min(found)
        warnings.warn(
            f"{path}: skipped {len(found):,} comment lines, the first is line {first}: {candidates[first][:40]!r}",
            stacklevel=2,
        )
    return found if width else set()


def _conllu_rows(lines: _Lines) -> Iterator[_Row]:
    for number, line in lines:
        if not line.strip():
            yield number, []
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        # 多词标记（29-30）重复了后面各词，空节点（8.1）不在原文里：都跳过
        if len(cells) != _CONLLU_WIDTH or not re.fullmatch(r"[0-9]+-[0-9]+|[0-9]+\.[0-9]+", cells[0]):
            yield number, cells
