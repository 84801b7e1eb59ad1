"""What every pipeline checks before it computes, and how it cuts long inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertsmith.model import ModelConfig

PART = 4096
"""Inputs encoded and sorted by length at a time: enough to sort well, few enough that memory does not grow."""


def require_fit(tokenizer: Tokenizer, config: ModelConfig, folder: str | Path = "model folder") -> None:
    """Makes sure that a model knows every id a tokenizer can make.

    Raises:
        CheckpointError: the vocabulary is larger than the model's.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} pieces, the model knows {config.vocab_size}; "
            "they do not belong together"
        )


def require_pairs(config: ModelConfig, readers: str) -> None:
    """Makes sure that a model can tell two texts of a sequence apart.

    Args:
        config: of the model.
        readers: what takes two texts, in the plural: `next sentences`.

    Raises:
        ConfigError: the model knows a single segment.
    """
    if not config.reads_pairs:
        raise ConfigError(f"the model knows a single segment; {readers} take two")


def require_list(texts: Sequence[str], pairs: Sequence[str] | None = None) -> None:
    """Makes sure that texts are a list of strings, and second texts as many.

    Raises:
        InputError: a single string was given, an item is none, or the numbers of texts differ.
    """
    if isinstance(texts, str) or isinstance(pairs, str):
        raise InputError("give a list of texts, not a single string: [text]")
    if pairs is not None and len(pairs) != len(texts):
        raise InputError(f"{len(texts)} texts and {len(pairs)} second texts; give one for each")
    # 表格里的空格子常是 None 或 NaN：说出是第几个，而不是在分词器深处出错
    for given in (texts, () if pairs is None else pairs):
        for number, text in enumerate(given):
            if not isinstance(text, str):
                raise InputError(f"text {number} of {len(given)} is {text!r}, not a string; an empty one is ''")


def parts(count: int) -> list[slice]:
    """Cuts a long list, so that memory does not grow with it."""
    return [slice(start, start + PART) for start in range(0, count, PART)]
