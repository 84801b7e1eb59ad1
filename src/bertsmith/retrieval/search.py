"""Finding passages in an index: by vectors, by words, by both, and with a second look by a cross-encoder.

    index = load_index("notes.index")
    for hit in index.search("how do I renew a licence?", k=5, where={"file": "guides/*"}):
        print(hit.score, hit.file, hit.line, hit.text)

Vectors find what is said in other words, words find names and numbers. `hybrid` adds the scores of both with a weight,
`ranks` their reciprocal ranks (Cormack, Clarke and Büttcher 2009).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference.embed import Embed
from bertsmith.inference.pipeline import Device
from bertsmith.inference.precision import Precision
from bertsmith.inference.rank import Rank
from bertsmith.retrieval.dense import DenseSearch, open_codes
from bertsmith.retrieval.lexical import LexicalSearch
from bertsmith.retrieval.ranking import DEPTH, reciprocal_ranks, weighted_scores
from bertsmith.retrieval.stored import CODES, LEXICAL, StoredIndex

Mode = Literal["hybrid", "ranks", "dense", "lexical"]
RERANKED = 50
"""How many passages a cross-encoder reads for a query, at least."""

Found = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Attributes:
        score: the higher the better; a cosine in [-1, 1] (dense), BM25 (lexical), a weighted sum in [0, 1]
            (hybrid), a sum of reciprocal ranks (ranks), or what the cross-encoder says, in [0, 1].
        file: the document's path below the folder that was indexed.
        start: first character of the passage in the text of its document.
        end: one past its last.
        line: of its first character, counted from 1.
        heading: the headings it stands under, joined by ` > `; empty for none.
        text: of the passage.
        metadata: of its document.
        row: of the passage in the index.
    """

    score: float
    file: str
    start: int
    end: int
    line: int
    heading: str
    text: str
    metadata: dict[str, str]
    row: int


class SearchIndex:
    """An index, open for searching."""

    def __init__(
        self,
        stored: StoredIndex,
        *,
        model: str | Path | None = None,
        rerank: str | Path | None = None,
        embed: Embed | None = None,
        **how: Any,
    ) -> None:
        """Takes an opened index; models are loaded when a search needs them.

        Args:
            stored: the index.
            model: where its model lies now; None for where it lay when the index was made.
            rerank: a folder that `bertsmith finetune rank` made, or another cross-encoder; None for none.
            embed: the model of the index where it is loaded already; None loads it.
            **how: as for `load_pipeline`.
        """
        self.stored = stored
        self._model = model
        self._rerank = rerank
        self._embed = embed
        self._how = how

    @cached_property
    def embed(self) -> Embed:
        """The model that makes vectors of queries."""
        return self._embed or self.stored.load_model(self._model, **self._how)

    @cached_property
    def ranker(self) -> Rank | None:
        """The cross-encoder; None where none was named."""
        return None if self._rerank is None else Rank.load(self._rerank, **self._how)

    @cached_property
    def dense(self) -> DenseSearch:
        """Search by vectors."""
        codes = self.stored.path / CODES
        return DenseSearch(self.stored.vectors, open_codes(codes) if CODES in self.stored.current.checksums else None)

    @cached_property
    def lexical(self) -> LexicalSearch:
        """Search by words."""
        return LexicalSearch.load(self.stored.path / LEXICAL)

    def __len__(self) -> int:
        return self.stored.current.passages

    def load(self) -> None:
        """Loads everything a search may need, so that the first one is as fast as the others."""
        _ = self.embed, self.ranker, self.dense, self.lexical, self.stored.passages

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
                `?` says.
            ranker: a cross-encoder that is loaded already, to read the best passages once more; None takes that of the
                index, if it has one.

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
            texts = self.stored.passages.take(_rows(scored))["text"].to_pylist()
            again = ranker.scores([query] * len(scored), texts).tolist()
            # sorted 是稳定的：同分时保持第一次检索的次序
            scored = sorted(zip([row for row, _ in scored], again, strict=True), key=lambda pair: -pair[1])
        return self._hits(scored[:k])

    def embed_query(self, query: str) -> NDArray[np.float32]:
        """Returns [H], the unit vector of a query.

        Raises:
            CheckpointError: the model gives no numbers.
        """
        claim = self.stored.claim
        vector: NDArray[np.float32] = self.embed([claim.query_prompt + query], pooling=claim.pooling, prompt="")[0]
        if not np.isfinite(vector).all():
            raise CheckpointError(f"{self.stored.claim.model}: gives vectors that are no numbers (NaN)")
        return vector

    def rows_where(self, where: Mapping[str, str]) -> NDArray[np.int64] | None:
        """Returns the rows of the documents that patterns leave, ascending; None for all.

        Raises:
            InputError: no document has such a field.
        """
        if not where:
            return None
        documents = self.stored.current.documents
        for field in where:
            if field != "file" and not any(field in document.metadata for document in documents):
                raise InputError(f"no document has a field {field!r}; filter on file or what the front matter names")
        bounds = self.stored.first_rows
        chosen = [
            np.arange(bounds[number], bounds[number + 1])
            for number, document in enumerate(documents)
            if all(
                fnmatchcase(document.name if field == "file" else document.metadata.get(field, ""), pattern)
                for field, pattern in where.items()
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

    def _hits(self, scored: list[tuple[int, float]]) -> list[Hit]:
        found = self.stored.passages.take(_rows(scored)).to_pylist()
        documents = self.stored.current.documents
        return [
            Hit(
                score,
                documents[passage["document"]].name,
                passage["start"],
                passage["end"],
                passage["line"],
                passage["heading"],
                passage["text"],
                documents[passage["document"]].metadata,
                row,
            )
            for (row, score), passage in zip(scored, found, strict=True)
        ]


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
        folder: of the index.
        model: where its model lies now; None for where it lay when the index was made.
        rerank: a cross-encoder that reads the best passages once more; None for none.
        precision: of the models, as in `load_pipeline`.
        device: of the models, as in `load_pipeline`.

    Raises:
        CheckpointError: there is no index, another version wrote it, or it is damaged.
    """
    return SearchIndex(StoredIndex.open(folder), model=model, rerank=rerank, precision=precision, device=device)


def _pairs(found: Found) -> list[tuple[int, float]]:
    return list(zip(found[0].tolist(), found[1].tolist(), strict=True))


def _rows(scored: list[tuple[int, float]]) -> NDArray[np.int64]:
    return np.array([row for row, _ in scored], dtype=np.int64)
