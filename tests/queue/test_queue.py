"""A queue of jobs: what its calls promise, one by one."""
import asyncio
import errno
import functools
import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptJournalError,
    InvalidArgumentError,
    LeaseLostError,
    LogClosedError,
    LogFailedError,
    LogLockedError,
    NotALogError,
    RecordTooLargeError,
    StorageError,
)
from seglog.ledger.managed.cursor_file import CursorState
from seglog.ledger.managed.journal import FILE_NAME
from seglog.ledger.managed.managed_ledger import OpenManagedLedger
from seglog.pulsar import ManagedLedger
from seglog.queue import journaled_ledger, lane
from seglog.queue.queue import PutCall
from support.faultfs import FailingFs, HeldSyncFs, RecordingFs
from support.queue_model import NOW, left_in
from support.waiting import wait_for


@pytest.fixture
def jobs(path, clock):
    with seglog.Queue(path, clock=clock, lease=10, max_attempts=3, retry_delay=2, retry_jitter=0) as queue:
        yield queue


def values(queue, count=100):
    return [job.value for job in queue.get_many(count, timeout=0)]


# --- putting and taking ----------------------------------------------------------------------


def test_a_job_has_what_was_put(jobs):
    put_id = jobs.put(b"value", key=b"\x00\xff", properties={"to": "ü"})
    jobs.put(b"", key="text")
    job = jobs.get(timeout=0)
    assert (job.id, job.value, job.key, job.properties, job.attempt) == (put_id, b"value", b"\x00\xff", {"to": "ü"}, 1)
    assert job.enqueued_at == job.due_at == datetime.fromtimestamp(NOW / 1000, UTC)
    other = jobs.get(timeout=0)
    assert (other.value, other.key, other.properties) == (b"", "text", {})
    assert jobs.get(timeout=0) is None


def test_jobs_come_in_the_order_in_which_they_were_put(jobs):
    for n in range(300):
        jobs.put(b"%d" % n)
    assert values(jobs, 7) == [b"%d" % n for n in range(7)]
    assert values(jobs, 1000) == [b"%d" % n for n in range(7, 300)]


def test_a_delayed_job_is_not_early(jobs, clock):
    jobs.put(b"delayed", delay=5)
    jobs.put(b"at", at=datetime.fromtimestamp(NOW / 1000 + 7, UTC))
    jobs.put(b"delta", delay=timedelta(seconds=3))
    jobs.put(b"now")
    assert values(jobs) == [b"now"]
    clock.advance(2_999)
    assert values(jobs) == []
    clock.advance(1)
    assert values(jobs) == [b"delta"]
    clock.advance(1_999)
    assert values(jobs) == []
    clock.advance(1)
    assert values(jobs) == [b"delayed"]
    clock.advance(2_000)
    assert values(jobs) == [b"at"]


def test_a_delayed_job_that_is_due_does_not_wait_for_jobs_that_were_read_ahead(jobs, clock):
    jobs.put_many([b"%d" % n for n in range(4)])
    jobs.put(b"later", delay=7)
    jobs.put(b"delayed", delay=5)
    jobs.put_many([b"of", b"a batch"], delay=6)
    assert values(jobs, 1) == [b"0"]
    jobs.put(b"last")
    clock.advance(6_000)
    assert values(jobs, 2) == [b"delayed", b"of"]
    clock.advance(1_000)
    assert values(jobs) == [b"a batch", b"later", b"1", b"2", b"3", b"last"]


def test_a_job_that_is_taken_soon_is_not_read_back_from_the_disk(jobs, monkeypatch):
    reads = []
    read = OpenManagedLedger._read_run
    monkeypatch.setattr(OpenManagedLedger, "_read_run", lambda *args: reads.append(args) or read(*args))
    for n in range(3 * lane.READ_AHEAD):
        put_id = jobs.put(b"%d" % n, key=b"\xff", properties={"a": "b"})
        job = jobs.get(timeout=0)
        assert (job.value, job.id, job.key, job.properties) == (b"%d" % n, put_id, b"\xff", {"a": "b"})
        job.ack()
    assert len(reads) <= 3
    for n in range(3 * lane.READ_AHEAD):        # a few are kept in memory, the others are read
        jobs.put(b"%d" % n)
    assert len(jobs._lane(0)._ready) <= lane.READ_AHEAD
    assert values(jobs, 1000) == [b"%d" % n for n in range(3 * lane.READ_AHEAD)]


