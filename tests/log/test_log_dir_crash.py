"""Kafka's clean-shutdown file after a crash anywhere: if it is there, every partition is whole and its recovery point
right."""
import contextlib
import os
import random
from pathlib import Path

import pytest

from seglog.errors import LogLockedError, SeglogError
from seglog.format import names
from seglog.fs.aside import shorten
from seglog.state.checkpoints import parse_offset_checkpoint
from seglog.state.log_dir_state import LogDirState
from seglog.state.partition_hold import PartitionHold
from support.conversion import UnsyncedFs
from support.faultfs import FailingFs, RecordingFs

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
FULL = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 10_000 if FULL else 500
PROGRAMS = 2_000 if FULL else 100

FS = UnsyncedFs()       # of this machine, without waiting for the disk
PARTITIONS = 3
BROKERS_MARK = b'{"version":0,"brokerEpoch":31}'


class PlainLog:
    """A log in one file, by the rules of PartitionHold: whole where its size is its recovery point.

    `log_dir`: the LogDirState that it shares with others.
    """

    def __init__(self, fs, path, log_dir=None):
        self.fs, self.hold, self.file = fs, PartitionHold(fs, path, log_dir=log_dir), None
        try:
            data = Path(path, "data")
            if not data.exists():
                fs.create(data).close()
                fs.sync_directory(path)
            self.file = fs.open_write(data)
            if not self.hold.clean:
                self.checkpoint()
        except SeglogError:
            self.die()
            raise

    def append(self):
        self.hold.before_first_write()
        self.file.append(b"a record")

    def checkpoint(self):
        self.file.sync()
        self.hold.put(recovery_point=self.file.position, high_watermark=self.file.position)

    def truncate(self):
        """To half of it, by a shorter file in its place."""
        self.hold.before_first_write()
        size = self.file.position // 16 * 8
        self.hold.put(recovery_point=min(size, self.hold.recovery_point or 0))
        self.file.close()
        shorten(self.fs, self.file.path, size)
        self.file = self.fs.open_write(self.file.path)

    def roll(self):
        self.hold.before_first_write()
        self.file.sync()
        self.hold.advance(self.file.position)

    def close(self):
        if self.hold.dirty:
            self.file.sync()
            self.hold.put(recovery_point=self.file.position, high_watermark=self.file.position, closing=True)
        self.file.close()
        self.hold.close(clean=True)

    def die(self):
        if self.file is not None:
            self.file.close()
        self.hold.close(clean=False)


def partitions(log_dir):
    return [log_dir / names.partition_dir("orders", number) for number in range(PARTITIONS)]


def whole(files, number):
    """Whether the partition's size is its recovery point, by the files {path: bytes} of a log dir."""
    return len(files.get(f"orders-{number}/data", b"")) == recovery_point(files, number)


def recovery_point(files, number):
    return parse_offset_checkpoint(files.get(names.RECOVERY_POINT_CHECKPOINT, b"")).get(("orders", number), 0)


def files_of(log_dir):
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}


def broker(log_dir, *, dies, loads=PARTITIONS):
    """A broker comes, recovers what it does not trust, writes, and stops cleanly or dies, perhaps while it loads."""
    marker, starts = log_dir / names.CLEAN_SHUTDOWN, log_dir / names.LOG_START_OFFSET_CHECKPOINT
    files = files_of(log_dir)
    if marker.exists():
        assert all(whole(files, number) for number in range(PARTITIONS))
        marker.unlink()
    starts.touch()
    sizes = {}
    for number, path in enumerate(partitions(log_dir)[:loads]):
        path.mkdir(exist_ok=True)
        for deleted in path.glob("*.deleted"):      # LogLoader
            deleted.unlink()
        with (path / "data").open("ab") as file:
            file.write(b"a broker's record")
            sizes["orders", number] = file.tell()
    if not dies:
        lines = [f"{topic} {number} {size}" for (topic, number), size in sizes.items()]
        (log_dir / names.RECOVERY_POINT_CHECKPOINT).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
        if not starts.read_bytes():
            starts.write_bytes(b"0\n0\n")
        marker.write_bytes(BROKERS_MARK)


