"""The tokenizer against `tokenizers` (Rust) and `transformers`: encoding, offsets, single sentences, learning.

All sides do the same work on the same text, their outputs are compared first, then they run in turn for several rounds,
so that a busy machine disturbs all. Rows with one thread and with two: the peer's Rust threads against our processes.

- people: `encode_batch`, which keeps offsets, words and masks of everything
- expert: `encode_batch_fast`, which keeps no offsets; with offsets there is no faster way than `encode_batch`

`--large` adds learning from 1 GB (about ten minutes).

    python benchmarks/tokenizer.py [--quick] [--large]
"""

from __future__ import annotations

import os

# 必须在导入 tokenizers 之前设定，否则它会用上所有核；两线程的行在子进程里量
os.environ["RAYON_NUM_THREADS"] = os.environ.get("BENCH_RAYON_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = str(os.environ["RAYON_NUM_THREADS"] != "1").lower()

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import transformers

from bertsmith.data.reading.lines import read_lines
from bertsmith.tokenizer import WordPieceTokenizer
from measured import Results, Row, add_options, results_of
from real_data import DATA
from side_by_side import EXPERT, OURS, PEOPLE, rounds_of
from tables import print_table

ENGLISH_VOCAB = DATA / "vocab-uncased-30522.txt"
CHINESE_VOCAB = DATA / "vocab-chinese-21128.txt"
SENTENCE = "The old fox, who had lived in these woods all his life, quickly ran over the hill to find some water"
LIBRARY = f"tokenizers {tokenizers.__version__}"
WAYS = {PEOPLE: "encode_batch", EXPERT: "encode_batch_fast"}
PEERS = {who: f"{LIBRARY} {way}" for who, way in WAYS.items()}


def main() -> None:
    """Measures what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, threads=2)
    parser.add_argument("--large", action="store_true", help="also learn from 1 GB")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "TIMES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(peer_rates(options.child[0], int(options.child[1]))))
        return
    rounds = 1 if options.quick else 5
    english, chinese = lines_of("corpus"), lines_of("corpus_zh")
    if options.quick:
        english, chinese = english[::40], chinese[::10]
    one, two = results_of("tokenizer", options), results_of("tokenizer", options)
    one.key["threads"], two.key["threads"] = 1, 2
    rows: list[Row] = []
    for name, lines, vocab in (("English", english, ENGLISH_VOCAB), ("Chinese", chinese, CHINESE_VOCAB)):
        size = round(megabytes(lines), 1)
        for what, work in (
            ("arrays, empty cache", partial(encoding, flat=True, warm=False)),
            ("arrays, warm cache", partial(encoding, flat=True, warm=True)),
            ("lists, empty cache", partial(encoding, flat=False, warm=False)),
            ("offsets and words, empty cache", partial(aligning, warm=False)),
            ("offsets and words, warm cache", partial(aligning, warm=True)),
        ):
            rows.append(one.get({"name": f"{name} to {what}", "mb": size}, partial(work, lines, vocab, rounds)))
    copies = 1 if options.quick else 9
    rows.append(
        two.get({"name": "English to arrays, two cores"}, partial(two_workers, english, copies, min(rounds, 3)))
    )
    rows += single_sentence(one, rounds)
    rows.append(two.get({"name": "learning 30,522 pieces, two cores"}, partial(learning, english, min(rounds, 3))))
    rows.append(one.get({"name": "words per piece of the learned, held out"}, partial(compression, english)))
    for name, letter in (("one word", "a"), ("punctuation", "!"), ("Chinese", "北"), ("accents", "é")):
        millions = 1 if options.quick else 5
        growing = {"name": f"twice the text in twice the time: {name}", "millions": millions}
        rows.append(one.get(growing, partial(growth, letter, millions)))
    if options.large:
        rows.append(two.get({"name": "learning from 1 GB, two cores"}, partial(learning_large, english)))
    print_table(rows)


def lines_of(folder: str) -> list[str]:
    """Reads the lines of a folder of the shared data."""
    return [line for path in sorted((DATA / folder).rglob("*.txt")) for line in read_lines(path)]


def encoding(lines: list[str], vocab: Path, rounds: int, *, flat: bool, warm: bool) -> dict[str, Any]:
    """Ids of many lines, as one array or as lists, with an empty cache or once more."""
    peer = rust_tokenizer(vocab)
    expected = [row.ids for row in peer.encode_batch(lines, add_special_tokens=False)]
    same(WordPieceTokenizer.load(vocab).encode_batch(lines), expected)
    size = megabytes(lines)
    rates: dict[str, list[float]] = {OURS: [], PEOPLE: [], EXPERT: []}
    for _ in range(rounds):
        ours = WordPieceTokenizer.load(vocab)
        encode = ours.encode_flat if flat else ours.encode_batch
        if warm:
            encode(lines)
        rates[OURS].append(size / seconds(partial(encode, lines)))
        for who, way in WAYS.items():
            rates[who].append(size / seconds(partial(getattr(peer, way), lines, add_special_tokens=False)))
    return rounds_of(rates, peers=PEERS, unit="MB/s")


def aligning(lines: list[str], vocab: Path, rounds: int, *, warm: bool) -> dict[str, Any]:
    """Ids, offsets and word ids of many lines, as arrays; the peer's objects are not even read."""
    peer = rust_tokenizer(vocab)
    flat = WordPieceTokenizer.load(vocab).align_flat(lines[:20_000])
    expected = peer.encode_batch(lines[:20_000], add_special_tokens=False)
    same(flat.ids, [index for row in expected for index in row.ids])
    same(np.stack([flat.starts, flat.ends], axis=1), [pair for row in expected for pair in row.offsets])
    same(flat.word_ids, [word for row in expected for word in row.word_ids])
    size = megabytes(lines)
    rates: dict[str, list[float]] = {OURS: [], EXPERT: []}
    for _ in range(rounds):
        ours = WordPieceTokenizer.load(vocab)
        if warm:
            ours.align_flat(lines)
        rates[OURS].append(size / seconds(partial(ours.align_flat, lines)))
        rates[EXPERT].append(size / seconds(lambda: peer.encode_batch(lines, add_special_tokens=False)))
    return rounds_of(rates, peers={EXPERT: PEERS[PEOPLE]}, unit="MB/s")


def single_sentence(results: Results, rounds: int) -> list[Row]:
    """One short sentence, as a server sees it; and a pair with offsets."""
    ours, peer = WordPieceTokenizer.load(ENGLISH_VOCAB), rust_tokenizer(ENGLISH_VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        ours.save(folder)
        fast = transformers.BertTokenizerFast.from_pretrained(folder)
    same(ours.encode(SENTENCE), peer.encode(SENTENCE, add_special_tokens=False).ids)
    expected = fast(SENTENCE, SENTENCE, return_offsets_mapping=True)
    got = ours(SENTENCE, SENTENCE)
    same(got["input_ids"], expected["input_ids"])
    same(got["offsets"], expected["offset_mapping"])
    people = f"transformers {transformers.__version__} BertTokenizerFast"

    def ids() -> dict[str, Any]:
        work: dict[str, Callable[[], object]] = {
            OURS: lambda: ours.encode(SENTENCE),
            PEOPLE: lambda: fast(SENTENCE, add_special_tokens=False),
            EXPERT: lambda: peer.encode(SENTENCE, add_special_tokens=False),
        }
        return rounds_of(microseconds(work, rounds), peers={PEOPLE: people, EXPERT: f"{LIBRARY} encode"}, unit="µs")

    def pairs() -> dict[str, Any]:
        work: dict[str, Callable[[], object]] = {
            OURS: lambda: ours(SENTENCE, SENTENCE),
            PEOPLE: lambda: fast(SENTENCE, SENTENCE, return_offsets_mapping=True),
            EXPERT: lambda: peer.encode(SENTENCE, SENTENCE),
        }
        return rounds_of(microseconds(work, rounds), peers={PEOPLE: people, EXPERT: f"{LIBRARY} encode"}, unit="µs")

    words = len(SENTENCE.split())
    return [
        results.get({"name": f"one sentence of {words} words, ids"}, ids),
        results.get({"name": f"a pair of twice {words} words, with offsets"}, pairs),
    ]


def two_workers(lines: list[str], copies: int, rounds: int) -> dict[str, Any]:
    """The corpus over and over on two cores: two processes of ours against two threads of the peer's."""
    repeated = lines * copies
    size = megabytes(repeated)
    ours = WordPieceTokenizer.load(ENGLISH_VOCAB)

    def run(workers: int) -> int:
        return sum(len(part.ids) for part in ours.encode_stream(repeated, workers=workers))

    same([run(1)], [run(2)])
    rates: dict[str, list[float]] = {OURS: [], PEOPLE: [], EXPERT: []}
    environment = {**os.environ, "BENCH_RAYON_THREADS": "2"}
    for _ in range(rounds):
        rates[OURS].append(size / seconds(lambda: run(2)))
        for who, way in WAYS.items():
            command = [sys.executable, __file__, "--child", way, str(copies)]
            # Rayon 的线程数在进程里只能定一次，所以对手在子进程中以两线程运行；导入与读文件不算在内
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            rates[who].append(float(done.stdout))
    return rounds_of(rates, peers={who: f"{name}, two threads" for who, name in PEERS.items()}, unit="MB/s")


def peer_rates(way: str, copies: int) -> float:
    """Returns the MB/s of the peer with the threads of this process."""
    lines = lines_of("corpus")
    lines = lines[::40] if copies == 1 else lines
    peer = rust_tokenizer(ENGLISH_VOCAB)
    encode = getattr(peer, way)
    encode(lines[:1000], add_special_tokens=False)
    # 一份一份地编码：对手的对象很大，全留着会把内存用尽
    return (
        megabytes(lines)
        * copies
        / sum(seconds(partial(encode, lines, add_special_tokens=False)) for _ in range(copies))
    )


def learning(lines: list[str], rounds: int) -> dict[str, Any]:
    """30,522 pieces from a file to `vocab.txt`, two processes against two threads."""
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        text.write_text("\n".join(lines), encoding="utf-8")
        return learn_file(text, rounds)


def learning_large(lines: list[str]) -> dict[str, Any]:
    """The same from 1 GB: the corpus over and over, each time with a quarter of its lines altered in one word."""
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        with text.open("w", encoding="utf-8") as file:
            size, copy = 0, 0
            while size < 1e9:
                size += sum(file.write(f"{line}\n") for line in edited(lines, random.Random(copy)))
                copy += 1
        return learn_file(text, 1)


def learn_file(text: Path, rounds: int) -> dict[str, Any]:
    """Learns from one file, both sides in turn."""
    times: dict[str, list[float]] = {OURS: [], EXPERT: []}
    for _ in range(rounds):
        times[EXPERT].append(peer_learning(text, threads=2))
        times[OURS].append(seconds(lambda: our_learning(text)))
    return rounds_of(times, peers={EXPERT: f"{LIBRARY} train, two threads"})


def compression(lines: list[str]) -> dict[str, Any]:
    """How many words of held-out text a piece covers, with vocabularies of the same size from the same text."""
    held_out, train = lines[::20], [line for number, line in enumerate(lines) if number % 20]
    with tempfile.TemporaryDirectory() as name:
        text = Path(name) / "text.txt"
        text.write_text("\n".join(train), encoding="utf-8")
        peer_learning(text, threads=1)
        our_learning(text)
        ours = WordPieceTokenizer.load(Path(name) / "ours")
        peer = rust_tokenizer(Path(name) / "vocab.txt")
    words = sum(len(line.split()) for line in held_out)
    pieces = sum(map(len, ours.encode_batch(held_out)))
    theirs = sum(len(row.ids) for row in peer.encode_batch(held_out, add_special_tokens=False))
    found = {OURS: [words / pieces], EXPERT: [words / theirs]}
    return rounds_of(found, peers={EXPERT: LIBRARY}, unit="words/piece")


def growth(letter: str, millions: int) -> dict[str, Any]:
    """Hostile text: does twice the text take twice the time? The peer is a straight line through the half."""
    times: dict[str, list[float]] = {OURS: [], EXPERT: []}
    for _ in range(3):
        ours = WordPieceTokenizer.load(ENGLISH_VOCAB)
        half, whole = (seconds(partial(ours.encode, letter * (10**6 * size))) for size in (millions, 2 * millions))
        times[OURS].append(whole)
        times[EXPERT].append(2 * half)
    return rounds_of(times, peers={EXPERT: f"twice the time of {millions} million characters"})


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


def our_learning(text: Path) -> None:
    """Learns from a file as `bertsmith vocab` does."""
    WordPieceTokenizer.train(read_lines(text), vocab_size=30522, workers=2).save(text.parent / "ours")


def peer_learning(text: Path, *, threads: int) -> float:
    """Learns with `tokenizers` in a process of its own; returns the seconds it took."""
    script = (
        "import sys, time, tokenizers\n"
        "start = time.perf_counter()\n"
        "trainer = tokenizers.BertWordPieceTokenizer(lowercase=True)\n"
        "trainer.train([sys.argv[1]], vocab_size=30522, show_progress=False)\n"
        "trainer.save_model(sys.argv[2])\n"
        "print(time.perf_counter() - start)\n"
    )
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(text), str(text.parent)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


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


def microseconds(work: dict[str, Callable[[], object]], rounds: int, times: int = 1000) -> dict[str, list[float]]:
    """Times short calls by repeating each, in turn."""
    found: dict[str, list[float]] = {who: [] for who in work}
    for _ in range(rounds):
        for who, call in work.items():
            begun = time.perf_counter()
            for _ in range(times):
                call()
            found[who].append((time.perf_counter() - begun) / times * 1e6)
    return found


def megabytes(lines: Sequence[str]) -> float:
    """The size of the text in MB of UTF-8."""
    return sum(len(line.encode("utf-8", "surrogatepass")) + 1 for line in lines) / 1e6


def same(ours: Any, peer: Any) -> None:
    """Refuses to time two things that do not do the same."""
    equal = np.array_equal(ours, peer) if isinstance(ours, np.ndarray) else ours == peer
    if not equal:
        raise SystemExit("the outputs differ; a comparison of speed would mean nothing")


if __name__ == "__main__":
    main()