def test_jobs_of_threads_that_put_at_once_are_each_taken_once_in_the_order_of_their_ids(path):
    with seglog.Queue(path) as jobs:
        threads = [
            threading.Thread(target=lambda n=n: [jobs.put(b"%d %d" % (n, one)) for one in range(40)]) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        taken = jobs.get_many(1000, timeout=0)
        assert len({job.value for job in taken}) == len(taken) == 160
        assert [job._at for job in taken] == sorted(job._at for job in taken)


def test_only_what_is_due_is_read_of_ten_entries_of_which_eight_are_delayed(jobs):
    jobs.put(b"0")
    for n in range(1, 9):
        jobs.put(b"%d" % n, delay=100)
    jobs.put(b"9")
    assert values(jobs) == [b"0", b"9"]
    assert jobs.stats().delayed == 8


def test_a_higher_priority_comes_first_always(jobs, path, clock):
    for n in range(3):
        jobs.put(b"low %d" % n, priority=-5)
        jobs.put(b"normal %d" % n)
        jobs.put(b"high %d" % n, priority=9)
    assert values(jobs, 4) == [b"high 0", b"high 1", b"high 2", b"normal 0"]
    late = jobs.put(b"late", priority=100)
    assert late.startswith("100/")
    assert values(jobs, 1) == [b"late"]
    jobs.close()
    with seglog.Queue(path, clock=clock) as again:
        found = values(again)
        assert found == [b"late", *(b"high %d" % n for n in range(3)), *(b"normal %d" % n for n in range(3)),
                         *(b"low %d" % n for n in range(3))]
        assert again.stats().in_flight == 10


def test_put_many_makes_one_entry_of_jobs_that_finish_one_by_one(jobs, path, clock):
    ids = jobs.put_many([b"a", ("k", b"b"), b"c"], properties={"x": "y"})
    assert len(set(ids)) == 3
    first, second, third = jobs.get_many(10, timeout=0)
    assert [job.id for job in (first, second, third)] == ids
    assert (second.key, second.properties, first.key) == ("k", {"x": "y"}, None)
    first.ack()
    third.nack(delay=60)
    jobs.close()
    with seglog.Queue(path, clock=clock, lease=1000) as again:
        assert [(job.value, job.attempt) for job in again.get_many(10, timeout=0)] == [(b"b", 2)]
        assert again.stats().waiting == 1
        clock.advance(60_000)
        assert [(job.value, job.attempt) for job in again.get_many(10, timeout=0)] == [(b"c", 2)]


def test_put_many_is_cut_into_entries_of_a_thousand_jobs_and_of_a_mebibyte(jobs):
    assert len(set(jobs.put_many(b"%d" % n for n in range(2_500)))) == 2_500
    jobs.put_many([bytes(600_000)] * 3)
    assert jobs._lane(0).managed_ledger.entry_count == 3 + 3
    assert jobs.stats().ready == 2_503
    assert jobs.put_many([]) == []


@pytest.mark.parametrize("wrong", [
    {"delay": -1}, {"delay": "5"}, {"delay": float("nan")}, {"delay": True}, {"delay": 1e30}, {"at": 5},
    {"at": datetime(2030, 1, 1)}, {"at": datetime(1960, 1, 1, tzinfo=UTC)},
    {"delay": 1, "at": datetime.now(UTC)}, {"priority": 101}, {"priority": 1.0}, {"priority": True}, {"key": 5},
    {"properties": {"a": 5}}, {"properties": 5},
])
def test_wrong_arguments_of_put_are_refused(jobs, wrong):
    with pytest.raises(InvalidArgumentError):
        jobs.put(b"x", **wrong)
    if "key" not in wrong:
        with pytest.raises(InvalidArgumentError):
            jobs.put_many([b"x"], **wrong)
    assert jobs.stats().backlog == 0


def test_wrong_values_are_refused(jobs):
    for wrong in ("text", 5, None):
        with pytest.raises(InvalidArgumentError):
            jobs.put(wrong)
        with pytest.raises(InvalidArgumentError):
            jobs.put_many([b"good", wrong])
    assert jobs.stats().backlog == 0


def test_a_value_and_a_delay_of_another_type_get_a_hint_that_mends_them(jobs):
    for put in (lambda: jobs.put({"a": 1}), lambda: jobs.put_many([b"good", {"a": 1}])):
        with pytest.raises(InvalidArgumentError, match="must be bytes") as refused:
            put()
        assert "json.dumps(value).encode()" in refused.value.hint
    for wait in (lambda: jobs.put(b"x", delay="10s"), lambda: jobs.get(lease="10s", timeout=0)):
        with pytest.raises(InvalidArgumentError, match="must be seconds or a timedelta, not '10s'") as refused:
            wait()
        assert "timedelta(seconds=10)" in refused.value.hint


def test_purge_counts_jobs_not_entries(jobs):
    jobs.put_many([b"%d" % n for n in range(5)])
    jobs.put(b"single")
    jobs.get(timeout=0).ack()
    assert jobs.purge() == 5
    assert jobs.purge() == 0


def test_values_without_bytes_and_with_gaps_are_values(jobs):
    gaps = memoryview(b"a-b-c-")[::2]
    assert len(jobs.put_many([b"", (None, b""), gaps])) == 3
    jobs.put(gaps)
    jobs.put(b"")
    assert values(jobs) == [b"", b"", b"abc", b"abc", b""]


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", "text", object(), float("nan")])
def test_what_is_no_list_is_refused(jobs, wrong):
    for call in (jobs.put_many, jobs._put_all, jobs.ack, jobs.release):
        with pytest.raises(InvalidArgumentError):
            call(wrong)
    if wrong is not None:
        with pytest.raises(InvalidArgumentError):
            jobs.dead.requeue(wrong)


@pytest.mark.parametrize("wrong", [None, 5, b"v", (), (b"k", b"v"), (b"v", None, None, None, None, 0), "sixlet"])
def test_items_of_the_wrong_kind_are_refused_one_by_one(jobs, wrong):
    good, bad = jobs._put_all([PutCall(b"good"), wrong])
    assert isinstance(bad, InvalidArgumentError)
    for call in (jobs.ack, jobs.release):
        with pytest.raises(InvalidArgumentError):
            call([wrong])
    [job] = jobs.get_many(5, timeout=0)
    assert job.id == good
    assert jobs.dead.peek(2**80) == []


class Unreadable(dict):
    def items(self):
        raise RuntimeError("no items today")


@pytest.mark.parametrize("attach", [False, True])
def test_an_error_of_one_callers_own_object_is_the_answer_of_no_other(path, attach):
    with seglog.Queue(path, attach=attach) as jobs:
        good, bad, other = jobs._put_all(
            [PutCall(b"good"), PutCall(b"x", properties=Unreadable(a="b")), PutCall(b"other")])
        assert isinstance(bad, RuntimeError)
        assert [job.id for job in jobs.get_many(5, timeout=0)] == [good, other]


@pytest.mark.parametrize("wrong", [
    {"lease": 0}, {"lease": -1}, {"lease": "1"}, {"max_attempts": 0}, {"max_attempts": 1.5}, {"max_attempts": True},
    {"retry_delay": -1}, {"retry_jitter": 2}, {"retry_jitter": "1"}, {"fsync": "always"}, {"config": {"no.key": 1}},
])
def test_wrong_options_are_refused(path, wrong):
    with pytest.raises(InvalidArgumentError):
        seglog.Queue(path, **wrong)


def test_a_queue_that_must_exist(path):
    with pytest.raises(NotALogError):
        seglog.Queue(path, create=False)
    seglog.Queue(path).close()
    seglog.Queue(path, create=False).close()


def test_a_priority_that_is_used_first_while_the_queue_is_closed_is_closed_too(path, monkeypatch):
    """Its lane was opened behind the back of `close`, and kept the lock of its directory."""
    jobs, begun, goes_on = seglog.Queue(path, fsync="never"), threading.Event(), threading.Event()
    open_lane = jobs._open_lane

    def late(priority):
        begun.set()
        assert goes_on.wait(30)
        return open_lane(priority)

    def put():
        with suppress(LogClosedError):
            jobs.put(b"a", priority=5)

    monkeypatch.setattr(jobs, "_open_lane", late)
    threads = [threading.Thread(target=put), threading.Thread(target=jobs.close)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    wait_for(lambda: jobs.closed)
    time.sleep(0.01)        # `close` waits for the lock
    goes_on.set()
    for thread in threads:
        thread.join(30)
    with seglog.Queue(path) as again:
        again.put(b"b", priority=5)


def test_a_lease_that_runs_out_is_logged_once_for_each_job(path, clock, caplog):
    with seglog.Queue(path, clock=clock, lease=5, fsync="never") as jobs:
        for value in (b"a", b"b", b"c"):
            jobs.put(value)
        for _ in range(3):
            taken = sorted(jobs.get_many(3, timeout=0), key=lambda job: job.id)
            taken[1].extend(0)      # its worker lets it go
            taken[2].extend(60)
            clock.advance(5_000)
            assert jobs.stats().in_flight == 1
            taken[2].extend(0)
    [line] = caplog.messages
    assert "the lease of job 0:0 ran out at attempt 1, and it is delivered again: call job.extend()" in line
    assert "lease=; it is 5 s" in line


@pytest.mark.parametrize("opened", [
    seglog.Queue, functools.partial(seglog.Queue, attach=True), seglog.Topic, seglog.pulsar.ManagedLedger,
])
def test_a_directory_of_something_else_and_a_file_are_refused_and_left_alone(path, opened):
    path.mkdir()
    (path / "page.md").write_text("a page")
    with pytest.raises(NotALogError, match=r"not a (queue: it has no queue.journal|topic|managed ledger)") as told:
        opened(path)
    assert "new or empty" in told.value.hint
    assert os.listdir(path) == ["page.md"]
    for file in (path / "page.md", path / "page.md/jobs"):
        with pytest.raises(NotALogError, match=r"expected a directory, found a file.*page.md"):
            opened(file)
    (path / "page.md").rename(path / ".hidden")
    opened(path).close()


def test_wrong_arguments_of_the_other_calls(jobs):
    for call in (lambda: jobs.get(timeout="1"), lambda: jobs.get_many(0), lambda: jobs.get_many(1.0),
                 lambda: jobs.peek(0), lambda: jobs.dead.peek(0), lambda: jobs.ack([5]), lambda: jobs.ack([None]),
                 lambda: jobs.dead.requeue([5])):
        with pytest.raises(InvalidArgumentError):
            call()


# --- leases ----------------------------------------------------------------------------------


def test_a_job_whose_lease_ran_out_is_delivered_again(jobs, clock):
    jobs.put(b"x")
    first = jobs.get(timeout=0)
    clock.advance(9_999)
    assert jobs.get(timeout=0) is None
    clock.advance(1)
    second = jobs.get(timeout=0)
    assert (first.attempt, second.attempt) == (1, 2)
    with pytest.raises(LeaseLostError, match="delivered again, attempt 2"):
        first.nack()
    with pytest.raises(LeaseLostError):
        first.extend()
    first.ack()         # it counts: the work is done
    assert jobs.stats().backlog == 0
    second.ack()
    with pytest.raises(LeaseLostError, match="acknowledged"):
        second.nack()
    clock.advance(60_000)
    assert jobs.get(timeout=0) is None


def test_a_lease_is_extended_and_given(jobs, clock):
    jobs.put(b"x")
    job = jobs.get(timeout=0, lease=20)
    clock.advance(19_000)
    assert jobs.get(timeout=0) is None
    job.extend(30)
    clock.advance(29_000)
    assert jobs.get(timeout=0) is None
    job.extend()
    clock.advance(9_000)
    assert jobs.get(timeout=0) is None
    clock.advance(1_000)
    assert jobs.get(timeout=0).attempt == 2


def test_the_wall_clock_ends_no_lease(jobs, clock):
    """A lease is measured by the clock that nobody sets."""
    jobs.put(b"x")
    jobs.get(timeout=0)
    clock._now_ms += 3_600_000
    assert jobs.get(timeout=0) is None


def test_a_late_acknowledgement_counts_for_what_is_ready_again_and_what_waits(jobs, clock):
    jobs.put_many([b"a", b"b", b"c"])
    a, b, c = jobs.get_many(3, timeout=0)
    b.nack()
    for _ in range(2):
        clock.advance(10_000)
        for job in jobs.get_many(3, timeout=0):
            if job.value == b"c":
                job.nack(0)
    clock.advance(10_000)
    assert jobs.get_many(3, timeout=0) == []        # all three are dead
    assert len(jobs.dead) == 3
    a.ack()
    b.ack()
    c.ack()
    assert len(jobs.dead) == 0
    assert jobs.stats().backlog == 0


def test_jobs_in_flight_are_delivered_again_at_once_by_the_next_opening(jobs, path, clock):
    jobs.put(b"x")
    job = jobs.get(timeout=0)
    jobs.close()
    with pytest.raises(LogClosedError):
        job.ack()
    with seglog.Queue(path, clock=clock) as again:
        assert again.get(timeout=0).attempt == 2


# --- failing ---------------------------------------------------------------------------------


def test_a_refused_job_comes_back_after_a_time_that_doubles(path, clock):
    with seglog.Queue(path, clock=clock, retry_delay=2, max_retry_delay=5, retry_jitter=0.5, chance=lambda: 0.5,
                      max_attempts=None) as jobs:
        jobs.put(b"x")
        for wait_ms in (2_500, 5_000, 6_250, 6_250):
            jobs.get(timeout=0).nack()
            clock.advance(wait_ms - 1)
            assert jobs.get(timeout=0) is None
            clock.advance(1)
        jobs.get(timeout=0).nack(delay=0)
        assert jobs.get(timeout=0).attempt == 6


def test_the_time_of_a_retry_is_kept(jobs, path, clock):
    jobs.put(b"x")
    jobs.get(timeout=0).nack(delay=100)
    jobs.close()
    with seglog.Queue(path, clock=clock) as again:
        assert again.get(timeout=0) is None
        assert again.stats().waiting == 1
        clock.advance(100_000)
        assert again.get(timeout=0).attempt == 2


def test_a_block_acknowledges_refuses_and_logs(jobs, clock, caplog):
    jobs.put(b"good")
    jobs.put(b"bad")
    done = []
    with caplog.at_level(logging.ERROR, "seglog"):
        for job in jobs:
            with job:
                if job.value == b"bad" and job.attempt == 1:
                    raise ValueError("no such user")
                done.append(job.value)
            clock.advance(2_000)
            if len(done) == 2:
                break
    assert done == [b"good", b"bad"]
    assert jobs.stats().backlog == 0
    assert "failed at attempt 1 of 3, again in 2 s" in caplog.text
    assert "no such user" in caplog.text


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_a_block_that_is_interrupted_gives_the_job_back_as_the_same_attempt(path, interrupt):
    with seglog.Queue(path, max_attempts=2, retry_delay=0) as jobs:
        jobs.put(b"x")
        for attempt in (1, 2):
            for _ in range(3):
                with pytest.raises(interrupt), jobs.get(timeout=0) as job:
                    raise interrupt
                assert job.attempt == attempt
            if attempt == 1:
                jobs.get(timeout=0).nack(0)
        assert not jobs.dead
        assert jobs.get(timeout=0).attempt == 2


@pytest.mark.parametrize("failures", [0, 1])
def test_a_job_that_was_given_back_is_the_same_attempt_after_the_next_opening(path, failures):
    with seglog.Queue(path) as jobs:
        jobs.put(b"x")
        for _ in range(failures):
            jobs.get(timeout=0).nack(0)
        jobs.release([jobs.get(timeout=0)])
    for _ in range(3):
        with seglog.Queue(path) as jobs:
            job = jobs.get(timeout=0)
            assert job.attempt == 1 + failures
            jobs.release([job])


@pytest.mark.parametrize("attach", [False, True])
def test_a_job_that_is_given_back_in_its_block_is_not_acknowledged_at_its_end(path, attach):
    with seglog.Queue(path, attach=attach) as jobs:
        jobs.put(b"x")
        with jobs.get(timeout=0) as job:
            jobs.release([job])
        assert job.is_settled
        again = jobs.get(timeout=0)
        assert (again.value, again.attempt) == (b"x", 1)
        jobs.release([job])     # a second call has no effect on who has it now
        assert jobs.get(timeout=0) is None
        again.ack()


def test_an_interrupt_is_raised_though_the_journal_fails_meanwhile(path):
    jobs = seglog.Queue(path)
    jobs.put(b"x")
    job = jobs.get(timeout=0)
    jobs._lanes[0]._journal.fail(StorageError("the disk failed"))
    with pytest.raises(KeyboardInterrupt), job:
        raise KeyboardInterrupt
    with suppress(LogFailedError):
        jobs.close()


def test_an_interrupt_is_raised_though_the_queue_was_closed_meanwhile(path):
    def closed_and_interrupted():
        jobs.close()
        raise KeyboardInterrupt

    jobs = seglog.Queue(path)
    jobs.put(b"x")
    with pytest.raises(KeyboardInterrupt), jobs.get(timeout=0):
        closed_and_interrupted()


def test_a_job_that_is_given_back_at_once_can_be_taken_at_once(path):
    with seglog.Queue(path, fsync="never", max_attempts=None) as jobs:
        jobs.put(b"x")
        for _ in range(30):
            jobs.get(timeout=0).nack(0)
            job = jobs.get(timeout=0)
            with pytest.raises(KeyboardInterrupt), job:
                raise KeyboardInterrupt


def test_a_block_whose_job_was_finished_in_it_does_nothing_more(jobs):
    jobs.put_many([b"a", b"b", b"c"])
    with jobs.get(timeout=0) as job:
        job.nack(delay=60)
    assert jobs.stats().waiting == 1
    with jobs.get(timeout=0) as job:
        job.ack()
        raise ValueError
    assert jobs.stats().waiting == 1
    with jobs.get(timeout=0) as job:
        jobs.ack([job])
    assert jobs.stats().backlog == 1


def test_a_block_whose_lease_was_lost_ends_quietly(jobs, clock):
    jobs.put(b"x")
    with jobs.get(timeout=0):
        clock.advance(10_000)
        again = jobs.get(timeout=0)
        raise ValueError
    again.ack()


def test_an_exception_without_words_is_no_obstacle(jobs, clock):
    class MuteError(Exception):
        def __str__(self):
            raise ValueError

    jobs.put(b"x")
    for _ in range(3):
        with jobs.get(timeout=0):
            raise MuteError
        clock.advance(60_000)
    assert [job.reason for job in jobs.dead] == ["MuteError"]


def test_a_job_that_fails_at_each_attempt_is_dead_with_the_reason(jobs, path, clock):
    put_id = jobs.put(b"x", properties={"a": "b"})
    for _ in range(3):
        with jobs.get(timeout=0):
            raise ValueError("no such user" + "!" * 2000)
        clock.advance(60_000)
    assert jobs.get(timeout=0) is None
    jobs.close()
    with seglog.Queue(path, clock=clock, max_attempts=3) as again:
        assert (len(again.dead), again.stats().dead, again.stats().backlog) == (1, 1, 0)
        [job] = again.dead.peek(5)
        assert (job.id, job.value, job.attempt, job.properties) == (put_id, b"x", 3, {"a": "b"})
        assert job.reason.startswith("ValueError: no such user!!")
        assert len(job.reason) == 1000
        assert job.died_at == datetime.fromtimestamp(NOW / 1000 + 120, UTC)
        assert [one.id for one in again.dead] == [put_id]
        assert job.requeue() is True
        assert job.requeue() is False
        assert len(again.dead) == 0
        assert again.get(timeout=0).attempt == 1


def test_a_reason_that_utf_8_cannot_hold_is_kept_as_far_as_it_can(path, clock):
    with seglog.Queue(path, clock=clock, max_attempts=1) as jobs:
        jobs.put(b"x")
        jobs.get(timeout=0).nack(reason="half \udc00")
    with seglog.Queue(path, clock=clock) as jobs:
        assert [job.reason for job in jobs.dead] == ["half ?"]


def test_a_job_that_kills_its_process_is_dead_after_the_last_attempt(path, clock):
    for attempt in (1, 2):
        with seglog.Queue(path, clock=clock, max_attempts=2) as jobs:
            if attempt == 1:
                jobs.put(b"killer")
            assert jobs.get(timeout=0).attempt == attempt
    with seglog.Queue(path, clock=clock, max_attempts=2) as jobs:
        assert jobs.get(timeout=0) is None
        assert jobs.dead.peek()[0].reason == "its lease ran out, or its process died, at attempt 2"


def test_the_reason_of_a_dead_job_names_its_last_failure_and_what_came_after_it(path, clock):
    options = {"clock": clock, "max_attempts": 3, "retry_delay": 0}
    with seglog.Queue(path, **options) as jobs:
        jobs.put(b"x")
        for word in ("one", "two"):
            with jobs.get(timeout=0):
                raise ValueError(word)
        jobs.get(timeout=0)
        jobs._lanes[0]._checkpoint()        # the state in a new journal, too
    with seglog.Queue(path, **options) as jobs:
        assert jobs.get(timeout=0) is None
        [dead] = jobs.dead
        assert dead.reason == (
            "its lease ran out, or its process died, at attempt 3; attempt 2 failed: ValueError: two"
        )


@pytest.mark.parametrize(("reason", "kept"), [("bad address", "bad address"), ("", "refused, without a reason")])
def test_a_job_is_dead_for_its_last_failure_when_the_limit_is_lower_later(path, clock, reason, kept):
    with seglog.Queue(path, clock=clock) as jobs:
        jobs.put(b"x")
        for _ in range(5):
            jobs.get(timeout=0).nack(0, reason=reason)
    for _ in range(2):      # as the journal has it, and the next one
        with seglog.Queue(path, clock=clock) as jobs:
            jobs.release([jobs.get(timeout=0)])
    with seglog.Queue(path, clock=clock, max_attempts=3) as jobs:
        assert jobs.get(timeout=0) is None
        assert [(dead.reason, dead.attempt) for dead in jobs.dead] == [(kept, 5)]


def test_nothing_is_kept_of_the_failures_of_finished_jobs(path, clock):
    with seglog.Queue(path, clock=clock, max_attempts=3) as jobs:
        jobs.put_many(b"%d" % n for n in range(30))
        for job in jobs.get_many(30, timeout=0):
            job.nack(0, reason="bad")
        for job in jobs.get_many(10, timeout=0):
            job.ack()
        jobs.ack(jobs.get_many(10, timeout=0))
        for _ in range(2):
            for job in jobs.get_many(10, timeout=0):
                job.nack(0, reason="bad")
        assert len(jobs.dead) == 10
        assert jobs._lanes[0].leases.failures == {}


@pytest.mark.parametrize("attach", [False, True])
def test_the_log_says_when_a_failed_job_comes_again_and_that_it_is_dead(path, caplog, attach):
    with (
        seglog.Queue(path, max_attempts=2, retry_delay=0, attach=attach) as jobs, caplog.at_level(logging.DEBUG)
    ):
        jobs.put(b"x")
        for _ in range(2):
            with jobs.get(timeout=60):
                raise ValueError("bad")
        assert [record.getMessage() for record in caplog.records] == [
            "job 0:0 failed at attempt 1 of 2, again in 0 s", "job 0:0 failed at attempt 2 of 2, and is dead",
        ]
        caplog.clear()
        jobs.dead.requeue()
        jobs.get(timeout=60).nack(0, reason="by hand")
        jobs.get(timeout=60, lease=0.001)
        assert jobs.get(timeout=0.2) is None
        [line] = caplog.records
        assert line.levelno == logging.ERROR
        assert line.getMessage().endswith(
            "job 0:0 is dead after attempt 2: its lease ran out, or its process died, at attempt 2; "
            "attempt 1 failed: by hand"
        )


def test_what_is_refused_says_what_to_do_in_a_program(path):
    with seglog.Queue(path) as jobs:
        with pytest.raises(LogLockedError) as told:
            seglog.Queue(path)
        assert "share that Queue" in told.value.hint
        assert "attach=True" in told.value.hint
        with pytest.raises(RecordTooLargeError) as told:
            jobs.put(b"x" * (6 << 20))
        assert 'config={"maxMessageSize": ...}' in told.value.hint
        assert "offset" not in str(told.value)
    with pytest.raises(NotALogError, match="found a managed ledger"):
        seglog.open(path)


def test_the_error_of_a_second_process_has_no_chain_of_causes(path):
    code = "import sys, seglog\nseglog.open(sys.argv[1])"
    with seglog.open(path.parent / "events-0"):
        done = subprocess.run(
            [sys.executable, "-c", code, path.parent / "events-0"], capture_output=True, text=True, check=False
        )
    assert done.stderr.count("Traceback") == 1
    assert "give each a partition of its own" in done.stderr


@pytest.mark.parametrize("attach", [False, True])
def test_a_look_at_a_job_that_failed_tells_when_it_comes_again_and_why_it_is_dead(path, clock, attach):
    with seglog.Queue(path, clock=clock, max_attempts=2, attach=attach) as jobs:
        jobs.put(b"x")
        jobs.get(timeout=0).nack(30, reason="no address")
        [seen] = jobs.peek()
        assert seen.attempt == 1
        assert seen.due_at - seen.enqueued_at == timedelta(seconds=30)
        clock.advance(30_000)
        jobs.get(timeout=0).nack(reason="no address")
        assert repr(jobs.dead.peek()[0]) == "<DeadJob 0:0: attempt 2, key None, value b'x', 'no address'>"


@pytest.mark.parametrize("attach", [False, True])
@pytest.mark.parametrize(
    ("at", "after_ms"), [("+10m", 600_000), ("+1h30m", 5_400_000), ("2023-11-14T23:13:20+01:00", 0)]
)
def test_a_time_may_be_text_as_elsewhere(path, attach, at, after_ms):
    clock = ManualClock(1_700_000_000_000)      # 2023-11-14 22:13:20 UTC
    with seglog.Queue(path, clock=clock, attach=attach) as jobs:
        jobs.put(b"x", at=at)
        assert jobs.peek()[0].due_at.timestamp() * 1000 == 1_700_000_000_000 + after_ms
        with pytest.raises(InvalidArgumentError, match="not a time"):
            jobs.put(b"x", at="tomorrow")
        with pytest.raises(InvalidArgumentError, match="with a time zone"):
            jobs.put(b"x", at=datetime(2026, 1, 1))
        for far in ("+9999999d", "+99999999999d", "253402300800000"):
            with pytest.raises(InvalidArgumentError, match="at must be before the year 10000"):
                jobs.put(b"x", at=far)
        for early in ("-99999d", "-9999999d", "-99999999999d"):
            with pytest.raises(InvalidArgumentError, match="at must be in 1970 or later"):
                jobs.put(b"x", at=early)


def test_a_failed_job_is_printed_where_logging_is_not_configured(path):
    code = "import sys, seglog\nwith seglog.Queue(sys.argv[1]) as q:\n q.put(b'x')\n with q.get(): 1 / 0"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("job 0:0 failed at attempt 1 of 10, again in 1")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("attach", [False, True])
def test_with_reraise_the_failure_of_a_block_is_raised_after_the_job_was_refused(path, caplog, attach):
    with seglog.Queue(path, reraise=True, max_attempts=1, attach=attach) as jobs:
        jobs.put_many([b"x", b"y"])
        with pytest.raises(AssertionError, match="not y"), jobs.get(timeout=0):
            raise AssertionError("not y")
        assert jobs.dead.peek()[0].reason == "AssertionError: not y"
        with pytest.raises(ValueError, match="after it"), jobs.get(timeout=0) as job:
            raise ValueError(f"after it was finished {job.ack()}")
        assert not caplog.records
    with pytest.raises(InvalidArgumentError, match="reraise must be True or False"):
        seglog.Queue(path, reraise="yes")


def test_dead_jobs_are_requeued_and_purged(jobs, clock):
    jobs.put_many(b"%d" % n for n in range(4))
    jobs.put(b"urgent", priority=1)
    for _ in range(3):
        for job in jobs.get_many(5, timeout=0):
            job.nack(0)
    assert [job.value for job in jobs.dead.peek(2)] == [b"urgent", b"0"]
    assert jobs.dead.requeue(jobs.dead.peek(2)) == 2
    assert sorted(values(jobs)) == [b"0", b"urgent"]
    assert jobs.dead.requeue() == 3
    assert sorted(values(jobs)) == [b"1", b"2", b"3"]
    for _ in range(3):
        clock.advance(10_000)
        jobs.get_many(5, timeout=0)
    clock.advance(10_000)
    jobs.get_many(5, timeout=0)
    assert jobs.dead.purge() == 5
    assert jobs.dead.purge() == 0
    assert jobs.stats().backlog == jobs.stats().dead == 0


# --- finishing and looking -------------------------------------------------------------------


def test_purge_removes_all_but_the_dead(jobs, path, clock):
    jobs.put_many([b"dead", b"of its batch"])
    for _ in range(3):
        jobs.get_many(1, timeout=0)[0].nack(0)
        jobs.get_many(1, timeout=0)[0].nack(0) if _ < 2 else None
    jobs.put(b"ready")
    jobs.put(b"delayed", delay=100)
    jobs.put(b"low", priority=-1)
    taken = jobs.get(timeout=0)
    before = jobs.stats()
    assert before.dead == 1
    assert before.backlog == 4
    assert jobs.purge() == 4
    assert jobs.stats().backlog == 0
    assert jobs.stats().dead == 1
    taken.ack()
    clock.advance(1_000_000)
    assert jobs.get(timeout=0) is None
    jobs.close()
    attempts, dead = left_in(path, clock)
    assert attempts == {}
    assert len(dead) == 1


def test_peek_takes_nothing(jobs, clock):
    jobs.put(b"a")
    jobs.put(b"b", delay=50)
    jobs.put(b"c", priority=3)
    assert [(job.value, job.attempt) for job in jobs.peek(5)] == [(b"c", 0), (b"a", 0), (b"b", 0)]
    assert jobs.peek(5)[2].due_at == datetime.fromtimestamp(NOW / 1000 + 50, UTC)
    looked = jobs.peek(2)[1]
    with pytest.raises(LeaseLostError):
        looked.nack()
    looked.ack()
    assert values(jobs) == [b"c"]


def test_stats_count_what_jobs_wait_for(jobs, clock):
    assert jobs.stats() == seglog.QueueStats(0, 0, 0, 0, 0, None)
    jobs.put_many([b"a", b"b", b"c", b"d"])
    jobs.put_many([b"e", b"f"], delay=100)
    jobs.put(b"g")
    a, b, _ = jobs.get_many(3, timeout=0)
    a.ack()
    b.nack()
    clock.advance(500)
    assert jobs.stats() == seglog.QueueStats(ready=2, delayed=2, waiting=1, in_flight=1, dead=0, oldest_age_s=0.5)
    assert jobs.stats().backlog == 6


def test_a_job_counts_as_ready_as_soon_as_it_can_be_taken_whatever_it_waited_for(jobs, clock):
    jobs.put(b"leased")
    jobs.put(b"refused")
    jobs.get(timeout=0)
    jobs.get(timeout=0).nack(delay=5)
    jobs.put(b"delayed", delay=5)
    jobs.put_many([b"of", b"a batch"], delay=5)
    jobs.put(b"later", delay=50)
    assert jobs.stats() == seglog.QueueStats(ready=0, delayed=4, waiting=1, in_flight=1, dead=0, oldest_age_s=0)
    clock.advance(5_000)
    assert jobs.stats() == seglog.QueueStats(ready=4, delayed=1, waiting=0, in_flight=1, dead=0, oldest_age_s=5)
    clock.advance(5_000)
    assert jobs.stats() == seglog.QueueStats(ready=5, delayed=1, waiting=0, in_flight=0, dead=0, oldest_age_s=10)
    assert sorted(values(jobs)) == [b"a batch", b"delayed", b"leased", b"of", b"refused"]


def test_a_closed_queue_refuses_everything(path):
    jobs = seglog.Queue(path)
    jobs.put(b"x")
    job = jobs.get(timeout=0)
    jobs.close()
    jobs.close()
    assert jobs.closed
    assert list(jobs) == []
    for call in (lambda: jobs.put(b"x"), lambda: jobs.get(timeout=0), job.ack, job.nack, job.extend, jobs.stats,
                 jobs.peek, jobs.purge, jobs.dead.peek, jobs.dead.purge, jobs.dead.requeue, jobs.flush,
                 lambda: jobs.put(b"x", priority=4), lambda: jobs.put_many([b"x"])):
        with pytest.raises(LogClosedError, match="the queue was closed"):
            call()
    assert job.value == b"x"


def test_a_closed_queue_has_no_jobs_that_it_read_ahead(path):
    """They made a cycle of garbage with views of its files: a BufferError was printed when it was collected."""
    jobs = seglog.Queue(path)
    jobs.put_many([b"a", b"b", b"c"])
    jobs.get(timeout=0)
    ahead = weakref.WeakSet(jobs._lane(0)._ready)
    assert len(ahead) == 2
    jobs.close()
    assert len(ahead) == 0


def test_one_process_at_a_time_and_no_copies(path):
    with seglog.Queue(path) as jobs:
        with pytest.raises(LogLockedError):
            seglog.Queue(path)
        with pytest.raises(InvalidArgumentError):
            pickle.dumps(jobs)


def test_the_error_of_a_second_process_says_how_processes_share_a_queue(path):
    opening = "import sys, seglog\nseglog.Queue(sys.argv[1])"
    with seglog.Queue(path):
        second = subprocess.run([sys.executable, "-c", opening, path], capture_output=True, text=True, check=False)
    assert "LogLockedError: locked by process" in second.stderr
    assert "attach=True" in second.stderr


# --- the disk --------------------------------------------------------------------------------


class CountingFs(RecordingFs):
    """Counts syncs of files."""

    @property
    def syncs(self):
        return [step for step in self.operations if step.startswith(("sync", "fdatasync"))]


def syncs_of(fs, call):
    before = len(fs.syncs)
    call()
    return len(fs.syncs) - before


def test_a_put_takes_one_sync_an_acknowledgement_one_and_taking_none(path, clock):
    path.parent.mkdir(exist_ok=True)
    fs = CountingFs(path.parent)
    with seglog.Queue(path, fs=fs, clock=clock) as jobs:
        jobs.put(b"first")       # makes a ledger
        taken = []
        for n in range(20):
            clock.advance(2_000)
            assert syncs_of(fs, lambda: jobs.put(b"x")) == 1
            assert syncs_of(fs, lambda: taken.append(jobs.get(timeout=0))) == 0
            if n % 2:
                assert syncs_of(fs, taken[-1].ack) == 1
            else:
                assert syncs_of(fs, taken[-1].nack) == 0
        assert syncs_of(fs, lambda: jobs.put_many([b"x"] * 100)) == 1
        many = jobs.get_many(100, timeout=0)
        assert syncs_of(fs, lambda: jobs.ack(many)) == 1
        jobs.put(b"x")
        job = jobs.get(timeout=0)
        assert syncs_of(fs, lambda: job.ack(wait=False)) == 0
        assert syncs_of(fs, job.ack) == 1


def test_the_cursor_is_written_at_checkpoints_and_journals_are_kept_short(path, clock, monkeypatch):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 3_000)
    with seglog.Queue(path, clock=clock, config={"managedLedgerMaxEntriesPerLedger": 50}) as jobs:
        for n in range(400):
            jobs.put(b"%d" % n)
            jobs.get(timeout=0).ack()
        assert len((path / FILE_NAME).read_bytes().rstrip(b"\0")) < 3_500
        assert CursorState.read(path / "cursors/queue.cursor").journal[0] > 10
        assert len(jobs._lane(0).managed_ledger.ledgers) <= 2


def test_every_door_sees_the_acknowledgements_of_the_journal(path, clock):
    jobs = seglog.Queue(path, clock=clock)
    jobs.put_many([b"a", b"b"])
    jobs.put(b"c")
    jobs.put(b"d")
    for job in jobs.get_many(3, timeout=0):
        job.ack()
    copy = path.parent / "copy"
    os.system(f"cp -r {path} {copy}")       # as after a kill
    jobs.close()
    for _ in range(2):
        with ManagedLedger(copy) as topic:
            cursor = topic.cursors["queue"]
            assert cursor.backlog == 1
            [entry] = cursor.read()
            assert entry.value == b"d"
    with ManagedLedger(copy) as topic:
        topic.cursors["queue"].seek(topic.first_position)       # and back: the old journal says otherwise
    assert len(left_in(copy, clock)[0]) == 4


def test_a_journal_that_is_gone_or_older_is_refused_and_mended(path, clock):
    jobs = seglog.Queue(path, clock=clock)
    jobs.put(b"a")
    jobs.put(b"b")
    jobs.get(timeout=0).ack()
    jobs.close()
    journal = path / FILE_NAME
    kept = journal.read_bytes()
    journal.unlink()
    for door in (seglog.Queue, ManagedLedger):
        with pytest.raises(CorruptJournalError, match="is missing"):
            door(path)
    with seglog.Queue(path, clock=clock, recover=True) as again:
        assert values(again) == [b"b"]          # the cursor's file knew
    seglog.Queue(path, clock=clock).close()
    journal.write_bytes(kept)
    with pytest.raises(CorruptJournalError, match="has the id 1"):
        seglog.Queue(path)
    seglog.Queue(path, clock=clock, recover=True).close()


def test_a_damaged_journal_is_refused_by_name_and_mended(path, clock):
    jobs = seglog.Queue(path, clock=clock, lease=1000)
    jobs.put_many([b"%d" % n for n in range(10)])
    for job in jobs.get_many(8, timeout=0):
        job.ack()
    copy = path.parent / "copy"
    os.system(f"cp -r {path} {copy}")
    jobs.close()
    raw = bytearray((copy / FILE_NAME).read_bytes())
    raw[len(raw.rstrip(b"\0")) - 200] ^= 1
    (copy / FILE_NAME).write_bytes(raw)
    with pytest.raises(CorruptJournalError) as error:
        seglog.Queue(copy)
    assert error.value.file.endswith(FILE_NAME)
    assert "recover=True" in error.value.hint
    with seglog.Queue(copy, clock=clock, recover=True) as again:
        assert len(values(again)) == 3      # of one, the acknowledgement is lost
    with seglog.Queue(copy, clock=clock) as again:
        assert len(values(again)) == 3


def test_a_journal_that_is_a_link_is_replaced_not_followed(path, clock, tmp_path):
    seglog.Queue(path, clock=clock).close()
    outside = tmp_path / "outside"
    (path / FILE_NAME).rename(outside)
    before = outside.read_bytes()
    (path / FILE_NAME).symlink_to(outside)
    with seglog.Queue(path, clock=clock) as jobs:
        jobs.put(b"x")
        jobs.get(timeout=0).ack()
    assert outside.read_bytes() == before


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_other_modes_of_fsync_wait_for_no_sync(path, clock, fsync):
    path.parent.mkdir(exist_ok=True)
    fs = CountingFs(path.parent)
    with seglog.Queue(path, fs=fs, clock=clock, fsync=fsync, config={"flush.ms": 3_600_000}) as jobs:
        jobs.put(b"first")
        before = len(fs.syncs)
        for _ in range(10):
            jobs.put(b"x")
            jobs.get(timeout=0).ack()
        assert len(fs.syncs) == before
        jobs.flush()
        assert len(fs.syncs) == before + 2
    assert len(left_in(path, clock)[0]) == 1


def test_a_sync_that_fails_is_told_and_the_job_stays_or_goes(path, clock):
    path.parent.mkdir(exist_ok=True)
    fs = FailingFs(seglog.fs.files.OsFileSystem())
    jobs = seglog.Queue(path, fs=fs, clock=clock)
    jobs.put(b"a")
    jobs.put(b"b")
    job = jobs.get(timeout=0)
    fs.fail(len(fs.calls) + 1, 5)       # its record is written, the sync fails
    with pytest.raises(seglog.errors.StorageError):
        job.ack()
    fs.heal()
    with pytest.raises(seglog.errors.LogFailedError):
        jobs.get(timeout=0)
    jobs.close()
    with seglog.Queue(path, clock=clock) as again:
        assert values(again)[-1:] == [b"b"]


def test_when_the_disk_is_full_putting_is_refused_and_jobs_can_be_finished(path, clock):
    path.parent.mkdir(exist_ok=True)
    fs = FailingFs(seglog.fs.files.OsFileSystem())
    with seglog.Queue(path, fs=fs, clock=clock) as jobs:
        jobs.put_many([b"a", b"b"])
        fs.fail(len(fs.calls), errno.ENOSPC, once=True)
        for _ in range(2):
            with pytest.raises(seglog.errors.LogFailedError):
                jobs.put(b"x")
        assert jobs.stats().ready == 2
        jobs.get(timeout=0).ack()
    assert list(left_in(path, clock)[0]) == [b"b"]


def test_when_the_disk_failed_purging_is_refused_and_forgets_nothing(path, clock):
    path.parent.mkdir(exist_ok=True)
    fs = FailingFs(seglog.fs.files.OsFileSystem())
    with seglog.Queue(path, fs=fs, clock=clock) as jobs:
        jobs.put_many([b"a", b"b"])
        fs.fail(len(fs.calls), errno.EIO, once=True)
        with pytest.raises(seglog.errors.LogFailedError):
            jobs.put(b"x")
        with pytest.raises(seglog.errors.LogFailedError):
            jobs.purge()
        assert jobs.stats().ready == 2


def test_an_entry_that_cannot_be_read_is_dead_and_holds_nobody_up(path, clock):
    seglog.Queue(path, clock=clock).close()
    with ManagedLedger(path, clock=clock) as topic:
        from seglog.pulsar import MessageMetadata, build_entry
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, num_messages_in_batch=3)
        topic.add_entry(build_entry(metadata, b"no batch"))
    with seglog.Queue(path, clock=clock) as jobs:
        jobs.put(b"good")
        assert values(jobs) == [b"good"]
        [dead] = jobs.dead
        assert "cannot be read" in dead.reason
        with pytest.raises(seglog.errors.CorruptRecordError):
            dead.value  # noqa: B018
        assert jobs.dead.purge() == 1


