"""Backups in an object store: what a local one promises, without locks and renames, and with a network in between."""
import contextlib
import io
import itertools
import json
import os
import random
import shutil
import signal
import threading

import pytest

import seglog
from seglog.archive import checking
from seglog.backups import store_lease as lease
from seglog.backups.pieces import PieceStore
from seglog.backups.repository import Repository
from seglog.backups.store_lease import RunMark
from seglog.errors import CorruptBackupError, InvalidArgumentError, LogLockedError, SeglogError, StorageError
from seglog.fs.live_file import BOOT_ID
from seglog.pulsar import ManagedLedger, MessageMetadata, build_entry
from support.backed_log import NOW, files, fill
from support.objects_on_disk import ObjectsOnDisk

FULL = bool(os.environ.get("SEGLOG_TORTURE"))

pytestmark = pytest.mark.usefixtures("log")     # so there is something in `data`


@pytest.fixture
def server(in_memory, monkeypatch):
    return ObjectsOnDisk(in_memory / "cloud", monkeypatch)


@pytest.fixture
def backups(server):
    return seglog.BackupStore(f"{server.bucket('backups')}/kafka", options=server.options)


def logs(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".snapshot")}


def test_backups_are_made_restored_checked_and_pruned(log, data, server, backups, in_memory):
    first = backups.create(data).snapshot
    assert backups.create(data).stored_objects == 0
    fill(log)
    last = backups.create(data).snapshot
    assert backups.check(read_data=True).ok
    backups.restore(in_memory / "back")
    assert logs(in_memory / "back/orders-0") == logs(data / "orders-0")
    backups.restore(in_memory / "first", snapshot=first.id)
    assert len(list((in_memory / "first/orders-0").glob("*.log"))) < len(logs(data / "orders-0"))
    assert [snapshot.id for snapshot in backups.forget(keep_last=1).kept] == [last.id]
    assert backups.prune(dry_run=True).objects == backups.prune().objects > 0
    assert backups.check(read_data=True).ok
    assert backups.check().unused == 0
    keys = server.objects("s3://backups/kafka")
    assert {key.split("/")[0] for key in keys} == {"seglog-backup.json", "objects", "snapshots"}     # no mark is left


def test_runs_exclude_each_other_by_their_marks(data, server, backups):
    backups.create(data)
    place = in_cloud(server) / "runs"
    place.mkdir()
    mark = RunMark("elsewhere", "0" * 32, 7, lease._now_ms())
    (place / "other.json").write_bytes(mark.to_bytes())
    for act in (lambda: backups.create(data), lambda: backups.forget(keep_last=1), backups.prune):
        with pytest.raises(LogLockedError, match="process 7 on elsewhere"):
            act()
    assert backups.check().ok       # readers need no mark
    assert [path.name for path in place.iterdir()] == ["other.json"]
    old = RunMark("elsewhere", "0" * 32, 7, lease._now_ms() - lease.STALE_MS - 1)
    (place / "other.json").write_bytes(old.to_bytes())
    backups.create(data)
    assert not place.exists()


def test_the_mark_of_a_dead_process_of_this_machine_is_removed_at_once(data, server, backups):
    backups.create(data)
    place = in_cloud(server) / "runs"
    place.mkdir()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    dead = RunMark(os.uname().nodename, BOOT_ID.hex(), child, lease._now_ms())
    (place / "dead.json").write_bytes(dead.to_bytes())
    backups.create(data)
    alive = RunMark(os.uname().nodename, BOOT_ID.hex(), os.getpid(), lease._now_ms())
    place.mkdir(exist_ok=True)
    (place / "alive.json").write_bytes(alive.to_bytes())
    with pytest.raises(LogLockedError):
        backups.create(data)


def test_a_mark_that_could_not_be_removed_does_not_stop_the_next_run(data, server, backups, monkeypatch):
    """`create --every` made no backup for half an hour: the process of the mark was alive, its own."""
    remove = type(backups._repository.store).remove_file

    def refused(self, path):
        if "/runs/" in path:
            raise StorageError("cannot remove: AWS Error SLOW_DOWN", file=path)
        remove(self, path)

    with monkeypatch.context() as patched:
        patched.setattr(type(backups._repository.store), "remove_file", refused)
        backups.create(data)
    assert len(list((in_cloud(server) / "runs").iterdir())) == 1
    again = seglog.BackupStore(f"{backups._repository.path}", options=server.options)
    again.create(data)
    assert not (in_cloud(server) / "runs").exists()


