"""The time ranges of a directory: one that is damaged, stale or untrue is a finding; tools show a good one."""
import struct

import pytest

import seglog
from seglog._kernels.crc import crc32c
from support.command import seglog as command
from support.command import seglog_json
from support.lookups import offset_at

NOW = 1_700_000_000_000
RECORDS = 60


@pytest.fixture
def directory(tmp_path):
    """Two segments with time ranges, the first of 60 records in no order of time."""
    path = tmp_path / "orders-0"
    config = {"seglog.time.index.minute.enabled": False, "segment.ms": 2**40}
    with seglog.open(path, fsync="never", config=config) as log:
        for n in range(RECORDS):
            log.append(b"x" * 2000, timestamp=NOW + n * 7919 % 600)
        log.roll()
        log.append(b"last", timestamp=NOW + 700)
    command("index", "rebuild", "--apply", "--time-ranges", path)
    return path


def ranges_of(directory):
    return directory / f"{0:020}.ranges.index"


def resealed(raw):
    return raw[:8] + struct.pack(">I", crc32c(raw[12:])) + raw[12:]


DAMAGE = {
    "bytes of another file": (lambda _: b"\x7f" * 240, "timeranges_corrupt"),
    "a flipped bit": (lambda raw: raw[:80] + bytes([raw[80] ^ 1]) + raw[81:], "timeranges_corrupt"),
    "a torn file": (lambda raw: raw[:-1], "timeranges_corrupt"),
    "another log's": (lambda raw: resealed(raw[:20] + b"????" + raw[24:]), "timeranges_stale"),
    "another segment's": (lambda raw: resealed(raw[:40] + struct.pack(">q", 10**6) + raw[48:]), "timeranges_stale"),
}


def test_right_ones_are_clean_at_every_level(directory):
    assert len(list(directory.glob("*.ranges.index"))) == 2
    for level in ("headers", "crc", "deep"):
        assert seglog.verify(directory, level=level).findings == []
    command("verify", "--indexes", directory)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bad_one_is_a_finding_and_never_a_wrong_answer(directory, damage):
    change, code = DAMAGE[damage]
    path = ranges_of(directory)
    right = path.read_bytes()
    path.write_bytes(change(right))
    assert [(f.code, f.file) for f in seglog.verify(directory).findings] == [(code, str(path))]
    command("verify", directory, status=1)
    [found] = [line for line in seglog_json("verify", "--indexes", directory, status=1)
               if line["type"] == "index" and line["file"] == str(path)]
    assert found["codes"] == [code]
    with seglog.open_partition(directory) as partition:
        times = [r.timestamp for r in partition.read()]
        for time in range(NOW, NOW + 701, 9):
            assert offset_at(partition, time) == next(n for n, t in enumerate(times) if t >= time)
    command("index", "rebuild", "--apply", directory)
    assert path.read_bytes() == right
    assert seglog.verify(directory, level="deep").ok


def test_one_that_says_other_times_than_the_records_is_an_error_of_the_deep_level(directory):
    path = ranges_of(directory)
    raw = bytearray(path.read_bytes())
    struct.pack_into(">q", raw, 64 + 32 + 24, NOW)      # the largest of the second run
    path.write_bytes(resealed(bytes(raw)))
    assert seglog.verify(directory).findings == []
    [finding] = seglog.verify(directory, level="deep").findings
    assert (finding.code, finding.position) == ("timeranges_mislead", 64 + 32)
    assert finding.found.startswith("run 1 (")


def test_a_newer_version_is_a_note(directory):
    path = ranges_of(directory)
    path.write_bytes(path.read_bytes()[:4] + struct.pack(">I", 9) + bytes(60))
    [finding] = seglog.verify(directory).findings
    assert (finding.code, finding.severity) == ("timeranges_newer", "note")
    assert "version 9" in finding.found
    assert "version 9; this seglog reads version 1" in command("dump", path, status=4).stderr
    assert "version 9" in command("index", "rebuild", "--apply", directory, status=7).stderr
    command("stats", directory)
    command("ls", directory)


def test_a_last_segment_that_grew_is_no_finding(directory):
    with seglog.open(directory, fsync="never") as log:
        log.append(b"more", timestamp=NOW)
        log.flush()
        assert seglog.verify(directory).findings == []


def test_ls_stats_dump_and_index_check_show_them(directory):
    assert "time ranges" in command("ls", directory).stdout
    assert [line["time_ranges"] for line in seglog_json("ls", directory)] == [1, 1, 2, 2]
    assert "3 time ranges of seglog's own .ranges.index" in command("stats", directory).stdout
    [stats] = [line for line in seglog_json("stats", directory) if "indexes" in line]
    assert stats["indexes"]["time_ranges"] == 3
    rows = [line for line in seglog_json("dump", ranges_of(directory)) if line["type"] == "time_range"]
    assert [(row["first_offset"], row["last_offset"]) for row in rows] == [(0, 31), (32, 59)]
    assert rows[0]["smallest"] == min(NOW + n * 7919 % 600 for n in range(32))
    assert rows[0]["size"] == rows[1]["position"]
    assert ".ranges.index" in command("verify", "--indexes", directory).stdout
    for path in directory.glob("*.ranges.index"):
        path.unlink()
    assert "time ranges" not in command("ls", directory).stdout
    assert "time range" not in command("stats", directory).stdout


def test_an_orphan_goes_at_the_next_opening(directory):
    for suffix in (".log", ".index", ".timeindex"):
        (directory / f"{0:020}{suffix}").unlink()
    assert "orphan_index" in [f.code for f in seglog.verify(directory).findings]
    with seglog.open(directory, fsync="never"):
        assert not ranges_of(directory).exists()


def test_seek_and_dump_by_time_answer_as_before(directory):
    def shown():
        for time in (NOW, NOW + 300, NOW + 599, NOW + 600, NOW + 700):
            yield seglog_json("seek", directory, "--time", str(time))
            yield seglog_json("dump", directory, "--since", str(time))
        yield seglog_json("seek", directory, "--time", "-3")

    with_ranges = list(shown())
    for path in directory.glob("*.ranges.index"):
        path.unlink()
    assert list(shown()) == with_ranges
