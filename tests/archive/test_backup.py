"""A backup holds what each partition was at one moment, once, and a restored partition is that, byte by byte."""
import os
import shutil
import threading
from itertools import chain
from pathlib import Path

import pytest

import seglog
from seglog.archive import backup_store, log_dir_lines, moments, stored_objects
from seglog.backups.pieces import PIECE_BYTES, Piece, PieceStore
from seglog.backups.repository import Repository
from seglog.clock import ManualClock
from seglog.errors import (
    CorruptBackupError,
    InvalidArgumentError,
    LogLockedError,
    NotALogError,
    StorageError,
    UnsupportedVersionError,
)
from seglog.format import names
from seglog.format.checked_json import format_json
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.segment.appender import SegmentAppender
from seglog.state import offset_checkpoints
from seglog.state.checkpoints import parse_offsets_or_none, read_offset_checkpoint
from seglog.stores.store import LocalStore
from seglog.upkeep.index_rebuild import rebuild_indexes
from support.backed_log import CONFIG, NOW, files, fill
from support.command import partition_of
from support.command import seglog as command
from support.golden import golden_cases

STORED_SUFFIXES = (".log", ".tlog", ".snapshot", ".txnindex")
STORED_NAMES = ("leader-epoch-checkpoint", "partition.metadata", ".seglog.config")


@pytest.fixture
def back(in_memory):
    return in_memory / "back"


def values(path, **more):
    with seglog.open_partition(path) as partition:
        return [(record.offset, record.value) for record in partition.read(**more)]


def stored(path):
    """The bytes of the files that a backup holds, by name."""
    return {
        entry.name: entry.read_bytes() for entry in path.iterdir()
        if entry.name.endswith(STORED_SUFFIXES) or entry.name in STORED_NAMES or (
            entry.name.startswith(".seglog.cursor-") and not entry.name.endswith(".lock"))
    }


def objects(store):
    return {path.name: path.stat().st_mtime_ns for path in (store / "objects").rglob("*") if path.is_file()}


# --- what a restored partition is ---------------------------------------------------------------


def test_what_brokers_wrote_comes_back_byte_by_byte(in_memory):
    """Golden directories of Kafka 2.8.2, 3.9.1 and 4.1.1, in one log dir; indexes are those that a rebuild gives."""
    log_dir, store, back = in_memory / "kafka", in_memory / "store", in_memory / "back"
    cases = golden_cases() if os.environ.get("SEGLOG_TORTURE") else golden_cases()[::6]
    log_dir.mkdir()
    for number, case in enumerate(cases):
        shutil.copytree(partition_of(case), log_dir / f"{case.name}-{number}")
    run = seglog.backup(log_dir, store)
    assert len(run.snapshot.partitions) == len(cases)
    assert run.snapshot.left_out == {}
    seglog.restore(store, back)
    for original in sorted(log_dir.iterdir()):
        ours = back / original.name
        expected = stored(original)
        assert stored(ours) == expected, original.name
        for name in expected:
            assert (ours / name).stat().st_mtime_ns == (original / name).stat().st_mtime_ns
        assert not any(step.changed for step in rebuild_indexes(ours, dry_run=True)), original.name
        assert not [finding for finding in seglog.verify(ours).findings if finding.severity == "error"], original.name


