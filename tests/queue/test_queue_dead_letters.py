"""Another queue that gets the dead jobs, once each: `Queue(dead_letters=)`."""
import os
import random
import threading

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import InvalidArgumentError
from seglog.queue import journaled_ledger, lane
from support.faultfs import RecordingFs
from support.queue_model import NOW

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 1500 if TORTURE else 60


@pytest.fixture
def failed(in_memory, clock):
    with seglog.Queue(in_memory / "failed", clock=clock) as queue:
        yield queue


@pytest.fixture
def opened(path, clock, failed):
    """Open the queue whose dead jobs go to `failed`."""
    def opened(**options):
        return seglog.Queue(path, **{"clock": clock, "max_attempts": 1, "dead_letters": failed} | options)
    return opened


def values(queue):
    """What is in a queue, neither finished nor dead."""
    return sorted(job.value for job in queue.peek(1000))


def test_a_job_that_is_refused_at_its_last_attempt_is_in_the_other_queue_at_return(opened, failed):
    with opened(max_attempts=2) as jobs:
        id_ = jobs.put(b"to nobody", key=b"\xff", properties={"kind": "mail"}, priority=-3)
        jobs.get(timeout=0).nack(0)
        assert values(failed) == []
        jobs.get(timeout=0).nack(reason="no address \ud800")
        assert len(jobs.dead) == jobs.stats().backlog == 0
        letter = failed.get(timeout=0)
        assert (letter.value, letter.key, letter.attempt) == (b"to nobody", b"\xff", 1)
        assert letter.properties == {
            "kind": "mail", "REAL_TOPIC": str(jobs.path), "ORIGIN_MESSAGE_ID": id_,
            "seglog.queue.dead.attempts": "2", "seglog.queue.dead.reason": "no address ?",
        }


def test_a_job_whose_lease_ran_out_at_its_last_attempt_is_there_once_the_next_is_asked_for(opened, failed, clock):
    with opened(lease=5) as jobs:
        jobs.put_many([b"a", b"b", b"c"])
        assert [job.value for job in jobs.get_many(2, timeout=0)] == [b"a", b"b"]
        clock.advance(5000)
        assert jobs.get(timeout=0).value == b"c"
        assert jobs.get(timeout=0) is None
        assert values(failed) == [b"a", b"b"]
        assert len(jobs.dead) == 0


def test_jobs_that_are_dead_already_go_there_when_a_job_is_asked_for(opened, failed):
    with opened(dead_letters=None) as jobs:
        jobs.put_many([b"a", b"b"])
        for job in jobs.get_many(2, timeout=0):
            job.nack()
        assert len(jobs.dead) == 2
    with opened() as jobs:
        assert jobs.get(timeout=0) is None
        assert (len(jobs.dead), values(failed)) == (0, [b"a", b"b"])


def test_a_letter_that_is_put_again_is_not_there_twice_even_when_it_is_finished(opened, failed, monkeypatch):
    with opened() as jobs:
        jobs.put(b"a", key="u1")
        with monkeypatch.context() as patch:
            patch.setattr(lane.Lane, "finish_dead", lambda *_, **__: 0)     # as if the process died before
            patch.setattr("seglog.queue.dead_letters._LETTERS", 0)
            jobs.get(timeout=0).nack()
            jobs._letters._put(jobs.dead.peek()[0])
        letter = failed.get(timeout=0)
        assert letter.key == "u1"
        letter.ack()
        assert len(jobs.dead) == 1
    failed_path, fs_clock = failed.path, failed._clock
    failed.close()
    with seglog.Queue(failed_path, clock=fs_clock) as failed, opened(dead_letters=failed) as jobs:
        assert jobs.get(timeout=0) is None
        assert (len(jobs.dead), failed.stats().backlog) == (0, 0)


def test_jobs_with_the_same_key_each_have_a_letter(opened, failed):
    with opened() as jobs:
        failed.put(b"other", key="u1", unique_for=60)
        jobs.put_many([("u1", b"a"), ("u1", b"b"), (None, b"c")])
        for job in jobs.get_many(3, timeout=0):
            job.nack()
        assert values(failed) == [b"a", b"b", b"c", b"other"]
        assert [job.key for job in failed.get_many(9, timeout=0)] == ["u1", "u1", "u1", None]


def test_jobs_stay_dead_while_the_other_queue_does_not_take_them(opened, in_memory, clock, caplog):
    with seglog.Queue(in_memory / "small", clock=clock, max_backlog=1) as small, opened(dead_letters=small) as jobs:
        jobs.put_many([b"a", b"b"])
        for job in jobs.get_many(2, timeout=0):
            job.nack()
        assert [job.value for job in jobs.dead] == [b"b"]
        assert "dead jobs stay there" in caplog.text
        assert "max_backlog is 1" in caplog.text
        small.get(timeout=0).ack()
        jobs.put(b"c")
        jobs.get(timeout=0).ack()
        assert [job.value for job in jobs.dead] == [b"b"]       # nothing died
        small.close()
    with seglog.Queue(in_memory / "small", clock=clock) as small, opened(dead_letters=small) as jobs:
        jobs.get(timeout=0)
        assert (len(jobs.dead), values(small)) == (0, [b"b"])


