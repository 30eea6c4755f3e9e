"""`seglog mirror`: one partition into another, unopened."""
import json
import os
import signal
import subprocess
import sys

import seglog
from seglog.clock import ManualClock
from support.command import seglog as run
from support.golden import unpack

NAME = "v1-lz4-lat-k282"
SOURCE = unpack("kafka") / "cases" / NAME / f"{NAME}-0"


def test_a_partition_is_mirrored_and_a_second_run_finds_nothing(tmp_path):
    target = tmp_path / "data" / "orders-0"
    done = run("mirror", SOURCE, target)
    with seglog.open_partition(SOURCE) as source, seglog.open_partition(target) as mirrored:
        end = source.log_end_offset
        assert f"of the target {end}" in done.stdout
        assert [bytes(b.raw()) for b in mirrored.batches()] == [bytes(b.raw()) for b in source.batches()]
    assert run("mirror", SOURCE, target).stdout.startswith("0 batches")
    line = json.loads(run("mirror", SOURCE, target, "--new-offsets", "--from-offset", "2", "--json").stdout)
    assert (line["type"], line["next_offset"], line["opened_batches"]) == ("mirrored", end, 0)
    assert line["log_end_offset"] > end


def test_what_cannot_be_is_refused(tmp_path):
    run("mirror", tmp_path / "none-0", tmp_path / "orders-0", status=3)
    run("mirror", SOURCE, tmp_path / "no name", status=2)
    run("mirror", SOURCE, status=2)


def test_a_refused_mirror_makes_no_target(tmp_path):
    (tmp_path / "empty-0").mkdir()
    for source, status in ((tmp_path / "none-0", 3), (tmp_path / "empty-0", 4)):
        run("mirror", source, tmp_path / "new" / "orders-0", status=status)
    for offset in ("-1", "99999"):
        run("mirror", SOURCE, tmp_path / "new" / "orders-0", "--from-offset", offset, status=2)
    assert not (tmp_path / "new").exists()


def test_a_log_is_not_mirrored_into_itself(tmp_path):
    path = tmp_path / "orders-0"
    run("mirror", SOURCE, path)
    (tmp_path / "link-0").symlink_to(path)
    with seglog.open_partition(path) as log:
        end = log.log_end_offset
    for source in (path, tmp_path / "link-0"):
        assert "one directory" in run("mirror", source, path, "--new-offsets", status=2).stderr
    with seglog.open_partition(path) as log:
        assert log.log_end_offset == end


def test_follow_goes_on_as_the_source_grows_until_it_is_interrupted(tmp_path):
    source, target = tmp_path / "a" / "orders-0", tmp_path / "b" / "orders-0"
    with seglog.open(source, fsync="never", clock=ManualClock(1000)) as log:
        log.append(b"first")
        child = subprocess.Popen(
            [sys.executable, "-m", "seglog.tools", "mirror", "--follow", "--json", source, target],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert json.loads(child.stdout.readline())["log_end_offset"] == 1
            for n in range(2, 5):
                log.append(b"more")
                assert json.loads(child.stdout.readline())["log_end_offset"] == n
        finally:
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == 130
            child.stdout.close()
    with seglog.open_partition(target) as mirrored:
        assert [r.value for r in mirrored] == [b"first", b"more", b"more", b"more"]
