"""Pipelines over the head of masked-language-model pre-training: what could stand at a `[MASK]`, and what comes next.

`generate` is for a model that reads from left to right, which the paper's §5.1 sets beside BERT: it writes on, piece by
piece (Radford et al. 2018). Every new piece is chosen from a forward pass over all that stands there; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.inference.pipeline import Pipeline, one_or_many, require_list
from bertsmith.model import ModelForMaskedLM, ModelForPreTraining
from bertsmith.seeding import generator

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

    @one_or_many
    def __call__(
        self, texts: Sequence[str], *, top_k: int = 5, candidates: Sequence[str] | None = None
    ) -> list[list[list[Candidate]]]:
        """Fills the masks of texts.

        Args:
            texts: each holds `[MASK]` (or what the tokenizer calls it, such as `<mask>`) at least once. Other special
                tokens written in a text are plain text, as everywhere; `transformers` takes them for what they name.
            top_k: most candidates per mask, at least 1.
            candidates: consider these words alone; each must be one piece of the vocabulary. Their probabilities are
                those among all pieces, so they add up to less than 1: how little is itself an answer.

        Returns:
            For each text, for each of its masks from left to right, the likeliest pieces, best first.

        Raises:
            InputError: a text has no `[MASK]` or is too long, `top_k` is out of range, or a candidate is not one piece.
        """
        if not 1 <= top_k <= self.tokenizer.vocab_size:
            raise InputError(f"top_k {top_k} is outside 1 to {self.tokenizer.vocab_size}, the vocabulary's size")
        allowed = None if candidates is None else self._pieces(candidates)
        require_list(texts)
        sequences, mask = [self._sequence(text) for text in texts], self.tokenizer.mask_token_id
        positions = [[place for place, piece in enumerate(ids) if piece == mask] for ids in sequences]
        filled: list[list[list[Candidate]]] = []
        for part in _parts_of_masks(positions):
            rows = self.engine.run_positions(sequences[part], None, positions[part], mask_logits)
            filled += [self._best(logits, top_k, allowed) for logits in rows]
        return filled

    def _sequence(self, text: str) -> list[int]:
        ids = self.tokenizer.template.wrap(self.tokenizer.encode(text, parse_special="mask"))
        if self.tokenizer.mask_token_id not in ids:
            mask = self.tokenizer.special_tokens.mask
            raise InputError(f"no {mask} in {text[:60]!r}; write {mask} where a word is to be filled in")
        # 不截断：被截掉的部分可能正含有要填的词
        if len(ids) > self.max_length:
            raise InputError(f"{text[:60]!r} has {len(ids)} tokens, the model reads {self.max_length}; shorten it")
        return ids

    def _pieces(self, candidates: Sequence[str]) -> Tensor:
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
    return piece_logits(model, model.backbone(batch).hidden_states.index_select(0, places))


def piece_logits(model: ModelForMaskedLM | ModelForPreTraining, states: Tensor) -> Tensor:
    """Maps states [M, H] of the last layer to logits [M, V] in float32."""
    head = model.masked_lm
    # 解码用 float32：词嵌入本就是 float32，不必每次把整张表转成 bf16
    transformed = head.transformed(states).float()
    logits: Tensor = head.decode(transformed, model.backbone.embedding.word.weight).logits
    return logits


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


@dataclass(frozen=True)
class Generated:
    """What a model wrote after a text, and in how many pieces; `is_complete` where it ended by itself."""

    text: str
    num_tokens: int
    is_complete: bool


class Generate(Pipeline, name="generate"):
    """Continues texts with a model that was pre-trained from left to right (`--objective ltr`)."""

    architectures = (ModelForMaskedLM, ModelForPreTraining)
    needs_fine_tuning = False
    is_causal = True

    @one_or_many
    def __call__(
        self,
        texts: Sequence[str],
        *,
        max_new_tokens: int = 40,
        top_p: float | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[Generated]:
        """Continues texts; an empty one lets the model begin by itself.

        Args:
            max_new_tokens: at least 1; never more pieces are written than the model has positions for.
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
        require_list(texts)
        beginnings = [self._beginning(text) for text in texts]
        # 每段文本各有随机数：结果与同一批里别的文本何时写完无关
        rngs = [generator(seed, "generate", number) for number in range(len(texts))]
        sequences, open_ = [list(ids) for ids in beginnings], list(range(len(texts)))
        end = self.tokenizer.sep_token_id
        for _ in range(max_new_tokens):
            open_ = [n for n in open_ if sequences[n][-1] != end and len(sequences[n]) < self.max_length]
            if not open_:
                break
            places = [[len(sequences[n]) - 1] for n in open_]
            rows = self.engine.run_positions([sequences[n] for n in open_], None, places, mask_logits)
            for number, logits in zip(open_, rows, strict=True):
                sequences[number].append(self._next(logits[0], top_p, temperature, rngs[number]))
        return [self._generated(ids[len(begun) :]) for ids, begun in zip(sequences, beginnings, strict=True)]

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
