"""Backups of a growing log, and of a queue beside it, by a process that is killed -9 at any moment; the parent looks
what is there.

    python -m support.killed_backup DIRECTORY KILLS SEED

Each life appends, deletes old records, backs up, sometimes follows the log for some runs, forgets, prunes, restores,
fills a partition that a broker has created, and says through a pipe what it begins and what has finished. Three lives
of five die at one of the changes that their backups make to files, in the middle of it if that is a write; the others
after some milliseconds. What a finished run said it had must be there, whole, and nothing else may look like a
snapshot. While it follows, a run may remove the snapshot of the one before, but the last one has what that one had. A
restore that was killed is finished by the next life; the partition that it was to fill is empty or whole.

The queue has numbers, put in their order, every third with another priority, and done in their order: so what is left
of it is known from the first number and the next one. Each record of the log has its offset as its value.
"""
import errno
import os
import random
import shutil
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from functools import partial
from pathlib import Path

import seglog
from seglog.archive.restore_journal import JOURNAL_FILE, BegunRestore
from seglog.fs.files import OsFileSystem
from seglog.fs.staging import leftovers
from seglog.state.partition_metadata import PartitionMetadata
from support.faultfs import FailingFs

CONFIG = {"segment.bytes": 3000, "index.interval.bytes": 200}
OF_QUEUE = {"managedLedgerMaxEntriesPerLedger": 30, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
KEPT_RECORDS = 200
TOPIC_ID = uuid.UUID(int=8)
ACTS = "create", "follow", "forget", "prune", "restore", "adopt"


class DeadlyFs(FailingFs):
    """Kills the process at the change that would fail, in the middle if that is a write."""

    def _refuse(self, word, path):
        os.kill(os.getpid(), signal.SIGKILL)


class Life:
    """It goes on until it is killed. `dies`: at which change, counted from the first act of which kind; or None."""

    def __init__(self, top, rng, dies, tell):
        self.top, self.rng, self.say, self.dies = top, rng, tell, dies
        self.fs = DeadlyFs(OsFileSystem(), short=True)
        self.backups = seglog.BackupStore(top / "store", fs=self.fs)

    def tell(self, *words):
        self.say((" ".join(map(str, words)) + "\n").encode())

    def begin(self, act):
        self.tell("begins", act)
        if self.dies is not None and self.dies[0] == act:
            self.fs.fail(len(self.fs.calls) + self.dies[1], errno.EIO)
            self.dies = None

    def live(self):
        with (
            seglog.open(self.top / "data/orders-0", config=CONFIG, fsync="never") as log,
            seglog.Queue(self.top / "data/jobs", config=OF_QUEUE, fsync="never", max_attempts=None) as queue,
        ):
            self.tell("begins")
            self.finish_restore()
            # What a life before has put and not acknowledged, by number.
            held = {int(job.value): job for job in queue.get_many(100_000, timeout=0)}
            number = max(held, default=-1) + 1
            while True:
                append(log, self.rng.randrange(40))
                log.delete_records(max(log.log_end_offset - KEPT_RECORDS, log.log_start_offset))
                for _ in range(self.rng.randrange(20)):
                    queue.put(b"%d" % number, priority=int(number % 3 == 0))
                    number += 1
                held |= {int(job.value): job for job in queue.get_many(100_000, timeout=0)}
                for first in sorted(held)[: max(len(held) - 1 - self.rng.randrange(30), 0)]:
                    held.pop(first).ack()
                self.back_up(log, min(held, default=number), number)

    def back_up(self, log, first, number):
        rng, backups = self.rng, self.backups
        self.begin("create")
        snapshot = backups.create(self.top / "data").snapshot
        self.tell("has", snapshot.id, log.log_start_offset, log.log_end_offset, first, number)
        if rng.random() < 0.4:
            # Among them may be one whose run was killed before it could say that it had finished.
            kept = [snapshot.id for snapshot in backups.forget(keep_last=3, dry_run=True).kept]
            self.tell("keeps", *kept)
            self.begin("forget")
            backups.forget(keep_last=3)
        if rng.random() < 0.4:
            self.begin("prune")
            backups.prune()
        if rng.random() < 0.4:
            self.restore(snapshot.id)
        if rng.random() < 0.4:
            self.adopt(snapshot.id)
        if rng.random() < 0.3:
            self.begin("follow")
            follow(backups, self.top / "data", log, rng, self.tell)
        self.begin("nothing")

    def restore(self, snapshot_id):
        self.begin("restore")
        seglog.restore(self.top / "store", self.top / "back", snapshot=snapshot_id, fs=self.fs)
        self.begin("nothing")
        assert (self.top / "back/orders-0").exists()
        assert (self.top / "back/jobs").exists()
        shutil.rmtree(self.top / "back")

    def adopt(self, snapshot_id):
        """Fill the partition that a broker has created; it never has a part of the records."""
        new = self.top / "adopted"
        if not new.exists():
            shutil.rmtree(self.top / "created", ignore_errors=True)
            (self.top / "created/orders-0").mkdir(parents=True)
            (self.top / "created/orders-0" / f"{0:020}.log").touch()
            (self.top / "created/orders-0/partition.metadata").write_bytes(PartitionMetadata(TOPIC_ID).to_bytes())
            (self.top / "created").rename(new)
        self.begin("adopt")
        seglog.restore(self.top / "store", new, snapshot=snapshot_id, topics=["orders"], adopt=True, fs=self.fs)
        self.begin("nothing")
        end, = [part.next_offset for part in self.backups.snapshot(snapshot_id).partitions]
        check_adopted(new, whole=end)
        assert not (new / JOURNAL_FILE).exists()
        assert leftovers(new) == []
        shutil.rmtree(new)

    def finish_restore(self):
        """Of the life before, unless its snapshot is forgotten."""
        known = [snapshot.id for snapshot in self.backups.snapshots()] if self.backups._repository.exists else []
        for name, finish in (("back", self.restore), ("adopted", self.adopt)):
            journal = self.top / name / JOURNAL_FILE
            if journal.exists():
                begun = BegunRestore.parse(journal.read_bytes(), journal).snapshot
                if begun in known:
                    finish(begun)
            shutil.rmtree(self.top / name, ignore_errors=True)


def check_adopted(log_dir, whole=None):
    """The partition is empty or has all records of a snapshot, up to `whole`; the topic id is that of the cluster."""
    path = log_dir / "orders-0"
    assert PartitionMetadata.read(path / "partition.metadata").topic_id == TOPIC_ID
    with seglog.open_partition(path) as partition:
        values = [record.value for record in partition.read()]
        assert values == [b"%d" % n for n in range(partition.log_start_offset, partition.log_end_offset)]
        assert {batch.leader_epoch for batch in partition.batches()} <= {0}
        assert whole is None or partition.log_end_offset == whole


def append(log, count):
    for _ in range(count):
        log.append(b"%d" % log.log_end_offset)


def follow(backups, data, log, rng, tell):
    """Some runs of one `create --every`, with appends in between."""
    stop, left, end = threading.Event(), rng.randrange(1, 12), log.log_end_offset

    def on_run(run):
        nonlocal left, end
        tell("followed", end)
        append(log, rng.randrange(9))
        end = log.log_end_offset
        left -= 1
        if not left:
            stop.set()

    backups.follow(data, every_s=0.0005, stop=stop, on_run=on_run)


def check(top, known, followed, number):
    """`known`: {snapshot: (log start and end offset, first and next number in the queue) when its run began} of those
    that must be there. `followed`: the log end offset when the last run began that followed the log."""
    if (top / "adopted").exists():
        check_adopted(top / "adopted")
    if not (top / "store/seglog-backup.json").exists():
        assert not known
        return
    backups = seglog.BackupStore(top / "store")
    found = {snapshot.id: snapshot for snapshot in backups.snapshots()}
    for snapshot_id, (start, end, _, _) in known.items():
        assert snapshot_id in found, f"life {number}: the snapshot {snapshot_id} is lost"
        partition = found[snapshot_id].partitions[0]
        assert (partition.log_start_offset, partition.next_offset) == (start, end)
    last = max((snapshot.partitions[0].next_offset for snapshot in found.values()), default=0)
    assert last >= followed, f"life {number}: offsets {last} to {followed - 1} are lost"
    result = backups.check(read_data=number % 8 == 0)
    assert result.ok, f"life {number}: {result.findings}"
    if number % 4 == 0 and known:
        last = list(known)[-1]
        where = top / f"check-{number}"
        seglog.restore(top / "store", where, snapshot=last)
        start, end, first, number_of_next = known[last]
        with seglog.open_partition(where / "orders-0") as partition:
            values = [record.value for record in partition.read()]
        assert values == [b"%d" % n for n in range(start, end)]
        with seglog.Queue(where / "jobs", create=False) as queue:
            left = sorted(int(job.value) for job in queue.get_many(100_000, timeout=0))
        assert left == list(range(first, number_of_next)), (first, number_of_next, left)
        shutil.rmtree(where)


def kill(top, rng, life):
    """What one life said until it was killed."""
    reading, writing = os.pipe()
    dies = (rng.choice(ACTS), rng.randrange(rng.choice([4, 40, 200]))) if rng.random() < 0.6 else None
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            Life(top, random.Random(life), dies, partial(os.write, writing)).live()
        except BaseException as error:
            os.write(writing, f"failed {error!r}\n".encode())
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as told:
        lines = [told.readline().decode()]       # it begins
        if dies is None:
            time.sleep(rng.random() * rng.choice([0.02, 0.1, 0.3]))
            os.kill(child, signal.SIGKILL)
        lines += told.read().decode().split("\n")[:-1]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), lines
    return [line.rstrip("\n").split(" ") for line in lines]


def main():
    top, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng, known, killed = random.Random(seed), {}, Counter()
    # A child imports nothing: or it would be killed at that.
    assert all((seglog.BackupStore, seglog.backup, seglog.open, seglog.open_partition, seglog.restore, seglog.Queue))
    number = finished = followed = 0
    while sum(killed.values()) < kills:
        act = "nothing"
        for what, *rest in kill(top, rng, seed * 100_003 + number):
            assert what != "failed", rest
            if what == "begins":
                act = rest[0] if rest else "nothing"
            elif what == "has":
                known[rest[0]] = tuple(map(int, rest[1:]))
                finished += 1
            elif what == "followed":
                followed = int(rest[0])
                finished += 1
            elif what == "keeps":
                known = {snapshot_id: told for snapshot_id, told in known.items() if snapshot_id in rest}
        if act != "nothing":
            killed[act] += 1
        check(top, known, followed, number)
        number += 1
    of_acts = ", ".join(f"{act} {killed[act]}" for act in ACTS)
    print(f"{kills} kills ({of_acts}) in {number} lives, {finished} finished runs, {len(known)} snapshots known")
    assert finished


if __name__ == "__main__":
    main()