# --- pausing ---------------------------------------------------------------------------------


def test_a_paused_queue_hands_out_nothing_and_takes_everything_else(jobs, clock):
    jobs.put_many([b"a", b"b", b"c"])
    a, b = jobs.get_many(2, timeout=0)
    jobs.pause()
    assert jobs.is_paused
    assert jobs.stats().is_paused
    assert jobs.get(timeout=0) is None
    jobs.put(b"d")
    jobs.put(b"e", priority=3)
    a.ack()
    b.nack(0)
    assert jobs.get_many(9, timeout=0) == []
    assert [job.value for job in jobs.peek(9)] == [b"e", b"b", b"c", b"d"]
    jobs.resume()
    assert not jobs.stats().is_paused
    assert values(jobs) == [b"e", b"b", b"c", b"d"]


def test_a_queue_is_paused_also_after_the_next_opening(path, clock):
    with seglog.Queue(path, clock=clock) as jobs:
        jobs.put(b"a")
        jobs.pause()
        jobs.pause()
    with seglog.Queue(path, clock=clock) as jobs:
        assert jobs.is_paused
        assert jobs.get(timeout=0) is None
        jobs.resume()
    with seglog.Queue(path, clock=clock) as jobs:
        assert not jobs.is_paused
        assert values(jobs) == [b"a"]


