"""A corpus from files: the same to the byte however it is made, and whatever happens on the way."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertsmith.data.corpus import commit, partial_shards, plan
from bertsmith.data.corpus.build import build_shards
from bertsmith.data.corpus.plan import CorpusOptions, plan_chunks, read_chunk
from bertsmith.data.corpus.shards import HELDOUT, TRAIN, TokenCorpus
from bertsmith.data.reading.sources import find_sources
from bertsmith.data.reading.text import read_documents
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.tokenizer import WordPieceTokenizer

WORDS = ["the", "man", "woman", "eats", "reads", "bread", "book", "river", "runs", "by", "house", "and", "dog"]
WORDS += ["sleeps", "there", "under", "old", "green", "trees"]


BLANK_LINE = CorpusOptions(documents="blank-line", shard_tokens=10**6)


def sentence(rng):
    return " ".join(rng.choice(WORDS, rng.integers(4, 12))).capitalize() + "."


def make_texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(sentence(rng) for _ in range(rng.integers(2, 7))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer.train([" ".join(WORDS) + " ."] * 3, vocab_size=300)


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few documents, so that a small file is a large corpus."""
    monkeypatch.setattr(plan, "_SMALLEST_CHUNK", 2000)
    monkeypatch.setattr(plan, "_CHUNKS", 10**9)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in" / "text.txt"
    path.parent.mkdir()
    path.write_text("\n\n".join(make_texts(300)) + "\n")
    return path


def contents(folder):
    """Every byte of a corpus, but for the note of when it was checked."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name not in (".checked.json", ".lock", "statistics.png")
    }


def texts_of_split(corpus, split, tokenizer):
    documents = (corpus.document(split, index) for index in range(corpus.counts[split].documents))
    return [" ".join(tokenizer.decode(ids.tolist()) for ids in document) for document in documents]


def texts_of(corpus, tokenizer):
    return [
        " ".join(tokenizer.decode(ids.tolist()) for ids in corpus.document(split, index))
        for split in (TRAIN, HELDOUT)
        for index in range(corpus.counts[split].documents)
    ]


# The same however it is made.


def test_workers_do_not_change_a_byte(tokenizer, text, tmp_path, small_chunks):
    for workers in (1, 2, 3):
        build_shards([text], tokenizer, tmp_path / str(workers), workers=workers)
    assert len(plan_chunks(find_sources([text]), BLANK_LINE)) > 5
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
    assert sorted(texts_of(TokenCorpus(tmp_path / "3"), tokenizer)) == sorted(t.lower() for t in make_texts(300))


KILLED = """
import sys
from bertsmith.data.corpus import plan
from bertsmith.data.corpus.build import build_shards
from bertsmith.tokenizer import WordPieceTokenizer
plan._SMALLEST_CHUNK, plan._CHUNKS = 20_000, 10**9
build_shards([sys.argv[1]], WordPieceTokenizer.load(sys.argv[2]), sys.argv[3], workers=2)
"""


@pytest.mark.slow
def test_a_killed_build_keeps_its_parts_and_goes_on_to_the_same_bytes(tokenizer, tmp_path, monkeypatch):
    text, out = tmp_path / "text.txt", tmp_path / "killed"
    text.write_text("\n\n".join(make_texts(6000)) + "\n")
    tokenizer.save(tmp_path / "tokenizer")
    # in the middle of the first, the second and the third time
    kept = 0
    for parts_wanted in (2, 10, 20):
        process = subprocess.Popen([sys.executable, "-c", KILLED, text, tmp_path / "tokenizer", out])
        while len(list((out / ".parts").glob("0????"))) < parts_wanted and process.poll() is None:
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (out / "manifest.json").exists()
        assert len(list((out / ".parts").glob("0????"))) >= kept
        kept = len(list((out / ".parts").glob("0????")))
    assert kept >= 20
    monkeypatch.setattr(plan, "_SMALLEST_CHUNK", 20_000)
    monkeypatch.setattr(plan, "_CHUNKS", 10**9)
    made = []
    original = partial_shards.write_partial_shards
    monkeypatch.setattr(
        "bertsmith.data.corpus.build.write_partial_shards", lambda *args: made.append(args[0]) or original(*args)
    )
    build_shards([text], tokenizer, out, workers=1)
    assert len(made) <= len(list(plan_chunks(find_sources([text]), BLANK_LINE))) - kept
    build_shards([text], tokenizer, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    assert not (out / ".parts").exists()


WORKER_KILLED = """
import os, signal, sys
from bertsmith.cli import main
from bertsmith.data.corpus import build

