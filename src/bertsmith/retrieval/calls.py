"""`bertsmith.index` and `bertsmith.mine`: what the commands of these names do."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.reader import ColumnName, ReadingOptions
from bertsmith.finetune.datasets.rows import DataSource
from bertsmith.kernels.layers import on_device
from bertsmith.options import built, divided
from bertsmith.result import Result
from bertsmith.retrieval.build import Indexed, IndexSettings, Progress, build_index
from bertsmith.retrieval.mining import Mined, MiningSettings
from bertsmith.retrieval.mining import mine as write_negatives


def index(
    folder: str | Path,
    model: str | Path,
    out: str | Path,
    *,
    device: torch.device | str | None = None,
    on_progress: Progress | None = None,
    **settings: Any,
) -> Result[Indexed]:
    """Makes a folder of text searchable, or brings its index up to date: what is unchanged is not embedded again.

    Examples:
        >>> import bertsmith
        >>> bertsmith.index("texts", "run/model", "texts.index").metrics["documents"] > 0
        True
        >>> hits = bertsmith.load_index("texts.index").search("who sang?", k=1)
        >>> len(hits)
        1

    Args:
        folder: holds `.txt` and `.md` files, in any subfolders.
        model: a model folder, or `org/name` of the Hub.
        out: the folder of the index.
        device: None takes the GPU where there is one.
        on_progress: told how many passages have vectors and how many there are.
        **settings: the options of `bertsmith index`, with underscores, such as `passage_tokens`.

    Returns:
        `metrics`: documents and passages there are now, passages that had to be embedded, and files that were added,
        changed and deleted; `details`: the same as an object.

    Raises:
        ConfigError: a setting is unknown or impossible, or a library is not installed.
        InputError: the folder is missing or holds no text, or a file is unreadable or vanished meanwhile.
        CheckpointError: the model folder is unusable, or the index is damaged.
        RunFolderError: `out` belongs to another folder, model or setting, is in use, or cannot be written.
    """
    (chosen,) = divided(settings, IndexSettings, command="index")
    # 检索的结果要指出文件和行：内存里的行没有这样的地方
    if not isinstance(folder, (str, Path)):
        kind = type(folder).__name__
        raise InputError(f"folder: is a {kind}; hits name file and line, so write each text to a .txt file of a folder")
    with on_device(device):
        found = build_index(folder, model, out, built(IndexSettings, chosen), on_progress=on_progress)
    names = ("documents", "passages", "embedded", "added", "changed", "deleted")
    return Result(Path(out), {name: getattr(found, name) for name in names}, None, None, found)


def mine(
    pairs: DataSource,
    out: str | Path,
    *,
    model: str | Path | None = None,
    text_column: ColumnName | None = None,
    pair_column: ColumnName | None = None,
    encoding: str = "auto",
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[Mined]:
    """Writes pairs with their hard negatives: texts that look like an answer and are none.

    Examples:
        >>> import bertsmith
        >>> pairs = [{"query": "who sang?", "text": "Ann sang"}, {"query": "who ate?", "text": "the man who sang ate"}]
        >>> mined = bertsmith.mine(pairs, "mined.jsonl", mode="lexical")
        >>> mined.metrics["pairs"], mined.folder.name
        (2, 'mined.jsonl')

    Args:
        pairs: a file of pairs or its URL, a SQuAD file, a folder of BEIR, or rows in memory; all texts in it can become
            negatives.
        out: the JSON Lines to write, which `finetune("embed", ...)` reads.
        model: a folder that makes vectors, or `org/name` of the Hub; mode `lexical` needs none.
        text_column: name or number (from 0) of the column of queries; None finds it by its name.
        pair_column: that of the texts that answer them.
        encoding: of a file: `auto` or a codec.
        device: None takes the GPU where there is one.
        **settings: the other options of `bertsmith mine`, with underscores, such as `mode` and `negatives`.

    Returns:
        `metrics`: pairs, different texts, negatives, and pairs `without` a negative; `details`: the same as an object.

    Raises:
        ConfigError: a setting is unknown or impossible, there is no model, or a library is not installed.
        InputError: the pairs are missing, damaged, or none.
        CheckpointError: the model folder is unusable.
    """
    (chosen,) = divided(settings, MiningSettings, command="mine")
    reading = ReadingOptions(text_column=text_column, pair_column=pair_column, encoding=encoding)
    with on_device(device):
        found = write_negatives(pairs, model, out, built(MiningSettings, chosen), reading)
    return Result(Path(out), asdict(found), None, None, found)
