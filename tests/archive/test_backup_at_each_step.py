"""A log that changes between any two steps of its backup: the snapshot is the log before the change, or after it."""
import os
from itertools import product

import pytest

import seglog
from seglog.archive import moments
from seglog.archive.moments import FileCopy, MovingPartition
from seglog.reading.follower import Follower
from seglog.upkeep.cleaner import clean

FULL = bool(os.environ.get("SEGLOG_TORTURE"))
CONFIG = {
    "segment.bytes": 1000, "index.interval.bytes": 100, "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.01, "max.compaction.lag.ms": 1,
}
CHANGES = {
    "append": lambda log: fill(log, 3),
    "abort": lambda log: transact(log, commits=False),
    "cut all": lambda log: log.truncate_to(log.log_start_offset),
    "cut some": lambda log: cut(log, 4),
    "cut a segment": lambda log: log.truncate_to(log.segments[-1].base_offset - 3),
    "cut and append": lambda log: (cut(log, 4), fill(log, 3)),
    "cut and append more": lambda log: (cut(log, 14), fill(log, 40)),
    "cut all and append": lambda log: (log.truncate_to(log.log_start_offset), fill(log, 60)),
    "cut twice": lambda log: (cut(log, 4), fill(log, 2), cut(log, 4), fill(log, 9)),
    "delete": lambda log: log.delete_records(log.log_end_offset - 5),
    "delete all": lambda log: log.delete_records(log.log_end_offset),
    "clean": clean,
    "roll and clean": lambda log: (fill(log, 40), clean(log)),
}
STEPS = [
    *((MovingPartition, name) for name in (
        "_cursors", "_of_log", "_behind", "_last_batch", "_small_files", "_list_last_aborts", "_checked",
        "_check_unchanged", "_is_prefix",
    )),
    (Follower, "_scanned_end"), (Follower, "_settled"), (FileCopy, "data"),
    *((moments, name) for name in ("settled_log_files", "store_copies", "crc_of", "identity_of", "read_file")),
]
# Before or after the first, second, ... call of a step, in a first run and in a second one.
CASES = list(product(CHANGES, STEPS, (1, 2, 3, 5), (False, True), (False, True)))


def fill(log, count):
    for _ in range(count):
        end = log.log_end_offset
        log.append(b"%d %s" % (end, os.urandom(4)), key=b"%d" % (end % 5))


def transact(log, *, commits):
    producer = log.producer(7)
    producer.begin()
    for _ in range(3):
        producer.append(os.urandom(4), key=b"t")
    producer.commit() if commits else producer.abort()


def cut(log, count):
    log.truncate_to(log.log_end_offset - count)


def state(path):
    with seglog.open_partition(path) as partition:
        return (
            partition.log_start_offset, partition.log_end_offset,
            [(record.offset, record.value) for record in partition.read()],
            [(record.offset, record.value) for record in partition.read(isolation="read_committed")],
        )


@pytest.mark.parametrize("part", range(4))
def test_a_log_that_changes_between_two_steps_of_its_backup_is_of_one_moment(in_memory, monkeypatch, part):
    cases = CASES if FULL else CASES[:: 157]     # no divisor of the number of steps
    for number, case in enumerate(cases[part::4]):
        _check(in_memory / str(number), monkeypatch, *case)


def _check(top, monkeypatch, change, step, at, is_after, is_second):
    case, data, store = (change, step[1], at, is_after, is_second), top / "data", top / "store"
    with seglog.open(data / "orders-0", config=CONFIG, fsync="never") as log:
        fill(log, 30)
        transact(log, commits=False)
        fill(log, 15)
        transact(log, commits=True)
        if is_second:
            seglog.backup(data, store)
            fill(log, 4)
        states, calls, called = [state(data / "orders-0")], 0, getattr(*step)

        def change_at(*arguments, **more):
            nonlocal calls
            calls += 1
            mine = calls == at
            if mine and not is_after:
                CHANGES[change](log)
            found = called(*arguments, **more)
            if mine and is_after:
                CHANGES[change](log)
            if mine:
                states.append(state(data / "orders-0"))
            return found

        with monkeypatch.context() as patched:
            patched.setattr(*step, change_at)
            run = seglog.backup(data, store)
        assert (run.snapshot.left_out, run.damaged) == ({}, {}), case
        seglog.restore(store, top / "back")
        assert state(top / "back/orders-0") in states, case
