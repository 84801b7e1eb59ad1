"""What a folder of sentence-transformers says of its vectors: how they are pooled, and how much of a text they read.

Such a folder lists the steps from text to vector in `modules.json`. The encoder, pooling and scaling to unit length are
known here. A step that would change the vectors and is not known is refused: vectors that look right and are of another
model are worse than none.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from bertsmith.errors import CheckpointError
from bertsmith.hub import model_folder
from bertsmith.inference.engine import InferenceConfig
from bertsmith.model import ModelConfig

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
    """

    pooling: StoredPooling = "mean"
    max_length: int = 0
    lowercase: bool = False


def read_sentence_folder(folder: str | Path) -> SentenceFolder:
    """Reads what a model folder says of vectors; a folder that other tools made may say nothing.

    Raises:
        CheckpointError: it asks for a step, a pooling or a prompt that is not known here, or a file is damaged.
    """
    folder = model_folder(folder)
    pooling = _pooling(folder / _pooling_path(folder) / "config.json")
    _refuse_prompt(folder / "config_sentence_transformers.json")
    settings = _read(folder / "sentence_bert_config.json", dict)
    return SentenceFolder(pooling, stated_length(folder), settings.get("do_lower_case") is True)


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


def _refuse_prompt(path: Path) -> None:
    values = _read(path, dict)
    name, prompts = values.get("default_prompt_name"), values.get("prompts")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if prompt:
        raise CheckpointError(
            f"{path}: puts {str(prompt)!r} before every text, which this package does not do; write it before your"
            " texts, and take default_prompt_name out of the file"
        )


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