read_chunk = build.read_chunk

def dies_in_the_middle(chunk, **how):
    for number, document in enumerate(read_chunk(chunk, **how)):
        if chunk.number == 6 and number == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        yield document

build.read_chunk = dies_in_the_middle
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers that are forked inherit what is to kill them")
def test_a_killed_worker_ends_the_command_in_one_line_and_its_parts_stay(tokenizer, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(make_texts(1500)) + "\n")
    tokenizer.save(tmp_path / "tokenizer")

    def run(*python):
        words = ["corpus", text, "--tokenizer", tmp_path / "tokenizer", "--documents", "blank-line"]
        words += ["--workers", "2", "--shard-tokens", "5000", "--out", tmp_path / "killed"]
        command = [sys.executable, *python, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    killed = run("-c", WORKER_KILLED)
    reason = "a worker process was killed, probably for lack of memory; run again with fewer workers"
    assert (killed.returncode, killed.stderr.splitlines()[-1]) == (2, f"bertsmith: {reason}")
    assert not (tmp_path / "killed" / "manifest.json").exists()
    # 第 6 块动手时，前六块里至多一块还在另一个进程手上
    kept = {path.name for path in (tmp_path / "killed" / ".parts").glob("0????")}
    assert len(kept) >= 5
    assert "00006" not in kept
    again = run("-m", "bertsmith")
    assert again.returncode == 0, again.stderr
    build_shards([text], tokenizer, tmp_path / "whole", CorpusOptions(documents="blank-line", shard_tokens=5000))
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert not (tmp_path / "killed" / ".parts").exists()


@pytest.mark.parametrize("moment", range(6))
def test_a_build_broken_off_while_finishing_goes_on_to_the_same_bytes(
    tokenizer, text, tmp_path, small_chunks, monkeypatch, moment
):
    text.write_text(text.read_text() + "\n" + "\n\n".join(make_texts(20)))  # the first ones again
    build_shards([text], tokenizer, tmp_path / "whole")
    calls = []

    def dying(original):
        def call(*args, **options):
            calls.append(1)
            if len(calls) == moment + 1:
                raise KeyboardInterrupt
            return original(*args, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.data.corpus.commit.os.replace", dying(os.replace))
        patch.setattr("bertsmith.data.corpus.commit.write_json", dying(commit.write_json))
        with pytest.raises(KeyboardInterrupt):
            build_shards([text], tokenizer, tmp_path / "broken")
    assert not (tmp_path / "broken" / "manifest.json").exists()
    build_shards([text], tokenizer, tmp_path / "broken")
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")


def test_a_full_disk_keeps_the_finished_parts(tokenizer, text, tmp_path, small_chunks, small_disk):
    text.write_text("\n\n".join(make_texts(1500)))
    # 限制单个文件时：各部分放得下，合成的分片放不下
    disk = small_disk(256 << 10, limit=50 << 10)
    with pytest.raises(RunFolderError, match=disk.message):
        build_shards([text], tokenizer, disk.path / "out", workers=2)
    kept = len(list((disk.path / "out" / ".parts").glob("0????")))
    assert kept >= 3
    disk.make_room()
    build_shards([text], tokenizer, disk.path / "out", workers=2)
    build_shards([text], tokenizer, tmp_path / "whole")
    assert contents(disk.path / "out") == contents(tmp_path / "whole")


def test_a_full_disk_while_finishing_is_one_line(tokenizer, text, tmp_path, small_chunks, monkeypatch):
    def full(*_):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.ipc.new_file", full)
        with pytest.raises(RunFolderError, match=r"\.arrow: the disk is full") as caught:
            build_shards([text], tokenizer, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert build_shards([text], tokenizer, tmp_path / "out").counts[TRAIN].documents > 200


# What may not be mixed up.


def test_an_unfinished_corpus_of_an_earlier_version_says_so(tokenizer, text, tmp_path):
    plan_file = tmp_path / "out" / ".parts" / "plan.json"
    plan_file.parent.mkdir(parents=True)
    plan_file.write_text(json.dumps({"request": {"tokenizer": tokenizer.fingerprint}, "units": []}))
    with pytest.raises(RunFolderError, match=r"of another request \(.*version.*\); .* remove .*\.parts to begin anew"):
        build_shards([text], tokenizer, tmp_path / "out")


@pytest.mark.parametrize("name", ["plan.json", "00000/chunk.json"])
def test_a_damaged_unfinished_corpus_is_one_line(tokenizer, text, tmp_path, small_chunks, monkeypatch, name):
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.data.corpus.build.commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_shards([text], tokenizer, tmp_path / "out")
    (tmp_path / "out" / ".parts" / name).write_text("{")
    with pytest.raises(RunFolderError, match=rf"{name}: damaged .* remove .*\.parts") as caught:
        build_shards([text], tokenizer, tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_another_request_does_not_touch_an_unfinished_corpus(tokenizer, text, tmp_path, small_chunks, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.data.corpus.build.commit", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_shards([text], tokenizer, out)
    with pytest.raises(RunFolderError, match=r"unfinished corpus of another request \(heldout_share\)"):
        build_shards([text], tokenizer, out, CorpusOptions(heldout_share=0.3))
    os.utime(text, ns=(1, 1))
    with pytest.raises(RunFolderError, match=r"\(modified\)"):
        build_shards([text], tokenizer, out)


def test_a_finished_corpus_is_taken_as_it_is_and_another_is_refused(tokenizer, text, tmp_path):
    build_shards([text], tokenizer, tmp_path / "out")
    before = (tmp_path / "out" / "manifest.json").stat().st_mtime_ns
    # 收尾时死在删除 .parts 的中途：再来一次就删完
    (tmp_path / "out" / ".parts" / "00000").mkdir(parents=True)
    build_shards([text], tokenizer, tmp_path / "out", workers=2)
    assert (tmp_path / "out" / "manifest.json").stat().st_mtime_ns == before
    assert not (tmp_path / "out" / ".parts").exists()
    with pytest.raises(RunFolderError, match=r"other settings \(keep_duplicates\)"):
        build_shards([text], tokenizer, tmp_path / "out", CorpusOptions(keep_duplicates=True))


def test_input_that_fails_in_the_middle_costs_none_of_the_chunks_before(
    tokenizer, text, tmp_path, small_chunks, monkeypatch
):
    """Such as an address that stops answering: hours of chunks may be made by then."""
    build_shards([text], tokenizer, tmp_path / "whole")

    def failing(chunk, **how):
        if chunk.number == 4:
            raise InputError("the connection was lost")
        return plan.read_chunk(chunk, **how)

    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.data.corpus.build.read_chunk", failing)
        with pytest.raises(InputError, match="the connection was lost"):
            build_shards([text], tokenizer, tmp_path / "out")
    assert [path.name for path in sorted((tmp_path / "out/.parts").glob("0*"))] == ["00000", "00001", "00002", "00003"]
    build_shards([text], tokenizer, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_too_few_documents_leave_the_folder_free_for_another_try(tokenizer, tmp_path):
    (tmp_path / "text.txt").write_text("The man eats.\n\n\nThe dog sleeps.\n")
    with pytest.raises(InputError, match="at least 3 are needed"):
        build_shards([tmp_path / "text.txt"], tokenizer, tmp_path / "out", CorpusOptions(documents="file"))
    (tmp_path / "text.txt").write_text("The man eats.\n\nThe dog sleeps.\n\nThe book.\n")
    corpus = build_shards([tmp_path / "text.txt"], tokenizer, tmp_path / "out")
    assert (corpus.counts[TRAIN].documents, corpus.counts[HELDOUT].documents) == (2, 1)


# Damage.


def test_opening_reads_no_shard_twice_but_finds_what_was_touched(tokenizer, text, tmp_path, monkeypatch):
    build_shards([text], tokenizer, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr("bertsmith.data.corpus.manifest.checksum_of", lambda _: 1 / 0)
        TokenCorpus(tmp_path / "out")
    shard = tmp_path / "out" / "train-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[-1000] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"train-00000\.arrow: shard is damaged"):
        TokenCorpus(tmp_path / "out")
    content[-1000] ^= 1
    shard.write_bytes(content)
    TokenCorpus(tmp_path / "out")


def test_damage_that_left_no_trace_is_found_by_building_again(tokenizer, text, tmp_path):
    build_shards([text], tokenizer, tmp_path / "out")
    shard = tmp_path / "out" / "train-00000.arrow"
    state = shard.stat()
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(state.st_atime_ns, state.st_mtime_ns))
    corpus = TokenCorpus(tmp_path / "out")
    with pytest.raises(CheckpointError, match="damaged"):
        corpus.verify()
    with pytest.raises(CheckpointError, match="damaged"):
        build_shards([text], tokenizer, tmp_path / "out")


def test_a_corpus_that_cannot_be_written_can_be_read(tokenizer, text, tmp_path, monkeypatch):
    build_shards([text], tokenizer, tmp_path / "out")
    (tmp_path / "out" / ".checked.json").unlink()

    def refuse(path, _):
        raise RunFolderError(str(path))

    monkeypatch.setattr("bertsmith.data.corpus.manifest.write_text", refuse)
    assert TokenCorpus(tmp_path / "out").document(TRAIN, 0)


def test_more_shards_than_may_be_mapped(tokenizer, text, tmp_path, small_chunks, monkeypatch):
    monkeypatch.setattr("bertsmith.data.corpus.shards._MOST_MAPPED", 3)
    corpus = build_shards([text], tokenizer, tmp_path / "out", CorpusOptions(shard_tokens=500))
    views = [corpus.document(TRAIN, index)[0] for index in range(corpus.counts[TRAIN].documents)]
    assert len(corpus._mapped) == 3
    assert sum(map(len, views)) > 1000
    assert all((view < tokenizer.vocab_size).all() for view in views)


# Duplicates.


def test_documents_that_repeat_are_dropped_and_the_first_stays(tokenizer, tmp_path, small_chunks):
    texts = make_texts(100)
    order = [*texts[:60], *texts[20:100], *texts[:10]]
    (tmp_path / "text.txt").write_text("\n\n".join(order))
    corpus = build_shards([tmp_path / "text.txt"], tokenizer, tmp_path / "out", workers=2)
    assert sorted(texts_of(corpus, tokenizer)) == sorted(text.lower() for text in texts)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["duplicates"] == {"exact": 50, "near": 0}
    train = texts_of(corpus, tokenizer)[: corpus.counts[TRAIN].documents]
    assert train == [t.lower() for t in texts if t.lower() in set(train)]
    ids = np.concatenate([s for n in range(corpus.counts[TRAIN].documents) for s in corpus.document(TRAIN, n)])
    assert corpus.piece_counts.tolist() == np.bincount(ids, minlength=tokenizer.vocab_size).tolist()
    kept = build_shards([tmp_path / "text.txt"], tokenizer, tmp_path / "all", CorpusOptions(keep_duplicates=True))
    assert sorted(texts_of(kept, tokenizer)) == sorted(text.lower() for text in order)


def test_near_duplicates_are_dropped_on_request_whatever_the_workers(tokenizer, tmp_path, small_chunks):
    rng = np.random.default_rng(1)
    texts = [" ".join(sentence(rng) for _ in range(25)) for _ in range(40)]
    altered = [text.replace("Bread", "Book").rsplit(" ", 3)[0] + " dog." for text in texts[:15]]
    (tmp_path / "text.txt").write_text("\n\n".join([*texts, *altered]))
    options = CorpusOptions(near_duplicates=0.7)
    for workers in (1, 2):
        corpus = build_shards([tmp_path / "text.txt"], tokenizer, tmp_path / str(workers), options, workers=workers)
        assert sorted(texts_of(corpus, tokenizer)) == sorted(text.lower() for text in texts)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert json.loads((tmp_path / "1" / "manifest.json").read_text())["duplicates"] == {"exact": 0, "near": 15}


# Cutting large files.


@pytest.mark.parametrize("seed", range(5))
def test_a_cut_file_has_the_documents_of_the_whole_one(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    path = tmp_path / "a.txt"
    ends = [
        "\n",
        "\n\n",
        "\n\n\n",
        "\n \n",
        "\n= Title =\n\n",
        "\n\n= Title =\n\n = = Part = = \n\n",
        "\n* * *\n",
        "\r\n\r\n",
    ]
    path.write_text("".join(text + rng.choice(ends) for text in make_texts(200, seed)), newline="")
    monkeypatch.setattr(plan, "_SMALLEST_CHUNK", 700)
    monkeypatch.setattr(plan, "_CHUNKS", 10**9)
    chunks = plan_chunks(find_sources([path]), BLANK_LINE)
    found = [document for chunk in chunks for document in read_chunk(chunk, BLANK_LINE)]
    assert len(chunks) > 10
    assert found == list(read_documents([path], documents="blank-line"))


# Statistics.


def test_statistics_equal_a_count_by_hand(tokenizer, text, tmp_path, small_chunks):
    text.write_text(text.read_text() + "\nEin zebra 漢!\n")
    corpus = build_shards([text], tokenizer, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "statistics.json").read_text())
    documents = [
        [s.tolist() for s in corpus.document(split, n)]
        for split in (TRAIN, HELDOUT)
        for n in range(corpus.counts[split].documents)
    ]
    pieces = [tokenizer.vocab[i] for d in documents for s in d for i in s]
    assert found["documents"] == len(documents) == 301
    assert found["sentences"] == sum(map(len, documents))
    assert found["tokens"] == len(pieces)
    assert found["pieces_per_word"] == pytest.approx(len(pieces) / sum(not p.startswith("##") for p in pieces))
    assert found["unknown_rate"] == pytest.approx(pieces.count("[UNK]") / len(pieces))
    assert found["unknown_rate"] > 0
    for name, lengths in (
        ("sentence_lengths", [len(s) for d in documents for s in d]),
        ("document_lengths", [sum(map(len, d)) for d in documents]),
    ):
        histogram = found[name]
        edges = [*histogram["from"], 10**9]
        assert histogram["count"] == np.histogram(lengths, edges)[0].tolist()
    assert (tmp_path / "out" / "statistics.png").read_bytes().startswith(b"\x89PNG")


# Input formats.


def write_input(name, texts, folder):
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"id": range(len(texts)), "text": [*texts[:-1], texts[-1]]}), path, row_group_size=7)
        return path
    lines = [json.dumps({"id": n, "text": text}, ensure_ascii=n % 2 == 0) for n, text in enumerate(texts)]
    content = ("\n".join(lines) if ".jsonl" in name else "\n\n".join(texts)).encode()
    if name.endswith(".gz"):
        content = gzip.compress(content)
    if name.endswith(".zst"):
        content = pa.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)
    return path


FORMATS = ["a.txt", "a.txt.gz", "a.txt.zst", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_documents(tokenizer, tmp_path, small_chunks, name):
    texts = make_texts(80)
    corpus = build_shards([write_input(name, texts, tmp_path)], tokenizer, tmp_path / "out", workers=2)
    assert sorted(texts_of(corpus, tokenizer)) == sorted(text.lower() for text in texts)


def test_a_folder_of_all_formats_is_read_in_the_order_of_names(tokenizer, tmp_path):
    (tmp_path / "in").mkdir()
    for number, name in reversed(list(enumerate(FORMATS))):
        write_input(f"{number}{name}", make_texts(10, number), tmp_path / "in")
    corpus = build_shards([tmp_path / "in"], tokenizer, tmp_path / "out", CorpusOptions(documents="blank-line"))
    expected = [text.lower() for number in range(len(FORMATS)) for text in make_texts(10, number)]
    assert sorted(texts_of(corpus, tokenizer)) == sorted(expected)
    for split in (TRAIN, HELDOUT):
        found = texts_of_split(corpus, split, tokenizer)
        assert found == sorted(found, key=expected.index)


def test_urls_are_read(tokenizer, tmp_path):
    import fsspec

    texts = make_texts(30)
    with fsspec.open("memory://corpus/a.jsonl", "w") as file:
        file.write("\n".join(json.dumps({"text": text}) for text in texts[:20]))
    local = write_input("b.txt.gz", texts[20:], tmp_path)
    for number, paths in enumerate(
        (["memory://corpus", f"file://{local}"], ["memory://corpus/*.jsonl", f"file://{tmp_path}/*.gz"])
    ):
        corpus = build_shards(paths, tokenizer, tmp_path / str(number), CorpusOptions(documents="blank-line"))
        assert sorted(texts_of(corpus, tokenizer)) == sorted(text.lower() for text in texts)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.zst", "a.jsonl.gz", "a.jsonl.zst"])
def test_a_large_packed_file_whose_name_does_not_say_so_is_not_cut(tokenizer, tmp_path, small_chunks, name):
    texts = make_texts(400)
    packed = write_input(name, texts, tmp_path)
    plain = packed.rename(packed.with_suffix(""))
    assert plain.stat().st_size > 3 * 2000
    corpus = build_shards([plain], tokenizer, tmp_path / "out", CorpusOptions(documents="blank-line"))
    assert sorted(texts_of(corpus, tokenizer)) == sorted(text.lower() for text in texts)


def test_text_beside_the_shards_is_read_and_what_the_build_wrote_is_not(tokenizer, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    texts = make_texts(30)
    (out / "a.txt").write_text("\n\n".join(texts))
    (out / "sub").mkdir()
    (out / "sub" / "manifest.json").write_text(json.dumps([{"text": text} for text in make_texts(3, 1)]))
    options = CorpusOptions(documents="blank-line")
    shutil.copytree(out, tmp_path / "named")
    corpus = build_shards([tmp_path / "named" / "a.txt"], tokenizer, tmp_path / "named", options)
    assert sorted(texts_of(corpus, tokenizer)) == sorted(text.lower() for text in texts)
    # the same pattern again, now that shards, manifest and statistics match it as well
    everything = [str(out / "**" / "*")]
    corpus = build_shards(everything, tokenizer, out, options)
    assert corpus.counts[TRAIN].documents + corpus.counts[HELDOUT].documents == 33
    assert {"manifest.json", "statistics.json", "train-00000.arrow"} <= {path.name for path in out.iterdir()}
    assert build_shards(everything, tokenizer, out, options).counts == corpus.counts
    # what 0.2 did not know is not in its manifest: its corpora are still taken for the same
    manifest = json.loads((out / "manifest.json").read_bytes())
    del manifest["settings"]["sheet"], manifest["checksum of the rest"]
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert build_shards(everything, tokenizer, out, options).counts == corpus.counts
    with pytest.raises(InputError, match=r"manifest\.json: this is what a build writes"):
        build_shards([out / "a.txt", out / "manifest.json"], tokenizer, out, options)


def test_another_field_and_records_without_text(tokenizer, tmp_path):
    lines = [json.dumps({"body": text}) for text in make_texts(5)] + ['{"body": null}', "", '{"body": ""}']
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    corpus = build_shards([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", CorpusOptions(text_field="body"))
    assert corpus.counts[TRAIN].documents + corpus.counts[HELDOUT].documents == 5


def test_half_a_character_in_a_long_record_ends_nothing(tokenizer, tmp_path):
    long = " ".join(f"{text} \ud83d" for text in make_texts(60))
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in [long, *make_texts(5, 1)]))
    corpus = build_shards([tmp_path / "a.jsonl"], tokenizer, tmp_path / "out", CorpusOptions())
    assert corpus.counts[TRAIN].documents + corpus.counts[HELDOUT].documents > 6


GOOD = '{"text": "The man eats. The dog sleeps."}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", GOOD * 3 + '{"text": \n', r"a\.jsonl: line 4 is not valid JSON"),
        ("a.jsonl", GOOD * 300 + '{"text": "a\n' + GOOD, r"a\.jsonl: line 301 is not valid JSON"),
        ("a.jsonl", GOOD + '{"body": "a"}\n', r"a\.jsonl: line 2 has no field 'text' \(it has body\).*--text-field"),
        ("a.jsonl", GOOD + '["a"]\n', r"a\.jsonl: line 2 is no JSON object"),
        ("a.jsonl", GOOD + '{"text": 3}\n', r"line 2: field 'text' holds int"),
        ("a.jsonl", GOOD + '{"text": "\udcff"}\n', r"line 2 is not valid utf-8"),
        ("a.jsonl", "", "no sentence found"),
        ("a.txt", " \n\n", "no sentence found"),
        ("a.jsonl.gz", gzip.compress(GOOD.encode() * 9, mtime=0)[:-9], r"a\.jsonl\.gz: damaged or truncated gzip"),
        ("a.txt.gz", b"no gzip", r"a\.txt\.gz: damaged or truncated gzip"),
        (
            "a.txt.zst",
            pa.compress(GOOD.encode() * 99, codec="zstd", asbytes=True)[:-3],
            r"a\.txt\.zst: damaged or truncated zstd",
        ),
        ("a.jsonl.zst", b"no zstd at all", r"a\.jsonl\.zst: damaged or truncated zstd"),
        ("a.jsonl.zst", b"", r"a\.jsonl\.zst: damaged or truncated zstd"),
        ("a.parquet", b"PAR1", r"a\.parquet: not a readable Parquet file"),
    ],
)
def test_unusable_input_is_one_line(tokenizer, tmp_path, small_chunks, name, content, message):
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        build_shards([tmp_path / name], tokenizer, tmp_path / "out", workers=2)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_a_parquet_file_without_the_column(tokenizer, tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "body": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: has no column 'text' \(it has id, body\)"):
        build_shards([tmp_path / "a.parquet"], tokenizer, tmp_path / "out")
    with pytest.raises(InputError, match=r"a\.parquet: column 'id' holds int64, not text"):
        build_shards([tmp_path / "a.parquet"], tokenizer, tmp_path / "out2", CorpusOptions(text_field="id"))


def test_a_parquet_row_that_is_not_utf8_is_named(tokenizer, tmp_path):
    values = [b"The man eats."] * 150
    values[100] = b"caf\xe9"
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int32)
    column = pa.StringArray.from_buffers(150, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(values)))
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", row_group_size=40)
    with pytest.raises(InputError, match=r"a\.parquet: row 101 of column 'text' is not UTF-8") as caught:
        build_shards([tmp_path / "a.parquet"], tokenizer, tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nowhere/a.txt", "cannot be read"),
        ("memory://nowhere/*.txt", "no text file"),
        ("nonsense://a/b.txt", "nonsense"),
    ],
)
def test_an_address_that_leads_nowhere(tokenizer, tmp_path, url, message):
    with pytest.raises(InputError, match=message) as caught:
        build_shards([url], tokenizer, tmp_path / "out")
    assert url in str(caught.value)


def write_books(folder, count, sentences):
    """Files of many sentences each, far more than one document holds; every book has a word of its own."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for number in range(count):
        lines = [f"{WORDS[number]} {sentence(rng)}" for _ in range(sentences)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return folder


def books_of(corpus, split):
    return [corpus.text(split, index) for index in range(corpus.counts[split].documents)]


@pytest.mark.parametrize("heldout", [0.02, 0.3])
def test_a_book_is_never_on_both_sides_of_the_split(tokenizer, tmp_path, small_chunks, heldout):
    books = write_books(tmp_path / "in", 10, 400)
    corpus = build_shards([books], tokenizer, tmp_path / "corpus", CorpusOptions(heldout_share=heldout))
    train, held = books_of(corpus, TRAIN), books_of(corpus, HELDOUT)
    assert len(train) + len(held) == 40, "400 sentences are four documents"
    assert not set(train) & set(held)
    assert len(set(train) | set(held)) == 10
    assert set(Counter(train).values()) == set(Counter(held).values()) == {4}
    tokens = corpus.counts[HELDOUT].tokens / (corpus.counts[TRAIN].tokens + corpus.counts[HELDOUT].tokens)
    assert len(set(held)) == 1 if heldout == 0.02 else 0.15 < tokens < 0.6
    named = build_shards([books], tokenizer, tmp_path / "again", CorpusOptions(heldout_share=heldout), workers=2)
    assert books_of(named, HELDOUT) == held


@pytest.mark.parametrize(
    ("option", "message"),
    [
        # the offsets of a column are int32: beyond them they would wrap and point anywhere
        *(
            ({"shard_tokens": many}, f"is {many}; give at least 1 and at most {2**30}")
            for many in (0, 2**30 + 1, 2**33)
        ),
        *(({"near_duplicates": threshold}, "near_duplicates is") for threshold in (0, -1, 1.1)),
    ],
)
def test_an_impossible_option_is_refused(option, message):
    with pytest.raises(ConfigError, match=message):
        CorpusOptions(**option)


def test_two_books_are_too_few(tokenizer, tmp_path):
    with pytest.raises(InputError, match=r"has 2 different document\(s\), at least 3"):
        build_shards([write_books(tmp_path / "in", 2, 400)], tokenizer, tmp_path / "corpus")


def test_a_large_file_that_is_one_document_is_shared_among_workers(tokenizer, tmp_path, small_chunks, monkeypatch):
    """Every line of it is there once, in order, and all of it is one text; a blank line is taken where one is near."""
    books = write_books(tmp_path / "in", 3, 300)
    whole = (books / "0.txt").read_text().split("\n")
    (books / "0.txt").write_text("\n".join(whole[:150]) + "\n\n" + "\n".join(whole[150:]))
    options = CorpusOptions(documents="file", shard_tokens=10**6)
    monkeypatch.setattr(plan, "_BLANK_LINE_WITHIN", 500)
    chunks = plan_chunks(find_sources([books]), options)
    assert len(chunks) > 10
    found = [document for chunk in chunks for document in read_chunk(chunk, options)]
    expected = [document for file in sorted(books.iterdir()) for document in read_documents([file], documents="file")]
    assert [s for d in found for s in d.sentences] == [s for d in expected for s in d.sentences]
    assert len({(document.source, document.text) for document in found}) == 3
    monkeypatch.setattr(plan, "_BLANK_LINE_WITHIN", 100_000)
    begin = plan_chunks(find_sources([books / "0.txt"]), options)[1].spans[0].start
    assert (books / "0.txt").read_bytes()[:begin].endswith(b"\n\n")
    corpus = build_shards([books], tokenizer, tmp_path / "corpus", options, workers=2)
    assert not set(books_of(corpus, TRAIN)) & set(books_of(corpus, HELDOUT))


@pytest.mark.parametrize("seed", range(2))
def test_a_large_file_with_few_blank_lines_is_shared_among_workers(
    tokenizer, tmp_path, small_chunks, monkeypatch, seed
):
    """Sentences, texts and split are those of the file read as a whole, and the same on any number of workers."""
    monkeypatch.setattr(plan, "_BLANK_LINE_WITHIN", 300)
    rng = np.random.default_rng(seed)
    # 每篇有自己的词：从一个文档就看得出它属于哪一篇；长的一篇要切成好几块
    lengths = rng.permutation([2, 3, 5, 7, 250, 400, 2, 4, 300, 3, 2, 350, 6])
    texts = ["\n".join(f"{WORDS[n]} {sentence(rng)}" for _ in range(length)) for n, length in enumerate(lengths)]
    (path := tmp_path / "a.txt").write_text("\n\n".join(texts) + "\n")
    chunks = plan_chunks(find_sources([path]), BLANK_LINE)
    assert max(chunk.size for chunk in chunks) < 2 * 2000
    found = [document for chunk in chunks for document in read_chunk(chunk, BLANK_LINE)]
    whole = read_documents([path], documents="blank-line")
    assert [s for d in found for s in d.sentences] == [s for d in whole for s in d.sentences]
    book_of = [{WORDS.index(s.split()[0]) for s in document.sentences} for document in found]
    assert all(len(books) == 1 for books in book_of), "no document reaches from one text into the next"
    numbers = {(book, document.text) for (book,), document in zip(book_of, found, strict=True)}
    assert len(numbers) == len(texts)
    assert {book for book, number in numbers if number is not None} == set(np.flatnonzero(lengths > 128).tolist())
    options = CorpusOptions(heldout_share=0.2)
    corpus = build_shards([path], tokenizer, tmp_path / "1", options)
    build_shards([path], tokenizer, tmp_path / "3", options, workers=3)
    assert contents(tmp_path / "1") == contents(tmp_path / "3")
    train, held = ({text.split()[0] for text in texts_of_split(corpus, split, tokenizer)} for split in (TRAIN, HELDOUT))
    assert len(train) + len(held) == len(texts), "no text is on both sides"
    assert held


def test_a_large_file_that_is_one_document_alone_is_refused_before_the_work(
    tokenizer, tmp_path, small_chunks, monkeypatch
):
    monkeypatch.setattr(plan, "_BLANK_LINE_WITHIN", 300)
    monkeypatch.setattr("bertsmith.data.corpus.build._make_chunks", lambda *_: pytest.fail("began"))
    book = write_books(tmp_path / "in", 1, 400) / "0.txt"
    with pytest.raises(InputError, match=r"has 1 different document\(s\), at least 3 .* --documents line if a line"):
        build_shards([book], tokenizer, tmp_path / "corpus", CorpusOptions(documents="blank-line"))


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_large_list_of_lines_is_shared_among_workers(tokenizer, tmp_path, small_chunks, line_end):
    """Every line is a document, wherever the file is cut, and the corpus the same on any number of workers."""
    (path := tmp_path / "a.txt").write_bytes(line_end.join(make_texts(300)).encode())
    options, notes = CorpusOptions(documents="line", shard_tokens=10**6), []
    chunks = plan_chunks(find_sources([path]), options)
    assert len(chunks) > 10
    found = [document for chunk in chunks for document in read_chunk(chunk, options)]
    assert found == list(read_documents([path], documents="line"))
    assert [" ".join(document.sentences) for document in found] == make_texts(300)
    build_shards([path], tokenizer, tmp_path / "auto", on_note=notes.append)
    build_shards([path], tokenizer, tmp_path / "said", CorpusOptions(documents="line"), workers=3)
    assert contents(tmp_path / "auto") == contents(tmp_path / "said")
    assert notes == [
        f"{path}: 1 .txt; 0.0 MB; utf-8; documents: a line is one",
        "a.txt: a line is a document, as none of its 300 lines is blank",
    ]
