"""Several processes with one queue: the first owns it, others attach."""
import asyncio
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import seglog
from seglog.attach import client, desk, shared_handle
from seglog.attach.shared_queue import open_beside
from seglog.errors import (
    InvalidArgumentError,
    LeaseLostError,
    LogClosedError,
    LogLockedError,
    QueueFullError,
    StorageError,
)
from seglog.fs import local_socket
from seglog.fs.lock import writer_of
from seglog.metrics import PROCESS
from seglog.queue.lane import Lane
from support.told_process import Other
from support.waiting import wait_for

CONSUMERS = 1000 if os.environ.get("SEGLOG_TORTURE") else 50


class Stop(Exception):
    """From a signal."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs"


@pytest.fixture
def owner(path):
    with Other(path) as other:
        yield other


@pytest.fixture
def jobs(owner, path):
    with seglog.Queue(path, attach=True, lease=600, retry_delay=0) as attached:
        assert "attached" in repr(attached)
        yield attached


def test_an_attached_process_puts_takes_and_finishes_jobs_of_the_owner(owner, jobs):
    owner.does("jobs.put(b'from the owner', key='k', properties={'a': 'b'})")
    ids = [jobs.put(b"two", key=b"\xff"), *jobs.put_many([b"three", ("k", b"four")]), jobs.put(b"five", priority=3)]
    assert len(set(ids)) == 4
    taken = jobs.get_many(10, timeout=0)
    assert [job.value for job in taken] == [b"five", b"from the owner", b"two", b"three", b"four"]
    assert [job.key for job in taken] == [None, "k", b"\xff", None, "k"]
    assert [job.properties for job in taken] == [{}, {"a": "b"}, {}, {}, {}]
    assert [job.id for job in taken if job.value != b"from the owner"] == [ids[3], *ids[:3]]
    assert all(job.attempt == 1 and job.enqueued_at == job.due_at for job in taken)
    assert owner.does("jobs.stats().in_flight") == 5
    taken[0].ack()
    jobs.ack(taken[1:3])
    taken[3].nack(delay=0)
    taken[3].ack()          # a late one counts
    jobs.release([taken[4]])
    assert owner.does("[(job.value, job.attempt) for job in jobs.get_many(9, timeout=0)]") == [(b"four", 1)]
    assert jobs.stats() == seglog.QueueStats(0, 0, 0, 1, 0, None)
    jobs.flush()


def test_what_the_owner_puts_wakes_an_attached_consumer(owner, jobs):
    owner.tell("time.sleep(0.1), jobs.put(b'x')")
    assert next(iter(jobs)).value == b"x"
    owner.answer()


def test_an_attached_worker_loop_ends_when_its_queue_is_closed(owner, path):
    with Other(path) as worker:
        worker.tell("[job.value for job in jobs if not job.ack() and (job.value != b'last' or jobs.close())]")
        owner.does("jobs.put_many([b'a', b'b', b'last'])")
        assert worker.answer() == [b"a", b"b"]


def test_errors_come_from_the_owner_with_their_class_and_words(path):
    with Other(path, "jobs = seglog.Queue(path, attach=True, max_backlog=1, when_full='refuse')"), \
            seglog.Queue(path, attach=True) as jobs:
        jobs.put(b"x")
        with pytest.raises(QueueFullError, match="max_backlog is 1") as told:
            jobs.put(b"y")
        assert told.value.hint
        job = jobs.get(timeout=0)
        job.nack(delay=0)
        with pytest.raises(LeaseLostError, match="attempt 1"):
            job.extend()
        with pytest.raises(LeaseLostError):
            job.nack()


def test_wrong_arguments_raise_the_same_errors_in_both_kinds_of_process(path, jobs, tmp_path):
    cases = [
        lambda queue: queue.put("text"), lambda queue: queue.put(b"x", priority=101),
        lambda queue: queue.put(b"x", key=5), lambda queue: queue.put(b"x", delay=-1),
        lambda queue: queue.put(b"x", properties={"a": 1}),
        lambda queue: queue.put(b"x", unique_for=5), lambda queue: queue.put(b"x" * (6 << 20)),
        lambda queue: queue.put(b"x", key="\ud800"), lambda queue: queue.put_many(b"x"), lambda queue: queue.get("x"),
        lambda queue: queue.put_many([5]), lambda queue: queue.get_many(0), lambda queue: queue.peek(0),
        lambda queue: queue.get(float("nan")), lambda queue: queue.ack([5]), lambda queue: queue.dead.requeue([5]),
        lambda queue: queue.get(timeout=0, lease="x"), lambda queue: queue.put(b"x", delay=1, at=5),
    ]
    with seglog.Queue(tmp_path / "plain") as plain:
        for number, case in enumerate(cases):
            kinds = []
            for queue in (plain, jobs):
                with pytest.raises(seglog.SeglogError) as told:
                    case(queue)
                kinds.append(type(told.value))
            assert kinds[0] is kinds[1], number
    assert jobs.stats().backlog == 0


def test_failed_jobs_come_back_and_die_and_are_put_back_from_any_process(path):
    opening = "jobs = seglog.Queue(path, attach=True, max_attempts=2, retry_delay=0)"
    with Other(path, opening), seglog.Queue(path, attach=True) as jobs:
        id_ = jobs.put(b"x", key="k")
        for attempt in (1, 2):
            with jobs.get(timeout=60) as job:
                assert job.attempt == attempt
                raise LookupError("no address")
        assert len(jobs.dead) == 1
        [dead] = jobs.dead
        assert (dead.id, dead.value, dead.key, dead.attempt) == (id_, b"x", "k", 2)
        assert dead.reason == "LookupError: no address"
        assert dead.died_at >= dead.enqueued_at
        assert dead.requeue()
        assert not dead.requeue()
        assert jobs.get(timeout=60).attempt == 1
        assert jobs.purge() == 1
        assert jobs.dead.purge() == jobs.dead.requeue() == jobs.dead.requeue([dead]) == 0


def test_options_that_differ_from_the_owners_are_named_with_both_values(owner, path, caplog):
    with caplog.at_level(logging.WARNING, "seglog"):
        seglog.Queue(path, attach=True, lease=5, retry_delay=timedelta(seconds=1)).close()
        assert not caplog.records
        seglog.Queue(path, attach=True, max_attempts=3, fsync="never").close()
    [record] = caplog.records
    assert "max_attempts is 3 here and 10 there, fsync is 'never' here and 'batch' there" in record.getMessage()
    open_beside(Path(path), max_attempts=4).close()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("attach", [False, True])
def test_a_wrong_name_of_an_argument_is_refused_in_words_that_users_know(owner, path, tmp_path, attach):
    with pytest.raises(TypeError, match=r"Queue\(\) got an unexpected keyword argument 'max_retries'.*max_attempts"):
        seglog.Queue(path, attach=attach, max_retries=3)
    with seglog.Queue(path if attach else tmp_path / "other", attach=attach) as jobs:
        with pytest.raises(TypeError, match=r"Queue\.put\(\) got an unexpected keyword argument 'countdown'"):
            jobs.put(b"x", countdown=5)
        assert jobs.stats().backlog == 0


def test_an_attached_process_shows_the_metrics_of_the_owner(owner, jobs, path):
    jobs.put_many([b"x", b"y"])
    owner.does("jobs.put(b'z')")
    owner.does("jobs.put(b'u', key='k', unique_for=60)")
    jobs.get(timeout=60).ack()
    with seglog.Queue(path, attach=True):       # shown once, however often it is attached
        found = [line for line in PROCESS.text().splitlines() if line.startswith("seglog_queue_")]
    assert len(found) == len({line.partition(" ")[0] for line in found})
    assert f'seglog_queue_ready{{path="{path}"}} 3' in found
    assert f'seglog_queue_puts_total{{path="{path}"}} 4' in found
    assert f'seglog_queue_acknowledged_total{{path="{path}"}} 1' in found


def test_peek_pause_unique_keys_and_purge_are_those_of_the_owner(owner, jobs):
    first = jobs.put(b"x", key="k", unique_for=600)
    assert owner.does("jobs.put(b'y', key='k', unique_for=600)") == first
    assert jobs.put_many([("k", b"z"), ("l", b"w")], unique_for=600)[0] == first
    many = [b"%d" % n for n in range(2500)]
    jobs.put_many(many)
    assert [job.value for job in jobs.peek(5000)] == [b"x", b"w", *many]
    jobs.pause()
    assert jobs.is_paused
    assert owner.does("jobs.is_paused")
    assert jobs.get(timeout=0) is None
    owner.does("jobs.resume()")
    assert not jobs.is_paused
    assert len(jobs.get_many(900, timeout=0)) == 900
    assert jobs.purge() == 2502


def test_values_as_large_as_a_queue_takes_them_go_through_the_socket(jobs):
    values = [bytes([n]) * (4 << 20) for n in range(6)]
    for value in values:
        jobs.put(value)
    found = []
    while len(found) < 6:       # as many at a time as fit into an answer
        found += jobs.get_many(10, timeout=0)
    assert [job.value for job in found] == values
    assert all(job.attempt == 1 for job in found)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "jobs.close()", "os._exit(0)"])
def test_the_jobs_of_an_attached_process_that_ends_come_back_at_once(owner, path, end):
    owner.does("jobs.put_many([b'a', b'b'])")
    with Other(path) as worker:
        worker.does("[job.value for job in jobs.get_many(2, timeout=0)]")
        worker.does("jobs.stats().in_flight")       # by the same connection: the jobs were heard of
        worker.tell(end)
        assert owner.does("[(job.value, job.attempt) for _ in range(2) for job in [jobs.get(timeout=60)]]") == [
            (b"a", 2), (b"b", 2)]


def test_when_the_owner_is_killed_an_attached_process_takes_over_and_keeps_its_jobs(owner, jobs, path):
    owner.does("jobs.put_many([b'owner', b'mine', b'late', b'new'])")
    owner.does("jobs.get(timeout=0)")
    mine, late = jobs.get_many(2, timeout=0)
    owner.kill()
    owners, new = jobs.get(timeout=60), jobs.get(timeout=60)
    assert "owner" in repr(jobs)
    assert (owners.value, owners.attempt, new.value, new.attempt) == (b"owner", 2, b"new", 1)
    mine.extend(600)
    mine.ack()
    late.nack(delay=0)
    again = jobs.get(timeout=60)
    assert (again.value, again.attempt) == (b"late", 2)
    assert jobs.get(timeout=0) is None
    late.ack()      # of an older attempt
    with pytest.raises(LeaseLostError):
        late.nack()
    assert jobs.stats().backlog == 2
    with Other(path) as third:
        third.does("jobs.put(b'third')")
    assert jobs.get(timeout=0).value == b"third"


HOLDS_FOR_LONG = "from seglog.attach import desk; desk.HOLD_S = 600"


def test_the_jobs_of_a_dead_owner_come_back_while_those_of_others_are_kept(owner, jobs, path, monkeypatch):
    monkeypatch.setattr(desk, "HOLD_S", 600)
    with Other(path) as slow:
        owner.does("jobs.put_many([b'owner', b'slow'])")
        owner.does("jobs.get(timeout=0)")
        slow.does("(job := jobs.get(timeout=0)).value")
        slow.does("jobs.stats()")
        slow.stop()         # it presents its job late
        owner.kill()
        job = jobs.get(timeout=60)
        assert (job.value, job.attempt) == (b"owner", 2)
        assert jobs.get(timeout=0) is None
        assert jobs.stats().in_flight == 2
        slow.send(signal.SIGCONT)
        slow.does("job.ack()")
        assert jobs.stats().in_flight == 1


def test_the_jobs_that_an_owner_took_before_it_was_one_come_back_when_it_dies(owner, path):
    owner.does("jobs.put_many([b'second', b'third', b'new'])")
    with Other(path) as second, Other(path) as third:
        for other in (second, third):
            other.does(HOLDS_FOR_LONG)
            other.does("(job := jobs.get(timeout=0)).value")
            other.does("jobs.stats()")          # by the same connection: the job was heard of
        third.stop()                            # so that it is the second that takes over
        owner.kill()
        assert second.does("jobs.stats().in_flight") == 2
        assert "owner" in second.does("repr(jobs)")
        third.send(signal.SIGCONT)
        assert third.does("jobs.get(timeout=60).value") == b"new"
        second.kill()
        assert third.does("(lambda job: (job.value, job.attempt))(jobs.get(timeout=60))") == (b"second", 2)
        assert third.does("jobs.get(timeout=0)") is None
        third.does("job.ack()")
        assert third.does("jobs.stats().in_flight") == 2


def test_when_the_owner_closes_the_others_go_on_with_their_jobs(owner, jobs, path):
    with Other(path) as third:
        owner.does("jobs.put_many([b'mine', b'thirds', b'left'])")
        mine = jobs.get(timeout=0)
        assert third.does("(job := jobs.get(timeout=0)).value") == b"thirds"
        owner.does("jobs.close()")
        assert jobs.get(timeout=60).value == b"left"
        mine.extend(600)
        mine.ack()
        third.does("job.extend(600)")
        third.does("job.ack()")
        assert jobs.stats().backlog == 1
        assert sorted(["attached" in repr(jobs), "attached" in third.does("repr(jobs)")]) == [False, True]


def test_consumers_that_wait_while_the_owner_dies_go_on_waiting(owner, path):
    with Other(path) as one, Other(path) as two:
        for other in (one, two):
            other.tell("(lambda job: (job.value, job.ack()))(jobs.get())")
        owner.kill()
        with Other(path) as four:
            four.does("jobs.put_many([b'a', b'b'])")
            assert sorted([one.answer(), two.answer()]) == [(b"a", None), (b"b", None)]
            assert four.does("jobs.stats().backlog") == 0


# What the owner does instead of answering: then what it was asked for is done, and nobody knows.
DIES = """
from seglog.attach import channel
def send(self, header, values=(), deadline=None, send=channel.Channel.send):
    if {} in header and "code" not in header:
        os.kill(os.getpid(), signal.SIGKILL)
    send(self, header, values, deadline)