def test_a_log_in_use_is_backed_up_with_cursors_epochs_and_producers(log, data, store, back):
    log.cursor("billing").commit(7)
    log.append_batch(
        seglog.build_batch([(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0, timestamp=NOW),
        leader_epoch=3,
    )
    seglog.backup(data, store)
    restored = seglog.restore(store, back)
    assert [(part.name, part.next_offset) for part in restored.partitions] == [("orders-0", 21)]
    assert stored(back / "orders-0") == stored(data / "orders-0")
    assert read_offset_checkpoint(back / names.RECOVERY_POINT_CHECKPOINT) == {("orders", 0): 21}
    with seglog.open(back / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as opened:
        assert opened.recovery.lost == ()
        assert opened.cursor("billing").position == 7
        assert [(e.epoch, e.start_offset) for e in opened.leader_epochs] == [(0, 0), (3, 20)]
        again = seglog.build_batch([(b"k", b"v")], producer_id=7, producer_epoch=0, base_sequence=0, timestamp=NOW)
        assert opened.append_batch(again).is_duplicate
        assert opened.append(b"goes on") == 21
    assert seglog.verify(back / "orders-0", config=CONFIG).ok


def test_deleted_records_do_not_come_back(log, data, store, back):
    log.delete_records(9)
    seglog.backup(data / "orders-0", store)
    seglog.restore(store, back)
    assert read_offset_checkpoint(back / names.LOG_START_OFFSET_CHECKPOINT) == {("orders", 0): 9}
    assert [offset for offset, _ in values(back / "orders-0")] == list(range(9, 20))


def test_transactions_are_what_they_were_at_the_moment(data, store, back):
    with seglog.open(data / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log, log.producer(7) as producer:
        for n in range(30):
            producer.begin()
            producer.append(b"value %d" % n)
            producer.abort() if n % 3 == 0 else producer.commit()
        producer.begin()
        producer.append(b"undecided")
        seglog.backup(data, store)
        expected = values(data / "orders-0", isolation="read_committed")
        files, begun = stored(data / "orders-0"), log.last_stable_offset
        producer.commit()
    assert any(name.endswith(".txnindex") for name in files)
    seglog.restore(store, back)
    assert stored(back / "orders-0") == files
    with seglog.open(back / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as opened:
        assert [(r.offset, r.value) for r in opened.read(isolation="read_committed")] == expected
        assert opened.last_stable_offset == begun


@pytest.mark.parametrize("enabled", [True, False])
def test_minute_indexes_come_back_where_there_were_some(data, store, back, enabled):
    config = CONFIG | {"seglog.time.index.minute.enabled": enabled}
    with seglog.open(data / "orders-0", config=config, clock=ManualClock(NOW)) as log:
        fill(log)
        seglog.backup(data, store)
    seglog.restore(store, back, config=CONFIG)
    for original in (data / "orders-0").glob("*.index"):
        assert (back / "orders-0" / original.name).read_bytes() == original.read_bytes()
    assert bool(list((back / "orders-0").glob("*.time.index"))) is enabled


def test_a_tagged_log_comes_back(data, store, back):
    with seglog.open(data / "orders-0", config={"seglog.message.dialect": "tagged", "segment.bytes": 600}) as log:
        for n in range(30):
            log.append(b"value %d" % n)
        seglog.backup(data, store)
        expected = values(data / "orders-0")
    seglog.restore(store, back)
    assert stored(back / "orders-0") == stored(data / "orders-0")
    assert values(back / "orders-0") == expected


def test_the_files_of_a_log_dir_come_back_last(log, data, store, back):
    (data / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    (data / ".seglog.producer_ids").write_bytes(b"x" * 700)
    seglog.backup(data, store)
    seglog.restore(store, back)
    for name in ("meta.properties", ".seglog.producer_ids"):
        assert (back / name).read_bytes() == (data / name).read_bytes()
    assert not (back / ".seglog.restore").exists()


def test_some_topics_and_partitions_alone(data, store, back):
    with seglog.open_dir(data) as log_dir:
        for topic, partition in (("a", 0), ("a", 1), ("b", 0), ("c", 0)):
            log_dir.log(topic, partition).append(b"x")
        seglog.backup(data, store)
    restored = seglog.restore(store, back, topics=["b"], partitions=["a-1"])
    assert [part.name for part in restored.partitions] == ["a-1", "b-0"]
    with pytest.raises(InvalidArgumentError, match="no topic 'd'"):
        seglog.restore(store, back, topics=["d"])
    with pytest.raises(InvalidArgumentError, match="exists already"):
        seglog.restore(store, back, partitions=["a-1"])
    seglog.restore(store, back, partitions=["c-0"])
    assert sorted(path.name for path in back.iterdir() if path.is_dir()) == ["a-1", "b-0", "c-0"]


def test_damage_in_the_source_is_restored_as_it_was_and_named(log, data, store, back):
    log.close()
    first = sorted((data / "orders-0").glob("*.log"))[0]
    raw = bytearray(first.read_bytes())
    raw[80] ^= 1
    first.write_bytes(raw)
    seglog.backup(data, store)
    restored = seglog.restore(store, back)
    assert restored.partitions[0].damaged == (first.name,)
    assert stored(back / "orders-0") == stored(data / "orders-0")


def one_segment(data):
    """A closed log of one segment; returns its .log and the positions of its batches."""
    with seglog.open(data / "orders-0", clock=ManualClock(NOW)) as log:
        fill(log)
    path = data / "orders-0" / f"{0:020}.log"
    with seglog.open_partition(data / "orders-0") as partition:
        return path, [batch.position for batch in partition.batches()]


def flip(path, position):
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x40
    path.write_bytes(raw)


@pytest.mark.parametrize("batch", [0, 9, 18])
def test_whole_batches_behind_damage_in_the_last_segment_are_kept(data, store, back, batch):
    path, positions = one_segment(data)
    flip(path, positions[batch] + 70)
    run = seglog.backup(data, store)
    assert run.snapshot.partitions[0].next_offset == 20
    assert f"byte {positions[batch]}" in run.damaged["orders-0"]
    restored, = seglog.restore(store, back).partitions
    assert restored.damaged == (path.name,)
    assert stored(back / "orders-0") == stored(data / "orders-0")
    assert [finding.offset for finding in seglog.verify(back / "orders-0").findings
            if finding.severity == "error"] == [batch]
    again = seglog.backup(data, store)
    assert (again.stored_objects, again.damaged) == (0, run.damaged)        # each run names it


def test_what_a_broker_appends_behind_damage_is_stored_by_the_next_run(data, store, back):
    path, positions = one_segment(data)
    flip(path, positions[9] + 70)
    seglog.backup(data, store)
    with path.open("ab") as file:
        file.write(seglog.build_batch([(b"k", b"later")], base_offset=20, timestamp=NOW))
        file.write(b"half a batch")
    run = seglog.backup(data, store)
    assert run.snapshot.partitions[0].next_offset == 21
    seglog.restore(store, back)
    assert stored(back / "orders-0")[path.name] == path.read_bytes()


def test_a_torn_tail_is_left_out(data, store, back):
    """Half a batch, a last batch that is damaged, and zeros: no whole batch follows."""
    path, positions = one_segment(data)
    whole = path.read_bytes()
    for number, (tail, end) in enumerate([(whole[positions[19] :][:40], 20), (b"\0" * 5000, 20), (b"", 19)]):
        path.write_bytes(whole + tail)
        if end == 19:
            flip(path, positions[19] + 70)
        run = seglog.backup(data, store)
        assert (run.damaged, run.snapshot.partitions[0].next_offset) == ({}, end)
        restored, = seglog.restore(store, back / str(number)).partitions
        assert restored.damaged == ()
        assert (back / str(number) / "orders-0" / path.name).read_bytes() == whole[: (*positions, len(whole))[end]]


def test_whole_batches_whose_offsets_go_back_are_kept(data, store, back):
    """No unfinished write leaves them."""
    path, positions = one_segment(data)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[positions[15] :])
    run = seglog.backup(data, store)
    assert "goes back" in run.damaged["orders-0"]
    assert run.snapshot.partitions[0].next_offset == 20
    seglog.restore(store, back)
    assert stored(back / "orders-0") == stored(data / "orders-0")


# --- what is stored once ------------------------------------------------------------------------


def test_a_second_run_copies_nothing(log, data, store):
    seglog.backup(data, store)
    before = objects(store)
    second = seglog.backup(data, store)
    assert (second.stored_objects, second.read_bytes, second.unchanged) == (0, 0, 1)
    assert objects(store) == before
    assert len(seglog.BackupStore(store).snapshots()) == 2


def test_only_what_was_appended_is_read(log, data, store):
    seglog.backup(data, store)
    log.append(b"one more")
    active = sorted((data / "orders-0").glob("*.log"))[-1]
    run = seglog.backup(data, store)
    assert 0 < run.read_bytes <= active.stat().st_size
    full = seglog.backup(data, store, reread=True)
    assert (full.stored_objects, full.read_bytes > run.read_bytes) == (0, True)


def test_a_log_that_is_backed_up_often_has_few_pieces(data, store, back):
    """Each byte is stored a few times, not once a run, and a segment is not one object a run."""
    with seglog.open(data / "orders-0") as log:
        stored_bytes = 0
        for n in range(64):
            log.append(b"%0100d" % n)
            stored_bytes += seglog.backup(data, store).snapshot.stored_bytes
        size_bytes = (data / "orders-0/00000000000000000000.log").stat().st_size
        seglog.restore(store, back)
        assert stored(back / "orders-0")["00000000000000000000.log"] == (
            data / "orders-0/00000000000000000000.log").read_bytes()
    trees = 64 * 2500
    assert stored_bytes < 8 * size_bytes + trees
    pieces = moments.worth_keeping(tuple(Piece("0" * 64, 1 << n) for n in range(20, 3, -1)), 16)
    assert [piece.size_bytes for piece in pieces] == []
    kept = moments.worth_keeping((Piece("0" * 64, PIECE_BYTES), Piece("1" * 64, 99)), 98)
    assert [piece.size_bytes for piece in kept] == [PIECE_BYTES, 99]


def test_a_moved_source_is_read_again_and_stored_once(log, data, store, in_memory):
    log.close()
    seglog.backup(data, store)
    shutil.copytree(data, in_memory / "moved")
    run = seglog.backup(in_memory / "moved", store)
    assert run.read_bytes > 0
    assert run.stored_objects <= 1      # the list of its files: other inodes


def test_objects_that_compress_are_compressed(data, store, back):
    with seglog.open(data / "orders-0") as log:
        log.append(b"same " * 5000)
        seglog.backup(data, store, compression="zstd")
        size_bytes = sum(path.stat().st_size for path in (store / "objects").rglob("*.zst"))
        assert 0 < size_bytes < 5000
        seglog.restore(store, back)
        assert stored(back / "orders-0") == stored(data / "orders-0")
    assert seglog.BackupStore(store).check(read_data=True).ok
    with pytest.raises(InvalidArgumentError, match="compressed by zstd"):
        seglog.backup(data, store, compression="none")


def test_checkpoints_are_parsed_once_for_all_partitions(data, store, back, monkeypatch):
    """Parsed for each, those of 10 000 topics took a minute to back up, and ten to restore."""
    for number in range(8):
        with seglog.open(data / f"orders-{number}") as log:
            log.append(b"one")
            log.append(b"two")
            log.delete_records(1)
    parsed = []

    def parse(raw, file):
        parsed.append(file)
        return parse_offsets_or_none(raw, file)

    for module in (log_dir_lines, offset_checkpoints):
        monkeypatch.setattr(module, "parse_offsets_or_none", parse)
    for _ in range(2):
        seglog.backup(data, store)
    assert len(parsed) == 4         # two files in each run
    parsed.clear()
    seglog.restore(store, back)
    assert parsed == []             # it wrote them
    starts = read_offset_checkpoint(back / names.LOG_START_OFFSET_CHECKPOINT)
    assert starts == {("orders", number): 1 for number in range(8)}


# --- a source that changes -----------------------------------------------------------------------


def test_other_batches_at_stored_offsets_are_seen(log, data, store, back):
    """As a broker writes them after a power cut: the same file, as long or longer, but batches of another leader. The
    leader epoch is outside of a batch's CRC."""
    log.close()
    active = sorted((data / "orders-0").glob("*.log"))[-1]
    tail = seglog.backup(data, store).snapshot.partitions[0]
    raw = active.read_bytes()
    with seglog.open_partition(data / "orders-0") as partition:
        last = list(partition.segments)[-1].find_offset(tail.next_offset - 1)
    with active.open("r+b") as file:
        file.seek(last.position + 12)
        file.write((7).to_bytes(4, "big"))
    with seglog.open(data / "orders-0", config=CONFIG, clock=ManualClock(NOW)) as log:
        log.append(b"behind it")
    assert active.read_bytes()[: len(raw)] != raw
    seglog.backup(data, store)
    seglog.restore(store, back)
    assert stored(back / "orders-0")[active.name] == active.read_bytes()


def test_a_cut_file_that_grew_again_is_seen(data, store, back):
    """A follower cuts its log in place: the same inode, other batches, a larger size."""
    path = data / "orders-0" / f"{0:020}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(seglog.build_batch([(b"k", b"v%d" % n)], base_offset=n, timestamp=NOW) for n in range(9)))
    seglog.backup(data, store)
    inode = path.stat().st_ino
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 3)
        file.seek(0, os.SEEK_END)
        file.write(b"".join(
            seglog.build_batch([(b"k", b"w%d" % n)], base_offset=n, timestamp=NOW) for n in range(3, 40)))
    assert path.stat().st_ino == inode
    seglog.backup(data, store)
    seglog.restore(store, back)
    assert (back / "orders-0" / path.name).read_bytes() == path.read_bytes()
    assert values(back / "orders-0") == [(n, b"%c%d" % (b"v" if n < 3 else b"w", n)) for n in range(40)]


def test_segments_that_are_replaced_while_they_are_copied_are_copied_again(log, data, store, back, monkeypatch):
    put = PieceStore._put
    cuts = iter([15, 12, 9])

    def cut_meanwhile(self, piece):
        if (end := next(cuts, None)) is not None:
            log.truncate_to(end)
            fill(log, 8)
        return put(self, piece)

    monkeypatch.setattr(PieceStore, "_put", cut_meanwhile)
    run = seglog.backup(data, store)
    monkeypatch.undo()
    assert run.snapshot.partitions[0].next_offset == log.log_end_offset
    seglog.restore(store, back)
    assert stored(back / "orders-0") == stored(data / "orders-0")


@pytest.mark.parametrize("case", ["first of the log", "begun before", "begun before, without a snapshot", "later one"])
def test_an_abort_is_in_the_backup_with_its_entry_which_is_written_after_its_marker(
    data, store, back, monkeypatch, case
):
    """The entry was missing, and the aborted record was read as a committed one."""
    with seglog.open(data / "orders-0", config={"segment.bytes": 350} if "before" in case else {}) as log:
        producer = log.producer(7)
        if case == "later one":
            producer.begin()
            producer.append(b"aborted, too")
            producer.abort()
        producer.begin()
        producer.append(b"aborted")
        log.append(b"x" * 250)
        made = []
        add_aborted = SegmentAppender.add_aborted

        def add_late(*entry):
            if "without" in case:
                for path in (data / "orders-0").glob("*.snapshot"):
                    path.unlink()
            made.extend(seglog.backup(data, store).snapshot.partitions for _ in range(2))
            add_aborted(*entry)

        monkeypatch.setattr(SegmentAppender, "add_aborted", add_late)
        producer.abort()
        assert (len(log.segments) > 1) == ("before" in case)
    (first,), (second,) = made
    assert first.pieces == second.pieces
    seglog.restore(store, back)
    assert values(back / "orders-0") != values(back / "orders-0", isolation="read_committed")
    assert stored(back / "orders-0") == {
        name: raw for name, raw in stored(data / "orders-0").items()
        if not name.endswith(".snapshot") or name in os.listdir(back / "orders-0")
    }


def test_a_partition_that_always_changes_is_refused(log, data, store, monkeypatch):
    put = PieceStore._put
    monkeypatch.setattr(moments, "PAUSE_S", 0)
    monkeypatch.setattr(moments, "LOOKS_MAX", 3)

    def cut_each_time(self, piece):
        log.truncate_to(log.log_end_offset - 2)
        fill(log, 2)
        return put(self, piece)

    monkeypatch.setattr(PieceStore, "_put", cut_each_time)
    with pytest.raises(StorageError, match="changed each of 3 times"):
        seglog.backup(data / "orders-0", store)
    assert seglog.BackupStore(store).snapshots() == []


def test_a_topic_that_is_deleted_meanwhile_is_left_out(data, store, monkeypatch):
    with seglog.open_dir(data) as log_dir:
        for topic in "ab":
            log_dir.log(topic).append(b"x")
        put = PieceStore._put

        def delete_meanwhile(self, piece):
            if (data / "b-0").exists():
                log_dir.delete("b")
            return put(self, piece)

        monkeypatch.setattr(PieceStore, "_put", delete_meanwhile)
        run = seglog.backup(data, store)
    assert [part.name for part in run.snapshot.partitions] == ["a-0"]
    assert run.snapshot.left_out == {}


def test_a_partition_that_cannot_be_read_is_named_and_the_others_are_backed_up(data, store):
    with seglog.open_dir(data) as log_dir:
        for topic in "abc":
            log_dir.log(topic).append(b"x")
    (data / "b-0" / ".seglog.live").unlink()
    (data / "b-0/00000000000000000000.log").unlink()
    (data / "b-0/00000000000000000000.log").symlink_to("nowhere")
    run = seglog.backup(data, store)
    assert [part.name for part in run.snapshot.partitions] == ["a-0", "c-0"]
    assert list(run.snapshot.left_out) == ["b-0"]


def test_a_restore_names_what_was_left_out_of_the_snapshot(log, data, store, back):
    """It said nothing, with status 0."""
    (data / "orders-1").mkdir()
    (data / "orders-1" / f"{0:020}.log").mkdir()
    left_out = dict(seglog.backup(data, store).snapshot.left_out)
    assert list(left_out) == ["orders-1"]
    run = seglog.restore(store, back)
    assert [part.name for part in run.partitions] == ["orders-0"]
    assert run.left_out == left_out
    assert seglog.restore(store, back / "two", topics=["orders"]).left_out == left_out
    assert seglog.restore(store, back / "three", partitions=["orders-0"]).left_out == {}
    with pytest.raises(InvalidArgumentError, match="has no partition 'orders-1'; orders-1 was left out: "):
        seglog.restore(store, back / "four", partitions=["orders-1"])
    done = command("restore", store, back / "five", "--no-progress", status=7)
    assert "not in the snapshot, as it could not be backed up: orders-1" in done.stderr


def test_internal_topics_come_first(data, store):
    with seglog.open_dir(data) as log_dir:
        for topic in ("a", "z", "__consumer_offsets", "__transaction_state"):
            log_dir.log(topic).append(b"x")
    run = seglog.backup(data, store)
    assert [part.name for part in run.snapshot.partitions] == [
        "__transaction_state-0", "__consumer_offsets-0", "a-0", "z-0"]


# --- what is refused ----------------------------------------------------------------------------------


def test_two_runs_exclude_each_other(log, data, store):
    seglog.backup(data, store)
    with lock_log_dir(OsFileSystem(), store):
        for act in (
            lambda: seglog.backup(data, store), lambda: seglog.BackupStore(store).forget(keep_last=1),
            lambda: seglog.BackupStore(store).prune(),
        ):
            with pytest.raises(LogLockedError) as refused:
                act()
            assert refused.value.hint.startswith("another run changes this store")     # not "pass attach=True"
        assert seglog.BackupStore(store).check().ok     # readers need no lock


def test_what_is_no_source_or_no_store(log, data, store, in_memory):
    with pytest.raises(StorageError, match="no such file"):
        seglog.backup(in_memory / "nothing", store)
    (in_memory / "empty").mkdir()
    with pytest.raises(NotALogError):
        seglog.backup(in_memory / "empty", store)
    for place in (data / "store", data / "orders-0", in_memory):
        with pytest.raises(InvalidArgumentError, match="in each other"):
            seglog.backup(data, place)
    (in_memory / "other").mkdir()
    (in_memory / "other/file").write_text("of somebody")
    with pytest.raises(InvalidArgumentError, match="holds other files"):
        seglog.backup(data, in_memory / "other")
    assert [path.name for path in (in_memory / "other").iterdir()] == ["file"]
    seglog.backup(data, in_memory / "outer")
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match="the directory is in a store of backups"):
            seglog.backup(data, in_memory / "outer/objects/inner", dry_run=dry_run)
    assert not (in_memory / "outer/objects/inner").exists()
    for act in (
        lambda: seglog.BackupStore(store).snapshots(), lambda: seglog.restore(store, in_memory / "back"),
        lambda: seglog.BackupStore(store).check(), lambda: seglog.BackupStore(store).prune(),
    ):
        with pytest.raises(InvalidArgumentError, match="no backups here"):
            act()
    assert not store.exists()


def test_a_broker_on_the_target_is_left_alone(log, data, store, back):
    seglog.backup(data, store)
    back.mkdir()
    with lock_log_dir(OsFileSystem(), back), pytest.raises(LogLockedError):
        seglog.restore(store, back)


def test_a_snapshot_is_found_by_the_beginning_of_its_id(log, data, store, back):
    ids = [seglog.backup(data, store).snapshot.id for _ in range(3)]
    backups = seglog.BackupStore(store)
    assert backups.snapshot().id == ids[-1] == backups.snapshot(ids[-1]).id
    with pytest.raises(InvalidArgumentError, match="several snapshots begin"):
        backups.snapshot(ids[0][:6])
    with pytest.raises(InvalidArgumentError, match="no snapshot 'x'"):
        seglog.restore(store, back, snapshot="x")


def test_a_dry_run_changes_nothing(log, data, store, back):
    run = seglog.backup(data, store, dry_run=True)
    assert run.stored_objects > 0
    assert not store.exists()
    seglog.backup(data, store)
    run = seglog.restore(store, back, dry_run=True)
    assert [part.name for part in run.partitions] == ["orders-0"]
    assert not back.exists()


def test_copies_of_closed_files_are_closed(log, data, store, back):
    for path in (data / "orders-0").iterdir():
        path.chmod(0o600)
    seglog.backup(data, store)
    for directory in ("objects", "snapshots"):
        assert (store / directory).stat().st_mode & 0o077 == 0
    seglog.restore(store, back)
    for path in (back / "orders-0").glob("0*"):         # the indexes, too
        assert path.stat().st_mode & 0o777 == 0o600, path.name


# --- damage -------------------------------------------------------------------------------------------


def test_every_flipped_byte_is_found(log, data, store):
    """1000 of them at full size: in objects, in lists of files, in snapshots, in the store's own file."""
    seglog.backup(data, store, compression="none")
    log.append(b"more")
    seglog.backup(data, store)
    files = [path for path in sorted(store.rglob("*")) if path.is_file() and path.name != ".lock"]
    count = 1000 if os.environ.get("SEGLOG_TORTURE") else 60
    backups = seglog.BackupStore(store)
    assert backups.check(read_data=True).ok
    for n in range(count):
        path = files[n % len(files)]
        raw = path.read_bytes()
        at = n * 7919 % len(raw)
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << n % 8]) + raw[at + 1 :])
        if path.read_bytes().strip() != raw.strip():        # white space at the end of a JSON file says nothing
            found = seglog.BackupStore(store).check(read_data=True)
            assert not found.ok, (path, at)
        path.write_bytes(raw)
    assert backups.check(read_data=True).ok


