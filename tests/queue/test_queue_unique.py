"""Keys of which a queue takes one job in a while: the key and its job are durable together, and outlive the job."""
import os
import random
import shutil
import threading

import pytest

import seglog
from seglog.attach.shared_queue import Queue
from seglog.clock import ManualClock
from seglog.errors import CorruptJournalError, InvalidArgumentError, QueueFullError, RecordTooLargeError
from seglog.ledger.managed.journal import FILE_NAME, Change, JournalItem, JournalKind, JournalRecord
from seglog.queue import journaled_ledger
from seglog.queue.unique import Claim, UniqueKeys, key_bytes
from support.faultfs import RecordingFs
from support.queue_model import NOW

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 1500 if TORTURE else 60
# So few that the ledgers of finished jobs are soon trimmed.
CONFIG = {"managedLedgerMaxEntriesPerLedger": 4}


@pytest.fixture
def jobs(path, clock):
    with seglog.Queue(path, clock=clock, config=CONFIG) as queue:
        yield queue


def backlog(queue):
    return queue.stats().backlog


def test_of_a_key_one_job_is_put_until_its_window_is_over(jobs, clock):
    first = jobs.put(b"a", key="u1", unique_for=60)
    assert jobs.put(b"b", key="u1", unique_for=60) == first
    assert jobs.put(b"b", key="u1", unique_for=60, priority=7, delay=5) == first
    assert jobs.put(b"b", key=b"u1", unique_for=60) == first    # the same key
    others = {jobs.put(b"c", key="U1", unique_for=60), jobs.put(b"d", key="u2", unique_for=60, priority=7)}
    assert first not in others
    assert len(others) == 2
    assert jobs.put(b"e", key="u1") != first            # without unique_for, it is put
    job = next(job for job in jobs.get_many(9, timeout=0) if job.id == first)
    assert (job.value, job.key, job.properties) == (b"a", "u1", {})
    job.ack()
    assert jobs.put(b"f", key="u1", unique_for=60) == first     # also when it is finished
    clock.advance(59_999)
    assert jobs.put(b"f", key="u1", unique_for=60) == first
    clock.advance(1)
    assert jobs.put(b"f", key="u1", unique_for=60) != first
    assert backlog(jobs) == 4


def test_of_many_each_key_gets_one_job_and_the_ids_are_in_order(jobs, path, clock):
    first = jobs.put(b"a", key="u1", unique_for=60)
    many = [("u2", b"b"), ("u1", b"c"), ("u2", b"d"), (b"\xff", b"e")]
    ids = jobs.put_many(many, unique_for=60, properties={"x": "y"})
    assert ids[1] == first
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3
    assert jobs.put_many([("u1", b"f"), ("u2", b"g")], unique_for=60) == [first, ids[0]]
    assert jobs.put_many([], unique_for=60) == []
    found = jobs.get_many(9, timeout=0)
    assert [(job.value, job.key, job.id) for job in found] == [
        (b"a", "u1", first), (b"b", "u2", ids[0]), (b"e", b"\xff", ids[3]),
    ]
    assert [job.properties for job in found] == [{}, {"x": "y"}, {"x": "y"}]
    jobs.ack(found)
    jobs.close()
    with seglog.Queue(path, clock=clock, config=CONFIG) as again:
        assert again.put_many([("u2", b"h")], unique_for=60) == [ids[0]]
        clock.advance(60_000)
        assert len(again.put_many([("u1", b"i"), ("u2", b"j")], unique_for=60)) == 2
        assert backlog(again) == 2


def test_of_many_none_is_put_if_one_has_no_key(jobs):
    with pytest.raises(InvalidArgumentError, match="unique_for needs a key"):
        jobs.put_many([("u1", b"a"), b"b"], unique_for=60)
    assert backlog(jobs) == 0
    jobs.put_many([("u1", b"a")], unique_for=60)
    assert backlog(jobs) == 1


