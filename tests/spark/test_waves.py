"""Partitions that are converted and published in waves, one after the other."""
import errno

import pytest

from seglog.errors import InvalidArgumentError, LogLockedError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.fs.refusals import storage_error
from seglog.spark import convert_topics, finalize_topics, rollback_topics
from seglog.spark.journal import COMMITTED, CONVERTING, Journal
from seglog.spark.plan import SEGMENT_BYTES, WAVE_TASKS, PartitionSize, waves
from seglog.stores.store import LocalStore
from support.conversion import UnsyncedFs
from support.dying_driver import by_cli, content
from support.spark_double import SparkDouble

PARTITIONS = ["orders-0", "orders-1", "payments-0"]


@pytest.fixture
def convert(log_dir, tmp_path):
    """Convert to "new", one task for each segment, a wave for each partition."""

    def run(*, sabotage=None, fs=None, wave_bytes=1, **options):
        run.spark = SparkDouble(sabotage) if sabotage else SparkDouble()
        return convert_topics(
            run.spark, log_dir, run.target, task_bytes=1, wave_bytes=wave_bytes, fs=fs or UnsyncedFs(), **options
        )

    run.target = tmp_path / "new"
    return run


def made(target):
    return sorted(path.name for path in target.iterdir() if path.is_dir())


def state_of(target):
    return Journal.read(LocalStore(UnsyncedFs()), str(target)).state


# --- which partitions are in one -------------------------------------------------------------


def sizes(*segments, of=64 << 20):
    return [PartitionSize(f"t-{n}", count * of, count) for n, count in enumerate(segments)]


def names_of(found):
    return [[int(one.partition[2:]) for one in wave] for wave in found]


def test_a_small_source_is_one_wave():
    assert names_of(waves(sizes(1, 1, 1), 64 << 20, lanes=4)) == [[0, 1, 2]]
    assert names_of(waves(sizes(WAVE_TASKS * 4, WAVE_TASKS * 4 - 1), 64 << 20, lanes=4)) == [[0, 1]]
    assert waves([], 64 << 20, lanes=4) == []


def test_each_wave_of_a_large_source_keeps_all_cores_busy():
    found = waves(sizes(*[10] * 100), 64 << 20, lanes=4)
    tasks = [sum(one.segments for one in wave) for wave in found]
    assert len(found) == 1000 // (WAVE_TASKS * 4)
    assert min(tasks) >= WAVE_TASKS * 4 - 10
    assert [n for wave in names_of(found) for n in wave] == list(range(100))