def test_of_many_runs_at_once_none_sees_another_at_work(data, server, backups):
    backups.create(data)
    at_work, most, outcomes, lock = 0, 0, [], threading.Lock()

    def run():
        nonlocal at_work, most
        for _ in range(20 if FULL else 5):
            try:
                with backups._repository.alone():
                    with lock:
                        at_work += 1
                        most = max(most, at_work)
                    threading.Event().wait(0.002)
                    with lock:
                        at_work -= 1
                outcomes.append("done")
            except LogLockedError:
                outcomes.append("refused")

    # Each has a repository of its own, as separate processes have.
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert set(outcomes) <= {"done", "refused"}
    assert not (in_cloud(server) / "runs").exists()


def test_a_run_whose_mark_was_removed_publishes_nothing(data, server, backups, monkeypatch):
    before = backups.create(data).snapshot
    remove_runs = seglog.archive.creating._Run._log_dir_files

    def taken_over(self, pieces):
        for path in (in_cloud(server) / "runs").iterdir():
            path.unlink()
        return remove_runs(self, pieces)

    monkeypatch.setattr(seglog.archive.creating._Run, "_log_dir_files", taken_over)
    with pytest.raises(StorageError, match="another run may have begun"):
        backups.create(data)
    assert [snapshot.id for snapshot in backups.snapshots()] == [before.id]


def test_a_store_that_fails_now_and_then_costs_runs_and_no_snapshot(log, data, server, backups, in_memory, monkeypatch):
    """Time-outs, refusals, short reads, and puts that arrive although they failed; with a log, a queue and a managed
    ledger."""
    rng, rate = random.Random(3), 0.0

    def fails():
        return rng.random() < rate

    class Unsteady:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            found = getattr(self._inner, name)

            def call(*arguments, **more):
                if fails():
                    raise OSError(rng.choice(["AWS Error SLOW_DOWN: 503", "AWS Error NETWORK_CONNECTION: timeout"]))
                made = found(*arguments, **more)
                if name == "open_input_stream" and fails():
                    raw = made.read()
                    return Cut(raw[: rng.randrange(len(raw) + 1)])
                if name == "delete_file" and fails():
                    raise OSError("AWS Error NETWORK_CONNECTION: the answer was lost")
                return made
            return call

    class Cut(io.BytesIO):
        def metadata(self):
            return {}

    store = backups._repository.store
    store._opened = Unsteady(store._fs)
    monkeypatch.setattr(type(store), "_open", lambda self: store._opened)
    has, failed = [], 0
    for turn in range(300 if FULL else 40):
        rate = 0.05 if turn % 4 else 0.0
        fill(log, 1)
        with seglog.Queue(data / "jobs") as queue:
            queue.put(b"job %d" % turn, priority=turn % 2)
        with ManagedLedger(data / "topic") as topic:
            topic.add_entry(build_entry(MessageMetadata(producer_name="p", sequence_id=turn, publish_time=NOW), b"x"))
        held = {name: files(data / name) for name in ("jobs", "topic")}
        try:
            if turn % 5 == 4:
                backups.forget(keep_last=4)
                has = has[-4:]
                backups.prune()
            else:
                has.append((backups.create(data).snapshot.id, log.log_end_offset, held))
        except SeglogError:
            failed += 1
            has = has[-4:]      # of those a forgetting that failed may have removed others
        rate = 0.0
        found = {snapshot.id: snapshot for snapshot in backups.snapshots()}
        assert {snapshot_id for snapshot_id, *_ in has} <= found.keys()
        check = backups.check(read_data=turn % 8 == 0)
        assert not [finding for finding in check.findings if finding.snapshots], check.findings
    assert failed > 3
    assert len(has) > 2
    for number, (snapshot_id, end, held) in enumerate(has):
        back = in_memory / f"back-{number}"
        backups.restore(back, snapshot=snapshot_id)
        with seglog.open_partition(back / "orders-0") as partition:
            assert partition.log_end_offset == end
        assert {name: files(back / name) for name in held} == held


