"""What a conversion of whole topics makes, in the face of whatever becomes of its tasks and of its driver."""
import errno
import json
import os
import shutil
import threading

import pytest

import seglog
from seglog.conversion import segment
from seglog.conversion.directory import plan_conversion
from seglog.conversion.losses import LOSS_KINDS
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.errors import (
    InvalidArgumentError,
    LogLockedError,
    NotALogError,
    StorageError,
)
from seglog.format.conversion_profile import TO_TAGGED
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import lock_log_dir
from seglog.spark import convert_topics, finalize_topics, rollback_topics, segment_task
from seglog.verification.verify import verify
from support.conversion import UnsyncedFs, check_kept_settings, log_with_kept_settings, tree
from support.dying_driver import Died, MortalFs, by_cli, content, steps_of_a_driver, whole_or_absent
from support.spark_double import SparkDouble

EVERY_STATE = bool(os.environ.get("SEGLOG_TORTURE"))


def spark_convert(source, target, *, sabotage=None, task_bytes=1, **options):
    """One small task for each segment, and no waiting for the disk."""
    spark = SparkDouble(sabotage) if sabotage else SparkDouble()
    return convert_topics(spark, source, target, task_bytes=task_bytes, fs=UnsyncedFs(), **options)


def partitions(log_dir):
    """{partition/file: bytes} without what the log dir says of itself."""
    return {name: data for name, data in content(log_dir).items() if "/" in name}


def nothing_else(directory, *names):
    """Nothing stands beside the log dirs."""
    assert {path.name for path in directory.iterdir()} == {"old", *names}


# --- what comes out --------------------------------------------------------------------------


def test_the_result_is_that_of_one_machine(log_dir, tmp_path):
    before = tree(log_dir)
    report = spark_convert(log_dir, tmp_path / "new")
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")
    assert tree(log_dir) == before
    assert report.is_whole
    assert [row.partition for row in report.rows] == ["orders-0", "orders-1", "payments-0"]
    for row in report.rows:
        assert row.status == "converted"
        assert not verify(tmp_path / "new" / row.partition).findings
        assert row.segments == len(list((log_dir / row.partition).glob("*.log")))
        assert row.bytes_in == sum(p.stat().st_size for p in (log_dir / row.partition).glob("*.log"))
        assert row.bytes_out == sum(p.stat().st_size for p in (tmp_path / "new" / row.partition).glob("*.log"))
        assert row.records == Proof.read(tmp_path / "new" / row.partition / PROOF_FILE).records
        assert (row.skipped, row.retried) == (0, 0)
    assert len({row.digest for row in report.rows}) == 3


@pytest.mark.parametrize("options", [{"to": 1, "allow_lossy": LOSS_KINDS, "aborted": "drop", "codec": "lz4"},
                                     {"to": 0, "allow_lossy": LOSS_KINDS, "aborted": "keep", "codec": "none"},
                                     {"repack_bytes": 4096, "codec": "lz4"}, {"delete_horizon_ms": 1_800_000_060_000}],
                         ids=["to v1", "to v0", "repacked", "horizon"])
def test_options_mean_the_same_as_on_one_machine(log_dir, tmp_path, options):
    config = {"index.interval.bytes": 256, "segment.bytes": 4096}
    assert spark_convert(log_dir, tmp_path / "new", config=config, verify="full", **options).is_whole
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli", config=config, **options)


@pytest.mark.parametrize("layout", [{"task_bytes": 1}, {"task_bytes": 3000}, {"task_bytes": 1 << 30},
                                    {"max_concurrent": 2}, {"throttle_bytes_per_s": 10**9}], ids=str)
def test_how_the_work_is_cut_changes_nothing(log_dir, tmp_path, layout):
    spark_convert(log_dir, tmp_path / "new", **layout)
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