def test_a_pause_that_returned_outlives_a_crash(in_memory):
    (in_memory / "disk").mkdir()
    record = RecordingFs(in_memory / "disk")
    states = 0
    jobs = seglog.Queue(in_memory / "disk/jobs", fs=record)
    record.mark(0)
    for number in range(1, 5):
        jobs.pause() if number % 2 else jobs.resume()
        record.mark(number)
    jobs.close()
    for state in record.crash_states(limit=60, seed=1):
        if state.marks:
            with state.materialise() as root, seglog.Queue(root / "jobs") as again:
                done = state.marks[-1]
                assert again.is_paused in ({done % 2 == 1, (done + 1) % 2 == 1} if done < 4 else {False})
                states += 1
    assert states > 8


def test_resuming_wakes_those_that_wait_and_a_paused_queue_wakes_nobody(path):
    with seglog.Queue(path) as jobs:
        jobs.put(b"a", delay=0.05)
        jobs.pause()
        found = []
        thread = threading.Thread(target=lambda: found.append(jobs.get(timeout=20)))
        before = time.thread_time_ns()
        thread.start()
        time.sleep(0.2)
        assert found == []
        jobs.resume()
        thread.join(20)
        assert found[0].value == b"a"
        assert time.thread_time_ns() - before < 10**9


