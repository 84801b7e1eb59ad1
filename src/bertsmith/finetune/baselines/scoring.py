"""Baselines of classification and tagging, scored by the task itself: they show what BERT buys.

`majority` answers with the commonest class; `tfidf` is logistic regression over n-grams, the method to beat for any
classifier of texts; the neural ones are in `neural_baselines`. Everything that has to be chosen (the strength of the
regularisation, the epoch) is chosen by dev, as for BERT.

Notable:
- `tfidf` takes words and pairs of words; in scripts without spaces (Chinese, Japanese, Thai …) runs of one to three
  characters instead, which are no worse than the words of a segmenter (jieba: 92.4 to 92.5 % on ChnSentiCorp, runs of
  characters 92.7 %) and need none, so that figures do not depend on what is installed
- scikit-learn is an extra and imported only when `tfidf` is asked for
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.files import locked
from bertsmith.finetune.baselines.neural import (
    MAX_PIECES,
    NEURAL_BASELINES,
    PieceTable,
    PieceTexts,
    neural_probabilities,
    train_neural_baseline,
)
from bertsmith.finetune.baselines.scores_file import BASELINES_FILE, BaselineScores, read_baselines
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.task import Evaluation, Task
from bertsmith.finetune.tasks.texts import columns_of
from bertsmith.inference.checks import require_fit
from bertsmith.inference.classify import Prediction
from bertsmith.inference.tag import WordTags
from bertsmith.model import BertModel
from bertsmith.tokenizer import WordPieceTokenizer

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
class _Problem:
    """The files of a run as every baseline reads them.

    Attributes:
        task: scores the predictions.
        train: labelled texts to learn from.
        dev: to choose by.
        test: what is scored; the dev file where there is no test file.
        seed: of everything random.
        device: where the neural ones are trained.
    """

    task: ClassificationTask
    train: Sequence[LabelledText]
    dev: Sequence[LabelledText]
    test: Sequence[LabelledText]
    seed: int
    device: torch.device | str

    def numbers(self, examples: Sequence[LabelledText]) -> NDArray[np.int64]:
        """Returns the true classes, [N]."""
        return np.array(self.task.numbers(examples))

    def chosen_by(self, probabilities: NDArray[np.float64]) -> float:
        """Returns how probabilities of the dev texts' classes, [N, K], do by the metric that chooses."""
        return self.task.metrics(self.dev, _predictions(self.task.labels, probabilities))[self.task.metric]

    def columns(self, examples: Sequence[LabelledText]) -> tuple[list[str], list[str] | None]:
        """Returns the texts, and the second ones of pairs."""
        return columns_of(examples, self.task.paired)


def run_baselines(
    train: Sequence[LabelledText],
    dev: Sequence[LabelledText],
    test: Sequence[LabelledText] | None,
    model_folder: str | Path,
    names: Sequence[str] = BASELINES,
    seed: int = 0,
    console: Console | None = None,
    *,
    metric: str = "accuracy",
    balanced: bool = False,
    device: torch.device | str = "cpu",
) -> dict[str, Evaluation]:
    """Trains baselines on the files of a classification run.

    Args:
        train: labelled texts, or pairs.
        dev: by which epochs and settings are chosen.
        test: what is scored; None scores `dev`.
        model_folder: gives the tokenizer and the embeddings of the neural baselines.
        names: which of `BASELINES`.
        seed: the same seed gives the same figures.
        console: gets a line for each baseline; silent when None.
        metric: what dev chooses by, see `ClassificationTask`.
        balanced: whether each class is weighed by one over its frequency, as `ClassificationTask.of` does it.
        device: where the neural ones are trained.

    Returns:
        Name → how it does on `test`, in the order of `names`.

    Raises:
        ConfigError: a name is unknown, or `tfidf` is asked for and scikit-learn is not installed.
        InputError: a file is empty, or has a label that the training file lacks.
        CheckpointError: the model folder is not usable.
    """
    problem = _problem(train, dev, test, names, seed, metric, balanced, device)
    return dict(_evaluations(problem, model_folder, names, console or Console(quiet=True)))


