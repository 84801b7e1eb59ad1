"""Files -> documents: finds the text, puts its lines back together, and cuts it into documents of sentences.

Notable:
- everything streams, a paragraph at a time: a corpus larger than memory costs no more memory than a small one
- books and e-mails break their lines at a fixed width, other corpora put one sentence on a line; gluing the second kind
  would invent sentences and not gluing the first would cut them, so each paragraph is judged by the shape of its lines
- a book is cut into several documents, so that it can be shuffled, held out and drawn from as evenly as short texts

How bytes become lines, and which encodings are recognised, is in `decoding.py`; how a paragraph becomes sentences, in
`sentences.py`.
"""

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.data.reading.decoding import check_encoding
from bertsmith.data.reading.lines import read_lines
from bertsmith.data.reading.sentences import split_sentences
from bertsmith.data.reading.sources import TEXT_ENDINGS
from bertsmith.errors import ConfigError, InputError

DocumentRule = Literal["auto", "blank-line", "file"]

# A paragraph longer than this is handed on in parts: a file without blank lines must not fill the memory.
_MAX_PARAGRAPH_LINES = 1000
_MAX_PARAGRAPH_LENGTH = 1_000_000
_MAX_HEADING_LENGTH = 300
_TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json"}
MAX_SENTENCES = 128
"""Longer documents are cut."""
# Lines are broken by hand or by an editor somewhere between these widths (columns; a Chinese character takes two).
_WRAP_WIDTHS = range(40, 161)

_WIDE = re.compile("[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]")
# Han, kana and their punctuation, which are written without spaces; Hangul is wide but does use spaces.
_UNSPACED = "\u2e80-\u312f\u31a0-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff60\uffe0-\uffe6"
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_FIRST_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_SENTENCE_ENDS = tuple(".!?…。！？:：;；")
_CLOSERS = "\"'”’»)]」』）】"
_ENDS_HYPHENATED = re.compile(r"\w(?:-|--|—)$")
_OPENERS = "\"'“‘«([_*"
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class Document:
    """Consecutive sentences of one text, the unit that next-sentence pairs are drawn from.

    Attributes:
        source: the name of the file it came from, as given.
        sentences: its sentences in order, at least one, none of them empty.
    """

    source: str
    sentences: tuple[str, ...]


def find_text_files(paths: Sequence[str | Path], endings: Sequence[str] = TEXT_ENDINGS) -> list[Path]:
    """Finds the text files that files, folders and glob patterns name.

    A folder is searched with all its subfolders for `.txt`, `.txt.gz` and `.txt.zst`; links to folders are followed,
    hidden files and folders passed over (they are the droppings of editors and file managers), and so is the
    `vocab.txt` of a tokenizer, known by the files beside it. A file that is named, or matched by a pattern, may have
    any name. `**` in a pattern stands for any number of folders.

    Args:
        paths: names of files and folders, and patterns with `*`, `?` or `[...]`.
        endings: of the files taken from a folder, in lower case.

    Returns:
        The files sorted by name, each once, however many of the paths lead to it.

    Raises:
        InputError: nothing was named, or a path is missing, holds or matches no text file, or cannot be read.
    """
    if not paths:
        raise InputError("no text was named; give at least one file, folder or pattern, for example corpus/*.txt")
    found = [file for path in paths for file in _expand(str(path), endings)]
    for file in found:
        if not file.is_file():
            raise InputError(f"{file}: is not a regular file; save its text to a file and name that")
        try:
            file.open("rb").close()
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror}); check its rights: ls -l {file}") from None
    # 按真实路径去重，同一文件经链接或两种写法出现时只读一次；按名字排序，结果与文件系统的列举顺序无关
    unique = {file.resolve(): file for file in sorted(found, key=str, reverse=True)}
    return sorted(unique.values(), key=str)


def resolve_documents(files: Sequence[Path], documents: DocumentRule = "auto") -> Literal["blank-line", "file"]:
    """Says what separates the documents of these files.

    Args:
        files: the text files.
        documents: `blank-line`, `file`, or `auto`: one document per file where there are several files, documents
            separated by blank lines where there is one.

    Returns:
        `blank-line` or `file`.

    Raises:
        ConfigError: `documents` is none of the three.
    """
    if documents not in ("auto", "blank-line", "file"):
        raise ConfigError(f"--documents {documents!r}: unknown rule; use auto, blank-line or file")
    if documents == "auto":
        return "file" if len(files) > 1 else "blank-line"
    return documents


