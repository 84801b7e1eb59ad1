"""The batcher with an engine that can be watched: what it computes together, what it drops, who waits for whom."""

import threading
import time

import pytest
import torch

from bertsmith.serve.batching import Batcher, BatchingEngine
from bertsmith.serve.request import CURRENT, HttpError, RequestContext, too_late
from bertsmith.serve.settings import Limits


class WatchedEngine:
    """Gives sums of ids; remembers its calls, can be held, and fails on the id 666."""

    def __init__(self, shares_cores=True):
        self.shares_cores, self.calls = shares_cores, []
        self.open = threading.Event()
        self.open.set()

    def _see(self, sequences):
        self.calls.append([list(sequence) for sequence in sequences])
        assert self.open.wait(10)
        if any(666 in sequence for sequence in sequences):
            raise RuntimeError("poisoned")

    def run(self, sequences, token_type_ids, read):
        self._see(sequences)
        types = token_type_ids or [[0]] * len(sequences)
        return torch.tensor([[sum(s) + 0.5 * sum(t), read] for s, t in zip(sequences, types, strict=True)])

    def run_tokens(self, sequences, token_type_ids, read):
        self._see(sequences)
        return [torch.tensor(sequence) * read for sequence in sequences]

    def run_positions(self, sequences, token_type_ids, positions, read):
        self._see(sequences)
        return [torch.tensor(s)[torch.tensor(p)] for s, p in zip(sequences, positions, strict=True)]


@pytest.fixture
def engine():
    return WatchedEngine()


@pytest.fixture
def make_batcher():
    made = []

    def make(*, budget=100, delay=0.0, most_tokens=10_000, threads=1, at_once=None, **more):
        sizes = {"budget": budget, "most_tokens": most_tokens, "threads": threads, "at_once": at_once or threads}
        made.append(Batcher(delay=delay, **sizes, **more))
        return made[-1]

    yield make
    for batcher in made:
        batcher.close()


def ticket_for(seconds=10.0, **limits):
    return RequestContext(time.monotonic() + seconds, Limits(**limits))


class Request(threading.Thread):
    """Calls a pipeline's engine as a request thread does."""

    def __init__(self, work, context=None):
        super().__init__(daemon=True)
        self.work, self.context = work, context or ticket_for()
        self.result = self.error = None
        self.start()

    def run(self):
        CURRENT.set(self.context)
        try:
            self.result = self.work()
        except Exception as error:
            self.error = error

    def finish(self):
        self.join(10)
        assert not self.is_alive()
        return self


def hold(engine, stand_in, sequence=(7,)):
    """Starts a pass that does not end until `engine.open` is set."""
    engine.open.clear()
    request = Request(lambda: stand_in.run([list(sequence)], None, 1))
    while not engine.calls:
        time.sleep(0.001)
    return request


def wait_for(condition):
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("never happened")


def test_what_waits_during_one_pass_is_computed_in_the_next(engine, make_batcher):
    batcher = make_batcher()
    stand_in = BatchingEngine(batcher, engine)
    first = hold(engine, stand_in)
    rest = [Request(lambda n=n: stand_in.run([[n, n], [n]], None, 1)) for n in range(1, 6)]
    wait_for(lambda: batcher.waiting_tokens == 15)
    engine.open.set()
    assert first.finish().result.tolist() == [[7, 1]]
    for number, request in enumerate(rest, 1):
        assert request.finish().result.tolist() == [[2 * number, 1], [number, 1]]
    assert [len(call) for call in engine.calls] == [1, 10]
    assert batcher.waiting_tokens == 0


def test_only_calls_that_mean_the_same_are_computed_together(engine, make_batcher):
    batcher = make_batcher()
    stand_in = BatchingEngine(batcher, engine)
    hold(engine, stand_in)
    requests = [
        Request(lambda: stand_in.run([[1]], None, 1)),
        Request(lambda: stand_in.run([[2]], None, 2)),
        Request(lambda: stand_in.run([[3]], [[1]], 1)),
        Request(lambda: stand_in.run_tokens([[4, 5]], None, 3)),
        Request(lambda: stand_in.run_positions([[6, 7, 8]], None, [[2, 0]], 1)),
    ]
    wait_for(lambda: batcher.waiting_tokens == 8)
    engine.open.set()
    results = [request.finish().result for request in requests]
    assert [results[0].tolist(), results[1].tolist(), results[2].tolist()] == [[[1, 1]], [[2, 2]], [[3.5, 1]]]
    assert [row.tolist() for row in results[3]] == [[12, 15]]
    assert [row.tolist() for row in results[4]] == [[8, 6]]
    assert sorted(map(len, engine.calls)) == [1] * 6


