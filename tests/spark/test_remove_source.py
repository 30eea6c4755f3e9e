"""The source of a partition goes once its result is final: at every moment the partition is whole in one of the two."""
import os
import shutil

import pytest

import seglog
from seglog.errors import InvalidArgumentError, LogLockedError, NotALogError
from seglog.format import names
from seglog.fs.files import OsFileSystem
from seglog.fs.lock import SHARED, lock_log_dir
from seglog.spark import convert_topics, finalize_topics, rollback_topics
from seglog.state.checkpoints import format_offset_checkpoint, parse_offset_checkpoint
from seglog.verification.verify import verify
from support.command import seglog as command
from support.command import seglog_json
from support.conversion import UnsyncedFs, tree
from support.dying_driver import Died, MortalFs, by_cli, content, dies_in_wave, partitions_in, steps_of_a_driver
from support.spark_double import SparkDouble

EVERY_STATE = bool(os.environ.get("SEGLOG_TORTURE"))
PARTITIONS = ["orders-0", "orders-1", "payments-0"]
REMOVE = {"finalize_each": True, "remove_source": True, "verify": "full"}


@pytest.fixture
def old(log_dir):
    """A source with lines of its partitions in two checkpoints."""
    lines = {("orders", 0): 1, ("orders", 1): 2, ("payments", 0): 3, ("other", 7): 4}
    for checkpoint in (names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT):
        (log_dir / checkpoint).write_bytes(format_offset_checkpoint(lines))
    return log_dir


@pytest.fixture
def convert(old, tmp_path):
    """Convert to "new", one task for each segment, a wave for each partition, and remove the source."""

    def run(*, sabotage=None, fs=None, **options):
        return convert_topics(
            SparkDouble(sabotage) if sabotage else SparkDouble(), old, run.target, task_bytes=1,
            fs=fs or UnsyncedFs(), **{"wave_bytes": 1, **REMOVE, **options}
        )

    run.target = tmp_path / "new"
    run.workplace = tmp_path / "new.seglog-spark"
    return run


def lines_of(log_dir):
    """The partitions with lines in the checkpoints, which are the same in each."""
    (found,) = {
        tuple(sorted(parse_offset_checkpoint((log_dir / checkpoint).read_bytes())))
        for checkpoint in (names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_CHECKPOINT)
    }
    return [f"{topic}-{partition}" for topic, partition in found]


# --- what goes, what stays -------------------------------------------------------------------


def test_the_source_is_gone_and_the_result_is_whole(convert, old, tmp_path):
    whole = by_cli(old, tmp_path / "cli")
    report = convert()
    assert report.is_final
    assert list(report.removed) == PARTITIONS
    assert [row.status for row in report.rows] == ["converted"] * 3
    assert content(convert.target) == whole
    assert partitions_in(old) == []
    assert lines_of(old) == ["other-7"]
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "cli"}


def test_what_was_not_asked_for_stays(convert, old):
    before = tree(old / "payments-0")
    assert list(convert(topics=["orders"]).removed) == PARTITIONS[:2]
    assert partitions_in(old) == ["payments-0"]
    assert tree(old / "payments-0") == before
    assert lines_of(old) == ["other-7", "payments-0"]


def test_the_source_of_a_partition_that_failed_stays(convert, old):
    log = sorted((old / "orders-1").glob("*.log"))[0]
    raw = log.read_bytes()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    before = tree(old / "orders-1")
    report = convert()
    assert [row.partition for row in report.failed] == ["orders-1"]
    assert list(report.removed) == ["orders-0", "payments-0"]
    assert tree(old / "orders-1") == before
    assert partitions_in(convert.target) == ["orders-0", "payments-0"]
    log.write_bytes(raw)
    report = convert()
    assert [row.status for row in report.rows] == ["converted"]
    assert report.is_final
    assert partitions_in(old) == []


