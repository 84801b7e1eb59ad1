"""The pipelines that need no fine-tuning: filling masks, and turning texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.inference.checks import parts, require_fit, require_list
from bertsmith.inference.engine import DEFAULT, Engine, RunsOn
from bertsmith.model import (
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
)
from bertsmith.tokenizer import WordPieceTokenizer


@dataclass(frozen=True)
class Candidate:
    """A piece that could stand at a mask, and its probability in [0, 1]."""

    piece: str
    probability: float


class FillMask:
    """Fills every `[MASK]` in a text."""

    def __init__(self, model: BertForMaskedLM | BertForPreTraining, tokenizer: WordPieceTokenizer) -> None:
        require_fit(tokenizer, model.config)
        self.model = model
        self.tokenizer = tokenizer
        self.engine = Engine(model, RunsOn(compute_dtype=torch.float32))

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


class Embed:
    """Turns texts into unit vectors: the mean of the last layer's states."""

    def __init__(self, model: BertModel, tokenizer: WordPieceTokenizer, runs_on: RunsOn = DEFAULT) -> None:
        require_fit(tokenizer, model.config)
        self.max_length = runs_on.length_for(model.config)
        self.hidden_size = model.config.hidden_size
        self.tokenizer = tokenizer
        self.engine = Engine(model, runs_on)

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
        require_list(texts)
        vectors = np.zeros((len(texts), self.hidden_size), dtype=np.float32)
        for part in parts(len(texts)):
            encoded = self.tokenizer(list(texts[part]), max_length=self.max_length)
            means = self.engine.run(encoded["input_ids"], None, _mean_states)
            vectors[part] = nn.functional.normalize(means, dim=-1).numpy()
        return vectors


def add_special_tokens(tokenizer: WordPieceTokenizer, ids: Sequence[int]) -> list[int]:
    """Puts `[CLS]` before and `[SEP]` behind the ids of one text."""
    return [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]


def _mean_states(model: BertModel, batch: RaggedBatch) -> Tensor:
    states: Tensor = model(batch).hidden_states.float()
    # 参差批次上的分段求和：每条序列只对自己的真实词元取平均
    sequence = torch.repeat_interleave(batch.cu_seqlens.diff().long(), output_size=batch.num_tokens)
    sums = states.new_zeros(batch.num_sequences, states.shape[1]).index_add_(0, sequence, states)
    return sums / batch.cu_seqlens.diff()[:, None]
