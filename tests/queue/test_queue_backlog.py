"""The limit of a queue's backlog: a put waits, is refused, or removes the oldest; the count stays right."""
import random
import threading
import time

import pytest

import seglog
from seglog.errors import InvalidArgumentError, LogClosedError, LogFailedError, QueueFullError
from seglog.queue.queue import PutCall
from support.faultfs import FailingFs
from support.waiting import wait_for


def opened(path, when_full="refuse", limit=3, **options):
    return seglog.Queue(path, max_backlog=limit, when_full=when_full, retry_jitter=0, **options)


def values(jobs, count=100):
    return [job.value for job in jobs.get_many(count, timeout=0)]


@pytest.mark.parametrize("wrong", [{"max_backlog": 0}, {"max_backlog": -1}, {"max_backlog": 1.5},
                                   {"max_backlog": True}, {"when_full": "wait"}, {"when_full": None}])
def test_wrong_limits_are_refused(path, wrong):
    with pytest.raises(InvalidArgumentError):
        seglog.Queue(path, **wrong)
    assert not path.exists()


def test_jobs_in_flight_delayed_and_waiting_count_and_dead_ones_do_not(path, clock):
    with opened(path, clock=clock, max_attempts=2) as jobs:
        jobs.put(b"first")
        jobs.put(b"delayed", delay=60, priority=4)
        job = jobs.get(timeout=0)
        jobs.put(b"ready")
        for call in (lambda: jobs.put(b"x"), lambda: jobs.put_many([b"x"]), lambda: jobs.put(b"x", timeout=9)):
            with pytest.raises(QueueFullError, match="has 3 jobs"):
                call()
        job.nack(0)
        with pytest.raises(QueueFullError):
            jobs.put(b"x")
        job = jobs.get(timeout=0)
        assert job.value == b"first"
        job.nack(0)                     # dead
        jobs.put(b"y")
        jobs.dead.requeue()             # one more than the limit, which a requeue does not refuse
        with pytest.raises(QueueFullError, match="has 4 jobs"):
            jobs.put(b"x")
        assert jobs.stats().backlog == 4
        jobs.ack(jobs.get_many(2, timeout=0))
        jobs.put(b"z")
    with opened(path, clock=clock) as jobs:     # counted anew
        with pytest.raises(QueueFullError, match="has 3 jobs"):
            jobs.put(b"x")
        assert jobs.purge() == 3
        jobs.put_many([b"1", b"2", b"3"])
        jobs.get(timeout=0).ack()
        jobs.put(b"4")
        with pytest.raises(QueueFullError):
            jobs.put(b"5")


def test_what_never_fits_is_refused_at_once_and_nothing_of_it_is_put(path, clock):
    with opened(path, "block", clock=clock) as jobs:
        with pytest.raises(QueueFullError, match="4 jobs are more"):
            jobs.put_many([b"x"] * 4)
        assert jobs.put_many([]) == []
        assert len(jobs.put_many([b"x"] * 3)) == 3


