"""A vocabulary file (`vocab.txt`): one piece a line, the line number is the id.

What is tolerated and what is refused follows one rule: a file the field has published must load with its published
ids, and a damaged one must not load with shifted ids.
"""

from pathlib import Path

from bertsmith.errors import InputError


def read_vocab(path: Path, unk_token: str) -> list[str]:
    r"""Reads a `vocab.txt`.

    A byte order mark, Windows line ends and blank lines at the end are tolerated. So is one blank line between
    pieces: it holds its place, and no text ever meets it (line 344 of the published Chinese vocabulary is one).

    Args:
        path: the file.
        unk_token: what `[UNK]` is called.

    Returns:
        The pieces; the place in the list is the id.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or is refused by `check_vocab`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}: line {line} is not UTF-8; save the vocabulary as UTF-8") from error
    # 只按 \n 切：splitlines 会在 U+2028 等字符处断行，而它们可能就是词表里的一项
    vocab = [line.removesuffix("\r") for line in text.split("\n")]
    while vocab and not vocab[-1]:
        vocab.pop()
    check_vocab(vocab, str(path), unk_token)
    return vocab


def check_vocab(vocab: list[str], place: str, unk_token: str) -> None:
    """Refuses a vocabulary no tokenizer can work with.

    A `##` piece may be there twice: the published Chinese vocabulary repeats 53 of them. The last place counts, as in
    the original release and in `tokenizers`. Any other repetition means a damaged file.

    Args:
        vocab: the pieces.
        place: what to call it in the message.
        unk_token: what `[UNK]` is called.

    Raises:
        InputError: it is empty, a piece that starts a word is there twice, or `[UNK]` is missing.
    """
    if not vocab:
        raise InputError(f"{place}: the vocabulary is empty; give one piece per line")
    if len(set(vocab)) != len(vocab):
        seen: dict[str, int] = {}
        for number, piece in enumerate(vocab, 1):
            # 已发布的中文词表就有重复的 ## 片段，拒绝它们等于拒绝该词表
            if piece in seen and not piece.startswith("##"):
                what = f"piece {piece!r}" if piece else "a blank line"
                raise InputError(f"{place}: {what} is on line {seen[piece]} and again on line {number}; remove one")
            seen[piece] = number
    if unk_token not in vocab:
        raise InputError(f"{place}: has no {unk_token}, the piece for words it cannot spell; add a line {unk_token}")
