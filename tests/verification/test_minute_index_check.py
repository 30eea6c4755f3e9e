"""The minute index of a directory: a damaged one is a finding, and never a wrong answer."""
import struct

import pytest

import seglog
from support.command import seglog as command
from support.command import seglog_json
from support.lookups import offset_at

NOW = 1_700_000_000_000
CONFIG = {"index.interval.bytes": 100, "seglog.time.index.minute.enabled": True}
RECORDS = 60


@pytest.fixture
def directory(tmp_path):
    """A log with a minute index of 21 entries in its first segment."""
    path = tmp_path / "orders-0"
    with seglog.open(path, fsync="never", config=CONFIG) as log:
        for n in range(RECORDS):
            log.append(b"x" * 200, timestamp=NOW + n * 20_000)
        log.roll()
        log.append(b"later", timestamp=NOW + RECORDS * 20_000)
    return path


def index_of(directory):
    return directory / f"{0:020}.time.index"


def shifted(raw, by):
    return b"".join(struct.pack(">qi", t, o + by) for t, o in struct.iter_unpack(">qi", raw))


DAMAGE = {
    "240 bytes of 0x7f": (lambda raw: b"\x7f" * 240, "minuteindex_corrupt"),
    "a part of an entry": (lambda raw: raw[:-5], "minuteindex_corrupt"),
    "zeros at the end": (lambda raw: raw + bytes(24), "minuteindex_corrupt"),
    "offsets shifted by 20": (lambda raw: shifted(raw, 20), "minuteindex_misleads"),
    "offsets shifted back": (lambda raw: shifted(raw, -1), "minuteindex_misleads"),
    "times that are too early": (
        lambda raw: b"".join(struct.pack(">qi", t - 1, o) for t, o in struct.iter_unpack(">qi", raw)),
        "minuteindex_misleads"),
}


def test_a_right_one_is_clean(directory):
    assert len(index_of(directory).read_bytes()) == 12 * 21
    assert seglog.verify(directory, config=CONFIG).ok
    command("verify", "--indexes", directory)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_one_is_a_finding_and_never_a_wrong_answer(directory, damage):
    change, code = DAMAGE[damage]
    index = index_of(directory)
    right = index.read_bytes()
    index.write_bytes(change(right))
    report = seglog.verify(directory, config=CONFIG)
    assert [(f.code, f.file) for f in report.findings] == [(code, str(index))]
    command("verify", directory, status=1)
    [found] = [line for line in seglog_json("verify", "--indexes", directory, status=1)
               if line.get("file") == str(index) and line["type"] == "index"]
    assert found["codes"] == [code]
    with seglog.open_partition(directory) as partition:
        for n in range(RECORDS + 1):
            assert offset_at(partition, NOW + n * 20_000) == n
            assert offset_at(partition, NOW + n * 20_000 - 1) == n
        assert offset_at(partition, NOW + (RECORDS + 1) * 20_000) is None
    command("index", "rebuild", "--apply", directory, "--config", "index.interval.bytes=100")
    assert index.read_bytes() == right
    assert seglog.verify(directory, config=CONFIG).ok


def test_a_closed_partition_seeks_by_it(directory):
    """Without a time index only the minute index can say where to begin."""
    with seglog.open_partition(directory) as partition:
        offset_at(partition, NOW + 30 * 20_000)
        entries = partition.segments[0].files().time_entries
        assert bytes(memoryview(entries)) == index_of(directory).read_bytes()
    index_of(directory).unlink()
    with seglog.open_partition(directory) as partition:
        offset_at(partition, NOW + 30 * 20_000)
        entries = partition.segments[0].files().time_entries
        assert bytes(memoryview(entries)) == index_of(directory).with_name(f"{0:020}.timeindex").read_bytes()


def test_ls_stats_and_dump_show_it(directory):
    assert "minute indexes" in command("ls", directory).stdout
    assert [line["minute_indexes"] for line in seglog_json("ls", directory)] == [1, 1, 2, 2]
    assert "21 minute entries" in command("stats", directory).stdout
    [stats] = [line for line in seglog_json("stats", directory) if "indexes" in line]
    assert stats["indexes"]["minute_entries"] == 21
    entries = [line for line in seglog_json("dump", index_of(directory)) if line["type"] == "minute_index_entry"]
    assert len(entries) == 21
    for path in directory.glob("*.time.index"):
        path.unlink()
    assert "minute indexes" not in command("ls", directory).stdout
    assert "minute" not in command("stats", directory).stdout


def test_an_orphan_that_a_broker_leaves_goes_at_the_next_opening(directory):
    """A broker that deletes a segment knows its own files; ours stays behind."""
    for suffix in (".log", ".index", ".timeindex"):
        (directory / f"{0:020}{suffix}").unlink()
    assert index_of(directory).exists()
    assert "orphan_index" in [f.code for f in seglog.verify(directory, config=CONFIG).findings]
    with seglog.open(directory, config=CONFIG, fsync="never") as log:
        assert not index_of(directory).exists()
        assert log.log_start_offset == RECORDS
