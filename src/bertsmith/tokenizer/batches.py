"""Texts in batches of about one size, for what works on many texts at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bertsmith.errors import InputError


def split_batches(texts: Iterable[str], chars: int) -> Iterator[list[str]]:
    """Groups texts until a batch holds about `chars` characters.

    Args:
        texts: any texts.
        chars: a batch ends with the text that reaches this.

    Yields:
        Lists of texts, none empty.

    Raises:
        InputError: `texts` is one string, or holds something that is not a string.
    """
    if isinstance(texts, str):
        raise InputError("texts is a single string; pass a list or another iterable of strings")
    batch: list[str] = []
    room = chars
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"text {number} is {type(text).__name__}, not str; decode it first")
        batch.append(text)
        room -= len(text) + 1
        if room <= 0:
            yield batch
            batch, room = [], chars
    if batch:
        yield batch
