"""A conversion that was killed or interrupted goes on, with --resume, behind the segments that it had finished."""
import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.conversion import directory, resumption
from seglog.conversion.directory import Options, plan_from_options, run
from seglog.conversion.in_place import RolledBack, is_converted, plan_in_place, roll_back
from seglog.conversion.log_dir import convert_log_dir
from seglog.conversion.proof import PROOF_FILE
from seglog.conversion.resumption import NOTES_FILE
from seglog.fs.staging import beside_leftovers, leftovers
from support.command import seglog, seglog_json
from support.conversion import UnsyncedFs, copied, log_files, source_of
from support.faultfs import RecordingFs
from support.golden import golden_cases
from support.mutations import mend_checksums

CASES = {case.name: case for case in golden_cases()}
OPTIONS = {
    # golden case: options; each has several segments
    "rollms-v1-k391": Options(codec="gzip"),
    "txn-v2-k411": Options(config={"segment.bytes": 2000}),
    "mixed-formats-k282": Options(to=1, codec="gzip", allow_lossy=("headers", "timestamps", "control", "producers")),
}


@pytest.fixture(params=OPTIONS)
def disk(request, tmp_path):
    """(source, target, options), the log dir of the target made."""
    copied(source_of(CASES[request.param]), tmp_path / "logs/orders-0")
    source = tmp_path / "logs/orders-0"
    (tmp_path / "made").mkdir()
    return source, tmp_path / "made/orders-0", OPTIONS[request.param]


def planned(disk, *, resumes):
    source, target, options = disk
    return plan_from_options(source, target, options, replace=resumes, fs=UnsyncedFs())


def killed(disk, at, *, resumes=False):
    """Run in a process that ends like one killed with -9, once `at` (0 to 1) of the work is done."""
    child = os.fork()
    if child == 0:
        try:
            run(planned(disk, resumes=resumes), lambda done, total: os._exit(9) if done >= at * total else None)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.fixture
def converted(monkeypatch):
    """The names of the source segments that are converted."""
    names, real = [], directory.convert_segment

    def convert_segment(fs, path, *args, **options):
        names.append(path.name)
        return real(fs, path, *args, **options)

    monkeypatch.setattr(directory, "convert_segment", convert_segment)
    return names


def resumed(disk):
    result = run(planned(disk, resumes=True))
    log_dir = disk[1].parent
    assert leftovers(log_dir) == []
    return result


def content(target):
    """Bytes of each file but the proof, and the times of the segments'."""
    times = {path.name: path.stat().st_mtime_ns for path in target.glob("*.log")}
    return log_files(target), times


def whole(disk):
    """What an undisturbed run makes, with the name of the target."""
    source, target, options = disk
    other = target.parent.parent / "whole/orders-0"
    other.parent.mkdir(exist_ok=True)
    run(plan_from_options(source, other, options, fs=UnsyncedFs()))
    return content(other)


def notes_of(disk):
    one, = leftovers(disk[1].parent)
    return one, one / NOTES_FILE


def test_a_resumed_conversion_converts_only_what_was_not_finished(disk, converted):
    expected, everything = whole(disk), list(converted)
    del converted[:]
    assert killed(disk, 0.999)
    result = resumed(disk)
    assert result.resumed == len(everything) - 1
    assert converted == everything[-1:]
    assert content(disk[1]) == expected
    assert not (disk[1] / NOTES_FILE).exists()
    assert result.proof.holds


def test_kills_at_any_moment_and_in_resumed_runs_lead_to_the_same_target(disk):
    expected = whole(disk)
    for at in (0.0, 0.3, 0.6, 0.6, 0.9, 0.95):
        killed(disk, at, resumes=True)
    resumed(disk)
    assert content(disk[1]) == expected


