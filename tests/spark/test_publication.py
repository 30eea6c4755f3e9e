"""How partitions come into the target, a few or very many, all of them or one, and how they are taken back."""
import errno
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from seglog.conversion.losses import LOSS_KINDS
from seglog.errors import CorruptCheckpointError, InvalidArgumentError, StorageError
from seglog.format import names
from seglog.spark import convert_topics, finalize_topics, rollback_topics
from seglog.spark.options import ConversionOptions
from seglog.state.checkpoints import parse_offset_checkpoint
from support.command import seglog, seglog_json
from support.conversion import UnsyncedFile, UnsyncedFs
from support.dying_driver import partitions_in
from support.faultfs import FailingFs
from support.spark_double import SparkDouble


def convert(log_dir, target, *, fs=None, **options):
    return convert_topics(SparkDouble(), log_dir, target, task_bytes=1, fs=fs or UnsyncedFs(), **options)


def damage(log_dir, partition):
    """Spoil a batch; call what is returned to mend it."""
    log = sorted((log_dir / partition).glob("*.log"))[0]
    raw, status = log.read_bytes(), log.stat()
    log.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert status.st_size == log.stat().st_size
    return lambda: log.write_bytes(raw)


# --- what it costs ---------------------------------------------------------------------------


class CountingFs(UnsyncedFs):
    """Counts syncs of the driver, by what is synced, and files that are put in place, by their names."""

    def __init__(self):
        self.syncs = Counter()
        self.replaced = Counter()

    def create(self, path, within=None, mode=0o666):
        file = super().create(path, within, mode)
        file.__class__ = CountedFile
        file.counted = self.syncs
        return file

    def sync_file(self, path):
        self.syncs[Path(path).name] += 1

    def sync_directory(self, path):
        self.syncs[Path(path).name] += 1

    def replace(self, source, target):
        self.replaced[Path(target).name] += 1
        super().replace(source, target)

    def __reduce__(self):
        return UnsyncedFs, ()       # to a task


class CountedFile(UnsyncedFile):
    def _sync(self, *, data_only):
        self.counted["a file"] += 1


@pytest.fixture
def many(log_dir, tmp_path):
    """A function that makes a log dir of so many partitions of one small segment each."""
    source = log_dir / "payments-0"

    def make(count):
        path = tmp_path / f"many{count}"
        for n in range(count):
            (path / f"small-{n}").mkdir(parents=True)
            shutil.copy2(sorted(source.glob("*.log"))[0], path / f"small-{n}")
        return path

    return make


def test_the_driver_writes_each_checkpoint_once_and_syncs_once_for_all_partitions(many, tmp_path):
    costs = {}
    for count in (10, 30):
        source, target = many(count), tmp_path / f"new{count}"
        fs, back, end = CountingFs(), CountingFs(), CountingFs()
        assert convert(source, target, fs=fs).is_whole
        rollback_topics(target, fs=back)
        convert(source, target)
        finalize_topics(target, fs=end)
        for counted in (fs, back):
            assert counted.replaced[names.RECOVERY_POINT_CHECKPOINT] == 1
        costs[count] = [sum(counted.syncs.values()) for counted in (fs, back, end)]
    # Tasks sync what they made. The driver's own syncs (plan and publication, rollback, end) serve all partitions.
    assert costs[30] == costs[10]
    assert max(costs[30]) < 30


# --- some of them ----------------------------------------------------------------------------


