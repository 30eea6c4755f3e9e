"""A backup holds what a queue, managed ledger or ledger was at one moment; a restored one goes on from there."""
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

import seglog
from seglog.archive import ledger_moments
from seglog.backups.manifest import Snapshot, is_file_of_ledgers
from seglog.backups.pieces import PieceStore
from seglog.backups.repository import Repository
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptBackupError,
    CorruptJournalError,
    InvalidArgumentError,
    NotALogError,
    StorageError,
)
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFileSystem
from seglog.ledger.ledger import Ledger
from seglog.pulsar import ManagedLedger, MessageMetadata, Position, build_entry
from seglog.verification.ledger_check import check_managed_ledger
from support.backed_log import NOW, files, fill
from support.backed_writers import Watched
from support.command import seglog as command
from support.failed_restores import restores_that_fail
from support.faultfs import RecordingFs
from support.golden import unpack

SMALL = {"managedLedgerMaxEntriesPerLedger": 50, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
FULL = bool(os.environ.get("SEGLOG_TORTURE"))


@pytest.fixture
def back(in_memory):
    return in_memory / "back"


@pytest.fixture
def jobs(in_memory):
    return in_memory / "jobs"


def entry(n):
    return build_entry(MessageMetadata(producer_name="p", sequence_id=n, publish_time=NOW), b"entry %d" % n)


def left_in(path, clock=None):
    """The values of all jobs that are not done: those that wait, and those that are dead."""
    with seglog.Queue(path, create=False, clock=clock) as queue:
        found = [job.value for job in queue.get_many(10_000, timeout=0)]
        return sorted(found), sorted(dead.value for dead in queue.dead), queue.stats()


# --- what a restored one is ---------------------------------------------------------------------


def test_a_queue_in_use_comes_back_with_its_jobs_attempts_delays_and_dead(jobs, store, back):
    clock = ManualClock(NOW)
    with seglog.Queue(jobs, clock=clock, max_attempts=2, retry_jitter=0) as queue:
        queue.put_many([b"job %d" % n for n in range(6)])
        queue.put(b"late", delay=3600)
        queue.put(b"urgent", priority=5, key=b"k", properties={"kind": "mail"})
        queue.put(b"charge", key="order-17", unique_for=86_400)
        urgent = queue.get(timeout=0)
        urgent.ack()
        done, refused, given_up, held = queue.get_many(4, timeout=0)
        done.ack()
        refused.nack(60)
        given_up.nack(0)
        queue.get(timeout=0).nack(0)        # the second attempt of the same job: it is dead
        run = seglog.backup(jobs, store, clock=clock)
        expected = queue.stats()
        assert held.attempt == 1
    assert [(one.name, one.kind.value) for one in run.snapshot.ledgers] == [("jobs", "queue")]
    assert run.snapshot.partitions == ()
    restored, = seglog.restore(store, back).ledgers
    assert (restored.name, restored.kind, restored.path, restored.damaged) == ("jobs", "queue", back / "jobs", ())
    with seglog.Queue(back / "jobs", clock=clock, create=False, max_attempts=2, lease=86_400) as queue:
        stats = queue.stats()
        # The lease is dropped: that job is ready again.
        assert (stats.ready, stats.in_flight) == (expected.ready + expected.in_flight, 0)
        assert (stats.delayed, stats.waiting, stats.dead) == (expected.delayed, expected.waiting, 1)
        assert [dead.value for dead in queue.dead] == [b"job 2"]
        assert queue.put(b"charge", key="order-17", unique_for=60) == queue.put(b"x", key="order-17", unique_for=60)
        assert queue.stats().backlog == stats.backlog
        found = {job.value: job.attempt for job in queue.get_many(10, timeout=0)}
        assert found == {b"job 3": 2, b"job 4": 1, b"job 5": 1, b"charge": 1}
        clock.advance(60_000)
        again = queue.get(timeout=0)
        assert (again.value, again.attempt) == (b"job 1", 2)
        clock.advance(3_600_000)
        queue.put(b"goes on")
        assert {job.value for job in queue.get_many(3, timeout=0)} >= {b"late", b"goes on"}


@pytest.mark.parametrize("name", ["jobs", "topic", "delayed"])
def test_all_that_a_release_wrote_comes_back_byte_by_byte(store, back, in_memory, name):
    """Ledgers, cursors, delayed messages with snapshots, a compacted ledger; a queue with two priorities."""
    source = shutil.copytree(unpack("seglog-0.1.0") / name, in_memory / name)
    seglog.backup(source, store)
    seglog.restore(store, back)
    assert files(back / name) == files(source) != {}
    indexes = {one.relative_to(source): one.read_bytes() for one in source.rglob("*index")}
    for path, raw in indexes.items():
        assert (back / name / path).read_bytes() == raw or not raw      # an opening left it empty
    assert check_managed_ledger(back / name).ok


def test_a_managed_ledger_in_use_comes_back_with_its_cursors(store, back, in_memory):
    with ManagedLedger(in_memory / "topic", config={"managedLedgerMaxEntriesPerLedger": 10}) as topic:
        topic.open_cursor("first", "earliest")
        topic.add_entries([entry(n) for n in range(25)])
        cursor = topic.open_cursor("billing", "earliest")
        cursor.mark_delete(Position(0, 3))
        cursor.acknowledge(Position(0, 7))
        cursor.flush()
        topic.update_properties({"owner": "billing"})
        seglog.backup(in_memory / "topic", store)
        expected = [(one.position, bytes(one.data)) for one in topic]
        written = files(in_memory / "topic")
    seglog.restore(store, back)
    assert files(back / "topic") == written
    with ManagedLedger(back / "topic") as topic:
        assert [(one.position, bytes(one.data)) for one in topic] == expected
        assert topic.properties == {"owner": "billing"}
        cursor = topic.open_cursor("billing")
        assert cursor.mark_delete_position == Position(0, 3)
        assert Position(0, 7) not in [one.position for one in cursor.read(30)]
        assert topic.add_entry(entry(25)) > expected[-1][0]


def test_a_ledger_alone_comes_back(store, back, in_memory):
    with Ledger.create(in_memory / "ledger-7", 7) as ledger:
        ledger.add_many([b"one", b"two"])
        seglog.backup(in_memory / "ledger-7", store)
        ledger.add(b"later")
    run = seglog.restore(store, back)
    assert [one.kind for one in run.ledgers] == ["ledger"]
    with Ledger.open(back / "ledger-7") as ledger:
        assert [ledger.read(n) for n in range(ledger.entry_count)] == [b"one", b"two"]


def test_queues_beside_partitions_are_part_of_the_snapshot(log, data, store, back):
    with seglog.Queue(data / "jobs") as queue, seglog.Queue(data / "old jobs") as other:
        queue.put(b"a job")
        other.put(b"an old job")
        run = seglog.backup(data, store)
    assert run.snapshot.left_out == {}
    assert [part.name for part in run.snapshot.parts] == ["orders-0", "jobs", "old jobs"]
    seglog.restore(store, back)
    assert (left_in(back / "jobs")[0], left_in(back / "old jobs")[0]) == ([b"a job"], [b"an old job"])
    with seglog.open_partition(back / "orders-0") as partition:
        assert partition.log_end_offset == log.log_end_offset
    again = seglog.backup(data, store)
    assert again.unchanged == 1         # the queues were closed since
    assert seglog.backup(data, store).unchanged == 3


def test_a_directory_of_queues_alone_is_backed_up(store, back, in_memory):
    for name in ("mail", "reports"):
        with seglog.Queue(in_memory / "queues" / name) as queue:
            queue.put(name.encode())
    seglog.backup(in_memory / "queues", store)
    run = seglog.restore(store, back, topics=["mail"], rename={"mail": "post"})
    assert [one.name for one in run.ledgers] == ["post"]
    assert sorted(one.name for one in back.iterdir() if one.is_dir()) == ["post"]
    assert left_in(back / "post")[0] == [b"mail"]
    with pytest.raises(InvalidArgumentError, match="exists already"):
        seglog.restore(store, back, topics=["mail"], rename={"mail": "post"})
    with pytest.raises(InvalidArgumentError, match="has no topic 'letters'"):
        seglog.restore(store, back, topics=["letters"])


def test_a_queue_cannot_be_restored_up_to_a_time(jobs, store, back):
    with seglog.Queue(jobs) as queue:
        queue.put(b"a job")
    seglog.backup(jobs, store)
    with pytest.raises(InvalidArgumentError, match="jobs: a queue is restored as of its moment"):
        seglog.restore(store, back, until=NOW)
    assert not back.exists()


def test_commands_show_queues_and_restore_them(jobs, store, back):
    with seglog.Queue(jobs) as queue:
        queue.put(b"a job")
        arguments = [sys.executable, "-m", "seglog.tools", "backup", "create", jobs, store]
        made = subprocess.run(arguments, capture_output=True, text=True, check=True)        # another process
        assert made.stdout.startswith("1 queue or ledger, 0 unchanged")
    assert "jobs (queue)" in command("backup", "ls", store, "--snapshot", "latest").stdout
    listed = json.loads(command("backup", "ls", store, "--snapshot", "latest", "--json").stdout)
    assert (listed["type"], listed["name"], listed["kind"]) == ("queue", "jobs", "queue")
    restored = command("restore", store, back)
    assert restored.stdout.startswith("1 queue or ledger, ")
    assert left_in(back / "jobs")[0] == [b"a job"]
    refused = command("dump", f"{store}#latest/jobs", status=4).stderr
    assert "jobs is no partition, but a queue or a ledger" in refused
    assert "--topic jobs" in refused


# --- what is stored -----------------------------------------------------------------------------


def test_what_was_put_since_is_all_that_is_stored(jobs, store):
    """Of the ledger that grows, only what is new; sealed ledgers are not looked into again."""
    with seglog.Queue(jobs, config=SMALL | {"managedLedgerMaxEntriesPerLedger": 40}) as queue:
        for n in range(50):
            queue.put(b"%d" % n * 3000)
        first = seglog.backup(jobs, store)
        assert first.read_bytes > 50 * 3000
        queue.put(b"new" * 100)
        assert seglog.backup(jobs, store).read_bytes < 60_000
    done = seglog.backup(jobs, store)       # it was sealed
    assert done.read_bytes < 60_000
    again = seglog.backup(jobs, store)
    assert (again.unchanged, again.read_bytes, again.stored_objects) == (1, 0, 0)
    assert seglog.BackupStore(store).check(read_data=True).ok


def test_prune_keeps_what_queues_need_and_check_finds_a_flipped_byte_in_it(jobs, store, back):
    with seglog.Queue(jobs) as queue:
        queue.put_many([b"job %d" % n * 100 for n in range(100)])
    backups = seglog.BackupStore(store)
    backups.create(jobs)
    assert backups.prune().objects == 0
    assert backups.check(read_data=True).unused == 0
    found = [path for path in (store / "objects").rglob("*") if path.is_file()]
    assert len(found) >= 3
    for path in found:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
        assert len(backups.check(read_data=True).findings) == 1
        with pytest.raises(CorruptBackupError):
            backups.restore(back, topics=["jobs"])
        assert not (back / "jobs").exists()
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    backups.restore(back)
    assert len(left_in(back / "jobs")[0]) == 100


def test_a_snapshot_without_queues_is_one_that_older_versions_read(log, data, store, jobs):
    with seglog.Queue(jobs):
        pass
    plain = seglog.backup(data, store).snapshot
    with_queue = seglog.backup(jobs, store).snapshot
    assert b'"version": 1' in (store / f"snapshots/{plain.id}.json").read_bytes()
    # They must not prune what they do not know.
    assert b'"version": 2' in (store / f"snapshots/{with_queue.id}.json").read_bytes()


@pytest.mark.parametrize("name", [
    "../manifest", "/manifest", "cursors/../../x.cursor", "cursors/a.b.cursor", "cursors/.cursor", "ledger-0/../x.log",
    "priority/../manifest", "queue.sock", ".seglog.lock", "ledger-0.deleted/ledger.json", "cursors/a/b.cursor",
    "ledger-0/00000000000000000001.log", "delayed/x/ledger-0.spool", "manifest\n", "priority/1/priority/1/manifest",
])
def test_a_list_of_files_that_names_others_is_refused(jobs, store, back, name):
    assert not is_file_of_ledgers(name)
    with seglog.Queue(jobs) as queue:
        queue.put(b"a job")
    snapshot = seglog.backup(jobs, store).snapshot
    pieces = Repository(store, None, OsFileSystem()).pieces()
    listed = format_json("seglog-backup-ledger", 1, name="jobs", files=[[name, 1, 0, 1, 0o600, "eA=="]], tails={})
    piece = pieces.put(listed)
    ledger, = snapshot.ledgers
    changed = replace(snapshot, ledgers=(replace(ledger, pieces=(piece,)),))
    (store / f"snapshots/{snapshot.id}.json").write_bytes(changed.to_bytes())
    with pytest.raises(CorruptBackupError, match="is not a file that a backup of a queue or ledger holds"):
        seglog.restore(store, back)
    assert not (back / "jobs").exists()


@pytest.mark.parametrize("name", ["..", "a/b", "", "x\0"])
def test_a_snapshot_that_names_a_queue_elsewhere_is_refused(jobs, store, back, name):
    with seglog.Queue(jobs):
        pass
    snapshot = seglog.backup(jobs, store).snapshot
    changed = replace(snapshot, ledgers=(replace(snapshot.ledgers[0], name=name),))
    path = store / f"snapshots/{snapshot.id}.json"
    path.write_bytes(changed.to_bytes())
    with pytest.raises(CorruptBackupError):
        Snapshot.parse(path.read_bytes(), str(path))
    with pytest.raises(CorruptBackupError):
        seglog.restore(store, back)


def test_a_directory_of_two_kinds_is_refused_and_not_backed_up_in_part(log, data, store, jobs):
    with seglog.Queue(jobs) as queue:
        queue.put(b"a job")
    shutil.copy(data / "orders-0" / f"{0:020}.log", jobs)
    with pytest.raises(NotALogError, match="is a partition directory and a managed ledger or a queue"):
        seglog.backup(jobs, store)
    shutil.copytree(jobs, data / "jobs")
    snapshot = seglog.backup(data, store).snapshot
    assert [part.name for part in snapshot.parts] == ["orders-0"]
    assert "is a partition directory and" in snapshot.left_out["jobs"]


# --- damage -------------------------------------------------------------------------------------


def flip(path, position):
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x40
    path.write_bytes(raw)


def test_a_damaged_journal_is_stored_as_it_is_and_named(jobs, store, back):
    with seglog.Queue(jobs) as queue:
        queue.put_many([b"job %d" % n for n in range(9)])
        for _ in range(9):
            queue.get(timeout=0).ack()
    flip(jobs / "queue.journal", 180)
    run = seglog.backup(jobs, store)
    assert run.damaged["jobs"].startswith("queue.journal: damaged record")
    assert "queue.journal: damaged record" in command("backup", "create", jobs, store, status=7).stderr
    seglog.restore(store, back)
    with pytest.raises(CorruptJournalError):
        seglog.Queue(back / "jobs")
    with seglog.Queue(back / "jobs", recover=True) as queue:        # what can be saved is there
        assert queue.stats().backlog < 9


@pytest.mark.parametrize("is_open", [True, False])
def test_damage_in_a_ledger_is_stored_as_it_is_and_named(jobs, store, back, is_open):
    with seglog.Queue(jobs) as queue:
        for n in range(9):
            queue.put(b"job %d" % n)
        if is_open:
            shutil.copytree(jobs, jobs.with_name("killed"))
    source = jobs.with_name("killed") if is_open else jobs
    flip(source / f"ledger-0/{0:020}.log", 150)
    run = seglog.backup(source, store)
    assert bool(run.damaged) == is_open     # of a sealed one, a restore tells
    restored, = seglog.restore(store, back).ledgers
    assert restored.damaged == (f"ledger-0/{0:020}.log",)
    assert files(restored.path) == files(source)


def test_an_unfinished_write_is_left_out(jobs, store, back):
    with seglog.Queue(jobs) as queue:
        queue.put_many([b"job %d" % n for n in range(3)])
        queue.get(timeout=0)
        shutil.copytree(jobs, jobs.with_name("killed"))
    whole, source = files(jobs.with_name("killed")), jobs.with_name("killed")
    log = source / f"ledger-0/{0:020}.log"
    log.write_bytes(log.read_bytes() + log.read_bytes()[:70])
    with open(source / "queue.journal", "r+b") as journal:
        end = len(whole["queue.journal"]) + -len(whole["queue.journal"]) % 8
        journal.seek(end)
        journal.write(b"\0\0\0\x38half a record")
    assert seglog.backup(source, store).damaged == {}
    seglog.restore(store, back)
    assert {name: raw.rstrip(b"\0") for name, raw in files(back / "killed").items()} == {
        name: raw.rstrip(b"\0") for name, raw in whole.items()}


def test_a_queue_that_always_changes_is_refused(jobs, store, monkeypatch):
    monkeypatch.setattr(ledger_moments, "LOOKS_MAX", 3)
    monkeypatch.setattr(ledger_moments, "PAUSE_S", 0)
    with seglog.Queue(jobs) as queue:
        listed = ledger_moments.MovingLedger._listed

        def change(self):
            found = listed(self)
            queue.put(b"x", priority=change.count)
            change.count += 1
            return found

        change.count = 1
        monkeypatch.setattr(ledger_moments.MovingLedger, "_listed", change)
        with pytest.raises(StorageError, match="changed each of 3 times"):
            seglog.backup(jobs, store)
    assert seglog.BackupStore(store).snapshots() == []


# --- one moment ---------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 60])
def test_what_changes_between_two_looks_is_there_as_a_whole_or_not_at_all(jobs, store, back, monkeypatch, more):
    """Jobs are done, then others are put, in both priorities, after the files of one were looked at. With `more`, some
    of them are in a new ledger."""
    with seglog.Queue(jobs, config=SMALL) as queue:
        queue.put(b"first")
        queue.put(b"second", priority=1)
        done = queue.get_many(2, timeout=0)
        looked, look = [], ledger_moments._Growing.catch_up

        def look_and_change(self):
            look(self)
            looked.append(self.path)
            if len(looked) == 2:
                for _ in range(more):
                    queue.put(b"third")
                for job in done:
                    job.ack()
                queue.put(b"fourth")
                queue.put(b"fifth", priority=1)

        monkeypatch.setattr(ledger_moments._Growing, "catch_up", look_and_change)
        seglog.backup(jobs, store)
        monkeypatch.undo()
    seglog.restore(store, back)
    assert left_in(back / "jobs")[0] == [b"fifth", b"fourth", *[b"third"] * more]


@pytest.mark.long
def test_each_snapshot_of_a_queue_is_what_it_was_at_one_moment(jobs, store, in_memory):
    """Of all its priorities together: what was put after a job was done is not there without that."""
    count = 400 if FULL else 10
    with Watched("queue", jobs, in_memory / "notes") as busy:
        for number in range(count):
            busy.await_changes()
            moment = busy.moment()
            seglog.backup(jobs, store)
            seglog.restore(store, in_memory / f"back-{number}")
            busy.check(moment, in_memory / f"back-{number}/jobs")
    assert seglog.BackupStore(store).check(read_data=True).ok


# --- failures -----------------------------------------------------------------------------------


def test_a_restore_of_a_queue_that_fails_at_any_step_is_run_again(jobs, store, in_memory):
    with seglog.Queue(jobs) as queue:
        queue.put_many([b"job %d" % n * 100 for n in range(20)])
        queue.put(b"urgent", priority=1)
        queue.get(timeout=0).ack()
    seglog.backup(jobs, store)

    def check(back):
        assert files(back / "jobs") == files(jobs)

    for back in restores_that_fail(store, in_memory, "jobs", check, every=1 if FULL else 4):
        assert len(left_in(back / "jobs")[0]) == 20


def test_a_crash_during_a_restore_leaves_a_whole_queue_or_none(jobs, store, in_memory):
    with seglog.Queue(jobs) as queue:
        queue.put_many([b"job %d" % n for n in range(20)])
    seglog.backup(jobs, store)
    root = in_memory / "disk"
    root.mkdir()
    record = RecordingFs(root)
    seglog.restore(store, root / "back", fs=record)
    record.mark("done")
    for state in record.crash_states(limit=2000 if FULL else 30, seed=5, shuffled=True):
        with state.materialise() as disk:
            if state.marks:
                assert (disk / "back/jobs").exists(), state.story()
            else:
                seglog.restore(store, disk / "back")
            assert files(disk / "back/jobs") == files(jobs), state.story()


def test_a_store_that_fails_leaves_no_queue_out(log, data, store, monkeypatch):
    """A fault of the store is none of the queue's."""
    with seglog.Queue(data / "jobs") as queue:
        queue.put(b"x" * 2000)
        put = PieceStore._put

        def fail(self, data):
            if b"seglog-backup-ledger" in data:
                self.failed = True
                raise StorageError("no space")
            return put(self, data)

        monkeypatch.setattr(PieceStore, "_put", fail)
        with pytest.raises(StorageError, match="no space"):
            seglog.backup(data, store)
    with suppress(InvalidArgumentError):
        assert seglog.BackupStore(store).snapshots() == []


def test_a_queue_that_is_removed_meanwhile_is_left_out(log, data, store, monkeypatch):
    for name in ("gone", "stays"):
        with seglog.Queue(data / name) as queue:
            queue.put(b"a job")
    fill(log, 1)
    copy = ledger_moments.MovingLedger.copy

    def remove(self, *arguments):
        if self.directory.name == "gone":
            shutil.rmtree(self.directory)
        return copy(self, *arguments)

    monkeypatch.setattr(ledger_moments.MovingLedger, "copy", remove)
    snapshot = seglog.backup(data, store).snapshot
    assert [part.name for part in snapshot.parts] == ["orders-0", "stays"]
    assert snapshot.left_out == {}


def test_links_in_a_queue_lead_nowhere(jobs, store, back, in_memory):
    """What lies elsewhere is not backed up as a part of it."""
    with seglog.Queue(jobs) as queue:
        queue.put(b"a job")
    (in_memory / "elsewhere").mkdir()
    (in_memory / "elsewhere/secret.cursor").write_text("secret")
    os.symlink(in_memory / "elsewhere", jobs / "relocated")
    (jobs / "cursors/link.cursor").symlink_to(in_memory / "elsewhere/secret.cursor")
    run = seglog.backup(jobs, store)
    assert run.snapshot.left_out == {}
    seglog.restore(store, back)
    assert "relocated" not in os.listdir(back / "jobs")