def test_threads_that_put_many_with_the_same_keys_put_each_once(jobs):
    keys = [f"u{n}" for n in range(20)]
    answers = []

    def put(turn):
        turned = keys[turn:] + keys[:turn]
        answers.append(dict(zip(turned, jobs.put_many([(key, b"x") for key in turned], unique_for=60), strict=True)))

    threads = [threading.Thread(target=put, args=[turn]) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(answers) == 6
    assert all(answer == answers[0] for answer in answers)
    assert backlog(jobs) == 20


@pytest.mark.parametrize("wrong", [{}, {"key": None}, {"key": "\udc80"}, {"key": 5}, {"key": "a", "unique_for": -1},
                                   {"key": "a", "unique_for": "x"}])
def test_a_key_that_is_none_and_a_wrong_window_are_refused(jobs, wrong):
    with pytest.raises(InvalidArgumentError):
        jobs.put(b"a", **{"unique_for": 5, **wrong})
    assert backlog(jobs) == 0


def test_a_window_outlives_its_job_its_files_and_restarts(path, clock):
    keys = ["u1", b"\x00\xff", "ü " * 50, b"t u", ""]
    with seglog.Queue(path, clock=clock, config=CONFIG) as jobs:
        ids = [jobs.put(b"a", key=key, unique_for=3600) for key in keys]
        for n in range(40):
            jobs.put(b"%d" % n)
        jobs.ack(jobs.get_many(100, timeout=0))
        for _ in range(3):
            clock.advance(2_000)
            jobs.put(b"x")
            jobs.get(timeout=0).ack()
    assert not (path / "ledger-0").exists()
    for _ in range(3):
        with seglog.Queue(path, clock=clock, config=CONFIG) as jobs:
            assert [jobs.put(b"b", key=key, unique_for=60) for key in keys] == ids
            assert backlog(jobs) == 0
    clock.advance(3_600_000)
    with seglog.Queue(path, clock=clock, config=CONFIG) as jobs:
        assert not {jobs.put(b"b", key=key, unique_for=60) for key in keys} & set(ids)


def test_windows_that_are_over_leave_the_journal(path, clock, monkeypatch):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 4_000)
    with seglog.Queue(path, clock=clock, fsync="never") as jobs:
        for n in range(3_000):
            jobs.put(b"a", key=f"user {n}", unique_for=1)
            jobs.get(timeout=0).ack()
            clock.advance(20)
        assert len(jobs._lane(0).unique._claims) < 2_000
    seglog.Queue(path, clock=clock).close()
    assert (path / FILE_NAME).stat().st_size < 10_000


def test_a_put_that_is_refused_takes_no_key(path, clock):
    with seglog.Queue(path, clock=clock, max_backlog=1, when_full="refuse") as jobs:
        with pytest.raises(RecordTooLargeError):
            jobs.put(bytes(6 << 20), key="u", unique_for=60)
        jobs.put(b"other")
        with pytest.raises(QueueFullError):
            jobs.put(b"a", key="u", unique_for=60)
        jobs.get(timeout=0).ack()
        jobs.put(b"a", key="u", unique_for=60)
        assert backlog(jobs) == 1


def test_purging_ends_the_windows(path, clock):
    with seglog.Queue(path, clock=clock) as jobs:
        first = jobs.put(b"a", key="u", unique_for=60)
        assert jobs.purge() == 1
    with seglog.Queue(path, clock=clock) as jobs:
        assert jobs.put(b"a", key="u", unique_for=60) != first


@pytest.mark.parametrize("many", [False, True])
def test_a_purge_while_a_key_is_put_leaves_it_with_its_job_or_without_one(path, clock, monkeypatch, tmp_path, many):
    """Between the write of the job and the note of its key."""
    def put(queue, *keys):
        if many:
            return queue.put_many([(key, b"a") for key in keys], unique_for=60)
        return [queue.put(b"a", key=key, unique_for=60) for key in keys]

    with seglog.Queue(path, clock=clock) as jobs:
        old = put(jobs, "old", "older")
        lane_0, is_left = jobs._lane(0), type(jobs._lane(0))._is_left

        def purge_and_ask(*args):
            monkeypatch.undo()
            jobs.purge()
            return is_left(lane_0, *args)

        monkeypatch.setattr(lane_0, "_is_left", purge_and_ask)
        purged = put(jobs, "u", "v")
        assert backlog(jobs) == (0 if many else 1)
        if many:
            shutil.copytree(path, tmp_path / "after a crash")
            with seglog.Queue(tmp_path / "after a crash", clock=clock) as again:
                assert not {*put(again, "old", "older", "u", "v")} & {*old, *purged}
        assert put(jobs, "u")[0] != purged[0]
        assert not {*put(jobs, "old", "older")} & {*old}