def test_a_dry_run_leaves_the_source(convert, old, tmp_path):
    before = tree(tmp_path)
    report = convert(dry_run=True)
    assert {row.status for row in report.rows} == {"planned"}
    assert tree(tmp_path) == before


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "why"), [
    ({"finalize_each": False}, "needs --finalize-each and --verify full"),
    ({"verify": "sample"}, "needs --finalize-each and --verify full"),
    ({"skip_active": True}, "segments that are not converted"),
], ids=str)
def test_options_that_could_lose_something_are_refused(convert, old, tmp_path, options, why):
    before = tree(tmp_path)
    with pytest.raises(InvalidArgumentError, match=why):
        convert(**options)
    assert tree(tmp_path) == before


def test_a_source_in_an_object_store_is_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot remove a partition in one step"):
        convert_topics(SparkDouble(), "s3://lake/old", tmp_path / "new", **REMOVE)
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_a_writer_of_ours_shares_is_refused(convert, old):
    with lock_log_dir(OsFileSystem(), old, SHARED), pytest.raises(LogLockedError):
        convert()
    assert partitions_in(old) == PARTITIONS


def test_the_source_is_locked_until_the_end(convert, old):
    seen = []

    def look(job, task, run):
        with pytest.raises(LogLockedError):
            lock_log_dir(OsFileSystem(), old, SHARED)
        seen.append(job)
        return run()

    convert(sabotage=look)
    assert len(set(seen)) == 9


