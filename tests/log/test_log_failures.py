"""A log over a disk that fails: nothing acknowledged is lost, and no success is claimed after a failed sync."""
import errno
import os
import shutil

import pytest

import seglog
from seglog.errors import LogFailedError, StorageError
from seglog.fs.files import OsFileSystem
from support.faultfs import FailingFs

CONFIG = {"segment.bytes": 400, "index.interval.bytes": 100}


class Run:
    """A program of everything that changes a log, and what it was told."""

    def __init__(self):
        self.acknowledged = {}      # offset -> value
        self.maybe = set()          # values that were given to an append that failed
        self.start = 0

    def append(self, log, value):
        self.maybe.add(value)
        self.acknowledged[log.append(value)] = value

    def __call__(self, path, fs):
        with seglog.open(path, fs=fs, config=CONFIG) as log:
            for n in range(4):
                self.append(log, b"%d" % n * 60)
            self.maybe |= {b"many", b"more"}
            last = log.append_many([(None, b"many"), (None, b"more")])
            self.acknowledged |= {last - 1: b"many", last: b"more"}
            log.roll()
            self.append(log, b"behind the roll")
            self.acknowledged = {o: v for o, v in self.acknowledged.items() if o < 4}
            log.truncate_to(4)
            self.append(log, b"behind the cut")
            self.start = 2
            log.delete_records(2)
            self.append(log, b"last")


def calls_of_a_whole_run(tmp_path):
    fs = FailingFs(OsFileSystem())
    Run()(tmp_path / "whole" / "orders-0", fs)
    shutil.rmtree(tmp_path / "whole")
    return fs.calls


def check_after(path, run):
    """Opening recovers without a hand, and what was acknowledged is there."""
    with seglog.open(path, config=CONFIG) as log:
        found = {r.offset: r.value for r in log.read()}
        for offset, value in run.acknowledged.items():
            if offset >= run.start:
                assert found.get(offset) == value, offset
        assert set(found.values()) <= run.maybe
        assert log.append(b"and on it goes") == log.log_end_offset - 1


@pytest.mark.parametrize("once", [True, False], ids=["once", "for good"])
@pytest.mark.parametrize(
    ("number", "short"), [(errno.EIO, False), (errno.ENOSPC, True)], ids=["EIO", "ENOSPC after half of a write"]
)
def test_an_error_at_any_call_loses_nothing_that_was_acknowledged(tmp_path, number, short, once):
    calls = calls_of_a_whole_run(tmp_path)
    assert len(calls) > 80
    step = 1 if os.environ.get("SEGLOG_TORTURE") else 11
    for k in range(number % step, len(calls), step):
        path = tmp_path / f"{k}" / "orders-0"
        run = Run()
        fs = FailingFs(OsFileSystem(), fail_at=k, error=number, once=once, short=short)
        met = None
        try:
            run(path, fs)
        except StorageError as error:
            met = error.errno
        # One error that nothing hung on (a file of ours that was to be removed) may be passed over.
        assert met == number or (met is None and once), f"{calls[k]}: {met}"
        check_after(path, run)
        shutil.rmtree(path.parent)


class SyncFails(FailingFs):
    """Fails the sync of the .log that is asked for next, once told to."""

    def __init__(self):
        super().__init__(OsFileSystem(), fail_at=0, error=errno.EIO)
        self.armed = False

    def _fails(self, text):
        if self.armed and text.startswith("sync ") and text.endswith(".log"):
            self.armed = False
            return True
        return False


def test_after_a_failed_sync_the_log_is_read_only_and_says_why(tmp_path):
    fs = SyncFails()
    path = tmp_path / "orders-0"
    log = seglog.open(path, fs=fs)
    log.append(b"good")
    fs.armed = True
    with pytest.raises(LogFailedError, match="input/output") as failure:
        log.append(b"bad")
    assert failure.value.errno == errno.EIO
    assert failure.value.file.endswith(".log")
    for change in (
        lambda: log.append(b"more"), lambda: log.append_many([(None, b"more")]), log.flush, log.roll,
        lambda: log.truncate_to(0), lambda: log.delete_records(1),
    ):  # fmt: skip
        with pytest.raises(LogFailedError, match="input/output"):
            change()
    assert [r.value for r in log.read()] == [b"good"]       # what was durable stays readable
    assert log.durable_offset == log.log_end_offset == 1
    log.close()
    with seglog.open(path) as log:
        assert next(r.value for r in log.read()) == b"good"


def test_closing_does_not_claim_what_a_failed_sync_has_lost(tmp_path):
    fs = SyncFails()
    path = tmp_path / "orders-0"
    log = seglog.open(path, fs=fs, fsync="never")
    log.append(b"x")
    fs.armed = True
    with pytest.raises(LogFailedError):
        log.close()
    assert log.closed
    log.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    seglog.open(path).close()


def test_a_full_disk_shows_nothing_half_and_the_log_goes_on_when_there_is_space(tmp_path):
    path = tmp_path / "orders-0"
    fs = FailingFs(OsFileSystem())
    log = seglog.open(path, fs=fs)
    log.append(b"fits")
    fs._fail_at, fs._error, fs._short = len(fs.calls), errno.ENOSPC, True
    with pytest.raises(LogFailedError, match="no space"):
        log.append(b"does not fit" * 100)
    assert [r.value for r in log.read()] == [b"fits"]
    log.close()
    with seglog.open(path) as log:
        assert [r.value for r in log.read()] == [b"fits"]
        assert len(log.recovery.lost) == 1
        assert log.append(b"fits again") == 1


def test_where_the_marks_cannot_be_set_nothing_was_changed_and_the_log_goes_on(tmp_path):
    path = tmp_path / "orders-0"
    seglog.open(path).close()
    fs = FailingFs(OsFileSystem())
    with seglog.open(path, fs=fs) as log:
        fs._fail_at, fs._error, fs._once = len(fs.calls), errno.ENOSPC, True
        with pytest.raises(StorageError, match="no space") as refusal:
            log.append(b"x")
        assert not isinstance(refusal.value, LogFailedError)
        assert log.append(b"y") == 0
