"""Turns a foreign checkpoint into a model folder.

Two kinds are known: the folders of the original TensorFlow releases, and folders of `config.json` with pickled PyTorch
weights. Both end as `config.json`, `model.safetensors` and the tokenizer's files, under the field's names.

Notable:
- all is read and checked before anything is written, and the folder appears whole or not at all
- a release says only in its folder's name whether text is to be lower-cased; see `_decide_lowercase`
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.files import atomic_path
from bertsmith.inference.sentence_folder import copy_sentence_files, length_limit
from bertsmith.interop.huggingface import load_tokenizer, refuse_existing
from bertsmith.interop.parameters import Parameter, match_parameters
from bertsmith.interop.pytorch import find_pickled_weights, read_pickled_weights
from bertsmith.interop.tensorflow import TensorBundle
from bertsmith.json_files import read_json
from bertsmith.model import BertConfig
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer

_OPTIMIZER = re.compile(r"(^|/)(adam_m|adam_v|AdamWeightDecayOptimizer(_1)?|global_step)$")
"""What training left in a TensorFlow checkpoint besides the model."""

_RELEASE_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("max_position_embeddings", "type_vocab_size", "initializer_range"),
)
"""What `bert_config.json` says of the model; the first five must be there."""


@dataclass(frozen=True)
class Imported:
    """What was found in a foreign checkpoint.

    Attributes:
        kind: `TensorFlow checkpoint` or `PyTorch weights`.
        architecture: the `transformers` class that fits the weights.
        config: the model's shape.
        num_tensors: how many tensors were written.
        lowercase: whether the tokenizer lower-cases; None where there is no tokenizer.
        lowercase_reason: what decided that.
    """

    kind: str
    architecture: str
    config: BertConfig
    num_tensors: int
    lowercase: bool | None
    lowercase_reason: str


def import_checkpoint(source: str | Path, out: str | Path, *, lowercase: bool | None = None) -> Imported:
    """Makes a model folder of a foreign checkpoint.

    Args:
        source: a folder with `bert_config.json`, `bert_model.ckpt.*` and `vocab.txt`, as the original releases are; or
            with `config.json` and `pytorch_model.bin` (or its shards), and tokenizer files if there are any.
        out: the model folder; it must be empty or not there yet.
        lowercase: whether the tokenizer lower-cases; None takes what the tokenizer's files say, else the name of the
            folder (`uncased`, `cased`), else whether any piece of the vocabulary has a capital letter.

    Returns:
        What was found.

    Raises:
        InputError: the folder is no checkpoint, or a tokenizer file cannot be used.
        CheckpointError: a file is missing, damaged or hostile, or does not fit the configuration.
        RunFolderError: `out` is in use or cannot be written.
    """
    source, out = Path(source), Path(out)
    refuse_existing(out)
    weights = _find_weights(source)
    is_tensorflow = weights.suffix == ".index"
    values, config = _read_config(source, prefer="bert_config.json" if is_tensorflow else "config.json")
    tokenizer, lowercases, reason = _read_tokenizer(source, config, lowercase, required=is_tensorflow)
    tensors = (
        _read_bundle(weights, config)
        if is_tensorflow
        else read_pickled_weights(weights, config, is_tied=values.get("tie_word_embeddings") is not False)
    )
    architecture = _complete(values, tensors)
    with atomic_path(out) as temporary:
        temporary.mkdir()
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        (temporary / "config.json").write_text(text, encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(temporary, model_max_length=length_limit(source, config))
        copy_sentence_files(source, temporary)
    kind = "TensorFlow checkpoint" if is_tensorflow else "PyTorch weights"
    return Imported(kind, architecture, config, len(tensors), lowercases, reason)


def _find_weights(source: Path) -> Path:
    """Finds the index of a TensorFlow checkpoint, or else pickled weights."""
    if not source.is_dir():
        what = "is a file; give the folder it is in" if source.exists() else "no such folder"
        raise InputError(f"{source}: {what}")
    if any((source / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise InputError(f"{source}: is a model folder already (it has model.safetensors); use it as it is")
    indexes = sorted(source.glob("*.ckpt*.index"))
    # 官方的名字优先：旁边可能还放着训练途中的存档
    indexes = [path for path in indexes if path.name == "bert_model.ckpt.index"] or indexes
    if len(indexes) > 1:
        names = ", ".join(path.name for path in indexes)
        raise InputError(f"{source}: holds several checkpoints ({names}); leave one in the folder")
    weights = indexes[0] if indexes else find_pickled_weights(source)
    if weights is None:
        raise InputError(
            f"{source}: holds neither bert_model.ckpt.index, as the original releases do, nor pytorch_model.bin;"
            " give the folder of a checkpoint"
        )
    return weights


def _read_config(source: Path, *, prefer: str) -> tuple[dict[str, Any], BertConfig]:
    """Reads the configuration: its fields as the model folder will have them, and the shape they describe."""
    names = sorted(("bert_config.json", "config.json"), key=lambda name: name != prefer)
    path = next((source / name for name in names if (source / name).is_file()), None)
    if path is None:
        raise CheckpointError(f"{source}: has no {prefer}; copy it from where the weights came")
    values: dict[str, Any] = read_json(path, dict, CheckpointError, "copy it from where the weights came")
    if path.name == "config.json":
        return values, BertConfig.load(source)
    # 原始发布的配置没有 model_type；pooler_* 等字段什么也不描述，不带进模型文件夹
    values = {name: values[name] for name in _RELEASE_FIELDS if name in values}
    missing = [name for name in _RELEASE_FIELDS[:5] if name not in values]
    if missing:
        raise CheckpointError(f"{path}: has no {', '.join(missing)}; the shape of a model cannot be guessed")
    try:
        return values, BertConfig(**values)
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{path}: impossible value ({error})") from None


def _read_bundle(index: Path, config: BertConfig) -> dict[str, Tensor]:
    """Reads the model out of a TensorFlow checkpoint and leaves the optimizer's slots aside."""
    bundle = TensorBundle(index.with_suffix(""))

    def spell(parameter: Parameter) -> tuple[str, tuple[int, ...]]:
        return parameter.tensorflow_name, parameter.shape[:: -1 if parameter.is_transposed else 1]

    shapes = {name: entry.shape for name, entry in bundle.entries.items() if not _OPTIMIZER.search(name)}
    tensors = {}
    for name, parameter in match_parameters(shapes, config, str(index), spell=spell).items():
        value = torch.from_numpy(bundle.read(name))
        # TensorFlow 的 kernel 是 [in, out]，这里的 weight 是 [out, in]
        tensors[parameter.name] = value.T.contiguous() if parameter.is_transposed else value
    return tensors


