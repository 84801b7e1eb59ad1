"""Counting the words of a corpus: streaming, over several processes, in bounded memory, and exact.

Raw chunks are counted first, in C; the rules for words run once per distinct chunk of a batch. Sums do not depend on
who counted what, so neither does the vocabulary. Where the distinct words are too many for the memory, the counts so
far go to sorted files, which are merged at the end. Throwing rare words away on the fly would be simpler, but then the
result would depend on the order of the texts.
"""

import heapq
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from bertsmith.errors import RunFolderError
from bertsmith.parallel import parallel_map
from bertsmith.tokenizer.encoding import split_batches
from bertsmith.tokenizer.lookup import ChunkCache
from bertsmith.tokenizer.normalize import Normalizer
from bertsmith.tokenizer.settings import WrittenTokens

# 内存中最多这么多个不同的词，超过就写盘；每个约 200 字节
MAX_WORDS = 1 << 20
# 一次归并的文件数：进程能同时打开的文件约一千个，有的系统只有 256 个
_MERGED_RUNS = 64
_BATCH_CHARS = 1 << 22
_CACHE_CAPACITY = 3 << 20


class WordCounts(NamedTuple):
    """The words of a text of `chars` characters and, apart, the `long_words` of more than `max_word_chars` characters.

    `parts` counts the stretches of that length that these are cut into.
    """

    chars: int
    words: dict[str, int]
    parts: dict[str, int]
    long_words: int
    long_chars: int


def count_words(
    texts: Iterable[str],
    normalizer: Normalizer,
    *,
    workers: int = 1,
    max_word_chars: int = 100,
    user_tokens: tuple[str, ...] = (),
    on_text: Callable[[int], None] | None = None,
) -> WordCounts:
    """Counts the normalised words of a corpus, in one pass; longer ones than `max_word_chars` apart, in parts.

    Any cut of the texts gives the same counts as long as no word is cut. Of more than `MAX_WORDS` distinct words the
    most frequent ones are kept (ties broken by the text of the word), counted exactly.
    """
    counter = _BatchCounter(normalizer, max_word_chars, user_tokens)
    done = long_words = long_chars = 0
    with tempfile.TemporaryDirectory(prefix="bertsmith-words-") as folder:
        totals, parts = (_Totals(Path(folder), name) for name in ("words", "parts"))
        for batch in parallel_map(counter, split_batches(texts, _BATCH_CHARS), workers=workers):
            totals.add(batch.words)
            parts.add(batch.parts)
            done += batch.chars
            long_words += batch.long_words
            long_chars += batch.long_chars
            if on_text is not None:
                on_text(done)
        return WordCounts(done, totals.result(), parts.result(), long_words, long_chars)


class _BatchCounter:
    """Counts the words of a batch; a picklable function with a memory of its own in every process."""

    def __init__(self, normalizer: Normalizer, max_word_chars: int, user_tokens: tuple[str, ...]) -> None:
        self._settings = (normalizer, max_word_chars, user_tokens)
        self._normalizer = normalizer
        self._max_word_chars = max_word_chars
        self._written = WrittenTokens(dict.fromkeys(user_tokens, 0)) if user_tokens else None
        self._words = ChunkCache(lambda chunk: tuple(normalizer.words(chunk)), _CACHE_CAPACITY)

    def __reduce__(self) -> tuple[type["_BatchCounter"], tuple[Normalizer, int, tuple[str, ...]]]:
        return _BatchCounter, self._settings

    def __call__(self, texts: list[str]) -> WordCounts:
        stretches: Iterable[str] = texts
        if self._written is not None:
            stretches = chain.from_iterable(map(self._written.stretches, texts))
        # 先在 C 里数原始块，再对每个不同的块取一次词
        chunks = Counter(chain.from_iterable(map(self._normalizer.chunks, stretches)))
        counts: dict[str, int] = {}
        parts: Counter[str] = Counter()
        long_words = long_chars = 0
        lookup, known, most = self._words.__getitem__, counts.get, self._max_word_chars
        for chunk, count in chunks.items():
            words = lookup(chunk)
            # 块不长，词就不会长：绝大多数块不必逐词量
            if len(chunk) > most // 4:
                for word in (word for word in words if len(word) > most):
                    for at in range(0, len(word), most):
                        parts[word[at : at + most]] += count
                    long_words, long_chars = long_words + count, long_chars + count * len(word)
                words = tuple(word for word in words if len(word) <= most)
            for word in words:
                counts[word] = known(word, 0) + count
        return WordCounts(sum(map(len, texts)), counts, dict(parts), long_words, long_chars)


class _Totals:
    """The sums of many counts: in memory as long as there is room, else in sorted files, never approximate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._words: dict[str, int] = {}
        # 第 n 层的每个文件由 64 个上一层的文件归并而成：每个词只重写几遍，而不是每次归并都从头写
        self._levels: list[list[Path]] = []
        self._written = 0

    def add(self, counts: dict[str, int]) -> None:
        words, known = self._words, self._words.get
        for word, count in counts.items():
            words[word] = known(word, 0) + count
        if len(words) > MAX_WORDS:
            self._write_words()

    def result(self) -> dict[str, int]:
        if not self._levels:
            return self._words
        self._write_words()
        runs = list(chain.from_iterable(self._levels))
        # 读两遍：先统计每种词频有多少个词，定出门槛；再取过线的词。内存里只放得下的那些才会出现
        tally = Counter(count for _, count in _merged(runs))
        room = MAX_WORDS
        threshold = 0
        for count in sorted(tally, reverse=True):
            if tally[count] > room:
                threshold = count
                break
            room -= tally[count]
        kept: dict[str, int] = {}
        for word, count in _merged(runs):
            # 门槛上同频的词按文本先后取（文件已排序），结果与读入顺序无关
            if count > threshold or (count == threshold and room > 0):
                room -= count == threshold
                kept[word] = count
        return kept

    def _write_words(self) -> None:
        self._write_run(0, ((word, self._words[word]) for word in sorted(self._words)))
        self._words.clear()

    def _write_run(self, level: int, counts: Iterable[tuple[str, int]]) -> None:
        """Writes a sorted file; the last of as many as are merged merges them into one of the next level."""
        run = self._folder / f"{self._name}-{self._written}.tsv"
        self._written += 1
        try:
            with run.open("w", encoding="utf-8", errors="surrogatepass", newline="\n") as file:
                file.writelines(f"{word}\t{count}\n" for word, count in counts)
        except OSError as error:
            raise RunFolderError(
                f"{self._folder}: word counts cannot be written ({error.strerror}); make room, or set TMPDIR"
            ) from error
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(run)
        # 逐级合并：同时打开的文件数有界，每个词只被重写对数次
        if len(self._levels[level]) == _MERGED_RUNS:
            runs, self._levels[level] = self._levels[level], []
            self._write_run(level + 1, _merged(runs))
            for merged in runs:
                merged.unlink()


def _merged(runs: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Yields every word of sorted files once, in the order of the text, with the sum of its counts."""
    with ExitStack() as stack:
        # 词里不会有空白，所以制表符与换行可以放心用作分隔
        files = [
            map(_parse, stack.enter_context(run.open(encoding="utf-8", errors="surrogatepass", newline="\n")))
            for run in runs
        ]
        for word, group in groupby(heapq.merge(*files), key=itemgetter(0)):
            yield word, sum(count for _, count in group)


def _parse(line: str) -> tuple[str, int]:
    word, _, count = line.rpartition("\t")
    return word, int(count)