def test_rows_come_back_in_order_when_a_request_is_cut_into_many_passes(engine, make_batcher):
    stand_in = BatchingEngine(make_batcher(budget=10), engine)
    sequences = [[n] * (n % 7 + 1) for n in range(50)]
    whole = Request(lambda: stand_in.run(sequences, None, 1)).finish().result
    assert whole[:, 0].tolist() == [sum(sequence) for sequence in sequences]
    assert all(sum(map(len, call)) <= 10 for call in engine.calls)
    by_token = Request(lambda: stand_in.run_tokens(sequences, None, 1)).finish().result
    assert [row.tolist() for row in by_token] == sequences


def test_two_cores_compute_two_passes_and_one_alone_takes_both(engine, make_batcher):
    cores, see = [], engine._see

    def see_cores(sequences):
        cores.append(torch.get_num_threads())
        see(sequences)

    engine._see = see_cores
    stand_in = BatchingEngine(make_batcher(threads=2), engine)
    first = hold(engine, stand_in)
    second = Request(lambda: stand_in.run([[8]], None, 1))
    wait_for(lambda: len(engine.calls) == 2)
    # both are under way; what comes now makes one pass, whichever thread is free first
    third, fourth = (Request(lambda n=n: stand_in.run([[n]], None, 1)) for n in (1, 2))
    engine.open.set()
    assert [r.finish().result[0, 0].item() for r in (first, second, third, fourth)] == [7, 8, 1, 2]
    assert cores[:2] == [2, 1]


@pytest.mark.parametrize(
    ("threads", "passes", "share"),
    [
        (1, 1, 1),
        (2, 2, 1),
        (3, 3, 1),
        (4, 4, 1),
        (5, 4, 1),
        (6, 3, 2),
        (7, 3, 2),
        (8, 4, 2),
        (9, 3, 3),
        (10, 2, 5),
        (11, 2, 5),
        (12, 4, 3),
        (13, 4, 3),
        (14, 2, 7),
        (15, 3, 5),
        (16, 4, 4),
    ],
)
def test_passes_under_load_leave_one_core_idle_at_most(engine, make_batcher, monkeypatch, threads, passes, share):
    """Of four passes at once, at most; the first one finds itself alone and has all cores."""
    cores = []
    monkeypatch.setattr(torch, "set_num_threads", cores.append)
    batcher = make_batcher(threads=threads, at_once=4)
    stand_in = BatchingEngine(batcher, engine)
    requests = [hold(engine, stand_in)]
    for number in range(2, passes + 1):
        requests.append(Request(lambda n=number: stand_in.run([[n]], None, 1)))
        wait_for(lambda n=number: len(engine.calls) == n)
    requests.append(Request(lambda: stand_in.run([[99]], None, 1)))
    wait_for(lambda: batcher.waiting_tokens == 1)
    assert len(batcher._workers) == passes
    assert cores == [threads] + [share] * (passes - 1)
    engine.open.set()
    for request in requests:
        assert request.finish().error is None


def test_a_graph_computes_one_pass_at_a_time_on_all_cores_and_the_next_has_all_that_came(make_batcher):
    engine, shared = WatchedEngine(shares_cores=False), WatchedEngine()
    batcher = make_batcher(threads=4)
    stand_in, other = BatchingEngine(batcher, engine), BatchingEngine(batcher, shared)
    cores, see = [], engine._see
    engine._see = lambda sequences: (cores.append(torch.get_num_threads()), see(sequences))
    requests = [hold(engine, stand_in)]
    requests += [Request(lambda n=n: stand_in.run([[n]], None, 1)) for n in range(1, 6)]
    beside = Request(lambda: other.run([[9]], None, 1))
    wait_for(lambda: batcher.waiting_tokens == 6)
    time.sleep(0.05)
    assert (len(engine.calls), shared.calls) == (1, [])
    engine.open.set()
    assert [request.finish().error for request in (*requests, beside)] == [None] * 7
    assert sorted(map(len, engine.calls)) == [1, 5]
    assert cores == [4, 4]