# --- waiting ---------------------------------------------------------------------------------


def waited_s(act, begin=lambda: None):
    """How long `act(begin())` takes at the least, of up to 30 times: a busy machine may be late itself."""
    shortest_s = 60.0
    for _ in range(30):
        began = time.monotonic()
        act(begin())
        shortest_s = min(shortest_s, time.monotonic() - began)
        if shortest_s < 0.8:
            break
    return shortest_s


def test_get_waits_for_a_job_for_a_delay_for_a_retry_and_for_a_lease(path):
    """And not until its next look, a second later: it is woken."""
    with seglog.Queue(path, lease=600, retry_delay=0.1, retry_jitter=0, max_attempts=None) as jobs:
        assert 0.05 <= waited_s(lambda _: jobs.get(timeout=0.05)) < 1
        threading.Timer(0.05, jobs.put, [b"x"]).start()
        taken = [jobs.get(timeout=60)]
        assert 0.09 <= waited_s(lambda _: taken.append(jobs.get(timeout=60)), lambda: taken.pop().nack()) < 1
        taken.pop().ack()
        assert 0.1 <= waited_s(lambda _: jobs.get(timeout=60).ack(), lambda: jobs.put(b"y", delay=0.1)) < 1
        jobs.put(b"z")
        assert jobs.get(timeout=60, lease=0.15).value == b"z"
        assert 0.14 <= waited_s(lambda _: jobs.get(timeout=60, lease=0.15), lambda: None) < 1


