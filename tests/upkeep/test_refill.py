"""Recovery from replicas: what is damaged or gone comes back byte for byte, and only if it is the same log."""
import contextlib
import errno
import itertools
import os
import random
import shutil
import struct

import pytest

import seglog
from seglog.errors import InvalidArgumentError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.upkeep.recover import recover as recover_with
from seglog.verification.verify import verify
from support import plain_format as plain
from support.faultfs import FailingFs, RecordingFs
from support.internal_topics import cluster, cluster_answers

T0 = 1_700_000_000_000
# All damages at full size: two and three replicas.
FULL = bool(os.environ.get("SEGLOG_TORTURE"))
DAMAGES = 200 if FULL else 24
SEGMENT = 40        # offsets in a segment of the undamaged log
CONFIG = {"index.interval.bytes": 256}


def put(directory, segments, epochs=((0, 0),), topic_id="AAAAAAAAAAAAAAAAAAAAAQ"):
    """A partition directory without indexes: `segments` by base offset, each a list of batches."""
    directory.mkdir(parents=True)
    for base_offset, batches in segments.items():
        (directory / f"{base_offset:020}.log").write_bytes(b"".join(batches))
    lines = "".join(f"{epoch} {start}\n" for epoch, start in epochs)
    (directory / "leader-epoch-checkpoint").write_text(f"0\n{len(epochs)}\n{lines}")
    if topic_id:
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    return directory


def batch_at(offset, *, count=4, epoch=0, value=b"value"):
    records = [plain.record_v2(offset_delta=n, value=b"%s %03d" % (value, offset + n)) for n in range(count)]
    return plain.batch_v2(
        b"".join(records), count=count, base_offset=offset, leader_epoch=epoch, base_timestamp=T0 + offset,
        max_timestamp=T0 + offset,
    )


