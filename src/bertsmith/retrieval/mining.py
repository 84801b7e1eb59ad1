"""Hard negatives for pairs, and near duplicates among texts.

A negative teaches most where the model still takes it for an answer. So every query is asked of all the texts of the
file, and what comes out on top and is not its answer is a hard negative (Karpukhin et al. 2020, §3.2). Some of these
do answer the query, and nobody marked them: the very first ranks can be left out (`first_rank`), and so is whatever
scores nearly as well as the right text (`margin`, a share of its score: Moreira et al. 2024, §3.1).

    mine("pairs.tsv", "mined.jsonl", model="model")  # then: bertsmith finetune embed --train mined.jsonl
    near_duplicates("texts.txt", "model", "alike.jsonl", 0.95)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from bertsmith.data.reading.lines import numbered_lines, require_file
from bertsmith.data.reading.opening import opening_lines
from bertsmith.data.reading.text import require_plain_text
from bertsmith.errors import ConfigError, InputError
from bertsmith.files import atomic_path, require_other_file
from bertsmith.finetune.datasets import ColumnName, DataSource, ReadingOptions, local_sources
from bertsmith.finetune.datasets.related import (
    RELATED,
    CorpusPassage,
    JudgedQuery,
    RelatedTexts,
    VectorExample,
    related_of_beir,
)
from bertsmith.finetune.reading import tell_files
from bertsmith.inference.embed import Embed, similarities
from bertsmith.inference.engine import Precision
from bertsmith.kernels.layers import on_device
from bertsmith.reporting.progress import say
from bertsmith.retrieval.dense import best
from bertsmith.retrieval.lexical import LexicalSearch
from bertsmith.retrieval.stored import scaled
from bertsmith.settings import Checked, Result, built, divided, option

LAST_RANK = 100
"""Of the texts that can become negatives."""
_BLOCK = 512
"""Texts that are compared with all others at a time."""


@dataclass(frozen=True)
class MiningSettings(Checked):
    """Which texts become negatives; `bertsmith mine` has an option for each setting.

    Ranks count from 1, without the right texts; a negative scores at most (1 − margin) times as much as the right text
    that scores least.
    """

    mode: Literal["dense", "lexical"] = option("dense", help="Find by vectors, or by words (BM25).")
    negatives: int = option(4, min=1, help="Maximum negatives of a query.")
    first_rank: int = option(
        1, min=1, max=LAST_RANK, help="First rank to take; a higher one leaves out texts that may be right."
    )
    margin: float = option(0.05, min=0, max=1, help="Share by which a negative must score below the right text.")
    precision: Precision | None = option(None, help="Precision of matrix multiplications; default: bf16 where native.")


@dataclass(frozen=True)
class Mined:
    """What mining found: `pairs` written, those `without` a negative too; `texts` searched; `negatives` in all."""

    pairs: int
    texts: int
    negatives: int
    without: int


def mine(
    pairs: DataSource,
    out: str | Path,
    *,
    model: str | Path | None = None,
    text_column: ColumnName | None = None,
    pair_column: ColumnName | None = None,
    encoding: str = "auto",
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[Mined]:
    """Writes pairs with their hard negatives: texts that look like an answer and are none.

    Examples:
        >>> import bertsmith
        >>> pairs = [{"query": "who sang?", "text": "Ann sang"}, {"query": "who ate?", "text": "the man who sang ate"}]
        >>> mined = bertsmith.mine(pairs, "mined.jsonl", mode="lexical")
        >>> mined.metrics["pairs"], mined.folder.name
        (2, 'mined.jsonl')

    Args:
        pairs: a file of pairs or its URL, a SQuAD file, a folder of BEIR, or rows in memory; all texts in it can become
            negatives.
        out: the JSON Lines to write, which `finetune("embed", ...)` reads.
        model: a folder that makes vectors, or `org/name` of the Hub; mode `lexical` needs none.
        text_column: name or number (from 0) of the column of queries; None finds it by its name.
        pair_column: that of the texts that answer them.
        encoding: of a file: `auto` or a codec.
        console: shows what was read; silent when None.
        device: None takes the GPU where there is one.
        **settings: the other options of `bertsmith mine`, with underscores, such as `mode` and `negatives`.

    Returns:
        `metrics`: pairs, different texts, negatives, and pairs `without` a negative; `details`: the same as an object.

    Raises:
        ConfigError: a setting is unknown or impossible, there is no model, or a library is not installed.
        InputError: the pairs are missing, damaged, or none.
        CheckpointError: the model folder is unusable.
    """
    (chosen,) = divided(settings, MiningSettings, command="mine")
    asked, target, name = built(MiningSettings, chosen), Path(out), "pairs"
    if isinstance(pairs, (str, Path)):
        name = str(pairs)
        require_other_file(target, Path(pairs))
    reading = ReadingOptions(text_column=text_column, pair_column=pair_column, encoding=encoding)
    with local_sources({"pairs": pairs}) as local:
        read = RELATED.read(local["pairs"], reading, name=name)
        examples, texts = _pairs_and_texts(name, read)
        if asked.mode == "dense" and model is None:
            raise ConfigError("--mode dense compares vectors: name the --model that makes them")
        if console is not None:
            tell_files("embed", local, {"pairs": read}, reading, console=console)
    queries = list(dict.fromkeys(example.query for example in examples))
    right: dict[str, dict[str, None]] = {query: {} for query in queries}
    for example in examples:
        right[example.query][example.positive] = None
    numbers = {text: number for number, text in enumerate(texts)}
    found: dict[str, list[str]] = {}
    with on_device(device):
        for query, scores in zip(queries, _scores(queries, texts, model, asked), strict=True):
            answers = [numbers[text] for text in right[query]]
            found[query] = [texts[row] for row in _negatives(scores, answers, numbers.get(query), asked)]
    total = without = 0
    with atomic_path(target) as unfinished, unfinished.open("w", encoding="utf-8") as sink:
        for example in examples:
            # 文件里已有的反例照样保留，挖到的接在后面
            negatives = list(dict.fromkeys((*example.negatives, *found[example.query])))
            total, without = total + len(negatives), without + (not negatives)
            line = {"query": example.query, "positive": example.positive, "negatives": negatives}
            sink.write(json.dumps(line, ensure_ascii=False) + "\n")
    mined = Mined(len(examples), len(texts), total, without)
    return Result(target, asdict(mined), None, None, mined)


def near_duplicates(
    texts: str | Path,
    model: str | Path,
    out: str | Path,
    least: float,
    *,
    precision: Precision | None = None,
    encoding: str = "auto",
    console: Console | None = None,
) -> int:
    """Writes the pairs of lines whose vectors have a cosine of at least `least`, in (0, 1]; returns how many there are.

    A line of the file that comes out holds `text`, `pair`, `score` (the cosine) and `lines`, the numbers of both; the
    pairs are in the order of the first. Every line is compared with every other: of 100,000 lines of 384 numbers that
    takes about a minute on two cores.
    """
    texts, out = Path(texts), Path(out)
    if not 0 < least <= 1:
        raise ConfigError(f"--near-duplicates {least}: takes a cosine in (0, 1], such as 0.95")
    require_other_file(out, texts)
    require_plain_text([texts], "a line each")
    require_file(texts)
    for opening in opening_lines([texts], [texts], encoding) if console is not None else ():
        say(opening, console)
    lines = [(number, line) for number, line in numbered_lines(texts, encoding) if line.strip()]
    if len(lines) < 2:
        raise InputError(f"{texts}: holds {len(lines)} texts; two are needed to be alike")
    vectors = Embed.load(model, precision=precision)([line for _, line in lines])
    count = 0
    with atomic_path(out) as unfinished, unfinished.open("w", encoding="utf-8") as sink:
        for first in range(0, len(lines), _BLOCK):
            # 只与后面的行比：每一对出现一次，自己不与自己成对
            cosines = vectors[first : first + _BLOCK] @ vectors[first:].T
            for row, column in np.argwhere(np.triu(cosines >= least - _ROUNDING, k=1)).tolist():
                (one, text), (other, pair) = lines[first + row], lines[first + column]
                score = round(min(1.0, float(cosines[row, column])), 6)
                line = {"text": text, "pair": pair, "score": score, "lines": [one, other]}
                sink.write(json.dumps(line, ensure_ascii=False) + "\n")
                count += 1
    return count


_ROUNDING = 1e-6
"""Equal vectors have a product of 1 up to so much."""


def _pairs_and_texts(name: str, examples: Sequence[VectorExample]) -> tuple[list[RelatedTexts], list[str]]:
    """Returns the pairs of a file, and its different texts, those that answer a query and all others."""
    if any(isinstance(example, JudgedQuery | CorpusPassage) for example in examples):
        pairs = related_of_beir(examples)
        given = [example.text for example in examples if isinstance(example, CorpusPassage)]
    else:
        pairs = [example for example in examples if isinstance(example, RelatedTexts)]
        given = [text for example in pairs for text in (example.positive, *example.negatives)]
    if not pairs:
        raise InputError(f"{name}: holds no query with a text that answers it; negatives are mined for such pairs")
    return pairs, list(dict.fromkeys(given))


def _scores(
    queries: list[str], texts: list[str], model: str | Path | None, settings: MiningSettings
) -> Iterator[NDArray[np.float32]]:
    """Yields for each query the scores [D] of all texts."""
    if model is None or settings.mode == "lexical":
        engine = LexicalSearch.build(texts)
        yield from (engine.scores(query) for query in queries)
        return
    embed = Embed.load(model, precision=settings.precision)
    normalize = scaled(embed, embed.similarity)
    known = embed(texts, prompt=embed.prompt_for("passage"), normalize=normalize)
    asked = embed(queries, prompt=embed.prompt_for("query"), normalize=normalize)
    for first in range(0, len(queries), _BLOCK):
        yield from similarities(asked[first : first + _BLOCK], known, embed.similarity)


def _negatives(
    scores: NDArray[np.float32], answers: list[int], itself: int | None, settings: MiningSettings
) -> list[int]:
    """Returns the rows of the negatives of a query, the hardest first."""
    least = float(scores[answers].min())
    most = least - settings.margin * abs(least)
    own = {*answers} if itself is None else {*answers, itself}
    ranked = [row for row in best(scores, LAST_RANK + len(own)).tolist() if row not in own][settings.first_rank - 1 :]
    # 没有共同词的文本得零分：那不是难例，只是别的文本
    hard = [row for row in ranked if scores[row] <= most and (settings.mode == "dense" or scores[row] > 0)]
    return hard[: settings.negatives]
