"""The pipeline over a model that reads from left to right: it writes on, piece by piece (Radford et al. 2018).

For study and comparison: such a model is what the paper's §5.1 sets beside BERT. Every new piece is chosen from a
forward pass over all that stands there; nothing is kept from the pass before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.inference.checks import require_list
from bertsmith.inference.fill_mask import mask_logits
from bertsmith.inference.pipeline import Pipeline
from bertsmith.model import ModelForMaskedLM, ModelForPreTraining
from bertsmith.seeding import generator


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a text.

    Attributes:
        text: the new part alone.
        num_tokens: its pieces.
        is_complete: the model ended it by itself; False where it ran out of room.
    """

    text: str
    num_tokens: int
    is_complete: bool


class Generate(Pipeline, name="generate"):
    """Continues texts with a model that was pre-trained from left to right (`--objective ltr`)."""

    architectures = (ModelForMaskedLM, ModelForPreTraining)
    needs_fine_tuning = False
    is_causal = True

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: str,
        *,
        max_new_tokens: int = 40,
        top_p: float | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> Generated: ...
    @overload
    def __call__(
        self,
        texts: Sequence[str],
        *,
        max_new_tokens: int = 40,
        top_p: float | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[Generated]: ...
    def __call__(
        self,
        texts: str | Sequence[str],
        *,
        max_new_tokens: int = 40,
        top_p: float | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> Generated | list[Generated]:
        """Continues one text, or many.

        Args:
            texts: beginnings; an empty one lets the model begin by itself.
            max_new_tokens: most pieces to write, at least 1; never more than the model has positions for.
            top_p: draw among the likeliest pieces that have this probability together, in (0, 1] (Holtzman et al.
                2020); None always takes the likeliest.
            temperature: over 1 flattens the distribution that is drawn from, below 1 sharpens it.
            seed: of the draws; a text's draws do not depend on the texts beside it.

        Raises:
            InputError: an argument is out of range, or a text leaves no room for a piece.
        """
        if max_new_tokens < 1:
            raise InputError(f"max_new_tokens {max_new_tokens} must be at least 1")
        if top_p is not None and not 0.0 < top_p <= 1.0:
            raise InputError(f"top_p {top_p} is outside (0, 1]; leave it out for the likeliest piece")
        if not 0.0 < temperature < float("inf"):
            raise InputError(f"temperature {temperature} must be a number over 0")
        given = [texts] if isinstance(texts, str) else list(texts)
        require_list(given)
        beginnings = [self._beginning(text) for text in given]
        # 每段文本各有随机数：结果与同一批里别的文本何时写完无关
        rngs = [generator(seed, "generate", number) for number in range(len(given))]
        sequences, open_ = [list(ids) for ids in beginnings], list(range(len(given)))
        end = self.tokenizer.sep_token_id
        for _ in range(max_new_tokens):
            open_ = [n for n in open_ if sequences[n][-1] != end and len(sequences[n]) < self.max_length]
            if not open_:
                break
            places = [[len(sequences[n]) - 1] for n in open_]
            rows = self.engine.run_positions([sequences[n] for n in open_], None, places, mask_logits)
            for number, logits in zip(open_, rows, strict=True):
                sequences[number].append(self._next(logits[0], top_p, temperature, rngs[number]))
        found = [self._generated(ids[len(begun) :]) for ids, begun in zip(sequences, beginnings, strict=True)]
        return found[0] if isinstance(texts, str) else found

    def _beginning(self, text: str) -> list[int]:
        # 预训练时每条序列以 [CLS] 起、以 [SEP] 止：续写从 [CLS] 与开头的词起，写到 [SEP] 为止
        ids = [self.tokenizer.cls_token_id, *self.tokenizer.encode(text)]
        if len(ids) >= self.max_length:
            raise InputError(f"{text[:60]!r} has {len(ids)} tokens, the model reads {self.max_length}; shorten it")
        return ids

    def _next(self, logits: Tensor, top_p: float | None, temperature: float, rng: np.random.Generator) -> int:
        """Chooses a piece from logits [V]; of the special ones only the end can be chosen."""
        logits = logits[: self.tokenizer.vocab_size].clone()
        logits[[number for number in self.tokenizer.special_ids if number != self.tokenizer.sep_token_id]] = -torch.inf
        if top_p is None:
            return int(logits.argmax())
        # 核采样：只留概率之和刚到 top_p 的那几个，长尾里的怪词再多也抽不到
        ranked = (logits / temperature).double().softmax(-1).sort(descending=True, stable=True)
        kept = ranked.values * (ranked.values.cumsum(0) - ranked.values < top_p)
        return int(ranked.indices[rng.choice(len(kept), p=(kept / kept.sum()).numpy())])

    def _generated(self, ids: list[int]) -> Generated:
        complete = bool(ids) and ids[-1] == self.tokenizer.sep_token_id
        return Generated(self.tokenizer.decode(ids[: len(ids) - complete]), len(ids), complete)

    def smallest_input(self) -> tuple[list[str]]:
        """Returns a text that is continued."""
        return ([""],)
