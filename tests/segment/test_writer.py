"""A segment that is written is the segment that a broker would have written: log, indexes, limits."""
import struct

import pytest

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.segment_scan import scan
from seglog._kernels.window import Window
from seglog.config import LogConfig
from seglog.errors import CorruptRecordError, StorageError
from seglog.fs.files import OsFileSystem
from seglog.segment.segment import Segment
from seglog.segment.transaction_index import AbortedTransaction
from seglog.segment.writer import SegmentWriter
from support.golden import golden_cases

# Live indexes of these are no function of their log: Kafka 2.8.2 decides once an append, a reopened log counts anew,
# a crashed broker leaves zeros.
LIVE_DIFFERS = ("k282", "crash-", "mixed-formats", "compact-")
BASE = 5_000_000_000
MTIME_NS = 1_500_000_000_123_456_789


def write(directory, base_offset, data, at_a_time=10**9, **config):
    """Write scanned batches as a segment, `at_a_time` of them in one append."""
    window = Window(bytes(data))
    table = scan(window)
    with SegmentWriter(OsFileSystem(), directory, base_offset, LogConfig.of(config)) as writer:
        first = 0
        while first < len(table):
            stop = min(writer.fits(table, first), first + at_a_time)
            if stop == first:
                break
            writer.append(window, table, first, stop)
            first = stop
        writer.finish(mtime_ns=MTIME_NS)
    return writer, first


def batch(offset, *, value_size=100, timestamp=1000, last_offset=None):
    builder = BatchBuilder(offset)
    builder.append(offset, timestamp, None, bytes(value_size))
    return builder.finish(last_offset=last_offset)


@pytest.mark.parametrize("at_a_time", [1, 3, 10**9])
def test_golden_segments_written_again_are_the_same(tmp_path, at_a_time):
    seen = 0
    for case in golden_cases():
        if any(word in case.name for word in LIVE_DIFFERS):
            continue
        interval = LogConfig().index_interval_bytes
        text = (case / "case.json").read_text()
        if '"index.interval.bytes":"' in text:
            interval = int(text.split('"index.interval.bytes":"')[1].split('"')[0])
        for log in sorted((case / f"{case.name}-0").glob("*.log")):
            directory = tmp_path / case.name
            directory.mkdir(exist_ok=True)
            write(directory, int(log.stem), log.read_bytes(), at_a_time, index_interval_bytes=interval)
            for suffix in (".log", ".index", ".timeindex"):
                written = (directory / log.name).with_suffix(suffix)
                assert written.read_bytes() == log.with_suffix(suffix).read_bytes(), written
            seen += 1
    assert seen > 70


def test_an_empty_segment_has_empty_files(tmp_path):
    writer, _ = write(tmp_path, BASE, b"")
    assert writer.next_offset == BASE
    assert {p.name: p.stat().st_size for p in tmp_path.iterdir()} == {
        f"{BASE:020d}.log": 0, f"{BASE:020d}.index": 0, f"{BASE:020d}.timeindex": 0,
    }


def test_all_files_get_the_time_that_is_given(tmp_path):
    write(tmp_path, BASE, batch(BASE))
    assert {p.stat().st_mtime_ns for p in tmp_path.iterdir()} == {MTIME_NS}


def test_a_transaction_index_is_made_with_its_first_line(tmp_path):
    lines = [AbortedTransaction(7, BASE, BASE + 3, BASE + 1), AbortedTransaction(8, BASE + 1, BASE + 5, BASE + 6)]
    with SegmentWriter(OsFileSystem(), tmp_path, BASE, LogConfig()) as writer:
        for line in lines:
            writer.add_aborted(line)
        writer.finish()
    assert list(Segment(writer.path).transaction_index) == lines


# --- limits ------------------------------------------------------------------------------------


def test_a_segment_takes_batches_up_to_segment_bytes(tmp_path):
    size = len(batch(BASE))
    data = b"".join(batch(BASE + i) for i in range(10))
    writer, count = write(tmp_path, BASE, data, segment_bytes=3 * size)
    assert (count, writer.size_bytes, writer.next_offset) == (3, 3 * size, BASE + 3)


def test_the_first_batch_fits_however_large(tmp_path):
    data = batch(BASE, value_size=5000) + batch(BASE + 1)
    writer, count = write(tmp_path, BASE, data, segment_bytes=100)
    assert count == 1
    assert writer.path.stat().st_size == len(batch(BASE, value_size=5000))


