"""CBOW and skip-gram with negative sampling: one vector a word, whatever its sentence (Mikolov et al. 2013a, 2013b).

What BERT is compared with in every introduction: the word is predicted from those around it as well, but the network is
two tables. A word has a vector of its own and another one as context; a pair is likely where the two point the same
way, and words drawn at random should not.

Notable:
- a near context counts more than a far one: the random width of the window is replaced by its mean, the weight
  (c - d + 1) / c of a context d words away in a window of c
- all pairs of a batch share their random words, so that the unlikely side is one matrix product
- frequent words are left out at random before the windows are laid, and a window ends where its sentence does
- steps, seeds and states are those of pre-training: a run that is killed goes on bit for bit
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.errors import ConfigError
from bertsmith.files import claim_folder, locked
from bertsmith.neighbours.runs import train_to_the_end
from bertsmith.neighbours.sentences import SentenceStream
from bertsmith.neighbours.vectors import FILE, WordVectors
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.options import option
from bertsmith.seeding import torch_seed
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.trainer import BertTrainer, TrainerSettings

SHARED_NEGATIVES = 512
"""Random words that all pairs of a step share; each pair counts them as `negatives` of its own."""

STEP_PIECES = 512
"""Short steps, many of them: a step adds up what its pairs say, and a word that is in many must not be thrown."""


@dataclass(frozen=True)
class WordVectorOptions:
    """How vectors are learned; the usual settings of the field.

    Attributes:
        method: a word predicts each of its contexts, or their mean predicts the word.
        size: numbers in a vector.
        window: words on either side that are context.
        negatives: random words for each pair.
        sample: frequency from which words are left out at times; 0 keeps all.
        epochs: passes over the text.
        learning_rate: of each pair, at first; it falls to 0. None for what the method's program takes.
        seed: of everything random.
    """

    panel: ClassVar[str] = "Word vectors"

    method: Literal["skip-gram", "cbow"] = option("skip-gram", help="Model: skip-gram or cbow.")
    size: int = option(128, min=1, help="Size of a vector.")
    window: int = option(5, min=1, help="Context words on either side.")
    negatives: int = option(5, min=1, help="Random negative words for each pair.")
    sample: float = option(1e-3, min=0.0, help="Subsample words more frequent than this; 0 keeps all.")
    epochs: int = option(5, min=1, help="Passes over the text.")
    learning_rate: float | None = option(
        None, shown_default="0.025; cbow 0.05", help="Initial learning rate; it falls to 0."
    )
    seed: int = option(0, help="Random seed.")

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if self.method not in get_args(Literal["skip-gram", "cbow"]):
            raise ConfigError(f"method {self.method!r} is unknown; use skip-gram or cbow")
        if min(self.size, self.window, self.negatives, self.epochs) < 1:
            raise ConfigError("size, window, negatives and epochs must be at least 1")
        if not 0.0 <= self.sample < float("inf"):
            raise ConfigError(f"sample {self.sample} must be 0 or more")
        TrainerSettings(1, self.rate)

    @property
    def rate(self) -> float:
        """The learning rate at first."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.05 if self.method == "cbow" else 0.025


class Word2Vec(nn.Module):
    """Two tables: words, and words as contexts.

    Attributes:
        word: [V, H], the vectors that are kept.
        context: [V, H].
    """

    def __init__(self, num_words: int, size: int) -> None:
        """Draws small vectors; contexts start at 0, so that every pair is even at first."""
        super().__init__()
        # 一步只碰几百行：稀疏梯度让一步的代价与词表大小无关
        self.word = nn.Embedding(num_words, size, sparse=True)
        self.context = nn.Embedding(num_words, size, sparse=True)
        nn.init.uniform_(self.word.weight, -0.5 / size, 0.5 / size)
        nn.init.zeros_(self.context.weight)