def test_a_graph_that_waits_for_the_cores_is_not_overtaken(make_batcher):
    engine, shared = WatchedEngine(shares_cores=False), WatchedEngine()
    batcher = make_batcher(threads=2)
    stand_in, other = BatchingEngine(batcher, engine), BatchingEngine(batcher, shared)
    requests = [hold(shared, other)]
    requests.append(Request(lambda: stand_in.run([[1]], None, 1)))
    wait_for(lambda: batcher.waiting_tokens == 1)
    requests.append(Request(lambda: other.run([[2]], None, 1)))
    wait_for(lambda: batcher.waiting_tokens == 2)
    time.sleep(0.05)
    assert (len(shared.calls), engine.calls) == (1, [])
    engine.open.clear()
    shared.open.set()
    wait_for(lambda: engine.calls)
    assert len(shared.calls) == 1
    engine.open.set()
    assert [request.finish().error for request in requests] == [None] * 3


def test_parts_of_a_request_are_put_in_order_whichever_pass_ends_first(engine, make_batcher):
    late, see = threading.Event(), engine._see

    def see_slowly(sequences):
        see(sequences)
        if [0, 0] in [list(sequence) for sequence in sequences]:
            assert late.wait(10)
        elif len(engine.calls) > 5:
            late.set()

    engine._see = see_slowly
    stand_in = BatchingEngine(make_batcher(budget=4, threads=2), engine)
    request = Request(lambda: stand_in.run([[n, n] for n in range(20)], None, 1)).finish()
    assert request.result[:, 0].tolist() == [2 * n for n in range(20)]


def test_a_sequence_longer_than_the_budget_makes_a_pass_of_its_own(engine, make_batcher):
    stand_in = BatchingEngine(make_batcher(budget=4), engine)
    request = Request(lambda: stand_in.run([[1], [2] * 9, [3]], None, 1)).finish()
    assert request.result[:, 0].tolist() == [1, 18, 3]
    assert [2] * 9 in [call[0] for call in engine.calls if len(call) == 1]


def test_a_small_request_overtakes_a_large_one(engine, make_batcher):
    batcher = make_batcher(budget=20)
    stand_in = BatchingEngine(batcher, engine)
    hold(engine, stand_in)
    large = Request(lambda: stand_in.run([[1] * 5] * 100, None, 1))
    wait_for(lambda: batcher.waiting_tokens == 500)
    small = Request(lambda: stand_in.run([[9]], None, 1))
    wait_for(lambda: batcher.waiting_tokens == 501)
    engine.open.set()
    assert small.finish().result.tolist() == [[9, 1]]
    assert large.finish().result.shape == (100, 2)
    # one pass was running; the small one is in the very next
    assert [9] in engine.calls[1]


def test_a_poisoned_request_fails_alone(engine, make_batcher):
    batcher = make_batcher()
    stand_in = BatchingEngine(batcher, engine)
    hold(engine, stand_in)
    good = [Request(lambda n=n: stand_in.run([[n]], None, 1)) for n in (1, 2, 3)]
    bad = Request(lambda: stand_in.run([[4], [666]], None, 1))
    wait_for(lambda: batcher.waiting_tokens == 5)
    engine.open.set()
    assert [request.finish().result.tolist() for request in good] == [[[n, 1]] for n in (1, 2, 3)]
    assert str(bad.finish().error) == "poisoned"
    assert Request(lambda: stand_in.run([[5]], None, 1)).finish().result.tolist() == [[5, 1]]


def test_a_poisoned_request_of_many_passes_leaves_nothing_behind(engine, make_batcher):
    batcher = make_batcher(budget=4)
    stand_in = BatchingEngine(batcher, engine)
    bad = Request(lambda: stand_in.run([[1]] * 10 + [[666]] + [[2]] * 50, None, 1)).finish()
    assert str(bad.error) == "poisoned"
    assert batcher.waiting_tokens == 0
    assert [666] in engine.calls[-1]