def test_to_tagged_and_back_is_that_of_one_machine(log_dir, tmp_path):
    options = {"allow_lossy": LOSS_KINDS, "aborted": "keep"}
    made = by_cli(log_dir, tmp_path / "by cli", to=TO_TAGGED, **options)
    assert {os.path.splitext(name)[1] for name in made} >= {".tlog", ".tindex"}
    spark_convert(log_dir, tmp_path / "new", to="tagged", verify="full", **options)
    finalize_topics(tmp_path / "new")
    assert content(tmp_path / "new") == made
    back = by_cli(tmp_path / "new", tmp_path / "back by cli")
    report = spark_convert(tmp_path / "new", tmp_path / "back", to=2, verify="full")
    assert {row.status for row in report.rows} == {"converted"}
    finalize_topics(tmp_path / "back")
    assert content(tmp_path / "back") == back
    tagged = next(path for path in (tmp_path / "new").iterdir() if path.is_dir())
    (tagged / ".seglog.config").unlink()
    report = spark_convert(tmp_path / "new", tmp_path / "again", to=2)
    (failed,) = [row for row in report.rows if row.status == "failed"]
    assert (failed.partition, failed.error) == (tagged.name, "not_a_log")


def test_settings_of_a_log_come_along_but_for_its_format(tmp_path):
    log_with_kept_settings(tmp_path / "old" / "orders-0")
    assert spark_convert(tmp_path / "old", tmp_path / "new").is_whole
    check_kept_settings(tmp_path / "new" / "orders-0")


def test_positions_of_named_readers_come_along(tmp_path):
    log_with_kept_settings(tmp_path / "old" / "orders-0")
    with seglog.open(tmp_path / "old" / "orders-0", fsync="never") as log, log.cursor("reader") as cursor:
        cursor.commit(3)
    assert spark_convert(tmp_path / "old", tmp_path / "new").is_whole
    with seglog.open(tmp_path / "new" / "orders-0", fsync="never") as log, log.cursor("reader") as cursor:
        assert cursor.position == 3


def test_topics_are_chosen_by_patterns(log_dir, tmp_path):
    report = spark_convert(log_dir, tmp_path / "new", topics=["pay*"])
    assert [row.partition for row in report.rows] == ["payments-0"]
    with pytest.raises(InvalidArgumentError, match="nobody"):
        spark_convert(log_dir, tmp_path / "other", topics=["nobody"])


def test_the_active_segment_stays_behind_on_request(log_dir, tmp_path):
    shutil.rmtree(log_dir / "payments-0")
    spark_convert(log_dir, tmp_path / "new", skip_active=True, topics=["orders"])
    for name in ("orders-0", "orders-1"):
        logs = sorted(path.name for path in (log_dir / name).glob("*.log"))
        assert sorted(path.name for path in (tmp_path / "new" / name).glob("*.log")) == logs[:-1]
        assert not verify(tmp_path / "new" / name).findings


def test_finalizing_leaves_the_result_and_nothing_else(log_dir, tmp_path):
    spark_convert(log_dir, tmp_path / "new")
    nothing_else(tmp_path, "new", "new.seglog-spark")
    assert finalize_topics(tmp_path / "new").partitions == ["orders-0", "orders-1", "payments-0"]
    nothing_else(tmp_path, "new")
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")
    with pytest.raises(InvalidArgumentError, match="no conversion"):
        rollback_topics(tmp_path / "new")


def test_a_rollback_leaves_nothing(log_dir, tmp_path):
    spark_convert(log_dir, tmp_path / "new")
    assert rollback_topics(tmp_path / "new") == ["orders-0", "orders-1", "payments-0"]
    nothing_else(tmp_path)


def test_a_rollback_leaves_a_target_that_was_there_before(log_dir, tmp_path):
    (tmp_path / "new").mkdir()
    spark_convert(log_dir, tmp_path / "new")
    rollback_topics(tmp_path / "new")
    assert partitions(tmp_path / "new") == {}
    nothing_else(tmp_path, "new")


@pytest.mark.parametrize("name", ["notes.txt", "payments-7", "bootstrap.checkpoint"])
def test_a_rollback_leaves_what_others_put_into_the_target(log_dir, tmp_path, name):
    spark_convert(log_dir, tmp_path / "new", topics=["orders"])
    (tmp_path / "new" / name).mkdir()
    rollback_topics(tmp_path / "new")
    assert (tmp_path / "new" / name).is_dir()
    nothing_else(tmp_path, "new")