def test_one_partition_is_converted_and_one_is_taken_back(log_dir, tmp_path):
    target = tmp_path / "new"
    assert [row.partition for row in convert(log_dir, target, partitions=["orders-1"]).rows] == ["orders-1"]
    assert partitions_in(target) == ["orders-1"]
    convert(log_dir, target)
    assert rollback_topics(target, partitions=["orders-1"], fs=UnsyncedFs()) == ["orders-1"]
    assert partitions_in(target) == ["orders-0", "payments-0"]
    lines = parse_offset_checkpoint((target / names.RECOVERY_POINT_CHECKPOINT).read_bytes())
    assert sorted(lines) == [("orders", 0), ("payments", 0)]
    with pytest.raises(InvalidArgumentError, match="not published by this conversion: orders-1"):
        rollback_topics(target, partitions=["orders-1"], fs=UnsyncedFs())
    report = convert(log_dir, target)
    assert [row.status for row in report.rows] == ["skipped", "converted", "skipped"]
    assert report.rows[1].skipped == 0
    assert rollback_topics(target, fs=UnsyncedFs()) == ["orders-0", "orders-1", "payments-0"]
    with pytest.raises(InvalidArgumentError, match="no such partition: orders-7"):
        convert(log_dir, target, partitions=["orders-7"])


def test_finalize_names_what_failed_and_a_later_run_adds_what_was_mended(log_dir, tmp_path, monkeypatch):
    target = tmp_path / "new"
    mend = damage(log_dir, "orders-1")
    monkeypatch.setattr("seglog.spark.session.session", lambda *_: pytest.fail("no Spark is needed to end it"))
    convert(log_dir, target)
    done = seglog("spark", "convert", log_dir, target, "--finalize", status=7)
    assert "2 partitions kept in" in done.stdout
    assert "not in it: orders-1: " in done.stdout
    assert "00000000000000000000.log" in done.stdout
    mend()
    report = convert(log_dir, target)
    assert [row.status for row in report.rows] == ["skipped", "converted", "skipped"]
    assert [row.records for row in report.rows] == [row.records for row in convert(log_dir, tmp_path / "other").rows]
    (end,) = seglog_json("spark", "convert", log_dir, target, "--finalize")
    assert (end["partitions"], end["failed"]) == (["orders-1"], {})
    assert partitions_in(target) == ["orders-0", "orders-1", "payments-0"]


def test_what_is_final_is_finalized_again_with_status_0(log_dir, tmp_path):
    target = tmp_path / "new"
    convert(log_dir, target)
    seglog("spark", "convert", log_dir, target, "--finalize")
    before = everything(target)
    assert "already final: 3 partitions in" in seglog("spark", "convert", log_dir, target, "--finalize").stdout
    done = finalize_topics(target, fs=UnsyncedFs())
    assert (done.partitions, done.failed, done.was_final) == (["orders-0", "orders-1", "payments-0"], {}, True)
    (tmp_path / "new.seglog-spark").mkdir()         # killed when the journal was gone
    assert finalize_topics(target, fs=UnsyncedFs()).was_final
    assert partitions_in(target) == ["orders-0", "orders-1", "payments-0"]
    assert everything(target).items() >= before.items()
    assert not (tmp_path / "new.seglog-spark").exists()
    with pytest.raises(InvalidArgumentError, match="no conversion into this target is under way"):
        finalize_topics(log_dir, fs=UnsyncedFs())   # partitions without a proof


def test_finalize_names_what_failed_in_a_run_before_or_in_one_that_finished_nothing(log_dir, tmp_path):
    target = tmp_path / "new"
    convert(log_dir, target, partitions=["orders-0"])
    damage(log_dir, "orders-1")
    damage(log_dir, "payments-0")
    for partition in ("orders-1", "payments-0"):
        assert [row.partition for row in convert(log_dir, target, partitions=[partition]).failed] == [partition]
    rollback_topics(target, partitions=["orders-0"], fs=UnsyncedFs())
    assert convert(log_dir, target, partitions=["orders-0"]).is_whole
    done = finalize_topics(target, fs=UnsyncedFs())
    assert (done.partitions, sorted(done.failed)) == (["orders-0"], ["orders-1", "payments-0"])


def test_a_partition_of_another_source_is_no_result_of_this_one(log_dir, tmp_path):
    convert(log_dir, tmp_path / "new", partitions=["orders-0"])
    finalize_topics(tmp_path / "new", fs=UnsyncedFs())
    os.utime(sorted((log_dir / "orders-0").glob("*.log"))[0], ns=(1, 1))
    with pytest.raises(InvalidArgumentError, match="already has a partition with this name"):
        convert(log_dir, tmp_path / "new")