def _complete(values: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Adds to the configuration what `transformers` and bertsmith need to know, and returns the architecture."""
    architectures = values.get("architectures")
    if isinstance(architectures, list) and architectures:
        architecture = str(architectures[0])
    else:
        architecture = _guess_architecture(tensors)
    values["architectures"] = [architecture]
    values["model_type"] = "bert"
    # auto_map 会让别的工具去下载并执行外来代码
    values.pop("auto_map", None)
    if "classifier.weight" in tensors and not values.get("id2label"):
        labels = [f"LABEL_{number}" for number in range(len(tensors["classifier.weight"]))]
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
    return architecture


def _guess_architecture(tensors: dict[str, Tensor]) -> str:
    for heads, architecture in (
        (("cls.predictions.", "cls.seq_relationship."), "BertForPreTraining"),
        (("cls.predictions.",), "BertForMaskedLM"),
        (("cls.seq_relationship.",), "BertForNextSentencePrediction"),
        (("qa_outputs.",), "BertForQuestionAnswering"),
        (("classifier.",), "BertForSequenceClassification"),
    ):
        if all(any(name.startswith(head) for name in tensors) for head in heads):
            return architecture
    return "BertModel"


def _read_tokenizer(
    source: Path, config: BertConfig, lowercase: bool | None, *, required: bool
) -> tuple[Tokenizer | None, bool | None, str]:
    """Reads the tokenizer, if there is one: with whether it lower-cases, and what decided that."""
    tokenizer = load_tokenizer(source, config, lowercase=lowercase, required=required)
    if tokenizer is None:
        return None, None, "there are no tokenizer files"
    if lowercase is not None:
        return tokenizer, lowercase, "as asked"
    if _tokenizer_says(source) or not isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer, tokenizer.lowercase, "as the tokenizer's files say"
    decided, reason = _decide_lowercase(source, tokenizer.vocab)
    return WordPieceTokenizer.load(source, lowercase=decided), decided, reason


def _tokenizer_says(source: Path) -> bool:
    """Whether the tokenizer's files say if text is lower-cased; a `vocab.txt` alone does not."""
    if (source / "tokenizer.json").is_file():
        return True
    path = source / "tokenizer_config.json"
    return path.is_file() and "do_lower_case" in read_json(path, dict, InputError, "save the tokenizer again")


def _decide_lowercase(source: Path, vocab: list[str]) -> tuple[bool, str]:
    """Decides by the folder's name, then by the vocabulary: one that has capitals was made to meet them."""
    name = Path(os.path.abspath(source)).name
    word = re.search(r"(?<![a-z])(un)?cased(?![a-z])", name.lower())
    if word:
        return word[1] is not None, f"by the folder's name, {name}"
    # [UNK]、[unused1]、<S> 之类不是文字，不能说明词表区分大小写
    capital = next((piece for piece in vocab if re.search(r"[A-Z]", piece) and piece[0] not in "[<"), None)
    if capital is None:
        return True, "no piece of the vocabulary has a capital letter"
    return False, f"the vocabulary has capital letters, as in {capital}"
