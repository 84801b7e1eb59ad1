"""Pairs from documents without labels: what a text itself says belongs together.

- `cloze`: a sentence is the query, the sentences around it are the text that answers it (inverse cloze: Lee et al.
  2019, "Latent Retrieval for Weakly Supervised Open Domain Question Answering", §4): as in search, a short query and a
  longer text
- `adjacent`: a stretch of text and the one after it (Neelakantan et al. 2022, §2)
- `span`: a few words in a row are the query, the stretch they are from is the text: what they have in common says most
  (cropping, of two stretches of any length: Izacard et al. 2022, §3.1)
- `same`: a sentence and itself; what differs is what dropout drops (SimCSE: Gao et al. 2021, §3)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from bertsmith.data.reading.finding import find_text_files
from bertsmith.data.reading.lines import split_lines
from bertsmith.data.reading.rows import Rows
from bertsmith.data.reading.text import Document, documents_of, read_documents
from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.related import RelatedTexts
from bertsmith.finetune.datasets.rows import DataSource, table_of
from bertsmith.finetune.datasets.tables import listed
from bertsmith.seeding import generator
from bertsmith.tokenizer.characters import CJK

Positives = Literal["span", "cloze", "adjacent", "same"]

# 中文不用空格分词：一个汉字算一个词
_WORD = re.compile(rf"[{CJK}]|[^\s{CJK}]+")

WINDOW = 4
"""Sentences in a stretch of text."""
KEPT_SHARE = 0.1
"""How often the query stays in its text, so that words in common count, too (Lee et al. 2019, §9.2)."""
SPAN = (3, 12)
"""Fewest and most words of a span; a stretch has at least twice as many as its span."""
HELD_OUT_SHARE, MOST_HELD_OUT = 0.05, 500
"""Share of the documents that choose the epoch, and how many of their pairs at most."""


def read_unlabelled(
    source: DataSource, positives: Positives = "cloze", *, encoding: str = "auto", seed: int = 0
) -> tuple[list[RelatedTexts], list[RelatedTexts]]:
    """Makes pairs of the text files of a folder, or of the texts in memory, to learn from and to choose the epoch by.

    The held-out pairs are always `cloze`: they stand for search, whatever is learned from.

    Args:
        source: a folder, file or pattern, as for `bertsmith corpus`; or rows in memory, each with a document in the
            column `text`.
        positives: what belongs together.
        encoding: of the files: `auto` or a codec.
        seed: of the draws.

    Returns:
        Training pairs, no text twice on the same side, and held-out pairs of other documents.

    Raises:
        ConfigError: the kind of positives is unknown.
        InputError: the files are not readable, or too short to be cut into two stretches for each side.
    """
    if positives not in get_args(Positives):
        raise ConfigError(f"positives {positives!r} are unknown; use {', '.join(get_args(Positives))}")
    if isinstance(source, (str, Path)):
        place, documents = str(source), list(read_documents(find_text_files([source]), encoding=encoding))
    else:
        place, documents = "unlabelled", _documents_in(source)
    # 按整篇留出而不是按句对：同一篇里的句子互相泄露答案
    held_out = generator(seed, "unlabelled/held out").random(len(documents)) < HELD_OUT_SHARE
    # 文本很少时，按比例可能一篇也没抽中
    if not held_out.any():
        held_out[-1] = len(documents) > 1
    learned, chosen_by = (
        _pairs([each for each, out in zip(documents, held_out, strict=True) if out == wanted], make, seed)
        for wanted, make in ((False, _MAKERS[positives]), (True, _cloze))
    )
    if len(learned) < 2 or len(chosen_by) < 2:
        raise InputError(
            f"{place}: {len(documents):,} documents give {len(learned)} pairs to learn from and {len(chosen_by)} to"
            " choose the epoch by; two of each are needed, so add text, or give pairs of your own with --dev"
        )
    order = generator(seed, "unlabelled/dev").permutation(len(chosen_by))[:MOST_HELD_OUT]
    return learned, [chosen_by[number] for number in sorted(order.tolist())]


def _documents_in(rows: Rows) -> list[Document]:
    """Returns the documents of rows in memory; one that is longer than a document may be is several."""
    table = table_of(rows, "unlabelled")
    if "text" not in table.first:
        raise InputError(f"unlabelled: no column text among {listed(table.first)}; call that of the documents text")
    column = [table.first.index("text")]
    texts = ((row.place, row.cell(column, "text").text()) for row in table.rows)
    return [document for place, text in texts for document in documents_of(split_lines(text), place)]


def _pairs(documents: Sequence[Document], make: _Maker, seed: int) -> list[RelatedTexts]:
    """Returns the pairs of documents; a repeated query or text is left out, since copies cannot be told apart."""
    queries: set[str] = set()
    texts: set[str] = set()
    found = []
    for number, document in enumerate(documents):
        # 每篇文档的抽取只由种子和它的编号决定：续跑时得到同样的对
        for query, text in make(document.sentences, generator(seed, "unlabelled/pairs", number)):
            if query not in queries and text not in texts:
                queries.add(query)
                texts.add(text)
                found.append(RelatedTexts(query, text, place=document.source))
    return found


def _cloze(sentences: Sequence[str], draws: np.random.Generator) -> Iterator[tuple[str, str]]:
    for first in range(0, len(sentences), WINDOW):
        window = sentences[first : first + WINDOW]
        chosen, is_kept = int(draws.integers(len(window))), draws.random() < KEPT_SHARE
        rest = [sentence for number, sentence in enumerate(window) if is_kept or number != chosen]
        if len(window) > 1:
            yield window[chosen], " ".join(rest)


def _span(sentences: Sequence[str], draws: np.random.Generator) -> Iterator[tuple[str, str]]:
    fewest, most = SPAN
    for first in range(0, len(sentences), WINDOW):
        window = " ".join(sentences[first : first + WINDOW])
        words = [match.span() for match in _WORD.finditer(window)]
        if len(words) >= 2 * fewest:
            count = int(draws.integers(fewest, min(most, len(words) // 2) + 1))
            begin = int(draws.integers(len(words) - count + 1))
            yield window[words[begin][0] : words[begin + count - 1][1]], window


def _adjacent(sentences: Sequence[str], _draws: np.random.Generator) -> Iterator[tuple[str, str]]:
    half = WINDOW // 2
    windows = [" ".join(sentences[first : first + half]) for first in range(0, len(sentences), half)]
    yield from pairwise(windows)


def _same(sentences: Sequence[str], _draws: np.random.Generator) -> Iterator[tuple[str, str]]:
    yield from ((sentence, sentence) for sentence in sentences)


_Maker = Callable[[Sequence[str], np.random.Generator], Iterator[tuple[str, str]]]
_MAKERS: dict[Positives, _Maker] = {"span": _span, "cloze": _cloze, "adjacent": _adjacent, "same": _same}
