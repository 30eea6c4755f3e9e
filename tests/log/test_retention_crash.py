"""A crash at every step of what retention does: the log begins where it was told to, or where it did before, and no
file is left over. Also with a disk that is full at every step."""
import contextlib
import errno
import os

import pytest

import seglog
from seglog.clock import ManualClock
from seglog.errors import LogFailedError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.log.log import Log
from seglog.log.retaining import LogRetainer
from seglog.upkeep.retention import expired
from support.faultfs import FailingFs, RecordingFs

# `make torture` sets SEGLOG_TORTURE: 6 runs of so many states; otherwise a twentieth.
STATES = 1000 if os.environ.get("SEGLOG_TORTURE") else 25
NOW = 1_700_000_000_000
CONFIG = {
    "segment.bytes": 700, "index.interval.bytes": 100, "retention.ms": 10_000, "retention.bytes": 2500,
    "seglog.time.index.minute.enabled": True, "num.recovery.threads.per.data.dir": 1,
}


def value(n):
    return b"%d." % n + b"v" * (n * 37 % 150)


class Run:
    """Appends, a second apart, and retention in between; `told` is called after each step."""

    def __init__(self, path, fs, config, told=lambda start, end: None):
        self.path, self.fs, self.config, self.told = path, fs, CONFIG | config, told
        self.clock = ManualClock(NOW)
        self.start = self.end = 0           # what was told

    def open(self):
        return Log(self.path, config=self.config, clock=self.clock, fs=self.fs, retention=expired)

    def run(self, steps=40):
        log = self.open()
        try:
            for n in range(steps):
                self.clock.advance(1000)
                assert log.append(value(self.end)) == self.end
                self.tell(log)
                if n % 4 == 3:
                    log.delete_old_segments()
                    self.tell(log)
                if n % 10 == 9:
                    log.close()
                    log = self.open()
            self.clock.advance(60_000)
            log.delete_old_segments()       # all of it: the active one is sealed, and goes
            self.tell(log)
        finally:
            log.close()

    def tell(self, log):
        self.start, self.end = log.log_start_offset, log.log_end_offset
        self.told(self.start, self.end)


def recorded(run, path, config):
    """Run it on a disk that records; (the record, what was told, in order). Marks are indexes into that."""
    record, told = RecordingFs(path), []

    def tell(start, end):
        told.append((start, end))
        record.mark(len(told) - 1)

    run(path / "orders-0", record, config, tell).run()
    return record, told


def found_in(path):
    """(start, end) of what a crash left, by an opening that deletes nothing itself."""
    with seglog.open(path) as log:
        found = [(record.offset, record.value) for record in log.read()]
        assert found == [(n, value(n)) for n in range(log.log_start_offset, log.log_end_offset)]
        left = [p.name for p in path.iterdir() if p.suffix in (".deleted", ".cleaned", ".swap") and p.name[0] != "."]
        assert left == []
        return log.log_start_offset, log.log_end_offset


RUNS = [
    {"seglog.retention.granularity": granularity, "file.delete.delay.ms": delay_ms,
     "seglog.retention.head.rewrite.ratio": ratio}
    for granularity, delay_ms, ratio in [
        ("segment", 0, 0.5), ("segment", 5000, 0.5), ("batch", 0, 0.5), ("batch", 5000, 0.1), ("batch", 0, 0),
    ]
]


@pytest.mark.parametrize("config", RUNS, ids=lambda config: "-".join(map(str, config.values())))
def test_a_crash_at_any_step_leaves_the_log_before_or_after_it(tmp_path, config):
    record, told = recorded(Run, tmp_path, config)
    assert told[-1][0] == told[-1][1] == 40
    moved = set()
    for state in record.crash_states(limit=STATES, seed=7):
        with state.materialise() as disk:
            if not (disk / "orders-0").is_dir():
                continue
            start, end = found_in(disk / "orders-0")
            last = state.marks[-1] if state.marks else -1
            promised = told[last] if state.marks else (0, 0)
            following = told[last + 1] if last + 1 < len(told) else promised
            assert promised[0] <= start <= following[0], state.story()
            assert promised[1] <= end <= max(following[1], promised[1]), state.story()
            moved.add(start)
    assert len(moved) > 3


def test_a_crash_while_a_full_disk_is_given_room_loses_nothing_young(tmp_path):
    """As if no space were left at each run of retention: segments go one by one."""

    class Full(LogRetainer):
        def delete(self, verdict, ages):
            judged = [age.segment for age in ages[: len(verdict.expired)]]
            return self._tail.files_lock.run(self._tail.with_lock, self._make_room, verdict, judged)

    class RunInNeed(Run):
        def open(self):
            log = super().open()
            log._retainer = Full(log._tail, expired)
            return log

    record, told = recorded(RunInNeed, tmp_path, {})
    for state in record.crash_states(limit=STATES, seed=8):
        with state.materialise() as disk:
            if state.marks:
                start, end = found_in(disk / "orders-0")
                last = state.marks[-1]
                following = told[min(last + 1, len(told) - 1)]
                assert told[last][0] <= start <= following[0], state.story()
                assert told[last][1] <= end, state.story()


@pytest.mark.parametrize("short", [False, True])
def test_whenever_a_disk_gets_full_the_log_is_read_or_opened_again_and_nothing_young_is_lost(tmp_path, short):
    """ENOSPC from each change on, until something was unlinked: a full disk, to which retention brings room."""

    class FullFs(FailingFs):
        def unlink(self, path, within=None):
            if self.failed:
                self.heal()     # there is room again
            super().unlink(path, within)

    step = 1 if os.environ.get("SEGLOG_TORTURE") else 3
    fail_at, reopened = short * 7, 0
    while True:
        path = tmp_path / str(fail_at) / "orders-0"
        path.parent.mkdir()
        fs = FullFs(OsFileSystem(), fail_at, errno.ENOSPC, short=short)
        run = Run(path, fs, {"file.delete.delay.ms": 0})
        errors = []
        try:
            run.run()
        except StorageError as error:
            errors.append(error.errno)
        reopened += len(errors)
        assert set(errors) <= {errno.ENOSPC}
        if not fs.failed:
            break
        if not any(file.suffix == ".log" for file in path.glob("*")):
            fs.heal()       # nothing to delete yet: somebody else made room
        run.clock.advance(60_000)
        try:
            with contextlib.suppress(LogFailedError):
                Log(path, config=run.config, clock=run.clock, fs=fs, retention=expired).close()
        except StorageError:
            fs.heal()       # the only segment: there was nothing to delete
        start, end = found_in(path)
        assert start >= run.start
        assert end >= run.end
        fail_at += step
    assert reopened > 3
