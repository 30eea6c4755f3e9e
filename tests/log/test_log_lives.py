"""A log that was left in the middle, by a failed call or a kill, and opened again before the power fails.

What the second opening reads comes from the page cache: it may never have been on the disk, and where a sync failed
before, no later one brings it there. So what was not known to be synced is written again before anything stands on it.
"""
import contextlib
import errno
import os
import shutil

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from support.faultfs import FailingFs, RecordingFs

NOW = 1_700_000_000_000
CONFIG = {"segment.bytes": 1500, "index.interval.bytes": 200, "num.recovery.threads.per.data.dir": 1}
TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))


class Killed(BaseException):
    """What each call of a process that was killed gets."""


class Kill(FailingFs):
    """From change number `fail_at` on nothing happens any more, until it is another process's turn."""

    def __init__(self, fail_at):
        super().__init__(OsFileSystem(), fail_at=fail_at, error=errno.EINTR)

    def _refuse(self, word, path):
        return Killed(f"{word} {path}")


class Life:
    """A program over a log, and what it was promised."""

    def __init__(self, record, fsync):
        self.record = record
        self.path = record.root / "data" / "orders-0"
        self.fsync = fsync
        self.start = 0
        self.written = {}           # offset -> value, of appends that returned
        self.promised = {}          # of them, what is on the disk by the log's word
        self.tried = set()
        self.log = None

    def open(self):
        self.log = seglog.open(
            self.path, fs=self.record, config=CONFIG, fsync=self.fsync, clock=ManualClock(NOW)
        )
        found = {r.offset: r.value for r in self.log.read()}
        for offset, value in self.promised.items():
            assert offset < self.start or found.get(offset) == value, offset
        assert set(found.values()) <= self.tried
        self.written = found
        self.promise()

    def append(self, value):
        self.tried.add(value)
        self.written[self.log.append(value)] = value
        if self.fsync == "batch":
            self.promise()

    def promise(self):
        """All that was written is on the disk now."""
        self.promised = dict(self.written)
        self.record.mark((self.start, self.promised))

    def flush(self):
        self.log.flush()
        self.promise()

    def cut(self, offset):
        """What lies behind is given up before the call, and what stays is on the disk after it."""
        self.written, self.promised = ({o: v for o, v in known.items() if o < offset}
                                       for known in (self.written, self.promised))
        self.record.mark((self.start, self.promised))
        self.log.truncate_to(offset)
        self.promise()

    def delete(self, before):
        self.start = before
        self.log.delete_records(before)
        self.record.mark((before, self.promised))

    def close(self):
        self.log.close()
        self.promise()

    def leave(self):
        """Let go of the log as a process does that ends: nothing is changed any more."""
        if self.log is not None:
            with contextlib.suppress(Killed, StorageError):
                self.log.close()


def first_life(life):
    life.open()
    for n in range(7):
        life.append(b"%d." % n + b"a" * (n * 97 % 400))
    life.flush()
    life.append(b"7." + b"b" * 700)
    life.append(b"8.")
    life.cut(8)
    life.append(b"8, again" + b"c" * 300)
    life.delete(2)
    life.append(b"9." + b"d" * 600)
    life.append(b"10.")
    life.close()


def second_life(life, *, closes):
    life.open()
    for n in range(3):
        life.append(b"later %d." % n + b"e" * (n * 211))
    life.flush()
    if closes:
        life.close()
        life.open()
        life.append(b"last")
        life.flush()
    life.append(b"not waited for")
    # (It is not closed: the power fails.)


