"""Search by words: BM25 (Robertson and Zaragoza 2009), computed by the library `bm25s`.

Words are as the tokenizer of BERT finds them, without accents and punctuation; they do not depend on a model. First
what only looks different is made alike: full-width letters, ligatures and radicals as PDF gives them (Unicode's NFKC),
capitals, and `ß` beside `ss` (its case folding); where an index asks for it, traditional and simplified characters too,
one by one, by the tables of OpenCC. Chinese is written without spaces: every character counts as a word, and so does
every pair of neighbours, which finds more than characters alone and, on XQuAD, no less than the words of a dictionary.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Set
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.files import parse_json
from bertsmith.retrieval.dense import Found, best, search_library
from bertsmith.tokenizer.normalize import Normalizer

if TYPE_CHECKING:
    from scipy.sparse import csc_array

Fold = Callable[[str], str]
_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
_STRETCH = re.compile(rf"[\u2e80-\u2fdf]|{_CHINESE.pattern}|(?:(?!{_CHINESE.pattern})\w)+")
_NORMALIZER = Normalizer()
_RADICALS = str.maketrans(
    "⺠⻁⻄⻅⻆⻉⻋⻑⻓⻔⻘⻙⻚⻛⻜⻝⻢⻣⻤⻥⻦⻧⻨⻩⻪⻬⻮⻰",
    "民虎西见角贝车長长门青韦页风飞食马骨鬼鱼鸟卤麦黄黾齐齿龙",
)
"""Radicals that stand for whole characters in text from PDF, and that NFKC leaves as they are."""
_WORDS, _MOST_BYTES = "vocab.index.json", 1 << 30
"""The file of the words, as `bm25s` calls it, and the most that is read of one: some forty million words."""


def folded(text: str) -> str:
    """Returns a text with characters that only look different made alike."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).translate(_RADICALS).casefold())


def simplified(text: str) -> str:
    """Returns the folded text with simplified Chinese characters for traditional ones."""
    return folded(text).translate(_simplified_characters())


@cache
def _simplified_characters() -> dict[int, str]:
    convert = search_library("opencc", "opencc-py").OpenCC("t2s").convert
    # 逐字对应：按词转换时，同一个字在文中和在查询里可能变成不同的字
    codes = [code for code in range(0x3400, 0x30000) if _CHINESE.fullmatch(chr(code))]
    return {code: simple for code in codes if (simple := convert(chr(code))) != chr(code)}


def words_of(text: str, fold: Fold = folded) -> list[str]:
    """Returns the words of a text by which it is found."""
    text = fold(text)
    words: list[str] = []
    chinese = ""
    for chunk in _NORMALIZER.chunks(text):
        for word in _NORMALIZER.words(chunk):
            if _CHINESE.fullmatch(word):
                # 相邻两字成对：单字太常见，分不出主题
                words += [word, chinese + word] if chinese else [word]
                chinese = word
            else:
                chinese = ""
                if any(map(str.isalnum, word)):
                    words.append(word)
    return words


def places_of(text: str, words: Set[str], fold: Fold = folded) -> list[tuple[int, int]]:
    """Returns where words stand in a text: start and end of each stretch, in order, neighbours in Chinese as one."""
    places: list[tuple[int, int]] = []
    for match in _STRETCH.finditer(text):
        if words.isdisjoint(words_of(match[0], fold)):
            continue
        if places and places[-1][1] == match.start():
            places[-1] = (places[-1][0], match.end())
        else:
            places.append(match.span())
    return places


def usual_spelling(texts: Iterable[str], words: Iterable[str], fold: Fold = folded) -> dict[str, str]:
    """Returns how each word is mostly written in texts; as it is where none of them holds it alone."""
    seen: dict[str, Counter[str]] = {word: Counter() for word in words}
    for stretch, count in Counter(match[0] for text in texts for match in _STRETCH.finditer(text)).items():
        found = words_of(stretch, fold)
        if len(found) == 1 and found[0] in seen:
            seen[found[0]][stretch] += count
    return {word: max(forms, key=lambda form: forms[form], default=word) for word, forms in seen.items()}


