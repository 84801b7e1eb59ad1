"""Turns a foreign checkpoint into a model folder: an original TensorFlow release, or pickled PyTorch weights.

- all is read and checked before anything is written, and the folder appears whole or not at all
- a pickle is a small program: it is read with `weights_only=True`, and anything but tensors and plain containers is
  refused before it is made. What a file says about itself is then checked against the model's configuration
- names and shapes are those of a model without memory; TensorFlow's names follow by rule. It stores a dense layer's
  `kernel` as [in, out], all else as the field does
- a release says only in its folder's name whether text is to be lower-cased; see `_decide_lowercase`
"""

from __future__ import annotations

import json
import os
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.files import atomic_path, read_json
from bertsmith.inference.embed import copy_sentence_files, length_limit
from bertsmith.interop.huggingface import load_tokenizer, refuse_existing
from bertsmith.interop.tensorflow import TensorBundle
from bertsmith.model import BertConfig, BertForPreTraining
from bertsmith.model.folder import modern_spelling, published_names, shards_of, without_wrapper
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer

_OPTIMIZER = re.compile(r"(^|/)(adam_m|adam_v|AdamWeightDecayOptimizer(_1)?|global_step)$")
"""What training left in a TensorFlow checkpoint besides the model."""

_RELEASE_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    *("max_position_embeddings", "type_vocab_size", "initializer_range"),
)
"""What `bert_config.json` says of the model; the first five must be there."""
_FROM_TENSORFLOW = (
    (r"/", "."),
    (r"\.layer_(\d+)\.", r".layer.\1."),
    (r"_embeddings$", "_embeddings.weight"),
    (r"\.(kernel|output_weights)$", ".weight"),
    (r"\.output_bias$", ".bias"),
)
"""How a name of TensorFlow becomes that in a model folder: patterns and replacements, one after another."""

_OPTIONAL_PARTS = ("pooler.", "cls.predictions.", "cls.seq_relationship.")
"""Each is there whole or not at all; the last one reads the first."""
_TASK_HEADS = ("classifier.", "qa_outputs.")
"""Heads whose shape only the task knows; taken over as they are."""

_COUNTER = re.compile(r"(^|\.)embeddings\.position_ids$")
"""0, 1, 2, ...: earlier writers stored it."""

_DECODER_WEIGHT, _DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
_BIAS = "cls.predictions.bias"
"""The decoder's bias once more; which of the two names is stored depends on who wrote the file."""


@dataclass(frozen=True)
class Imported:
    """What was found in a foreign checkpoint.

    Attributes:
        kind: `TensorFlow checkpoint` or `PyTorch weights`.
        architecture: the `transformers` class that fits the weights.
        lowercase: whether the tokenizer lower-cases; None where there is no tokenizer.
    """

    kind: str
    architecture: str
    config: BertConfig
    num_tensors: int
    lowercase: bool | None
    lowercase_reason: str


