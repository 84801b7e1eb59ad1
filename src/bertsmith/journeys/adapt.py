"""Domain adaptation: a general model continues to learn from the text of a domain (Gururangan et al. 2020).

Words that cost many pieces can get pieces of their own first. The folder is the run folder of the pre-training, plus
`start/` (the model with its new pieces, where there are some) and `corpus/` (token shards). A stage whose result is
there is not done again, so the same command resumes after a crash.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from bertsmith.data.reading.documents import readable_files
from bertsmith.data.reading.records import FileNames
from bertsmith.data.reading.text import read_text
from bertsmith.errors import ConfigError, InputError
from bertsmith.files import claim_folder, working_in
from bertsmith.hub import model_folder
from bertsmith.inference.embed import copy_sentence_files
from bertsmith.journeys.source import (
    WORK,
    TextOptions,
    counted,
    own_text,
    shards_of,
    text_files,
    write_report,
)
from bertsmith.kernels.layers import best_device, on_device
from bertsmith.model import extend_positions, extend_vocabulary, load_any
from bertsmith.model.folder import stored_heads
from bertsmith.objectives.replaced_tokens import GENERATOR
from bertsmith.settings import Checked, Result, built, divided, option, values_of
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer, load_tokenizer
from bertsmith.tokenizer.coverage import Coverage, measure_coverage
from bertsmith.train.choosing import native_settings, recipe_to_continue
from bertsmith.train.monitor import figures_before_training
from bertsmith.train.pretraining import pretrain
from bertsmith.train.recipe import PreTrainingRecipe

LEAST_OFTEN = 5
"""A word seen less often gets no piece: its vector would not be learned."""

EXAMPLES = 8
"""Costly words that are shown."""


@dataclass(frozen=True)
class AdaptationOptions(Checked):
    """What the command line was asked for."""

    minutes: float = option(10.0, min=0.05, help="Minutes of continued pre-training.")
    new_pieces: int = option(0, min=0, help="Number of words to add to the vocabulary, the costliest first.")
    positions: int = option(0, min=0, help="Stretch the position table to this length; 0 leaves it.")
    sequence_length: int = option(0, min=0, help="Tokens in a sequence; 0: 128, or the limit of the model if less.")
    objective: str = option("", shown_default="the family's", help="Objective: mlm, mlm+nsp and others.")
    reading: TextOptions = field(default_factory=TextOptions)
    seed: int = option(0, help="Random seed.")


@dataclass(frozen=True)
class AdaptationResult:
    """Coverage before and after new pieces, equal where none were added, and held-out losses in nats a piece."""

    model_folder: Path
    before: Coverage
    after: Coverage
    loss_before: float
    loss_after: float


def adapt(
    model: str | Path,
    text: FileNames,
    out: str | Path,
    *,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[AdaptationResult]:
    """Lets a general model continue to learn from the text of a domain.

    Examples:
        >>> import bertsmith
        >>> adapted = bertsmith.adapt("run/model", "texts", "adapted", minutes=0.05, new_pieces=5)
        >>> sorted(adapted.metrics)
        ['loss_after', 'loss_before']

    Args:
        model: a model folder, or `org/name` on the Hub.
        text: files, folders or patterns of text and documents.
        out: the run folder; the same call resumes where it was broken off.
        console: shows what is done; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith adapt`, with underscores, such as `minutes` and `new_pieces`.

    Returns:
        `metrics`: the held-out losses; `report`: the curves; `details`: also the cost of words in pieces.

    Raises:
        BertsmithError: a setting, the input or the output folder is unusable; what was complete stays.
        TrainingStopped: a signal came, and the state is saved.
    """
    (chosen,) = divided(settings, AdaptationOptions, command="adapt")
    options, folder, files = built(AdaptationOptions, chosen), Path(out), text_files(text)
    with on_device(device), working_in(folder, *WORK):
        found = _adapted(str(model), files, folder, options, console or Console(quiet=True))
    metrics = {"loss_after": found.loss_after, "loss_before": found.loss_before}
    return Result(folder, metrics, found.model_folder, write_report([folder]), found)


def _adapted(
    model: str, text: Sequence[str], out: Path, options: AdaptationOptions, console: Console
) -> AdaptationResult:
    source = own_text(text, **vars(options.reading), leave_out=out)
    claim_folder(out, "adapt.json", {"model": model, **source.settings, **values_of(options)})
    source.tell(console)
    origin = model_folder(model)
    tokenizer, gives_vectors = load_tokenizer(origin), (origin / "modules.json").exists()
    if gives_vectors:
        # 副本里放不进去的步骤，现在就说，而不是训练完才说
        with tempfile.TemporaryDirectory() as name:
            copy_sentence_files(origin, Path(name))
        warnings.warn(
            f"{model}: is a sentence encoder, and masked LM teaches words, not vectors, so search may get worse;"
            " compare both (bertsmith evaluate), or train vectors on the text (bertsmith finetune embed --unlabelled)",
            stacklevel=2,
        )
    console.print("[bold]1 · vocabulary[/bold]")
    before = measure_coverage(tokenizer, read_text(source.files, source.encoding))
    start = _start(model, tokenizer, before, out, options)
    larger, after, columns = load_tokenizer(start), before, [("now", before)]
    if added := len(larger) - len(tokenizer):
        after = measure_coverage(larger, read_text(source.files, source.encoding))
        columns.append((f"with {added:,} new pieces", after))
    _show_coverage(console, *columns)
    words = ", ".join(before.costliest(EXAMPLES, min_frequency=LEAST_OFTEN))
    console.print(f"    words that cost most pieces: {escape(words) or 'none'}", soft_wrap=True)

    # 不可能的设置，在建分片之前就说
    recipe = recipe_to_continue(
        start,
        minutes=options.minutes,
        sequence_length=options.sequence_length or None,
        objective=options.objective or None,
        **native_settings(best_device(), out),
        seed=options.seed,
    )

    console.print("[bold]2 · token shards[/bold]")
    corpus = shards_of(source, larger, out / "corpus")
    source.keep_read(out)
    console.print(f"    {counted(corpus)}")

    console.print("[bold]3 · continued pre-training[/bold]")
    if fresh := _fresh_heads(start, recipe):
        console.print(
            f"    the model has no {fresh} head: it starts fresh, so the first loss says little", soft_wrap=True
        )
    result = pretrain(out, corpus, larger, recipe, console=console, device=best_device())
    if gives_vectors:
        copy_sentence_files(origin, out / "model")
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
    if (model_folder(model) / GENERATOR).is_dir():
        # 两个模型共用一张表：只改判别器，学好的生成器就丢了
        raise ConfigError(f"{model}: its generator shares its table; leave out --new-pieces and --positions")
    changed = load_any(model)
    if options.new_pieces:
        if not isinstance(tokenizer, WordPieceTokenizer):
            raise ConfigError("--new-pieces needs a WordPiece vocabulary, and this is another kind; leave it out")
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


def _fresh_heads(start: str, recipe: PreTrainingRecipe) -> str:
    """Returns the names of the heads that the folder lacks, for people; empty where it has all."""
    objective, folder = recipe.build_objective(), model_folder(start)
    # 句向量模型不带 MLM 头：头要从头学起，开始时的损失与原模型学到多少无关
    held = {head for part in objective.folders if (folder / part).is_dir() for head in stored_heads(folder / part)}
    return ", ".join(head.replace("_", "-") for head in objective.heads if head not in held)


def _show_coverage(console: Console, *columns: tuple[str, Coverage]) -> None:
    names = [name for name, _ in columns]
    found = [coverage for _, coverage in columns]
    table = Table("", *names, box=None, header_style="bold", show_header=any(names))
    table.add_row("words", *(f"{each.words:,}" for each in found))
    table.add_row("pieces a word", *(f"{each.pieces_per_word:.3f}" for each in found))
    table.add_row("words in one piece", *(f"{each.whole / max(1, each.words):.1%}" for each in found))
    table.add_row("words it cannot spell", *(f"{each.unknown / max(1, each.words):.2%}" for each in found))
    console.print(table)


def report_coverage(
    console: Console, tokenizer: Tokenizer, text: Sequence[str], *, encoding: str = "auto", words: int = 20
) -> Coverage:
    """Reads text, and prints its figures and its costliest words with their pieces."""
    coverage = measure_coverage(tokenizer, read_text(readable_files(text, encoding), encoding))
    _show_coverage(console, ("", coverage))
    table = Table("word", Column("times", justify="right"), "pieces", box=None, header_style="bold")
    # 拿 次数 ×（片数 - 1）排序：一个词自成一片能省多少，才值不值得加
    for word in coverage.costliest(words, min_frequency=LEAST_OFTEN):
        times, _ = coverage.costly[word]
        table.add_row(Text(word), f"{times:,}", Text(" ".join(tokenizer.tokenize(word))))
    if table.row_count:
        console.print()
        console.print(table)
    return coverage