def test_an_object_has_the_bytes_of_a_file_in_a_local_store(log, data, server, backups, in_memory):
    for _ in range(20):
        log.append(b"a value that can be compressed" * 15)
    backups.create(data, compression="zstd")
    seglog.backup(data, in_memory / "local", compression="zstd")
    local = {path.name: path.read_bytes() for path in (in_memory / "local/objects").rglob("*.zst")}
    assert local
    objects = server.objects("s3://backups/kafka").items()
    assert {key.rpartition("/")[2]: stored for key, stored in objects if key.endswith(".zst")} == local


def test_an_interrupt_before_the_bytes_of_an_object_leaves_nothing_that_counts_as_one(
    log, data, server, backups, in_memory, monkeypatch
):
    """pyarrow cannot take a begun object back: it is put with the bytes that it has by then, which may be none."""
    for _ in range(20):
        log.append(b"a value that can be compressed" * 15)
    log.flush()
    left = None
    begin = type(backups._repository.store._fs).open_output_stream

    @contextlib.contextmanager
    def interrupted(client, path, **options):
        nonlocal left
        with begin(client, path, **options) as stream:
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
            yield stream

    monkeypatch.setattr(type(backups._repository.store._fs), "open_output_stream", interrupted)
    for at in itertools.count(1):
        left = at
        try:
            backups.create(data, compression="zstd")
        except KeyboardInterrupt:
            left = -1
            backups.create(data, compression="zstd")
            left = 0
        check = backups.check(read_data=True)
        assert not check.findings
        backups.restore(in_memory / f"back-{at}")
        assert logs(in_memory / f"back-{at}/orders-0") == logs(data / "orders-0")
        if left > 0:
            break
        shutil.rmtree(in_cloud(server))
    assert at > 4


def test_a_store_that_cannot_be_read_leaves_no_partition_out(log, data, server, backups, monkeypatch):
    """The list of files of the last snapshot is read while a partition is backed up: that is no fault of the source."""
    before = backups.create(data).snapshot
    fill(log, 1)
    tree = before.partitions[0].pieces[0].digest
    store = backups._repository.store
    read = type(store).read

    def refused(self, path):
        if path.endswith(tree):
            raise StorageError("cannot read: AWS Error SLOW_DOWN", file=path)
        return read(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "read", refused)
        with pytest.raises(StorageError, match="SLOW_DOWN"):
            backups.create(data)
    assert [snapshot.id for snapshot in backups.snapshots()] == [before.id]


def test_a_listing_that_still_shows_a_removed_snapshot_ends_no_backup_and_prunes_nothing(
    log, data, server, backups, monkeypatch
):
    first = backups.create(data).snapshot
    fill(log, 1)
    last = backups.create(data).snapshot
    listed = type(backups._repository.store).files
    stale = f"{backups._repository.path}/snapshots"
    before = listed(backups._repository.store, stale)
    with monkeypatch.context() as patch:
        patch.setattr(
            type(backups._repository.store), "files",
            lambda self, path: before if path == stale else listed(self, path),
        )
        backups.forget(keep_last=1)
        assert [snapshot.id for snapshot in backups.snapshots()] == [last.id]
        assert backups.forget(keep_last=1).forgotten == ()
        assert backups.check(read_data=True).ok
        fill(log, 1)
        made = backups.create(data).snapshot
        with pytest.raises(InvalidArgumentError, match="removed meanwhile"):
            backups.prune()
        with pytest.raises(InvalidArgumentError, match="removed meanwhile"):
            backups.snapshot(first.id)
    assert [snapshot.id for snapshot in backups.snapshots()] == [last.id, made.id]
    backups.prune()
    check = backups.check(read_data=True)
    assert (check.findings, check.unused) == ([], 0)


def hide(monkeypatch, backups, *ids):
    """Let listings not show these snapshots yet."""
    listed = type(backups._repository.store).files
    names = {f"{snapshot_id}.json" for snapshot_id in ids}
    monkeypatch.setattr(
        type(backups._repository.store), "files",
        lambda self, path: [file for file in listed(self, path) if file.name not in names],
    )