# --- a run that is refused -------------------------------------------------------------------


def test_a_run_that_lacks_leave_does_not_block_the_run_that_it_suggests(log_dir, tmp_path):
    """Of three partitions two can be converted without a loss: they are, and the next run does the other."""
    target, options = tmp_path / "new", {"to": 1, "codec": "none"}
    (refused,) = convert(log_dir, target, **options).failed
    assert refused.partition == "payments-0"
    assert "--allow-lossy" in refused.fix
    (refused,) = convert(log_dir, target, allow_lossy=LOSS_KINDS, **options).failed
    assert "--aborted drop" in refused.fix
    report = convert(log_dir, target, allow_lossy=LOSS_KINDS, aborted="drop", **options)
    assert [row.status for row in report.rows] == ["skipped", "skipped", "converted"]
    # What decides bytes that were published is not to be changed on the way.
    for other in ({"aborted": "keep"}, {"aborted": "drop", "codec": "lz4"}):
        with pytest.raises(InvalidArgumentError, match="another conversion"):
            convert(log_dir, target, allow_lossy=LOSS_KINDS, **{**options, **other})


def test_a_run_that_was_refused_as_a_whole_leaves_no_workplace(log_dir, tmp_path):
    options = {"partitions": ["payments-0"], "codec": "none"}
    assert len(convert(log_dir, tmp_path / "new", to=1, **options).failed) == 1
    assert not (tmp_path / "new.seglog-spark").exists()
    assert convert(log_dir, tmp_path / "new", to=2, **options).is_whole


