"""A crash while a log is recovered: whoever opens it next ends where the first one would have."""
import errno
import os
import shutil

import pytest

import seglog
from seglog.config import LogConfig
from seglog.errors import StorageError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.loading.loader import load
from seglog.state.checkpoints import read_offset_checkpoint
from support.faultfs import FailingFs, RecordingFs
from support.golden import unpack

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
STATES = 2000 if os.environ.get("SEGLOG_TORTURE") else 100

CASES = [
    ("txn-v2-k391--flip-earlier-seg", "truncate"),
    ("txn-v2-k391--flip-earlier-seg", "quarantine"),
    ("txn-v2-k391--tail-cut7", "fail"),
    ("v1-none-ct-k391--offset-back", "quarantine"),
    ("v2-lz4-ct-k391--magic-7", "truncate"),
    ("v2-none-ct-k411--size-tiny", "quarantine"),
    ("v0-gzip-ct-k282--tail-cut-17", "truncate"),
]


def files(directory):
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def recover(directory, mode, fs=None, **more):
    config = LogConfig.of({"index.interval.bytes": 256, "seglog.recovery.mode": mode})
    return load(fs or OsFileSystem(), directory, config, now_ms=0, **({"clean": False} | more))


@pytest.fixture
def damaged(tmp_path):
    def copy(name, place="disk"):
        target = tmp_path / place / "orders-0"
        return shutil.copytree(unpack("kafka") / "corrupt" / name / f"{name}-0", target)

    return copy


def swapped(directory):
    """As a cleaner leaves it that was killed between its renames: two segments are replaced by one."""
    logs = sorted(directory.glob("*.log"))
    merged = b"".join(log.read_bytes() for log in logs)
    for suffix in (".index", ".timeindex"):
        (directory / f"{logs[0].stem}{suffix}.swap").write_bytes(b"")
    (directory / f"{logs[0].stem}.log.swap").write_bytes(merged)
    (directory / f"{logs[1].stem}.log.deleted").write_bytes(b"gone")
    return directory


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_crash_at_any_point_of_a_recovery_ends_in_the_same_bytes(damaged, name, mode):
    directory = damaged(name)
    record = RecordingFs(directory.parent)
    expected = recover(directory, mode, record)
    whole = files(directory)
    seen = 0
    for state in record.crash_states(limit=STATES, seed=1):
        with state.materialise() as disk:
            again = recover(disk / "orders-0", mode)
            assert files(disk / "orders-0") == whole, state.story()
            assert again.next_offset == expected.next_offset
        seen += 1
    assert seen > 10


def test_a_crash_while_leftovers_are_put_in_place_ends_in_the_same_bytes(damaged):
    directory = swapped(damaged("txn-v2-k391--index-empty"))
    record = RecordingFs(directory.parent)
    expected = recover(directory, "fail", record)
    whole = files(directory)
    assert [name for name in whole if name.endswith(".log")] == ["00000000000000000000.log"]
    assert expected.next_offset == 82
    for state in record.crash_states(limit=STATES, seed=2):
        with state.materialise() as disk:
            recover(disk / "orders-0", "fail")
            assert files(disk / "orders-0") == whole, state.story()


def test_a_crash_of_a_recovery_that_followed_a_crash_ends_in_the_same_bytes(damaged):
    name, mode = "txn-v2-k391--flip-earlier-seg", "quarantine"
    directory = damaged(name)
    record = RecordingFs(directory.parent)
    recover(directory, mode, record)
    whole = files(directory)
    for state in record.crash_states(limit=max(STATES // 20, 8), seed=3):
        with state.materialise() as disk:
            second = RecordingFs(disk)
            recover(disk / "orders-0", mode, second)
            for crash in second.crash_states(limit=8, seed=4):
                with crash.materialise() as disk_after:
                    recover(disk_after / "orders-0", mode)
                    assert files(disk_after / "orders-0") == whole, crash.story()


def test_an_error_of_the_disk_at_any_call_is_told_and_the_next_recovery_finishes(damaged):
    name, mode = "txn-v2-k391--flip-earlier-seg", "quarantine"
    count = FailingFs(OsFileSystem())
    first = damaged(name, "first")
    recover(first, mode, count)
    whole = files(first)
    for fail_at in range(len(count.calls)):
        directory = damaged(name, f"disk-{fail_at}")
        with pytest.raises(StorageError):
            recover(directory, mode, FailingFs(OsFileSystem(), fail_at=fail_at, error=errno.EIO))
        recover(directory, mode)
        assert files(directory) == whole, count.calls[fail_at]


def test_the_recovered_log_is_on_the_disk_when_it_is_given_out(damaged):
    directory = damaged("txn-v2-k391--tail-cut7")
    record = RecordingFs(directory.parent)
    recover(directory, "fail", record)
    record.mark("open")
    whole = files(directory)
    after = [state for state in record.crash_states(limit=10 * STATES, seed=5) if state.marks]
    assert after
    for state in after:
        with state.materialise() as disk:
            assert files(disk / "orders-0") == whole, state.story()


def test_a_crash_while_a_log_that_was_clean_is_cut_leaves_kafkas_mark_only_where_files_fit_each_other(tmp_path):
    """A bad copy, say: the mark says clean, and the last batch is torn."""
    path = tmp_path / "disk/orders-0"
    config = {"index.interval.bytes": 1}
    with seglog.open(path, config=config) as log:
        for n in range(9):
            log.append(b"%d" % n)
    torn = path / f"{0:020d}.log"
    torn.write_bytes(torn.read_bytes()[:-7])
    before = log_files(path)
    record = RecordingFs(path.parent)
    seglog.open(path, config=config, fs=record).close()
    whole = log_files(path)
    assert whole != before
    assert (path.parent / names.CLEAN_SHUTDOWN).exists()
    assert read_offset_checkpoint(path.parent / names.RECOVERY_POINT_CHECKPOINT) == {("orders", 0): 8}
    for state in record.crash_states(limit=STATES, seed=6):
        with state.materialise() as disk:
            if (disk / names.CLEAN_SHUTDOWN).exists():
                assert log_files(disk / "orders-0") in (before, whole), state.story()


def log_files(directory):
    return {name: raw for name, raw in files(directory).items() if name.endswith((".log", "index"))}
