"""Exact match and F1 of answers, by the rules of SQuAD 1.1, SQuAD 2.0 and CMRC 2018.

Answers are compared after normalization: SQuAD drops case, punctuation and English articles; CMRC drops case and a
fixed list of signs, and counts Chinese by the character. Of several true answers, the best match counts. SQuAD's F1
compares bags of words, CMRC's the longest common run of segments (its script says "lcs" and means a substring, not a
subsequence).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# CMRC 的脚本把 "……" 列为一项，但逐字符比较时永远不会命中单个 "…"，所以这里没有它
_CMRC_SIGNS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_NO_CMRC_SIGNS = str.maketrans("", "", "".join(_CMRC_SIGNS))
_CHINESE = re.compile("([\u4e00-\u9fa5])")
# NLTK 分词中在答案里常见的规则：标点单独成词，数字内的逗号不拆，缩写在撇号处分开
_SINGLE = r";@#$%&?!()\[\]{}<>\",–—‘«»„"
_WORD = re.compile(rf"\.{{2,}}|[{_SINGLE}]|(?:(?!\.{{2}})[^\s{_SINGLE}]|(?<=.),(?=[0-9]))+")
_CLITIC = re.compile(r"(.+?)(n't|'(?:s|m|d|ll|re|ve)?|(?<=^can)not)")


@dataclass(frozen=True)
class SpanScores:
    """How well each question is answered, [N] in [0, 1], and the means."""

    exact_matches: NDArray[np.float64]
    f1s: NDArray[np.float64]

    @property
    def exact_match(self) -> float:
        """The share of the answers that are exactly right."""
        return float(self.exact_matches.mean())

    @property
    def f1(self) -> float:
        """The mean F1."""
        return float(self.f1s.mean())


def squad_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, unanswerable: bool = False
) -> SpanScores:
    """Scores answers as the official scripts of SQuAD do (Rajpurkar et al. 2016, §6.1; 2018).

    A prediction is empty for "no answer"; a question has no true answers where its passage has none. `unanswerable`
    follows SQuAD 2.0, where an answer that normalizes to nothing counts as no answer and agreement on "no answer" is
    right; SQuAD 1.1 otherwise, where every question has an answer.
    """
    if unanswerable:
        # 2.0 的脚本先去掉归一化后为空的答案，一个不剩即为“无答案”
        answers = [[text for text in texts if normalize_answer(text)] or [""] for texts in answers]
    return _score(predictions, answers, _squad_exact, _squad_f1_with_none if unanswerable else _squad_f1)


def cmrc_scores(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> SpanScores:
    """Scores Chinese answers as the script of CMRC 2018 does (Cui et al. 2019, §4).

    Exact match compares what is left without punctuation; F1 counts the longest common run of Chinese characters and
    Latin words. The script splits what is not Chinese with NLTK; the rules here are those of its word tokenizer that
    matter inside an answer (numbers, clitics, brackets, a final period).
    """
    return _score(predictions, answers, _cmrc_exact, _cmrc_f1)


def best_null_threshold(scores: ArrayLike, null_scores: ArrayLike, has_answer: ArrayLike) -> tuple[float, float]:
    """Finds the threshold above which a question is better left unanswered (SQuAD 2.0's official search).

    Args:
        scores: [N], exact match or F1 of the best non-empty answer.
        null_scores: [N], how much the model prefers "no answer", higher for more.
        has_answer: [N], whether the question has an answer.

    Returns:
        The best mean score, and the threshold: a question is left unanswered where its null score is above it; minus
        infinity to leave all of them.
    """
    nulls, answerable = np.asarray(null_scores, dtype=np.float64), np.asarray(has_answer, dtype=bool)
    order = np.argsort(nulls, kind="stable")
    nulls = nulls[order]
    answerable = answerable[order]
    # 先全部不答（得分为无答案题数），再按 null 分从低到高逐题改为作答，累计得分的变化
    change = np.where(answerable, np.asarray(scores, dtype=np.float64)[order], -1.0)
    totals = np.cumsum(np.concatenate([[(~answerable).sum()], change]))
    # 分数相同的题只能一起作答：阈值落在并列之间没有意义
    usable = np.concatenate([[True], np.append(nulls[1:] != nulls[:-1], True)]) if len(nulls) else np.array([True])
    best = int(np.argmax(np.where(usable, totals, -np.inf)))
    return float(totals[best] / max(len(nulls), 1)), float(nulls[best - 1]) if best else float("-inf")


def normalize_answer(text: str) -> str:
    """Lowers, drops ASCII punctuation and English articles, and leaves single spaces, as SQuAD's scripts do."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def mixed_segments(text: str) -> list[str]:
    """Splits a text into Chinese characters and Latin words without CMRC's signs, in lower case."""
    segments: list[str] = []
    for part in _CHINESE.split(text.lower().strip().translate(_NO_CMRC_SIGNS)):
        segments.extend([part] if _CHINESE.fullmatch(part) else _latin_words(part))
    return segments


def _score(
    predictions: Sequence[str],
    answers: Sequence[Sequence[str]],
    exact: Callable[[str, str], float],
    f1: Callable[[str, str], float],
) -> SpanScores:
    pairs = list(zip(predictions, answers, strict=True))
    return SpanScores(
        *(
            np.array([max((rule(guess, text) for text in texts), default=0.0) for guess, texts in pairs])
            for rule in (exact, f1)
        )
    )


def _squad_exact(prediction: str, answer: str) -> float:
    return float(normalize_answer(prediction) == normalize_answer(answer))


def _squad_f1(prediction: str, answer: str) -> float:
    guess, true = normalize_answer(prediction).split(), normalize_answer(answer).split()
    same = (Counter(guess) & Counter(true)).total()
    return 2 * same / (len(guess) + len(true)) if same else 0.0


def _squad_f1_with_none(prediction: str, answer: str) -> float:
    guess, true = normalize_answer(prediction), normalize_answer(answer)
    return _squad_f1(guess, true) if guess and true else float(guess == true)


def _cmrc_exact(prediction: str, answer: str) -> float:
    guess, true = (text.lower().strip().translate(_NO_CMRC_SIGNS) for text in (prediction, answer))
    return float(guess == true)


def _cmrc_f1(prediction: str, answer: str) -> float:
    guess, true = mixed_segments(prediction), mixed_segments(answer)
    same = SequenceMatcher(None, guess, true, autojunk=False).find_longest_match().size
    return 2 * same / (len(guess) + len(true)) if same else 0.0


def _latin_words(text: str) -> list[str]:
    text = text.strip()
    # 只有整段末尾的句号单独成词，缩写和小数里的点不动
    ends = text.endswith(".") and not text.endswith("..")
    words: list[str] = []
    for word in _WORD.findall(text[:-1] if ends else text):
        clitic = _CLITIC.fullmatch(word)
        words.extend(clitic.groups() if clitic else [word])
    return [*words, "."] if ends else words