def test_a_mistyped_target_is_told_and_gets_no_lock_file(tmp_path):
    (tmp_path / "there").mkdir()
    for name in ("there", "none"):
        for end in (rollback_topics, finalize_topics):
            with pytest.raises(InvalidArgumentError, match="no conversion into this target is under way"):
                end(tmp_path / name)
    assert [str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*")] == ["there"]


# --- what is not the conversion's ------------------------------------------------------------


@pytest.fixture
def precious(tmp_path):
    """A folder of somebody else, with the names that a workplace has."""
    path = tmp_path / "precious"
    for name in ("file", "done/orders-0/file", "outcome/orders-0", "staged/orders-0/file", "attempts/file"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"precious")
    return path


def everything(path):
    return {str(found.relative_to(path)): found.read_bytes() for found in sorted(path.rglob("*")) if found.is_file()}


@pytest.mark.parametrize("flag", ["--rollback", "--finalize"])
@pytest.mark.parametrize("has_target", [False, True])
def test_a_workplace_that_is_a_link_is_refused(log_dir, tmp_path, precious, flag, has_target):
    """Everything in the folder that it leads to was removed."""
    before = everything(precious)
    (tmp_path / "new").mkdir() if has_target else None
    (tmp_path / "new.seglog-spark").symlink_to(precious)
    done = seglog("spark", "convert", log_dir, tmp_path / "new", flag, status=2)
    assert "the workplace is a symbolic link; nothing was changed" in done.stderr
    for end in (rollback_topics, finalize_topics, lambda target: convert(log_dir, target)):
        with pytest.raises(InvalidArgumentError, match="the workplace is a symbolic link"):
            end(tmp_path / "new")
    assert everything(precious) == before
    assert (tmp_path / "new.seglog-spark").is_symlink()


@pytest.mark.parametrize("end", [rollback_topics, finalize_topics])
@pytest.mark.parametrize("name", ["done", "outcome", "survey", "plan", "staged", "attempts", "other"])
def test_nothing_behind_a_link_in_the_workplace_is_removed(log_dir, tmp_path, precious, end, name):
    before = everything(precious)
    assert convert(log_dir, tmp_path / "new").is_whole
    place = tmp_path / "new.seglog-spark" / name
    if place.exists():
        shutil.rmtree(place)
    place.symlink_to(precious / name if (precious / name).exists() else precious)
    try:
        end(tmp_path / "new", fs=UnsyncedFs())
    except (InvalidArgumentError, StorageError, CorruptCheckpointError):
        place.unlink()      # what it leads to was taken for the workplace's, and is not what it must be
    assert everything(precious) == before


def test_a_part_is_not_forgotten_behind_a_link(log_dir, tmp_path, precious):
    before = everything(precious)
    assert convert(log_dir, tmp_path / "new").is_whole
    place = tmp_path / "new.seglog-spark/done"
    shutil.rmtree(place)
    place.symlink_to(precious / "done")
    with pytest.raises(StorageError, match="a symbolic link"):
        rollback_topics(tmp_path / "new", partitions=["orders-0"], fs=UnsyncedFs())
    assert everything(precious) == before


def test_a_rollback_refuses_a_partition_of_which_it_has_no_outcome(log_dir, tmp_path):
    """A newer orders-0, which a broker has made since, was removed."""
    target = tmp_path / "new"
    assert convert(log_dir, target).is_whole
    (tmp_path / "new.seglog-spark/outcome/orders-0").unlink()
    for partitions in ([], ["orders-0"]):
        with pytest.raises(InvalidArgumentError, match="not the one that this conversion made") as refused:
            rollback_topics(target, partitions=partitions, fs=UnsyncedFs())
        assert refused.value.file == str(target / "orders-0")
    assert partitions_in(target) == ["orders-0", "orders-1", "payments-0"]
    (target / "orders-0").rename(tmp_path / "kept")
    assert rollback_topics(target, fs=UnsyncedFs()) == ["orders-1", "payments-0"]
    assert not (tmp_path / "new.seglog-spark").exists()


@pytest.mark.parametrize("partitions", [[], ["orders-0"]])
def test_a_rollback_that_goes_on_refuses_what_has_appeared_since(log_dir, tmp_path, partitions):
    """Killed at any change, while its workplace goes; then a broker makes orders-0 again."""
    target, kept = tmp_path / "new", tmp_path / "kept"
    assert convert(log_dir, target).is_whole
    kept.mkdir()
    for name in ("new", "new.seglog-spark"):
        shutil.copytree(tmp_path / name, kept / name)
    refused = steps = 0
    while True:
        for name in ("new", "new.seglog-spark"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            shutil.copytree(kept / name, tmp_path / name)
        failing = FailingFs(UnsyncedFs(), steps, errno.EIO)
        try:
            rollback_topics(target, partitions=partitions, fs=failing)
            break
        except StorageError:
            pass
        steps += 1
        if (target / "orders-0").exists():
            continue
        (target / "orders-0").mkdir(parents=True)
        for log in (kept / "new/orders-0").iterdir():       # of the same sizes
            (target / "orders-0" / log.name).write_bytes(b"n" * log.stat().st_size)
        before = everything(target / "orders-0")
        words = "not the one that this conversion made|not published by this|no conversion into this target"
        try:
            with pytest.raises(InvalidArgumentError, match=words):
                rollback_topics(target, partitions=partitions, fs=UnsyncedFs())
            refused += 1
        except pytest.fail.Exception:
            pass        # the workplace had no journal any more
        assert everything(target / "orders-0") == before, failing.calls[-1]
    assert refused > 10


def test_the_journal_of_an_older_version_allows_all_losses_or_none():
    """Until version 2 its options had a boolean."""
    for old, kinds in ((True, LOSS_KINDS), (False, ())):
        assert ConversionOptions.of_dict({**ConversionOptions().to_dict(), "allow_lossy": old}).allow_lossy == kinds
    some = ConversionOptions(allow_lossy=("headers", "producers"))
    assert ConversionOptions.of_dict(json.loads(json.dumps(some.to_dict()))) == some
