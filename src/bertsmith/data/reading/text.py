"""Files -> documents of sentences, streaming: a corpus larger than memory costs no more memory than a small one.

Lines become paragraphs: what only the width of the page had broken is put back together. Books and e-mails break their
lines at a fixed width, other corpora put one sentence on a line. Gluing the second kind would invent sentences, and not
gluing the first would cut them, so each paragraph is judged by the shape of its lines. Paragraphs become sentences
(`sentences`), sentences documents. A book is cut into several, so that it can be shuffled, held out and drawn from as
evenly as short texts; its parts say that they belong together.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from bertsmith.data.reading.documents import lines_of
from bertsmith.data.reading.sentences import split_sentences
from bertsmith.data.reading.sources import Source, Span, check_encoding, few_names
from bertsmith.errors import ConfigError, InputError

FoundRule = Literal["blank-line", "file", "line"]
DocumentRule = Literal["auto", FoundRule]
Found = TypeVar("Found")

MAX_SENTENCES = 128
"""Longer documents are cut."""
LEAST_TEXTS = 3
"""Texts that a corpus needs: two for random pairs, one to validate on."""
LEAST_LINES = 100
"""Lines of a single file from which each is taken for a document, where none of them is blank."""
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
# A paragraph longer than this is handed on in parts: a file without blank lines must not fill the memory.
_MAX_PARAGRAPH_LINES = 1000
_MAX_PARAGRAPH_LENGTH = 1_000_000
_MAX_HEADING_LENGTH = 300
# Lines are broken by hand or by an editor somewhere between these widths (columns; a Chinese character takes two).
_WRAP_WIDTHS = range(40, 161)
# So many lines are looked at, so many at a time, to tell whether a page has broken them.
_LINES_SEEN, _LINES_TOGETHER = 1000, 20

_WIDE = re.compile("[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6]")
# Han, kana and their punctuation, which are written without spaces; Hangul is wide but does use spaces.
_UNSPACED = "\u2e80-\u312f\u31a0-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff60\uffe0-\uffe6"
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_FIRST_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_SENTENCE_ENDS = tuple(".!?…。！？:：;；")
_CLOSERS = "\"'”’»)]」』）】"
_ENDS_HYPHENATED = re.compile(r"\w(?:-|--|—)$")
_OPENERS = "\"'“‘«([_*"


@dataclass(frozen=True)
class Document:
    """Consecutive sentences of one text, at least one and none empty, from which next-sentence pairs are drawn.

    `text` is a number in [0, 2^64) that all parts of a text that was cut have in common; None for a whole text.
    """

    source: str
    sentences: tuple[str, ...]
    text: int | None = None


def corpus_documents(
    files: Sequence[str | Path], documents: DocumentRule = "auto", encoding: str = "auto"
) -> tuple[FoundRule, str]:
    """Says what separates the documents of these files, and why in a sentence, where lines are taken for documents.

    `auto` is `file` for several files of text and `blank-line` for one. But a list of tweets, reviews or log entries
    would be one text, and thus no corpus: it is `line` for a single text file of at least `LEAST_LINES` lines, none of
    them blank, which no page has broken. `files` are all that are read, tables included, by path or URL.
    """
    if documents not in get_args(DocumentRule):
        raise ConfigError(f"--documents {documents!r}: unknown rule; use auto, blank-line, file or line")
    if documents != "auto":
        return documents, ""
    kinds = [Source(str(file), 0).kind for file in files]
    if kinds == ["text"] and (lines := _lines_by_themselves(str(files[0]), encoding)):
        name = str(files[0]).rpartition("/")[2]
        return "line", f"{name}: a line is a document, as none of its {lines:,} lines is blank"
    return "file" if sum(kind in ("text", "document") for kind in kinds) > 1 else "blank-line", ""


def read_documents(
    files: Sequence[Path],
    *,
    documents: DocumentRule = "auto",
    encoding: str = "auto",
) -> Iterator[Document]:
    """Reads files as documents of sentences, one after another, in bounded memory.

    A document longer than `MAX_SENTENCES` is cut into several of at most that many, in order. `documents` says what
    separates them, see `corpus_documents`. Under `file` a blank line only separates paragraphs. Under `blank-line` a
    heading belongs to the document that follows it. Under `line` no lines are joined. Lines without any letter or digit
    (`* * *`) are left out. `encoding` is as in `read_lines`.
    """
    check_encoding(encoding)
    require_plain_text(files)
    rule, why = corpus_documents(files, documents, encoding)
    if why:
        warnings.warn(why, stacklevel=2)
    found = (documents_of(lines_of(path, encoding), str(path), rule) for path in files)
    return _require_some(itertools.chain.from_iterable(found), files)


def read_text(files: Sequence[Path], encoding: str = "auto") -> Iterator[str]:
    """Reads the text of files as paragraphs (or lines where each stands for itself) that hold a letter or a digit."""
    require_plain_text(files)
    found = (paragraph for path in files for paragraph in paragraphs(lines_of(path, encoding)))
    return _require_some((text for text in found if text is not None and _LETTER_OR_DIGIT.search(text)), files)


def documents_of(
    lines: Iterable[str], source: str, rule: str = "file", *, text: int | None = None
) -> Iterator[Document]:
    """Makes documents, or none, of the lines of one file, of a stretch between two documents, or of one record.

    `text` is the number of the text that all of the lines are a part of; None where they are whole texts.
    """
    if rule == "line":
        for line in lines:
            yield from documents_of([line], source)
        return
    sentences: list[str] = []
    after_heading = False
    number = text
    for paragraph in paragraphs(lines):
        if paragraph is not None:
            after_heading = is_heading(paragraph)
            if _LETTER_OR_DIGIT.search(paragraph):
                sentences += [paragraph] if after_heading else split_sentences(paragraph)
        # 标题后的空行不结束文档，否则标题会单独成为一篇只有一句的文档
        ends_here = paragraph is None and rule == "blank-line" and not after_heading
        while len(sentences) > MAX_SENTENCES or (ends_here and sentences):
            if number is None and len(sentences) > MAX_SENTENCES:
                # 同一本书的各段共用一个号码：留出集按整本书划分，随机的 B 也不取自同一本
                # JSON 里可以有半个代理对：号码只要稳定，不必是合法的 UTF-8
                number = text_number("\n".join(sentences[:MAX_SENTENCES]).encode("utf-8", "surrogatepass"))
            yield Document(source, tuple(sentences[:MAX_SENTENCES]), number)
            del sentences[:MAX_SENTENCES]
        if ends_here:
            number = text
    if sentences:
        yield Document(source, tuple(sentences), number)


_PROSE = "with a blank line between (bertsmith corpus and vocab read a column with --text-field)"


def require_plain_text(files: Sequence[Path], way_out: str = _PROSE) -> None:
    """Makes sure that no file is a table, whose commas, quotes and numbers would be taken for text.

    `way_out` says how the texts stand in a file that is read instead.
    """
    for file in files:
        if Source(str(file), 0).kind not in ("text", "document"):
            raise InputError(f"{file}: is a table, and plain text is needed; write its texts to a .txt file, {way_out}")


def text_number(beginning: bytes) -> int:
    """Returns the number of a text that begins like this."""
    return int.from_bytes(hashlib.blake2b(beginning, digest_size=8).digest(), "little")


def no_text_error(files: Sequence[object]) -> InputError:
    """Returns the error for files that hold no sentence."""
    return InputError(
        f"{few_names(files, 3) or 'no files'}: no sentence found, only empty or blank text; name files that hold text"
    )


def few_texts_error(texts: int, duplicates: int = 0) -> InputError:
    """Returns the error for a corpus of too few texts, besides duplicates."""
    besides = f" besides {duplicates} duplicate(s)" if duplicates else ""
    return InputError(
        f"the corpus has {texts} different document(s){besides}, at least {LEAST_TEXTS} are needed; "
        "separate documents by blank lines and pass --documents blank-line, or --documents line if a line is one, or "
        "add files"
    )


def _require_some(found: Iterable[Found], files: Sequence[Path]) -> Iterator[Found]:
    empty = True
    for one in found:
        empty = False
        yield one
    if empty:
        raise no_text_error(files)


def paragraphs(raw_lines: Iterable[str]) -> Iterator[str | None]:
    """Puts lines of running text together to paragraphs, headings and lines by themselves; None for a blank line."""
    lines: list[str] = []
    length = 0
    for raw in raw_lines:
        line = raw.strip()
        heading = line.startswith("=") and is_heading(line)
        if line and not heading:
            lines.append(line)
            length += len(line)
            # 没有空行的文件也要有界：攒到上限就先交出去
            if len(lines) < _MAX_PARAGRAPH_LINES and length < _MAX_PARAGRAPH_LENGTH:
                continue
        yield from join_lines(lines)
        lines, length = [], 0
        if heading:
            yield line
        elif not line:
            yield None
    yield from join_lines(lines)


def join_lines(lines: Sequence[str]) -> list[str]:
    """Puts the lines of one paragraph back together where only the width of the page had broken them.

    A line break is forced when the next word would not have fitted into the widest line of the paragraph. A paragraph
    is hard-wrapped when most of its breaks are forced, unless most of its lines end a sentence or begin with a capital;
    then the lines are joined at the forced breaks, and where the next line goes on in lower case. In any other
    paragraph (verse, lists, one sentence per line) every line stays on its own.

    Lines are joined by a space, except between two Chinese or Japanese characters, and after a hyphen or dash that
    follows a word: `well-` + `known` gives `well-known`. The hyphen always stays, since nothing but a dictionary tells
    that one from the one in `exam-` + `ple`, and losing it would be the worse mistake.

    Args:
        lines: without white space around them, none empty.
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

    joined = [[lines[0]]]
    for line, is_forced in zip(lines[1:], forced, strict=True):
        previous = joined[-1][-1]
        if is_forced or line[0].islower():
            joined[-1] += (_glue(previous, line), line)
        else:
            joined.append([line])
    return ["".join(parts) for parts in joined]


