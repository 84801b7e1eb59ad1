"""The input representation: three embeddings, summed (Devlin et al. 2019, §3 and figure 2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.kernels.layers import Dropout, Embedding, LayerNorm
from bertsmith.model.config import BertConfig


class BertEmbedding(nn.Module):
    """Token + position + segment embedding, then LayerNorm and dropout.

    Attention by itself sees a set, not a sequence: the learned position embedding is what tells `dog bites man` from
    `man bites dog`; the segment embedding tells sentence A from sentence B.

    Attributes:
        compute_dtype: the dtype of what leaves this module, and so of every matmul after it.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = Embedding(config.vocab_size, config.hidden_size)
        self.position = Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.compute_dtype = torch.float32

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Turns ids into vectors.

        Args:
            batch: T tokens; ids below the vocabulary size, sequences within `max_position_embeddings`.

        Returns:
            [T, H] in `compute_dtype`.

        Raises:
            InputError: a sequence is longer than the model has positions for, or an id is out of range.
        """
        if batch.max_seqlen > self.position.num_embeddings:
            raise InputError(
                f"a sequence has {batch.max_seqlen} tokens, but the model has {self.position.num_embeddings} positions;"
                f" truncate it with max_length={self.position.num_embeddings}"
            )
        _check_range(
            "input_ids", batch.input_ids, self.word.num_embeddings, "was the text tokenized with another vocabulary?"
        )
        segments = self.token_type.num_embeddings
        known = f"the model knows {segments} segment{'s' if segments > 1 else ''}"
        _check_range("token_type_ids", batch.token_type_ids, segments, known)
        summed = (
            F.embedding(batch.input_ids, self.word.weight, sparse=self.word.sparse)
            + F.embedding(batch.position_ids, self.position.weight)
            + F.embedding(batch.token_type_ids, self.token_type.weight)
        )
        # 求和与归一化在 float32 中做，之后才转成计算精度：嵌入的微小差别不会被 bf16 抹掉
        embedded: Tensor = self.dropout(self.norm(summed).to(self.compute_dtype))
        return embedded


def _check_range(name: str, ids: Tensor, size: int, hint: str) -> None:
    """Refuses ids that no row of a table belongs to."""
    # GPU 上取最值要等设备同步，编译图中也不能有数据依赖的分支：那里由内核自己的断言把关
    if ids.is_cuda or torch.compiler.is_compiling():
        return
    smallest, largest = map(int, torch.aminmax(ids))
    if smallest < 0 or largest >= size:
        wrong = smallest if smallest < 0 else largest
        raise InputError(f"{name}: {wrong} is outside 0 to {size - 1}; {hint}")
