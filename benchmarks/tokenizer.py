"""Measures the tokenizer's speed promises against `tokenizers` (Rust) and `transformers`, side by side.

Each promise is one row: both sides do the same work on the same text, their outputs are compared first, then they run
in turn for several rounds, so that a busy machine disturbs both. The table gives medians and the spread (lowest to
highest); the last line is the JSON list that `docs/benchmarks.md` is made from. One thread each, except where a row
says otherwise. `--quick` takes fewer rounds and less text; `--large` adds the 1 GB learning run (about ten minutes).
"""

from __future__ import annotations

import os

# 必须在导入 tokenizers 之前设定，否则它会用上所有核
os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import transformers
from rich.console import Console
from rich.table import Table

from bertsmith.data.reading.lines import read_lines
from bertsmith.tokenizer import WordPieceTokenizer
from real_data import DATA

ENGLISH_VOCAB = DATA / "vocab-uncased-30522.txt"
CHINESE_VOCAB = DATA / "vocab-chinese-21128.txt"
SENTENCE = "The old fox, who had lived in these woods all his life, quickly ran over the hill to find some water"


@dataclass
class Row:
    """One promise: the figures of both sides, higher is better unless the unit is a time."""

    name: str
    unit: str
    peer_name: str
    setting: str
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    def ratio(self) -> float:
        """How many times better we are, from the medians."""
        ours, peer = statistics.median(self.ours), statistics.median(self.peer)
        return peer / ours if self.unit in ("s", "µs", "s/s") else ours / peer

    def as_json(self) -> dict[str, Any]:
        """The object for the last line."""
        return {
            "name": self.name,
            "ours": round(statistics.median(self.ours), 3),
            "peer": round(statistics.median(self.peer), 3),
            "peer_name": self.peer_name,
            "ratio": round(self.ratio(), 2),
            "unit": self.unit,
            "setting": self.setting,
        }


def main() -> None:
    """Runs every measurement and prints the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, a quarter of the text")
    parser.add_argument("--large", action="store_true", help="also learn from 1 GB")
    options = parser.parse_args()
    rounds = 3 if options.quick else 5
    english, chinese = lines_of("corpus"), lines_of("corpus_zh")
    if options.quick:
        english = english[::4]
    console = Console(width=150)
    rows: list[Row] = []
    for step in (
        lambda: encoding(english, ENGLISH_VOCAB, "english", rounds),
        lambda: encoding(chinese, CHINESE_VOCAB, "chinese", rounds),
        lambda: aligning(english, ENGLISH_VOCAB, "english", rounds),
        lambda: aligning(chinese, CHINESE_VOCAB, "chinese", rounds),
        lambda: single_sentence(rounds),
        lambda: two_workers(english, 20 if options.quick else 100, min(rounds, 3)),
        lambda: learning(english, "quarter of 10 MB" if options.quick else "10 MB", rounds, compare=True),
        lambda: growth(1 if options.quick else 5),
        *((lambda: learning_large(english),) if options.large else ()),
    ):
        new = step()
        rows += new
        for row in new:
            console.print(f"{row.name}: {row.ratio():.2f}x", highlight=False)
    console.print(table(rows))
    print(json.dumps([row.as_json() for row in rows], ensure_ascii=False))


def lines_of(folder: str) -> list[str]:
    """Reads the lines of a folder of the shared data."""
    return [line for path in sorted((DATA / folder).rglob("*.txt")) for line in read_lines(path)]


def encoding(lines: list[str], vocab: Path, name: str, rounds: int) -> list[Row]:
    """Ids of many lines: with an empty cache, and once more."""
    peer = rust_tokenizer(vocab)
    same(
        WordPieceTokenizer.load(vocab).encode_batch(lines),
        [row.ids for row in peer.encode_batch(lines, add_special_tokens=False)],
    )
    size = megabytes(lines)
    setting = f"{size:.1f} MB in {len(lines):,} lines, one thread"
    what = "tokenizers encode_batch_fast"
    rows = [
        Row(f"{name} ids, {shape}, {state}", "MB/s", what, setting)
        for shape in ("lists", "arrays")
        for state in ("empty cache", "warm")
    ]
    for _ in range(rounds):
        speed = size / seconds(lambda: peer.encode_batch_fast(lines, add_special_tokens=False))
        for shape in (0, 2):
            ours = WordPieceTokenizer.load(vocab)
            encode = ours.encode_flat if shape else ours.encode_batch
            rows[shape].ours.append(size / seconds(partial(encode, lines)))
            rows[shape + 1].ours.append(size / seconds(partial(encode, lines)))
        for row in rows:
            row.peer.append(speed)
    return rows


def aligning(lines: list[str], vocab: Path, name: str, rounds: int) -> list[Row]:
    """Ids, offsets and word ids of many lines, as arrays; the peer's objects are not even read."""
    peer = rust_tokenizer(vocab)
    flat = WordPieceTokenizer.load(vocab).align_flat(lines[:20_000])
    expected = peer.encode_batch(lines[:20_000], add_special_tokens=False)
    same(flat.ids, [index for row in expected for index in row.ids])
    same(np.stack([flat.starts, flat.ends], axis=1), [pair for row in expected for pair in row.offsets])
    same(flat.word_ids, [word for row in expected for word in row.word_ids])
    size = megabytes(lines)
    setting = f"{size:.1f} MB in {len(lines):,} lines, one thread"
    what = "tokenizers encode_batch"
    cold, warm = (Row(f"{name} offsets and words, {state}", "MB/s", what, setting) for state in ("empty cache", "warm"))
    for _ in range(rounds):
        speed = size / seconds(lambda: peer.encode_batch(lines, add_special_tokens=False))
        ours = WordPieceTokenizer.load(vocab)
        cold.ours.append(size / seconds(partial(ours.align_flat, lines)))
        warm.ours.append(size / seconds(partial(ours.align_flat, lines)))
        for row in (cold, warm):
            row.peer.append(speed)
    return [cold, warm]


