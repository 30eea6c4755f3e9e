"""A log dir of several logs: who gets which log, what is made, what a deletion leaves."""
import gc
import os
import shutil
import subprocess
import sys
import weakref
from collections import Counter

import pytest

import seglog
from seglog.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    LogClosedError,
    LogLockedError,
    NotALogError,
    StorageError,
)
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.fs.staging import leftovers
from seglog.log.log import Log
from seglog.log.open_dir import LogDir
from seglog.state import offset_checkpoints
from seglog.state.checkpoints import format_offset_checkpoint, read_offset_checkpoint
from seglog.state.partition_hold import PartitionHold
from support.faultfs import FailingFs, RecordingFs
from support.waiting import line_of, wait_for


def test_logs_are_made_by_topic_and_partition(tmp_path):
    with LogDir(tmp_path / "a/data") as log_dir:
        assert log_dir.partitions() == []
        for topic, partition in (("orders", 0), ("orders", 1), ("pay.ments-eu", 0)):
            log_dir.log(topic, partition).append(topic.encode())
        assert log_dir.partitions() == [("orders", 0), ("orders", 1), ("pay.ments-eu", 0)]
        assert [record.value for record in log_dir.log("pay.ments-eu").read()] == [b"pay.ments-eu"]
    assert (tmp_path / "a/data" / names.CLEAN_SHUTDOWN).exists()
    assert read_offset_checkpoint(tmp_path / "a/data" / names.RECOVERY_POINT_CHECKPOINT) == {
        ("orders", 0): 1, ("orders", 1): 1, ("pay.ments-eu", 0): 1,
    }


def test_a_log_is_the_same_object_while_it_is_open(tmp_path):
    with LogDir(tmp_path) as log_dir:
        log = log_dir.log("orders")
        assert log_dir.log("orders", 0) is log
        with pytest.raises(InvalidArgumentError, match="the log is open"):
            log_dir.log("orders", config={"segment.bytes": 1 << 20})
        log.close()
        again = log_dir.log("orders", config={"segment.bytes": 1 << 20})
        assert again is not log
        assert again.config.segment_bytes == 1 << 20
    with pytest.raises(LogClosedError):
        again.append(b"")


def test_the_log_dir_is_held_without_a_log_too(tmp_path):
    log_dir = LogDir(tmp_path, config={"segment.bytes": 1 << 20})
    with pytest.raises(LogLockedError):
        lock_log_dir(OsFileSystem(), tmp_path)
    assert log_dir.log("orders").config.segment_bytes == 1 << 20
    with LogDir(tmp_path) as other, pytest.raises(LogLockedError):
        other.log("orders")
    log_dir.close()
    log_dir.close()
    lock_log_dir(OsFileSystem(), tmp_path).release()
    for use in (log_dir.partitions, lambda: log_dir.log("orders"), lambda: log_dir.delete("orders")):
        with pytest.raises(LogClosedError):
            use()


def test_what_a_broker_keeps_in_a_log_dir_stays(tmp_path):
    kept = {"meta.properties": b"version=1\n", names.CLEANER_CHECKPOINT: b"0\n1\nother 0 3\n"}
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    with LogDir(tmp_path) as log_dir:
        log_dir.log("orders").append(b"")
    assert {name: (tmp_path / name).read_bytes() for name in kept} == kept
    assert not (tmp_path / "orders-0" / names.PARTITION_METADATA).exists()


def test_a_deleted_partition_leaves_nothing(tmp_path):
    with LogDir(tmp_path) as log_dir:
        for partition in range(2):
            log_dir.log("orders", partition).append(b"")
            log_dir.log("orders", partition)._put_cleaner_offset(1)
        log_dir.log("orders", 1).flush()
        log_dir.delete("orders", 0)
        assert log_dir.partitions() == [("orders", 1)]
        with pytest.raises(NotALogError):
            log_dir.delete("orders", 0)
        with pytest.raises(StorageError):
            log_dir.log("orders", 0, create=False)
        assert log_dir.log("orders", 0).log_end_offset == 0
    for name in names.OFFSET_CHECKPOINTS:
        if (tmp_path / name).exists():
            assert read_offset_checkpoint(tmp_path / name).get(("orders", 0), 0) == 0
    assert read_offset_checkpoint(tmp_path / names.CLEANER_CHECKPOINT) == {("orders", 1): 1}
    assert not leftovers(tmp_path)


