"""`BertEncoder`, `BertModel` and `BertForPreTraining`: the whole network, top to bottom.

Notable:
- the input is a `RaggedBatch`; nothing here knows what padding is
- `BertForPreTraining` computes vocabulary logits at the masked positions only: for small models the projection onto
  30,000 pieces costs more than the encoder, and 85 % of it would be thrown away
- `compute_dtype` is one explicit switch; the parameters stay float32
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError
from bertsmith.model.block import TransformerBlock
from bertsmith.model.checkpoint import load_model_folder, save_model_folder
from bertsmith.model.config import BertConfig
from bertsmith.model.embeddings import BertEmbedding
from bertsmith.model.heads import MaskedLMHead, NextSentenceHead, SequenceClassifier
from bertsmith.model.layers import Linear


class EncoderOutput(NamedTuple):
    """`states` [T, H]; `layers`, the L states [T, H] after each block; `attentions`, L lists of N maps [A, S_n, S_n].

    The last two are None unless they were asked for.
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
        pooled: [N, H], `tanh(W cls + b)`, in (-1, 1); what the NSP head and the classifiers read.
        layers: L+1 tensors [T, H], embeddings first, when asked for.
        attentions: L lists of N maps [A, S_n, S_n], when asked for.
    """

    hidden_states: Tensor
    cls: Tensor
    pooled: Tensor
    layers: list[Tensor] | None = None
    attentions: list[list[Tensor]] | None = None


@dataclass(frozen=True)
class PreTrainingOutput:
    """What `BertForPreTraining` returns: `mlm_logits` [M, V], `nsp_logits` [N, 2] (0 = is next), `bert`."""

    mlm_logits: Tensor
    nsp_logits: Tensor
    bert: BertOutput


class BertEncoder(nn.Module):
    """L Transformer blocks, one after the other."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.num_hidden_layers))

    def forward(
        self, hidden: Tensor, batch: RaggedBatch, *, need_layers: bool = False, need_maps: bool = False
    ) -> EncoderOutput:
        """Runs the blocks over embeddings [T, H]; see `EncoderOutput`."""
        layers: list[Tensor] = []
        attentions: list[list[Tensor]] = []
        for block in self.blocks:
            hidden, maps = block(hidden, batch, need_maps=need_maps)
            if need_layers:
                layers.append(hidden)
            if maps is not None:
                attentions.append(maps)
        return EncoderOutput(hidden, layers if need_layers else None, attentions if need_maps else None)


class BertModel(nn.Module):
    """The encoder with its embeddings below and its pooler above (Devlin et al. 2019, §3)."""

    architecture = "BertModel"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = BertEmbedding(config)
        self.encoder = BertEncoder(config)
        self.pooler = Linear(config.hidden_size, config.hidden_size)
        initialize_weights(self, config.initializer_range)

    def forward(self, batch: RaggedBatch, *, need_layers: bool = False, need_maps: bool = False) -> BertOutput:
        """Encodes a batch.

        Args:
            batch: N sequences, each starting with `[CLS]`.
            need_layers: also return the states after the embeddings and after each block.
            need_maps: also return the attention probabilities of every layer and head.

        Raises:
            InputError: a sequence is longer than `max_position_embeddings`.
        """
        embedded = self.embedding(batch)
        encoded = self.encoder(embedded, batch, need_layers=need_layers, need_maps=need_maps)
        cls = encoded.states.index_select(0, batch.first_token_positions)
        pooled = torch.tanh(self.pooler(cls))
        layers = None if encoded.layers is None else [embedded, *encoded.layers]
        return BertOutput(encoded.states, cls, pooled, layers, encoded.attentions)

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        """Chooses the dtype of the matmuls: float32 or bfloat16; the parameters stay float32."""
        self.embedding.compute_dtype = dtype

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, need_pooler: bool = True) -> BertModel:
        """Loads the encoder from a model folder; heads found there are left aside.

        Args:
            folder: a model folder.
            need_pooler: False for uses that never read `pooled`: then a folder without a pooler will do.

        Raises:
            CheckpointError: a file is missing, damaged or of another shape; the message names the tensor.
        """
        model = cls(BertConfig.load(folder))
        load_model_folder(model, folder, optional=() if need_pooler else ("pooler",))
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes `config.json` and `model.safetensors`, in the names `transformers` uses."""
        save_model_folder(self, self.config, folder, architecture=self.architecture)


class BertForPreTraining(nn.Module):
    """BERT with its two pre-training heads: masked LM and next sentence (Devlin et al. 2019, §3.1)."""

    architecture = "BertForPreTraining"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.masked_lm = MaskedLMHead(config)
        self.next_sentence = NextSentenceHead(config)
        initialize_weights(self.masked_lm, config.initializer_range)
        initialize_weights(self.next_sentence, config.initializer_range)

    def forward(self, batch: RaggedBatch, masked_positions: Tensor) -> PreTrainingOutput:
        """Predicts the masked pieces and whether B follows A.

        Args:
            batch: N sequences `[CLS] A [SEP] B [SEP]`.
            masked_positions: [M] int64 indices into the T tokens.

        Returns:
            Logits, see `PreTrainingOutput`.
        """
        output = self.bert(batch)
        # 只取被遮盖的位置再做词表投影：其余 85% 的 logits 没有人看
        masked_states = output.hidden_states.index_select(0, masked_positions)
        mlm_logits = self.masked_lm(masked_states, self.bert.embedding.word.weight)
        return PreTrainingOutput(mlm_logits, self.next_sentence(output.pooled), output)

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        """See `BertModel.set_compute_dtype`."""
        self.bert.set_compute_dtype(dtype)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> BertForPreTraining:
        """Loads encoder and both heads; see `BertModel.from_pretrained`."""
        model = cls(BertConfig.load(folder))
        load_model_folder(model, folder)
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes `config.json` and `model.safetensors`, in the names `transformers` uses."""
        save_model_folder(self, self.config, folder, architecture=self.architecture)