def single_sentence(rounds: int) -> list[Row]:
    """One short sentence, as a server sees it."""
    ours, peer = WordPieceTokenizer.load(ENGLISH_VOCAB), rust_tokenizer(ENGLISH_VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        ours.save(folder)
        fast = transformers.BertTokenizerFast.from_pretrained(folder)
    same(ours.encode(SENTENCE), peer.encode(SENTENCE, add_special_tokens=False).ids)
    expected = fast(SENTENCE, SENTENCE, return_offsets_mapping=True)
    got = ours(SENTENCE, SENTENCE)
    same(got["input_ids"], expected["input_ids"])
    same(got["offsets"], expected["offset_mapping"])
    words = len(SENTENCE.split())
    ids = Row("one sentence, ids", "µs", "tokenizers encode", f"{words} words, warm")
    pair = Row("one pair with offsets", "µs", "BertTokenizerFast", f"twice {words} words, warm")
    for _ in range(rounds):
        ids.ours.append(microseconds(lambda: ours.encode(SENTENCE), 5000))
        ids.peer.append(microseconds(lambda: peer.encode(SENTENCE, add_special_tokens=False), 1000))
        pair.ours.append(microseconds(lambda: ours(SENTENCE, SENTENCE), 1000))
        pair.peer.append(microseconds(lambda: fast(SENTENCE, SENTENCE, return_offsets_mapping=True), 300))
    return [ids, pair]


def two_workers(lines: list[str], target: float, rounds: int) -> list[Row]:
    """The same corpus over one and two processes; here the peer is ourselves."""
    repeated = lines * max(1, round(target / megabytes(lines)))
    size = megabytes(repeated)
    ours = WordPieceTokenizer.load(ENGLISH_VOCAB)
    row = Row("two workers", "MB/s", "one worker", f"encode_stream of {size:.0f} MB, two cores")

    def run(workers: int) -> int:
        return sum(len(part.ids) for part in ours.encode_stream(repeated, workers=workers))

    same([run(1)], [run(2)])
    for _ in range(rounds):
        row.peer.append(size / seconds(lambda: run(1)))
        row.ours.append(size / seconds(lambda: run(2)))
    return [row]


def learning(lines: list[str], what: str, rounds: int, *, compare: bool) -> list[Row]:
    """30,522 pieces from files to `vocab.txt`, two processes against two threads; and how well the pieces compress."""
    held_out, train = lines[::20], [line for number, line in enumerate(lines) if number % 20]
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        text.write_text("\n".join(train), encoding="utf-8")
        return learn_file(text, held_out, what, rounds, compare=compare)


def learning_large(lines: list[str]) -> list[Row]:
    """The same from 1 GB: the corpus over and over, each time with a quarter of its lines altered in one word."""
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        with text.open("w", encoding="utf-8") as file:
            size, copy = 0, 0
            while size < 1e9:
                size += sum(file.write(f"{line}\n") for line in edited(lines, random.Random(copy)))
                copy += 1
        return learn_file(text, lines[::20], "1 GB", 1, compare=False)


def edited(lines: Sequence[str], draw: random.Random) -> Iterator[str]:
    """Changes a letter of a word in a quarter of the lines."""
    for line in lines:
        words = line.split(" ")
        place = draw.randrange(len(words))
        word = words[place]
        if len(word) > 2 and draw.random() < 0.25:
            letter = draw.randrange(len(word))
            words[place] = word[:letter] + draw.choice("etaoinshrdlu") + word[letter + 1 :]
        yield " ".join(words)


def learn_file(text: Path, held_out: list[str], what: str, rounds: int, *, compare: bool) -> list[Row]:
    """Learns from one file, both sides in turn."""
    speed = Row(f"learning, {what}", "s", "tokenizers train", "30,522 pieces to vocab.txt, two cores")
    # Rayon 的线程数在进程里只能定一次，所以对手在子进程中以两线程运行
    for _ in range(rounds):
        speed.peer.append(peer_learning(text))
        speed.ours.append(seconds(lambda: our_learning(text)))
    rows = [speed]
    if compare:
        pieces = Row("pieces per word, held out", "pieces", "tokenizers", f"vocabularies of the same size from {what}")
        words = sum(len(line.split()) for line in held_out)
        ours = WordPieceTokenizer.load(text.parent / "ours")
        peer = rust_tokenizer(text.parent / "vocab.txt")
        encoded = peer.encode_batch(held_out, add_special_tokens=False)
        # 倒过来记，使“越大越好”：每个片段覆盖多少个词
        pieces.unit = "words/piece"
        pieces.ours.append(words / sum(map(len, ours.encode_batch(held_out))))
        pieces.peer.append(words / sum(len(row.ids) for row in encoded))
        rows.append(pieces)
    return rows


def our_learning(text: Path) -> None:
    """Learns from a file as `bertsmith vocab` does."""
    WordPieceTokenizer.train(read_lines(text), vocab_size=30522, workers=2).save(text.parent / "ours")


def peer_learning(text: Path) -> float:
    """Learns with `tokenizers` in a process of its own with two threads; returns the seconds it took."""
    script = (
        "import sys, time, tokenizers\n"
        "start = time.perf_counter()\n"
        "trainer = tokenizers.BertWordPieceTokenizer(lowercase=True)\n"
        "trainer.train([sys.argv[1]], vocab_size=30522, show_progress=False)\n"
        "trainer.save_model(sys.argv[2])\n"
        "print(time.perf_counter() - start)\n"
    )
    environment = {**os.environ, "RAYON_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(text), str(text.parent)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def growth(millions: int) -> list[Row]:
    """Hostile text: does twice the text take twice the time? A ratio near 1 says so; 0.5 would be quadratic."""
    rows = []
    for name, char in (("one word", "a"), ("punctuation only", "!"), ("CJK only", "北"), ("accents only", "é")):
        row = Row(f"growth, {name}", "s/s", "a straight line", f"{millions} and {2 * millions} million characters")
        for _ in range(3):
            ours = WordPieceTokenizer.load(ENGLISH_VOCAB)
            half, whole = (seconds(partial(ours.encode, char * (10**6 * size))) for size in (millions, 2 * millions))
            row.ours.append(whole)
            row.peer.append(2 * half)
        rows.append(row)
    return rows


def rust_tokenizer(vocab: Path) -> tokenizers.Tokenizer:
    """The reference tokenizer."""
    tokenizer: tokenizers.Tokenizer = tokenizers.BertWordPieceTokenizer(str(vocab))._tokenizer
    return tokenizer


def seconds(work: Callable[[], object]) -> float:
    """Times one call; what it returns is freed after the clock has stopped."""
    start = time.perf_counter()
    result = work()
    taken = time.perf_counter() - start
    del result
    return taken


def microseconds(work: Callable[[], object], times: int) -> float:
    """Times a short call by repeating it."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times * 1e6


def megabytes(lines: Sequence[str]) -> float:
    """The size of the text in MB of UTF-8."""
    return sum(len(line.encode("utf-8", "surrogatepass")) + 1 for line in lines) / 1e6


def same(ours: Any, peer: Any) -> None:
    """Refuses to time two things that do not do the same."""
    equal = np.array_equal(ours, peer) if isinstance(ours, np.ndarray) else ours == peer
    if not equal:
        raise SystemExit("the outputs differ; a comparison of speed would mean nothing")


def table(rows: Sequence[Row]) -> Table:
    """The rows as people read them: medians with the lowest and the highest value."""
    made = Table("what", "ours", "peer", "ratio", "unit", "against", "setting", box=None, header_style="bold")
    for row in rows:
        cells = (
            f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})" for values in (row.ours, row.peer)
        )
        made.add_row(row.name, *cells, f"{row.ratio():.2f}x", row.unit, row.peer_name, row.setting)
    return made


if __name__ == "__main__":
    main()
