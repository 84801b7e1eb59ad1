"""Texts as vectors, how alike two texts are, and what a folder of sentence-transformers says of both.

- pooling makes one vector of the states of a text's tokens: as the folder says, else the mean of all that is read
- a folder's limits on length and its prompts (`query: `, `passage: `) are followed, too
- `last-four` is the feature-based use of the paper (Devlin et al. 2019, §5.3, table 7): the last four layers side by
  side, for a model that was never tuned to make vectors of texts
- a text's vector does not depend on what it is embedded with, but for the rounding of float32
- a step in `modules.json` that is not known is refused: vectors that look right and are wrong are worse than none
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize as unit_rows

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.files import make_folder, write_json
from bertsmith.hub import model_folder
from bertsmith.inference.engine import DEFAULT, PART, InferenceConfig, sequence_means
from bertsmith.inference.graph_cache import tell_once
from bertsmith.inference.pipeline import Pipeline, one_or_many, require_list
from bertsmith.inference.task_file import USAGE_FILE, TaskFile, read_told, stated_length, stated_prompts
from bertsmith.model import (
    Backbone,
    ModelConfig,
    ModelForMaskedLM,
    ModelForNextSentencePrediction,
    ModelForPreTraining,
    ModelForReplacedTokenDetection,
)
from bertsmith.model.folder import read_architecture
from bertsmith.tokenizer import Tokenizer, load_tokenizer

StoredPooling = Literal["mean", "cls", "max"]
Pooling = Literal["mean", "cls", "max", "last-four", "last-four-sum"]
SimilarityFunction = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How two vectors are compared; of the distances, the negative, so that more is more alike."""
_PROMPT_NAMES = {"query": ("query",), "passage": ("passage", "document", "corpus")}
"""What folders call the prompts of search."""
_FILES = ("modules.json", "sentence_bert_config.json", USAGE_FILE)
"""What makes a model folder one of sentence-transformers, besides the pooling."""
_SCORE_KEYS = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Where the `config.json` of a `CrossEncoder` says what makes a score of its output."""
_PRE_TRAINED = ("ForPreTraining", "ForMaskedLM", "ForNextSentencePrediction")
_KNOWN_STEPS = {"Transformer", "Normalize", "Dropout"}
"""Besides the pooling: vectors have unit length unless asked otherwise, and nothing is dropped in use."""


@dataclass(frozen=True, kw_only=True)
class SentenceFolder(TaskFile):
    """What a folder of sentence-transformers asks for; the defaults are for one that says nothing.

    Attributes:
        lowercase: whether texts are lower-cased even where the tokenizer would not.
        default_prompt: name of the prompt that is used where none is named; empty for no prompt.
        dims: how many numbers of a vector are kept, the first ones; 0 for all.
    """

    pooling: StoredPooling = "mean"
    lowercase: bool = False
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: SimilarityFunction = "cosine"
    dims: int = 0

    def arguments(self) -> dict[str, Any]:
        """Returns the settings of `Embed`."""
        return {name: value for name, value in super().arguments().items() if name != "lowercase"}

    def prompt_of(self, role: Literal["query", "passage"]) -> str:
        """Returns what is put before queries, or before what they find: under that name, else the default prompt."""
        return self.prompts.get(prompt_name(role, self.prompts, self.default_prompt), "")


def prompt_name(role: Literal["query", "passage"], prompts: Mapping[str, str], default: str) -> str:
    """Returns the name of the prompt for queries or for what they find, else the default's."""
    return next((name for name in _PROMPT_NAMES[role] if name in prompts), default)