@pytest.mark.parametrize("why", ["deadline", "hung up"])
def test_work_nobody_waits_for_is_never_computed(engine, make_batcher, why):
    batcher = make_batcher()
    stand_in = BatchingEngine(batcher, engine)
    first = hold(engine, stand_in)
    late = Request(lambda: stand_in.run([[8]], None, 1), ticket_for(0.05 if why == "deadline" else 10))
    if why == "hung up":
        wait_for(lambda: batcher.waiting_tokens == 1)
        late.context.end(HttpError(499, "hung_up", "gone"))
    assert late.finish().error.status == (504 if why == "deadline" else 499)
    assert batcher.waiting_tokens == 0
    engine.open.set()
    first.finish()
    Request(lambda: stand_in.run([[9]], None, 1)).finish()
    assert [8] not in [sequence for call in engine.calls for sequence in call]


def test_a_request_that_ended_before_it_came_brings_no_work(engine, make_batcher):
    stand_in = BatchingEngine(make_batcher(), engine)
    context = ticket_for()
    context.end(too_late())
    assert Request(lambda: stand_in.run([[1]], None, 1), context).finish().error.status == 504
    assert not engine.calls


def test_too_many_waiting_tokens_are_refused_but_one_large_request_is_not(engine, make_batcher):
    batcher = make_batcher(most_tokens=50)
    stand_in = BatchingEngine(batcher, engine)
    hold(engine, stand_in)
    large = Request(lambda: stand_in.run([[1]] * 60, None, 1))
    wait_for(lambda: batcher.waiting_tokens == 60)
    refused = Request(lambda: stand_in.run([[2]], None, 1)).finish().error
    assert (refused.status, refused.code) == (429, "queue_full")
    assert refused.retry_after >= 1
    engine.open.set()
    assert large.finish().result.shape == (60, 2)


def test_a_request_may_not_make_more_tokens_than_it_is_allowed(engine, make_batcher):
    stand_in = BatchingEngine(make_batcher(), engine)

    def twice():
        stand_in.run([[1] * 6], None, 1)
        stand_in.run([[1] * 6], None, 1)

    error = Request(twice, ticket_for(tokens=10)).finish().error
    assert (error.status, error.code) == (413, "too_many_tokens")
    assert "12 tokens" in error.message
    assert len(engine.calls) == 1


def test_a_lone_request_does_not_wait_and_announced_ones_are_waited_for(engine, make_batcher):
    batcher = make_batcher(delay=30.0)
    stand_in = BatchingEngine(batcher, engine)
    # nobody else is being read: the delay does not apply
    assert Request(lambda: stand_in.run([[1]], None, 1)).finish().result.tolist() == [[1, 1]]
    other = ticket_for()
    batcher.announce(other)
    waits = Request(lambda: stand_in.run([[2]], None, 1))
    wait_for(lambda: batcher.waiting_tokens == 1)
    # 后来的一个还赶得上：前一个若没有等，两个就不会同时在等
    joins = Request(lambda: stand_in.run([[3]], None, 1))
    wait_for(lambda: batcher.waiting_tokens == 2)
    batcher.arrive(other)
    assert waits.finish().result.tolist() == [[2, 1]]
    assert joins.finish().result.tolist() == [[3, 1]]
    assert engine.calls[1:] == [[[2], [3]]]


def test_the_delay_ends_the_waiting(engine, make_batcher):
    batcher = make_batcher(delay=0.05)
    batcher.announce(ticket_for())
    stand_in = BatchingEngine(batcher, engine)
    assert Request(lambda: stand_in.run([[2]], None, 1)).finish().result.tolist() == [[2, 1]]


def test_every_pass_is_reported(engine, make_batcher):
    seen = []
    stand_in = BatchingEngine(make_batcher(observe=lambda *figures: seen.append(figures)), engine)
    Request(lambda: stand_in.run([[1, 2], [3]], None, 1)).finish()
    wait_for(lambda: seen)
    assert seen[0][:2] == (2, 3)


def test_closing_refuses_what_still_waits(engine):
    batcher = Batcher(budget=10, delay=0.0, most_tokens=100, threads=1)
    stand_in = BatchingEngine(batcher, engine)
    hold(engine, stand_in)
    waiting = Request(lambda: stand_in.run([[1]], None, 1))
    wait_for(lambda: batcher.waiting_tokens == 1)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    assert waiting.finish().error.status == 503
    engine.open.set()
    closing.join(10)
    assert Request(lambda: stand_in.run([[1]], None, 1)).finish().error.status == 503


def test_a_pipeline_called_outside_a_request_is_a_bug(engine, make_batcher):
    with pytest.raises(RuntimeError, match="outside a request"):
        BatchingEngine(make_batcher(), engine).run([[1]], None, 1)
