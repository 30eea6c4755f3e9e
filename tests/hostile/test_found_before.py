"""What hostile bytes once broke, each made as small as it goes."""
import struct
import time

import pytest

from seglog._kernels.segment_scan import scan
from seglog._kernels.status import Status
from seglog._kernels.window import Window
from seglog.conversion.directory import plan_conversion
from seglog.errors import UnsupportedCompressionTypeError
from seglog.reading.partition import Partition
from seglog.verification.verify import LEVELS, verify
from support import plain_format as plain
from support.hostile_readers import Readers, Workshop

LAST_INT64 = 2**63 - 1


def at_offset(offset, batch):
    """The batch with another base offset, which no checksum covers."""
    return struct.pack(">q", offset) + batch[8:]


BATCHES = {
    "v0": plain.message(0, b"k", b"v", magic=0),
    "v1": plain.message(0, b"k", b"v", magic=1),
    "v2": plain.batch_v2(plain.record_v2(0, 0, b"k", b"v")),
}


@pytest.fixture
def workshop(tmp_path):
    return Workshop(tmp_path)


def lay_out(workshop, files):
    """A partition directory with the files; its path, and that of its first log."""
    directory = workshop.lay_out("found-0", files, {})
    return directory, min(directory.glob("*.log"))


@pytest.mark.parametrize("version", BATCHES)
def test_a_batch_that_ends_at_the_last_int64_is_damage(version):
    # One past its last offset is no offset: each reader that goes on behind it once raised OverflowError.
    table = scan(Window(BATCHES[version] + at_offset(LAST_INT64, BATCHES[version])))
    assert (len(table), table.stop) == (1, Status.OFFSET_RANGE)
    assert table.stop_details() == (f"last offset {LAST_INT64}", f"at most {LAST_INT64 - 1}")
    assert len(scan(Window(at_offset(LAST_INT64 - 1, BATCHES[version])))) == 1


@pytest.mark.parametrize("version", BATCHES)
@pytest.mark.parametrize("offset", [LAST_INT64, LAST_INT64 - 1])
@pytest.mark.parametrize("behind", [b"", b"\1" * 70, BATCHES["v2"], bytes(9) + 2_000 * BATCHES["v1"]], ids=len)
def test_the_largest_offsets_end_no_reader(workshop, version, offset, behind):
    data = at_offset(offset, BATCHES[version]) + behind
    directory, log = lay_out(workshop, {f"{0:020d}.log": data})
    Readers(0).log_bytes(data)
    Readers(0).partition(directory, log)


@pytest.mark.parametrize("base_offset", [LAST_INT64, LAST_INT64 - 1, LAST_INT64 - 2**31])
def test_the_largest_base_offset_ends_no_reader(workshop, base_offset):
    size = len(BATCHES["v2"])
    files = {
        "log": 30 * at_offset(base_offset, BATCHES["v2"]),
        "index": struct.pack(">ii", 2**31 - 1, size),
        "timeindex": struct.pack(">qi", 0, 2**31 - 1),
    }
    directory, log = lay_out(workshop, {f"{base_offset:020d}.{kind}": data for kind, data in files.items()})
    Readers(0).partition(directory, log)


@pytest.mark.parametrize("number", [2**63, 2**200, -(2**63) - 1])
def test_a_target_beyond_int64_is_before_or_behind_everything(workshop, number):
    directory, _ = lay_out(workshop, {f"{0:020d}.log": BATCHES["v2"]})
    with Partition(directory) as partition:
        [segment] = partition.segments
        assert (segment.find_offset(number) is None) == (number > 0)
        assert (segment.find_timestamp(number) is None) == (number > 0)
        assert len(list(partition._records_in_files(start=number))) == (number < 0)
        assert len(list(partition._records_in_files(stop=number))) == (number > 0)


