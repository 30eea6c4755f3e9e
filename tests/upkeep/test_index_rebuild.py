"""A rebuilt index is the one that real recovery writes, and the one before is kept."""
import contextlib
import errno
import itertools
import json
import shutil
from pathlib import Path

import pytest

from seglog.errors import CorruptRecordError, InvalidArgumentError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.segment.transaction_index import AbortedTransaction
from seglog.upkeep import index_rebuild
from seglog.upkeep.index_rebuild import RebuiltIndex, RefusedSegment, rebuild_indexes
from support.faultfs import FailingFs, RecordingFs
from support.golden import golden_cases, unpack

# Recovery keeps a batch of magic 7, taken for v2, and one with an offset below its segment's base. Here
# both are damage, and no index is made of them.
NOT_SEEN_BY_KAFKA = ("--magic-7", "--offset-back")


def recovered_cases():
    """(recovered directory, configuration) of every damaged golden partition, after Kafka 3.9.1's unclean open."""
    for case in sorted((unpack("kafka") / "corrupt").iterdir()):
        if (case / "recovered-3.9.1").is_dir():
            yield case / "recovered-3.9.1", config_of(case)


def config_of(case):
    settings = json.loads((case / "case.json").read_text())["config"]
    return {key: settings[key] for key in ("index.interval.bytes", "segment.index.bytes") if key in settings}


def copied(directory, tmp_path, name="orders-0"):
    return Path(shutil.copytree(directory, tmp_path / name))


def rebuild(path, **options):
    return list(rebuild_indexes(path, **options))


@pytest.fixture
def partition(golden_kafka, tmp_path):
    return copied(golden_kafka / "cases/v1-none-ct-k391/v1-none-ct-k391-0", tmp_path)


def test_a_rebuild_gives_the_bytes_of_real_recovery_in_every_damaged_case(tmp_path):
    compared = 0
    for directory, config in recovered_cases():
        if directory.parent.name.endswith(NOT_SEEN_BY_KAFKA):
            continue
        copy = copied(directory, tmp_path, directory.parent.name)
        for step in rebuild(copy, config=config):
            assert isinstance(step, RebuiltIndex)
            assert not step.changed, step
            compared += 1
    assert compared > 200


def test_an_index_written_batch_by_batch_is_rebuilt_to_the_same_bytes():
    """Of 3.9.1 and 4.1.1, where the log was opened once (a reopened one counts its interval anew)."""
    for case in golden_cases():
        if case.name.endswith("k282") or case.name.startswith(("crash-", "mixed-", "conv-", "compact-")):
            continue
        directory = case / f"{case.name}-0"
        before = {p.name: p.read_bytes() for p in directory.iterdir()}
        for step in rebuild(directory, config=config_of(case)):
            assert not step.changed, step
        assert {p.name: p.read_bytes() for p in directory.iterdir()} == before


def test_what_was_replaced_is_kept_only_if_asked(partition):
    index = partition / "00000000000000000000.index"
    before = index.read_bytes()
    for is_kept in (False, True):
        index.write_bytes(before + bytes(800))      # the zero tail of a crashed broker
        rebuilt = rebuild(partition, config={"index.interval.bytes": 256}, keep_replaced=is_kept)
        step, = (s for s in rebuilt if s.file == str(index))
        assert (step.changed, step.size_before, step.size_bytes) == (True, len(before) + 800, len(before))
        assert index.read_bytes() == before
        assert step.backup == (f"{index}.bak" if is_kept else None)
        assert [p.name for p in partition.iterdir() if p.suffix in (".bak", ".tmp")] == [f"{index.name}.bak"] * is_kept
    assert Path(step.backup).read_bytes() == before + bytes(800)


def test_a_second_rebuild_writes_nothing(partition):
    rebuild(partition)
    before = {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in partition.iterdir()}
    assert not any(step.changed for step in rebuild(partition))
    assert {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in partition.iterdir()} == before


def test_a_missing_index_is_written_without_a_backup(partition):
    index = partition / "00000000000000000000.timeindex"
    before = index.read_bytes()
    index.unlink()
    step = next(s for s in rebuild(partition, config={"index.interval.bytes": 256}) if s.file == str(index))
    assert (step.size_before, step.backup, step.changed) == (None, None, True)
    assert index.read_bytes() == before


def test_the_log_is_never_changed(partition):
    before = {p: p.read_bytes() for p in partition.glob("*.log")}
    rebuild(partition, config={"index.interval.bytes": 64})
    assert {p: p.read_bytes() for p in partition.glob("*.log")} == before


def test_a_damaged_segment_is_refused_and_the_others_are_done(partition):
    logs = sorted(partition.glob("*.log"))
    assert len(logs) > 1
    data = bytearray(logs[0].read_bytes())
    data[30] ^= 1
    logs[0].write_bytes(data)
    index = logs[0].with_suffix(".index").read_bytes()
    first, *others = rebuild(partition)
    assert isinstance(first, RefusedSegment)
    assert first.file == str(logs[0])
    assert isinstance(first.error, CorruptRecordError)
    assert logs[0].with_suffix(".index").read_bytes() == index
    assert len(others) == 2 * (len(logs) - 1)


