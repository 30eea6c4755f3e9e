"""A queue whose entries are damaged on the disk: a job that cannot be read is dead, with the reason, and holds nobody
up; the others are delivered."""
import logging
import shutil

import pytest

import seglog
from seglog.errors import CorruptRecordError, SeglogError
from seglog.fs.files import OsFileSystem
from seglog.ledger.managed.journal import Change, JournalKind, QueueJournal, read_journal
from seglog.pulsar import ManagedLedger
from seglog.topic.delayed_index import RELOCATE_EVERY_NS


def opened(path, clock, **options):
    return seglog.Queue(path, clock=clock, retry_jitter=0, **options)


def log_of(path):
    [log] = path.glob("ledger-*/*.log")
    return log


def damage(log, value):
    """Change one byte of a job's value, in place."""
    with open(log, "r+b") as file:
        at = file.read().index(value)
        file.seek(at)
        file.write(bytes([value[0] ^ 0x40]))


def values(jobs, count=100):
    return [job.value for job in jobs.get_many(count, timeout=0)]


def test_each_damaged_byte_costs_one_entry_at_most(path, clock, tmp_path):
    with opened(path, clock) as jobs:
        given = {jobs.put(b"job %d" % n): b"job %d" % n for n in range(4)}
        given |= zip(jobs.put_many([b"many 0", b"many 1"]), [b"many 0", b"many 1"], strict=True)
    whole = log_of(path).read_bytes()
    for at in range(0, len(whole), 7):
        copy = tmp_path / f"byte-{at}"
        shutil.copytree(path, copy)
        log_of(copy).write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with opened(copy, clock) as jobs:
            found, dead = {job.id: job.value for job in jobs.get_many(10, timeout=0)}, list(jobs.dead)
            assert found.items() <= given.items(), at
            lost = len(dead)
            assert lost <= 1, at
            assert len(found) in ((6,) if not lost else (5, 4)), at
            assert jobs.stats().in_flight == len(found), at
            for job in dead:
                assert "cannot be read" in job.reason
                with pytest.raises(CorruptRecordError):
                    job.value  # noqa: B018
        shutil.rmtree(copy)


def test_a_damaged_job_is_dead_and_told_once_and_others_come(path, clock, caplog):
    with opened(path, clock) as jobs:
        jobs.put_many([b"first", b"second"])
        ids = [jobs.put(value) for value in (b"early", b"broken", b"late")]
    log = log_of(path)
    damage(log, b"broken")
    with caplog.at_level(logging.ERROR), opened(path, clock) as jobs:
        assert values(jobs) == [b"first", b"second", b"early", b"late"]
        [dead] = jobs.dead
        assert dead.id == ids[1]
        assert dead.attempt == 0
        assert log.name in dead.reason
        assert jobs.stats() == seglog.QueueStats(0, 0, 0, 4, 1, None)
    with opened(path, clock) as jobs:
        assert len(values(jobs)) == 4
        assert len(jobs.dead) == 1
        assert jobs.dead.purge() == 1
        assert jobs.purge() == 4
    assert [record.getMessage().count(ids[1]) for record in caplog.records] == [1]
    with opened(path, clock) as jobs:
        assert jobs.stats() == seglog.QueueStats(0, 0, 0, 0, 0, None)


@pytest.mark.parametrize("look", ["stats", "peek", "purge"])
def test_looking_at_a_queue_passes_over_what_is_damaged(path, clock, look):
    with opened(path, clock) as jobs:
        for value in (b"early", b"broken", b"late"):
            jobs.put(value)
    damage(log_of(path), b"broken")
    with opened(path, clock) as jobs:
        if look == "stats":
            assert (jobs.stats().ready, jobs.stats().dead) == (2, 1)
        elif look == "peek":
            assert [job.value for job in jobs.peek(5)] == [b"early", b"late"]
        else:
            assert jobs.purge() == 2
        assert values(jobs) == ([] if look == "purge" else [b"early", b"late"])


def test_a_delayed_job_and_those_that_wait_may_be_damaged_meanwhile(path, clock):
    with opened(path, clock) as jobs:
        jobs.put(b"delayed", delay=30)
        jobs.put(b"waits")
        jobs.put(b"good")
        jobs.put_many([b"of a batch", b"its other"])
        for job in jobs.get_many(4, timeout=0):
            job.nack(20)
    for value in (b"delayed", b"waits", b"of a batch"):
        damage(log_of(path), value)
    with opened(path, clock) as jobs:
        clock.advance(60_000)
        assert [(job.value, job.attempt) for job in jobs.get_many(9, timeout=0)] == [(b"good", 2)]
        assert {job.attempt for job in jobs.dead} == {0, 1}
        assert jobs.stats().backlog == 1
        jobs.dead.purge()
        assert len(jobs.dead) == 0
        assert jobs.stats() == seglog.QueueStats(0, 0, 0, 1, 0, None)
    with opened(path, clock) as jobs:
        assert values(jobs) == [b"good"]
        assert len(jobs.dead) == 0


