"""A segment in the middle of a log is gone: every door tells, unless a compaction left the gap."""
import logging

import pytest

import seglog
from seglog._kernels import batch_survey
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.conversion.directory import convert
from seglog.conversion.proof import PROOF_FILE, Proof
from seglog.format import names
from seglog.format.batch import build_batch
from seglog.fs.files import OsFileSystem
from seglog.log.log import Log
from seglog.log.mirror import mirror
from seglog.state.checkpoints import format_offset_checkpoint
from seglog.state.kept_settings import put_settings
from seglog.upkeep.cleaner import clean
from support.command import seglog as command
from support.command import seglog_json


def without_segment(path, slot, count=30, **config):
    """A log of one-record batches, without all files of one of its segments; the offsets that are gone."""
    with seglog.open(path, config={"segment.bytes": 1000, **config}, fsync="never") as log:
        for n in range(count):
            log.append(b"%d" % n + b"v" * 30, key=b"key %d" % n)
        bases = [segment.base_offset for segment in log.segments]
        assert len(bases) >= 4
    for file in path.glob(f"{bases[slot]:020d}.*"):
        file.unlink()
    return bases[slot], bases[slot + 1] - 1


@pytest.fixture
def gappy(tmp_path):
    path = tmp_path / "logs" / "orders-0"
    return path, without_segment(path, 1)


def ranges(lost):
    return [(gap.first_offset, gap.last_offset) for gap in lost]


def codes(path, **how):
    return {(finding.code, finding.offset, finding.last_offset) for finding in seglog.verify(path, **how).findings}


def test_verify_warns_and_exits_with_1(gappy):
    path, (first, last) = gappy
    report = seglog.verify(path, level="headers")
    assert codes(path) == {("segment_gap", first, last)}
    assert not report.ok
    assert f"offsets {first} to {last} are in no segment" in command("verify", path, status=1).stdout


def lost_of(found):
    """What was skipped when all was read."""
    for _ in found:
        pass
    return found.lost


def test_read_tells_the_range(gappy):
    path, gap = gappy
    with seglog.open_partition(path) as partition:
        found = partition.read(on_corrupt="skip")
        assert len(list(found)) == 30 - (gap[1] - gap[0] + 1)
        whole = found.lost
        inside = lost_of(partition.read(gap[0] + 1, gap[1], on_corrupt="skip"))
        before = lost_of(partition.read(0, gap[0], on_corrupt="skip"))
        behind = lost_of(partition.read(gap[1] + 1, on_corrupt="skip"))
        assert list(partition.read())       # compaction leaves such gaps: no error
    assert ranges(whole) == [gap]
    assert ranges(inside) == [(gap[0] + 1, gap[1] - 1)]
    assert (before, behind) == ((), ())
    assert str(gap[1]) in whole[0].reason
    assert whole[0].size_bytes == 0


def test_columns_and_batches_tell_the_range(gappy):
    path, gap = gappy
    with seglog.open_partition(path) as partition:
        for read in (partition.columns, partition.batches):
            assert ranges(lost_of(read(on_corrupt="skip"))) == [gap]


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
@pytest.mark.parametrize("slot", [1, -2])
def test_scan_has_the_range(tmp_path, on_corrupt, slot):
    path = tmp_path / "orders-0"
    gap = without_segment(path, slot)
    scan = seglog.scan(path, on_corrupt=on_corrupt)
    assert scan.to_arrow().num_rows == 30 - (gap[1] - gap[0] + 1)
    assert ranges(scan.lost) == [gap]
    behind = seglog.scan(path, on_corrupt=on_corrupt, from_offset=gap[1] + 1)
    behind.to_arrow()
    assert behind.lost == ()


def test_scan_has_a_range_before_a_last_segment_without_records(tmp_path):
    path = tmp_path / "orders-0"
    with seglog.open(path, config={"segment.bytes": 1000}, fsync="never") as log:
        for _ in range(30):
            log.append(b"v" * 40)
        log.roll()
        bases = [segment.base_offset for segment in log.segments]
    (path / f"{bases[-2]:020d}.log").unlink()
    scan = seglog.scan(path)
    scan.to_arrow()
    assert ranges(scan.lost) == [(bases[-2], bases[-1] - 1)]