class Embed(Pipeline, name="embed"):
    """Turns texts into vectors.

    Attributes:
        unit_length: whether `compare` scales vectors to length 1 first; for cosines it always does.
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
        normalize: bool = True,
        dims: int = 0,
    ) -> None:
        """Prepares an encoder; see `Pipeline` and `SentenceFolder` for the arguments."""
        super().__init__(model, tokenizer, inference)
        check_pooling(pooling, model.config)
        self.pooling: Pooling = pooling
        self.prompts = dict(prompts or {})
        self.default_prompt = default_prompt
        self.similarity, self.unit_length = similarity, normalize
        self.hidden_size, self.dims = model.config.hidden_size, 0
        self.dims = self.width(dims=dims) if dims else 0

    @classmethod
    def settings_in(cls, folder: str | Path) -> SentenceFolder:
        """Returns what a folder of sentence-transformers says; the defaults where it says nothing."""
        says = read_sentence_folder(folder)
        if is_untrained(place := model_folder(folder)):
            # 没有为句向量训练过的模型，任何两句话的余弦都接近 1：数是对的，意思却没有
            tell_once(place, UNTRAINED)
        if says.lowercase and not load_tokenizer(folder).lowercase:
            raise CheckpointError(
                f"{folder}: sentence_bert_config.json lower-cases every text, its tokenizer does not; lower-case your"
                " texts and take do_lower_case out of the file"
            )
        return says

    @classmethod
    def model_in(cls, folder: str | Path) -> Backbone:
        """Loads the encoder; heads and pooler are left out."""
        return Backbone.from_pretrained(folder, need_pooler=False)

    @one_or_many
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
            pooling: `mean` of the last layer's states, the state of `[CLS]` (`cls`), the largest of each number
                (`max`), or the mean over the tokens of the last four layers, side by side (`last-four`, 4H numbers) or
                added up (`last-four-sum`). None takes the pipeline's.
            normalize: scale every vector to length 1, so that a product of two is their cosine similarity.
            dims: keep only this many numbers, the first ones, before scaling. Models that were trained for it
                (Kusupati et al. 2022) lose little, others a good deal. None keeps what the folder says, or all.
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

        Yields [n, width] float32, the vectors of the next n texts, in order, some thousands at a time.
        """
        width, before = self.width(pooling, dims), self.prompt_text(prompt)
        # 一个字符串也能逐个迭代：那会把每个字当成一条文本
        if isinstance(texts, str):
            raise InputError("give a list of texts, not a single string: [text]")
        left = iter(texts)
        while block := list(islice(left, PART)):
            require_list(block)
            prompted = [before + text for text in block] if before else block
            sequences = self.tokenizer(prompted, max_length=self.max_length)["input_ids"]
            vectors = self.engine.run(sequences, None, READS[pooling or self.pooling])[:, :width]
            yield (unit_rows(vectors, dim=-1) if normalize else vectors).numpy()

    def compare(
        self, texts: Sequence[str], others: Sequence[str] | None = None, *, pooling: Pooling | None = None
    ) -> NDArray[np.float32]:
        """Compares N texts with M others, or with one another, by the similarity of the folder.

        Returns [N, M] float32, a row for each text; more is more alike. Cosines are in [-1, 1].
        """
        require_list(texts)
        require_list(() if others is None else others)
        normalize = self.unit_length or self.similarity == "cosine"
        both = [*texts, *(() if others is None else others)]
        vectors = self(both, pooling=pooling, normalize=normalize)
        left, right = vectors[: len(texts)], vectors if others is None else vectors[len(texts) :]
        return similarities(left, right, self.similarity)

    def prompt_for(self, role: Literal["query", "passage"]) -> str:
        """Returns the name of the prompt that the folder has for queries or for what they find, else of its default."""
        return prompt_name(role, self.prompts, self.default_prompt)

    def prompt_text(self, name: str | None = None) -> str:
        """Returns what is put before a text."""
        chosen = self.default_prompt if name is None else name
        if chosen and chosen not in self.prompts:
            known = f"it has {', '.join(self.prompts)}" if self.prompts else "it has none"
            raise ConfigError(f"the model's folder names no prompt {chosen!r}; {known}")
        return self.prompts.get(chosen, "")

    def width(self, pooling: Pooling | None = None, dims: int | None = None) -> int:
        """Returns how many numbers a vector has."""
        chosen = pooling or self.pooling
        check_pooling(chosen, self.config)
        whole = self.hidden_size * (4 if chosen == "last-four" else 1)
        if dims is not None and not 1 <= dims <= whole:
            raise InputError(f"dims {dims} is outside 1 to {whole}, what a vector of this model has")
        return dims or self.dims or whole


UNTRAINED = (
    "pre-trained only, never trained for vectors of texts: unrelated texts will look alike; train it with"
    " `bertsmith finetune embed`, or take a model of sentence-transformers"
)


