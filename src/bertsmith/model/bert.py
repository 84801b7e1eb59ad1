"""`BertEncoder` and `BertModel`: the network that all tasks share, top to bottom.

Notable:
- the input is a `RaggedBatch`; nothing here knows what padding is
- the pooler is a part that only some tasks use; models of tokens (masked LM, tagging, answers) are built without it
- `compute_dtype` is one explicit switch; the parameters stay float32
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.kernels.layers import Linear
from bertsmith.model.attention import Checkpointing
from bertsmith.model.block import TransformerBlock
from bertsmith.model.config import BertConfig
from bertsmith.model.embeddings import BertEmbedding
from bertsmith.model.pretrained import Model, PretrainedBert, fill_from_folder, initialize_weights, named_heads


class EncoderOutput(NamedTuple):
    """What `BertEncoder` returns.

    `states` [T, H]; `layers`, the L states [T, H] after each block; `attentions`, for each layer asked for the maps
    of the N sequences [A, S_n, S_n]. The last two are None unless they were asked for.
    """

    states: Tensor
    layers: list[Tensor] | None
    attentions: list[list[Tensor]] | None


@dataclass(frozen=True)
class BertOutput:
    """What `BertModel` returns.

    Attributes:
        hidden_states: [T, H], the last layer's state of every token.
        cls: [N, H], the last layer's state of each `[CLS]`.
        pooler_output: [N, H] as `pooled`, or None where the model was built without a pooler.
        layers: L+1 tensors [T, H], embeddings first, when asked for.
        attentions: for each layer asked for, from below, N maps [A, S_n, S_n].
    """

    hidden_states: Tensor
    cls: Tensor
    pooler_output: Tensor | None
    layers: list[Tensor] | None = None
    attentions: list[list[Tensor]] | None = None

    @property
    def pooled(self) -> Tensor:
        """[N, H], `tanh(W cls + b)`, in (-1, 1); what the NSP head and the sequence classifiers read.

        Raises:
            InputError: the model has no pooler.
        """
        if self.pooler_output is None:
            raise InputError("this model was built without a pooler; read `cls` or `hidden_states`")
        return self.pooler_output


class BertEncoder(nn.Module):
    """L Transformer blocks, one after the other.

    Attributes:
        gradient_checkpointing: see `PretrainedBert.set_gradient_checkpointing`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(config, layer) for layer in range(config.num_hidden_layers))
        self.gradient_checkpointing: Checkpointing = "none"

    def forward(
        self,
        hidden: Tensor,
        batch: RaggedBatch,
        *,
        need_layers: bool = False,
        need_maps: bool | Collection[int] = False,
        causal: bool = False,
    ) -> EncoderOutput:
        """Runs the blocks over embeddings [T, H]; the options are those of `BertModel`."""
        layers: list[Tensor] = []
        attentions: list[list[Tensor]] = []
        for number, block in enumerate(self.blocks):
            look = need_maps if isinstance(need_maps, bool) else number in need_maps
            if self.gradient_checkpointing == "blocks" and self.training and not look:
                # 反向时重算本层：随机数状态一并恢复，dropout 的取舍与前向相同
                hidden, maps = checkpoint(block, hidden, batch, causal=causal, use_reentrant=False)
            else:
                hidden, maps = block(hidden, batch, need_maps=look, causal=causal)
            if need_layers:
                layers.append(hidden)
            if maps is not None:
                attentions.append(maps)
        return EncoderOutput(hidden, layers if need_layers else None, None if need_maps is False else attentions)


class BertModel(PretrainedBert):
    """The encoder with its embeddings below and its pooler above (Devlin et al. 2019, §3)."""

    architecture = "BertModel"
    heads = ("pooler",)

    def __init__(self, config: BertConfig, *, need_pooler: bool = True) -> None:
        """Builds the network with fresh weights.

        Args:
            config: the shape.
            need_pooler: False for uses that never read `pooled`.
        """
        super().__init__()
        self.config = config
        self.embedding = BertEmbedding(config)
        self.encoder = BertEncoder(config)
        self.pooler = Linear(config.hidden_size, config.hidden_size) if need_pooler else None
        initialize_weights(self, config.initializer_range)

    def forward(
        self,
        batch: RaggedBatch,
        *,
        need_layers: bool = False,
        need_maps: bool | Collection[int] = False,
        causal: bool = False,
    ) -> BertOutput:
        """Encodes a batch.

        Args:
            batch: N sequences, each starting with `[CLS]`.
            need_layers: also return the states after the embeddings and after each block.
            need_maps: also return the attention probabilities of every head: of all layers, or of these layer
                numbers, counted from 0.
            causal: each token reads itself and those before it only (the paper's left-to-right ablation, §5.1). `cls`
                and `pooled` are then of the last token of each sequence, the only one that has read all of it.

        Raises:
            InputError: a sequence is longer than `max_position_embeddings`, or an id is outside the vocabulary.
        """
        embedded = self.embedding(batch)
        encoded = self.encoder(embedded, batch, need_layers=need_layers, need_maps=need_maps, causal=causal)
        # 从左到右时 [CLS] 只看见自己，整句的信息在最后一个词
        summary = batch.cu_seqlens[1:].long() - 1 if causal else batch.first_token_positions
        cls = encoded.states.index_select(0, summary)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(cls))
        layers = None if encoded.layers is None else [embedded, *encoded.layers]
        return BertOutput(encoded.states, cls, pooled, layers, encoded.attentions)

    @classmethod
    def from_pretrained(
        cls: type[Model],
        folder: str | Path,
        *,
        new_heads: bool | Collection[str] = False,
        need_pooler: bool = True,
        **changes: Any,
    ) -> Model:
        """Loads the network from a model folder; heads found there are left aside.

        Args:
            folder: a model folder.
            new_heads: True starts the pooler with fresh weights.
            need_pooler: False for uses that never read `pooled`: then a folder without a pooler will do.
            **changes: fields of the configuration to change.

        Raises:
            CheckpointError: as in `PretrainedBert.from_pretrained`.
        """
        config = BertConfig.load(folder).changed(**changes)
        return fill_from_folder(
            partial(cls, need_pooler=need_pooler), config, folder, fresh=named_heads(cls, new_heads)
        )