def test_a_partition_that_is_a_symbolic_link_is_left_alone(convert, old, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (old / "orders-1").rename(elsewhere)
    (old / "orders-1").symlink_to(elsewhere)
    before = tree(elsewhere)
    report = convert()
    (failed,) = report.failed
    assert (failed.partition, failed.error) == ("orders-1", "invalid_argument")
    assert "remove only the link" in failed.what
    assert tree(elsewhere) == before
    assert os.readlink(old / "orders-1") == str(elsewhere)
    assert partitions_in(convert.target) == ["orders-0", "payments-0"]


# --- a result that is not that of the source -------------------------------------------------


def when_published(partition, work):
    """A file system that does `work` right after this partition got its name."""

    class Meddling(UnsyncedFs):
        def rename(self, source, target):
            super().rename(source, target)
            if "/staged/" in str(source) and str(target).endswith(f"/{partition}"):
                work()

        def __reduce__(self):
            return UnsyncedFs, ()

    return Meddling()


def append_to(log):
    with open(log, "ab") as file:
        file.write(b"\0")


def test_a_source_that_changes_meanwhile_stays(convert, old):
    last = sorted((old / "orders-1").glob("*.log"))[-1]
    report = convert(fs=when_published("orders-1", lambda: append_to(last)))
    assert [row.partition for row in report.failed] == ["orders-1"]
    assert "the source has changed" in report.failed[0].what
    assert partitions_in(old) == ["orders-1"]
    assert partitions_in(convert.target) == PARTITIONS


def test_a_segment_that_came_meanwhile_is_not_removed(convert, old):
    new = old / "orders-1" / f"{10**6:020}.log"
    report = convert(fs=when_published("orders-1", new.touch))
    assert [row.partition for row in report.failed] == ["orders-1"]
    assert new.exists()


@pytest.mark.parametrize("harm", [append_to, os.unlink])
def test_the_source_of_a_result_that_is_harmed_stays(convert, old, harm):
    fs = when_published("orders-1", lambda: harm(sorted((convert.target / "orders-1").glob("*.log"))[0]))
    report = convert(fs=fs)
    assert [row.partition for row in report.failed] == ["orders-1"]
    assert partitions_in(old) == ["orders-1"]


# --- what an earlier run published -----------------------------------------------------------


@pytest.mark.parametrize("ended", [False, True], ids=["published", "finalized"])
def test_what_an_earlier_run_published_is_read_again_first(convert, old, ended):
    convert(finalize_each=False, remove_source=False, verify="sample")
    if ended:
        finalize_topics(convert.target, fs=UnsyncedFs())
    log = sorted((convert.target / "orders-1").glob("*.log"))[-1]
    raw, status = log.read_bytes(), log.stat()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    report = convert()
    assert [row.partition for row in report.failed] == ["orders-1"]
    assert list(report.removed) == ["orders-0", "payments-0"]
    assert partitions_in(old) == ["orders-1"]
    log.write_bytes(raw)
    os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert list(convert().removed) == ["orders-1"]
    assert partitions_in(old) == []
    assert not convert.workplace.exists()


def test_the_source_of_a_result_without_the_active_segment_stays(convert, old):
    convert(finalize_each=False, remove_source=False, skip_active=True, topics=["orders"])
    finalize_topics(convert.target, fs=UnsyncedFs())
    before = tree(old)
    report = convert(topics=["orders"])
    assert {row.status for row in report.rows} == {"failed"}
    assert "already has a partition" in report.failed[0].what
    assert {name: data for name, data in tree(old).items() if name != ".lock"} == before


def test_a_rollback_between_leaves_what_has_no_source_any_more(convert, old):
    with pytest.raises(KeyboardInterrupt):
        convert(sabotage=dies_in_wave(3))
    assert rollback_topics(convert.target, fs=UnsyncedFs()) == []
    assert (partitions_in(old), partitions_in(convert.target)) == (PARTITIONS[2:], PARTITIONS[:2])
    assert list(convert().removed) == PARTITIONS[2:]
    assert (partitions_in(old), partitions_in(convert.target)) == ([], PARTITIONS)


# --- interruptions ---------------------------------------------------------------------------


def test_a_driver_may_die_at_any_step_and_another_ends_the_work(convert, old, tmp_path):
    shutil.copytree(old, tmp_path / "kept")
    whole = by_cli(old, tmp_path / "cli")
    sources = {name: tree(old / name) for name in PARTITIONS}
    results = {
        name: {path: data for path, data in whole.items() if path.startswith(f"{name}/")} for name in PARTITIONS
    }

    def reset():
        for path in (old, convert.target, convert.workplace):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tmp_path / "kept", old)

    steps, both = steps_of_a_driver(lambda fs: convert(fs=fs)), 0
    assert steps > 100
    for step in range(0, steps, 1 if EVERY_STATE else 3):
        reset()
        with pytest.raises(Died):
            convert(fs=MortalFs(step))
        there = content(convert.target) if convert.target.exists() else {}
        for name in PARTITIONS:
            in_source = tree(old / name) == sources[name]
            in_target = {path: data for path, data in there.items() if path.startswith(f"{name}/")} == results[name]
            assert in_source or in_target, (step, name)
            # A partition directory is whole, or not there.
            assert in_source or not (old / name).exists()
            assert in_target or not (convert.target / name).exists()
            both += in_source and in_target
        try:
            report = convert()
        except NotALogError:        # it died before its last step, the removal of an empty directory
            assert step == steps - 1
            assert not any(convert.workplace.iterdir())
            finalize_topics(convert.target, fs=UnsyncedFs())
        else:
            assert report.is_whole
            assert report.is_final
        assert partitions_in(old) == [], step
        assert lines_of(old) == ["other-7"], step
        assert content(convert.target) == whole, step
        assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "kept", "cli"}
    assert both > 0


def test_a_source_goes_only_when_its_result_and_the_journal_are_synced(convert, old):
    """The order of the driver's steps. Tasks sync what they stage."""
    steps = []

    class Telling(UnsyncedFs):
        def rename(self, source, target):
            super().rename(source, target)
            steps.append(("rename", str(source)))

        def replace(self, source, target):
            super().replace(source, target)
            steps.append(("replace", str(target)))

        def sync_directory(self, path):
            steps.append(("sync", str(path)))

        def __reduce__(self):
            return UnsyncedFs, ()

    convert(fs=Telling())
    for name in PARTITIONS:
        gone = steps.index(("rename", f"{old}/{name}"))
        named = steps.index(("rename", f"{convert.workplace}/staged/{name}"))
        synced = steps.index(("sync", f"{convert.target}"), named)
        told = steps.index(("replace", f"{convert.workplace}/journal.json"), synced)
        assert named < synced < told < steps.index(("sync", f"{convert.workplace}"), told) < gone


