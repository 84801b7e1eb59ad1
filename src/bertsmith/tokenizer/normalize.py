"""From raw text to the words that WordPiece cuts: the basic tokenization rules of the original BERT release.

The published order is: clean, put spaces around CJK, split on white space, lower-case and strip accents, split off
punctuation. Here the text is cut into *chunks* first (between white space, and around every CJK character) and the
rest is done chunk by chunk, because a chunk repeats and its words can be remembered. The result is the same: no
published rule looks across a white space or a CJK character.

Where the original release and `tokenizers` disagree, this follows the original: control and format characters
(Cc, Cf) are removed, unassigned and private-use characters are kept, lower-casing knows the Greek final sigma.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

# 这些字符被 str.split 当作空白，而原版把它们当控制字符直接删除（"a\x0bb" 是一个词 "ab"）
HIDDEN_CONTROLS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"
_HIDDEN_CLASS = "\\x0b\\x0c\\x1c-\\x1f\\x85"

# The blocks the original release calls CJK: unified ideographs with extensions A to E, compatibility ideographs.
_CJK_CLASS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
# 中文标点也单独成块：这样数字、拉丁词等片段不带标点，重复率高，缓存才有效。
# 只收不影响大小写上下文的标点（全角冒号会影响希腊字母 Σ 的词尾判断，故不收）
_CJK_STOPS = "，。、；！？《》「」『』（）【】“”"

_CHUNK = re.compile(f"(?:[^\\s]|[{_HIDDEN_CLASS}])+")
_CJK = re.compile(f"[{_CJK_CLASS}]")
_CJK_CHUNK = re.compile(
    f"[{_CJK_CLASS}{_CJK_STOPS}]|(?:[^\\s{_CJK_CLASS}{_CJK_STOPS}]|[{_HIDDEN_CLASS}])+",
)
_ASCII_PUNCTUATION = "!-/:-@\\[-`{-~"
_ASCII_WORD = re.compile(f"[{_ASCII_PUNCTUATION}]|[^{_ASCII_PUNCTUATION}]+")


@dataclass(frozen=True)
class Normalizer:
    """Cuts text into chunks and chunks into normalised words.

    Attributes:
        lowercase: lower-case every word.
        strip_accents: decompose (NFD) and drop the nonspacing marks (Mn), so that `é` becomes `e`.
        tokenize_chinese_chars: every CJK character is a word of its own.
    """

    lowercase: bool = True
    strip_accents: bool = True
    tokenize_chinese_chars: bool = True

    def chunks(self, text: str) -> list[str]:
        """Cuts a text at white space only: the fast first cut.

        Args:
            text: any text.

        Returns:
            The chunks in order; those with CJK characters inside still have to pass `split_cjk`.
        """
        # 逐个 `in` 用的是 memchr，比正则或 translate 扫一遍快一个量级
        if (
            "\x0b" in text
            or "\x0c" in text
            or "\x1c" in text
            or "\x1d" in text
            or "\x1e" in text
            or "\x1f" in text
            or "\x85" in text
        ):
            return _CHUNK.findall(text)
        return text.split()

    def split_cjk(self, chunk: str) -> list[str] | None:
        """Cuts around every CJK character, if there is anything to cut.

        Args:
            chunk: a chunk, or a whole text (white space separates here too).

        Returns:
            The smaller chunks in order, or None where the chunk holds no CJK character or is nothing but one.
        """
        if not self.tokenize_chinese_chars or chunk.isascii() or len(chunk) == 1 or not _CJK.search(chunk):
            return None
        return _CJK_CHUNK.findall(chunk)

    def find_chunks(self, text: str) -> Iterator[re.Match[str]]:
        """Yields every chunk with its place in the text, CJK characters already apart.

        Args:
            text: any text.

        Returns:
            An iterator of matches; `start()` is the chunk's first character in `text`.
        """
        apart = self.tokenize_chinese_chars and not text.isascii()
        return (_CJK_CHUNK if apart else _CHUNK).finditer(text)

    def words(self, chunk: str) -> list[str]:
        """Cleans, lower-cases, strips accents and splits punctuation off.

        Args:
            chunk: text without white space, and without CJK characters unless it is one.

        Returns:
            The words in order; empty where the chunk held only characters that are removed.
        """
        if chunk.isascii():
            text = chunk if chunk.isprintable() else _clean(chunk)
            return _ASCII_WORD.findall(text.lower() if self.lowercase else text)
        text = _clean(chunk)
        if self.lowercase:
            # 整块一起转小写：词尾的 Σ 要看上下文才知道变成 ς 还是 σ
            text = text.lower()
        if self.strip_accents:
            text = _strip_marks(unicodedata.normalize("NFD", text))
        return _word_pattern().findall(text)

    def aligned_words(self, chunk: str) -> list[tuple[str, list[int]]]:
        """Does what `words` does and remembers where every character came from.

        Args:
            chunk: as for `words`.

        Returns:
            For each word: the word, and for each of its characters the index in `chunk` of the character it stems
            from (several may share one: a Hangul syllable decomposes into its letters).
        """
        pairs = [(char, index) for index, char in enumerate(chunk) if not _is_removed(char)]
        if self.lowercase:
            lowered = iter("".join(char for char, _ in pairs).lower())
            # 单个字符小写后的长度与上下文无关（只有 Σ 的取值有关），所以可以按长度逐个对回原字符
            pairs = [(next(lowered), index) for char, index in pairs for _ in char.lower()]
        if self.strip_accents:
            parts = [(part, index) for char, index in pairs for part in unicodedata.normalize("NFD", char)]
            pairs = [(part, index) for part, index in _canonical_order(parts) if unicodedata.category(part) != "Mn"]
        text = "".join(char for char, _ in pairs)
        sources = [index for _, index in pairs]
        return [(match.group(), sources[match.start() : match.end()]) for match in _word_pattern().finditer(text)]


def is_standalone(char: str, tokenize_chinese_chars: bool = True) -> bool:
    """Tells whether a normalised character is always a word of its own, so that a `##` form of it is never used.

    Args:
        char: one character.
        tokenize_chinese_chars: the tokenizer's setting.

    Returns:
        True for punctuation, and for CJK characters where they are set apart.
    """
    return _is_punctuation(char) or (tokenize_chinese_chars and _CJK.match(char) is not None)


def _is_removed(char: str) -> bool:
    # NUL 属于 Cc，已包含在内；U+FFFD 是 So，需单独判断
    return char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf")


def _clean(text: str) -> str:
    # isprintable 在 C 里一次判完；绝大多数块没有要删除的字符
    if text.isprintable() and "\ufffd" not in text:
        return text
    return "".join(char for char in text if not _is_removed(char))


def _strip_marks(text: str) -> str:
    return text if text.isascii() else "".join(char for char in text if unicodedata.category(char) != "Mn")


def _canonical_order(parts: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Sorts runs of combining marks by their combining class, as NFD over a whole text does (Unicode, D108-D109)."""
    ordered: list[tuple[str, int]] = []
    run: list[tuple[str, int]] = []
    for part in parts:
        if unicodedata.combining(part[0]):
            run.append(part)
            continue
        ordered += sorted(run, key=lambda item: unicodedata.combining(item[0]))
        ordered.append(part)
        run = []
    return ordered + sorted(run, key=lambda item: unicodedata.combining(item[0]))


def _is_punctuation(char: str) -> bool:
    # 原版把所有 ASCII 非字母数字符号都算标点，尽管 "$" 之类的 Unicode 类别不是 P
    return ("!" <= char <= "~" and not char.isalnum()) if char.isascii() else unicodedata.category(char)[0] == "P"


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    """Compiles the punctuation splitter, once, when the first chunk outside ASCII turns up (about 20 ms)."""
    # 只扫有字符的平面：第 4 到 13 平面未分配，第 15、16 平面是私有区，都没有标点
    points = [*range(0x40000), *range(0xE0000, 0xE1000)]
    punctuation = "".join(re.escape(chr(point)) for point in points if _is_punctuation(chr(point)))
    return re.compile(f"[{punctuation}]|[^{punctuation}]+")
