"""The end of a quickstart with `--search`: vectors learned from the text itself, an index, and what they are worth.

A masked LM's vectors are poor. A short stage without labels teaches the model which sentences stand together, then the
folder is indexed. Held-out sentences are asked for the passage they were taken from: of the vectors before and after,
of words (BM25), and of both. Other held-out sentences choose the weight of the vectors, which the index keeps.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from bertsmith.errors import ConfigError
from bertsmith.finetune.datasets.related import RelatedTexts, VectorExample, read_unlabelled
from bertsmith.finetune.metrics import in_digits
from bertsmith.finetune.metrics.ranking import mean_reciprocal_rank
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.embed import EmbeddingOptions, EmbeddingTask
from bertsmith.finetune.tasks.embed_kinds import Search, VectorScores, score_vectors
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.inference import Embed
from bertsmith.inference.embed import UNTRAINED
from bertsmith.kernels.layers import best_device
from bertsmith.model import ModelConfig
from bertsmith.retrieval import IndexSettings, build_index
from bertsmith.retrieval.dense import joined_scores
from bertsmith.retrieval.lexical import LexicalSearch
from bertsmith.seeding import generator
from bertsmith.train.choosing import MEASURED_WIDTH

BATCH, TEMPERATURE, RATE = 128, 0.02, 1e-3
"""Pairs of a step, what cosines are divided by, and the rate at the width of mini: a model of minutes has much to learn
and little to lose (trials in docs/notes/measurements.md, "Vectors from nothing")."""
PAIR_TOKENS = 128
"""What a pair has, about: a span of words, and four sentences."""
SHARE = 0.5
"""Tokens that the stage reads at most, for each that pre-training read: it takes about half as long again."""
CANDIDATES, SHOWN = 2_000, 5
"""Passages that queries are asked of, queries shown."""
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Of the vectors beside words, to choose from."""

WAYS = ("words (BM25)", "vectors before", "vectors after", "words and vectors after")


@dataclass(frozen=True)
class AskedQuery:
    """A sentence, and the passage that each way found first; `right` where it is the one the sentence is from."""

    query: str
    found: Mapping[str, str]
    right: str


@dataclass(frozen=True)
class SearchComparison:
    """What the vectors are worth, as a part of the page.

    `mrr`: way → mean reciprocal rank among the candidates; `weight`: of vectors beside words, best on other queries.
    """

    mrr: dict[str, float]
    queries: int
    candidates: int
    weight: float
    examples: list[AskedQuery]
    template: ClassVar[str] = "search_comparison.html"

    @property
    def verdict(self) -> str:
        """Which way finds best, in a sentence."""
        first, second = sorted(self.mrr, key=lambda way: -self.mrr[way])[:2]
        return f"Best: {first} ({self.mrr[first]:.3f}), then {second} ({self.mrr[second]:.3f})."


@dataclass(frozen=True)
class SearchTask(EmbeddingTask):
    """Vectors as a search in an index uses them: beside words (BM25), with the share `weight`, which is given here.

    With 0 words alone find, with 1 the vectors alone.
    """

    def compared(self, examples: Sequence[VectorExample], predictions: Sequence[NDArray[np.float32]]) -> VectorScores:
        """Returns how well words and vectors find texts; of pairs with scores how well vectors compare them."""
        return score_vectors(examples, predictions, self.similarity, None if self.weight == 1 else self._search)

    def scored(
        self,
        examples: Sequence[VectorExample],
        predictions: Sequence[NDArray[np.float32]],
        learned: Collection[Hashable] = (),
    ) -> Evaluation:
        """Says besides what the vectors alone come to, which is what `evaluate` gives for their folder."""
        found = super().scored(examples, predictions, learned)
        if self.weight == 1:
            return found
        alone = replace(self, weight=1.0).metrics(examples, predictions)[self.metric]
        said = f"vectors without words have {self.metric} {in_digits(alone)}; in an index they count {self.weight:g}"
        return replace(found, cautions=[*found.cautions, said])

    def _search(self, texts: Sequence[str]) -> Search:
        words = _words_of(tuple(texts))
        if self.weight == 0:
            return lambda query, _: words.scores(query)
        return lambda query, cosines: joined_scores(cosines, words.scores(query), self.weight)


# 每个权重、每个编码器都在同一批文本里找
_words_of = lru_cache(maxsize=2)(LexicalSearch.build)


