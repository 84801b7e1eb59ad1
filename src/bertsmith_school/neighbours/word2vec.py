"""CBOW and skip-gram with negative sampling: one vector a word, whatever its sentence (Mikolov et al. 2013a, 2013b).

As in BERT a word is predicted from those around it, but the network is two tables: a word has a vector of its own and
another one as context. A pair is likely where the two point the same way, and words drawn at random should not.

- a near context counts more than a far one: the random width of the window is replaced by its mean, the weight
  (c - d + 1) / c of a context d words away in a window of c
- all pairs of a batch share their random words, so that the unlikely side is one matrix product
- frequent words are left out at random before the windows are laid, and a window ends where its sentence does
- a step ends after its last piece, also within a sentence: so a run of so many steps is exactly so many passes; steps,
  seeds and states are those of pre-training: a run that is killed resumes bit for bit
- vectors are kept in the binary file of the first word2vec program, which gensim reads
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.data.stream.stream import EpochPermutation, StreamPosition
from bertsmith.errors import CheckpointError, InputError
from bertsmith.files import atomic_path, claim_folder, locked, make_folder
from bertsmith.objectives import LossOutput
from bertsmith.seeding import torch_seed
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from bertsmith_school.neighbours.runs import train_to_the_end


class SentenceStream(Iterator[RaggedBatch]):
    """Batches without end, each of the sentences that `step_pieces` pieces hold; the first and last may be cut.

    Attributes:
        position: where the next batch starts: piece `offset` of the document at place `block` of the epoch's order.
    """

    def __init__(self, corpus: TokenCorpus, *, step_pieces: int, seed: int) -> None:
        """Opens the training documents at their beginning, in an order by the seed."""
        self.position = StreamPosition()
        self._corpus, self._step_pieces, self._seed = corpus, step_pieces, seed
        self._num_documents = corpus.counts[TRAIN].documents
        self._order: tuple[int, EpochPermutation] | None = None
        self._read: tuple[StreamPosition, NDArray[np.int64], NDArray[np.bool_]] | None = None

    def __next__(self) -> RaggedBatch:
        """Returns the batch at `position` and moves on."""
        pieces: list[NDArray[np.int64]] = []
        begins: list[NDArray[np.bool_]] = []
        missing = self._step_pieces
        while missing:
            ids, begin = self._document()
            part = slice(self.position.offset, self.position.offset + missing)
            pieces.append(ids[part])
            begins.append(begin[part])
            missing -= len(ids[part])
            self.position = replace(self.position, offset=part.stop) if part.stop < len(ids) else self._next_document()
        starts = np.concatenate(begins)
        # 上一步在句子中间停下时，剩下的半句算一句
        starts[0] = True
        lengths = np.diff(np.flatnonzero(starts), append=len(starts))
        return RaggedBatch.from_flat(np.concatenate(pieces), lengths)

    def _document(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns the ids of the document at `position`, and which of them begin a sentence; the last is kept."""
        place = replace(self.position, offset=0)
        if self._read is None or self._read[0] != place:
            if self._order is None or self._order[0] != place.epoch:
                self._order = (place.epoch, EpochPermutation(self._num_documents, self._seed, place.epoch))
            (number,) = self._order[1].places(place.block, 1).tolist()
            sentences = self._corpus.document(TRAIN, number)
            begin = np.concatenate([np.arange(len(sentence)) == 0 for sentence in sentences])
            self._read = (place, np.concatenate(sentences).astype(np.int64), begin)
        return self._read[1:]

    def _next_document(self) -> StreamPosition:
        if self.position.block + 1 < self._num_documents:
            return StreamPosition(self.position.epoch, self.position.block + 1)
        return StreamPosition(self.position.epoch + 1)


FILE = "vectors.bin"


