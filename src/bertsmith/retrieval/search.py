"""Finding passages in an index: by vectors, by words, by both, and with a second look by a cross-encoder.

    index = load_index("notes.index")
    for hit in index.search("how do I renew a licence?", k=5, where={"file": "guides/*"}):
        print(hit.score, hit.place, hit.text)

Vectors find what is said in other words, words find names and numbers. `hybrid` adds the scores of both with a weight,
`ranks` their reciprocal ranks (Cormack, Clarke and Büttcher 2009).
"""

from __future__ import annotations

import fnmatch
import logging
import re
import threading
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.reading.document_kinds import Metadata
from bertsmith.errors import BertsmithError, CheckpointError, ConfigError, InputError
from bertsmith.inference.classify import Rank
from bertsmith.inference.embed import Embed
from bertsmith.inference.engine import Precision
from bertsmith.inference.pipeline import Device
from bertsmith.retrieval.dense import DEPTH, DenseSearch, Found, open_codes, reciprocal_ranks, weighted_scores
from bertsmith.retrieval.lexical import LexicalSearch, folded, simplified
from bertsmith.retrieval.passages import has_pages
from bertsmith.retrieval.stored import CODES, CURRENT, LEXICAL, StoredIndex, open_index, scaled

Mode = Literal["hybrid", "ranks", "dense", "lexical"]
RERANKED = 50
"""How many passages a cross-encoder reads for a query, at least."""


@dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Attributes:
        score: the higher the better; a cosine in [-1, 1], or what the model's folder compares by (dense), BM25
            (lexical), a weighted sum in [0, 1] (hybrid), a sum of reciprocal ranks (ranks), or what the cross-encoder
            says, in [0, 1] unless its folder asks for no sigmoid.
        file: the document's path below the folder that was indexed.
        start: first character of the passage in the text of its file, or, of a document, in what was read of it.
        line: of its first character in a text or Markdown file, counted from 1; 0 in other kinds.
        page: it begins on, counted from 1; 0 where the file has no pages.
        heading: the headings it stands under, joined by ` > `; empty for none.
    """

    score: float
    file: str
    start: int
    end: int
    line: int
    page: int
    heading: str
    text: str
    metadata: Metadata
    row: int

    @property
    def place(self) -> str:
        """The file with the line or page, as people write it: `notes.md:12`, `paper.pdf, page 3`."""
        return self.file + (f":{self.line}" if self.line else f", page {self.page}" if self.page else "")


class SearchIndex:
    """An index, open for searching: it finds what the index held when it was opened, also while that is updated."""

    def __init__(
        self,
        folder: str | Path,
        *,
        model: str | Path | None = None,
        rerank: str | Path | None = None,
        embed: Embed | None = None,
        **how: Any,
    ) -> None:
        """Opens an index, with arguments as for `load_index`; models are loaded when a search needs them.

        `embed` is the model of the index where it is loaded already; `how` is for `load_pipeline`.
        """
        self._folder, self._model, self._rerank, self._embed, self._how = Path(folder), model, rerank, embed, how
        self._renewing = threading.Lock()
        self._seen = self._written()

        def read(stored: StoredIndex) -> tuple[StoredIndex, Any, LexicalSearch]:
            current = stored.current
            codes = open_codes(stored.path / CODES) if CODES in current.checksums else None
            # 0.2 的索引里，词没有归一
            fold = simplified if stored.claim.simplified else folded if current.reading > 1 else str
            return stored, codes, LexicalSearch.load(stored.path / LEXICAL, len(stored.passages), fold)

        # 读者要用的一切都在打开时打开：旧的一代随后被删，也碍不着它
        self.stored, codes, self.lexical = open_index(self._folder, read)
        self.dense = DenseSearch(self.stored.vectors, codes, self.stored.claim.similarity)

    def _written(self) -> tuple[int, int]:
        try:
            state = (self._folder / CURRENT).stat()
        except OSError:
            return 0, 0
        return state.st_mtime_ns, state.st_ino

    def newest(self) -> SearchIndex:
        """Returns the index after the last update; itself where there is none newer, or that cannot be opened now."""
        written = self._written()
        if written in (self._seen, (0, 0)) or not self._renewing.acquire(blocking=False):
            return self
        try:
            newer = SearchIndex(self._folder, model=self._model, rerank=self._rerank, embed=self._embed, **self._how)
            if newer.stored.claim.fingerprint != self.stored.claim.fingerprint:
                # 旧模型的查询向量与新模型的段落不在同一个空间里
                raise CheckpointError(
                    f"{self._folder}: was made anew by another model; open it again, or start the server anew"
                )
            # 已载入的模型接着用
            vars(newer).update({name: vars(self)[name] for name in ("embed", "ranker") if name in vars(self)})
            return newer
        except BertsmithError as error:
            logging.getLogger("bertsmith").warning("the update of an index is not taken up: %s", error)
            self._seen = written
            return self
        finally:
            self._renewing.release()

    @cached_property
    def embed(self) -> Embed:
        """The model that makes vectors of queries."""
        return self._embed or self.stored.load_model(self._model, **self._how)

    @cached_property
    def ranker(self) -> Rank | None:
        """The cross-encoder; None where none was named."""
        return None if self._rerank is None else Rank.load(self._rerank, **self._how)

    def __len__(self) -> int:
        return self.stored.current.passages

    def load(self) -> None:
        """Loads the models that a search may need, so that the first one is as fast as the others."""
        _ = self.embed, self.ranker

    def search(
        self,
        query: str,
        *,
        k: int = 10,
        mode: Mode = "hybrid",
        weight: float | None = None,
        where: Mapping[str, str] | None = None,
        ranker: Rank | None = None,
    ) -> list[Hit]:
        """Finds the passages that fit a query best.

        Args:
            query: a question or words; the model reads as much of it as it can.
            k: how many passages, at least 1.
            mode: by vectors (`dense`), by words (`lexical`) or by both: their scores (`hybrid`) or ranks (`ranks`).
            weight: of the vectors in a hybrid search, in [0, 1]; None takes that of the index.
            where: only passages of documents whose `file` or field of the front matter is as the pattern with `*` and
                `?` says; of a field with a list, one of its texts.
            ranker: a cross-encoder to read the best passages once more; None takes that of the index, if it has one.

        Returns:
            At most k, best first; `lexical` finds none where no word of the query occurs.

        Raises:
            InputError: the query holds no word, or an argument is out of range.
            CheckpointError: the model of the index is gone or another.
        """
        if not isinstance(query, str) or not query.strip():
            raise InputError("the query is empty; ask something")
        if mode not in get_args(Mode):
            raise ConfigError(f"mode {mode!r} is unknown; use {', '.join(get_args(Mode))}")
        if k < 1:
            raise InputError(f"k is {k}; ask for at least 1 passage")
        if weight is not None and (mode != "hybrid" or not 0 <= weight <= 1):
            raise InputError(f"weight {weight}: takes a number from 0 to 1, and a hybrid search")
        rows = self.rows_where(where or {})
        if rows is not None and not len(rows):
            return []
        ranker = ranker or self.ranker
        wanted = k if ranker is None else max(k, RERANKED)
        scored = self._scored(query, wanted, mode, weight, rows)
        if ranker is not None and scored:
            found = self.stored.passages.take(_rows(scored)).select(["heading", "text"]).to_pylist()
            # 与向量一样连标题一起读：几份手册里同一句话，靠标题才分得开
            texts = [f"{each['heading']}\n{each['text']}" if each["heading"] else each["text"] for each in found]
            again = ranker.scores([query] * len(scored), texts).tolist()
            # sorted 是稳定的：同分时保持第一次检索的次序
            scored = sorted(zip([row for row, _ in scored], again, strict=True), key=lambda pair: -pair[1])
        return self.hits(scored[:k])

    def embed_query(self, query: str) -> NDArray[np.float32]:
        """Returns [H], the vector of a query; of unit length where vectors are compared so."""
        claim = self.stored.claim
        scale = scaled(self.embed, claim.similarity)
        vectors = self.embed([claim.query_prompt + query], pooling=claim.pooling, prompt="", normalize=scale)
        if not np.isfinite(vectors).all():
            raise CheckpointError(f"{claim.model}: gives vectors that are no numbers (NaN)")
        return vectors.ravel()

    def rows_where(self, where: Mapping[str, str]) -> NDArray[np.int64] | None:
        """Returns the rows of the documents that patterns leave, ascending; None for all."""
        if not where:
            return None
        documents = self.stored.current.documents
        patterns = {unicodedata.normalize("NFC", field): _compiled(pattern) for field, pattern in where.items()}
        for field in patterns:
            if field != "file" and not any(field in document.metadata for document in documents):
                raise InputError(f"no document has a field {field!r}; filter on file or what the front matter names")
        bounds = self.stored.first_rows
        chosen = [
            np.arange(bounds[number], bounds[number + 1])
            for number, document in enumerate(documents)
            if all(
                _fits(document.name if field == "file" else document.metadata.get(field, ""), pattern)
                for field, pattern in patterns.items()
            )
        ]
        rows: NDArray[np.int64] = np.concatenate([np.zeros(0, dtype=np.int64), *chosen])
        return rows

    def _scored(
        self, query: str, k: int, mode: Mode, weight: float | None, rows: NDArray[np.int64] | None
    ) -> list[tuple[int, float]]:
        if mode == "dense":
            return _pairs(self.dense.search(self.embed_query(query), k, rows))
        if mode == "lexical":
            return _pairs(self.lexical.search(query, k, rows))
        depth = max(k, DEPTH)
        dense = self.dense.search(self.embed_query(query), depth, rows)
        lexical = self.lexical.search(query, depth, rows)
        if mode == "ranks":
            fused = reciprocal_ranks([dense[0], lexical[0]])
        else:
            fused = weighted_scores(dense, lexical, self.stored.current.weight if weight is None else weight)
        return sorted(fused.items(), key=lambda pair: (-pair[1], pair[0]))[:k]

    def hits(self, scored: list[tuple[int, float]]) -> list[Hit]:
        """Returns the passages of rows, each with a score."""
        found = self.stored.passages.take(_rows(scored)).to_pylist()
        documents = self.stored.current.documents
        hits = []
        for (row, score), passage in zip(scored, found, strict=True):
            document = documents[passage["document"]]
            held = {name: passage[name] for name in ("start", "end", "heading", "text")}
            line, page = (0, passage["line"]) if has_pages(document.name) else (passage["line"], 0)
            about = {"file": document.name, "metadata": document.metadata}
            hits.append(Hit(score=score, line=line, page=page, row=row, **about, **held))
        return hits


def load_index(
    folder: str | Path,
    *,
    model: str | Path | None = None,
    rerank: str | Path | None = None,
    precision: Precision | None = None,
    device: Device = None,
) -> SearchIndex:
    """Opens an index that `bertsmith index` made, and makes sure that it is undamaged.

    Args:
        model: where its model lies now; None for where it lay when the index was made.
        rerank: a cross-encoder that reads the best passages once more, such as `bertsmith finetune rank` makes.
        precision: of the models, as in `load_pipeline`, like `device`.

    Raises:
        CheckpointError: there is no index, another version wrote it, or it is damaged.
    """
    return SearchIndex(folder, model=model, rerank=rerank, precision=precision, device=device)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Returns what matches as a pattern says, the whole of a text; `*` and `?` alone mean something in it."""
    # fnmatch 的 `*` 一旦配上就不回头：几十个 `*?` 也不会试遍所有的分法
    return re.compile(fnmatch.translate(unicodedata.normalize("NFC", pattern).replace("[", "[[]")))


def _fits(value: str | tuple[str, ...], pattern: re.Pattern[str]) -> bool:
    """Tells whether a field, or one of its texts, is as a pattern says."""
    texts = (value,) if isinstance(value, str) else value
    # 苹果系统上的名字常是分解形式（NFD）：比较之前都合成
    return any(pattern.match(unicodedata.normalize("NFC", text)) for text in texts)


def _pairs(found: Found) -> list[tuple[int, float]]:
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


def _rows(scored: list[tuple[int, float]]) -> NDArray[np.int64]:
    return np.array([row for row, _ in scored], dtype=np.int64)
