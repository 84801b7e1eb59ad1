"""Baselines, scored by the task itself: they show what BERT buys.

Of classification, `majority` answers with the commonest class; `tfidf` is logistic regression over n-grams, the method
to beat for any classifier of texts (`words.train_words`); the neural ones are in `neural`. Of tagging, every word gets
the tag that it had most often. Everything that has to be chosen (the strength of the regularisation, the epoch) is
chosen by dev, as for BERT. The scores are kept in the run folder, in `baselines.json`.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.files import locked, read_json, write_json
from bertsmith.finetune.baselines.neural import (
    MAX_PIECES,
    NEURAL_BASELINES,
    PieceTable,
    neural_probabilities,
    train_neural_baseline,
)
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import LabelledText, columns_of
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.task import Evaluation, Task
from bertsmith.finetune.words import train_words
from bertsmith.inference.classify import Prediction
from bertsmith.inference.pipeline import require_fit
from bertsmith.inference.tag import WordTags
from bertsmith.model import Backbone
from bertsmith.tokenizer import Tokenizer, load_tokenizer

BASELINES_FILE = "baselines.json"

BASELINES = ("majority", "tfidf", *NEURAL_BASELINES)
"""All baselines of classification, cheapest first."""

MOST_FREQUENT_TAG = "most frequent tag"
"""The baseline of tagging."""


@dataclass(frozen=True)
class BaselineScores:
    """The scores of the baselines of a run, by name, and the file that they were scored on."""

    on: Literal["dev", "test"]
    seed: int
    evaluations: Mapping[str, Evaluation]


def read_baselines(run: str | Path) -> BaselineScores | None:
    """Reads the baselines of a run folder; None where there are none."""
    path = Path(run) / BASELINES_FILE
    advice = "remove it and run the same command again"
    return read_json(path, BaselineScores, RunFolderError, advice) if path.exists() else None


def check_baselines(task: Task[Any, Any], train: Sequence[Any], dev: Sequence[Any], test: Sequence[Any] | None) -> None:
    """Makes sure, before anything is trained, that `add_baselines` will be able to."""
    if isinstance(task, ClassificationTask):
        Files(task, train, dev, test)


def add_baselines(
    run: Path,
    task: Task[Any, Any],
    train: Sequence[Any],
    dev: Sequence[Any],
    test: Sequence[Any] | None,
    *,
    model_folder: str | Path,
    names: Sequence[str] = BASELINES,
    seed: int = 0,
    console: Console | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Evaluation]:
    """Trains the baselines that a run folder has no scores of, and keeps each as soon as it is scored.

    Args:
        dev: scored where there is no test file.
        test: scored where there is one.

    Returns:
        Name → evaluation, of all that are in the file now.
    """
    on: Literal["dev", "test"] = "dev" if test is None else "test"
    if not isinstance(task, ClassificationTask):
        names, seed = [MOST_FREQUENT_TAG], 0
    with locked(run):
        kept = read_baselines(run) or BaselineScores(on, seed, {})
        if (kept.on, kept.seed) != (on, seed):
            raise RunFolderError(
                f"{run / BASELINES_FILE}: is of seed {kept.seed} on {kept.on}; remove it or choose another --out"
            )
        evaluations = dict(kept.evaluations)
        missing = [name for name in names if name not in evaluations]
        found: Iterator[tuple[str, Evaluation]]
        if isinstance(task, ClassificationTask):
            files = Files(task, train, dev, test)
            found = run_baselines(files, model_folder, missing, seed=seed, console=console, device=device)
        else:
            scored = dev if test is None else test
            tags = most_frequent_tags(train, [example.words for example in scored]) if missing else []
            found = ((name, task.evaluate(scored, tags)) for name in missing)
        for name, evaluation in found:
            evaluations[name] = evaluation
            # 每算完一个就写盘：被杀掉之后只补算缺的
            write_json(run / BASELINES_FILE, BaselineScores(on, seed, evaluations))
    return evaluations


def most_frequent_tags(train: Sequence[TaggedWords], sentences: Sequence[Sequence[str]]) -> list[WordTags]:
    """Tags every word as it was tagged most often in training; words that did not occur get the commonest tag.

    Returns:
        For each sentence the tags, of equally frequent ones the first in the alphabet, and how often each was right in
        training.
    """
    by_word: dict[str, Counter[str]] = {}
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    default = _commonest(sum(by_word.values(), Counter[str]()))
    commonest = {word: _commonest(counts) for word, counts in by_word.items()}
    found = [[commonest.get(word, default) for word in words] for words in sentences]
    return [WordTags(tuple(tag for tag, _ in words), tuple(share for _, share in words)) for words in found]


def _commonest(counts: Counter[str]) -> tuple[str, float]:
    tag = min(counts, key=lambda tag: (-counts[tag], tag))
    return tag, counts[tag] / counts.total()


@dataclass(frozen=True)
class Files:
    """The files of a classification run, as its baselines read them; `task` scores by its metric and class weights."""

    task: ClassificationTask
    train: Sequence[LabelledText]
    dev: Sequence[LabelledText]
    test: Sequence[LabelledText] | None = None

    def __post_init__(self) -> None:
        """Reads every file once, so that it is refused before anything is trained."""
        for examples in (self.train, self.dev, self.scored):
            if not examples:
                raise InputError("the files of a baseline must hold at least one example each")
            self.columns(examples)
            self.numbers(examples)

    @property
    def scored(self) -> Sequence[LabelledText]:
        """The examples that are scored."""
        return self.dev if self.test is None else self.test

    def numbers(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        """Returns the true classes, [N]."""
        return np.array(self.task.targets(examples))

    def columns(self, examples: Sequence[LabelledText]) -> tuple[list[str], list[str] | None]:
        """Returns the texts, and the second ones of pairs."""
        return columns_of(examples, self.task.paired)

    def predictions(self, probabilities: NDArray[np.float64]) -> list[Prediction]:
        """Returns what a classifier would say, from probabilities [N, K]."""
        labels = self.task.labels
        return [
            Prediction(labels[int(np.argmax(row))], dict(zip(labels, row, strict=True)))
            for row in probabilities.tolist()
        ]

    def on_dev(self, probabilities: NDArray[np.float64]) -> float:
        """Returns how probabilities of the dev texts' classes, [N, K], do by the metric that chooses."""
        return self.task.metrics(self.dev, self.predictions(probabilities))[self.task.metric]


