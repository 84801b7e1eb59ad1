"""All probes of a model, and their page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from bertsmith.errors import ConfigError
from bertsmith.files import make_folder, write_text
from bertsmith.finetune.datasets.reader import ReadingOptions
from bertsmith.finetune.datasets.tagged import TAGGED, TaggedWords
from bertsmith.hub import model_folder
from bertsmith.inference import FillMask, Generate
from bertsmith.interpret.probing.facts import FactsKnown, facts_known
from bertsmith.interpret.probing.layers import LayerScores, probe_layers
from bertsmith.interpret.probing.likelihood import judged, read_pairs, village_pairs
from bertsmith.json_files import write_json
from bertsmith.kernels.layers import best_device
from bertsmith.model import Backbone, ModelConfig
from bertsmith.model.folder import stored_heads
from bertsmith.reporting.page import Part, Picture, Table, render_report
from bertsmith.reporting.plots import REFERENCE_COLOUR, RUN_COLOURS
from bertsmith.tinyworld import draw_tagged_sentences
from bertsmith.tokenizer import load_tokenizer

VILLAGE_PAIRS, VILLAGE_SENTENCES = 100, 400


@dataclass(frozen=True)
class Probes:
    """What was found.

    Attributes:
        pairs: kind of minimal pair → share judged right, and how many; empty for a model without a language-model head.
        layers: what each layer tells of words.
        facts: of the village; None where it was not asked, or the words are not in the vocabulary.
    """

    pairs: Mapping[str, tuple[float, int]]
    layers: LayerScores
    facts: FactsKnown | None


def probe(
    model: str | Path, *, pairs: Path | None = None, tagged: str | None = None, reading: ReadingOptions | None = None
) -> Probes:
    """Probes a model.

    Args:
        model: a model folder, or a name on the Hub.
        pairs: a file of minimal pairs; None for the village's.
        tagged: a CoNLL or CoNLL-U file of words with tags; None for the village's entities.
        reading: how that is read.

    Raises:
        InputError: a file is not usable.
        ConfigError: pairs are given, and the model predicts no pieces.
        CheckpointError: the folder is not usable.
    """
    folder = model_folder(model)
    # 文件先读完：写错一行不该在算了几分钟之后才说
    judged_pairs = read_pairs(pairs) if pairs is not None else village_pairs(VILLAGE_PAIRS)
    sentences = tagged_sentences(tagged, reading or ReadingOptions())
    predicts = "masked_lm" in stored_heads(folder)
    if pairs is not None and not predicts:
        raise ConfigError(f"{folder}: has no head that predicts pieces, which judge the pairs; leave out --pairs")
    causal = ModelConfig.load(folder).is_decoder
    pipeline = (Generate if causal else FillMask).load(folder, precision="float32") if predicts else None
    device = best_device()
    backbone = Backbone.from_pretrained(folder, need_pooler=False).to(device).eval()
    return Probes(
        {} if pipeline is None else judged(pipeline, judged_pairs),
        probe_layers(
            lambda batch: backbone(batch.to(device), need_layers=True).layers,
            *(backbone.config.position_limit, load_tokenizer(folder), sentences),
        ),
        facts_known(pipeline) if isinstance(pipeline, FillMask) and pairs is None else None,
    )


def tagged_sentences(tagged: str | None, reading: ReadingOptions) -> list[TaggedWords]:
    """Returns the sentences of a file of words with tags, or the village's with its entities.

    Raises:
        InputError: the file is not usable.
    """
    if tagged is not None:
        return TAGGED.read(tagged, reading, task="tag")
    drawn = draw_tagged_sentences(0, VILLAGE_SENTENCES, split="probing")
    return [TaggedWords(sentence.words, sentence.tags) for sentence in drawn]


def tables_of(found: Probes) -> list[Table]:
    """Returns the tables of a page, which the command line prints as well."""
    tables = []
    if found.pairs:
        rows = [(kind, f"{share:.3f}", str(count)) for kind, (share, count) in found.pairs.items()]
        note = "Share of pairs in which the right sentence is the likelier one; a coin has 0.5."
        tables.append(Table("Minimal pairs", ("what is wrong", "judged right", "pairs"), rows, note))
    layers = found.layers
    rows = [
        ("embeddings" if number == 0 else f"layer {number}", f"{tag:.3f}", f"{place:.3f}")
        for number, (tag, place) in enumerate(zip(layers.tags, layers.places, strict=True))
    ]
    rows.append(("the most frequent", f"{layers.usual_tag:.3f}", f"{layers.usual_place:.3f}"))
    note = "Accuracy of a linear model over the states of words, on sentences that it did not learn from."
    tables.append(Table("What each layer tells", ("", "tag", "place"), rows, note))
    if found.facts is not None:
        facts = found.facts
        row = (str(facts.blanks), f"{facts.entropy:.3f}", f"{facts.distance:.3f}", f"{facts.right:.3f}")
        note = "Nats; a perfect reader of the village has a distance of 0."
        names = ("blanks", "entropy of the truth", "distance from it", "first word possible")
        tables.append(Table("Facts of the village", names, [row], note, styles=("figure",)))
    return tables


def write_probes(found: Probes, out: Path, name: str) -> None:
    """Writes `probe.json` and `report.html`.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    write_json(make_folder(out) / "probe.json", found)
    curves = Picture("Layer by layer", "Dashed: always the most frequent.", draw_layers(found.layers))
    parts: list[Part] = [curves, *tables_of(found)]
    write_text(out / "report.html", render_report("Probes", f"What {name} knows, without being trained for it.", parts))


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