def read_documents(
    files: Sequence[Path],
    *,
    documents: DocumentRule = "auto",
    encoding: str = "auto",
    max_sentences: int = MAX_SENTENCES,
) -> Iterator[Document]:
    """Reads files as documents of sentences, one after another, in bounded memory.

    A document longer than `max_sentences` is cut into several of at most that many, in order, so that a book can be
    shuffled, held out and drawn from evenly. Under `file` a blank line only separates paragraphs. Under `blank-line` a
    heading belongs to the document that follows it. Lines without any letter or digit (`* * *`) are left out.

    Args:
        files: the text files, in reading order.
        documents: what separates documents, see `resolve_documents`.
        encoding: `auto` (see `decoding.detect_encoding`) or any text encoding Python knows.
        max_sentences: the longest document handed out, in sentences; at least 1.

    Returns:
        An iterator over documents, none of them empty.

    Raises:
        InputError: unknown encoding; while iterating: a file is not readable text, or all files together hold no
            sentence.
        ConfigError: `max_sentences` or `documents` is out of range.
    """
    check_encoding(encoding)
    rule = resolve_documents(files, documents)
    if max_sentences < 1:
        raise ConfigError(f"max_sentences is {max_sentences}; a document needs at least 1 sentence")
    return _documents(files, rule, encoding, max_sentences)


def read_text(files: Sequence[Path], encoding: str = "auto") -> Iterator[str]:
    """Reads the text of files as paragraphs, for learning a vocabulary, in bounded memory.

    Args:
        files: the text files, in reading order.
        encoding: as in `read_documents`.

    Yields:
        Paragraphs with their hard-wrapped lines rejoined (or single lines, where a line is a unit of its own).

    Raises:
        InputError: as in `read_documents`.
    """
    empty = True
    for path in files:
        for unit in _units(read_lines(path, encoding)):
            if unit is not None and _LETTER_OR_DIGIT.search(unit):
                empty = False
                yield unit
    if empty:
        raise no_text_error(files)


def join_lines(lines: Sequence[str]) -> list[str]:
    """Puts the lines of one paragraph back together where only the width of the page had broken them.

    A line break is forced when the next word would not have fitted into the widest line of the paragraph. A paragraph
    is hard-wrapped when most of its breaks are forced, unless most of its lines end a sentence or begin with a capital;
    then the lines are joined at the forced breaks, and where the next line goes on in lower case. In any other
    paragraph (verse, lists, one sentence per line) every line stays a unit of its own.

    Lines are joined by a space, except between two Chinese or Japanese characters, and after a hyphen or dash that
    follows a word: `well-` + `known` gives `well-known`. The hyphen always stays, since nothing but a dictionary tells
    that one from the one in `exam-` + `ple`, and losing it would be the worse mistake.

    Args:
        lines: consecutive lines without white space around them, none empty.

    Returns:
        The units of text, in order: the whole paragraph, or parts of it.
    """
    widths = [_width(line) for line in lines]
    if len(lines) < 2 or max(widths) not in _WRAP_WIDTHS:
        return list(lines)
    # 折行的判据：下一行的第一个词放不进最宽的那一行。逐句成行或列表的断行一般不满足这一条
    limit = 0.85 * max(widths)
    forced = [width + 1 + _first_width(line) > limit for width, line in zip(widths[:-1], lines[1:], strict=True)]
    ended = sum(line.rstrip(_CLOSERS).endswith(_SENTENCE_ENDS) for line in lines[:-1])
    capitals = sum(line.lstrip(_OPENERS)[:1].isupper() and not line.isupper() for line in lines[1:])
    breaks = len(lines) - 1
    # 只有两三行时这两个比例说明不了什么；粘错了也无妨，分句时会在句号处再切开
    one_per_line = breaks >= 3 and (ended > 0.75 * breaks or capitals > 0.7 * breaks)
    if one_per_line or sum(forced) < 0.6 * breaks:
        return list(lines)

    units = [[lines[0]]]
    for line, is_forced in zip(lines[1:], forced, strict=True):
        previous = units[-1][-1]
        if is_forced or line[0].islower():
            units[-1] += (_glue(previous, line), line)
        else:
            units.append([line])
    return ["".join(unit) for unit in units]


def _expand(path: str, endings: Sequence[str]) -> list[Path]:
    """The files one argument names."""
    if os.path.isdir(path):
        files = _walk(path, endings)
        if not files:
            raise InputError(f"{path}: the folder holds no {_listed(endings)} file; name the files, or put text there")
        return files
    if os.path.lexists(path) or not glob.has_magic(path):
        if not os.path.exists(path):
            raise InputError(f"{path}: no such file or folder; check the name (the current folder is {Path.cwd()})")
        return [Path(path)]
    matches = sorted(glob.glob(path, recursive=True))
    files = [file for match in matches for file in (_walk(match, endings) if os.path.isdir(match) else [Path(match)])]
    if not files:
        raise InputError(f"{path}: the pattern matches no text file; check it with: ls {path}")
    return files


def _listed(endings: Sequence[str]) -> str:
    # 只列未压缩的写法，一行里放得下
    plain = [ending for ending in endings if ending.count(".") == 1]
    return ".txt or .txt.gz" if plain == [".txt"] else ", ".join(plain)