def test_a_run_whose_source_is_gone_already_ends_the_work(convert, old):
    class Stops(UnsyncedFs):
        def unlink(self, path, within=None):
            if "/done/payments-0/" in str(path):
                raise KeyboardInterrupt
            super().unlink(path, within)

        def __reduce__(self):
            return UnsyncedFs, ()

    with pytest.raises(KeyboardInterrupt):
        convert(fs=Stops())
    assert partitions_in(old) == []
    for options in ({"topics": ["nothing"]}, {"partitions": ["orders-7"]}):
        with pytest.raises(InvalidArgumentError):
            convert(**options)
    report = convert(partitions=["orders-0"])
    assert (report.rows, report.is_final) == ((), True)
    assert not convert.workplace.exists()


# --- room ------------------------------------------------------------------------------------


class MeasuringFs(UnsyncedFs):
    """Measures what is in a directory at each change of a name. Tasks share it."""

    top, most = None, 0

    @classmethod
    def measure(cls):
        size = sum(os.path.getsize(os.path.join(at, name)) for at, _, files in os.walk(cls.top) for name in files)
        cls.most = max(cls.most, size)
        return size

    def replace(self, source, target):
        self.measure()
        super().replace(source, target)
        self.measure()

    def rename(self, source, target):
        super().rename(source, target)
        self.measure()

    def unlink(self, path, within=None):
        self.measure()
        super().unlink(path, within)


@pytest.mark.parametrize("options", [REMOVE, {"finalize_each": True}], ids=["source removed", "source kept"])
def test_the_room_at_once_is_that_of_the_source_and_of_a_wave(tmp_path, options):
    for number in range(8):
        with seglog.open(tmp_path / f"all/old/t-{number}", fsync="never", config={"message.format.version": 1}) as log:
            log.append_many([(b"key", os.urandom(1000)) for _ in range(100)])
    MeasuringFs.top, MeasuringFs.most = tmp_path / "all", 0
    source = MeasuringFs.measure()
    report = convert_topics(
        SparkDouble(), tmp_path / "all/old", tmp_path / "all/new", task_bytes=1, wave_bytes=1, fs=MeasuringFs(),
        **options
    )
    assert report.is_final
    result = sum(path.stat().st_size for path in (tmp_path / "all/new").rglob("*") if path.is_file())
    assert 0.9 * source < result < 1.1 * source
    if "remove_source" in options:
        assert MeasuringFs.most < source + 1.5 * result / 8
        assert MeasuringFs.measure() < result + 2000
    else:
        assert MeasuringFs.most > source + result
    assert not [found for path in (tmp_path / "all/new").glob("t-*") for found in verify(path).findings]


# --- the command -----------------------------------------------------------------------------


class OneSession:
    def __enter__(self):
        return SparkDouble()

    def __exit__(self, *_):
        pass


def test_the_command_says_what_is_removed_and_what_is_kept(old, convert, monkeypatch):
    monkeypatch.setattr("seglog.spark.session.session", lambda *_: OneSession())
    options = ("--finalize-each", "--remove-source", "--verify", "full")
    refused = command("spark", "convert", old, convert.target, *options[:2], status=2)
    assert "--remove-source needs --finalize-each and --verify full" in refused.stderr
    assert "leave out --finalize" in command(
        "spark", "convert", old, convert.target, "--finalize", "--remove-source", status=2
    ).stderr
    lines = command("spark", "convert", old, convert.target, *options, "--topic", "orders").stdout.splitlines()
    assert lines[-2:] == [f"2 partitions removed from {old}", f"2 partitions kept in {convert.target}"]
    row, end, summary = seglog_json("spark", "convert", old, convert.target, *options)
    assert (row["partition"], summary["converted"]) == ("payments-0", 1)
    assert (end["type"], end["is_final"], end["removed"]) == ("finalize", True, ["payments-0"])
    assert partitions_in(old) == []