def test_a_run_that_goes_on_still_knows_that_the_target_was_made(log_dir, tmp_path):
    spark_convert(log_dir, tmp_path / "new", topics=["orders"])
    spark_convert(log_dir, tmp_path / "new")
    rollback_topics(tmp_path / "new")
    nothing_else(tmp_path)


def test_records_that_came_later_are_not_rolled_back(log_dir, tmp_path):
    spark_convert(log_dir, tmp_path / "new")
    with open(sorted((tmp_path / "new/orders-1").glob("*.log"))[-1], "ab") as log:
        log.write(b"a broker wrote on")
    with pytest.raises(InvalidArgumentError, match="has changed since it was published"):
        rollback_topics(tmp_path / "new")
    assert len(list((tmp_path / "new").glob("*-[0-9]"))) == 3


# --- before anything is made -----------------------------------------------------------------


def test_a_dry_run_writes_nothing(log_dir, tmp_path):
    before = tree(tmp_path)
    report = spark_convert(log_dir, tmp_path / "new", dry_run=True)
    assert tree(tmp_path) == before
    nothing_else(tmp_path)
    assert {row.status for row in report.rows} == {"planned"}
    made = spark_convert(log_dir, tmp_path / "new")
    assert report.total.bytes_out == pytest.approx(made.total.bytes_out, rel=0.2)
    assert report.total.bytes_in == made.total.bytes_in


def test_a_dry_run_counts_losses(log_dir, tmp_path):
    report = spark_convert(log_dir, tmp_path / "new", to=1, codec="none", dry_run=True)
    for row in report.rows:
        assert row.losses == plan_conversion(log_dir / row.partition, to=1, codec="none").losses
    assert any(row.losses.undecided_records for row in report.rows)


def test_losses_need_leave(log_dir, tmp_path):
    report = spark_convert(log_dir, tmp_path / "new", to=1, codec="none")
    failed = {row.partition: row.error for row in report.failed}
    assert failed["payments-0"] == "unsupported_for_message_format"
    assert not (tmp_path / "new/payments-0").exists()
    rollback_topics(tmp_path / "new")
    report = spark_convert(log_dir, tmp_path / "new", to=1, codec="none", allow_lossy=LOSS_KINDS)
    assert [(row.partition, row.error) for row in report.failed] == [("payments-0", "invalid_argument")]


def test_a_locked_log_dir_is_refused(log_dir, tmp_path):
    (tmp_path / "new").mkdir()
    for locked in (log_dir, tmp_path / "new"):
        with lock_log_dir(OsFileSystem(), locked), pytest.raises(LogLockedError):
            spark_convert(log_dir, tmp_path / "new")
    assert partitions(tmp_path / "new") == {}


def test_paths_that_cannot_be_meant_are_refused(log_dir, tmp_path):
    for target in (log_dir, log_dir / "new", tmp_path, tmp_path / "orders-0"):
        with pytest.raises(InvalidArgumentError):
            spark_convert(log_dir, target)
    with pytest.raises(StorageError, match="cannot list: no such file or directory"):
        spark_convert(tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(NotALogError, match="a file, not a log dir"):
        spark_convert(next(log_dir.glob("*/*.log")), tmp_path / "new")
    (tmp_path / "new/orders-1").mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match="already"):
        spark_convert(log_dir, tmp_path / "new")
    nothing_else(tmp_path, "new")