def test_a_job_that_the_other_queue_refuses_stays_dead_and_holds_no_other_up(opened, in_memory, clock, caplog):
    config = {"maxMessageSize": 1000}
    with seglog.Queue(in_memory / "narrow", clock=clock, config=config) as narrow, opened(dead_letters=narrow) as jobs:
        jobs.put_many([b"x" * 2000, b"b"])
        for job in jobs.get_many(2, timeout=0):
            job.nack()
        assert values(narrow) == [b"b"]
        assert [len(job.value) for job in jobs.dead] == [2000]
        jobs.put(b"c")
        jobs.get(timeout=0).nack()
        assert values(narrow) == [b"b", b"c"]
        assert caplog.text.count("stays there") == 1


def test_an_interrupt_while_letters_are_put_loses_none(opened, failed, monkeypatch):
    with opened() as jobs:
        jobs.put_many([b"a", b"b"])
        taken = jobs.get_many(2, timeout=0)
        with monkeypatch.context() as patch:
            patch.setattr(failed, "put", interrupted)
            with pytest.raises(KeyboardInterrupt):
                taken[0].nack()
        assert values(failed) == []
        assert jobs.get(timeout=0) is None
        assert values(failed) == [b"a"]
        taken[1].nack()
        assert values(failed) == [b"a", b"b"]


def interrupted(*args, **options):
    raise KeyboardInterrupt


def test_threads_whose_jobs_die_at_once_put_a_letter_for_each(opened, failed):
    with opened() as jobs:
        jobs.put_many([b"%d" % n for n in range(64)])
        taken = jobs.get_many(64, timeout=0)

        def refuse(number):
            for job in taken[number::8]:
                job.nack()

        threads = [threading.Thread(target=refuse, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert values(failed) == sorted(b"%d" % n for n in range(64))
        assert len(jobs.dead) == 0


def test_several_queues_may_have_the_same_one_and_processes_may_share_it(in_memory):
    with (
        seglog.Queue(in_memory / "failed", attach=True) as failed,
        seglog.Queue(in_memory / "one", attach=True, dead_letters=failed, max_attempts=1) as one,
        seglog.Queue(in_memory / "two", dead_letters=failed, max_attempts=1) as two,
    ):
        for queue in one, two:
            queue.put(queue.path.name.encode())
            queue.get(timeout=5).nack()
        assert values(failed) == [b"one", b"two"]


@pytest.mark.parametrize("wrong", ["data/failed", 7, object()])
def test_what_is_no_open_queue_is_refused(path, wrong):
    with pytest.raises(InvalidArgumentError, match="dead_letters must be an open Queue") as caught:
        seglog.Queue(path, dead_letters=wrong)
    assert "seglog.Queue(" in caught.value.__notes__[0]
    assert not path.exists()


def test_a_queue_does_not_get_its_own_letters(path):
    with (
        seglog.Queue(path, attach=True) as jobs,
        pytest.raises(InvalidArgumentError, match="dead_letters is this queue"),
    ):
        seglog.Queue(path, dead_letters=jobs)


def test_a_job_is_dead_here_or_once_there_after_a_crash_at_any_point(in_memory, monkeypatch):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 600)
    states, seed = 0, 0
    while states < STATES:
        states += crash_states(in_memory / f"disk-{seed}", seed, min(STATES - states, STATES // 2))
        seed += 1


def crash_states(disk, seed, limit):
    disk.mkdir()
    chance, clock = random.Random(seed), ManualClock(NOW)
    record, dead, done, finished, marks = RecordingFs(disk), set(), set(), set(), []

    def opened(root, fs=None):
        failed = seglog.Queue(root / "failed", fs=fs, clock=clock, fsync="never" if seed % 2 else "batch")
        return failed, seglog.Queue(
            root / "jobs", fs=fs, clock=clock, max_attempts=1, dead_letters=failed,
            config={"managedLedgerMaxEntriesPerLedger": 4},
        )

    def told():
        marks.append((set(dead), set(done), set(finished)))
        record.mark(len(marks))

    failed, jobs = opened(disk, record)
    for number in range(8):
        job_ids = [jobs.put(b"%d" % number), *jobs.put_many([b"%d-a" % number, b"%d-b" % number])]
        for job in jobs.get_many(len(job_ids), timeout=0):
            if chance.random() < 0.3:
                job.ack()
                done.add(job.value)
            else:
                job.nack()
                jobs.flush()
                dead.add(job.value)
            told()
        # (With "never" it may be there again.)
        if seed % 2 == 0 and chance.random() < 0.5 and (letter := failed.get(timeout=0)) is not None:
            letter.ack()
            finished.add(letter.value)
            told()
    jobs.close()
    failed.close()
    states = 0
    for state in record.crash_states(limit=limit, seed=seed):
        states += 1
        with state.materialise() as root:
            dead, done, finished = marks[state.marks[-1] - 1] if state.marks else (set(), set(), set())
            failed, jobs = opened(root)
            jobs._letters._path = disk / "jobs"     # where it was: its letters are named by that
            with failed, jobs:
                left = jobs.get_many(100, timeout=0)
                there = [letter.value for letter in failed.peek(100)]
                assert len(jobs.dead) == 0
            assert len(there) == len(set(there)), (seed, states, there)
            assert not (done | finished) & set(there), (seed, states)
            # (One may be finished there that the caller was not told of.)
            lost = dead - finished - set(there) - {job.value for job in left}
            assert len(lost) <= 1, (seed, states, lost)
    return states