def test_prune_spares_what_a_snapshot_needs_that_no_listing_shows_yet(
    log, data, backups, in_memory, monkeypatch
):
    first = backups.create(data).snapshot
    fill(log)
    last = backups.create(data).snapshot
    with monkeypatch.context() as patched:
        hide(patched, backups, last.id)
        assert [snapshot.id for snapshot in backups.snapshots()] == [first.id, last.id]
        assert backups.snapshot().id == last.id
        assert backups.prune().objects == 0
        assert [snapshot.id for snapshot in backups.forget(keep_last=1).forgotten] == [first.id]
        backups.prune()
        assert backups.check(read_data=True).ok
        backups.restore(in_memory / "hidden")
    backups.restore(in_memory / "back", snapshot=last.id)
    for back in ("hidden", "back"):
        assert logs(in_memory / back / "orders-0") == logs(data / "orders-0")


def test_a_run_that_is_killed_before_its_snapshot_is_put_hinders_nobody(log, data, server, backups, monkeypatch):
    first = backups.create(data).snapshot
    fill(log)
    write = type(backups._repository.store).write

    def killed(self, path, raw):
        if "/snapshots/2" in path:
            raise KeyboardInterrupt
        write(self, path, raw)

    with monkeypatch.context() as patched:
        patched.setattr(type(backups._repository.store), "write", killed)
        with pytest.raises(KeyboardInterrupt):
            backups.create(data)
    assert len(backups._repository.registered_ids()) == 2
    assert backups.snapshot().id == first.id
    assert [snapshot.id for snapshot in backups.snapshots()] == [first.id]
    assert backups.check().ok
    assert backups.prune().objects > 0
    assert backups._repository.registered_ids() == {first.id}
    assert backups.check().unused == 0
    place, = (in_cloud(server) / "snapshots").glob("2*.json")
    place.unlink()
    with pytest.raises(InvalidArgumentError, match="no snapshot 'latest'"):
        backups.snapshot()


def test_an_id_that_the_register_alone_knows_makes_no_prefix_ambiguous(log, data, backups, in_memory, monkeypatch):
    """A run was killed after it had told its id, and before it put its snapshot: "2 snapshots begin with" was said."""
    first = backups.create(data).snapshot
    never_put = f"{first.id[:-8]}ffffffff"
    day = first.id[:8]
    backups._repository._register.write({first.id, never_put})
    assert backups.snapshot(day).id == first.id
    backups.restore(in_memory / "back", snapshot=day)
    with pytest.raises(InvalidArgumentError, match=f"no snapshot '{never_put}'"):
        backups.snapshot(never_put)
    fill(log)
    last = backups.create(data).snapshot
    with pytest.raises(InvalidArgumentError, match=f"several snapshots begin with '{day}'"):
        backups.snapshot(day)
    hide(monkeypatch, backups, first.id, last.id)       # no listing shows them yet: only the register knows them
    assert [backups.snapshot(one.id[:-4]).id for one in (first, last)] == [first.id, last.id]
    with pytest.raises(InvalidArgumentError, match="several snapshots"):
        backups.snapshot(day)


def test_a_damaged_register_is_found_stops_prune_and_is_written_anew(log, data, server, backups):
    first = backups.create(data).snapshot
    register = in_cloud(server) / "snapshots/register.json"
    whole = register.read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 2
        register.write_bytes(damaged)
        finding, = backups.check().findings
        assert finding.file.endswith("register.json")
        for dry_run in (True, False):
            with pytest.raises(CorruptBackupError, match="nothing was removed"):
                backups.prune(dry_run=dry_run)
        assert [snapshot.id for snapshot in backups.snapshots()] == [first.id]
    last = backups.create(data).snapshot
    assert backups._repository.registered_ids() == {first.id, last.id}
    register.unlink()       # as in a store of an older version
    assert backups.check().ok
    backups.prune()