channel.Channel.send = send
"""


def test_a_put_whose_answer_dies_with_the_owner_puts_its_job_once(owner, jobs):
    jobs.put(b"before")
    owner.does(DIES.format("'ids'"))
    id_ = jobs.put(b"x", key="k")
    assert "owner" in repr(jobs)
    assert [(job.value, job.key, job.id) for job in jobs.peek(9)][1:] == [(b"x", "k", id_)]


def test_a_put_many_whose_answer_dies_with_the_owner_puts_its_jobs_once(owner, jobs):
    owner.does(DIES.format("'ids'"))
    values = [b"%d" % n for n in range(30)]
    ids = jobs.put_many(values)
    assert [(job.id, job.value) for job in jobs.peek(99)] == list(zip(ids, values, strict=True))


def test_a_put_whose_job_is_finished_when_its_answer_dies_puts_none(owner, jobs):
    owner.does(DIES.format("'ids'").replace("os.kill(", "(lambda *_: [jobs.get(timeout=0).ack(), os.kill(*_)])("))
    jobs.put(b"x")
    assert jobs.stats().backlog == 0


def test_a_get_whose_answer_dies_with_the_owner_takes_the_job_from_the_next(owner, jobs):
    jobs.put(b"x")
    owner.does(DIES.format("'jobs'"))
    job = jobs.get(timeout=60)
    assert (job.value, job.attempt) == (b"x", 2)


def test_an_ack_whose_answer_dies_with_the_owner_is_done_once(owner, jobs):
    jobs.put(b"x")
    job = jobs.get(timeout=0)
    owner.does(DIES.format("'sizes' not in header or True or ''"))
    job.ack()
    assert jobs.stats().backlog == 0


def test_a_child_forked_by_the_owner_does_not_keep_the_others_from_taking_over(owner, jobs):
    jobs.put(b"x")
    child = owner.does("(lambda pid: pid or time.sleep(600))(os.fork())")
    try:
        owner.kill()
        assert jobs.get(timeout=60).value == b"x"
        assert "owner" in repr(jobs)
        os.kill(child, 0)       # it lives
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_child_forked_by_an_attached_process_does_not_keep_its_jobs_from_coming_back(owner, path):
    owner.does("jobs.put(b'x')")
    with Other(path) as worker:
        worker.does("jobs.get(timeout=0).value")
        child = worker.does("(lambda pid: pid or time.sleep(600))(os.fork())")
        try:
            worker.kill()
            assert owner.does("jobs.get(timeout=60).attempt") == 2
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("is_owner", [False, True])
def test_a_forked_child_is_refused_and_closes_without_harm(owner, path, is_owner):
    with Other(path) as worker:
        forker = owner if is_owner else worker
        status = forker.does(
            "(lambda pid: os.waitpid(pid, 0)[1] if pid else os._exit(tell()))(os.fork())" if forker.does("""
