"""The main job, end to end: text → vocabulary → shards → pre-training → filled masks → fine-tuning → report.

Every stage leaves something whole in the output folder, and a stage whose result is there is not done again; so the
same command after a crash goes on where it stopped. The folder is the run folder of the pre-training, plus:

    tokenizer/   the vocabulary          world/      the bundled world's text and reviews
    corpus/      token shards            sentiment/  the two classifiers (bundled world only)
    vectors/     the model of vectors    index/      what `bertsmith search` reads (both with `--search`)
    vocabulary.json                      what text the vocabulary was learned from
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from bertsmith.data.corpus.build import build_corpus
from bertsmith.data.corpus.manifest import MANIFEST, different_keys
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.data.corpus.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.errors import ConfigError, RunFolderError
from bertsmith.files import claim_folder
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.json_files import read_json, write_json
from bertsmith.kernels.layers import best_device
from bertsmith.model import family_named
from bertsmith.objectives import objective_named
from bertsmith.quickstart.options import DEFAULT_MINUTES, QuickstartOptions
from bertsmith.quickstart.searching import learn_to_search, require_searchable
from bertsmith.quickstart.showcase import QuickstartResult, figure_rows, fill_examples, show_report, show_summary
from bertsmith.quickstart.source import HELDOUT_SHARE, LABELLED_REVIEWS, TextSource, bundled_world, own_text
from bertsmith.quickstart.vocabulary import default_vocab_sizes, learn_vocabulary
from bertsmith.tokenizer import Tokenizer, TokenizerKind, load_tokenizer
from bertsmith.train.choosing import native_settings, recipe_for
from bertsmith.train.pretraining import pretrain
from bertsmith.train.recipe import PreTrainingRecipe

WORLD_STEPS, WORLD_BATCH = 800, 32
"""Steps on the bundled world and stories in each: half a minute on two cores, and enough to tell a true next sentence.
Smaller batches learn the words as fast, and the next sentence later."""

OWN_FAMILY, WORLD_FAMILY = "modernbert", "bert"
"""What learns most in the same time ("What learns best" in docs/notes/measurements.md), and the paper's model."""


def quickstart(options: QuickstartOptions, console: Console) -> QuickstartResult:
    """Does the whole job, or what is left of it.

    Raises:
        BertsmithError: the input, a setting or the output folder is unusable; what was complete stays.
    """
    begun = time.monotonic()
    # 先算好配方再认领文件夹：不可能的选项不该留下任何文件
    if options.search:
        require_searchable(options)
    recipe = _recipe(options)
    _claim(options, recipe)
    console.print("[bold]1 · text[/bold]")
    if options.corpus:
        source = own_text(options.corpus, documents=options.documents, encoding=options.encoding, leave_out=options.out)
    else:
        source = bundled_world(options.out / "world", seed=options.seed)
    console.print(f"    {escape(source.name)}: {len(source.files)} file(s), {source.bytes / 1e6:.1f} MB")

    console.print("[bold]2 · vocabulary[/bold]")
    tokenizer = _vocabulary(options, source)
    console.print(f"    {tokenizer.vocab_size:,} pieces")

    console.print("[bold]3 · token shards[/bold]")
    corpus = _corpus(options, source, tokenizer)
    train, heldout = corpus.counts[TRAIN], corpus.counts[HELDOUT]
    console.print(
        f"    {train.documents:,} documents, {train.sentences:,} sentences, {train.tokens:,} tokens"
        f" (+ {heldout.documents:,} documents held out); unigram entropy {corpus.unigram_entropy:.2f} nats"
    )

    titles = " + ".join(term.title for term in recipe.build_objective().terms)
    console.print(f"[bold]4 · pre-training[/bold] ({recipe.model.family}: {titles})")
    result = QuickstartResult(pretrain(options.out, corpus, tokenizer, recipe, console=console, device=best_device()))
    if source.reviews is not None:
        console.print(
            f"[bold]5 · fine-tuning[/bold] (sentiment, {LABELLED_REVIEWS} labels, with and without pre-training)"
        )
        result.sentiment = _compare_sentiment(options, source)
    if options.search:
        console.print("[bold]5 · search[/bold] (vectors from the text itself, then an index)")
        result.search = learn_to_search(options, result.pretraining.tokens_seen, console)
    examples = fill_examples(options.out, corpus, tokenizer, result.pretraining.recipe, own=source.reviews is None)
    result.figures = figure_rows(corpus, tokenizer, result, seconds=time.monotonic() - begun)
    show_report(options.out, source.name, corpus, result, examples)
    show_summary(options.out, result, examples, console)
    return result


