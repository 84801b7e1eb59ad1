"""From raw text to the words that WordPiece cuts: the basic tokenization rules of the original BERT release.

The published order is: clean, put spaces around CJK, split on white space, lower-case and strip accents, split off
punctuation. Here the text is cut into *chunks* first (between white space, and around every CJK character) and the rest
is done chunk by chunk, because a chunk repeats and its words can be remembered. The result is the same: no published
rule looks across a white space or a CJK character.

Where the original release and `tokenizers` disagree, this follows the original: control and format characters (Cc, Cf)
are removed, unassigned and private-use characters are kept, lower-casing knows the Greek final sigma. Punctuation and
marks follow the Unicode tables of the running Python.
"""

import functools
import re
import string
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

# 这些字符被 str.split 当作空白，而原版把它们当控制字符直接删除（"a\x0bb" 是一个词 "ab"）
HIDDEN_CONTROLS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
SPACES = "".join(char for char in map(chr, range(0x3001)) if char.isspace() and char not in HIDDEN_CONTROLS)
# The original release counts all of these as punctuation, though Unicode calls some of them symbols.
ASCII_PUNCTUATION = string.punctuation

# Ranges for the inside of a regular expression's brackets.
CJK = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
# 中文标点也单独成块：这样数字、拉丁词等片段不带标点，重复率高，缓存才有效。
# 只收不影响大小写上下文的标点（全角冒号会影响希腊字母 Σ 的词尾判断，故不收）
CJK_STOPS = "，。、；！？《》「」『』（）【】“”"

LONG_RUN = 1000
"""Marks in a row; fewer are sorted fast enough by any method."""

_ASTRAL = "\U00010000-\U0010ffff"
_REMOVE_HIDDEN = str.maketrans("", "", "\0" + HIDDEN_CONTROLS)
_CJK = re.compile(f"[{CJK}]")
# Everything between two CJK characters, stops or white spaces; the group makes `split` keep it.
_BETWEEN_CJK = re.compile(f"([^{SPACES}{CJK}{CJK_STOPS}]+)")
_BETWEEN_SPACES = re.compile(f"[^{SPACES}]+")
_ASCII_PUNCTUATION = "!-/:-@\\[-`{-~"
_ASCII_WORD = re.compile(f"[{_ASCII_PUNCTUATION}]|[^{_ASCII_PUNCTUATION}]+")

BOUNDARY = "\0"
"""The chunk that stands between two texts: NUL is removed from every text, so none can hold it."""
_BETWEEN_TEXTS = f" {BOUNDARY} "


nfd = functools.partial(unicodedata.normalize, "NFD")


class Patterns(NamedTuple):
    """What Unicode's tables decide, compiled: `word` splits punctuation off, `marks` finds nonspacing marks."""

    word: re.Pattern[str]
    marks: re.Pattern[str]


@functools.cache
def patterns() -> Patterns:
    """Compiles the patterns for text outside ASCII."""
    # 一次取出全部类别，拼成每字符两个字母的串，再用正则找连续区间：扫描都在 C 里
    categories = "".join(map(unicodedata.category, map(chr, range(sys.maxunicode + 1))))
    near, far = _ranges("P[a-z]", categories)
    # 基本平面外的区间很多，而 re 只能逐个比较；先用一个区间挡住，常见字符就不必走那一长串
    word = f"[{near}]|(?=[{_ASTRAL}])[{far}]|(?:[^{near}{_ASTRAL}]+|(?![{far}])[{_ASTRAL}])+"
    near, far = _ranges("Mn", categories)
    return Patterns(re.compile(word), re.compile(f"[{near}]|(?=[{_ASTRAL}])[{far}]"))


@functools.cache
def long_run_of_marks() -> re.Pattern[str]:
    """Compiles the pattern of `LONG_RUN` and more characters in a row that Unicode sorts by their combining class."""
    marks = "".join(filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1))))
    # 这三个字符自己的组合类是 0，分解后全是组合符；Unicode 保证不会再有第四个
    return re.compile(f"[{marks}\u0f73\u0f75\u0f81]{{{LONG_RUN},}}")


