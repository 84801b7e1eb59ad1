"""BERT (Devlin et al. 2019): its `config.json`, embeddings, blocks, encoder, and the published names of its tensors.

This is the network of the paper's §3, top to bottom of this file upside down: the pooled `[CLS]` over L post-norm
Transformer blocks (`model/attention.py`) over the sum of three embeddings. The input is a `RaggedBatch`: [T] real
tokens, and no module knows what padding is. `compute_dtype` is one explicit switch; the parameters stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertsmith.batch import FULL, AttentionMask, RaggedBatch
from bertsmith.errors import InputError
from bertsmith.kernels.layers import Dropout, Embedding, LayerNorm, Linear
from bertsmith.model.attention import AttentionOutput, Checkpointing, MultiHeadSelfAttention
from bertsmith.model.backbone import Backbone, BackboneOutput, initialize_weights
from bertsmith.model.config import ModelConfig
from bertsmith.model.family import Family, PublishedNames
from bertsmith.model.heads import ACTIVATION_FUNCTIONS, HEADS


@dataclass(frozen=True)
class BertConfig(ModelConfig):
    """The architecture of a BERT; see the paper's §3, and `ModelConfig` for the fields that all families have."""

    model_type: ClassVar[str] = "bert"
    only: ClassVar[Mapping[str, Any]] = {"position_embedding_type": "absolute", "add_cross_attention": False}

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = None
    id2label: dict[int, str] = field(default_factory=dict)
    problem_type: str | None = None
    pruned_heads: dict[int, tuple[int, ...]] = field(default_factory=dict)
    is_decoder: bool = False


class BertEmbedding(nn.Module):
    """Token + position + segment embedding, then LayerNorm and dropout (§3 and figure 2).

    Attention by itself sees a set, not a sequence: the learned position embedding is what tells `dog bites man` from
    `man bites dog`; the segment embedding tells sentence A from sentence B.

    Attributes:
        compute_dtype: the dtype of what leaves this module, and so of every matmul after it.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = Embedding(config.vocab_size, config.embedding_size)
        self.position = Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type = Embedding(config.type_vocab_size, config.embedding_size)
        self.norm = LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.compute_dtype = torch.float32

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Turns T tokens into [T, H] in `compute_dtype`; `InputError` where a text is too long, or an id unknown."""
        check_length(batch, self.position.num_embeddings)
        check_ids(batch, self.word.num_embeddings)
        segments = self.token_type.num_embeddings
        known = f"the model knows {segments} segment{'s' if segments > 1 else ''}"
        check_range("token_type_ids", batch.token_type_ids, segments, known)
        summed = (
            F.embedding(batch.input_ids, self.word.weight, sparse=self.word.sparse)  # [T, H]
            + F.embedding(batch.position_ids, self.position.weight)
            + F.embedding(batch.token_type_ids, self.token_type.weight)
        )
        # 求和与归一化在 float32 中做，之后才转成计算精度：嵌入的微小差别不会被 bf16 抹掉
        embedded: Tensor = self.dropout(self.norm(summed).to(self.compute_dtype))
        return embedded


