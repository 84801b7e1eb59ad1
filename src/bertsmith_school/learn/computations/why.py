"""Why BERT: what both stages read and train, who reads whom, and how a word would see itself (§1 to §3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bertsmith.batch import CAUSAL
from bertsmith.model import BertConfig
from bertsmith.model.sizes import ParameterCounts
from bertsmith_school.learn.computations.experiments import TABLES
from bertsmith_school.learn.computations.pretraining import CORPUS_WORDS
from bertsmith_school.learn.lesson import Found, Step, Words
from bertsmith_school.learn.study import Study

TASKS = {"MNLI m/mm": 3, "SST-2": 2, "RTE": 2}
"""Tasks of GLUE, a large one to a small one → their classes."""

MOST_PIECES = 16
"""Longest sentence whose pairs are drawn, one by one."""


def two_stages(say: Words, *, size: str) -> Found:
    """Counts what pre-training and fine-tuning read, and which parameters each begins with (§3, §4.1)."""
    config = BertConfig.named(size)
    counts = ParameterCounts.of(config)
    carried, hidden = counts.total - counts.heads, config.hidden_size
    columns, examples = TABLES["glue"].columns, TABLES["glue"].rows[0]
    first, later = say.split("stages")
    rows = [(first, say["text"].format(CORPUS_WORDS), 0, counts.total)]
    tasks = []
    for task, classes in TASKS.items():
        name, read = task.split()[0], str(examples[1 + columns.index(task)])
        # 预训练的两个头留在原处：带走的是编码器，任务只添一个分类器
        tasks.append((name, read, classes * hidden + classes))
        rows.append((later.format(name), say["labels"].format(read), carried, tasks[-1][2]))
    values: dict[str, Any] = {"size": size, "words": CORPUS_WORDS, "whole": counts.total, "carried": carried}
    values |= {"tasks": tasks, "least": tasks[-1][1], "new": tasks[-1][2]}
    return [rows], values


def who_reads_whom(say: Words, study: Study, *, text: str) -> Found:
    """Lays out which tokens each token reads in a layer of ELMo, of GPT and of BERT (appendix A.4, figure 3)."""
    ids = study.encode(text, most=MOST_PIECES)[0]
    pieces, count = study.pieces(ids), len(ids)
    later = CAUSAL.hidden_by_place(count, torch.device("cpu"))
    assert later is not None
    left = ~later[0, 0].numpy()
    # ELMo 的第二个网络从右往左读：把第一个的图转置即可
    elmo = np.where(left & left.T, "↔", np.where(left, "←", "→"))
    grids = (elmo, np.where(left, "■", "·"), np.full_like(elmo, "■"))
    shown = [Step("", [[" ".join(row)] for row in grid], rows=pieces) for grid in grids]
    one_side, every = int(left.sum()), count**2
    rows = [(2, one_side), (1, one_side), (1, every)]
    shares = [(networks, pairs, f"{pairs / every:.0%}") for networks, pairs in rows]
    values: dict[str, Any] = {"tokens": count, "one_side": one_side, "all": every, "pieces": pieces}
    return [*shown, say.named("systems", shares)], values


def own_answer(study: Study, *, text: str, hidden: str, layers: int) -> Found:
    """Counts the paths from a word to its own state, if no layer lets a token read itself (§3.1, the first task)."""
    ids = study.encode(text, most=MOST_PIECES)[0]
    place, pieces, count = study.places_of(hidden, text, ids)[0], study.pieces(ids), len(ids)
    # 谁也不直接读自己：能回到自己的，只有经过别的词的路
    both = np.ones((count, count), dtype=np.int64) - np.eye(count, dtype=np.int64)
    left = np.tril(both)
    masked = both.copy()
    masked[:, place] = 0
    rows = [
        (layer, *(_paths(first, later, layer, place) for first, later in ((left, left), (both, both), (masked, both))))
        for layer in range(1, layers + 1)
    ]
    values: dict[str, Any] = {"word": pieces[place], "place": place, "pieces": pieces, "others": count - 1}
    values |= {"layers": layers, "left": rows[-1][1], "both": rows[-1][2], "masked": rows[-1][3]}
    return [rows], values


def _paths(first: np.ndarray[Any, Any], later: np.ndarray[Any, Any], layers: int, place: int) -> int:
    """Returns how many paths lead through layers from the input at a place to the state there."""
    return int((np.linalg.matrix_power(later, layers - 1) @ first)[place, place])