def test_pieces_of_a_scan_carry_the_range_to_other_machines(gappy):
    import pickle

    path, gap = gappy
    found = []
    for part in pickle.loads(pickle.dumps(seglog.scan(path, on_corrupt="skip").parts(min_bytes=200))):
        list(part.batches(found))
    assert ranges(found) == [gap]


def test_dump_skips_and_reports_it(gappy):
    path, (first, last) = gappy
    lines = seglog_json("dump", path, "--on-corrupt", "skip", status=7)
    (lost,) = [line for line in lines if line.get("type") == "lost_range"]
    assert (lost["first_offset"], lost["last_offset"]) == (first, last)


def test_convert_succeeds_and_its_proof_has_the_gap(gappy, tmp_path):
    path, gap = gappy
    (tmp_path / "converted").mkdir()
    target = tmp_path / "converted" / "orders-0"
    result = convert(path, target, to=1)
    assert Proof.read(target / PROOF_FILE).gaps == (gap,)
    assert any(str(gap[1]) in warning for warning in result.warnings)
    assert codes(target, level="headers") == {("segment_gap", *gap)}


def test_a_conversion_of_a_whole_log_has_no_gap(tmp_path):
    path = tmp_path / "orders-0"
    with seglog.open(path, fsync="never") as log:
        log.append(b"v")
    (tmp_path / "converted").mkdir()
    convert(path, tmp_path / "converted" / "orders-0", to=2, repack_bytes=1000)
    assert Proof.read(tmp_path / "converted" / "orders-0" / PROOF_FILE).gaps == ()


def test_mirror_says_and_counts_it(gappy, tmp_path, caplog):
    path, (first, last) = gappy
    with caplog.at_level(logging.WARNING), seglog.open_partition(path) as source, \
            seglog.open(tmp_path / "copy" / "orders-0") as copy:
        done = mirror(source, copy)
        assert done.missing_offsets == last - first + 1
        assert str(last) in caplog.text
        assert mirror(source, copy).missing_offsets == 0
    line, = seglog_json("mirror", path, tmp_path / "again" / "orders-0")
    assert line["missing_offsets"] == last - first + 1


def test_write_table_says_and_counts_it(gappy, tmp_path, caplog):
    pytest.importorskip("pyarrow")
    path, (first, last) = gappy
    with caplog.at_level(logging.WARNING):
        written = seglog.write_table(path, tmp_path / "lake")
    assert sum(part.missing_offsets for part in written) == last - first + 1
    assert str(last) in caplog.text
    assert seglog.write_table(path, tmp_path / "lake") == []


def test_a_segment_that_was_cut_short_leaves_a_gap(tmp_path):
    path = tmp_path / "orders-0"
    with seglog.open(path, config={"segment.bytes": 1000}, fsync="never") as log:
        for _ in range(30):
            log.append(b"v" * 40)
        second, third = log.segments[1], log.segments[2]
        keep = next(iter(second.batches()))
        cut, first, last = second.path, keep.last_offset + 1, third.base_offset - 1
        size = keep.size_bytes
    with open(cut, "r+b") as file:
        file.truncate(size)
    assert ("segment_gap", first, last) in codes(path)


