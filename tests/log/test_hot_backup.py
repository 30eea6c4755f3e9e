"""A hot backup: whole or not there, of one moment, and no part of the log that it was made of."""
import errno
import os
import threading

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptRecordError,
    InvalidArgumentError,
    LogClosedError,
    LogLockedError,
    NotALogError,
    StorageError,
)
from seglog.format import names
from seglog.format.dialect import segment_files
from seglog.format.live_ends import FILE_NAME as LIVE_FILE
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.state.checkpoints import read_offset_checkpoint
from support.faultfs import FailingFs, RecordingFs

NOW = 1_700_000_000_000
CONFIG = {"segment.bytes": 600, "index.interval.bytes": 100, "seglog.time.index.minute.enabled": True}


@pytest.fixture
def path(in_memory):
    return in_memory / "data" / "orders-0"


@pytest.fixture
def copy(in_memory):
    return in_memory / "backups" / "orders-0"


@pytest.fixture
def log(path):
    """Several segments, and an active one with records in it."""
    with seglog.open(path, config=CONFIG, clock=ManualClock(NOW)) as opened:
        fill(opened)
        yield opened


def fill(log, count=20, every_ms=60_000):
    for n in range(log.log_end_offset, log.log_end_offset + count):
        log.append(b"value %d" % n, key=b"key", timestamp=NOW + n * every_ms)


def records(path):
    with seglog.open_partition(path) as partition:
        return [(r.offset, r.timestamp, r.key, r.value) for r in partition.read()]


def files_of(path):
    return {entry.name: entry.read_bytes() for entry in path.iterdir() if entry.is_file() and entry.name != LIVE_FILE}


def logs_of(path):
    return sorted(path.glob("*.log"))


# --- what is in it -----------------------------------------------------------------------------------


def test_a_backup_holds_the_records_of_the_moment_and_opens(log, path, copy):
    before = records(path)
    assert log.snapshot(copy) == 20
    log.append(b"later")
    assert records(copy) == before
    assert seglog.verify(copy, config=CONFIG).ok
    with seglog.open(copy, config=CONFIG) as opened:
        assert opened.recovery.lost == ()
        assert opened.log_end_offset == 20
        assert opened.append(b"goes on") == 20
    assert log.log_end_offset == 21


def test_sealed_segments_are_links_and_the_active_one_is_a_copy(log, path, copy):
    log.snapshot(copy)
    *sealed, active = logs_of(path)
    assert len(sealed) == 2
    for file in sealed:
        for part in segment_files(file):
            assert os.path.samefile(part, copy / part.name)
    assert (copy / active.name).read_bytes() == active.read_bytes()
    assert not os.path.samefile(active, copy / active.name)


def test_a_backup_has_the_files_that_a_closed_log_has(log, path, copy):
    log.snapshot(copy)
    log.close()
    ours = {name: raw for name, raw in files_of(path).items() if not name.startswith(".")}
    theirs = {name: raw for name, raw in files_of(copy).items() if not name.startswith(".")}
    assert theirs == ours


def test_the_checkpoints_beside_a_backup_tell_its_start_and_end(log, copy):
    log.delete_records(9)
    log.snapshot(copy)
    where = ("orders", 0)
    assert read_offset_checkpoint(copy.parent / names.LOG_START_OFFSET_CHECKPOINT)[where] == 9
    assert read_offset_checkpoint(copy.parent / names.RECOVERY_POINT_CHECKPOINT)[where] == 20
    assert read_offset_checkpoint(copy.parent / names.REPLICATION_CHECKPOINT)[where] == 20
    with seglog.open(copy, config=CONFIG) as opened:
        assert (opened.log_start_offset, opened.log_end_offset) == (9, 20)