def test_a_partition_that_is_open_elsewhere_is_not_deleted(tmp_path):
    with LogDir(tmp_path) as log_dir, Log(tmp_path / "orders-0") as log:
        with pytest.raises(LogLockedError):
            log_dir.delete("orders")
        log.append(b"still there")


def test_a_crash_of_a_deletion_leaves_the_whole_partition_or_what_a_broker_removes(tmp_path):
    root = tmp_path / "disk"
    with LogDir(root) as log_dir:
        log_dir.log("orders").append(b"value")
    recording = RecordingFs(root)
    with LogDir(root, fs=recording) as log_dir:
        log_dir.delete("orders")
    for state in recording.crash_states(limit=200):
        for directory in state.directories:
            parsed = names.parse_partition_dir(directory)
            assert parsed, state.story()
            assert parsed.mark in ("", names.DELETE), state.story()
            if not parsed.mark:
                assert len(state.files[f"{directory}/{names.file_name(0, names.LOG_SUFFIX)}"]) > 61, state.story()


@pytest.mark.parametrize(
    ("topic", "partition"), [("", 0), ("a b", 0), ("..", 0), ("t" * 250, 0), (b"orders", 0), ("orders", -1),
                             ("orders", 1 << 31), ("orders", "0"), ("orders", True)],
)
def test_names_that_kafka_would_not_take_are_refused(tmp_path, topic, partition):
    with LogDir(tmp_path) as log_dir:
        with pytest.raises(InvalidArgumentError):
            log_dir.log(topic, partition)
        assert log_dir.partitions() == []


def test_a_file_is_no_log_dir(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotALogError, match="expected a directory, found"):
        LogDir(tmp_path / "file")


@pytest.mark.parametrize(
    "arguments", [
        {"config": {"segment.byte": 1}}, {"config": {7: 1}}, {"fsync": "always"}, {"leader_epoch": -1},
        {"cleaner": {"retention": 1}}, {"cleaner": "x"}, {"cleaner": 5}, {"config": "x"},
    ]
)
def test_arguments_that_cannot_be_meant_are_refused_before_anything_is_made(tmp_path, arguments):
    value, = arguments.values()
    with pytest.raises(InvalidConfigError if isinstance(value, dict) else InvalidArgumentError):
        seglog.open_dir(tmp_path / "data", **arguments)
    assert not (tmp_path / "data").exists()


# --- what is gathered --------------------------------------------------------------------------


@pytest.fixture
def gathering(tmp_path, monkeypatch):
    """An open log dir that writes what it gathers at its end, or when it must."""
    monkeypatch.setattr("seglog.state.offset_checkpoints.GATHER_S", 3600)
    with seglog.open_dir(tmp_path / "data", fsync="never") as log_dir:
        yield log_dir


def recovery_points(log_dir):
    path = log_dir / names.RECOVERY_POINT_CHECKPOINT
    return read_offset_checkpoint(path) if path.exists() else {}


def closed_log(log_dir, records=3):
    with log_dir.log("orders") as log:
        for n in range(records):
            log.append(b"%d" % n)


def test_lines_of_closed_logs_are_written_together_and_at_the_end(gathering):
    for partition in range(3):
        with gathering.log("orders", partition) as log:
            log.append(b"value")
            log.roll()
    assert recovery_points(gathering.path) == {}
    with gathering.log("orders", 7) as log:
        log.append(b"value")
        log.truncate_to(0)      # relies on its own line: the others go with it
        assert recovery_points(gathering.path) == {("orders", n): 1 for n in range(3)} | {("orders", 7): 0}
    assert not (gathering.path / names.CLEAN_SHUTDOWN).exists()
    gathering.close()
    assert recovery_points(gathering.path) == {("orders", n): 1 for n in range(3)} | {("orders", 7): 0}
    assert (gathering.path / names.CLEAN_SHUTDOWN).exists()


def test_a_line_that_was_gathered_is_not_written_where_another_writer_had_the_partition_since(gathering):
    closed_log(gathering)
    with seglog.open(gathering.path / "orders-0") as log:
        log.truncate_to(1)
    assert recovery_points(gathering.path) == {("orders", 0): 1}
    gathering.close()
    assert recovery_points(gathering.path) == {("orders", 0): 1}


