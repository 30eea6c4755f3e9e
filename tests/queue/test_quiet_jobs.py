"""Puts, deliveries and acknowledgements that need only a write, which a kernel makes: the same as by the slow path."""
import os
import random
import threading
import weakref

import pytest

import seglog
from seglog._kernels.journal_end import JournalEnd
from seglog._kernels.pending_set import PendingSet
from seglog._kernels.quick_lock import QuickLock
from seglog._kernels.quiet_cursor import QuietCursor
from seglog._kernels.quiet_dispatcher import QuietDispatcher
from seglog._kernels.quiet_lane import LeaseTables, QuietLane
from seglog.clock import ManualClock
from seglog.errors import (
    ForkedHandleError,
    InvalidArgumentError,
    LeaseLostError,
    LogClosedError,
    LogFailedError,
    StorageError,
)
from seglog.ledger.managed.appender import ManagedAppender
from seglog.queue import lane
from support.queue_model import NOW

OPTIONS = {"lease": 10, "max_attempts": 3, "retry_delay": 2, "retry_jitter": 0}


class SlowLane(lane.Lane):
    """A lane in which nothing is quiet: the obvious version, in Python."""

    def put_quietly(self, value):
        return None

    def take_quietly(self, lease_ns, taken):
        return False

    def finish_quietly(self, job, waits):
        return False


class CountedLane(lane.Lane):
    def put_quietly(self, value):
        id_ = super().put_quietly(value)
        counted["put"] += id_ is not None
        return id_

    def take_quietly(self, lease_ns, taken):
        was_quiet = super().take_quietly(lease_ns, taken)
        counted["taken"] += was_quiet
        return was_quiet

    def finish_quietly(self, job, waits):
        was_quiet = super().finish_quietly(job, waits)
        counted["finished"] += was_quiet
        return was_quiet


counted = {"put": 0, "taken": 0, "finished": 0}


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr("seglog.queue.queue.Lane", CountedLane)
    counted.update(put=0, taken=0, finished=0)
    return counted


def opened(path, clock, **options):
    return seglog.Queue(path, clock=clock, **(OPTIONS | options))


def state_of(queue):
    [only] = queue._in_order
    leases, cursor = only.leases, only._cursor
    return {
        "attempts": leases.attempts, "out": leases.out, "waiting": leases.waiting,
        "dead": {at: death.attempt for at, death in leases.dead.items()}, "next end": leases.next_end_ns(),
        "acknowledged": (cursor.mark_delete_position, cursor.acknowledged_entries), "covered": only._covered,
        "counts": {name: counter.value for name, counter in vars(only._counts).items()},
        "stats": queue.stats(), "journal": (only.managed_ledger.path / "queue.journal").read_bytes(),
    }


def one_step(queue, out, clock, name, number):
    """Returns what a caller sees."""
    try:
        match name:
            case "put":
                return queue.put(b"job %d" % number)
            case "put_late":
                return queue.put(b"late %d" % number, delay=number % 5)
            case "put_many":
                return queue.put_many([b"a", b"b"])
            case "get":
                job = queue.get(timeout=0)
                out += [job] if job is not None else []
                return job and (job.id, job.value, job.attempt)
            case "advance":
                clock.advance(number % 4 * 1000)
                return None
        if not out:
            return None
        job = out.pop(0 if name.endswith("oldest") else number % len(out))
        if name.startswith("ack"):
            return job.ack(wait=bool(number % 2))
        return job.nack() if name == "nack" else job.extend(number % 20 + 1)
    except LeaseLostError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(12))
