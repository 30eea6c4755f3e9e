"""Whatever moment a crash, a kill, ^C or an error picks: the source is as it was, the target is whole or not there."""
import errno
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seglog.conversion.directory import Options, convert, plan_conversion, plan_from_options
from seglog.errors import StorageError
from seglog.fs.files import OsFileSystem
from seglog.fs.staging import leftovers
from support.conversion import UnsyncedFs, copied, source_of, tree
from support.faultfs import FailingFs, RecordingFs
from support.golden import golden_cases
from support.waiting import line_of

# `make torture` sets SEGLOG_TORTURE: the full count; otherwise a twentieth.
FULL = bool(os.environ.get("SEGLOG_TORTURE"))
STATES = 4_000 if FULL else 200     # of each scenario below
KILLS = 60 if FULL else 3

CASES = {case.name: case for case in golden_cases()}
SCENARIOS = {
    # name: (golden case, options, whether the staging must stand inside of the log dir)
    "mixed formats": ("mixed-formats-k282", {"config": {"index.interval.bytes": 256}}, False),
    "split, with transactions": ("txn-v2-k411", {"config": {"segment.bytes": 2000}}, False),
    "repacked, log dir of its own": ("rollms-v1-k391", {"repack_bytes": 16384, "codec": "zstd"}, True),
}


class LogDirOfItsOwn(UnsyncedFs):
    """The log dir is a file system of its own: nothing can be renamed into it or out of it."""

    def rename(self, source, target):
        if os.path.dirname(source) != os.path.dirname(target):
            raise StorageError("cannot rename", file=source, errno=errno.EXDEV)
        super().rename(source, target)


@pytest.fixture(params=SCENARIOS, ids=lambda name: name.replace(" ", "-").replace(",", ""))
def scenario(request, tmp_path):
    """(disk, options, file system): disk/logs/orders-0 is to become disk/made/orders-0."""
    case, options, inside = SCENARIOS[request.param]
    disk = tmp_path / "disk"
    copied(source_of(CASES[case]), disk / "logs" / "orders-0")
    (disk / "made").mkdir()
    return disk, options, LogDirOfItsOwn() if inside else UnsyncedFs()


def run(disk, fs, options):
    return convert(disk / "logs/orders-0", disk / "made/orders-0", fs=fs, **options)


def is_known_to_a_broker(name):
    """As a directory in its log dir: a partition, or one that it removes when it starts."""
    return re.fullmatch(r"[a-zA-Z0-9._-]+-\d+(\.[0-9a-f]{32}-delete)?", name) is not None


def split(files):
    """({name: bytes} of the source, of the target) among paths below the disk."""
    sides = {"logs/orders-0": {}, "made/orders-0": {}}
    for path, content in files.items():
        directory, _, name = path.rpartition("/")
        if directory in sides:
            sides[directory][name] = content
    return sides["logs/orders-0"], sides["made/orders-0"]


def test_after_a_crash_the_source_is_untouched_and_the_target_whole_or_absent(scenario):
    disk, options, inner = scenario
    before = {path.name: path.read_bytes() for path in (disk / "logs/orders-0").iterdir()}
    recording = RecordingFs(disk, inner)
    run(disk, recording, options)
    recording.mark("returned")
    whole = {path.name: path.read_bytes() for path in (disk / "made/orders-0").iterdir()}
    seen = {"absent": 0, "whole": 0}
    for state in recording.crash_states(limit=STATES, seed=3):
        source, target = split(state.files)
        assert source == before, state.story()
        if "made/orders-0" in state.directories:
            assert target == whole, state.story()
            seen["whole"] += 1
        else:
            assert not state.marks, state.story()
            seen["absent"] += 1
        for directory in state.directories:
            parent, _, name = directory.rpartition("/")
            if parent == "made":
                assert is_known_to_a_broker(name), state.story()
            elif not parent:
                # Beside the log dir, which no broker looks into.
                assert name in ("logs", "made") or name.startswith("made+orders-0."), state.story()
    assert sum(seen.values()) == STATES
    assert seen["whole"]