def test_a_log_that_is_opened_again_goes_on_with_what_was_gathered_of_it(gathering):
    closed_log(gathering)
    with gathering.log("orders") as log:
        assert log._tail.partition.recovery_point == 3
        assert log.append(b"more") == 3


def test_a_new_partition_begins_without_the_lines_of_a_deleted_one_whoever_dies_when(gathering):
    with gathering.log("orders") as log:
        for n in range(3):
            log.append(b"%d" % n)
        log.delete_records(2)
    gathering.delete("orders")
    starts = gathering.path / names.LOG_START_OFFSET_CHECKPOINT
    assert read_offset_checkpoint(starts) == {("orders", 0): 2}
    died = shutil.copytree(gathering.path, gathering.path.with_name("died"))
    for log_dir in (gathering.path, died):
        with seglog.open(log_dir / "orders-0") as log:
            assert (log.log_start_offset, log.append(b"of the new one")) == (0, 0)
        starts = log_dir / names.LOG_START_OFFSET_CHECKPOINT
        assert not starts.exists() or read_offset_checkpoint(starts) == {}
    gathering.close()
    assert recovery_points(gathering.path) == {("orders", 0): 1}


def test_a_closed_log_is_clean_before_its_lines_are_written(gathering):
    closed_log(gathering)
    died = shutil.copytree(gathering.path, gathering.path.with_name("died"))
    assert recovery_points(died) == {}
    hold = PartitionHold(OsFileSystem(), died / "orders-0")
    hold.close(clean=False)
    assert hold.clean


def test_what_was_gathered_is_written_when_it_is_much(gathering, monkeypatch):
    monkeypatch.setattr("seglog.state.offset_checkpoints.GATHER_PARTITIONS", 4)
    for partition in range(4):
        assert recovery_points(gathering.path) == {}
        with gathering.log("orders", partition) as log:
            log.append(b"value")
    assert recovery_points(gathering.path) == {("orders", n): 1 for n in range(4)}


def test_a_roll_that_left_64_mib_behind_writes_its_recovery_point(gathering, monkeypatch):
    monkeypatch.setattr("seglog.log.recovery_point.MAX_BEHIND_BYTES", 4096)
    with gathering.log("orders") as log:
        for _ in range(4):
            assert recovery_points(gathering.path) == {}
            log.append(bytes(1200))
            log.roll()
        assert recovery_points(gathering.path) == {("orders", 0): 4}


# --- what a log costs beside others -------------------------------------------------------------


class Costs:
    """Files opened, looked at and listed, syncs and changes, and how often a checkpoint file was parsed."""

    def __init__(self, monkeypatch):
        self.counts = Counter()
        for name in ("open", "stat", "lstat", "scandir", "listdir"):
            monkeypatch.setattr(os, name, self._counting(name, getattr(os, name)))
        parse = offset_checkpoints.parse_offsets_or_none
        monkeypatch.setattr(offset_checkpoints, "parse_offsets_or_none", self._counting("parse", parse))
        self.fs = FailingFs(OsFileSystem())

    def _counting(self, name, function):
        def counted(*given, **more):
            # (A thread tells followers of the end by the clock: it opens their file at the first time that it does.)
            self.counts[name] += not str(given[0] if given else "").endswith(".seglog.live")
            return function(*given, **more)

        return counted

    def of(self, action):
        self.counts.clear()
        done = len(self.fs.calls)
        action()
        return self.counts | Counter(call.split()[0] for call in self.fs.calls[done:])


def life(log_dir, partition):
    """All that happens to a log."""
    with log_dir.log("more", partition) as log:
        log.append(b"value")
        log.roll()
        log.append(b"value")
    with log_dir.log("more", partition) as log:
        log.append(b"value")
    log_dir.delete("more", partition)


def filled(log_dir, partitions):
    """A log dir of so many partitions, as a broker leaves it that stopped."""
    for n in range(partitions):
        (log_dir / f"orders-{n}").mkdir(parents=True)
    for name in names.OFFSET_CHECKPOINTS:
        (log_dir / name).write_bytes(format_offset_checkpoint({("orders", n): 0 for n in range(partitions)}))
    (log_dir / names.CLEAN_SHUTDOWN).touch()
    return log_dir