def test_listings_that_lag_behind_cost_no_snapshot(log, data, server, backups, in_memory, monkeypatch):
    """Each listing may be what it was some changes ago."""
    rng, seen = random.Random(7), {}
    listed = type(backups._repository.store).files

    def lagging(self, path):
        found = seen.setdefault(path, [])
        found.append(listed(self, path))
        return rng.choice(found[-4:])

    monkeypatch.setattr(type(backups._repository.store), "files", lagging)
    has = {}
    for turn in range(200 if FULL else 30):
        fill(log, rng.randrange(1, 4))
        has[backups.create(data).snapshot.id] = log.log_end_offset
        if turn % 3 == 2:
            log.truncate_to(log.log_end_offset - 2)
            kept = [snapshot.id for snapshot in backups.forget(keep_last=3).kept]
            has = {one: end for one, end in has.items() if one in kept}
            assert len(has) == 3
            with contextlib.suppress(InvalidArgumentError):     # a listing shows one that was removed
                backups.prune()
        assert has.keys() <= {snapshot.id for snapshot in backups.snapshots()}
        assert backups.snapshot().id == max(has)
        assert not [finding for finding in backups.check().findings if finding.snapshots]
    monkeypatch.setattr(type(backups._repository.store), "files", listed)
    assert backups.check(read_data=True).ok
    for number, (snapshot_id, end) in enumerate(has.items()):
        backups.restore(in_memory / f"back-{number}", snapshot=snapshot_id)
        with seglog.open_partition(in_memory / f"back-{number}/orders-0") as partition:
            assert partition.log_end_offset == end


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_check_finds_what_a_listing_does_not_show_yet(log, data, server, backups, monkeypatch, compression):
    log.append(b"a value that can be compressed" * 15)
    backups.create(data, compression=compression)
    store = backups._repository.store
    listed = type(store).files
    monkeypatch.setattr(
        type(store), "files", lambda self, path: [] if "/objects/" in path else listed(self, path),
    )
    check = backups.check(read_data=True)
    assert check.findings == []
    assert check.read_bytes > 0
    gone, *_ = (in_cloud(server) / "objects").glob("*/*")
    gone.write_bytes(b"")
    finding, = backups.check(read_data=True).findings
    assert finding.file.endswith(gone.name)
    gone.unlink()
    finding, = backups.check(read_data=True).findings
    assert finding.what == "the object is gone"


def test_names_in_a_listing_lead_nowhere_else(data, server, backups, in_memory):
    backups.create(data)
    place = in_cloud(server) / "snapshots"
    (place / "..json").write_bytes(b"{}")
    (place / "20261124T120727.123Z-5f3c1e6b.json").write_bytes(json.dumps({"format": "other"}).encode())
    findings = backups.check().findings
    assert [finding.what[:5] for finding in findings] == ["not a"]
    with pytest.raises(ValueError, match="is not an object"):
        backups._repository.remove("s3://backups/other/objects/aa/x")


def in_cloud(server):
    return server._top / "backups/kafka"


@pytest.mark.parametrize("in_bucket", [True, False])
@pytest.mark.parametrize(("holder", "step"), [
    (Repository, "find_snapshot"), (Repository, "files"), (checking, "object_files"), (PieceStore, "check"),
], ids=["snapshots are read", "lists of files are read", "objects are listed", "objects are read"])
def test_check_finds_nothing_in_what_is_forgotten_and_pruned_meanwhile(
    log, data, backups, in_memory, monkeypatch, in_bucket, holder, step
):
    if not in_bucket:
        backups = seglog.BackupStore(in_memory / "store")
    for _ in range(2):
        log.truncate_to(5)          # each of the first snapshots has objects of its own
        for _ in range(4):
            log.append(os.urandom(400))
        backups.create(data)
    log.truncate_to(5)
    last = backups.create(data).snapshot
    take, removed = getattr(holder, step), []

    def take_after(*args, **named):
        if not removed:
            removed.append(True)
            backups.forget(keep_last=1)
            assert backups.prune().objects > 4
        return take(*args, **named)

    monkeypatch.setattr(holder, step, take_after)
    check = backups.check(read_data=True)
    assert removed
    assert check.findings == []
    assert [snapshot.id for snapshot in backups.snapshots()] == [last.id]


def test_check_names_the_snapshots_that_are_left_of_those_that_need_a_lost_object(log, data, in_memory, monkeypatch):
    backups = seglog.BackupStore(in_memory / "store")
    backups.create(data)
    last = backups.create(data).snapshot
    gone, *_ = (in_memory / "store/objects").glob("*/*")
    gone.unlink()
    take = checking.object_files

    def take_after(repository):
        backups.forget(keep_last=1)
        return take(repository)

    monkeypatch.setattr(checking, "object_files", take_after)
    finding, = backups.check().findings
    assert (finding.snapshots, "gone" in finding.what) == ((last.id,), True)