@pytest.mark.parametrize(("last", "count"), [(BASE + 2**31 - 1, 2), (BASE + 2**31, 1)])
def test_offsets_go_up_to_31_bits_above_the_base(tmp_path, last, count):
    assert write(tmp_path, BASE, batch(BASE) + batch(last))[1] == count


def test_a_segment_may_end_at_the_last_offset_there_is(tmp_path):
    base = 2**63 - 5
    batches = [batch(base), batch(base + 1)]
    writer, count = write(tmp_path, base, b"".join(batches))
    assert count == 2
    assert writer.path.read_bytes() == b"".join(batches)


def test_a_batch_that_no_index_entry_can_name_is_refused(tmp_path):
    window = Window(batch(BASE + 2**31))
    table = scan(window)
    with SegmentWriter(OsFileSystem(), tmp_path, BASE, LogConfig()) as writer:
        with pytest.raises(CorruptRecordError, match="no index entry can express"):
            writer.append(window, table, 0, 1)
        assert (writer.size_bytes, writer.next_offset) == (0, BASE)


@pytest.mark.parametrize("at_a_time", [1, 10**9])
def test_a_segment_ends_where_an_index_is_full(tmp_path, at_a_time):
    # Room for 12 offset entries, and 8 time entries of which the last is kept for closing.
    data = b"".join(batch(BASE + i, timestamp=1000 + i) for i in range(40))
    _, count = write(tmp_path, BASE, data, at_a_time, segment_index_bytes=100, index_interval_bytes=1)
    # The first batch has no entry; the batch after the seventh entry begins a new segment.
    assert count == 8
    assert (tmp_path / f"{BASE:020d}.index").stat().st_size == 7 * 8
    assert (tmp_path / f"{BASE:020d}.timeindex").stat().st_size == 7 * 12


@pytest.mark.parametrize("interval", [0, 1, 150, 500, 4096])
@pytest.mark.parametrize("at_a_time", [1, 7, 10**9])
def test_a_full_index_is_never_passed_and_ends_a_segment_at_the_same_batch(tmp_path, interval, at_a_time):
    data = b"".join(batch(BASE + i, timestamp=1000 + i, value_size=i * 37 % 400) for i in range(300))
    writer, count = write(tmp_path, BASE, data, at_a_time, segment_index_bytes=64, index_interval_bytes=interval)
    entries = struct.iter_unpack(">ii", (tmp_path / f"{BASE:020d}.index").read_bytes())
    assert len(list(entries)) <= 8
    assert count == write_one_by_one(data, interval, 64)
    assert writer.next_offset == BASE + count


def write_one_by_one(data, interval, index_bytes):
    """How many batches LogSegment.shouldRoll lets into a segment."""
    position = since = offset_entries = time_entries = 0
    for count, b in enumerate(scan(Window(data))):
        if position and (offset_entries >= index_bytes // 8 or time_entries >= index_bytes // 12 - 1):
            return count
        if since > interval:
            offset_entries += 1
            time_entries += 1
            since = 0
        since += b.size_bytes
        position += b.size_bytes
    return count + 1


# --- what goes wrong -------------------------------------------------------------------------------


def test_a_batch_below_the_end_is_refused(tmp_path):
    window = Window(batch(BASE + 5) + batch(BASE + 5))
    table = scan(window)
    with SegmentWriter(OsFileSystem(), tmp_path, BASE, LogConfig()) as writer:
        writer.append(window, table, 0, 1)
        with pytest.raises(CorruptRecordError, match=f"expected {BASE + 6}") as e:
            writer.append(window, table, 1, 2)
        assert e.value.offset == BASE + 5


def test_a_segment_that_exists_is_not_written_over(tmp_path):
    write(tmp_path, BASE, batch(BASE))
    with pytest.raises(StorageError, match="exists"):
        write(tmp_path, BASE, b"")
    assert (tmp_path / f"{BASE:020d}.log").read_bytes() == batch(BASE)


def test_what_was_opened_before_a_refusal_is_closed(tmp_path):
    (tmp_path / f"{BASE:020d}.timeindex").write_bytes(b"")
    with pytest.raises(StorageError, match="exists"):       # and no ResourceWarning: those are errors here
        write(tmp_path, BASE, b"")