def add_baselines(
    run: str | Path,
    train: Sequence[LabelledText],
    dev: Sequence[LabelledText],
    test: Sequence[LabelledText] | None,
    model_folder: str | Path,
    names: Sequence[str] = BASELINES,
    seed: int = 0,
    console: Console | None = None,
    *,
    metric: str = "accuracy",
    balanced: bool = False,
    device: torch.device | str = "cpu",
) -> dict[str, Evaluation]:
    """Trains those baselines that a run folder has no figures of, and keeps their figures in `baselines.json`.

    Args:
        run: the folder of a run over the same files, which `fine_tune` or `search` made sure of.
        train: as in `run_baselines`, like everything that follows.
        dev: likewise.
        test: likewise.
        model_folder: likewise.
        names: likewise.
        seed: likewise.
        console: likewise.
        metric: likewise.
        balanced: likewise.
        device: likewise.

    Returns:
        Name → evaluation, of all that are in the file now.

    Raises:
        RunFolderError: the file is damaged or of another seed, or cannot be written.
    """
    folder = Path(run)
    on = "dev" if test is None else "test"
    with locked(folder):
        found = read_baselines(folder)
        if found is not None and (found.on, found.seed) != (on, seed):
            raise RunFolderError(
                f"{folder / BASELINES_FILE}: is of seed {found.seed} on {found.on}; remove it or choose another --out"
            )
        evaluations = {} if found is None else dict(found.evaluations)
        problem = _problem(train, dev, test, names, seed, metric, balanced, device)
        missing = [name for name in names if name not in evaluations]
        for name, evaluation in _evaluations(problem, model_folder, missing, console or Console(quiet=True)):
            evaluations[name] = evaluation
            # 每算完一个就写盘：被杀掉之后只补算缺的
            BaselineScores(on, seed, evaluations).save(folder)
    return evaluations


def most_frequent_tags(train: Sequence[TaggedWords], sentences: Sequence[Sequence[str]]) -> list[WordTags]:
    """Tags every word as it was tagged most often in training; words that did not occur get the commonest tag.

    Args:
        train: tagged sentences, at least one.
        sentences: the words of other sentences.

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


def add_tagging_baseline(
    run: str | Path,
    task: Task[TaggedWords, WordTags],
    train: Sequence[TaggedWords],
    dev: Sequence[TaggedWords],
    test: Sequence[TaggedWords] | None,
) -> Evaluation:
    """Scores `most_frequent_tags` on the test file, or on dev where there is none, and keeps it in `baselines.json`."""
    examples = dev if test is None else test
    evaluation = task.evaluate(examples, most_frequent_tags(train, [example.words for example in examples]))
    with locked(Path(run)):
        BaselineScores("dev" if test is None else "test", 0, {"most frequent tag": evaluation}).save(Path(run))
    return evaluation


def check_baselines(
    train: Sequence[LabelledText],
    dev: Sequence[LabelledText],
    test: Sequence[LabelledText] | None,
    names: Sequence[str] = BASELINES,
) -> None:
    """Makes sure that baselines can be trained, as `run_baselines` does before its first one.

    Raises:
        ConfigError: a name is unknown, or `tfidf` is asked for and scikit-learn is not installed.
        InputError: a file is empty, or has a label that the training file lacks.
    """
    _problem(train, dev, test, names, seed=0, metric="accuracy", balanced=False, device="cpu")


class _NeuralInputs:
    """The texts of all files as rows of one table of embeddings, made once for all neural baselines."""

    def __init__(self, problem: _Problem, model_folder: str | Path) -> None:
        tokenizer = WordPieceTokenizer.load(model_folder)
        model = BertModel.from_pretrained(model_folder, need_pooler=False)
        require_fit(tokenizer, model.config, model_folder)
        files = [problem.train, problem.dev, problem.test]
        columns = [[_pieces(tokenizer, texts) for texts in problem.columns(file)] for file in files]
        every = [ids for file in columns for column in file if column is not None for ids in column]
        self.table = PieceTable(model.embedding.word.weight, every)
        self.train, self.dev, self.test = (
            PieceTexts(self.table.rows(first or []), None if second is None else self.table.rows(second))
            for first, second in columns
        )


def _pieces(tokenizer: WordPieceTokenizer, texts: list[str] | None) -> list[list[int]] | None:
    """Returns the ids of texts; one without any piece is `[UNK]`."""
    if texts is None:
        return None
    return [ids[:MAX_PIECES] or [tokenizer.unk_token_id] for ids in tokenizer.encode_batch(texts)]


def _problem(
    train: Sequence[LabelledText],
    dev: Sequence[LabelledText],
    test: Sequence[LabelledText] | None,
    names: Sequence[str],
    seed: int,
    metric: str,
    balanced: bool,
    device: torch.device | str,
) -> _Problem:
    """Checks everything before the first baseline is trained."""
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise ConfigError(f"baseline {unknown[0]!r} is unknown; use some of {', '.join(BASELINES)}")
    if not train or not dev or (test is not None and not test):
        raise InputError("the files of a baseline must hold at least one example each")
    if "tfidf" in names:
        _require_scikit_learn()
    task = replace(ClassificationTask.of(train, balanced=balanced), metric=metric)
    problem = _Problem(task, train, dev, dev if test is None else test, seed, device)
    for examples in (train, problem.dev, problem.test):
        problem.columns(examples)
        problem.numbers(examples)
    return problem


def _evaluations(
    problem: _Problem, model_folder: str | Path, names: Sequence[str], console: Console
) -> Iterator[tuple[str, Evaluation]]:
    """Yields every baseline's name and evaluation as soon as it is trained."""
    pieces = _NeuralInputs(problem, model_folder) if set(names) & set(NEURAL_BASELINES) else None
    for name in names:
        begun = time.monotonic()
        probabilities, chosen = _scores(name, problem, pieces)
        evaluation = problem.task.evaluate(problem.test, _predictions(problem.task.labels, probabilities))
        how = f"{chosen}{time.monotonic() - begun:.0f} s"
        console.print(f"baseline {name}: accuracy {evaluation.metrics['accuracy']:.3f} ({how})", highlight=False)
        yield name, evaluation


