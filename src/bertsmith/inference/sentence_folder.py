"""What a folder of sentence-transformers says of its vectors: pooling, length, prompts, similarity; read and written.

Such a folder lists the steps from text to vector in `modules.json`. The encoder, pooling and scaling to unit length are
known here. A step that would change the vectors and is not known is refused: vectors that look right and are of another
model are worse than none. Prompts are texts that stand before others by name, such as `query: ` and `passage: `.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from bertsmith.errors import CheckpointError
from bertsmith.files import make_folder
from bertsmith.hub import model_folder
from bertsmith.inference.engine import InferenceConfig
from bertsmith.json_files import write_json
from bertsmith.model import ModelConfig

Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
"""How two vectors are compared; of the distances, the negative, so that more is more alike."""
StoredPooling = Literal["mean", "cls", "max"]

_FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
"""What makes a model folder one of sentence-transformers, besides the pooling."""

_WITHOUT_EFFECT = {"Normalize", "Dropout"}
"""Steps that change nothing here: vectors have unit length unless asked otherwise, and nothing is dropped in use."""


@dataclass(frozen=True)
class SentenceFolder:
    """What a folder asks for.

    Attributes:
        pooling: how the states of the tokens become one vector; `mean` where the folder says nothing.
        max_length: most ids in a sequence, with the special tokens; 0 where the folder says nothing.
        lowercase: whether texts are lower-cased even where the tokenizer would not.
        normalize: whether vectors are scaled to unit length.
        prompts: name → text that is put before a text.
        default_prompt: name of the prompt that is used where none is named; empty for no prompt.
        similarity: how vectors are compared.
    """

    pooling: StoredPooling = "mean"
    max_length: int = 0
    lowercase: bool = False
    normalize: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: Similarity = "cosine"


def read_sentence_folder(folder: str | Path) -> SentenceFolder:
    """Reads what a model folder says of vectors; a folder that other tools made may say nothing.

    Raises:
        CheckpointError: it asks for a step, a pooling or a similarity that is not known here, or a file is damaged.
    """
    folder = model_folder(folder)
    pooling_file = folder / _pooling_path(folder) / "config.json"
    pooling = _pooling(pooling_file)
    prompts, default, similarity = _usage(folder / "config_sentence_transformers.json")
    if any(prompts.values()) and _read(pooling_file, dict).get("include_prompt") is False:
        raise CheckpointError(f"{pooling_file}: leaves the prompt out of the pooling, which this package does not do")
    settings = _read(folder / "sentence_bert_config.json", dict)
    return SentenceFolder(
        pooling,
        stated_length(folder),
        settings.get("do_lower_case") is True,
        any(step["type"].endswith("Normalize") for step in _steps(folder / "modules.json")),
        prompts,
        default,
        similarity,
    )


def write_sentence_folder(folder: Path, says: SentenceFolder, width: int) -> None:
    """Adds to a model folder what `sentence-transformers` needs to give the same vectors.

    Args:
        folder: holds the model and its tokenizer.
        says: pooling, length, prompts, scaling and similarity.
        width: H, numbers of a vector.
    """
    kinds = ["Transformer", "Pooling", *(["Normalize"] if says.normalize else [])]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    flags = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    # 用库里最早的写法：新旧版本都读得懂
    pooling = {"word_embedding_dimension": width} | {
        f"pooling_mode_{flag}": name == says.pooling for name, flag in flags.items()
    }
    usage = {
        "prompts": says.prompts,
        "default_prompt_name": says.default_prompt or None,
        "similarity_fn_name": says.similarity,
    }
    for path in paths[1:]:
        make_folder(folder / path)
    write_json(folder / paths[1] / "config.json", pooling)
    if says.normalize:
        write_json(folder / paths[2] / "config.json", {})
    write_json(folder / "config_sentence_transformers.json", usage)
    length = {} if not says.max_length else {"max_seq_length": says.max_length}
    write_json(folder / "sentence_bert_config.json", length | {"do_lower_case": says.lowercase})
    # modules.json 写在最后：有了它，这个文件夹才算是一个句向量模型
    steps = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    write_json(folder / "modules.json", steps)


def stated_length(folder: Path) -> int:
    """Returns how many ids a folder allows in a sequence, with the special tokens; 0 where it says nothing.

    Raises:
        CheckpointError: it says something impossible, or a file is damaged.
    """
    length = _read(folder / "sentence_bert_config.json", dict).get("max_seq_length")
    # 没有写明长度的文件夹，按分词器自己的上限截断，与 sentence-transformers 一致
    length = length or _read(folder / "tokenizer_config.json", dict).get("model_max_length")
    if length is not None and (not isinstance(length, int | float) or not 3 <= length < float("inf")):
        raise CheckpointError(
            f"{folder}: sequences of {length!r} ids are impossible; see its sentence_bert_config.json"
        )
    return int(length or 0)


def length_limit(folder: Path, config: ModelConfig) -> int:
    """Returns how many ids of a sequence are read: what the folder allows, and never more than the model has places.

    Raises:
        CheckpointError: the folder says something impossible, or a file is damaged.
    """
    return InferenceConfig(max_length=stated_length(folder)).length_for(config)


def copy_sentence_files(source: Path, target: Path) -> None:
    """Gives a copy of a model folder what its source says of vectors; nothing where that says nothing.

    Args:
        source: the model folder; also one whose vectors are not known here, since the encoder may serve other ends.
        target: a folder that holds the same model.

    Raises:
        CheckpointError: `modules.json` is damaged, or a step lies outside the folder or has pickled weights.
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


def _steps(path: Path) -> list[dict[str, Any]]:
    steps = _read(path, list)
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
        elif name != "Transformer" and name not in _WITHOUT_EFFECT:
            raise CheckpointError(
                f"{path}: its vectors go through a {name} besides, which this package does not have; without it they"
                " would be of another model"
            )
    return pooling


def _pooling(path: Path) -> StoredPooling:
    values = _read(path, dict)
    # 旧版每种方式一个开关，新版一个名字；拼接多种方式的文件夹这里不支持，要明说而不是猜
    if not values:
        return "mean"
    wanted = values.get("pooling_mode") or [
        key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for key, on in values.items()
        if key.startswith("pooling_mode_") and on
    ]
    name = wanted if isinstance(wanted, str) else "+".join(map(str, wanted))
    if name not in ("mean", "cls", "max"):
        raise CheckpointError(f"{path}: asks for pooling {name!r}; this package has mean, cls, max")
    return cast(StoredPooling, name)


def _usage(path: Path) -> tuple[dict[str, str], str, Similarity]:
    """Returns the prompts, the name of the one that is used unasked, and the similarity."""
    values = _read(path, dict)
    prompts, default = values.get("prompts") or {}, values.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{path}: damaged (prompts are not texts by name)")
    if default and default not in prompts:
        raise CheckpointError(f"{path}: the default prompt {default!r} is none of {', '.join(prompts) or 'no prompts'}")
    similarity = values.get("similarity_fn_name") or "cosine"
    if similarity not in get_args(Similarity):
        raise CheckpointError(
            f"{path}: compares vectors by {similarity!r}; this package has {', '.join(get_args(Similarity))}"
        )
    return prompts, default, cast(Similarity, similarity)


def _read(path: Path, kind: type[Any]) -> Any:
    """Reads a JSON file of a kind; an empty one where there is no file."""
    if not path.is_file():
        return kind()
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(values, kind):
            raise ValueError(f"holds no {'object' if kind is dict else 'list'}")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {error})") from None
    return values