def undamaged(end=5 * SEGMENT, change=3 * SEGMENT, value=b"value"):
    """Five segments; from the offset `change` on, the leader is another one."""
    segments = {}
    for offset in range(0, end, 4):
        batches = segments.setdefault(offset // SEGMENT * SEGMENT, [])
        batches.append(batch_at(offset, epoch=int(offset >= change), value=value))
    return segments


SIZE = len(batch_at(0))
EPOCHS = ((0, 0), (1, 3 * SEGMENT))


def content(directory):
    with seglog.open_partition(directory) as partition:
        return [(bytes(batch.raw())) for batch in partition.batches()]


def flip(path, position):
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x40
    path.write_bytes(raw)


@pytest.fixture
def replicas(tmp_path):
    """Three copies of one log, each in the log dir of a broker."""
    return [put(tmp_path / f"broker{n}/orders-0", undamaged(), EPOCHS) for n in range(3)]


def log_of(directory, base_offset):
    return directory / f"{base_offset:020}.log"


def recovered(directory, *sources, apply=True):
    return seglog.recover(directory, mode="quarantine", apply=apply, sources=sources, config=CONFIG)


# --- brokers after an unclean election --------------------------------------------------------------


def test_real_replicas_fill_what_they_share_and_nothing_of_a_tail_that_another_leader_replaced(tmp_path):
    """Each batch of broker 1 is damaged in turn; Kafka cut its log at the offset where the epochs part."""
    [cut] = cluster_answers()["cuts"]["1"]["orders"]
    whole = cluster("before", 1) / "orders-0"
    with seglog.open_partition(whole) as partition:
        batches = [(batch.base_offset, batch.position) for batch in partition.batches()]
    undamaged = content(whole)
    for base_offset, position in batches:
        damaged = shutil.copytree(whole, tmp_path / f"{base_offset}/orders-0")
        flip(log_of(damaged, 0), position + 65)
        done = recovered(damaged, *(cluster("before", broker) / "orders-0" for broker in (2, 3)))
        taken = [(one.first_offset, one.last_offset) for one in done.filled]
        if base_offset < cut - 1:       # of the last one that they share the batch beside it differs
            assert (taken, content(damaged)) == ([(base_offset, base_offset)], undamaged)
        else:
            assert (taken, len(content(damaged))) == ([], len(batches) - 1)
    assert len(batches) == 60
    assert cut == 40


# --- random damages --------------------------------------------------------------------------------


def flip_covered(path, position):
    """Flip a bit; none of the leader epoch, which no CRC covers: such a batch looks like another leader's."""
    flip(path, position + 4 if 12 <= position % SIZE < 16 else position)


def damage(path, rng):
    """Damage one place of a .log, as a disk, a crash or a hand does it."""
    size = path.stat().st_size
    base = int(path.stem)
    match rng.randrange(6):
        case 0:
            flip_covered(path, rng.randrange(size))
        case 1:
            raw = bytearray(path.read_bytes())
            start = rng.randrange(size)
            stop = min(start + rng.choice((20, 300, 900)), size)
            raw[start:stop] = bytes(stop - start) if rng.random() < 0.5 else rng.randbytes(stop - start)
            path.write_bytes(raw)
        case 2:
            path.write_bytes(path.read_bytes()[: rng.randrange(size)])
        case 3 if base > 0:      # where a log begins is its own choice
            path.unlink()
        case 4:
            raw = path.read_bytes()
            at = rng.randrange(size)
            at += at % SIZE == 0        # bytes between two batches cost nothing, and are not filled
            path.write_bytes(raw[:at] + rng.randbytes(rng.choice((1, 7, 200))) + raw[at:])
        case _:
            raw = bytearray(path.read_bytes())
            slot = rng.randrange(SEGMENT // 4)
            at = len(raw) // (SEGMENT // 4) * slot
            raw[at : at + 8] = struct.pack(">q", base + rng.choice((-3, 1, 5, 1000)))
            path.write_bytes(raw)


def is_hidden(log, whole):
    """Whether a batch is there whole but for what no CRC covers: its offset, its leader epoch."""
    raw = log.read_bytes() if log.exists() else b""
    return any(batch[16:] in raw and batch not in raw for batch in whole[int(log.stem)])


@pytest.mark.parametrize("offset", [0, 9, 1000])
def test_an_offset_out_of_order_is_filled(replicas, offset):
    first, second, _ = replicas
    log = log_of(first, 0)
    raw = bytearray(log.read_bytes())
    raw[2 * SIZE : 2 * SIZE + 8] = struct.pack(">q", offset)
    log.write_bytes(raw)
    done = recovered(first, second)
    assert [(one.first_offset, one.last_offset) for one in done.filled] == [(8, 11)]
    assert content(first) == content(second)


@pytest.mark.parametrize("replicas_max", [2, 3])
def test_random_damages_are_filled_to_the_undamaged_log(tmp_path, replicas_max):
    """Damage in one replica, or in each of three at places of its own: as long as one of them has a batch, it comes
    back. The end of the log is known from the log dir's checkpoint."""
    rng = random.Random(replicas_max)
    whole = undamaged()
    expected = b"".join(raw for base in sorted(whole) for raw in whole[base])
    for n in range(DAMAGES):
        copies = [put(tmp_path / f"{n}/broker{m}/orders-0", whole, EPOCHS) for m in range(replicas_max)]
        first = copies[0]
        (first.parent / "recovery-point-offset-checkpoint").write_text(f"0\n1\norders 0 {5 * SEGMENT}\n")
        for log in rng.sample(sorted(first.glob("*.log")), 2):
            damage(log, rng)
            if is_hidden(log, whole):
                # Nothing shows that the batch is another one, so it may stay.
                log.write_bytes(b"".join(whole[int(log.stem)])[:-1])
        if replicas_max > 2:
            # The others are damaged, too, but not both at the same offset: one in even segments, one in odd ones.
            for copy, parity in zip(copies[1:], (0, 1), strict=True):
                log = log_of(copy, SEGMENT * rng.choice([m for m in range(5) if m % 2 == parity]))
                flip_covered(log, rng.randrange(log.stat().st_size))
        foretold = recovered(first, *copies[1:], apply=False)
        assert not foretold.lost, (n, foretold)
        done = recovered(first, *copies[1:])
        assert not done.lost
        assert (foretold.log_end_offset, foretold.filled) == (done.log_end_offset, done.filled)
        assert b"".join(content(first)) == expected, n
        report = verify(first, config=CONFIG)
        assert not report.findings, (n, report.findings)
        assert not recovered(first, *copies[1:], apply=False).filled
        shutil.rmtree(tmp_path / str(n))


# --- what is taken -----------------------------------------------------------------------------------


def test_a_dry_run_tells_what_comes_from_where_and_changes_nothing(replicas):
    first, second, _ = replicas
    flip(log_of(first, SEGMENT), 100)
    before = {path: path.read_bytes() for path in first.iterdir()}
    told = recovered(first, second, apply=False)
    assert {path: path.read_bytes() for path in first.iterdir()} == before
    filled, = told.filled
    assert (filled.first_offset, filled.last_offset, filled.source) == (SEGMENT, SEGMENT + 3, second)
    assert not told.lost
    # Without the replica, it would be lost.
    assert recovered(first, apply=False).lost


def test_what_one_replica_lacks_comes_from_the_next(replicas):
    first, second, third = replicas
    for batch in (2, 3):
        size = log_of(first, 0).stat().st_size // 10
        flip(log_of(first, 0), size * batch + 70)
    flip(log_of(second, 0), size * 3 + 70)
    flip(log_of(third, 0), size * 2 + 70)
    done = recovered(first, second, third)
    assert not done.lost
    assert [(one.first_offset, one.source) for one in done.filled] == [(8, second), (12, third)]


def test_what_no_replica_has_is_quarantined(replicas):
    first, second, third = replicas
    for copy in replicas:
        flip(log_of(copy, 0), 70)
    done = recovered(first, second, third)
    assert [(one.first_offset, one.last_offset) for one in done.lost] == [(0, 3)]
    assert set(done.unfilled) == {second, third}
    assert "does not have offset 0 whole" in done.unfilled[second]


def test_a_copy_is_filled_and_the_source_stays(replicas, tmp_path):
    first, second, _ = replicas
    flip(log_of(first, 0), 70)
    before = log_of(first, 0).read_bytes()
    (tmp_path / "out").mkdir()
    done = seglog.recover(first, tmp_path / "out/orders-0", mode="quarantine", sources=[second], config=CONFIG)
    assert not done.lost
    assert log_of(first, 0).read_bytes() == before
    assert content(tmp_path / "out/orders-0") == content(second)


def test_the_log_start_stays(replicas, tmp_path):
    first, second, _ = replicas
    log_of(first, 0).unlink()
    (first / "leader-epoch-checkpoint").write_text(f"0\n2\n0 {SEGMENT}\n1 {3 * SEGMENT}\n")
    assert not recovered(first, second).filled
    assert not log_of(first, 0).exists()


def test_missing_segments_begin_where_those_of_the_replica_begin(replicas):
    first, second, _ = replicas
    log_of(first, SEGMENT).unlink()
    log_of(first, 2 * SEGMENT).unlink()
    assert [seglog.recover(first, mode="quarantine").lost, recovered(first, second).lost] == [(), ()]
    for base_offset in (SEGMENT, 2 * SEGMENT):
        assert log_of(first, base_offset).read_bytes() == log_of(second, base_offset).read_bytes()


def test_old_contents_are_kept_if_asked(replicas, tmp_path):
    first, second, _ = replicas
    flip(log_of(first, SEGMENT), 100)
    damaged = log_of(first, SEGMENT).read_bytes()
    seglog.recover(first, mode="quarantine", apply=True, sources=[second], backup=tmp_path / "old", config=CONFIG)
    assert log_of(tmp_path / "old/orders-0", SEGMENT).read_bytes() == damaged


# --- what is refused ---------------------------------------------------------------------------------


def refusal(first, other):
    flip(log_of(first, SEGMENT), 100)
    before = {path: path.read_bytes() for path in other.iterdir()}
    told = recovered(first, other, apply=False)
    assert not told.filled
    assert told.lost
    assert {path: path.read_bytes() for path in other.iterdir()} == before
    return told.unfilled[other]


def test_another_topic_of_the_same_name_is_no_replica(replicas, tmp_path):
    other = put(tmp_path / "other/orders-0", undamaged(), EPOCHS, topic_id="AAAAAAAAAAAAAAAAAAAAAg")
    assert "another topic id" in refusal(replicas[0], other)


def test_a_log_whose_epochs_part_below_the_stretch_is_no_replica(replicas, tmp_path):
    other = put(tmp_path / "other/orders-0", undamaged(), ((0, 0), (5, 20)))
    assert "its leader epochs differ from offset 20 on" in refusal(replicas[0], other)


def test_a_log_with_other_batches_beside_the_stretch_is_no_replica(replicas, tmp_path):
    other = put(tmp_path / "other/orders-0", undamaged(value=b"other"), EPOCHS)
    assert f"its batch at offset {SEGMENT - 1} is another one" in refusal(replicas[0], other)


def test_without_a_topic_id_and_a_batch_nothing_shows_a_replica(tmp_path):
    one, other = (
        put(tmp_path / f"{n}/orders-0", {0: [batch_at(0)]}, (), topic_id=None) for n in range(2)
    )
    for path in (one, other):
        (path / "leader-epoch-checkpoint").unlink()
    flip(log_of(one, 0), 70)
    told = recovered(one, other, apply=False)
    assert not told.filled
    assert "neither a topic id nor a batch" in told.unfilled[other]


def test_a_batch_of_another_leader_is_not_taken(replicas, tmp_path):
    """Below the stretch the epochs are the same: they part within it, after an unclean election."""
    segments = undamaged()
    segments[4 * SEGMENT][2:] = [batch_at(offset, epoch=7) for offset in range(4 * SEGMENT + 8, 5 * SEGMENT, 4)]
    other = put(tmp_path / "other/orders-0", segments, (*EPOCHS, (7, 4 * SEGMENT + 8)))
    first = replicas[0]
    log = log_of(first, 4 * SEGMENT)
    log.write_bytes(log.read_bytes()[: len(batch_at(0)) + 20])
    done = recovered(first, other)
    assert [(one.first_offset, one.last_offset) for one in done.filled] == [(4 * SEGMENT + 4, 4 * SEGMENT + 7)]
    assert done.log_end_offset == 4 * SEGMENT + 8


def test_where_a_cleaner_has_been_a_hole_stays(replicas):
    first, second, _ = replicas
    (first.parent / "cleaner-offset-checkpoint").write_text(f"0\n1\norders 0 {2 * SEGMENT}\n")
    flip(log_of(first, 3 * SEGMENT), 100)
    flip(log_of(first, SEGMENT), 100)
    told = recovered(first, second, apply=False)
    assert "is where the cleaner has been" in told.unfilled[second]
    assert [one.first_offset for one in told.filled] == [3 * SEGMENT]
    assert [one.first_offset for one in told.lost] == [SEGMENT]


@pytest.mark.parametrize("side", ["this", "other"])
def test_a_topic_that_is_told_compacted_is_filled_only_in_its_active_segment(replicas, side):
    first, second, _ = replicas
    where = (first, second)[side == "other"]
    with seglog.open(where) as log:
        log.configure({"cleanup.policy": "compact", "min.compaction.lag.ms": 10**12})
    flip(log_of(first, 4 * SEGMENT), 100)
    flip(log_of(first, SEGMENT), 100)
    told = recovered(first, second, apply=False)
    assert [one.first_offset for one in told.filled] == [4 * SEGMENT]


def test_a_damaged_replica_of_the_same_bytes_gives_nothing(replicas):
    first, second, _ = replicas
    flip(log_of(second, SEGMENT), 100)
    assert "does not have offset" in refusal(first, second)


@pytest.mark.parametrize(("arguments", "why"), [
    ({"mode": "truncate"}, "takes the mode quarantine"), ({"mode": "quarantine", "same": True}, "the log itself"),
])
def test_what_cannot_be_meant_is_refused(replicas, arguments, why):
    first, second, _ = replicas
    source = first if arguments.pop("same", False) else second
    with pytest.raises(InvalidArgumentError, match=why):
        seglog.recover(first, sources=[source], **arguments)


# --- crashes, a full disk, interrupts ------------------------------------------------------------------

LOST = batch_at(SEGMENT + 12)       # no replica has it


@pytest.fixture
def disk(tmp_path):
    """A log with damage of every kind, and beside its disk a replica that has all but one batch of it."""
    first, replica = (put(tmp_path / f"{name}/orders-0", undamaged(), EPOCHS) for name in ("disk/broker", "other"))
    (first.parent / "recovery-point-offset-checkpoint").write_text(f"0\n1\norders 0 {5 * SEGMENT}\n")
    flip(log_of(first, 0), 3 * SIZE + 70)
    flip(log_of(first, SEGMENT), 70)
    for directory in (first, replica):
        flip(log_of(directory, SEGMENT), 3 * SIZE + 70)
    log_of(first, 2 * SEGMENT).unlink()
    log_of(first, 3 * SEGMENT).write_bytes(log_of(replica, 3 * SEGMENT).read_bytes()[: 5 * SIZE + 20])
    log_of(first, 4 * SEGMENT).write_bytes(log_of(replica, 4 * SEGMENT).read_bytes()[: 5 * SIZE])
    return first.parent.parent, replica


EXPECTED = [raw for batches in undamaged().values() for raw in batches if raw != LOST]


def refilled(disk, replica, fs=None, *, is_backed_up=False):
    backup = disk / "kept" if is_backed_up else None
    return recover_with(
        disk / "broker/orders-0", mode="quarantine", apply=True, sources=[replica], config=CONFIG, fs=fs, backup=backup
    )


def check_nothing_lost(disk, intact):
    """Whatever a run that ended early left: each batch that was intact is in a .log."""
    raw = b"".join(log.read_bytes() for log in sorted((disk / "broker/orders-0").glob("*.log")))
    assert all(batch in raw for batch in intact)


def check_complete(disk, damaged, *, is_backed_up):
    directory = disk / "broker/orders-0"
    assert content(directory) == EXPECTED
    assert [one.code for one in verify(directory, config=CONFIG).findings] == ["quarantined"]
    assert not [str(path) for path in disk.rglob("*") if path.suffix in (".tmp", ".swap", ".cleaned")]
    if is_backed_up:
        kept = {path.name: path.read_bytes() for path in (disk / "kept/orders-0").iterdir()}
        assert kept == {name: raw for name, raw in damaged.items() if name in kept}
        assert len(kept) == 4


def logs_of(disk):
    return {path.name: path.read_bytes() for path in (disk / "broker/orders-0").glob("*.log")}


def intact_in(damaged):
    raw = b"".join(damaged[name] for name in sorted(damaged))
    return [batch for batch in EXPECTED if batch in raw]


@pytest.mark.parametrize("is_backed_up", [False, True])
def test_a_power_cut_at_any_step_loses_nothing_and_the_next_run_completes(disk, is_backed_up):
    disk, replica = disk
    damaged = logs_of(disk)
    recording = RecordingFs(disk)
    refilled(disk, replica, recording, is_backed_up=is_backed_up)
    check_complete(disk, damaged, is_backed_up=is_backed_up)
    states = 0
    for state in recording.crash_states(limit=2000 if FULL else 60, seed=1, shuffled=not FULL):
        with state.materialise() as crashed:
            check_nothing_lost(crashed, intact_in(damaged))
            refilled(crashed, replica, is_backed_up=is_backed_up)
            check_complete(crashed, damaged, is_backed_up=is_backed_up)
        states += 1
    assert states > 30


class InterruptedFs(FailingFs):
    """Is interrupted by ^C where the other one is refused a change."""

    def _refuse(self, word, path):
        return KeyboardInterrupt()


def after_runs(disk, tmp_path, how, run, *, more_steps_than):
    """Copies of the disk, each after `run(copy, fs)` ended at another step of it, and one after a whole run.

    Killed: from that step on nothing is done any more. Full disk: the same, after half of a write. Interrupted: only
    what cleans up is done.
    """
    for fail_at in itertools.count(0, 1 if FULL else 9):
        copy = shutil.copytree(disk, tmp_path / f"run{fail_at}")
        make = InterruptedFs if how == "interrupted" else FailingFs
        fs = make(
            OsFileSystem(), fail_at=fail_at, error=errno.ENOSPC, once=how == "interrupted", short=how == "full disk"
        )
        with contextlib.suppress(StorageError, KeyboardInterrupt):
            run(copy, fs)
        yield copy
        shutil.rmtree(copy)
        if not fs.failed:
            break
    assert fail_at > more_steps_than


@pytest.mark.parametrize("is_backed_up", [False, True])
@pytest.mark.parametrize("how", ["full disk", "killed", "interrupted"])
def test_a_run_that_ends_at_any_step_loses_nothing_and_the_next_run_completes(disk, tmp_path, how, is_backed_up):
    disk, replica = disk
    damaged = logs_of(disk)
    for copy in after_runs(disk, tmp_path, how, lambda copy, fs: refilled(copy, replica, fs, is_backed_up=is_backed_up),
                           more_steps_than=40):
        check_nothing_lost(copy, intact_in(damaged))
        refilled(copy, replica, is_backed_up=is_backed_up)
        check_complete(copy, damaged, is_backed_up=is_backed_up)


# --- the same into a copy ------------------------------------------------------------------------


def copied(disk, replica, fs=None):
    return recover_with(
        disk / "broker/orders-0", disk / "new/orders-0", mode="quarantine", sources=[replica], config=CONFIG, fs=fs
    )


def check_copy(disk, replica, damaged):
    """Whatever a run that ended early left: the source as it was, and a whole copy or none, which the next run makes.
    Returns whether there was one."""
    assert logs_of(disk) == damaged
    target = disk / "new/orders-0"
    was_there = target.exists()
    if not was_there:
        copied(disk, replica)
    assert logs_of(disk) == damaged
    assert content(target) == EXPECTED
    assert [one.code for one in verify(target, config=CONFIG).findings] == ["quarantined"]
    assert {path.name for path in target.parent.iterdir()} - {".lock"} == {"orders-0"}
    assert {path.name for path in disk.iterdir()} == {"broker", "new"}      # no staging
    return was_there


def test_a_power_cut_at_any_step_of_a_copy_leaves_a_whole_one_or_none(disk):
    disk, replica = disk
    damaged = logs_of(disk)
    recording = RecordingFs(disk)
    copied(disk, replica, recording)
    check_copy(disk, replica, damaged)
    found = []
    for state in recording.crash_states(limit=2000 if FULL else 40, seed=2, shuffled=not FULL):
        with state.materialise() as crashed:
            found.append(check_copy(crashed, replica, damaged))
    assert found.count(False) > 20


@pytest.mark.parametrize("how", ["full disk", "killed", "interrupted"])
def test_a_copy_that_ends_at_any_step_is_whole_or_not_there(disk, tmp_path, how):
    disk, replica = disk
    damaged = logs_of(disk)
    for copy in after_runs(disk, tmp_path, how, lambda copy, fs: copied(copy, replica, fs), more_steps_than=30):
        check_copy(copy, replica, damaged)