def test_threads_that_put_a_key_at_once_put_one_job(path):
    with seglog.Queue(path) as jobs:
        found = [[] for _ in range(8)]

        def put(mine):
            for n in range(25):
                mine.append(jobs.put(b"%d" % n, key=f"u{n}", unique_for=60, priority=n % 2))

        threads = [threading.Thread(target=put, args=[mine]) for mine in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all(mine == found[0] for mine in found)
        assert sorted(job.id for job in jobs.get_many(999, timeout=0)) == sorted(found[0])
        assert not jobs._lane(0).unique.under_way


def test_keys_of_a_damaged_journal_are_found_with_their_jobs(path, clock):
    with seglog.Queue(path, clock=clock) as jobs:
        ids = [jobs.put(b"a", key=f"u{n}", unique_for=60) for n in range(10)]
        jobs.flush()
    journal = path / FILE_NAME
    raw = bytearray(journal.read_bytes())
    raw[5] ^= 1
    journal.write_bytes(raw)
    with seglog.Queue(path, clock=clock, recover=True) as jobs:
        assert [jobs.put(b"a", key=f"u{n}", unique_for=60) for n in range(10)] == ids


@pytest.mark.parametrize("text", [b"", b"5", b"5 ", b"5 x", b"x ta", b"-1 ta", b"5 b!!!!", b"9223372036854775808 ta",
                                  b"5 ta", b"5 bAP8="])
def test_a_key_that_cannot_be_is_refused_by_name_and_place(text):
    keys = UniqueKeys()
    record = JournalRecord(64, JournalKind.UNIQUE, "queue", [JournalItem(1, 2, -1, len(text))], 0, 0, text.decode())
    if text in (b"5 ta", b"5 bAP8="):
        keys.replay(record)
        assert keys.find(key_bytes("a" if text == b"5 ta" else b"\x00\xff"), 4) == Claim(5, 1, 2)
        assert keys.find(key_bytes("a" if text == b"5 ta" else b"\x00\xff"), 5) is None
        return
    with pytest.raises(CorruptJournalError, match="invalid key"):
        keys.replay(record)


def test_a_record_whose_keys_do_not_fill_its_text_is_refused(tmp_path):
    with seglog.Queue(tmp_path / "jobs") as jobs:
        jobs.put(b"a", key="u", unique_for=60)
        jobs._lane(0)._journal.append(Change(JournalKind.UNIQUE, [(0, 0, -1, 3)], text="5 tab"))
    with pytest.raises(CorruptJournalError, match="invalid keys"):
        seglog.Queue(tmp_path / "jobs")


def test_an_acknowledgement_that_comes_before_its_put_returned_keeps_the_key(path, clock, monkeypatch):
    """A consumer may be that quick; and then the files of the job may be removed at once."""
    with seglog.Queue(path, clock=clock, config=CONFIG) as jobs:
        lane_0 = jobs._lane(0)

        class Died(Exception):
            pass

        def claim(*args):
            monkeypatch.undo()
            [job] = jobs.get_many(5, timeout=0)
            job.ack()
            raise Died

        monkeypatch.setattr(lane_0, "claim", claim)
        with pytest.raises(Died):
            jobs.put(b"a", key="u", unique_for=3600)
        for n in range(40):
            jobs.put(b"%d" % n)
        jobs.ack(jobs.get_many(100, timeout=0))
        clock.advance(2000)
        jobs.put(b"x")
        jobs.get(timeout=0).ack()
    assert not (path / "ledger-0").exists()
    with seglog.Queue(path, clock=clock, config=CONFIG) as jobs:
        jobs.put(b"a", key="u", unique_for=3600)
        assert backlog(jobs) == 0


def test_a_key_and_its_job_outlive_a_crash_together(in_memory, monkeypatch):
    monkeypatch.setattr(journaled_ledger, "CHECKPOINT_BYTES", 500)
    states, seed = 0, 0
    while states < STATES:
        states += crash_states(in_memory / f"disk-{seed}", seed, STATES - states)
        seed += 1


def crash_states(disk, seed, limit):
    """Of each key there is one job at most, finished or not, and the same again after the crash."""
    disk.mkdir()
    record, chance, told = RecordingFs(disk), random.Random(seed), []
    clock = ManualClock(NOW)
    put, done, begun = {}, set(), set()

    def tell():
        told.append((dict(put), set(done), set(begun)))
        record.mark(len(told))

    with Queue(disk / "jobs", fs=record, clock=clock, config=CONFIG, lease=10**6) as jobs:
        out = []
        for _ in range(40):
            if chance.random() < 0.5:
                keys = [f"u{chance.randrange(15)}" for _ in range(chance.choice([1, 1, 3]))]
                begun.update(keys)
                tell()
                options = {"unique_for": 10**6, "priority": chance.randrange(2)}
                if len(keys) > 1:
                    ids = jobs.put_many([(key, key.encode()) for key in keys], **options)
                else:
                    ids = [jobs.put(keys[0].encode(), key=keys[0], **options)]
                for key, id_ in zip(keys, ids, strict=True):
                    assert put.setdefault(key, id_) == id_
            elif chance.random() < 0.5:
                out += jobs.get_many(2, timeout=0)
            elif out:
                job = out.pop(chance.randrange(len(out)))
                begun.add(job.id)
                tell()
                job.ack()
                done.add(job.id)
            tell()
    states = 0
    for state in record.crash_states(limit=limit, seed=seed):
        states += 1
        count = state.marks[-1] if state.marks else 0
        if not count:
            continue
        before, after = told[count - 1], told[min(count, len(told) - 1)]
        try:
            with state.materialise() as root, Queue(root / "jobs", clock=clock, config=CONFIG) as jobs:
                for key, id_ in before[0].items():
                    assert jobs.put(b"again", key=key, unique_for=10**6) == id_, key
                left = {job.id: job.value.decode() for job in jobs.peek(1000)}
                assert len(set(left.values())) == len(left), left
                assert not before[1] & left.keys()
                for id_, key in left.items():       # whose put had not returned
                    assert before[0].get(key, id_) == id_
                    assert key in after[2]
                    assert jobs.put(b"again", key=key, unique_for=10**6) == id_, key
        except BaseException as error:
            error.add_note(f"program {seed}\n{state.story()}")
            raise
    return states