def _scores(name: str, problem: _Problem, pieces: _NeuralInputs | None) -> tuple[NDArray[np.float64], str]:
    """Returns the probabilities of the test texts' classes, [N, K], and what dev chose."""
    if name == "majority":
        # 先验概率就是训练集中各类的比例：最常见的一类得分最高
        shares = np.bincount(problem.numbers(problem.train), minlength=len(problem.task.labels)) / len(problem.train)
        return np.tile(shares, (len(problem.test), 1)), ""
    if name == "tfidf":
        return _tfidf(problem)
    assert pieces is not None
    dev = pieces.dev
    model, epoch = train_neural_baseline(
        name,
        pieces.table,
        pieces.train,
        problem.numbers(problem.train).tolist(),
        len(problem.task.labels),
        lambda model: problem.chosen_by(neural_probabilities(model, dev)),
        class_weights=problem.task.class_weights,
        seed=problem.seed,
        device=problem.device,
    )
    return neural_probabilities(model, pieces.test), f"epoch {epoch}, "


def _tfidf(problem: _Problem) -> tuple[NDArray[np.float64], str]:
    """Fits logistic regression over TF-IDF for each `C`, and keeps the one that is best on dev."""
    from sklearn.linear_model import LogisticRegression

    features = _tfidf_features(problem)
    train, labels = features(problem.train), problem.numbers(problem.train)
    dev = features(problem.dev)
    best, chosen, kept = -math.inf, 0.0, None
    weights = "balanced" if problem.task.class_weights else None
    for strength in INVERSE_REGULARIZATION:
        model = LogisticRegression(C=strength, max_iter=1000, class_weight=weights).fit(train, labels)
        reached = problem.chosen_by(model.predict_proba(dev))
        # 持平时留下较小的 C：约束更强的模型
        if reached > best:
            best, chosen, kept = reached, strength, model
    assert kept is not None
    probabilities: NDArray[np.float64] = kept.predict_proba(features(problem.test))
    return probabilities, f"C {chosen:g}, "


def _tfidf_features(problem: _Problem) -> Callable[[Sequence[LabelledText]], Any]:
    """Returns what turns examples into a sparse matrix: n-grams of the training texts, weighed by their rarity.

    Pairs are laid side by side with what they share and where they differ, [a, b, a * b, |a - b|]: a linear model over
    [a, b] alone could not compare the two.
    """
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    first, second = problem.columns(problem.train)
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
        first, second = problem.columns(examples)
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


def _predictions(labels: Sequence[str], probabilities: NDArray[np.float64]) -> list[Prediction]:
    return [
        Prediction(labels[int(np.argmax(row))], dict(zip(labels, row, strict=True))) for row in probabilities.tolist()
    ]


def _commonest(counts: Counter[str]) -> tuple[str, float]:
    tag = min(counts, key=lambda tag: (-counts[tag], tag))
    return tag, counts[tag] / counts.total()


def _require_scikit_learn() -> None:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "the baseline tfidf needs scikit-learn; install it with: pip install 'bertsmith[baselines]'"
        ) from None