def tell():
    told = 0
    for call in (lambda: jobs.put(b'x'), lambda: jobs.get(timeout=0), jobs.stats, lambda: jobs.ack([])):
        try:
            call()
        except seglog.errors.ForkedHandleError:
            told += 1
    jobs.close()
    return told
""") is None else "")
        assert os.waitstatus_to_exitcode(status) >= 3
        worker.does("jobs.put(b'x')")
        assert owner.does("jobs.get(timeout=0).value") == b"x"


def test_a_queue_that_was_opened_for_one_process_is_locked_for_those_that_attach(path, monkeypatch):
    monkeypatch.setattr(shared_handle, "OPENING_S", 0.1)
    with Other(path, "jobs = seglog.Queue(path)"), pytest.raises(LogLockedError) as told:
        seglog.Queue(path, attach=True)
    assert "attach=True" in told.value.hint


def test_a_process_waits_for_one_that_opens_the_queue_however_long_that_takes(path, monkeypatch):
    """Its journal may be large, or a recovery due."""
    monkeypatch.setattr(shared_handle, "OPENING_S", 0.1)
    slow = "seglog.Queue; from seglog.queue import queue as q; o = q.OwnedQueue.__init__; " \
        "q.OwnedQueue.__init__ = lambda *a, **k: (o(*a, **k), time.sleep(1.5))[0]"
    seglog.Queue(path).close()
    with Other(path, None) as owner:
        owner.does(slow)
        owner.tell("jobs = seglog.Queue(path, attach=True)")
        wait_for(lambda: writer_of(path) is not None)
        with seglog.Queue(path, attach=True) as jobs:
            assert not jobs.is_owner
            owner.answer()


def test_a_stranger_who_locks_the_directory_holds_an_opening_up_for_its_patience_only(path, monkeypatch):
    """Whoever can read a directory can have its flock."""
    monkeypatch.setattr(shared_handle, "OPENING_S", 0.2)
    path.mkdir()
    with local_socket.turn_to_open(path), seglog.Queue(path, attach=True) as jobs:
        assert jobs.is_owner


@pytest.mark.usefixtures("no_collector_hooks")
def test_an_interrupt_ends_the_wait_for_a_process_that_opens_the_queue(path):
    path.mkdir()

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with local_socket.turn_to_open(path) as is_mine:
            assert is_mine
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Stop):
                seglog.Queue(path, attach=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    seglog.Queue(path, attach=True).close()


@pytest.mark.usefixtures("no_collector_hooks")
def test_an_interrupt_ends_the_wait_for_an_owner_that_is_stopped(owner, path):
    owner.stop()

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        begin = time.monotonic()
        with pytest.raises(Stop):
            seglog.Queue(path, attach=True)
        assert time.monotonic() - begin < 10
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    owner.send(signal.SIGCONT)
    with seglog.Queue(path, attach=True) as jobs:
        assert not jobs.is_owner


def test_an_owner_that_is_stopped_is_named_to_those_that_open_the_queue(owner, path, monkeypatch):
    monkeypatch.setattr(client, "HELLO_S", 0.2)
    monkeypatch.setattr(shared_handle, "OPENING_S", 0.1)
    owner.stop()
    with pytest.raises(LogLockedError, match=f"its owner, process {owner.process.pid}, is stopped") as told:
        seglog.Queue(path, attach=True)
    assert f"kill -CONT {owner.process.pid}" in told.value.hint


def test_an_owner_whose_directory_was_moved_leaves_the_socket_of_its_successor(path, tmp_path):
    """The path is that of another queue by now."""
    with seglog.Queue(path, attach=True) as moved:
        path.rename(tmp_path / "moved")
        with Other(path) as owner:
            moved.close()
            with seglog.Queue(path, attach=True) as jobs:
                assert not jobs.is_owner
                owner.does("jobs.put(b'x')")
                assert jobs.get(timeout=60).value == b"x"


def test_closing_wakes_calls_that_wait_for_an_owner_that_is_stopped(owner, path):
    """Also those whose connection is just being made."""
    jobs = seglog.Queue(path, attach=True)
    owner.stop()
    raised = []

    def call(work):
        try:
            work()
        except LogClosedError as error:
            raised.append(error)

    threads = [threading.Thread(target=call, args=(work,)) for work in (
        lambda: jobs.put(b"x"), jobs.get, jobs.stats, lambda: jobs.get_many(5), jobs.flush)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(jobs._role._busy) == len(threads))
    jobs.close()
    for thread in threads:
        thread.join(30)
    assert len(raised) == len(threads)


@pytest.mark.parametrize("is_owner", [False, True])
def test_the_last_moment_of_datetime_is_a_time_in_every_process(owner, jobs, is_owner):
    at = "__import__('datetime').datetime.max.replace(tzinfo=__import__('datetime').timezone.utc)"
    if is_owner:
        owner.does(f"jobs.put(b'x', at={at})")
    else:
        jobs.put(b"x", at=datetime.max.replace(tzinfo=UTC))
    [job] = jobs.peek()
    assert job.due_at.replace(microsecond=0) == datetime.max.replace(microsecond=0, tzinfo=UTC)


def test_a_queue_that_is_shared_is_locked_for_those_that_do_not_attach(owner, path):
    with pytest.raises(LogLockedError):
        seglog.Queue(path)


def test_a_class_below_queue_is_not_opened_as_a_shared_queue(path):
    """It would be an object of another class, without its methods."""
    class Mails(seglog.Queue):
        """Somebody's own."""

    with pytest.raises(InvalidArgumentError, match="Mails does not take attach=True"):
        Mails(path, attach=True)
    with Mails(path) as mails:
        assert type(mails) is Mails
    with seglog.Queue(path, attach=True) as jobs:
        assert isinstance(jobs, seglog.Queue)