class NegativeSampling:
    """Its loss: log σ of true pairs and of random ones turned round (Mikolov et al. 2013b, equation 4)."""

    def __init__(self, options: WordVectorOptions, counts: Tensor, special_ids: set[int]) -> None:
        """Prepares the odds.

        Args:
            options: the window and the like.
            counts: [V], how often each word occurs.
            special_ids: that are no words.
        """
        self.options = options
        counts = counts.double().clone()
        counts[list(special_ids)] = 0
        self.is_special = torch.zeros(len(counts), dtype=torch.bool)
        self.is_special[list(special_ids)] = True
        # 频率的 3/4 次方：比真实频率平一些，少见的词也常被抽到
        noise = (counts**0.75).cumsum(0)
        self.noise_below = noise / noise[-1]
        share = counts / counts.sum()
        kept = torch.ones_like(share)
        if options.sample:
            ratio = options.sample / share.clamp_min(1e-12)
            kept = (ratio.sqrt() + ratio).clamp_max(1.0)
        self.kept = kept.float()

    def __call__(self, model: Word2Vec, batch: RaggedBatch) -> LossOutput:
        """Returns the summed loss of all pairs, or of all words for CBOW, each with its random words."""
        ids, sentence = self._words(batch)
        noise = self._noise()
        words, contexts, against = model.word(ids), model.context(ids), model.context(noise)
        near = self._near(sentence)
        total = near.sum(1)
        if self.options.method == "cbow":
            # 上下文取平均再去猜中间的词：一次预测，不分先后
            added = near @ words
            # 取值是平均，梯度却不除以个数：原来的程序如此，每个上下文词都按整个误差推一把，否则学得慢好几倍
            words = added - (added - added / total.clamp_min(1e-9)[:, None]).detach()
            weight = (total > 0).float()
            loss = (weight * F.softplus(-(words * contexts).sum(-1))).sum()
        else:
            # 中间的词猜每一个上下文：所有的对是一个矩阵，不在窗口里的权重为 0
            weight = total
            loss = (near * F.softplus(-(words @ contexts.T))).sum()
        likely = F.softplus(words @ against.T).mean(1)
        loss = loss + self.options.negatives * (weight * likely).sum()
        return LossOutput(loss, {"loss": (float(loss.detach()), round(float(weight.sum())))})

    def _words(self, batch: RaggedBatch) -> tuple[Tensor, Tensor]:
        """Returns the words that stay [T'], and which sentence each is of."""
        ids, lengths = batch.input_ids, torch.tensor(batch.lengths)
        sentence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        stays = ~self.is_special[ids] & (torch.rand(len(ids)) < self.kept[ids])
        return ids[stays], sentence[stays]

    def _near(self, sentence: Tensor) -> Tensor:
        """Returns [T', T'], how much each word counts as context of each other one."""
        places, window = torch.arange(len(sentence)), self.options.window
        distances = (places[:, None] - places).abs()
        weights = (window + 1 - distances).clamp_min(0).float() / window
        # 窗口不越过句子：下一句的词不算上下文
        return weights * ((distances > 0) & (sentence[:, None] == sentence))

    def _noise(self) -> Tensor:
        """Draws the words that all pairs of a step share."""
        drawn = torch.rand(SHARED_NEGATIVES, dtype=torch.double)
        return torch.searchsorted(self.noise_below, drawn, right=True)


def learn_word_vectors(
    run: str | Path,
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    options: WordVectorOptions,
    *,
    console: Console | None = None,
) -> WordVectors:
    """Learns a vector for every piece of a vocabulary, or goes on where the same call was stopped.

    Args:
        run: the folder; `vectors.bin` is the result.
        corpus: token shards.
        tokenizer: made them.
        options: how.
        console: shows progress; silent when None.

    Raises:
        RunFolderError: the folder holds something else, or cannot be written.
        TrainingStopped: a signal came; the state is saved.
    """
    run, console = Path(run), console or Console(quiet=True)
    # 早先的窗口会越过句子：那样的训练不能接着做
    claim_folder(run, "word-vectors.json", {"corpus": corpus.fingerprint, "windows": "sentence", **asdict(options)})
    with locked(run):
        if (run / FILE).exists():
            return WordVectors.load(run)
        found = _train(run, corpus, tokenizer, options, console)
        found.save(run)
    return found


def _train(
    run: Path, corpus: TokenCorpus, tokenizer: Tokenizer, options: WordVectorOptions, console: Console
) -> WordVectors:
    torch.manual_seed(torch_seed(options.seed, "neighbours/initial weights"))
    counts = torch.from_numpy(corpus.piece_counts.copy())
    model = Word2Vec(len(counts), options.size)
    steps = max(1, round(options.epochs * corpus.counts[TRAIN].tokens / STEP_PIECES))
    # 与原来的程序一样：朴素的 SGD，每一对都以同样的学习率推一把；Adam 的动量会让少见的词一直漂
    settings = TrainerSettings(steps, options.rate, warmup_share=0.0, weight_decay=0.0, clip_norm=1e9, optimizer="sgd")
    loss = NegativeSampling(options, counts, set(tokenizer.special_ids))
    trainer: BertTrainer[Word2Vec] = BertTrainer(model, loss, settings, seed=options.seed)
    stream = SentenceStream(corpus, step_pieces=STEP_PIECES, seed=options.seed)
    train_to_the_end(run, trainer, stream, options.method, console)
    order = list(_by_frequency(corpus.piece_counts, set(tokenizer.special_ids)))
    vectors = model.word.weight.detach().numpy()[order]
    return WordVectors([tokenizer.vocab[number] for number in order], np.ascontiguousarray(vectors))


def _by_frequency(counts: NDArray[np.int64], special: set[int]) -> Iterator[int]:
    """Yields the pieces that occur, the most frequent first."""
    for number in np.argsort(-counts, kind="stable").tolist():
        if counts[number] > 0 and number not in special:
            yield number
