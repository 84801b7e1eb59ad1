"""Pipelines: a model folder and a text in, an answer out.

`load_pipeline(kind, folder)` returns a callable. Each is the few lines between the tokenizer and the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference.engine import Engine
from bertsmith.model import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
)
from bertsmith.tokenizer import WordPieceTokenizer


@dataclass(frozen=True)
class Candidate:
    """A piece that could stand at a mask, and its probability in [0, 1]."""

    piece: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The likeliest class of a text, and the probability of every class; they add up to 1."""

    label: str
    probabilities: dict[str, float]


class FillMask:
    """Fills every `[MASK]` in a text."""

    def __init__(self, model: BertForMaskedLM | BertForPreTraining, tokenizer: WordPieceTokenizer) -> None:
        require_fit(tokenizer, model.config)
        self.model = model
        self.tokenizer = tokenizer
        self.engine = Engine(model, compute_dtype=torch.float32)

    @classmethod
    def load(cls, folder: str | Path) -> FillMask:
        """Loads a folder that holds a tokenizer and a model with the masked-LM head; other heads are left aside."""
        return cls(BertForMaskedLM.from_pretrained(folder), WordPieceTokenizer.load(folder))

    @torch.inference_mode()
    def __call__(self, text: str, *, top_k: int = 5) -> list[list[Candidate]]:
        """Fills the masks of one text.

        Args:
            text: holds `[MASK]` at least once.
            top_k: candidates per mask, at least 1.

        Returns:
            For each mask, from left to right, its `top_k` likeliest pieces, best first.

        Raises:
            InputError: the text has no `[MASK]`, or is longer than the model reads.
        """
        ids = add_special_tokens(self.tokenizer, self.tokenizer.encode(text, parse_special=True))
        positions = [index for index, piece in enumerate(ids) if piece == self.tokenizer.mask_token_id]
        if not positions:
            raise InputError(f"no [MASK] in {text[:60]!r}; write [MASK] where a word is to be filled in")
        if not 1 <= top_k <= self.tokenizer.vocab_size:
            raise InputError(f"top_k {top_k} is outside 1 to {self.tokenizer.vocab_size}, the vocabulary's size")
        device = self.engine.device
        output = self.model(RaggedBatch.from_sequences([ids]).to(device), torch.tensor(positions, device=device))
        logits = output if isinstance(output, Tensor) else output.mlm_logits
        # 有的模型把词表补齐到整数倍：多出来的编号没有对应的词片
        best = logits[:, : self.tokenizer.vocab_size].float().softmax(-1).topk(top_k)
        return [
            [Candidate(self.tokenizer.vocab[i], p) for p, i in zip(values, indices, strict=True)]
            for values, indices in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


class Classify:
    """Predicts the class of texts, or of pairs of texts."""

    def __init__(self, model: BertForSequenceClassification, tokenizer: WordPieceTokenizer) -> None:
        require_fit(tokenizer, model.config)
        if model.config.problem_type not in (None, "single_label_classification"):
            raise ConfigError(
                f"the model's problem_type is {model.config.problem_type!r}, and one class of many is predicted here;"
                " call BertForSequenceClassification and read its outputs"
            )
        self.labels = [model.config.id2label[index] for index in range(len(model.config.id2label))]
        self.max_length = model.config.max_position_embeddings
        self.tokenizer = tokenizer
        self.engine = Engine(model)

    @classmethod
    def load(cls, folder: str | Path) -> Classify:
        """Loads a folder that `bertsmith finetune classify` has written."""
        return cls(BertForSequenceClassification.from_pretrained(folder), WordPieceTokenizer.load(folder))

    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Prediction]:
        """Classifies texts; longer ones are cut to what the model reads.

        Args:
            texts: N texts.
            pairs: N second texts, where the classifier was trained on pairs.

        Returns:
            N predictions in the same order.

        Raises:
            InputError: a single string was given, or the numbers of texts differ.
        """
        _require_list(texts)
        if pairs is not None and len(pairs) != len(texts):
            raise InputError(f"{len(texts)} texts and {len(pairs)} second texts; give one for each")
        predictions = []
        for part in _parts(len(texts)):
            second = None if pairs is None else list(pairs[part])
            encoded = self.tokenizer(list(texts[part]), second, max_length=self.max_length)
            logits = self.engine.run(encoded["input_ids"], encoded["token_type_ids"], lambda model, batch: model(batch))
            for row in logits.softmax(-1).tolist():
                label = self.labels[int(np.argmax(row))]
                predictions.append(Prediction(label, dict(zip(self.labels, row, strict=True))))
        return predictions