class WordVectors:
    """Words and their vectors, [V, H] float32."""

    def __init__(self, words: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.words, self.vectors = list(words), vectors
        self._number = {word: number for number, word in enumerate(self.words)}
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = vectors / np.maximum(lengths, 1e-12)

    def vector(self, word: str) -> NDArray[np.float32]:
        """Returns [H]; `InputError` for a word without one."""
        found: NDArray[np.float32] = self.vectors[self._find(word)]
        return found

    def nearest(self, plus: Sequence[str], minus: Sequence[str] = (), count: int = 10) -> list[tuple[str, float]]:
        """Returns the words nearest to a sum of directions, with their cosines; the given words are left out.

        `nearest(["woman", "king"], ["man"])` asks what is to woman as king is to man (Mikolov et al. 2013).
        """
        if not plus and not minus:
            raise InputError("give a word to look around")
        if count < 1:
            raise InputError(f"count {count} must be at least 1")
        signed = [(self._find(word), 1.0) for word in plus] + [(self._find(word), -1.0) for word in minus]
        # 类比是方向的加减：先都缩成单位长度，否则高频词的长向量会盖过别的
        aim = sum((sign * self._directions[number] for number, sign in signed), np.zeros(self.vectors.shape[1]))
        cosines = self._directions @ (aim / max(float(np.linalg.norm(aim)), 1e-12))
        cosines[[number for number, _ in signed]] = -np.inf
        order = np.argsort(-cosines, kind="stable")[:count]
        return [(self.words[number], float(cosines[number])) for number in order if np.isfinite(cosines[number])]

    def save(self, folder: str | Path) -> None:
        """Writes `vectors.bin`."""
        with atomic_path(Path(folder) / FILE) as temporary, temporary.open("wb") as file:
            file.write(f"{len(self.words)} {self.vectors.shape[1]}\n".encode())
            for word, vector in zip(self.words, self.vectors, strict=True):
                # 格式里空格隔开词与向量：用户自己的词里的空格写成下划线
                file.write(word.replace(" ", "_").encode() + b" " + vector.astype("<f4").tobytes())

    @classmethod
    def load(cls, folder: str | Path) -> WordVectors:
        """Reads what `save`, or another program, wrote; `CheckpointError` for a file that is missing or damaged."""
        path = Path(folder) / FILE
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be read ({error.strerror}); train with bertsmith compare word-vectors"
            ) from None
        try:
            head, _, rest = content.partition(b"\n")
            count, size = map(int, head.split())
            words, vectors = [], np.empty((count, size), np.float32)
            place = 0
            for number in range(count):
                # 有的程序在向量之后换行，有的不换
                end = rest.index(b" ", place)
                words.append(rest[place:end].lstrip(b"\n").decode())
                place = end + 1 + 4 * size
                vectors[number] = np.frombuffer(rest, "<f4", size, end + 1)
        except (ValueError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path}: damaged ({error}); train it again") from None
        if rest[place:].strip(b"\n") or not np.isfinite(vectors).all() or len(set(words)) < count:
            raise CheckpointError(
                f"{path}: damaged (not {count} words with {size} finite numbers each); train it again"
            )
        return cls(words, vectors)

    def _find(self, word: str) -> int:
        if word not in self._number:
            raise InputError(f"{word!r} has no vector: it is no piece of the vocabulary")
        return self._number[word]


SHARED_NEGATIVES = 512
"""Random words that all pairs of a step share; each pair counts them as `negatives` of its own."""

STEP_PIECES = 512
"""Short steps, many of them: a step adds up what its pairs say, and a word that is in many must not be thrown."""


@dataclass(frozen=True)
class WordVectorOptions(Checked):
    """How vectors are learned; the usual settings of the field."""

    panel: ClassVar[str] = "Word vectors"

    method: Literal["skip-gram", "cbow"] = option("skip-gram", help="Model: skip-gram or cbow.")
    size: int = option(128, min=1, help="Size of a vector.")
    window: int = option(5, min=1, help="Context words on either side.")
    negatives: int = option(5, min=1, help="Random negative words for each pair.")
    sample: float = option(1e-3, min=0.0, help="Subsample words more frequent than this; 0 keeps all.")
    epochs: int = option(5, min=1, help="Passes over the text.")
    learning_rate: float | None = option(
        None, above=0, shown_default="0.025; cbow 0.05", help="Initial learning rate; it falls to 0."
    )
    seed: int = option(0, help="Random seed.")

    @property
    def rate(self) -> float:
        """The learning rate at first."""
        if self.learning_rate is not None:
            return self.learning_rate
        return 0.05 if self.method == "cbow" else 0.025


class Word2Vec(nn.Module):
    """Two tables [V, H]: words, whose vectors are kept, and words as contexts."""

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
        """Prepares the odds from how often each of V words occurs."""
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
        words, contexts, against = model.word(ids), model.context(ids), model.context(self._noise())
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
    """Learns a vector for every piece into `run/vectors.bin`, or resumes where the same call was stopped."""
    run, console = Path(run), console or Console(quiet=True)
    # 早先的窗口会越过句子：那样的训练不能接着做
    request = {"corpus": corpus.fingerprint, "windows": "sentence", **asdict(options)}
    with locked(make_folder(run)):
        claim_folder(run, "word-vectors.json", request)
        if not (run / FILE).exists():
            _train(run, corpus, tokenizer, options, console).save(run)
        return WordVectors.load(run)


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
    # 只留出现过的词片，最常见的在前
    order = [
        number
        for number in np.argsort(-corpus.piece_counts, kind="stable").tolist()
        if corpus.piece_counts[number] > 0 and number not in tokenizer.special_ids
    ]
    vectors = model.word.weight.detach().numpy()[order]
    return WordVectors([tokenizer.vocab[number] for number in order], np.ascontiguousarray(vectors))
