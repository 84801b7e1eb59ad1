"""The main job, end to end: text → vocabulary → shards → pre-training → filled masks → fine-tuning → report.

Every stage leaves something whole in the output folder, and a stage whose result is there is not done again; so the
same command after a crash resumes where it stopped. The folder is the run folder of the pre-training, plus
`tokenizer/`, `corpus/` (shards) and `vocabulary.json` (which text the vocabulary was learned from); of the bundled
world `world/` (its text and reviews) and `sentiment/` (two classifiers); with `--search`, `vectors/` (a model) and
`index/`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bertsmith.data.corpus.manifest import MANIFEST, different_keys
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.reading.records import FileNames
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import claim_folder, read_json, working_in, write_json
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.journeys.plan import DEFAULT_MINUTES, Pace, best_size, latest_end, minutes_left, pace_of, too_short
from bertsmith.journeys.searching import learn_to_search, require_searchable
from bertsmith.journeys.showcase import QuickstartResult, figure_rows, fill_examples, show_report, show_summary
from bertsmith.journeys.source import (
    WORK,
    TextOptions,
    TextSource,
    counted,
    default_vocab_sizes,
    learn_vocabulary,
    own_text,
    shards_of,
    text_files,
)
from bertsmith.journeys.village import REVIEW_RECIPE, REVIEWS, bundled_world
from bertsmith.kernels.layers import best_device, on_device
from bertsmith.model import ModelConfig, family_named
from bertsmith.objectives import objective_named
from bertsmith.settings import Checked, Result, changed, divided, option
from bertsmith.tokenizer import Tokenizer, TokenizerKind, load_tokenizer
from bertsmith.train.choosing import native_settings, recipe_for
from bertsmith.train.forecast import LAWS
from bertsmith.train.pretraining import pretrain
from bertsmith.train.recipe import PreTrainingRecipe

WORLD_STEPS, WORLD_BATCH = 800, 32
"""Steps on the bundled world and stories in each: half a minute on two cores, and enough to tell a true next sentence.
Smaller batches learn the words as fast, and the next sentence later."""

FINISHING = 8.0
"""Seconds that are kept free for the start of Python, and for what follows pre-training: filled masks, the report."""

OWN_FAMILY, WORLD_FAMILY = "modernbert", "bert"
"""What learns most in the same time ("What learns best" in docs/notes/measurements.md), and the paper's model."""


@dataclass(frozen=True)
class QuickstartOptions(Checked):
    """What is asked for: text, none for the bundled world; the output folder; and the options."""

    corpus: Sequence[str]
    out: Path
    family: str | None = option(
        None, shown_default="modernbert; bert for the world", help="Architecture: bert, roberta, modernbert and others."
    )
    objective: str | None = option(
        None, shown_default="mlm; for electra rtd; for the world mlm+nsp", help="Objective: mlm, mlm+nsp and others."
    )
    tokenizer: TokenizerKind | None = option(
        None, shown_default="the family's", help="Kind of vocabulary: wordpiece, bpe or unigram."
    )
    size: str | None = option(None, help="Size: tiny to large, or L/H such as 6/384; default: as plan chooses.")
    minutes: float | None = option(
        None, min=0.05, help="Minutes from text to model; default: 10 (bundled village: 800 steps)."
    )
    vocab_size: int | None = option(
        None, min=1, help="Vocabulary size; default: 4,096 to 30,522, by the amount of text."
    )
    reading: TextOptions = field(default_factory=TextOptions)
    search: bool = option(False, help="Also train vectors on the text, and index the folder for search.")
    seed: int = option(0, help="Random seed.")


