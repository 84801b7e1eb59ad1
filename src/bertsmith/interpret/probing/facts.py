"""What a model knows of the village, beside what there is to know: every blank of a caption has exact odds.

A perfect reader of the village gives each word its true odds; nobody can be below their entropy. The distance of a
model from it, in nats, is the Kullback-Leibler divergence of its odds from the true ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bertsmith.inference import FillMask
from bertsmith.seeding import generator
from bertsmith.tinyworld.stories import CAPTIONS, caption_odds, draw_facts, fill_pattern


@dataclass(frozen=True)
class FactsKnown:
    """How a model fills the blanks of captions.

    Attributes:
        blanks: how many were asked.
        entropy: mean entropy of the true odds, in nats: what the best possible model loses.
        distance: mean divergence of the model's odds from the true ones, in nats; infinite where it rules out a word.
        right: share of the blanks of which its first word is a possible one.
    """

    blanks: int
    entropy: float
    distance: float
    right: float


def facts_known(pipeline: FillMask, count: int = 200, seed: int = 0) -> FactsKnown | None:
    """Asks a model for blanks of captions; None where its vocabulary cuts the words of the village.

    Args:
        pipeline: over a masked LM.
        count: captions that are drawn; those with a word of several pieces are left out.
        seed: of the draw.
    """
    entropies, distances, hits = [], [], []
    for number in range(count):
        rng = generator(seed, "probing/facts", number)
        facts = draw_facts(rng)
        pattern = CAPTIONS[rng.integers(len(CAPTIONS))]
        words = [token.text for token in fill_pattern(pattern, facts, *facts.people, rng)]
        slots = {place: word[1:-1] for place, word in enumerate(pattern.split()) if word.startswith("{")}
        blank = list(slots)[rng.integers(len(slots))]
        odds = caption_odds(
            pattern, {slot: words[place] for place, slot in slots.items() if place != blank}, slots[blank]
        )
        pieces = {word: pipeline.tokenizer.encode(word) for word in odds}
        if any(len(ids) != 1 or ids[0] == pipeline.tokenizer.unk_token_id for ids in pieces.values()):
            continue
        words[blank] = pipeline.tokenizer.special_tokens.mask
        (found,) = pipeline(" ".join(words), top_k=pipeline.tokenizer.vocab_size)
        guessed = {candidate.piece: candidate.probability for candidate in found}
        entropies.append(-sum(share * math.log(share) for share in odds.values()))
        distances.append(sum(share * math.log(share / max(guessed[word], 1e-12)) for word, share in odds.items()))
        hits.append(found[0].piece in odds)
    if not hits:
        return None
    return FactsKnown(len(hits), float(np.mean(entropies)), float(np.mean(distances)), float(np.mean(hits)))