def test_a_quiet_step_leaves_the_same_bytes_and_state_as_the_slow_path(in_memory, monkeypatch, seed, quiet):
    clocks = ManualClock(NOW), ManualClock(NOW)
    with opened(in_memory / "quiet", clocks[0]) as fast:
        monkeypatch.setattr("seglog.queue.queue.Lane", SlowLane)
        with opened(in_memory / "slow", clocks[1]) as slow:
            chance, outs = random.Random(seed), ([], [])
            # (Half of the programs have neither delayed jobs nor batches.)
            names = ["put", "put", "get", "get", "get", "ack oldest", "ack oldest", "ack any", "nack", "advance"]
            names += ["put_late", "put_many", "extend"] * (seed % 2)
            for _ in range(150):
                name, number = chance.choice(names), chance.randrange(100)
                answers = [
                    one_step(queue, out, clock, name, number)
                    for queue, out, clock in zip((fast, slow), outs, clocks, strict=True)
                ]
                assert answers[0] == answers[1], (name, number)
            assert state_of(fast) == state_of(slow)
    assert quiet["put"] > 10
    assert quiet["taken"] > 10
    assert quiet["finished"] > 5


def test_jobs_one_after_the_other_are_quiet(path, clock, quiet):
    with opened(path, clock) as jobs:
        for _ in range(20):
            jobs.put(b"a")
            jobs.get(timeout=0).ack()
    assert quiet["put"] >= 19
    assert quiet["taken"] >= 18
    assert quiet["finished"] >= 18


def test_what_is_acknowledged_quietly_does_not_come_again(path, clock, quiet):
    with opened(path, clock) as jobs:
        for number in range(30):
            jobs.put(b"%d" % number)
        for _ in range(20):
            jobs.get(timeout=0).ack()
    assert quiet["finished"] >= 15
    with opened(path, clock) as jobs:
        assert [job.value for job in jobs.get_many(100, timeout=0)] == [b"%d" % number for number in range(20, 30)]


@pytest.mark.parametrize("options", [
    {"key": "k"}, {"delay": 1}, {"properties": {"a": "b"}}, {"unique_for": 5, "key": "k"}, {"priority": 3},
])
def test_a_job_with_more_than_a_value_is_put_with_all_of_it(path, clock, quiet, options):
    with opened(path, clock) as jobs:
        jobs.put(b"a")
        before = quiet["put"]
        jobs.put(b"b", **options)
        assert quiet["put"] == before
        clock.advance(2_000)
        [job] = [job for job in jobs.get_many(5, timeout=0) if job.value == b"b"]
        assert job.key == options.get("key")
        assert job.properties == options.get("properties", {})


@pytest.mark.parametrize("value", [bytearray(b"v"), memoryview(b"v")])
def test_a_value_that_is_not_bytes_is_put_as_before(path, clock, quiet, value):
    with opened(path, clock) as jobs:
        jobs.put(value)
        assert jobs.get(timeout=0).value == b"v"
        with pytest.raises(InvalidArgumentError):
            jobs.put("text")
    assert quiet["put"] == 0


def test_quiet_puts_are_delivered_in_order_also_beyond_those_kept_in_memory(path, clock, quiet):
    with opened(path, clock) as jobs:
        ids = [jobs.put(b"%d" % number) for number in range(3 * lane.READ_AHEAD)]
        taken = [jobs.get(timeout=0) for _ in ids]
        assert [job.id for job in taken] == ids
        assert [job.value for job in taken] == [b"%d" % number for number in range(len(ids))]
        assert jobs.get(timeout=0) is None


def test_a_closed_queue_is_not_quiet(path, clock, quiet):
    jobs = opened(path, clock)
    jobs.put(b"a")
    jobs.put(b"b")
    job = jobs.get(timeout=0)
    jobs.close()
    with pytest.raises(LogClosedError):
        jobs.get(timeout=0)
    with pytest.raises(LogClosedError):
        job.ack()
    with pytest.raises(LogClosedError, match="queue was closed"):
        jobs.put(b"c")


def test_a_paused_queue_is_not_quiet(path, clock, quiet):
    with opened(path, clock) as jobs:
        jobs.put(b"a")
        jobs.pause()
        assert jobs.get(timeout=0) is None
        jobs.resume()
        assert jobs.get(timeout=0).value == b"a"


