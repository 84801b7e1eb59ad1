"""Minimal pairs: which of two sentences, right and wrong in one thing, a model finds likelier.

A masked LM has no probability of a sentence. Two scores stand for it, sums of the log probabilities of its pieces: each
piece hidden while all others are seen (Salazar et al. 2020), or hidden together with the pieces of its word that
follow, so that a long word does not give itself away (Kauf & Ivanova 2023). A model that reads left to right has one
by the chain rule. The judgement asked for is that of Warstadt et al. (2020): the right sentence has the higher score.
A tie counts half, as a coin would.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from bertsmith.errors import ConfigError, InputError
from bertsmith.hub import model_folder
from bertsmith.inference import FillMask, Generate
from bertsmith.inference.fill_mask import mask_logits
from bertsmith.model import ModelConfig
from bertsmith.model.folder import stored_heads
from bertsmith.reporting.page import Table
from bertsmith.seeding import generator
from bertsmith.tinyworld.stories import CAPTIONS, draw_facts, fill_pattern

SENTENCES_AT_ONCE = 16
"""Sentences scored together: each brings a sequence for every piece of it."""

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


class _Question(NamedTuple):
    """A sequence, places in it and the true pieces there; the sentence and the scores that they count for."""

    ids: list[int]
    places: list[int]
    truths: list[int]
    sentence: int
    scores: list[int]


def load_judge(model: str | Path, left_out: str) -> FillMask | Generate:
    """Loads a model that predicts pieces; the refusal of another one names the option to be left out."""
    folder = model_folder(model)
    if "masked_lm" not in stored_heads(folder):
        raise ConfigError(f"{folder}: has no head that predicts pieces, which judge the pairs; leave out {left_out}")
    kind: type[FillMask | Generate] = Generate if ModelConfig.load(folder).is_decoder else FillMask
    return kind.load(folder, precision="float32")


def sentence_scores(
    pipeline: FillMask | Generate, sentences: Sequence[str], hidden: Sequence[Hidden] = ("piece",)
) -> NDArray[np.float64]:
    """Returns the log probability of N sentences, in nats; of a masked LM, K pseudo-log-likelihoods: [N, K]."""
    scores = np.zeros((len(sentences), len(hidden)))
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        chosen = range(start, min(start + SENTENCES_AT_ONCE, len(sentences)))
        asked = [question for number in chosen for question in _questions(pipeline, sentences[number], number, hidden)]
        ids, places, truths, *_ = (list(column) for column in zip(*asked, strict=True))
        logits = torch.cat(pipeline.engine.run_positions(ids, None, places, mask_logits))
        truth = torch.tensor([piece for row in truths for piece in row])
        found = logits.gather(1, truth[:, None])[:, 0].double() - logits.logsumexp(1).double()
        for question, part in zip(asked, found.split([len(row) for row in truths]), strict=True):
            scores[question.sentence, question.scores] += float(part.sum())
    return scores


def _questions(
    pipeline: FillMask | Generate, sentence: str, number: int, hidden: Sequence[Hidden]
) -> Iterator[_Question]:
    """Yields what is asked of a model to score a sentence."""
    tokenizer = pipeline.tokenizer
    pieces = tokenizer.encode(sentence)
    ids, before = tokenizer.template.wrap(pieces), len(tokenizer.template.before)
    if not pieces or len(ids) > pipeline.max_length:
        why = "has no pieces" if not pieces else f"has {len(ids)} tokens, the model reads {pipeline.max_length}"
        raise InputError(f"{sentence[:60]!r} {why}; write another sentence")
    places = range(before, before + len(pieces))
    if pipeline.config.is_decoder:
        # 从左到右：第 i 个词片由它前一个位置预测，一次前向给出整句
        yield _Question(ids, [place - 1 for place in places], pieces, number, list(range(len(hidden))))
        return
    words = tokenizer(sentence)["word_ids"]
    for place in places:
        # 同一个词里后面的词片也遮住：否则词尾会泄露词头。词尾的词片两种做法相同，只算一次
        following = [n for n in range(place, places.stop) if words[n] == words[place]]
        gone = [following if how == "word" else [place] for how in hidden]
        for chosen in {tuple(one): one for one in gone}.values():
            read = [tokenizer.mask_token_id if n in chosen else index for n, index in enumerate(ids)]
            yield _Question(read, [place], [ids[place]], number, [k for k, one in enumerate(gone) if one == chosen])


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
    for number, line in _lines(path):
        fields = line.split("\t")
        if not 2 <= len(fields) <= 3 or not all(field.strip() for field in fields):
            raise InputError(f"{path}:{number}: write a right and a wrong sentence with a tab between")
        if fields[0] == fields[1]:
            raise InputError(f"{path}:{number}: the right and the wrong sentence are the same")
        pairs.append(MinimalPair(fields[0], fields[1], fields[2] if len(fields) == 3 else "pairs"))
    if not pairs:
        raise InputError(f"{path}: holds no pair")
    return pairs


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file that are not blank, with their numbers from 1."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


class Blimp(NamedTuple):
    """How a model judges the pairs of BLiMP (Warstadt et al. 2020).

    By paradigm its phenomenon; by the source of a score, and by paradigm, what was judged; and how many pairs have the
    same sentence twice, which are ties.
    """

    phenomena: Mapping[str, str]
    judged: Mapping[str, Mapping[str, Judged]]
    same: int = 0

    def together(self, source: str, phenomenon: str | None = None) -> Judged:
        """Returns all pairs of a phenomenon, or of all, by one score."""
        parts = [one for name, one in self.judged[source].items() if phenomenon in (None, self.phenomena[name])]
        pairs = sum(one.pairs for one in parts)
        return Judged(sum(one.share * one.pairs for one in parts) / pairs, pairs, sum(one.ties for one in parts))

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
        for number, line in _lines(path):
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
