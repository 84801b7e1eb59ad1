"""From pieces back to a text a person would write, which encodes to the same pieces.

Encoding drops spaces, so decoding has to guess them. Only guesses that cannot change the ids are made: a space is
left out where the tokenizer would cut anyway, beside punctuation and between CJK characters.
"""

import re
from collections.abc import Sequence

from bertsmith.tokenizer.characters import is_standalone

_NO_SPACE = re.compile(r" (?=[.,!?;:)%](?: |$))|(?<=\() ")
_CONTRACTION = re.compile(r"(?<=[^\W\d_]) ' (?=(?:s|t|m|d|re|ve|ll)\b)", re.IGNORECASE)


def join_pieces(pieces: Sequence[str], tokenize_chinese_chars: bool) -> str:
    """Joins pieces to readable text.

    Args:
        pieces: the pieces, those inside a word with `##`.
        tokenize_chinese_chars: the tokenizer's setting: CJK characters need no spaces between them.

    Returns:
        The text.
    """
    parts: list[str] = []
    after_cjk = False
    for piece in pieces:
        if piece.startswith("##") and parts:
            parts.append(piece[2:])
            after_cjk = False
            continue
        # 单个汉字或全角标点两侧不加空格：分词时它们总会被切开
        is_cjk = len(piece) == 1 and not piece.isascii() and is_standalone(piece, tokenize_chinese_chars)
        if parts and not (is_cjk and after_cjk):
            parts.append(" ")
        parts.append(piece)
        after_cjk = is_cjk
    return _NO_SPACE.sub("", _CONTRACTION.sub("'", "".join(parts)))