def test_after_a_crash_the_same_conversion_goes_through(scenario):
    disk, options, inner = scenario
    recording = RecordingFs(disk, inner)
    run(disk, recording, options)
    whole = {path.name: path.read_bytes() for path in (disk / "made/orders-0").iterdir()}
    again = 0
    for state in list(recording.crash_states(limit=STATES, seed=4))[:: STATES // 40]:
        if "made/orders-0" in state.directories:
            continue
        with state.materialise() as other:
            if not (other / "made").is_dir():
                continue
            run(other, UnsyncedFs(), options)
            made = {path.name: path.read_bytes() for path in (other / "made/orders-0").iterdir()}
            made.pop("seglog-conversion.json")
            assert made == {name: data for name, data in whole.items() if name != "seglog-conversion.json"}
            assert not leftovers(other / "made"), state.story()
            again += 1
    assert again > 20


def test_a_crash_while_a_result_is_replaced_leaves_the_old_one_or_the_new_one(tmp_path):
    disk = tmp_path / "disk"
    source = copied(source_of(CASES["v1-none-ct-k391"]), disk / "logs/orders-0")
    (disk / "made").mkdir()
    run(disk, UnsyncedFs(), {"codec": "gzip"})

    def again(disk, fs):
        options = Options(codec="lz4")
        plan_from_options(disk / "logs/orders-0", disk / "made/orders-0", options, replace=True, fs=fs).run()

    def contents(directory):
        return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != "seglog-conversion.json"}

    before, old = contents(source), contents(disk / "made/orders-0")
    recording = RecordingFs(disk, UnsyncedFs())
    again(disk, recording)
    recording.mark("returned")
    new = contents(disk / "made/orders-0")
    assert new != old
    seen = {"old": 0, "new": 0}
    for state in recording.crash_states(limit=STATES, seed=5):
        with state.materialise() as other:
            found = contents(other / "made/orders-0")
            assert found in (old, new), state.story()
            assert found == new or not state.marks, state.story()
            seen["new" if found == new else "old"] += 1
            again(other, UnsyncedFs())
            assert contents(other / "made/orders-0") == new
            assert contents(other / "logs/orders-0") == before
            assert not leftovers(other / "made"), state.story()
    assert min(seen.values()) > 2