def test_a_target_that_no_rename_reaches_is_refused_before_the_work(log_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("seglog.spark.target._device", lambda path: path.endswith("new"))
    with pytest.raises(InvalidArgumentError, match="a separate file system"):
        spark_convert(log_dir, tmp_path / "new")
    nothing_else(tmp_path, "new")


def test_another_conversion_into_the_same_target_is_refused(log_dir, tmp_path):
    spark_convert(log_dir, tmp_path / "new", topics=["orders"])
    with pytest.raises(InvalidArgumentError, match="codec=None"):
        spark_convert(log_dir, tmp_path / "new", codec="lz4")
    # The same options and more topics are the same conversion.
    report = spark_convert(log_dir, tmp_path / "new")
    assert [row.status for row in report.rows] == ["skipped", "skipped", "converted"]
    assert [row.what for row in report.rows] == ["converted by an earlier run"] * 2 + [None]
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


# --- partitions that fail --------------------------------------------------------------------


def damage(log_dir):
    log = sorted((log_dir / "orders-1").glob("*.log"))[0]
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 1
    log.write_bytes(raw)
    return log


def test_a_corrupt_batch_stops_its_partition_alone(log_dir, tmp_path):
    log = damage(log_dir)
    report = spark_convert(log_dir, tmp_path / "new")
    assert not report.is_whole
    (failed,) = report.failed
    assert (failed.partition, failed.error) == ("orders-1", "corrupt_record")
    assert str(log) in failed.what
    assert {path.name for path in (tmp_path / "new").iterdir() if path.is_dir()} == {"orders-0", "payments-0"}


def test_a_partition_that_was_mended_is_converted_by_the_next_run(log_dir, tmp_path):
    whole = shutil.copytree(log_dir, tmp_path / "whole")
    log = damage(log_dir)
    spark_convert(log_dir, tmp_path / "new")
    log.write_bytes((whole / "orders-1" / log.name).read_bytes())
    report = spark_convert(log_dir, tmp_path / "new")
    assert [row.status for row in report.rows] == ["skipped", "converted", "skipped"]
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


def append_to(log):
    with open(log, "ab") as file:
        file.write(b"\0")


def test_a_source_that_changes_meanwhile_is_not_published(log_dir, tmp_path):
    first = sorted((log_dir / "orders-0").glob("*.log"))[0]

    def grow(job, number, run):
        out = run()
        if (job, number) == (0, 0):
            append_to(first)
        return out

    report = spark_convert(log_dir, tmp_path / "new", sabotage=grow)
    assert [(row.partition, row.error) for row in report.failed] == [("orders-0", "invalid_argument")]
    assert "changed since" in report.failed[0].what
    assert not (tmp_path / "new/orders-0").exists()


def test_a_segment_that_retention_takes_away_meanwhile_stops_its_partition_alone(log_dir, tmp_path):
    first = sorted((log_dir / "orders-0").glob("*.log"))[0]

    def retain(job, number, run):
        if (job, number) == (0, 0):
            first.unlink()
        return run()

    report = spark_convert(log_dir, tmp_path / "new", sabotage=retain)
    assert [row.partition for row in report.failed] == ["orders-0"]
    assert {path.name for path in (tmp_path / "new").iterdir() if path.is_dir()} == {"orders-1", "payments-0"}


def test_a_source_that_cannot_be_read_stops_its_partition_alone(log_dir, tmp_path):
    log = sorted((log_dir / "orders-0").glob("*.log"))[0]

    def take_away(job, number, run):
        if (job, number) == (0, 0):
            # The listing shows it, reading does not: as a disk with a bad sector does.
            raw = log.read_bytes()
            log.unlink()
            log.mkdir()
            try:
                return run()
            finally:
                log.rmdir()
                log.write_bytes(raw)
        return run()

    report = spark_convert(log_dir, tmp_path / "new", sabotage=take_away)
    assert [row.partition for row in report.failed] == ["orders-0"]


def test_a_changed_segment_is_converted_again_and_no_other(log_dir, tmp_path):
    with pytest.raises(StorageError):
        spark_convert(log_dir, tmp_path / "new", sabotage=die_in_verify)
    touched = sorted((log_dir / "orders-0").glob("*.log"))[0]
    os.utime(touched, ns=(1, 1))
    report = spark_convert(log_dir, tmp_path / "new")
    assert {row.partition: row.segments - row.skipped for row in report.rows} == {
        "orders-0": 1, "orders-1": 0, "payments-0": 0
    }
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


def test_a_source_that_changed_after_it_was_published_is_not_mixed_in(log_dir, tmp_path):
    spark_convert(log_dir, tmp_path / "new")
    append_to(sorted((log_dir / "orders-0").glob("*.log"))[-1])
    report = spark_convert(log_dir, tmp_path / "new")
    assert [row.partition for row in report.failed] == ["orders-0"]
    assert "changed since the partition was published" in report.failed[0].what


def test_a_staged_file_that_went_bad_is_found_before_it_is_published(log_dir, tmp_path):
    def spoil(job, number, run):
        if (job, number) == (1, 0):
            log = sorted((tmp_path / "new.seglog-spark/staged/orders-0").glob("*.log"))[0]
            raw = bytearray(log.read_bytes())
            raw[-1] ^= 1
            log.write_bytes(raw)
        return run()

    report = spark_convert(log_dir, tmp_path / "new", sabotage=spoil, verify="full")
    assert [row.partition for row in report.failed] == ["orders-0"]
    # It is made anew, not believed.
    assert spark_convert(log_dir, tmp_path / "new", verify="full").is_whole
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


@pytest.fixture
def refused_once(monkeypatch):
    """A disk that cannot read a converted segment, the first time that one is verified."""
    verify_segment, refused = segment_task.verify_segment, []

    def verify_or_refuse(workplace, partition, marker):
        if not refused:
            refused.append(partition)
            raise StorageError("input/output error", file=workplace.staged(partition), errno=errno.EIO)
        verify_segment(workplace, partition, marker)

    monkeypatch.setattr(segment_task, "verify_segment", verify_or_refuse)
    return refused


@pytest.mark.parametrize("how", ["full", "sample"])
def test_a_converted_segment_that_cannot_be_read_now_is_tried_again_and_not_failed(
    log_dir, tmp_path, refused_once, how, digested
):
    """Its partition was reported as failed, and what was converted was thrown away."""
    def retrying(job, number, run):
        try:
            return run()
        except StorageError:
            digested.clear()
            return run()

    report = spark_convert(log_dir, tmp_path / "new", sabotage=retrying, verify=how)
    assert len(refused_once) == 1
    assert report.is_whole
    assert not any(path.is_relative_to(log_dir) for path in digested)       # nothing was converted again
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


def test_a_disk_that_reads_no_converted_segment_ends_the_conversion_and_the_next_goes_on(
    log_dir, tmp_path, refused_once
):
    with pytest.raises(StorageError, match=r"Spark gave up .*input/output error"):
        spark_convert(log_dir, tmp_path / "new", verify="full")
    report = spark_convert(log_dir, tmp_path / "new", verify="full")
    assert [row.skipped for row in report.rows] == [row.segments for row in report.rows]
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


def test_a_staged_file_that_is_gone_fails_its_partition_alone(log_dir, tmp_path):
    def remove(job, number, run):
        if (job, number) == (1, 0):
            min((tmp_path / "new.seglog-spark/staged/orders-0").glob("*.log")).unlink()
        return run()

    report = spark_convert(log_dir, tmp_path / "new", sabotage=remove, verify="full")
    assert [(row.partition, row.error) for row in report.failed] == [("orders-0", "corrupt_checkpoint")]
    assert "a converted segment is missing" in report.failed[0].what
    assert spark_convert(log_dir, tmp_path / "new", verify="full").is_whole
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


@pytest.fixture
def digested(monkeypatch):
    """The paths of the segments whose records are read for a proof, in order."""
    paths = []
    for module in (segment, segment_task):
        def digest(segments, *arguments, digest=module.digest, **options):
            paths.extend(one.path for one in segments)
            return digest(segments, *arguments, **options)

        monkeypatch.setattr(module, "digest", digest)
    return paths


def test_a_result_that_is_verified_in_full_is_read_once_where_it_stands(log_dir, tmp_path, digested):
    assert spark_convert(log_dir, tmp_path / "new", verify="full").is_whole
    read = [path for path in digested if not path.is_relative_to(log_dir)]
    staged = tmp_path / "new.seglog-spark/staged"
    assert sorted(path.relative_to(staged) for path in read) == sorted(
        path.relative_to(tmp_path / "new") for path in (tmp_path / "new").glob("*/*.log")
    )


def die_in_verify(job, number, run):
    if job == 1:
        raise RuntimeError("the driver is gone")
    return run()


def spoil_staged(target):
    """Damage the last segment of each partition."""
    for directory in target.with_name(f"{target.name}.seglog-spark").glob("staged/*"):
        log = sorted(directory.glob("*.log"))[-1]
        raw = log.read_bytes()
        log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))


