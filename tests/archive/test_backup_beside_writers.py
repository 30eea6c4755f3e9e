"""Backups beside writers that go on: each restored snapshot is what each of them held at one moment."""
import os
import shutil
import time

import pytest

import seglog
from seglog.fs.files import OsFileSystem
from support.backed_log import CONFIG
from support.backed_writers import BusyLog, BusyQueue, BusyTable, owner_of

# `make torture` sets SEGLOG_TORTURE: ten minutes, each snapshot; otherwise two lives of the queue's owner.
STORM_S = 600 if os.environ.get("SEGLOG_TORTURE") else 0
SMALL = {"managedLedgerMaxEntriesPerLedger": 50, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01, "max.compaction.lag.ms": 100}


class SlowDisk(OsFileSystem):
    """Time for the writers between a look at their files and the copy."""

    def create(self, path, within=None, mode=0o666):
        time.sleep(0.001)
        return super().create(path, within, mode)


@pytest.mark.long
def test_each_snapshot_beside_transactions_truncation_cleaner_and_takeovers_is_of_one_moment(data, store, in_memory):
    """A partition and a queue at a time. The process that has the queue is killed -9 in each of its lives, while
    another one puts and acknowledges through it, which takes it over."""
    backups = seglog.BackupStore(store, fs=SlowDisk())
    snapshots = lives = cleaned = 0
    left, until = frozenset(), time.monotonic() + STORM_S
    with (
        seglog.open(data / "orders-0", config=CONFIG | {"segment.bytes": 4000}, fsync="never") as log,
        seglog.open(data / "table-0", config=CONFIG | {"segment.bytes": 4000} | COMPACTED, fsync="never") as table,
        BusyLog(log) as orders, BusyTable(table) as rows,
    ):
        while lives < 2 or not cleaned or time.monotonic() < until:
            lives += 1
            with owner_of(data / "jobs") as owner, seglog.Queue(
                data / "jobs", attach=True, config=SMALL, lease=3600, max_attempts=None
            ) as queue, BusyQueue(queue, left) as jobs:
                writers = {"orders-0": orders, "table-0": rows, "jobs": jobs}
                for step in range(5):
                    if step == 2:
                        owner.kill()
                    for name, writer in writers.items():
                        if name != "jobs" or step not in (2, 3):        # it is being taken over
                            writer.await_changes()
                    cleaned += _check_one(backups, data, in_memory / "back", writers)
                    snapshots += 1
                owner.kill()
            left = frozenset(jobs.left)
            if lives % 4 == 0:
                backups.forget(keep_last=3)
                backups.prune()
    print(f"{snapshots} snapshots, {lives} lives of the owner, {cleaned} records cleaned; changes: "
          + ", ".join(f"{name} {writer.count()}" for name, writer in writers.items()))
    assert backups.check(read_data=True).ok


def _check_one(backups, data, back, writers):
    """Back up, restore, compare. Returns how many records the cleaner had removed."""
    moments = {}
    for name, writer in writers.items():
        with writer.lock:
            moments[name] = writer.moment()
    snapshot = backups.create(data).snapshot
    assert [part.name for part in snapshot.parts] == list(writers)
    restored = backups.restore(back, snapshot=snapshot.id)
    assert [part.damaged for part in [*restored.partitions, *restored.ledgers]] == [(), (), ()]
    removed = [writer.check(moments[name], back / name) for name, writer in writers.items()]
    shutil.rmtree(back)
    return removed[1]
