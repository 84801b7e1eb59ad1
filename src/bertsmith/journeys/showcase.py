"""Showing what a quickstart found: filled masks before and after, the figures, the report, the closing table."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from bertsmith.data.corpus.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.files import write_text
from bertsmith.finetune.report import what_was_read
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.inference import Candidate, FillMask
from bertsmith.journeys.searching import SearchComparison
from bertsmith.journeys.village import REVIEWS
from bertsmith.reporting.page import FigureRow, Part, Picture, figures_table, render_report
from bertsmith.reporting.plots import draw_accuracy_curves, draw_loss_curves
from bertsmith.seeding import generator
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer
from bertsmith.train.monitor import read_metrics
from bertsmith.train.pretraining import PreTrainingResult
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import HELDOUT_SEQUENCES, build_model

WORLD_SENTENCES = ("the man eats the [MASK]", "the man reads the [MASK]", "the man [MASK] the book")
HELDOUT_EXAMPLES, QUESTION_PIECES = 6, 32


@dataclass(frozen=True)
class FilledExample:
    """A sentence with one `[MASK]`, the word that stood there (or None), and the candidates before and after."""

    text: str
    truth: str | None
    before: Sequence[Candidate]
    after: Sequence[Candidate]


@dataclass(frozen=True)
class FilledExamples:
    """The table of masks filled, before and after training, as a part of the page."""

    examples: Sequence[FilledExample]
    template: ClassVar[str] = "filled_examples.html"


@dataclass
class QuickstartResult:
    """What came out: the pre-training's result, sentiment scores and search if any, and the table of figures."""

    pretraining: PreTrainingResult
    search: SearchComparison | None = None
    sentiment: dict[str, Evaluation] = field(default_factory=dict)
    figures: list[FigureRow] = field(default_factory=list)


def fill_examples(
    run: Path, corpus: TokenCorpus, tokenizer: Tokenizer, recipe: PreTrainingRecipe, *, own: bool
) -> list[FilledExample]:
    """Fills masks in sentences of held-out documents, with fresh weights and with the trained ones.

    Where the text is not the reader's own, the bundled world adds its three set sentences.
    """
    # 填空的是最后一个：ELECTRA 先是判别器，再是它子目录里的生成器
    part = recipe.build_objective().folders[-1]
    fresh = recipe.build_objective().models(build_model(recipe, corpus, tokenizer))[part]
    untrained, trained = FillMask(fresh, tokenizer), FillMask.load(run / "model" / part)
    mask = tokenizer.vocab[tokenizer.mask_token_id]
    questions: list[tuple[str, str | None]] = (
        [] if own else [(text.replace("[MASK]", mask), None) for text in WORLD_SENTENCES]
    )
    questions += _heldout_questions(corpus, tokenizer, recipe.data.sequence_length)
    before, after = (pipeline([text for text, _ in questions]) for pipeline in (untrained, trained))
    return [FilledExample(*asked, old[0], new[0]) for asked, old, new in zip(questions, before, after, strict=True)]


def figure_rows(
    corpus: TokenCorpus, tokenizer: Tokenizer, result: QuickstartResult, *, seconds: float
) -> list[FigureRow]:
    """Returns every figure with the setting it holds for."""
    done, recipe = result.pretraining, result.pretraining.recipe
    config = recipe.model_config(tokenizer)
    train, heldout = corpus.counts[TRAIN], corpus.counts[HELDOUT]
    planned = f" of {recipe.trainer.total_steps:,}" if done.steps < recipe.trainer.total_steps else ""
    model = f"{config.num_hidden_layers} layers, {config.hidden_size} hidden, {config.num_attention_heads} heads"
    unseen = f"up to {HELDOUT_SEQUENCES} sequences of {heldout.documents:,} held-out documents, always the same"
    kind = "WordPiece" if isinstance(tokenizer, WordPieceTokenizer) else "learned by tokenizers"
    casing = "lower-cased" if tokenizer.lowercase else "cased"
    rows = [
        FigureRow("vocabulary", f"{tokenizer.vocab_size:,} pieces", f"{kind}, {casing}"),
        FigureRow(
            "training text",
            f"{train.tokens:,} tokens",
            f"{train.documents:,} documents, {train.sentences:,} sentences",
        ),
        FigureRow("model", recipe.model.size, f"{model}, {recipe.model.precision}, dropout {recipe.model.dropout}"),
        FigureRow(
            "pre-training",
            f"{done.seconds:.0f} s",
            f"{done.steps:,}{planned} steps, each of {recipe.data.batch_size} sequences up to"
            f" {recipe.data.sequence_length}, "
            f"{done.tokens_seen:,} tokens seen, peak rate {recipe.trainer.learning_rate}, seed {recipe.seed}",
        ),
        FigureRow("unigram entropy", f"{done.unigram_entropy:.3f} nats", "loss of knowing frequencies, no context"),
        FigureRow("masked-LM loss", f"{done.heldout['mlm_loss']:.3f} nats", unseen),
        FigureRow("masked-LM accuracy", f"{done.heldout['mlm_accuracy']:.1%}", unseen),
    ]
    rows += [
        FigureRow(f"{term.title} accuracy", f"{done.heldout[f'{term.name}_accuracy']:.1%}", unseen)
        for term in recipe.build_objective().terms[1:]
        # 每篇只有一句时没有句对可评
        if f"{term.name}_accuracy" in done.heldout
    ]
    for name, start in (("pretrained", "the pre-trained weights"), ("random", "random weights")):
        if name in result.sentiment:
            figures = result.sentiment[name].metrics
            texts = f"{REVIEWS['train']} labelled reviews, {REVIEWS['test']:,} test reviews"
            setting = f"{texts}; macro F1 {figures['macro_f1']:.3f}"
            rows.append(FigureRow(f"sentiment accuracy from {start}", f"{figures['accuracy']:.1%}", setting))
    if result.search is not None:
        setting = f"{result.search.queries:,} held-out sentences, {result.search.candidates:,} passages"
        rows += [FigureRow(f"MRR of {way}", f"{mrr:.3f}", setting) for way, mrr in result.search.mrr.items()]
    rows.append(FigureRow("this command", f"{seconds:.0f} s", "from text to report"))
    return rows