def test_what_a_dead_driver_left_unproven_is_proven_even_if_the_next_reads_a_sample(log_dir, tmp_path):
    with pytest.raises(StorageError):
        spark_convert(log_dir, tmp_path / "new", sabotage=die_in_verify, verify="full")
    spoil_staged(tmp_path / "new")
    report = spark_convert(log_dir, tmp_path / "new", verify="sample")
    assert [row.partition for row in report.failed] == ["orders-0", "orders-1", "payments-0"]
    assert partitions(tmp_path / "new") == {}
    assert spark_convert(log_dir, tmp_path / "new", verify="sample").is_whole
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


def test_what_a_dead_driver_left_unproven_is_not_converted_again(log_dir, tmp_path, digested):
    with pytest.raises(StorageError):
        spark_convert(log_dir, tmp_path / "new", sabotage=die_in_verify, verify="full")
    digested.clear()
    report = spark_convert(log_dir, tmp_path / "new", verify="sample")
    assert [row.skipped for row in report.rows] == [row.segments for row in report.rows]
    assert not any(path.is_relative_to(log_dir) for path in digested)
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


def test_no_partition_is_published_that_nobody_has_proven(log_dir, tmp_path):
    def skip_verify(job, number, run):
        return ['{"segments": 0, "bytes_out": 0, "failures": []}'] if job == 1 else run()

    report = spark_convert(log_dir, tmp_path / "new", sabotage=skip_verify, verify="full")
    assert {(row.error, row.what.partition(" (")[0]) for row in report.failed} == {
        ("corrupt_checkpoint", "the segment is not proven")
    }
    assert partitions(tmp_path / "new") == {}
    assert spark_convert(log_dir, tmp_path / "new", verify="full").is_whole
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