def test_one_segment_alone(partition):
    log = sorted(partition.glob("*.log"))[1]
    assert {Path(s.file).stem for s in rebuild(partition, only=[log.name])} == {log.stem}


def test_an_index_that_a_broker_would_refuse_is_not_written(partition):
    with pytest.raises(InvalidArgumentError, match="full at 2 offset entries"):
        rebuild(partition, config={"index.interval.bytes": 64, "segment.index.bytes": 16})


# --- aborted transactions ----------------------------------------------------------------


@pytest.fixture
def transactions(golden_kafka, tmp_path):
    return copied(golden_kafka / "cases/txn-v2-k411/txn-v2-k411-0", tmp_path)


@pytest.mark.parametrize("damage", ["missing", "torn", "short", "newer version"])
def test_a_transaction_index_that_misses_something_is_written_anew(transactions, damage):
    index = transactions / "00000000000000000000.txnindex"
    before = index.read_bytes()
    if damage == "missing":
        index.unlink()
    else:
        index.write_bytes({"torn": before[:-1], "short": before[:-34], "newer version": b"\0\1" + before[2:]}[damage])
    step, = (s for s in rebuild(transactions) if s.file == str(index))
    assert (step.entries, step.changed) == (len(before) // 34, True)
    assert index.read_bytes() == before


def test_a_transaction_index_that_lists_more_is_left_alone(transactions):
    """As after compaction: what it lists may be gone from the log."""
    index = transactions / "00000000000000000000.txnindex"
    more = index.read_bytes() + AbortedTransaction(7, 60, 61, 60).to_bytes()
    index.write_bytes(more)
    rebuild(transactions)
    assert index.read_bytes() == more


# --- crashes -----------------------------------------------------------------------------


def test_after_a_crash_every_index_is_the_old_one_or_the_new_one(partition, tmp_path):
    names = [p.name for p in partition.iterdir()]
    old = {name: (partition / name).read_bytes() for name in names}
    disk = tmp_path / "disk"
    shutil.copytree(partition, disk / "orders-0")
    recording = RecordingFs(disk)
    config = {"index.interval.bytes": 700}
    list(rebuild_indexes(disk / "orders-0", config=config, fs=recording))
    new = {name: (disk / "orders-0" / name).read_bytes() for name in names}
    assert new != old
    states = 0
    for state in recording.crash_states(limit=2000, seed=1):
        with state.materialise() as crashed:
            found = {p.name: p.read_bytes() for p in (crashed / "orders-0").iterdir()}
            for name in names:
                assert found[name] in (old[name], new[name]), state.story()
            # Run again, it ends where it would have without the crash.
            list(rebuild_indexes(crashed / "orders-0", config=config))
            assert {name: (crashed / "orders-0" / name).read_bytes() for name in names} == new, state.story()
        states += 1
    assert states > 20


def test_segments_share_the_wait_for_the_disk(partition):
    fs = FailingFs(OsFileSystem())
    changed = sum(step.changed for step in rebuild(partition, config={"index.interval.bytes": 700}, fs=fs))
    assert changed > 3
    words = [call.split()[0] for call in fs.calls if str(partition) in call and "/." not in call]
    assert [word for word in words if word in ("sync_file", "replace", "sync_directory")] == (
        ["sync_file"] * changed + ["replace"] * changed + ["sync_directory"]
    )


def test_more_files_than_one_wait_covers_are_written(partition, monkeypatch):
    monkeypatch.setattr(index_rebuild, "_FILES_MAX", 2)
    config = {"index.interval.bytes": 700}
    planned = rebuild(partition, config=config, dry_run=True)
    assert rebuild(partition, config=config) == planned
    assert not any(step.changed for step in rebuild(partition, config=config))


def test_a_rebuild_that_fails_leaves_no_scratch_and_the_next_completes_it(partition, tmp_path):
    config = {"index.interval.bytes": 700}
    for fail_at in itertools.count():
        copy = copied(partition, tmp_path, f"orders-{fail_at + 1}")
        fs = FailingFs(OsFileSystem(), fail_at=fail_at, error=errno.ENOSPC, once=True)
        with contextlib.suppress(StorageError):
            rebuild(copy, config=config, fs=fs)
        assert not [p.name for p in copy.iterdir() if p.suffix == ".tmp"], fs.calls[fail_at]
        rebuild(copy, config=config)
        assert not any(step.changed for step in rebuild(copy, config=config))
        if not fs.failed:
            break
    assert fail_at > 10


# --- the rest ----------------------------------------------------------------------------


def test_progress_reaches_the_end(partition):
    seen = []
    rebuild(partition, progress=lambda done, total: seen.append((done, total)))
    total = sum(p.stat().st_size for p in partition.glob("*.log"))
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
