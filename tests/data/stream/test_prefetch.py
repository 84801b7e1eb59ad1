import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest
from digests import digest

from bertsmith.data.stream.prefetch import PrefetchedStream, prefetched
from bertsmith.data.stream.stream import PreTrainingStream, StreamPosition, StreamSettings
from bertsmith.errors import BertsmithError


def stream_of(village_small, **changes):
    corpus, tokenizer = village_small
    return PreTrainingStream(corpus, tokenizer, StreamSettings(sequence_length=48, batch_size=8, **changes))


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_prefetched_batches_are_those_of_the_stream(village_small):
    plain = stream_of(village_small)
    with closing(prefetched(stream_of(village_small), 1)) as ahead:
        for _ in range(60):
            assert digest([next(ahead)]) == digest([next(plain)])
            assert ahead.position == plain.position
    assert prefetched(plain, 0) is plain


def test_the_position_is_that_of_the_last_batch_taken(village_small):
    """However many batches wait, a stream restored from the position goes on with the next one."""
    with closing(PrefetchedStream(stream_of(village_small))) as ahead:
        for _ in range(7):
            next(ahead)
        assert wait_until(ahead._received.poll)
        saved = StreamPosition(**ahead.position.to_json())
        expected = [digest([next(ahead)]) for _ in range(5)]
    restored = stream_of(village_small)
    restored.position = saved
    assert [digest([next(restored)]) for _ in range(5)] == expected
    with closing(PrefetchedStream(stream_of(village_small))) as ahead:
        ahead.position = saved
        assert [digest([next(ahead)]) for _ in range(5)] == expected
        ahead.position = saved
        assert [digest([next(ahead)]) for _ in range(5)] == expected


def test_a_dying_worker_is_a_clear_error_and_not_the_end(village_small):
    with closing(PrefetchedStream(stream_of(village_small))) as ahead:
        next(ahead)
        os.kill(ahead.worker.pid, signal.SIGKILL)
        with pytest.raises(BertsmithError, match="signal 9"):
            sum(1 for _ in ahead)
        # the position is still that of the last batch taken, and a new worker goes on from there
        plain = stream_of(village_small)
        plain.position = ahead.position
        assert digest([next(ahead)]) == digest([next(plain)])


@pytest.mark.parametrize("error", [BertsmithError("shard 7 is damaged"), ZeroDivisionError("shard 7 is damaged")])
def test_an_error_in_the_worker_reaches_the_caller(village_small, error):
    stream = stream_of(village_small)

    def fail():
        raise error

    stream.draw = fail
    with closing(PrefetchedStream(stream)) as ahead, pytest.raises(BertsmithError, match="shard 7 is damaged"):
        next(ahead)


def test_closing_ends_the_worker(village_small, is_gone):
    ahead = PrefetchedStream(stream_of(village_small))
    next(ahead)
    pid = ahead.worker.pid
    ahead.close()
    assert is_gone(pid)
    ahead.close()


def test_ctrl_c_and_sigterm_are_left_to_the_parent(village_small):
    with closing(PrefetchedStream(stream_of(village_small))) as ahead:
        next(ahead)
        os.kill(ahead.worker.pid, signal.SIGINT)
        os.kill(ahead.worker.pid, signal.SIGTERM)
        for _ in range(50):
            next(ahead)


PARENT = """
import sys, time, fcntl
from bertsmith.data.stream.prefetch import PrefetchedStream
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.stream.stream import StreamSettings
from bertsmith.data.stream.stream import PreTrainingStream
from bertsmith.tokenizer import WordPieceTokenizer

tokenizer = WordPieceTokenizer.load(sys.argv[2])
lock = open(sys.argv[3], "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
stream = PrefetchedStream(PreTrainingStream(TokenCorpus(sys.argv[1]), tokenizer, StreamSettings(sequence_length=48)))
next(stream)
print(stream.worker.pid, flush=True)
if sys.argv[4] == "wait":
    time.sleep(60)
"""


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_worker_does_not_outlive_its_parent_nor_hold_its_lock(village_small, tmp_path, is_gone, how):
    import fcntl

    corpus, tokenizer = village_small
    tokenizer.save(tmp_path / "tokenizer")
    arguments = [corpus.folder, tmp_path / "tokenizer", tmp_path / "lock", "wait" if how == "killed" else "go"]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    if how == "killed":
        parent.kill()
    # the pipe ends with the parent: the worker has let go of it
    assert parent.communicate(timeout=30)[0] == ""
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert wait_until(lambda: is_gone(pid))