def run(chooser, log_dir, fs, steps, look=lambda: None, between=None):
    """A program: partitions are opened, written, checkpointed, closed, and their writers die, in any order."""
    logs = {}
    try:
        for _ in range(steps):
            number = chooser.randrange(PARTITIONS)
            log = logs.get(number)
            if log is None:
                if between is not None and not logs and chooser.random() < 0.3:
                    between()
                logs[number] = PlainLog(fs, log_dir / f"orders-{number}")
            else:
                match chooser.choice(["append", "append", "checkpoint", "close", "close", "die"]):
                    case "append":
                        log.append()
                    case "checkpoint":
                        log.checkpoint()
                    case "close":
                        log.close()
                        del logs[number]
                    case "die":
                        log.die()
                        del logs[number]
            look()
    finally:
        for log in logs.values():
            log.die()


LOG_START = b"0\n1\nother 0 5\n"


@pytest.fixture(params=["new", "of a broker that stopped", "of a broker that died", "of a broker with a log start"])
def log_dir(request, tmp_path):
    log_dir = tmp_path / "disk"
    log_dir.mkdir()
    if request.param != "new":
        broker(log_dir, dies=request.param.endswith("died"))
    if request.param.endswith("log start"):
        (log_dir / names.LOG_START_OFFSET_CHECKPOINT).write_bytes(LOG_START)
    return log_dir


def check(state, log_dir):
    files = state.files
    if names.CLEAN_SHUTDOWN in files:
        assert all(whole(files, number) for number in range(PARTITIONS)), state.story()
    for number, path in enumerate(partitions(log_dir)):
        hold = PartitionHold(FS, path)
        hold.close(clean=False)
        assert whole(files, number) or not hold.clean, state.story()