def test_producers_transactions_and_leader_epochs_are_in_it(log, copy):
    def batch(sequence, **more):
        return seglog.build_batch(
            [(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=sequence, timestamp=NOW, **more)

    first = log.append_batch(batch(0), leader_epoch=3)
    log.roll()
    second = log.append_batch(batch(1))
    undecided = seglog.build_batch(
        [(b"k", b"v")], producer_id=8, producer_epoch=0, base_sequence=0, transactional=True, timestamp=NOW)
    begun = log.append_batch(undecided).first_offset
    log.snapshot(copy)
    with seglog.open(copy, config=CONFIG, clock=ManualClock(NOW)) as opened:
        assert [(e.epoch, e.start_offset) for e in opened.leader_epochs] == [(0, 0), (3, first.first_offset)]
        assert opened.append_batch(batch(1)) == (second.first_offset, second.last_offset, True)
        assert opened.append_batch(batch(2)).is_duplicate is False
        assert opened.last_stable_offset == begun


def test_the_topics_id_goes_along_and_not_to_another_topic(log, path, copy):
    (path / names.PARTITION_METADATA).write_bytes(b"version: 0\ntopic_id: wr3A7yeGTQaSKNMkNFaUDw")
    log.snapshot(copy)
    log.snapshot(copy.with_name("orders-1"))
    log.snapshot(copy.with_name("bills-0"))
    kept = [(copy.with_name(name) / names.PARTITION_METADATA).exists() for name in ("orders-0", "orders-1", "bills-0")]
    assert kept == [True, True, False]


def test_an_empty_log_has_a_backup(path, copy):
    with seglog.open(path) as log:
        assert log.snapshot(copy) == 0
    with seglog.open(copy) as opened:
        assert opened.append(b"first") == 0


def test_what_lingers_in_memory_is_in_it(path, copy):
    with seglog.open(path, fsync="interval", config={"linger.ms": 60_000}) as log:
        log.append(b"waits")
        assert log.snapshot(copy) == 1
    assert [value for *_, value in records(copy)] == [b"waits"]


def test_a_backup_may_stand_in_the_same_log_dir(log, path):
    log.snapshot(path.with_name("orders-1"))
    with seglog.open(path.with_name("orders-1"), config=CONFIG) as opened:
        assert opened.log_end_offset == log.log_end_offset


# --- it is no part of the log ---------------------------------------------------------------------------


def test_log_and_backup_change_without_each_other(log, path, copy):
    for offset in range(15, 5, -1):
        target = copy.with_name(f"orders-{offset}")
        log.snapshot(target)
        before = files_of(target)
        log.truncate_to(offset)
        fill(log, 20 - offset)
        assert files_of(target) == before, offset
        ours = files_of(path)
        with seglog.open(target, config=CONFIG, clock=ManualClock(NOW)) as opened:
            opened.truncate_to(offset)
            fill(opened, 3)
        assert seglog.verify(target, config=CONFIG).ok
        assert files_of(path) == ours, offset


@pytest.mark.parametrize("reopened", [False, True])
def test_a_sealed_segment_that_is_appended_to_again_is_no_longer_shared(path, copy, reopened):
    config = {"index.interval.bytes": 300}
    with seglog.open(path, config=config, clock=ManualClock(NOW)) as log:
        fill(log, 6, every_ms=0)
        log.roll()
        log.append(b"behind")
        log.snapshot(copy)
        before = files_of(copy)
        # Behind the last index entry: the indexes of what stays are right as they are, and are gone on with in place.
        log.truncate_to(5)
        if reopened:
            log.close()
            log = seglog.open(path, config=config, clock=ManualClock(NOW))
        fill(log, 20, every_ms=0)
        log.close()
    assert files_of(copy) == before
    assert seglog.verify(copy, config=config).ok


def test_a_log_of_which_a_backup_was_made_can_be_deleted(path, copy):
    with seglog.open_dir(path.parent, config=CONFIG, clock=ManualClock(NOW)) as log_dir:
        fill(log_dir.log("orders"))
        log_dir.log("orders").snapshot(copy)
        log_dir.delete("orders")
    assert len(records(copy)) == 20
    assert seglog.verify(copy, config=CONFIG).ok


class NoLinks(OsFileSystem):
    def link(self, source, target):
        raise StorageError("cannot link: source and target are on different file systems", errno=errno.EXDEV)


def test_where_no_link_can_be_had_all_is_copied(path, copy):
    with seglog.open(path, config=CONFIG, clock=ManualClock(NOW), fs=NoLinks()) as log:
        fill(log)
        log.snapshot(copy)
    assert records(copy) == records(path)
    assert all(file.stat().st_nlink == 1 for file in copy.iterdir())
    assert [file.stat().st_mtime_ns for file in logs_of(copy)[:-1]] == [
        file.stat().st_mtime_ns for file in logs_of(path)[:-1]]


def test_appends_and_rolls_go_on_while_backups_are_made(path, in_memory):
    with seglog.open(path, config=CONFIG, fsync="never") as log:
        stop = threading.Event()

        def append():
            n = 0
            while not stop.is_set():
                log.append(b"%d" % n)
                n += 1

        appender = threading.Thread(target=append)
        appender.start()
        try:
            ends = [log.snapshot(in_memory / "backups" / f"orders-{number}") for number in range(8)]
        finally:
            stop.set()
            appender.join()
    assert ends == sorted(ends)
    for number, end in enumerate(ends):
        found = records(in_memory / "backups" / f"orders-{number}")
        assert [value for *_, value in found] == [b"%d" % n for n in range(end)]


def test_closing_waits_for_a_backup_that_is_being_made(path, copy):
    """Or another process could cut the files that it copies."""
    begun, may_go_on = threading.Event(), threading.Event()

    class Slow(OsFileSystem):
        def link(self, source, target):
            begun.set()
            may_go_on.wait()
            super().link(source, target)

    log = seglog.open(path, config=CONFIG, clock=ManualClock(NOW), fs=Slow())
    fill(log)
    backup = threading.Thread(target=log.snapshot, args=(copy,))
    backup.start()
    begun.wait()
    closing = threading.Thread(target=log.close)
    closing.start()
    assert log.append(b"goes on") == 20
    assert not log.closed
    may_go_on.set()
    backup.join()
    closing.join()
    assert log.closed
    assert len(records(copy)) == 20


# --- refusals --------------------------------------------------------------------------------------------


def test_a_target_that_cannot_be_meant_is_refused(log, path, copy, in_memory):
    copy.mkdir(parents=True)
    (in_memory / "file").touch()
    for target, error in (
        (copy, InvalidArgumentError), (in_memory / "no partition", InvalidArgumentError), (7, InvalidArgumentError),
        (path / "orders-1", InvalidArgumentError), (path / "more" / "orders-1", InvalidArgumentError),
        (path, InvalidArgumentError), (in_memory / "file" / "orders-0", NotALogError),
    ):
        with pytest.raises(error):
            log.snapshot(target)
    held = lock_log_dir(OsFileSystem(), copy.parent)
    with pytest.raises(LogLockedError):
        log.snapshot(copy.with_name("orders-1"))
    held.release()
    assert log.append(b"and on it goes") == 20
    log.close()
    with pytest.raises(LogClosedError):
        log.snapshot(copy.with_name("orders-1"))
    assert sorted(os.listdir(in_memory)) == ["backups", "data", "file"]


def test_damage_in_the_active_segment_is_told_and_no_backup_is_made(log, path, copy):
    active = logs_of(path)[-1]
    raw = bytearray(active.read_bytes())
    raw[-1] ^= 1
    active.write_bytes(raw)
    with pytest.raises(CorruptRecordError) as refused:
        log.snapshot(copy)
    assert refused.value.file == str(active)
    assert not copy.exists()


# --- crashes and errors ----------------------------------------------------------------------------------


def whole_or_absent(copy, expected):
    if not copy.exists():
        return False
    with seglog.open(copy, config=CONFIG) as opened:
        assert opened.recovery.lost == ()
        assert opened.log_start_offset == 9
        assert [(r.offset, r.value) for r in opened.read()] == expected
    return True


def test_a_crash_at_any_point_leaves_a_whole_backup_or_none(in_memory):
    root = in_memory / "disk"
    root.mkdir()
    fs = RecordingFs(root)
    with seglog.open(root / "data" / "orders-0", config=CONFIG, clock=ManualClock(NOW), fs=fs) as log:
        fill(log)
        log.delete_records(9)
        expected = [(r.offset, r.value) for r in log.read()]
        fs.mark("begun")
        log.snapshot(root / "backups" / "orders-0")
        fs.mark("made")
    there = 0
    for state in fs.crash_states(limit=4000 if os.environ.get("SEGLOG_TORTURE") else 200):
        if "begun" not in state.marks:
            continue
        with state.materialise() as disk:
            is_there = whole_or_absent(disk / "backups" / "orders-0", expected)
            assert is_there or "made" not in state.marks, state.story()
            there += is_there
            with seglog.open(disk / "data" / "orders-0", config=CONFIG) as log:
                assert [(r.offset, r.value) for r in log.read()] == expected
    assert there


def test_a_crash_that_left_no_backup_leaves_nothing_that_a_new_log_heeds(log, path, copy):
    """The lines of the checkpoint files are there before the directory is."""
    log.delete_records(9)
    log.snapshot(copy)
    gone = copy.with_name("elsewhere")
    copy.rename(gone)
    with seglog.open(copy) as fresh:
        assert (fresh.log_start_offset, fresh.log_end_offset) == (0, 0)


class FailsLater(FailingFs):
    def __init__(self):
        super().__init__(OsFileSystem())

    def fail_after(self, calls, number):
        """Answer one call with an error, after so many more good ones."""
        self._fail_at, self._error, self._once = len(self.calls) + calls, number, True


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_at_any_call_leaves_a_whole_backup_or_none_and_the_log_goes_on(in_memory, number):
    path = in_memory / "data" / "orders-0"
    with seglog.open(path, config=CONFIG, clock=ManualClock(NOW)) as log:
        fill(log)
        log.delete_records(9)
        expected = [(r.offset, r.value) for r in log.read()]
    fs = FailsLater()
    with seglog.open(path, config=CONFIG, fs=fs) as log:
        before = len(fs.calls)
        log.snapshot(in_memory / "counted" / "orders-0")
        calls = fs.calls[before:]
    failed = 0
    for k in range(len(calls)):
        copy = in_memory / f"copy-{k}" / "orders-0"
        fs = FailsLater()
        with seglog.open(path, config=CONFIG, fs=fs) as log:
            fs.fail_after(k, number)
            try:
                log.snapshot(copy)
            except StorageError:
                failed += 1
        whole_or_absent(copy, expected)
        assert [(offset, value) for offset, _, _, value in records(path)] == expected
    assert failed > len(calls) / 2


# --- what a log says of itself ------------------------------------------------------------------------------


def test_stats_are_what_the_log_is(log, path):
    stats = log.stats()
    assert (stats.topic, stats.partition) == ("orders", 0)
    assert (stats.log_start_offset, stats.log_end_offset, stats.last_stable_offset) == (0, 20, 20)
    assert (stats.durable_offset, stats.leader_epoch) == (20, 0)
    assert stats.recovery_point == names.parse_base_offset(logs_of(path)[-1].name)
    assert stats.segments == len(logs_of(path))
    assert stats.log_bytes == sum(file.stat().st_size for file in logs_of(path))
    assert stats.index_bytes == sum(
        file.stat().st_size for file in path.iterdir() if file.name.endswith(("index", "timeindex")))
    assert (stats.producers, stats.lingering_records, stats.failure) == (0, 0, None)
    assert stats.syncs == 20
    assert stats.sync_seconds > 0
    log.append_batch(seglog.build_batch(
        [(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0, timestamp=NOW))
    later = log.stats()
    assert (later.producers, later.syncs, later.log_end_offset) == (1, 21, 21)
    assert stats.log_end_offset == 20       # a moment's
    log.close()
    with pytest.raises(LogClosedError):
        log.stats()
