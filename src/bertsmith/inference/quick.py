"""Short requests for vectors, from the start of a process to the last one, without torch.

Importing torch takes longer than a hundred requests. Where a folder's graph is in the cache, text needs the tokenizer,
ONNX Runtime and a mean; so `QuickEmbed` has these three, and loads the whole pipeline when it is asked for more: long
inputs, another pooling, an attribute. The results are the same to 1e-5.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.cores import available_cores
from bertsmith.errors import InputError
from bertsmith.inference.graph_cache import FolderCard, cache_folder, card_file, open_graph, read_card, write_card
from bertsmith.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from bertsmith.inference.embed import Embed

FEW_TEXTS, FEW_TOKENS = 16, 64
"""Requests of at most so much go through a graph; for longer ones the ragged kernels are faster."""
_LEAST_LENGTH = 1e-12


def load_quick(folder: str | Path, asked: str, load: Callable[[], Embed]) -> Any:
    """Loads an encoder for short requests.

    Args:
        folder: a model folder, or a name on the Hub.
        asked: the engine, precision and device that were asked for, since each has an answer of its own.
        load: loads the whole pipeline with these.

    Returns:
        `QuickEmbed`; the whole pipeline where torch is the faster, or the folder is none on this disk.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        return load()
    threads = _threads()
    file = card_file(path, asked, threads)
    card = read_card(file)
    whole: Embed | None = None
    if card is None:
        whole = load()
        card = _card_of(whole)
        write_card(file, card)
    if not card.graph:
        return whole or load()
    try:
        session = open_graph(cache_folder() / card.graph, threads)
    except Exception:
        # 卡片在、图却没了或坏了：完整地载入一次，图就会重新做好
        whole = load()
        session = open_graph(cache_folder() / card.graph, threads)
    return QuickEmbed(card, session, load_tokenizer(path), load, whole)


class QuickEmbed:
    """`Embed` that answers short requests by itself; everything else is that of the whole pipeline.

    Attributes:
        tokenizer: of the model.
        pooling: as of `Embed`.
        max_length: most ids in a sequence.
    """

    def __init__(
        self,
        card: FolderCard,
        session: Any,
        tokenizer: Tokenizer,
        load: Callable[[], Embed],
        whole: Embed | None = None,
    ) -> None:
        """Puts the parts together.

        Args:
            card: of the folder.
            session: its graph, open.
            tokenizer: of the folder.
            load: loads the whole pipeline.
            whole: the same, where it is loaded already.
        """
        self.tokenizer, self.pooling, self.max_length = tokenizer, card.pooling, card.max_length
        self._prompt, self._session, self._load, self._whole = card.prompt, session, load, whole
        self._inputs = {each.name for each in session.get_inputs()}

    def __call__(self, texts: Sequence[str], **options: Any) -> NDArray[np.float32]:
        """Embeds texts; see `Embed.__call__`.

        Returns:
            [N, H] float32.

        Raises:
            InputError: as there.
            ConfigError: as there.
        """
        normalize = options.get("normalize", True)
        if isinstance(texts, str) or not 0 < len(texts) <= FEW_TEXTS or options.keys() - {"normalize"}:
            return self.whole(texts, **options)
        if not all(isinstance(text, str) for text in texts):
            return self.whole(texts, **options)
        rows: list[list[int]] = self.tokenizer(
            [self._prompt + text for text in texts] if self._prompt else texts, max_length=self.max_length
        )["input_ids"]
        lengths = [len(row) for row in rows]
        if sum(lengths) > FEW_TOKENS or min(lengths) == 0:
            return self.whole(texts, **options)
        vectors = pooled(self._states(rows, max(lengths)), lengths, self.pooling)
        if normalize:
            vectors /= np.maximum(np.sqrt((vectors * vectors).sum(1, keepdims=True)), _LEAST_LENGTH)
        return vectors

    @property
    def whole(self) -> Embed:
        """The whole pipeline, loaded when it is first needed."""
        if self._whole is None:
            self._whole = self._load()
        return self._whole

    def __getattr__(self, name: str) -> Any:
        """Returns what only the whole pipeline has."""
        # 复制与序列化会查各种下划线方法：不能为此载入模型
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole, name)

    def _states(self, rows: list[list[int]], longest: int) -> NDArray[np.float32]:
        """Runs the graph; returns [N, S, H]."""
        ids = np.zeros((len(rows), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states: NDArray[np.float32] = self._session.run(
            ["last_hidden_state"], {name: given[name] for name in self._inputs}
        )[0]
        return states


def pooled(states: NDArray[np.float32], lengths: Sequence[int], pooling: str) -> NDArray[np.float32]:
    """Makes one vector of the states of each text.

    Args:
        states: [N, S, H], with padding on the right.
        lengths: real tokens of each text, at least 1.
        pooling: `mean`, `cls` or `max`.

    Returns:
        [N, H].

    Raises:
        InputError: the pooling is another.
    """
    reads = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "max": lambda rows: rows.max(0)}
    if pooling not in reads:
        raise InputError(f"pooling {pooling!r} is not read off a graph; use {', '.join(reads)}")
    vectors = np.stack([reads[pooling](rows[:length]) for rows, length in zip(states, lengths, strict=True)])
    return vectors.astype(np.float32, copy=False)


def _card_of(whole: Embed) -> FolderCard:
    """Returns what is to be known of a pipeline that was loaded with an engine for short requests."""
    graph = vars(whole.engine.model.backbone).get("forward") if hasattr(whole.engine, "model") else None
    is_plain = whole.pooling in ("mean", "cls", "max") and not whole.config.is_decoder
    name = graph.name if graph is not None and is_plain else ""
    return FolderCard(name, whole.pooling, whole.prompt_text(), whole.max_length)


def _threads() -> int:
    """Returns how many threads a request takes: torch's number where torch is there, else what it would have."""
    if "torch" in sys.modules:
        return int(sys.modules["torch"].get_num_threads())
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdigit() and int(told) else available_cores()
