"""The learning rate over time, and how much text the paper's steps read (A.2)."""

from __future__ import annotations

from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.train.optimizer import learning_rate_at

BOOKS_WORDS, WIKIPEDIA_WORDS = 800_000_000, 2_500_000_000
"""The corpora of §3.1: BooksCorpus (Zhu et al. 2015) and the running text of English Wikipedia."""

PEAK, BATCH, LENGTH, CORPUS_WORDS = 1e-4, 256, 512, BOOKS_WORDS + WIKIPEDIA_WORDS
"""What A.2 states: the highest rate, sequences in a batch, tokens in a sequence, words in books and Wikipedia."""

SHORT, SHORT_SHARE = 128, 0.9
"""The length of the first steps, and their share."""


def schedule(*, id: str, title: str, language: Language, steps: int, warmup: int) -> Computation:
    """Follows the rate from the first step to the last.

    Raises:
        InputError: the warm-up is longer than the run.
    """
    if warmup > steps:
        raise InputError(f"warmup {warmup} is longer than the run of {steps} steps")
    places = [0, warmup // 2, warmup, warmup + (steps - warmup) // 2, steps - 1]
    rates = {
        step: learning_rate_at(step, peak=PEAK, warmup_steps=warmup, total_steps=steps)
        for step in sorted({max(0, place) for place in places})
    }
    tokens = BATCH * LENGTH * steps
    # 词数按词数算、词片按词片算：一个词常常不止一个词片，所以这是遍数的上界
    passes = tokens / CORPUS_WORDS
    saved = 1 - (SHORT_SHARE * SHORT + (1 - SHORT_SHARE) * LENGTH) / LENGTH

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    table = [(step, f"{rate:.2e}") for step, rate in rates.items()]
    text: list[tuple[str, str, int | str]] = [
        (say("tokens in a batch", "每批词元数"), f"{BATCH} · {LENGTH}", BATCH * LENGTH),
        (say("tokens in the run", "全程词元数"), f"· {steps:,}", tokens),
        (say("passes over the corpus, at most", "读语料的遍数，至多"), f"/ {CORPUS_WORDS:,}", f"{passes:.1f}"),
        (say("tokens saved by short sequences", "短序列省下的词元"), "", f"{saved:.1%}"),
    ]
    shown = (
        Step(say("learning rate", "学习率"), table, columns=tuple(say("step|rate", "步|学习率").split("|"))),
        Step(
            say("text read", "读了多少文本"), text, columns=tuple(say("what|how|number", "项目|算法|数值").split("|"))
        ),
    )
    values = {
        "peak": max(rates.values()),
        "first": rates[0],
        "last": list(rates.values())[-1],
        "steps": steps,
        "warmup": warmup,
        "warmup_share": warmup / steps,
        "batch_tokens": BATCH * LENGTH,
        "tokens": tokens,
        "passes": passes,
        "saved": saved,
        "short": SHORT,
        "long": LENGTH,
        "short_share": SHORT_SHARE,
    }
    return Computation(id, title, shown, values)
