"""Texts as vectors, and how alike two texts are.

Notable:
- how the states of a text's tokens become one vector is called pooling; what a folder of sentence-transformers says
  about it, and about how much of a text is read, is followed; otherwise it is the mean, of all that the model reads
- `last-four` is the feature-based use of the paper (Devlin et al. 2019, §5.3, table 7): the last four layers side by
  side, for a model that was never tuned to make vectors of texts
- some models were trained with a prompt before each text, such as `query: ` or `passage: `; a folder names its prompts
- a text's vector does not depend on what it is embedded with, but for the rounding of float32
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize as unit_rows

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference.checks import PART, require_list
from bertsmith.inference.engine import DEFAULT, InferenceConfig, stream_rows
from bertsmith.inference.pipeline import Pipeline
from bertsmith.inference.sentence_folder import Similarity as SimilarityFunction
from bertsmith.inference.sentence_folder import read_sentence_folder
from bertsmith.inference.task_file import TaskFile
from bertsmith.model import (
    Backbone,
    ModelConfig,
    ModelForMaskedLM,
    ModelForNextSentencePrediction,
    ModelForPreTraining,
    ModelForReplacedTokenDetection,
)
from bertsmith.tokenizer import Tokenizer, load_tokenizer

Pooling = Literal["mean", "cls", "max", "last-four", "last-four-sum"]
_PROMPT_NAMES = {"query": ("query",), "passage": ("passage", "document", "corpus")}
"""What folders call the prompts of search."""


@dataclass(frozen=True)
class PoolingSettings(TaskFile):
    """What a folder tells `Embed`.

    Attributes:
        pooling: how the states of a text's tokens become one vector.
        prompts: name → what is put before a text.
        default_prompt: name of the prompt that is used unasked; empty for none.
        similarity: how vectors are compared.
        unit_length: whether they are scaled to length 1 before; `cosine` does so by itself.
    """

    pooling: Pooling = "mean"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: SimilarityFunction = "cosine"
    unit_length: bool = True


class Embed(Pipeline, name="embed"):
    """Turns texts into vectors.

    Attributes:
        pooling: what is done unless a call says otherwise.
        prompts: name → what is put before a text.
        default_prompt: name of the prompt that is used unless a call says otherwise; empty for none.
        similarity: how `compare` compares.
        unit_length: whether it scales vectors to length 1 before.
        hidden_size: H, width of a vector; four times that with `last-four`.
    """

    architectures = (
        *(Backbone, ModelForMaskedLM, ModelForNextSentencePrediction),
        *(ModelForPreTraining, ModelForReplacedTokenDetection),
    )
    needs_fine_tuning = False
    endpoints: ClassVar[tuple[str, ...]] = ("/embed", "/similarity", "/v1/embeddings")

    def __init__(
        self,
        model: Backbone,
        tokenizer: Tokenizer,
        inference: InferenceConfig = DEFAULT,
        *,
        pooling: Pooling = "mean",
        prompts: Mapping[str, str] | None = None,
        default_prompt: str = "",
        similarity: SimilarityFunction = "cosine",
        unit_length: bool = True,
    ) -> None:
        """Prepares a model for embedding.

        Args:
            model: the encoder.
            tokenizer: of the model.
            inference: where and how.
            pooling: see `__call__`.
            prompts: as the attribute; None for none.
            default_prompt: as the attribute.
            similarity: as the attribute.
            unit_length: as the attribute.

        Raises:
            ConfigError: the pooling is unknown, or the model has too few layers for it.
            CheckpointError: model and tokenizer do not belong together.
        """
        super().__init__(model, tokenizer, inference)
        check_pooling(pooling, model.config)
        self.pooling: Pooling = pooling
        self.prompts = dict(prompts or {})
        self.default_prompt = default_prompt
        self.similarity, self.unit_length = similarity, unit_length
        self.hidden_size = model.config.hidden_size

    @classmethod
    def settings_in(cls, folder: str | Path) -> PoolingSettings:
        """Returns what a folder of sentence-transformers says; the defaults where it says nothing.

        Raises:
            CheckpointError: the folder asks for vectors in a way that is not known here.
        """
        says = read_sentence_folder(folder)
        if says.lowercase and not load_tokenizer(folder).lowercase:
            raise CheckpointError(
                f"{folder}: sentence_bert_config.json lower-cases every text, its tokenizer does not; lower-case your"
                " texts and take do_lower_case out of the file"
            )
        return PoolingSettings(
            max_length=says.max_length,
            pooling=says.pooling,
            prompts=says.prompts,
            default_prompt=says.default_prompt,
            similarity=says.similarity,
            unit_length=says.normalize,
        )

    @classmethod
    def model_in(cls, folder: str | Path) -> Backbone:
        """Loads the encoder; heads and pooler are left out."""
        return Backbone.from_pretrained(folder, need_pooler=False)

    def __call__(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        dims: int | None = None,
        prompt: str | None = None,
    ) -> NDArray[np.float32]:
        """Embeds texts; longer ones are cut to `max_length`.

        Args:
            texts: N texts.
            pooling: `mean` of the last layer's states, the state of `[CLS]` (`cls`), the largest of each number
                (`max`), or the mean over the tokens of the last four layers, side by side (`last-four`, 4H numbers) or
                added up (`last-four-sum`). None takes the pipeline's.
            normalize: scale every vector to length 1, so that a product of two is their cosine similarity.
            dims: keep only this many numbers, the first ones, before scaling. Models that were trained for it
                (Kusupati et al. 2022) lose little, others a good deal. None keeps all.
            prompt: name of the prompt to put before every text; empty for none. None takes the folder's default.

        Returns:
            [N, H] float32, 4H wide for `last-four`, or [N, dims].

        Raises:
            InputError: a single string was given, or `dims` is out of range.
            ConfigError: the pooling or the prompt is unknown, or the model has too few layers for it.
        """
        require_list(texts)
        vectors = np.empty((len(texts), self.width(pooling, dims)), dtype=np.float32)
        done = 0
        for block in self.stream(texts, pooling=pooling, normalize=normalize, dims=dims, prompt=prompt):
            vectors[done : done + len(block)] = block
            done += len(block)
        return vectors

    def stream(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        dims: int | None = None,
        prompt: str | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """Embeds texts as they come, in bounded memory; arguments and errors as in `__call__`.

        Yields:
            [n, width] float32, the vectors of the next n texts, in order, some thousands at a time.

        Raises:
            InputError: a single string was given, an item is none, or `dims` is out of range.
            ConfigError: the pooling or the prompt is unknown, or the model has too few layers for it.
        """
        width, before = self.width(pooling, dims), self.prompt_text(prompt)
        # 一个字符串也能逐个迭代：那会把每个字当成一条文本
        if isinstance(texts, str):
            raise InputError("give a list of texts, not a single string: [text]")
        sequences = chain.from_iterable(self._sequences(block, before) for block in _blocks(texts))
        for rows in stream_rows(self.engine, sequences, READS[pooling or self.pooling]):
            vectors = rows[:, :width]
            yield (unit_rows(vectors, dim=-1) if normalize else vectors).numpy()

    def compare(
        self, texts: Sequence[str], others: Sequence[str] | None = None, *, pooling: Pooling | None = None
    ) -> NDArray[np.float32]:
        """Compares every text with every other, by the similarity of the folder.

        Args:
            texts: N texts.
            others: M texts; None compares the texts with one another.
            pooling: as in `Embed`.

        Returns:
            [N, M] float32, a row for each text; more is more alike. Cosines are in [-1, 1].

        Raises:
            InputError: a single string was given.
        """
        require_list(texts)
        require_list(() if others is None else others)
        normalize = self.unit_length or self.similarity == "cosine"
        both = [*texts, *(() if others is None else others)]
        vectors = Embed.__call__(self, both, pooling=pooling, normalize=normalize)
        left, right = vectors[: len(texts)], vectors if others is None else vectors[len(texts) :]
        return similarities(left, right, self.similarity)

    def prompt_for(self, role: Literal["query", "passage"]) -> str:
        """Returns the name of the prompt that the folder has for queries or for what they find, else of its default."""
        return next((name for name in _PROMPT_NAMES[role] if name in self.prompts), self.default_prompt)

    def prompt_text(self, name: str | None = None) -> str:
        """Returns what is put before a text.

        Args:
            name: of a prompt; empty for none, None for the folder's default.

        Raises:
            ConfigError: the folder has no such prompt.
        """
        chosen = self.default_prompt if name is None else name
        if chosen and chosen not in self.prompts:
            known = f"it has {', '.join(self.prompts)}" if self.prompts else "it has none"
            raise ConfigError(f"the model's folder names no prompt {chosen!r}; {known}")
        return self.prompts.get(chosen, "")

    def width(self, pooling: Pooling | None = None, dims: int | None = None) -> int:
        """Returns how many numbers a vector has.

        Raises:
            InputError: `dims` is out of range.
            ConfigError: the pooling is unknown, or the model has too few layers for it.
        """
        chosen = pooling or self.pooling
        check_pooling(chosen, self.config)
        whole = self.hidden_size * (4 if chosen == "last-four" else 1)
        if dims is None:
            return whole
        if not 1 <= dims <= whole:
            raise InputError(f"dims {dims} is outside 1 to {whole}, what a vector of this model has")
        return dims

    def _sequences(self, texts: list[str], before: str) -> list[list[int]]:
        require_list(texts)
        prompted = [before + text for text in texts] if before else texts
        rows: list[list[int]] = self.tokenizer(prompted, max_length=self.max_length)["input_ids"]
        return rows


class Similarity(Embed, name="similarity"):
    """Tells how alike texts are: the cosine similarity of their vectors."""

    # 服务端的 /similarity 用的是 embed 的向量：不必为它再载入一次模型
    endpoints = ()

    @classmethod
    def is_for(cls, _architecture: str, _config: ModelConfig) -> bool:
        """Returns False: `Embed` stands for both."""
        return False

    # 与 Embed 同一个模型、同样的向量，只是调用给出的是余弦
    def __call__(  # type: ignore[override]
        self, texts: Sequence[str], others: Sequence[str] | None = None, *, pooling: Pooling | None = None
    ) -> NDArray[np.float32]:
        """Compares every text with every other; see `Embed.compare`."""
        return self.compare(texts, others, pooling=pooling)


def similarities(
    left: NDArray[np.float32], right: NDArray[np.float32], function: SimilarityFunction = "cosine"
) -> NDArray[np.float32]:
    """Returns [N, M], how alike vectors [N, H] and [M, H] are; those of `cosine` must have length 1."""
    if function == "cosine":
        # 舍入会让同一文本的相似度略大于 1：截到余弦本来的范围
        return np.clip(left @ right.T, -1.0, 1.0)
    if function == "dot":
        return left @ right.T
    from scipy.spatial.distance import cdist

    found: NDArray[np.float32] = -cdist(left, right, "cityblock" if function == "manhattan" else function)
    return found.astype(np.float32)


def mean_states(model: Backbone, batch: RaggedBatch) -> Tensor:
    """Reads [N, H], the mean of the last layer's states."""
    return _mean(model(batch).hidden_states.float(), batch)