def test_a_job_comes_back_when_its_file_was_restored(path, clock):
    with opened(path, clock) as jobs:
        jobs.put(b"single")
        jobs.put_many([b"batched a", b"batched b", b"batched c"])
    whole = log_of(path).read_bytes()
    damage(log_of(path), b"single")
    damage(log_of(path), b"batched b")
    with opened(path, clock) as jobs:
        assert values(jobs) == []
        assert len(jobs.dead) == 2
        jobs.dead.requeue()
        assert values(jobs) == []
        assert len(jobs.dead) == 2      # still damaged
        with open(log_of(path), "r+b") as file:
            file.write(whole)
        assert jobs.dead.requeue() == 2
        assert sorted(values(jobs)) == [b"batched a", b"batched b", b"batched c", b"single"]


@pytest.mark.parametrize("harm", ["shorter", "no metadata"])
def test_a_ledger_that_cannot_be_opened_costs_its_jobs_only(path, clock, harm):
    config = {"managedLedgerMaxEntriesPerLedger": 3}
    with opened(path, clock, config=config) as jobs:
        for n in range(9):
            jobs.put(b"%d" % n)
    directory = path / "ledger-1"
    if harm == "shorter":
        [log] = directory.glob("*.log")
        log.write_bytes(log.read_bytes()[:-5])
    else:
        (directory / "ledger.json").write_bytes(b"{}")
    with opened(path, clock, config=config) as jobs:
        assert values(jobs) == [b"0", b"1", b"2", b"6", b"7", b"8"]
        assert len(jobs.dead) == 3
        assert jobs.stats() == seglog.QueueStats(0, 0, 0, 6, 3, None)
        jobs.purge()
        jobs.dead.purge()
        assert jobs.stats().backlog == 0


def test_a_copy_that_is_gone_is_a_dead_job(path, clock):
    config = {"managedLedgerMaxEntriesPerLedger": 20}
    with opened(path, clock, config=config) as jobs:
        jobs.put(b"kept", delay=86_400)
        for _ in range(60):
            jobs.put(b"x")
            jobs.get(timeout=0).ack()
            clock.advance(RELOCATE_EVERY_NS // 1_000_000)
        assert not (path / "ledger-0").exists()
    shutil.rmtree(path / "relocated")
    with opened(path, clock, config=config) as jobs:
        clock.advance(10**8)
        assert values(jobs) == []
        [dead] = jobs.dead
        assert "gone" in dead.reason
        assert jobs.dead.purge() == 1
        assert jobs.stats() == seglog.QueueStats(0, 0, 0, 0, 0, None)


def test_a_dead_message_that_its_batch_does_not_have_is_a_dead_job_without_contents(path, clock):
    """The journal names it under a right checksum; nobody has read the entry when that is."""
    with opened(path, clock) as jobs:
        jobs.put_many([b"a", b"b"])
        jobs.flush()
        contents = read_journal(path)
        QueueJournal(OsFileSystem(), path, contents.journal_id + 1, ["queue"], [
            Change(JournalKind.DEAD, [(0, 0, 7, 3)], text="why")], "batch").close()
        shutil.copytree(path, path.with_name("copy"))
    with opened(path.with_name("copy"), clock) as jobs:
        [dead] = jobs.dead
        assert (dead.id, dead.attempt, dead.reason) == ("0:0:7", 3, "why")
        with pytest.raises(SeglogError):
            dead.value  # noqa: B018
        assert values(jobs) == [b"a", b"b"]
        assert jobs.dead.purge() == 1
    with opened(path.with_name("copy"), clock) as jobs:
        assert list(jobs.dead) == []
        assert values(jobs) == [b"a", b"b"]


def test_an_encrypted_batch_of_another_program_holds_nobody_up(path, clock):
    from seglog.pulsar import MessageMetadata, build_entry
    with opened(path, clock) as jobs:
        jobs.put(b"early")
    with ManagedLedger(path, clock=clock) as topic:
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=5, num_messages_in_batch=3)
        metadata.encryption_keys.add(key="k", value=b"v")
        topic.add_entry(build_entry(metadata, b"secret"))
    with opened(path, clock) as jobs:
        jobs.put(b"late")
        assert values(jobs) == [b"early", b"late"]
        assert len(jobs.dead) == 1
        assert jobs.dead.purge() == 1
