"""Time ranges: what the kernel makes and finds is what obvious Python makes and finds, and no bytes mislead it."""
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog._kernels.batch_builder import BatchBuilder
from seglog._kernels.crc import crc32c
from seglog._kernels.segment_scan import scan
from seglog._kernels.time_ranges import TimeRangesBuilder, TimeRangesSearch
from seglog._kernels.window import Window
from seglog.errors import CorruptIndexError, CorruptRecordError, InvalidArgumentError, UnsupportedVersionError
from seglog.format.compression import compress, decompressor

BASE = 7_000_000_000
SMALLEST, LARGEST = 2**63 - 1, -(2**63)     # of no record
HEADER, RUN, RANGE = 64, 32, 16
CODECS = st.sampled_from([0, 0, 1])


def batch(offset, timestamps, codec=0):
    builder = BatchBuilder(offset)
    for n, timestamp in enumerate(timestamps):
        builder.append(offset + n, timestamp, None, bytes(20))
    if codec:
        return bytes(builder.finish(bytes(compress(codec, 2, builder.payload())), codec))
    return bytes(builder.finish())


def log_of(batches):
    raw, offset = b"", BASE
    for timestamps, codec in batches:
        raw += batch(offset, timestamps, codec)
        offset += len(timestamps)
    return raw


def table_of(raw):
    return scan(Window(raw), decompress=decompressor())


def file_of(raw, run_bytes=200):
    builder = TimeRangesBuilder(BASE, run_bytes)
    builder.add(table_of(raw), decompressor())
    return builder.finish()


def search(raw):
    return TimeRangesSearch(Window(raw, "t.ranges.index"))


def plain_runs(raw, run_bytes):
    """(first offset, position, smallest, largest) of each run: the rule, said again."""
    runs, position, times, first, size = [], 0, [], BASE, 0
    for found in table_of(raw):
        times += [record.timestamp for record in found]
        size += found.size_bytes
        end = found.position + found.size_bytes
        if size >= run_bytes or end == len(raw):
            runs.append((first, position, min(times, default=SMALLEST), max(times, default=LARGEST)))
            position, first, times, size = end, found.last_offset + 1, [], 0
    return runs


def runs_of(found):
    columns = [array("q", bytes(8 * len(found))) for _ in range(4)]
    found.copy(0, *columns)
    return list(zip(*columns, strict=True))


moments = st.one_of(st.integers(-1, 50), st.sampled_from([0, 2**40, 2**62]))
batches = st.lists(st.tuples(st.lists(moments, min_size=1, max_size=4), CODECS), max_size=60)


@given(batches, st.sampled_from([1, 200, 500, 10_000]))
def test_runs_are_those_of_the_rule(batches, run_bytes):
    raw = log_of(batches)
    found = search(file_of(raw, run_bytes))
    expected = plain_runs(raw, run_bytes)
    assert runs_of(found) == expected
    assert found.bounds == (min((r[2] for r in expected), default=SMALLEST),
                            max((r[3] for r in expected), default=LARGEST))
    assert found.describes(Window(raw))
    ends = [*((first, position) for first, position, _, _ in expected[1:]), (found.next_offset, len(raw))]
    ends = ends[: len(expected)]        # none of an empty log
    for slot, (run, (stop, end)) in enumerate(zip(expected, ends, strict=True)):
        assert found.run(slot) == (run[0], stop, run[1], end, run[2], run[3])


@given(st.lists(st.lists(moments, min_size=1, max_size=2), min_size=1, max_size=700), st.data())
def test_searches_find_what_a_look_at_each_run_finds(times, data):
    """So many that runs have groups, and groups have groups."""
    found = search(file_of(log_of([(row, 0) for row in times]), 1))
    assert len(found) == len(times)
    for _ in range(20):
        slot = data.draw(st.integers(0, len(times) + 1))
        low, high = sorted((data.draw(moments), data.draw(moments)))
        hits = [n for n, row in enumerate(times) if max(row) >= low and min(row) <= high]
        assert found.find(slot, low, high) == next((n for n in hits if n >= slot), -1)
        behind = next((n for n in range(slot, len(times)) if n not in hits), max(slot, len(times)))
        assert found.find_end(slot, low, high) == behind
    firsts = [run[0] for run in runs_of(found)]
    for offset in data.draw(st.lists(st.integers(BASE - 2, BASE + 2 * len(times) + 2), max_size=10)):
        assert found.slot_at(offset) == max(sum(first <= offset for first in firsts) - 1, 0)


def test_sixteen_groups_of_groups():
    count = 16**3 + 5
    times = [[n] for n in range(count)]
    found = search(file_of(log_of([(row, 0) for row in times]), 1))
    for n in (0, 15, 16, 255, 256, 4095, 4096, count - 1):
        assert found.find(0, n, 2**62) == n
        assert found.find(n, n, n) == n
    assert found.find(0, count, 2**62) == -1


# --- refusals ------------------------------------------------------------------------------------

LOG = log_of([([n, 1000 - n], 0) for n in range(40)])
GOOD = file_of(LOG, 1)


def sealed(raw):
    """With a checksum that fits."""
    return raw[:8] + struct.pack(">I", crc32c(raw[12:])) + raw[12:]