class BertForSequenceClassification(nn.Module):
    """BERT with one linear layer over `[CLS]`, for whole texts and pairs of texts (Devlin et al. 2019, §4.1)."""

    architecture = "BertForSequenceClassification"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.classifier = SequenceClassifier(config, num_labels=len(config.id2label))
        initialize_weights(self.classifier, config.initializer_range)

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Returns class logits [N, num_labels]."""
        logits: Tensor = self.classifier(self.bert(batch).pooled)
        return logits

    def set_compute_dtype(self, dtype: torch.dtype) -> None:
        """See `BertModel.set_compute_dtype`."""
        self.bert.set_compute_dtype(dtype)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, id2label: dict[int, str] | None = None
    ) -> BertForSequenceClassification:
        """Loads a fine-tuned classifier, or an encoder to fine-tune.

        Args:
            folder: a model folder.
            id2label: class names for a new, freshly initialised head; None reads the head that is in the folder.

        Raises:
            CheckpointError: a file is missing, damaged or of another shape, or there is no head to read.
        """
        config = BertConfig.load(folder)
        if id2label is not None:
            model = cls(config.replace(id2label=id2label))
            load_model_folder(model, folder, fresh=("classifier",), optional=("bert.pooler",))
            return model
        if not config.id2label:
            raise CheckpointError(f"{folder}: holds no classifier; fine-tune one with `bertsmith finetune classify`")
        model = cls(config)
        load_model_folder(model, folder)
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes `config.json` and `model.safetensors`, in the names `transformers` uses."""
        save_model_folder(self, self.config, folder, architecture=self.architecture)


AnyBert = BertModel | BertForPreTraining | BertForSequenceClassification
"""Every whole model of this file: made by `from_pretrained`, saved by `save_pretrained`."""


def initialize_weights(module: nn.Module, standard_deviation: float) -> None:
    """Draws matrices from a normal truncated at two deviations; biases 0, norms 1 (the released procedure)."""
    for child in module.modules():
        if isinstance(child, nn.Linear | nn.Embedding):
            # 截断在 ±2σ：避免个别初值过大，在 post-norm 结构里造成初期不稳定
            nn.init.trunc_normal_(
                child.weight, std=standard_deviation, a=-2 * standard_deviation, b=2 * standard_deviation
            )
        if isinstance(child, nn.Linear) and child.bias is not None:
            nn.init.zeros_(child.bias)
        if isinstance(child, nn.LayerNorm):
            nn.init.ones_(child.weight)
            nn.init.zeros_(child.bias)