def in_canonical_order(marks: str) -> str:
    """Decomposes marks and sorts them by combining class (Unicode D109) in n log n steps; CPython takes n²."""
    return "".join(sorted("".join(map(nfd, marks)), key=unicodedata.combining))


def is_removed(char: str) -> bool:
    """Tells whether cleaning removes a character: NUL and other controls, format characters, U+FFFD."""
    # NUL 属于 Cc，已包含在内；U+FFFD 是 So，需单独判断
    return char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf")


def is_standalone(char: str, tokenize_chinese_chars: bool = True) -> bool:
    """Tells whether a normalised character is always a word of its own, so that a `##` form of it is never used."""
    return is_punctuation(char) or (tokenize_chinese_chars and _CJK.match(char) is not None)


def is_punctuation(char: str) -> bool:
    """Tells whether a character is punctuation: Unicode's (P), and every ASCII character but letters and digits."""
    return char in ASCII_PUNCTUATION if char.isascii() else unicodedata.category(char)[0] == "P"


def _ranges(category: str, categories: str) -> tuple[str, str]:
    """Writes the code points of a category as bracket ranges: those up to U+FFFF, and those beyond."""
    spans = [(match.start() // 2, match.end() // 2 - 1) for match in re.finditer(f"(?:{category})+", categories)]
    if category.startswith("P"):
        spans = [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E), *spans]
    near, far = (
        "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in spans if (first > 0xFFFF) is beyond)
        for beyond in (False, True)
    )
    return near, far


@dataclass(frozen=True)
class Normalizer:
    """Cuts text into chunks and chunks into normalised words.

    `strip_accents` decomposes (NFD) and drops nonspacing marks (Mn), so that `é` becomes `e`; `tokenize_chinese_chars`
    makes every CJK character a word of its own.
    """

    lowercase: bool = True
    strip_accents: bool = True
    tokenize_chinese_chars: bool = True

    def chunks(self, text: str) -> Iterable[str]:
        """Cuts a text between white space and around CJK characters, as fast as Python can."""
        if "\0" in text or _holds_hidden_control(text):
            text = text.translate(_REMOVE_HIDDEN)
        return self._split(text)

    def marked_chunks(self, texts: Sequence[str]) -> Iterable[str]:
        """Cuts several texts as `chunks` does, in one go."""
        text = _BETWEEN_TEXTS.join([*texts, ""])
        # 分隔符多于应有的个数，说明某个文本里自带 NUL：先逐个清理再拼
        if text.count(BOUNDARY) != len(texts) or _holds_hidden_control(text):
            text = _BETWEEN_TEXTS.join([*(text.translate(_REMOVE_HIDDEN) for text in texts), ""])
        return self._split(text)

    def _split(self, text: str) -> Iterable[str]:
        if text.isascii() or not self.tokenize_chinese_chars or _CJK.search(text) is None:
            return text.split()
        return _split_cjk(text)

    def placed_chunks(self, text: str) -> tuple[Iterable[str], int]:
        """Cuts a text without losing a character, so that every chunk's place follows from the lengths before it.

        Also returns how many characters lie between one chunk and the next: 1 where spaces cut them, 0 around CJK.
        """
        if text.isascii() or not self.tokenize_chinese_chars or _CJK.search(text) is None:
            return text.split(" "), 1
        return _split_cjk(text), 0

    def words(self, chunk: str) -> list[str]:
        """Cleans, lower-cases, strips accents and splits punctuation off."""
        if chunk.isascii():
            text = chunk.lower() if self.lowercase else chunk
            # 四成的新块只含字母数字，就是一个词；标点（除 ASCII 字母数字外的可打印字符）各自成词
            if text.isalnum():
                return [text]
            return _ASCII_WORD.findall(text if text.isprintable() else _clean(text)) if chunk != " " else []
        # 基本区的单个汉字，规范化不会改变它
        if len(chunk) == 1 and "\u4e00" <= chunk <= "\u9fff":
            return [chunk]
        return patterns().word.findall(self._normalize(chunk)) if not chunk.isspace() else []

    def aligned_words(self, chunk: str) -> list[tuple[list[str], Sequence[int]]]:
        """Does what `words` does for a chunk that may hold white space, and tells where every character came from.

        Returns:
            For each part between white space its words, and for each character of these words, one after another, the
            index in `chunk` of the character it stems from (several may share one: a Hangul syllable decomposes into
            its letters).
        """
        # 可打印的 ASCII 没有字符增减，也没有空格以外的空白：位置就是下标本身
        if chunk.isascii() and chunk.isprintable():
            return [(self.words(chunk), range(len(chunk)))]
        parts = [(part.group(), part.start()) for part in _BETWEEN_SPACES.finditer(chunk)]
        return [(self.words(part), self._sources(part, begin)) for part, begin in parts]

    def _normalize(self, chunk: str) -> str:
        text = _clean(chunk)
        if self.lowercase:
            # 整块一起转小写：词尾的 Σ 要看上下文才知道变成 ς 还是 σ
            text = text.lower()
        if self.strip_accents:
            # 一长串乱序的组合符会让 NFD 的插入排序用平方时间（攻击者可以造）：先排好序，结果不变
            if len(text) >= LONG_RUN:
                text = long_run_of_marks().sub(lambda run: in_canonical_order(run.group()), text)
            text = patterns().marks.sub("", nfd(text))
        return text

    def _sources(self, chunk: str, begin: int) -> Sequence[int]:
        """Finds for every character of a normalised chunk the one it stems from; the first one has number `begin`."""
        # NFD 会把留下的组合符（Mc、Me）按组合类排序，位置也随之排序：先按组合类，再按原次序（Unicode D108）
        placed: list[tuple[int, int, int]] = []
        base = 0
        for source, char in enumerate(chunk, begin):
            for combining_class, is_kept in _normalized_parts(char, self.lowercase, self.strip_accents):
                base += combining_class == 0
                if is_kept:
                    placed.append((base, combining_class, source))
        placed.sort()
        return [source for _, _, source in placed]


def _holds_hidden_control(text: str) -> bool:
    """Tells whether `str.split` would take a control character for white space that the original release removes."""
    # "a\x0bb" 是一个词；逐个 `in` 走 memchr，总共不到 0.1 微秒
    return (
        "\x0b" in text
        or "\x0c" in text
        or "\x1c" in text
        or "\x1d" in text
        or "\x1e" in text
        or "\x1f" in text
        or "\x85" in text
    )


def _split_cjk(text: str) -> Iterable[str]:
    """Yields CJK characters, stops and white spaces one by one, and everything between them whole."""
    parts: list[str] | list[Iterable[str]] = _BETWEEN_CJK.split(text)
    # 偶数项全是汉字，逐字遍历即可；奇数项各包成一元组，整块取出。全程在 C 里，比逐字匹配正则快几倍
    parts[1::2] = zip(parts[1::2])  # type: ignore[assignment]
    return chain.from_iterable(parts)


@functools.lru_cache(maxsize=1 << 14)
def _normalized_parts(char: str, lowercase: bool, strip_accents: bool) -> tuple[tuple[int, bool], ...]:
    """Lists what normalising makes of one character: for each part its combining class, and whether it is kept."""
    if is_removed(char):
        return ()
    text = char.lower() if lowercase else char
    # 只有 Σ 的小写取决于上下文，而 σ 与 ς 的长度和组合类相同，所以可以逐字符计算
    if not strip_accents:
        return ((0, True),) * len(text)
    decomposed = nfd(text)
    return tuple((unicodedata.combining(part), unicodedata.category(part) != "Mn") for part in decomposed)


def _clean(text: str) -> str:
    # isprintable 在 C 里一次判完；绝大多数块没有要删除的字符
    if text.isprintable() and "\ufffd" not in text:
        return text
    return "".join(char for char in text if not is_removed(char))
