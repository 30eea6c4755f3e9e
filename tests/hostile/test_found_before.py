"""What hostile bytes once broke, each made as small as it goes."""
import struct

import pytest

from seglog._kernels.segment_scan import scan
from seglog._kernels.status import Status
from seglog._kernels.window import Window
from seglog.errors import UnsupportedCompressionTypeError
from seglog.log.partition import Partition
from seglog.upkeep.directory_conversion import convert
from seglog.upkeep.verify import LEVELS, verify
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
@pytest.mark.parametrize("behind", [b"", b"\1" * 70, BATCHES["v2"], 20_000 * BATCHES["v1"]], ids=len)
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
        assert len(list(partition.records(start=number))) == (number < 0)
        assert len(list(partition.records(stop=number))) == (number > 0)


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
        convert(directory)