class Embed:
    """Turns texts into unit vectors: the mean of the last layer's states."""

    def __init__(self, model: BertModel, tokenizer: WordPieceTokenizer) -> None:
        require_fit(tokenizer, model.config)
        self.max_length = model.config.max_position_embeddings
        self.hidden_size = model.config.hidden_size
        self.tokenizer = tokenizer
        self.engine = Engine(model)

    @classmethod
    def load(cls, folder: str | Path) -> Embed:
        """Loads any model folder; heads are left aside."""
        return cls(BertModel.from_pretrained(folder, need_pooler=False), WordPieceTokenizer.load(folder))

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embeds texts; longer ones are cut to what the model reads.

        Args:
            texts: N texts.

        Returns:
            [N, H] float32, every row of length 1.

        Raises:
            InputError: a single string was given.
        """
        _require_list(texts)
        vectors = np.zeros((len(texts), self.hidden_size), dtype=np.float32)
        for part in _parts(len(texts)):
            encoded = self.tokenizer(list(texts[part]), max_length=self.max_length)
            means = self.engine.run(encoded["input_ids"], None, _mean_states)
            vectors[part] = nn.functional.normalize(means, dim=-1).numpy()
        return vectors


def require_fit(tokenizer: WordPieceTokenizer, config: BertConfig, folder: str | Path = "model folder") -> None:
    """Makes sure that a model knows every id a tokenizer can make.

    Raises:
        CheckpointError: the vocabulary is larger than the model's.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} pieces, the model knows {config.vocab_size}; "
            "they do not belong together"
        )


def _require_list(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise InputError("give a list of texts, not a single string: [text]")


def _parts(count: int) -> list[slice]:
    """Cuts a long list, so that memory does not grow with it; 4,096 texts are plenty to sort by length."""
    return [slice(start, start + 4096) for start in range(0, count, 4096)]


def add_special_tokens(tokenizer: WordPieceTokenizer, ids: Sequence[int]) -> list[int]:
    """Puts `[CLS]` before and `[SEP]` behind the ids of one text."""
    return [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]


def _mean_states(model: BertModel, batch: RaggedBatch) -> Tensor:
    states: Tensor = model(batch).hidden_states.float()
    # 参差批次上的分段求和：每条序列只对自己的真实词元取平均
    sequence = torch.repeat_interleave(batch.cu_seqlens.diff().long(), output_size=batch.num_tokens)
    sums = states.new_zeros(batch.num_sequences, states.shape[1]).index_add_(0, sequence, states)
    return sums / batch.cu_seqlens.diff()[:, None]


PIPELINES = {"fill-mask": FillMask, "classify": Classify, "embed": Embed}


@overload
def load_pipeline(kind: Literal["fill-mask"], folder: str | Path) -> FillMask: ...
@overload
def load_pipeline(kind: Literal["classify"], folder: str | Path) -> Classify: ...
@overload
def load_pipeline(kind: Literal["embed"], folder: str | Path) -> Embed: ...
def load_pipeline(kind: str, folder: str | Path) -> FillMask | Classify | Embed:
    """Loads a model folder for one use.

    Args:
        kind: a name of `PIPELINES`.
        folder: a model folder with its tokenizer.

    Raises:
        ConfigError: no pipeline has that name.
        CheckpointError: the folder does not hold such a model.
    """
    if kind not in PIPELINES:
        raise ConfigError(f"pipeline {kind!r} is unknown; use one of {', '.join(PIPELINES)}")
    return PIPELINES[kind].load(folder)  # type: ignore[attr-defined, no-any-return]