def _lines_by_themselves(place: str, encoding: str) -> int:
    """Counts the lines of a file, where they are many and texts of their own; 0 for any other file."""
    count, seen = 0, list[str]()
    for is_blank, lines in itertools.groupby(lines_of(Span(place), encoding), key=lambda line: not line.strip()):
        if is_blank:
            continue
        # 开头和末尾的空行不算；有两段以上的，照旧按空行分篇
        if count:
            return 0
        for line in lines:
            count += 1
            if len(seen) < _LINES_SEEN:
                # 只看行首和宽度：几 MB 长的行不必留着
                seen.append(line.strip()[: _WRAP_WIDTHS.stop])
    return count if count >= LEAST_LINES and not _are_wrapped(seen) else 0


def _are_wrapped(lines: Sequence[str]) -> bool:
    """Tells whether many lines go on in the next one, since the width of a page has broken them."""
    groups = [lines[start : start + _LINES_TOGETHER] for start in range(0, len(lines), _LINES_TOGETHER)]
    joined = sum(len(group) - len(join_lines(group)) for group in groups)
    going_on = sum(line[0].isalpha() and not line[0].isupper() for line in lines)
    ((_, most_alike),) = Counter(map(_first_word, lines)).most_common(1)
    # 日志和套话的各行也差不多一样宽，但行首是数字、大写字母或同一个词；折断的散文不是
    return joined > 0.2 * len(lines) and going_on > 0.3 * len(lines) and most_alike < 0.2 * len(lines)


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
    return _width(_first_word(line))


def _first_word(line: str) -> str:
    found = _FIRST_WORD.match(line)
    return found.group() if found else ""


def _glue(previous: str, line: str) -> str:
    """What to put between two lines that belong together."""
    if _UNSPACED_CHARACTER.match(previous[-1]) and _UNSPACED_CHARACTER.match(line):
        return ""
    return "" if _ENDS_HYPHENATED.search(previous) and line[0].isalpha() else " "