def is_untrained(folder: Path) -> bool:
    """Tells whether a folder holds a masked LM alone, which was never trained to make vectors of texts."""
    learned = (folder / "modules.json").exists() or (folder / "1_Pooling").exists()
    return not learned and (read_architecture(folder) or "").endswith(_PRE_TRAINED)


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


def write_npy(handle: BinaryIO, blocks: Iterable[NDArray[np.float32]], lines: int, width: int) -> None:
    """Writes [lines, width] as `.npy`, block by block: the whole array need not be in memory."""
    header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": (lines, width)}
    np.lib.format.write_array_header_1_0(handle, header)  # type: ignore[no-untyped-call]
    for vectors in blocks:
        handle.write(vectors.tobytes())


def mean_states(model: Backbone, batch: RaggedBatch) -> Tensor:
    """Reads [N, H], the mean of the last layer's states."""
    return sequence_means(model(batch).hidden_states.float(), batch)


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
    return torch.cat([sequence_means(states.float(), batch) for states in layers[-4:]], dim=-1)


def last_four_sums(model: Backbone, batch: RaggedBatch) -> Tensor:
    """Reads [N, H], the mean of the sum of the last four layers' states."""
    return last_four_states(model, batch).view(batch.num_sequences, 4, -1).sum(1)


READS: dict[Pooling, Callable[[Backbone, RaggedBatch], Tensor]] = {
    "mean": mean_states,
    "cls": cls_states,
    "max": max_states,
    "last-four": last_four_states,
    "last-four-sum": last_four_sums,
}


def check_pooling(pooling: str, config: ModelConfig) -> None:
    """Makes sure that a model can pool in a way."""
    if pooling not in READS:
        raise ConfigError(f"pooling {pooling!r} is unknown; use {', '.join(READS)}")
    if pooling.startswith("last-four") and config.num_hidden_layers < 4:
        raise ConfigError(f"pooling {pooling} needs 4 layers, the model has {config.num_hidden_layers}")


def read_sentence_folder(folder: str | Path) -> SentenceFolder:
    """Reads what a model folder says of vectors; a folder that other tools made may say nothing."""
    folder = model_folder(folder)
    pooling_file = folder / _pooling_path(folder) / "config.json"
    pooling = _pooling(pooling_file)
    usage = folder / USAGE_FILE
    prompts, default = stated_prompts(folder)
    says = read_told(usage, dict)
    similarity = says.get("similarity_fn_name") or "cosine"
    if similarity not in get_args(SimilarityFunction):
        known = ", ".join(get_args(SimilarityFunction))
        raise CheckpointError(f"{usage}: compares vectors by {similarity!r}; this package has {known}")
    dims = says.get("truncate_dim") or 0
    if type(dims) is not int or dims < 0:
        raise CheckpointError(f"{usage}: truncate_dim is {dims!r}; it must be a whole number")
    if any(prompts.values()) and read_told(pooling_file, dict).get("include_prompt") is False:
        raise CheckpointError(f"{pooling_file}: leaves the prompt out of the pooling, which this package does not do")
    return SentenceFolder(
        max_length=stated_length(folder),
        pooling=pooling,
        lowercase=read_told(folder / "sentence_bert_config.json", dict).get("do_lower_case") is True,
        normalize=any(step["type"].endswith("Normalize") for step in _steps(folder / "modules.json")),
        prompts=prompts,
        default_prompt=default,
        similarity=cast(SimilarityFunction, similarity),
        dims=dims,
    )


