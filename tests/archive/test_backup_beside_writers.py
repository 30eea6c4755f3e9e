"""Backups beside writers in other processes: each restored snapshot is what each of them held at one moment."""
import os
import shutil
import time
from contextlib import ExitStack

import pytest

import seglog
from seglog.fs.files import OsFileSystem
from support.backed_writers import Running, Watched

# `make torture` sets SEGLOG_TORTURE: ten minutes; otherwise one life of the queue's owner.
STORM_S = 600 if os.environ.get("SEGLOG_TORTURE") else 0


class SlowDisk(OsFileSystem):
    """Time for the writers between a look at their files and the copy."""

    def create(self, path, within=None, mode=0o666):
        time.sleep(0.001)
        return super().create(path, within, mode)


@pytest.mark.long
def test_each_snapshot_beside_transactions_truncation_cleaner_and_takeovers_is_of_one_moment(data, store, in_memory):
    """A partition and a queue at a time. The process that has the queue is killed -9 in each of its lives; the one that
    puts and acknowledges through it takes it over, and gives it to the next life when it begins again."""
    backups, notes = seglog.BackupStore(store, fs=SlowDisk()), in_memory
    snapshots = lives = 0
    until = time.monotonic() + STORM_S
    with Watched("log", data / "orders-0", notes / "orders") as log, \
            Watched("table", data / "table-0", notes / "table") as table:
        while not lives or time.monotonic() < until:
            lives += 1
            shutil.rmtree(data / "jobs", ignore_errors=True)
            with ExitStack() as stack:
                owner = stack.enter_context(Running("owner", data / "jobs", notes / f"owner {lives}"))
                owner.await_changes(1)
                jobs = stack.enter_context(Watched("queue", data / "jobs", notes / f"jobs {lives}"))
                jobs.await_changes()
                writers = {"orders-0": log, "table-0": table, "jobs": jobs}
                for step in range(20 if STORM_S else 4):
                    if step == 1:
                        owner.kill()
                    _check_one(backups, data, in_memory / "back", writers)
                    snapshots += 1
            if lives % 4 == 0:
                backups.forget(keep_last=3)
                backups.prune()
        print(f"{snapshots} snapshots, {lives} lives; changes: {log.count()} of the log, {table.count()} of the table")
    assert backups.check(read_data=True).ok


def _check_one(backups, data, back, writers):
    """Back up, restore, compare."""
    moments = {name: writer.moment() for name, writer in writers.items()}
    snapshot = backups.create(data).snapshot
    assert snapshot.left_out == {}
    assert [part.name for part in snapshot.parts] == list(writers)
    restored = backups.restore(back, snapshot=snapshot.id)
    assert [part.damaged for part in [*restored.partitions, *restored.ledgers]] == [(), (), ()]
    for name, writer in writers.items():
        writer.check(moments[name], back / name)
    shutil.rmtree(back)