def test_what_a_small_partition_costs(in_memory, monkeypatch):
    """Opened, appended to once and closed: files opened, looked at and listed, syncs and changes of the disk."""
    costs = Costs(monkeypatch)
    with LogDir(in_memory, fs=costs.fs) as log_dir:

        def one_record(partition):
            with log_dir.log("more", partition) as log:
                log.append(b"value")

        one_record(0)       # and what is the first in the log dir
        new = costs.of(lambda: one_record(1))
        again = costs.of(lambda: one_record(1))
    # The marks, the epoch, the batch with its time index, the snapshot; their names, and that of a new partition. Those
    # of a new segment, of the first mark and of the epoch take one sync.
    assert (new["sync"], new["sync_directory"]) == (5, 4)
    assert (again["sync"], again["sync_directory"]) == (4, 3)
    assert new["create"] <= 8
    assert again["create"] <= 2
    assert new["scandir"] <= 3
    assert again["scandir"] <= 4
    assert new["open"] <= 31
    assert again["open"] <= 24
    assert new["stat"] + new["lstat"] <= 43
    assert again["stat"] + again["lstat"] <= 36


def test_a_log_dir_forgets_the_logs_that_were_closed(in_memory):
    """Each is some kilobytes, and the garbage collector looks at all of them again and again."""
    with seglog.open_dir(in_memory, fsync="never") as log_dir:
        kept = log_dir.log("kept")
        closed = []
        for n in range(100):
            with log_dir.log("more", n) as log:
                closed.append(weakref.ref(log))
        del log
        gc.collect()
        assert sum(one() is not None for one in closed) < 70
        assert log_dir.log("kept") is kept
        assert not kept.closed


def test_a_log_of_a_log_dir_costs_the_same_beside_few_and_many(tmp_path, monkeypatch):
    found = {}
    for size in (10, 400):
        with monkeypatch.context() as patched:
            patched.setattr("seglog.state.offset_checkpoints.GATHER_S", 3600)
            costs = Costs(patched)
            with seglog.open_dir(filled(tmp_path / str(size), size), fsync="never", fs=costs.fs) as log_dir:
                first = costs.of(lambda log_dir=log_dir: life(log_dir, 0))
                assert first["parse"] <= 4      # each file once
                second = costs.of(lambda log_dir=log_dir: life(log_dir, 1))
                assert second["parse"] == 0
                found[size] = second
    assert found[400] == found[10]


def test_a_log_that_is_opened_alone_searches_no_other(tmp_path, monkeypatch):
    found = {}
    for size in (10, 400):
        path = filled(tmp_path / str(size), size) / "orders-0"
        with monkeypatch.context() as patched:
            costs = Costs(patched)

            def write(path=path, fs=costs.fs):
                with seglog.open(path, fsync="never", fs=fs) as log:
                    log.append(b"value")

            found[size] = costs.of(write)
        assert (path.parent / names.CLEAN_SHUTDOWN).exists()
    assert found[400] == found[10]


# --- several processes -------------------------------------------------------------------------

RECORDS = 300
WRITER = f"""
import os, signal, sys
import seglog

log_dir, partition, end = sys.argv[1], int(sys.argv[2]), sys.argv[3]
opened = seglog.open_dir(log_dir, config={{"segment.bytes": 4096}}, fsync="interval")
log = opened.log("orders", partition)
print("open", flush=True)
sys.stdin.readline()        # all of them are open
for n in range({RECORDS}):
    log.append(b"%d of %d" % (n, partition))
log.flush()
if end == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
opened.close()
"""