def _recipe(options: QuickstartOptions) -> PreTrainingRecipe:
    # 续训沿用开始时的精度和批量：换一台机器，合适的可能是另一种
    native = native_settings(best_device(), options.out)
    if options.corpus:
        return recipe_for(
            options.size or "mini",
            device=best_device(),
            family=_family(options),
            objective=_objective(options),
            **native,
            seed=options.seed,
            minutes=options.minutes or DEFAULT_MINUTES,
        )
    return recipe_for(
        options.size or "tiny",
        family=_family(options),
        objective=_objective(options),
        sequence_length=64,
        **{**native, "batch_size": WORLD_BATCH},
        seed=options.seed,
        minutes=options.minutes,
        steps=None if options.minutes else WORLD_STEPS,
    )


def _claim(options: QuickstartOptions, recipe: PreTrainingRecipe) -> None:
    """Notes what this folder is for, or makes sure that it is for this; the text is compared when it is read."""
    request = {
        "corpus": [str(Path(path).resolve()) for path in options.corpus],
        "family": recipe.model.family,
        "objective": recipe.objective,
        "tokenizer": _kind(options),
        "size": recipe.model.size,
        "minutes": options.minutes,
        "vocab_size": options.vocab_size,
        "encoding": options.encoding,
        "seed": options.seed,
    }
    claim_folder(options.out, "quickstart.json", request)


def _vocabulary(options: QuickstartOptions, source: TextSource) -> Tokenizer:
    """Learns a vocabulary of the text, or loads the one that was.

    Raises:
        RunFolderError: the text changed after a corpus was made of it.
    """
    folder, learned_from, corpus = (options.out / name for name in ("tokenizer", "vocabulary.json", "corpus"))
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
    sizes = [options.vocab_size] if options.vocab_size else default_vocab_sizes(source.bytes)
    tokenizer = learn_vocabulary(source, _kind(options), sizes)
    tokenizer.save(folder)
    write_json(learned_from, source.settings)
    return tokenizer


def _corpus(options: QuickstartOptions, source: TextSource, tokenizer: Tokenizer) -> TokenCorpus:
    folder = options.out / "corpus"
    if (folder / MANIFEST).exists():
        return TokenCorpus(folder, tokenizer)
    # 小世界的图注常有重复：重复的文档都留下，词频才与文本一致
    chosen = CorpusOptions(
        documents=source.documents, encoding=source.encoding, heldout_share=HELDOUT_SHARE, keep_duplicates=True
    )
    return build_corpus(source.files, tokenizer, folder, chosen, workers=None)


def _kind(options: QuickstartOptions) -> TokenizerKind:
    return options.tokenizer or family_named(_family(options)).tokenizer


def _family(options: QuickstartOptions) -> str:
    return options.family or (OWN_FAMILY if options.corpus else WORLD_FAMILY)


def _objective(options: QuickstartOptions) -> str:
    """Returns what is learned.

    Raises:
        ConfigError: an objective is asked for that fills no masks.
    """
    chosen = options.objective or family_named(_family(options)).objective
    needs = objective_named(chosen).needs
    if needs.targets != "masked":
        raise ConfigError(f"--objective {chosen} fills no masks, which the report shows; use bertsmith pretrain")
    # 几分钟很短：不学句对，序列就能装满，时间都用在掩码语言模型上
    return "mlm" if options.corpus and not options.objective and needs.pairs != "none" else chosen


def _compare_sentiment(options: QuickstartOptions, source: TextSource) -> dict[str, Evaluation]:
    """Fine-tunes from the pre-trained weights and from random ones, under one recipe, and scores both on the test."""
    reviews = source.reviews
    assert reviews is not None
    scores = {}
    for name, from_random in (("pretrained", False), ("random", True)):
        # 很小的模型比论文的 2e-5 和 2 到 4 轮需要更大的学习率、更多的轮数；200 个标签每轮只有 13 步，10 轮有时还没学会
        settings = FineTuningSettings(
            epochs=20, batch_size=16, learning_rate=2e-4, seed=options.seed, from_random=from_random
        )
        result = fine_tune(
            ClassificationTask.of(reviews.train),
            options.out / "model",
            reviews.train,
            reviews.dev,
            options.out / "sentiment" / name,
            settings,
            test=reviews.test,
            device=best_device(),
        )
        assert result.test is not None
        scores[name] = result.test
    return scores