def import_checkpoint(source: str | Path, out: str | Path, *, lowercase: bool | None = None) -> Imported:
    """Makes a model folder of a foreign checkpoint, and says what was found.

    Args:
        source: a folder with `bert_config.json`, `bert_model.ckpt.*` and `vocab.txt`, as the original releases are; or
            with `config.json` and `pytorch_model.bin` (or its shards), and tokenizer files if there are any.
        out: the model folder; it must be empty or not there yet.
        lowercase: whether the tokenizer lower-cases; None takes what the tokenizer's files say, else the name of the
            folder (`uncased`, `cased`), else whether any piece of the vocabulary has a capital letter.

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
        else _read_pickled(weights, config, is_tied=values.get("tie_word_embeddings") is not False)
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
    pickled = (source / name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json"))
    for weights in (*indexes, *pickled):
        if weights.is_file():
            return weights
    raise InputError(
        f"{source}: holds neither bert_model.ckpt.index, as the original releases do, nor pytorch_model.bin;"
        " give the folder of a checkpoint"
    )


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
    names, _ = without_wrapper((name for name in bundle.entries if not _OPTIMIZER.search(name)), index, "/")
    stored = {_out_of_tensorflow(name): original for name, original in names.items()}
    # TensorFlow 的 kernel 是 [in, out]，这里的 weight 是 [out, in]
    turned = {name for name, original in stored.items() if original.endswith("/kernel")}
    shapes = {name: bundle.entries[original].shape for name, original in stored.items()}
    _require_fit({name: shape[::-1] if name in turned else shape for name, shape in shapes.items()}, config, index)
    tensors = {name: torch.from_numpy(bundle.read(original)) for name, original in stored.items()}
    return {name: value.T.contiguous() if name in turned else value for name, value in tensors.items()}


def _out_of_tensorflow(name: str) -> str:
    for pattern, replacement in _FROM_TENSORFLOW:
        name = re.sub(pattern, replacement, name)
    return modern_spelling(name)


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


def _read_pickled(path: Path, config: BertConfig, *, is_tied: bool) -> dict[str, Tensor]:
    """Reads the weights of a BERT: under today's names, mapped where the file allows it, each of its own memory.

    With `is_tied` the masked-LM decoder is the word embedding, as in the paper; else a decoder of its own is kept.
    """
    files = shards_of(path) if path.suffix == ".json" else [path]
    stored = {name: value for file in files for name, value in _read_file(file).items()}
    names, _ = without_wrapper((name for name in stored if not _COUNTER.search(name)), path)
    tensors = {modern_spelling(name): stored[original] for name, original in names.items()}
    prefix = "bert." if any(name.startswith("bert.") for name in tensors) else ""
    for name, value in tensors.items():
        _check_tensor(name, value, path)
    # 同一个偏置有两个名字，有的写法只存其一：两个都补上，各种读者都找得到
    for name, other in ((_BIAS, _DECODER_BIAS), (_DECODER_BIAS, _BIAS)):
        if other in tensors:
            tensors.setdefault(name, tensors[other])
    if is_tied:
        _drop_tied(tensors, f"{prefix}embeddings.word_embeddings.weight", path)

    own_heads = (*_TASK_HEADS, _DECODER_WEIGHT, _DECODER_BIAS)
    shapes = {name: tuple(value.shape) for name, value in tensors.items() if not name.startswith(own_heads)}
    _require_fit(shapes, config, path)
    return dict(_separate(tensors))


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        # 2020 年以前的格式不是 zip，不能映射，只能整个读入
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        culprit = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"it asks for {culprit[1]}" if culprit else "it is damaged or no pickle of tensors"
        raise CheckpointError(f"{path}: holds something other than tensors and was not read: {reason}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error}); check the file") from None
    except Exception as error:
        # 解读损坏的 pickle 可能抛出任何异常；对用户而言都是同一件事
        first_line = next(iter(str(error).splitlines()), "")
        raise CheckpointError(f"{path}: damaged ({type(error).__name__}: {first_line}); copy the file again") from None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError(f"{path}: is not a table of names and tensors; save it again as model.state_dict()")
    return dict(content)


def _drop_tied(tensors: dict[str, Tensor], word_embeddings: str, path: Path) -> None:
    """Drops the decoder's copies of the word embeddings and of its bias, if they are true copies."""
    for name, original in ((_DECODER_WEIGHT, word_embeddings), (_DECODER_BIAS, _BIAS)):
        copy, own = tensors.pop(name, None), tensors.get(original)
        if copy is None or own is None:
            continue
        # 不同精度的两个张量，torch.equal 不比，只报错
        if copy.dtype != own.dtype or not torch.equal(copy, own):
            raise CheckpointError(
                f"{path}: {name} differs from {original}, which BERT's decoder is; to keep both, write"
                " tie_word_embeddings false in config.json"
            )


def _check_tensor(name: str, value: Tensor, path: Path) -> None:
    if value.layout != torch.strided or not value.is_floating_point() or value.device.type != "cpu":
        raise CheckpointError(f"{path}: {name} is not a plain tensor of floating-point numbers ({value.dtype})")
    # 步长为零的张量形状可以任意大，写盘时会把内存撑爆
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise CheckpointError(f"{path}: {name} has more numbers than the file holds for it")


def _separate(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Gives every tensor memory of its own; safetensors writes no two tensors from one."""
    seen: set[int] = set()
    for name, value in tensors.items():
        address = value.untyped_storage().data_ptr()
        yield name, value.clone(memory_format=torch.contiguous_format) if address in seen else value.contiguous()
        seen.add(address)


def _require_fit(found: Mapping[str, tuple[int, ...]], config: BertConfig, place: Path) -> None:
    """Makes sure that tensors are the model's: the encoder, and all of every optional part that is there."""
    # 先比层数：配置里写着十亿层的话，光是展开表格就会耗尽内存
    if config.num_hidden_layers > len(found):
        raise CheckpointError(f"{place}: {len(found)} tensors cannot be {config.num_hidden_layers} layers")
    prefix = "" if any(name.startswith("bert.") for name in found) else "bert."
    table = {name.removeprefix(prefix): shape for name, shape in _shapes_of(config)}
    parts = {"", *map(_part_of, table.keys() & found.keys())}
    if "cls.seq_relationship." in parts:
        parts.add("pooler.")
    table = {name: shape for name, shape in table.items() if _part_of(name) in parts}
    problems = [f"{name} is missing" for name in table if name not in found]
    for name, shape in found.items():
        if name not in table:
            problems.append(f"{name} is unexpected")
        elif shape != table[name]:
            problems.append(f"{name} has shape {list(shape)}, its configuration says {list(table[name])}")
    if problems:
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        raise CheckpointError(f"{place}: is not the BERT its configuration describes: {shown}")


def _part_of(name: str) -> str:
    """Returns the optional part that a tensor belongs to; empty for the encoder."""
    return next((part for part in _OPTIONAL_PARTS if name.removeprefix("bert.").startswith(part)), "")


def _shapes_of(config: BertConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    # 解码器若不与词嵌入共享，由读取者另行处理：这里总是论文中共享的形式
    with torch.device("meta"):
        model = BertForPreTraining(replace(config, tie_word_embeddings=True))
    for name, value in model.named_parameters():
        targets = published_names(name, config.family.names)
        # 融合的 QKV 在磁盘上是三个矩阵
        for target, part in zip(targets, value.chunk(len(targets)), strict=True):
            yield target, tuple(part.shape)