def test_a_segment_is_one_task_however_large_and_small_ones_share_one():
    large = waves(sizes(*[1] * 128, of=1 << 30), 64 << 20, lanes=4)
    assert len(large) == 2
    small = sizes(*[1] * (WAVE_TASKS * 4 * (64 << 20) // SEGMENT_BYTES), of=1)
    assert len(waves(small, 64 << 20, lanes=4)) == 1
    assert len(waves(small, 32 << 20, lanes=4)) == 2


def test_a_wave_has_at_most_so_many_bytes_or_one_partition():
    assert names_of(waves(sizes(3, 3, 4, 12, 1, 9, 1, of=1), 1, 1, wave_bytes=10)) == [[0, 1, 2], [3], [4, 5], [6]]


# --- what is there when ----------------------------------------------------------------------


def test_a_partition_is_published_before_the_next_wave_begins(convert, log_dir, tmp_path):
    seen = []

    def look(job, number, run):
        if number == 0:
            seen.append((made(convert.target), state_of(convert.target)))
        return run()

    report = convert(sabotage=look)
    assert [published for published, _ in seen[::3]] == [[], PARTITIONS[:1], PARTITIONS[:2]]
    assert {state for _, state in seen} == {CONVERTING}
    assert report.is_whole
    assert report.tasks == 6
    assert content(convert.target) == by_cli(log_dir, tmp_path / "cli")


def test_jobs_and_words_of_a_small_source_are_those_of_one_wave(convert):
    told = []
    convert(wave_bytes=0, progress=told.append)
    assert convert.spark.jobs == [6, 6, 3]
    assert not any("wave" in step.what or step.partitions for step in told)


def test_the_progress_tells_how_many_partitions_are_published(convert):
    told = []
    convert(progress=told.append)
    assert [(step.what, step.published, step.partitions) for step in told if step.what.startswith("publish")] == [
        ("publish wave 1 of 3", 1, 3), ("publish wave 2 of 3", 2, 3), ("publish wave 3 of 3", 3, 3)
    ]
    (second,) = {step.what for step in told if step.what.startswith("verify") and "wave 2" in step.what}
    assert second.endswith("bytes, wave 2 of 3")
    assert {step.published for step in told if step.what == second} == {1}


# --- faults ----------------------------------------------------------------------------------


class FillingFs(UnsyncedFs):
    """Its disk is full once a partition is published. Tasks share it."""

    is_full = False

    def mkdir(self, path):
        if FillingFs.is_full and "/attempts/" in str(path):
            raise storage_error(OSError(errno.ENOSPC, "No space left on device"), "make", path)
        super().mkdir(path)

    def rename(self, source, target):
        super().rename(source, target)
        FillingFs.is_full |= "/staged/" in str(source)


def test_a_disk_that_is_full_in_the_second_wave_leaves_the_first_published(convert, log_dir, tmp_path):
    FillingFs.is_full = False
    with pytest.raises(StorageError, match=r"wave 2 of 3.*: no space is left on the device"):
        convert(fs=FillingFs())
    assert FillingFs.is_full
    whole = by_cli(log_dir, tmp_path / "cli")
    assert made(convert.target) == PARTITIONS[:1]
    assert {name: whole[name] for name in content(convert.target) if "/" in name} == {
        name: data for name, data in content(convert.target).items() if "/" in name
    }
    with pytest.raises(InvalidArgumentError, match="is converting, not committed"):
        finalize_topics(convert.target, fs=UnsyncedFs())
    assert [row.status for row in convert().rows] == ["skipped", "converted", "converted"]
    assert content(convert.target) == whole


def test_a_wave_that_fails_stops_no_other(convert, log_dir):
    log = sorted((log_dir / "orders-1").glob("*.log"))[0]
    raw = log.read_bytes()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    report = convert()
    assert [row.partition for row in report.failed] == ["orders-1"]
    assert made(convert.target) == ["orders-0", "payments-0"]
    done = finalize_topics(convert.target, fs=UnsyncedFs())
    assert (done.partitions, list(done.failed)) == (["orders-0", "payments-0"], ["orders-1"])


def test_a_last_wave_that_fails_leaves_a_conversion_that_can_be_finalized(convert, log_dir):
    for log in sorted((log_dir / "payments-0").glob("*.log")):
        log.write_bytes(b"\0" * 100)
    assert [row.partition for row in convert().failed] == ["payments-0"]
    assert finalize_topics(convert.target, fs=UnsyncedFs()).partitions == PARTITIONS[:2]


def test_a_rollback_undoes_every_wave(convert, tmp_path):
    convert()
    assert rollback_topics(convert.target, fs=UnsyncedFs()) == PARTITIONS
    assert {path.name for path in tmp_path.iterdir()} == {"old"}       # the conversion had made the target


def test_a_writer_that_starts_right_after_the_last_wave_is_no_error(convert, monkeypatch):
    from seglog.spark import job

    publish, held = job.publish, []

    def published(*arguments, **options):
        publish(*arguments, **options)
        held.append(lock_log_dir(OsFileSystem(), convert.target))

    monkeypatch.setattr(job, "publish", published)
    assert convert(wave_bytes=0).is_whole
    held.pop().release()
    assert state_of(convert.target) == COMMITTED


def test_a_conversion_that_was_ended_between_two_waves_stops(convert, monkeypatch):
    from seglog.spark import job

    publish = job.publish

    def published(*arguments, **options):
        publish(*arguments, **options)
        rollback_topics(convert.target, fs=UnsyncedFs())

    monkeypatch.setattr(job, "publish", published)
    with pytest.raises(LogLockedError, match="another run has ended this conversion"):
        convert()
    assert not convert.target.exists()
    assert not convert.target.with_name("new.seglog-spark").exists()


def test_partitions_that_were_announced_are_published_before_the_source_is_planned_again(convert, log_dir, tmp_path):
    """A run died while it published; of the second partition the source has changed since."""
    whole = by_cli(log_dir, tmp_path / "cli")

    class Stops(UnsyncedFs):
        renamed = 0

        def rename(self, source, target):
            Stops.renamed += "/staged/" in str(source)
            if Stops.renamed == 2:
                raise KeyboardInterrupt
            super().rename(source, target)

        def __reduce__(self):
            return UnsyncedFs, ()

    with pytest.raises(KeyboardInterrupt):
        convert(wave_bytes=0, fs=Stops())
    assert made(convert.target) == PARTITIONS[:1]
    # The first segment is another one, which can be converted; the second one cannot.
    first, second = sorted((log_dir / "orders-1").glob("*.log"))
    first.write_bytes(b"")
    raw = second.read_bytes()
    second.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    report = convert(wave_bytes=0)
    assert [row.status for row in report.rows] == ["skipped", "failed", "skipped"]
    assert "changed since the partition was published" in report.failed[0].what
    assert content(convert.target) == whole
