"""Probes: what a model knows, measured without training it: of grammar, in which layer, and of the village's facts.

Layers (Alain & Bengio 2017; Tenney et al. 2019): a logistic regression learns from the states of words, at their first
piece, what their tag is, and how many words stand before them. Half of the sentences teach, the others are scored.
Facts: a perfect reader of the village gives each word its true odds; nobody can be below their entropy. The distance of
a model from it, in nats, is the Kullback-Leibler divergence of its odds from the true ones.
"""

from __future__ import annotations

import math
import shlex
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from bertsmith import best_device
from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.files import make_folder, write_json, write_text
from bertsmith.finetune.datasets import ReadingOptions
from bertsmith.finetune.datasets.tagged import TAGGED, TaggedWords
from bertsmith.hub import model_folder
from bertsmith.inference import FillMask
from bertsmith.inference.tag import pieces_of_words, word_windows
from bertsmith.model import Backbone
from bertsmith.model.folder import stored_heads
from bertsmith.reporting.page import Part, Picture, Table, render_report
from bertsmith.seeding import generator
from bertsmith.tinyworld import draw_tagged_sentences
from bertsmith.tinyworld.stories import CAPTIONS, caption_odds, draw_facts, fill_pattern
from bertsmith.tokenizer import Tokenizer, load_tokenizer
from bertsmith_school import REFERENCE_COLOUR, RUN_COLOURS
from bertsmith_school.looking.pairs import Blimp, Judged, judged, load_judge, read_pairs, village_pairs

