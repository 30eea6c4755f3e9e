"""A queue on a full disk: it is opened, its jobs are finished, and purging frees space.

The disk here is a double: nothing new can be written as long as it is full and the journal has its reserve. The real
thing, a tmpfs filled to the last byte, is in tests/log/test_full_volume.py.
"""
import errno
import os
import threading
import time

import pytest

import seglog
from seglog.errors import LogClosedError, LogFailedError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.ledger.managed.journal import FILE_NAME

# Fifty jobs a ledger.
CONFIG = {"managedLedgerMaxEntriesPerLedger": 50}


class FullDisk(OsFileSystem):
    """`is_full`: files cannot be created, from when the journal reserves space until it gives that back."""

    def __init__(self):
        self.is_full = False
        self.has_room = False

    def create(self, path, within=None, mode=0o666):
        if self.is_full and not self.has_room:
            raise StorageError("cannot create: no space is left on the device", file=path, errno=errno.ENOSPC)
        return super().create(path, within, mode)

    def open_write(self, path, position=None):
        file = super().open_write(path, position)
        if os.path.basename(path) == FILE_NAME:
            release, reserve = file.release, file.reserve
            file.release = lambda: self.gives(release)
            file.reserve = lambda size_bytes: self.takes(reserve, size_bytes)
        return file

    def takes(self, reserve, size_bytes):
        self.has_room = False
        return reserve(size_bytes)

    def gives(self, release):
        self.has_room = True
        release()


class NoRoomForEntries(FullDisk):
    """The same, and entries are not stored: a disk may say so only at the sync, with a quota on a network."""

    def create(self, path, within=None, mode=0o666):
        file = super().create(path, within, mode)
        if os.path.basename(path).endswith(".log"):
            sync = file.sync_data
            file.sync_data = lambda: self.synced(path, sync)
        return file

    def synced(self, path, sync):
        if self.is_full:
            raise StorageError("cannot sync: no space is left on the device", file=path, errno=errno.ENOSPC)
        sync()


class NoReserve(FullDisk):
    """The same for a disk on which nothing was reserved."""

    def gives(self, release):
        release()


@pytest.fixture
def path(tmp_path):
    with seglog.Queue(tmp_path / "jobs", config=CONFIG) as jobs:
        for n in range(220):
            jobs.put(b"%d" % n)
    return tmp_path / "jobs"


def ledgers(path):
    return sorted(path.glob("ledger-*"))


def test_a_queue_is_opened_on_a_full_disk_and_its_jobs_are_finished(path):
    disk = FullDisk()
    disk.is_full = True
    with seglog.Queue(path, fs=disk, config=CONFIG) as jobs:
        before = len(ledgers(path))
        for n in range(220):
            job = jobs.get(timeout=0)
            assert job.value == b"%d" % n
            job.ack()
        assert len(ledgers(path)) < before - 2
        disk.is_full = False
        jobs.put(b"again")
    with seglog.Queue(path) as jobs:
        assert [job.value for job in jobs.get_many(10, timeout=0)] == [b"again"]


def test_purging_frees_a_full_disk(path):
    disk = FullDisk()
    with seglog.Queue(path, fs=disk, config=CONFIG) as jobs:
        disk.is_full = True
        assert jobs.purge() == 220
        assert len(ledgers(path)) <= 1
    with seglog.Queue(path) as jobs:
        assert jobs.stats().backlog == 0


def failed_put(path, disk, **options):
    """A queue of 222 jobs: one of them is in flight, and the last one is there though its put met the full disk."""
    jobs = seglog.Queue(path, fs=disk, config=CONFIG, **options)
    jobs.put(b"one more")
    held = jobs.get(timeout=0)
    disk.is_full = True
    with pytest.raises(LogFailedError):
        jobs.put(b"too many")
    return jobs, held


def test_purging_frees_a_full_disk_where_a_put_failed(path):
    disk = NoRoomForEntries()
    jobs, held = failed_put(path, disk)
    with jobs:
        assert jobs.purge() == 222
        assert len(ledgers(path)) <= 1
        held.ack()
        disk.is_full = False
        jobs.put(b"again")
        assert [job.value for job in jobs.get_many(10, timeout=0)] == [b"again"]
    with seglog.Queue(path) as jobs:
        assert [(job.value, job.attempt) for job in jobs.get_many(10, timeout=0)] == [(b"again", 2)]


def test_a_full_disk_is_told_once_and_who_must_do_what(path, caplog):
    disk = NoRoomForEntries()
    jobs, _ = failed_put(path, disk, attach=True)
    with jobs, seglog.Queue(path, attach=True, config=CONFIG) as attached:
        for queue in (jobs, attached):
            with pytest.raises(LogFailedError) as told:
                queue.put(b"too many")
            assert str(told.value).count("read-only after an error") == 1
        assert "free space" in told.value.hint
        assert f"process {os.getpid()}, which owns it, must close and open it again" in told.value.hint
        assert len([line for line in caplog.messages if "read-only" in line]) == 1
        disk.is_full = False


def test_purging_a_full_disk_keeps_the_dead_and_wakes_who_waits(path):
    disk = NoRoomForEntries()
    jobs, held = failed_put(path, disk, max_attempts=1)
    with jobs:
        held.nack(reason="no address")
        assert jobs.purge() == 221
        assert [(job.value, job.reason) for job in jobs.dead] == [(b"0", "no address")]
        disk.is_full = False
        taken = []
        worker = threading.Thread(target=lambda: taken.append(jobs.get(timeout=60)))
        worker.start()
        jobs.put(b"again")
        worker.join(60)
        assert [job.value for job in taken] == [b"again"]
        assert jobs.dead.requeue() == 1


def test_an_acknowledgement_that_waits_for_a_purge_is_durable_when_it_returns(path):
    """Purging a full disk opens the queue again, with another journal."""
    disk = NoRoomForEntries()
    jobs, held = failed_put(path, disk, max_attempts=1)
    with jobs:
        held.nack(reason="no address")
        dead = jobs.dead.peek()[0]
        disk.is_full = False
        [lane] = jobs._in_order
        before = lane._journal
        worker = threading.Thread(target=jobs.ack, args=([dead, held],))
        with jobs._lock:
            worker.start()
            time.sleep(0.1)
            jobs.purge()
            assert lane._journal is not before
        worker.join(60)
        assert len(jobs.dead) == 0
        assert lane._journal.committed == lane._journal.number


def test_if_purging_cannot_open_a_full_disk_the_queue_is_closed_and_nothing_is_lost(path):
    class Unreserved(NoReserve, NoRoomForEntries):
        """Nothing was reserved that could be given back."""

    disk = Unreserved()
    jobs, _ = failed_put(path, disk)
    with pytest.raises(StorageError) as error:
        jobs.purge()
    assert error.value.errno == errno.ENOSPC
    with pytest.raises(LogClosedError):
        jobs.get(timeout=0)
    jobs.close()
    with seglog.Queue(path) as jobs:
        assert jobs.stats().backlog == 222


def test_without_a_reserve_a_full_disk_is_an_error_and_nothing_is_lost(path):
    disk = NoReserve()
    disk.is_full = True
    with pytest.raises(StorageError) as error:
        seglog.Queue(path, fs=disk)
    assert error.value.errno == errno.ENOSPC
    with seglog.Queue(path) as jobs:
        assert jobs.stats().backlog == 220
