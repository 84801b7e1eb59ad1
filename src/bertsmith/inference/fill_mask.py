"""The pipeline over the head of masked-language-model pre-training: what could stand at a `[MASK]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.inference.checks import require_list
from bertsmith.inference.pipeline import Pipeline
from bertsmith.model import ModelForMaskedLM, ModelForPreTraining
from bertsmith.tokenizer import Tokenizer

MASKS_AT_ONCE = 256
"""Each mask brings a row of logits as long as the vocabulary: 30 MB for this many and 30,000 pieces."""


@dataclass(frozen=True)
class Candidate:
    """A piece that could stand at a mask, as a person reads it, and its probability in [0, 1]."""

    piece: str
    probability: float


class FillMask(Pipeline, name="fill-mask"):
    """Fills every `[MASK]` in texts."""

    architectures = (ModelForMaskedLM, ModelForPreTraining)
    needs_fine_tuning = False
    endpoints = ("/fill-mask",)
    is_causal = False

    # a string is itself a sequence of strings, to a type checker; here it never means a list of letters
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, texts: str, *, top_k: int = 5, candidates: Sequence[str] | None = None
    ) -> list[list[Candidate]]: ...
    @overload
    def __call__(
        self, texts: Sequence[str], *, top_k: int = 5, candidates: Sequence[str] | None = None
    ) -> list[list[list[Candidate]]]: ...
    def __call__(
        self, texts: str | Sequence[str], *, top_k: int = 5, candidates: Sequence[str] | None = None
    ) -> list[list[Candidate]] | list[list[list[Candidate]]]:
        """Fills the masks of one text, or of many.

        Args:
            texts: a text that holds `[MASK]` (or what the tokenizer calls it, such as `<mask>`) at least once, or a
                list of such texts.
            top_k: most candidates per mask, at least 1.
            candidates: consider these words alone; each must be one piece of the vocabulary. Their probabilities are
                those among all pieces, so they add up to less than 1: how little is itself an answer.

        Returns:
            For each mask, from left to right, its likeliest pieces, best first; for a list of texts, a list of that.

        Raises:
            InputError: a text has no `[MASK]` or is longer than the model reads, `top_k` is out of range, or a
                candidate is not one piece.
        """
        if not 1 <= top_k <= self.tokenizer.vocab_size:
            raise InputError(f"top_k {top_k} is outside 1 to {self.tokenizer.vocab_size}, the vocabulary's size")
        allowed = None if candidates is None else self._pieces(candidates)
        given = [texts] if isinstance(texts, str) else texts
        require_list(given)
        sequences = [self._sequence(text) for text in given]
        positions = [self._masks(ids) for ids in sequences]
        filled: list[list[list[Candidate]]] = []
        for part in _parts_of_masks(positions):
            rows = self.engine.run_positions(sequences[part], None, positions[part], mask_logits)
            filled += [self._best(logits, top_k, allowed) for logits in rows]
        return filled[0] if isinstance(texts, str) else filled

    def _sequence(self, text: str) -> list[int]:
        ids = add_special_tokens(self.tokenizer, self.tokenizer.encode(text, parse_special=True))
        if self.tokenizer.mask_token_id not in ids:
            mask = self.tokenizer.special_tokens.mask
            raise InputError(f"no {mask} in {text[:60]!r}; write {mask} where a word is to be filled in")
        # 不截断：被截掉的部分可能正含有要填的词
        if len(ids) > self.max_length:
            raise InputError(f"{text[:60]!r} has {len(ids)} tokens, the model reads {self.max_length}; shorten it")
        return ids

    def _masks(self, ids: Sequence[int]) -> list[int]:
        return [index for index, piece in enumerate(ids) if piece == self.tokenizer.mask_token_id]

    def _pieces(self, candidates: Sequence[str]) -> Tensor:
        """Returns the ids of candidates, each once."""
        if isinstance(candidates, str) or not candidates:
            raise InputError("give a list of candidates: ['bread', 'cheese']")
        found = []
        for word in candidates:
            # 像文本里的词一样切；「##ing」这样的词内片段切不出来，按原样查找
            ids = self.tokenizer.encode_words([word]).ids.tolist()
            is_whole = len(ids) == 1 and self.tokenizer.piece_text(ids[0]) == word
            if not is_whole and word in self.tokenizer.piece_to_id:
                ids = [self.tokenizer.piece_to_id[word]]
            if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
                pieces = " ".join(self.tokenizer.vocab[index] for index in ids) or "nothing"
                raise InputError(f"candidate {word[:60]!r} is not one piece of the vocabulary but {pieces[:80]}")
            found += ids
        return torch.tensor(list(dict.fromkeys(found)))

    def _best(self, logits: Tensor, top_k: int, allowed: Tensor | None) -> list[list[Candidate]]:
        """Returns the best pieces of M masks from logits [M, V]."""
        # 有的模型把词表填充到整数倍：多出来的编号没有对应的词片
        probabilities = logits[:, : self.tokenizer.vocab_size].softmax(-1)
        if allowed is not None:
            probabilities = probabilities[:, allowed]
        best = probabilities.topk(min(top_k, probabilities.shape[1]))
        indices = best.indices if allowed is None else allowed[best.indices]
        return [
            [Candidate(self.tokenizer.piece_text(i), p) for p, i in zip(values, pieces, strict=True)]
            for values, pieces in zip(best.values.tolist(), indices.tolist(), strict=True)
        ]

    def smallest_input(self) -> tuple[Any, ...]:
        """Returns a text that is a mask."""
        return ([self.tokenizer.special_tokens.mask],)


def mask_logits(model: ModelForMaskedLM | ModelForPreTraining, batch: RaggedBatch, places: Tensor) -> Tensor:
    """Reads [M, V] float32, the logits at M places among the tokens of a batch."""
    head = model.masked_lm
    states = model.backbone(batch).hidden_states.index_select(0, places)
    # 解码用 float32：词嵌入本就是 float32，不必每次把整张表转成 bf16
    transformed = head.transformed(states).float()
    logits: Tensor = head.decode(transformed, model.backbone.embedding.word.weight).logits
    return logits


def add_special_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Puts `[CLS]` before and `[SEP]` behind the ids of one text, or what the tokenizer has instead."""
    return tokenizer.template.wrap(ids)


def _parts_of_masks(positions: Sequence[Sequence[int]]) -> Iterator[slice]:
    """Cuts a list of texts where `MASKS_AT_ONCE` masks have come together, so that their logits fit in memory."""
    start = masks = 0
    for number, places in enumerate(positions):
        if masks and masks + len(places) > MASKS_AT_ONCE:
            yield slice(start, number)
            start, masks = number, 0
        masks += len(places)
    if masks:
        yield slice(start, len(positions))
