"""Domain adaptation: a general model goes on learning from the text of a domain (Gururangan et al. 2020).

    vocabulary   what the domain's words cost in pieces, and new pieces for the costliest if asked for
    corpus       token shards of the text
    pre-training continued from the model, with the held-out loss before and after

The folder is the run folder of the pre-training, plus `start/` (the model with its new pieces, where there are some)
and `corpus/`. A stage whose result is there is not done again, so the same command goes on after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bertsmith.data.corpus.shards import HELDOUT, TRAIN
from bertsmith.data.reading.text import DocumentRule, read_text
from bertsmith.errors import ConfigError, InputError
from bertsmith.files import claim_folder
from bertsmith.hub import model_folder
from bertsmith.kernels.layers import best_device
from bertsmith.model import extend_positions, extend_vocabulary, load_any
from bertsmith.model.folder import stored_heads
from bertsmith.options import option
from bertsmith.quickstart.coverage_report import LEAST_OFTEN, show_coverage
from bertsmith.quickstart.source import own_text, shards_of
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer
from bertsmith.tokenizer.coverage import Coverage, measure_coverage
from bertsmith.train.choosing import native_settings, recipe_to_continue
from bertsmith.train.monitor import figures_before_training
from bertsmith.train.pretraining import pretrain
from bertsmith.train.recipe import PreTrainingRecipe

EXAMPLES = 8
"""Costly words that are shown."""


@dataclass(frozen=True)
class AdaptationOptions:
    """What the command line was asked for."""

    minutes: float = option(10.0, min=0.05, help="Minutes of continued pre-training.")
    new_pieces: int = option(0, min=0, help="Number of words to add to the vocabulary, the costliest first.")
    positions: int = option(0, min=0, help="Stretch the position table to this length; 0 leaves it.")
    sequence_length: int = option(0, min=0, help="Tokens in a sequence; 0: 128, or the limit of the model if less.")
    objective: str = option("", shown_default="the family's", help="Objective: mlm, mlm+nsp and others.")
    documents: DocumentRule = option(
        "auto", help="Document: a file, or a block between blank lines; auto: file if several."
    )
    encoding: str = option("auto", help="Encoding: auto, or a codec such as iso-8859-1.")
    seed: int = option(0, help="Random seed.")


@dataclass(frozen=True)
class AdaptationResult:
    """What came out.

    Attributes:
        model_folder: a model folder of the same family.
        before: coverage of the text by the model's own vocabulary.
        after: by the one with the new pieces; the same where none were added.
        loss_before: held-out masked-LM loss at the start, in nats a piece.
        loss_after: at the end.
    """

    model_folder: Path
    before: Coverage
    after: Coverage
    loss_before: float
    loss_after: float


def adapt(model: str, text: Sequence[str], out: Path, options: AdaptationOptions, console: Console) -> AdaptationResult:
    """Adapts a model to a text, or does what is left of it.

    Args:
        model: a model folder, or a name on the Hub.
        text: files, folders or globs.
        out: the run folder.
        options: how.
        console: shows what is done.

    Raises:
        BertsmithError: the input, a setting or the output folder is unusable; what was complete stays.
    """
    source = own_text(text, documents=options.documents, encoding=options.encoding, leave_out=out)
    claim_folder(out, "adapt.json", {"model": model, **source.settings, **vars(options)})
    tokenizer = load_tokenizer(model_folder(model))
    console.print("[bold]1 · vocabulary[/bold]")
    before = measure_coverage(tokenizer, read_text(source.files, source.encoding))
    start = _start(model, tokenizer, before, out, options)
    larger, after = load_tokenizer(start), before
    if len(larger) > len(tokenizer):
        after = measure_coverage(larger, read_text(source.files, source.encoding))
    added = len(larger) - len(tokenizer)
    columns = [("now", before)] if after is before else [("now", before), (f"with {added:,} new pieces", after)]
    show_coverage(console, *columns)
    words = ", ".join(before.costliest(EXAMPLES, min_frequency=LEAST_OFTEN))
    console.print(f"    words that cost most pieces: {escape(words) or 'none'}", soft_wrap=True)

    console.print("[bold]2 · token shards[/bold]")
    corpus = shards_of(source, larger, out / "corpus")
    train, heldout = corpus.counts[TRAIN], corpus.counts[HELDOUT]
    console.print(f"    {train.tokens:,} tokens to learn from, {heldout.documents:,} documents held out")

    console.print("[bold]3 · continued pre-training[/bold]")
    recipe = _recipe(start, out, options)
    if fresh := _fresh_heads(start, recipe):
        console.print(
            f"    the model has no {fresh} head: it starts fresh, so the first loss says little", soft_wrap=True
        )
    result = pretrain(out, corpus, larger, recipe, console=console, device=best_device())
    first = figures_before_training(out / "metrics.jsonl")
    name = result.recipe.build_objective().perplexity_of
    done = AdaptationResult(out / "model", before, after, first[name], result.heldout[name])
    console.print(
        f"held-out loss: {done.loss_before:.3f} nats before, {done.loss_after:.3f} after;"
        f" model: {escape(str(done.model_folder))}",
        soft_wrap=True,
    )
    return done


def _start(model: str, tokenizer: Tokenizer, coverage: Coverage, out: Path, options: AdaptationOptions) -> str:
    """Returns the folder that training starts from: the model's own, or a copy with new pieces or positions."""
    if not options.new_pieces and not options.positions:
        return model
    folder = out / "start"
    if (folder / "tokenizer.json").exists():
        return str(folder)
    changed = load_any(model)
    if options.new_pieces:
        if not isinstance(tokenizer, WordPieceTokenizer):
            raise ConfigError("--new-pieces needs a WordPiece vocabulary; this one spells every word: leave it out")
        # 有些词读不成一个词（带标点、太长），多要几个再挑
        costly = coverage.costliest(4 * options.new_pieces, min_frequency=LEAST_OFTEN)
        pieces = [word for word in costly if _can_be_a_piece(tokenizer, word)]
        # 新词的向量从旧词片的平均开始：它在旧模型眼里本来就是这些片
        tokenizer = extend_vocabulary(changed, tokenizer, pieces[: options.new_pieces])
    if options.positions:
        extend_positions(changed, options.positions)
    changed.save_pretrained(folder)
    # 分词器最后写成：有了它，文件夹才是完整的
    tokenizer.save(folder, model_max_length=changed.config.position_limit)
    return str(folder)


def _can_be_a_piece(tokenizer: WordPieceTokenizer, word: str) -> bool:
    try:
        tokenizer.spell(word)
    except InputError:
        return False
    return word.isalpha() and word not in tokenizer.piece_to_id


def _recipe(start: str, out: Path, options: AdaptationOptions) -> PreTrainingRecipe:
    return recipe_to_continue(
        start,
        minutes=options.minutes,
        sequence_length=options.sequence_length or None,
        objective=options.objective or None,
        **native_settings(best_device(), out),
        seed=options.seed,
    )


def _fresh_heads(start: str, recipe: PreTrainingRecipe) -> str:
    """Returns the names of the heads that the folder lacks, for people; empty where it has all."""
    objective, folder = recipe.build_objective(), model_folder(start)
    # 句向量模型不带 MLM 头：头要从头学起，开始时的损失与原模型学到多少无关
    held = {head for part in objective.folders if (folder / part).is_dir() for head in stored_heads(folder / part)}
    return ", ".join(head.replace("_", "-") for head in objective.heads if head not in held)