class TransformerBlock(nn.Module):
    """Self-attention, then a feed-forward layer; x ← LayerNorm(x + Dropout(sublayer(x))) (Vaswani et al. 2017, §3.1).

    The norm comes after the sum, as in the released BERT. That needs the learning-rate warm-up: with the norm on the
    residual path, the gradients of a fresh deep model are largest near the output.
    """

    def __init__(self, config: ModelConfig, layer: int = 0) -> None:
        """Builds a block; which one it is, `layer` from 0, matters where heads were pruned."""
        super().__init__()
        self.attention = MultiHeadSelfAttention(config, num_heads=len(config.heads_left(layer)))
        self.attention_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATION_FUNCTIONS[config.hidden_act]
        self.output = Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention_dropout = self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden: Tensor, batch: RaggedBatch, *, places: Tensor | None = None, **asked: Any
    ) -> AttentionOutput:
        """Refines the states [T, H] by one layer; the options are those of `MultiHeadSelfAttention`."""
        mixed, maps = self.attention(hidden, batch, places=places, **asked)  # [T, H], or [M, H] at places
        if places is not None:
            hidden = hidden.index_select(0, places)
        # 残差：子层只学对输入的修正，梯度也有一条不经过子层的路，层数多了仍传得下去
        hidden = self.attention_norm(hidden + self.attention_dropout(mixed))
        expanded = self.activation(self.intermediate(hidden))  # [T, 4 H]
        # 归一化在残差之后（post-norm）：每层都重新缩放主干，初期靠近输出的梯度最大，所以学习率要预热
        hidden = self.output_norm(hidden + self.dropout(self.output(expanded)))
        return AttentionOutput(hidden, maps)


class EncoderOutput(NamedTuple):
    """What `BertEncoder` returns; the last two are None unless they were asked for.

    `states` [T, H]; `layers`, the L states [T, H] after each block; `attentions`, for each layer asked for the maps
    of the N sequences [A, S_n, S_n].
    """

    states: Tensor
    layers: list[Tensor] | None
    attentions: list[list[Tensor]] | None


class BertEncoder(nn.Module):
    """L Transformer blocks, one after the other, from below."""

    blocks: Iterable[nn.Module]

    def __init__(self, config: Any, block: Callable[[Any, int], nn.Module] = TransformerBlock) -> None:
        """Builds the blocks, of a class of their own in families whose blocks differ."""
        super().__init__()
        self.blocks = nn.ModuleList(block(config, layer) for layer in range(config.num_hidden_layers))
        self.gradient_checkpointing: Checkpointing = "none"

    def forward(
        self,
        hidden: Tensor,
        batch: RaggedBatch,
        *,
        need_layers: bool = False,
        need_maps: bool | Collection[int] = False,
        mask: AttentionMask = FULL,
        places: Tensor | None = None,
    ) -> EncoderOutput:
        """Runs the blocks over embeddings [T, H]; the options are those of `BertModel`."""
        layers: list[Tensor] = []
        attentions: list[list[Tensor]] = []
        blocks = list(self.blocks)
        for number, block in enumerate(blocks):
            look = need_maps if isinstance(need_maps, bool) else number in need_maps
            # 最后一层之后只有要读的位置还有用；之前的各层，别的位置还要看它们
            asked: dict[str, Any] = {} if places is None or number < len(blocks) - 1 else {"places": places}
            if self.gradient_checkpointing == "blocks" and self.training and not look:
                # 反向时重算本层：随机数状态一并恢复，dropout 的取舍与前向相同
                hidden, maps = checkpoint(block, hidden, batch, mask=mask, **asked, use_reentrant=False)
            else:
                hidden, maps = block(hidden, batch, need_maps=look, mask=mask, **asked)
            if need_layers:
                layers.append(hidden)
            if maps is not None:
                attentions.append(maps)
        return EncoderOutput(hidden, layers if need_layers else None, None if need_maps is False else attentions)


