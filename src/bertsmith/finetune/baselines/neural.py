"""Small neural classifiers to hold a fine-tuned BERT against: what the embeddings give without the encoder.

Notable:
- all four start from the word-piece embeddings of the same model folder and train them further, so that what BERT is
  better by is its encoder, not its vocabulary
- only the pieces that occur are kept, and only the rows of a batch are updated: a step costs the same for any
  vocabulary
- a text is padded inside its batch; every architecture masks the padding, so that a score does not depend on what else
  was in the batch
- pairs: both texts go through one encoder, the head reads [u; v; |u - v|; u * v] (Conneau et al. 2017, figure 1)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from bertsmith.seeding import generator, torch_seed

BATCH_SIZE, LEARNING_RATE, EMBEDDING_LEARNING_RATE, DROPOUT = 32, 1e-3, 1e-3, 0.5
MAX_EPOCHS, PATIENCE = 10, 3
"""Training ends after `MAX_EPOCHS`, or `PATIENCE` epochs without a better dev accuracy."""

MAX_PIECES = 256
"""Longer texts are cut: recurrent layers take a step for every piece."""

_EMBEDDING_SCALE = 0.3
"""Standard deviation of the embeddings at the start, about that of word2vec's or GloVe's."""

_PREDICTION_BATCH = 256
_POOL = 32
"""Batches among whose texts similar lengths are put together."""


PieceText = tuple[list[int], ...]
"""A text, or the two texts of a pair, as rows of a `PieceTable`, never empty."""


class PieceTable:
    """The embeddings of the pieces that occur in given texts; row 0 is the padding."""

    def __init__(self, embeddings: Tensor, texts: Iterable[PieceText]) -> None:
        """Picks the rows.

        Args:
            embeddings: [V, H], of all pieces.
            texts: texts or pairs as ids below V; every piece among them gets a row.
        """
        used = sorted({piece for text in texts for ids in text for piece in ids})
        self._row = {piece: row for row, piece in enumerate(used, 1)}
        chosen = embeddings.detach().float()[used]
        # 统一尺度：BERT 的嵌入很小（标准差约 0.04），原样喂给小网络要很久才学得动
        scaled = chosen * (_EMBEDDING_SCALE / chosen.std().clamp(min=1e-12))
        self.weights = torch.cat([torch.zeros(1, scaled.shape[1]), scaled])

    def rows(self, texts: Iterable[PieceText]) -> list[PieceText]:
        """Returns texts as rows instead of ids; all were given to the constructor."""
        return [tuple([self._row[piece] for piece in ids] for ids in text) for text in texts]


class MeanPool(nn.Module):
    """The mean of the embeddings and one hidden layer: a bag of pieces (Iyyer et al. 2015, without depth)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = 256
        self.hidden = nn.Linear(size, self.size)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Maps [N, S, H], zero behind each text's length, and lengths [N] to [N, size]."""
        return torch.relu(self.hidden(vectors.sum(1) / lengths[:, None]))


class TextCNN(nn.Module):
    """100 filters each over windows of 3, 4 and 5 pieces, the largest response of each (Kim 2014, §2)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = 300
        self.filters = nn.ModuleList(nn.Conv1d(size, 100, width, padding=width - 1) for width in (3, 4, 5))

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Maps [N, S, H] and lengths [N] to [N, size]; see `MeanPool.forward`."""
        channels = vectors.transpose(1, 2)
        responses = []
        for width, convolution in zip((3, 4, 5), self.filters, strict=True):
            response = torch.relu(convolution(channels))
            places = torch.arange(response.shape[2], device=lengths.device)
            # 整个窗口都落在填充里的位置要去掉：否则得分取决于同批里最长的文本
            beyond = places >= (lengths + width - 1)[:, None]
            responses.append(response.masked_fill(beyond[:, None], 0.0).amax(2))
        return torch.cat(responses, 1)


class BiLSTM(nn.Module):
    """A bidirectional LSTM; the largest value of each unit over the text (Conneau et al. 2017, §3.2)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = 256
        self.recurrent = nn.LSTM(size, self.size // 2, batch_first=True, bidirectional=True)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Maps [N, S, H] and lengths [N] to [N, size]; see `MeanPool.forward`."""
        packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True, padding_value=-1.0)
        # LSTM 的输出在 (-1, 1) 内：填充处放 -1，取最大值时从不入选
        return states.amax(1)