def show_report(
    run: Path,
    source: str,
    read: Iterable[tuple[str, str]],
    corpus: TokenCorpus,
    result: QuickstartResult,
    examples: Sequence[FilledExample],
) -> None:
    """Writes `report.html` into the run folder; `read` says what was understood of the text, as `what_was_read`."""
    rows = read_metrics(run / "metrics.jsonl")
    terms = result.pretraining.recipe.build_objective().terms
    titles = {term.name: term.title[0].upper() + term.title[1:] for term in terms}
    parts: list[Part] = [
        what_was_read(read),
        figures_table(result.figures),
        Picture(
            "Loss",
            "Below the dashed line the model uses context: it beats word frequencies, or a coin toss.",
            draw_loss_curves(rows, unigram_entropy=corpus.unigram_entropy, titles=titles),
        ),
        Picture("Accuracy", "The share of predictions that are right.", draw_accuracy_curves(rows, titles=titles)),
        FilledExamples(examples),
        *([] if result.search is None else [result.search]),
    ]
    told: dict[str, Any] = {"verdict": result.pretraining.verdict, "commands": _next_commands(run, result, examples)}
    lead = f"Trained from scratch by bertsmith on {source}."
    page = render_report("A BERT of your own", lead, parts, package="bertsmith.journeys", **told)
    write_text(run / "report.html", page)


def show_summary(run: Path, result: QuickstartResult, examples: Sequence[FilledExample], console: Console) -> None:
    """Prints the closing table and the next three commands."""
    console.print(figures_table(result.figures).for_terminal())
    console.print(f"[bold]{result.pretraining.verdict}[/bold]", soft_wrap=True)
    columns = [Column(heading, overflow="fold") for heading in ("text", "before", "after")]
    fills = Table(*columns, title="masks filled (before → after)", title_justify="left")
    for example in examples[:3]:
        before, after = example.before[0], example.after[0]
        fills.add_row(
            escape(example.text),
            f"{escape(before.piece)} {before.probability:.0%}",
            f"[bold]{escape(after.piece)}[/bold] {after.probability:.0%}",
        )
    console.print(fills)
    console.print(f"report: {escape(str(run / 'report.html'))}", soft_wrap=True)
    console.print("\nnext:", soft_wrap=True)
    for command in _next_commands(run, result, examples):
        console.print(escape(f"  {command}"), soft_wrap=True, highlight=False)


def _next_commands(run: Path, result: QuickstartResult, examples: Sequence[FilledExample]) -> list[str]:
    model = str(run / "model")
    filler = str(run / "model" / result.pretraining.recipe.build_objective().folders[-1])
    commands = [["fill-mask", "--model", filler, example.text] for example in examples[:1]]
    if result.sentiment:
        classifier = str(run / "sentiment" / "pretrained" / "model")
        commands.append(["predict", "--model", classifier, "Anna says that the day was wonderful ."])
        commands.append(["quickstart", "YOUR_FOLDER", "--minutes", "10", "--out", "runs/mine"])
    else:
        if result.search is None:
            commands.append(["embed", "YOUR_FILE.txt", "--model", model, "--out", "vectors.npy"])
        else:
            # 句子有长有短：照着敲的命令要短
            shortest = min((asked.query for asked in result.search.examples), key=len)
            commands.append(["search", str(run / "index"), " ".join(shortest.split()[:8])[:60]])
        labelled = ["--train", "train.tsv", "--dev", "dev.tsv"]
        commands.append(["finetune", "classify", "--model", model, *labelled, "--out", "runs/classifier"])
    return [f"bertsmith {shlex.join(command)}" for command in commands]


def _heldout_questions(corpus: TokenCorpus, tokenizer: Tokenizer, max_length: int) -> list[tuple[str, str | None]]:
    """Hides one whole word in a few held-out sentences, each of another document as far as there are enough."""
    longest = min(QUESTION_PIECES, max_length - 2)
    rng = generator(0, "quickstart/examples")
    documents = rng.permutation(corpus.counts[HELDOUT].documents)[:200].tolist()
    sentences = [corpus.document(HELDOUT, index) for index in documents]
    rounds = itertools.zip_longest(*([text[at] for at in rng.permutation(len(text))] for text in sentences))
    questions: list[tuple[str, str | None]] = []
    # 先每篇取一句，再每篇取第二句……文档少的时候也能凑够例子
    for sentence in itertools.chain.from_iterable(rounds):
        ids = [] if sentence is None else sentence[:longest].tolist()
        words = [at for at in range(1, len(ids) - 1) if _is_whole_word(tokenizer, ids, at)]
        if words:
            at = words[int(rng.integers(len(words)))]
            hidden = [*ids[:at], tokenizer.mask_token_id, *ids[at + 1 :]]
            questions.append((tokenizer.decode(hidden, skip_special_tokens=False), tokenizer.piece_text(ids[at])))
        if len(questions) == HELDOUT_EXAMPLES:
            break
    return questions


def _is_whole_word(tokenizer: Tokenizer, ids: Sequence[int], at: int) -> bool:
    # 只掩码由单个词片组成的完整词：读者一眼就能判断填得对不对
    alone = not tokenizer.continuations(np.array(ids[at : at + 2])).any()
    return alone and tokenizer.piece_text(ids[at]).isalpha()