def cls_states(model: Backbone, batch: RaggedBatch) -> Tensor:
    """Reads [N, H], the last layer's state of `[CLS]`."""
    states: Tensor = model(batch).cls
    return states


def max_states(model: Backbone, batch: RaggedBatch) -> Tensor:
    """Reads [N, H], of each number the largest among the last layer's states."""
    states: Tensor = model(batch).hidden_states.float()
    return torch.segment_reduce(states, "max", lengths=batch.cu_seqlens.diff().long())


def last_four_states(model: Backbone, batch: RaggedBatch) -> Tensor:
    """Reads [N, 4H], the means of the last four layers' states, the lowest of the layers first."""
    layers: list[Tensor] = model(batch, need_layers=True).layers
    return torch.cat([_mean(states.float(), batch) for states in layers[-4:]], dim=-1)


def last_four_sums(model: Backbone, batch: RaggedBatch) -> Tensor:
    """Reads [N, H], the mean of the sum of the last four layers' states."""
    parts = last_four_states(model, batch).view(batch.num_sequences, 4, -1)
    return parts.sum(1)


READS: dict[Pooling, Callable[[Backbone, RaggedBatch], Tensor]] = {
    "mean": mean_states,
    "cls": cls_states,
    "max": max_states,
    "last-four": last_four_states,
    "last-four-sum": last_four_sums,
}


def check_pooling(pooling: str, config: ModelConfig) -> None:
    """Makes sure that a model can pool in a way.

    Raises:
        ConfigError: the way is unknown, or needs more layers than there are.
    """
    if pooling not in get_args(Pooling):
        raise ConfigError(f"pooling {pooling!r} is unknown; use {', '.join(get_args(Pooling))}")
    if pooling.startswith("last-four") and config.num_hidden_layers < 4:
        raise ConfigError(f"pooling {pooling} needs 4 layers, the model has {config.num_hidden_layers}")


def _mean(states: Tensor, batch: RaggedBatch) -> Tensor:
    # 参差批次上的分段求和：每条序列只对自己的真实词元取平均
    lengths = batch.cu_seqlens.diff().long()
    sequence = torch.repeat_interleave(lengths, output_size=batch.num_tokens)
    sums = states.new_zeros(batch.num_sequences, states.shape[1]).index_add_(0, sequence, states)
    return sums / lengths[:, None]


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    left = iter(texts)
    while block := list(islice(left, PART)):
        yield block