def quickstart(
    corpus: FileNames = (),
    out: str | Path = "runs/quickstart",
    *,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[QuickstartResult]:
    """Does the whole job: learns a vocabulary, pre-trains, fills masks and writes a report.

    Examples:
        >>> import bertsmith
        >>> first = bertsmith.quickstart("texts", "first", size="1/64", minutes=0.05)
        >>> sorted(first.metrics)[:2], first.report.name
        (['mlm_accuracy', 'mlm_loss'], 'report.html')

    Args:
        corpus: files, folders or patterns of text and documents; none for the bundled world, on which it fine-tunes.
        out: the output folder; the same call resumes where it was broken off.
        console: shows what is done; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith quickstart`, with underscores: `size`, `minutes`, `search` and so on.

    Returns:
        `metrics`: those of the model on held-out documents, and `unigram_entropy`, the loss of a model that knows
        frequencies only; `report`: the page; `details`: of pre-training, fine-tuning and search.

    Raises:
        BertsmithError: a setting, the input or the output folder is unusable; what was complete stays.
        TrainingStopped: a signal came, and the state is saved.
    """
    # 先查选项再碰文件：写错的名字不该留下半个文件夹
    (chosen,) = divided(settings, QuickstartOptions, command="quickstart")
    folder = Path(out)
    options = changed(QuickstartOptions(text_files(corpus, "corpus"), folder), **chosen)
    with on_device(device), working_in(folder, *WORK):
        found = _journey(options, console or Console(quiet=True))
    # 词频熵是只懂词频的模型的损失：低于它才说明用上了上下文，所以要并排放着
    metrics = {**found.pretraining.heldout, "unigram_entropy": found.pretraining.unigram_entropy}
    return Result(folder, metrics, folder / "model", folder / "report.html", found)


def _journey(options: QuickstartOptions, console: Console) -> QuickstartResult:
    begun, out = time.monotonic(), options.out
    # 先算好配方再认领文件夹：不可能的选项不该留下任何文件
    if options.search:
        require_searchable(options.corpus, out)
    claimed = out / "quickstart.json"
    earlier = read_json(claimed, dict, RunFolderError, "choose another --out") if claimed.exists() else {}
    size = options.size or earlier.get("size")
    recipe = _recipe(options, size)
    kind = options.tokenizer or family_named(recipe.model.family).tokenizer
    _claim(options, earlier, recipe, kind)
    console.print("[bold]1 · text[/bold]")
    if options.corpus:
        source = own_text(options.corpus, **vars(options.reading), leave_out=out)
    else:
        source = bundled_world(out / "world", seed=options.seed)
    source.tell(console, indent="    ")

    console.print("[bold]2 · vocabulary[/bold]")
    tokenizer = _vocabulary(source, kind, options.vocab_size, out)
    console.print(f"    {tokenizer.vocab_size:,} pieces")

    console.print("[bold]3 · token shards[/bold]")
    # 小世界的图注常有重复：重复的文档都留下，词频才与文本一致
    corpus = shards_of(source, tokenizer, out / "corpus", keep_duplicates=True)
    console.print(f"    {counted(corpus)}; unigram entropy {corpus.unigram_entropy:.2f} nats")

    recipe = _fitted(options, size, corpus, tokenizer, begun, console)
    titles = " + ".join(term.title for term in recipe.build_objective().terms)
    console.print(f"[bold]4 · pre-training[/bold] ({recipe.model.family}: {titles})")
    result = QuickstartResult(pretrain(out, corpus, tokenizer, recipe, console=console, device=best_device()))
    if source.reviews:
        labels = f"{REVIEWS['train']} labels, with and without pre-training"
        console.print(f"[bold]5 · fine-tuning[/bold] (sentiment, {labels})")
        result.sentiment = _compare_sentiment(source, out, options.seed)
    if options.search:
        console.print("[bold]5 · search[/bold] (vectors from the text itself, then an index)")
        (folder,) = options.corpus
        seen = result.pretraining.tokens_seen
        result.search = learn_to_search(folder, out, options.reading.encoding, options.seed, seen, console)
    examples = fill_examples(out, corpus, tokenizer, result.pretraining.recipe, own=not source.reviews)
    result.figures = figure_rows(corpus, tokenizer, result, seconds=time.monotonic() - begun)
    show_report(out, source.name, source.read(out / "corpus"), corpus, result, examples)
    show_summary(out, result, examples, console)
    return result


def _fitted(
    options: QuickstartOptions,
    size: str | None,
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    begun: float,
    console: Console,
) -> PreTrainingRecipe:
    """Returns the recipe with the size that learns most, where that is known, and the minutes that are left for it."""
    recipe = _recipe(options, size)
    if (options.out / "recipe.toml").exists():
        # 续训：大小和分钟数在开始时就定下了
        there = PreTrainingRecipe.load(options.out)
        return _recipe(options, size or there.model.size).changed(minutes=there.length.minutes)
    minutes, family = recipe.length.minutes, recipe.model.family
    if not minutes:
        return recipe
    pace: Pace | None = None
    # 没有量过的家族和目标，没有规律可循：照旧
    if size is None and family in LAWS and recipe.objective == "mlm":
        with console.status("measuring which size learns most"):
            found = best_size(corpus, tokenizer, family, minutes_left(minutes, _minutes_spent(begun)))
        console.print(
            f"    {found.size} learns most in {minutes:g} minutes here: about {found.steps:,} steps, and"
            f" {found.loss:.2f} nats to expect"
        )
        recipe = _recipe(options, found.size)
        pace = found.pace if found.measured else None
    # 选大小时量过的，不再量一次：量的时间也算在这些分钟里
    pace = pace or pace_of(recipe, corpus, tokenizer)
    spent = _minutes_spent(begun)
    left, fewest = minutes_left(minutes, spent), pace.minutes_for_fewest
    if spent + fewest > latest_end(minutes):
        is_larger = ModelConfig.shape_of(recipe.model.size) > (1, 64)
        raise too_short(recipe.model.size, pace.steps_within(left), fewest, minutes, spent, smaller=is_larger)
    if spent > minutes / 2:
        console.print(
            f"    preparation and report take {round(spent, 2):g} of {minutes:g} minutes; {round(left, 2):g} are kept"
            f" for pre-training, so that the command ends after about {round(spent + left, 2):g}"
        )
    # 训练自己还要再计一次时：那几步也算在这些分钟里
    return recipe.changed(minutes=max(left - pace.minutes_for_timing, fewest))


def _minutes_spent(begun: float) -> float:
    """Returns the minutes that are not for pre-training: those since the begin, and those of the report."""
    return (time.monotonic() - begun + FINISHING) / 60


def _recipe(options: QuickstartOptions, size: str | None) -> PreTrainingRecipe:
    """Returns the recipe of the pre-training; `size` None takes a provisional one until it is chosen."""
    own = bool(options.corpus)
    family = options.family or (OWN_FAMILY if own else WORLD_FAMILY)
    objective = options.objective or family_named(family).objective
    needs = objective_named(objective).needs
    if needs.targets != "masked":
        raise ConfigError(f"--objective {objective} fills no masks, which the report shows; use bertsmith pretrain")
    # 几分钟很短：不学句对，序列就能装满，时间都用在掩码语言模型上
    if own and not options.objective and needs.pairs != "none":
        objective = "mlm"
    # 续训沿用开始时的精度和批量：换一台机器，合适的可能是另一种
    asked = {
        "family": family,
        "objective": objective,
        "seed": options.seed,
        **native_settings(best_device(), options.out),
    }
    if own:
        minutes = options.minutes or DEFAULT_MINUTES
        return recipe_for(size or "mini", device=best_device(), minutes=minutes, **asked)
    steps = None if options.minutes else WORLD_STEPS
    asked |= {"sequence_length": 64, "batch_size": WORLD_BATCH, "minutes": options.minutes, "steps": steps}
    return recipe_for(size or "tiny", **asked)


def _claim(options: QuickstartOptions, earlier: dict[str, Any], recipe: PreTrainingRecipe, kind: TokenizerKind) -> None:
    """Notes what this folder is for, or makes sure that it is for this; the text is compared when it is read."""
    request = {
        "corpus": [str(Path(path).resolve()) for path in options.corpus],
        "family": recipe.model.family,
        "objective": recipe.objective,
        "tokenizer": kind,
        "size": options.size or earlier.get("size"),
        **{name: getattr(options, name) for name in ("minutes", "vocab_size", "seed")},
        "encoding": options.reading.encoding,
    }
    # 训练还没有开始：时间和大小可以改，词表和分片照用
    if earlier and not (options.out / "recipe.toml").exists():
        write_json(options.out / "quickstart.json", earlier | {name: request[name] for name in ("minutes", "size")})
    claim_folder(options.out, "quickstart.json", request)


def _vocabulary(source: TextSource, kind: TokenizerKind, vocab_size: int | None, out: Path) -> Tokenizer:
    folder, learned_from, corpus = (out / name for name in ("tokenizer", "vocabulary.json", "corpus"))
    found = read_json(learned_from, dict, RunFolderError, "choose another --out") if learned_from.exists() else {}
    different = different_keys(found, source.settings)
    if different and (corpus / MANIFEST).exists():
        raise RunFolderError(
            f"{corpus}: holds a corpus made with other settings ({', '.join(different)}); choose another --out"
        )
    # tokenizer.json 最后写成：有了它，文件夹才是完整的
    if not different and (folder / "tokenizer.json").exists():
        return load_tokenizer(folder)
    # 文本变了就重新学：旧词表里没有新文本的字，没建完的分片也用不上了
    shutil.rmtree(corpus, ignore_errors=True)
    learned_from.unlink(missing_ok=True)
    tokenizer = learn_vocabulary(source, kind, [vocab_size] if vocab_size else default_vocab_sizes(source.bytes))
    tokenizer.save(folder)
    write_json(learned_from, source.settings)
    return tokenizer


def _compare_sentiment(source: TextSource, out: Path, seed: int) -> dict[str, Evaluation]:
    """Fine-tunes from the pre-trained weights and from random ones, under one recipe, and scores both on the test."""
    train, dev, test = source.reviews.values()
    task, scores = ClassificationTask.of(train), {}
    for name in ("pretrained", "random"):
        settings = replace(REVIEW_RECIPE, seed=seed, from_random=name == "random")
        run = out / "sentiment" / name
        result = fine_tune(task, out / "model", train, dev, run, settings, test=test, device=best_device())
        assert result.test is not None
        scores[name] = result.test
    return scores