def require_searchable(corpus: Sequence[str], out: Path) -> None:
    """Makes sure that `--search` can be done, before an hour is spent."""
    folder = Path(corpus[0]) if len(corpus) == 1 else None
    if folder is None or not folder.is_dir():
        raise ConfigError("--search makes an index of one folder; name that folder and nothing else")
    if folder.resolve() in (out.resolve(), *out.resolve().parents):
        raise ConfigError(f"{out}: lies in {folder}, which is to be indexed; choose another --out")
    LexicalSearch.build(["a word"])


def learn_to_search(
    folder: str, out: Path, encoding: str, seed: int, tokens_seen: int, console: Console
) -> SearchComparison:
    """Trains vectors on a folder's own text, indexes it, and compares ways to search it.

    `out/model` is trained on, for a share of the `tokens_seen` in pre-training; `vectors/` and `index/` are written.
    """
    # 自己文本上的模型先要学会：问与文共有的词最要紧
    pairs, held_out = read_unlabelled(folder, "span", encoding=encoding, seed=seed)
    order = generator(seed, "quickstart/pairs").permutation(len(pairs))
    chosen = [pairs[number] for number in order[: max(2, round(SHARE * tokens_seen / PAIR_TOKENS))].tolist()]
    task = EmbeddingTask.learned_from(chosen, EmbeddingOptions(temperature=TEMPERATURE))
    model, run = out / "model", out / "vectors"
    rate = RATE * min(1.0, MEASURED_WIDTH / ModelConfig.load(model).hidden_size)
    settings = FineTuningSettings(epochs=1, batch_size=BATCH, learning_rate=rate, seed=seed)
    fine_tune(task, model, chosen, held_out, run, settings, console=console, device=best_device())
    # 候选里放上别的段落：只在几百段里找，谁都容易第一
    others = [pairs[number].positive for number in order[::-1][:CANDIDATES].tolist()]
    found = compare_ways(held_out[::2], held_out[1::2], others, model, run / "model")
    build_index(folder, run / "model", out / "index", IndexSettings(encoding=encoding, weight=found.weight))
    return found


def compare_ways(
    asked: Sequence[RelatedTexts], weighing: Sequence[RelatedTexts], others: Sequence[str], before: Path, after: Path
) -> SearchComparison:
    """Asks queries of their own passages and of others, in four ways.

    Args:
        weighing: further queries, at least one, which choose the weight of the vectors beside words.
        others: further passages, up to `CANDIDATES` in all.
    """
    pairs = [*asked, *weighing]
    right = list(dict.fromkeys(pair.positive for pair in pairs))
    passages = list(dict.fromkeys((*right, *others)))[: max(CANDIDATES, len(right))]
    numbers = {passage: number for number, passage in enumerate(passages)}
    relevant = [np.arange(len(passages)) == numbers[pair.positive] for pair in pairs]
    words = LexicalSearch.build(passages)
    scored: dict[str, list[NDArray[np.float32]]] = {WAYS[0]: [words.scores(pair.query) for pair in pairs]}
    for way, model in ((WAYS[1], before), (WAYS[2], after)):
        with warnings.catch_warnings():
            # 训练之前的向量本来就是拿来对照的：不必警告
            warnings.filterwarnings("ignore", message=f".*{re.escape(UNTRAINED)}")
            embed = Embed.load(model)
        known, wanted = embed(passages), embed([pair.query for pair in pairs])
        scored[way] = list(wanted @ known.T)
    both = list(zip(scored[WAYS[2]], scored[WAYS[0]], strict=True))
    first = len(asked)
    # 权重由另一半问句来选：用同一批问句既选又评，结果会偏好
    weight = max(
        WEIGHTS,
        key=lambda each: mean_reciprocal_rank([joined_scores(*two, each) for two in both[first:]], relevant[first:]),
    )
    scored[WAYS[3]] = [joined_scores(*two, weight) for two in both[:first]]
    mrr = {way: mean_reciprocal_rank(scored[way][:first], relevant[:first]) for way in WAYS}
    examples = [
        AskedQuery(pair.query, {way: passages[int(scored[way][number].argmax())] for way in WAYS}, pair.positive)
        for number, pair in enumerate(asked[:SHOWN])
    ]
    return SearchComparison(mrr, len(asked), len(passages), weight, examples)