# --- no false alarm -------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["policy", "settings", "checkpoint", "topic", "hole"])
def test_a_gap_in_a_compacted_topic_is_a_note(tmp_path, sign):
    path = tmp_path / ("__consumer_offsets-0" if sign == "topic" else "orders-0")
    gap = without_segment(path, 1)
    config = {}
    match sign:
        case "policy":
            config = {"cleanup.policy": "compact,delete"}
        case "settings":
            put_settings(OsFileSystem(), path, {"cleanup.policy": "compact"})
        case "checkpoint":
            (path.parent / names.CLEANER_CHECKPOINT).write_bytes(format_offset_checkpoint({("orders", 0): 20}))
        case "hole":
            with seglog.open(path) as log:
                end = log.log_end_offset
                log.append_batch(build_batch([(None, b"x")], base_offset=end + 1), assign_offsets=False)
    report = seglog.verify(path, config=config)
    assert [(f.code, f.offset, f.last_offset) for f in report.findings if "gap" in f.code] == [
        ("segment_gap_compacted", *gap)]
    assert report.ok
    with seglog.open_partition(path, config=config) as partition:
        assert lost_of(partition.read(on_corrupt="skip")) == ()


def test_our_compaction_leaves_no_warning(tmp_path):
    path = tmp_path / "orders-0"
    with Log(path, config={"cleanup.policy": "compact", "segment.bytes": 1000}, fsync="never") as log:
        for n in range(60):
            log.append(b"v" * 40, key=b"%d" % (n % 7) if n < 50 else b"last %d" % n)
        clean(log)
        assert any(a.next_offset < b.base_offset for a, b in zip(log.segments, log.segments[1:], strict=False))
    assert seglog.verify(path).ok
    with seglog.open_partition(path) as partition:
        lost = lost_of(partition.read(on_corrupt="skip"))
    scan = seglog.scan(path)
    scan.to_arrow()
    assert (lost, scan.lost) == ((), ())


def test_deleted_heads_cuts_and_aborted_records_leave_no_warning(tmp_path):
    path = tmp_path / "orders-0"
    with seglog.open(path, config={"segment.bytes": 1000}, fsync="never") as log:
        for n in range(40):
            log.append(b"v" * 40)
            if n in (10, 25):
                with log.producer(7) as producer:
                    producer.begin()
                    producer.append_many([(None, b"never")] * 3)
                    producer.abort()
        log.delete_records(13)
        log.truncate_to(30)
        for _ in range(20):
            log.append(b"v" * 40)
        assert lost_of(log.read(isolation="read_committed", on_corrupt="skip")) == ()
    assert seglog.verify(path).findings == []
    with seglog.open_partition(path) as partition:
        for isolation in ("read_committed", "read_uncommitted"):
            assert lost_of(partition.read(isolation=isolation, on_corrupt="skip")) == ()


def test_damage_at_the_end_of_a_segment_is_not_told_twice(tmp_path):
    path = tmp_path / "orders-0"
    with seglog.open(path, config={"segment.bytes": 1000}, fsync="never") as log:
        for _ in range(30):
            log.append(b"v" * 40)
        batches = list(log.segments[1].batches())
        cut = log.segments[1].path
    with open(cut, "r+b") as file:
        file.truncate(batches[-1].position + 20)
    assert {code for code, _, _ in codes(path) if code.startswith("segment")} == set()
    with seglog.open_partition(path) as partition:
        lost = lost_of(partition.read(on_corrupt="skip"))
    assert len(lost) == 1


# --- holes in headers -------------------------------------------------------------------------------


def first_hole(batches, next_offset):
    """The twin."""
    for slot, batch in enumerate(batches):
        if not (batch.magic in (0, 1) and batch.codec):
            sparse = batch.magic == 2 and batch.count < batch.last_offset - batch.base_offset + 1
            if sparse or 0 <= next_offset < batch.base_offset:
                return slot
        next_offset = batch.last_offset + 1
    return -1


def test_the_kernel_finds_the_first_hole_as_its_twin_does(golden_kafka):
    found = set()
    logs = [*(golden_kafka / "cases").glob("*/*-0/*.log"), *(golden_kafka / "pairs/compact").glob("*/*/*-0/*.log")]
    for log in logs:
        table = scan(Window(log.read_bytes()))
        for next_offset in (-1, 0, names.parse_base_offset(log.name)):
            slot = batch_survey.first_hole(table, next_offset)
            assert slot == first_hole(list(table), next_offset), log
            found.add(slot)
    assert len(found) > 5
