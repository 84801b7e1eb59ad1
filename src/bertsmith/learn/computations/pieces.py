"""A word into pieces, look-up by look-up: the longest match first (Wu et al. 2016; §3 of the paper names it)."""

from __future__ import annotations

from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.study import Study
from bertsmith.tokenizer import WordPieceTokenizer


def pieces_of_a_word(*, id: str, title: str, language: Language, study: Study, text: str) -> Computation:
    """Takes the word of a sentence that makes the most pieces, and spells it.

    Raises:
        InputError: the sentence has no words, none that the vocabulary knows, or is too long.
    """
    study.encode(text)
    tokenizer = study.tokenizer
    spelled = [[tokenizer.vocab[index] for index in ids] for ids in _by_word(study, text)]
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise InputError("the model does not read WordPiece; take one that does to see how it spells a word")
    known = [pieces for pieces in spelled if tokenizer.special_tokens.unk not in pieces]
    if not known:
        raise InputError(f"the vocabulary has none of the words in {text[:40]!r}; write another sentence")
    word = "".join(piece.removeprefix("##") for piece in max(known, key=len))
    rows, start = [], 0
    while start < len(word):
        # 从最长的开始试，每次去掉末尾一个字符；第一个在词表里的就是
        ends = range(len(word), start, -1)
        tried = [("##" if start else "") + word[start:end] for end in ends]
        found = next(number for number, piece in enumerate(tried) if piece in tokenizer.piece_to_id)
        rows.append((word[start:], tried[found], found + 1))
        start = ends[found]
    every = [(" ".join(pieces), len(pieces)) for pieces in spelled]
    steps = (
        Step(
            Text("the words", "各个词")(language),
            every,
            columns=tuple(Text("pieces|how many", "词片|个数")(language).split("|")),
        ),
        Step(
            Text(f"the word {word}", f"单词 {word}")(language),
            rows,
            Text("tried from the longest on, a character shorter each time", "从最长的试起，每次短一个字符")(language),
            columns=tuple(
                Text("what is left|longest piece|look-ups", "剩下的|最长的词片|查词表次数")(language).split("|")
            ),
        ),
    )
    values = {
        "word": word,
        "pieces": [piece for _, piece, _ in rows],
        "count": len(rows),
        "tries": sum(row[2] for row in rows),
        "vocabulary": tokenizer.vocab_size,
    }
    return Computation(id, title, steps, values, study.note(language))


def _by_word(study: Study, text: str) -> list[list[int]]:
    """Returns the ids of each word."""
    encoding = study.tokenizer(text)
    words: dict[int, list[int]] = {}
    for index, word in zip(encoding["input_ids"], encoding["word_ids"], strict=True):
        if word >= 0:
            words.setdefault(word, []).append(index)
    return list(words.values())
