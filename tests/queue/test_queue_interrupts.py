"""^C anywhere in a call of a queue: it is usable then, nothing that was put is lost, nothing comes after its
acknowledgement returned, each delivery is counted, and no thread waits forever."""
import gc
import os
import time

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import LogClosedError, LogLockedError
from seglog.queue import journaled_ledger
from support.interrupts import Interrupted, Interrupter, interrupted_at_each_opcode, uninterrupted, with_loses_exits
from support.queue_model import left_in
from support.waiting import wait_for

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
pytestmark = [
    pytest.mark.skipif(with_loses_exits(), reason="an interrupt makes `with` keep its lock: processes.md"),
    pytest.mark.usefixtures("no_collector_hooks"),
]


class Watched:
    """A queue, and what callers were told of it."""

    def __init__(self, directory):
        self.path = directory / "jobs"
        self.clock = ManualClock(1_700_000_000_000)
        self.queue = self.opened()
        self.number = 0
        self.put_returned, self.begun, self.acked, self.acking = set(), set(), set(), set()
        self.attempts = {}

    def opened(self):
        return seglog.Queue(
            self.path, clock=self.clock, lease=10, max_attempts=None, retry_delay=1, fsync="never",
            config={"managedLedgerMaxEntriesPerLedger": 20},
        )

    def put(self, **options):
        value = b"%d" % self.number
        self.number += 1
        self.begun.add(value)
        self.queue.put(value, **options)
        self.put_returned.add(value)

    def put_many(self):
        values = [b"%d" % (self.number + n) for n in range(3)]
        self.number += 3
        self.begun.update(values)
        self.queue.put_many(values)
        self.put_returned.update(values)

    def ack(self, job):
        self.acking.add(job.value)
        job.ack()
        self.acked.add(job.value)

    def drained(self):
        """All jobs that can be had, once every lease is over."""
        self.clock.advance(3_600_000)
        found = self.queue.get_many(10_000, timeout=0)
        for job in found:
            assert job.attempt > self.attempts.get(job.value, 0), job
            self.attempts[job.value] = job.attempt
        return found

    def check(self, where):
        with uninterrupted():
            found = [job.value for job in self.drained()]
            assert len(set(found)) == len(found), where
            assert self.put_returned - self.acking <= set(found), where
            assert not self.acked & set(found), where
            assert set(found) <= self.begun, where
            while len(found) > 12:
                self.ack(self.queue.get(timeout=0) or self.drained()[0])
                found.pop()


def take_and(finish):
    def action(watched):
        with uninterrupted():
            watched.put()
            job = watched.drained()[-1]
        finish(watched, job)
    return action


def in_a_block(watched, job):
    watched.acking.add(job.value)
    with job:
        pass
    watched.acked.add(job.value)


ACTIONS = {
    "put": lambda watched: watched.put(),
    "put delayed": lambda watched: watched.put(delay=5),
    "put many": lambda watched: watched.put_many(),
    "get": take_and(lambda watched, job: (job.nack(0), watched.queue.get_many(5, timeout=0))),
    "get what is due": lambda watched: (watched.put(delay=1), watched.drained()),
    "ack": take_and(Watched.ack),
    "block": take_and(in_a_block),
    "nack": take_and(lambda watched, job: job.nack()),
    "extend": take_and(lambda watched, job: job.extend(5)),
    "stats": lambda watched: watched.queue.stats(),
    "peek": lambda watched: watched.queue.peek(5),
    "requeue": lambda watched: watched.queue.dead.requeue(),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_interrupt_at_any_instruction_leaves_the_queue_usable(in_memory, monkeypatch, name):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 4_000)
    watched = Watched(in_memory)
    for _ in range(3):
        watched.put()
    interrupted_at_each_opcode(lambda: watched, ACTIONS[name], Watched.check, step=1 if TORTURE else 131)
    watched.queue.close()
    attempts, _ = left_in(watched.path, watched.clock)
    assert watched.put_returned - watched.acking <= attempts.keys()
    assert not watched.acked & attempts.keys()


