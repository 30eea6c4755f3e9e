"""Backups of a growing log, and of a queue beside it, by a process that is killed -9 at any moment; the parent looks
what is there.

    python -m support.killed_backup DIRECTORY KILLS SEED

Each life appends, backs up, sometimes follows the log for some runs, forgets, prunes or restores, and says through a
pipe what has finished. What a finished run said it had must be there, whole, and nothing else may look like a snapshot.
While it follows, a run may remove the snapshot of the one before, but the last one has what that one had.

The queue has numbers, put in their order, every third with another priority, and done in their order: so what is left
of it is known from the first number and the next one.
"""
import os
import random
import shutil
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import seglog

CONFIG = {"segment.bytes": 3000, "index.interval.bytes": 200}
OF_QUEUE = {"managedLedgerMaxEntriesPerLedger": 30, "managedLedgerMinLedgerRolloverTimeMinutes": 0}


def live(top, rng, tell):
    """One life: it goes on until it is killed."""
    backups = seglog.BackupStore(top / "store")
    with (
        seglog.open(top / "data/orders-0", config=CONFIG, fsync="never") as log,
        seglog.Queue(top / "data/jobs", config=OF_QUEUE, fsync="never", max_attempts=None) as queue,
    ):
        tell(b"begins\n")
        # What a life before has put and not acknowledged, by number.
        held = {int(job.value): job for job in queue.get_many(100_000, timeout=0)}
        number = max(held, default=-1) + 1
        while True:
            for _ in range(rng.randrange(40)):
                log.append(b"%d" % log.log_end_offset)
            for _ in range(rng.randrange(20)):
                queue.put(b"%d" % number, priority=int(number % 3 == 0))
                number += 1
            held |= {int(job.value): job for job in queue.get_many(100_000, timeout=0)}
            for first in sorted(held)[: max(len(held) - 1 - rng.randrange(30), 0)]:
                held.pop(first).ack()
            first = min(held, default=number)
            end = log.log_end_offset
            snapshot = backups.create(top / "data").snapshot
            tell(b"has %s %d %d %d\n" % (snapshot.id.encode(), end, first, number))
            if rng.random() < 0.3:
                # Among them may be one whose run was killed before it could say that it had finished.
                kept = [snapshot.id for snapshot in backups.forget(keep_last=3, dry_run=True).kept]
                tell(f"keeps {' '.join(kept)}\n".encode())
                backups.forget(keep_last=3)
            if rng.random() < 0.3:
                backups.prune()
            if rng.random() < 0.3:
                seglog.restore(top / "store", top / "back")
                tell(b"restored %s\n" % snapshot.id.encode())
            if rng.random() < 0.3:
                follow(backups, top / "data", log, rng, tell)


def follow(backups, data, log, rng, tell):
    """Some runs of one `create --every`, with appends in between."""
    stop, left, end = threading.Event(), rng.randrange(1, 12), log.log_end_offset

    def on_run(run):
        nonlocal left, end
        tell(b"followed %d\n" % end)
        for _ in range(rng.randrange(9)):
            log.append(b"%d" % log.log_end_offset)
        end = log.log_end_offset
        left -= 1
        if not left:
            stop.set()

    backups.follow(data, every_s=0.0005, stop=stop, on_run=on_run)


def check(top, known, followed, number):
    """`known`: {snapshot: (log end offset, first and next number in the queue) when its run began} of those that must
    be there. `followed`: the log end offset when the last run began that followed the log."""
    if not (top / "store/seglog-backup.json").exists():
        assert not known
        return
    backups = seglog.BackupStore(top / "store")
    found = {snapshot.id: snapshot for snapshot in backups.snapshots()}
    for snapshot_id, (end, _, _) in known.items():
        assert snapshot_id in found, f"life {number}: the snapshot {snapshot_id} is lost"
        assert found[snapshot_id].partitions[0].next_offset >= end
    last = max((snapshot.partitions[0].next_offset for snapshot in found.values()), default=0)
    assert last >= followed, f"life {number}: offsets {last} to {followed - 1} are lost"
    result = backups.check(read_data=number % 8 == 0)
    assert result.ok, f"life {number}: {result.findings}"
    if number % 4 == 0 and known:
        last = list(known)[-1]
        where = top / f"check-{number}"
        seglog.restore(top / "store", where, snapshot=last)
        with seglog.open_partition(where / "orders-0") as partition:
            values = [record.value for record in partition.read()]
        assert values == [b"%d" % n for n in range(len(values))]
        end, first, number_of_next = known[last]
        assert len(values) >= end
        with seglog.Queue(where / "jobs", create=False) as queue:
            left = sorted(int(job.value) for job in queue.get_many(100_000, timeout=0))
        assert left == list(range(first, number_of_next)), (first, number_of_next, left)
        shutil.rmtree(where)


def main():
    top, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng, known = random.Random(seed), {}
    # A child imports nothing: or it would be killed at that.
    assert all((seglog.BackupStore, seglog.backup, seglog.open, seglog.open_partition, seglog.restore, seglog.Queue))
    finished = followed = 0
    for number in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                live(top, random.Random(seed * 100_003 + number), partial(os.write, writing))
            except BaseException as error:
                os.write(writing, f"failed {error!r}\n".encode())
            finally:
                os._exit(1)
        os.close(writing)
        lines = [os.read(reading, 100).decode().rstrip("\n")]      # it begins
        time.sleep(rng.random() * rng.choice([0.05, 0.2, 0.6]))
        os.kill(child, signal.SIGKILL)
        with open(reading, "rb") as told:
            lines += told.read().decode().split("\n")[:-1]
        os.waitpid(child, 0)
        for line in lines:
            what, *rest = line.split(" ")
            assert what != "failed" or "exists already" in line, line
            if what == "has":
                known[rest[0]] = tuple(map(int, rest[1:]))
                finished += 1
            elif what == "followed":
                followed = int(rest[0])
                finished += 1
            elif what == "keeps":
                known = {snapshot_id: end for snapshot_id, end in known.items() if snapshot_id in rest}
        check(top, known, followed, number)
    print(f"{kills} kills, {finished} finished runs, {len(known)} snapshots known")
    assert finished


if __name__ == "__main__":
    main()