def test_an_object_that_is_gone_or_shorter_is_found_without_reading(log, data, store, back):
    seglog.backup(data, store)
    largest = max((path for path in (store / "objects").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    raw = largest.read_bytes()
    largest.write_bytes(raw[:-1])
    snapshot = seglog.BackupStore(store).snapshot().id
    finding, = seglog.BackupStore(store).check().findings
    assert (finding.file, finding.snapshots) == (str(largest), (snapshot,))
    with pytest.raises(CorruptBackupError):
        seglog.restore(store, back)
    assert not (back / "orders-0").exists()
    largest.unlink()
    assert "gone" in seglog.BackupStore(store).check().findings[0].what
    seglog.backup(data, store, reread=True)       # stores again what the source still has
    assert seglog.BackupStore(store).check(read_data=True).ok
    seglog.restore(store, back)


@pytest.mark.parametrize("loss", ["all", "lists", "the files", "one of them", "one is shorter", "of the tail"])
@pytest.mark.parametrize("grows", [False, True])
def test_objects_that_are_gone_are_stored_again_by_the_next_run(log, data, store, back, loss, grows):
    """It said that all was unchanged, and its snapshot lacked the data."""
    with seglog.open(data / "other-0", config=CONFIG, clock=ManualClock(NOW)) as other:
        fill(other)
        with seglog.Queue(data / "jobs", clock=ManualClock(NOW)) as queue:
            queue.put_many([b"job %d" % n * 100 for n in range(20)])
            first = seglog.backup(data, store)
            repository = Repository(store, None, OsFileSystem())
            pieces = repository.pieces()
            lists = [piece for part in first.snapshot.parts for piece in part.pieces]
            of_files = [
                [piece for file in repository.files(part, pieces) for piece in file.pieces]
                for part in first.snapshot.parts
            ]
            lost = {
                "all": [*lists, *chain(*of_files)], "lists": lists, "the files": [*chain(*of_files)],
                "one of them": of_files[1][:1], "one is shorter": of_files[1][:1], "of the tail": of_files[1][-1:],
            }[loss]
            if loss == "all":
                shutil.rmtree(store / "objects")
                assert {finding.what for finding in seglog.BackupStore(store).check().findings} == {
                    "the object is gone"}
                assert seglog.backup(data, store, dry_run=True).missing_objects == 3
            else:
                for path in {Path(pieces.path_of(piece.digest)) for piece in lost}:
                    os.truncate(path, 5) if "shorter" in loss else path.unlink()
            if grows:
                fill(other, 3)
                queue.put(b"later")
            second = seglog.backup(data, store)
            assert second.missing_objects == 1 or loss in ("all", "lists", "the files")
            assert second.missing_objects > 0
            check = seglog.BackupStore(store).check(read_data=True)
            assert not [finding for finding in check.findings if second.snapshot.id in finding.snapshots]
            seglog.restore(store, back)
            for name in ("orders-0", "other-0"):
                assert stored(back / name) == stored(data / name)
            assert files(back / "jobs") == files(data / "jobs")
            third = seglog.backup(data, store)
            assert (third.missing_objects, third.stored_objects) == (0, 0)


def test_the_command_tells_of_objects_that_were_gone(log, data, store):
    seglog.backup(data, store)
    for path in (store / "objects").glob("*/*"):
        path.unlink()
    done = command("backup", "create", data, store, "--no-progress", status=0)
    assert "of the last snapshot were gone from the store" in done.stderr
    assert "gone" not in command("backup", "create", data, store, "--no-progress", status=0).stderr


@pytest.mark.parametrize(("listed_s", "count"), [(3600, 1), (0, 3)])
def test_one_that_follows_lists_the_objects_once_an_hour(log, data, store, monkeypatch, listed_s, count):
    listed, runs, stop = [], [], threading.Event()
    monkeypatch.setattr(stored_objects, "object_files", lambda repository: listed.append(repository) or iter(()))
    monkeypatch.setattr(backup_store, "_LISTED_S", listed_s)

    def on_run(run):
        runs.append(run)
        if len(runs) == 4:
            stop.set()

    seglog.BackupStore(store).follow(data, every_s=0.001, stop=stop, on_run=on_run)
    assert len(listed) == count     # the first run needs nothing that is stored
    assert [run.missing_objects for run in runs] == [0] * 4     # a listing may lack an object


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_reread_stores_damaged_objects_again(data, store, back, compression):
    """Bytes flipped, the size is the same: of each object, a segment's and the list of files, plain or compressed."""
    with seglog.open(data / "orders-0", clock=ManualClock(NOW)) as log:
        log.append(b"same " * 5000)
        log.append(os.urandom(5000))
        log.append(b"same " * 5000)
    seglog.backup(data, store, compression=compression)
    damaged = [path for path in sorted((store / "objects").rglob("*")) if path.is_file()]
    assert len(damaged) > 1
    for path in damaged:
        flip(path, path.stat().st_size // 2)
    assert len(seglog.BackupStore(store).check(read_data=True).findings) == len(damaged)
    assert seglog.backup(data, store, reread=True, dry_run=True).stored_objects == len(damaged)
    run = seglog.backup(data, store, reread=True)
    assert run.stored_objects == len(damaged)
    assert seglog.BackupStore(store).check(read_data=True).ok
    seglog.restore(store, back)
    assert stored(back / "orders-0") == stored(data / "orders-0")
    assert seglog.backup(data, store, reread=True).stored_objects == 0


def test_a_newer_version_is_refused(log, data, store, back):
    seglog.backup(data, store)
    (store / "seglog-backup.json").write_bytes(format_json("seglog-backup", 2, compression="none"))
    with pytest.raises(UnsupportedVersionError):
        seglog.backup(data, store)
    with pytest.raises(UnsupportedVersionError):
        seglog.restore(store, back)


def test_links_in_a_store_lead_nowhere_else(log, data, store, in_memory):
    seglog.backup(data, store)
    outside = in_memory / "outside"
    outside.mkdir()
    empty = next(path for path in sorted((store / "objects").iterdir()) if not list(path.iterdir()))
    victim = outside / (empty.name + "0" * 62)
    victim.write_bytes(b"of somebody")
    empty.rmdir()
    empty.symlink_to(outside)
    with pytest.raises(StorageError, match="symbolic link"):
        seglog.BackupStore(store).prune()
    assert victim.exists()


# --- looking after backups ------------------------------------------------------------------------------


def test_forget_and_prune(log, data, store, back):
    clock = ManualClock(NOW)
    backups = seglog.BackupStore(store)
    ids = []
    for day in range(20):
        clock.set(NOW + day * 86_400_000)
        fill(log, 2)
        ids.append(seglog.backup(data, store, clock=clock).snapshot.id)
    dry = backups.forget(keep_last=2, keep_daily=3, keep_weekly=2, dry_run=True)
    assert len(backups.snapshots()) == 20
    run = backups.forget(keep_last=2, keep_daily=3, keep_weekly=2)
    assert run == dry
    assert [snapshot.id for snapshot in run.kept][-3:] == ids[-3:]
    assert len(run.kept) == 4           # the last of the week before, too
    assert [snapshot.id for snapshot in backups.snapshots()] == [snapshot.id for snapshot in run.kept]
    unused = backups.check().unused
    assert unused > 0
    (store / "objects/00" / "left.tmp").write_bytes(b"of a killed run")
    assert backups.prune(dry_run=True).objects == unused
    pruned = backups.prune()
    assert (pruned.objects, pruned.leftovers) == (unused, 1)
    assert backups.check(read_data=True).ok
    assert backups.check().unused == 0
    for snapshot in run.kept:
        seglog.restore(store, back / snapshot.id, snapshot=snapshot.id)
    with pytest.raises(InvalidArgumentError, match="nothing would be kept"):
        backups.forget()


@pytest.mark.parametrize("act", ["create", "snapshots", "snapshot", "restore", "check", "forget", "scan", "by prefix"])
def test_a_snapshot_that_is_removed_after_it_was_listed_is_passed_over(log, data, store, back, monkeypatch, act):
    """`follow` replaces the last snapshot of the hour while others read the store."""
    backups = seglog.BackupStore(store)
    first = backups.create(data).snapshot
    fill(log, 1)
    last = backups.create(data).snapshot
    listed, was_removed = LocalStore.files, []

    def files(self, path):
        found = listed(self, path)
        if path == f"{store}/snapshots" and not was_removed:
            was_removed.append(path)
            (store / f"snapshots/{last.id}.json").unlink()
        return found

    monkeypatch.setattr(LocalStore, "files", files)
    match act:
        case "create":
            assert backups.create(data).snapshot.partitions[0].next_offset == last.partitions[0].next_offset
        case "snapshots":
            assert [snapshot.id for snapshot in backups.snapshots()] == [first.id]
        case "snapshot":
            assert backups.snapshot().id == first.id
        case "restore":
            assert backups.restore(back).snapshot.id == first.id
        case "check":
            check = backups.check()
            assert (check.findings, check.snapshots) == ([], 1)
        case "forget":
            assert [snapshot.id for snapshot in backups.forget(keep_last=1, dry_run=True).kept] == [first.id]
        case "scan":
            rows = seglog.scan(f"{store}#latest/orders-0", columns=["offset"]).to_arrow().num_rows
            assert rows == first.partitions[0].next_offset
        case "by prefix":
            with pytest.raises(InvalidArgumentError, match="no snapshot"):
                backups.snapshot(last.id)
    assert was_removed


def test_nothing_is_pruned_while_a_snapshot_is_damaged(log, data, store):
    seglog.backup(data, store)
    log.append(b"more")
    snapshot = seglog.backup(data, store).snapshot
    path = store / "snapshots" / f"{snapshot.id}.json"
    path.write_bytes(path.read_bytes()[:-9])
    before = objects(store)
    with pytest.raises(CorruptBackupError, match="nothing was removed"):
        seglog.BackupStore(store).prune()
    assert objects(store) == before