def test_consumers_do_not_take_the_descriptors_that_the_owner_needs(path):
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
    with Other(path, few + "jobs = seglog.Queue(path, attach=True)") as owner, seglog.Queue(path, attach=True) as jobs:
        found = []
        consumers = [threading.Thread(target=lambda: found.append(jobs.get(timeout=60))) for _ in range(80)]
        for consumer in consumers:
            consumer.start()
        descriptors = Path(f"/proc/{owner.process.pid}/fd")
        wait_for(lambda: len(list(descriptors.iterdir())) > 32)
        for priority in range(1, 5):        # each needs files of its own
            owner.does(f"jobs.put(b'x', priority={priority})")
        owner.does("jobs.put_many([b'x'] * 76)")
        for consumer in consumers:
            consumer.join()
        assert len({job.id for job in found}) == 80


def test_many_consumers_that_wait_get_one_job_each_once(owner, jobs):
    found = []

    def consume():
        found.append(jobs.get(timeout=600))
        found[-1].ack()

    consumers = [threading.Thread(target=consume) for _ in range(CONSUMERS)]
    for consumer in consumers:
        consumer.start()
    descriptors = Path(f"/proc/{owner.process.pid}/fd")
    wait_for(lambda: len(list(descriptors.iterdir())) > CONSUMERS)     # a connection each
    owner.does(f"jobs.put_many([b'x'] * {CONSUMERS})")
    for consumer in consumers:
        consumer.join()
    assert len({job.id for job in found}) == CONSUMERS
    assert {job.attempt for job in found} == {1}
    assert jobs.stats().backlog == 0