MOST_SENTENCES, FARTHEST = 600, 12
"""Sentences that are looked at, and places that are told apart."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class LayerScores:
    """Accuracies on sentences that taught nothing."""

    tags: list[float]
    places: list[float]
    usual_tag: float
    usual_place: float


def probe_layers(
    layers_of: Callable[[RaggedBatch], Sequence[Tensor]],
    position_limit: int,
    tokenizer: Tokenizer,
    sentences: Sequence[TaggedWords],
) -> LayerScores:
    """Probes every layer of a model."""
    sentences = sentences[:MOST_SENTENCES]
    layers, tags, places, owners = _states(layers_of, position_limit, tokenizer, sentences)
    learns = owners % 2 == 0
    if len(sentences) < 4 or len(set(tags[learns])) < 2:
        raise InputError("probing layers needs four sentences at least, with two tags or more")
    near = places < FARTHEST
    if len(set(places[learns & near])) < 2:
        raise InputError("probing layers for places needs sentences of two words or more")
    scores, usual = [], []
    for truth, chosen in ((tags, np.ones_like(near)), (places, near)):
        taught, judged = learns & chosen, ~learns & chosen
        scores.append([_accuracy(states, truth, taught, judged) for states in layers])
        values, counts = np.unique(truth[taught], return_counts=True)
        usual.append(float(np.mean(truth[judged] == values[counts.argmax()])))
    return LayerScores(scores[0], scores[1], *usual)


def _states(
    layers_of: Callable[[RaggedBatch], Sequence[Tensor]],
    position_limit: int,
    tokenizer: Tokenizer,
    sentences: Sequence[TaggedWords],
) -> tuple[list[Floats], NDArray[np.str_], NDArray[np.int64], NDArray[np.int64]]:
    """Returns the states [W, H] of all words in each layer, their tags, their places and their sentences."""
    kept: list[list[Floats]] = []
    tags, places, owners = [], [], []
    pieces = pieces_of_words(tokenizer, [sentence.words for sentence in sentences])
    for window in word_windows(tokenizer, pieces, position_limit):
        with torch.inference_mode():
            layers = layers_of(RaggedBatch.from_sequences([window.input_ids]))
        kept.append([layer[window.positions].float().cpu().numpy() for layer in layers])
        tags += [sentences[window.sentence].tags[word] for word in window.words]
        places += list(window.words)
        owners += [window.sentence] * len(window.words)
    joined = [np.concatenate(states) for states in zip(*kept, strict=True)]
    return joined, np.array(tags), np.array(places), np.array(owners)


def _accuracy(
    states: Floats, truth: NDArray[np.generic], learns: NDArray[np.bool_], judged: NDArray[np.bool_]
) -> float:
    # 各维先缩放到同样的大小：正则化才对每一维一视同仁，各层之间也才能比
    scaler = StandardScaler().fit(states[learns])
    probe = LogisticRegression(C=0.1, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        probe.fit(scaler.transform(states[learns]), truth[learns])
    return float(probe.score(scaler.transform(states[judged]), truth[judged]))


@dataclass(frozen=True)
class FactsKnown:
    """How a model fills the blanks of captions.

    In nats, `entropy` is that of the true odds, the least loss there can be; `distance`, the divergence from them.
    """

    blanks: int
    entropy: float
    distance: float
    right: float


def facts_known(pipeline: FillMask, count: int = 200, seed: int = 0) -> FactsKnown | None:
    """Asks a model for blanks of captions; None where its vocabulary cuts the words of the village."""
    entropies, distances, hits = [], [], []
    for number in range(count):
        rng = generator(seed, "probing/facts", number)
        facts = draw_facts(rng)
        pattern = CAPTIONS[rng.integers(len(CAPTIONS))]
        words = [token.text for token in fill_pattern(pattern, facts, *facts.people, rng)]
        slots = {place: word[1:-1] for place, word in enumerate(pattern.split()) if word.startswith("{")}
        blank = list(slots)[rng.integers(len(slots))]
        others = {slot: words[place] for place, slot in slots.items() if place != blank}
        odds = caption_odds(pattern, others, slots[blank])
        pieces = {word: pipeline.tokenizer.encode(word) for word in odds}
        if any(len(ids) != 1 or ids[0] == pipeline.tokenizer.unk_token_id for ids in pieces.values()):
            continue
        words[blank] = pipeline.tokenizer.special_tokens.mask
        ((found,),) = pipeline([" ".join(words)], top_k=pipeline.tokenizer.vocab_size)
        # 词首的空格标记不显示：同一个词可能有两个词片，概率相加
        guessed: defaultdict[str, float] = defaultdict(float)
        for candidate in found:
            guessed[candidate.piece] += candidate.probability
        entropies.append(-sum(share * math.log(share) for share in odds.values()))
        distances.append(sum(share * math.log(share / max(guessed[word], 1e-12)) for word, share in odds.items()))
        hits.append(found[0].piece in odds)
    if not hits:
        return None
    return FactsKnown(len(hits), float(np.mean(entropies)), float(np.mean(distances)), float(np.mean(hits)))


VILLAGE_PAIRS, VILLAGE_SENTENCES = 100, 400


@dataclass(frozen=True)
class Probes:
    """What was found; `pairs` is empty without a language-model head, `facts` None where the village was not asked."""

    pairs: Mapping[str, Judged]
    layers: LayerScores
    facts: FactsKnown | None

    @property
    def verdict(self) -> str:
        """What was found, in words."""
        tags = self.layers.tags
        best = int(np.argmax(tags))
        where = f"layer {best}" if best else "the embeddings"
        told = f"tags are clearest in {where}: {tags[best]:.3f}, where the most frequent tag gives"
        said = [f"{told} {self.layers.usual_tag:.3f}"]
        if self.pairs:
            pairs = sum(one.pairs for one in self.pairs.values())
            share = sum(one.share * one.pairs for one in self.pairs.values()) / pairs
            said.insert(0, Judged(share, pairs, 0).verdict)
        if self.facts is not None:
            said.append(f"its odds of the village's facts are {self.facts.distance:.3f} nats from the true ones")
        verdict = "; ".join(said)
        return f"{verdict[0].upper()}{verdict[1:]}."


def probe(
    model: str | Path, *, pairs: Path | None = None, tagged: str | None = None, reading: ReadingOptions | None = None
) -> Probes:
    """Probes a model folder, or a name on the Hub, by the village's pairs and entities or by files of one's own."""
    folder = model_folder(model)
    # 文件先读完：写错一行不该在算了几分钟之后才说
    judged_pairs = read_pairs(pairs) if pairs is not None else village_pairs(VILLAGE_PAIRS)
    sentences = tagged_sentences(tagged, reading or ReadingOptions())
    predicts = "masked_lm" in stored_heads(folder)
    pipeline = load_judge(folder, "--pairs") if predicts or pairs is not None else None
    device = best_device()
    backbone = Backbone.from_pretrained(folder, need_pooler=False).to(device).eval()

    def layers_of(batch: RaggedBatch) -> Sequence[Tensor]:
        layers: Sequence[Tensor] = backbone(batch.to(device), need_layers=True).layers
        return layers

    return Probes(
        {} if pipeline is None else judged(pipeline, judged_pairs)[0],
        probe_layers(layers_of, backbone.config.position_limit, load_tokenizer(folder), sentences),
        facts_known(pipeline) if isinstance(pipeline, FillMask) and pairs is None else None,
    )


def tagged_sentences(tagged: str | None, reading: ReadingOptions) -> list[TaggedWords]:
    """Returns the sentences of a file of words with tags, or the village's with its entities."""
    if tagged is not None:
        return TAGGED.read(tagged, reading, task="tag")
    drawn = draw_tagged_sentences(0, VILLAGE_SENTENCES, split="probing")
    return [TaggedWords(sentence.words, sentence.tags) for sentence in drawn]