def changed(position, shape, value):
    raw = bytearray(GOOD)
    struct.pack_into(shape, raw, position, value)
    return sealed(bytes(raw))


REFUSED = {
    "no bytes": (b"", "does not begin with SGTR"),
    "another file": (b"x" * 200, "does not begin with SGTR"),
    "a header that ends early": (GOOD[:63], "63 bytes"),
    "a flipped bit": (GOOD[:70] + bytes([GOOD[70] ^ 1]) + GOOD[71:], "checksum"),
    "a torn file": (GOOD[:512], "checksum"),
    "fewer bytes than runs": (sealed(GOOD[:512]), "40 runs in a file of 512 bytes"),
    "a part of a group": (sealed(GOOD[:-8]), "do not fit 40 runs"),
    "more bytes": (sealed(GOOD + bytes(16)), "do not fit 40 runs"),
    "less than no run": (changed(16, ">i", -1), "-1 runs"),
    "runs by the billion": (changed(16, ">i", 2**31 - 1), "2147483647 runs"),
    "a first run that begins behind the start": (changed(HEADER, ">q", 1), "run 0"),
    "a first run of another offset": (changed(HEADER + 8, ">q", BASE + 1), "run 0"),
    "a run before the one before it": (changed(HEADER + 3 * RUN, ">q", 5), "run 3"),
    "a run behind the log": (changed(HEADER + 39 * RUN, ">q", len(LOG)), "run 39"),
    "a run at an earlier offset": (changed(HEADER + 3 * RUN + 8, ">q", BASE), "run 3"),
    "a group that hides a run": (changed(HEADER + 40 * RUN + RANGE + 8, ">q", 3), "run 16"),
    "a log that ends before it begins": (changed(32, ">q", BASE - 1), "run 0"),
    "an offset below 0": (changed(24, ">q", -1), "run 0"),
    "a last batch behind the log": (changed(48, ">q", len(LOG) + 1), "run 0"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_is_refused(why):
    raw, words = REFUSED[why]
    with pytest.raises(CorruptIndexError, match=words) as refusal:
        search(raw)
    assert refusal.value.file == "t.ranges.index"


def test_a_newer_version_is_refused_with_what_to_do():
    with pytest.raises(UnsupportedVersionError, match=r"version 2; this seglog reads version 1") as refusal:
        search(GOOD[:4] + struct.pack(">I", 2) + b"?" * 10)
    assert "remove the file" in refusal.value.hint


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255), st.booleans())
def test_no_changed_byte_reads_out_of_bounds(position, change, with_checksum):
    raw = bytearray(GOOD)
    raw[position] ^= change
    try:
        found = search(sealed(bytes(raw)) if with_checksum else bytes(raw))
    except (CorruptIndexError, UnsupportedVersionError):
        return
    runs_of(found)
    found.describes(Window(LOG))
    assert found.find(0, 2**62, 2**63 - 1) >= -1


def test_ranges_describe_one_log_only():
    ranges = search(GOOD)
    assert ranges.describes(Window(LOG))
    assert not ranges.describes(Window(LOG[:-1]))
    assert not ranges.describes(Window(LOG + b"x"))
    other = log_of([([n, 1000 - n], 0) for n in range(39)] + [([41, 959], 0)])
    assert len(other) == len(LOG)
    assert not ranges.describes(Window(other))
    moved = bytearray(LOG)
    struct.pack_into(">q", moved, ranges.last_position, BASE + 100)
    assert not ranges.describes(Window(bytes(moved)))
    empty = search(file_of(b""))
    assert len(empty) == 0
    assert empty.describes(Window(b""))
    assert not empty.describes(Window(LOG))


def test_batches_come_in_order_and_are_whole():
    table = table_of(LOG)
    builder = TimeRangesBuilder(BASE, 100)
    builder.add(table, None)
    with pytest.raises(InvalidArgumentError, match="a batch at byte 0, expected at"):
        builder.add(table, None)
    with pytest.raises(InvalidArgumentError, match="after offset"):
        TimeRangesBuilder(BASE + 100, 100).add(table, None)
    for run_bytes in (0, -1, 2**31):
        with pytest.raises(InvalidArgumentError, match="a run must have"):
            TimeRangesBuilder(BASE, run_bytes)
    raw = bytearray(batch(BASE, [1, 2]))
    for value in (0x00, 0x01, 0x7E, 0xFF):      # lengths: none, below none, longer than the batch, without an end
        raw[61] = value
        with pytest.raises(CorruptRecordError):
            TimeRangesBuilder(BASE, 100).add(scan(Window(bytes(raw))), None)
    search_ = search(GOOD)
    for slot in (-1, 40):
        with pytest.raises(IndexError):
            search_.run(slot)
    for call in (search_.find, search_.find_end):
        with pytest.raises(IndexError):
            call(-1, 0, 1)
    columns = [array("q", [0]) for _ in range(4)]
    for first in (-1, 40, 41):
        with pytest.raises(InvalidArgumentError, match="there are 40"):
            search_.copy(first, *columns)
    with pytest.raises(InvalidArgumentError, match="different lengths"):
        search_.copy(0, *columns[:3], array("q"))