def test_an_owner_that_is_stopped_holds_no_call_up_that_has_a_timeout(owner, jobs):
    job_id = jobs.put(b"x")
    owner.stop()
    assert jobs.get(timeout=0.1) is None
    with pytest.raises(StorageError, match="does not answer"):
        jobs.put(b"y", timeout=0.1)
    owner.send(signal.SIGCONT)
    # What it handed out meanwhile, and nobody waits for any more, comes back.
    job = jobs.get(timeout=60)
    assert job.id == job_id
    job.ack()
    jobs.purge()        # what was put is there, or never will be
    assert jobs.stats().backlog == 0


def test_the_socket_is_for_its_user_only_and_goes_with_the_owner(path):
    with seglog.Queue(path, attach=True):
        mode = os.stat(path / "queue.sock").st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not (path / "queue.sock").exists()


def test_a_path_longer_than_the_address_of_a_socket_can_be_attached_to(tmp_path):
    path = tmp_path / ("x" * 100) / ("y" * 100)
    path.parent.mkdir()
    with seglog.Queue(path, attach=True) as owner, Other(path) as worker:
        worker.does("jobs.put(b'x')")
        assert owner.get(timeout=0).value == b"x"


def test_a_closed_queue_raises_in_every_call(owner, path):
    jobs = seglog.Queue(path, attach=True)
    jobs.close()
    jobs.close()
    assert jobs.closed
    for call in (lambda: jobs.put(b"x"), lambda: jobs.get(timeout=0), jobs.stats, jobs.purge, lambda: len(jobs.dead)):
        with pytest.raises(LogClosedError):
            call()
    assert list(jobs) == []