def test_a_put_wakes_one_consumer_not_all(path, monkeypatch):
    looks, taken = [], []
    take = lane.Lane.take
    monkeypatch.setattr(lane.Lane, "take", lambda *args: looks.append(1) or take(*args))
    with seglog.Queue(path) as jobs:
        def consume():
            for job in jobs:
                taken.append(job)
                job.ack()

        threads = [threading.Thread(target=consume) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(looks) == 8)
        time.sleep(0.1)
        woken = []
        for n in range(10):
            before = len(looks)
            jobs.put(b"x")
            wait_for(lambda n=n: len(taken) == n + 1)
            time.sleep(0.05)
            woken.append(len(looks) - before)
        # Who takes it, the next one, whom that wakes, and who took it again. (Each looks once a second besides.)
        assert min(woken) <= 4
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_queue_that_is_closed_ends_the_loops_of_its_consumers(path):
    jobs = seglog.Queue(path)
    ended = []

    def consume():
        for job in jobs:
            with job:
                pass
        ended.append(1)

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    jobs.put(b"x")
    time.sleep(0.1)
    jobs.close()
    for thread in threads:
        thread.join(10)
    assert len(ended) == 3


def test_a_queue_that_is_closed_makes_the_acknowledgements_durable_that_wait_for_the_disk(path):
    """They failed: the journal's file was closed under those who had not synced yet."""
    fs = HeldSyncFs(FILE_NAME)
    jobs = seglog.Queue(path, fs=fs)
    jobs.put_many([b"1", b"2", b"3"])
    taken = jobs.get_many(3, timeout=0)
    fs.syncing.clear()
    fs.go.clear()
    ends = queue.SimpleQueue()

    def call(function):
        try:
            ends.put(function())
        except Exception as error:
            ends.put(error)

    def start(function):
        threading.Thread(target=call, args=[function], daemon=True).start()

    start(taken[0].ack)
    assert fs.syncing.wait(60)
    for job in taken[1:]:
        start(job.ack)
    wait_for(lambda: jobs.stats().backlog == 0)     # they are written
    start(jobs.close)
    wait_for(lambda: jobs.closed)
    fs.go.set()
    assert [ends.get(timeout=60) for _ in range(4)] == [None] * 4
    with seglog.Queue(path) as again:
        assert again.stats().backlog == 0