def _walk(folder: str, endings: Sequence[str]) -> list[Path]:
    """The text files under a folder and under those that links in it lead to, hidden ones left out."""

    def fail(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder cannot be read ({error.strerror}); check its rights") from None

    files = []
    waiting, seen = [folder], set[str]()
    for top in waiting:
        for parent, folders, names in os.walk(top, onerror=fail):
            real = os.path.realpath(parent)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            # os.walk 不进入链接：排到最后再看，同一文件夹以它本来的名字为准；指回上层的链接是环，不跟
            links = [os.path.join(parent, name) for name in folders if os.path.islink(os.path.join(parent, name))]
            waiting += [link for link in links if not Path(real).is_relative_to(os.path.realpath(link))]
            # 分词器文件夹里的词表也叫 .txt：它不是文本
            other = {"vocab.txt"} if _TOKENIZER_FILES & set(names) else set()
            wanted = (name for name in names if name.lower().endswith(tuple(endings)) and not name.startswith("."))
            files += [Path(parent, name) for name in wanted if name not in other]
    return files


def _documents(files: Sequence[Path], rule: str, encoding: str, max_sentences: int) -> Iterator[Document]:
    empty = True
    for path in files:
        for document in documents_of(read_lines(path, encoding), str(path), rule, max_sentences):
            empty = False
            yield document
    if empty:
        raise no_text_error(files)


def documents_of(
    lines: Iterable[str], source: str, rule: str = "file", max_sentences: int = MAX_SENTENCES
) -> Iterator[Document]:
    """Makes documents of the lines of one file, of a stretch between two documents, or of one record.

    Args:
        lines: without their line ends.
        source: what the documents are called after.
        rule: `blank-line` or `file`.
        max_sentences: as in `read_documents`.

    Yields:
        Documents, none empty; there may be none.
    """
    sentences: list[str] = []
    after_heading = False
    for unit in _units(lines):
        if unit is not None:
            after_heading = is_heading(unit)
            if _LETTER_OR_DIGIT.search(unit):
                sentences += [unit] if after_heading else split_sentences(unit)
        # 标题后的空行不结束文档，否则标题会单独成为一篇只有一句的文档
        ends_here = unit is None and rule == "blank-line" and not after_heading
        while len(sentences) > max_sentences or (ends_here and sentences):
            yield Document(source, tuple(sentences[:max_sentences]))
            del sentences[:max_sentences]
    while sentences:
        yield Document(source, tuple(sentences[:max_sentences]))
        del sentences[:max_sentences]


def split_lines(text: str) -> list[str]:
    """Cuts the text of a record into lines as `read_lines` cuts a file: a page break is white space, no line end."""
    return text.replace("\f", " ").replace("\v", " ").replace("\u2029", "\n\n").splitlines()


def _units(raw_lines: Iterable[str]) -> Iterator[str | None]:
    """Puts lines together to units of text (paragraphs, headings, single lines), with a None for every blank line."""
    lines: list[str] = []
    length = 0
    for raw in raw_lines:
        line = raw.strip()
        heading = line.startswith("=") and is_heading(line)
        if line and not heading:
            lines.append(line)
            length += len(line)
            if len(lines) < _MAX_PARAGRAPH_LINES and length < _MAX_PARAGRAPH_LENGTH:
                continue
        yield from join_lines(lines)
        lines, length = [], 0
        if heading:
            yield line
        elif not line:
            yield None
    yield from join_lines(lines)


def is_heading(line: str) -> bool:
    """Whether a line is a heading as WikiText writes them: `= Title =`, `= = Section = =`, `== Section ==`."""
    if not (line.startswith("=") and line.endswith("=")) or len(line) > _MAX_HEADING_LENGTH:
        return False
    title = line.strip("= ")
    if not title:
        return False
    before, _, after = line.partition(title)
    return before == after[::-1] and before.endswith(" ")


def _width(text: str) -> int:
    """The columns a line takes on a page, where a Chinese character takes two; at least that, if it is very long."""
    if text.isascii() or len(text) >= _WRAP_WIDTHS.stop:
        return len(text)
    return len(text) + len(_WIDE.findall(text))


def _first_width(line: str) -> int:
    """The columns that would have to fit in for a line break to be unnecessary: of a word, or one Chinese character."""
    if line.isascii():
        return len(line.split(None, 1)[0])
    word = _FIRST_WORD.match(line)
    return _width(word.group()) if word else 0


def _glue(previous: str, line: str) -> str:
    """What to put between two lines that belong together."""
    if _UNSPACED_CHARACTER.match(previous[-1]) and _UNSPACED_CHARACTER.match(line):
        return ""
    return "" if _ENDS_HYPHENATED.search(previous) and line[0].isalpha() else " "


def no_text_error(files: Sequence[object]) -> InputError:
    """The error for files that hold no sentence."""
    names = ", ".join(map(str, files[:3])) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    return InputError(f"{names or 'no files'}: no sentence found, only empty or blank text; name files that hold text")