class GRU(nn.Module):
    """A GRU from left to right; its state after the last piece (Cho et al. 2014, §2)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = 256
        self.recurrent = nn.GRU(size, self.size, batch_first=True)

    def forward(self, vectors: Tensor, lengths: Tensor) -> Tensor:
        """Maps [N, S, H] and lengths [N] to [N, size]; see `MeanPool.forward`."""
        packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
        last: Tensor = self.recurrent(packed)[1][0]
        return last


NEURAL_BASELINES: dict[str, type[MeanPool | TextCNN | BiLSTM | GRU]] = {
    "mean-pool": MeanPool,
    "textcnn": TextCNN,
    "bilstm": BiLSTM,
    "gru": GRU,
}


class TextClassifier(nn.Module):
    """Embeddings, one of `NEURAL_BASELINES`, dropout and a linear layer."""

    def __init__(self, name: str, table: PieceTable, num_labels: int, *, paired: bool) -> None:
        super().__init__()
        # 复制：from_pretrained 与原表共用内存，训练会改掉下一个基线的起点
        start = table.weights.clone()
        self.embedding = nn.Embedding.from_pretrained(start, freeze=False, padding_idx=0, sparse=True)
        self.encoder = NEURAL_BASELINES[name](table.weights.shape[1])
        self.head = nn.Linear(self.encoder.size * (4 if paired else 1), num_labels)

    def forward(self, texts: Sequence[PieceText]) -> Tensor:
        """Returns logits [N, K]."""
        vectors, *second = [self._encode(column) for column in zip(*texts, strict=True)]
        for other in second:
            vectors = torch.cat([vectors, other, (vectors - other).abs(), vectors * other], 1)
        logits: Tensor = self.head(F.dropout(vectors, DROPOUT, self.training))
        return logits

    def _encode(self, texts: Sequence[list[int]]) -> Tensor:
        device = self.head.weight.device
        rows = pad_sequence([torch.tensor(ids) for ids in texts], batch_first=True).to(device)
        lengths = torch.tensor([len(ids) for ids in texts], device=device)
        encoded: Tensor = self.encoder(self.embedding(rows), lengths)
        return encoded


def train_neural_baseline(
    name: str,
    table: PieceTable,
    train: Sequence[PieceText],
    labels: Sequence[int],
    num_labels: int,
    on_dev: Callable[[TextClassifier], float],
    *,
    class_weights: Sequence[float] = (),
    seed: int,
    device: torch.device | str = "cpu",
) -> tuple[TextClassifier, int]:
    """Trains one of the classifiers.

    Args:
        labels: N classes, in [0, num_labels).
        on_dev: how good the classifier is by now; the best epoch is kept, the earliest of equal ones.
        class_weights: of each class, as in `ClassificationObjective`; empty for all alike.

    Returns:
        The classifier of the best epoch, and that epoch, from 1.
    """
    cuda = [torch.device(device)] if torch.device(device).type == "cuda" else []
    # 只在这个块里改全局随机数：训练基线不影响调用者随后的随机数
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(torch_seed(seed, f"baselines/{name}"))
        model = TextClassifier(name, table, num_labels, paired=len(train[0]) == 2).to(device)
        dense = [parameter for parameter in model.parameters() if parameter is not model.embedding.weight]
        optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Adam(dense, LEARNING_RATE),
            torch.optim.SparseAdam([model.embedding.weight], EMBEDDING_LEARNING_RATE),
        )
        weights = torch.tensor(class_weights, device=device) if class_weights else None
        best, best_epoch, best_weights = -math.inf, 0, model.state_dict()
        for epoch in range(1, MAX_EPOCHS + 1):
            model.train()
            for places in _batches(_lengths(train), generator(seed, f"baselines/{name}/order", epoch)):
                true = torch.tensor([labels[i] for i in places]).to(device)
                loss = F.cross_entropy(model([train[i] for i in places]), true, weights)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
            if (reached := on_dev(model)) > best:
                best, best_epoch, best_weights = reached, epoch, copy.deepcopy(model.state_dict())
            if epoch - best_epoch >= PATIENCE:
                break
        model.load_state_dict(best_weights)
    return model, best_epoch


@torch.inference_mode()
def neural_probabilities(model: TextClassifier, texts: Sequence[PieceText]) -> NDArray[np.float64]:
    """Returns the probabilities of the classes, [N, K]."""
    model.eval()
    order = np.argsort(_lengths(texts), kind="stable")
    parts = [order[start : start + _PREDICTION_BATCH] for start in range(0, len(order), _PREDICTION_BATCH)]
    rows = torch.cat([model([texts[i] for i in places]).double().softmax(1).cpu() for places in parts]).numpy()
    probabilities = np.empty_like(rows)
    probabilities[order] = rows
    return probabilities


def _batches(lengths: NDArray[np.int64], draws: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yields shuffled batches of similar lengths; together every text once."""
    order = draws.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), _POOL * BATCH_SIZE):
        pool = order[start : start + _POOL * BATCH_SIZE]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[place : place + BATCH_SIZE] for place in range(0, len(pool), BATCH_SIZE)]
    # 池内按长度排过序：批次之间再打乱，免得每池都从短到长
    for number in draws.permutation(len(batches)).tolist():
        yield batches[number]


def _lengths(texts: Sequence[PieceText]) -> NDArray[np.int64]:
    return np.array([sum(map(len, text)) for text in texts])