def test_sixteen_consumers_share_the_jobs(path):
    count, taken, lock = 800, [], threading.Lock()
    with seglog.Queue(path) as jobs:
        def produce(begin):
            for n in range(begin, count, 4):
                jobs.put(b"%d" % n)

        def consume():
            for job in jobs:
                with job, lock:
                    taken.append(int(job.value))

        consumers = [threading.Thread(target=consume, daemon=True) for _ in range(16)]
        producers = [threading.Thread(target=produce, args=[n]) for n in range(4)]
        for thread in consumers + producers:
            thread.start()
        for thread in producers:
            thread.join()
        ends = time.monotonic() + 30
        while len(taken) < count and time.monotonic() < ends:
            time.sleep(0.01)
        while jobs.stats().backlog and time.monotonic() < ends:
            time.sleep(0.01)
        assert jobs.stats().backlog == 0
    assert sorted(taken) == list(range(count))


# --- the space of finished jobs ----------------------------------------------------------------


def test_jobs_that_stay_for_long_do_not_keep_the_files_of_others(path, clock):
    """Dead, waiting and leased for long, and delayed: each is copied out of its ledger, which is removed."""
    config = {"managedLedgerMaxEntriesPerLedger": 20}
    jobs = seglog.Queue(path, clock=clock, config=config, max_attempts=1)
    jobs.put_many([b"dead", b"done"])
    jobs.get(timeout=0).nack(reason="why")
    jobs.get(timeout=0).ack()
    kept = {}
    for n in range(200):
        jobs.put(b"%d" % n, delay=86_400 if n == 50 else None)
        job = jobs.get(timeout=0)
        if n == 100:
            kept["out"] = job
            job.extend(7200)
        elif job is not None:
            job.ack()
        clock.advance(100)
    ledger = jobs._lane(0).managed_ledger
    assert len(ledger.ledgers) <= 2
    assert jobs.stats() == seglog.QueueStats(0, 1, 0, 1, 1, jobs.stats().oldest_age_s)
    assert {job.value for job in jobs.peek(5)} == {b"50"}
    assert kept["out"].value == b"100"
    jobs.close()
    with seglog.Queue(path, clock=clock, config=config, max_attempts=None, lease=10**7) as again:
        assert [(job.value, job.reason) for job in again.dead] == [(b"dead", "why")]
        [job] = again.get_many(9, timeout=0)
        assert (job.value, job.attempt) == (b"100", 2)
        assert again.dead.requeue() == 1
        assert again.get(timeout=0).value == b"dead"
        clock.advance(86_400_000)
        last = again.get(timeout=0)
        assert (last.value, last.attempt) == (b"50", 1)
        again.ack([job, last])
        again.purge()
        assert again.stats().backlog == 0