@pytest.mark.parametrize("once", [True, False], ids=["one error", "a disk that stays broken"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_any_change_leaves_nothing_or_all(tmp_path, error, once):
    source = copied(source_of(CASES["mixed-formats-k282"]), tmp_path / "logs" / "orders-0")
    before = tree(source)
    count = FailingFs(UnsyncedFs())
    (tmp_path / "made").mkdir()
    options = {"config": {"index.interval.bytes": 256, "segment.bytes": 3000}}
    run(tmp_path, count, options)
    whole = tree(tmp_path / "made/orders-0")
    outcomes = {"refused": 0, "gone through": 0}
    for k in range(len(count.calls)):
        disk = tmp_path / str(k)
        (disk / "made").mkdir(parents=True)
        (disk / "logs").symlink_to(tmp_path / "logs")
        fs = FailingFs(UnsyncedFs(), fail_at=k, error=error, once=once, short=True)
        try:
            run(disk, fs, options)
            outcomes["gone through"] += 1       # where the staging may stand was the only question
        except StorageError:
            outcomes["refused"] += 1
        target = disk / "made/orders-0"
        assert not target.exists() or tree(target).keys() == whole.keys(), fs.calls[k]
        if once:
            # All else worked, also taking away what was there.
            assert not leftovers(disk / "made"), fs.calls[k]
    assert tree(source) == before
    assert outcomes["refused"] > len(count.calls) * 0.9


# --- processes that end ----------------------------------------------------------------------------

CONVERT = """
import signal, sys, time
from pathlib import Path
from seglog.conversion.directory import convert, plan_conversion
signal.signal(signal.SIGINT, signal.default_int_handler)     # a background job of a shell ignores it
calls = 0
def progress(done, total):
    global calls
    calls += 1
    if calls == int(sys.argv[2]):
        print("here", flush=True)
        time.sleep(60)
disk = Path(sys.argv[1])
plan_conversion(disk / "logs/orders-0", disk / "made/orders-0", config={"segment.bytes": 3000}).run(progress)
print("done", flush=True)
"""


@pytest.fixture
def disk(tmp_path):
    copied(source_of(CASES["v1-none-ct-k391"]), tmp_path / "logs" / "orders-0")
    (tmp_path / "made").mkdir()
    return tmp_path


def start(disk, stop_at):
    return subprocess.Popen(
        [sys.executable, "-c", CONVERT, str(disk), str(stop_at)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


def progress_calls(disk):
    calls = []
    other = disk / "count"
    other.mkdir()
    plan = plan_conversion(disk / "logs/orders-0", other / "orders-0", config={"segment.bytes": 3000}, fs=UnsyncedFs())
    plan.run(lambda done, total: calls.append(done))
    return len(calls)


def test_kill_9_leaves_no_target_and_the_next_run_removes_what_it_left(disk):
    before = tree(disk / "logs")
    count = progress_calls(disk)
    for kill in range(KILLS):
        process = start(disk, 1 + kill * (count - 1) // max(1, KILLS - 1))
        assert line_of(process) == "here\n"
        process.kill()
        process.communicate()
        assert not (disk / "made/orders-0").exists()
        left, = leftovers(disk / "made")
        assert left.parent == disk       # beside the log dir
    result = convert(disk / "logs/orders-0", disk / "made/orders-0", config={"segment.bytes": 3000})
    assert not leftovers(disk / "made")
    assert result.proof.holds
    assert tree(disk / "logs") == before


@pytest.mark.skipif(not FULL, reason="an hour of kills at any time: make torture")
def test_kill_9_at_any_time(disk):
    before = tree(disk / "logs")
    began = time.monotonic()
    process = start(disk, 0)
    process.communicate()
    lasts = time.monotonic() - began
    whole = {name: digest for name, (digest, _) in tree(disk / "made/orders-0").items()}
    outcomes = set()
    for number in range(400):
        for path in sorted((disk / "made/orders-0").glob("*")):
            path.unlink()
        if (disk / "made/orders-0").exists():
            (disk / "made/orders-0").rmdir()
        process = start(disk, 0)
        time.sleep(int(hashlib.sha256(str(number).encode()).hexdigest()[:4], 16) / 65536 * lasts)
        process.kill()
        process.communicate()
        found = {name: digest for name, (digest, _) in tree(disk / "made/orders-0").items()}
        assert found in ({}, whole)
        outcomes.add(bool(found))
        assert tree(disk / "logs") == before
    assert outcomes == {True, False}


@pytest.mark.parametrize("where", [0, 0.5, 1])
def test_an_interrupt_leaves_nothing(disk, where):
    before = tree(disk / "logs")
    process = start(disk, max(1, round(progress_calls(disk) * where)))
    assert line_of(process) == "here\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert "KeyboardInterrupt" in error
    assert not (disk / "made/orders-0").exists()
    assert not leftovers(disk / "made")
    assert tree(disk / "logs") == before


def test_a_run_that_still_goes_on_is_not_swept_away(disk):
    process = start(disk, 3)
    assert line_of(process) == "here\n"
    left, = leftovers(disk / "made")
    plan = plan_conversion(disk / "logs/orders-0", disk / "made/orders-1", fs=OsFileSystem())
    with pytest.raises(Exception, match="locked by process") as e:
        plan.run()
    assert e.value.exit_status == 5
    assert Path(left).is_dir()
    process.kill()
    process.communicate()
