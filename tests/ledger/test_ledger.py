"""A ledger: what is added is there, until the end that it was sealed with, and after a crash of its writer."""
import errno
import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptManifestError,
    CorruptRecordError,
    InvalidArgumentError,
    LogClosedError,
    LogFailedError,
    LogLockedError,
    NotALogError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFile, OsFileSystem
from seglog.ledger import entry_writer
from seglog.ledger.entry_writer import SEGMENT, EntryWriter
from seglog.ledger.ledger import LOG_NAME, Ledger, delete_ledger
from seglog.ledger.ledger_metadata import FORMAT, LedgerMetadata
from seglog.segment.indexes import index_bytes
from seglog.segment.segment import Segment
from support.faultfs import FailingFs, NoRoom, RecordingFs
from support.waiting import in_time

TORTURE = bool(os.environ.get("SEGLOG_TORTURE"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger-7"


def killed(path, tmp_path, name="ledger-7"):
    """A copy of what is on disk while the writer is at it: what a killed process leaves."""
    return shutil.copytree(path, tmp_path / "killed" / name)


# --- adding and reading ------------------------------------------------------------------------


def test_an_entry_is_found_by_the_id_that_add_returned(path):
    with Ledger.create(path, 7) as ledger:
        assert [ledger.add(b"%d" % n) for n in range(5)] == [0, 1, 2, 3, 4]
        assert [ledger.read(n) for n in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    with Ledger.open(path) as ledger:
        assert [ledger.read(n) for n in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert (ledger.ledger_id, ledger.entry_count, ledger.last_entry_id, ledger.is_sealed) == (7, 5, 4, True)


def test_any_bytes_may_be_an_entry_and_the_empty_ones_too(path):
    with Ledger.create(path, 7) as ledger:
        ledger.add_many([b"", memoryview(b"view"), bytearray(b"array")])
        assert list(ledger.read_range(0, 2)) == [(0, b""), (1, b"view"), (2, b"array")]
        with pytest.raises(InvalidArgumentError):
            ledger.add("text")
        with pytest.raises(InvalidArgumentError):
            ledger.add_many([])
        assert ledger.entry_count == 3


def test_ranges_that_do_not_touch_are_read_in_the_order_given(path):
    with Ledger.create(path, 7) as ledger:
        for batch in range(10):
            ledger.add_many(b"%d" % n for n in range(batch * 10, batch * 10 + 10))
        found = list(ledger.read_ranges([(95, 99), (3, 3), (8, 21)]))
        ids = [*range(95, 100), 3, *range(8, 22)]
        assert found == [(n, b"%d" % n) for n in ids]


def test_an_entry_that_is_not_there_is_refused_and_a_range_before_its_first_entry_is_given(path):
    with Ledger.create(path, 7) as ledger:
        with pytest.raises(OffsetOutOfRangeError):
            ledger.read(0)
        ledger.add(b"one")
        for entry_id in (-1, 1, 2**63, -(2**70)):
            with pytest.raises(OffsetOutOfRangeError):
                ledger.read(entry_id)
        with pytest.raises(InvalidArgumentError):
            ledger.read("0")
        with pytest.raises(OffsetOutOfRangeError):
            ledger.read_range(0, 1)
        with pytest.raises(InvalidArgumentError):
            ledger.read_range(1, 0)


def test_entries_added_together_by_threads_share_batches(path):
    """One sync covers what waited for it, and what it covers is one batch."""
    with Ledger.create(path, 7) as ledger:
        ids = []
        sync = ledger.writer.active.sync

        def slow():     # in memory a sync takes no time, and each thread may be done before the next one begins
            time.sleep(0.001)
            sync()

        ledger.writer.active.sync = slow

        together = threading.Barrier(8)

        def add():
            together.wait(60)
            ids.extend(ledger.add(threading.current_thread().name.encode()) for _ in range(50))

        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ids) == list(range(400))
        batches = list(ledger.segment.batches())
        assert [batch.count for batch in batches] == [b.last_offset - b.base_offset + 1 for b in batches]
        assert len(batches) < 400


def test_what_readers_see_is_durable_and_what_waits_they_do_not_see(path):
    writer_is_in, go = threading.Event(), threading.Event()
    with Ledger.create(path, 7) as ledger:
        ledger.add(b"durable")
        sync = ledger.writer.active.sync

        def slow():
            writer_is_in.set()
            go.wait(60)
            sync()

        ledger.writer.active.sync = slow
        thread = threading.Thread(target=ledger.add, args=(b"waits",))
        thread.start()
        writer_is_in.wait(60)
        assert ledger.entry_count == 1
        go.set()
        thread.join()
        assert ledger.entry_count == 2


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_without_a_wait_an_entry_is_there_at_once_and_each_add_is_a_batch(path, fsync):
    with Ledger.create(path, 7, fsync=fsync) as ledger:
        ledger.add(b"one")
        ledger.add_many([b"two", b"three"])
        assert [batch.count for batch in ledger.segment.batches()] == [1, 2]
        ledger.flush()
    with Ledger.open(path) as ledger:
        assert ledger.read(2) == b"three"


def test_times_are_those_given_or_the_clocks(path):
    with Ledger.create(path, 7, clock=ManualClock(1000)) as ledger:
        ledger.add(b"now")
        ledger.add(b"then", 77)
        ledger.add_many([b"a", b"b"], [5, -1])
        assert [r.timestamp for b in ledger.segment.batches() for r in b] == [1000, 77, 5, -1]
        for bad in (-2, 2**63, "1"):
            with pytest.raises(InvalidArgumentError):
                ledger.add(b"x", bad)
        with pytest.raises(InvalidArgumentError):
            ledger.add_many([b"x"], [1, 2])


# --- what is on disk ---------------------------------------------------------------------------


def test_every_tool_for_logs_reads_a_ledger(path):
    with Ledger.create(path, 7) as ledger:
        ledger.add_many([b"%d" % n * 100 for n in range(200)])
        ledger.add(b"last")
    with seglog.open_partition(path) as partition:
        assert [record.value for record in partition.read()][-1] == b"last"
        assert partition.log_end_offset == 201
    assert seglog.verify(path).ok


def test_the_indexes_of_a_sealed_ledger_are_a_function_of_its_log(path):
    with Ledger.create(path, 7) as ledger:
        for n in range(300):
            ledger.add(b"%d" % n * 200, n)
    for suffix, raw in index_bytes(Segment(path / LOG_NAME, is_last=False), SEGMENT).files(SEGMENT):
        assert (path / LOG_NAME).with_suffix(suffix).read_bytes() == raw


def test_a_ledger_of_entries_of_one_kilobyte_takes_little_more_than_they_do(path):
    with Ledger.create(path, 7, fsync="never") as ledger:
        for _ in range(500):
            ledger.add(os.urandom(1024))
        assert ledger.length_bytes <= 1.12 * 500 * 1024


def test_ledger_json_says_where_the_ledger_ends(path):
    with Ledger.create(path, 7, properties={"component": "compacted-ledger"}, clock=ManualClock(5)) as ledger:
        assert LedgerMetadata.read(path).end is None
        ledger.add(b"one", 99)
        ledger.seal()
        assert ledger.read(0) == b"one"
        length = ledger.length_bytes
    found = LedgerMetadata.read(path)
    assert (found.ledger_id, found.created_ms, found.properties) == (7, 5, {"component": "compacted-ledger"})
    assert (found.end.entries, found.end.length_bytes, found.end.max_timestamp) == (1, length, 99)
    assert length == (path / LOG_NAME).stat().st_size


def test_a_damaged_ledger_json_is_refused_and_a_newer_one_too(path):
    Ledger.create(path, 7).close()
    file = path / "ledger.json"
    raw = file.read_bytes()
    for n in range(len(raw) - 1):
        file.write_bytes(raw[:n] + bytes([raw[n] ^ 1]) + raw[n + 1 :])
        try:
            LedgerMetadata.read(path)
        except CorruptManifestError:
            continue
        assert raw[n : n + 1].isspace()
    file.write_bytes(format_json(FORMAT, 3, ledger_id=7))
    with pytest.raises(UnsupportedVersionError):
        Ledger.open(path)
    for members in ({"ledger_id": "7"}, {"ledger_id": -1}, {"fsync": "some"}, {"properties": []}, {"end": []}, {}):
        body = {"ledger_id": 7, "created_ms": 0, "fsync": "batch", "properties": {}, "end": None} | members
        if members:
            file.write_bytes(format_json(FORMAT, 1, **body))
        else:
            file.write_bytes(format_json(FORMAT, 1))
        with pytest.raises(CorruptManifestError):
            Ledger.open(path)


def test_a_sealed_ledger_that_lost_bytes_is_refused(path):
    with Ledger.create(path, 7) as ledger:
        ledger.add(b"one")
    log = path / LOG_NAME
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError, match="was sealed with") as refused:
        Ledger.open(path)
    assert "seglog ledger recover --apply" in refused.value.hint
    log.unlink()
    with pytest.raises(CorruptRecordError):
        Ledger.open(path)


def test_damage_in_the_middle_of_a_sealed_ledger_is_met_where_it_stands(path):
    with Ledger.create(path, 7) as ledger:
        for n in range(3):
            ledger.add(b"%d" % n * 50)
    log = path / LOG_NAME
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    with Ledger.open(path) as ledger:
        assert ledger.read(0) == b"0" * 50
        with pytest.raises(CorruptRecordError):
            ledger.read(1)
        assert ledger.read(2) == b"2" * 50      # it is whole, and comes behind the damage
        with pytest.raises(CorruptRecordError):
            list(ledger.read_range(0, 2))


# --- the end of it -----------------------------------------------------------------------------


def test_nothing_is_added_to_a_sealed_ledger(path):
    ledger = Ledger.create(path, 7)
    ledger.add(b"one")
    ledger.seal()
    ledger.seal()
    with pytest.raises(LogClosedError):
        ledger.add(b"two")
    ledger.close()
    ledger.close()
    with pytest.raises(LogClosedError):
        ledger.read(0)
    with Ledger.open(path) as ledger, pytest.raises(LogClosedError):
        ledger.add(b"two")


def test_a_ledger_is_made_once_and_in_a_directory_of_its_own(path):
    Ledger.create(path, 7).close()
    with pytest.raises(InvalidArgumentError):
        Ledger.create(path, 7)
    for ledger_id in (-1, 2**63, "7", True):
        with pytest.raises(InvalidArgumentError):
            Ledger.create(path / "x", ledger_id)
    with pytest.raises(InvalidArgumentError):
        Ledger.create(path / "x", 1, fsync="often")
    with pytest.raises(InvalidArgumentError):
        Ledger.create(path / "x", 1, properties={"a": 1})
    with pytest.raises(NotALogError):
        Ledger.open(path / "x")


def test_nobody_opens_a_ledger_that_is_written(path):
    with Ledger.create(path, 7) as ledger:
        with pytest.raises(LogLockedError):
            Ledger.open(path)
        ledger.add(b"one")
    Ledger.open(path).close()


def test_a_deleted_ledger_is_gone_and_its_readers_go_on(path):
    with Ledger.create(path, 7) as ledger:
        ledger.add(b"one")
    ledger = Ledger.open(path)
    ledger.read(0)
    delete_ledger(path)
    assert not path.exists()
    assert not list(path.parent.iterdir())
    assert ledger.read(0) == b"one"
    ledger.close()
    with pytest.raises(NotALogError):
        delete_ledger(path)


def test_entries_beyond_what_a_segment_holds_are_refused_and_nothing_changes(path, monkeypatch):
    with Ledger.create(path, 7, fsync="never") as ledger:
        ledger.add(b"one")
        monkeypatch.setattr(ledger.writer, "size_bytes", SEGMENT.segment_bytes - 1000)
        with pytest.raises(RecordTooLargeError):
            ledger.add(bytes(1000))
        assert ledger.add(b"two") == 1


# --- a writer that dies, and a disk that fails -------------------------------------------------


def test_a_ledger_whose_writer_died_is_recovered_and_sealed(path, tmp_path):
    with Ledger.create(path, 7) as ledger:
        for n in range(50):
            ledger.add(b"%d" % n * 100, n)
        copy = killed(path, tmp_path)
    with Ledger.open(copy) as ledger:
        assert ledger.entry_count == 50
        assert ledger.lost is None
        assert ledger.end.max_timestamp == 49
    for name in os.listdir(copy):
        if name.startswith("0"):
            assert (copy / name).read_bytes() == (path / name).read_bytes()


@pytest.mark.parametrize("lost_bytes", [8, 9, 10])     # the size of a short batch begins with zeros, too
def test_a_tail_that_lacks_the_sector_with_its_offset_alone_is_cut(path, tmp_path, lost_bytes):
    """No checksum covers the offset: the batch looks whole, and misplaced."""
    with Ledger.create(path, 7) as ledger:
        ledger.add(b"")
        overhead = ledger.length_bytes
        ledger.add(b"x" * (3 * 512 - lost_bytes - 2 * overhead - 2))     # (two bytes more of length)
        begin = ledger.length_bytes
        assert begin % 512 == 512 - lost_bytes
        ledger.add(b"torn" * 20)
        left = killed(path, tmp_path)
    with open(left / LOG_NAME, "r+b") as log:
        log.seek(begin)
        log.write(bytes(lost_bytes))
    with Ledger.open(left) as ledger:
        assert (ledger.entry_count, ledger.lost.position, ledger.lost.first_offset) == (2, begin, 2)


def test_a_torn_tail_is_cut_and_told(path, tmp_path):
    with Ledger.create(path, 7) as ledger:
        ledger.add(b"one")
        kept = ledger.length_bytes
        ledger.add(b"two")
        whole = ledger.length_bytes
        copy = killed(path, tmp_path)
    raw = (copy / LOG_NAME).read_bytes()
    for size in [*range(kept, whole, 7), whole - 1]:
        again = shutil.copytree(copy, tmp_path / f"at-{size}" / "ledger-7")
        (again / LOG_NAME).write_bytes(raw[:size])
        with Ledger.open(again) as ledger:
            assert ledger.entry_count == 1
            assert (ledger.lost is None) == (size == kept)
            assert ledger.read(0) == b"one"
        assert Ledger.open(again).entry_count == 1
        shutil.rmtree(again)


def test_a_torn_tail_is_cut_in_place_if_the_disk_has_no_room_for_a_copy(path, tmp_path):
    with Ledger.create(path, 7) as ledger:
        ledger.add(b"one")
        kept = ledger.length_bytes
        ledger.add(b"two" * 3000)
        copy = killed(path, tmp_path)
    os.truncate(copy / LOG_NAME, kept + 5000)
    inode = (copy / LOG_NAME).stat().st_ino
    with Ledger.open(copy, fs=NoRoom()) as ledger:
        assert ((copy / LOG_NAME).stat().st_ino, (copy / LOG_NAME).stat().st_size) == (inode, kept)
        assert (ledger.entry_count, ledger.lost.size_bytes, ledger.read(0)) == (1, 5000, b"one")


@pytest.mark.parametrize("damage", ["a flipped bit", "a gap"])
def test_a_bad_middle_of_a_ledger_that_was_synced_is_an_error_unless_it_may_be_cut(path, tmp_path, damage):
    with Ledger.create(path, 7) as ledger:
        ends = []
        for n in range(3):
            ledger.add(b"%d" % n * 50)
            ends.append(ledger.length_bytes)
        copy = killed(path, tmp_path)
    raw = bytearray((copy / LOG_NAME).read_bytes())
    if damage == "a gap":
        raw[ends[1] + 7] += 5
    else:
        raw[ends[1] - 1] ^= 1
    (copy / LOG_NAME).write_bytes(raw)
    with pytest.raises(CorruptRecordError):
        Ledger.open(copy)
    assert (copy / LOG_NAME).read_bytes() == raw
    with Ledger.open(copy, truncate=True) as ledger:
        assert ledger.entry_count == (2 if damage == "a gap" else 1)
        assert ledger.lost.position == ends[ledger.entry_count - 1]


def test_a_bad_middle_of_a_ledger_that_was_not_synced_is_what_a_crash_leaves(path, tmp_path):
    with Ledger.create(path, 7, fsync="never") as ledger:
        ledger.add(b"one")
        end = ledger.length_bytes
        ledger.add(b"two")
        ledger.add(b"three")
        copy = killed(path, tmp_path)
    raw = bytearray((copy / LOG_NAME).read_bytes())
    raw[end : end + 70] = bytes(70)
    (copy / LOG_NAME).write_bytes(raw)
    with Ledger.open(copy) as ledger:
        assert ledger.entry_count == 1
        assert ledger.lost.position == end


def test_after_a_failed_write_the_ledger_is_read_only_and_recovery_finds_what_was_acknowledged(path):
    calls = FailingFs(OsFileSystem())
    with Ledger.create(path, 7, fs=calls) as ledger:
        before = len(calls.calls)
        ledger.add(b"one")
        ledger.add(b"two")
        adds = len(calls.calls)
    delete_ledger(path)
    for k in range(before, adds):
        ledger = Ledger.create(path, 7, fs=FailingFs(OsFileSystem(), fail_at=k, error=errno.EIO, once=True))
        acknowledged = []
        with suppress(LogFailedError):
            for value in (b"one", b"two"):
                ledger.add(value)
                acknowledged.append(value)
        assert len(acknowledged) < 2
        with pytest.raises(LogFailedError):
            ledger.add(b"three")
        with pytest.raises(LogFailedError):
            ledger.flush()
        assert [ledger.read(n) for n in range(len(acknowledged))] == acknowledged
        ledger.close()
        with Ledger.open(path) as ledger:
            found = [ledger.read(n) for n in range(ledger.entry_count)]
        assert found[: len(acknowledged)] == acknowledged
        assert found in ([], [b"one"], [b"one", b"two"])
        delete_ledger(path)


def test_an_interrupted_write_leaves_the_ledger_writable_and_what_was_put_is_written(path, monkeypatch):
    ledger = Ledger.create(path, 7)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger.writer.active, "append_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ledger.add(b"one")
    assert ledger.add(b"two") == 1
    ledger.close()
    with Ledger.open(path) as ledger:
        assert [ledger.read(n) for n in range(ledger.entry_count)] == [b"one", b"two"]


def test_a_ledger_that_cannot_be_made_leaves_its_lock_free(path):
    for k in range(20):
        fs = FailingFs(OsFileSystem(), fail_at=k, error=errno.EIO, once=True)
        try:
            Ledger.create(path, 7, fs=fs).close()
        except StorageError:
            shutil.rmtree(path, ignore_errors=True)
        else:
            delete_ledger(path)


def test_recovery_writes_again_only_what_is_not_known_to_be_on_the_disk(path, tmp_path, monkeypatch):
    monkeypatch.setattr(entry_writer, "SYNCED_BYTES", 10_000)
    with Ledger.create(path, 7) as ledger:
        for n in range(100):
            ledger.add(b"%d" % n * 500)
            if n == 60:
                copy = killed(path, tmp_path)
                size_bytes = ledger.length_bytes
        assert LedgerMetadata.read(path).synced_bytes >= ledger.length_bytes - 11_000
    synced_bytes = LedgerMetadata.read(copy).synced_bytes
    assert size_bytes - 11_000 <= synced_bytes <= size_bytes
    write_at, again = OsFile.write_at, []

    def counted(file, position, *buffers):
        if file.path.endswith(".log"):
            again.append((position, sum(map(len, buffers))))
        write_at(file, position, *buffers)

    monkeypatch.setattr(OsFile, "write_at", counted)
    with Ledger.open(copy) as ledger:
        assert ledger.entry_count == 61
    assert again == [(synced_bytes, size_bytes - synced_bytes)]
    assert LedgerMetadata.read(path).synced_bytes == LedgerMetadata.read(path).end.length_bytes


def test_a_ledger_that_an_older_version_left_is_written_again_from_its_first_byte(path, tmp_path):
    with Ledger.create(path, 7) as ledger:
        ledger.add(b"one")
        copy = killed(path, tmp_path)
    body = json.loads((copy / "ledger.json").read_text())
    members = {name: body[name] for name in ("ledger_id", "created_ms", "fsync", "properties", "end")}
    (copy / "ledger.json").write_bytes(format_json(FORMAT, 1, **members))
    assert LedgerMetadata.read(copy).synced_bytes == 0
    with Ledger.open(copy) as ledger:
        assert ledger.read(0) == b"one"


@pytest.mark.parametrize("fsync", ["batch", "never"])
@pytest.mark.parametrize("synced_bytes", [1, 64 << 20])
def test_crash_states_of_a_ledgers_whole_life(tmp_path, monkeypatch, fsync, synced_bytes):
    monkeypatch.setattr(entry_writer, "SYNCED_BYTES", synced_bytes)
    disk = tmp_path / "disk"
    disk.mkdir()
    record = RecordingFs(disk)
    values = [b"%d" % n * (10 + 700 * (n % 2)) for n in range(6)]
    with Ledger.create(disk / "ledger-7", 7, fs=record, fsync=fsync) as ledger:
        record.mark("made")
        for value in values[:4]:
            ledger.add(value)
            record.mark(value)
        ledger.add_many(values[4:])
        record.mark(values[4])
        record.mark(values[5])
    record.mark("sealed")
    delete_ledger(disk / "ledger-7", fs=record)
    record.mark("deleted")
    for state in record.crash_states(limit=1000 if TORTURE else 60, seed=7):
        with state.materialise() as root:
            path = root / "ledger-7"
            promised = [mark for mark in state.marks if isinstance(mark, bytes)]
            if "deleted" in state.marks:
                assert not list(root.iterdir()), state.story()
                continue
            if not (path / "ledger.json").exists():
                assert "made" not in state.marks or "sealed" in state.marks, state.story()
                continue
            with Ledger.open(path) as ledger:
                found = [ledger.read(n) for n in range(ledger.entry_count)]
            assert found == values[: len(found)], state.story()
            if fsync == "batch" or "sealed" in state.marks:
                assert len(found) >= len(promised), state.story()
            with Ledger.open(path) as ledger:
                assert ledger.entry_count == len(found)


def test_a_writer_makes_one_batch_of_what_waits(tmp_path):
    writer = EntryWriter(OsFileSystem(), tmp_path, ManualClock(), 0, "batch")
    writer.put([b"a", b"b"], [1, 2])
    first, number = writer.put([b"c"], [3])
    assert first == 2
    writer.wait(number)
    writer.close()
    batch, = Segment(writer.path, is_last=False).batches()
    assert [(r.offset, r.timestamp, r.value) for r in batch] == [(0, 1, b"a"), (1, 2, b"b"), (2, 3, b"c")]


class SlowSync(OsFileSystem):
    """Tells when a file is being synced, and waits until it may go on."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def create(self, path, within=None, mode=0o666):
        file = super().create(path, within, mode)
        sync, file.sync_data = file.sync_data, lambda: (self.begun.set(), self.go_on.wait(60), sync())
        return file


@pytest.mark.parametrize("fsync", ["interval", "never"])
def test_a_flush_takes_no_entry_back_that_is_added_meanwhile(tmp_path, fsync):
    fs = SlowSync()
    with Ledger.create(tmp_path / "ledger-1", 1, fs=fs, fsync=fsync) as ledger:
        ledger.add(b"one")
        flushing = threading.Thread(target=ledger.flush)
        flushing.start()
        assert fs.begun.wait(60)
        ledger.add(b"two")
        fs.go_on.set()
        flushing.join()
        assert ledger.entry_count == 2
        assert ledger.read(1) == b"two"


# --- several threads -----------------------------------------------------------------------------


def test_whoever_adds_while_another_thread_seals_is_told_that_it_is_sealed(in_memory, monkeypatch):
    """Not that a lock was released, whichever step of the call the other thread comes at."""
    ledger = Ledger.create(in_memory / "ledger-7", 7)
    found = Ledger.writer.fget

    def sealed_meanwhile(self):
        writer = found(self)
        in_time(ledger.seal)
        return writer

    monkeypatch.setattr(Ledger, "writer", property(sealed_meanwhile))
    with pytest.raises(LogClosedError):
        ledger.add(b"x")
    ledger.close()


def test_threads_may_seal_and_close_a_ledger_at_the_same_time(in_memory):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(150):
            ledger = Ledger.create(in_memory / f"{number}", number, fsync="never")
            ledger.add(b"x")
            start = threading.Barrier(3)
            with ThreadPoolExecutor(3) as pool:
                ends = [
                    pool.submit(lambda end, start=start: (start.wait(20), end()), end)
                    for end in (ledger.seal, ledger.seal, ledger.close)
                ]
            for end in ends:
                end.result()
            with Ledger.open(ledger.path) as again:
                assert again.entry_count == 1
    finally:
        sys.setswitchinterval(before)
