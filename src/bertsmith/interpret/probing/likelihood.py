"""Minimal pairs: which of two sentences, right and wrong in one thing, a model finds likelier.

A masked LM has no probability of a sentence; the sum of the log probabilities of its pieces, each hidden while all
others are seen, stands for it (Salazar et al. 2020). A model that reads left to right has one by the chain rule. The
judgement asked for is that of Warstadt et al. (2020): the right sentence has the higher score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertsmith.errors import InputError
from bertsmith.inference import FillMask, Generate
from bertsmith.inference.fill_mask import mask_logits
from bertsmith.seeding import generator
from bertsmith.tinyworld.stories import CAPTIONS, draw_facts, fill_pattern

SENTENCES_AT_ONCE = 16
"""Sentences scored together: each brings a sequence for every piece of it."""


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences, of which the second is wrong, and in what."""

    right: str
    wrong: str
    kind: str


def sentence_scores(pipeline: FillMask | Generate, sentences: Sequence[str]) -> list[float]:
    """Returns the log probability of each sentence, in nats; of a masked LM, its pseudo-log-likelihood.

    Raises:
        InputError: a sentence is empty, or longer than the model reads.
    """
    scores: list[float] = []
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        scores += _scores(pipeline, sentences[start : start + SENTENCES_AT_ONCE])
    return scores


def _scores(pipeline: FillMask | Generate, sentences: Sequence[str]) -> list[float]:
    tokenizer = pipeline.tokenizer
    before = len(tokenizer.template.before)
    sequences, places, owners = [], [], []
    truths: list[list[int]] = []
    for number, sentence in enumerate(sentences):
        pieces = tokenizer.encode(sentence)
        ids = tokenizer.template.wrap(pieces)
        if not pieces or len(ids) > pipeline.max_length:
            why = "has no pieces" if not pieces else f"has {len(ids)} tokens, the model reads {pipeline.max_length}"
            raise InputError(f"{sentence[:60]!r} {why}; write another sentence")
        if pipeline.config.is_decoder:
            # 从左到右：第 i 个词片由它前一个位置预测，一次前向给出整句
            sequences.append(ids)
            places.append(list(range(before - 1, before - 1 + len(pieces))))
            truths.append(pieces)
            owners.append(number)
            continue
        for place, piece in enumerate(pieces):
            # 一次只遮一个：其余的词都看得见，分数才是“在这句话里，这个词有多自然”
            hidden = list(ids)
            hidden[before + place] = tokenizer.mask_token_id
            sequences.append(hidden)
            places.append([before + place])
            truths.append([piece])
            owners.append(number)
    rows = pipeline.engine.run_positions(sequences, None, places, mask_logits)
    scores = [0.0] * len(sentences)
    for owner, logits, truth in zip(owners, rows, truths, strict=True):
        scores[owner] += float(logits.double().log_softmax(-1)[range(len(truth)), truth].sum())
    return scores


def judged(pipeline: FillMask | Generate, pairs: Sequence[MinimalPair]) -> dict[str, tuple[float, int]]:
    """Returns for each kind the share of pairs that the model judges right, and how many there are."""
    scores = sentence_scores(pipeline, [sentence for pair in pairs for sentence in (pair.right, pair.wrong)])
    found: dict[str, list[bool]] = {}
    for pair, right, wrong in zip(pairs, scores[::2], scores[1::2], strict=True):
        found.setdefault(pair.kind, []).append(right > wrong)
    return {kind: (float(np.mean(hits)), len(hits)) for kind, hits in found.items()}


def read_pairs(path: Path) -> list[MinimalPair]:
    """Reads lines of a right and a wrong sentence with a tab between, and optionally what is wrong.

    Raises:
        InputError: the file is missing, empty, or a line has another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if not 2 <= len(fields) <= 3 or not all(field.strip() for field in fields):
            raise InputError(f"{path}:{number}: write a right and a wrong sentence with a tab between")
        pairs.append(MinimalPair(fields[0], fields[1], fields[2] if len(fields) == 3 else "pairs"))
    if not pairs:
        raise InputError(f"{path}: holds no pair")
    return pairs


def village_pairs(count: int, seed: int = 0) -> list[MinimalPair]:
    """Draws pairs of captions of the village: two words in the wrong order, or a thing where another kind belongs."""
    return list(_village_pairs(count, seed))


def _village_pairs(count: int, seed: int) -> Iterator[MinimalPair]:
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
        yield MinimalPair(" ".join(words), " ".join([*words[:-1], other]), "a thing of another kind")
        yield MinimalPair(" ".join(words), " ".join(swapped), "word order")