def test_a_put_waits_for_room(path):
    with opened(path, "block") as jobs:
        jobs.put_many([b"1", b"2", b"3"])
        with pytest.raises(QueueFullError):
            jobs.put(b"x", timeout=0)
        began = time.monotonic()
        with pytest.raises(QueueFullError):
            jobs.put(b"x", timeout=0.1)
        assert time.monotonic() - began >= 0.1
        done = []
        threads = [threading.Thread(target=lambda n=n: done.append(jobs.put(b"late %d" % n))) for n in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        assert done == []
        jobs.get(timeout=0).ack()
        wait_for(lambda: len(done) == 1)
        jobs.get(timeout=0).ack()
        for thread in threads:
            thread.join(20)
        assert len(done) == 2
        assert jobs.stats().backlog == 3


def test_closing_ends_the_waiting_of_puts(path):
    jobs = opened(path, "block", limit=1)
    jobs.put(b"x")
    found = []

    def put():
        try:
            jobs.put(b"y")
        except LogClosedError as error:
            found.append(error)

    threads = [threading.Thread(target=put) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    jobs.close()
    for thread in threads:
        thread.join(20)
    assert len(found) == 3


def test_the_oldest_jobs_that_are_not_in_flight_are_dropped(path, clock):
    with opened(path, "drop", clock=clock) as jobs:
        for n in range(3):
            jobs.put(b"%d" % n, priority=-n, delay=60 if n == 1 else None)
            clock.advance(1000)
        out = jobs.get(timeout=0)
        assert out.value == b"0"
        jobs.put(b"3")                  # instead of the delayed one
        jobs.put_many([b"4", b"5"])     # instead of 2 and 3
        assert jobs.stats().backlog == 3
        assert sorted(values(jobs)) == [b"4", b"5"]
        with pytest.raises(QueueFullError, match="in flight"):
            jobs.put(b"6")
        out.ack()
        jobs.put(b"6")
    with opened(path, "drop", clock=clock) as jobs:
        clock.advance(100_000)
        assert sorted(values(jobs)) == [b"4", b"5", b"6"]


def test_a_put_that_fails_drops_nothing_and_takes_no_room(path, clock):
    path.parent.mkdir(exist_ok=True)
    fs = FailingFs(seglog.fs.files.OsFileSystem())
    with opened(path, "drop", clock=clock, fs=fs, limit=2) as jobs:
        jobs.put_many([b"a", b"b"])
        for wrong in ("text", bytes(6 << 20)):
            with pytest.raises((InvalidArgumentError, seglog.errors.RecordTooLargeError)):
                jobs.put(wrong)
        fs.fail(len(fs.calls), 28, once=True)
        for _ in range(2):
            with pytest.raises(LogFailedError):
                jobs.put(b"x")
        assert values(jobs) == [b"a", b"b"]


def test_calls_together_take_the_room_there_is_and_answer_each(path, clock):
    with opened(path, clock=clock) as jobs:
        jobs.put(b"0")
        answers = jobs._put_all([PutCall(b"1"), PutCall("wrong"), PutCall(b"2"), PutCall(b"3"), PutCall(b"4")])
        assert [type(answer) for answer in answers] == [str, InvalidArgumentError, str, QueueFullError, QueueFullError]
        assert values(jobs) == [b"0", b"1", b"2"]
    with opened(path, "drop", clock=clock) as jobs:
        assert all(isinstance(answer, str) for answer in jobs._put_all([PutCall(b"%d" % n) for n in range(5, 12)]))
        assert values(jobs) == [b"9", b"10", b"11"]


@pytest.mark.parametrize("when_full", ["block", "drop"])
def test_threads_never_exceed_the_limit(path, when_full):
    limit, count, most, done = 5, 150, [], []
    with opened(path, when_full, limit, fsync="never") as jobs:
        def produce(seed):
            chance = random.Random(seed)
            for n in range(count):
                try:
                    if chance.random() < 0.3:
                        jobs.put_many([b"%d" % n] * chance.randint(1, 4))
                    else:
                        jobs.put(b"%d" % n, priority=chance.randint(0, 1))
                except QueueFullError:
                    assert when_full == "drop"
            done.append(seed)

        def consume():
            chance = random.Random(1)
            for job in jobs:            # until it is closed
                try:
                    job.nack(0) if chance.random() < 0.1 else job.ack()
                except LogClosedError:
                    return

        def look():
            while len(done) < 3:
                with jobs._lock:
                    most.append(jobs._count())
                time.sleep(0.005)

        threads = [threading.Thread(target=produce, args=[n]) for n in range(3)] + [threading.Thread(target=look)]
        consumers = [threading.Thread(target=consume) for _ in range(2)]
        for thread in threads + consumers:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        # Dropping comes after the put: each thread may be over by what it puts.
        assert max(most) <= limit + (3 * 4 if when_full == "drop" else 0)
        jobs.purge()
        for _ in range(20):             # no room was lost
            jobs.put_many([b"x"] * (limit - len(consumers)), timeout=20)
    for thread in consumers:
        thread.join(20)
        assert not thread.is_alive()