def look(life, state):
    """What was promised is there, in a log that opens by itself and goes on."""
    start, promised = state.marks[-1] if state.marks else (0, {})
    with state.materialise() as disk:
        try:
            with seglog.open(disk / "data" / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
                found = {r.offset: r.value for r in log.read()}
                for offset, value in promised.items():
                    assert offset < max(start, log.log_start_offset) or found.get(offset) == value, offset
                assert set(found.values()) <= life.tried
                assert log.append(b"on it goes") == log.log_end_offset - 1
                assert log.log_start_offset <= life.start
        except Exception as error:
            error.add_note(state.story())
            raise


def calls_of(root, fsync):
    fs = FailingFs(OsFileSystem())
    (root / "whole").mkdir()
    life = Life(RecordingFs(root / "whole", fs), fsync)
    first_life(life)
    shutil.rmtree(root / "whole")
    return fs.calls


def run(root, fs, fsync, *, closes, states, seed):
    """A first life that ends by `fs`, a second one, and the power cuts of the second."""
    root.mkdir()
    record = RecordingFs(root, fs)
    life = Life(record, fsync)
    with contextlib.suppress(Killed, StorageError):
        first_life(life)
    life.leave()
    fs.heal()
    begin = record.steps
    second_life(life, closes=closes)
    for state in record.crash_states(limit=states, seed=seed, shuffled=True, after=begin):
        look(life, state)
    life.leave()
    shutil.rmtree(root)


FSYNC = ["batch", "never"]


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed once"])
@pytest.mark.parametrize("fsync", FSYNC)
def test_what_a_failed_call_left_in_the_page_cache_is_not_built_upon(in_memory, fsync, closes):
    """The call fails once, as on a disk that had a bad moment. The log is closed and opened, as the manual says."""
    calls = calls_of(in_memory, fsync)
    step, states = (1, 60) if TORTURE else (7, 10)
    for k in range(closes, len(calls), step):
        fs = FailingFs(OsFileSystem(), fail_at=k, error=errno.EIO, once=True)
        try:
            run(in_memory / f"{k}", fs, fsync, closes=closes, states=states, seed=k)
        except Exception as error:
            error.add_note(f"call {k} failed: {calls[k]}")
            raise


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed once"])
@pytest.mark.parametrize("fsync", FSYNC)
def test_what_a_killed_process_left_in_the_page_cache_is_not_built_upon(in_memory, fsync, closes):
    calls = calls_of(in_memory, fsync)
    step, states = (1, 60) if TORTURE else (7, 10)
    for k in range(closes, len(calls), step):
        try:
            run(in_memory / f"{k}", Kill(k), fsync, closes=closes, states=states, seed=k)
        except Exception as error:
            error.add_note(f"killed before call {k}: {calls[k]}")
            raise


class SyncFails(FailingFs):
    """Fails the next sync of a .log by its path, as recovery makes it, once told to."""

    armed = False

    def _fails(self, text):
        fails = self.armed and text.startswith(("sync_file ", "sync ")) and text.endswith(".log")
        self.armed = self.armed and not fails
        return fails


def test_what_a_broker_left_is_written_again_where_recovery_could_not_sync_it(in_memory):
    """A log without a mark of ours is trusted once it was synced. One failed sync ends that."""
    directory = in_memory / "orders-0"
    directory.mkdir()
    raw = b"".join(seglog.build_batch([(None, b"v" * 300)], base_offset=n, timestamp=NOW) for n in range(4))
    (directory / "00000000000000000000.log").write_bytes(raw)
    fs = SyncFails(OsFileSystem(), fail_at=0, error=errno.EIO)
    record = RecordingFs(in_memory, fs)

    def writes():
        return [step for step in record.operations if step.startswith(f"write {len(raw)} bytes at 0 of orders-0/0000")]

    fs.armed = True
    with pytest.raises(StorageError):
        seglog.open(directory, fs=record)
    assert writes() == []
    with seglog.open(directory, fs=record) as log:
        assert log.log_end_offset == 4
    assert len(writes()) == 1


def test_what_a_broker_left_is_synced_and_trusted(in_memory):
    directory = in_memory / "orders-0"
    directory.mkdir()
    raw = b"".join(seglog.build_batch([(None, b"v" * 300)], base_offset=n, timestamp=NOW) for n in range(4))
    (directory / "00000000000000000000.log").write_bytes(raw)
    record = RecordingFs(in_memory)
    seglog.open(directory, fs=record).close()
    log = "orders-0/00000000000000000000.log"
    assert [step for step in record.operations if step.endswith(log)] == [f"sync {log}"]


def test_what_is_written_again_begins_at_the_recovery_point_which_moves_with_what_is_synced(in_memory, monkeypatch):
    monkeypatch.setattr("seglog.log.tail._RECOVERY_POINT_BYTES", 1000)
    path = in_memory / "orders-0"
    log = seglog.open(path, config={"segment.bytes": 1 << 20})
    for n in range(10):
        log.append(b"v" * 300)
        assert log.recovery_point == (n + 1) // 3 * 3       # three batches are more than 1000 bytes
    recovery_point = log.recovery_point
    copy = shutil.copytree(in_memory, in_memory.with_name(f"{in_memory.name}-killed"))
    position = next(batch.position for batch in log.batches(start=recovery_point))
    size_bytes = log.segments[-1].size_bytes
    log.close()
    try:
        record = RecordingFs(copy)
        with seglog.open(copy / "orders-0", fs=record) as again:
            assert [r.offset for r in again.read()] == list(range(10))
        name = "orders-0/00000000000000000000.log"
        assert [step for step in record.operations if step.startswith("write") and step.endswith(name)] == [
            f"write {size_bytes - position} bytes at {position} of {name}"
        ]
    finally:
        shutil.rmtree(copy)


def test_a_recovery_point_that_cannot_be_moved_stops_nobody(in_memory, monkeypatch):
    monkeypatch.setattr("seglog.log.tail._RECOVERY_POINT_BYTES", 1000)

    class NoCheckpoints(FailingFs):
        def _fails(self, text):
            return text.startswith("create ") and "recovery-point" in text

    fs = NoCheckpoints(OsFileSystem(), fail_at=0, error=errno.ENOSPC)
    log = seglog.open(in_memory / "orders-0", fs=fs)
    for n in range(10):
        assert log.append(b"v" * 300) == n
    assert (log.recovery_point, log.durable_offset) == (0, 10)
    with pytest.raises(StorageError):
        log.close()     # which promises that the recovery point is the end
    with seglog.open(in_memory / "orders-0") as again:
        assert again.log_end_offset == 10