def test_a_dead_job_of_a_batch_of_one_that_was_copied_is_not_counted_as_delayed(path, clock):
    config = {"managedLedgerMaxEntriesPerLedger": 20}
    with seglog.Queue(path, clock=clock, config=config, max_attempts=1) as jobs:
        jobs.put_many([b"dead"])
        jobs.get(timeout=0).nack()
        for _ in range(60):
            jobs.put(b"x")
            jobs.get(timeout=0).ack()
            clock.advance(1000)
        assert not (path / "ledger-0").exists()
    with seglog.Queue(path, clock=clock, config=config, max_attempts=1) as jobs:
        jobs.put(b"later", delay=60)
        assert jobs.stats() == seglog.QueueStats(0, 1, 0, 0, 1, 0)


def test_a_copied_job_that_was_purged_is_not_counted_any_more(path, clock):
    config = {"managedLedgerMaxEntriesPerLedger": 20}
    with seglog.Queue(path, clock=clock, config=config) as jobs:
        jobs.put(b"delayed", delay=86_400)
        for _ in range(60):
            jobs.put(b"x")
            jobs.get(timeout=0).ack()
            clock.advance(1000)
        assert not (path / "ledger-0").exists()
        assert jobs.purge() == 1
        assert jobs.stats() == seglog.QueueStats(0, 0, 0, 0, 0, None)


def test_a_copied_job_that_was_delivered_and_refused_counts_as_ready(path, clock):
    config = {"managedLedgerMaxEntriesPerLedger": 20}
    with seglog.Queue(path, clock=clock, config=config) as jobs:
        jobs.put(b"refused")
        jobs.get(timeout=0).nack(delay=86_400)
        for _ in range(60):
            jobs.put(b"x")
            jobs.get(timeout=0).ack()
            clock.advance(1000)
        assert not (path / "ledger-0").exists()
        clock.advance(86_400_000)
        assert jobs.get(timeout=0).attempt == 2
    with seglog.Queue(path, clock=clock, config=config) as jobs:    # the process that had it died
        stats = jobs.stats()
        assert (stats.ready, stats.delayed, stats.backlog) == (1, 0, 1)
        assert jobs.get(timeout=0).attempt == 3