def test_a_forked_child_is_refused(path, clock, quiet):
    with opened(path, clock) as jobs:
        jobs.put(b"a")
        jobs.put(b"b")
        job = jobs.get(timeout=0)
        child = os.fork()
        if not child:
            status = 0
            try:
                for call in (lambda: jobs.get(timeout=0), job.ack, lambda: jobs.put(b"c")):
                    try:
                        call()
                    except ForkedHandleError:
                        status += 1
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        job.ack()
        assert jobs.get(timeout=0).value == b"b"


def test_a_job_that_had_all_its_attempts_is_dead_instead_of_delivered(path, clock, quiet):
    with opened(path, clock, max_attempts=1) as jobs:
        jobs.put(b"a")
        assert jobs.get(timeout=0).attempt == 1
        clock.advance(11_000)
        assert jobs.get(timeout=0) is None
        assert [job.value for job in jobs.dead] == [b"a"]


def test_a_job_whose_lease_ended_comes_before_new_ones(path, clock, quiet):
    with opened(path, clock) as jobs:
        jobs.put(b"a")
        jobs.get(timeout=0)
        jobs.put(b"b")
        clock.advance(11_000)
        assert [jobs.get(timeout=0).value for _ in range(2)] == [b"a", b"b"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_job_that_is_due_again_within_a_second_comes_before_new_ones(path, clock, quiet, is_refused):
    # (Later, delayed jobs are looked for anyway, which is not quiet.)
    with opened(path, clock, lease=10 if is_refused else 0.3, retry_delay=0.2) as jobs:
        for _ in range(3):
            jobs.put(b"w")
            jobs.get(timeout=0).ack()
        jobs.put(b"a")
        job = jobs.get(timeout=0)
        if is_refused:
            job.nack()
        jobs.put(b"b")
        jobs.put(b"c")
        before = quiet["taken"]
        assert jobs.get(timeout=0).value == b"b"
        assert quiet["taken"] == before + 1
        clock.advance(400)
        assert jobs.get(timeout=0).value == b"a"


def test_a_delayed_job_that_is_due_comes_before_new_ones(path, clock, quiet):
    with opened(path, clock) as jobs:
        jobs.put(b"late", delay=5)
        jobs.put(b"a")
        jobs.put(b"b")
        assert jobs.get(timeout=0).value == b"a"
        clock.advance(5_001)
        assert jobs.get(timeout=0).value == b"late"


@pytest.mark.parametrize("step", ["get", "ack"])
def test_a_journal_that_cannot_be_written_hands_out_and_finishes_nothing(path, clock, step, quiet, monkeypatch):
    jobs = opened(path, clock)
    for _ in range(3):
        jobs.put(b"a")
    job = jobs.get(timeout=0)
    [only] = jobs._in_order

    def refused(data):
        raise StorageError("no")

    only._journal._file._fd, fd = -1, only._journal._file._fd
    monkeypatch.setattr(type(only._journal._file), "append", lambda self, *data: refused(data))
    with pytest.raises((LogFailedError, StorageError)):
        jobs.get(timeout=0) if step == "get" else job.ack()
    monkeypatch.undo()
    only._journal._file._fd = fd
    with pytest.raises(LogFailedError):
        jobs.get(timeout=0) if step == "get" else job.ack()
    jobs.close()
    with opened(path, clock) as jobs:
        # The one that was out, the one that was not handed out, and the rest.
        assert sorted(job.attempt for job in jobs.get_many(10, timeout=0)) == [1, 1, 2]


def test_a_lane_or_journal_without_its_fields_is_refused():
    bare = QuietLane()
    with pytest.raises(TypeError, match="without its fields"):
        bare.take_quietly(1, [])
    with pytest.raises(TypeError, match="without its fields"):
        bare.put_quietly(b"a")
    with pytest.raises(TypeError, match="without its fields"):
        bare.finish_quietly(object(), True)
    with pytest.raises(TypeError, match="job"):
        bare.finish_quietly(None, True)
    with pytest.raises(TypeError, match="without a file"):
        JournalEnd().sync()
    with pytest.raises(TypeError, match="without its fields"):
        QuietDispatcher()._hand_over((1, 2))
    dispatcher = QuietDispatcher()
    dispatcher._lock, dispatcher._cursor, dispatcher._read = QuickLock(), QuietCursor(), []
    dispatcher._taken = PendingSet(set)
    with pytest.raises(TypeError, match="without its fields"):
        dispatcher._hand_over((1, 2))


@pytest.fixture
def usable(path, clock):
    """A lane with a ready job and one that is out, whose journal is long enough for quiet steps."""
    with opened(path, clock) as jobs:
        for _ in range(4):
            jobs.put(b"a")
        jobs.get(timeout=0).ack()
        jobs.get(timeout=0)
        [only] = jobs._in_order
        yield only
        only.leases._ends.clear()
        only._ready.clear()


@pytest.mark.parametrize("at", [(1, 2), (1, 2, "x"), [1, 2, -1], (2**70, 0, -1), (1, 2, -1, 4), None])
def test_what_is_no_message_is_refused(usable, at):
    usable._ready[0]._at = at
    with pytest.raises((TypeError, OverflowError)):
        usable.take_quietly(10, [])


@pytest.mark.parametrize("at", [(1, 2), (1, 2, "x"), [1, 2, -1], (2**70, 0, -1), (1, 2, -1, 4), None])
def test_what_is_no_message_is_not_acknowledged(usable, at):
    class Strange:
        _at = at

    if isinstance(at, tuple):
        usable.leases.out[at] = (1, 2**62)
    with pytest.raises((TypeError, OverflowError)):
        usable.finish_quietly(Strange(), True)
    usable.leases.out.pop(at, None) if isinstance(at, tuple) else None


@pytest.mark.parametrize("kind", [int, object, None, 7])
def test_jobs_and_leases_of_another_class_are_refused(usable, kind):
    usable._job_kind, usable.leases._lease_kind = kind, kind
    with pytest.raises(TypeError, match="a class of tuples"):
        usable.take_quietly(10, [])
    usable._is_torn = False
    usable._ready.clear()
    with pytest.raises(TypeError, match="a class of jobs"):
        usable.put_quietly(b"b")


@pytest.mark.parametrize("at", [None, 7, [0, 3], ("x", "y"), (0, 2**70)])
def test_a_cursor_at_what_is_no_position_goes_the_slow_way(path, clock, at):
    with opened(path, clock) as jobs:
        jobs.put(b"a")
        cursor = jobs._in_order[0]._cursor
        before, cursor._read = cursor._read, at
        try:
            jobs.put(b"b")
        except (TypeError, AttributeError):
            pass        # (the slow way compares it)
        finally:
            cursor._read = before
        assert jobs.stats().ready == 2


@pytest.mark.parametrize("time", [7, None, (), (1,), (1, 2, 3), ("x", 1), (2**70, 1)])
def test_times_that_are_none_are_refused(usable, time):
    assert isinstance(usable.leases, LeaseTables)
    usable.leases._ends[:] = [time]
    with pytest.raises((TypeError, OverflowError)):
        usable.take_quietly(10, [])


def test_a_put_keeps_what_it_uses_though_the_queue_is_reopened_while_it_waits_for_the_disk(path):
    # As `purge` does on a full disk.
    with seglog.Queue(path) as jobs:
        jobs.put(b"x")
        [only] = jobs._in_order
        ledger = only.managed_ledger
        end = ledger._shown.extent.active.writer.active
        has_begun, may_go_on, sync, ids = threading.Event(), threading.Event(), end.sync, []

        def held():
            has_begun.set()
            assert may_go_on.wait(120)
            sync()

        end.sync = held
        putting = threading.Thread(target=lambda: ids.append(jobs.put(b"y")))
        putting.start()
        assert has_begun.wait(120)
        used, another = weakref.ref(only._adds), ManagedAppender(ledger._tail)
        another._listeners = only._adds._listeners
        only._adds = ledger._appender = another
        was_kept = used() is not None
        may_go_on.set()
        putting.join()
        assert was_kept
        assert ids == ["0:1"]