class BertModel(Backbone):
    """The encoder with its embeddings below and its pooler above (§3)."""

    def __init__(self, config: BertConfig, *, need_pooler: bool = True) -> None:
        """Builds the network with fresh weights; without pooler for uses that never read `pooled`."""
        super().__init__(config)
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
        mask: AttentionMask | None = None,
        places: Tensor | None = None,
    ) -> BackboneOutput:
        """Encodes a batch; `InputError` where a sequence is too long for the model, or an id is outside the vocabulary.

        Args:
            batch: N sequences, each starting with `[CLS]`.
            need_layers: also return the states after the embeddings and after each block.
            need_maps: also return the attention probabilities of every head: of all layers, or of these layer numbers,
                counted from 0.
            mask: which tokens each token reads; None as the configuration says. Where it is causal (the paper's
                left-to-right ablation, §5.1), `cls` and `pooled` are of the last token of each sequence, the only one
                that has read all of it.
            places: [M] int64, the tokens among the T whose states are wanted; `hidden_states` is then [M, H], and the
                last block computes no others but those of `cls`. None is all of them.
        """
        mask = self.config.mask if mask is None else mask
        embedded, summary = self.embedding(batch), mask.summary_positions(batch)
        wanted = None if places is None else torch.cat([places, summary])
        encoded = self.encoder(embedded, batch, need_layers=need_layers, need_maps=need_maps, mask=mask, places=wanted)
        states = encoded.states if places is None else encoded.states[: len(places)]
        cls = encoded.states.index_select(0, summary) if places is None else encoded.states[len(places) :]  # [N, H]
        # 发布的模型在 [CLS] 上另有一层 tanh：下一句与句子分类读的是它，论文没有提到
        pooled = None if self.pooler is None else torch.tanh(self.pooler(cls))
        layers = None if encoded.layers is None else [embedded, *encoded.layers]
        return BackboneOutput(states, cls, pooled, batch, layers, encoded.attentions)


_THREE = tuple(f"encoder.layer.*.attention.self.{name}" for name in ("query", "key", "value"))
PUBLISHED_NAMES = PublishedNames(
    prefix="bert.",
    backbone={
        "embedding.word": "embeddings.word_embeddings",
        "embedding.position": "embeddings.position_embeddings",
        "embedding.token_type": "embeddings.token_type_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
        "encoder.blocks.*.attention.qkv": _THREE,
        "encoder.blocks.*.attention.output": "encoder.layer.*.attention.output.dense",
        "encoder.blocks.*.attention_norm": "encoder.layer.*.attention.output.LayerNorm",
        "encoder.blocks.*.intermediate": "encoder.layer.*.intermediate.dense",
        "encoder.blocks.*.output": "encoder.layer.*.output.dense",
        "encoder.blocks.*.output_norm": "encoder.layer.*.output.LayerNorm",
        "pooler": "pooler.dense",
    },
    heads={
        "masked_lm.transform": "cls.predictions.transform.dense",
        "masked_lm.norm": "cls.predictions.transform.LayerNorm",
        "masked_lm": "cls.predictions",
        "masked_lm.decoder": "cls.predictions.decoder",
        "next_sentence.linear": "cls.seq_relationship",
        "classifier.linear": "classifier",
        "spans.linear": "qa_outputs",
    },
    decoder="cls.predictions.decoder",
    derived=("embeddings.position_ids",),
)
"""Query, key and value are one matrix [3H, H] inside and three [H, H] on disk."""

FAMILY = Family("bert", "Bert", BertConfig, BertModel, PUBLISHED_NAMES, HEADS)


def check_length(batch: RaggedBatch, limit: int) -> None:
    """Refuses a sequence that is longer than the model reads: InputError."""
    if not torch.compiler.is_exporting() and batch.max_seqlen > limit:
        raise InputError(
            f"a sequence has {batch.max_seqlen} tokens, but the model has {limit} positions;"
            f" truncate it with max_length={limit}"
        )


def check_ids(batch: RaggedBatch, vocab_size: int) -> None:
    """Refuses ids outside the vocabulary: InputError."""
    check_range("input_ids", batch.input_ids, vocab_size, "was the text tokenized with another vocabulary?")


def check_range(name: str, ids: Tensor, size: int, hint: str) -> None:
    """Refuses ids that no row of a table belongs to."""
    # GPU 上取最值要等设备同步，编译图中也不能有数据依赖的分支：那里由内核自己的断言把关
    if ids.device.type != "cpu" or torch.compiler.is_compiling():
        return
    smallest, largest = map(int, torch.aminmax(ids))
    if smallest < 0 or largest >= size:
        wrong = smallest if smallest < 0 else largest
        raise InputError(f"{name}: {wrong} is outside 0 to {size - 1}; {hint}")