def test_an_attempt_that_is_late_cannot_replace_what_was_proven(log_dir, tmp_path, monkeypatch):
    at_work, go_on, errors, attempts = threading.Event(), threading.Event(), [], []
    convert = segment_task.convert_segment

    def convert_late(*arguments, **options):
        converted = convert(*arguments, **options)
        if not at_work.is_set():
            at_work.set()
            go_on.wait(60)
        return converted

    def sabotage(job, number, run):
        if (job, number) == (0, 0):

            def attempt():
                try:
                    run()
                except StorageError as error:
                    errors.append(error)

            attempts.append(threading.Thread(target=attempt))
            attempts[0].start()
            assert at_work.wait(60)
        out = run()
        if (job, number) == (1, 0):
            go_on.set()
            attempts[0].join()
        return out

    monkeypatch.setattr(segment_task, "convert_segment", convert_late)
    report = spark_convert(log_dir, tmp_path / "new", sabotage=sabotage, verify="full")
    assert errors
    assert report.is_whole
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


# --- attempts --------------------------------------------------------------------------------


def test_a_task_that_runs_twice_changes_nothing(log_dir, tmp_path):
    report = spark_convert(log_dir, tmp_path / "new", sabotage=lambda job, number, run: run() and run())
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")
    assert report.is_whole
    assert {row.skipped for row in report.rows} == {0}


