"""The baseline of tagging: every word gets the tag that it had most often in training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertsmith.finetune.baselines.scores_file import add_scores
from bertsmith.finetune.datasets.tagged import TaggedWords
from bertsmith.finetune.tasks.task import Evaluation, Task
from bertsmith.inference.tag import WordTags

NAME = "most frequent tag"


def add_tagging_baseline(
    run: str | Path,
    task: Task[TaggedWords, WordTags],
    train: Sequence[TaggedWords],
    dev: Sequence[TaggedWords],
    test: Sequence[TaggedWords] | None,
) -> dict[str, Evaluation]:
    """Scores `most_frequent_tags` on the test file, or on dev where there is none; keeps it in `baselines.json`."""
    examples = dev if test is None else test

    def score(_missing: Sequence[str]) -> Iterator[tuple[str, Evaluation]]:
        found = most_frequent_tags(train, [example.words for example in examples])
        yield NAME, task.evaluate(examples, found)

    return add_scores(Path(run), "dev" if test is None else "test", [NAME], score, seed=0)


def most_frequent_tags(train: Sequence[TaggedWords], sentences: Sequence[Sequence[str]]) -> list[WordTags]:
    """Tags every word as it was tagged most often in training; words that did not occur get the commonest tag.

    Args:
        train: tagged sentences, at least one.
        sentences: the words of other sentences.

    Returns:
        For each sentence the tags, of equally frequent ones the first in the alphabet, and how often each was right in
        training.
    """
    by_word: dict[str, Counter[str]] = {}
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    default = _commonest(sum(by_word.values(), Counter[str]()))
    commonest = {word: _commonest(counts) for word, counts in by_word.items()}
    found = [[commonest.get(word, default) for word in words] for words in sentences]
    return [WordTags(tuple(tag for tag, _ in words), tuple(share for _, share in words)) for words in found]


def _commonest(counts: Counter[str]) -> tuple[str, float]:
    tag = min(counts, key=lambda tag: (-counts[tag], tag))
    return tag, counts[tag] / counts.total()
