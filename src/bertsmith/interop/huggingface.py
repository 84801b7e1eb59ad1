"""Writes a clean copy of a model folder: the files that the field's tools and bertsmith read, and nothing else.

The folder is already what `transformers` loads. The copy adds certainty: each tensor and each piece of the vocabulary
passes through our own classes, which refuse what is missing, damaged or of another model.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bertsmith.errors import CheckpointError, RunFolderError
from bertsmith.files import atomic_path, require_utf8_names
from bertsmith.hub import model_folder
from bertsmith.inference.embed import copy_sentence_files, length_limit
from bertsmith.inference.linear import WORDS_FILE
from bertsmith.inference.tag import FeatureTag
from bertsmith.inference.task_file import TASK_FILE, read_task_file
from bertsmith.model import ModelConfig, PretrainedModel, load_any
from bertsmith.model.features import TENSOR_FILE
from bertsmith.model.folder import read_architecture, stored_rows
from bertsmith.tokenizer import Tokenizer
from bertsmith.tokenizer import load_tokenizer as read_tokenizer
from bertsmith.tokenizer.loading import TOKENIZER_FILES


def export_huggingface(source: str | Path, out: str | Path) -> list[str]:
    """Loads a model folder of any of the eight architectures in full and writes it anew.

    Written are `config.json`, `model.safetensors`, the tokenizer's four files if there are any, what bertsmith keeps of
    a fine-tuned model (`task.json`, the tagger over a frozen encoder), and what `sentence-transformers` keeps of a
    pooling. Left behind are training state, weights in other formats, and a `README.md`.

    `out` must be empty or not there yet.

    Returns:
        The names of stored tensors left behind, which are not in the architecture of `config.json`; usually none.

    Raises:
        CheckpointError: the source is no model folder, or a file is missing, damaged or of another model.
        InputError: a tokenizer file cannot be used.
        RunFolderError: something is at `out`, or it cannot be written.
    """
    source, out = model_folder(source), Path(out)
    refuse_existing(out)
    model = load_whole_model(source)
    tokenizer = load_tokenizer(source, model.config)
    kept = _task_files(source)
    with atomic_path(out) as temporary:
        temporary.mkdir()
        model.save_pretrained(temporary)
        if tokenizer is not None:
            tokenizer.save(temporary, model_max_length=length_limit(source, model.config))
        copy_sentence_files(source, temporary)
        for name in kept:
            shutil.copyfile(source / name, temporary / name)
    return [] if model.load_report is None else model.load_report.left_aside


def _task_files(source: Path) -> list[str]:
    """Returns the names of what a fine-tuned folder holds besides the model: without it, it would predict otherwise."""
    task = read_task_file(source).get("task")
    if task == "features":
        # 冻结编码器之上的标注器也要能载入，才算核对过的副本
        FeatureTag.load(source)
        return [TASK_FILE, TENSOR_FILE]
    # 词与编码器合起来才是答案：副本少了它，答得就不一样
    words = [WORDS_FILE] if (source / WORDS_FILE).exists() else []
    return [TASK_FILE, *words] if task else []


def refuse_existing(out: Path) -> None:
    """Makes sure that an export can be written and overwrites nothing; an empty folder is free."""
    require_utf8_names(out)
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise RunFolderError(f"{out}: is there already; choose another --out")


def load_whole_model(folder: Path) -> PretrainedModel:
    """Loads a folder as what its `config.json` says it is, in evaluation mode; a `BertModel` may have no pooler."""
    family = ModelConfig.load(folder).family
    architecture = read_architecture(folder)
    if architecture is None:
        raise CheckpointError(
            f'{folder}/config.json: has no "architectures"; add the class that the weights are of, such as'
            ' "architectures": ["BertModel"]'
        )
    pooler = family.names.backbone.get("pooler", "pooler")
    poolers = (f"{prefix}{pooler}.weight" for prefix in ("", family.names.prefix))
    # 用于取向量的模型常常不带 pooler：照样可用，只是少一个输出
    if architecture == f"{family.name}Model" and all(stored_rows(folder, name) is None for name in poolers):
        return family.backbone.from_pretrained(folder, need_pooler=False).eval()
    return load_any(folder).eval()


def load_tokenizer(
    folder: Path, config: ModelConfig, *, lowercase: bool | None = None, required: bool = False
) -> Tokenizer | None:
    """Loads the tokenizer of a model folder or checkpoint; None where there is none and it is not `required`.

    Raises InputError (a file is missing or cannot be used) or CheckpointError (it has more pieces than the model).
    """
    if not required and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    tokenizer = read_tokenizer(folder, lowercase=lowercase)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the vocabulary has {tokenizer.vocab_size} pieces, the model {config.vocab_size}; one of them is"
            " another model's"
        )
    return tokenizer