def test_headers_that_claim_all_that_follows_do_not_make_a_walk_quadratic(workshop):
    # Before every small whole batch one that claims the rest of the file: a checksum over the rest for each, two
    # minutes for these 16 MiB on any machine, and days for a segment of 1 GiB. (Bounded, it is a second.)
    small = BATCHES["v0"]
    header = plain.batch_v2(bytes(7))[:61]
    unit = len(header) + len(small)
    data = bytearray((header + small) * ((16 << 20) // unit))
    for n, position in enumerate(range(0, len(data), unit)):
        struct.pack_into(">qi", data, position, 2 * n, len(data) - position - 12)
        struct.pack_into(">q", data, position + len(header), 2 * n + 1)
    directory, _ = lay_out(workshop, {f"{0:020d}.log": bytes(data)})
    began = time.process_time()
    with Partition(directory) as partition:
        records = partition.read(on_corrupt="skip")
        found = sum(1 for _ in records)
    # What it gave up is told.
    assert 0 < found < len(data) // unit
    assert sum(len(small) for _ in range(found)) + sum(r.size_bytes for r in records.lost) == len(data)
    assert not verify(directory).ok
    assert time.process_time() - began < 30


def test_index_entries_into_much_damage_are_judged_in_order(workshop):
    # Each of 64 Ki entries against each of 30 000 damaged places: minutes.
    small = BATCHES["v2"]
    data = bytearray()
    entries = b""
    for n in range(30_000):
        data += at_offset(2 * n, small)
        entries += struct.pack(">iiii", 4 * n + 1, len(data) + 1, 4 * n + 2, len(data) + 2)
        data += b"\1" * 9
    directory, _ = lay_out(workshop, {f"{0:020d}.log": bytes(data), f"{0:020d}.index": entries})
    began = time.process_time()
    codes = {f.code for f in verify(directory).findings}
    assert "bad_batch" in codes
    assert time.process_time() - began < 30


def test_time_entries_of_one_batch_are_not_each_sought_from_the_start(workshop):
    # 400 000 entries for the last of 8 000 batches.
    count = 8_000
    data = b"".join(at_offset(n, BATCHES["v2"]) for n in range(count))
    entries = b"".join(struct.pack(">qi", n, count - 1) for n in range(400_000))
    directory, _ = lay_out(workshop, {f"{0:020d}.log": data, f"{0:020d}.timeindex": entries})
    began = time.process_time()
    assert "timeindex_loose" in {f.code for f in verify(directory).findings}
    assert time.process_time() - began < 30


def test_a_wrapper_that_does_not_open_does_not_end_skipping(workshop):
    # The lost range before it asked it for its first offset.
    shut = plain.message(9, None, b"no gzip", attributes=plain.GZIP)
    data = BATCHES["v2"] + b"\1" * 30 + shut + at_offset(10, BATCHES["v2"])
    directory, _ = lay_out(workshop, {f"{0:020d}.log": data})
    with Partition(directory) as partition:
        found = partition.read(on_corrupt="skip")
        assert [r.offset for r in found] == [0, 10]
    assert [(r.first_offset, r.last_offset) for r in found.lost] == [(1, 8), (9, 9)]


@pytest.mark.parametrize("level", LEVELS)
def test_a_marker_with_codec_bits_that_name_no_codec_ends_no_check(workshop, level):
    # files:127 of the first run: UnsupportedCompressionTypeError out of verify, where damage is a finding.
    marker = plain.batch_v2(
        plain.record_v2(0, 0, bytes(4), bytes(6)), attributes=plain.TRANSACTIONAL | plain.CONTROL | 7, producer_id=7)
    directory, _ = lay_out(workshop, {f"{0:020d}.log": marker})
    report = verify(directory, level=level)
    assert ("bad_records" in {f.code for f in report.findings}) == (level == "deep")


def test_a_plan_names_a_codec_that_does_not_exist(workshop):
    # files:1020: ValueError, "7 is not a valid Codec".
    batch = plain.batch_v2(plain.record_v2(0, 0, b"k", b"v"), attributes=7)
    directory, _ = lay_out(workshop, {f"{0:020d}.log": batch})
    with pytest.raises(UnsupportedCompressionTypeError):
        plan_conversion(directory)
