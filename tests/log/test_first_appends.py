"""New logs whose first appends begin together: what each of them waits for is on the disk by then."""
import errno
import shutil

import pytest

import seglog
from seglog.errors import StorageError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.state.clean_marks import PARTITION_MARK, PartitionMark, PartitionState
from support.faultfs import FailingFs

WANTED = [("orders", number) for number in range(3)]


def syncs(fs):
    return [call for call in fs.calls if "sync" in call]


@pytest.fixture
def begun(tmp_path):
    """`begun(fsync)`: a log dir with a partition that has records, new logs whose appends have begun, and its fs."""
    opened = []

    def begin(fsync):
        fs = FailingFs(OsFileSystem())
        with seglog.open_dir(tmp_path / "data") as log_dir:
            log_dir.log("kept").append(b"value")
        log_dir = seglog.open_dir(tmp_path / "data", fsync=fsync, fs=fs, config={"flush.ms": 3_600_000})
        opened.append(log_dir)
        log_dir._create_partitions({where: {} for where in WANTED})
        logs = [log_dir.log(*where, create=False) for where in (*WANTED, ("kept", 0))]
        assert logs[0]._begins_appends
        log_dir._begin_appends(logs)
        return log_dir, logs[:-1], logs[-1], fs

    yield begin
    for log_dir in opened:
        log_dir.close()


@pytest.mark.parametrize("fsync", ["batch", "interval", "never"])
def test_the_first_appends_wait_for_nothing_but_their_own_records(begun, fsync):
    log_dir, logs, kept, fs = begun(fsync)
    assert not any(log._begins_appends for log in logs)
    assert kept._begins_appends         # it has records: it begins by itself
    fs.calls.clear()
    for value in (b"first", b"second"):
        for log in logs:
            log.append(value)
    assert len(syncs(fs)) == (2 * len(logs) if fsync == "batch" else 0)
    assert [[entry.epoch for entry in log.leader_epochs] for log in logs] == [[0]] * len(logs)
    log_dir.close()
    with seglog.open_dir(log_dir.path) as again:
        for where in WANTED:
            log = again.log(*where, create=False)
            assert log.recovery.lost == log.recovery.repairs == ()
            assert [record.value for record in log.read()] == [b"first", b"second"]
    assert (log_dir.path / names.CLEAN_SHUTDOWN).exists()


@pytest.mark.parametrize(("fsync", "state"), [
    ("batch", PartitionState.DIRTY), ("interval", PartitionState.UNORDERED), ("never", PartitionState.UNORDERED)])
def test_the_next_opening_recovers_them_if_the_process_dies(begun, tmp_path, fsync, state):
    log_dir, logs, _, _ = begun(fsync)
    assert not (log_dir.path / names.CLEAN_SHUTDOWN).exists()
    for log in logs:
        assert PartitionMark.read(log.path / PARTITION_MARK).state is state
        log.append(b"value")
        (whole := log.path / names.file_name(0, names.LOG_SUFFIX)).write_bytes(whole.read_bytes() + b"torn")
    shutil.copytree(log_dir.path, tmp_path / "dead")
    with seglog.open_dir(tmp_path / "dead") as again:
        for where in WANTED:
            log = again.log(*where, create=False)
            assert [one.size_bytes for one in log.recovery.lost] == [4]
            assert [record.value for record in log.read()] == [b"value"]


def test_what_cannot_begin_together_begins_by_itself(in_memory):
    two = WANTED[:2]
    number, has_failed = 0, True
    while has_failed:       # each change that it makes fails once
        fs, path = FailingFs(OsFileSystem()), in_memory / str(number)
        with seglog.open_dir(path, fsync="interval", fs=fs) as log_dir:
            log_dir._create_partitions({where: {} for where in two})
            logs = [log_dir.log(*where, create=False) for where in two]
            fs.fail(len(fs.calls) + number, errno.EIO, once=True)
            has_failed = False
            try:
                log_dir._begin_appends(logs)
            except StorageError as error:
                has_failed = error.errno == errno.EIO
            assert [log._begins_appends for log in logs] == [has_failed] * len(logs)
            fs.heal()
            for log in logs:
                log.append(b"value")
        for where in two:
            with seglog.open(path / names.partition_dir(*where)) as log:
                assert [record.value for record in log.read()] == [b"value"]
        number += 1
    assert number > 4 * len(two)