def run_baselines(
    files: Files,
    model_folder: str | Path,
    names: Sequence[str] = BASELINES,
    *,
    seed: int = 0,
    console: Console | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, Evaluation]]:
    """Trains baselines of classification, in the order of `names`; yields each with its scores once it has them."""
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise ConfigError(f"baseline {unknown[0]!r} is unknown; use some of {', '.join(BASELINES)}")
    pieces = _NeuralInputs(files, model_folder) if set(names) & set(NEURAL_BASELINES) else None
    for name in names:
        begun = time.monotonic()
        if name == "majority":
            probabilities, chosen = _majority(files)
        elif name == "tfidf":
            probabilities, chosen = _tfidf(files)
        else:
            assert pieces is not None
            probabilities, chosen = _neural(name, files, pieces, seed, device)
        evaluation = files.task.evaluate(files.scored, files.predictions(probabilities))
        if console is not None:
            how = f"{chosen}{time.monotonic() - begun:.0f} s"
            console.print(f"baseline {name}: accuracy {evaluation.metrics['accuracy']:.3f} ({how})", highlight=False)
        yield name, evaluation


def _majority(files: Files) -> tuple[NDArray[np.float64], str]:
    """Returns the probabilities of the scored texts' classes, [N, K], and what dev chose, for people."""
    # 先验概率就是训练集中各类的比例：最常见的一类得分最高
    shares = np.bincount(files.numbers(files.train), minlength=len(files.task.labels)) / len(files.train)
    return np.tile(shares, (len(files.scored), 1)), ""


class _NeuralInputs:
    """The texts of all files as rows of one table of embeddings, made once for all neural baselines."""

    def __init__(self, files: Files, model_folder: str | Path) -> None:
        tokenizer = load_tokenizer(model_folder)
        model = Backbone.from_pretrained(model_folder, need_pooler=False)
        require_fit(tokenizer, model.config, model_folder)
        texts = [
            list(zip(*(_pieces(tokenizer, column) for column in files.columns(examples) if column), strict=True))
            for examples in (files.train, files.dev, files.scored)
        ]
        self.table = PieceTable(model.embedding.word.weight, itertools.chain(*texts))
        self.train, self.dev, self.scored = map(self.table.rows, texts)


def _pieces(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Returns the ids of texts; one without any piece is `[UNK]`."""
    return [ids[:MAX_PIECES] or [tokenizer.blank_token_id] for ids in tokenizer.encode_batch(texts)]


def _neural(
    name: str, files: Files, pieces: _NeuralInputs, seed: int, device: torch.device | str
) -> tuple[NDArray[np.float64], str]:
    """Trains one of `NEURAL_BASELINES`; returns as `_majority`."""
    model, epoch = train_neural_baseline(
        name,
        pieces.table,
        pieces.train,
        files.numbers(files.train).tolist(),
        len(files.task.labels),
        lambda model: files.on_dev(neural_probabilities(model, pieces.dev)),
        class_weights=files.task.class_weights,
        seed=seed,
        device=device,
    )
    return neural_probabilities(model, pieces.scored), f"epoch {epoch}, "


def _tfidf(files: Files) -> tuple[NDArray[np.float64], str]:
    """Trains the linear model over words; returns as `_majority`."""
    words, fit = train_words(files.task, files.train, files.dev)
    return words.logits(*files.columns(files.scored)).double().softmax(-1).numpy(), f"C {fit.strength:g}, "