EXITS = """
import sys, threading
import seglog
jobs = seglog.Queue(sys.argv[1], attach=True)
jobs.put(b"x")
job = jobs.get(timeout=0)
threading.Thread(target=jobs.get, daemon=True).start()
"""


@pytest.mark.parametrize("is_attached", [False, True])
def test_an_interpreter_that_ends_without_closing_ends_at_once_and_gives_its_jobs_back(path, is_attached):
    def ends():
        child = subprocess.run([sys.executable, "-c", EXITS, path], timeout=120, capture_output=True, text=True,
                               check=False)
        assert (child.returncode, child.stderr) == (0, "")

    if is_attached:
        with Other(path) as owner:
            ends()
            assert owner.does("jobs.get(timeout=60).attempt") == 2
    else:
        ends()
        with seglog.Queue(path, attach=True) as jobs:
            assert jobs.get(timeout=60).attempt == 2


@pytest.mark.usefixtures("no_collector_hooks")
def test_an_interrupted_get_loses_no_job(owner, jobs):
    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stop):
            jobs.get(timeout=600)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    jobs.put(b"x")
    assert jobs.get(timeout=60).value == b"x"
    wait_for(lambda: jobs.stats().in_flight == 1)


def test_tasks_of_an_attached_process_share_the_queue_of_the_owner(owner, path):
    async def work():
        async with seglog.aio.Queue(path, attach=True, lease=600) as jobs:
            waiting = asyncio.create_task(jobs.get())
            await asyncio.gather(*(jobs.put(b"%d" % n) for n in range(20)))
            taken = [await waiting, *[await jobs.get() for _ in range(19)]]
            assert sorted(int(job.value) for job in taken) == list(range(20))
            await jobs.ack(taken[:10])
            await asyncio.gather(*(job.ack() for job in taken[10:19]))
            owner.kill()
            async with taken[19]:
                pass
            await jobs.put(b"last")
            async for job in jobs:
                assert job.value == b"last"
                break
            return await jobs.stats()

    assert asyncio.run(work()).backlog == 1


def test_a_process_gives_back_only_what_it_has(path):
    # Its first call may have been done by an owner that died before it answered: then another process has the job.
    with seglog.Queue(path, attach=True) as owner:
        owner.put(b"x")
        desk, get = owner._role.desk, {"call": "get", "count": 1, "timeout": 0, "lease": 60}
        for holder in ("a", "b"):
            desk.adopt(holder, [])
        [sent] = desk.answer("a", get, [])[0]["jobs"]
        release = {"call": "release", "jobs": [[sent["id"], sent["attempt"]]]}
        desk.answer("a", release, [])
        assert desk.answer("b", get, [])[0]["jobs"] == [sent]
        desk.answer("a", {**release, "is_again": True}, [])
        assert owner.get(timeout=0) is None
        desk.answer("b", release, [])
        assert owner.get(timeout=0).attempt == 1


def test_the_owner_of_a_shared_queue_takes_jobs_without_detours_as_others_do(path, monkeypatch):
    with seglog.Queue(path, attach=True) as owner:
        for number in range(8):
            owner.put(b"%d" % number)
        owner.get(timeout=0).ack()
        monkeypatch.setattr(Lane, "take", None)
        assert [owner.get(timeout=0).value for _ in range(3)] == [b"1", b"2", b"3"]
