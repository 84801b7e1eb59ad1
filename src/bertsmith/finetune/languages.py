"""Which scripts and which languages texts are in, as shares.

Scripts are counted letter by letter, by their Unicode names. Languages are identified by py3langid (Lui and Baldwin
2012, "langid.py", retrained): naive Bayes over runs of bytes. A text of two languages counts for its main one.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

WITHOUT_SPACES = ("Chinese", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar")
"""Scripts whose words have no spaces between them."""
_SCRIPT_LETTERS = 200_000
_TEXTS, _LETTERS = 1000, 500
"""Texts whose language is identified, spread evenly, and characters that are read of each."""
_SURE = 0.2
"""Least probability of a language, among 139; `great product` has 0.45, `ok` 0.01."""
_SHOWN = 1 / 200


def scripts_in(texts: Iterable[str]) -> dict[str, float]:
    """Returns the share of each script among the first letters of texts, the largest first, by their Unicode names."""
    letters = Counter[str]()
    seen = 0
    for text in texts:
        letters.update(text[: _SCRIPT_LETTERS - seen])
        seen += len(text)
        if seen >= _SCRIPT_LETTERS:
            break
    scripts = Counter[str]()
    for letter, count in letters.items():
        # 微号是希腊字母，修饰字母不属于哪种文字
        letter = unicodedata.normalize("NFKC", letter)[0]
        if letter.isalpha() and unicodedata.category(letter) != "Lm":
            word = unicodedata.name(letter, "unknown").split()[0]
            scripts["Chinese" if word == "CJK" else word.capitalize()] += count
    total = scripts.total()
    return {script: count / total for script, count in scripts.most_common(6) if count >= total / 2000}


def languages_in(texts: Sequence[str]) -> dict[str, float]:
    """Returns the share of each language in the characters of texts, the largest first, by its code of ISO 639.

    `other` is what is no language, cannot be told, or is less than half of a hundredth.

    Raises:
        ModuleNotFoundError: py3langid is not installed.
    """
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_SURE)
    counts = Counter[str]()
    for number in range(min(_TEXTS, len(texts))):
        # 各处均匀地取：合并起来的文件，前一半和后一半常是两种语言
        text = texts[number * len(texts) // min(_TEXTS, len(texts))][:_LETTERS]
        language, _ = identifier.classify(text)
        # 吴语的书面语与中文几乎同形，短句常被认成它
        counts[{"wuu": "zh", "und": "other", "zxx": "other"}.get(language, language)] += len(text)
    total = counts.total()
    found = {name: count / total for name, count in counts.most_common() if count >= _SHOWN * total and name != "other"}
    rest = 1 - sum(found.values())
    return found | ({"other": rest} if rest >= _SHOWN else {})
