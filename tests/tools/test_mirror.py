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


def test_the_mirror_of_messages_with_tags_is_a_log_of_such(tmp_path):
    """Its target was made for Kafka's formats, refused, and left empty."""
    with seglog.open(tmp_path / "orders-0", config={"seglog.message.dialect": "tagged"}) as log:
        for n in range(5):
            log.append_batch(seglog.build_batch([(b"k%d" % i, b"%d" % n) for i in range(6)], codec="gzip"))
    one, *several = (tmp_path / "to" / f"orders-{n}" for n in range(3))
    for targets in ([one], [one], several, several[::-1]):
        run("mirror", tmp_path / "orders-0", *targets)
    with seglog.open_partition(one) as partition:
        assert (partition._dialect.name, partition.log_end_offset) == ("tagged", 30)
    counts = []
    for path in several:
        with seglog.open_partition(path) as partition:
            counts.append(len(list(partition.read())))
    assert sum(counts) == 60
    assert min(counts) > 0


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


def test_a_source_that_is_damaged_at_once_makes_no_target(tmp_path):
    """An empty target used to stay, which a run that goes on took for a mirror."""
    source = tmp_path / "orders-0"
    with seglog.open(source, fsync="never") as log:
        for _ in range(3):
            log.append(b"v" * 50)
        file = log.segments[0].path
    raw = bytearray(file.read_bytes())
    raw[70] ^= 1
    file.write_bytes(raw)
    for targets in ([tmp_path / "a" / "orders-0"], [tmp_path / "a" / f"orders-{i}" for i in range(3)]):
        assert "checksum" in run("mirror", source, *targets, status=1).stderr
        assert not (tmp_path / "a").exists()


def test_a_target_that_was_made_in_vain_is_named(tmp_path):
    target = tmp_path / "a" / "orders-0"
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        log.append(b"v" * 500)
    done = run("mirror", tmp_path / "orders-0", target, "--config", "segment.bytes=400", status=1)
    assert f"created and still empty: {target}" in done.stderr
    done = run("mirror", tmp_path / "orders-0", target, tmp_path / "a" / "no name", status=2)
    assert "created and still empty" not in done.stderr      # it was there before


def test_one_partition_is_routed_into_several(tmp_path):
    with seglog.open(tmp_path / "orders-0", fsync="never") as log:
        for n in range(6):
            log.append_many([(b"k%d" % i if n % 2 else None, b"%d-%d" % (n, i)) for i in range(20)])
        expected = {(r.key, r.value) for r in log}
    targets = [tmp_path / "to" / f"orders-{i}" for i in range(3)]
    done = run("mirror", tmp_path / "orders-0", *targets)
    assert done.stdout.startswith("6 batches, 6 opened, 3 rebuilt, 3 routed whole, 3 split by keys, ")
    got = []
    for target in targets:
        with seglog.open_partition(target) as log:
            got.append({(r.key, r.value) for r in log})
            assert f"{log.log_end_offset}" in done.stdout.rpartition("of the targets")[2]
    assert set().union(*got) == expected
    assert sum(map(len, got)) == len(expected)
    line = json.loads(run("mirror", tmp_path / "orders-0", *targets, "--json", "--from-offset", "100").stdout)
    assert (line["batches"], line["keyed_batches"], len(line["log_end_offsets"])) == (1, 1, 3)


def test_holes_are_closed_where_it_is_asked_for(tmp_path):
    name = "compact-v2-mixed-pass2-k411"
    source = unpack("kafka") / "cases" / name / f"{name}-0"
    done = run("mirror", source, tmp_path / "orders-0", "--close-gaps")
    assert "rebuilt" in done.stdout
    with seglog.open_partition(source) as src, seglog.open_partition(tmp_path / "orders-0") as log:
        assert [r.value for r in log] == [r.value for r in src]
        assert [r.offset for b in log.batches() for r in b] == list(range(log.log_end_offset))      # with markers


def test_a_log_is_not_mirrored_into_itself(tmp_path):
    path = tmp_path / "orders-0"
    run("mirror", SOURCE, path)
    (tmp_path / "link-0").symlink_to(path)
    with seglog.open_partition(path) as log:
        end = log.log_end_offset
    for source in (path, tmp_path / "link-0"):
        assert "the same directory" in run("mirror", source, path, "--new-offsets", status=2).stderr
    with seglog.open_partition(path) as log:
        assert log.log_end_offset == end


def test_follow_goes_on_as_the_source_grows_until_it_is_interrupted(tmp_path):
    source, target = tmp_path / "a" / "orders-0", tmp_path / "b" / "orders-0"
    with seglog.open(source, fsync="never", clock=ManualClock(1000)) as log:
        log.append(b"first")
        child = subprocess.Popen(
            [sys.executable, "-m", "seglog.tools", "mirror", "--follow", "--json", source, target],
            stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": ""},
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