class LexicalSearch:
    """Finds texts by the words they share with a query."""

    def __init__(self, engine: Any, count: int, fold: Fold = folded) -> None:
        """Takes a `bm25s.BM25` that knows N texts, and how their words were made alike; see `load` and `build`."""
        self._engine, self._count, self.fold = engine, count, fold

    @classmethod
    def build(cls, texts: Iterable[str], fold: Fold = folded) -> LexicalSearch:
        """Counts the words of N texts, at least one; `fold` makes them alike."""
        ids: dict[str, int] = {}
        rows = [[ids.setdefault(word, len(ids)) for word in words_of(text, fold)] for text in texts]
        engine = search_library("bm25s").BM25()
        # 全是标点的文本也要占一行，行号才与向量对得上
        ids.setdefault("", len(ids))
        # 一个词也没有时平均长度为零：除法没有结果，也没有谁用到它
        with np.errstate(invalid="ignore"):
            engine.index((rows, ids), show_progress=False)
        return cls(engine, len(rows), fold)

    def save(self, folder: Path) -> None:
        """Writes the counts as `.npy` and JSON files."""
        self._engine.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, count: int, fold: Fold = folded) -> LexicalSearch:
        """Opens what `save` wrote of N texts, with the same `fold`; the arrays stay on disk until they are read.

        Raises:
            OSError: a file is missing or cannot be read.
            ValueError: a file is damaged, or not of N texts.
        """
        # 索引可能来自别处：词表读多少有上限，参数一概不读，都是 `build` 的
        known = parse_json(folder / _WORDS, most=_MOST_BYTES)
        engine = search_library("bm25s").BM25()
        engine.load_scores(folder, num_docs=count, mmap=True)
        data, indices, indptr = (engine.scores[name] for name in ("data", "indices", "indptr"))
        columns = known.values() if isinstance(known, dict) else ()
        # 库在查询时才用到这些编号，而且不查：不对的现在就说
        if (
            [(array.ndim, array.dtype.kind) for array in (data, indices, indptr)] != [(1, "f"), (1, "i"), (1, "i")]
            or len(data) != len(indices)
            or not 0 <= indices.min(initial=0) <= indices.max(initial=0) < count
            or set(map(type, columns)) != {int}
            or not 0 <= min(columns) <= max(columns) < len(indptr) - 1
        ):
            raise ValueError(f"{folder.name}: words and counts do not belong together")
        engine.vocab_dict, engine.nonoccurrence_array = known, None
        return cls(engine, count, fold)

    def incidence(self) -> tuple[csc_array, list[str]]:
        """Returns [N, V] float32, 1 where a text holds a word, and the words: of two characters or more, no numbers."""
        from scipy.sparse import csc_array

        scores, known = self._engine.scores, self._engine.vocab_dict
        words = [word for word in known if len(word) > 1 and not word.isdigit()]
        held = (np.ones(len(scores["indices"]), dtype=np.float32), scores["indices"], scores["indptr"])
        whole = csc_array(held, shape=(self._count, len(scores["indptr"]) - 1))
        return whole[:, [known[word] for word in words]], words

    def scores(self, query: str) -> NDArray[np.float32]:
        """Returns [N] float32, the scores of all texts; 0 where a text shares no word with the query, else above."""
        words = words_of(query, self.fold)
        known = [self._engine.vocab_dict[word] for word in words if word in self._engine.vocab_dict]
        if not known:
            return np.zeros(self._count, dtype=np.float32)
        found: NDArray[np.float32] = self._engine.get_scores_from_ids(known)
        return found

    def search(self, query: str, k: int, rows: NDArray[np.int64] | None = None) -> Found:
        """Finds the k texts with the highest scores, among some rows or all: [n] rows and [n] scores, best first.

        n may be less than k: texts that share no word with the query are left out.
        """
        scores = self.scores(query)
        scores = scores if rows is None else scores[rows]
        top = best(scores, k)
        top = top[scores[top] > 0]
        return (top if rows is None else rows[top]), scores[top]
