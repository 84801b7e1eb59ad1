"""Minimal pairs: which of two sentences, right and wrong in one thing, a model finds likelier.

A masked LM has no probability of a sentence. Two scores stand for it, sums of the log probabilities of its pieces: each
piece hidden while all others are seen (Salazar et al. 2020), or hidden together with the pieces of its word that
follow, so that a long word does not give itself away (Kauf & Ivanova 2023). A model that reads left to right has one
by the chain rule. As in Warstadt et al. (2020) the right sentence should have the higher score; a tie counts half.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from bertsmith import best_device
from bertsmith.batch import RaggedBatch
from bertsmith.data.reading.lines import numbered_lines
from bertsmith.errors import ConfigError, InputError
from bertsmith.hub import model_folder
from bertsmith.inference import Engine, FillMask, Generate
from bertsmith.inference.fill_mask import piece_logits
from bertsmith.model import ModelConfig
from bertsmith.model.folder import stored_heads
from bertsmith.reporting.page import Table
from bertsmith.seeding import generator
from bertsmith.tinyworld.stories import CAPTIONS, draw_facts, fill_pattern

NUMBERS_AT_ONCE = 2**22
"""Ids that are laid out together, of sentences of one length: each brings a sequence for every piece of it."""

GPU_BATCH_TOKENS = 2**15

Hidden = Literal["piece", "word"]
"""What is hidden at a time: a piece alone, or with the pieces of its word that follow."""

SOURCES: dict[Hidden, str] = {"piece": "Salazar et al. 2020", "word": "Kauf & Ivanova 2023"}
ROUNDING = 1e-6
"""Scores that differ by a smaller share than this are a tie: float32 tells no more."""


class MinimalPair(NamedTuple):
    """Two sentences, of which the second is wrong, and in what."""

    right: str
    wrong: str
    kind: str


class Judged(NamedTuple):
    """The share of pairs that a model judges right, a tie counted half; how many there are, and how many are ties."""

    share: float
    pairs: int
    ties: int

    @property
    def verdict(self) -> str:
        """What the share says beside guessing, in words."""
        # 抛硬币的标准误是 0.5/√n：高出不到两倍，就说不上更好
        compared = "better" if self.share - 0.5 > 1 / math.sqrt(self.pairs) else "no better"
        return f"{self.share:.0%} of {self.pairs:,} pairs are judged right, {compared} than a coin"


def load_judge(model: str | Path, left_out: str) -> FillMask | Generate:
    """Loads a model that predicts pieces; the refusal of another one names the option to be left out."""
    folder = model_folder(model)
    if "masked_lm" not in stored_heads(folder):
        raise ConfigError(f"{folder}: has no head that predicts pieces, which judge the pairs; leave out {left_out}")
    kind: type[FillMask | Generate] = Generate if ModelConfig.load(folder).is_decoder else FillMask
    # 遮住的序列都很短：GPU 上一批要装得多，时间才不花在启动内核上
    batch_tokens = 0 if best_device().type == "cpu" else GPU_BATCH_TOKENS
    return kind.load(folder, precision="float32", batch_tokens=batch_tokens)


def sentence_scores(
    pipeline: FillMask | Generate, sentences: Sequence[str], hidden: Sequence[Hidden] = ("piece",)
) -> NDArray[np.float64]:
    """Returns the log probability of N sentences, in nats; of a masked LM, K pseudo-log-likelihoods: [N, K]."""
    encoded, template = pipeline.tokenizer(list(sentences)), pipeline.tokenizer.template
    begin = len(template.before)
    alike: dict[int, list[int]] = {}
    for number, ids in enumerate(encoded["input_ids"]):
        if not template.size(pair=False) < len(ids) <= pipeline.max_length:
            long = f"has {len(ids)} tokens, the model reads {pipeline.max_length}"
            why = long if len(ids) > pipeline.max_length else "has no pieces"
            raise InputError(f"{sentences[number][:60]!r} {why}; write another sentence")
        alike.setdefault(len(ids), []).append(number)
    scores = np.zeros((len(sentences), len(hidden)))
    for length, numbers in alike.items():
        # 同长的一起算：一批就是一个矩形，没有填充
        step, pieces = max(1, NUMBERS_AT_ONCE // (len(hidden) * length**2)), slice(begin, length - len(template.after))
        for some in (numbers[start : start + step] for start in range(0, len(numbers), step)):
            ids = np.array([encoded["input_ids"][number] for number in some])
            words = np.array([encoded["word_ids"][number][pieces] for number in some])
            scores[some] = _scores_of_one_length(pipeline, ids, words, hidden)
    return scores


def _scores_of_one_length(
    pipeline: FillMask | Generate, ids: NDArray[np.int64], words: NDArray[np.int64], hidden: Sequence[Hidden]
) -> NDArray[np.float64]:
    """Scores n sentences [n, S] by their pieces, each with the number of its word [n, P]; returns [n, K]."""
    begin, place = len(pipeline.tokenizer.template.before), np.arange(words.shape[1])
    engine = pipeline.engine
    assert isinstance(engine, Engine)
    model: Any = engine.model
    truths = ids[:, begin : begin + len(place)]  # [n, P]
    # rows [R, S]：模型读的序列；places [R, m]：每条里要读的位置；cells [K, n, P]：每个词片由其中哪一个预测
    if pipeline.config.is_decoder:
        # 从左到右：每个词片由它前一个位置预测，一次前向给出整句
        rows, places = ids, np.tile(place + begin - 1, (len(ids), 1))
        cells = np.arange(places.size).reshape(1, *places.shape)
    else:
        # 同一个词里后面的词片也遮住：否则词尾会泄露词头
        following = (words[:, :, None] == words[:, None]) & (place[:, None] <= place)
        alone = np.broadcast_to(np.eye(len(place), dtype=bool), following.shape)
        gone = np.stack([following if how == "word" else alone for how in hidden])  # [K, n, P, P]
        copies = np.tile(ids[:, None], (len(hidden), 1, len(place), 1))  # [K, n, P, S]
        copies[..., begin : begin + len(place)][gone] = pipeline.tokenizer.mask_token_id
        # 两句只差一处，遮住那一处便是同一条序列；词尾的词片两种遮法相同：每条只算一次
        rows, cells = np.unique(copies.reshape(-1, ids.shape[1]), axis=0, return_inverse=True)
        places, cells = (rows == pipeline.tokenizer.mask_token_id).argmax(1)[:, None], cells.reshape(gone.shape[:-1])
    truths = np.broadcast_to(truths, cells.shape)
    order = cells.argsort(axis=None, kind="stable")
    sorted_cells, sorted_truths = cells.ravel()[order], truths.ravel()[order]

    def read(pack: list[int], batch: RaggedBatch) -> Tensor:
        """Returns the log probabilities of the true pieces that the rows of a pack predict, in the order of cells."""
        first, last = pack[0] * places.shape[1], (pack[-1] + 1) * places.shape[1]
        asked = slice(*np.searchsorted(sorted_cells, (first, last)))
        at = (places[pack] + ids.shape[1] * np.arange(len(pack))[:, None]).ravel()
        logits = piece_logits(model, model.backbone(batch, places=_tensor(at)).hidden_states)
        cell, truth = _tensor(sorted_cells[asked] - first), _tensor(sorted_truths[asked])
        return logits[cell, truth] - logits.logsumexp(1)[cell]

    def _tensor(numbers: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(numbers).to(engine.device)

    # 长度都相同：各批的序列编号相连，依次接上就是排好的次序
    found = np.empty(cells.size)
    found[order] = np.concatenate([part.numpy() for _, _, part in engine.passes(list(rows), None, read)])
    scores: NDArray[np.float64] = found.reshape(cells.shape).sum(-1).T
    return scores


def judged(
    pipeline: FillMask | Generate, pairs: Sequence[MinimalPair], hidden: Sequence[Hidden] = ("piece",)
) -> list[dict[str, Judged]]:
    """Returns for each score, and for each kind of pair, how many the model judges right."""
    scores = sentence_scores(pipeline, [text for pair in pairs for text in (pair.right, pair.wrong)], hidden)
    tables = []
    for right, wrong in zip(scores[::2].T, scores[1::2].T, strict=True):
        found: dict[str, list[float]] = {}
        for pair, ours, theirs in zip(pairs, right, wrong, strict=True):
            # 平局算一半：算错的话，两句切成同样词片的模型会被冤枉
            point = 0.5 if math.isclose(ours, theirs, rel_tol=ROUNDING) else float(ours > theirs)
            found.setdefault(pair.kind, []).append(point)
        tables.append({kind: Judged(float(np.mean(row)), len(row), row.count(0.5)) for kind, row in found.items()})
    return tables


def read_pairs(path: Path) -> list[MinimalPair]:
    """Reads lines of a right and a wrong sentence with a tab between, and optionally what is wrong."""
    pairs = []
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        fields = line.split("\t")
        if not 2 <= len(fields) <= 3 or not all(field.strip() for field in fields):
            raise InputError(f"{path}:{number}: write a right and a wrong sentence with a tab between")
        if fields[0] == fields[1]:
            raise InputError(f"{path}:{number}: the right and the wrong sentence are the same")
        pairs.append(MinimalPair(fields[0], fields[1], fields[2] if len(fields) == 3 else "pairs"))
    if not pairs:
        raise InputError(f"{path}: holds no pair")
    return pairs


class Blimp(NamedTuple):
    """How a model judges BLiMP (Warstadt et al. 2020), by score and paradigm; `same` counts pairs of one sentence."""

    phenomena: Mapping[str, str]
    judged: Mapping[str, Mapping[str, Judged]]
    same: int = 0

    def together(self, source: str, phenomenon: str | None = None) -> Judged:
        """Returns all pairs of a phenomenon, or of all, by one score."""
        parts = [one for name, one in self.judged[source].items() if phenomenon in (None, self.phenomena[name])]
        pairs = sum(one.pairs for one in parts)
        return Judged(sum(one.share * one.pairs for one in parts) / pairs, pairs, sum(one.ties for one in parts))

    @property
    def verdict(self) -> str:
        """What was found, in words: the whole by the first score, and the weakest phenomenon."""
        source = next(iter(self.judged))
        share = {name: self.together(source, name).share for name in self.phenomena.values()}
        weakest = min(share, key=lambda name: share[name])
        said = f"{self.together(source).verdict} ({source})"
        return f"{said}; weakest in {weakest.replace('_', ' ')} ({share[weakest]:.0%})."

    def tables(self) -> list[Table]:
        """Returns the tables of a page: by phenomenon, and by paradigm."""
        sources = list(self.judged)
        columns = ("", *(head for source in sources for head in (source, "ties")), "pairs")
        whole = [("all", None), *((name, name) for name in dict.fromkeys(self.phenomena.values()))]
        groups = [(label, [self.together(source, name) for source in sources]) for label, name in whole]
        each = [(name, [self.judged[source][name] for source in sources]) for name in self.phenomena]
        note = "Share of pairs in which the right sentence has the higher score; a tie counts half, a coin has 0.5."
        note += f" Pairs that have the same sentence twice, which are ties: {self.same}." * bool(self.same)
        return [
            Table(f"BLiMP by {title}", columns, [_row(label, found) for label, found in rows], note)
            for title, rows in (("phenomenon", groups), ("paradigm", each))
        ]


def _row(label: str, found: Sequence[Judged]) -> tuple[str, ...]:
    cells = (cell for one in found for cell in (f"{one.share:.3f}", str(one.ties)))
    return (label.replace("_", " "), *cells, str(found[0].pairs))


def read_blimp(folder: Path) -> tuple[list[MinimalPair], dict[str, str]]:
    """Reads the files of BLiMP: the pairs, each with its paradigm as its kind; and paradigm → phenomenon."""
    pairs, phenomena = [], {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in numbered_lines(path):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                right, wrong, kind, group = (row[name] for name in FIELDS)
                if not all(isinstance(value, str) and value.strip() for value in (right, wrong, kind, group)):
                    raise TypeError
            except (ValueError, KeyError, TypeError, RecursionError):
                raise InputError(f"{path}:{number}: is no pair of BLiMP; it needs {', '.join(FIELDS)}") from None
            # BLiMP 自己就有几对两句相同（passive_1 第 325 行）：照读，算平局
            pairs.append(MinimalPair(right, wrong, kind))
            phenomena[kind] = group
    if not pairs:
        raise InputError(f"{folder}: holds no .jsonl file of BLiMP")
    return pairs, phenomena


FIELDS = ("sentence_good", "sentence_bad", "UID", "linguistics_term")


def judge_blimp(model: str | Path, folder: Path) -> Blimp:
    """Scores a model on BLiMP, by both scores that the field uses for a masked LM."""
    pairs, phenomena = read_blimp(folder)
    pipeline = load_judge(model, "--blimp")
    # 从左到右的模型只有一种分数，就是链式法则
    hidden: list[Hidden] = ["piece"] if pipeline.config.is_decoder else list(SOURCES)
    sources = ["the chain rule"] if pipeline.config.is_decoder else list(SOURCES.values())
    found: dict[str, dict[str, Judged]] = {source: {} for source in sources}
    shown = track(phenomena, "BLiMP", console=Console(stderr=True), transient=True)
    for paradigm in shown:
        tables = judged(pipeline, [pair for pair in pairs if pair.kind == paradigm], hidden)
        for source, table in zip(sources, tables, strict=True):
            found[source] |= table
    return Blimp(phenomena, found, sum(pair.right == pair.wrong for pair in pairs))


def village_pairs(count: int, seed: int = 0) -> list[MinimalPair]:
    """Draws pairs of captions of the village: two words in the wrong order, or a thing where another kind belongs."""
    pairs = []
    kinds = {"{food}": "{reading}", "{reading}": "{food}", "{animal}": "{food}", "{place}": "{animal}"}
    for number in range(count):
        rng = generator(seed, "probing/pairs", number)
        facts = draw_facts(rng)
        # 每个句式都有以名词结尾的空：换成另一类东西，句子就说不通了
        pattern = [one for one in CAPTIONS if one.split()[-1] in kinds][rng.integers(5)]
        words = [token.text for token in fill_pattern(pattern, facts, *facts.people, rng)]
        other = fill_pattern(kinds[pattern.split()[-1]], facts, *facts.people, rng)[0].text
        place = int(rng.integers(len(words) - 1))
        swapped = [*words[:place], words[place + 1], words[place], *words[place + 2 :]]
        pairs.append(MinimalPair(" ".join(words), " ".join([*words[:-1], other]), "a thing of another kind"))
        pairs.append(MinimalPair(" ".join(words), " ".join(swapped), "word order"))
    return pairs