def test_an_interrupted_purge_has_removed_all_or_can_be_repeated(in_memory):
    watched = Watched(in_memory)

    def purge(_):
        with uninterrupted():
            watched.put()
            watched.put_many()
        watched.queue.purge()

    def check(_, where):
        with uninterrupted():
            watched.drained()
            watched.queue.purge()
            assert watched.drained() == [], where

    interrupted_at_each_opcode(lambda: None, purge, check, step=1 if TORTURE else 43)
    watched.queue.close()


def reopened(watched, found):
    """Whether it could be opened. A thread of one that was opened, and that nobody got, may have it for a moment."""
    gc.collect()
    try:
        found.append(watched.opened())
    except LogLockedError:
        return False
    return True


# (One that nobody got says so when it is collected.)
@pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")
@pytest.mark.parametrize("call", ["open", "close"])
def test_an_interrupted_opening_or_closing_leaves_the_directory_free(in_memory, call):
    watched = Watched(in_memory)
    watched.put()
    watched.drained()
    watched.queue.close()

    def act(_):
        if call == "open":
            watched.queue = watched.opened()
        watched.queue.close()

    def prepare():
        with uninterrupted():
            if call == "close":
                watched.queue = watched.opened()

    def check(_, where):
        with uninterrupted():
            watched.queue.close()
            with pytest.raises(LogClosedError):
                watched.queue.get(timeout=0)
            found = []
            wait_for(lambda: reopened(watched, found))
            with found[0] as queue:
                assert len(queue.peek(5)) == 1, where

    interrupted_at_each_opcode(prepare, act, check, step=7 if TORTURE else 211)


def taken_in_a_loop(queue, got):
    for job in queue:
        with job:
            got.append(job)
            return


TAKING = {
    "get": lambda queue, got: got.append(queue.get(timeout=0)),
    "get with a lease": lambda queue, got: got.append(queue.get(timeout=0, lease=5)),
    "get_many": lambda queue, got: got.append(queue.get_many(2, timeout=0)),
    "loop": taken_in_a_loop,
}


# (An interrupt while a connection is made leaves a socket to the collector.)
@pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning", "ignore:.*<socket.socket")
@pytest.mark.parametrize("kind", ["queue", "attached", "topic"])
@pytest.mark.parametrize("name", TAKING)
def test_what_is_taken_when_an_interrupt_comes_is_there_at_once(in_memory, kind, name):
    clock = ManualClock(1_700_000_000_000)
    options = {"clock": clock, "fsync": "never"}
    if kind == "topic":
        home = seglog.Topic(in_memory / "home", **options)
        taker = home.subscribe("s", kind="shared", start="earliest", max_attempts=None)
        put = home.publish
    else:
        home = seglog.Queue(in_memory / "home", attach=kind == "attached", max_attempts=None, **options)
        taker = seglog.Queue(in_memory / "home", attach=True, **options) if kind == "attached" else home
        put = home.put
    with home, taker:
        put(b"a")
        got = []

        def check(_, where):
            with uninterrupted():
                if not got:
                    job = taker.get(timeout=5 if kind == "attached" else 0)
                    assert job is not None, where
                    job.ack()
                taker.ack(taker.get_many(9, timeout=0))
                got.clear()
                put(b"a")

        def take(_=None):
            TAKING[name](taker, got)

        # Most instructions come before the delivery.
        counter = Interrupter(10**9)
        counter.run(take)
        check(None, "nowhere")
        first = 0 if TORTURE else max(10**9 - counter.left - 200, 0)
        interrupted_at_each_opcode(lambda: None, take, check, step=1 if TORTURE else 5, first=first)


def test_an_interrupted_waiting_takes_nothing(in_memory):
    import _thread
    import threading

    with seglog.Queue(in_memory / "jobs") as queue:
        threading.Timer(0.05, _thread.interrupt_main).start()
        began = time.monotonic()
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            queue.get(timeout=30)
        assert time.monotonic() - began < 10
        queue.put(b"x")
        assert queue.get(timeout=0).attempt == 1