def write_sentence_folder(folder: Path, says: SentenceFolder, width: int) -> None:
    """Adds to a model folder what `sentence-transformers` needs to give the same vectors."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if says.normalize else [])]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    flags = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    # 用库里最早的写法：新旧版本都读得懂
    pooling = {f"pooling_mode_{flag}": name == says.pooling for name, flag in flags.items()}
    usage = {
        "prompts": says.prompts,
        "default_prompt_name": says.default_prompt or None,
        "similarity_fn_name": says.similarity,
        **({"truncate_dim": says.dims} if says.dims else {}),
    }
    for path in paths[1:]:
        make_folder(folder / path)
    write_json(folder / paths[1] / "config.json", {"word_embedding_dimension": width, **pooling})
    if says.normalize:
        write_json(folder / paths[2] / "config.json", {})
    write_json(folder / USAGE_FILE, usage)
    length = {} if not says.max_length else {"max_seq_length": says.max_length}
    write_json(folder / "sentence_bert_config.json", length | {"do_lower_case": says.lowercase})
    # modules.json 写在最后：有了它，这个文件夹才算是一个句向量模型
    steps = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write_json(folder / "modules.json", steps)


def length_limit(folder: str | Path, config: ModelConfig, asked: int = 0) -> int:
    """Returns the most ids of a sequence: what is asked for, else what the folder allows, as far as the model reads."""
    return InferenceConfig(max_length=asked or stated_length(folder)).length_for(config)


def copy_sentence_files(source: Path, target: Path) -> None:
    """Gives a copy of a model folder what its source says of vectors and scores; nothing where that says nothing.

    The source may be of a kind that `Embed` refuses, since its encoder may serve other ends.
    """
    steps = {Path(step.get("path") or ".") for step in _steps(source / "modules.json")}
    found = [source / name for name in _FILES]
    for step in {*steps, Path("1_Pooling")} - {Path(".")}:
        # 按名字判断是否越界，不看链接指向哪里：下载缓存里的文件都是指向别处的链接
        if step.is_absolute() or ".." in step.parts:
            raise CheckpointError(f"{source / 'modules.json'}: the step {step} lies outside the folder")
        # 只要配置和 safetensors：pickle 的权重不随副本流传，而少了权重的步骤谁也载入不了
        if any((source / step).glob("*.bin")) and not any((source / step).glob("*.safetensors")):
            raise CheckpointError(
                f"{source / step}: its weights are pickled, which a copy cannot keep; save the folder anew with"
                " sentence-transformers, or remove modules.json to copy the encoder alone"
            )
        found += [path for ending in ("*.json", "*.safetensors") for path in (source / step).glob(ending)]
    for path in found:
        copy = target / path.relative_to(source)
        # 副本里已有的文件是核对过的，来源的同名文件不许盖过它
        if path.is_file() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    config, says = target / "config.json", read_told(source / "config.json", dict)
    if config.is_file() and (kept := {key: says[key] for key in _SCORE_KEYS if key in says}):
        # 激活函数只写在 config.json 里，而模型的配置不认识这两个键：丢了它们，副本的分数就变了
        write_json(config, kept | read_told(config, dict))


def _steps(path: Path) -> list[dict[str, Any]]:
    steps = read_told(path, list)
    if not all(isinstance(step, dict) and isinstance(step.get("type"), str) for step in steps):
        raise CheckpointError(f"{path}: damaged (a step without a type)")
    return cast(list[dict[str, Any]], steps)


def _pooling_path(folder: Path) -> str:
    """Returns the folder of the pooling, and makes sure that the other steps change nothing."""
    path = folder / "modules.json"
    pooling = "1_Pooling"
    for step in _steps(path):
        name = step["type"].rsplit(".", 1)[-1]
        if name == "Pooling":
            pooling = str(step.get("path") or ".")
        elif name == "Transformer" and step.get("path"):
            raise CheckpointError(
                f"{path}: the encoder lies in {step['path']}, which knows nothing of the pooling; move its files beside"
                ' modules.json and set the "path" of that step to ""'
            )
        elif name not in _KNOWN_STEPS:
            raise CheckpointError(
                f"{path}: its vectors go through a {name} besides, which this package does not have; without it they"
                " would be of another model"
            )
    return pooling


def _pooling(path: Path) -> StoredPooling:
    values = read_told(path, dict)
    # 旧版每种方式一个开关，新版一个名字；拼接多种方式的文件夹这里不支持，要明说而不是猜
    if not values:
        return "mean"
    wanted = values.get("pooling_mode") or [
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, on in values.items()
        if key.startswith("pooling_mode_") and on
    ]
    name = wanted if isinstance(wanted, str) else "+".join(map(str, wanted))
    if name not in get_args(StoredPooling):
        raise CheckpointError(f"{path}: asks for pooling {name!r}; this package has mean, cls, max")
    return cast(StoredPooling, name)
