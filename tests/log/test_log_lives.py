"""A log that was left in the middle, by a failed call or a kill, and opened again before the power fails.

What the second opening reads comes from the page cache: it may never have been on the disk, and where a sync failed
before, no later one brings it there. So what was not known to be synced is written again before anything stands on it.
"""
import errno
import shutil

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from support.faultfs import FailingFs, RecordingFs
from support.lives import Life, every_end

NOW = 1_700_000_000_000
CONFIG = {"segment.bytes": 1500, "index.interval.bytes": 200, "num.recovery.threads.per.data.dir": 1}


class LogLife(Life):
    """A program over a log, and what it was promised."""

    def __init__(self, record, fsync):
        super().__init__(record, fsync)
        self.path = record.root / "data" / "orders-0"
        self.start = 0
        self.written = {}           # offset -> value, of appends that returned
        self.promised = {}          # of them, what is on the disk by the log's word
        self.tried = set()

    def open(self):
        self.opened = seglog.open(
            self.path, fs=self.record, config=CONFIG, fsync=self.fsync, clock=ManualClock(NOW)
        )
        found = {r.offset: r.value for r in self.opened.read()}
        for offset, value in self.promised.items():
            assert offset < self.start or found.get(offset) == value, offset
        assert set(found.values()) <= self.tried
        self.written = found
        self.promise()

    def append(self, value):
        self.tried.add(value)
        self.written[self.opened.append(value)] = value
        if self.fsync == "batch":
            self.promise()

    def promise(self):
        """All that was written is on the disk now."""
        self.promised = dict(self.written)
        self.record.mark((self.start, self.promised))

    def flush(self):
        self.opened.flush()
        self.promise()

    def cut(self, offset):
        """What lies behind is given up before the call, and what stays is on the disk after it."""
        self.written, self.promised = ({o: v for o, v in known.items() if o < offset}
                                       for known in (self.written, self.promised))
        self.record.mark((self.start, self.promised))
        self.opened.truncate_to(offset)
        self.promise()

    def delete(self, before):
        self.start = before
        self.opened.delete_records(before)
        self.record.mark((before, self.promised))

    def close(self):
        self.opened.close()
        self.promise()


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
    with state.materialise() as disk, seglog.open(
        disk / "data" / "orders-0", config=CONFIG, clock=ManualClock(NOW)
    ) as log:
        found = {r.offset: r.value for r in log.read()}
        for offset, value in promised.items():
            assert offset < max(start, log.log_start_offset) or found.get(offset) == value, offset
        assert set(found.values()) <= life.tried
        assert log.append(b"on it goes") == log.log_end_offset - 1
        assert log.log_start_offset <= life.start


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed once"])
@pytest.mark.parametrize("fsync", ["batch", "never"])
@pytest.mark.parametrize("how", ["failed", "killed"])
def test_what_the_first_life_left_in_the_page_cache_is_not_built_upon(in_memory, how, fsync, closes):
    """A call fails once, as on a disk that had a bad moment, and the log is closed and opened, as the manual says; or
    the process is killed."""
    # Each of the eight looks at other calls.
    begin = 4 * (how == "killed") + 2 * (fsync == "never") + closes
    every_end(
        in_memory, how, lambda record: LogLife(record, fsync), first_life,
        lambda life: second_life(life, closes=closes), look, begin=8 * begin, step=68,
    )


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
    monkeypatch.setattr("seglog.log.recovery_point.MAX_BEHIND_BYTES", 1000)
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
    monkeypatch.setattr("seglog.log.recovery_point.MAX_BEHIND_BYTES", 1000)

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