def damage_of_kind(kind, staging, notes):
    first = sorted(staging.glob("*.log"))[0]
    if kind == "a flipped byte":
        raw = bytearray(first.read_bytes())
        raw[len(raw) // 2] ^= 0x40
        first.write_bytes(raw)
    elif kind == "a shorter file":
        os.truncate(first, first.stat().st_size - 1)
    elif kind == "no index":
        first.with_suffix(".index").unlink()
    elif kind == "another index":
        first.with_suffix(".timeindex").write_bytes(bytes(12))
    elif kind == "no file":
        first.unlink()
    elif kind == "a link to elsewhere":
        first.unlink()
        first.symlink_to("/etc/passwd")
    elif kind == "notes of another version":
        notes.write_bytes(notes.read_bytes().replace(b'"version": 1', b'"version": 2', 1))
    elif kind == "no notes":
        notes.unlink()
    elif kind == "open to others":
        staging.chmod(0o777)
    else:
        raise AssertionError(kind)


@pytest.mark.parametrize("kind", [
    "a flipped byte", "a shorter file", "no index", "another index", "no file", "a link to elsewhere",
    "notes of another version", "no notes", "open to others",
])
def test_what_is_not_as_it_was_finished_is_converted_again(disk, kind):
    expected = whole(disk)
    assert killed(disk, 0.999)
    before = len(list(disk[0].glob("*.log"))) - 1
    damage_of_kind(kind, *notes_of(disk))
    assert resumed(disk).resumed < before
    assert content(disk[1]) == expected


@pytest.mark.parametrize("disk", ["txn-v2-k411"], indirect=True)
def test_other_records_with_right_checksums_are_converted_again(disk):
    expected = whole(disk)
    assert killed(disk, 0.999)
    staging, _ = notes_of(disk)
    changed, value = next(
        (path, record.value) for path in sorted(staging.glob("*.log")) for batch in scan(Window(path.read_bytes()))
        if not batch.codec and not batch.is_control for record in batch if record.value
    )
    raw = bytearray(changed.read_bytes())
    raw[raw.index(value)] ^= 1
    changed.write_bytes(mend_checksums(raw))
    assert resumed(disk).resumed < len(list(disk[0].glob("*.log"))) - 1
    assert content(disk[1]) == expected


def test_notes_that_end_anywhere_lead_to_the_same_target(disk):
    expected = whole(disk)
    assert killed(disk, 0.999)
    staging, notes = notes_of(disk)
    kept = disk[1].parent.parent / "kept"
    shutil.copytree(staging, kept)
    raw, rng = notes.read_bytes(), random.Random(1)
    for size in [0, 1, *rng.sample(range(len(raw)), 5)]:
        shutil.copytree(kept, staging, dirs_exist_ok=True)
        staging.chmod(0o700)
        notes.write_bytes(raw[:size])
        resumed(disk)
        assert content(disk[1]) == expected
        shutil.rmtree(disk[1])


def test_nothing_is_taken_over_for_another_source_other_options_another_target_or_another_release(disk, monkeypatch):
    source, target, options = disk
    assert killed(disk, 0.999)
    staging, _ = notes_of(disk)
    kept = target.parent.parent / "kept"
    shutil.copytree(staging, kept)

    def run_with(options=options, target=target):
        shutil.copytree(kept, staging, dirs_exist_ok=True)
        staging.chmod(0o700)
        result = run(plan_from_options(source, target, options, replace=True, fs=UnsyncedFs()))
        shutil.rmtree(target)
        return result.resumed

    assert run_with() > 0
    assert run_with(Options(options.to, options.repack_bytes, "zstd" if options.to == 2 else "snappy",
                            allow_lossy=options.allow_lossy, config=options.config)) == 0
    assert run_with(target=target.with_name("orders-1")) == 0
    with monkeypatch.context() as patch:
        patch.setattr(resumption, "__version__", "0.0.9")
        assert run_with() == 0
    first = sorted(source.glob("*.log"))[0]
    os.utime(first, ns=(1, 1))
    assert run_with() == 0


def test_without_resume_a_run_begins_anew(disk):
    assert killed(disk, 0.999)
    result = run(planned(disk, resumes=False))
    assert result.resumed == 0
    assert leftovers(disk[1].parent) == []


class Stop:
    def __init__(self, at):
        self.at = at

    def __call__(self, done, total):
        if done >= self.at * total:
            raise KeyboardInterrupt


def test_an_interrupt_keeps_what_is_finished_of_a_large_partition_and_says_so(disk, monkeypatch):
    monkeypatch.setattr(directory, "LARGE_BYTES", 1)
    with pytest.raises(KeyboardInterrupt) as caught:
        run(planned(disk, resumes=False), Stop(0.999), keeps_large=True)
    staging, _ = notes_of(disk)
    note, = caught.value.__notes__
    assert str(staging) in note
    assert "--resume continues there" in note
    assert resumed(disk).resumed == len(list(disk[0].glob("*.log"))) - 1


@pytest.mark.parametrize(("large_bytes", "keeps", "at"), [(1 << 30, True, 0.999), (1, False, 0.999), (1, True, 0.0)])
def test_an_interrupt_leaves_nothing_of_a_small_partition_or_of_one_with_nothing_finished(
    disk, monkeypatch, large_bytes, keeps, at
):
    monkeypatch.setattr(directory, "LARGE_BYTES", large_bytes)
    with pytest.raises(KeyboardInterrupt):
        run(planned(disk, resumes=False), Stop(at), keeps_large=keeps)
    assert leftovers(disk[1].parent) == []


def test_an_error_leaves_nothing_of_a_large_partition(disk, monkeypatch):
    monkeypatch.setattr(directory, "LARGE_BYTES", 1)

    def fail(done, total):
        if done >= 0.999 * total:
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        run(planned(disk, resumes=False), fail, keeps_large=True)
    assert leftovers(disk[1].parent) == []


def test_a_log_dir_is_resumed_within_its_partitions(disk):
    source, target, options = disk
    shutil.copytree(source, source.with_name("orders-1"))
    assert killed(disk, 0.999)
    assert killed((source.with_name("orders-1"), target.with_name("orders-1"), options), 0.999, resumes=True)
    rows = list(convert_log_dir(source.parent, target.parent, options, resume=True, fs=UnsyncedFs()))
    assert [row.status for row in rows] == ["converted"] * 2
    segments = len(list(source.glob("*.log")))
    # The second kill was of a run for one partition, which removed the leftovers of others.
    assert [row.skipped for row in rows] == [0, segments - 1]
    assert leftovers(target.parent) == []


def test_the_command_says_what_it_took_over(disk):
    source, target, _ = disk
    made_with_defaults = source, target, Options()
    assert killed(made_with_defaults, 0.999)
    taken = len(list(source.glob("*.log"))) - 1
    said = seglog("convert", source, target, "--resume").stdout
    assert f"{taken} segment{'s' if taken > 1 else ''} converted by an earlier run, read and compared again" in said
    assert Path(target / PROOF_FILE).exists()


# --- in place ----------------------------------------------------------------------------------


@pytest.fixture
def place(disk, tmp_path):
    """(partition, directory of backups, options)"""
    return disk[0], tmp_path / "backups", disk[2]


def planned_in_place(place, *, resumes, fs=None):
    partition, backups, options = place
    return plan_in_place(partition, backups, options, resumes=resumes, keeps_large=True, fs=fs or UnsyncedFs())


def killed_in_place(place, at, *, resumes=False):
    child = os.fork()
    if child == 0:
        try:
            planned_in_place(place, resumes=resumes).run(
                lambda done, total: os._exit(9) if done >= at * total else None)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def left_of(place):
    return beside_leftovers(place[1] / place[0].name)


def in_its_place(place):
    """What is in the place of the partition after a conversion in place: see `content`."""
    assert sorted(path.name for path in place[1].iterdir()) == [".lock", "orders-0", "orders-0.seglog-exchange"]
    return content(place[0])


def test_a_conversion_in_place_goes_on_behind_what_a_killed_run_had_finished(disk, place, converted):
    expected, everything, old = whole(disk), list(converted), log_files(place[0])
    del converted[:]
    assert killed_in_place(place, 0.999)
    assert log_files(place[0]) == old
    assert planned_in_place(place, resumes=True).run().resumed == len(everything) - 1
    assert converted == everything[-1:]
    assert in_its_place(place) == expected
    assert log_files(place[1] / "orders-0") == old


def test_kills_of_a_conversion_in_place_at_any_moment_lead_to_the_same_partition(disk, place):
    expected, old = whole(disk), log_files(place[0])
    for at in (0.0, 0.3, 0.6, 0.6, 0.9, 0.95):
        killed_in_place(place, at, resumes=True)
        assert log_files(place[0]) == old
    planned_in_place(place, resumes=True).run()
    assert in_its_place(place) == expected


def test_without_resume_or_for_other_options_a_conversion_in_place_begins_anew(place):
    assert killed_in_place(place, 0.999)
    assert len(left_of(place)) == 1
    partition, backups, options = place
    other = replace(options, codec="lz4")
    assert planned_in_place((partition, backups, other), resumes=True).run().resumed == 0
    assert left_of(place) == []
    assert roll_back(partition, backups, fs=UnsyncedFs()) is RolledBack.RESTORED
    assert killed_in_place(place, 0.999)
    assert planned_in_place(place, resumes=False).run().resumed == 0
    assert left_of(place) == []


def test_a_partition_that_was_written_to_after_the_kill_is_converted_anew(place, converted):
    assert killed_in_place(place, 0.999)
    log = max(place[0].glob("*.log"))
    os.utime(log, ns=(log.stat().st_atime_ns, log.stat().st_mtime_ns + 1))
    assert planned_in_place(place, resumes=True).run().resumed == 0
    assert len(converted) == len(list((place[1] / "orders-0").glob("*.log")))


def test_another_source_with_the_same_names_sizes_and_times_is_converted_anew(place, converted):
    """A digest of names, sizes and times does not tell them apart, so the records of the first came in its place."""
    assert killed_in_place(place, 0.999)
    left, = left_of(place)
    for log in place[0].glob("*.log"):
        raw, found = log.read_bytes(), log.stat()
        while log.stat().st_ctime_ns <= (left / NOTES_FILE).stat().st_mtime_ns:      # the clock of files ticks slowly
            log.unlink()
            log.write_bytes(raw)
            os.utime(log, ns=(found.st_atime_ns, found.st_mtime_ns))
    result = planned_in_place(place, resumes=True).run()
    assert result.resumed == 0
    assert {*converted} == {segment.source for segment in result.segments}


def test_an_interrupt_in_place_keeps_what_is_finished_and_a_rollback_removes_it(place, monkeypatch):
    monkeypatch.setattr(directory, "LARGE_BYTES", 1)
    old = log_files(place[0])
    with pytest.raises(KeyboardInterrupt) as caught:
        planned_in_place(place, resumes=False).run(Stop(0.999))
    kept, = left_of(place)
    assert str(kept) in caught.value.__notes__[0]
    assert roll_back(place[0], place[1], fs=UnsyncedFs()) is RolledBack.NOTHING_CONVERTED
    assert left_of(place) == []
    assert log_files(place[0]) == old


def test_power_cuts_in_a_resumed_conversion_in_place_leave_the_old_or_the_new(place, tmp_path):
    assert killed_in_place(place, 0.999)
    old = log_files(place[0])
    recording = RecordingFs(tmp_path, UnsyncedFs())
    plan = planned_in_place(place, resumes=True, fs=recording)
    assert plan.run().resumed > 0
    recording.mark("returned")
    new, seen = content(place[0])[0], Counter()
    for state in recording.crash_states(limit=200, seed=3):
        with state.materialise() as other:
            cut = other / "logs/orders-0", other / "backups", place[2]
            stands = is_converted(*cut[:2], fs=UnsyncedFs())
            assert stands or not state.marks, state.story()
            assert log_files(cut[0]) == (new if stands else old), state.story()
            if not stands:
                planned_in_place(cut, resumes=True).run()
                assert log_files(cut[0]) == new, state.story()
            assert left_of(cut) == [], state.story()
            seen[stands] += 1
    assert min(seen[True], seen[False]) > 2


def test_the_command_goes_on_in_place_within_the_partitions_of_a_log_dir(place):
    partition, backups, _ = place
    segments = len(list(partition.glob("*.log")))
    taken = f"{segments - 1} segment{'s' * (segments > 2)}"
    assert killed_in_place((partition, backups, Options(codec="zstd")), 0.999)
    said = seglog(
        "convert", partition.parent, "--in-place", "--backup", backups, "--codec", "zstd", "--resume", "--apply").stdout
    assert f"orders-0: {taken} converted by an earlier run, read and compared again" in said
    seglog("convert", partition.parent, "--rollback", "--backup", backups, "--apply")
    assert killed_in_place((partition, backups, Options(codec="zstd")), 0.999)
    rows = seglog_json(
        "convert", partition.parent, "--in-place", "--backup", backups, "--codec", "zstd", "--resume", "--apply")
    assert [(row["status"], row["skipped"]) for row in rows if row["type"] == "partition"] == [
        ("converted", segments - 1)]
    rows = seglog_json(
        "convert", partition.parent, "--in-place", "--backup", backups, "--codec", "zstd", "--resume", "--apply")
    assert [row["status"] for row in rows if row["type"] == "partition"] == ["skipped"]