def tables_of(found: Probes | Blimp) -> list[Table]:
    """Returns the tables of a page, which the command line prints as well."""
    if isinstance(found, Blimp):
        return found.tables()
    tables = []
    if found.pairs:
        judged = [(kind, f"{one.share:.3f}", str(one.pairs), str(one.ties)) for kind, one in found.pairs.items()]
        note = "Share of pairs in which the right sentence is the likelier one; a tie counts half, a coin has 0.5."
        tables.append(Table("Minimal pairs", ("what is wrong", "judged right", "pairs", "ties"), judged, note))
    layers = found.layers
    rows = [
        ("embeddings" if number == 0 else f"layer {number}", f"{tag:.3f}", f"{place:.3f}")
        for number, (tag, place) in enumerate(zip(layers.tags, layers.places, strict=True))
    ]
    rows.append(("the most frequent", f"{layers.usual_tag:.3f}", f"{layers.usual_place:.3f}"))
    note = "Accuracy of a linear model over the states of words, on sentences that it did not learn from."
    tables.append(Table("Accuracy by layer", ("", "tag", "place"), rows, note))
    if found.facts is not None:
        facts = found.facts
        row = (str(facts.blanks), f"{facts.entropy:.3f}", f"{facts.distance:.3f}", f"{facts.right:.3f}")
        note = "Nats; a perfect reader of the village has a distance of 0."
        names = ("blanks", "entropy of the truth", "distance from it", "first word possible")
        tables.append(Table("Facts of the village", names, [row], note, styles=("figure",)))
    return tables


def write_probes(found: Probes | Blimp, out: Path, name: str) -> None:
    """Writes `probe.json` and `report.html`."""
    write_json(make_folder(out) / "probe.json", found._asdict() if isinstance(found, Blimp) else found)
    parts: list[Part] = [*tables_of(found)]
    if not isinstance(found, Blimp):
        parts.insert(0, Picture("Layer by layer", "Dashed: always the most frequent.", draw_layers(found.layers)))
    lead = f"What the model in `{name}` knows, without being trained for it."
    look = f'bertsmith attention "YOUR TEXT" --model {shlex.quote(name)} --out {shlex.quote(str(out / "attention"))}'
    write_text(out / "report.html", render_report("Probes", lead, parts, verdict=found.verdict, commands=[look]))


def draw_layers(scores: LayerScores) -> Figure:
    """Draws the accuracies over the layers."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    panels = (("tag", scores.tags, scores.usual_tag), ("place", scores.places, scores.usual_place))
    for axes, (title, values, usual) in zip(figure.subplots(1, 2), panels, strict=True):
        axes.plot(range(len(values)), values, "o-", color=RUN_COLOURS[0])
        axes.axhline(usual, color=REFERENCE_COLOUR, linestyle="--", linewidth=1)
        axes.set_title(f"{title} of a word", fontsize=11)
        axes.set_xlabel("layer (0: embeddings)")
        axes.set_ylabel("accuracy")
        axes.set_xticks(range(len(values)))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