def test_a_crash_anywhere_leaves_the_mark_only_over_whole_partitions(log_dir):
    seeds = 20
    for seed in range(seeds):
        recording = RecordingFs(log_dir, FS)
        run(random.Random(seed), log_dir, recording, steps=25)
        for state in recording.crash_states(limit=STATES // seeds, seed=seed):
            with state.materialise() as disk:
                check(state, disk)
        log_dir = log_dir.with_name(f"disk-{seed}")
        log_dir.mkdir()


def test_after_any_crash_recovering_each_partition_brings_the_mark_back(log_dir):
    recording = RecordingFs(log_dir, FS)
    run(random.Random(1), log_dir, recording, steps=30)
    for state in recording.crash_states(limit=STATES // 10):
        with state.materialise() as disk:
            for path in partitions(disk):
                PlainLog(FS, path).close()
            assert (disk / names.CLEAN_SHUTDOWN).exists(), state.story()
            assert all(whole(files_of(disk), number) for number in range(PARTITIONS)), state.story()


def test_a_crash_while_recovering_from_a_crash_is_one_more_crash(log_dir):
    recording = RecordingFs(log_dir, FS)
    run(random.Random(2), log_dir, recording, steps=20)
    for state in recording.crash_states(limit=STATES // 50, seed=2):
        with state.materialise() as disk:
            second = RecordingFs(disk, FS)
            for path in partitions(disk):
                PlainLog(second, path).close()
            for again in second.crash_states(limit=20, seed=state.number):
                with again.materialise() as after:
                    check(again, after)


def test_after_an_error_anywhere_the_mark_stands_only_over_whole_partitions(tmp_path):
    count = FailingFs(FS)
    run(random.Random(3), made(tmp_path / "count"), count, steps=25)
    for number in range(len(count.calls)):
        log_dir = made(tmp_path / f"fails-{number}")
        failing = FailingFs(FS, fail_at=number, error=5, once=number % 2 == 0)
        with pytest.raises(SeglogError):
            run(random.Random(3), log_dir, failing, steps=25)
        if (log_dir / names.CLEAN_SHUTDOWN).exists():
            assert all(whole(files_of(log_dir), number) for number in range(PARTITIONS)), count.calls[number]


def made(path):
    path.mkdir()
    return path


@pytest.mark.parametrize("lines", [False, True], ids=["no log start", "a log start"])
def test_brokers_and_we_may_take_turns_and_die_at_any_time(tmp_path, lines):
    for seed in range(PROGRAMS):
        chooser, log_dir = random.Random(seed), made(tmp_path / str(seed))
        if lines:
            (log_dir / names.LOG_START_OFFSET_CHECKPOINT).write_bytes(LOG_START)

        def look(log_dir=log_dir):
            if (log_dir / names.CLEAN_SHUTDOWN).exists():
                assert all(whole(files_of(log_dir), number) for number in range(PARTITIONS))

        def between(log_dir=log_dir, chooser=chooser):
            if chooser.random() < 0.6:
                broker(log_dir, dies=True, loads=chooser.randint(0, PARTITIONS))
            else:
                broker(log_dir, dies=False)
            look(log_dir)

        run(chooser, log_dir, FS, 40, look, between)
        for number, path in enumerate(partitions(log_dir)):
            hold = PartitionHold(FS, path)
            hold.close(clean=False)
            assert whole(files_of(log_dir), number) or not hold.clean, seed


# --- one holder of many logs: lines are gathered, and Kafka's clean-shutdown file comes back with its end --------


class GatheringDir:
    """A log dir that is held for several PlainLogs, as open_dir does. It marks what is synced, and what is closed."""

    def __init__(self, fs, path):
        self.fs, self.path = fs, path
        self.state = LogDirState(fs, path, gathers=True)
        self.logs = {}

    def log(self, number):
        self.logs[number] = PlainLog(self.fs, self.path / f"orders-{number}", self.state)

    def step(self, chooser):
        number = chooser.randrange(PARTITIONS)
        if number not in self.logs:
            self.log(number)
            return
        log = self.logs[number]
        what = chooser.choice(["append", "append", "truncate", "roll", "checkpoint", "close", "close", "die"])
        size = log.file.position
        if what == "close":
            self.fs.mark(("closed", number, size))
        elif what == "truncate":
            self.fs.mark(("synced", number, 0))
        getattr(log, what)()
        if what in ("close", "die"):
            del self.logs[number]
        if what in ("close", "roll", "checkpoint"):
            self.fs.mark(("synced", number, size))

    def close(self):
        for number, log in self.logs.items():
            self.fs.mark(("closed", number, log.file.position))
            log.close()
        self.state.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.close()


def check_gathered(state, log_dir):
    """The mark stands over whole partitions; without it a recovery point may lag, and never leads."""
    files = state.files
    for number, path in enumerate(partitions(log_dir)):
        size = len(files.get(f"orders-{number}/data", b""))
        told = {what: [size for kind, n, size in state.marks if (kind, n) == (what, number)] for what in STATES_TOLD}
        assert recovery_point(files, number) <= size, state.story()
        assert size >= max(told["synced"][-1:], default=0), state.story()
        if names.CLEAN_SHUTDOWN in files:
            assert whole(files, number), state.story()
        hold = PartitionHold(FS, path)
        hold.close(clean=False)
        assert size in (0, *told["closed"]) or not hold.clean, state.story()


STATES_TOLD = ("closed", "synced")


def test_a_crash_anywhere_of_who_holds_several_logs_leaves_no_recovery_point_ahead(tmp_path):
    seeds = 20
    for seed in range(seeds):
        chooser, log_dir = random.Random(seed), made(tmp_path / str(seed))
        recording = RecordingFs(log_dir, FS)
        for steps in (25, 10):      # the second one comes to what the first one left
            with GatheringDir(recording, log_dir) as held:
                for _ in range(steps):
                    held.step(chooser)
        with GatheringDir(recording, log_dir) as held:      # recovers those that died
            for number in range(PARTITIONS):
                held.log(number)
        assert (log_dir / names.CLEAN_SHUTDOWN).exists()
        for state in recording.crash_states(limit=STATES // seeds, seed=seed):
            with state.materialise() as disk:
                check_gathered(state, disk)


def test_two_holders_of_several_logs_take_partitions_from_each_other(tmp_path):
    """What one gathered says nothing of a partition that the other one had meanwhile."""
    for seed in range(PROGRAMS // 5):
        chooser, log_dir = random.Random(seed), made(tmp_path / str(seed))
        fs = RecordingFs(log_dir, FS)
        holders = [GatheringDir(fs, log_dir), GatheringDir(fs, log_dir)]
        for _ in range(40):
            slot = chooser.randrange(2)
            if chooser.random() < 0.05:
                holders[slot].close()
                holders[slot] = GatheringDir(fs, log_dir)
            with contextlib.suppress(LogLockedError):       # the other one has it open
                holders[slot].step(chooser)
            files = files_of(log_dir)
            for number in range(PARTITIONS):    # of a clean one it may lag: its recovery point is its end
                assert recovery_point(files, number) <= len(files.get(f"orders-{number}/data", b"")), seed
        for held in holders:
            held.close()