def run_writers(log_dir, *ends):
    """One process a partition, all of them open at the same time. Each ends as `ends` says."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, log_dir, str(partition), end],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for partition, end in enumerate(ends)
    ]
    for writer in writers:
        assert line_of(writer) == "open\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    return [writer.returncode for writer in writers]


def values_of(log_dir, partition):
    with seglog.open_dir(log_dir) as opened:
        return [record.value for record in opened.log("orders", partition, create=False).read()]


def test_two_processes_write_two_partitions_of_one_log_dir(tmp_path):
    assert run_writers(tmp_path, "closed", "closed") == [0, 0]
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()
    ends = {("orders", 0): RECORDS, ("orders", 1): RECORDS}
    assert read_offset_checkpoint(tmp_path / names.RECOVERY_POINT_CHECKPOINT) == ends
    assert read_offset_checkpoint(tmp_path / names.REPLICATION_CHECKPOINT) == ends
    for partition in range(2):
        assert values_of(tmp_path, partition) == [b"%d of %d" % (n, partition) for n in range(RECORDS)]


def test_the_clean_shutdown_file_stays_away_where_one_of_two_processes_was_killed(tmp_path):
    closed, killed = run_writers(tmp_path, "closed", "killed")
    assert (closed, killed) == (0, -9)
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    with seglog.open_dir(tmp_path) as log_dir:
        assert log_dir.log("orders", 1).log_end_offset == RECORDS
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()


def test_a_partition_is_no_log_dir(tmp_path):
    with seglog.open(tmp_path / "orders-0") as log:
        for call in (
            lambda: seglog.open_dir(tmp_path / "orders-0"), lambda: seglog.open(tmp_path / "orders-0/bills-0"),
        ):
            with pytest.raises(NotALogError, match="found a partition directory"):
                call()
        log.append(b"x")
    assert not (tmp_path / "orders-0/.lock").exists()
    (tmp_path / "disk-1").mkdir()       # a log dir may have such a name
    seglog.open(tmp_path / "disk-1/orders-0").close()


def test_a_log_dir_that_is_left_open_ends_without_a_word(tmp_path):
    code = "import sys, seglog; log_dir = seglog.open_dir(sys.argv[1])"
    ended = subprocess.run([sys.executable, "-c", code, tmp_path / "data"], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")


def syncs(fs):
    return [call for call in fs.calls if "sync" in call]


@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
def test_partitions_that_are_deleted_together_take_one_sync_although_they_were_written_to(tmp_path, fsync):
    fs = FailingFs(OsFileSystem())
    orders = [("orders", number) for number in range(3)]
    removals = []
    with seglog.open_dir(tmp_path) as log_dir:
        log_dir.log("kept").append(b"value")
    with seglog.open_dir(tmp_path, fsync=fsync, fs=fs) as log_dir:
        for where in orders:
            log_dir.log(*where).append(b"value")
        fs.calls.clear()
        log_dir._delete_partitions(orders, removals)
        assert len(syncs(fs)) == 1
        assert log_dir.partitions() == [("kept", 0)]
    assert len(removals) == 3
    # As a crash would leave them: a broker removes them, and need not recover the others.
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()
    assert read_offset_checkpoint(tmp_path / names.RECOVERY_POINT_CHECKPOINT) == {("kept", 0): 1}


@pytest.mark.parametrize("fsync", ["batch", "interval"])
def test_who_waits_for_a_partition_that_is_deleted_is_answered(tmp_path, fsync):
    told, fs = [], FailingFs(OsFileSystem())
    with seglog.open_dir(tmp_path, fsync=fsync, fs=fs) as log_dir:
        log = log_dir.log("orders")
        written = log.append_batch(seglog.build_batch([(None, b"value")]), wait=False)
        fs.calls.clear()
        log_dir._delete_partitions([("orders", 0)], [])
        assert len(syncs(fs)) == (2 if fsync == "batch" else 1)     # the record's comes first: an answer promises it
        if fsync == "batch":
            log.when_durable(written, told.append)
            wait_for(lambda: told == [None])
        with pytest.raises(LogClosedError):
            log.append(b"late")


def test_partitions_whose_deletion_failed_have_all_their_records(tmp_path, monkeypatch):
    orders = [("orders", number) for number in range(3)]
    real = OsFileSystem.rename

    def rename(fs, source, target):
        if "orders-1" in str(source):
            raise StorageError("no room", file=source)
        real(fs, source, target)

    with seglog.open_dir(tmp_path, fsync="interval", config={"linger.ms": 60_000}) as log_dir:
        for where in orders:
            log_dir.log(*where).append(b"value")
        with monkeypatch.context() as faulty:
            faulty.setattr(OsFileSystem, "rename", rename)
            with pytest.raises(StorageError, match="no room"):
                log_dir._delete_partitions(orders, [])
        assert log_dir.partitions() == orders[1:]
        for where in orders[1:]:
            log_dir.log(*where).append(b"more")
    with seglog.open_dir(tmp_path) as log_dir:
        for where in orders[1:]:
            assert [record.value for record in log_dir.log(*where).read()] == [b"value", b"more"]
