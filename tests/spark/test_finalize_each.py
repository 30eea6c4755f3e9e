"""Partitions that are final as soon as they are published, so that nothing else of them stays."""
import logging
import os
import shutil

import pytest

from seglog.errors import InvalidArgumentError
from seglog.spark import convert_topics, finalize_topics, rollback_topics
from support.command import seglog, seglog_json
from support.conversion import UnsyncedFs
from support.dying_driver import (
    Died,
    MortalFs,
    by_cli,
    content,
    damage,
    dies_in_wave,
    partitions_in,
    steps_of_a_driver,
    whole_or_absent,
)
from support.spark_double import SparkDouble

EVERY_STATE = bool(os.environ.get("SEGLOG_TORTURE"))
PARTITIONS = ["orders-0", "orders-1", "payments-0"]


@pytest.fixture
def convert(log_dir, tmp_path):
    """Convert to "new", one task for each segment, a wave for each partition, each of them final."""

    def run(*, sabotage=None, fs=None, finalize_each=True, **options):
        return convert_topics(
            SparkDouble(sabotage) if sabotage else SparkDouble(), log_dir, run.target, task_bytes=1, wave_bytes=1,
            finalize_each=finalize_each, fs=fs or UnsyncedFs(), **options
        )

    run.target = tmp_path / "new"
    run.workplace = tmp_path / "new.seglog-spark"
    return run


def test_nothing_but_the_result_is_left(convert, log_dir, tmp_path):
    report = convert()
    assert report.is_final
    assert [row.status for row in report.rows] == ["converted"] * 3
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new"}
    assert content(convert.target) == by_cli(log_dir, tmp_path / "cli")
    with pytest.raises(InvalidArgumentError, match="no conversion"):
        rollback_topics(convert.target, fs=UnsyncedFs())


def test_of_a_final_partition_the_workplace_has_nothing_while_the_next_is_converted(convert):
    seen = []

    def look(job, number, run):
        if number == 0:
            places = ("plan", "done", "outcome", "staged", "survey")
            seen.append({path.name for place in places for path in (convert.workplace / place).iterdir()})
        return run()

    convert(sabotage=look)
    assert seen[::3] == [set(PARTITIONS), set(PARTITIONS[1:]), set(PARTITIONS[2:])]


def test_another_run_finds_what_is_final(convert, tmp_path, log_dir):
    with pytest.raises(KeyboardInterrupt):
        convert(sabotage=dies_in_wave(3))
    report = convert()
    assert [row.status for row in report.rows] == ["skipped", "skipped", "converted"]
    whole = convert_topics(SparkDouble(), log_dir, tmp_path / "other", task_bytes=1, fs=UnsyncedFs())
    assert [(row.records, row.digest) for row in report.rows] == [(row.records, row.digest) for row in whole.rows]
    again = convert().rows
    assert [row.status for row in again] == ["skipped"] * 3
    assert {row.what for row in again} == {"converted by an earlier run, and final"}
    assert not convert.workplace.exists()


def test_what_an_earlier_run_published_is_final_too(convert):
    convert(finalize_each=False, partitions=["orders-0", "payments-0"])
    report = convert(partitions=["orders-0", "orders-1"])
    assert [row.status for row in report.rows] == ["skipped", "converted"]
    # The other one was not asked for: it can still be taken back.
    assert not report.is_final
    assert rollback_topics(convert.target, fs=UnsyncedFs()) == ["payments-0"]
    assert partitions_in(convert.target) == PARTITIONS[:2]


def test_a_rollback_leaves_what_is_final_and_says_so(convert, caplog):
    with pytest.raises(KeyboardInterrupt):
        convert(sabotage=dies_in_wave(3))
    with pytest.raises(InvalidArgumentError, match="cannot be undone: orders-1"):
        rollback_topics(convert.target, partitions=["orders-1"], fs=UnsyncedFs())
    with caplog.at_level(logging.WARNING):
        assert rollback_topics(convert.target, fs=UnsyncedFs()) == []
    assert f"these partitions are final and stay in {convert.target}: orders-0, orders-1" in caplog.text
    assert partitions_in(convert.target) == PARTITIONS[:2]
    assert not convert.workplace.exists()
    assert [row.status for row in convert().rows] == ["skipped", "skipped", "converted"]


def test_a_partition_that_failed_keeps_what_was_done_for_it(convert, log_dir):
    mend = damage(log_dir, "orders-1")
    report = convert()
    assert [row.partition for row in report.failed] == ["orders-1"]
    assert not report.is_final
    assert convert.workplace.exists()
    mend()
    report = convert()
    assert [row.status for row in report.rows] == ["skipped", "converted", "skipped"]
    assert report.is_final
    assert not convert.workplace.exists()


def test_finalize_names_what_failed_and_what_is_final(convert, log_dir):
    damage(log_dir, "orders-1")
    convert()
    done = finalize_topics(convert.target, fs=UnsyncedFs())
    assert (done.partitions, list(done.failed)) == (["orders-0", "payments-0"], ["orders-1"])
    assert not convert.workplace.exists()


def test_a_source_that_changed_since_is_not_mixed_in(convert, log_dir):
    with pytest.raises(KeyboardInterrupt):
        convert(sabotage=dies_in_wave(2))
    os.utime(sorted((log_dir / "orders-0").glob("*.log"))[0], ns=(1, 1))
    report = convert()
    assert [row.status for row in report.rows] == ["failed", "converted", "converted"]
    assert "the source has changed since the partition was published" in report.failed[0].what
    assert "out of the target" in report.failed[0].fix


def test_a_driver_may_die_at_any_step_and_another_ends_the_work(convert, log_dir, tmp_path):
    whole = by_cli(log_dir, tmp_path / "cli")

    def reset():
        shutil.rmtree(convert.target, ignore_errors=True)
        shutil.rmtree(convert.workplace, ignore_errors=True)

    steps = steps_of_a_driver(lambda fs: convert(fs=fs))
    for step in range(0, steps, 1 if EVERY_STATE else 3):
        reset()
        with pytest.raises(Died):
            convert(fs=MortalFs(step))
        whole_or_absent(convert.target, whole)
        report = convert()
        assert report.is_whole
        assert report.is_final
        assert content(convert.target) == whole, step
        assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "cli"}


# --- the command -----------------------------------------------------------------------------


@pytest.fixture
def command(log_dir, convert, monkeypatch):
    monkeypatch.setattr("seglog.spark.session.session", lambda *_: SessionDouble())
    return lambda *options, **more: seglog("spark", "convert", log_dir, convert.target, *options, **more)


class SessionDouble:
    def __enter__(self):
        return SparkDouble()

    def __exit__(self, *_):
        pass


def test_the_command_says_what_is_kept(command, convert):
    assert command("--finalize-each").stdout.splitlines()[-1] == f"3 partitions kept in {convert.target}"
    assert not convert.workplace.exists()


def test_the_command_ends_with_status_7_if_a_partition_failed(command, convert, log_dir):
    damage(log_dir, "orders-1")
    done = command("--finalize-each", status=7)
    assert "failed: orders-1: " in done.stdout
    assert "stays until" in done.stdout.splitlines()[-1]
    (end,) = seglog_json("spark", "convert", log_dir, convert.target, "--finalize", status=7)
    assert (end["partitions"], list(end["failed"])) == (["orders-0", "payments-0"], ["orders-1"])


@pytest.mark.parametrize("end", ["--finalize", "--rollback"])
def test_the_command_refuses_it_with_an_end(command, end):
    assert f"leave out {end}" in command("--finalize-each", end, status=2).stderr
