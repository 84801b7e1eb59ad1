"""Baselines of classification, scored by the task itself: they show what BERT buys.

`majority` answers with the commonest class; `tfidf` is logistic regression over n-grams, the method to beat for any
classifier of texts; the neural ones are in `neural`. Everything that has to be chosen (the strength of the
regularisation, the epoch) is chosen by dev, as for BERT.

Notable:
- `tfidf` takes words and pairs of words; in scripts without spaces (Chinese, Japanese, Thai …) runs of one to three
  characters instead, which are no worse than the words of a segmenter (jieba: 92.4 to 92.5 % on ChnSentiCorp, runs of
  characters 92.7 %) and need none, so that scores do not depend on what is installed
"""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.baselines.neural import (
    MAX_PIECES,
    NEURAL_BASELINES,
    PieceTable,
    neural_probabilities,
    train_neural_baseline,
)
from bertsmith.finetune.baselines.scores_file import add_scores
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.task import Evaluation
from bertsmith.finetune.tasks.texts import columns_of
from bertsmith.inference.checks import require_fit
from bertsmith.inference.classify import Prediction
from bertsmith.model import Backbone
from bertsmith.tokenizer import Tokenizer, load_tokenizer

BASELINES = ("majority", "tfidf", *NEURAL_BASELINES)
"""All baselines of classification, cheapest first."""

INVERSE_REGULARIZATION = (1.0, 3.0, 10.0, 30.0, 100.0)
"""The values of `C` of the logistic regression among which dev chooses."""

_WORD = re.compile(r"\b\w+\b")
_NO_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Characters of scripts that write no space between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


@dataclass(frozen=True)
class Files:
    """The files of a classification run, as every baseline reads them.

    Attributes:
        task: what was learned from them; it scores the predictions, and its metric and class weights hold for the
            baselines as well.
        train: labelled texts, or pairs, to learn from.
        dev: to choose epochs and settings by.
        test: what is scored; None scores `dev`.
    """

    task: ClassificationTask
    train: Sequence[LabelledText]
    dev: Sequence[LabelledText]
    test: Sequence[LabelledText] | None = None

    def __post_init__(self) -> None:
        """Makes sure, before anything is trained, that baselines can be.

        Raises:
            InputError: a file is empty, or has a label that the training file lacks, or pairs where that has none.
        """
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
        return np.array(self.task.numbers(examples))

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


def add_baselines(
    run: str | Path,
    files: Files,
    model_folder: str | Path,
    names: Sequence[str] = BASELINES,
    *,
    seed: int = 0,
    console: Console | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Evaluation]:
    """Trains those baselines that a run folder has no scores of, and keeps their scores in `baselines.json`.

    Args:
        run: the folder of a run over the same files, which `fine_tune` or `search` made sure of.
        files: as in `run_baselines`, like all that follow.
        model_folder: gives the tokenizer and the embeddings of the neural baselines.
        names: which of `BASELINES`.
        seed: of everything random.
        console: silent when None.
        device: where the neural ones are trained.

    Returns:
        Name → evaluation, of all that are in the file now.

    Raises:
        RunFolderError: the file is damaged or of another seed, or cannot be written.
    """

    def train(missing: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        return run_baselines(files, model_folder, missing, seed=seed, console=console, device=device)

    return add_scores(Path(run), "dev" if files.test is None else "test", names, train, seed=seed)


def run_baselines(
    files: Files,
    model_folder: str | Path,
    names: Sequence[str] = BASELINES,
    *,
    seed: int = 0,
    console: Console | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, Evaluation]]:
    """Trains baselines on the files of a classification run.

    Args:
        files: what is learned from, chosen by and scored.
        model_folder: gives the tokenizer and the embeddings of the neural baselines.
        names: which of `BASELINES`.
        seed: the same seed gives the same scores.
        console: gets a line for each baseline; silent when None.
        device: where the neural ones are trained.

    Yields:
        The name of each baseline and how it does, as soon as it is trained, in the order of `names`.

    Raises:
        ConfigError: a name is unknown.
        CheckpointError: the model folder is not usable.
    """
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
    """Fits logistic regression over TF-IDF for each `C`, and keeps the best on dev; returns as `_majority`."""
    from sklearn.linear_model import LogisticRegression

    features = _tfidf_features(files)
    train, labels = features(files.train), files.numbers(files.train)
    dev = features(files.dev)
    best, chosen, kept = -math.inf, 0.0, None
    weights = "balanced" if files.task.class_weights else None
    for strength in INVERSE_REGULARIZATION:
        model = LogisticRegression(C=strength, max_iter=1000, class_weight=weights).fit(train, labels)
        reached = files.on_dev(model.predict_proba(dev))
        # 持平时留下较小的 C：约束更强的模型
        if reached > best:
            best, chosen, kept = reached, strength, model
    assert kept is not None
    probabilities: NDArray[np.float64] = kept.predict_proba(features(files.scored))
    return probabilities, f"C {chosen:g}, "


def _tfidf_features(files: Files) -> Callable[[Sequence[LabelledText]], Any]:
    """Returns what turns examples into a sparse matrix: n-grams of the training texts, weighed by their rarity.

    Pairs are laid side by side with what they share and where they differ, [a, b, a * b, |a - b|]: a linear model over
    [a, b] alone could not compare the two.
    """
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    first, second = files.columns(files.train)
    texts = [*first, *(second or [])]
    # 全是表情符号的文本里没有一个词：也按字符来切
    spaced = not _is_written_without_spaces(texts) and any(_WORD.search(text) for text in texts)
    vectorizer = TfidfVectorizer(
        analyzer="word" if spaced else "char",
        token_pattern=_WORD.pattern if spaced else None,
        ngram_range=(1, 2) if spaced else (1, 3),
        sublinear_tf=True,
    )
    vectorizer.fit(texts)

    def features(examples: Sequence[LabelledText]) -> Any:
        first, second = files.columns(examples)
        a = vectorizer.transform(first)
        if second is None:
            return a
        b = vectorizer.transform(second)
        return sparse.hstack([a, b, a.multiply(b), abs(a - b)], format="csr")

    return features


def _is_written_without_spaces(texts: Sequence[str]) -> bool:
    """Whether at least a quarter of the characters are of scripts that put no space between words."""
    found = sum(len(_NO_SPACES.findall(text)) for text in texts)
    return found >= 0.25 * sum(len(text) for text in texts)