def test_two_attempts_at_one_time_change_nothing(log_dir, tmp_path):
    def twice_at_once(job, number, run):
        outs = []
        threads = [threading.Thread(target=lambda: outs.append(run())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outs) == 2
        return outs[0]

    assert spark_convert(log_dir, tmp_path / "new", sabotage=twice_at_once).is_whole
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli")


# --- a driver that dies ----------------------------------------------------------------------


@pytest.mark.parametrize("wave_bytes", [0, 1], ids=["one wave", "a wave for each partition"])
def test_a_driver_may_die_at_any_step_and_another_ends_the_work(log_dir, tmp_path, wave_bytes):
    whole = by_cli(log_dir, tmp_path / "cli")

    def driver(fs):
        convert_topics(SparkDouble(), log_dir, tmp_path / "new", task_bytes=1, wave_bytes=wave_bytes, fs=fs)

    def reset():
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        shutil.rmtree(tmp_path / "new.seglog-spark", ignore_errors=True)

    steps = steps_of_a_driver(driver)
    assert steps > 30
    for step in range(0, steps, 1 if EVERY_STATE else 3):
        reset()
        with pytest.raises(Died):
            driver(MortalFs(step))
        whole_or_absent(tmp_path / "new", whole)
        report = spark_convert(log_dir, tmp_path / "new", wave_bytes=wave_bytes)
        assert report.is_whole
        assert content(tmp_path / "new") == whole, step
        finalize_topics(tmp_path / "new", fs=UnsyncedFs())
        nothing_else(tmp_path, "cli", "new")


@pytest.mark.parametrize("how", [rollback_topics, finalize_topics])
def test_an_end_may_be_interrupted_at_any_step(how, log_dir, tmp_path):
    spark_convert(log_dir, tmp_path / "new")
    whole = partitions(tmp_path / "new")
    shutil.copytree(tmp_path, tmp_path.with_name("kept"), dirs_exist_ok=True)

    def reset():
        for name in ("new", "new.seglog-spark"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            shutil.copytree(tmp_path.with_name("kept") / name, tmp_path / name)

    steps = steps_of_a_driver(lambda fs: how(tmp_path / "new", fs=fs))
    for step in range(0, steps, 1 if EVERY_STATE else 4):
        reset()
        with pytest.raises(Died):
            how(tmp_path / "new", fs=MortalFs(step))
        whole_or_absent(tmp_path / "new", whole)
        if (tmp_path / "new.seglog-spark").exists():
            how(tmp_path / "new", fs=UnsyncedFs())
        assert partitions(tmp_path / "new") == ({} if how is rollback_topics else whole), step
        nothing_else(tmp_path, *([] if how is rollback_topics else ["new"]))


# --- the report ------------------------------------------------------------------------------


def test_the_bytes_of_the_result_are_told_with_the_second_job_of_a_first_and_of_a_resumed_run(log_dir, tmp_path):
    """Those of segments that an earlier run finished, too."""

    def dies(job, number, run):
        if job == 1:
            raise RuntimeError("the driver dies before the verification")
        return run()

    told = []
    with pytest.raises(StorageError, match="the driver dies"):
        spark_convert(log_dir, tmp_path / "new", sabotage=dies)
    report = spark_convert(log_dir, tmp_path / "new", progress=told.append)
    assert report.total.skipped == 6
    (verified,) = {step.what for step in told if step.what.startswith("verify ")}
    assert verified.endswith(f"{report.total.bytes_in:,} bytes as {report.total.bytes_out:,} bytes")
    assert report.total.bytes_out == sum(path.stat().st_size for path in (tmp_path / "new").glob("*/*.log")) > 0


def test_the_report_is_json(log_dir, tmp_path):
    report = spark_convert(log_dir, tmp_path / "new")
    body = json.loads(report.to_json())
    assert [row["partition"] for row in body["partitions"]] == ["orders-0", "orders-1", "payments-0"]
    assert body["format"] == "seglog-conversion-report"
    assert report.total.records == sum(row["records"] for row in body["partitions"])
    assert body["partitions"][0]["ratio"] == pytest.approx(report.rows[0].bytes_out / report.rows[0].bytes_in)


def test_a_plan_is_not_written_again_when_it_is_the_same(log_dir, tmp_path):
    spark_convert(log_dir, tmp_path / "new", topics=["orders"])
    shard = tmp_path / "new.seglog-spark/plan/orders-0"
    before = shard.stat().st_ino
    spark_convert(log_dir, tmp_path / "new", topics=["orders"])
    assert shard.stat().st_ino == before


def test_what_a_later_segment_says_of_a_transaction_changes_the_segments_before(log_dir, tmp_path):
    """Which records are dropped is no matter of their own segment alone: the markers of before count no more."""
    options = {"to": 1, "allow_lossy": LOSS_KINDS, "aborted": "drop", "codec": "lz4"}

    def die_in_verify(job, number, run):
        if job == 2:
            raise RuntimeError("the driver is gone")
        return run()

    with pytest.raises(StorageError):
        spark_convert(log_dir, tmp_path / "new", sabotage=die_in_verify, **options)
    # The log ends earlier now: what was committed or aborted in its last segment is open.
    logs = sorted((log_dir / "payments-0").glob("*.log"))
    logs[-1].write_bytes(logs[-1].read_bytes()[:100])
    report = spark_convert(log_dir, tmp_path / "new", **options)
    assert {row.partition: row.skipped for row in report.rows}["payments-0"] == 0
    assert content(tmp_path / "new") == by_cli(log_dir, tmp_path / "cli", **options)
